//! Determinants of square matrices, by elimination.

use super::{Call, Definition, Known, Made, Operator, Types, Unclear, typed};
use smallvec::smallvec;
use stepalloc_kernels::{
    blocks::{Source, put},
    no,
};
use stepalloc_tensor::{OpError, Type};

pub(super) fn make(node: &Definition<'_>) -> Made {
    (node.op == "Det").then(|| Ok(Box::new(Determinant) as _))
}

/// Of the matrices that the last two dimensions are.
struct Determinant;

impl Operator for Determinant {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        let input = inputs.ty(0)?;
        match &input.shape[..] {
            [outer @ .., rows, columns] if rows == columns => Ok(smallvec![typed(input.dtype, outer)?]),
            _ => Err(OpError::shape(format!("{input} is not of square matrices")).into()),
        }
    }

    fn scratch(&self, inputs: &Known<'_>, _: &[Type]) -> usize {
        let size = inputs.opt(0).and_then(|input| input.shape.last().copied()).unwrap_or(0);
        size * size * size_of::<f64>()
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let (input, output) = (call.input(0)?, call.output(0)?);
        let size = input.shape.last().copied().unwrap_or(0);
        let scratch = call.scratch_of::<f64>();
        let matrix = &mut scratch[..size * size];
        let dtype = input.dtype;
        if !dtype.is_float() {
            return Err(no(dtype));
        }
        for number in 0..output.bytes.len() / dtype.bytes() {
            Source::new(&input).copy(number * size * size, matrix);
            put(dtype, output.bytes, number, eliminate(matrix, size));
        }
        Ok(())
    }
}

/// The determinant of a matrix, which is lost. Of rows that may come next, the one with the greatest element does.
fn eliminate(matrix: &mut [f64], size: usize) -> f64 {
    let mut product = 1.0;
    for at in 0..size {
        let magnitude = |row: &usize| matrix[row * size + at].abs();
        let best = (at..size).max_by(|a, b| magnitude(a).total_cmp(&magnitude(b))).unwrap_or(at);
        let pivot = matrix[best * size + at];
        if pivot == 0.0 {
            return 0.0;
        }
        let (above, below) = matrix.split_at_mut((at + 1) * size);
        if best != at {
            product = -product;
            above[at * size..].swap_with_slice(&mut below[(best - at - 1) * size..][..size]);
        }
        product *= pivot;
        let row = &above[at * size + at..];
        for other in below.chunks_exact_mut(size) {
            let by = other[at] / pivot;
            other[at..].iter_mut().zip(row).for_each(|(x, y)| *x -= by * y);
        }
    }
    product
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_exchanged_where_they_must() {
        assert_eq!(eliminate(&mut [0.0, 2.0, 3.0, 4.0], 2), -6.0);
        assert_eq!(eliminate(&mut [1.0, 2.0, 2.0, 4.0], 2), 0.0);
        assert_eq!(eliminate(&mut [], 0), 1.0);
    }
}
