//! Operators that write values by a rule of their own: ranges, diagonals, one of many.

use super::{Call, Definition, Known, Made, Operator, Reuse, Types, Unclear, axis, typed};
use smallvec::smallvec;
use stepalloc_kernels::no;
use stepalloc_tensor::{Bool, DataType, Number, OpError, View, by_number, by_width};

pub(super) fn make(node: &Definition<'_>) -> Made {
    let attributes = node.attributes;
    Some(Ok(match node.op {
        "Range" => Box::new(Range),
        "EyeLike" => {
            let dtype = attributes.opt_int("dtype").map(|number| {
                let known = i32::try_from(number).ok().and_then(DataType::from_onnx);
                known.ok_or_else(|| OpError::unsupported(format!("element type {number} is not known")))
            });
            match dtype.transpose() {
                Ok(dtype) => Box::new(EyeLike { dtype, diagonal: attributes.int("k", 0) }),
                Err(why) => return Some(Err(why)),
            }
        }
        "Trilu" => Box::new(Trilu { upper: attributes.int("upper", 1) != 0 }),
        "OneHot" => Box::new(OneHot { axis: attributes.int("axis", -1) }),
        _ => return None,
    }))
}

/// An element as i64, as C casts; 0 where it is no number.
pub(super) fn int_at(view: &View<'_>, at: usize) -> i64 {
    by_number!(view.dtype, T => view.elements::<T>()[at].to_i64(), 0)
}

/// The only element, as i64.
pub(super) fn single(view: &View<'_>) -> Result<i64, OpError> {
    if view.len() != 1 {
        return Err(OpError::shape(format!("{} elements of shape {:?} are not one", view.len(), view.shape)));
    }
    Ok(int_at(view, 0))
}

/// Numbers from one to another at equal distances.
struct Range;

/// How many they are.
fn count(start: &View<'_>, limit: &View<'_>, delta: &View<'_>) -> Result<usize, OpError> {
    let dtype = start.dtype;
    if limit.dtype != dtype || delta.dtype != dtype {
        return Err(OpError::element_type(format!(
            "{dtype}, {} and {} are not of one type",
            limit.dtype, delta.dtype
        )));
    }
    if [start, limit, delta].iter().any(|view| view.len() != 1) {
        return Err(OpError::shape("its inputs are not single numbers"));
    }
    let wrong = |what: &dyn std::fmt::Display| {
        OpError::value(format!("there are {what} steps from its start to its limit"))
    };
    if dtype.is_float() {
        let of = |view: &View<'_>| by_number!(dtype, T => view.elements::<T>()[0].to_f64(), 0.0);
        let steps = ((of(limit) - of(start)) / of(delta)).ceil();
        if steps.is_nan() || steps > isize::MAX as f64 {
            return Err(wrong(&steps));
        }
        return Ok(steps.max(0.0) as usize);
    }
    // Wide enough for the distance of any two integers of 64 bits, whichever sign they have.
    let of = |view: &View<'_>| match dtype {
        DataType::U64 => i128::from(view.elements::<u64>()[0]),
        _ => i128::from(int_at(view, 0)),
    };
    let (way, step) = (of(limit) - of(start), of(delta));
    if step == 0 {
        return Err(OpError::value("its steps are 0"));
    }
    let steps = (way * step.signum() + step.abs() - 1).div_euclid(step.abs()).max(0);
    usize::try_from(steps).map_err(|_| wrong(&steps))
}

impl Operator for Range {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        let dtype = inputs.ty(0)?.dtype;
        let steps = count(&inputs.value(0)?, &inputs.value(1)?, &inputs.value(2)?)?;
        Ok(smallvec![typed(dtype, [steps])?])
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let (start, delta, output) = (call.input(0)?, call.input(2)?, call.output(0)?);
        by_number!(start.dtype, T => {
            let (start, delta) = (start.elements::<T>()[0].wide(), delta.elements::<T>()[0].wide());
            for (n, place) in output.elements::<T>().iter_mut().enumerate() {
                *place = T::narrow(start.plus(<T as Number>::Wide::from_i64(n as i64).times(delta)));
            }
        }, return Err(no(start.dtype)));
        Ok(())
    }
}

/// A matrix with ones on a diagonal.
struct EyeLike {
    dtype: Option<DataType>,
    diagonal: i64,
}

impl Operator for EyeLike {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        let input = inputs.ty(0)?;
        if input.rank() != 2 {
            return Err(OpError::shape(format!("{input} is no matrix")).into());
        }
        Ok(smallvec![typed(self.dtype.unwrap_or(input.dtype), &input.shape[..])?])
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let output = call.output(0)?;
        let (dtype, columns) = (output.dtype, output.shape[1]);
        let mut one = [0; 8];
        if dtype == DataType::Bool {
            one[0] = Bool::from(true).0;
        } else {
            by_number!(dtype, T => {
                one[..size_of::<T>()].copy_from_slice(bytemuck::bytes_of(&T::from_i64(1)));
            }, return Err(no(dtype)));
        }
        output.bytes.fill(0);
        by_width!(dtype, T => {
            let one = bytemuck::pod_read_unaligned::<T>(&one[..size_of::<T>()]);
            for (n, row) in output.raw::<T>().chunks_exact_mut(columns.max(1)).enumerate() {
                let column = (n as i64).checked_add(self.diagonal).and_then(|at| usize::try_from(at).ok());
                if let Some(place) = column.and_then(|column| row.get_mut(column)) {
                    *place = one;
                }
            }
        });
        Ok(())
    }
}

/// Matrices with zeros below or above a diagonal.
struct Trilu {
    upper: bool,
}

impl Operator for Trilu {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        let input = inputs.ty(0)?;
        if input.rank() < 2 {
            return Err(OpError::shape(format!("{input} holds no matrices")).into());
        }
        Ok(smallvec![input.clone()])
    }

    fn reuse(&self) -> Reuse {
        Reuse::InPlace(&[0])
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let output = call.output(0)?;
        let diagonal = call.opt(1).map_or(Ok(0), |k| single(&k))?;
        if call.in_place().is_none() {
            output.bytes.copy_from_slice(call.input(0)?.bytes);
        }
        let (dtype, shape) = (output.dtype, output.shape);
        let &[.., rows, columns] = shape else { return Err(OpError::shape("it holds no matrices")) };
        by_width!(dtype, T => {
            for (n, row) in output.raw::<T>().chunks_exact_mut(columns.max(1)).enumerate() {
                // The first column that is above the diagonal, or on it where what is above is kept.
                let row_at = (n % rows.max(1)) as i64;
                let column = row_at.saturating_add(diagonal).saturating_add(i64::from(!self.upper));
                let column = column.clamp(0, columns as i64) as usize;
                let gone = if self.upper { &mut row[..column] } else { &mut row[column..] };
                gone.fill(0);
            }
        });
        Ok(())
    }
}

/// For each index, a row with one value at that place and another one at all others.
struct OneHot {
    axis: i64,
}

impl Operator for OneHot {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        let (indices, values) = (inputs.ty(0)?, inputs.ty(2)?);
        if values.elements() != 2 {
            return Err(OpError::shape(format!("{values} are not two values")).into());
        }
        let mut shape = indices.shape.clone();
        let at = axis(self.axis, shape.len() + 1)?;
        let depth = single(&inputs.value(1)?)?;
        shape
            .insert(at, usize::try_from(depth).map_err(|_| OpError::value(format!("its depth is {depth}")))?);
        Ok(smallvec![typed(values.dtype, shape)?])
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let (indices, values, output) = (call.input(0)?, call.input(2)?, call.output(0)?);
        let at = axis(self.axis, output.shape.len())?;
        let depth = output.shape[at] as i64;
        let inner: usize = indices.shape[at..].iter().product();
        by_width!(values.dtype, T => {
            let &[off, on] = values.raw::<T>() else { return Err(OpError::shape("it has not two values")) };
            let target = output.raw::<T>();
            target.fill(off);
            for n in 0..indices.len() {
                let index = int_at(&indices, n);
                let index = if index < 0 { index.saturating_add(depth) } else { index };
                if (0..depth).contains(&index) {
                    target[(n / inner * depth as usize + index as usize) * inner + n % inner] = on;
                }
            }
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trial::{Trial, counting, tensor};
    use stepalloc_graph::Attribute;
    use stepalloc_tensor::Tensor;

    /// Also with diagonals that no index reaches.
    #[test]
    fn triangles_over_the_input_are_those_elsewhere() {
        let input = counting(&[2, 3, 4]);
        for upper in [0, 1] {
            for diagonal in [i64::MIN, -2, 0, 1, i64::MAX] {
                let k = tensor(&[], &[diagonal]);
                let trial = Trial::new("Trilu", &[("upper", Attribute::Int(upper))], [&input, &k]);
                let (apart, over) =
                    (trial.run().expect("it runs"), trial.run_over(Some(0)).expect("it runs"));
                assert_eq!(apart[0].view().bytes, over[0].view().bytes);
                let kept = apart[0].view().elements::<f32>().iter().filter(|&&x| x != 0.0).count();
                match (diagonal, upper) {
                    (i64::MIN, 0) | (i64::MAX, 1) => assert_eq!(kept, 0),
                    (i64::MIN, 1) | (i64::MAX, 0) => assert_eq!(kept, 23),
                    _ => {}
                }
            }
        }
    }

    fn steps<T: stepalloc_tensor::Element>(start: T, limit: T, delta: T) -> Result<usize, OpError> {
        let [start, limit, delta] =
            [start, limit, delta].map(|value| Tensor::from_elements([], &[value]).expect("a scalar"));
        count(&start.view(), &limit.view(), &delta.view())
    }

    #[test]
    fn ranges_end_before_their_limit() {
        assert_eq!(steps(0.0f32, 1.0, 0.25).ok(), Some(4));
        assert_eq!(steps(10i64, 4, -3).ok(), Some(2));
        assert_eq!(steps(10i64, 4, 3).ok(), Some(0));
        assert_eq!(steps(i64::MIN, i64::MAX, i64::MAX).ok(), Some(3));
        assert_eq!(steps(0u64, u64::MAX, 1 << 63).ok(), Some(2));
    }

    #[test]
    fn ranges_without_an_end_are_errors() {
        assert!(steps(0i32, 5, 0).is_err());
        assert!(steps(0.0f32, 5.0, 0.0).is_err());
        assert!(steps(0.0f32, 0.0, 0.0).is_err());
        assert!(steps(f32::NEG_INFINITY, 0.0, 1.0).is_err());
    }
}
