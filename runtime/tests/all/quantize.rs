//! Models in messages, quantized and run.

use prost::Message;
use stepalloc_graph::{Dim, Model, Session};
use stepalloc_onnx::proto::{
    AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto, TensorShapeProto,
    TypeProto, ValueInfoProto, attribute_proto::AttributeType, tensor_shape_proto, type_proto,
};
use stepalloc_onnx::tensors::{Folder, packed};
use stepalloc_operators::registry;
use stepalloc_quantize::{QuantizeDynamic, Quantized, WeightType};
use stepalloc_tensor::{DataType, Tensor};

fn make(op: &str, inputs: &[&str], outputs: &[&str], name: &str) -> NodeProto {
    NodeProto {
        op_type: Some(op.into()),
        input: inputs.iter().map(|&name| name.into()).collect(),
        output: outputs.iter().map(|&name| name.into()).collect(),
        name: (!name.is_empty()).then(|| name.into()),
        ..NodeProto::default()
    }
}

fn int(name: &str, value: i64) -> AttributeProto {
    let ty = Some(AttributeType::Int as i32);
    AttributeProto { name: Some(name.into()), r#type: ty, i: Some(value), ..AttributeProto::default() }
}

/// Numbers from -1 to 1, the same each time.
fn numbers(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        f32::from((state >> 16) as i16) / 32768.0
    };
    (0..count).map(|_| next()).collect()
}

fn weight(name: &str, dims: &[i64]) -> TensorProto {
    let count = dims.iter().product::<i64>() as usize;
    TensorProto {
        name: Some(name.into()),
        data_type: Some(DataType::F32 as i32),
        dims: dims.to_vec(),
        float_data: packed(&numbers(count, name.len() as u32 + count as u32)),
        ..TensorProto::default()
    }
}

/// Changes the elements of a weight.
fn change(weight: &mut TensorProto, change: impl FnOnce(&mut Vec<f32>)) {
    let mut elements: Vec<f32> = bytemuck::pod_collect_to_vec(&weight.float_data[0]);
    change(&mut elements);
    weight.float_data = packed(&elements);
}

fn value(name: &str, dtype: DataType, dims: &[i64]) -> ValueInfoProto {
    let dim = |&size: &i64| tensor_shape_proto::Dimension {
        value: Some(tensor_shape_proto::dimension::Value::DimValue(size)),
        ..Default::default()
    };
    let shape = TensorShapeProto { dim: dims.iter().map(dim).collect() };
    let tensor = type_proto::Tensor { elem_type: Some(dtype as i32), shape: Some(shape) };
    let ty = TypeProto { value: Some(type_proto::Value::TensorType(tensor)), ..TypeProto::default() };
    ValueInfoProto { name: Some(name.into()), r#type: Some(ty), ..ValueInfoProto::default() }
}

/// A model of `x` with outputs of any shape.
fn model(
    x: ValueInfoProto,
    nodes: Vec<NodeProto>,
    weights: Vec<TensorProto>,
    outputs: &[&str],
) -> ModelProto {
    let output = |name: &&str| ValueInfoProto { name: Some((*name).into()), ..ValueInfoProto::default() };
    let graph = GraphProto {
        name: Some("net".into()),
        input: vec![x],
        node: nodes,
        initializer: weights,
        output: outputs.iter().map(output).collect(),
        ..GraphProto::default()
    };
    ModelProto {
        ir_version: Some(8),
        opset_import: vec![OperatorSetIdProto { domain: None, version: Some(17) }],
        graph: Some(graph),
        ..ModelProto::default()
    }
}

fn rows(x: &str) -> ValueInfoProto {
    value(x, DataType::F32, &[4, 16])
}

fn quantized(options: &QuantizeDynamic, model: &ModelProto) -> (ModelProto, Quantized) {
    options.rewrite(model.clone(), Folder::default()).expect("it can be quantized")
}

fn refused(options: &QuantizeDynamic, model: &ModelProto) -> String {
    options
        .rewrite(model.clone(), Folder::default())
        .map(drop)
        .expect_err("it cannot be quantized")
        .to_string()
}

fn ops(model: &ModelProto) -> Vec<String> {
    let graph = model.graph.as_ref().expect("a graph");
    graph.node.iter().filter_map(|node| node.op_type.clone()).collect()
}

fn count(model: &ModelProto, op: &str) -> usize {
    ops(model).iter().filter(|found| *found == op).count()
}

fn initializers(model: &ModelProto) -> Vec<&str> {
    let graph = model.graph.as_ref().expect("a graph");
    let mut names: Vec<_> = graph.initializer.iter().filter_map(|tensor| tensor.name.as_deref()).collect();
    names.sort_unstable();
    names
}

fn opened(bytes: bytes::Bytes, folder: &mut Folder) -> Model {
    stepalloc_onnx::read(bytes, folder, &registry()).expect("a model")
}

/// Outputs for numbers, or for the first rows of a table.
fn run(model: &ModelProto) -> Vec<Vec<f32>> {
    let model = opened(model.encode_to_vec().into(), &mut Folder::default());
    let id = model.graph.inputs[0];
    let declared = model.graph.values[id].declared.as_ref().expect("a type");
    let size = |dim: &Dim| if let Dim::Fixed(size) = dim { *size } else { 1 };
    let shape: Vec<_> = declared.dims.iter().flatten().map(size).collect();
    let count = shape.iter().product();
    let x = match declared.dtype {
        DataType::F32 => Tensor::from_elements(shape, &numbers(count, 9)),
        _ => Tensor::from_elements(shape, &(0..count as i64).collect::<Vec<_>>()),
    };
    let x = x.expect("as many elements as the shape says");
    let name = model.graph.values[id].name.clone();
    let told = Session::new(&model).run(&[(&name, x.view())]).expect("it runs");
    told.iter().map(|(_, tensor)| tensor.view().elements::<f32>().to_vec()).collect()
}

/// The largest difference to what the model was, relative to the largest element.
fn error(was: &ModelProto, is: &ModelProto) -> f32 {
    let (was, is) = (run(was), run(is));
    assert_eq!(was.len(), is.len());
    let pairs = was.iter().zip(&is).map(|(was, is)| {
        assert_eq!(was.len(), is.len());
        let worst = was.iter().zip(is).map(|(a, b)| (a - b).abs()).fold(0.0f32, f32::max);
        worst / was.iter().fold(1e-12f32, |most, x| most.max(x.abs()))
    });
    pairs.fold(0.0, f32::max)
}

/// Two products of `x`, of which the second has the weights of the first.
fn products() -> ModelProto {
    let nodes = vec![
        make("MatMul", &["x", "w"], &["a"], "first"),
        make("MatMul", &["x", "w"], &["b"], "second"),
        make("Add", &["a", "b"], &["y"], "sum"),
    ];
    model(rows("x"), nodes, vec![weight("w", &[16, 8])], &["y"])
}

#[test]
fn products_share_what_they_are_of() {
    let (made, done) = quantized(&QuantizeDynamic::new(), &products());
    // The order of ONNX Runtime's: the scales are there before the sums.
    let wanted = [
        "DynamicQuantizeLinear",
        "Mul",
        "Mul",
        "MatMulInteger",
        "MatMulInteger",
        "Cast",
        "Cast",
        "Mul",
        "Mul",
        "Add",
    ];
    assert_eq!(ops(&made), wanted);
    assert_eq!(initializers(&made), ["w_quantized", "w_scale", "w_zero_point"]);
    let names: Vec<_> = made
        .graph
        .iter()
        .flat_map(|graph| &graph.node)
        .map(|node| node.name.as_deref().unwrap_or_default())
        .collect();
    assert_eq!(names[..3], ["x_QuantizeLinear", "first_quant_scales_mul", "second_quant_scales_mul"]);
    assert!(
        names.contains(&"first_quant_scales_mul") && names.contains(&"a_output_quantized_cast"),
        "{names:?}"
    );
    assert_eq!(done.nodes.len(), 2);
    assert!(error(&products(), &made) < 0.02);
}

#[test]
fn every_scheme_is_near_to_f32() {
    for ty in [WeightType::QInt8, WeightType::QUInt8] {
        for (channels, reduced) in [(false, false), (true, false), (false, true), (true, true)] {
            let options = QuantizeDynamic::new().weight_type(ty).per_channel(channels).reduce_range(reduced);
            let (made, _) = quantized(&options, &products());
            let error = error(&products(), &made);
            assert!(error < if reduced { 0.03 } else { 0.02 }, "{options:?}: {error}");
            let graph = made.graph.as_ref().expect("a graph");
            let scale = graph.initializer.iter().find(|tensor| tensor.name.as_deref() == Some("w_scale"));
            assert_eq!(scale.expect("a scale").float_data[0].len(), if channels { 32 } else { 4 });
        }
    }
}

#[test]
fn nodes_of_one_name_have_scales_of_their_own() {
    let nodes = vec![
        make("MatMul", &["x", "v"], &["a"], "same"),
        make("MatMul", &["x", "w"], &["b"], "same"),
        make("Sub", &["a", "b"], &["y"], ""),
    ];
    let mut large = weight("v", &[16, 8]);
    change(&mut large, |x| x.iter_mut().for_each(|x| *x *= 100.0));
    let model = model(rows("x"), nodes, vec![large, weight("w", &[16, 8])], &["y"]);
    let (made, _) = quantized(&QuantizeDynamic::new(), &model);
    assert_eq!(count(&made, "Mul"), 4);
    assert!(error(&model, &made) < 0.02);
}

fn gemms() -> ModelProto {
    let mut turned = make("Gemm", &["x", "w", "c"], &["a"], "turned");
    turned.attribute.push(int("transB", 1));
    let nodes = vec![turned, make("Gemm", &["a", "v"], &["y"], "plain")];
    model(rows("x"), nodes, vec![weight("w", &[8, 16]), weight("c", &[8]), weight("v", &[8, 3])], &["y"])
}

#[test]
fn gemm_is_a_product_and_a_sum() {
    let (made, done) = quantized(&QuantizeDynamic::new().per_channel(true), &gemms());
    assert_eq!((count(&made, "MatMulInteger"), count(&made, "Add"), count(&made, "Gemm")), (2, 1, 0));
    assert_eq!(done.nodes[0], ("MatMul".into(), "turned_MatMul".into()));
    let wanted = ["c", "v_quantized", "v_scale", "v_zero_point", "w_Transposed_quantized"];
    assert_eq!(initializers(&made)[..5], wanted);
    assert!(error(&gemms(), &made) < 0.03);
}

#[test]
fn gemm_is_left_out_or_chosen_by_its_name() {
    let (made, _) = quantized(&QuantizeDynamic::new().exclude(["turned"]), &gemms());
    assert_eq!((count(&made, "MatMulInteger"), count(&made, "Gemm")), (1, 1));
    let (made, _) = quantized(&QuantizeDynamic::new().only(["turned"]), &gemms());
    assert_eq!((count(&made, "MatMulInteger"), count(&made, "MatMul")), (1, 1));
    // One half alone: the other has its transposed weights in f32.
    let (made, _) = quantized(&QuantizeDynamic::new().exclude(["turned_MatMul"]), &gemms());
    assert!(initializers(&made).contains(&"w_Transposed"));
    assert!(error(&gemms(), &made) < 0.03);
    let (made, _) = quantized(&QuantizeDynamic::new().op_types(["Gemm"]), &gemms());
    assert_eq!(count(&made, "MatMulInteger"), 2);
    assert!(error(&gemms(), &made) < 0.03);
}

#[test]
fn convolutions_keep_their_bias_and_attributes() {
    let mut conv = make("Conv", &["x", "w", "b"], &["y"], "conv");
    conv.attribute.push(int("group", 2));
    let x = value("x", DataType::F32, &[1, 4, 6, 5]);
    let model = model(x, vec![conv], vec![weight("w", &[6, 2, 3, 3]), weight("b", &[6])], &["y"]);
    let (made, _) = quantized(&QuantizeDynamic::new().per_channel(true), &model);
    assert_eq!((count(&made, "ConvInteger"), count(&made, "Reshape"), count(&made, "Add")), (1, 1, 1));
    assert!(error(&model, &made) < 0.02);
}

#[test]
fn rows_of_tables_stay_in_8_bits_until_f32_is_needed() {
    let nodes = vec![
        make("Gather", &["table", "x"], &["rows"], "embed"),
        make("MatMul", &["rows", "w"], &["a"], "product"),
        make("Transpose", &["rows"], &["turned"], "turn"),
        make("Transpose", &["turned"], &["back"], "turn back"),
        make("Relu", &["back"], &["b"], "relu"),
    ];
    let x = value("x", DataType::I64, &[5]);
    let model =
        model(x, nodes, vec![weight("table", &[9, 16]), weight("w", &[16, 8])], &["a", "b", "turned"]);
    let (made, done) = quantized(&QuantizeDynamic::new(), &model);
    assert_eq!((count(&made, "DynamicQuantizeLinear"), count(&made, "DequantizeLinear")), (0, 2));
    assert_eq!(done.nodes.len(), 4);
    assert!(error(&model, &made) < 0.02);
}

#[test]
fn weights_that_other_nodes_take_as_well_are_there_for_them() {
    let nodes = vec![
        make("MatMul", &["x", "w"], &["a"], "product"),
        make("Transpose", &["w"], &["turned"], "turn"),
        make("Relu", &["w"], &["b"], "relu"),
    ];
    let given = model(rows("x"), nodes, vec![weight("w", &[16, 8])], &["a", "b", "turned"]);
    for channels in [false, true] {
        let options = QuantizeDynamic::new().per_channel(channels);
        let (made, _) = quantized(&options, &given);
        assert_eq!(initializers(&made), ["w_quantized", "w_scale", "w_zero_point"]);
        assert!(error(&given, &made) < 0.02);
        // Scales along an axis are not for DequantizeLinear of old: the weights stay.
        let mut old = given.clone();
        old.opset_import[0].version = Some(11);
        let (made, _) = quantized(&options, &old);
        assert_eq!(initializers(&made).contains(&"w"), channels);
        assert!(error(&old, &made) < 0.02);
    }
}

#[test]
fn constant_nodes_are_weights_too() {
    let mut constant = make("Constant", &[], &["w"], "");
    constant.attribute.push(AttributeProto {
        name: Some("value".into()),
        r#type: Some(AttributeType::Tensor as i32),
        t: Some(Box::new(weight("", &[16, 8]))),
        ..AttributeProto::default()
    });
    let model = model(rows("x"), vec![constant, make("MatMul", &["x", "w"], &["y"], "")], vec![], &["y"]);
    let (made, _) = quantized(&QuantizeDynamic::new(), &model);
    assert_eq!((count(&made, "MatMulInteger"), count(&made, "Constant")), (1, 0));
    assert!(error(&model, &made) < 0.02);
}

#[test]
fn names_that_are_taken_are_not_taken_again() {
    let nodes = vec![make("Neg", &["x"], &["x_quantized"], ""), make("MatMul", &["x", "w"], &["y"], "")];
    let mut weights = vec![weight("w", &[16, 8]), weight("w_scale", &[8])];
    change(&mut weights[1], |x| x[0] = 0.5);
    let mut model = model(rows("x"), nodes, weights, &["y", "x_quantized", "z"]);
    let graph = model.graph.as_mut().expect("a graph");
    graph.node.push(make("Neg", &["w_scale"], &["z"], ""));
    let (made, _) = quantized(&QuantizeDynamic::new(), &model);
    assert!(initializers(&made).contains(&"w_scale_1"));
    assert!(error(&model, &made) < 0.02);
}

/// `if` with a product in each branch, of weights within and without.
fn branches() -> ModelProto {
    let branch = |output: &str, weights: &str, own: Vec<TensorProto>| GraphProto {
        node: vec![make("MatMul", &["x", weights], &[output], output)],
        output: vec![ValueInfoProto { name: Some(output.into()), ..ValueInfoProto::default() }],
        initializer: own,
        ..GraphProto::default()
    };
    let graph = |name: &str, graph| AttributeProto {
        name: Some(name.into()),
        r#type: Some(AttributeType::Graph as i32),
        g: Some(Box::new(graph)),
        ..AttributeProto::default()
    };
    let mut choice = make("If", &["condition"], &["y"], "choice");
    choice.attribute.push(graph("then_branch", branch("p", "w", vec![])));
    choice.attribute.push(graph("else_branch", branch("q", "v", vec![weight("v", &[16, 8])])));
    let nodes = vec![
        make("ReduceSum", &["x"], &["total"], ""),
        make("Less", &["total", "total"], &["condition"], ""),
        choice,
    ];
    model(rows("x"), nodes, vec![weight("w", &[16, 8])], &["y"])
}

#[test]
fn graphs_within_nodes_are_quantized_if_that_is_asked_for() {
    assert!(refused(&QuantizeDynamic::new(), &branches()).contains("--subgraphs asks for it"));
    assert!(refused(&QuantizeDynamic::new().only(["p"]), &branches()).contains("outside of subgraphs"));
    let (made, done) = quantized(&QuantizeDynamic::new().subgraphs(true), &branches());
    assert_eq!(done.nodes.len(), 2);
    assert_eq!(initializers(&made), ["w_quantized", "w_scale", "w_zero_point"]);
    assert!(error(&branches(), &made) < 0.02);
}

#[test]
fn what_graphs_within_nodes_take_is_f32() {
    let mut model = branches();
    let graph = model.graph.as_mut().expect("a graph");
    graph.input[0] = value("tokens", DataType::I64, &[4]);
    graph.node.insert(0, make("Gather", &["table", "tokens"], &["x"], "embed"));
    graph.initializer.push(weight("table", &[9, 16]));
    for subgraphs in [false, true] {
        let (made, _) = quantized(&QuantizeDynamic::new().subgraphs(subgraphs), &model);
        assert!(error(&model, &made) < 0.03);
    }
}

#[test]
fn lstm_becomes_an_operator_of_onnx_runtimes() {
    let mut lstm = make("LSTM", &["x", "w", "r"], &["", "y"], "lstm");
    lstm.attribute.push(int("hidden_size", 3));
    let x = value("x", DataType::F32, &[4, 2, 5]);
    let model = model(x, vec![lstm], vec![weight("w", &[1, 12, 5]), weight("r", &[1, 12, 3])], &["y"]);
    for channels in [false, true] {
        let (made, _) = quantized(&QuantizeDynamic::new().per_channel(channels), &model);
        assert_eq!(ops(&made), ["DynamicQuantizeLSTM"]);
        assert_eq!(made.opset_import.len(), 2);
        assert!(error(&model, &made) < 0.02);
    }
}

#[test]
fn what_cannot_be_quantized_is_told() {
    let mut half = products();
    let weights = &mut half.graph.as_mut().expect("a graph").initializer[0];
    weights.data_type = Some(DataType::F16 as i32);
    let told = refused(&QuantizeDynamic::new(), &half);
    assert!(told.contains("w is float16; convert the model to float32 first"), "{told}");
    let mut infinite = products();
    change(&mut infinite.graph.as_mut().expect("a graph").initializer[0], |x| x[3] = f32::INFINITY);
    assert!(refused(&QuantizeDynamic::new(), &infinite).contains("w has elements that are not finite"));
    let mut short = products();
    change(&mut short.graph.as_mut().expect("a graph").initializer[0], |x| x.truncate(x.len() - 1));
    assert!(refused(&QuantizeDynamic::new(), &short).contains("127 elements"));
    let mut old = products();
    old.opset_import[0].version = Some(10);
    assert!(refused(&QuantizeDynamic::new(), &old).contains("convert it first"));
    let computed = vec![make("MatMul", &["x", "x"], &["y"], "square")];
    let computed = model(value("x", DataType::F32, &[4, 4]), computed, vec![], &["y"]);
    assert!(refused(&QuantizeDynamic::new(), &computed).contains("node square (MatMul): x is computed"));
    assert!(
        refused(&QuantizeDynamic::new().op_types(["Relu"]), &products()).contains("Relu cannot be quantized")
    );
    assert!(
        refused(&QuantizeDynamic::new().exclude(["third"]), &products()).contains("there is no node third")
    );
    let cycle = vec![make("MatMul", &["y", "w"], &["z"], ""), make("Neg", &["z"], &["y"], "")];
    let cycle = model(rows("x"), cycle, vec![weight("w", &[16, 16])], &["y"]);
    assert!(refused(&QuantizeDynamic::new(), &cycle).contains("a cycle"));
}

#[test]
fn weights_of_no_elements_but_many_columns_are_left() {
    let mut empty = products();
    let weights = &mut empty.graph.as_mut().expect("a graph").initializer[0];
    weights.dims = vec![0, 1 << 40];
    weights.float_data.clear();
    assert!(refused(&QuantizeDynamic::new().per_channel(true), &empty).contains("w has no elements"));
}

#[test]
fn damaged_models_are_errors_or_models() {
    let options = [QuantizeDynamic::new(), QuantizeDynamic::new().per_channel(true).subgraphs(true)];
    let mut state = 1u32;
    let mut random = move |end: usize| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as usize % end.max(1)
    };
    let mut made = 0;
    for whole in [products(), gemms(), branches()].map(|model| model.encode_to_vec()) {
        for _ in 0..1500 {
            let mut bytes = whole.clone();
            for _ in 0..=random(3) {
                let at = random(bytes.len());
                bytes[at] ^= 1 << random(8);
            }
            bytes.truncate(if random(8) == 0 { random(bytes.len()) } else { bytes.len() });
            let Ok(model) = ModelProto::decode(&bytes[..]) else { continue };
            let options = &options[random(2)];
            made += usize::from(options.rewrite(model, Folder::default()).is_ok());
        }
    }
    assert!(made > 100, "{made} models could be quantized all the same");
}

#[test]
fn initializers_of_old_that_are_inputs_go_with_their_weights() {
    let mut model = products();
    model.ir_version = Some(3);
    model.graph.as_mut().expect("a graph").input.push(value("w", DataType::F32, &[16, 8]));
    let (made, _) = quantized(&QuantizeDynamic::new(), &model);
    assert_eq!((made.ir_version, made.graph.expect("a graph").input.len()), (Some(4), 1));
}

#[test]
fn a_model_may_be_replaced_by_its_quantized_self_and_stays_if_there_is_none() {
    let folder = tempfile::TempDir::new().expect("a directory");
    let path = folder.path().join("net.onnx");
    std::fs::write(&path, products().encode_to_vec()).expect("a file");
    let before = std::fs::read(&path).expect("a file");
    QuantizeDynamic::new().op_types(["Conv"]).run(&path, &path).map(drop).expect_err("there is no Conv");
    assert_eq!(std::fs::read(&path).expect("a file"), before);
    QuantizeDynamic::new().run(&path, &path).expect("it can be quantized");
    assert_ne!(std::fs::read(&path).expect("a file"), before);
    let link = folder.path().join("link.onnx");
    std::os::unix::fs::symlink("net.onnx", &link).expect("a link");
    std::fs::write(&path, &before).expect("a file");
    QuantizeDynamic::new().run(&path, &link).expect("it can be quantized");
    assert_ne!(std::fs::read(&path).expect("a file"), before, "what a link names is replaced");
    let nowhere = QuantizeDynamic::new().run(&path, folder.path().join("no/net.onnx"));
    assert!(nowhere.map(drop).is_err());
}
