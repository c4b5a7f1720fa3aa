//! What errors say: of operators, versions, element types and files that are not known, and of memory that is not to be had.

use super::wire::{attribute, graph, model, model_of, model_with, node, open_value, opset, tensor, value};
use stepalloc_runtime::{Error, Model, Options, Session, Tensor, View};

fn said(file: Vec<u8>) -> String {
    Model::from_bytes(file).expect_err("no model that is known").to_string()
}

#[test]
fn all_operators_that_are_unknown_are_in_one_message() {
    let body = graph([node("Inner", &["x"], &["i"]), value(12, "i", 1, &[2])]);
    let twice = graph([
        value(11, "x", 1, &[2]),
        node("Strange", &["x"], &["a"]).text(3, "first"),
        node("Relu", &["a"], &["b"]),
        node("Strange", &["b"], &["c"]).text(3, "second"),
        node("Conv", &["c"], &["d"]).text(7, "com.microsoft.nchwc").text(3, "of a layout"),
        node("If", &["x"], &["e"])
            .message(5, &attribute("then_branch", 5).message(6, &body))
            .message(5, &attribute("else_branch", 5).message(6, &body)),
        value(12, "e", 1, &[2]),
    ]);
    let error = Model::from_bytes(model(&twice)).expect_err("there are unknown operators");
    let Error::Unsupported(unknown) = &error else { panic!("{error}") };
    let listed: Vec<_> =
        unknown.iter().map(|(domain, op, _, count, node)| (domain, op, count, node)).collect();
    let wanted = [
        ("ai.onnx", "Inner", 2, "i"),
        ("ai.onnx", "Strange", 2, "first"),
        ("com.microsoft.nchwc", "Conv", 1, "of a layout"),
    ];
    assert_eq!(listed, wanted);
    let text = error.to_string();
    for part in [
        "3 operators are not known",
        "ai.onnx.Strange (version 17) of 2 nodes, the first of which is first",
        "com.microsoft.nchwc.Conv (version 1) of node of a layout",
        "ORT_ENABLE_EXTENDED",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn versions_beyond_the_known_are_refused() {
    let plain = graph([value(11, "x", 1, &[2]), node("Relu", &["x"], &["y"]), value(12, "y", 1, &[2])]);
    assert!(Model::from_bytes(model_with(&plain, 28)).is_ok());
    let text = said(model_with(&plain, 29));
    assert!(text.contains("version 29 of ai.onnx") && text.contains("opset_version=28"), "{text}");
    let text = said(model_of(&plain, &[(8, opset("com.microsoft", 2))]));
    assert!(text.contains("version 2 of com.microsoft"), "{text}");
}

#[test]
fn strings_are_said_to_be_unsupported() {
    let relu = || node("Relu", &["x"], &["y"]);
    let input = graph([value(11, "x", 8, &[2]), relu(), value(12, "y", 8, &[2])]);
    assert!(said(model(&input)).contains("value x is a tensor of strings"), "{}", said(model(&input)));
    let weight = graph([tensor(5, "x", 8, &[1]).text(6, "word"), relu(), value(12, "y", 1, &[1])]);
    let text = said(model(&weight));
    assert!(text.contains("initializer x") && text.contains("strings are not supported"), "{text}");
}

#[test]
fn a_file_that_is_no_model_is_said_to_be_what_it_seems() {
    let folder = tempfile::tempdir().expect("a directory");
    let of = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).expect("it is written");
        Model::open(&path).expect_err("no model").to_string()
    };
    for (name, bytes, is) in [
        ("net.pt", &b"PK\x03\x04    net/data.pkl"[..], "torch.onnx.export"),
        ("net.gguf", b"GGUF\x03\0\0\0", "llama.cpp"),
        ("net.tflite", b"\x1c\0\0\0TFL3", "TensorFlow Lite"),
        ("net.onnx", b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        ("page.onnx", b"<!DOCTYPE html><html></html>", "page of the web"),
        ("empty.onnx", b"", "empty"),
    ] {
        let text = of(name, bytes);
        assert!(text.contains(name) && text.contains(is), "{name}: {text}");
    }
    std::fs::write(folder.path().join("ir.xml"), "<net/>").expect("it is written");
    let text = of("ir.bin", &[7; 64]);
    assert!(text.contains("open") && text.contains("ir.xml"), "{text}");
}

/// y = relu(x) x, with a weight that is copied: x + w and its square root are in the arena.
fn net() -> Model {
    let weights: Vec<u8> = (0..256).flat_map(|index| (index as f32).to_le_bytes()).collect();
    let graph = graph([
        open_value(11, "x", 1, 2),
        tensor(5, "w", 1, &[256]).bytes(9, &weights),
        node("Add", &["x", "w"], &["sum"]).text(3, "the sum"),
        node("Softmax", &["sum"], &["part"]).text(3, "its part"),
        node("Concat", &["sum", "part"], &["both"])
            .text(3, "side by side")
            .message(5, &attribute("axis", 2).number(3, 1)),
        node("ReduceSum", &["both"], &["y"]),
        open_value(12, "y", 1, 2),
    ]);
    Model::from_bytes(model(&graph)).expect("a model")
}

#[test]
fn an_error_of_memory_names_node_and_tensor_and_has_the_figure_that_was_told() {
    let model = net();
    let x = Tensor::from_elements([64, 256], &[1.0f32; 64 * 256]).expect("as many as the shape says");
    let told = Session::new(&model);
    let by_type = View { bytes: &[], ..x.view() };
    let wanted = told.wanted_bytes(&[Some(by_type)]).expect("a plan");
    let needs = told.needs(&[Some(by_type)]).expect("a plan");
    assert_eq!(wanted, needs.arena_bytes + needs.output_bytes + needs.copied_weight_bytes);
    assert_eq!((needs.input_bytes, needs.output_bytes, needs.unplanned_nodes), (64 << 10, 4, 0));
    let run =
        |limit: u64| Session::with_options(&model, Options::new().max_mem(limit)).run(&[("x", x.view())]);
    assert!(run(wanted).is_ok());
    let error = run(wanted - 1).expect_err("a byte too few");
    let Error::Memory { bytes, why } = &error else { panic!("{error}") };
    assert_eq!(*bytes, wanted);
    for part in [
        format!("max_mem allows {} bytes", wanted - 1),
        format!("the arena is {}", needs.arena_bytes),
        format!("copied weights {}", needs.copied_weight_bytes),
        "node side by side (Concat)".into(),
        "both float32[64,512]".into(),
        "the largest output is y float32[1,1]".into(),
    ] {
        assert!(why.contains(&part), "{part}: {why}");
    }
    let weights = run(100).expect_err("less than the weights").to_string();
    assert!(weights.contains("copied take them alone") && weights.contains("w float32[256]"), "{weights}");
}

#[test]
fn memory_of_nodes_that_run_freely_is_said_by_node_and_tensor() {
    let graph = graph([
        open_value(11, "x", 1, 1),
        node("NonZero", &["x"], &["places"]).text(3, "where"),
        node("Cast", &["places"], &["y"]).message(5, &attribute("to", 2).number(3, 1)),
        open_value(12, "y", 1, 2),
    ]);
    let model = Model::from_bytes(model(&graph)).expect("a model");
    let session = Session::with_options(&model, Options::new().max_mem(1000));
    let x = Tensor::from_elements([1000], &[1.0f32; 1000]).expect("as many as the shape says");
    let text = session.run(&[("x", x.view())]).expect_err("8,000 bytes").to_string();
    assert!(text.contains("node where (NonZero)") && text.contains("are for places"), "{text}");
}
