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
