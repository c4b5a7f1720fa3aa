//! Protobuf messages by hand, so that they can be wrong.
#![allow(dead_code, reason = "not every test binary needs every part")]

/// A message's bytes so far. Parts made by [`node`], [`tensor`] and [`value`] know the field of a graph that they are.
#[derive(Clone, Default)]
pub struct Message {
    bytes: Vec<u8>,
    field: Option<u64>,
}

/// A number as a varint.
pub fn varint(mut number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number >= 128 {
        bytes.push(number as u8 | 128);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}

impl Message {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn number(mut self, field: u64, number: u64) -> Self {
        self.bytes.extend(varint(field << 3));
        self.bytes.extend(varint(number));
        self
    }

    pub fn bytes(mut self, field: u64, bytes: &[u8]) -> Self {
        self.bytes.extend(varint(field << 3 | 2));
        self.bytes.extend(varint(bytes.len() as u64));
        self.bytes.extend(bytes);
        self
    }

    pub fn text(self, field: u64, text: &str) -> Self {
        self.bytes(field, text.as_bytes())
    }

    pub fn message(self, field: u64, message: &Self) -> Self {
        self.bytes(field, &message.bytes)
    }

    /// What is no field at all.
    pub fn bytes_raw(mut self, bytes: &[u8]) -> Self {
        self.bytes.extend(bytes);
        self
    }

    /// With another one's fields; a part of a graph is one field.
    pub fn also(&self, other: &Self) -> Self {
        match other.field {
            Some(field) => self.clone().message(field, other),
            None => self.clone().bytes_raw(&other.bytes),
        }
    }

    /// As no part of a graph.
    pub fn alone(mut self) -> Self {
        self.field = None;
        self
    }

    pub fn bytes_of(&self) -> Vec<u8> {
        self.bytes.clone()
    }

    pub fn len(&self) -> usize {
        self.bytes.len()
    }
}

/// A `NodeProto`.
pub fn node(op: &str, inputs: &[&str], outputs: &[&str]) -> Message {
    let mut node = Message { field: Some(1), ..Message::new() };
    for input in inputs {
        node = node.text(1, input);
    }
    for output in outputs {
        node = node.text(2, output);
    }
    node.text(4, op)
}

/// An `AttributeProto` without a value.
pub fn attribute(name: &str, kind: u64) -> Message {
    Message::new().text(1, name).number(20, kind)
}

/// A `TensorProto` without elements.
pub fn tensor(field: u64, name: &str, dtype: u64, dims: &[usize]) -> Message {
    let tensor = Message { field: Some(field), ..Message::new() };
    let tensor = dims.iter().fold(tensor, |tensor, &dim| tensor.number(1, dim as u64));
    tensor.number(2, dtype).text(8, name)
}

/// A `ValueInfoProto`.
pub fn value(field: u64, name: &str, dtype: u64, dims: &[usize]) -> Message {
    let shape = dims
        .iter()
        .fold(Message::new(), |shape, &dim| shape.message(1, &Message::new().number(1, dim as u64)));
    let ty = Message::new().message(1, &Message::new().number(1, dtype).message(2, &shape));
    Message { field: Some(field), ..Message::new() }.text(1, name).message(2, &ty)
}

/// The same with sizes that are open.
pub fn open_value(field: u64, name: &str, dtype: u64, rank: usize) -> Message {
    let shape = (0..rank).fold(Message::new(), |shape, _| shape.message(1, &Message::new()));
    let ty = Message::new().message(1, &Message::new().number(1, dtype).message(2, &shape));
    Message { field: Some(field), ..Message::new() }.text(1, name).message(2, &ty)
}

/// A `GraphProto` of such parts.
pub fn graph(parts: impl IntoIterator<Item = Message>) -> Message {
    parts.into_iter().fold(Message::new().text(2, "g"), |mut graph, part| {
        graph.bytes.extend(Message::new().message(part.field.unwrap_or(1), &part).bytes);
        graph
    })
}

/// The version of a domain that a model or a function imports.
pub fn opset(domain: &str, version: u64) -> Message {
    Message::new().text(1, domain).number(2, version)
}

/// A file with a graph.
pub fn model(graph: &Message) -> Vec<u8> {
    model_of(graph, &[])
}

/// The same in a version of ai.onnx.
pub fn model_with(graph: &Message, version: u64) -> Vec<u8> {
    Message::new().number(1, 9).message(8, &opset("", version)).message(7, graph).bytes
}

/// The same with other fields.
pub fn model_of(graph: &Message, fields: &[(u64, Message)]) -> Vec<u8> {
    let versions = [opset("", 17), opset("own", 1)];
    let head = Message::new().number(1, 9).message(7, graph);
    let head = versions.iter().fold(head, |head, version| head.message(8, version));
    fields.iter().fold(head, |model, (field, message)| model.message(*field, message)).bytes
}
