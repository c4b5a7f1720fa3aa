//! Models of OpenVINO: small ones written by hand, right ones and hostile ones.

#![allow(clippy::unwrap_used, reason = "what fails is a test")]

use bytes::Bytes;
use std::fmt::Write;
use std::sync::Arc;
use stepalloc_runtime::{Error, Graph, Model, Session, Tensor, ValueId};

/// The text of a net: layers, each with the ports of its inputs and outputs, and edges from output to input.
#[derive(Default)]
struct Text {
    layers: String,
    edges: String,
    next: usize,
}

impl Text {
    /// A layer whose inputs are outputs of others (layer, port); its outputs come after its inputs. Returns its id.
    fn layer(&mut self, kind: &str, data: &str, inputs: &[(usize, usize)], outputs: &[&str]) -> usize {
        let (id, version) = (self.next, "opset1");
        self.next += 1;
        self.whole(id, kind, version, data, "", inputs, outputs);
        id
    }

    #[allow(clippy::too_many_arguments, reason = "it is a layer's whole text")]
    fn whole(
        &mut self,
        id: usize,
        kind: &str,
        version: &str,
        data: &str,
        body: &str,
        inputs: &[(usize, usize)],
        outputs: &[&str],
    ) {
        let text = &mut self.layers;
        write!(
            text,
            r#"<layer id="{id}" name="n{id}" type="{kind}" version="{version}"><data {data}/><input>"#
        )
        .unwrap();
        for (port, from) in inputs.iter().enumerate() {
            write!(text, r#"<port id="{port}"/>"#).unwrap();
            let (layer, out) = from;
            write!(
                self.edges,
                r#"<edge from-layer="{layer}" from-port="{out}" to-layer="{id}" to-port="{port}"/>"#
            )
            .unwrap();
        }
        write!(text, "</input><output>").unwrap();
        for (number, port) in outputs.iter().enumerate() {
            let (precision, dims) = port.split_once(' ').unwrap_or((port, ""));
            let port = inputs.len() + number;
            write!(text, r#"<port id="{port}" precision="{precision}" names="v{id}_{number}">"#).unwrap();
            dims.split_whitespace().for_each(|dim| write!(text, "<dim>{dim}</dim>").unwrap());
            write!(text, "</port>").unwrap();
        }
        write!(text, "</output>{body}</layer>").unwrap();
    }

    fn parameter(&mut self, dtype: &str, port: &str) -> (usize, usize) {
        (self.layer("Parameter", &format!(r#"element_type="{dtype}""#), &[], &[port]), 0)
    }

    /// Elements from the weights: type, shape, offset, bytes.
    fn constant(&mut self, dtype: &str, shape: &str, [offset, size]: [usize; 2]) -> (usize, usize) {
        let data = format!(r#"element_type="{dtype}" shape="{shape}" offset="{offset}" size="{size}""#);
        (self.layer("Const", &data, &[], &[&format!("{dtype} {}", shape.replace(',', " "))]), 0)
    }

    fn result(&mut self, from: (usize, usize)) {
        self.layer("Result", "", &[from], &[]);
    }

    fn inner(&self) -> String {
        format!("<layers>{}</layers><edges>{}</edges>", self.layers, self.edges)
    }

    fn net(&self) -> String {
        format!(r#"<?xml version="1.0"?><net name="n" version="11">{}</net>"#, self.inner())
    }
}

fn model(text: &str, weights: &[u8]) -> Result<stepalloc_graph::Model, Error> {
    let weights = Bytes::copy_from_slice(weights);
    stepalloc_openvino::read(text.as_bytes(), &weights, &stepalloc_operators::registry())
}

fn graph(text: &str, weights: &[u8]) -> Result<Arc<Graph>, Error> {
    model(text, weights).map(|model| model.graph)
}

/// Runs a net.
fn run(text: &Text, weights: &[u8], inputs: &[Tensor]) -> Vec<Tensor> {
    let model = model(&text.net(), weights).unwrap();
    let names = model.graph.inputs.iter().map(|&id| model.graph.values[id].name.as_str());
    let given: Vec<_> = names.zip(inputs).map(|(name, tensor)| (name, tensor.view())).collect();
    let made = Session::new(&model).run(&given).unwrap();
    made.into_iter().map(|(_, tensor)| tensor).collect()
}

fn floats(shape: &[usize], elements: &[f32]) -> Tensor {
    Tensor::from_elements(shape, elements).unwrap()
}

fn bytes<T: bytemuck::NoUninit>(elements: &[T]) -> Vec<u8> {
    bytemuck::cast_slice(elements).to_vec()
}

/// x + weights
fn sum() -> Text {
    let mut text = Text::default();
    let x = text.parameter("f32", "FP32 2 3");
    let w = text.constant("f32", "3", [4, 12]);
    let sum = text.layer("Add", r#"auto_broadcast="numpy""#, &[x, w], &["FP32 2 3"]);
    text.result((sum, 2));
    text
}

#[test]
fn a_layer_becomes_an_operator() {
    let weights = bytes(&[9.0f32, 1.0, 2.0, 3.0]);
    let made = run(&sum(), &weights, &[floats(&[2, 3], &[0.0, 0.0, 0.0, 10.0, 10.0, 10.0])]);
    assert_eq!(made[0].view().elements::<f32>(), [1.0, 2.0, 3.0, 11.0, 12.0, 13.0]);
    let graph = graph(&sum().net(), &weights).unwrap();
    let name = |id: ValueId| graph.values[id].name.as_str();
    assert_eq!((name(graph.inputs[0]), name(graph.outputs[0])), ("v0_0", "v2_0"));
}

#[test]
fn weights_lie_where_they_are_read_from() {
    let mut text = Text::default();
    let x = text.parameter("f32", "FP32 4096");
    let w = text.constant("f32", "4096", [0, 4 * 4096]);
    let sum = text.layer("Add", r#"auto_broadcast="numpy""#, &[x, w], &["FP32 4096"]);
    text.result((sum, 2));
    let graph = graph(&text.net(), &bytes(&[1.0f32; 4096])).unwrap();
    let weights = graph.weights();
    assert!(weights.len() == 1 && weights[0].is_lent());
}

#[test]
fn files_are_found_by_name_and_missing_weights_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("net.xml");
    std::fs::write(&path, sum().net()).unwrap();
    let missing = Model::open(&path).unwrap_err().to_string();
    assert!(missing.contains("net.bin"), "{missing}");
    std::fs::write(path.with_extension("bin"), bytes(&[0.0f32; 4])).unwrap();
    assert_eq!(Model::open(&path).unwrap().graph.nodes.len(), 1);
}

#[test]
fn gates_are_put_in_order_when_they_are_first_used() {
    let (input, hidden) = (24, 8);
    let mut text = Text::default();
    let x = text.parameter("f32", "FP32 1 3 24");
    let h = text.parameter("f32", "FP32 1 2 8");
    let c = text.parameter("f32", "FP32 1 2 8");
    let (w, r, b) = (2 * 32 * input * 4, 2 * 32 * hidden * 4, 2 * 32 * 4);
    let lengths = text.constant("i32", "1", [0, 4]);
    let weights = [("2,32,24", 4, w), ("2,32,8", 4 + w, r), ("2,32", 4 + w + r, b)];
    let [w, r, b] = weights.map(|(shape, at, size)| text.constant("f32", shape, [at, size]));
    let told = r#"hidden_size="8" direction="bidirectional""#;
    let given = [x, h, c, lengths, w, r, b];
    let made = ["FP32 1 2 3 8", "FP32 1 2 8", "FP32 1 2 8"];
    let network = text.layer("LSTMSequence", told, &given, &made);
    text.result((network, given.len()));
    let numbers = |count: usize| (0..count).map(|n| (n * 37 % 101) as f32 / 99.0 - 0.5).collect::<Vec<_>>();
    let bin = [bytes(&[3i32]), bytes(&numbers(2 * 32 * (input + hidden + 1)))].concat();
    let inputs =
        [floats(&[1, 3, 24], &numbers(72)), floats(&[1, 2, 8], &[0.1; 16]), floats(&[1, 2, 8], &[0.2; 16])];
    let wanted = run(&text, &bin, &inputs);

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("net.xml");
    std::fs::write(&path, text.net()).unwrap();
    std::fs::write(path.with_extension("bin"), &bin).unwrap();
    let model = Model::open(&path).unwrap();
    let weights = model.graph.weights();
    let large: Vec<_> = weights.iter().filter(|weight| weight.ty().shape.len() == 3).collect();
    assert!(large.len() >= 2 && large.iter().all(|weight| weight.own_bytes() == 0));
    let names = ["v0_0", "v1_0", "v2_0"];
    let given: Vec<_> = names.iter().zip(&inputs).map(|(name, tensor)| (*name, tensor.view())).collect();
    let made = Session::new(&model).run(&given).unwrap();
    // Those of a file are packed, which sums in another order.
    let (made, wanted) = (made[0].1.view().elements::<f32>(), wanted[0].view().elements::<f32>());
    assert!(
        made.iter().zip(wanted).all(|(made, wanted)| (made - wanted).abs() < 1e-6),
        "{made:?}, not {wanted:?}"
    );
}

#[test]
fn matrices_given_turned_are_read_so() {
    let mut text = Text::default();
    let a = text.parameter("f32", "FP32 2 2 1");
    let b = text.constant("f32", "1,2,2", [0, 16]);
    let product = text.layer("MatMul", r#"transpose_a="true" transpose_b="1""#, &[a, b], &["FP32 2 1 2"]);
    text.result((product, 2));
    let made = run(&text, &bytes(&[1.0f32, 2.0, 3.0, 4.0]), &[floats(&[2, 2, 1], &[1.0, 0.0, 1.0, 1.0])]);
    assert_eq!(made[0].view().shape, [2, 1, 2]);
    assert_eq!(made[0].view().elements::<f32>(), [1.0, 3.0, 3.0, 7.0]);
}

#[test]
fn strided_slices_follow_their_masks() {
    // x[::-1, 1, ..., new]
    let mut text = Text::default();
    let x = text.parameter("f32", "FP32 2 2 2");
    let begin = text.constant("i64", "4", [0, 32]);
    let end = text.constant("i64", "4", [32, 32]);
    let step = text.constant("i64", "4", [64, 32]);
    let masks = r#"begin_mask="1,0,0,0" end_mask="1,0,0,0" new_axis_mask="0,0,0,1" shrink_axis_mask="0,1,0,0" ellipsis_mask="0,0,1,0""#;
    let slice = text.layer("StridedSlice", masks, &[x, begin, end, step], &["FP32 2 2 1"]);
    text.result((slice, 4));
    let weights = bytes(&[0i64, 1, 0, 0, 0, 2, 0, 0, -1, 1, 1, 1]);
    let made = run(&text, &weights, &[floats(&[2, 2, 2], &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0])]);
    assert_eq!(made[0].view().shape, [2, 2, 1]);
    assert_eq!(made[0].view().elements::<f32>(), [6.0, 7.0, 2.0, 3.0]);
}

#[test]
fn groups_of_weights_are_seen_flat() {
    let mut text = Text::default();
    let x = text.parameter("f32", "FP32 1 2 2");
    let w = text.constant("f32", "2,1,1,1", [0, 8]);
    let told = r#"strides="1" dilations="1" pads_begin="0" pads_end="0" auto_pad="explicit""#;
    let convolution = text.layer("GroupConvolution", told, &[x, w], &["FP32 1 2 2"]);
    text.result((convolution, 2));
    let made = run(&text, &bytes(&[2.0f32, 3.0]), &[floats(&[1, 2, 2], &[1.0, 2.0, 3.0, 4.0])]);
    assert_eq!(made[0].view().elements::<f32>(), [2.0, 4.0, 9.0, 12.0]);
}

/// A body that passes its one parameter through an operation.
fn branch(kind: &str) -> String {
    let mut text = Text::default();
    let x = text.parameter("f32", "FP32 2");
    let made = text.layer(kind, "", &[x], &["FP32 2"]);
    text.result((made, 1));
    text.inner()
}

#[test]
fn a_branch_takes_values_from_outside() {
    let mut text = Text::default();
    let condition = text.parameter("boolean", "BOOL");
    let x = text.parameter("f32", "FP32 2");
    let mut body = String::new();
    for (name, kind) in [("then", "Negative"), ("else", "Abs")] {
        let map = r#"<input external_port_id="1" internal_layer_id="0"/><output external_port_id="2" internal_layer_id="2"/>"#;
        write!(body, "<{name}_port_map>{map}</{name}_port_map><{name}_body>{}</{name}_body>", branch(kind))
            .unwrap();
    }
    text.whole(2, "If", "opset8", "", &body, &[condition, x], &["FP32 2"]);
    text.next = 3;
    text.result((2, 2));
    for (choice, wanted) in [(true, [-1.0, 1.0]), (false, [1.0, 1.0])] {
        let choice = Tensor::from_elements([], &[stepalloc_tensor::Bool::from(choice)]).unwrap();
        let made = run(&text, &[], &[choice, floats(&[2], &[1.0, -1.0])]);
        assert_eq!(made[0].view().elements::<f32>(), wanted);
    }
}

/// Adds up the rows of x from the last to the first, and keeps each sum.
fn iterator() -> Text {
    let mut body = Text::default();
    let (sum, row) = (body.parameter("f32", "FP32 1 2"), body.parameter("f32", "FP32 1 2"));
    let next = body.layer("Add", "", &[sum, row], &["FP32 1 2"]);
    body.result((next, 2));
    let mut text = Text::default();
    let (x, zero) = (text.parameter("f32", "FP32 3 2"), text.constant("f32", "1,2", [0, 8]));
    let backwards = r#"axis="0" start="-1" end="0" stride="-1" part_size="1""#;
    let map = format!(
        r#"<port_map><input external_port_id="0" internal_layer_id="1" {backwards}/>
        <input external_port_id="1" internal_layer_id="0"/><output external_port_id="2" internal_layer_id="3"/>
        <output external_port_id="3" internal_layer_id="3" {backwards}/></port_map>
        <back_edges><edge from-layer="3" to-layer="0"/></back_edges><body>{}</body>"#,
        body.inner()
    );
    text.whole(2, "TensorIterator", "opset1", "", &map, &[x, zero], &["FP32 1 2", "FP32 3 2"]);
    text.next = 3;
    text.result((2, 2));
    text.result((2, 3));
    text
}

#[test]
fn iterators_take_parts_from_either_end() {
    let made = run(&iterator(), &bytes(&[0.0f32; 2]), &[floats(&[3, 2], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])]);
    assert_eq!(made[0].view().elements::<f32>(), [9.0, 12.0]);
    assert_eq!(made[1].view().elements::<f32>(), [9.0, 12.0, 8.0, 10.0, 5.0, 6.0]);
}

#[test]
fn errors_name_the_layer_and_what_is_wrong() {
    let weights = bytes(&[0.0f32; 4]);
    let whole = sum().net();
    for (from, to, said) in [
        (r#"offset="4""#, r#"offset="8""#, "12 bytes at 8"),
        (r#"offset="4""#, r#"offset="18446744073709551615""#, "which have 16"),
        (
            r#"shape="3""#,
            r#"shape="4""#,
            "node n1 (layer 1) (Const opset1): float32[4] has 12 bytes instead of 16",
        ),
        (r#"shape="3""#, r#"shape="4294967296,4294967296,4""#, "too large"),
        (r#"element_type="f32" shape"#, r#"element_type="nf4" shape"#, "elements of type nf4"),
        (
            r#"type="Add""#,
            r#"type="Adder""#,
            "an operator is not known: openvino.Adder (version 1) of node n2 (layer 2)",
        ),
        (r#"type="Add" version="opset1""#, r#"type="Add" version="mine""#, "Add mine"),
        (r#"<layer id="1""#, r#"<layer id="0""#, "two layers have the id 0"),
        (r#"from-layer="1""#, r#"from-layer="7""#, "port 0 of layer 7"),
        (r#"from-layer="1" from-port="0""#, r#"from-layer="2" from-port="2""#, "a cycle"),
        (r#"to-layer="2" to-port="1""#, r#"to-layer="2" to-port="0""#, "two edges lead to port 0"),
        (r#"to-layer="2" to-port="1""#, r#"to-layer="2" to-port="5""#, "no edge leads to its input 1"),
        (r#"version="11""#, r#"version="12""#, "its version is \"12\""),
        (r#"<dim>2</dim>"#, r#"<dim>two</dim>"#, "a dimension is \"two\""),
        ("numpy", "pdpd", "auto_broadcast is pdpd"),
        ("</net>", "", "never closed"),
    ] {
        assert!(whole.contains(from), "{from}");
        let error = graph(&whole.replacen(from, to, 1), &weights).unwrap_err().to_string();
        assert!(error.contains(said), "{to}: {error}");
    }
}

#[test]
fn deep_nesting_is_an_error() {
    let mut inner = branch("Abs");
    for _ in 0..40 {
        let body = format!("<port_map/><body>{inner}</body>");
        let mut text = Text::default();
        text.whole(0, "TensorIterator", "opset1", "", &body, &[], &["FP32 2"]);
        inner = text.inner();
    }
    let error = graph(&format!(r#"<net version="11">{inner}</net>"#), &[]).unwrap_err();
    assert!(error.to_string().contains("deep"), "{error}");
    let open = "<a>".repeat(200_000);
    assert!(graph(&open, &[]).is_err());
    assert!(graph(&format!("{open}{}", "</a>".repeat(200_000)), &[]).is_err());
}

#[test]
fn damaged_models_are_errors_or_models_and_never_more() {
    let (weights, mut state) = (bytes(&[0.0f32; 4]), 0x9E37_79B9_7F4A_7C15u64);
    let mut next = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below as u64) as usize
    };
    for whole in [sum().net(), iterator().net()] {
        for at in (0..whole.len()).step_by(7) {
            let _ = graph(&whole[..at], &weights);
        }
        for _ in 0..3000 {
            let mut text = whole.clone().into_bytes();
            for _ in 0..=next(3) {
                let at = next(text.len());
                text[at] = b" 0123456789-\"=/<>abct"[next(21)];
            }
            if let Ok(text) = std::str::from_utf8(&text) {
                let _ = graph(text, &weights);
            }
        }
    }
}
