//! Operators that a program brings with it.

use prost::Message;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use stepalloc_onnx::proto::{
    AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto, TypeProto,
    ValueInfoProto, type_proto,
};
use stepalloc_runtime::operator::{
    Attribute, Attributes, Call, CustomOperators, Definition, Known, Operator, Reuse, Types, Unclear, typed,
};
use stepalloc_runtime::{DataType, Error, Model, OpError, Options, Session, Tensor, Type, View, f16};

const DOMAIN: &str = "com.example";

/// Each element times a number, over the input where that may be.
struct Scale {
    by: f32,
}

impl Scale {
    fn of_node(node: &Definition<'_>) -> Result<Box<dyn Operator>, OpError> {
        let by = node.attributes.opt_float("by").ok_or_else(|| OpError::attribute("by is missing"))?;
        Ok(Box::new(Self { by }))
    }
}

impl Operator for Scale {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        Ok(Types::from_iter([inputs.ty(0)?.clone()]))
    }

    fn reuse(&self) -> Reuse {
        Reuse::InPlace(&[0])
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        match call.dtype(0)? {
            DataType::F16 => call.map(|x: f16| f16::from_f32(x.to_f32() * self.by)),
            DataType::F32 => call.map(|x: f32| x * self.by),
            other => Err(OpError::element_type(format!("{other}"))),
        }
    }
}

/// Elements the other way round and twice each, by way of scratch memory.
struct Mirror;

impl Operator for Mirror {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        let x = inputs.ty(0)?;
        Ok(Types::from_iter([typed(x.dtype, [2 * x.elements()])?]))
    }

    fn scratch(&self, inputs: &Known<'_>, _outputs: &[Type]) -> usize {
        inputs.opt(0).map_or(0, Type::bytes)
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let (x, turned) = (call.input(0)?.elements::<f32>(), call.scratch_of::<f32>());
        if turned.len() != x.len() {
            return Err(OpError::internal(format!("scratch memory of {} elements", turned.len())));
        }
        turned.copy_from_slice(x);
        turned.reverse();
        let y = call.output(0)?.elements::<f32>();
        y.chunks_exact_mut(2).zip(turned).for_each(|(twice, x)| twice.fill(*x));
        Ok(())
    }
}

/// As many of the first elements as input 1 says.
struct First;

impl Operator for First {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        let count = inputs.ints(1)?;
        let count = usize::try_from(count[0]).map_err(|_| OpError::value("a negative number"))?;
        Ok(Types::from_iter([typed(inputs.ty(0)?.dtype, [count])?]))
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let x = call.input(0)?.elements::<f32>();
        let y = call.output(0)?.elements::<f32>();
        y.copy_from_slice(x.get(..y.len()).ok_or_else(|| OpError::value("there are fewer"))?);
        Ok(())
    }
}

/// Says that it is a view, of more than there is.
struct Beyond;

impl Operator for Beyond {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        let x = inputs.ty(0)?;
        Ok(Types::from_iter([typed(x.dtype, [2 * x.elements()])?]))
    }

    fn reuse(&self) -> Reuse {
        Reuse::View
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let x = call.input(0)?.elements::<f32>();
        call.output(0)?.elements::<f32>().chunks_exact_mut(x.len()).for_each(|y| y.copy_from_slice(x));
        Ok(())
    }
}

fn operators() -> CustomOperators {
    CustomOperators::new()
        .with(DOMAIN, "Scale", Scale::of_node)
        .with(DOMAIN, "Mirror", |_| Ok(Box::new(Mirror)))
        .with(DOMAIN, "First", |_| Ok(Box::new(First)))
        .with(DOMAIN, "Beyond", |_| Ok(Box::new(Beyond)))
}

fn node(op: &str, inputs: &[&str], output: &str) -> NodeProto {
    NodeProto {
        op_type: Some(op.into()),
        input: inputs.iter().map(|&name| name.into()).collect(),
        output: vec![output.into()],
        ..NodeProto::default()
    }
}

fn custom(op: &str, inputs: &[&str], output: &str) -> NodeProto {
    NodeProto { domain: Some(DOMAIN.into()), ..node(op, inputs, output) }
}

fn scale(by: f32, input: &str, output: &str) -> NodeProto {
    let by = AttributeProto { f: Some(by), ..attribute("by", 1) };
    NodeProto { attribute: vec![by], ..custom("Scale", &[input], output) }
}

fn attribute(name: &str, kind: i32) -> AttributeProto {
    AttributeProto { name: Some(name.into()), r#type: Some(kind), ..AttributeProto::default() }
}

fn value(name: &str, dtype: DataType) -> ValueInfoProto {
    let tensor = type_proto::Tensor { elem_type: Some(dtype as i32), shape: None };
    let ty = TypeProto { value: Some(type_proto::Value::TensorType(tensor)), denotation: None };
    ValueInfoProto { name: Some(name.into()), r#type: Some(ty), ..ValueInfoProto::default() }
}

/// A model of these nodes, of `x` and further inputs, that makes `y`.
fn file_of(opset: i64, nodes: Vec<NodeProto>, dtype: DataType, more: &[ValueInfoProto]) -> Vec<u8> {
    let import =
        |domain: &str, version| OperatorSetIdProto { domain: Some(domain.into()), version: Some(version) };
    let proto = ModelProto {
        ir_version: Some(8),
        opset_import: vec![import("", opset), import(DOMAIN, 3)],
        graph: Some(GraphProto {
            name: Some("g".into()),
            node: nodes,
            input: std::iter::once(value("x", dtype)).chain(more.iter().cloned()).collect(),
            output: vec![value("y", dtype)],
            ..GraphProto::default()
        }),
        ..ModelProto::default()
    };
    proto.encode_to_vec()
}

fn file(nodes: Vec<NodeProto>) -> Vec<u8> {
    file_of(17, nodes, DataType::F32, &[])
}

fn row(elements: &[f32]) -> Tensor {
    Tensor::from_elements([elements.len()], elements).expect("a row")
}

fn run(model: &Model, inputs: &[(&str, View<'_>)]) -> Result<Vec<f32>, Error> {
    let made = Session::new(model).run(inputs)?;
    Ok(made[0].1.view().elements::<f32>().to_vec())
}

fn refused(nodes: Vec<NodeProto>, operators: &CustomOperators) -> String {
    Model::from_bytes_with(file(nodes), operators).map(|_| ()).expect_err("no model").to_string()
}

#[test]
fn their_values_are_planned_with_scratch_memory_and_in_place() {
    let nodes = vec![
        node("Sin", &["x"], "a"),
        scale(3.0, "a", "b"),
        custom("Mirror", &["b"], "c"),
        node("Neg", &["c"], "y"),
    ];
    let model = Model::from_bytes_with(file(nodes), &operators()).expect("a model");
    let session = Session::new(&model);
    let elements: Vec<f32> = (0..1024).map(|at| at as f32 / 100.0).collect();
    let x = row(&elements);
    let made = session.run(&[("x", x.view())]).expect("it runs");
    let wanted = elements.iter().rev().flat_map(|x| [-3.0 * x.sin(); 2]);
    let is_close = |(y, wanted): (&f32, f32)| (y - wanted).abs() < 1e-4;
    let y = made[0].1.view().elements::<f32>();
    assert!(y.len() == 2048 && y.iter().zip(wanted).all(is_close));
    let figures = session.figures(&[Some(x.view())]).expect("a plan");
    // b lies over a, and y over c: what is left are a with the scratch memory of as many bytes.
    assert_eq!((figures.arena_bytes, figures.inplace_tensors, figures.unplanned_nodes), (2 * 4096, 2, 0));
    let own_memory = Session::with_options(&model, Options::new().memory_pattern(false));
    assert_eq!(own_memory.run(&[("x", x.view())]).expect("it runs")[0].1.view().elements::<f32>(), y);
}

#[test]
fn what_comes_out_may_depend_on_elements_that_are_computed() {
    let nodes = vec![node("Add", &["n", "n"], "count"), custom("First", &["x", "count"], "y")];
    let bytes = file_of(17, nodes, DataType::F32, &[value("n", DataType::I64)]);
    let session = Session::new(&Model::from_bytes_with(bytes, &operators()).expect("a model"));
    let x = row(&[1.0, 2.0, 3.0, 4.0, 5.0]);
    // More elements than plans are made for.
    for n in [1i64, 2, 0] {
        let mut many = vec![n; 17];
        many[1..].fill(7);
        let many = Tensor::from_elements([17], &many).expect("a row");
        let made = session.run(&[("x", x.view()), ("n", many.view())]).expect("it runs");
        assert_eq!(made[0].1.view().elements::<f32>(), &[1.0, 2.0, 3.0, 4.0][..2 * n as usize]);
    }
    let n = Tensor::from_elements([1], &[3i64]).expect("one");
    let error = session.run(&[("x", x.view()), ("n", n.view())]).expect_err("there are five");
    assert_eq!(error.to_string(), "node y (First): there are fewer");
}

#[test]
fn a_view_of_more_than_there_is_has_memory_of_its_own() {
    let nodes = vec![node("Neg", &["x"], "a"), custom("Beyond", &["a"], "b"), node("Neg", &["b"], "y")];
    let model = Model::from_bytes_with(file(nodes), &operators()).expect("a model");
    assert_eq!(run(&model, &[("x", row(&[1.0, 2.0]).view())]).expect("it runs"), [1.0, 2.0, 1.0, 2.0]);
}

#[test]
fn graphs_within_nodes_have_them_too() {
    let branch = |by| GraphProto {
        node: vec![scale(by, "x", "scaled")],
        output: vec![value("scaled", DataType::F32)],
        ..GraphProto::default()
    };
    let of = |name, by| AttributeProto { g: Some(Box::new(branch(by))), ..attribute(name, 5) };
    let attributes = vec![of("then_branch", 2.0), of("else_branch", 5.0)];
    let nodes = vec![NodeProto { attribute: attributes, ..node("If", &["c"], "y") }];
    let bytes = file_of(17, nodes, DataType::F32, &[value("c", DataType::Bool)]);
    let model = Model::from_bytes_with(bytes, &operators()).expect("a model");
    let again = model.to_bytes().expect("it can be written");
    let again = Model::from_bytes_with(again, &operators()).expect("a model");
    for (condition, y) in [(1u8, 2.0), (0, 5.0)] {
        let condition = View { dtype: DataType::Bool, shape: &[1], bytes: &[condition] };
        let x = row(&[1.0]);
        for model in [&model, &again] {
            assert_eq!(run(model, &[("x", x.view()), ("c", condition)]).expect("it runs"), [y]);
        }
    }
}

#[test]
fn errors_name_the_node_and_say_what_is_known() {
    let nodes = || vec![scale(1.0, "x", "y")];
    // As without any, and as with others.
    let unknown = "an operator is not known: com.example.Scale (version 3) of node y";
    assert_eq!(refused(nodes(), &CustomOperators::new()), unknown);
    assert_eq!(
        refused(nodes(), &CustomOperators::new().with(DOMAIN, "Mirror", |_| Ok(Box::new(Mirror)))),
        unknown
    );
    assert_eq!(refused(vec![custom("Scale", &["x"], "y")], &operators()), "node y (Scale): by is missing");
    let lists = NodeProto { attribute: vec![attribute("all", 9)], ..custom("Mirror", &["x"], "y") };
    assert_eq!(
        refused(vec![lists], &operators()),
        "node y (Mirror): attribute all: lists of tensors or graphs, sparse tensors and types are not supported"
    );
    // The runtime's own ones stay what they are.
    let mine = |domain: &str, name: &str| CustomOperators::new().with(domain, name, |_| Ok(Box::new(Mirror)));
    let taken =
        "node y (Neg): the runtime has ai.onnx.Neg itself, and a custom operator does not take its place";
    for domain in ["", "ai.onnx"] {
        assert_eq!(refused(vec![node("Neg", &["x"], "y")], &mine(domain, "Neg")), taken);
    }
    let gelu = NodeProto { domain: Some("com.microsoft".into()), ..node("Gelu", &["x"], "y") };
    assert!(refused(vec![gelu], &mine("com.microsoft", "Gelu")).contains("com.microsoft.Gelu itself"));
    // What they are not known for does not keep other names from being given.
    let decoder = || vec![node("ImageDecoder", &["x"], "y")];
    assert!(refused(decoder(), &operators()).contains("ai.onnx.ImageDecoder"));
    let model = Model::from_bytes_with(file(decoder()), &mine("", "ImageDecoder")).expect("a model");
    assert_eq!(run(&model, &[("x", row(&[1.0, 2.0]).view())]).expect("it runs"), [2.0, 2.0, 1.0, 1.0]);
}

#[test]
fn a_file_is_another_model_with_them() {
    let folder = tempfile::TempDir::new().expect("a directory");
    let path = folder.path().join("net.onnx");
    std::fs::write(&path, file(vec![scale(2.0, "x", "y")])).expect("it is written");
    let by = |by: f32| CustomOperators::new().with(DOMAIN, "Scale", move |_| Ok(Box::new(Scale { by })));
    let (two, three) = (Model::open_with(&path, &by(2.0)), Model::open_with(&path, &by(3.0)));
    let x = row(&[1.0]);
    assert_eq!(run(&two.expect("a model"), &[("x", x.view())]).expect("it runs"), [2.0]);
    let three = three.expect("a model");
    assert!(matches!(Model::open(&path), Err(Error::Unsupported(_))), "without any it is none");
    assert_eq!(run(&three, &[("x", x.view())]).expect("it runs"), [3.0]);
}

/// Keeps the attributes of a node.
fn keeping(kept: &Arc<std::sync::Mutex<Vec<Attributes>>>) -> CustomOperators {
    let kept = Arc::clone(kept);
    CustomOperators::new().with(DOMAIN, "Mirror", move |node| {
        assert_eq!((node.opset, node.inputs, node.outputs), (3, &[true, false][..], &[true][..]));
        kept.lock().expect("nobody panics").push(node.attributes.clone());
        Ok(Box::new(Mirror))
    })
}

#[test]
fn a_model_that_is_saved_keeps_their_nodes() {
    let tensor = TensorProto {
        data_type: Some(1),
        dims: vec![2],
        raw_data: Some(vec![1; 8].into()),
        ..TensorProto::default()
    };
    let attributes = vec![
        AttributeProto { f: Some(0.5), ..attribute("float", 1) },
        AttributeProto { i: Some(-7), ..attribute("int", 2) },
        AttributeProto { s: Some("text".into()), ..attribute("string", 3) },
        AttributeProto { t: Some(Box::new(tensor)), ..attribute("tensor", 4) },
        AttributeProto { floats: vec![1.5, 2.5], ..attribute("floats", 6) },
        AttributeProto { ints: vec![1, -2], ..attribute("ints", 7) },
        AttributeProto { strings: vec!["a".into(), "b".into()], ..attribute("strings", 8) },
    ];
    let nodes = vec![NodeProto { attribute: attributes, ..custom("Mirror", &["x", ""], "y") }];
    let kept = Arc::default();
    let operators = keeping(&kept);
    let model = Model::from_bytes_with(file(nodes), &operators).expect("a model");
    let (model, _) = model.optimize(&stepalloc_runtime::Optimization::default());
    let bytes = model.to_bytes().expect("it can be written");
    let again = Model::from_bytes_with(bytes, &operators).expect("a model");
    assert_eq!(again.opsets, model.opsets);
    for model in [&model, &again] {
        assert_eq!(run(model, &[("x", row(&[1.0, 2.0]).view())]).expect("it runs"), [2.0, 2.0, 1.0, 1.0]);
    }
    let kept = kept.lock().expect("nobody panics");
    for attributes in kept.iter() {
        assert_eq!(attributes.0.len(), 7);
        assert_eq!((attributes.float("float", 0.0), attributes.int("int", 0)), (0.5, -7));
        assert_eq!(
            (attributes.text("string", ""), attributes.texts("strings")),
            ("text", Some(vec!["a", "b"]))
        );
        assert_eq!(attributes.floats("floats"), Some(vec![1.5, 2.5]));
        assert_eq!(attributes.ints("ints"), Some(vec![1, -2]));
        assert_eq!(attributes.tensor("tensor").expect("it is there").view().bytes, [1; 8]);
    }
    assert!(kept.len() >= 2);
}

/// What is of a known name in a domain of its own is not taken for the runtime's.
#[test]
fn passes_leave_custom_operators_as_they_are() {
    let seen = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&seen);
    let operators = CustomOperators::new()
        .with(DOMAIN, "FusedConv", move |node| {
            count.fetch_add(1, Ordering::Relaxed);
            assert!(!node.attributes.0.contains_key("activation"));
            Ok(Box::new(Scale { by: -2.0 }))
        })
        .with(DOMAIN, "Cast", |node| {
            assert!(matches!(node.attributes.0.get("to"), Some(Attribute::Int(10))));
            Ok(Box::new(Scale { by: 2.0 }))
        });
    let w = NodeProto {
        attribute: vec![AttributeProto { floats: vec![1.0], ..attribute("value_floats", 6) }],
        ..node("Constant", &[], "w")
    };
    let nodes = vec![w, custom("FusedConv", &["x", "w"], "a"), node("Relu", &["a"], "y")];
    let model = Model::from_bytes_with(file(nodes), &operators).expect("a model");
    assert_eq!(run(&model, &[("x", row(&[-1.0, 1.0]).view())]).expect("it runs"), [2.0, 0.0]);
    assert_eq!(seen.load(Ordering::Relaxed), 1);
    // Halves stay halves where they take them.
    let to = AttributeProto { i: Some(10), ..attribute("to", 2) };
    let cast = NodeProto { attribute: vec![to], ..custom("Cast", &["a"], "b") };
    let nodes = vec![node("Neg", &["x"], "a"), cast, node("Neg", &["b"], "y")];
    let bytes = file_of(17, nodes, DataType::F16, &[]);
    let session = Session::new(&Model::from_bytes_with(bytes, &operators).expect("a model"));
    let x = Tensor::from_elements([1], &[f16::from_f32(1.5)]).expect("one");
    let made = session.run(&[("x", x.view())]).expect("it runs");
    assert_eq!(made[0].1.view().elements::<f16>(), [f16::from_f32(3.0)]);
    assert!(session.changes().passes.iter().all(|(name, _)| *name != "halves"));
}
