//! Tests of many operators at once.

use super::trial::{Trial, floats, numbers, row, tensor};
use std::panic::{AssertUnwindSafe, catch_unwind};
use stepalloc_graph::Attribute;
use stepalloc_tensor::Tensor;

/// Operators of which indices, sizes and axes are data, and attributes that they have.
const OPERATORS: [(&str, &[&str]); 31] = [
    ("Transpose", &["perm"]),
    ("Concat", &["axis"]),
    ("Split", &["axis", "num_outputs"]),
    ("Slice", &[]),
    ("Pad", &["pad mode"]),
    ("Tile", &[]),
    ("Expand", &[]),
    ("Trilu", &["upper"]),
    ("EyeLike", &["k"]),
    ("Range", &[]),
    ("ReverseSequence", &[]),
    ("DepthToSpace", &["blocksize"]),
    ("SpaceToDepth", &["blocksize"]),
    ("CenterCropPad", &[]),
    ("OneHot", &["axis"]),
    ("Gather", &["axis"]),
    ("GatherElements", &["axis"]),
    ("GatherND", &["batch_dims"]),
    ("ScatterElements", &["axis", "reduction"]),
    ("ScatterND", &["reduction"]),
    ("TensorScatter", &["axis", "cache mode"]),
    ("NonZero", &[]),
    ("Compress", &["axis"]),
    ("Unique", &["axis", "sorted"]),
    ("NonMaxSuppression", &["center_point_box"]),
    ("Resize", &["filter", "transform", "antialias", "exclude_outside", "policy"]),
    ("Upsample", &["filter"]),
    ("GridSample", &["filter", "padding_mode", "align_corners"]),
    ("AffineGrid", &["align_corners"]),
    ("RoiAlign", &["pool", "sampling_ratio", "output_height", "output_width"]),
    ("Col2Im", &["strides", "dilations", "pads"]),
];
const HOSTILE: [i64; 12] = [0, 1, 2, 3, -1, -2, -3, 4, 1 << 33, i64::MAX, i64::MIN, i64::MIN + 1];

/// Marsaglia's xorshift.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 33) as usize % sides
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.roll(all.len())]
    }

    /// Small mostly.
    fn int(&mut self) -> i64 {
        if self.roll(8) > 0 { self.roll(5) as i64 - 1 } else { self.of(&HOSTILE) }
    }

    fn ints(&mut self, shape: &[usize]) -> Tensor {
        let calm = self.roll(2) > 0;
        let all: Vec<_> = (0..shape.iter().product::<usize>())
            .map(|_| if calm { self.roll(3) as i64 } else { self.int() })
            .collect();
        tensor(shape, &all)
    }

    fn floats(&mut self, shape: &[usize]) -> Tensor {
        const ALL: [f32; 10] =
            [0.5, 1.0, 2.0, 0.3, 0.0, -1.0, 1e30, f32::NAN, f32::INFINITY, f32::MIN_POSITIVE];
        let kinds = self.of(&[4, 6, 10]);
        let all: Vec<_> = (0..shape.iter().product::<usize>()).map(|_| self.of(&ALL[..kinds])).collect();
        tensor(shape, &all)
    }

    fn shape(&mut self, rank: usize) -> Vec<usize> {
        (0..rank).map(|_| if self.roll(9) > 0 { 1 + self.roll(4) } else { 0 }).collect()
    }

    fn anything(&mut self) -> Tensor {
        let rank = self.roll(6);
        let shape = self.shape(rank);
        match self.roll(3) {
            0 => self.floats(&shape),
            1 => self.ints(&shape),
            _ => {
                let count = shape.iter().product();
                tensor(
                    &shape,
                    &(0..count).map(|_| stepalloc_tensor::Bool(self.roll(2) as u8)).collect::<Vec<_>>(),
                )
            }
        }
    }

    /// Inputs whose types fit, though their elements may not.
    fn inputs(&mut self, op: &str) -> Vec<Tensor> {
        let rank = match op {
            "DepthToSpace" | "SpaceToDepth" | "RoiAlign" => 4,
            "EyeLike" => 2,
            "TensorScatter" | "GridSample" | "Trilu" | "ReverseSequence" => 3 + self.roll(2),
            "Col2Im" => 3,
            "Range" => 0,
            _ => self.roll(5),
        };
        let shape = self.shape(rank);
        let (data, row) = (self.floats(&shape), [rank]);
        let mut inputs = vec![data.clone()];
        let more = match op {
            "Concat" => vec![data],
            "Slice" => (0..4).map(|n| if n == 2 { axes(rank) } else { self.ints(&row) }).collect(),
            "Pad" => vec![self.ints(&[2 * rank])],
            "Tile" | "Expand" | "CenterCropPad" => vec![self.ints(&row)],
            "Trilu" => vec![self.ints(&[])],
            "Range" => {
                inputs = Vec::new();
                let is_float = self.roll(2) > 0;
                (0..3).map(|_| if is_float { self.floats(&[]) } else { self.ints(&[]) }).collect()
            }
            "ReverseSequence" => vec![self.ints(&[shape[1]])],
            "OneHot" => vec![self.ints(&[]), self.floats(&[2])],
            "Gather" | "GatherND" => {
                let rank = 1 + self.roll(3);
                let mut shape = self.shape(rank);
                shape[rank - 1] = self.roll(3);
                vec![self.ints(&shape)]
            }
            "GatherElements" => vec![self.ints(&shape)],
            "ScatterElements" => vec![self.ints(&shape), data],
            "ScatterND" => {
                let (rows, named) = (self.roll(3), self.roll(rank + 1));
                let updates = [&[rows], &shape[named..]].concat();
                vec![self.ints(&[rows, named]), self.floats(&updates)]
            }
            "TensorScatter" => vec![data, self.ints(&[shape[0]])],
            "Compress" => vec![tensor(
                &[3],
                &[stepalloc_tensor::Bool(1), stepalloc_tensor::Bool(0), stepalloc_tensor::Bool(1)],
            )],
            "NonMaxSuppression" => {
                let (batch, boxes) = (self.roll(3), self.roll(6));
                inputs = vec![self.floats(&[batch, boxes, 4])];
                vec![self.floats(&[batch, 2, boxes]), self.ints(&[1]), self.floats(&[1]), self.floats(&[1])]
            }
            "Resize" if self.roll(2) > 0 => {
                vec![self.floats(&[2 * rank]), self.floats(&[0]), self.ints(&row)]
            }
            "Resize" => vec![self.floats(&[2 * rank]), self.floats(&row)],
            "Upsample" => vec![self.floats(&row)],
            "GridSample" => {
                let mut grid = self.shape(rank);
                (grid[0], grid[rank - 1]) = (shape[0], rank - 2);
                vec![self.floats(&grid)]
            }
            "AffineGrid" => {
                inputs = vec![self.floats(&[1, 2, 3])];
                let sizes = [1, 1, self.int(), self.int()];
                vec![tensor(&[4], &sizes)]
            }
            "RoiAlign" => {
                let count = self.roll(3);
                vec![self.floats(&[count, 4]), self.ints(&[count])]
            }
            "Col2Im" => {
                // As many columns as one block everywhere needs.
                let (height, width) = (self.roll(4), self.roll(4));
                inputs = vec![self.floats(&[1, 2, height * width])];
                vec![tensor(&[2], &[height as i64, width as i64]), tensor(&[2], &[1i64, 1])]
            }
            _ => Vec::new(),
        };
        inputs.extend(more);
        inputs
    }

    fn attribute(&mut self, name: &'static str) -> (&'static str, Attribute) {
        let (name, texts): (_, &[&str]) = match name {
            "pad mode" => ("mode", &["constant", "edge", "reflect", "wrap"]),
            "cache mode" => ("mode", &["circular"]),
            "filter" => ("mode", &["nearest", "linear", "cubic"]),
            "pool" => ("mode", &["max"]),
            "padding_mode" => (name, &["border", "reflection"]),
            "reduction" => (name, &["add", "max"]),
            "policy" => ("keep_aspect_ratio_policy", &["not_larger", "not_smaller"]),
            "transform" => (
                "coordinate_transformation_mode",
                &["align_corners", "tf_crop_and_resize", "half_pixel_symmetric", "pytorch_half_pixel"],
            ),
            "strides" | "dilations" | "pads" | "perm" => {
                let count = if name == "pads" { 4 } else { 2 };
                return (name, Attribute::Ints((0..count).map(|_| self.int()).collect()));
            }
            _ => return (name, Attribute::Int(self.int())),
        };
        (name, Attribute::String(self.of(texts).into()))
    }
}

fn axes(rank: usize) -> Tensor {
    tensor(&[rank], &(0..rank as i64).collect::<Vec<_>>())
}

/// Whatever a model says and whatever it is given, there is an answer or an error.
#[test]
fn nothing_panics() {
    const ROUNDS: usize = 300;
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
    for (op, names) in OPERATORS {
        let mut answers = 0;
        for round in 0..ROUNDS {
            let mut attributes: Vec<_> = names.iter().map(|name| dice.attribute(name)).collect();
            attributes.retain(|(name, _)| matches!(*name, "blocksize" | "mode") || dice.roll(3) == 0);
            if op == "Concat" {
                attributes.push(("axis", Attribute::Int(dice.roll(3) as i64 - 1)));
            }
            let mut inputs: Vec<_> = dice.inputs(op).into_iter().map(Some).collect();
            let odd = dice.roll(8 * inputs.len());
            if odd < inputs.len() {
                inputs[odd] = (dice.roll(2) > 0).then(|| dice.anything());
            }
            let opset = if op == "Upsample" { 9 } else { dice.of(&[13, 25]) };
            let outputs = if op == "Unique" { 4 } else { 1 + dice.roll(2) * usize::from(op == "Split") };
            let trial = Trial::new(op, &attributes, inputs).opset(opset).outputs(outputs);
            match catch_unwind(AssertUnwindSafe(|| trial.run())) {
                Ok(answer) => answers += usize::from(answer.is_ok()),
                Err(_) => {
                    panic!("{op} {:?} of {:?} panics in round {round}", trial.attributes, trial.inputs)
                }
            }
        }
        assert!(answers > ROUNDS / 20, "hardly anything fits {op}: {answers} answers");
    }
}

#[test]
fn empty_and_scalar_inputs_make_no_operator_panic() {
    let ops = [
        "ReduceSum",
        "ReduceMean",
        "ReduceMax",
        "ReduceMin",
        "ReduceProd",
        "ReduceL1",
        "ReduceL2",
        "ReduceLogSum",
        "ReduceLogSumExp",
        "ReduceSumSquare",
        "ArgMax",
        "ArgMin",
        "CumSum",
        "CumProd",
        "TopK",
        "Softmax",
        "LogSoftmax",
        "Hardmax",
        "NegativeLogLikelihoodLoss",
        "SoftmaxCrossEntropyLoss",
        "BatchNormalization",
        "InstanceNormalization",
        "LayerNormalization",
        "RMSNormalization",
        "GroupNormalization",
        "LpNormalization",
        "MeanVarianceNormalization",
        "LRN",
        "DFT",
        "STFT",
        "HannWindow",
        "MelWeightMatrix",
        "Det",
        "Dropout",
        "Bernoulli",
        "RandomNormalLike",
        "RandomUniformLike",
        "Multinomial",
    ];
    let shapes: [&[usize]; 8] = [&[], &[0], &[1], &[0, 3], &[3, 0], &[2, 0, 2], &[0, 2, 2], &[2, 3, 0, 4]];
    let attributes = [("num_groups", Attribute::Int(1)), ("size", Attribute::Int(3))];
    for (op, shape) in ops.iter().flat_map(|op| shapes.map(|shape| (op, shape))) {
        let channels = numbers(&[shape.get(1).copied().unwrap_or(1)], 1);
        for others in [
            vec![],
            vec![row(&[])],
            vec![row(&[0])],
            vec![row(&[-7])],
            vec![row(&[i64::MAX]), row(&[i64::MIN])],
            vec![row(&[1]), numbers(&[0], 1)],
            vec![numbers(&[], 1), numbers(&[], 1)],
            vec![numbers(shape, 1), numbers(shape, 1)],
            vec![channels.clone(), channels.clone(), channels.clone(), channels],
        ] {
            for opset in [7, 12, 13, 21, 26] {
                let inputs: Vec<_> = std::iter::once(numbers(shape, 1)).chain(others.clone()).collect();
                // Whether it is an error is not asked here.
                let _ = Trial::new(op, &attributes, &inputs).opset(opset).run();
            }
        }
    }
}

#[test]
fn in_place_is_as_elsewhere() {
    let halves = |tensor: &Tensor| {
        let narrow: Vec<_> =
            tensor.view().elements::<f32>().iter().map(|&x| stepalloc_tensor::f16::from_f32(x)).collect();
        Tensor::from_elements(tensor.ty().shape.clone(), &narrow).expect("as many")
    };
    let axis = [("axis", Attribute::Int(1)), ("num_groups", Attribute::Int(3))];
    let (data, channels) = (numbers(&[2, 6, 5], 1), numbers(&[6], 1));
    let whole = numbers(&[6, 5], 1);
    let variance = Tensor::from_elements([6], &[0.5f32, 1.0, 2.0, 3.0, 4.0, 5.0]).expect("six");
    let none: &[Tensor] = &[];
    let cases = [
        ("Softmax", none.to_vec()),
        ("LogSoftmax", none.to_vec()),
        ("Hardmax", none.to_vec()),
        ("LpNormalization", none.to_vec()),
        ("LayerNormalization", vec![whole.clone(), whole.clone()]),
        ("RMSNormalization", vec![whole]),
        ("InstanceNormalization", vec![channels.clone(), channels.clone()]),
        ("GroupNormalization", vec![channels.clone(), channels.clone()]),
        ("BatchNormalization", vec![channels.clone(), channels.clone(), channels, variance]),
    ];
    for (op, others) in cases {
        for half in [false, true] {
            let inputs = std::iter::once(&data).chain(&others);
            let inputs: Vec<_> = inputs.map(|t| if half { halves(t) } else { t.clone() }).collect();
            let trial = Trial::new(op, &axis, &inputs).opset(23);
            let (apart, over) = (trial.run().unwrap(), trial.run_over(Some(0)).unwrap());
            assert_eq!(apart[0].view().bytes, over[0].view().bytes, "{op}, halves {half}");
        }
    }
}

#[test]
fn figures_that_make_no_sense_are_errors() {
    let scalar = |value: i64| Tensor::from_elements([], &[value]).expect("one element");
    let truth = Tensor::from_elements([], &[stepalloc_tensor::Bool(1)]).expect("one element");
    let number = |value: f32| Tensor::from_elements([], &[value]).expect("one element");
    let scores = || numbers(&[2, 3], 1);
    let signal = || numbers(&[1, 16, 1], 1);
    let mel = |rate, high| vec![scalar(4), scalar(16), scalar(rate), number(0.0), number(high)];
    let cases = [
        ("TopK", vec![scores(), row(&[4])]),
        ("TopK", vec![scores(), row(&[-1])]),
        ("TopK", vec![scores(), row(&[1, 1])]),
        ("NegativeLogLikelihoodLoss", vec![scores(), row(&[0, 3])]),
        ("SoftmaxCrossEntropyLoss", vec![scores(), row(&[0, i64::MIN])]),
        ("CumSum", vec![scores(), scalar(2)]),
        ("DFT", vec![signal(), scalar(0)]),
        ("DFT", vec![signal(), scalar(i64::MAX)]),
        ("DFT", vec![signal(), scalar(4), scalar(-1)]),
        ("STFT", vec![signal(), scalar(0)]),
        ("STFT", vec![signal(), scalar(1), numbers(&[17], 1)]),
        ("STFT", vec![signal(), scalar(1), numbers(&[4], 1), scalar(5)]),
        ("HannWindow", vec![scalar(-1)]),
        ("HannWindow", vec![scalar(i64::MAX)]),
        ("MelWeightMatrix", mel(0, 4.0)),
        ("MelWeightMatrix", mel(8, 1e9)),
        ("MelWeightMatrix", mel(8, f32::NAN)),
        ("Dropout", vec![scores(), number(1.0), truth.clone()]),
        ("Dropout", vec![scores(), number(f32::NAN), truth]),
        ("Det", vec![scores()]),
        ("LayerNormalization", vec![scores(), numbers(&[2], 1)]),
        ("InstanceNormalization", vec![scores(), numbers(&[2], 1), numbers(&[2], 1)]),
        (
            "BatchNormalization",
            vec![scores(), numbers(&[3], 1), numbers(&[3], 1), numbers(&[3], 1), numbers(&[1], 1)],
        ),
        ("LRN", vec![scores()]),
        ("GroupNormalization", vec![scores(), numbers(&[3], 1), numbers(&[3], 1)]),
    ];
    for (op, inputs) in cases {
        let trial = Trial::new(op, &[], &inputs).opset(22);
        assert!(trial.run().is_err(), "{op} of {:?}", inputs.iter().map(Tensor::ty).collect::<Vec<_>>());
    }
}

#[test]
fn figures_of_nothing_are_no_numbers_and_those_of_no_batch_are_refused() {
    let trial = Trial::new("LayerNormalization", &[], [&numbers(&[2, 0], 1), &numbers(&[0], 1)]).outputs(3);
    for figures in &trial.run().unwrap()[1..] {
        assert!(figures.ty().shape == [2, 1] && floats(figures).iter().all(|x| x.is_nan()), "{figures:?}");
    }
    let channels = numbers(&[3], 1);
    let inputs = [&numbers(&[2, 3], 1), &channels, &channels, &channels, &channels];
    let batch = |training| Trial::new("BatchNormalization", &[], inputs).int("training_mode", training);
    assert!(batch(1).outputs(3).run().is_ok() && batch(0).run().is_ok());
    assert!(batch(0).outputs(3).run().is_err());
}
