//! Models that are written and read again.

use bytes::Bytes;
use prost::Message;
use stepalloc_onnx::proto::{
    AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto, ValueInfoProto,
};
use stepalloc_onnx::tensors::packed;
use stepalloc_runtime::{ALIGNMENT, Model, Session, Tensor, Value, View};

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
    use stepalloc_onnx::proto::{TypeProto, type_proto};
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
    Model::from_bytes(proto.encode_to_vec()).expect("a model")
}

fn run(model: &Model, x: f32) -> f32 {
    let x = Tensor::from_elements([1], &[x]).expect("one element");
    let made = Session::new(model).run(&[("x", x.view())]).expect("it runs");
    made[0].1.view().elements::<f32>()[0]
}

#[test]
fn what_is_written_computes_the_same() {
    let model = model();
    let again = Model::from_bytes(model.to_bytes().expect("bytes")).expect("a model");
    for (x, y) in [(5.0, 5.0 + 3.0 + 100.0 + 10.0), (1.0, 1.0 + 3.0 + 100.0 + 20.0)] {
        assert_eq!((run(&model, x), run(&again, x)), (y, y));
    }
    assert_eq!(again.opsets, [(String::new(), 17)]);
}

#[test]
fn weights_that_nobody_needs_are_left_out_and_those_of_graphs_within_are_the_outermost_ones() {
    let bytes = model().to_bytes().expect("bytes");
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
    let mut model = stepalloc_graph::Model::clone(&model());
    let mut graph = (*model.graph).clone();
    for length in [300, 1, 977, 4096] {
        let elements: Vec<f32> = (0..length).map(|at| at as f32).collect();
        graph.outputs.push(graph.values.len());
        graph.values.push(Value {
            name: format!("weight{length}"),
            declared: None,
            constant: Some(Tensor::from_elements([length], &elements).expect("a tensor").into()),
        });
    }
    model.graph = graph.into();
    let model = Model::from(model);
    let bytes = Bytes::from(model.to_bytes().expect("bytes"));
    let begin = bytes.as_ptr() as usize;
    let again = Model::from_bytes(bytes).expect("a model");
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
    model().save(&path).expect("it is written");
    let model = Model::open(&path).expect("a model");
    model.save(&path).expect("it is written again");
    assert_eq!(run(&Model::open(&path).expect("a model"), 5.0), 118.0);
    assert_eq!(run(&model, 5.0), 118.0);
    assert_eq!(std::fs::read_dir(&directory).expect("a directory").count(), 1);
    let error = model.save(directory.join("no/where.onnx")).expect_err("no such directory");
    assert!(error.to_string().contains("where.onnx"), "{error}");
    std::fs::remove_dir_all(&directory).expect("it is ours");
}

#[test]
fn nodes_of_two_versions_of_a_domain_are_an_error() {
    let mut model = stepalloc_graph::Model::clone(&model());
    let mut graph = (*model.graph).clone();
    graph.nodes[1].opset = 16;
    model.graph = graph.into();
    let model = Model::from(model);
    let error = model.to_bytes().expect_err("two versions").to_string();
    assert!(error.contains("above") && error.contains("version 16 of ai.onnx"), "{error}");
}
