//! Random tensors, and operators that choose by chance.
//!
//! The generator is the Mersenne twister (Matsumoto and Nishimura, 1998), seeded as numpy's `RandomState` is: what the standard's own
//! tests of Dropout expect. A node with a seed gives the same in every run.

use super::{Call, Definition, Known, Made, Operator, Reuse, Types, Unclear, typed};
use smallvec::smallvec;
use std::hash::{BuildHasher, Hasher, RandomState};
use stepalloc_kernels::{blocks::Wide as _, no};
use stepalloc_tensor::{Bool, DataType, Number, OpError, Type, View, by_float, by_number, by_type};

pub(super) fn make(node: &Definition<'_>) -> Made {
    let attributes = node.attributes;
    if node.op == "Dropout" {
        return Some(Ok(Box::new(Dropout {
            seed: attributes.opt_int("seed").map(|seed| seed as u32),
            may_train: node.opset >= 12 && node.inputs.get(2) == Some(&true),
            outputs: node.outputs.len(),
            masks: node.outputs.iter().skip(1).any(|&wanted| wanted),
            mask_like_data: node.opset < 10,
        })));
    }
    let seed = attributes.opt_float("seed").map(|seed| seed as i64 as u32);
    let dtype = match attributes.opt_int("dtype") {
        None => None,
        Some(number) => match i32::try_from(number).ok().and_then(DataType::from_onnx) {
            None => {
                return Some(Err(OpError::attribute(format!(
                    "its dtype is {number}, which is no type known here"
                ))));
            }
            dtype => dtype,
        },
    };
    let normal = || Distribution::Normal {
        mean: attributes.float("mean", 0.0).into(),
        scale: attributes.float("scale", 1.0).into(),
    };
    let uniform = || Distribution::Uniform {
        low: attributes.float("low", 0.0).into(),
        high: attributes.float("high", 1.0).into(),
    };
    let distribution = match node.op {
        "RandomNormal" | "RandomNormalLike" => normal(),
        "RandomUniform" | "RandomUniformLike" => uniform(),
        "Bernoulli" => return Some(Ok(Box::new(Bernoulli { dtype, seed }))),
        "Multinomial" => {
            let dtype = dtype.unwrap_or(DataType::I32);
            return Some(match usize::try_from(attributes.int("sample_size", 1)) {
                _ if !matches!(dtype, DataType::I32 | DataType::I64) => Err(no(dtype)),
                Ok(samples) => Ok(Box::new(Multinomial { dtype, samples, seed })),
                Err(_) => Err(OpError::attribute("its sample_size is negative")),
            });
        }
        _ => return None,
    };
    let like = node.op.ends_with("Like");
    let shape = match attributes.ints("shape") {
        _ if like => None,
        None => return Some(Err(OpError::attribute("it is told no shape"))),
        Some(shape) => match shape.iter().map(|&dim| usize::try_from(dim)).collect() {
            Ok(shape) => Some(shape),
            Err(_) => {
                return Some(Err(OpError::attribute(format!(
                    "its shape {shape:?} has a negative dimension"
                ))));
            }
        },
    };
    let dtype = if like { dtype } else { dtype.or(Some(DataType::F32)) };
    Some(Ok(Box::new(Random { distribution, shape, dtype, seed })))
}

/// The Mersenne twister.
struct Twister {
    state: [u32; Self::SIZE],
    next: usize,
}

impl Twister {
    const SIZE: usize = 624;
    const MIDDLE: usize = 397;

    /// Without a seed, another one each time.
    fn new(seed: Option<u32>) -> Self {
        let mut state =
            [seed.unwrap_or_else(|| RandomState::new().build_hasher().finish() as u32); Self::SIZE];
        for at in 1..Self::SIZE {
            let last = state[at - 1];
            state[at] = (last ^ (last >> 30)).wrapping_mul(1_812_433_253).wrapping_add(at as u32);
        }
        Self { state, next: Self::SIZE }
    }

    fn bits(&mut self) -> u32 {
        if self.next == Self::SIZE {
            for at in 0..Self::SIZE {
                let mixed =
                    (self.state[at] & 1 << 31) | (self.state[(at + 1) % Self::SIZE] & ((1 << 31) - 1));
                let odd = if mixed & 1 == 1 { 0x9908_b0df } else { 0 };
                self.state[at] = self.state[(at + Self::MIDDLE) % Self::SIZE] ^ (mixed >> 1) ^ odd;
            }
            self.next = 0;
        }
        let mut bits = self.state[self.next];
        self.next += 1;
        bits ^= bits >> 11;
        bits ^= bits << 7 & 0x9d2c_5680;
        bits ^= bits << 15 & 0xefc6_0000;
        bits ^ bits >> 18
    }

    /// At least 0 and less than 1, with all bits that f64 has.
    fn uniform(&mut self) -> f64 {
        let (high, low) = (self.bits() >> 5, self.bits() >> 6);
        (f64::from(high) * 67_108_864.0 + f64::from(low)) / 9_007_199_254_740_992.0
    }

    /// Two numbers of mean 0 and variance 1 (Marsaglia's polar method).
    fn normal(&mut self) -> [f64; 2] {
        loop {
            let (x, y) = (2.0 * self.uniform() - 1.0, 2.0 * self.uniform() - 1.0);
            let square = x * x + y * y;
            if square > 0.0 && square < 1.0 {
                let by = (-2.0 * square.ln() / square).sqrt();
                return [x * by, y * by];
            }
        }
    }
}

enum Distribution {
    Normal { mean: f64, scale: f64 },
    Uniform { low: f64, high: f64 },
}

/// A tensor of random numbers, of a shape that it is told or that of its input.
struct Random {
    distribution: Distribution,
    shape: Option<Vec<usize>>,
    dtype: Option<DataType>,
    seed: Option<u32>,
}

impl Operator for Random {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        let (shape, dtype) = match (&self.shape, self.dtype) {
            (Some(shape), Some(dtype)) => (shape[..].into(), dtype),
            (_, dtype) => {
                let input = inputs.ty(0)?;
                (input.shape.clone(), dtype.unwrap_or(input.dtype))
            }
        };
        if !dtype.is_float() {
            return Err(no(dtype).into());
        }
        Ok(smallvec![typed(dtype, shape)?])
    }

    fn is_pure(&self) -> bool {
        false
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let output = call.output(0)?;
        let mut twister = Twister::new(self.seed);
        if !output.dtype.is_float() {
            return Err(no(output.dtype));
        }
        let width = output.dtype.bytes();
        for two in output.bytes.chunks_mut(2 * width) {
            let made = match self.distribution {
                Distribution::Uniform { low, high } => {
                    let first = low + (high - low) * twister.uniform();
                    // Of an odd last one no more is taken.
                    let more = two.len() > width;
                    [first, if more { low + (high - low) * twister.uniform() } else { 0.0 }]
                }
                Distribution::Normal { mean, scale } => {
                    let [one, other] = twister.normal();
                    [mean + scale * one, mean + scale * other]
                }
            };
            f64::store(&made[..two.len() / width], false, output.dtype, two);
        }
        Ok(())
    }
}

/// One with a probability, else zero.
struct Bernoulli {
    dtype: Option<DataType>,
    seed: Option<u32>,
}

impl Operator for Bernoulli {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        let input = inputs.ty(0)?;
        Ok(smallvec![typed(self.dtype.unwrap_or(input.dtype), input.shape.clone())?])
    }

    fn is_pure(&self) -> bool {
        false
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let (input, output) = (call.input(0)?, call.output(0)?);
        let mut twister = Twister::new(self.seed);
        // The bytes of a one of the output's type.
        let mut one = [0u8; 8];
        let width = output.dtype.bytes();
        if output.dtype == DataType::Bool {
            one[0] = 1;
        } else {
            by_number!(output.dtype, T => {
                one[..width].copy_from_slice(bytemuck::bytes_of(&T::from_i64(1)));
            }, return Err(no(output.dtype)));
        }
        let places = output.bytes.chunks_exact_mut(width);
        by_float!(input.dtype, T => {
            for (to, p) in places.zip(input.elements::<T>()) {
                if twister.uniform() < p.to_f64() {
                    to.copy_from_slice(&one[..width]);
                } else {
                    to.fill(0);
                }
            }
            Ok(())
        }, Err(no(input.dtype)))
    }
}

/// Classes by the logarithms of their probabilities, which need not sum to one.
struct Multinomial {
    dtype: DataType,
    samples: usize,
    seed: Option<u32>,
}

impl Operator for Multinomial {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        let input = inputs.ty(0)?;
        let [batch, classes] = input.shape[..] else {
            return Err(OpError::shape(format!("{input} is not of batch and classes")).into());
        };
        if classes == 0 && batch * self.samples > 0 {
            return Err(OpError::shape("there are no classes to choose from").into());
        }
        Ok(smallvec![typed(self.dtype, [batch, self.samples])?])
    }

    fn scratch(&self, inputs: &Known<'_>, _: &[Type]) -> usize {
        inputs.opt(0).and_then(|input| input.shape.get(1)).map_or(0, |classes| classes * size_of::<f64>())
    }

    fn is_pure(&self) -> bool {
        false
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let (input, output) = (call.input(0)?, call.output(0)?);
        let sums = call.scratch_of::<f64>();
        if output.bytes.is_empty() {
            return Ok(());
        }
        let classes = input.shape[1];
        let sums = &mut sums[..classes];
        let mut twister = Twister::new(self.seed);
        by_type!(output.dtype, [I32, I64], I => {
            for (row, chosen) in output.elements::<I>().chunks_mut(self.samples).enumerate() {
                accumulate(&input, row, sums)?;
                let all = sums[classes - 1];
                for chosen in chosen {
                    let at = all * twister.uniform();
                    *chosen = sums.partition_point(|&sum| sum <= at).min(classes - 1) as I;
                }
            }
            Ok(())
        }, Err(no(output.dtype)))
    }
}

/// Sums of the probabilities of a row up to each class.
fn accumulate(input: &View<'_>, row: usize, sums: &mut [f64]) -> Result<(), OpError> {
    let classes = sums.len();
    by_float!(input.dtype, T => {
        let row = &input.elements::<T>()[row * classes..][..classes];
        sums.iter_mut().zip(row).for_each(|(to, from)| *to = from.to_f64());
    }, return Err(no(input.dtype)));
    let most = sums.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let mut sum = 0.0;
    for to in &mut *sums {
        sum += (*to - most).exp();
        *to = sum;
    }
    if sum.is_finite() && sum > 0.0 {
        Ok(())
    } else {
        Err(OpError::value(format!("row {row} says no probabilities: they sum to {sum}")))
    }
}

/// Elements are zero with a probability, and the others made as much greater, while a model is trained.
struct Dropout {
    seed: Option<u32>,
    /// There is an input that says whether it is trained.
    may_train: bool,
    outputs: usize,
    /// The mask is wanted.
    masks: bool,
    /// In old versions it has the type of the data.
    mask_like_data: bool,
}

impl Dropout {
    /// The probability of zero.
    fn ratio(&self, call: &Call<'_, '_>) -> Result<f64, OpError> {
        let trains = match call.opt(2).filter(|_| self.may_train) {
            Some(told) if told.dtype == DataType::Bool => {
                told.elements::<Bool>().first().is_some_and(|t| t.get())
            }
            Some(told) => return Err(no(told.dtype)),
            None => false,
        };
        if !trains {
            return Ok(0.0);
        }
        let Some(told) = call.opt(1) else { return Ok(0.5) };
        let ratio = by_float!(told.dtype, T => told.elements::<T>().first().map(|ratio| ratio.to_f64()),
            return Err(no(told.dtype)));
        match ratio {
            Some(ratio) if (0.0..1.0).contains(&ratio) => Ok(ratio),
            _ => Err(OpError::value(format!("its ratio is {ratio:?}, not in [0, 1)"))),
        }
    }
}

impl Operator for Dropout {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        let input = inputs.ty(0)?;
        let mask = if self.mask_like_data { input.dtype } else { DataType::Bool };
        let mut types = smallvec![input.clone()];
        types.resize(self.outputs.clamp(1, 2), typed(mask, input.shape.clone())?);
        Ok(types)
    }

    fn reuse(&self) -> Reuse {
        // A view is never run, and so makes no mask.
        if self.may_train || self.masks { Reuse::InPlace(&[0]) } else { Reuse::View }
    }

    fn is_pure(&self) -> bool {
        !self.may_train
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let ratio = self.ratio(call)?;
        let output = call.opt_output(0);
        let mask = call.opt_output(1);
        let input = if call.in_place().is_none() { Some(call.input(0)?) } else { None };
        let dtype = call.dtype(0)?;
        if ratio == 0.0 {
            if let (Some(input), Some(output)) = (input, output) {
                output.bytes.copy_from_slice(input.bytes);
            }
            if let Some(mask) = mask {
                if mask.dtype == DataType::Bool {
                    mask.bytes.fill(1);
                } else {
                    by_float!(mask.dtype, T => mask.elements::<T>().fill(T::from_i64(1)), return Err(no(dtype)));
                }
            }
            return Ok(());
        }
        let mut twister = Twister::new(self.seed);
        let output = output.ok_or_else(|| OpError::arity("output 0 is wanted by nobody"))?;
        let mut mask = mask.map(|mask| mask.bytes.iter_mut());
        by_float!(dtype, T => {
            let scale = <T as Number>::Wide::from_f64(1.0 / (1.0 - ratio));
            let output = output.elements::<T>();
            if let Some(input) = input {
                output.copy_from_slice(input.elements::<T>());
            }
            for x in output {
                let stays = twister.uniform() >= ratio;
                *x = if stays { T::narrow(x.wide() * scale) } else { T::default() };
                if let Some(mask) = mask.as_mut().and_then(Iterator::next) {
                    *mask = stays.into();
                }
            }
            Ok(())
        }, Err(no(dtype)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_twister_is_the_one_of_the_paper() {
        let mut twister = Twister::new(Some(5489));
        assert_eq!(twister.bits(), 3_499_211_612);
        let last = (0..9_999).map(|_| twister.bits()).last();
        assert_eq!(last, Some(4_123_659_995));
    }

    #[test]
    fn normal_numbers_have_mean_zero_and_variance_one() {
        let mut twister = Twister::new(Some(1));
        let numbers: Vec<f64> = (0..50_000).flat_map(|_| twister.normal()).collect();
        let mean = numbers.iter().sum::<f64>() / numbers.len() as f64;
        let variance = numbers.iter().map(|x| x * x).sum::<f64>() / numbers.len() as f64;
        assert!(mean.abs() < 0.02 && (variance - 1.0).abs() < 0.02, "{mean} {variance}");
    }

    #[test]
    fn a_seed_makes_runs_alike_wherever_the_output_lies() {
        use crate::trial::{Trial, numbers};
        use stepalloc_graph::Attribute;
        use stepalloc_tensor::Tensor;
        let one = |x: f32| Tensor::from_elements([], &[x]).unwrap();
        let inputs = [numbers(&[40], 1), one(0.5), Tensor::from_elements([], &[Bool(1)]).unwrap()];
        let seed = [("seed", Attribute::Int(7))];
        let trial = Trial::new("Dropout", &seed, &inputs).opset(13).outputs(2);
        let (apart, over) = (trial.run().unwrap(), trial.run_over(Some(0)).unwrap());
        assert_eq!(apart[0].view().bytes, over[0].view().bytes);
        let mask = apart[1].view().elements::<Bool>();
        assert!(mask.iter().any(|stays| stays.get()) && mask.iter().any(|stays| !stays.get()));
        let rows = inputs[0].view().elements::<f32>().iter().zip(apart[0].view().elements::<f32>());
        for ((from, to), stays) in rows.zip(mask) {
            assert_eq!(*to, if stays.get() { from * 2.0 } else { 0.0 });
        }
    }

    #[test]
    fn classes_without_probability_are_never_chosen() {
        use crate::trial::Trial;
        use stepalloc_graph::Attribute;
        use stepalloc_tensor::Tensor;
        let never = f32::NEG_INFINITY;
        let inputs = [Tensor::from_elements([1, 4], &[never, 0.0, never, never]).unwrap()];
        let samples = [("sample_size", Attribute::Int(100))];
        let trial = |inputs: &[Tensor]| Trial::new("Multinomial", &samples, inputs).opset(7).run();
        assert_eq!(trial(&inputs).unwrap()[0].view().elements::<i32>(), [1; 100]);
        let inputs = [Tensor::from_elements([1, 2], &[never, never]).unwrap()];
        assert!(trial(&inputs).is_err());
    }
}
