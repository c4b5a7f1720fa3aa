//! Inputs that grow from run to run: caches that outputs are fed back to, and plans with room.

use super::sketch::Sketch;
use stepalloc_graph::Attribute;
use stepalloc_runtime::{Level, Model, Optimization, Options, Session, Tensor};

/// Runs of each test: more than a plan has room for at first.
const RUNS: usize = 80;

/// A layer of a decoder: keys `k` and values `v` of the past with new ones behind them, and attention `y` of `q`.
fn decoder() -> Model {
    let past = [2, 3, -2, 4];
    let sketch = Sketch::new(13).input("past_k", &past).input("past_v", &past);
    let new = ["q", "new_k", "new_v"].iter().fold(sketch, |sketch, name| sketch.input(name, &[2, 3, 1, 4]));
    let axis = [("axis", Attribute::Int(2))];
    new.node_with("Concat", "past_k new_k", "k", &axis)
        .node_with("Concat", "past_v new_v", "v", &axis)
        .node_with("Transpose", "k", "t", &[("perm", Attribute::Ints(vec![0, 1, 3, 2]))])
        .node("MatMul", "q t", "s")
        .node("Softmax", "s", "p")
        .node("MatMul", "p v", "y")
        .output("y")
        .output("k")
        .output("v")
        .model()
}

/// Numbers that are others for each seed.
fn numbers(rows: usize, seed: usize) -> Tensor {
    let elements: Vec<_> =
        (0..2 * 3 * rows * 4).map(|at| ((at * 37 + seed * 101) % 89) as f32 / 40.0 - 1.0).collect();
    Tensor::from_elements([2, 3, rows, 4], &elements).expect("as many as the shape says")
}

/// What is new in a run.
fn new(run: usize) -> [(&'static str, Tensor); 3] {
    [("q", numbers(1, 3 * run)), ("new_k", numbers(1, 3 * run + 1)), ("new_v", numbers(1, 3 * run + 2))]
}

fn elements(tensor: &Tensor) -> &[f32] {
    tensor.view().elements()
}

/// Outputs for inputs of one run as the graph is, each time planned for just these.
struct Plain<'m>(&'m Model);

impl Plain<'_> {
    fn run(&self, past: [&Tensor; 2], run: usize) -> [Tensor; 3] {
        let options = Options::new().optimization(&Optimization::new(Level::Disable)).max_mem(1 << 30);
        let session = Session::with_options(self.0, options);
        let new = new(run);
        let [k, v] = past;
        let given = [("past_k", k), ("past_v", v)].into_iter().chain(new.iter().map(|(name, x)| (*name, x)));
        let given: Vec<_> = given.map(|(name, tensor)| (name, tensor.view())).collect();
        let made = session.run(&given).expect("it runs");
        <[Tensor; 3]>::try_from(made.into_iter().map(|(_, tensor)| tensor).collect::<Vec<_>>())
            .expect("three")
    }
}

fn is_near(made: &[f32], wanted: &[f32]) {
    assert_eq!(made.len(), wanted.len());
    assert!(
        made.iter().zip(wanted).all(|(made, wanted)| (made - wanted).abs() < 1e-5),
        "{made:?} {wanted:?}"
    );
}

#[test]
fn a_cache_grows_where_it_is_and_few_plans_serve_all_its_lengths() {
    let model = decoder();
    let session = Session::new(&model);
    assert_eq!(session.appended(), [("k", "past_k"), ("v", "past_v")]);
    for feeds_back in [true, false] {
        let mut binding = session.binding();
        let start = [numbers(5, 1000), numbers(5, 1001)];
        let [mut k, mut v] = start.clone();
        if feeds_back {
            session
                .appended()
                .into_iter()
                .for_each(|(from, to)| binding.feed_back(from, to).expect("there are such"));
        }
        for run in 0..RUNS {
            if run == 0 || !feeds_back {
                binding.bind_input("past_k", k.clone()).expect("it is as declared");
                binding.bind_input("past_v", v.clone()).expect("it is as declared");
            }
            for (name, tensor) in new(run) {
                binding.bind_input(name, tensor).expect("it is as declared");
            }
            binding.run().expect("it runs");
            let [y, next_k, next_v] = Plain(&model).run([&k, &v], run);
            is_near(binding.output("y").expect("it was made").elements(), elements(&y));
            (k, v) = (next_k, next_v);
            // Not in each run: a look at it is a copy.
            if run % 9 == 0 {
                assert_eq!(binding.output("k").expect("it was made").elements::<f32>(), elements(&k));
                assert_eq!(binding.output("v").expect("it was made").elements::<f32>(), elements(&v));
            }
        }
        let once = start.iter().map(|tensor| tensor.ty().bytes() as u64).sum::<u64>();
        assert_eq!(binding.copied_bytes(), if feeds_back { once } else { 0 });
    }
    // Two lengths before it is seen that they grow, and then half as much room again each time.
    assert!(session.plans_made() <= 6, "{} plans", session.plans_made());
}

#[test]
fn who_goes_on_from_the_same_cache_does_not_see_another() {
    let model = decoder();
    let session = Session::new(&model);
    let step = |[k, v]: [Tensor; 2], run: usize| {
        let mut binding = session.binding();
        session
            .appended()
            .into_iter()
            .for_each(|(from, to)| binding.feed_back(from, to).expect("there are such"));
        binding.bind_input("past_k", k).expect("it is as declared");
        binding.bind_input("past_v", v).expect("it is as declared");
        for (name, tensor) in new(run) {
            binding.bind_input(name, tensor).expect("it is as declared");
        }
        binding.run().expect("it runs");
        let y = binding.take_output("y").expect("it was made");
        (y, ["k", "v"].map(|name| binding.take_output(name).expect("it was made")), binding.copied_bytes())
    };
    let (_, root, _) = step([numbers(3, 500), numbers(3, 501)], 0);
    let branches = [1, 2, 3].map(|run| (run, step(root.clone(), run)));
    for (run, (y, made, _)) in &branches {
        let [k, v] = &root;
        let wanted = Plain(&model).run([k, v], *run);
        is_near(elements(y), elements(&wanted[0]));
        assert_eq!(made.each_ref().map(elements), [elements(&wanted[1]), elements(&wanted[2])]);
    }
    let copied = branches.map(|(_, (_, _, copied))| copied);
    assert_eq!(copied, [0, 2 * 2 * 3 * 4 * 4 * 4, 2 * 2 * 3 * 4 * 4 * 4]);
}

#[test]
fn a_plan_with_room_is_left_where_less_input_needs_more_memory() {
    // A sum over 100 - n elements, which are in the arena: the more there are of x, the fewer.
    let model = Sketch::new(13)
        .input("x", &[-1])
        .input("w", &[1])
        .ints("hundred", &[100])
        .node("Shape", "x", "n")
        .node("Sub", "hundred n", "m")
        .node("ConstantOfShape", "m", "zeros")
        .node("Add", "zeros w", "all")
        .node_with("ReduceSum", "all", "sum", &[("keepdims", Attribute::Int(0))])
        .node("Mul", "x sum", "y")
        .output("y")
        .model();
    let session = Session::new(&model);
    for count in (1..100).chain([50, 2, 98]) {
        let x = Tensor::from_elements([count], &vec![2.0f32; count]).expect("as many as the shape says");
        let w = Tensor::from_elements([1], &[0.5f32]).expect("one");
        let y = session.run(&[("x", x.view()), ("w", w.view())]).expect("it runs").remove(0).1;
        assert_eq!(elements(&y), vec![(100 - count) as f32; count]);
    }
}

#[test]
fn within_a_limit_plans_have_no_room() {
    let model = decoder();
    let session = Session::with_options(&model, Options::new().max_mem(1 << 20));
    let [mut k, mut v] = [numbers(5, 1000), numbers(5, 1001)];
    for run in 0..10 {
        let new = new(run);
        let given =
            [("past_k", &k), ("past_v", &v)].into_iter().chain(new.iter().map(|(name, x)| (*name, x)));
        let given: Vec<_> = given.map(|(name, tensor)| (name, tensor.view())).collect();
        let made = session.run(&given).expect("it runs");
        (k, v) = (made[1].1.clone(), made[2].1.clone());
    }
    assert_eq!(session.plans_made(), 10);
}

#[test]
fn what_cannot_be_fed_back_is_an_error() {
    let model = decoder();
    let session = Session::new(&model);
    let mut binding = session.binding();
    assert!(binding.feed_back("k", "past").is_err(), "no such input");
    assert!(binding.feed_back("past_k", "past_k").is_err(), "no such output");
    binding.feed_back("k", "past_k").expect("there are such");
    assert!(binding.feed_back("v", "past_k").is_err(), "an input that is fed already");
    assert!(binding.feed_back("k", "past_v").is_err(), "an output that is fed back already");
    assert!(binding.take_output("k").is_err(), "nothing ran yet");
}
