//! What kind an error is: what a caller can act upon, beside the text.

use super::wire::{Message, attribute, graph, model, node, open_value, value};
use stepalloc_runtime::{Error, Model, OpError, Options, Session, Tensor};

/// ONNX's numbers of element types.
const F32: u64 = 1;
const I64: u64 = 7;
const BOOL: u64 = 9;

/// What a node named "wrong" is refused with, when the model is read or when it runs.
fn refused(node: Message, inputs: &[(&str, &Tensor)]) -> OpError {
    match run(node, inputs, &Options::new()) {
        Error::Node { node, source, .. } if node == "wrong" => source,
        other => panic!("no error of the node: {other}"),
    }
}

fn run(node: Message, inputs: &[(&str, &Tensor)], options: &Options) -> Error {
    let given = inputs
        .iter()
        .map(|(name, tensor)| open_value(11, name, tensor.ty().dtype as u64, tensor.ty().rank()));
    let parts = given.chain([node.text(3, "wrong"), open_value(12, "y", F32, 1)]);
    let model = match Model::from_bytes(model(&graph(parts))) {
        Ok(model) => model,
        Err(error) => return error,
    };
    let views: Vec<_> = inputs.iter().map(|(name, tensor)| (*name, tensor.view())).collect();
    Session::with_options(&model, options.clone()).run(&views).expect_err("the node is wrong")
}

fn floats(shape: &[usize]) -> Tensor {
    Tensor::from_elements(shape, &vec![1.0f32; shape.iter().product()]).expect("as many as the shape says")
}

fn ints(elements: &[i64]) -> Tensor {
    Tensor::from_elements([elements.len()], elements).expect("a row")
}

#[test]
fn an_attribute_that_is_not_allowed() {
    let shift = node("BitShift", &["x", "x"], &["y"]);
    let shift = shift.message(5, &attribute("direction", 3).text(4, "UP"));
    let error = refused(shift, &[("x", &ints(&[1]))]);
    assert!(matches!(&error, OpError::Attribute(what) if what.contains("UP")), "{error:?}");
}

#[test]
fn an_input_that_is_left_out() {
    let error = refused(node("Gather", &["x", ""], &["y"]), &[("x", &floats(&[2]))]);
    assert!(matches!(error, OpError::MissingInput(1)), "{error:?}");
    assert_eq!(error.to_string(), "input 1 is missing");
}

#[test]
fn inputs_that_are_not_as_many_as_the_attributes_say() {
    let product = node("Einsum", &["x"], &["y"]);
    let product = product.message(5, &attribute("equation", 3).text(4, "ij,jk->ik"));
    let error = refused(product, &[("x", &floats(&[2, 2]))]);
    assert!(matches!(&error, OpError::Arity(what) if what.contains("2 terms has 1 operands")), "{error:?}");
}

#[test]
fn elements_of_two_types() {
    let (x, k) = (floats(&[2]), ints(&[1, 2]));
    let error = refused(node("Add", &["x", "k"], &["y"]), &[("x", &x), ("k", &k)]);
    assert!(matches!(&error, OpError::ElementType(what) if what.contains("int64[2]")), "{error:?}");
}

#[test]
fn operands_of_the_right_elements_and_a_wrong_shape_or_the_other_way_round() {
    let clipped = |limit: &Tensor| {
        refused(node("Clip", &["x", "limit"], &["y"]), &[("x", &floats(&[2])), ("limit", limit)])
    };
    assert!(matches!(clipped(&floats(&[2])), OpError::Shape(_)));
    assert!(matches!(clipped(&ints(&[1])), OpError::ElementType(_)));
}

#[test]
fn matrices_that_cannot_be_multiplied() {
    let (a, b) = (floats(&[2, 3]), floats(&[2, 3]));
    let error = refused(node("MatMul", &["a", "b"], &["y"]), &[("a", &a), ("b", &b)]);
    assert!(matches!(&error, OpError::Shape(what) if what.contains("[2, 3] and [2, 3]")), "{error:?}");
}

#[test]
fn an_index_that_is_out_of_range() {
    let (x, at) = (floats(&[2]), ints(&[5]));
    let error = refused(node("Gather", &["x", "at"], &["y"]), &[("x", &x), ("at", &at)]);
    assert!(matches!(&error, OpError::Value(what) if what.contains("index 5 is beyond 2")), "{error:?}");
}

#[test]
fn an_element_type_of_the_standard_that_is_not_supported() {
    const STRING: u64 = 8;
    let cast = node("Cast", &["x"], &["y"]).message(5, &attribute("to", 2).number(3, STRING));
    let error = refused(cast, &[("x", &floats(&[2]))]);
    assert!(matches!(&error, OpError::Unsupported(what) if what.contains("8 is not known")), "{error:?}");
}

#[test]
fn memory_that_a_limit_does_not_allow() {
    let options = Options::new().max_mem(1000);
    let error = run(node("NonZero", &["x"], &["y"]), &[("x", &floats(&[1000]))], &options);
    let Error::Node { op, source: OpError::Memory { bytes, why }, .. } = &error else { panic!("{error:?}") };
    assert!(op == "NonZero" && *bytes >= 8000 && why.contains("max_mem allows 1000 bytes"), "{error}");
}

#[test]
fn an_error_of_a_graph_within_a_node_is_the_inner_nodes() {
    let body = graph([
        value(11, "round", I64, &[]),
        value(11, "goes on", BOOL, &[]),
        value(11, "state", F32, &[1]),
        node("Identity", &["goes on"], &["more"]),
        node("Gather", &["x", "at"], &["taken"]).text(3, "inside"),
        value(12, "more", BOOL, &[]),
        value(12, "taken", F32, &[1]),
    ]);
    let repeat = node("Loop", &["count", "", "state"], &["y"]);
    let repeat = repeat.message(5, &attribute("body", 5).message(6, &body));
    let (count, state, x, at) = (ints(&[2]), floats(&[1]), floats(&[2]), ints(&[5]));
    let inputs = [("count", &count), ("state", &state), ("x", &x), ("at", &at)];
    let error = run(repeat, &inputs, &Options::new());
    assert!(matches!(&error, Error::Node { op, source: OpError::Graph(_), .. } if op == "Loop"), "{error:?}");
    let Error::Node { node, op, source } = error.innermost() else { panic!("{error:?}") };
    assert!(node == "inside" && op == "Gather" && matches!(source, OpError::Value(_)), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("node wrong (Loop): node inside (Gather): index 5"), "{text}");
}

#[test]
fn errors_are_small_to_return() {
    // Every step of a run returns one: clippy's limit is 128 bytes.
    assert!(size_of::<Error>() <= 96 && size_of::<OpError>() <= 48);
}
