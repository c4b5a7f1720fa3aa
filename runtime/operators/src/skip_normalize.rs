//! A sum and its normalization in one: com.microsoft's `SkipLayerNormalization`.

use super::{Call, Definition, Known, Made, Operator, Reuse, Unclear};
use stepalloc_kernels::no;
use stepalloc_tensor::{DataType, Type};

pub(super) fn make(node: &Definition<'_>) -> Made {
    let epsilon = node.attributes.float("epsilon", 1e-5);
    if node.outputs.iter().skip(1).take(2).any(|&wanted| wanted) {
        return Some(Err("mean and deviation are not among what it gives here".into()));
    }
    Some(Ok(Box::new(SkipNormalization { epsilon, outputs: node.outputs.len() })))
}

/// Rows of the sum of two tensors (and a bias) are made to have mean 0 and variance 1, then scaled and shifted.
struct SkipNormalization {
    epsilon: f32,
    outputs: usize,
}

impl Operator for SkipNormalization {
    fn infer(&self, inputs: &Known<'_>) -> Result<Vec<Type>, Unclear> {
        let (input, skip) = (inputs.ty(0)?, inputs.ty(1)?);
        if input != skip || input.dtype != DataType::F32 {
            return Err(format!("{input} and {skip} are not of one type of float32").into());
        }
        let row = *input.shape.last().ok_or("its input has no dimensions")?;
        inputs.ty(2)?;
        for index in 2..=4 {
            if let Some(ty) = inputs.opt(index).filter(|ty| ty.dtype != input.dtype || ty.shape != [row]) {
                return Err(format!("parameter {index} is {ty}, not {row} numbers of float32").into());
            }
        }
        // Mean and deviation are wanted by nobody; the sum is the fourth.
        let mut row = input.clone();
        row.shape.last_mut().into_iter().for_each(|last| *last = 1);
        let mut types = vec![input.clone(), row.clone(), row, input.clone()];
        types.truncate(self.outputs.max(1));
        Ok(types)
    }

    fn reuse(&self) -> Reuse {
        Reuse::InPlace(&[0, 1])
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), String> {
        let over = call.in_place();
        let dtype = call.dtype(0)?;
        if dtype != DataType::F32 {
            return Err(no(dtype));
        }
        let rows = |index: usize| call.opt(index).map(|view| view.elements::<f32>());
        let (input, skip) = (rows(0).filter(|_| over != Some(0)), rows(1).filter(|_| over != Some(1)));
        let scale = call.input(2)?.elements::<f32>();
        let (shift, bias) = (rows(3), rows(4));
        let mut sums = call.opt_output(3).map(|output| output.elements::<f32>());
        let (out, size) = (call.output(0)?.elements::<f32>(), scale.len().max(1));
        for (number, out) in out.chunks_exact_mut(size).enumerate() {
            let at = number * size;
            // What is written over is there already.
            match (input, skip) {
                (Some(a), Some(b)) => {
                    let both = a[at..].iter().zip(&b[at..]);
                    out.iter_mut().zip(both).for_each(|(out, (a, b))| *out = a + b);
                }
                (Some(other), None) | (None, Some(other)) => {
                    out.iter_mut().zip(&other[at..]).for_each(|(out, x)| *out += x);
                }
                (None, None) => return Err("both inputs are missing".into()),
            }
            if let Some(bias) = bias {
                out.iter_mut().zip(bias).for_each(|(out, x)| *out += x);
            }
            if let Some(sums) = &mut sums {
                sums[at..at + size].copy_from_slice(out);
            }
            let mean = out.iter().sum::<f32>() / size as f32;
            let variance = out.iter().map(|x| (x - mean) * (x - mean)).sum::<f32>() / size as f32;
            let by = 1.0 / (variance + self.epsilon).sqrt();
            for (index, (out, scale)) in out.iter_mut().zip(scale).enumerate() {
                *out = (*out - mean) * by * scale + shift.map_or(0.0, |shift| shift[index]);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::trial::{Trial, close, floats, numbers, run, tensor};
    use stepalloc_tensor::Tensor;

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
    fn what_does_not_fit_is_an_error() {
        let (a, row) = (numbers(&[2, 8], 1), numbers(&[8], 2));
        let wrong =
            |inputs: [&Tensor; 3]| trial(inputs.map(|input| Some(input.clone())).to_vec()).run().is_err();
        assert!(wrong([&a, &numbers(&[1, 8], 3), &row]));
        assert!(wrong([&a, &a, &numbers(&[7], 3)]));
        assert!(wrong([&a, &a, &tensor(&[8], &[1.0f64; 8])]));
        assert!(wrong([&numbers(&[], 1), &numbers(&[], 1), &row]));
        let mean = Trial { outputs: vec![true; 2], ..trial(vec![Some(a.clone()), Some(a), Some(row)]) };
        assert!(mean.run().is_err());
    }
}
