//! com.microsoft's `MatMulNBits`: products with constant weights of 2, 4 or 8 bits, in blocks with a scale each.

use super::{Call, Definition, Known, Made, Operator, Types, Unclear, typed};
use smallvec::smallvec;
use stepalloc_kernels::gemm::Matrix;
use stepalloc_kernels::gemm::nbits::{NBits, Zeros, multiply, scratch};
use stepalloc_kernels::no;
use stepalloc_kernels::real::{Space, widened, widened_bytes};
use stepalloc_kernels::scales::load;
use stepalloc_tensor::{DataType, Number, OpError, Type, bf16, f16};

pub(super) fn make(node: &Definition<'_>) -> Made {
    Some(MatMulNBits::new(node).map(|made| Box::new(made) as _))
}

struct MatMulNBits {
    bits: usize,
    block: usize,
    /// Rows and columns of the right factor.
    depth: usize,
    cols: usize,
}

/// Its inputs.
const B: usize = 1;
const SCALES: usize = 2;
const ZEROS: usize = 3;
const GROUPS: usize = 4;
const BIAS: usize = 5;

impl MatMulNBits {
    fn new(node: &Definition<'_>) -> Result<Self, OpError> {
        let attributes = node.attributes;
        let size = |name: &str| {
            let told = attributes
                .opt_int(name)
                .ok_or_else(|| OpError::attribute(format!("it is told no {name}")))?;
            usize::try_from(told)
                .ok()
                .filter(|&size| size > 0)
                .ok_or_else(|| OpError::attribute(format!("its {name} is {told}")))
        };
        let bits = attributes.int("bits", 4);
        if !matches!(bits, 2 | 4 | 8) {
            return Err(OpError::unsupported(format!(
                "weights of {bits} bits are not known to it: it takes 2, 4 and 8"
            )));
        }
        let block = size("block_size")?;
        if block < 16 || !block.is_power_of_two() {
            return Err(OpError::attribute(format!("its block_size is {block}, no power of two from 16 on")));
        }
        if attributes.int("weight_prepacked", 0) != 0 {
            return Err(OpError::unsupported(
                "weights that were packed for another engine (weight_prepacked) cannot be read",
            ));
        }
        if node.inputs.get(GROUPS).copied().unwrap_or(false) {
            return Err(OpError::unsupported("blocks in another order (g_idx) are not known to it"));
        }
        Ok(Self { bits: bits as usize, block, depth: size("K")?, cols: size("N")? })
    }

    fn blocks(&self) -> usize {
        self.depth.div_ceil(self.block)
    }

    /// Rows on the left.
    fn rows(&self, a: &[usize]) -> usize {
        a.split_last().map_or(0, |(_, outer)| outer.iter().product())
    }
}

impl Operator for MatMulNBits {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        let (a, b, scales) = (inputs.ty(0)?, inputs.ty(B)?, inputs.ty(SCALES)?);
        let &Self { bits, block, depth, cols } = self;
        if !matches!(a.dtype, DataType::F32 | DataType::F16 | DataType::BF16) {
            return Err(no(a.dtype).into());
        }
        if a.shape.last() != Some(&depth) {
            return Err(OpError::shape(format!("{a} has no rows of K = {depth} elements")).into());
        }
        let wanted = cols.checked_mul(self.blocks()).and_then(|all| all.checked_mul(block * bits / 8));
        if b.dtype != DataType::U8 || Some(b.elements()) != wanted {
            return Err(OpError::operand(
                b,
                DataType::U8,
                format!(
                    "weights {b} are not {cols} columns of {} blocks of {block} elements of {bits} bits",
                    self.blocks()
                ),
            )
            .into());
        }
        let blocks = cols * self.blocks();
        if scales.dtype != a.dtype || scales.elements() != blocks {
            return Err(OpError::operand(
                scales,
                a.dtype,
                format!("scales {scales} are not {blocks} of {}", a.dtype),
            )
            .into());
        }
        if let Some(zeros) = inputs.opt(ZEROS) {
            let packed = cols * (self.blocks() * bits).div_ceil(8);
            let fits = match zeros.dtype {
                DataType::U8 => zeros.elements() == packed,
                dtype => dtype == a.dtype && zeros.elements() == blocks,
            };
            if !fits {
                return Err(OpError::shape(format!(
                    "zero points {zeros} are not those of {blocks} blocks of {bits} bits"
                ))
                .into());
            }
        }
        if let Some(bias) = inputs.opt(BIAS).filter(|bias| bias.dtype != a.dtype || bias.shape != [cols]) {
            return Err(OpError::operand(
                bias,
                a.dtype,
                format!("a bias {bias} is not {cols} elements of {}", a.dtype),
            )
            .into());
        }
        let mut shape = a.shape.clone();
        shape.last_mut().into_iter().for_each(|last| *last = cols);
        Ok(smallvec![typed(a.dtype, shape)?])
    }

    fn scratch(&self, inputs: &Known<'_>, _: &[Type]) -> usize {
        inputs.opt(0).map_or(0, |a| {
            let product = scratch(self.rows(&a.shape), self.cols, self.depth, inputs.context.threads());
            widened_bytes::<f32>(a.dtype, a.elements()) + product
        })
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let (a, b, scales, out) = (call.input(0)?, call.input(B)?, call.input(SCALES)?, call.output(0)?);
        let &Self { bits, block, depth, cols } = self;
        let mut space = Space(call.scratch());
        let rows = self.rows(a.shape);
        let a = Matrix::new(widened::<f32>(&a, &mut space)?, rows, depth);
        let zeros = match call.opt(ZEROS) {
            None => Zeros::Middle,
            Some(view) if view.dtype == DataType::U8 => Zeros::Packed(view.bytes),
            Some(view) => Zeros::Real(view),
        };
        let right = NBits { bits, block, depth, cols, bytes: b.bytes, scales, zeros };
        let bias = call.opt(BIAS);
        let (dtype, scratch) = (out.dtype, space.0);
        let scratch: &mut [f32] =
            if scratch.is_empty() { &mut [] } else { bytemuck::cast_slice_mut(scratch) };
        multiply(a, &right, scratch, &mut |row, col, sums| {
            /// Sums that a bias is added to at a time.
            const FEW: usize = 128;
            for (index, sums) in sums.chunks(FEW).enumerate() {
                let col = col + index * FEW;
                let mut few = [0.0; FEW];
                let few = &mut few[..sums.len()];
                if let Some(bias) = &bias {
                    load(bias, col, few);
                }
                few.iter_mut().zip(sums).for_each(|(few, sum)| *few += sum);
                let to = (row * cols + col) * dtype.bytes()..;
                let to = &mut out.bytes[to][..few.len() * dtype.bytes()];
                match dtype {
                    DataType::F16 => narrow::<f16>(few, to),
                    DataType::BF16 => narrow::<bf16>(few, to),
                    _ => to.copy_from_slice(bytemuck::cast_slice(few)),
                }
            }
        })
    }
}

fn narrow<T: Number<Wide = f32>>(few: &[f32], to: &mut [u8]) {
    let to: &mut [T] = bytemuck::cast_slice_mut(to);
    to.iter_mut().zip(few).for_each(|(to, &x)| *to = T::narrow(x));
}

#[cfg(test)]
mod tests {
    use crate::trial::{Trial, close, floats, numbers, tensor};
    use stepalloc_graph::Attribute;
    use stepalloc_tensor::{Tensor, f16};

    fn trial<'a>(bits: i64, [depth, cols]: [i64; 2], inputs: Vec<Option<Tensor>>) -> Trial<'a> {
        let told = [("bits", bits), ("block_size", 16), ("K", depth), ("N", cols)];
        let told = told.map(|(name, value)| (name, Attribute::Int(value)));
        Trial { domain: "com.microsoft", opset: 1, ..Trial::new("MatMulNBits", &told, inputs) }
    }

    /// Columns of 40 elements of 4 bits, in three blocks.
    fn weights() -> (Tensor, Tensor, impl Fn(usize, usize) -> f32) {
        let bytes: Vec<u8> = (0..3 * 3 * 8).map(|at| (at * 37 % 256) as u8).collect();
        let scales: Vec<f32> = (1..=9).map(|at| at as f32 / 16.0).collect();
        let element = {
            let (bytes, scales) = (bytes.clone(), scales.clone());
            move |k: usize, col: usize| {
                let byte = bytes[col * 24 + k / 2];
                let bits = if k.is_multiple_of(2) { byte & 15 } else { byte >> 4 };
                (f32::from(bits) - 8.0) * scales[col * 3 + k / 16]
            }
        };
        (tensor(&[3, 3, 8], &bytes), tensor(&[3, 3], &scales), element)
    }

    #[test]
    fn it_is_a_product_with_the_weights_made_real() {
        let (b, scales, element) = weights();
        let (a, bias) = (numbers(&[2, 3, 40], 1), numbers(&[3], 2));
        let wanted: Vec<f32> = (0..18)
            .map(|at| {
                let row = &floats(&a)[at / 3 * 40..][..40];
                row.iter().enumerate().map(|(k, x)| x * element(k, at % 3)).sum::<f32>()
                    + floats(&bias)[at % 3]
            })
            .collect();
        let inputs =
            vec![Some(a.clone()), Some(b.clone()), Some(scales.clone()), None, None, Some(bias.clone())];
        let made = trial(4, [40, 3], inputs).run().expect("it runs").remove(0);
        assert_eq!(made.ty().shape, [2, 3, 3]);
        assert!(close(floats(&made), &wanted));
        // Zero points of 8 in half a byte each are what is meant where there are none.
        let zeros = Some(tensor(&[3, 2], &[0x88u8; 6]));
        let inputs =
            vec![Some(a.clone()), Some(b.clone()), Some(scales.clone()), zeros, None, Some(bias.clone())];
        let same = trial(4, [40, 3], inputs).run().expect("it runs").remove(0);
        assert_eq!(floats(&same), floats(&made));
        let half = |from: &Tensor| {
            let halves: Vec<_> = floats(from).iter().map(|&x| f16::from_f32(x)).collect();
            tensor(&from.ty().shape, &halves)
        };
        let inputs = vec![Some(half(&a)), Some(b), Some(half(&scales)), None, None, Some(half(&bias))];
        let halves = trial(4, [40, 3], inputs).run().expect("it runs").remove(0);
        let near = |(got, wanted): (&f16, &f32)| (got.to_f32() - wanted).abs() < 0.05;
        assert!(halves.view().elements::<f16>().iter().zip(&wanted).all(near));
    }

    #[test]
    fn what_it_does_not_take_is_said_when_the_model_is_loaded() {
        let (b, scales, _) = weights();
        let inputs = || vec![Some(numbers(&[1, 40], 1)), Some(b.clone()), Some(scales.clone())];
        let said =
            |trial: Trial<'_>| trial.operator().err().map_or_else(String::new, |error| error.to_string());
        assert!(said(trial(3, [40, 3], inputs())).contains("3 bits"));
        assert!(said(trial(4, [40, 3], inputs()).int("weight_prepacked", 1)).contains("weight_prepacked"));
        let mut grouped = inputs();
        grouped.extend([None, Some(tensor(&[40], &[0i32; 40]))]);
        assert!(said(trial(4, [40, 3], grouped)).contains("g_idx"));
        assert!(trial(4, [40, 4], inputs()).run().is_err(), "weights of fewer columns");
        assert!(trial(4, [56, 3], inputs()).run().is_err(), "rows of another length");
        let mut zeros = inputs();
        zeros.push(Some(tensor(&[3], &[0u8; 3])));
        assert!(trial(4, [40, 3], zeros).run().is_err(), "too few zero points");
    }
}
