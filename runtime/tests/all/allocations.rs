//! From the third run on nothing is asked of the heap, whatever the sizes are that elements decide.

use super::memory::blocks;
use super::wire::{Message, attribute, graph, model, node, open_value, tensor, value};
use stepalloc_runtime::{Binding, Model, Session, Tensor};

fn built(parts: impl IntoIterator<Item = Message>) -> Model {
    Model::from_bytes(model(&graph(parts))).expect("a model")
}

fn ints(name: &str, dims: &[usize], elements: &[i64]) -> Message {
    let bytes: Vec<u8> = elements.iter().flat_map(|element| element.to_le_bytes()).collect();
    tensor(5, name, 7, dims).bytes(9, &bytes)
}

fn reals(name: &str, dims: &[usize], elements: &[f32]) -> Message {
    let bytes: Vec<u8> = elements.iter().flat_map(|element| element.to_le_bytes()).collect();
    tensor(5, name, 1, dims).bytes(9, &bytes)
}

fn number(name: &str, number: i64) -> Message {
    attribute(name, 2).number(3, number as u64)
}

fn floats(shape: &[usize], elements: &[f32]) -> Tensor {
    Tensor::from_elements(shape, elements).expect("as many as the shape says")
}

/// Runs it, the third time and later without asking for memory.
fn settle(binding: &mut Binding) {
    for run in 0..5 {
        let (done, asked) = blocks(|| binding.run());
        done.expect("it runs");
        assert!(run < 2 || asked == 0, "run {run} asks for memory {asked} times");
    }
}

/// So many marks among `count` elements.
fn marks(count: usize, marked: usize) -> Vec<f32> {
    (0..count).map(|index| f32::from(u8::from(index < marked))).collect()
}

/// What comes of `x` with so many marks, among 12.
fn marked(model: &Model, marked: &[usize], wanted: impl Fn(usize) -> Vec<Vec<f32>>) {
    let session = Session::new(model);
    let mut binding = session.binding();
    binding.bind_input("x", floats(&[12], &marks(12, marked[0]))).expect("it is as declared");
    for &count in marked {
        let x = binding.input_mut("x").expect("it is bound");
        x.elements::<f32>().copy_from_slice(&marks(12, count));
        settle(&mut binding);
        let made: Vec<_> =
            binding.outputs().flatten().map(|made| made.view().elements::<f32>().to_vec()).collect();
        assert_eq!(made, wanted(count), "{count} marks");
        let alone = Session::new(model).run(&[("x", floats(&[12], &marks(12, count)).view())]);
        let alone: Vec<_> =
            alone.expect("it runs").iter().map(|(_, made)| made.view().elements::<f32>().to_vec()).collect();
        assert_eq!(alone, wanted(count), "{count} marks, without a binding");
    }
    let statistics = session.statistics();
    drop(binding);
    session.release_memory();
    assert!(statistics.total_allocated > 0);
    assert_eq!((session.statistics().in_use, session.statistics().total_allocated), (0, 0));
}

/// Places of the marks, as reals [1, count].
fn places() -> [Message; 2] {
    [node("NonZero", &["x"], &["places"]), node("Cast", &["places"], &["p"]).message(5, &number("to", 1))]
}

/// How many there are, as one number.
fn count() -> [Message; 3] {
    [
        ints("one", &[], &[1]),
        node("Shape", &["p"], &["dims"]),
        node("Gather", &["dims", "one"], &["count"]).message(5, &number("axis", 0)),
    ]
}

#[test]
fn attention_takes_nothing() {
    let sides = ["q", "k", "v"].map(|name| value(11, name, 1, &[1, 2, 6, 8]));
    let order = [0u64, 1, 3, 2].iter().fold(attribute("perm", 7), |order, &at| order.number(8, at));
    let model = built(sides.into_iter().chain([
        node("Transpose", &["k"], &["turned"]).message(5, &order),
        node("MatMul", &["q", "turned"], &["scores"]),
        node("Softmax", &["scores"], &["parts"]).message(5, &number("axis", -1)),
        node("MatMul", &["parts", "v"], &["y"]),
        value(12, "y", 1, &[1, 2, 6, 8]),
    ]));
    let session = Session::new(&model);
    let mut binding = session.binding();
    for name in ["q", "k", "v"] {
        binding.bind_input(name, floats(&[1, 2, 6, 8], &[0.5; 96])).expect("it is as declared");
    }
    settle(&mut binding);
    assert_eq!(session.changes().nodes_after, 1, "the nodes are one attention");
}

#[test]
fn transforms_take_nothing_after_their_lengths_are_planned() {
    // Small factors, a small prime, a prime that is transformed as a convolution.
    for length in [400, 37, 1009] {
        let model = built([
            value(11, "x", 1, &[3, length, 1]),
            ints("axis", &[], &[1]),
            node("DFT", &["x", "", "axis"], &["spectrum"]),
            node("DFT", &["spectrum", "", "axis"], &["back"]).message(5, &number("inverse", 1)),
            ints("step", &[], &[16]),
            ints("frame", &[], &[length as i64 / 2]),
            node("STFT", &["x", "step", "", "frame"], &["frames"]),
            value(12, "back", 1, &[3, length, 2]),
            value(12, "frames", 1, &[3, (length - length / 2) / 16 + 1, length / 4 + 1, 2]),
        ]);
        let session = Session::new(&model);
        let mut binding = session.binding();
        binding
            .bind_input("x", floats(&[3, length, 1], &marks(3 * length, length)))
            .expect("it is as declared");
        for run in 0..3 {
            let (done, asked) = blocks(|| binding.run());
            done.expect("it runs");
            assert!(run < 1 || asked == 0, "run {run} of length {length} asks for memory {asked} times");
        }
        let made: Vec<_> =
            binding.outputs().flatten().map(|made| made.view().elements::<f32>().to_vec()).collect();
        let real: Vec<_> = made[0].iter().step_by(2).map(|x| x.round()).collect();
        assert_eq!(real, marks(3 * length, length));
    }
}

#[test]
fn nodes_of_more_operands_than_usual_take_nothing() {
    let names: Vec<_> = (0..40).map(|index| format!("part {index}")).collect();
    let outputs: Vec<_> = names.iter().map(String::as_str).collect();
    let model = built([
        value(11, "x", 1, &[40, 3]),
        node("Split", &["x"], &outputs).message(5, &number("axis", 0)),
        node("Concat", &outputs, &["wide"]).message(5, &number("axis", 1)),
        node("Relu", &["wide"], &["y"]),
        value(12, "y", 1, &[1, 120]),
    ]);
    let session = Session::new(&model);
    let mut binding = session.binding();
    binding.bind_input("x", floats(&[40, 3], &[1.0; 120])).expect("it is as declared");
    settle(&mut binding);
}

#[test]
fn what_follows_a_suppression_of_boxes_takes_nothing() {
    let boxes: Vec<f32> = (0..12u8)
        .flat_map(|index| [0.0, 2.0 * f32::from(index), 1.0, 2.0 * f32::from(index) + 1.0])
        .collect();
    let model = built([
        open_value(11, "x", 1, 1),
        reals("boxes", &[1, 12, 4], &boxes),
        reals("flat", &[12, 4], &boxes),
        ints("row", &[3], &[1, 1, -1]),
        ints("all", &[1], &[-1]),
        ints("most", &[1], &[100]),
        ints("third", &[], &[2]),
        reals("overlap", &[1], &[0.5]),
        reals("least", &[1], &[0.5]),
        node("Reshape", &["x", "row"], &["scores"]),
        node("NonMaxSuppression", &["boxes", "scores", "most", "overlap", "least"], &["found"]),
        node("Gather", &["found", "third"], &["numbers"]).message(5, &number("axis", 1)),
        node("Gather", &["flat", "numbers"], &["chosen"]).message(5, &number("axis", 0)),
        node("Relu", &["chosen"], &["positive"]),
        node("Reshape", &["positive", "all"], &["y"]),
        open_value(12, "y", 1, 1),
    ]);
    marked(&model, &[3, 9, 0, 5, 12], |count| vec![boxes[..4 * count].to_vec()]);
}

#[test]
fn branches_take_nothing() {
    let branch = |op: &str, inputs: &[&str], made: &str| {
        graph([node(op, inputs, &[made]), open_value(12, made, 1, 2)])
    };
    let model = built(
        [open_value(11, "x", 1, 1)].into_iter().chain(places()).chain(count()).chain([
            ints("four", &[], &[4]),
            node("Greater", &["count", "four"], &["many"]),
            node("If", &["many"], &["y"])
                .message(5, &attribute("then_branch", 5).message(6, &branch("Add", &["p", "p"], "sum")))
                .message(5, &attribute("else_branch", 5).message(6, &branch("Neg", &["p"], "less"))),
            node("Abs", &["y"], &["size"]),
            open_value(12, "y", 1, 2),
            open_value(12, "size", 1, 2),
        ]),
    );
    let wanted = |count: usize| -> Vec<Vec<f32>> {
        let by = if count > 4 { 2.0 } else { -1.0 };
        let y: Vec<_> = (0..count).map(|place| place as f32 * by).collect();
        let size = y.iter().map(|y| y.abs()).collect();
        vec![y, size]
    };
    marked(&model, &[3, 7, 2, 12], wanted);

    // Sizes that were never seen, once there were as many as plans are kept.
    let session = Session::new(&model);
    let mut binding = session.binding();
    binding.bind_input("x", floats(&[40], &marks(40, 40))).expect("it is as declared");
    for count in (6..=40).rev() {
        let x = binding.input_mut("x").expect("it is bound");
        x.elements::<f32>().copy_from_slice(&marks(40, count));
        let (done, asked) = blocks(|| binding.run());
        done.expect("it runs");
        assert!(count > 20 || asked == 0, "{count} marks: memory is asked for {asked} times");
        let made = binding.output("y").expect("it was made");
        assert_eq!(made.elements::<f32>(), wanted(count)[0]);
    }
}

#[test]
fn loops_take_nothing() {
    let body = graph([
        value(11, "i", 7, &[]),
        value(11, "go", 9, &[]),
        open_value(11, "state", 1, 1),
        node("Add", &["state", "state"], &["next"]),
        value(12, "go", 9, &[]),
        open_value(12, "next", 1, 1),
        open_value(12, "next", 1, 1),
    ]);
    let model = built(
        [open_value(11, "x", 1, 1)].into_iter().chain(places()).chain(count()).chain([
            reals("begin", &[2], &[1.0, 3.0]),
            node("Loop", &["count", "", "begin"], &["last", "all"])
                .message(5, &attribute("body", 5).message(6, &body)),
            open_value(12, "last", 1, 1),
            open_value(12, "all", 1, 2),
        ]),
    );
    let wanted = |count: usize| -> Vec<Vec<f32>> {
        let power = |round: usize| (1u32 << round) as f32;
        let all = (1..=count).flat_map(|round| [power(round), 3.0 * power(round)]).collect();
        vec![vec![power(count), 3.0 * power(count)], all]
    };
    marked(&model, &[3, 12, 1, 5], wanted);
}
