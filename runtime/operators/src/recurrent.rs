//! Recurrent layers: LSTM, GRU and RNN.
//!
//! What the inputs have to say to all gates in all steps is one matrix product, made first. Each step then multiplies the states of
//! the whole batch, and goes through it row by row. Gates lie one behind the other in each row, in the order of the weights. The
//! weights of the states are read in every step: for the states of a batch, they are laid out in panels before the first one.

use super::matmul::layout;
use super::{Call, Definition, Known, Made, Operator, Types, Unclear, ints, typed};
use smallvec::smallvec;
use std::ops::Range;
use stepalloc_graph::{PackSpec, Prepacked};
use stepalloc_kernels::gemm::packed::Columns;
use stepalloc_kernels::gemm::prepacked::Packed;
use stepalloc_kernels::gemm::{Matrix, panels};
use stepalloc_kernels::{
    activation::Activation,
    real::{Real, Space, Target, is_double, widened, widened_bytes},
};
use stepalloc_tensor::{DataType, OpError, Type, View};

pub(super) fn make(node: &Definition<'_>) -> Made {
    let kind = match node.op {
        "LSTM" => Kind::Lstm,
        "GRU" => Kind::Gru,
        "RNN" => Kind::Rnn,
        _ => return None,
    };
    Some(Layer::new(kind, node).map(|made| Box::new(made) as _))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Lstm,
    Gru,
    Rnn,
}

impl Kind {
    fn gates(self) -> usize {
        match self {
            Self::Lstm => 4,
            Self::Gru => 3,
            Self::Rnn => 1,
        }
    }

    /// Of how many gates each product with the states is.
    fn products(self) -> &'static [usize] {
        match self {
            Self::Lstm => &[4],
            Self::Gru => &[2, 1],
            Self::Rnn => &[1],
        }
    }

    /// Names of the functions of one direction, where the node names none.
    fn functions(self) -> &'static [&'static str] {
        match self {
            Self::Lstm => &["Sigmoid", "Tanh", "Tanh"],
            Self::Gru => &["Sigmoid", "Tanh"],
            Self::Rnn => &["Tanh"],
        }
    }
}

struct Layer {
    kind: Kind,
    hidden: Option<i64>,
    /// For each direction: whether it goes from the end.
    backwards: Vec<bool>,
    /// Of all directions, [`Kind::functions`] each.
    activations: Vec<Activation>,
    clip: Option<f32>,
    batch_first: bool,
    linear_before_reset: bool,
    input_forget: bool,
}

/// Sizes that the types of the inputs tell.
#[derive(Clone, Copy)]
struct Sizes {
    steps: usize,
    batch: usize,
    input: usize,
    hidden: usize,
}

/// Elements that are needed beside inputs and outputs.
struct Needs {
    /// Of the gates in all steps.
    gates: usize,
    /// Of the gates in one step.
    step: usize,
    /// Of one state.
    state: usize,
    /// Of the weights of the states, where they are laid out in panels.
    panels: usize,
}

/// Weights of fewer gates are not packed.
const LEAST_COLUMNS: usize = 64;
/// For fewer steps of a batch, weights are read where they are: laying them out takes as long as one or two steps.
const STEPS: usize = 4;

impl Layer {
    fn new(kind: Kind, node: &Definition<'_>) -> Result<Self, OpError> {
        let attributes = node.attributes;
        let backwards = match attributes.text("direction", "forward") {
            "forward" => vec![false],
            "reverse" => vec![true],
            "bidirectional" => vec![false, true],
            other => return Err(OpError::attribute(format!("there is no direction {other}"))),
        };
        let wanted = kind.functions().len() * backwards.len();
        let mut names = attributes.texts("activations").unwrap_or_default();
        if names.is_empty() {
            names = kind.functions().repeat(backwards.len());
        }
        if names.len() < wanted {
            return Err(OpError::attribute(format!(
                "it is told {} activations instead of {wanted}",
                names.len()
            )));
        }
        let mut alphas = attributes.floats("activation_alpha").unwrap_or_default().into_iter();
        let mut betas = attributes.floats("activation_beta").unwrap_or_default().into_iter();
        let activations = names[..wanted].iter().map(|name| Activation::new(name, &mut alphas, &mut betas));
        Ok(Self {
            kind,
            hidden: attributes.opt_int("hidden_size"),
            activations: activations.collect::<Result<_, _>>()?,
            backwards,
            clip: attributes.opt_float("clip").filter(|&clip| clip > 0.0),
            batch_first: attributes.int("layout", 0) != 0,
            linear_before_reset: attributes.int("linear_before_reset", 0) != 0,
            input_forget: attributes.int("input_forget", 0) != 0,
        })
    }

    /// Sizes by the shapes of the sequences and of the recurrent weights.
    fn measure(&self, x: &[usize], r: &[usize]) -> Option<Sizes> {
        let (&[steps, batch, input], &[_, _, hidden]) = (x, r) else { return None };
        let (steps, batch) = if self.batch_first { (batch, steps) } else { (steps, batch) };
        Some(Sizes { steps, batch, input, hidden })
    }

    /// Checks that the inputs fit.
    fn sizes(&self, inputs: &Known<'_>) -> Result<Sizes, Unclear> {
        let (x, w, r) = (inputs.ty(0)?, inputs.ty(1)?, inputs.ty(2)?);
        let sizes = self.measure(&x.shape, &r.shape).ok_or_else(|| {
            OpError::shape(format!("its inputs are {x}, {w} and {r}, not of three dimensions each"))
        })?;
        let Sizes { steps, batch, input, hidden } = sizes;
        if let Some(told) = self.hidden.filter(|&told| usize::try_from(told) != Ok(hidden)) {
            return Err(
                OpError::attribute(format!("its hidden size is {told}, and its weights are {r}")).into()
            );
        }
        let (directions, gates) = (self.backwards.len(), self.kind.gates());
        let all = |per: usize| {
            hidden.checked_mul(per).ok_or_else(|| OpError::shape("its hidden size is beyond all bounds"))
        };
        let state = self.state(directions, batch, hidden);
        let expected = [
            (1, vec![directions, all(gates)?, input]),
            (2, vec![directions, all(gates)?, hidden]),
            (3, vec![directions, all(2 * gates)?]),
            (4, vec![batch]),
            (5, state.to_vec()),
            (6, state.to_vec()),
            (7, vec![directions, all(3)?]),
        ];
        is_double(x.dtype)?;
        for (index, shape) in expected.iter().take(if self.kind == Kind::Lstm { 8 } else { 5 }) {
            let Some(ty) = inputs.opt(*index) else { continue };
            let dtype = if *index == 4 { DataType::I32 } else { x.dtype };
            if ty.shape != *shape || ty.dtype != dtype && !(*index == 4 && ty.dtype == DataType::I64) {
                return Err(
                    OpError::shape(format!("input {index} is {ty}, and should be {dtype}{shape:?}")).into()
                );
            }
        }
        // A dimension of zero may hide that the gates are too many to be counted.
        typed(DataType::F64, [steps, batch, all(2 * gates)?])?;
        Ok(sizes)
    }

    fn state(&self, directions: usize, batch: usize, hidden: usize) -> [usize; 3] {
        if self.batch_first { [batch, directions, hidden] } else { [directions, batch, hidden] }
    }

    fn needs(&self, sizes: Sizes) -> Needs {
        let step = sizes.batch * sizes.hidden * self.kind.gates();
        let weights = self.kind.gates().saturating_mul(sizes.hidden.saturating_mul(sizes.hidden));
        let panels = if sizes.batch > 1 && sizes.steps >= STEPS { weights } else { 0 };
        Needs { gates: sizes.steps * step, step, state: sizes.batch * sizes.hidden, panels }
    }

    fn scratch_of<W: Real>(&self, sizes: Sizes, inputs: &Known<'_>, outputs: &[Type]) -> usize {
        let Needs { gates, step, state, panels } = self.needs(sizes);
        let bias = sizes.hidden * self.kind.gates();
        let own: usize = [gates, step, state, state, bias, panels].into_iter().map(Space::bytes::<W>).sum();
        let inputs = (0..8).filter(|&index| index != 4).filter_map(|index| inputs.opt(index));
        let copied = |ty: &Type| widened_bytes::<W>(ty.dtype, ty.elements());
        own + inputs.map(copied).sum::<usize>() + outputs.iter().map(copied).sum::<usize>()
    }

    fn compute<W: Real>(&self, sizes: Sizes, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let Sizes { steps, batch, input, hidden } = sizes;
        let packed = call.prepacked.map(columns).transpose()?;
        let mut space = Space(call.scratch());
        let lengths = match call.opt(4) {
            None => None,
            Some(view) => Some(lengths(&view, sizes)?),
        };
        let mut wide = |index: usize| call.opt(index).map(|view| widened::<W>(&view, &mut space)).transpose();
        let [x, w, r] = [0, 1, 2].map(|index| wide(index)?.ok_or(OpError::MissingInput(index)));
        let (x, w, r) = (x?, w?, r?);
        let (bias, first, first_cell, peepholes) = (wide(3)?, wide(5)?, wide(6)?, wide(7)?);
        let Needs { gates: all, step, state, panels } = self.needs(sizes);
        let gates = self.kind.gates();
        let (given, told) = (space.take::<W>(all)?, space.take::<W>(step)?);
        let (h, cell, sum) = (space.take::<W>(state)?, space.take::<W>(state)?, space.take(hidden * gates)?);
        let panels = space.take::<W>(panels)?;
        let mut target =
            |index: usize| call.opt_output(index).map(|output| Target::new(output, &mut space)).transpose();
        let (mut y, mut last, mut last_cell) = (target(0)?, target(1)?, target(2)?);
        let directions = self.backwards.len();
        for (direction, &backwards) in self.backwards.iter().enumerate() {
            let part = |all: &'_ [W], elements: usize| -> Range<usize> {
                debug_assert!(all.len() >= elements * (direction + 1));
                elements * direction..elements * (direction + 1)
            };
            let bias = bias.map(|bias| &bias[part(bias, 2 * gates * hidden)]);
            let cell_state = |b: usize| {
                let at = if self.batch_first { b * directions + direction } else { direction * batch + b };
                at * hidden..(at + 1) * hidden
            };
            for b in 0..batch {
                let row = b * hidden..(b + 1) * hidden;
                let begin = |to: &mut [W], from: Option<&[W]>| match from {
                    Some(from) => to.copy_from_slice(&from[cell_state(b)]),
                    None => to.fill(W::default()),
                };
                begin(&mut h[row.clone()], first);
                begin(&mut cell[row], first_cell);
            }
            // What is added to the gates in every step goes into the product.
            sum.fill(W::default());
            if let Some(bias) = bias {
                let linear = self.kind == Kind::Gru && self.linear_before_reset;
                let both = if linear { 2 * hidden } else { gates * hidden };
                for (at, sum) in sum.iter_mut().enumerate() {
                    *sum = if at < both { bias[at] + bias[gates * hidden + at] } else { bias[at] };
                }
            }
            let x = Matrix::new(x, steps * batch, input);
            match packed {
                Some(columns) => W::multiply_packed(given, x, (columns, direction), sum)?,
                None => {
                    let w = Matrix::new(&w[part(w, gates * hidden * input)], gates * hidden, input);
                    W::multiply_biased(given, x, w.transposed(), sum);
                }
            }
            let r = &r[part(r, gates * hidden * hidden)];
            let in_panels = !panels.is_empty();
            if in_panels {
                let mut begin = 0;
                for gates in self.kind.products() {
                    let end = begin + gates * hidden * hidden;
                    panels::lay_out(&r[begin..end], hidden, &mut panels[begin..end]);
                    begin = end;
                }
            }
            let cells = Cells {
                layer: self,
                hidden,
                r: if in_panels { panels } else { r },
                in_panels,
                reset_bias: bias.map(|bias| &bias[(2 * gates - 1) * hidden..]),
                peepholes: peepholes.map(|all| &all[part(all, 3 * hidden)]),
                activations: &self.activations[self.kind.functions().len() * direction..],
            };
            for round in 0..steps {
                let time = |b: usize| {
                    let length = lengths.as_ref().map_or(steps, |lengths| lengths[b]);
                    (round < length).then(|| if backwards { length - 1 - round } else { round })
                };
                let given_at = |b: usize| {
                    let t = time(b)?;
                    Some(if self.batch_first { b * steps + t } else { t * batch + b } * gates * hidden)
                };
                match self.kind {
                    Kind::Lstm => cells.lstm(given, &given_at, told, h, cell),
                    Kind::Gru => cells.gru(given, &given_at, told, h, cell),
                    Kind::Rnn => cells.rnn(given, &given_at, told, h),
                }
                let Some(y) = &mut y else { continue };
                for b in 0..batch {
                    let t = time(b).unwrap_or(round);
                    let at = if self.batch_first {
                        (b * steps + t) * directions + direction
                    } else {
                        (t * directions + direction) * batch + b
                    };
                    let y = &mut y.wide[at * hidden..(at + 1) * hidden];
                    match time(b) {
                        Some(_) => y.copy_from_slice(&h[b * hidden..(b + 1) * hidden]),
                        None => y.fill(W::default()),
                    }
                }
            }
            for (last, state) in [(&mut last, &h), (&mut last_cell, &cell)] {
                let Some(last) = last else { continue };
                for b in 0..batch {
                    last.wide[cell_state(b)].copy_from_slice(&state[b * hidden..(b + 1) * hidden]);
                }
            }
        }
        [y, last, last_cell].into_iter().flatten().try_for_each(Target::finish)
    }
}

/// The lengths of a batch's sequences.
fn lengths(view: &View<'_>, sizes: Sizes) -> Result<Vec<usize>, OpError> {
    let lengths = ints(view).ok_or_else(|| OpError::element_type(format!("lengths are {}", view.dtype)))?;
    let length = |length: i64| usize::try_from(length).ok().filter(|&length| length <= sizes.steps);
    lengths
        .into_iter()
        .map(|told| {
            length(told).ok_or_else(|| {
                OpError::value(format!("a sequence of {} steps is said to have {told}", sizes.steps))
            })
        })
        .collect()
}

/// The steps of one direction.
struct Cells<'a, W> {
    layer: &'a Layer,
    hidden: usize,
    /// The weights of the states.
    r: &'a [W],
    /// Whether those of each of [`Kind::products`] are in panels.
    in_panels: bool,
    /// The bias of GRU's hidden gate that is added before the gate is reset.
    reset_bias: Option<&'a [W]>,
    peepholes: Option<&'a [W]>,
    activations: &'a [Activation],
}

/// Where the gates of a member of the batch begin in this step; `None` when its sequence is over.
type Begin<'a> = &'a dyn Fn(usize) -> Option<usize>;

impl<W: Real> Cells<'_, W> {
    /// States times the weights of these gates, which are one of [`Kind::products`].
    fn multiply(&self, states: &[W], gates: Range<usize>, told: &mut [W]) {
        let hidden = self.hidden;
        let r = &self.r[gates.start * hidden * hidden..gates.end * hidden * hidden];
        let rows = states.len().checked_div(hidden).unwrap_or(0);
        let states = Matrix::new(states, rows, hidden);
        if self.in_panels {
            return W::multiply_panels(told, states, r, gates.len() * hidden);
        }
        let weights = Matrix::new(r, gates.len() * hidden, hidden).transposed();
        W::multiply(told, states, weights, 1.0, W::default());
    }

    fn activate(&self, which: usize, row: &mut [W]) {
        if let Some(clip) = self.layer.clip {
            let most = W::from_f64(clip.into());
            let least = W::default() - most;
            for x in row.iter_mut() {
                *x = if *x > most {
                    most
                } else if *x < least {
                    least
                } else {
                    *x
                };
            }
        }
        self.activations[which].apply(row);
    }

    fn lstm(&self, given: &[W], begin: Begin<'_>, told: &mut [W], h: &mut [W], cells: &mut [W]) {
        let hidden = self.hidden;
        self.multiply(h, 0..4, told);
        let states = h.chunks_exact_mut(hidden.max(1)).zip(cells.chunks_exact_mut(hidden.max(1)));
        for (b, ((h, cell), row)) in states.zip(told.chunks_exact_mut(4 * hidden.max(1))).enumerate() {
            let Some(at) = begin(b) else { continue };
            add(row, &given[at..]);
            let (i, rest) = row.split_at_mut(hidden);
            let (o, rest) = rest.split_at_mut(hidden);
            let (f, c) = rest.split_at_mut(hidden);
            if let Some(peepholes) = self.peepholes {
                add_product(i, &peepholes[..hidden], cell);
                add_product(f, &peepholes[2 * hidden..], cell);
            }
            self.activate(0, i);
            if self.layer.input_forget {
                f.iter_mut().zip(&*i).for_each(|(f, &i)| *f = W::ONE - i);
            } else {
                self.activate(0, f);
            }
            self.activate(1, c);
            for (((cell, &f), &i), &c) in cell.iter_mut().zip(&*f).zip(&*i).zip(&*c) {
                *cell = f * *cell + i * c;
            }
            if let Some(peepholes) = self.peepholes {
                add_product(o, &peepholes[hidden..], cell);
            }
            self.activate(0, o);
            // The input gate has done its work: its place is that of the cell's output.
            i.copy_from_slice(cell);
            self.activations[2].apply(i);
            h.iter_mut().zip(&*o).zip(&*i).for_each(|((h, &o), &i)| *h = o * i);
        }
    }

    /// `reset` is memory for the states of the whole batch.
    fn gru(&self, given: &[W], begin: Begin<'_>, told: &mut [W], h: &mut [W], reset: &mut [W]) {
        let hidden = self.hidden;
        // Two gates of all members of the batch, and then the third of all.
        let (two, third) = told.split_at_mut(2 * h.len());
        self.multiply(h, 0..2, two);
        let width = hidden.max(1);
        for (b, row) in two.chunks_exact_mut(2 * width).enumerate() {
            if let Some(at) = begin(b) {
                add(row, &given[at..]);
                self.activate(0, row);
            }
        }
        let linear = self.layer.linear_before_reset;
        if linear {
            self.multiply(h, 2..3, third);
        } else {
            let states = reset.chunks_exact_mut(width).zip(h.chunks_exact(width));
            for ((reset, h), row) in states.zip(two.chunks_exact(2 * width)) {
                reset.iter_mut().zip(h).zip(&row[hidden..]).for_each(|((to, &h), &r)| *to = r * h);
            }
            self.multiply(reset, 2..3, third);
        }
        let rows = two.chunks_exact(2 * width).zip(third.chunks_exact_mut(width));
        for (b, ((two, third), h)) in rows.zip(h.chunks_exact_mut(width)).enumerate() {
            let Some(at) = begin(b) else { continue };
            let (z, r) = two.split_at(hidden);
            if linear {
                if let Some(bias) = self.reset_bias {
                    add(third, bias);
                }
                third.iter_mut().zip(r).for_each(|(x, &r)| *x = *x * r);
            }
            add(third, &given[at + 2 * hidden..]);
            self.activate(1, third);
            for ((h, &z), &new) in h.iter_mut().zip(z).zip(&*third) {
                *h = (W::ONE - z) * new + z * *h;
            }
        }
    }

    fn rnn(&self, given: &[W], begin: Begin<'_>, told: &mut [W], h: &mut [W]) {
        let hidden = self.hidden;
        self.multiply(h, 0..1, told);
        let rows = told.chunks_exact_mut(hidden.max(1)).zip(h.chunks_exact_mut(hidden.max(1)));
        for (b, (row, h)) in rows.enumerate() {
            let Some(at) = begin(b) else { continue };
            add(row, &given[at..]);
            self.activate(0, row);
            h.copy_from_slice(row);
        }
    }
}

/// The packed weights of what goes in, a group of columns for each direction.
fn columns(prepacked: &Prepacked) -> Result<&Columns, OpError> {
    let packed: &Packed = prepacked.packed(|tensor, spec| Packed::of(tensor, layout(spec)))?;
    Ok(packed)
}

fn add<W: Real>(to: &mut [W], from: &[W]) {
    to.iter_mut().zip(from).for_each(|(to, &from)| *to = *to + from);
}

fn add_product<W: Real>(to: &mut [W], a: &[W], b: &[W]) {
    to.iter_mut().zip(a).zip(b).for_each(|((to, &a), &b)| *to = *to + a * b);
}

impl Operator for Layer {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        let Sizes { steps, batch, hidden, .. } = self.sizes(inputs)?;
        let (dtype, directions) = (inputs.ty(0)?.dtype, self.backwards.len());
        let all = match self.batch_first {
            true => [batch, steps, directions, hidden],
            false => [steps, directions, batch, hidden],
        };
        let state = typed(dtype, self.state(directions, batch, hidden))?;
        let states = if self.kind == Kind::Lstm { 2 } else { 1 };
        let mut types = smallvec![typed(dtype, all)?];
        types.extend(std::iter::repeat_n(state, states));
        Ok(types)
    }

    fn scratch(&self, inputs: &Known<'_>, _: &[Type]) -> usize {
        let (Ok(sizes), Ok(outputs), Ok(x)) = (self.sizes(inputs), self.infer(inputs), inputs.ty(0)) else {
            return 0;
        };
        match x.dtype {
            DataType::F64 => self.scratch_of::<f64>(sizes, inputs, &outputs),
            _ => self.scratch_of::<f32>(sizes, inputs, &outputs),
        }
    }

    fn packs(&self, inputs: &Known<'_>) -> Option<PackSpec> {
        let (sizes, x) = (self.sizes(inputs).ok()?, inputs.opt(0)?);
        let Sizes { steps, batch, input, hidden } = sizes;
        let groups = self.backwards.len();
        let cols = groups * self.kind.gates() * hidden;
        let packs = x.dtype == DataType::F32 && steps * batch > 1 && input > 0 && cols >= LEAST_COLUMNS;
        packs.then_some(PackSpec { input: 1, rows: input, cols, transposed: true, groups, taps: 1 })
    }

    fn prepack(&self, prepacked: &Prepacked) -> Result<(), OpError> {
        columns(prepacked).map(drop)
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        // That they fit was checked when the types were told.
        let sizes = self.measure(call.input(0)?.shape, call.input(2)?.shape);
        let sizes = sizes.ok_or_else(|| OpError::shape("its inputs have not three dimensions each"))?;
        if is_double(call.dtype(0)?)? {
            self.compute::<f64>(sizes, call)
        } else {
            self.compute::<f32>(sizes, call)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::trial::{Trial, close, numbers, tensor};
    use stepalloc_tensor::Tensor;

    /// Dimensions 0 and 1 swapped.
    fn swapped(tensor: &Tensor) -> Option<Tensor> {
        let (shape, from) = (&tensor.ty().shape, tensor.view());
        let (rows, cols, inner) = (shape[0], shape[1], shape[2..].iter().product::<usize>());
        let from = from.elements::<f32>();
        let at = |index: usize| (index % rows * cols + index / rows) * inner;
        let to: Vec<f32> = (0..rows * cols).flat_map(|index| from[at(index)..][..inner].to_vec()).collect();
        let mut shape = shape.clone();
        shape.swap(0, 1);
        Tensor::from_elements(shape, &to)
    }

    fn trial<'a>(op: &'a str, gates: usize, lengths: &[i32]) -> Trial<'a> {
        let batch = lengths.len();
        let inputs = [
            Some(numbers(&[4, batch, 5], 1)),
            Some(numbers(&[2, gates * 3, 5], 2)),
            Some(numbers(&[2, gates * 3, 3], 3)),
            None,
            Some(tensor(&[batch], lengths)),
            Some(numbers(&[2, batch, 3], 4)),
        ];
        Trial::new(op, &[], inputs).outputs(2).text("direction", "bidirectional")
    }

    #[test]
    fn batch_first_is_the_same_in_another_order() {
        for (op, gates) in [("LSTM", 4), ("GRU", 3), ("RNN", 1)] {
            let plain = trial(op, gates, &[2, 4, 0]);
            let mut other = trial(op, gates, &[2, 4, 0]).int("layout", 1);
            for index in [0, 5] {
                other.inputs[index] = swapped(plain.inputs[index].as_ref().expect("it is there"));
            }
            let (plain, other) = (plain.run().expect("it runs"), other.run().expect("it runs"));
            let state = swapped(&other[1]).expect("as many elements");
            assert!(close(state.view().elements(), plain[1].view().elements()), "{op}");
            // [batch, steps, directions, hidden] against [steps, directions, batch, hidden].
            let (all, wanted) = (other[0].view(), plain[0].view());
            let (all, wanted) = (all.elements::<f32>(), wanted.elements::<f32>());
            for (at, &x) in all.iter().enumerate() {
                let (b, t, d, h) = (at / 24, at / 6 % 4, at / 3 % 2, at % 3);
                assert!(close(&[x], &[wanted[((t * 2 + d) * 3 + b) * 3 + h]]), "{op} at {at}");
            }
        }
    }

    #[test]
    fn a_sequence_is_not_changed_by_longer_ones_in_its_batch() {
        let both = trial("GRU", 3, &[2, 4]).run().expect("it runs");
        let mut alone = trial("GRU", 3, &[2]);
        let x = numbers(&[4, 2, 5], 1);
        let x: Vec<f32> =
            x.view().elements::<f32>().chunks(10).take(2).flat_map(|step| step[..5].to_vec()).collect();
        let h = numbers(&[2, 2, 3], 4);
        let h: Vec<f32> =
            h.view().elements::<f32>().chunks(6).flat_map(|states| states[..3].to_vec()).collect();
        alone.inputs[0] = Some(tensor(&[2, 1, 5], &x));
        alone.inputs[5] = Some(tensor(&[2, 1, 3], &h));
        let alone = alone.run().expect("it runs");
        let last: Vec<f32> =
            both[1].view().elements::<f32>().chunks(6).flat_map(|states| states[..3].to_vec()).collect();
        assert!(close(alone[1].view().elements(), &last));
    }

    /// Panels are for batches, and not for a single sequence.
    #[test]
    fn a_batch_is_computed_as_each_of_its_sequences_is() {
        const HIDDEN: usize = 37;
        for (op, gates) in [("LSTM", 4), ("GRU", 3), ("RNN", 1)] {
            for (batch, linear) in [(2, 0), (3, 1), (19, 0)] {
                let trial = |x: Tensor| {
                    let inputs = [
                        x,
                        numbers(&[2, gates * HIDDEN, 5], 2),
                        numbers(&[2, gates * HIDDEN, HIDDEN], 3),
                        numbers(&[2, 2 * gates * HIDDEN], 4),
                    ];
                    let trial = Trial::new(op, &[], inputs).text("direction", "bidirectional");
                    let trial = if op == "GRU" { trial.int("linear_before_reset", linear) } else { trial };
                    trial.run().expect("it runs").remove(0)
                };
                let x = numbers(&[6, batch, 5], 1);
                let all = trial(x.clone());
                for b in 0..batch {
                    let view = x.view();
                    let own: Vec<f32> =
                        view.elements::<f32>().chunks(5).skip(b).step_by(batch).flatten().copied().collect();
                    let alone = trial(tensor(&[6, 1, 5], &own));
                    let view = all.view();
                    let row = view.elements::<f32>().chunks(HIDDEN).skip(b).step_by(batch);
                    let row: Vec<f32> = row.flatten().copied().collect();
                    assert!(close(&row, alone.view().elements()), "{op} of {batch}, sequence {b}");
                }
            }
        }
    }

    #[test]
    fn nothing_to_do_is_no_error_and_nonsense_is_one() {
        for (op, gates) in [("LSTM", 4), ("GRU", 3), ("RNN", 1)] {
            assert!(trial(op, gates, &[]).run().is_ok(), "{op} of no sequences");
            for lengths in [[5, 1], [-1, 1]] {
                assert!(trial(op, gates, &lengths).run().is_err(), "{op} of {lengths:?} steps");
            }
            let flat = Trial::new(op, &[], [[2, 0, 0], [1, 0, 0], [1, 0, 0]].map(|shape| numbers(&shape, 1)));
            assert!(flat.run().is_ok(), "{op} without hidden elements");
            let unfit =
                Trial::new(op, &[], [[2, 1, 3], [1, 4, 2], [1, 4, 1]].map(|shape| numbers(&shape, 1)));
            assert!(unfit.run().is_err(), "{op} with weights that do not fit");
        }
    }
}
