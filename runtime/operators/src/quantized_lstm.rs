//! DynamicQuantizeLSTM, of ONNX Runtime's domain: LSTM with weights of 8 bits.
//!
//! Its weights are made f32 before each run, and the rest is LSTM's. ONNX Runtime quantizes inputs and states as well, by their ranges
//! in each step; here they stay as they are.

use super::recurrent;
use super::{Call, Definition, Known, Made, Operator, Types, Unclear, typed};
use stepalloc_kernels::real::Space;
use stepalloc_tensor::{DataType, OpError, Type, View};

/// Inputs that LSTM has as well.
const SHARED: usize = 8;
/// Where weights are, their scales and their zero points: for inputs and for states.
const WEIGHTS: [[usize; 3]; 2] = [[1, 8, 9], [2, 10, 11]];

pub(super) fn make(node: &Definition<'_>) -> Made {
    if node.op != "DynamicQuantizeLSTM" {
        return None;
    }
    let made = recurrent::make(&Definition { op: "LSTM", domain: "", ..*node })?;
    Some(made.map(|layer| Box::new(Quantized { layer }) as _))
}

struct Quantized {
    layer: Box<dyn Operator>,
}

/// What the weights are as LSTM wants them: the last two dimensions swapped.
fn weights(inputs: &Known<'_>, [weight, scale, zero]: [usize; 3]) -> Result<Type, Unclear> {
    let (ty, scale, zero) = (inputs.ty(weight)?, inputs.ty(scale)?, inputs.ty(zero)?);
    let &[directions, input, gates] = &ty.shape[..] else {
        return Err(OpError::shape(format!("weights {ty} do not have three dimensions")).into());
    };
    if !matches!(ty.dtype, DataType::I8 | DataType::U8)
        || zero.dtype != ty.dtype
        || scale.dtype != DataType::F32
    {
        return Err(OpError::unsupported(format!(
            "weights {ty} of scale {scale} and zero point {zero} are not known to it"
        ))
        .into());
    }
    let fits = |of: &Type| of.shape == [directions] || of.shape == [directions, gates];
    if !fits(scale) || !fits(zero) {
        return Err(OpError::shape(format!(
            "a scale {scale} or zero point {zero} does not fit weights {ty}"
        ))
        .into());
    }
    Ok(typed(DataType::F32, [directions, gates, input])?)
}

fn read(inputs: &Known<'_>) -> Result<[Type; 2], Unclear> {
    let [input, state] = WEIGHTS;
    Ok([weights(inputs, input)?, weights(inputs, state)?])
}

/// The types of LSTM's inputs.
fn types<'t>(inputs: &Known<'t>, [w, r]: &'t [Type; 2]) -> Vec<Option<&'t Type>> {
    let mut types: Vec<_> = (0..SHARED).map(|index| inputs.opt(index)).collect();
    (types[1], types[2]) = (Some(w), Some(r));
    types
}

/// Weights as f32, with their last two dimensions swapped.
fn widen(from: View<'_>, scale: View<'_>, zero: View<'_>, to: &mut [f32]) {
    let &[directions, input, gates] = from.shape else { return };
    let number = |view: &View<'_>, at: usize| match view.dtype {
        DataType::I8 => f32::from(view.bytes[at] as i8),
        _ => f32::from(view.bytes[at]),
    };
    let scales = scale.elements::<f32>();
    let of = |elements: usize, row: usize| if elements == directions { row / gates.max(1) } else { row };
    for row in 0..directions * gates {
        let (direction, gate) = (row / gates, row % gates);
        let (scale, zero) = (scales[of(scales.len(), row)], number(&zero, of(zero.len(), row)));
        for (at, to) in to[row * input..][..input].iter_mut().enumerate() {
            *to = (number(&from, (direction * input + at) * gates + gate) - zero) * scale;
        }
    }
}

impl Operator for Quantized {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        let own = read(inputs)?;
        self.layer.infer(&Known { types: &types(inputs, &own), values: &[], context: inputs.context })
    }

    fn scratch(&self, inputs: &Known<'_>, outputs: &[Type]) -> usize {
        let Ok(own) = read(inputs) else { return 0 };
        let weights = own.iter().map(|ty| Space::bytes::<f32>(ty.elements()) + Space::bytes::<usize>(3));
        let layer = self
            .layer
            .scratch(&Known { types: &types(inputs, &own), values: &[], context: inputs.context }, outputs);
        weights.sum::<usize>() + layer
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let mut space = Space(call.scratch());
        let mut inputs: [Option<View<'_>>; SHARED] = std::array::from_fn(|index| call.opt(index));
        for [weight, scale, zero] in WEIGHTS {
            let (from, scale, zero) = (call.input(weight)?, call.input(scale)?, call.input(zero)?);
            let shape = space.take::<usize>(3)?;
            shape.copy_from_slice(from.shape);
            shape.swap(1, 2);
            let to = space.take::<f32>(from.len())?;
            widen(from, scale, zero, to);
            inputs[weight] = Some(View { dtype: DataType::F32, shape, bytes: bytemuck::cast_slice(to) });
        }
        self.layer.run(&mut Call {
            blocks: &[],
            inputs: &inputs,
            outputs: call.outputs,
            scratch: space.0,
            in_place: None,
            prepacked: None,
            context: call.context,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::trial::{Trial, numbers, tensor};
    use stepalloc_tensor::Tensor;

    /// Weights of one direction in 8 bits, as they are and as f32 in LSTM's order; a scale for each gate's row where `rows`.
    fn weights(gates: usize, input: usize, rows: bool) -> [Tensor; 4] {
        let eight: Vec<i8> = (0..gates * input).map(|at| (at * 37 % 251) as i8).collect();
        let scales: Vec<f32> = (0..if rows { gates } else { 1 }).map(|at| 0.01 + at as f32 * 0.001).collect();
        let zeros = vec![3i8; scales.len()];
        let wide: Vec<f32> = (0..gates * input)
            .map(|at| {
                let (gate, column) = (at / input, at % input);
                let scale = scales[if rows { gate } else { 0 }];
                (f32::from(eight[column * gates + gate]) - 3.0) * scale
            })
            .collect();
        let shape = if rows { vec![1, gates] } else { vec![1] };
        [
            tensor(&[1, input, gates], &eight),
            tensor(&shape, &scales),
            tensor(&shape, &zeros),
            tensor(&[1, gates, input], &wide),
        ]
    }

    #[test]
    fn it_is_lstm_on_the_weights_that_are_meant() {
        for rows in [false, true] {
            let [w, w_scale, w_zero, w_wide] = weights(12, 5, rows);
            let [r, r_scale, r_zero, r_wide] = weights(12, 3, rows);
            let x = numbers(&[4, 2, 5], 1);
            let bias = numbers(&[1, 24], 2);
            let given = [Some(x.clone()), Some(w_wide), Some(r_wide), Some(bias.clone())];
            let wanted = Trial::new("LSTM", &[], given).outputs(3).run().expect("it fits");
            let mut given = vec![Some(x), Some(w), Some(r), Some(bias), None, None, None, None];
            given.extend([w_scale, w_zero, r_scale, r_zero].map(Some));
            let mut trial = Trial::new("DynamicQuantizeLSTM", &[], given).outputs(3);
            trial.domain = "com.microsoft";
            let told = trial.run().expect("it fits");
            for (told, wanted) in told.iter().zip(&wanted) {
                assert_eq!(told.view().elements::<f32>(), wanted.view().elements::<f32>());
            }
        }
    }

    #[test]
    fn nonsense_is_an_error() {
        let [w, scale, zero, _] = weights(12, 5, false);
        let [r, ..] = weights(12, 3, false);
        let given = |w: Tensor, zero: Tensor| {
            let mut given = vec![Some(numbers(&[4, 2, 5], 1)), Some(w), Some(r.clone())];
            given.extend([None, None, None, None, None]);
            given.extend([&scale, &zero, &scale, &zero].map(|tensor| Some(tensor.clone())));
            let mut trial = Trial::new("DynamicQuantizeLSTM", &[], given).outputs(1);
            trial.domain = "com.microsoft";
            trial.run().map(drop).expect_err("it does not fit").to_string()
        };
        assert!(given(numbers(&[1, 5, 12], 1), zero.clone()).contains("are not known to it"));
        assert!(given(w.clone(), tensor(&[7], &[0i8; 7])).contains("does not fit"));
        assert!(given(tensor(&[60], &[0i8; 60]), zero.clone()).contains("three dimensions"));
    }
}
