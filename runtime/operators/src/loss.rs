//! Losses of classification: how improbable the right classes are.

use super::{Call, Definition, Known, Made, Operator, Types, Unclear, typed};
use smallvec::smallvec;
use stepalloc_kernels::{
    blocks::{Source, put},
    no,
};
use stepalloc_tensor::{DataType, OpError, Shape, View};

pub(super) fn make(node: &Definition<'_>) -> Made {
    let softmax = match node.op {
        "NegativeLogLikelihoodLoss" => false,
        "SoftmaxCrossEntropyLoss" => true,
        _ => return None,
    };
    let reduction = match node.attributes.text("reduction", "mean") {
        "none" => Reduction::None,
        "sum" => Reduction::Sum,
        "mean" => Reduction::Mean,
        other => {
            return Some(Err(OpError::attribute(format!(
                "its reduction is {other:?}, not none, sum or mean"
            ))));
        }
    };
    Some(Ok(Box::new(Loss {
        softmax,
        reduction,
        ignored: node.attributes.opt_int("ignore_index"),
        outputs: node.outputs.len(),
    })))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Reduction {
    None,
    Sum,
    Mean,
}

struct Loss {
    /// The input is scores, not logarithms of probabilities.
    softmax: bool,
    reduction: Reduction,
    /// A class that costs nothing.
    ignored: Option<i64>,
    outputs: usize,
}

impl Operator for Loss {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        let (scores, target) = (inputs.ty(0)?, inputs.ty(1)?);
        let [batch, classes, rest @ ..] = &scores.shape[..] else {
            return Err(OpError::shape(format!("{scores} has no classes")).into());
        };
        if target.shape.split_first().is_none_or(|(first, others)| first != batch || others != rest) {
            return Err(OpError::shape(format!("targets {target} do not fit {scores}")).into());
        }
        if let Some(weight) = inputs.opt(2)
            && (weight.dtype != scores.dtype || weight.shape != [*classes])
        {
            return Err(OpError::shape(format!("{weight} is not a weight for each class of {scores}")).into());
        }
        let shape = if self.reduction == Reduction::None { target.shape.clone() } else { Shape::default() };
        let mut types = smallvec![typed(scores.dtype, shape)?];
        if self.outputs > 1 {
            types.push(scores.clone());
        }
        Ok(types)
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let (scores, target, weight) = (call.input(0)?, call.input(1)?, call.opt(2));
        let (loss, logs) = (call.opt_output(0), call.opt_output(1));
        let dtype = scores.dtype;
        if !dtype.is_float() || weight.is_some_and(|weight| weight.dtype != dtype) {
            return Err(no(dtype));
        }
        let (loss, logs) = (loss.map(|output| output.bytes), logs.map(|output| output.bytes));
        self.tell(
            &scores,
            &target,
            weight.as_ref().map(Source::new),
            loss.unwrap_or_default(),
            logs.unwrap_or_default(),
        )
    }
}

impl Loss {
    fn tell(
        &self,
        view: &View<'_>,
        target: &View<'_>,
        weight: Option<Source<'_>>,
        loss: &mut [u8],
        logs: &mut [u8],
    ) -> Result<(), OpError> {
        let (shape, dtype, scores) = (view.shape, view.dtype, Source::new(view));
        let (classes, inner) = (shape[1], shape[2..].iter().product::<usize>());
        let (mut sum, mut weights) = (0.0, 0.0);
        for place in 0..shape[0] * inner {
            let first = place / inner * classes * inner + place % inner;
            let column = || (0..classes).map(|class| scores.at(first + class * inner));
            // What is subtracted from scores to make logarithms of probabilities of them.
            let less = if self.softmax {
                let most = column().fold(f64::NEG_INFINITY, f64::max);
                most + column().map(|x| (x - most).exp()).sum::<f64>().ln()
            } else {
                0.0
            };
            if !logs.is_empty() {
                for (class, x) in column().enumerate() {
                    put(dtype, logs, first + class * inner, x - less);
                }
            }
            let class = match target.dtype {
                DataType::I32 => target.elements::<i32>()[place].into(),
                DataType::I64 => target.elements::<i64>()[place],
                other => {
                    return Err(OpError::element_type(format!(
                        "its targets are {other}, not int32 or int64"
                    )));
                }
            };
            let (cost, counts) = if self.ignored == Some(class) {
                (0.0, 0.0)
            } else {
                let class = usize::try_from(class)
                    .ok()
                    .filter(|&class| class < classes)
                    .ok_or_else(|| OpError::value(format!("there is no class {class} among {classes}")))?;
                let weight = weight.map_or(1.0, |weight| weight.at(class));
                (weight * (less - scores.at(first + class * inner)), weight)
            };
            match self.reduction {
                Reduction::None => {
                    if !loss.is_empty() {
                        put(dtype, loss, place, cost);
                    }
                }
                _ => (sum, weights) = (sum + cost, weights + counts),
            }
        }
        match self.reduction {
            _ if loss.is_empty() => {}
            Reduction::None => {}
            Reduction::Sum => put(dtype, loss, 0, sum),
            Reduction::Mean => put(dtype, loss, 0, sum / weights),
        }
        Ok(())
    }
}
