//! Each pass of the extended level alone.

use super::passes::{conv, conv_of};
use super::sketch::Sketch;
use std::time::{Duration, Instant};
use stepalloc_graph::Attribute;
use stepalloc_runtime::{Optimization, PASSES, Tensor};

/// Ten times what thousands of nodes take without optimization of the code; looking at all for each took longer with it.
const SOON: Duration = Duration::from_secs(5);

/// x * clip(x + 3, 0, 6) / 6, from `x` to `y`.
fn hard_swish(opset: i64) -> Sketch {
    Sketch::new(opset)
        .input("x", &[-1, 3])
        .number("three", 3.0)
        .number("zero", 0.0)
        .number("six", 6.0)
        .node("Add", "x three", "moved")
        .node("Clip", "moved zero six", "gate")
        .node("Mul", "x gate", "product")
        .node("Div", "product six", "y")
        .output("y")
}

#[test]
fn hard_swish_is_one_node_or_two() {
    assert_eq!(hard_swish(14).left(&["hard-swish"]), ["HardSwish"]);
    assert_eq!(hard_swish(12).left(&["hard-swish"]), ["HardSigmoid", "Mul"]);
    assert_eq!(hard_swish(12).left(&["hard-swish", "raise-opset"]), ["HardSwish"]);
    let gated = Sketch::new(14).input("x", &[-1, 3]);
    let told = [("alpha", Attribute::Float(1.0 / 6.0)), ("beta", Attribute::Float(0.5))];
    let gated = gated.node_with("HardSigmoid", "x", "gate", &told).node("Mul", "gate x", "y").output("y");
    assert_eq!(gated.left(&["hard-swish"]), ["HardSwish"]);
}

#[test]
fn other_gates_than_that_of_hard_swish_stay() {
    let other = |name: &str, number: f32| hard_swish(14).number(name, number).left(&["hard-swish"]);
    let all = ["Add", "Clip", "Mul", "Div"];
    for (name, number) in [("three", 2.0), ("six", 5.0), ("zero", 1.0)] {
        assert_eq!(other(name, number), all, "{name} {number}");
    }
    assert_eq!(hard_swish(14).output("gate").left(&["hard-swish"]), all);
    let told = [("alpha", Attribute::Float(0.2)), ("beta", Attribute::Float(0.5))];
    let gated = Sketch::new(14).input("x", &[2]).node_with("HardSigmoid", "x", "gate", &told);
    assert_eq!(gated.node("Mul", "gate x", "y").output("y").left(&["hard-swish"]), ["HardSigmoid", "Mul"]);
}

#[test]
fn the_version_is_raised_where_every_node_means_the_same() {
    let squeezed =
        hard_swish(12).node_with("Unsqueeze", "y", "z", &[("axes", Attribute::Ints(vec![0]))]).output("z");
    assert_eq!(squeezed.left(&["hard-swish", "raise-opset"]), ["HardSwish", "Unsqueeze"]);
    let soft = |axis| {
        let told = [("axis", Attribute::Int(axis))];
        let sketch = hard_swish(12).ints("s", &[1, -1, 3]).node("Reshape", "y s", "r");
        sketch.node_with("Softmax", "r", "z", &told).output("z").left(&["hard-swish", "raise-opset"])
    };
    assert_eq!(soft(2), ["HardSwish", "Reshape", "Softmax"]);
    // Of all dimensions from the axis on.
    assert_eq!(soft(1), ["HardSigmoid", "Mul", "Reshape", "Softmax"]);
    let nothing_gained = Sketch::new(12).input("x", &[2]).node("Abs", "x", "y").output("y");
    let (model, changes) = nothing_gained.model().optimize(&Optimization::default());
    assert_eq!((&model.opsets[0].1, changes.passes.len()), (&12, 0));
}

#[test]
fn raising_the_version_takes_no_look_at_all_nodes_for_each() {
    let told = [("axis", Attribute::Int(1))];
    let name = |at: usize| if at == 0 { "y".to_owned() } else { format!("y{at}") };
    let sketch = (0..5_000)
        .fold(hard_swish(12), |sketch, at| sketch.node_with("Softmax", &name(at), &name(at + 1), &told));
    let others = PASSES.iter().filter(|pass| pass.name != "raise-opset");
    let alone = others.fold(Optimization::default(), |on, pass| on.without(pass.name).expect("there is one"));
    let (model, began) = (sketch.output(&name(5_000)).model(), Instant::now());
    let (raised, _) = model.optimize(&alone);
    assert_eq!((raised.graph.nodes.len(), raised.opsets[0].1), (5_004, 17));
    assert!(began.elapsed() < SOON, "it took {:?}", began.elapsed());
}

#[test]
fn gelu_in_three_ways_of_writing_it() {
    let base = || {
        let x = Sketch::new(13)
            .input("x", &[-1, 3])
            .number("half", 0.5)
            .number("one", 1.0)
            .number("root", std::f32::consts::SQRT_2);
        x.node("Div", "x root", "d").node("Erf", "d", "e").node("Add", "e one", "s")
    };
    let first = base().node("Mul", "x half", "h").node("Mul", "h s", "y").output("y");
    let second = base().node("Mul", "x s", "h").node("Mul", "h half", "y").output("y");
    let third = base().node("Mul", "half s", "h").node("Mul", "h x", "y").output("y");
    for sketch in [first, second, third] {
        assert_eq!(sketch.left(&["gelu"]), ["Gelu"]);
    }
    let other = base().number("root", 2.0).node("Mul", "x half", "h").node("Mul", "h s", "y").output("y");
    assert_eq!(other.left(&["gelu"]), ["Div", "Erf", "Add", "Mul", "Mul"]);
    let of_another =
        base().input("z", &[-1, 3]).node("Mul", "z half", "h").node("Mul", "h s", "y").output("y");
    assert_eq!(of_another.left(&["gelu"]), ["Div", "Erf", "Add", "Mul", "Mul"]);
}

#[test]
fn fast_gelu_with_powers_written_as_products_or_not() {
    let base = || {
        let x = Sketch::new(13)
            .input("x", &[-1, 3])
            .number("half", 0.5)
            .number("one", 1.0)
            .number("rate", 0.797_884_6);
        x.number("part", 0.044_715).number("third", 3.0)
    };
    let end = |sketch: Sketch| {
        let sketch = sketch.node("Tanh", "t", "f").node("Add", "one f", "s").node("Mul", "half s", "h");
        sketch.node("Mul", "x h", "y").output("y").left(&["fast-gelu"])
    };
    let sum = |sketch: Sketch| end(sketch.node("Add", "x q", "u").node("Mul", "u rate", "t"));
    assert_eq!(
        sum(base().node("Mul", "x part", "p").node("Mul", "x p", "o").node("Mul", "o x", "q")),
        ["FastGelu"]
    );
    assert_eq!(sum(base().node("Pow", "x third", "p").node("Mul", "part p", "q")), ["FastGelu"]);
    let square = base().node("Mul", "x part", "p").node("Mul", "x p", "q").node("Add", "one q", "u");
    assert_eq!(end(square.node("Mul", "x u", "v").node("Mul", "v rate", "t")), ["FastGelu"]);
    let fourth = base().number("third", 4.0).node("Pow", "x third", "p").node("Mul", "part p", "q");
    assert_eq!(sum(fourth).len(), 8);
}

#[test]
fn quick_gelu_with_a_rate_or_without() {
    let plain =
        Sketch::new(13).input("x", &[2]).node("Sigmoid", "x", "s").node("Mul", "s x", "y").output("y");
    assert_eq!(plain.left(&["quick-gelu"]), ["QuickGelu"]);
    let rate =
        Sketch::new(13).input("x", &[2]).number("r", 1.702).node("Mul", "x r", "m").node("Sigmoid", "m", "s");
    assert_eq!(rate.node("Mul", "x s", "y").output("y").left(&["quick-gelu"]), ["QuickGelu"]);
    let other =
        Sketch::new(13).input("x", &[2]).input("z", &[2]).node("Sigmoid", "z", "s").node("Mul", "x s", "y");
    assert_eq!(other.output("y").left(&["quick-gelu"]), ["Sigmoid", "Mul"]);
}

/// A normalization of `from` along the last dimension, as exporters write it.
fn layer_norm(sketch: Sketch, from: &str, axes: &[i64]) -> Sketch {
    let axes = [("axes", Attribute::Ints(axes.to_vec()))];
    sketch
        .weight("scale", &[8])
        .weight("bias", &[8])
        .number("two", 2.0)
        .number("epsilon", 1e-5)
        .node_with("ReduceMean", from, "mean", &axes)
        .node("Sub", &format!("{from} mean"), "d")
        .node("Pow", "d two", "p")
        .node_with("ReduceMean", "p", "v", &axes)
        .node("Add", "v epsilon", "ve")
        .node("Sqrt", "ve", "r")
        .node("Div", "d r", "n")
        .node("Mul", "n scale", "ns")
        .node("Add", "ns bias", "y")
        .output("y")
}

#[test]
fn layer_normalization_is_one_node_from_version_17_on() {
    let base = |opset| Sketch::new(opset).input("x", &[-1, -1, 8]);
    assert_eq!(layer_norm(base(17), "x", &[-1]).left(&["layer-norm"]), ["LayerNormalization"]);
    assert_eq!(layer_norm(base(17), "x", &[2]).left(&["layer-norm"]), ["LayerNormalization"]);
    assert_eq!(layer_norm(base(13), "x", &[-1]).left(&["layer-norm", "raise-opset"]), ["LayerNormalization"]);
    assert_eq!(layer_norm(base(13), "x", &[-1]).left(&["layer-norm"]).len(), 9);
    assert_eq!(layer_norm(base(17), "x", &[1]).left(&["layer-norm"]).len(), 9);
    // The last dimension may be one, which the scale makes eight.
    let open = Sketch::new(17).input("x", &[2, 2, 1]);
    assert_eq!(layer_norm(open, "x", &[-1]).left(&["layer-norm"]).len(), 9);
    assert_eq!(layer_norm(base(17), "x", &[-1]).output("d").left(&["layer-norm"]).len(), 9);
    // Numbers of more dimensions than the input's give the output as many.
    for name in ["epsilon", "two"] {
        let number = Tensor::from_elements([1; 4], &[2.0f32]).expect("one");
        assert_eq!(layer_norm(base(17), "x", &[-1]).tensor(name, number).left(&["layer-norm"]).len(), 9);
    }
}

#[test]
fn a_sum_before_a_layer_normalization_goes_into_it_and_still_serves_others() {
    let both = ["layer-norm", "skip-layer-norm"];
    let base = || Sketch::new(17).input("a", &[2, -1, 8]).node("Abs", "a", "b").node("Add", "a b", "x");
    assert_eq!(layer_norm(base(), "x", &[-1]).left(&both), ["Abs", "SkipLayerNormalization"]);
    let needed = layer_norm(base(), "x", &[-1]).node("Mul", "x y", "z").output("z").output("x");
    assert_eq!(needed.left(&both), ["Abs", "SkipLayerNormalization", "Mul"]);
    // Of other shapes: a row that is added to all.
    let row = Sketch::new(17).input("a", &[2, -1, 8]).input("b", &[1, 1, 8]).node("Add", "a b", "x");
    assert_eq!(layer_norm(row, "x", &[-1]).left(&both), ["Add", "LayerNormalization"]);
    let open = Sketch::new(17).input("a", &[2, -1, 8]).input("b", &[2, -1, 8]).node("Add", "a b", "x");
    assert_eq!(layer_norm(open, "x", &[-1]).left(&both), ["Add", "LayerNormalization"]);
    let four = Sketch::new(17).input("a", &[2, 2, 2, 8]).node("Abs", "a", "b").node("Add", "a b", "x");
    assert_eq!(layer_norm(four, "x", &[-1]).left(&both), ["Abs", "Add", "LayerNormalization"]);
}

#[test]
fn activations_become_part_of_a_convolution() {
    let number = |name: &'static str, x: f32| (name, Attribute::Float(x));
    for (op, told) in [
        ("Relu", vec![]),
        ("Sigmoid", vec![]),
        ("Tanh", vec![]),
        ("LeakyRelu", vec![number("alpha", 0.3)]),
        ("HardSigmoid", vec![number("alpha", 0.3), number("beta", 0.4)]),
    ] {
        let sketch = conv(true, 1).node_with(op, "c", "y", &told).output("y");
        assert_eq!(sketch.left(&["conv-activation"]), ["FusedConv"], "{op}");
    }
    let clip = conv(false, 0).number("least", -0.1).number("most", 0.2);
    assert_eq!(clip.node("Clip", "c least most", "y").output("y").left(&["conv-activation"]), ["FusedConv"]);
    let given =
        conv(true, 1).input("most", &[]).number("least", 0.0).node("Clip", "c least most", "y").output("y");
    assert_eq!(given.left(&["conv-activation"]), ["Conv", "Clip"]);
    let other = conv(true, 1).node("Elu", "c", "y").output("y");
    assert_eq!(other.left(&["conv-activation"]), ["Conv", "Elu"]);
    let twice = conv(true, 1).node("Relu", "c", "y").output("y").output("c");
    assert_eq!(twice.left(&["conv-activation"]), ["Conv", "Relu"]);
}

#[test]
fn swishes_become_part_of_a_convolution() {
    for (op, opset) in [("HardSwish", 14), ("Swish", 24)] {
        let x = Sketch::new(opset).input("x", &[3, 2, 5, 5]);
        let sketch = || conv_of(x.clone(), "x", true, 1).node(op, "c", "y").output("y");
        assert_eq!(sketch().left(&["conv-swish"]), ["FusedConv"], "{op}");
        assert_eq!(
            sketch().left(&["conv-activation"]),
            ["Conv", op],
            "models that are written have it apart"
        );
    }
    let x = Sketch::new(17).input("x", &[3, 2, 5, 5]);
    let silu = conv_of(x, "x", true, 1).node("Sigmoid", "c", "s").node("Mul", "c s", "y").output("y");
    assert_eq!(silu.left(&["quick-gelu", "conv-swish"]), ["FusedConv"]);
}

#[test]
fn a_sum_of_the_same_shape_becomes_part_of_a_convolution() {
    let passes = ["conv-sum", "conv-activation"];
    let same = || conv(true, 1).input("z", &[3, 4, 5, 5]);
    let fixed = || {
        let x = Sketch::new(13).input("x", &[3, 2, 5, 5]).input("z", &[3, 4, 5, 5]);
        conv_of(x, "x", true, 1)
    };
    assert_eq!(fixed().node("Add", "z c", "y").output("y").left(&passes), ["FusedConv"]);
    let relu = fixed().node("Add", "c z", "s").node("Relu", "s", "y").output("y");
    assert_eq!(relu.left(&passes), ["FusedConv"]);
    let after = fixed().node("Relu", "c", "r").node("Add", "r z", "y").output("y");
    assert_eq!(after.left(&passes), ["FusedConv", "Add"]);
    // The batch is open in one of them.
    assert_eq!(same().node("Add", "c z", "y").output("y").left(&passes), ["Conv", "Add"]);
    let spread = conv(true, 1).input("z", &[-1, 4, 1, 1]).node("Add", "c z", "y").output("y");
    assert_eq!(spread.left(&passes), ["Conv", "Add"]);
    let itself = fixed().node("Add", "c c", "y").output("y");
    assert_eq!(itself.left(&passes), ["Conv", "Add"]);
}

/// Queries `q` of four heads, keys `k` and values `v` of `kv_heads`, heads first; those that are not made by other nodes.
fn heads(kv_heads: i64, made: &str) -> Sketch {
    let shapes = [("q", [2, 4, 5, 8]), ("k", [2, kv_heads, 7, 8]), ("v", [2, kv_heads, 7, 6])];
    let given = shapes.iter().filter(|(name, _)| !made.contains(name));
    let sketch = given.fold(Sketch::new(13), |sketch, (name, shape)| sketch.input(name, shape));
    sketch.number("scale", 0.3).number("root", 2.0)
}

fn swapped(sketch: Sketch, order: [i64; 4], from: &str, to: &str) -> Sketch {
    sketch.node_with("Transpose", from, to, &[("perm", Attribute::Ints(order.to_vec()))])
}

/// What is left of attention with keys `t`, rows being columns, of which `scores` makes `m` from products `s`.
fn left_of(sketch: Sketch, scores: impl FnOnce(Sketch) -> Sketch) -> Vec<String> {
    let sketch = scores(sketch.node("MatMul", "q t", "s"));
    let sketch = sketch.node("Softmax", "m", "p").node("MatMul", "p v", "y").output("y");
    sketch.left(&["attention", "unused-nodes"])
}

/// The same of keys `k`.
fn left_of_heads(sketch: Sketch, scores: impl FnOnce(Sketch) -> Sketch) -> Vec<String> {
    left_of(swapped(sketch, [0, 1, 3, 2], "k", "t"), scores)
}

fn scaled(sketch: Sketch) -> Sketch {
    sketch.node("Mul", "s scale", "m")
}

const ATTENTION: &str = "ScaledDotProductAttention";

#[test]
fn attention_with_its_scale_wherever_it_is() {
    assert_eq!(left_of_heads(heads(4, ""), scaled), [ATTENTION]);
    assert_eq!(left_of_heads(heads(4, ""), |sketch| sketch.node("Div", "s root", "m")), [ATTENTION]);
    let twice = |sketch: Sketch| sketch.node("Mul", "scale s", "d").node("Div", "d root", "m");
    assert_eq!(left_of_heads(heads(4, ""), twice), [ATTENTION]);
    let before = heads(4, "q k").input("a", &[2, 4, 5, 8]).input("b", &[2, 4, 7, 8]);
    let before = before.node("Mul", "a scale", "q").node("Mul", "b root", "k");
    assert_eq!(left_of_heads(before.clone(), scaled), [ATTENTION]);
    // Scaled queries that somebody else needs stay.
    assert_eq!(left_of_heads(before.output("q"), scaled), ["Mul", ATTENTION]);
}

#[test]
fn attention_with_a_mask() {
    let shown = [true, false, true, true, false, true, true];
    let bools: Vec<_> = shown.map(stepalloc_tensor::Bool::from).to_vec();
    let mask = |sketch: Sketch| {
        let mask = Tensor::from_elements([7], &bools).expect("seven");
        sketch.tensor("shown", mask).number("low", f32::NEG_INFINITY).weight("bias", &[5, 7])
    };
    let with = |node: &'static str, inputs: &'static str| {
        let scores = move |sketch: Sketch| scaled(sketch).node(node, inputs, "masked");
        let sketch = swapped(mask(heads(4, "")), [0, 1, 3, 2], "k", "t").node("MatMul", "q t", "s");
        let sketch = scores(sketch).node("Softmax", "masked", "p").node("MatMul", "p v", "y").output("y");
        sketch.left(&["attention", "unused-nodes"])
    };
    assert_eq!(with("Where", "shown m low"), [ATTENTION]);
    assert_eq!(with("Where", "shown low m"), [ATTENTION]);
    assert_eq!(with("Add", "m bias"), [ATTENTION]);
    assert_eq!(with("Add", "bias m"), [ATTENTION]);
    // Scores that are no mask's business.
    assert_eq!(with("Sub", "m bias").len(), 6);
}

#[test]
fn attention_reads_operands_behind_their_transpositions() {
    let behind =
        heads(4, "q k v").input("a", &[2, 5, 4, 8]).input("b", &[2, 7, 4, 8]).input("c", &[2, 7, 4, 6]);
    let behind = swapped(swapped(behind, [0, 2, 1, 3], "a", "q"), [0, 2, 1, 3], "c", "v");
    let merged = swapped(behind.clone(), [0, 2, 3, 1], "b", "t");
    assert_eq!(left_of(merged.clone(), scaled), [ATTENTION]);
    assert_eq!(left_of_heads(swapped(behind, [0, 2, 1, 3], "b", "k"), scaled), [ATTENTION]);
    let whole =
        scaled(merged.node("MatMul", "q t", "s")).node("Softmax", "m", "p").node("MatMul", "p v", "y");
    let whole = swapped(whole, [0, 2, 1, 3], "y", "z");
    assert_eq!(whole.clone().output("z").left(&["attention", "unused-nodes"]), [ATTENTION]);
    assert_eq!(whole.output("z").output("y").left(&["attention", "unused-nodes"]), [ATTENTION, "Transpose"]);
}

#[test]
fn attention_of_heads_that_share_keys() {
    let repeated = |kv_heads: i64, times: i64| {
        let sketch = heads(kv_heads, "k v").input("b", &[2, kv_heads, 7, 8]).input("c", &[2, kv_heads, 7, 6]);
        let sketch = sketch.ints("two", &[2]).ints("times", &[1, 1, times, 1, 1]);
        let sketch =
            sketch.ints("keys", &[2, kv_heads * times, 7, 8]).ints("values", &[2, kv_heads * times, 7, 6]);
        let sketch = sketch
            .node("Unsqueeze", "b two", "b5")
            .node("Tile", "b5 times", "bt")
            .node("Reshape", "bt keys", "k");
        sketch.node("Unsqueeze", "c two", "c5").node("Expand", "c5 times", "ct").node(
            "Reshape",
            "ct values",
            "v",
        )
    };
    assert_eq!(left_of_heads(repeated(2, 2), scaled), [ATTENTION]);
    assert_eq!(left_of_heads(repeated(1, 4), scaled), [ATTENTION]);
}

#[test]
fn what_is_no_attention_stays() {
    // Sizes that may differ between queries and keys.
    let open =
        Sketch::new(13).input("q", &[-1, 4, 5, 8]).input("k", &[-1, 4, 7, 8]).input("v", &[-1, 4, 7, 6]);
    assert_eq!(left_of_heads(open.number("scale", 0.3), scaled).len(), 5);
    // Queries of one member for all.
    let one = Sketch::new(13).input("q", &[1, 4, 5, 8]).input("k", &[2, 4, 7, 8]).input("v", &[2, 4, 7, 6]);
    assert_eq!(left_of_heads(one.number("scale", 0.3), scaled).len(), 5);
    // Probabilities that somebody else needs.
    assert_eq!(left_of_heads(heads(4, "").output("p"), scaled).len(), 5);
    // A softmax over queries.
    let sketch =
        swapped(heads(4, ""), [0, 1, 3, 2], "k", "t").node("MatMul", "q t", "s").node("Mul", "s scale", "m");
    let sketch =
        sketch.node_with("Softmax", "m", "p", &[("axis", Attribute::Int(2))]).node("MatMul", "p v", "y");
    assert_eq!(sketch.output("y").left(&["attention", "unused-nodes"]).len(), 5);
    // Keys as they are, of as many elements as there are.
    let square =
        Sketch::new(13).input("q", &[2, 4, 7, 7]).input("t", &[2, 4, 7, 7]).input("v", &[2, 4, 7, 6]);
    assert_eq!(left_of(square.number("scale", 0.3), scaled).len(), 4);
}
