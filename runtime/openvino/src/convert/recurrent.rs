//! Recurrent networks: sequences, and single cells.

use super::{Conversion, Made};
use crate::build::With;
use stepalloc_graph::ValueId;
use stepalloc_tensor::{DataType, OpError, mapped::Order};

/// A network: ONNX's operator, its gates here by number in ONNX's order, its states, and what is computed of numbers by default.
struct Kind {
    op: &'static str,
    gates: &'static [usize],
    states: usize,
    functions: &'static [&'static str],
}

const LSTM: Kind =
    Kind { op: "LSTM", gates: &[1, 3, 0, 2], states: 2, functions: &["Sigmoid", "Tanh", "Tanh"] };
const GRU: Kind = Kind { op: "GRU", gates: &[0, 1, 2], states: 1, functions: &["Sigmoid", "Tanh"] };
const RNN: Kind = Kind { op: "RNN", gates: &[0], states: 1, functions: &["Tanh"] };

pub(super) fn convert(call: &mut Conversion<'_, '_, '_>) -> Made {
    Some(match call.layer.kind {
        "LSTMSequence" => sequence(call, &LSTM),
        "GRUSequence" => sequence(call, &GRU),
        "RNNSequence" => sequence(call, &RNN),
        "LSTMCell" if call.layer.version != "opset1" => cell(call, &LSTM),
        "GRUCell" => cell(call, &GRU),
        "RNNCell" => cell(call, &RNN),
        _ => return None,
    })
}

/// What a network is told beside its inputs.
fn told(call: &Conversion<'_, '_, '_>, kind: &Kind, directions: usize) -> Result<With, OpError> {
    let given: Vec<String> = call.numbers("activations")?;
    let mut functions = Vec::new();
    for at in 0..kind.functions.len() {
        functions.push(match given.get(at).map(|name| name.to_ascii_lowercase()).as_deref() {
            None => kind.functions[at],
            Some("sigmoid") => "Sigmoid",
            Some("tanh") => "Tanh",
            Some("relu") => "Relu",
            Some(other) => {
                return Err(OpError::unsupported(format!("its activation {other} is not known here")));
            }
        });
    }
    let functions: Vec<_> = functions.iter().copied().cycle().take(functions.len() * directions).collect();
    let hidden: i64 = call.number("hidden_size", 0)?;
    let mut with = With::default().int("hidden_size", hidden).texts("activations", &functions);
    let clip: f64 = call.number("clip", 0.0)?;
    if clip > 0.0 {
        with = with.float("clip", clip);
    }
    if kind.op == "GRU" {
        with = with.int("linear_before_reset", call.flag("linear_before_reset", false)?);
    }
    Ok(with)
}

/// Weights with their gates in another order; those that are always the same are copied once, when they are first used.
fn in_order(
    call: &mut Conversion<'_, '_, '_>,
    id: ValueId,
    gates: &'static [usize],
) -> Result<ValueId, OpError> {
    if gates.iter().enumerate().all(|(at, &gate)| at == gate) {
        return Ok(id);
    }
    if let Some(tensor) = call.builder.known(id) {
        let [groups, rows, ..] = tensor.ty().shape[..] else {
            return Err(OpError::shape(format!("its weights are of shape {:?}", tensor.ty().shape)));
        };
        if !rows.is_multiple_of(gates.len()) {
            return Err(OpError::shape(format!("its weights have {rows} rows for {} gates", gates.len())));
        }
        if tensor.ty().elements() == 0 {
            return Ok(id);
        }
        let made = tensor.reordered(Order { groups, blocks: gates });
        return Ok(call.constant(made));
    }
    let with = With::default().int("axis", 1).int("num_outputs", gates.len() as i64);
    let parts = call.node("Split", &[Some(id)], with, &vec![true; gates.len()])?;
    let parts: Option<Vec<_>> = gates.iter().map(|&gate| parts[gate]).collect();
    call.op_with(
        "Concat",
        &parts.ok_or_else(|| OpError::internal("it makes nothing"))?,
        With::default().int("axis", 1),
    )
}

/// Shifts of inputs and of states, one after the other: here they come added up.
fn shifts(
    call: &mut Conversion<'_, '_, '_>,
    kind: &Kind,
    id: ValueId,
    like: DataType,
) -> Result<ValueId, OpError> {
    let hidden: usize = call.number("hidden_size", 0)?;
    let gates = kind.gates.len();
    let is_apart = kind.op == "GRU" && call.flag("linear_before_reset", false)?;
    let shift = if is_apart { id } else { in_order(call, id, kind.gates)? };
    let zero = call.scalar(like, 0.0)?;
    let axis = || With::default().int("axis", 1);
    if !is_apart {
        let zeros = call.op("Mul", &[shift, zero])?;
        return call.op_with("Concat", &[shift, zeros], axis());
    }
    // Of the last gate both are there.
    let front = hidden
        .checked_mul(gates - 1)
        .ok_or_else(|| OpError::attribute("its hidden_size is too large"))? as i64;
    let lengths = call.ints(&[front, hidden as i64, hidden as i64])?;
    let parts = call.node("Split", &[Some(shift), Some(lengths)], axis(), &[true; 3])?;
    let [Some(first), Some(input), Some(state)] = parts[..] else {
        return Err(OpError::internal("it makes nothing"));
    };
    let zeros = call.op("Mul", &[first, zero])?;
    call.op_with("Concat", &[first, input, zeros, state], axis())
}

fn sequence(call: &mut Conversion<'_, '_, '_>, kind: &Kind) -> Result<Vec<Option<ValueId>>, OpError> {
    let direction = call.text("direction", "forward").to_ascii_lowercase();
    let directions = if direction == "bidirectional" { 2 } else { 1 };
    let with = told(call, kind, directions)?.text("direction", &direction).int("layout", 1);
    let dtype = call.dtype(0)?;
    let x = call.input(0)?;
    let states: Vec<_> = (1..=kind.states).map(|at| call.input(at)).collect::<Result<_, _>>()?;
    let at = kind.states + 1;
    let [lengths, w, r, b] = [call.input(at)?, call.input(at + 1)?, call.input(at + 2)?, call.input(at + 3)?];
    let lengths = call.cast(lengths, DataType::I32)?;
    let (w, r) = (in_order(call, w, kind.gates)?, in_order(call, r, kind.gates)?);
    let b = shifts(call, kind, b, dtype)?;
    let mut operands = vec![x, w, r, b, lengths];
    operands.extend(&states);
    let operands: Vec<_> = operands.into_iter().map(Some).collect();
    let mut wanted = call.wanted.clone();
    wanted.resize(kind.states + 1, false);
    let mut made = call.node(kind.op, &operands, with, &wanted)?;
    // Directions are in front of the steps.
    if let Some(Some(all)) = made.first_mut() {
        *all = if directions == 1 {
            let flat = call.squeeze(*all, &[2])?;
            call.unsqueeze(flat, &[1])?
        } else {
            call.transpose(*all, &[0, 2, 1, 3])?
        };
    }
    Ok(made)
}

/// A sequence of one step.
fn cell(call: &mut Conversion<'_, '_, '_>, kind: &Kind) -> Result<Vec<Option<ValueId>>, OpError> {
    let with = told(call, kind, 1)?.int("layout", 1);
    let dtype = call.dtype(0)?;
    let x = call.input(0)?;
    let x = call.unsqueeze(x, &[1])?;
    let mut operands = vec![Some(x)];
    for (at, axis) in [(1, 0), (2, 0), (3, 0)] {
        let id = call.input(kind.states + at)?;
        let id = call.unsqueeze(id, &[axis])?;
        let id = if at == 3 { shifts(call, kind, id, dtype)? } else { in_order(call, id, kind.gates)? };
        operands.push(Some(id));
    }
    operands.push(None);
    for at in 1..=kind.states {
        let id = call.input(at)?;
        operands.push(Some(call.unsqueeze(id, &[1])?));
    }
    let mut wanted = vec![false];
    wanted.extend((0..kind.states).map(|at| call.wanted.get(at).copied().unwrap_or(false)));
    let made = call.node(kind.op, &operands, with, &wanted)?;
    made.into_iter().skip(1).map(|id| id.map(|id| call.squeeze(id, &[1])).transpose()).collect()
}
