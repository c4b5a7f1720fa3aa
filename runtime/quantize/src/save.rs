//! Models to files: all or nothing, with tensors beside the model where one message cannot hold them.

use prost::Message;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use stepalloc_graph::Error;
use stepalloc_onnx::file;
use stepalloc_onnx::proto::{
    AttributeProto, GraphProto, ModelProto, NodeProto, StringStringEntryProto, TensorProto,
};
use stepalloc_onnx::tensors::{EXTERNAL, Folder, external};

/// A protobuf message is shorter than 2 GiB.
pub(super) const MOST: usize = i32::MAX as usize;
/// Tensors that are shorter stay in the model: ONNX's own writer does it so.
const LEAST: usize = 1024;
/// Where tensors begin in a file of their own: a page, so that each can be mapped.
const ALIGN: u64 = 4096;

/// Calls `each` with every tensor of a model.
fn tensors(
    model: &mut ModelProto,
    each: &mut dyn FnMut(&mut TensorProto) -> Result<(), Error>,
) -> Result<(), Error> {
    model.graph.iter_mut().try_for_each(|graph| of_graph(graph, each))?;
    model.functions.iter_mut().try_for_each(|function| of_nodes(&mut function.node, each))
}

fn of_graph(
    graph: &mut GraphProto,
    each: &mut dyn FnMut(&mut TensorProto) -> Result<(), Error>,
) -> Result<(), Error> {
    graph.initializer.iter_mut().try_for_each(&mut *each)?;
    let sparse = graph.sparse_initializer.iter_mut();
    sparse.flat_map(|sparse| [&mut sparse.values, &mut sparse.indices]).flatten().try_for_each(&mut *each)?;
    of_nodes(&mut graph.node, each)
}

fn of_nodes(
    nodes: &mut [NodeProto],
    each: &mut dyn FnMut(&mut TensorProto) -> Result<(), Error>,
) -> Result<(), Error> {
    for AttributeProto { t, tensors, g, graphs, .. } in nodes.iter_mut().flat_map(|node| &mut node.attribute)
    {
        t.as_deref_mut().into_iter().chain(tensors).try_for_each(&mut *each)?;
        g.as_deref_mut().into_iter().chain(graphs).try_for_each(|graph| of_graph(graph, each))?;
    }
    Ok(())
}

/// Takes the elements of all tensors into the message, as parts of mapped files. Returns how many bytes were beside it.
pub(super) fn gather(model: &mut ModelProto, folder: &mut Folder) -> Result<u64, Error> {
    let mut beside = 0;
    tensors(model, &mut |tensor| {
        if tensor.data_location != Some(EXTERNAL) {
            return Ok(());
        }
        let name = tensor.name.clone().unwrap_or_default();
        let bytes = external(tensor, folder).map_err(|error| error.within(&format!("tensor {name}")))?;
        beside += bytes.len() as u64;
        tensor.raw_data = Some(bytes);
        tensor.data_location = None;
        tensor.external_data.clear();
        Ok(())
    })?;
    Ok(beside)
}

/// Writes a model; where it would have more than `most` bytes, with its tensors in PATH.data. Returns the bytes of both.
pub(super) fn save(mut model: ModelProto, path: &Path, most: usize) -> Result<u64, Error> {
    if model.encoded_len() <= most {
        return message(&model, path);
    }
    let data = PathBuf::from(format!("{}.data", path.display()));
    let location = data.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let (mut parts, mut end) = (Vec::new(), 0u64);
    tensors(&mut model, &mut |tensor| {
        let Some(bytes) = tensor.raw_data.take_if(|bytes| bytes.len() >= LEAST) else { return Ok(()) };
        let entry =
            |key: &str, value: String| StringStringEntryProto { key: Some(key.into()), value: Some(value) };
        let offset = end.next_multiple_of(ALIGN);
        tensor.data_location = Some(EXTERNAL);
        tensor.external_data = vec![
            entry("location", location.clone()),
            entry("offset", offset.to_string()),
            entry("length", bytes.len().to_string()),
        ];
        end = offset + bytes.len() as u64;
        parts.push((offset, bytes));
        Ok(())
    })?;
    let left = model.encoded_len();
    if left > most {
        return Err(Error::model(format!(
            "without its tensors it would have {left} bytes, and a message has at most {most}"
        )));
    }
    file::put(&data, |to| {
        let mut at = 0;
        for (offset, bytes) in &parts {
            io::copy(&mut io::repeat(0).take(offset - at), to)?;
            to.write_all(bytes)?;
            at = offset + bytes.len() as u64;
        }
        Ok(())
    })?;
    Ok(end + message(&model, path)?)
}

/// Writes a model's message. Returns its length.
fn message(model: &ModelProto, path: &Path) -> Result<u64, Error> {
    let bytes = model.encode_to_vec();
    file::put(path, |to| to.write_all(&bytes))?;
    Ok(bytes.len() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::QuantizeDynamic;
    use crate::graph::make;
    use stepalloc_onnx::proto::{OperatorSetIdProto, ValueInfoProto};
    use stepalloc_tensor::DataType;

    fn weight(name: &str, dims: &[i64]) -> TensorProto {
        let count = dims.iter().product::<i64>() as usize;
        let elements: Vec<_> = (0..count).map(|at| (at % 17) as f32 - 8.0).collect();
        TensorProto {
            name: Some(name.into()),
            data_type: Some(DataType::F32 as i32),
            dims: dims.to_vec(),
            raw_data: Some(bytemuck::cast_slice::<f32, u8>(&elements).to_vec().into()),
            ..TensorProto::default()
        }
    }

    fn read(path: &Path) -> ModelProto {
        let bytes: Vec<u8> = std::fs::read(path).expect("a file");
        ModelProto::decode(&bytes[..]).expect("a model")
    }

    #[test]
    fn tensors_beside_the_model_come_in_and_go_out() {
        let folder = tempfile::TempDir::new().expect("a directory");
        let value = |name: &str| ValueInfoProto { name: Some(name.into()), ..ValueInfoProto::default() };
        // A tensor that is not touched, too large for a message of `most` bytes.
        let (rest, most) = (weight("rest", &[64, 1, 8]), 1000);
        let graph = GraphProto {
            input: vec![value("x")],
            node: vec![make("MatMul", &["x", "w"], &["y"], ""), make("Add", &["y", "rest"], &["z"], "")],
            initializer: vec![weight("w", &[16, 8]), rest.clone()],
            output: vec![value("z")],
            ..GraphProto::default()
        };
        let model = ModelProto {
            opset_import: vec![OperatorSetIdProto { domain: None, version: Some(17) }],
            graph: Some(graph),
            ..ModelProto::default()
        };
        let [beside, back] = ["beside.onnx", "back.onnx"].map(|name| folder.path().join(name));
        save(model.clone(), &beside, most).expect("it is written");
        assert_eq!(std::fs::metadata(folder.path().join("beside.onnx.data")).expect("a file").len(), 2048);
        let written = read(&beside).graph.expect("a graph");
        assert_eq!(written.initializer[1].data_location, Some(EXTERNAL));
        let done = QuantizeDynamic::new().run(&beside, &back).expect("it can be quantized");
        assert_eq!(done.bytes_before, std::fs::metadata(&beside).expect("a file").len() + 2048);
        assert_eq!(done.bytes_after, std::fs::metadata(&back).expect("a file").len());
        assert_eq!(std::fs::read_dir(folder.path()).expect("a directory").count(), 3, "nothing else is left");
        let made = read(&back).graph.expect("a graph");
        let same = made.initializer.iter().find(|tensor| tensor.name == rest.name).expect("it is there");
        assert_eq!((&same.raw_data, &same.dims), (&rest.raw_data, &rest.dims));
        let refused = save(model, &beside, 100).map(drop).expect_err("names alone take more");
        assert!(refused.to_string().contains("without its tensors"), "{refused}");
    }
}
