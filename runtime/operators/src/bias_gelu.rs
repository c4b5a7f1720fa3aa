//! A row that is added to all rows, and Gelu of the sum: com.microsoft's `BiasGelu`, and its `FastGelu`, by the tangent, with a bias.

use super::unary::blocks_at;
use super::{Call, Definition, Known, Made, Operator, Reuse, Types, Unclear};
use rten_simd::SimdUnaryOp;
use rten_vecmath::ApproxGelu;
use smallvec::smallvec;
use stepalloc_kernels::scales::load;
use stepalloc_kernels::{no, vector::Gelu};
use stepalloc_tensor::{DataType, OpError, View};

pub(super) fn make(node: &Definition<'_>) -> Made {
    Some(Ok(Box::new(BiasGelu { by_tangent: node.op == "FastGelu" })))
}

struct BiasGelu {
    by_tangent: bool,
}

impl Operator for BiasGelu {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        let (x, bias) = (inputs.ty(0)?, inputs.ty(1)?);
        if !matches!(x.dtype, DataType::F32 | DataType::F16 | DataType::BF16) {
            return Err(no(x.dtype).into());
        }
        if bias.dtype != x.dtype || bias.rank() != 1 || x.shape.last() != bias.shape.last() {
            return Err(OpError::shape(format!("a bias {bias} is no row of {x}")).into());
        }
        Ok(smallvec![x.clone()])
    }

    fn reuse(&self) -> Reuse {
        Reuse::InPlace(&[0])
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let (dtype, bias) = (call.dtype(0)?, call.input(1)?);
        blocks_at(call, dtype, DataType::F32, &|begin, block| {
            let block: &mut [f32] = bytemuck::cast_slice_mut(block);
            add_rows(&bias, begin / dtype.bytes(), block);
            if self.by_tangent { ApproxGelu {}.map_mut(block) } else { Gelu {}.map_mut(block) }
        })
    }
}

/// Adds a row to elements of rows, of which `first` are before them.
fn add_rows(bias: &View<'_>, first: usize, elements: &mut [f32]) {
    /// Elements of the row that are widened at a time.
    const FEW: usize = 128;
    let (row, mut at) = (bias.len(), 0);
    while at < elements.len() {
        let col = (first + at) % row;
        let count = FEW.min(row - col).min(elements.len() - at);
        let mut few = [0.0; FEW];
        load(bias, col, &mut few[..count]);
        elements[at..at + count].iter_mut().zip(few).for_each(|(x, bias)| *x += bias);
        at += count;
    }
}

#[cfg(test)]
mod tests {
    use crate::trial::{Trial, close, floats, numbers, run, tensor};
    use stepalloc_graph::Attribute;
    use stepalloc_tensor::{Tensor, f16};

    #[test]
    fn it_is_gelu_of_a_sum() {
        let (x, bias) = (numbers(&[3, 5, 300], 1), numbers(&[300], 2));
        let sum = run("Add", 14, &[], &[Some(&x), Some(&bias)]).expect("a sum").remove(0);
        let half = |from: &Tensor| {
            let halves: Vec<_> = floats(from).iter().map(|&x| f16::from_f32(x)).collect();
            tensor(&from.ty().shape, &halves)
        };
        for (op, way) in [("BiasGelu", "none"), ("FastGelu", "tanh")] {
            let told = [("approximate", Attribute::String(way.into()))];
            let wanted = run("Gelu", 20, &told, &[Some(&sum)]).expect("it runs").remove(0);
            let trial = |inputs: [Tensor; 2]| Trial {
                domain: "com.microsoft",
                opset: 1,
                ..Trial::new(op, &[], inputs)
            };
            let whole = trial([x.clone(), bias.clone()]);
            assert!(close(floats(&whole.run().expect("it runs")[0]), floats(&wanted)), "{op}");
            assert!(close(floats(&whole.run_over(Some(0)).expect("it runs")[0]), floats(&wanted)), "{op}");
            let halves = trial([half(&x), half(&bias)]).run().expect("it runs").remove(0);
            let near = |(got, wanted): (&f16, &f32)| (got.to_f32() - wanted).abs() < 0.01;
            assert!(halves.view().elements::<f16>().iter().zip(floats(&wanted)).all(near), "{op}");
            assert!(trial([x.clone(), numbers(&[299], 1)]).run().is_err(), "a row of another length");
        }
    }
}
