//! The network the demo trains: two convolutions, max-pooling and a linear layer, by AdamW on softmax cross-entropy.
//!
//! Everything that decides the result is fixed: weights and the order of the images come from [`Random`], every batch
//! has the same size (an epoch's incomplete last one is dropped), so each process computes the same numbers whatever
//! allocator serves it, and equal accuracies in the table say that no allocator changed the arithmetic.

use candle_core::{D, DType, Device, Result, Tensor, Var};
use candle_nn::{AdamW, Conv2d, Conv2dConfig, Linear, Module, Optimizer, ParamsAdamW, loss};

use super::data::{CLASSES, Digits, EDGE, Random};

/// Images of a step: with these channels the largest tensors are some MiB, far above what a cache of small blocks
/// serves, and five steps are an epoch.
pub const BATCH: usize = 256;
/// Channels after the first convolution.
const FIRST: usize = 16;
/// Channels after the second one.
const SECOND: usize = 32;
/// Pixels along an edge after pooling.
const POOLED: usize = EDGE / 2;
/// AdamW's step: 94 % of the test images after 8 epochs, 97.8 % after 18.
const LEARNING_RATE: f64 = 3e-3;

/// The network with its optimizer.
pub struct Network {
    first: Conv2d,
    second: Conv2d,
    output: Linear,
    optimizer: AdamW,
}

impl Network {
    /// Fresh weights, uniform within the bound that keeps the variance through a rectifier (He et al. 2015).
    pub fn new(random: &mut Random) -> Result<Network> {
        let mut parameters = Vec::new();
        let mut layer = |shape: &[usize], fan_in: usize| -> Result<(Tensor, Tensor)> {
            let bound = (6.0 / fan_in as f32).sqrt();
            let weights: Vec<f32> = (0..shape.iter().product()).map(|_| random.signed() * bound).collect();
            let weights = Var::from_vec(weights, shape, &Device::Cpu)?;
            let bias = Var::zeros(shape[0], DType::F32, &Device::Cpu)?;
            let tensors = (weights.as_tensor().clone(), bias.as_tensor().clone());
            parameters.extend([weights, bias]);
            Ok(tensors)
        };
        let padded = Conv2dConfig { padding: 1, ..Conv2dConfig::default() };
        let (weights, bias) = layer(&[FIRST, 1, 3, 3], 9)?;
        let first = Conv2d::new(weights, Some(bias), padded);
        let (weights, bias) = layer(&[SECOND, FIRST, 3, 3], FIRST * 9)?;
        let second = Conv2d::new(weights, Some(bias), padded);
        let features = SECOND * POOLED * POOLED;
        let (weights, bias) = layer(&[CLASSES, features], features)?;
        let output = Linear::new(weights, Some(bias));
        let optimizer = AdamW::new(parameters, ParamsAdamW { lr: LEARNING_RATE, ..ParamsAdamW::default() })?;
        Ok(Network { first, second, output, optimizer })
    }

    /// One score a class, for images of shape (n, 1, 8, 8).
    fn forward(&self, images: &Tensor) -> Result<Tensor> {
        let features = self.first.forward(images)?.relu()?;
        let features = self.second.forward(&features)?.relu()?.max_pool2d(2)?;
        self.output.forward(&features.flatten_from(1)?)
    }

    /// Trains on the images at `indices`; what a step allocates, it frees.
    pub fn train(&mut self, set: &Set, indices: &[u32]) -> Result<()> {
        let indices = Tensor::from_slice(indices, indices.len(), &Device::Cpu)?;
        let images = set.images.index_select(&indices, 0)?;
        let labels = set.labels.index_select(&indices, 0)?;
        let loss = loss::cross_entropy(&self.forward(&images)?, &labels)?;
        self.optimizer.backward_step(&loss)
    }

    /// The share of images recognised, from 0 to 1.
    pub fn accuracy(&self, set: &Set) -> Result<f64> {
        let answers = self.forward(&set.images)?.argmax(D::Minus1)?;
        let right = answers.eq(&set.labels)?.to_dtype(DType::F32)?.sum_all()?.to_scalar::<f32>()?;
        Ok(f64::from(right) / set.len() as f64)
    }
}

/// Images and labels as tensors.
pub struct Set {
    images: Tensor,
    labels: Tensor,
}

impl Set {
    /// Copies the digits into tensors of shapes (n, 1, 8, 8) and (n).
    pub fn new(digits: &Digits) -> Result<Set> {
        let count = digits.labels.len();
        Ok(Set {
            images: Tensor::from_slice(&digits.pixels, (count, 1, EDGE, EDGE), &Device::Cpu)?,
            labels: Tensor::from_slice(&digits.labels, count, &Device::Cpu)?,
        })
    }

    /// Images in the set.
    pub fn len(&self) -> usize {
        self.labels.elem_count()
    }
}
