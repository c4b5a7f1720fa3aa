//! The pass that computes on bytes. Scales are powers of two, so that sums are exact in f32 as well, and nothing is rounded otherwise.

use super::sketch::Sketch;
use stepalloc_graph::Attribute;
use stepalloc_runtime::Tensor;
use stepalloc_tensor::DataType;

const BYTES: &[&str] = &["bytes", "unused-nodes"];

fn u8s(shape: &[usize], step: usize) -> Tensor {
    let elements: Vec<u8> = (0..shape.iter().product()).map(|at: usize| (at * step % 251) as u8).collect();
    Tensor::from_elements(shape, &elements).expect("as many as the shape says")
}

fn i8s(shape: &[usize], step: usize) -> Tensor {
    let elements: Vec<i8> =
        (0..shape.iter().product()).map(|at: usize| (at * step % 251) as u8 as i8).collect();
    Tensor::from_elements(shape, &elements).expect("as many as the shape says")
}

/// A zero point of bytes that are signed, or are not.
fn zero(signed: bool, zero: i8) -> Tensor {
    if signed {
        Tensor::from_elements([], &[zero]).expect("one")
    } else {
        Tensor::from_elements([], &[(i16::from(zero) + 128) as u8]).expect("one")
    }
}

fn reals(elements: &[f32]) -> Tensor {
    Tensor::from_elements([elements.len()], elements).expect("a row")
}

/// `name` becomes bytes `name_q`, and these reals `name_d`.
fn quantized(sketch: Sketch, name: &str, scale: f32, zero: Tensor) -> Sketch {
    let [s, z, q, d] = ["s", "z", "q", "d"].map(|what| format!("{name}_{what}"));
    let sketch = sketch.number(&s, scale).tensor(&z, zero);
    sketch.node("QuantizeLinear", &format!("{name} {s} {z}"), &q).node(
        "DequantizeLinear",
        &format!("{q} {s} {z}"),
        &d,
    )
}

/// Weights `w_d` of bytes, with scales and zero points along an axis.
fn weights(sketch: Sketch, w: Tensor, scales: Tensor, zeros: Tensor, axis: i64) -> Sketch {
    let sketch = sketch.tensor("w", w).tensor("ws", scales).tensor("wz", zeros);
    sketch.node_with("DequantizeLinear", "w ws wz", "w_d", &[("axis", Attribute::Int(axis))])
}

/// A bias `b_d` of these numbers of steps of 2^-12, or of the scales that are told.
fn bias(sketch: Sketch, steps: &[i32], scales: Tensor) -> Sketch {
    let steps = Tensor::from_elements([steps.len()], steps).expect("a row");
    let sketch = sketch.tensor("b", steps).tensor("bs", scales);
    sketch.node_with("DequantizeLinear", "b bs", "b_d", &[("axis", Attribute::Int(0))])
}

const SCALE: f32 = 1.0 / 128.0;

fn around(op: &str) -> [&str; 3] {
    ["QuantizeLinear", op, "DequantizeLinear"]
}

#[test]
fn convolutions_with_all_kinds_of_zero_points() {
    // Channels and filters, their groups, the rest of the weights' shape, and strides.
    for (channels, filters, group, kernel, strides) in [
        (3, 8, 1, &[3, 3][..], &[1, 1][..]),
        (4, 6, 2, &[3, 3], &[2, 2]),
        (6, 6, 6, &[3, 3], &[2, 1]),
        (5, 70, 1, &[1, 1], &[1, 1]),
        (3, 4, 1, &[5], &[2]),
        (2, 2, 2, &[2, 3, 2], &[1, 2, 1]),
    ] {
        for case in 0..8 {
            let (x_signed, w_signed, zeros) = (case & 1 != 0, case & 2 != 0, case & 4 != 0);
            let mut shape = vec![2, channels as i64];
            shape.extend(kernel.iter().map(|size| *size as i64 + 8));
            let sketch = quantized(Sketch::new(17).input("x", &shape), "x", SCALE, zero(x_signed, -7));
            let mut of = vec![filters, channels / group];
            of.extend(kernel);
            let scales =
                reals(&(0..filters).map(|filter| SCALE / (1 << (filter % 3)) as f32).collect::<Vec<_>>());
            let (w, z) = match (w_signed, zeros) {
                (true, true) => (i8s(&of, 37), i8s(&[filters], 3)),
                (true, false) => (i8s(&of, 37), i8s(&[filters], 0)),
                (false, true) => (u8s(&of, 37), u8s(&[filters], 3)),
                (false, false) => (u8s(&of, 37), u8s(&[filters], 0)),
            };
            let steps: Vec<i32> = (0..filters as i32).map(|filter| filter * 901 - 2000).collect();
            let of_steps: Vec<f32> =
                scales.view().elements::<f32>().iter().map(|scale| scale * SCALE).collect();
            let sketch = bias(weights(sketch, w, scales, z, 0), &steps, reals(&of_steps));
            let pads = vec![1; 2 * kernel.len()];
            let told = [
                ("group", Attribute::Int(group as i64)),
                ("strides", Attribute::Ints(strides.to_vec())),
                ("pads", Attribute::Ints(pads)),
            ];
            let sketch = sketch.node_with("Conv", "x_d w_d b_d", "y", &told);
            let plain = quantized(sketch.clone(), "y", 0.25, zero(!x_signed, 20)).output("y_d");
            assert_eq!(plain.left(BYTES), around("QuantizedConv"), "{of:?} {case}");
            let bounded = sketch.number("low", -1.0).number("high", 2.5).node("Clip", "y low high", "c");
            let bounded = quantized(bounded, "c", 0.25, zero(x_signed, 20)).output("c_d");
            assert_eq!(bounded.left(BYTES), around("QuantizedConv"), "{of:?} {case} with bounds");
        }
    }
}

#[test]
fn products_with_weights() {
    for case in 0..8 {
        let (x_signed, w_signed, turned) = (case & 1 != 0, case & 2 != 0, case & 4 != 0);
        let (rows, depth, cols) = (3, if x_signed { 9 } else { 12 }, 70);
        let input = Sketch::new(17).input("x", &[rows, depth as i64]);
        let sketch = quantized(input, "x", SCALE, zero(x_signed, 5));
        let of = if turned { [cols, depth] } else { [depth, cols] };
        let scales: Vec<f32> = (0..cols).map(|col| SCALE / (1 << (col % 3)) as f32).collect();
        let (w, z) = if w_signed { (i8s(&of, 53), i8s(&[cols], 1)) } else { (u8s(&of, 53), u8s(&[cols], 0)) };
        let sketch = weights(sketch, w, reals(&scales), z, i64::from(!turned));
        let steps: Vec<i32> = (0..cols as i32).map(|col| col * 77 - 900).collect();
        let of_steps: Vec<f32> = scales.iter().map(|scale| scale * SCALE).collect();
        let sketch = bias(sketch, &steps, reals(&of_steps));
        let told = [("transB", Attribute::Int(turned.into()))];
        let gemm = sketch.clone().node_with("Gemm", "x_d w_d b_d", "y", &told);
        let bytes = quantized(gemm.clone(), "y", 0.125, zero(!x_signed, -3)).output("y_d");
        assert_eq!(bytes.left(BYTES), around("QuantizedMatMul"), "{case}");
        assert_eq!(gemm.output("y").left(BYTES), ["QuantizeLinear", "QuantizedMatMul"], "{case}, of reals");
        if !turned {
            let product = sketch.node("MatMul", "x_d w_d", "y");
            let bytes = quantized(product, "y", 0.125, zero(x_signed, 0)).output("y_d");
            assert_eq!(bytes.left(BYTES), around("QuantizedMatMul"), "{case}, without a bias");
        }
    }
}

#[test]
fn products_of_two_that_are_computed() {
    for case in 0..4 {
        let (a_signed, b_signed) = (case & 1 != 0, case & 2 != 0);
        let depth = if a_signed { 6 } else { 8 };
        let sketch = Sketch::new(17).input("a", &[2, 3, 5, depth]).input("b", &[2, 3, depth, 66]);
        let sketch =
            quantized(quantized(sketch, "a", SCALE, zero(a_signed, 9)), "b", SCALE, zero(b_signed, -4));
        let sketch = quantized(sketch.node("MatMul", "a_d b_d", "y"), "y", 1.0 / 32.0, zero(true, 1));
        let left = ["QuantizeLinear", "QuantizeLinear", "QuantizedMatMul", "DequantizeLinear"];
        assert_eq!(sketch.output("y_d").left(BYTES), left, "{case}");
    }
}

#[test]
fn linear_operators_of_version_10() {
    let names = "x_q x_s x_z w ws wz y_s y_z";
    let sketch = |shape: &[i64], w: Tensor| {
        let sketch = quantized(Sketch::new(17).input("x", shape), "x", SCALE, zero(false, 3));
        let sketch = sketch.tensor("w", w).number("ws", SCALE).tensor("wz", zero(true, 0));
        sketch.number("y_s", 0.125).tensor("y_z", zero(true, 4))
    };
    let after = |sketch: Sketch| sketch.node("DequantizeLinear", "y y_s y_z", "z").output("z").left(BYTES);
    let steps = Tensor::from_elements([4], &[5, -900, 0, 77]).expect("a row");
    let conv = sketch(&[1, 3, 9, 9], i8s(&[4, 3, 3, 3], 37)).tensor("b", steps);
    assert_eq!(after(conv.node("QLinearConv", &format!("{names} b"), "y")), around("QuantizedConv"));
    let product = sketch(&[5, 7], i8s(&[7, 9], 37)).node("QLinearMatMul", names, "y");
    assert_eq!(after(product), around("QuantizedMatMul"));
}

const MICROSOFT: &str = "com.microsoft";

/// Weights `w` of 12 rows and 70 columns, their zero points `wz` and scales `ws`: one, or one for each column; and a bias `b`.
fn columns(sketch: Sketch, signed: bool, each: bool) -> Sketch {
    let (of, many): (_, &[usize]) = ([12, 70], if each { &[70] } else { &[] });
    let (w, z) = if signed { (i8s(&of, 53), i8s(many, 3)) } else { (u8s(&of, 53), u8s(many, 3)) };
    let scales: Vec<f32> =
        (0..if each { 70 } else { 1 }).map(|col| SCALE / (1 << (col % 3)) as f32).collect();
    let scales = Tensor::from_elements(many, &scales).expect("as many");
    sketch.tensor("w", w).tensor("wz", z).tensor("ws", scales).weight("b", &[70])
}

#[test]
fn products_of_what_is_quantized_in_each_run() {
    let start = |signed: bool| {
        let sketch = Sketch::new(17).input("x", &[-1, 2, 12]);
        if signed {
            return ("QuantizeLinear", quantized(sketch, "x", SCALE, zero(true, 5)));
        }
        ("DynamicQuantizeLinear", sketch.node("DynamicQuantizeLinear", "x", "x_q x_s x_z"))
    };
    let cast = [("to", Attribute::Int(1))];
    for case in 0..8 {
        let (x_signed, w_signed, each) = (case & 1 != 0, case & 2 != 0, case & 4 != 0);
        let (first, sketch) = start(x_signed);
        let sketch = columns(sketch, w_signed, each).node("MatMulInteger", "x_q w x_z wz", "i");
        let sums = sketch.clone().output("i").declared("i", DataType::I32);
        assert_eq!(sums.left(BYTES), [first, "QuantizedMatMul"], "{case}, sums");
        let reals = sketch.node("Mul", "ws x_s", "s").node_with("Cast", "i", "c", &cast);
        let reals = reals.node("Mul", "c s", "y");
        let added = reals.clone().node("Add", "b y", "z").output("z");
        assert_eq!(added.left(BYTES), [first, "QuantizedMatMul"], "{case}, with a bias");
        let needed = [first, "QuantizedMatMul", "Add"];
        assert_eq!(added.output("y").left(BYTES), needed, "{case}, needed without its bias");
        let kept = [first, "QuantizedMatMul", "Mul", "Cast", "Mul"];
        assert_eq!(reals.output("y").output("c").left(BYTES), kept, "{case}, numbers of sums are needed");
    }
    // A scale that is one number.
    let (first, sketch) = start(false);
    let sketch = columns(sketch, true, false).node("MatMulInteger", "x_q w x_z wz", "i");
    let sketch = sketch.node_with("Cast", "i", "c", &cast).node("Mul", "x_s c", "y").output("y");
    assert_eq!(sketch.left(BYTES), [first, "QuantizedMatMul"]);
}

#[test]
fn convolutions_of_what_is_quantized_in_each_run() {
    for (channels, filters, group, kernel, strides) in [
        (3, 8, 1, &[3, 3][..], &[1, 1][..]),
        (4, 6, 2, &[3, 3], &[2, 2]),
        (6, 6, 6, &[3, 3], &[2, 1]),
        (5, 70, 1, &[1, 1], &[1, 1]),
        (3, 4, 1, &[5], &[2]),
        (2, 2, 2, &[2, 3, 2], &[1, 2, 1]),
    ] {
        for case in 0..4 {
            let (signed, each) = (case & 1 != 0, case & 2 != 0);
            let mut shape = vec![-1, channels as i64];
            shape.extend(kernel.iter().map(|size| *size as i64 + 8));
            let mut of = vec![filters, channels / group];
            of.extend(kernel);
            let sketch = Sketch::new(17).input("x", &shape).node("DynamicQuantizeLinear", "x", "x_q x_s x_z");
            let many: &[usize] = if each { &[filters] } else { &[] };
            let (w, z) = if signed { (i8s(&of, 37), i8s(many, 3)) } else { (u8s(&of, 37), u8s(many, 3)) };
            let mut of_filters = vec![1; kernel.len() + 2];
            of_filters[1] = if each { filters } else { 1 };
            let scales: Vec<f32> =
                (0..of_filters[1]).map(|filter| SCALE / (1 << (filter % 3)) as f32).collect();
            let scales = Tensor::from_elements(&of_filters[..], &scales).expect("as many");
            let told = [
                ("group", Attribute::Int(group as i64)),
                ("strides", Attribute::Ints(strides.to_vec())),
                ("pads", Attribute::Ints(vec![1; 2 * kernel.len()])),
            ];
            let sketch = sketch.tensor("w", w).tensor("wz", z).tensor("ws", scales);
            let sums = sketch.node_with("ConvInteger", "x_q w x_z wz", "i", &told);
            let reals = sums.clone().node("Mul", "x_s ws", "s");
            let reals =
                reals.node_with("Cast", "i", "c", &[("to", Attribute::Int(1))]).node("Mul", "c s", "y");
            let left = ["DynamicQuantizeLinear", "QuantizedConv"];
            assert_eq!(reals.clone().output("y").left(BYTES), left, "{of:?} {case}");
            let mut shape = vec![1; kernel.len() + 2];
            shape[1] = -1;
            let added = reals.weight("b", &[filters]).ints("shape", &shape).node("Reshape", "b shape", "r");
            assert_eq!(
                added.node("Add", "y r", "z").output("z").left(BYTES),
                left,
                "{of:?} {case} with a bias"
            );
            let sums = sums.output("i").declared("i", DataType::I32);
            assert_eq!(sums.left(BYTES), ["DynamicQuantizeLinear", "ConvInteger"], "{of:?} {case}, sums");
        }
    }
}

#[test]
fn a_row_is_multiplied_by_all_cores() {
    let sketch = Sketch::new(17).input("x", &[1, 1030]).node("DynamicQuantizeLinear", "x", "x_q x_s x_z");
    let sketch = sketch.tensor("w", i8s(&[1030, 333], 53)).tensor("wz", i8s(&[333], 7));
    let sketch = sketch.node("MatMulInteger", "x_q w x_z wz", "i").output("i").declared("i", DataType::I32);
    assert_eq!(sketch.left(BYTES), ["DynamicQuantizeLinear", "QuantizedMatMul"]);
}

#[test]
fn products_of_onnx_runtime() {
    for case in 0..4 {
        let (signed, each) = (case & 1 != 0, case & 2 != 0);
        let sketch = columns(Sketch::new(17).input("x", &[-1, 12]), signed, each);
        let made = sketch.clone().node_of(MICROSOFT, "DynamicQuantizeMatMul", "x w ws wz b", "y", &[]);
        assert_eq!(made.output("y").left(BYTES), ["QuantizedMatMul"], "{case}");
        let sketch = sketch.node("DynamicQuantizeLinear", "x", "x_q x_s x_z");
        let made =
            sketch.clone().node_of(MICROSOFT, "MatMulIntegerToFloat", "x_q w x_s ws x_z wz b", "y", &[]);
        let left = ["DynamicQuantizeLinear", "QuantizedMatMul"];
        assert_eq!(made.output("y").left(BYTES), left, "{case}");
        let alpha = [("alpha", Attribute::Float(0.5))];
        let steps: Vec<i32> = (0..70).map(|col| col * 77 - 900).collect();
        let gemm = |sketch: Sketch, bias: Tensor, after: &str| {
            let names = format!("x_q x_s x_z w ws wz steps {after}");
            sketch.tensor("steps", bias).node_of(MICROSOFT, "QGemm", &names, "y", &alpha)
        };
        let steps = Tensor::from_elements([1, 70], &steps).expect("a row");
        assert_eq!(gemm(sketch.clone(), steps.clone(), "").output("y").left(BYTES), left, "{case}");
        let rows = Tensor::from_elements([3, 1], &[1, 2, 3]).expect("three rows");
        let kept = ["DynamicQuantizeLinear", "QGemm"];
        assert_eq!(gemm(sketch, rows, "").output("y").left(BYTES), kept, "{case}, a bias of rows");
        let known = quantized(Sketch::new(17).input("x", &[-1, 12]), "x", SCALE, zero(false, 5));
        let known = columns(known, signed, each).number("y_s", 0.125).tensor("y_z", zero(true, 4));
        let made = gemm(known, steps, "y_s y_z").node("DequantizeLinear", "y y_s y_z", "z").output("z");
        assert_eq!(made.left(BYTES), around("QuantizedMatMul"), "{case}, to bytes");
    }
}

#[test]
fn products_of_integers_that_stay() {
    let sketch = || Sketch::new(17).input("x", &[3, 12]).node("DynamicQuantizeLinear", "x", "x_q x_s x_z");
    let kept = |sketch: Sketch| sketch.output("i").declared("i", DataType::I32).left(BYTES);
    let zeros = columns(sketch(), true, false).tensor("zeros", u8s(&[3], 50));
    let left = kept(zeros.node("MatMulInteger", "x_q w zeros wz", "i"));
    assert_eq!(left, ["DynamicQuantizeLinear", "MatMulInteger"], "a zero point for each row");
    let computed = sketch().input("w", &[12, 5]).node("DynamicQuantizeLinear", "w", "w_q w_s w_z");
    let left = kept(computed.node("MatMulInteger", "x_q w_q x_z w_z", "i"));
    assert_eq!(left, ["DynamicQuantizeLinear", "DynamicQuantizeLinear", "MatMulInteger"], "computed weights");
    let several = sketch().tensor("w", i8s(&[2, 12, 5], 37)).node("MatMulInteger", "x_q w x_z", "i");
    assert_eq!(kept(several), ["DynamicQuantizeLinear", "MatMulInteger"], "several matrices");
}

#[test]
fn nodes_that_move_elements_move_bytes() {
    let sketch = |to: f32| {
        let sketch = quantized(Sketch::new(17).input("x", &[2, 6, 8]), "x", SCALE, zero(false, 0));
        let sketch = sketch.ints("shape", &[2, 3, 16]).node("Reshape", "x_d shape", "r");
        let sketch = quantized(sketch, "r", SCALE, zero(false, 0));
        let told = [("perm", Attribute::Ints(vec![2, 0, 1]))];
        quantized(sketch.node_with("Transpose", "r_d", "t", &told), "t", to, zero(false, 0)).output("t_d")
    };
    let all = ["QuantizeLinear", "Reshape", "Transpose", "DequantizeLinear"];
    assert_eq!(sketch(SCALE).left(BYTES), all);
    let other =
        ["QuantizeLinear", "Reshape", "DequantizeLinear", "Transpose", "QuantizeLinear", "DequantizeLinear"];
    assert_eq!(sketch(SCALE / 2.0).left(BYTES), other);
    let images = quantized(Sketch::new(17).input("x", &[1, 2, 6, 6]), "x", SCALE, zero(true, 3));
    let told = [("kernel_shape", Attribute::Ints(vec![3, 3])), ("pads", Attribute::Ints(vec![1; 4]))];
    let pooled = quantized(images.node_with("MaxPool", "x_d", "y", &told), "y", SCALE, zero(true, 3));
    assert_eq!(pooled.output("y_d").left(BYTES), around("MaxPool"));
}

#[test]
fn functions_of_one_tensor_are_tables() {
    for signed in [false, true] {
        let start = || quantized(Sketch::new(17).input("x", &[-1, 7]), "x", SCALE, zero(signed, 2));
        let sketch =
            start().number("half", 0.5).number("one", 1.0).node("Erf", "x_d", "e").node("Add", "e one", "a");
        let sketch =
            quantized(sketch.node("Mul", "half a", "m"), "m", SCALE, zero(!signed, -9)).output("m_d");
        assert_eq!(sketch.left(BYTES), around("ByteTable"));
        // Other bytes of the same numbers, and the same ones.
        let again = quantized(start(), "x_d", SCALE * 4.0, zero(signed, 2)).output("x_d_d");
        assert_eq!(again.left(BYTES), around("ByteTable"));
        let same = quantized(start(), "x_d", SCALE, zero(signed, 2)).output("x_d_d");
        assert_eq!(same.left(BYTES), ["QuantizeLinear", "DequantizeLinear"]);
    }
}

#[test]
fn sums_and_products_of_two() {
    for (op, made) in [("Add", "QuantizedAdd"), ("Sub", "QuantizedSub"), ("Mul", "QuantizedMul")] {
        let sketch = Sketch::new(17).input("a", &[-1, 5, 300]).input("b", &[5, 1]);
        let sketch =
            quantized(quantized(sketch, "a", SCALE, zero(false, 3)), "b", SCALE * 2.0, zero(true, -8));
        let two = quantized(sketch.clone().node(op, "a_d b_d", "y"), "y", SCALE, zero(true, 6)).output("y_d");
        assert_eq!(two.left(BYTES), ["QuantizeLinear", "QuantizeLinear", made, "DequantizeLinear"]);
        let with = sketch.weight("w", &[300]).node(op, "w a_d", "y");
        let with = quantized(with, "y", SCALE, zero(false, 6)).output("y_d");
        assert_eq!(with.left(BYTES), around(made));
    }
}

#[test]
fn what_is_not_known_beforehand_or_is_needed_in_reals_stays() {
    let kept = [
        "QuantizeLinear",
        "DequantizeLinear",
        "DequantizeLinear",
        "Conv",
        "QuantizeLinear",
        "DequantizeLinear",
    ];
    let conv = |axis: i64| {
        let sketch = quantized(Sketch::new(17).input("x", &[1, 4, 5, 5]), "x", SCALE, zero(false, 3));
        let sketch = weights(sketch, i8s(&[4, 4, 1, 1], 37), reals(&[SCALE; 4]), i8s(&[4], 0), axis);
        quantized(sketch.node("Conv", "x_d w_d", "y"), "y", SCALE, zero(false, 9))
    };
    assert_eq!(conv(1).output("y_d").left(BYTES), kept, "scales of the channels that are taken");
    assert_eq!(conv(0).output("y").output("y_d").left(BYTES), kept, "its reals are an output");
    assert_eq!(conv(0).output("y_d").left(BYTES), around("QuantizedConv"));
    // A scale that is an input.
    let sketch = Sketch::new(17).input("x", &[3, 4]).input("s", &[]).tensor("z", zero(false, 0));
    let sketch = sketch.node("QuantizeLinear", "x s z", "q").node("DequantizeLinear", "q s z", "d");
    let sketch = quantized(sketch.node("Relu", "d", "y"), "y", SCALE, zero(false, 0)).output("y_d");
    let all = ["QuantizeLinear", "DequantizeLinear", "Relu", "QuantizeLinear", "DequantizeLinear"];
    assert_eq!(sketch.left(BYTES), all);
}
