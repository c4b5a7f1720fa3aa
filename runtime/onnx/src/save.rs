//! Messages into files, weights straight from where they lie: a model is not in memory a second time while it is written.
//!
//! Elements of weights begin at multiples of 64 bytes, so that a program that maps the file need not copy them. What is between is the
//! weight's `doc_string`, of so many spaces: the format has no other room for padding.

use super::proto::{ModelProto, TensorProto};
use super::write::Written;
use crate::file;
use bytes::Bytes;
use prost::Message;
use std::io::{self, Write};
use std::path::Path;
use stepalloc_graph::{Error, Model};
use stepalloc_tensor::ALIGNMENT;

/// Messages have no more bytes: lengths in them are of 31 bits.
const MOST_BYTES: usize = i32::MAX as usize;
/// Smaller weights are not worth the padding: they are copied at no cost.
const ALIGNED_FROM: usize = 1 << 10;

/// Fields that hold bytes, by number: `ModelProto.graph`, `GraphProto.initializer`, `TensorProto.raw_data`, `TensorProto.doc_string`.
const GRAPH: u8 = 7 << 3 | 2;
const INITIALIZER: u8 = 5 << 3 | 2;
const RAW_DATA: u8 = 9 << 3 | 2;
const DOC_STRING: u8 = 12 << 3 | 2;

/// The model as an ONNX file's bytes. Function bodies are where they were called; weights from other files are in it.
pub fn to_bytes(model: &Model) -> Result<Vec<u8>, Error> {
    let layout = Layout::new(model)?;
    let mut bytes = Vec::with_capacity(layout.total());
    layout.write(&mut bytes).map_err(|source| Error::File { path: "memory".into(), source })?;
    Ok(bytes)
}

/// Writes the model as an ONNX file, as [`to_bytes`] does. A file that is there is replaced when all is written, and may be the one the
/// model was read from.
pub fn save(model: &Model, path: &Path) -> Result<(), Error> {
    let layout = Layout::new(model)?;
    file::put(path, |to| layout.write(to))
}

/// A weight: its message's bytes but for the elements, spaces and bytes of the doc_string's field, and the elements.
struct Weight {
    head: Vec<u8>,
    padding: usize,
    elements: Bytes,
}

impl Weight {
    /// Bytes of the message.
    fn length(&self) -> usize {
        self.head.len() + self.padding + 1 + varint(self.elements.len()) + self.elements.len()
    }

    fn new(proto: &TensorProto, elements: Bytes, at: usize) -> Self {
        let mut weight = Self { head: proto.encode_to_vec(), padding: 0, elements };
        if weight.elements.len() >= ALIGNED_FROM {
            // A field has two bytes at least.
            let aligned = |padding: &usize| {
                weight.padding = *padding;
                let begin = at + 1 + varint(weight.length()) + weight.length() - weight.elements.len();
                begin.is_multiple_of(ALIGNMENT)
            };
            weight.padding = std::iter::once(0).chain(2..2 * ALIGNMENT).find(aligned).unwrap_or(0);
        }
        weight
    }
}

/// What is written, in this order.
struct Layout {
    model: Vec<u8>,
    /// Bytes that the graph's length takes.
    length_bytes: usize,
    graph: Vec<u8>,
    graph_length: usize,
    weights: Vec<Weight>,
}

/// Bytes of a number.
fn varint(number: usize) -> usize {
    prost::encoding::encoded_len_varint(number as u64)
}

/// Writes a number in so many bytes.
fn put_varint(to: &mut dyn Write, mut number: usize, bytes: usize) -> io::Result<()> {
    for at in 1..=bytes {
        let more = if at < bytes { 0x80 } else { 0 };
        to.write_all(&[(number & 0x7f) as u8 | more])?;
        number >>= 7;
    }
    Ok(())
}

impl Layout {
    fn new(model: &Model) -> Result<Self, Error> {
        let Written { model, graph, weights } = Written::new(model)?;
        let most: usize = weights.iter().map(|(_, bytes)| bytes.len()).sum::<usize>() + graph.encoded_len();
        if most > MOST_BYTES {
            return Err(Error::model(format!(
                "it cannot be written: it would have more than {most} bytes, and ONNX files have {MOST_BYTES} at most"
            )));
        }
        let (model, graph) = (ModelProto::encode_to_vec(&model), graph.encode_to_vec());
        // Enough for whatever padding comes to; a number may take more bytes than it needs.
        let length_bytes = varint(most + weights.len() * 1024);
        let mut layout = Self { model, length_bytes, graph_length: 0, weights: Vec::new(), graph };
        let begin = layout.model.len() + 1 + length_bytes;
        let mut at = begin + layout.graph.len();
        for (proto, elements) in weights {
            let weight = Weight::new(&proto, elements, at);
            at += 1 + varint(weight.length()) + weight.length();
            layout.weights.push(weight);
        }
        layout.graph_length = at - begin;
        if at > MOST_BYTES || varint(layout.graph_length) > length_bytes {
            return Err(Error::model(format!(
                "it cannot be written: it would have {at} bytes, and ONNX files have {MOST_BYTES} at most"
            )));
        }
        Ok(layout)
    }

    fn total(&self) -> usize {
        self.model.len() + 1 + self.length_bytes + self.graph_length
    }

    fn write(&self, to: &mut dyn Write) -> io::Result<()> {
        to.write_all(&self.model)?;
        to.write_all(&[GRAPH])?;
        put_varint(to, self.graph_length, self.length_bytes)?;
        to.write_all(&self.graph)?;
        for weight in &self.weights {
            to.write_all(&[INITIALIZER])?;
            put_varint(to, weight.length(), varint(weight.length()))?;
            to.write_all(&weight.head)?;
            if let Some(spaces) = weight.padding.checked_sub(2) {
                to.write_all(&[DOC_STRING, spaces as u8])?;
                to.write_all(&[b' '; 2 * ALIGNMENT][..spaces])?;
            }
            to.write_all(&[RAW_DATA])?;
            put_varint(to, weight.elements.len(), varint(weight.elements.len()))?;
            to.write_all(&weight.elements)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::{AttributeProto, GraphProto, NodeProto, OperatorSetIdProto, ValueInfoProto};
    use crate::tensors::packed;
    use crate::{Folder, read};
    use stepalloc_graph::Session;
    use stepalloc_tensor::{Tensor, View, mapped};

    fn node(op: &str, inputs: &[&str], outputs: &[&str]) -> NodeProto {
        NodeProto {
            op_type: Some(op.into()),
            input: inputs.iter().map(|&name| name.into()).collect(),
            output: outputs.iter().map(|&name| name.into()).collect(),
            ..NodeProto::default()
        }
    }

    fn weight(name: &str, elements: &[f32]) -> TensorProto {
        TensorProto {
            name: Some(name.into()),
            data_type: Some(1),
            dims: vec![elements.len() as i64],
            float_data: packed(elements),
            ..TensorProto::default()
        }
    }

    fn value(name: &str) -> ValueInfoProto {
        use crate::proto::{TypeProto, type_proto};
        let tensor = type_proto::Tensor { elem_type: Some(1), shape: None };
        let ty = TypeProto { value: Some(type_proto::Value::TensorType(tensor)), denotation: None };
        ValueInfoProto { name: Some(name.into()), r#type: Some(ty), ..ValueInfoProto::default() }
    }

    /// `y` is `x` plus a weight, by way of a graph in a branch that takes `x`, `w` and `c` from outside and has `own`.
    fn model() -> Model {
        let branch = |own: f32| GraphProto {
            node: vec![
                node("Add", &["x", "w"], &["with_w"]),
                node("Add", &["with_w", "c"], &["with_c"]),
                node("Add", &["with_c", "own"], &["sum"]),
            ],
            initializer: vec![weight("own", &[own])],
            output: vec![value("sum")],
            ..GraphProto::default()
        };
        let constant = NodeProto {
            attribute: vec![AttributeProto {
                name: Some("value_floats".into()),
                r#type: Some(6),
                floats: vec![100.0],
                ..AttributeProto::default()
            }],
            ..node("Constant", &[], &["c"])
        };
        let attribute = |name: &str, own| AttributeProto {
            name: Some(name.into()),
            r#type: Some(5),
            g: Some(Box::new(branch(own))),
            ..AttributeProto::default()
        };
        let decide = NodeProto {
            attribute: vec![attribute("then_branch", 10.0), attribute("else_branch", 20.0)],
            ..node("If", &["above"], &["y"])
        };
        let proto = ModelProto {
            ir_version: Some(8),
            opset_import: vec![OperatorSetIdProto { domain: None, version: Some(17) }],
            graph: Some(GraphProto {
                name: Some("g".into()),
                node: vec![constant, node("Greater", &["x", "w"], &["above"]), decide],
                initializer: vec![weight("w", &[3.0]), weight("unused", &[7.0; 1000])],
                input: vec![value("x")],
                output: vec![value("y")],
                ..GraphProto::default()
            }),
            ..ModelProto::default()
        };
        again(proto.encode_to_vec())
    }

    fn again(bytes: impl Into<Bytes>) -> Model {
        let registry = stepalloc_operators::registry();
        read(bytes.into(), &mut Folder::default(), &registry).expect("a model")
    }

    fn opened(path: &Path) -> Model {
        again(mapped::open(path).expect("a file"))
    }

    fn run(model: &Model, x: f32) -> f32 {
        let x = Tensor::from_elements([1], &[x]).expect("one element");
        let made = Session::new(model).run(&[("x", x.view())]).expect("it runs");
        made[0].1.view().elements::<f32>()[0]
    }

    #[test]
    fn what_is_written_computes_the_same() {
        let model = model();
        let again = again(to_bytes(&model).expect("bytes"));
        for (x, y) in [(5.0, 5.0 + 3.0 + 100.0 + 10.0), (1.0, 1.0 + 3.0 + 100.0 + 20.0)] {
            assert_eq!((run(&model, x), run(&again, x)), (y, y));
        }
        assert_eq!(again.opsets, [(String::new(), 17)]);
    }

    #[test]
    fn weights_that_nobody_needs_are_left_out_and_those_of_graphs_within_are_the_outermost_ones() {
        let bytes = to_bytes(&model()).expect("bytes");
        assert!(bytes.len() < 2000, "{} bytes", bytes.len());
        let proto = ModelProto::decode(&bytes[..]).expect("a message");
        let graph = proto.graph.expect("a graph");
        let names: Vec<_> = graph.initializer.iter().filter_map(|weight| weight.name.clone()).collect();
        assert_eq!(names, ["w", "own_1", "own_2"]);
        let inner = graph.node[2].attribute.iter().filter_map(|attribute| attribute.g.as_ref());
        assert!(inner.clone().count() == 2 && inner.clone().all(|graph| graph.initializer.is_empty()));
    }

    #[test]
    fn elements_of_weights_are_aligned_in_the_file() {
        let mut model = model();
        let mut graph = (*model.graph).clone();
        for length in [300, 1, 977, 4096] {
            let elements: Vec<f32> = (0..length).map(|at| at as f32).collect();
            graph.outputs.push(graph.values.len());
            graph.values.push(stepalloc_graph::Value {
                name: format!("weight{length}"),
                declared: None,
                constant: Some(Tensor::from_elements([length], &elements).expect("a tensor").into()),
            });
        }
        model.graph = graph.into();
        let bytes = Bytes::from(to_bytes(&model).expect("bytes"));
        let begin = bytes.as_ptr() as usize;
        let again = again(bytes);
        let mut seen = 0;
        for value in again.graph.values.iter().filter(|value| value.name.starts_with("weight")) {
            let View { shape, bytes, .. } = value.constant.as_ref().expect("a weight").view();
            let at = (bytes.as_ptr() as usize).wrapping_sub(begin);
            assert!(shape[0] < 256 || at.is_multiple_of(ALIGNMENT), "{} at {at}", value.name);
            let elements: &[f32] = bytemuck::cast_slice(bytes);
            assert!(elements.iter().enumerate().all(|(at, &element)| element == at as f32));
            seen += 1;
        }
        assert_eq!(seen, 4);
    }

    #[test]
    fn a_file_is_replaced_as_a_whole_even_while_its_weights_are_in_use() {
        let directory = std::env::temp_dir().join(format!("stepalloc-save-{}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("a directory");
        let path = directory.join("model.onnx");
        save(&model(), &path).expect("it is written");
        let model = opened(&path);
        save(&model, &path).expect("it is written again");
        assert_eq!(run(&opened(&path), 5.0), 118.0);
        assert_eq!(run(&model, 5.0), 118.0);
        assert_eq!(std::fs::read_dir(&directory).expect("a directory").count(), 1);
        let error = save(&model, &directory.join("no/where.onnx")).expect_err("no such directory");
        assert!(error.to_string().contains("where.onnx"), "{error}");
        std::fs::remove_dir_all(&directory).expect("it is ours");
    }

    #[test]
    fn nodes_of_two_versions_of_a_domain_are_an_error() {
        let mut model = model();
        let mut graph = (*model.graph).clone();
        graph.nodes[1].opset = 16;
        model.graph = graph.into();
        let error = to_bytes(&model).expect_err("two versions").to_string();
        assert!(error.contains("above") && error.contains("version 16 of ai.onnx"), "{error}");
    }
}
