//! Each pass of the basic level alone: what it changes, and what it leaves alone.

use super::sketch::Sketch;
use stepalloc_graph::Attribute;
use stepalloc_runtime::{Bool, DataType, Level, Model, Node, Optimization, Options, Session, Tensor};
use stepalloc_tensor::f16;

const NONE: [&str; 0] = [];

/// A convolution of `x` to `c`, with a bias or without.
pub(super) fn conv(bias: bool, pad: i64) -> Sketch {
    let sketch = Sketch::new(13).input("x", &[-1, 2, 5, 5]);
    conv_of(sketch, "x", bias, pad)
}

pub(super) fn conv_of(sketch: Sketch, x: &str, bias: bool, pad: i64) -> Sketch {
    let inputs = if bias { format!("{x} w b") } else { format!("{x} w") };
    let pads = [("pads", Attribute::Ints(vec![pad; 4]))];
    sketch.weight("w", &[4, 2, 3, 3]).weight("b", &[4]).node_with("Conv", &inputs, "c", &pads)
}

fn batchnorm(sketch: Sketch, from: &str, channels: usize) -> Sketch {
    let row = [channels];
    let sketch = sketch.weight("s", &row).weight("t", &row).weight("mean", &row).positive("var", &row);
    sketch.node("BatchNormalization", &format!("{from} s t mean var"), "y").output("y")
}

#[test]
fn batchnorm_goes_into_a_convolution_with_or_without_bias() {
    for bias in [true, false] {
        assert_eq!(batchnorm(conv(bias, 1), "c", 4).left(&["conv-batchnorm"]), ["Conv"]);
    }
    let transposed = Sketch::new(13).input("x", &[1, 2, 4, 4]).weight("w", &[2, 3, 2, 2]).node(
        "ConvTranspose",
        "x w",
        "c",
    );
    assert_eq!(batchnorm(transposed, "c", 3).left(&["conv-batchnorm"]), ["ConvTranspose"]);
}

#[test]
fn what_is_needed_elsewhere_stays_as_it_is() {
    let both = ["Conv", "BatchNormalization"];
    assert_eq!(batchnorm(conv(true, 1), "c", 4).output("c").left(&["conv-batchnorm"]), both);
    let twice = batchnorm(conv(true, 1), "c", 4).node("Relu", "c", "z").output("z");
    assert_eq!(twice.left(&["conv-batchnorm"]), ["Conv", "BatchNormalization", "Relu"]);
    // A graph within a node needs it.
    let branch = || Sketch::new(13).node("Abs", "c", "inner").output("inner").within(&["c"]);
    let captured = batchnorm(conv(true, 1), "c", 4)
        .tensor("which", Tensor::from_elements([], &[Bool::from(true)]).expect("one"))
        .node_with("If", "which", "z", &[("then_branch", branch()), ("else_branch", branch())])
        .output("z");
    assert_eq!(captured.left(&["conv-batchnorm"]), ["Conv", "BatchNormalization", "If"]);
    // Weights that are given are not known.
    let given = batchnorm(
        Sketch::new(13).input("x", &[1, 2, 5, 5]).input("w", &[4, 2, 3, 3]).node("Conv", "x w", "c"),
        "c",
        4,
    );
    assert_eq!(given.left(&["conv-batchnorm"]), both);
}

#[test]
fn products_and_sums_after_a_convolution_go_into_it() {
    for shape in [&[][..], &[1], &[4, 1, 1], &[1, 4, 1, 1]] {
        let mul = conv(false, 1).weight("m", shape).node("Mul", "m c", "y").output("y");
        assert_eq!(mul.left(&["conv-mul"]), ["Conv"], "{shape:?}");
        let add = conv(true, 1).weight("m", shape).node("Add", "c m", "y").output("y");
        assert_eq!(add.left(&["conv-add"]), ["Conv"], "{shape:?}");
        let sub = conv(false, 1).weight("m", shape).node("Sub", "c m", "y").output("y");
        assert_eq!(sub.left(&["conv-add"]), ["Conv"], "{shape:?}");
    }
    let div = conv(true, 0).positive("m", &[1]).node("Div", "c m", "y").output("y");
    assert_eq!(div.left(&["conv-mul"]), ["Conv"]);
}

#[test]
fn operands_that_are_not_of_one_number_a_channel_stay() {
    // Along rows, more dimensions, more channels than there are, and the constant that is divided.
    for (op, inputs, shape) in [
        ("Mul", "c m", &[5][..]),
        ("Mul", "c m", &[1, 1, 5, 5]),
        ("Mul", "c m", &[2, 1, 4, 1, 1]),
        ("Add", "c m", &[1, 1, 1, 1, 1]),
        ("Div", "m c", &[1]),
        ("Sub", "m c", &[1]),
    ] {
        let sketch = conv(true, 1).positive("m", shape).node(op, inputs, "y").output("y");
        assert_eq!(sketch.left(&["conv-mul", "conv-add"]), ["Conv", op], "{op} {shape:?}");
    }
    let one = Sketch::new(13).input("x", &[1, 2, 5, 5]).weight("w", &[1, 2, 3, 3]).node("Conv", "x w", "c");
    let wider = one.weight("m", &[3, 1, 1]).node("Mul", "c m", "y").output("y");
    assert_eq!(wider.left(&["conv-mul"]), ["Conv", "Mul"]);
}

#[test]
fn one_number_before_a_convolution_goes_into_it_as_far_as_padding_lets_it() {
    let before = |pad, scale| {
        let x = Sketch::new(13).input("x", &[1, 2, 5, 5]).number("m", scale).number("a", 0.5);
        let x = x.node("Mul", "x m", "scaled").node("Add", "a scaled", "moved");
        conv_of(x, "moved", true, pad).output("c")
    };
    assert_eq!(before(0, 0.3).left(&["conv-input"]), ["Conv"]);
    assert_eq!(before(1, 0.3).left(&["conv-input"]), ["Add", "Conv"]);
    assert_eq!(before(1, 1e-5).left(&["conv-input"]), ["Mul", "Add", "Conv"]);
    let row = Sketch::new(13).input("x", &[1, 2, 5, 5]).weight("m", &[5]).node("Mul", "x m", "moved");
    assert_eq!(conv_of(row, "moved", true, 0).output("c").left(&["conv-input"]), ["Mul", "Conv"]);
}

#[test]
fn nodes_whose_inputs_are_known_become_weights() {
    let sketch = Sketch::new(13)
        .input("x", &[2, 3])
        .weight("w", &[3, 2])
        .node_with("Transpose", "w", "t", &[("perm", Attribute::Ints(vec![1, 0]))])
        .node("Shape", "x", "shape")
        .node("Add", "x t", "sum")
        .node("Reshape", "sum shape", "y")
        .output("y");
    assert_eq!(sketch.left(&["constant-folding"]), ["Add", "Reshape"]);
}

#[test]
fn folding_stops_at_the_limit_and_at_weights_that_would_grow() {
    let large = Sketch::new(13)
        .input("x", &[200, 100])
        .weight("w", &[100, 200])
        .node("Transpose", "w", "t")
        .node("Add", "x t", "y")
        .output("y")
        .model();
    let left = |limit| {
        let optimization = Optimization::new(Level::Basic).fold_limit(limit);
        large.clone().optimize(&optimization).0.graph.nodes.len()
    };
    assert_eq!((left(80_000), left(79_999)), (1, 2));
    // 80,000 bytes of 4, which planning would not compute either.
    let grown = Sketch::new(13).input("x", &[20_000]).weight("w", &[1]).ints("shape", &[20_000]);
    let grown = grown.node("Expand", "w shape", "e").node("Add", "x e", "y").output("y");
    assert_eq!(grown.left(&["constant-folding"]), ["Expand", "Add"]);
}

#[test]
fn numbers_at_random_are_neither_folded_nor_taken_for_each_other() {
    let shape = [("shape", Attribute::Ints(vec![2]))];
    let random = || [("low", Attribute::Float(0.0)), ("high", Attribute::Float(0.0)), shape[0].clone()];
    let sketch = Sketch::new(13)
        .input("x", &[2])
        .node_with("RandomUniform", "", "a", &random())
        .node_with("RandomUniform", "", "b", &random())
        .node("Sub", "a b", "d")
        .node("Add", "x d", "y")
        .output("y");
    let all = ["RandomUniform", "RandomUniform", "Sub", "Add"];
    assert_eq!(sketch.left(&["constant-folding", "duplicates", "no-ops"]), all);
}

#[test]
fn a_branch_whose_condition_is_known_takes_the_nodes_place() {
    let branch = |op: &str| Sketch::new(13).node(op, "x", "inner").output("inner").within(&["x"]);
    let sketch = |flag: bool| {
        Sketch::new(13)
            .input("x", &[4])
            .tensor("which", Tensor::from_elements([1], &[Bool::from(flag)]).expect("one"))
            .node_with("If", "which", "y", &[("then_branch", branch("Abs")), ("else_branch", branch("Neg"))])
            .output("y")
    };
    assert_eq!(sketch(true).left(&["known-branches", "no-ops"]), ["Abs"]);
    assert_eq!(sketch(false).left(&["known-branches", "no-ops"]), ["Neg"]);
    assert_eq!(sketch(true).left(&[]), ["If"]);
}

#[test]
fn graphs_within_nodes_are_optimized_and_know_weights_outside() {
    let branch = || {
        let inner = Sketch::new(13).node("Identity", "x", "same").node("Add", "w v", "both");
        inner.node("Mul", "same both", "inner").output("inner").within(&["x", "w", "v"])
    };
    let sketch = Sketch::new(13)
        .input("x", &[2])
        .weight("w", &[2])
        .weight("v", &[2])
        .node("ReduceMax", "x", "most")
        .number("zero", 0.0)
        .node("Greater", "most zero", "which")
        .node_with("If", "which", "y", &[("then_branch", branch()), ("else_branch", branch())])
        .output("y");
    let (model, changes) = sketch.model().optimize(&Optimization::new(Level::Basic));
    assert_eq!((changes.nodes_before, changes.nodes_after), (9, 5), "{changes:?}");
    let names =
        |node: &Node| node.captures.iter().map(|&id| model.graph.values[id].name.clone()).collect::<Vec<_>>();
    assert_eq!(names(&model.graph.nodes[2]), ["x", "x"]);
    sketch.left(&["constant-folding", "no-ops", "duplicates", "unused-nodes"]);
}

#[test]
fn nodes_that_give_what_they_take_are_left_out() {
    let base = || Sketch::new(13).input("x", &[-1, 3]).node("Abs", "x", "a");
    let done = |sketch: Sketch| sketch.output("y").left(&["no-ops"]);
    let big = i64::MAX;
    assert_eq!(done(base().node("Identity", "a", "y")), ["Abs"]);
    assert_eq!(done(base().node("Dropout", "a", "y _")), ["Abs"]);
    assert_eq!(done(base().node_with("Cast", "a", "y", &[("to", Attribute::Int(1))])), ["Abs"]);
    assert_eq!(
        done(base().node_with("Transpose", "a", "y", &[("perm", Attribute::Ints(vec![0, 1]))])),
        ["Abs"]
    );
    assert_eq!(done(base().ints("s", &[0]).ints("e", &[big]).node("Slice", "a s e", "y")), ["Abs"]);
    assert_eq!(done(base().ints("p", &[0; 4]).node("Pad", "a p", "y")), ["Abs"]);
    assert_eq!(done(base().number("one", 1.0).node("Mul", "one a", "y")), ["Abs"]);
    assert_eq!(done(base().number("one", 1.0).node("Div", "a one", "y")), ["Abs"]);
    assert_eq!(done(base().node_with("Concat", "a", "y", &[("axis", Attribute::Int(0))])), ["Abs"]);
    let fixed = Sketch::new(13).input("x", &[2, 3]).node("Abs", "x", "a").ints("shape", &[2, -1]);
    assert_eq!(done(fixed.node("Reshape", "a shape", "y")), ["Abs"]);
}

#[test]
fn nodes_that_only_look_so_stay() {
    let base = || Sketch::new(13).input("x", &[-1, 3]).node("Abs", "x", "a");
    let done = |sketch: Sketch| sketch.output("y").left(&["no-ops"]);
    assert_eq!(done(base().ints("s", &[0]).ints("e", &[5]).node("Slice", "a s e", "y")), ["Abs", "Slice"]);
    assert_eq!(done(base().number("one", 1.0).node("Div", "one a", "y")), ["Abs", "Div"]);
    assert_eq!(done(base().number("one", 1.0).node("Sub", "one a", "y")), ["Abs", "Sub"]);
    // One more dimension than the other operand has.
    let three = Tensor::from_elements([1, 1, 1], &[1.0f32]).expect("one");
    assert_eq!(done(base().tensor("one", three).node("Mul", "a one", "y")), ["Abs", "Mul"]);
    assert_eq!(done(base().ints("shape", &[3, -1]).node("Reshape", "a shape", "y")), ["Abs", "Reshape"]);
    // Both names are known outside.
    assert_eq!(done(base().output("a").node("Identity", "a", "y")), ["Abs", "Identity"]);
    assert_eq!(done(Sketch::new(13).input("x", &[2]).node("Identity", "x", "y")), ["Identity"]);
}

#[test]
fn of_views_in_a_row_one_is_left() {
    let passes = ["view-chains", "unused-nodes", "no-ops"];
    let base = || Sketch::new(13).input("x", &[-1, 6]).ints("s", &[-1, 2, 3]).node("Reshape", "x s", "a");
    assert_eq!(base().ints("t", &[-1, 3]).node("Reshape", "a t", "y").output("y").left(&passes), ["Reshape"]);
    // The zero is a size of what is between.
    let zero = base().ints("t", &[0, 6]).node("Reshape", "a t", "y").output("y");
    assert_eq!(zero.left(&passes), ["Reshape", "Reshape"]);
    let perm = |order: &[i64]| [("perm", Attribute::Ints(order.to_vec()))];
    let turned = |second: &[i64]| {
        Sketch::new(13)
            .input("x", &[2, 3, 4])
            .node("Abs", "x", "a")
            .node_with("Transpose", "a", "b", &perm(&[1, 2, 0]))
            .node_with("Transpose", "b", "y", &perm(second))
            .output("y")
            .left(&passes)
    };
    assert_eq!(turned(&[1, 0, 2]), ["Abs", "Transpose"]);
    assert_eq!(turned(&[2, 0, 1]), ["Abs"]);
}

#[test]
fn nodes_that_compute_the_same_are_one() {
    let sketch = Sketch::new(13)
        .input("x", &[2, 3])
        .ints("first", &[3, 2])
        .ints("second", &[3, 2])
        .node("Reshape", "x first", "a")
        .node("Reshape", "x second", "b")
        .node_with("LeakyRelu", "a", "c", &[("alpha", Attribute::Float(0.1))])
        .node_with("LeakyRelu", "b", "d", &[("alpha", Attribute::Float(0.2))])
        .node("Add", "c d", "y")
        .output("y");
    assert_eq!(sketch.left(&["duplicates"]), ["Reshape", "LeakyRelu", "LeakyRelu", "Add"]);
    let named =
        Sketch::new(13).input("x", &[2]).node("Abs", "x", "y").node("Abs", "x", "z").output("y").output("z");
    assert_eq!(named.left(&["duplicates"]), ["Abs", "Abs"]);
}

#[test]
fn weights_that_are_computed_are_not_one_for_all() {
    let sketch = Sketch::new(13).input("x", &[30_000]).weight("w", &[1]).ints("shape", &[30_000]);
    let sketch = sketch.node("Expand", "w shape", "a").node("Add", "x a", "b").node("Expand", "w shape", "c");
    let sketch = sketch.node("Add", "b c", "y").output("y");
    assert_eq!(sketch.left(&["duplicates"]), ["Expand", "Add", "Expand", "Add"]);
}

#[test]
fn products_of_matrices_take_what_follows() {
    let base =
        |dims: &[i64]| Sketch::new(13).input("x", dims).weight("w", &[3, 4]).node("MatMul", "x w", "m");
    for shape in [&[4][..], &[1], &[1, 4], &[]] {
        let added = base(&[-1, 3]).weight("a", shape).node("Add", "a m", "y").output("y");
        assert_eq!(added.left(&["matmul-add"]), ["Gemm"], "{shape:?}");
    }
    let more = base(&[2, 2, 3]).weight("a", &[4]).node("Add", "m a", "y").output("y");
    assert_eq!(more.left(&["matmul-add"]), ["MatMul", "Add"]);
    let wide = base(&[-1, 3]).weight("a", &[1, 1, 4]).node("Add", "m a", "y").output("y");
    assert_eq!(wide.left(&["matmul-add"]), ["MatMul", "Add"]);
    // Whether there is a dimension to squeeze is known when it runs.
    let squeezed = Sketch::new(13).input("x", &[-1, 3]).weight("w", &[3, 4]).weight("a", &[4]);
    let squeezed = squeezed.node("Squeeze", "x _", "s").node("MatMul", "s w", "m").node("Add", "m a", "y");
    assert_eq!(squeezed.output("y").left(&["matmul-add"]), ["Squeeze", "MatMul", "Add"]);
    for (turned, shape, bias) in [(0, [3, 4], "x w a"), (1, [4, 3], "x w a"), (0, [3, 4], "x w")] {
        let told = [("transB", Attribute::Int(turned)), ("beta", Attribute::Float(0.5))];
        let gemm = Sketch::new(13).input("x", &[-1, 3]).weight("w", &shape).weight("a", &[4]);
        let gemm = gemm.node_with("Gemm", bias, "m", &told);
        assert_eq!(batchnorm(gemm, "m", 4).left(&["gemm-batchnorm"]), ["Gemm"]);
    }
}

#[test]
fn nodes_that_nobody_needs_are_left_out() {
    let sketch =
        Sketch::new(13).input("x", &[2]).node("Abs", "x", "a").node("Neg", "a", "b").node("Exp", "x", "y");
    assert_eq!(sketch.output("y").left(&["unused-nodes"]), ["Exp"]);
}

#[test]
fn levels_have_the_passes_of_those_before_them() {
    let sketch = conv(true, 1).node("Identity", "c", "i").node("Relu", "i", "y").output("y").model();
    let nodes = |level| {
        let nodes = sketch.clone().optimize(&Optimization::new(level)).0.graph.nodes.clone();
        nodes.into_iter().map(|node| node.op_type).collect::<Vec<_>>()
    };
    assert_eq!(nodes(Level::Disable), ["Conv", "Identity", "Relu"]);
    assert_eq!(nodes(Level::Basic), ["Conv", "Relu"]);
    assert_eq!(nodes(Level::Extended), ["FusedConv"]);
    let error = Optimization::default().without("conv").expect_err("no such pass").to_string();
    assert!(error.contains("no pass conv;") && error.contains("conv-mul"), "{error}");
}

#[test]
fn weights_that_went_into_others_are_gone() {
    let (model, _) = batchnorm(conv(true, 1), "c", 4).model().optimize(&Optimization::default());
    let weights = model.graph.values.iter().filter(|value| value.constant.is_some());
    assert_eq!(weights.map(|value| value.name.as_str()).collect::<Vec<_>>(), ["w_fused", "b_fused"]);
    let again = Model::from_bytes(model.to_bytes().expect("it can be written")).expect("a model");
    assert_eq!(again.graph.nodes.len(), 1);
    assert_eq!(Sketch::new(13).input("x", &[1]).output("x").left(&NONE), NONE);
}

fn halves(shape: &[usize], from: f32) -> Tensor {
    let count = shape.iter().product::<usize>();
    let elements: Vec<_> = (0..count).map(|at| f16::from_f32(from + at as f32 / 64.0)).collect();
    Tensor::from_elements(shape, &elements).expect("as many as the shape says")
}

#[test]
fn halves_are_computed_as_f32_and_are_halves_outside() {
    let model = |told: &[(&str, Attribute)]| {
        Sketch::new(13)
            .input("x", &[-1, 4])
            .declared("x", DataType::F16)
            .tensor("w", halves(&[4, 4], -1.0))
            .node("MatMul", "x w", "a")
            .node_with("Constant", "", "one", &[("value", Attribute::Tensor(halves(&[1], 1.0).into()))])
            .node("Add", "a one", "b")
            .node_with("Cast", "b", "c", &[("to", Attribute::Int(DataType::F32 as i64))])
            .node_with("Cast", "c", "d", &[("to", Attribute::Int(DataType::F16 as i64))])
            .node("Relu", "d", "y")
            .node_with("ConstantOfShape", "s", "z", told)
            .ints("s", &[3])
            .declared("y", DataType::F16)
            .declared("z", DataType::F16)
            .output("y")
            .output("z")
            .output("x")
            .model()
    };
    let model = model(&[("value", Attribute::Tensor(halves(&[1], 2.0).into()))]);
    let session = Session::new(&model);
    let x = halves(&[3, 4], -0.5);
    let run = |session: &Session| session.run(&[("x", x.view())]).expect("it runs");
    let wanted =
        run(&Session::with_options(&model, Options::new().optimization(&Optimization::new(Level::Disable))));
    for ((name, wanted), (_, made)) in wanted.iter().zip(run(&session)) {
        assert_eq!((made.ty(), made.ty().dtype), (wanted.ty(), DataType::F16), "{name}");
        let (wanted, made) = (wanted.view().elements::<f16>(), made.view().elements::<f16>());
        assert!(wanted.iter().zip(made).all(|(a, b)| (a.to_f32() - b.to_f32()).abs() <= 2e-3), "{name}");
    }
    assert_eq!(session.changes().passes.iter().find(|(name, _)| *name == "halves"), Some(&("halves", 1)));
    let saved =
        Model::from_bytes(model.optimize(&Optimization::default()).0.to_bytes().expect("it can be written"));
    let kept =
        saved.expect("a model").graph.weights().iter().any(|tensor| tensor.ty().dtype == DataType::F16);
    assert!(kept, "what is written keeps its halves");
}

#[test]
fn numbers_at_random_in_halves_stay() {
    let sketch = Sketch::new(13).input("x", &[4]).declared("x", DataType::F16);
    let told = [("dtype", Attribute::Int(DataType::F16 as i64))];
    let model = sketch.node_with("RandomNormalLike", "x", "r", &told).node("Add", "x r", "y");
    let model = model.declared("y", DataType::F16).output("y").model();
    assert!(Session::new(&model).changes().passes.iter().all(|(name, _)| *name != "halves"));
}

#[test]
fn weights_that_only_meet_the_padding_are_left_out() {
    let sizes = |model: &Model| {
        let weight =
            model.graph.weights().into_iter().find(|weight| weight.ty().rank() == 4).expect("a weight");
        weight.ty().shape[2..].to_vec()
    };
    // Planes of 5 x 6, window, stride, dilation, padding in front and behind, and the window that is left.
    let cases = [
        ([3, 3], 1, 8i64, [8i64; 4], [1, 1]),
        ([3, 3], 1, 5, [5; 4], [1, 3]),
        ([3, 3], 1, 4, [4; 4], [3, 3]),
        ([5, 5], 1, 3, [6; 4], [3, 3]),
        ([3, 3], 4, 6, [6; 4], [1, 1]),
        // More padding than the window needs.
        ([3, 3], 1, 8, [9, 8, 8, 8], [1, 1]),
        // Padding on one side only: what is in front of it stays.
        ([2, 2], 1, 7, [7, 7, 0, 0], [1, 1]),
        ([2, 2], 1, 7, [0, 0, 7, 7], [1, 1]),
    ];
    for (kernel, stride, dilation, pads, left) in cases {
        let told = [
            ("dilations", Attribute::Ints(vec![dilation; 2])),
            ("strides", Attribute::Ints(vec![stride; 2])),
            ("pads", Attribute::Ints(pads.to_vec())),
        ];
        let sketch = |rows: i64| {
            let sketch =
                Sketch::new(13).input("x", &[-1, 2, rows, 6]).weight("w", &[3, 2, kernel[0], kernel[1]]);
            sketch.weight("b", &[3]).node_with("Conv", "x w b", "y", &told).output("y")
        };
        assert_eq!(sketch(5).left(&["conv-taps"]), ["Conv"]);
        let (model, _) = sketch(5).model().optimize(&Optimization::new(Level::Basic));
        assert_eq!(sizes(&model), left, "{kernel:?} {stride} {dilation} {pads:?}");
        // Planes of any height.
        let (model, changes) = sketch(-1).model().optimize(&Optimization::new(Level::Basic));
        assert_eq!((sizes(&model), changes.passes.len()), (kernel.to_vec(), 0));
    }
}
