//! What reading a file would take, told before it is read.
//!
//! A message of two bytes becomes a structure of hundreds, so a small file could take all memory there is. The file's messages are
//! gone through once, without anything being kept, and the bytes are counted that decoding and understanding them would take at
//! most: structures with the room that vectors leave, texts, elements that are not used where they lie, and the graph's own nodes and
//! values. Weights in the file itself take none. What is too much for the file's size is an error.

use super::proto::tensor_shape_proto;
use super::proto::{
    AttributeProto, FunctionProto, GraphProto, NodeProto, OperatorSetIdProto, SparseTensorProto,
    StringStringEntryProto, TensorAnnotation, TensorProto, TypeProto, ValueInfoProto,
};
use bytes::Bytes;
use stepalloc_graph::{Attribute, Error, Node, Value};
use stepalloc_tensor::{ALIGNMENT, Tensor};

/// A file may take so many times its size, and so much more: ten thousand nodes of short names without any weights in the file. Names as
/// exporters make them are long enough for any number.
const TIMES: u64 = 10;
const BASE: u64 = 16 << 20;
/// Messages may lie within each other so deep: a little more than what prost refuses.
const DEPTH: usize = 110;
/// Each block of memory takes so much beside its bytes.
const BLOCK: u64 = 16;
/// A name as a key of a table, which may be half empty, with its number.
const KEY: u64 = 2 * (size_of::<(String, usize)>() as u64 + 1) + BLOCK;
/// Of each node when it is understood: its message with its versions, itself, its operator, its place in the order.
const NODE: u64 = (size_of::<Node>() + size_of::<NodeProto>()) as u64 + 288;
/// Of each value: itself, and its name in two tables.
const VALUE: u64 = size_of::<Value>() as u64 + 2 * KEY;
/// What it takes beside that in a vector that doubles.
const DOUBLED: u64 = 2 * size_of::<Value>() as u64;
/// Of each attribute: itself in a table.
const ATTRIBUTE: u64 = 2 * size_of::<(String, Attribute)>() as u64 + KEY;
/// Of each tensor.
const TENSOR: u64 = size_of::<Tensor>() as u64 + 2 * BLOCK + ALIGNMENT as u64;
/// Of each name that a node takes: a number, and its place among those that wait for it.
const TAKEN: u64 = 96;
/// Each byte of messages that no model has but for curiosity: more than the smallest of them take.
const RARE: u64 = 300;

/// Nodes and initializers of the model's graph, for which there must be room before it is decoded.
#[derive(Clone, Copy, Default)]
pub(super) struct Counts {
    pub nodes: usize,
    pub initializers: usize,
}

/// Whether decoding so many bytes is within bounds.
pub(super) fn check(file: &Bytes) -> Result<Counts, Error> {
    let allowed = TIMES * file.len() as u64 + BASE;
    let (bytes, counts) = weigh(file).map_err(|Group| Error::model("no ONNX model: it has groups"))?;
    if bytes <= allowed {
        return Ok(counts);
    }
    let why = format!(
        "its messages are so small that they would take {bytes} bytes in memory; {TIMES} times the file and {BASE} bytes are allowed"
    );
    Err(Error::model(why))
}

/// Bytes of memory that a model in this file takes at most while it is read, and what there is of its graph.
fn weigh(file: &[u8]) -> Result<(u64, Counts), Group> {
    let mut weigher = Weigher { total: 0, early: 0, late: 0, graphs: 0, counts: Counts::default() };
    match weigher.message(Kind::Model, file, 0) {
        // What ends too early is counted as far as it goes: decoding does not get further.
        Ok(()) | Err(Stop::Short) => Ok((weigher.total + weigher.early.max(weigher.late), weigher.counts)),
        Err(Stop::Group) => Err(Group),
    }
}

/// There is a group, which the format of ONNX's messages does not have; decoding would step over it.
#[derive(Debug)]
struct Group;

/// Why there is nothing more to be counted.
enum Stop {
    Short,
    Group,
}

struct Weigher {
    total: u64,
    /// Of the model's graph: what is there until all initializers are understood, and what is not there before.
    early: u64,
    late: u64,
    /// Graphs around what is looked at.
    graphs: u64,
    counts: Counts,
}

/// Messages of ONNX.
#[derive(Clone, Copy)]
enum Kind {
    Model,
    Graph,
    Node,
    Attribute,
    Tensor,
    Sparse,
    ValueInfo,
    Type,
    TypeOfTensor,
    TypeOfElements,
    Shape,
    Dimension,
    Function,
    Annotation,
    /// Texts that no graph has.
    Entry,
    /// The same of a tensor: where its elements are.
    Location,
    /// Texts and numbers only.
    Flat,
}

/// What a field holds.
enum Holds {
    /// Nothing that takes memory beside its message.
    Nothing,
    Text,
    /// Text that stays in its message.
    Kept,
    /// Names in a vector, of values that are there.
    Taken,
    /// Names in a vector, of values that are made.
    Made,
    /// Bytes in a vector, which stay where they are.
    Lent,
    /// A message within the structure.
    One(Kind),
    /// A message in a box of this size.
    Boxed(Kind, usize),
    /// Messages of this size in a vector, and what each takes when it is understood.
    Many(Kind, usize, u64),
    /// Integers in a vector: bytes of each, and of each in the tensor or attribute it ends in.
    Integers(usize, usize),
    /// The same of floats, whose width in the file is that in memory.
    Floats(usize, usize),
    /// What models hardly ever have.
    Rare,
}

fn many<T>(kind: Kind, then: u64) -> Holds {
    Holds::Many(kind, size_of::<T>(), then)
}

fn boxed<T>(kind: Kind) -> Holds {
    Holds::Boxed(kind, size_of::<T>())
}

fn holds(kind: Kind, field: u64) -> Holds {
    use Holds::{Floats, Integers, Kept, Lent, Made, Nothing, One, Rare, Taken, Text};
    let entries = || many::<StringStringEntryProto>(Kind::Entry, 0);
    match (kind, field) {
        (Kind::Model, 2..=4 | 6) => Text,
        (Kind::Model, 7) => One(Kind::Graph),
        (Kind::Model, 8) => many::<OperatorSetIdProto>(Kind::Flat, size_of::<(String, i64)>() as u64),
        (Kind::Model, 14) => entries(),
        (Kind::Model, 20 | 26) => Rare,
        (Kind::Model, 25) => many::<FunctionProto>(Kind::Function, 2 * KEY),
        (Kind::Graph, 1) => many::<NodeProto>(Kind::Node, NODE),
        (Kind::Graph, 2 | 10) => Text,
        (Kind::Graph, 5) => many::<TensorProto>(Kind::Tensor, VALUE + DOUBLED + KEY + TENSOR),
        (Kind::Graph, 11 | 12) => many::<ValueInfoProto>(Kind::ValueInfo, VALUE + DOUBLED),
        (Kind::Graph, 13) => many::<ValueInfoProto>(Kind::ValueInfo, 0),
        (Kind::Graph, 14) => many::<TensorAnnotation>(Kind::Annotation, 0),
        (Kind::Graph, 15) => many::<SparseTensorProto>(Kind::Sparse, 0),
        (Kind::Graph, 16) => entries(),
        (Kind::Node, 1) => Taken,
        (Kind::Node, 2) => Made,
        (Kind::Node, 3 | 4 | 6 | 7 | 8) => Text,
        (Kind::Node, 5) => many::<AttributeProto>(Kind::Attribute, ATTRIBUTE),
        (Kind::Node, 9) => entries(),
        (Kind::Node, 10) => Rare,
        (Kind::Attribute, 1 | 13 | 21) => Text,
        (Kind::Attribute, 5) => boxed::<TensorProto>(Kind::Tensor),
        (Kind::Attribute, 6) => boxed::<GraphProto>(Kind::Graph),
        (Kind::Attribute, 7) => Floats(4, 4),
        (Kind::Attribute, 8) => Integers(8, 8),
        (Kind::Attribute, 9) => Lent,
        (Kind::Attribute, 10) => many::<TensorProto>(Kind::Tensor, 0),
        (Kind::Attribute, 11) => many::<GraphProto>(Kind::Graph, 0),
        (Kind::Attribute, 14) => boxed::<TypeProto>(Kind::Type),
        (Kind::Attribute, 15) => many::<TypeProto>(Kind::Type, 0),
        (Kind::Attribute, 22) => boxed::<SparseTensorProto>(Kind::Sparse),
        (Kind::Attribute, 23) => many::<SparseTensorProto>(Kind::Sparse, 0),
        // Sizes end in the tensor's type.
        (Kind::Tensor, 1) => Integers(8, 8),
        (Kind::Tensor, 5) => Integers(4, 4),
        // Floats are used where they are.
        (Kind::Tensor, 4 | 6 | 10) => Lent,
        (Kind::Tensor, 7 | 11) => Integers(8, 8),
        (Kind::Tensor, 8 | 12) => Text,
        (Kind::Tensor, 13) => many::<StringStringEntryProto>(Kind::Location, 0),
        (Kind::Tensor, 16) => entries(),
        (Kind::Sparse, 1 | 2) => One(Kind::Tensor),
        (Kind::Sparse, 3) => Integers(8, 0),
        (Kind::ValueInfo, 1 | 3) => Text,
        (Kind::ValueInfo, 2) => One(Kind::Type),
        (Kind::ValueInfo, 4) => entries(),
        (Kind::Type, 1 | 8) => One(Kind::TypeOfTensor),
        (Kind::Type, 4 | 9) => One(Kind::TypeOfElements),
        (Kind::Type, 5) => One(Kind::TypeOfElements),
        (Kind::Type, 6) => Text,
        (Kind::Type, 7) => One(Kind::Flat),
        (Kind::TypeOfTensor, 2) => One(Kind::Shape),
        (Kind::TypeOfElements, 1 | 2) => boxed::<TypeProto>(Kind::Type),
        (Kind::Shape, 1) => many::<tensor_shape_proto::Dimension>(
            Kind::Dimension,
            3 * size_of::<stepalloc_graph::Dim>() as u64,
        ),
        (Kind::Dimension, 2 | 3) => Text,
        (Kind::Function, 1 | 8 | 10 | 13) => Text,
        (Kind::Function, 4..=6) => Taken,
        (Kind::Function, 7) => many::<NodeProto>(Kind::Node, 0),
        (Kind::Function, 9) => many::<OperatorSetIdProto>(Kind::Flat, 0),
        (Kind::Function, 11) => many::<AttributeProto>(Kind::Attribute, 0),
        (Kind::Function, 12) => many::<ValueInfoProto>(Kind::ValueInfo, 0),
        (Kind::Function, 14) => entries(),
        (Kind::Annotation, 1) => Text,
        (Kind::Annotation, 2) => entries(),
        (Kind::Entry | Kind::Location, _) => Kept,
        (Kind::Flat, _) => Text,
        _ => Nothing,
    }
}

/// Fields with vectors have smaller numbers.
const FIELDS: usize = 32;

impl Weigher {
    /// Adds what a message takes beside the structure it is.
    fn message(&mut self, kind: Kind, bytes: &[u8], depth: usize) -> Result<(), Stop> {
        if depth > DEPTH {
            return Err(Stop::Short);
        }
        // Elements of each vector, and bytes of one.
        let mut vectors = [(0u64, 0u64); FIELDS];
        self.graphs += u64::from(matches!(kind, Kind::Graph));
        let done = self.fields(kind, bytes, depth, &mut vectors);
        self.graphs -= u64::from(matches!(kind, Kind::Graph));
        if depth == 1 && matches!(kind, Kind::Graph) {
            // There is room for them before.
            let [nodes, initializers] = [1, 5].map(|field| std::mem::take(&mut vectors[field]));
            self.counts.nodes += nodes.0 as usize;
            self.counts.initializers += initializers.0 as usize;
            self.early += nodes.0 * nodes.1 + initializers.0 * initializers.1;
            self.total += 2 * BLOCK;
        }
        for (field, (count, size)) in vectors.into_iter().enumerate().filter(|(_, (count, _))| *count > 0) {
            // Room doubles; while it does, the half that was there is there as well.
            let room = count.next_power_of_two().max(4);
            let bytes = if count > 4 { room + room / 2 } else { room } * size + BLOCK;
            let is_location = depth == 2 && matches!((kind, field), (Kind::Tensor, 13));
            *if is_location { &mut self.early } else { &mut self.total } += bytes;
        }
        done
    }

    fn fields(
        &mut self,
        kind: Kind,
        mut bytes: &[u8],
        depth: usize,
        vectors: &mut [(u64, u64); FIELDS],
    ) -> Result<(), Stop> {
        while !bytes.is_empty() {
            let key = varint(&mut bytes)?;
            let (field, wire) = (key >> 3, key & 7);
            let mut add = |count: u64, size: usize| {
                let vector = &mut vectors[field as usize % FIELDS];
                *vector = (vector.0 + count, size as u64);
            };
            let held = holds(kind, field);
            let length = match wire {
                0 => {
                    varint(&mut bytes)?;
                    None
                }
                1 | 5 => {
                    bytes = bytes.get(if wire == 1 { 8.. } else { 4.. }).ok_or(Stop::Short)?;
                    None
                }
                2 => Some(usize::try_from(varint(&mut bytes)?).map_err(|_| Stop::Short)?),
                3 | 4 => return Err(Stop::Group),
                _ => return Err(Stop::Short),
            };
            let Some(length) = length else {
                if let Holds::Integers(size, then) | Holds::Floats(size, then) = held {
                    add(1, size);
                    self.total += then as u64;
                }
                continue;
            };
            let (inner, rest) = bytes.split_at_checked(length).ok_or(Stop::Short)?;
            bytes = rest;
            let text = length as u64 + BLOCK;
            match held {
                Holds::Nothing => {}
                // In the message and in the graph.
                Holds::Text => self.total += 2 * text,
                Holds::Kept if depth == 3 && matches!(kind, Kind::Location) => self.early += text,
                Holds::Kept => self.total += text,
                Holds::Taken => {
                    add(1, size_of::<String>());
                    // What a graph takes from outside is a value of it, and of those around it.
                    self.total += text + TAKEN + self.graphs.saturating_sub(1) * (VALUE + DOUBLED + 3 * text);
                }
                Holds::Made => {
                    add(1, size_of::<String>());
                    // There is room for those of the model's graph before.
                    self.total += 3 * text + VALUE + if self.graphs > 1 { DOUBLED } else { 0 };
                }
                Holds::Lent => {
                    add(1, size_of::<Bytes>());
                    self.total += text + size_of::<Vec<u8>>() as u64;
                }
                Holds::One(kind) => self.message(kind, inner, depth + 1)?,
                Holds::Boxed(kind, size) => {
                    self.total += size as u64 + BLOCK + TENSOR;
                    self.message(kind, inner, depth + 1)?;
                }
                Holds::Many(each, size, then) => {
                    add(1, size);
                    let is_late = depth == 1 && matches!((kind, each), (Kind::Graph, Kind::Node));
                    *if is_late { &mut self.late } else { &mut self.total } += then;
                    self.message(each, inner, depth + 1)?;
                }
                Holds::Integers(size, then) => {
                    // Each ends with a byte below 128.
                    let count = inner.iter().filter(|byte| **byte < 128).count() as u64;
                    add(count, size);
                    self.total += then as u64 * count;
                }
                Holds::Floats(size, then) => {
                    add((length / size) as u64, size);
                    self.total += (length / size * then) as u64;
                }
                Holds::Rare => self.total += RARE * (length as u64 + 2),
            }
        }
        Ok(())
    }
}

fn varint(bytes: &mut &[u8]) -> Result<u64, Stop> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first().ok_or(Stop::Short)?;
        *bytes = rest;
        value |= u64::from(byte & 127) << shift;
        if byte < 128 {
            return Ok(value);
        }
    }
    Err(Stop::Short)
}
