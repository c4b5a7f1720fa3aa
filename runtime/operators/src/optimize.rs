//! Optimizers' steps: Adagrad, Adam and Momentum.
//!
//! Inputs are the learning rate, the number of steps so far, and then tensors group by group: all weights, all their gradients, and so
//! on. Outputs are groups too: the new weights, and what is remembered of gradients.

use super::{Call, Definition, Known, Made, Operator, Reuse, Types, Unclear, ints};
use stepalloc_kernels::{no, real::Real};
use stepalloc_tensor::{DataType, Number, OpError, by_type};

pub(super) fn make(node: &Definition<'_>) -> Made {
    if node.domain != "ai.onnx.preview.training" {
        return None;
    }
    let float = |name: &str, usual| f64::from(node.attributes.float(name, usual));
    let rule = match node.op {
        "Adagrad" => Rule::Adagrad { decay: float("decay_factor", 0.0), epsilon: float("epsilon", 1e-6) },
        "Adam" => Rule::Adam {
            alpha: float("alpha", 0.9),
            beta: float("beta", 0.999),
            epsilon: float("epsilon", 1e-6),
            norm_after: float("norm_coefficient_post", 0.0),
        },
        "Momentum" => Rule::Momentum {
            alpha: float("alpha", 0.0),
            beta: float("beta", 0.0),
            nesterov: match node.attributes.text("mode", "") {
                "nesterov" => true,
                "standard" => false,
                other => return Some(Err(OpError::attribute(format!("there is no mode {other:?}")))),
            },
        },
        _ => return None,
    };
    let groups = rule.remembered() + 2;
    let tensors = node.inputs.len().saturating_sub(2);
    if tensors == 0 || !tensors.is_multiple_of(groups) {
        return Some(Err(OpError::arity(format!(
            "it has {tensors} tensors, which are not groups of {groups}"
        ))));
    }
    Some(Ok(Box::new(Optimizer { rule, norm: float("norm_coefficient", 0.0), weights: tensors / groups })))
}

/// How weights move.
enum Rule {
    Adagrad { decay: f64, epsilon: f64 },
    Adam { alpha: f64, beta: f64, epsilon: f64, norm_after: f64 },
    Momentum { alpha: f64, beta: f64, nesterov: bool },
}

impl Rule {
    /// Tensors that are remembered for each weight.
    fn remembered(&self) -> usize {
        if matches!(self, Self::Adam { .. }) { 2 } else { 1 }
    }
}

struct Optimizer {
    rule: Rule,
    /// Of the weights' squares, added to what is made small.
    norm: f64,
    /// Tensors of weights.
    weights: usize,
}

/// Of one weight: itself, its gradient, and what is remembered of gradients.
struct Group<'a, T> {
    gradient: &'a [T],
    remembered: [&'a [T]; 2],
    out: [Option<&'a mut [T]>; 3],
    /// `None` where the first output holds them.
    weights: Option<&'a [T]>,
}

impl<T: Real> Group<'_, T> {
    /// Writes the outputs: first those of what is remembered, since the new weights may be written over the old. Each function is
    /// given a weight, its gradient and what is remembered of it.
    fn write(&mut self, remember: impl Fn(T, T, T, T) -> [T; 2], weigh: impl Fn(T, T, T, T) -> T) {
        let [weights_out, out @ ..] = &mut self.out;
        let [first, second] = self.remembered;
        let gradient = self.gradient;
        for (which, out) in out.iter_mut().enumerate() {
            let Some(out) = out else { continue };
            let weights = self.weights.or(weights_out.as_deref()).unwrap_or_default();
            for ((((out, &x), &g), &v), &h) in
                out.iter_mut().zip(weights).zip(gradient).zip(first).zip(second)
            {
                *out = remember(x, g, v, h)[which];
            }
        }
        let Some(out) = weights_out else { return };
        if let Some(weights) = self.weights {
            out.copy_from_slice(weights);
        }
        for (((x, &g), &v), &h) in out.iter_mut().zip(gradient).zip(first).zip(second) {
            *x = weigh(*x, g, v, h);
        }
    }
}

impl Optimizer {
    fn compute<T: Real>(&self, call: &mut Call<'_, '_>, rate: f64, steps: i64) -> Result<(), OpError> {
        let (w, count) = (|x: f64| T::from_f64(x), self.weights);
        for index in 0..count {
            let at = |group: usize| call.input(2 + group * count + index);
            let gradient = at(1)?.elements::<T>();
            let first = at(2)?.elements::<T>();
            let second = if self.rule.remembered() > 1 { at(3)?.elements::<T>() } else { first };
            let over = index == 0 && call.in_place().is_some();
            let weights = if over { None } else { Some(at(0)?.elements::<T>()) };
            let mut out =
                |group: usize| call.opt_output(group * count + index).map(|out| out.elements::<T>());
            let out = [out(0), out(1), if self.rule.remembered() > 1 { out(2) } else { None }];
            let mut group = Group { gradient, remembered: [first, second], out, weights };
            if group.weights.is_none() && group.out[0].is_none() {
                return Err(OpError::MissingInput(0));
            }
            let norm = w(self.norm);
            match self.rule {
                Rule::Adagrad { decay, epsilon } => {
                    let (rate, epsilon) = (w(rate / (1.0 + steps as f64 * decay)), w(epsilon));
                    let sum = move |x: T, g: T, h: T| {
                        let g = norm * x + g;
                        (g, h + g * g)
                    };
                    group.write(
                        |x, g, h, _| [sum(x, g, h).1; 2],
                        |x, g, h, _| {
                            let (g, h) = sum(x, g, h);
                            x - rate * g / (h.root() + epsilon)
                        },
                    );
                }
                Rule::Adam { alpha, beta, epsilon, norm_after } => {
                    let power = |base: f64| base.powf(steps as f64);
                    let rate = match steps {
                        1.. => rate * (1.0 - power(beta)).sqrt() / (1.0 - power(alpha)),
                        _ => rate,
                    };
                    let (rate, epsilon, after) = (w(rate), w(epsilon), w(1.0 - norm_after));
                    let (keep_v, new_v, keep_h, new_h) = (w(alpha), w(1.0 - alpha), w(beta), w(1.0 - beta));
                    let next = move |x: T, g: T, v: T, h: T| {
                        let g = norm * x + g;
                        [keep_v * v + new_v * g, keep_h * h + new_h * g * g]
                    };
                    group.write(next, |x, g, v, h| {
                        let [v, h] = next(x, g, v, h);
                        after * (x - rate * v / (h.root() + epsilon))
                    });
                }
                Rule::Momentum { alpha, beta, nesterov } => {
                    let (alpha, rate) = (w(alpha), w(rate));
                    let beta = w(if steps > 0 { beta } else { 1.0 });
                    let next = move |x: T, g: T, v: T| {
                        let g = norm * x + g;
                        (g, alpha * v + beta * g)
                    };
                    group.write(
                        |x, g, v, _| [next(x, g, v).1; 2],
                        |x, g, v, _| {
                            let (g, v) = next(x, g, v);
                            x - rate * if nesterov { g + alpha * v } else { v }
                        },
                    );
                }
            }
        }
        Ok(())
    }
}

impl Operator for Optimizer {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        for index in 0..2 {
            let ty = inputs.ty(index)?;
            if ty.elements() != 1 {
                return Err(OpError::shape(format!("input {index} is {ty}, not one number")).into());
            }
        }
        let groups = self.rule.remembered() + 2;
        let mut outputs = Types::new();
        for group in 0..groups {
            for index in 0..self.weights {
                let (weights, ty) = (inputs.ty(2 + index)?, inputs.ty(2 + group * self.weights + index)?);
                if ty != weights {
                    return Err(OpError::operand(
                        ty,
                        weights.dtype,
                        format!("weights are {weights}, and what belongs to them is {ty}"),
                    )
                    .into());
                }
                if !matches!(ty.dtype, DataType::F32 | DataType::F64) || ty.dtype != inputs.ty(2)?.dtype {
                    return Err(no(ty.dtype).into());
                }
                if group != 1 {
                    outputs.push(ty.clone());
                }
            }
        }
        Ok(outputs)
    }

    fn reuse(&self) -> Reuse {
        Reuse::InPlace(&[2])
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let (rate, steps) = (call.input(0)?, call.input(1)?);
        let rate = by_type!(rate.dtype, [F32, F64], T => rate.elements::<T>()[0].to_f64(), return Err(no(rate.dtype)));
        let steps = match ints(&steps).as_deref() {
            Some(&[steps]) => steps,
            _ => {
                return Err(OpError::shape(format!(
                    "the number of steps is {}{:?}",
                    steps.dtype, steps.shape
                )));
            }
        };
        by_type!(call.dtype(2)?, [F32, F64], T => self.compute::<T>(call, rate, steps), Err(no(call.dtype(2)?)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::trial::{Trial, numbers, tensor};
    use stepalloc_graph::Attribute;

    #[test]
    fn weights_written_over_are_those_written_elsewhere() {
        for (op, groups) in [("Adagrad", 3), ("Adam", 4), ("Momentum", 3)] {
            let given = [tensor(&[], &[0.1f32]), tensor(&[], &[3i64])];
            let tensors = (0..groups).map(|seed| {
                let made = numbers(&[17], seed + 1);
                // What is remembered of squares is not below zero.
                tensor(&[17], &made.view().elements::<f32>().iter().map(|x| x.abs()).collect::<Vec<_>>())
            });
            let trial = Trial::new(op, &[], given.into_iter().chain(tensors)).outputs(groups as usize - 1);
            let mut trial = trial.text("mode", "nesterov").with("norm_coefficient", Attribute::Float(0.2));
            trial.domain = "ai.onnx.preview.training";
            let wanted = trial.run().expect("it runs");
            let made = trial.run_over(Some(2)).expect("it runs");
            for (made, wanted) in made.iter().zip(&wanted) {
                assert_eq!(made.view().bytes, wanted.view().bytes, "{op}");
            }
        }
    }
}
