//! A sum and its normalization in one: com.microsoft's `SkipLayerNormalization`, and `SkipSimplifiedLayerNormalization`, which takes no
//! mean off.

use super::{Call, Definition, Known, Made, Operator, Reuse, Types, Unclear};
use smallvec::smallvec;
use stepalloc_kernels::blocks::Wide;
use stepalloc_kernels::no;
use stepalloc_kernels::real::{Space, widened, widened_bytes};
use stepalloc_kernels::scales::load;
use stepalloc_tensor::{DataType, OpError, Type, View};

pub(super) fn make(node: &Definition<'_>) -> Made {
    let rows =
        Rows { epsilon: node.attributes.float("epsilon", 1e-5), centre: node.op == "SkipLayerNormalization" };
    if node.outputs.iter().skip(1).take(2).any(|&wanted| wanted) {
        return Some(Err(OpError::unsupported("mean and deviation are not among what it gives here")));
    }
    Some(Ok(Box::new(SkipNormalization { rows, outputs: node.outputs.len() })))
}

/// How rows are normalized.
pub(super) struct Rows {
    pub epsilon: f32,
    /// Whether their mean is taken off.
    pub centre: bool,
}

impl Rows {
    /// Makes a row have variance 1, and mean 0 where it is to, and scales and shifts it.
    pub(super) fn normalize(&self, row: &mut [f32], scale: &[f32], shift: Option<&[f32]>) {
        let size = row.len() as f32;
        let mean = if self.centre { row.iter().sum::<f32>() / size } else { 0.0 };
        let variance = row.iter().map(|x| (x - mean) * (x - mean)).sum::<f32>() / size;
        let by = 1.0 / (variance + self.epsilon).sqrt();
        for (index, (x, scale)) in row.iter_mut().zip(scale).enumerate() {
            *x = (*x - mean) * by * scale + shift.map_or(0.0, |shift| shift[index]);
        }
    }
}

/// Whether elements are of a type that is known to these operators.
pub(super) fn known(dtype: DataType) -> Result<(), OpError> {
    match dtype {
        DataType::F32 | DataType::F16 | DataType::BF16 => Ok(()),
        other => Err(no(other)),
    }
}

/// Adds the elements of a tensor from number `from` on.
pub(super) fn add(view: &View<'_>, from: usize, row: &mut [f32]) {
    /// Elements that are widened at a time.
    const FEW: usize = 256;
    for (index, row) in row.chunks_mut(FEW).enumerate() {
        let mut few = [0.0; FEW];
        let few = &mut few[..row.len()];
        load(view, from + index * FEW, few);
        row.iter_mut().zip(few).for_each(|(x, other)| *x += *other);
    }
}

/// Bytes of scratch memory for a row of `size` elements and what it is scaled and shifted by.
pub(super) fn scratch(dtype: DataType, size: usize) -> usize {
    Space::bytes::<f32>(size) + 2 * widened_bytes::<f32>(dtype, size)
}

/// Rows of the sum of two tensors (and a bias) are normalized.
struct SkipNormalization {
    rows: Rows,
    outputs: usize,
}

impl SkipNormalization {
    /// Where what shifts rows and what is added to the sum are.
    fn inputs(&self) -> [Option<usize>; 2] {
        if self.rows.centre { [Some(3), Some(4)] } else { [None, Some(3)] }
    }
}

impl Operator for SkipNormalization {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        let (input, skip) = (inputs.ty(0)?, inputs.ty(1)?);
        known(input.dtype)?;
        // One member of a batch may be added to all.
        let one = match &input.shape[..] {
            [_, inner @ ..] if inner.len() == 2 => inner,
            _ => &[],
        };
        let is_one = !one.is_empty() && (skip.shape == one || skip.shape.split_first() == Some((&1, one)));
        if skip.dtype != input.dtype || skip.shape != input.shape && !is_one {
            return Err(OpError::operand(
                skip,
                input.dtype,
                format!("{input} and {skip} are not of one type"),
            )
            .into());
        }
        let row = *input.shape.last().ok_or_else(|| OpError::shape("its input has no dimensions"))?;
        inputs.ty(2)?;
        for index in self.inputs().into_iter().flatten().chain([2]) {
            if let Some(ty) = inputs.opt(index).filter(|ty| ty.dtype != input.dtype || ty.shape != [row]) {
                return Err(OpError::operand(
                    ty,
                    input.dtype,
                    format!("parameter {index} is {ty}, not {row} numbers of {}", input.dtype),
                )
                .into());
            }
        }
        // Mean and deviation are wanted by nobody; the sum is the fourth.
        let mut row = input.clone();
        row.shape.last_mut().into_iter().for_each(|last| *last = 1);
        let mut types = smallvec![input.clone(), row.clone(), row, input.clone()];
        types.truncate(self.outputs.max(1));
        Ok(types)
    }

    fn reuse(&self) -> Reuse {
        Reuse::InPlace(&[0, 1])
    }

    fn scratch(&self, inputs: &Known<'_>, _: &[Type]) -> usize {
        let size = inputs.opt(0).and_then(|input| Some((input.dtype, *input.shape.last()?)));
        size.map_or(0, |(dtype, size)| scratch(dtype, size))
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let (over, dtype) = (call.in_place(), call.dtype(0)?);
        let mut space = Space(call.scratch());
        let operand = |index: usize| call.opt(index).filter(|_| over != Some(index));
        let (input, skip) = (operand(0), operand(1));
        let [shift, bias] = self.inputs().map(|index| index.and_then(|index| call.opt(index)));
        let scale = widened::<f32>(&call.input(2)?, &mut space)?;
        let shift = shift.map(|shift| widened::<f32>(&shift, &mut space)).transpose()?;
        let row = space.take::<f32>(scale.len())?;
        let (out, mut sums) = (call.output(0)?.bytes, call.opt_output(3).map(|output| output.bytes));
        let width = (scale.len() * dtype.bytes()).max(1);
        for (number, out) in out.chunks_exact_mut(width).enumerate() {
            let at = number * scale.len();
            match (&input, &skip) {
                (Some(input), Some(skip)) => {
                    load(input, at, row);
                    add(skip, at % skip.len(), row);
                }
                // What is written over is there already.
                (Some(other), None) | (None, Some(other)) => {
                    f32::load(dtype, out, false, row);
                    add(other, at % other.len(), row);
                }
                (None, None) => return Err(OpError::MissingInput(0)),
            }
            if let Some(bias) = &bias {
                add(bias, 0, row);
            }
            if let Some(sums) = &mut sums {
                f32::store(row, false, dtype, &mut sums[number * width..][..width]);
            }
            self.rows.normalize(row, scale, shift);
            f32::store(row, false, dtype, out);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::trial::{Trial, close, floats, numbers, run, tensor};
    use stepalloc_tensor::{Tensor, f16};

    fn trial(inputs: Vec<Option<Tensor>>) -> Trial<'static> {
        Trial { domain: "com.microsoft", opset: 1, ..Trial::new("SkipLayerNormalization", &[], inputs) }
    }

    #[test]
    fn it_is_a_sum_and_a_layer_normalization_of_it() {
        let shape = [2, 3, 8];
        let [a, b] = [1, 2].map(|seed| numbers(&shape, seed));
        let [scale, shift, bias] = [3, 4, 5].map(|seed| numbers(&[8], seed));
        for with_bias in [false, true] {
            let mut sum = run("Add", 14, &[], &[Some(&a), Some(&b)]).expect("a sum").remove(0);
            let mut inputs = vec![a.clone(), b.clone(), scale.clone(), shift.clone()];
            if with_bias {
                sum = run("Add", 14, &[], &[Some(&sum), Some(&bias)]).expect("a sum").remove(0);
                inputs.push(bias.clone());
            }
            let wanted = run("LayerNormalization", 17, &[], &[Some(&sum), Some(&scale), Some(&shift)]);
            let wanted = wanted.expect("it runs").remove(0);
            let mut trial = trial(inputs.into_iter().map(Some).collect());
            assert!(close(floats(&trial.run().expect("it runs")[0]), floats(&wanted)));
            for over in [0, 1] {
                assert!(close(floats(&trial.run_over(Some(over)).expect("it runs")[0]), floats(&wanted)));
            }
            trial.outputs = vec![true, false, false, true];
            let made = trial.run().expect("it runs");
            assert!(close(floats(&made[0]), floats(&wanted)) && close(floats(&made[3]), floats(&sum)));
        }
    }

    #[test]
    fn without_a_mean_it_is_what_rms_normalization_makes() {
        let [a, b] = [1, 2].map(|seed| numbers(&[2, 3, 8], seed));
        let [scale, bias] = [3, 4].map(|seed| numbers(&[8], seed));
        let sum = run("Add", 14, &[], &[Some(&a), Some(&b)]).expect("a sum").remove(0);
        let sum = run("Add", 14, &[], &[Some(&sum), Some(&bias)]).expect("a sum").remove(0);
        let wanted = run("RMSNormalization", 23, &[], &[Some(&sum), Some(&scale)]).expect("it runs");
        let inputs = [a, b, scale, bias].map(Some).to_vec();
        let trial = Trial::new("SkipSimplifiedLayerNormalization", &[], inputs).outputs(4);
        let trial = Trial { domain: "com.microsoft", outputs: vec![true, false, false, true], ..trial };
        let made = trial.run().expect("it runs");
        assert!(close(floats(&made[0]), floats(&wanted[0])) && close(floats(&made[3]), floats(&sum)));
        let plain = run("SimplifiedLayerNormalization", 1, &[], &[Some(&sum), trial.inputs[2].as_ref()]);
        assert!(close(floats(&plain.expect("it runs")[0]), floats(&wanted[0])));
    }

    #[test]
    fn halves_are_summed_and_normalized_in_f32() {
        let half = |from: &Tensor| {
            let halves: Vec<_> = floats(from).iter().map(|&x| f16::from_f32(x)).collect();
            tensor(&from.ty().shape, &halves)
        };
        let inputs = [numbers(&[4, 300], 1), numbers(&[4, 300], 2), numbers(&[300], 3), numbers(&[300], 4)];
        let wanted = trial(inputs.clone().map(Some).to_vec()).run().expect("it runs");
        let mut halves = trial(inputs.each_ref().map(half).map(Some).to_vec());
        halves.outputs = vec![true, false, false, true];
        for over in [None, Some(0), Some(1)] {
            let made = halves.run_over(over).expect("it runs");
            let near = |(got, wanted): (&f16, &f32)| (got.to_f32() - wanted).abs() < 0.01;
            assert!(made[0].view().elements::<f16>().iter().zip(floats(&wanted[0])).all(near));
        }
    }

    #[test]
    fn one_member_of_a_batch_is_added_to_all() {
        let (a, one, scale) = (numbers(&[2, 3, 8], 1), numbers(&[1, 3, 8], 2), numbers(&[8], 3));
        let twice = tensor(&[2, 3, 8], &[floats(&one), floats(&one)].concat());
        let made = |skip: &Tensor| {
            let mut trial = trial([&a, skip, &scale].map(|input| Some(input.clone())).to_vec());
            trial.outputs = vec![true, false, false, true];
            [None, Some(0)].map(|over| floats(&trial.run_over(over).expect("it runs")[0]).to_vec())
        };
        assert_eq!(made(&one), made(&twice));
        assert_eq!(made(&tensor(&[3, 8], floats(&one))), made(&twice));
    }

    #[test]
    fn what_does_not_fit_is_an_error() {
        let (a, row) = (numbers(&[2, 8], 1), numbers(&[8], 2));
        let wrong =
            |inputs: [&Tensor; 3]| trial(inputs.map(|input| Some(input.clone())).to_vec()).run().is_err();
        assert!(wrong([&a, &numbers(&[1, 8], 3), &row]));
        assert!(wrong([&numbers(&[2, 3, 8], 1), &numbers(&[2, 8], 3), &row]));
        assert!(wrong([&a, &a, &numbers(&[7], 3)]));
        assert!(wrong([&a, &a, &tensor(&[8], &[1.0f64; 8])]));
        assert!(wrong([&numbers(&[], 1), &numbers(&[], 1), &row]));
        let mean = Trial { outputs: vec![true; 2], ..trial(vec![Some(a.clone()), Some(a), Some(row)]) };
        assert!(mean.run().is_err());
    }
}
