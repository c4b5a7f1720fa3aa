//! Arrays of the crate `ndarray` as tensors, and the other way round; with the feature `ndarray`.
//!
//! | from | to | elements |
//! |---|---|---|
//! | [`View`], `&Tensor` | [`ArrayViewD`] | stay where they are |
//! | [`ViewMut`], `&mut Tensor` | [`ArrayViewMutD`] | stay where they are |
//! | `&ArrayBase` | [`View`] | stay where they are; an error unless the array is in standard layout |
//! | [`Array`] | [`Tensor`] | stay where they are, in the array's memory, which the tensor has from then on; copied unless in standard layout |
//! | `&ArrayBase` | [`Tensor`] | copied |
//! | [`Tensor`] | [`ArrayD`] | copied: a tensor's memory is aligned to [`ALIGNMENT`](crate::ALIGNMENT), a file's, or somebody else's, and that of an array is a `Vec`'s |
//!
//! An array whose elements are of another type than the tensor's is an error: nothing is converted.
//!
//! ```
//! use ndarray::{ArrayD, ArrayViewD, array};
//! use stepalloc_tensor::{OpError, Tensor, View};
//!
//! # fn main() -> Result<(), OpError> {
//! let x = array![[1.0f32, 2.0], [3.0, 4.0]];
//! assert_eq!(View::try_from(&x)?.shape, [2, 2]); // for a run of a session
//! let tensor = Tensor::try_from(x)?; // for a binding
//! let y: ArrayViewD<'_, f32> = (&tensor).try_into()?;
//! assert_eq!(y.sum(), 10.0);
//! assert!(ArrayD::<f64>::try_from(tensor).is_err());
//! # Ok(())
//! # }
//! ```

use crate::element::{DataType, Element};
use crate::error::OpError;
use crate::tensor::{Tensor, Type, View, ViewMut};
use ndarray::{Array, ArrayBase, ArrayD, ArrayViewD, ArrayViewMutD, Data, Dimension, IxDyn, ShapeError};
use std::sync::Arc;

/// The type of a tensor of these elements.
fn type_of<T: Element>(shape: &[usize]) -> Result<Type, OpError> {
    Type::new(T::DTYPE, shape)
        .ok_or_else(|| OpError::shape(format!("a tensor of shape {shape:?} is too large")))
}

/// Whether elements of this type, in as many bytes, are an array's.
fn check<T: Element>(dtype: DataType, shape: &[usize], bytes: &[u8]) -> Result<(), OpError> {
    if dtype != T::DTYPE {
        return Err(OpError::element_type(format!("elements are of {dtype}, not of {}", T::DTYPE)));
    }
    if type_of::<T>(shape)?.bytes() != bytes.len() {
        return Err(OpError::shape(format!("a tensor of shape {shape:?} has {} bytes", bytes.len())));
    }
    if !bytes.is_empty() && !(bytes.as_ptr() as usize).is_multiple_of(align_of::<T>()) {
        return Err(OpError::value(format!(
            "elements do not begin at a multiple of {} bytes",
            align_of::<T>()
        )));
    }
    Ok(())
}

fn wrong_shape(error: ShapeError) -> OpError {
    OpError::shape(error.to_string())
}

impl<'a, T: Element> TryFrom<View<'a>> for ArrayViewD<'a, T> {
    type Error = OpError;

    /// The elements where they are.
    fn try_from(view: View<'a>) -> Result<Self, OpError> {
        check::<T>(view.dtype, view.shape, view.bytes)?;
        ArrayViewD::from_shape(IxDyn(view.shape), view.elements()).map_err(wrong_shape)
    }
}

impl<'a, T: Element> TryFrom<ViewMut<'a>> for ArrayViewMutD<'a, T> {
    type Error = OpError;

    /// The elements where they are.
    fn try_from(view: ViewMut<'a>) -> Result<Self, OpError> {
        check::<T>(view.dtype, view.shape, view.bytes)?;
        ArrayViewMutD::from_shape(IxDyn(view.shape), view.elements()).map_err(wrong_shape)
    }
}

impl<'a, T: Element> TryFrom<&'a Tensor> for ArrayViewD<'a, T> {
    type Error = OpError;

    /// The elements where they are.
    fn try_from(tensor: &'a Tensor) -> Result<Self, OpError> {
        tensor.view().try_into()
    }
}

impl<'a, T: Element> TryFrom<&'a mut Tensor> for ArrayViewMutD<'a, T> {
    type Error = OpError;

    /// The elements where they are; those of a file are copied first.
    fn try_from(tensor: &'a mut Tensor) -> Result<Self, OpError> {
        tensor.view_mut().try_into()
    }
}

impl<T: Element> TryFrom<Tensor> for ArrayD<T> {
    type Error = OpError;

    /// A copy of the elements.
    fn try_from(tensor: Tensor) -> Result<Self, OpError> {
        ArrayViewD::try_from(&tensor).map(|view| view.to_owned())
    }
}

impl<'a, S, D> TryFrom<&'a ArrayBase<S, D>> for View<'a>
where
    S: Data<Elem: Element>,
    D: Dimension,
{
    type Error = OpError;

    /// The elements where they are; an error unless they are in standard layout (row by row).
    fn try_from(array: &'a ArrayBase<S, D>) -> Result<Self, OpError> {
        let no_rows = || OpError::shape("an array that is not in standard layout: copy it to a tensor");
        let elements = array.as_slice().ok_or_else(no_rows)?;
        Ok(View { dtype: S::Elem::DTYPE, shape: array.shape(), bytes: bytemuck::cast_slice(elements) })
    }
}

impl<S, D> TryFrom<&ArrayBase<S, D>> for Tensor
where
    S: Data<Elem: Element>,
    D: Dimension,
{
    type Error = OpError;

    /// A copy of the elements.
    fn try_from(array: &ArrayBase<S, D>) -> Result<Self, OpError> {
        let mut tensor = Self::try_zeroed(type_of::<S::Elem>(array.shape())?)?;
        let elements = tensor.view_mut().elements();
        match array.as_slice() {
            Some(slice) => elements.copy_from_slice(slice),
            None => elements.iter_mut().zip(array).for_each(|(place, from)| *place = *from),
        }
        Ok(tensor)
    }
}

impl<T: Element, D: Dimension> TryFrom<Array<T, D>> for Tensor {
    type Error = OpError;

    /// A tensor in the array's memory, whose elements are aligned as those of a `Vec`; with a copy of them unless they are in standard
    /// layout (row by row).
    fn try_from(array: Array<T, D>) -> Result<Self, OpError> {
        if !array.is_standard_layout() {
            return (&array).try_into();
        }
        let ty = type_of::<T>(array.shape())?;
        let (mut elements, first) = array.into_raw_vec_and_offset();
        // There is no first one of none.
        let begin = elements.as_mut_ptr().wrapping_add(first.unwrap_or(0)).cast();
        // SAFETY: the vector keeps its elements where they are, and nobody has it but as their owner. In standard layout all elements of
        // the array lie one behind the other from the first on, and they are plain data, hence initialised bytes.
        let tensor = unsafe { Self::borrowed(ty, begin, Arc::new(elements)) };
        tensor.ok_or_else(|| OpError::internal("a vector's elements are not aligned"))
    }
}
