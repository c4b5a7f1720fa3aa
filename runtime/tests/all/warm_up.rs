//! What is left for a first run after a warm-up.

use super::memory::{blocks, within};
use super::sketch::Sketch;
use super::wire::{attribute, graph, model, node, open_value, value};
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use stepalloc_graph::Attribute;
use stepalloc_runtime::operator::{
    Call, CustomOperators, Known, Operator, PackSpec, Prepacked, Types, Unclear, typed,
};
use stepalloc_runtime::{Arenas, DataType, Error, Model, OpError, Options, Session, Tensor, View};

/// `y` is the sum of each row of `x`, of open size, after some functions.
fn sums() -> Model {
    let axes = Tensor::from_elements([1], &[1i64]).expect("one");
    let sketch = Sketch::new(17).input("x", &[-1, -1]).tensor("axes", axes);
    let sketch = sketch.node("Softplus", "x", "a").node("Softmax", "a", "b").node("Mul", "a b", "c");
    sketch.node("ReduceSum", "c axes", "y").output("y").model()
}

fn of_type(shape: &[usize]) -> View<'_> {
    View { dtype: DataType::F32, shape, bytes: &[] }
}

fn ones(shape: &[usize]) -> Tensor {
    Tensor::from_elements(shape, &vec![1.0f32; shape.iter().product()]).expect("as many as the shape says")
}

/// Plans made, and arenas taken or made larger.
fn counts(session: &Session) -> (u64, u64) {
    (session.plans_made(), session.statistics().num_arena_extensions)
}

#[test]
fn first_runs_make_no_plan_and_take_no_arena() {
    let session = Session::new(&sums());
    let shapes = [[2usize, 300], [64, 500], [16, 16]];
    session.warm_up(&shapes.each_ref().map(|shape| [Some(of_type(shape))])).expect("they are as declared");
    assert_eq!(counts(&session), (3, 1), "a plan for each, and one arena for all");
    let largest = session.figures(&[Some(of_type(&shapes[1]))]).expect("a plan").arena_bytes;
    assert!(largest > 0);
    assert_eq!((session.statistics().total_allocated, session.statistics().in_use), (largest, 0));
    for shape in shapes {
        session.run(&[("x", ones(&shape).view())]).expect("it runs");
        assert_eq!(counts(&session), (3, 1), "{shape:?}");
    }
    session.run(&[("x", ones(&[3, 3]).view())]).expect("it runs");
    assert_eq!(counts(&session), (4, 1), "of a type that was not expected");
    // What is there already is not made again.
    session.warm_up(&[vec![Some(of_type(&shapes[0]))], vec![Some(of_type(&[3, 3]))]]).expect("as declared");
    assert_eq!(counts(&session), (4, 1));
}

#[test]
fn small_integers_that_decide_are_planned_for_with_their_elements() {
    // How often y is repeated is computed from n, and so known where n is.
    let graph = graph([
        open_value(11, "x", 1, 1),
        value(11, "n", 7, &[1]),
        node("Add", &["n", "n"], &["twice"]),
        node("Tile", &["x", "twice"], &["t"]),
        node("Cast", &["t"], &["y"]).message(5, &attribute("to", 2).number(3, 1)),
        open_value(12, "y", 1, 1),
    ]);
    let session = Session::new(&Model::from_bytes(model(&graph)).expect("a model"));
    let n = Tensor::from_elements([1], &[2i64]).expect("one");
    session.warm_up(&[[Some(of_type(&[5])), Some(n.view())]]).expect("as declared");
    let before = counts(&session);
    let made = session.run(&[("x", ones(&[5]).view()), ("n", n.view())]).expect("it runs");
    assert_eq!(made[0].1.ty().shape[..], [20]);
    assert_eq!(counts(&session), before);
}

#[test]
fn what_a_run_would_refuse_is_refused_and_so_are_more_plans_than_are_kept() {
    let model = sums();
    let session = Session::with_options(&model, Options::new().plans(2));
    let refused =
        |sets: &[[Option<View<'_>>; 1]]| session.warm_up(sets).expect_err("it is refused").to_string();
    assert_eq!(refused(&[[None]]), "input x is missing");
    assert_eq!(refused(&[[Some(of_type(&[2]))]]), "input x is float32[2]; the model takes float32[?, ?]");
    let sets = [[1, 1], [1, 2], [1, 3]];
    let sets = sets.each_ref().map(|shape| [Some(of_type(shape))]);
    assert!(refused(&sets).starts_with("3 sets of inputs want more plans than are kept, which are 2"));
    session.warm_up(&sets[1..]).expect("two");
    session.warm_up(&sets[..0]).expect("nothing to do");
    let limited = Session::with_options(&model, Options::new().max_mem(10_000));
    limited.warm_up(&[[Some(of_type(&[2, 300]))]]).expect("within the limit");
    assert!(limited.run(&[("x", ones(&[2, 300]).view())]).is_ok());
    let error = limited.warm_up(&[[Some(of_type(&[64, 500]))]]).expect_err("beyond");
    assert!(matches!(error, Error::Memory { .. }), "{error}");
    let arenas = Arenas::with_max_mem(10_000);
    let shared = Session::with_options(&model, Options::new().arenas(&arenas));
    assert!(matches!(shared.warm_up(&[[Some(of_type(&[64, 500]))]]), Err(Error::Memory { .. })));
    // No arena is kept, and so none is taken.
    let without = Session::with_options(&model, Options::new().memory_arena(false).arenas(&Arenas::new()));
    without.warm_up(&[[Some(of_type(&[64, 500]))]]).expect("as declared");
    assert_eq!(without.statistics().num_allocs, 0);
}

/// Minor faults of this thread so far.
fn faults() -> usize {
    let stat = std::fs::read_to_string("/proc/thread-self/stat").expect("a thread's figures");
    // Behind the name in brackets: state, and six numbers.
    let fields = stat.rsplit_once(')').expect("a name").1;
    fields.split_whitespace().nth(7).and_then(|field| field.parse().ok()).expect("a number")
}

/// Fills a large output, which lies in the arena, and counts the faults meanwhile.
struct Filling(Arc<AtomicUsize>);

impl Operator for Filling {
    fn infer(&self, _: &Known<'_>) -> Result<Types, Unclear> {
        Ok(Types::from_iter([typed(DataType::F32, [32, 1 << 18])?]))
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let elements = call.output(0)?.elements::<f32>();
        let before = faults();
        elements.fill(1.0);
        self.0.store(faults() - before, Ordering::Relaxed);
        Ok(())
    }
}

#[test]
fn a_first_run_faults_no_page_of_the_arena_in() {
    let graph = graph([
        value(11, "x", 1, &[1]),
        node("Filling", &["x"], &["large"]).text(7, "own"),
        node("ReduceMax", &["large"], &["y"]).message(5, &attribute("keepdims", 2).number(3, 0)),
        open_value(12, "y", 1, 0),
    ]);
    let first = |warm: bool| {
        let seen = Arc::new(AtomicUsize::new(usize::MAX));
        let count = Arc::clone(&seen);
        let operators =
            CustomOperators::new().with("own", "Filling", move |_| Ok(Box::new(Filling(Arc::clone(&count)))));
        let session = Session::new(&Model::from_bytes_with(model(&graph), &operators).expect("a model"));
        if warm {
            session.warm_up(&[[Some(of_type(&[1]))]]).expect("as declared");
        }
        assert_eq!(seen.load(Ordering::Relaxed), usize::MAX, "nothing has run");
        session.run(&[("x", ones(&[1]).view())]).expect("it runs");
        seen.load(Ordering::Relaxed)
    };
    // 32 MiB: 8,192 pages, or 16 where they are huge.
    assert!(first(false) >= 8);
    assert!(first(true) < 4);
}

/// The sum of its weights, which are packed as that.
struct Summed(Arc<AtomicUsize>);

impl Summed {
    fn sum<'p>(&self, prepacked: &'p Prepacked) -> Result<&'p f32, OpError> {
        prepacked.packed(|tensor, _| {
            self.0.fetch_add(1, Ordering::Relaxed);
            Ok(Arc::new(tensor.view().elements::<f32>().iter().sum::<f32>()))
        })
    }
}

impl Operator for Summed {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        Ok(Types::from_iter([inputs.ty(0)?.clone()]))
    }

    fn packs(&self, _: &Known<'_>) -> Option<PackSpec> {
        Some(PackSpec { input: 1, rows: 1, cols: 1, transposed: false, groups: 1, taps: 1 })
    }

    fn prepack(&self, prepacked: &Prepacked) -> Result<(), OpError> {
        self.sum(prepacked).map(drop)
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let sum = *self.sum(call.prepacked.ok_or_else(|| OpError::internal("nothing is packed"))?)?;
        call.map(|x: f32| x * sum)
    }
}

#[test]
fn constant_inputs_are_packed() {
    let weights = vec![0.5f32; 1000];
    let bytes: Vec<u8> = weights.iter().flat_map(|weight| weight.to_le_bytes()).collect();
    let graph = graph([
        open_value(11, "x", 1, 1),
        super::wire::tensor(5, "w", 1, &[1000]).bytes(9, &bytes),
        node("Summed", &["x", "w"], &["y"]).text(7, "own"),
        open_value(12, "y", 1, 1),
    ]);
    let packed = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&packed);
    let operators =
        CustomOperators::new().with("own", "Summed", move |_| Ok(Box::new(Summed(Arc::clone(&count)))));
    // Weights of a file are packed, and only these.
    let mut file = tempfile::NamedTempFile::new().expect("a file");
    file.write_all(&model(&graph)).expect("it is written");
    let session = Session::new(&Model::open_with(file.path(), &operators).expect("a model"));
    session.warm_up(&[[Some(of_type(&[2]))]]).expect("as declared");
    assert_eq!(packed.load(Ordering::Relaxed), 1);
    let made = session.run(&[("x", ones(&[2]).view())]).expect("it runs");
    assert_eq!(made[0].1.view().elements::<f32>(), [500.0; 2]);
    assert_eq!(packed.load(Ordering::Relaxed), 1);
}

#[test]
fn first_runs_of_products_and_convolutions_pack_nothing() {
    let ints = |ints: &[i64]| Attribute::Ints(ints.to_vec());
    let sketch = Sketch::new(17).input("x", &[1, 64, 24, 24]).ints("rows", &[-1, 64]);
    let sketch = sketch.weight("filters", &[64, 64, 3, 3]).weight("w", &[24, 64]).weight("v", &[64, 96]);
    let sketch = sketch
        .node_with("Conv", "x filters", "c", &[("pads", ints(&[1, 1, 1, 1]))])
        .node("MatMul", "c w", "m")
        .node("Reshape", "m rows", "r")
        .node("Gemm", "r v", "g")
        .node("ReduceMax", "g", "y")
        .output("y");
    let bytes = sketch.model().to_bytes().expect("it can be written");
    let x = ones(&[1, 64, 24, 24]);
    let session = |warm: bool| {
        let session = Session::new(&Model::from_bytes(bytes.clone()).expect("a model"));
        if warm {
            session.warm_up(&[[Some(x.view())]]).expect("as declared");
        }
        let packed = session.needs(&[Some(x.view())]).expect("a plan").packed_weight_bytes;
        assert!(packed > 64 * 64 * 9 * 4, "{packed} bytes are packed");
        session
    };
    let run = |session: &Session| session.run(&[("x", x.view())]).expect("it runs");
    let (warm, cold) = (session(true), session(false));
    // Less than the smallest of them takes.
    let (made, asked) = within(0, 0, 6000, || blocks(|| run(&warm)));
    let (wanted, asked_cold) = blocks(|| run(&cold));
    assert_eq!(made[0].1.view().bytes, wanted[0].1.view().bytes);
    assert!(asked < asked_cold, "{asked} and {asked_cold} blocks");
}
