//! com.microsoft's `FusedGemm`: a Gemm, and a function of each element of what it makes.

use super::matmul::Gemm;
use super::{Call, Definition, Known, Made, Operator, Types, Unclear};
use stepalloc_graph::{PackSpec, Prepacked};
use stepalloc_kernels::{activation::Activation, no};
use stepalloc_tensor::{DataType, OpError, Type};

pub(super) fn make(node: &Definition<'_>) -> Made {
    let attributes = node.attributes;
    let told = |name: &str| attributes.opt_float(name).into_iter();
    let activation = match attributes.text("activation", "") {
        "" => None,
        name => match Activation::new(name, &mut told("activation_alpha"), &mut told("activation_beta")) {
            Ok(activation) => Some(activation),
            Err(what) => return Some(Err(what)),
        },
    };
    Some(Ok(Box::new(FusedGemm { gemm: Gemm::new(attributes), activation })))
}

struct FusedGemm {
    gemm: Gemm,
    activation: Option<Activation>,
}

impl Operator for FusedGemm {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        match inputs.ty(0)?.dtype {
            DataType::F32 => self.gemm.infer(inputs),
            other => Err(no(other).into()),
        }
    }

    fn scratch(&self, inputs: &Known<'_>, outputs: &[Type]) -> usize {
        self.gemm.scratch(inputs, outputs)
    }

    fn packs(&self, inputs: &Known<'_>) -> Option<PackSpec> {
        self.gemm.packs(inputs)
    }

    fn prepack(&self, prepacked: &Prepacked) -> Result<(), OpError> {
        self.gemm.prepack(prepacked)
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let (mut out, scratch) = (call.output(0)?, call.scratch());
        self.gemm.run(&mut Call {
            inputs: call.inputs,
            outputs: &mut [Some(out.lend())],
            scratch,
            in_place: None,
            prepacked: call.prepacked,
            blocks: call.blocks,
            context: call.context,
        })?;
        if let Some(activation) = self.activation {
            activation.apply(out.elements::<f32>());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::trial::{Trial, close, floats, numbers, run};
    use stepalloc_graph::Attribute;

    #[test]
    fn it_is_a_gemm_and_what_follows_it() {
        let (a, b, c) = (numbers(&[4, 9], 1), numbers(&[6, 9], 2), numbers(&[6], 3));
        let told = [("transB", Attribute::Int(1)), ("alpha", Attribute::Float(0.5))];
        let plain = run("Gemm", 13, &told, &[Some(&a), Some(&b), Some(&c)]).expect("it runs").remove(0);
        type Case = (&'static str, Option<f32>, fn(f32) -> f32);
        let cases: [Case; 4] = [
            ("", None, |x| x),
            ("Relu", None, |x| x.max(0.0)),
            ("LeakyRelu", Some(0.3), |x| if x < 0.0 { 0.3 * x } else { x }),
            ("Tanh", None, f32::tanh),
        ];
        for (name, alpha, function) in cases {
            let mut trial = Trial::new("FusedGemm", &told, [&a, &b, &c]).text("activation", name);
            if let Some(alpha) = alpha {
                trial = trial.with("activation_alpha", Attribute::Float(alpha));
            }
            let made = Trial { domain: "com.microsoft", opset: 1, ..trial }.run().expect("it runs");
            let wanted: Vec<_> = floats(&plain).iter().map(|&x| function(x)).collect();
            assert!(close(floats(&made[0]), &wanted), "{name}");
        }
        let trial = Trial::new("FusedGemm", &told, [&a, &b, &c]).text("activation", "Other");
        let said = Trial { domain: "com.microsoft", ..trial }.operator().err();
        assert!(said.is_some_and(|what| what.to_string().contains("Other")));
    }
}
