//! Tensors: described by a struct where they are looked at, handles where they stay.

use crate::status::{Failure, StepallocStatus, given, given_mut, hand_out, items, status, take_back, wrong};
use runtime::{DataType, Error, Owner, Tensor, Type, View};
use std::ffi::c_void;
use std::ops::Range;
use std::sync::Arc;

/// A tensor as C sees it: its type, and where its elements are.
#[repr(C)]
pub struct StepallocTensor {
    /// ONNX's number of the element type: 1 float, 2 uint8, 3 int8, 6 int32, 7 int64, 9 bool, 10 float16, 11 double, 16 bfloat16...
    pub element_type: i32,
    /// The number of dimensions; 0 for a scalar.
    pub rank: usize,
    /// Elements along each dimension; may be null for a scalar.
    pub dims: *const i64,
    /// The first element.
    pub data: *mut c_void,
    /// Bytes of all elements.
    pub bytes: usize,
}

/// A tensor that stays: in memory of its own, or in the caller's.
pub struct StepallocValue {
    ty: Type,
    /// The same, for C.
    dims: Box<[i64]>,
    begin: *mut u8,
    owner: Owner,
    tensor: StepallocTensor,
}

// SAFETY: the pointers are to memory that the value owns, or that the caller has promised to be there; what is done with it by several
// threads is the caller's to order, as the functions' texts say.
unsafe impl Send for StepallocValue {}
// SAFETY: as above.
unsafe impl Sync for StepallocValue {}

impl StepallocValue {
    /// A tensor that this library has made. What has memory that must not be written is copied.
    pub(crate) fn of(mut tensor: Tensor) -> Self {
        let begin = tensor.view_mut().bytes.as_mut_ptr();
        let ty = tensor.ty().clone();
        Self::new(ty, begin, Arc::new(tensor))
    }

    fn new(ty: Type, begin: *mut u8, owner: Owner) -> Self {
        let dims: Box<[i64]> = ty.shape.iter().map(|&dim| dim as i64).collect();
        let tensor = StepallocTensor {
            element_type: ty.dtype as i32,
            rank: dims.len(),
            dims: dims.as_ptr(),
            data: begin.cast(),
            bytes: ty.bytes(),
        };
        Self { ty, dims, begin, owner, tensor }
    }

    pub(crate) fn ty(&self) -> &Type {
        &self.ty
    }

    /// Addresses of its elements.
    pub(crate) fn addresses(&self) -> Range<usize> {
        let begin = self.begin.addr();
        begin..begin + self.ty.bytes()
    }

    /// Who keeps its memory.
    pub(crate) fn again(&self) -> Self {
        Self::new(self.ty.clone(), self.begin, Arc::clone(&self.owner))
    }

    /// A tensor of the same memory.
    ///
    /// # Safety
    /// It is not looked at while somebody writes the value's elements, nor written while somebody looks at them.
    pub(crate) unsafe fn borrow(&self) -> Tensor {
        // SAFETY: the caller's promise; the address was looked at when the value was made.
        let tensor = unsafe { Tensor::borrowed(self.ty.clone(), self.begin, Arc::clone(&self.owner)) };
        tensor.expect("a value's address is aligned")
    }
}

/// An element type by its number.
pub(crate) fn element_type(number: i32) -> Result<DataType, Failure> {
    DataType::from_onnx(number).ok_or_else(|| {
        let hint = match number {
            8 => " (strings are not known here)",
            14 | 15 => " (complex numbers are not known here)",
            _ => "",
        };
        wrong(format!("there is no element type {number}{hint}"))
    })
}

/// Sizes of dimensions, as the caller has them.
pub(crate) fn shape(dims: &[i64]) -> Result<Vec<usize>, Failure> {
    let size = |&dim: &i64| usize::try_from(dim);
    let shape: Result<_, _> = dims.iter().map(size).collect();
    shape.map_err(|_| wrong(format!("a dimension of {dims:?} is negative")))
}

impl StepallocTensor {
    /// Its type.
    ///
    /// # Safety
    /// `dims` is null, or has `rank` sizes.
    pub(crate) unsafe fn ty(&self) -> Result<Type, Failure> {
        // SAFETY: the caller's promise.
        let dims = unsafe { items(self.dims, self.rank, "dims")? };
        let dtype = element_type(self.element_type)?;
        Type::new(dtype, shape(dims)?)
            .ok_or_else(|| wrong(format!("{dtype}{dims:?} has more bytes than there are addresses")))
    }

    /// Checks that its elements are where they can be read; with its type and address.
    ///
    /// # Safety
    /// As for [`StepallocTensor::ty`].
    unsafe fn checked(&self) -> Result<(Type, *mut u8), Failure> {
        // SAFETY: the caller's promise.
        let ty = unsafe { self.ty()? };
        let (data, width) = (self.data.cast::<u8>(), ty.dtype.bytes());
        if ty.bytes() != self.bytes {
            return Err(wrong(format!("{ty} has {} bytes, and {} are given", ty.bytes(), self.bytes)));
        }
        if ty.bytes() > 0 && data.is_null() {
            return Err(wrong(format!("data of {ty} is null")));
        }
        if ty.bytes() > 0 && !data.addr().is_multiple_of(width) {
            return Err(wrong(format!(
                "data of {ty} does not begin at a multiple of {width} bytes: copy it"
            )));
        }
        Ok((ty, data))
    }
}

/// A tensor of the caller's, looked at during a call.
pub(crate) struct Looked<'a> {
    ty: Type,
    bytes: &'a [u8],
}

impl<'a> Looked<'a> {
    /// # Safety
    /// The tensor's `dims` and `data` are null or point to what it says, and nobody writes it for `'a`.
    pub(crate) unsafe fn at(tensor: &StepallocTensor) -> Result<Self, Failure> {
        // SAFETY: the caller's promise.
        let (ty, data) = unsafe { tensor.checked()? };
        let bytes = match ty.bytes() {
            0 => &[],
            // SAFETY: as many bytes as the type has are there, by the caller's promise; the address is not null.
            bytes => unsafe { std::slice::from_raw_parts(data, bytes) },
        };
        Ok(Self { ty, bytes })
    }

    /// The same; without data it stands for its type.
    ///
    /// # Safety
    /// As for [`Looked::at`].
    pub(crate) unsafe fn or_type(tensor: &StepallocTensor) -> Result<Self, Failure> {
        if tensor.data.is_null() {
            // SAFETY: the caller's promise.
            return Ok(Self { ty: unsafe { tensor.ty()? }, bytes: &[] });
        }
        // SAFETY: the same.
        unsafe { Self::at(tensor) }
    }

    pub(crate) fn view(&self) -> View<'_> {
        View { dtype: self.ty.dtype, shape: &self.ty.shape, bytes: self.bytes }
    }

    /// Whether only its type is said.
    pub(crate) fn is_type(&self) -> bool {
        self.bytes.is_empty() && self.ty.bytes() > 0
    }
}

/// A tensor in new memory, which is zero: `dims` has `rank` sizes.
///
/// # Safety
/// `dims` is null or has `rank` sizes; `value` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stepalloc_value_new(
    element_type: i32,
    dims: *const i64,
    rank: usize,
    value: *mut *mut StepallocValue,
) -> *mut StepallocStatus {
    status(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { given_mut(value, "value")? };
        let tensor = StepallocTensor { element_type, rank, dims, data: std::ptr::null_mut(), bytes: 0 };
        // SAFETY: the same.
        let ty = unsafe { tensor.ty()? };
        let tensor = Tensor::try_zeroed(ty).map_err(Error::from)?;
        hand_out(out, StepallocValue::of(tensor));
        Ok(())
    })
}

/// A tensor in the caller's memory, which is used where it is. The memory must be there until the value is released, and bindings that
/// it was bound to are released, or have something else in its place. It is read while a run has it as an input, and written while a run
/// has it as an output: nobody writes it meanwhile, or, of outputs, looks at it. Memory of a value that is only an input may be read-only.
///
/// # Safety
/// `tensor` is null or describes memory as above; `value` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stepalloc_value_borrow(
    tensor: *const StepallocTensor,
    value: *mut *mut StepallocValue,
) -> *mut StepallocStatus {
    status(|| {
        // SAFETY: the caller's promise.
        let (tensor, out) = unsafe { (given(tensor, "tensor")?, given_mut(value, "value")?) };
        // SAFETY: the same.
        let (ty, data) = unsafe { tensor.checked()? };
        hand_out(out, StepallocValue::new(ty, data, Arc::new(())));
        Ok(())
    })
}

/// The type of a value, and where its elements are; null of null. It is there as long as the value; elements may be read, and written,
/// while no run has them.
///
/// # Safety
/// `value` is null or a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stepalloc_value_tensor(value: *const StepallocValue) -> *const StepallocTensor {
    // SAFETY: the caller's promise.
    unsafe { value.as_ref() }.map_or(std::ptr::null(), |value| {
        debug_assert_eq!(value.tensor.dims, value.dims.as_ptr());
        &raw const value.tensor
    })
}

/// Releases a value; null is none. Memory of its own goes when no other value or binding has it.
///
/// # Safety
/// `value` is null or a handle that was not released.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stepalloc_value_release(value: *mut StepallocValue) {
    // SAFETY: the caller's promise.
    unsafe { take_back(value) };
}
