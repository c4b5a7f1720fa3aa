//! What sessions share, what a limit counts, and what is given back.

use super::wire::{attribute, graph, model, node, open_value, tensor, value};
use std::io::Write;
use stepalloc_runtime::{
    Arenas, Cancel, DataType, Error, Level, Model, Optimization, Options, Profile, RunOptions, Session,
    Tensor, View, f16,
};

/// Bytes of the weight of [`small`], which count as long as a session of it has a limit.
const ONE: u64 = 4;

/// y = x + 1 followed by x; x + 1 is in the arena.
fn small() -> Model {
    let one = 1.0f32.to_le_bytes();
    let graph = graph([
        open_value(11, "x", 1, 1),
        tensor(5, "one", 1, &[]).bytes(9, &one),
        node("Add", &["x", "one"], &["t"]),
        node("Concat", &["t", "x"], &["y"]).message(5, &attribute("axis", 2).number(3, 0)),
        open_value(12, "y", 1, 1),
    ]);
    Model::from_bytes(model(&graph)).expect("a model")
}

/// The same where how much comes out depends on the elements.
fn picking() -> Model {
    let graph = graph([
        open_value(11, "x", 1, 1),
        node("NonZero", &["x"], &["places"]),
        node("Cast", &["places"], &["y"]).message(5, &attribute("to", 2).number(3, 1)),
        open_value(12, "y", 1, 2),
    ]);
    Model::from_bytes(model(&graph)).expect("a model")
}

fn floats(count: usize) -> Tensor {
    let elements: Vec<_> = (0..count).map(|index| (index % 7) as f32 + 1.0).collect();
    Tensor::from_elements([count], &elements).expect("as many as the shape says")
}

fn run(session: &Session, count: usize) -> Result<Vec<f32>, Error> {
    let outputs = session.run(&[("x", floats(count).view())])?;
    Ok(outputs[0].1.view().elements::<f32>().to_vec())
}

#[test]
fn sessions_of_one_model_share_their_arena_and_plans() {
    let model = small();
    let sessions: Vec<_> = (0..8).map(|_| Session::new(&model)).collect();
    for session in &sessions {
        assert_eq!(run(session, 1000).expect("it runs")[..3], [2.0, 3.0, 4.0]);
    }
    let statistics = sessions[0].statistics();
    assert_eq!((statistics.num_allocs, statistics.num_arena_extensions), (8, 1));
    assert_eq!(sessions[7].plans_made(), 1);
}

#[test]
fn bindings_hold_no_arena_between_runs() {
    let model = small();
    let sessions: Vec<_> = (0..4).map(|_| Session::new(&model)).collect();
    let mut bindings: Vec<_> = sessions.iter().map(Session::binding).collect();
    for binding in &mut bindings {
        binding.bind_input("x", floats(1000)).expect("it is as declared");
        binding.run().expect("it runs");
    }
    for binding in &mut bindings {
        binding.run().expect("it runs");
        assert_eq!(binding.output("y").expect("it was made").elements::<f32>()[..3], [2.0, 3.0, 4.0]);
    }
    assert_eq!(sessions[0].statistics().num_arena_extensions, 1);
}

#[test]
fn sessions_of_different_models_share_arenas_that_they_are_given() {
    let arenas = Arenas::new();
    let (one, other) = (small(), small());
    let options = Options::new().arenas(&arenas);
    let (one, other) = (Session::with_options(&one, options.clone()), Session::with_options(&other, options));
    run(&one, 1000).expect("it runs");
    run(&other, 5000).expect("it runs");
    run(&one, 1000).expect("it runs");
    let statistics = arenas.statistics();
    let kept = Session::new(&small());
    run(&kept, 5000).expect("it runs");
    assert_eq!(
        statistics.total_allocated,
        kept.statistics().total_allocated,
        "the larger one's arena, alone"
    );
    assert_eq!((statistics.num_allocs, statistics.in_use), (3, 0));
}

#[test]
fn threads_have_an_arena_each_and_right_results() {
    let model = small();
    let session = Session::new(&model);
    std::thread::scope(|scope| {
        for thread in 1..5usize {
            let session = &session;
            scope.spawn(move || {
                for turn in 0..50 {
                    let count = 100 * thread + turn;
                    let made = run(session, count).expect("it runs");
                    assert_eq!((made.len(), made[1], made[count]), (2 * count, 3.0, 1.0));
                }
            });
        }
    });
    assert_eq!(session.statistics().in_use, 0);
}

#[test]
fn a_limit_counts_arena_and_outputs_and_the_session_works_on_after_it() {
    let model = small();
    // 1000 elements: 4 kB in the arena, 8 kB of output.
    let session = Session::with_options(&model, Options::new().max_mem(13_000));
    assert_eq!(run(&session, 1000).expect("it is within the limit").len(), 2000);
    for count in [1_100, 1_000_000] {
        let error = run(&session, count).expect_err("it is beyond the limit");
        assert!(matches!(error, Error::Memory { .. }), "{error}");
        assert!(error.to_string().contains("max_mem allows 13000 bytes"), "{error}");
    }
    assert_eq!(run(&session, 1000).expect("it is within the limit").len(), 2000);
    let statistics = session.statistics();
    assert!(statistics.max_in_use <= 13_000 && statistics.in_use == ONE, "{statistics:?}");
}

#[test]
fn bound_outputs_count_as_long_as_they_are_the_sessions() {
    let model = small();
    let session = Session::with_options(&model, Options::new().max_mem(13_000));
    let mut binding = session.binding();
    binding.bind_input("x", floats(1000)).expect("it is as declared");
    binding.run().expect("it is within the limit");
    assert!(run(&session, 1000).is_err(), "the binding has eight of the thirteen thousand");
    binding.bind_input("x", floats(2000)).expect("it is as declared");
    assert!(binding.run().is_err());
    assert_eq!(binding.output("y").expect("that of the run before").len(), 2000);
    // The caller's memory does not count.
    binding.bind_output("y", floats(4000)).expect("there is such an output");
    binding.run().expect("only the arena counts");
    binding.clear_outputs();
    assert_eq!(session.statistics().in_use, ONE);
}

#[test]
fn what_cannot_be_planned_counts_when_it_runs() {
    let model = picking();
    let session = Session::with_options(&model, Options::new().max_mem(20_000));
    let mut made = session.run(&[("x", floats(1000).view())]).expect("12,000 bytes");
    assert_eq!(made.remove(0).1.view().shape, [1, 1000]);
    let error =
        session.run(&[("x", floats(2000).view())]).expect_err("16,000 bytes and 8,000 of what they become");
    assert!(error.to_string().contains("max_mem allows 20000 bytes"), "{error}");
    assert_eq!(session.statistics().in_use, 0);
    session.run(&[("x", floats(1000).view())]).expect("12,000 bytes");
}

#[test]
fn graphs_within_nodes_keep_to_the_limit() {
    // The sequence of all states, as long as the loop runs: its length is an input.
    let body = graph([
        value(11, "i", 7, &[]),
        value(11, "go", 9, &[]),
        node("Identity", &["go"], &["on"]),
        node("Expand", &["one", "size"], &["row"]),
        value(12, "on", 9, &[]),
        open_value(12, "row", 1, 1),
    ]);
    let graph = graph([
        value(11, "count", 7, &[]),
        tensor(5, "one", 1, &[1]).bytes(9, &1.0f32.to_le_bytes()),
        tensor(5, "size", 7, &[1]).bytes(9, &1000i64.to_le_bytes()),
        node("Loop", &["count", ""], &["y"]).message(5, &attribute("body", 5).message(6, &body)),
        open_value(12, "y", 1, 2),
    ]);
    let model = Model::from_bytes(model(&graph)).expect("a model");
    let session = Session::with_options(&model, Options::new().max_mem(100_000));
    let count = |count: i64| Tensor::from_elements([], &[count]).expect("one element");
    session.run(&[("count", count(5).view())]).expect("20,000 bytes");
    let error = session.run(&[("count", count(40).view())]).expect_err("160,000 bytes");
    assert!(error.to_string().contains("max_mem allows 100000 bytes"), "{error}");
    session.run(&[("count", count(5).view())]).expect("20,000 bytes");
}

/// A file with a weight of so many floats at an odd address, added to x.
fn file_with_weight(floats: usize) -> tempfile::NamedTempFile {
    let bytes: Vec<u8> = (0..floats).flat_map(|index| (index as f32).to_le_bytes()).collect();
    for name in ["w", "we", "wei", "weig"] {
        let graph = graph([
            value(11, "x", 1, &[floats]),
            tensor(5, name, 1, &[floats]).bytes(9, &bytes),
            node("Add", &["x", name], &["y"]),
            value(12, "y", 1, &[floats]),
        ]);
        let made = model(&graph);
        // Mappings begin at whole pages.
        let at = made.windows(64).position(|window| window == &bytes[..64]).expect("it is there");
        if !at.is_multiple_of(4) {
            let mut file = tempfile::NamedTempFile::new().expect("a file");
            file.write_all(&made).expect("it is written");
            return file;
        }
    }
    panic!("a name that is longer by one moves the weight by one");
}

#[test]
fn weights_at_odd_addresses_are_copied_when_they_are_used_and_count() {
    let file = file_with_weight(100_000);
    let model = Model::open(file.path()).expect("a model");
    let weight = model.graph.weights().remove(0);
    assert!(!weight.is_lent() && weight.own_bytes() == 0, "nobody used it yet");
    let x = floats(100_000);
    let limited =
        |bytes| Session::with_options(&model, Options::new().max_mem(bytes)).run(&[("x", x.view())]);
    assert!(limited(399_999).is_err_and(|error| error.to_string().contains("max_mem")));
    assert_eq!(weight.own_bytes(), 0, "it is refused before it is copied");
    assert!(limited(799_999).is_err_and(|error| error.to_string().contains("max_mem")));
    let outputs = limited(800_000).expect("a copy of the weight, and the output");
    assert_eq!(
        outputs[0].1.view().elements::<f32>()[99_999],
        99_999.0 + floats(100_000).view().elements::<f32>()[99_999]
    );
    assert_eq!(weight.own_bytes(), 400_000);
}

#[test]
fn a_file_that_is_opened_again_is_the_same_model() {
    let file = file_with_weight(1000);
    let (one, other) =
        (Model::open(file.path()).expect("a model"), Model::open(file.path()).expect("a model"));
    assert!(std::ptr::eq(&*one.graph, &*other.graph));
    let x = floats(1000);
    for model in [&one, &other] {
        Session::new(model).run(&[("x", x.view())]).expect("it runs");
    }
    assert_eq!(one.graph.weights()[0].view().bytes.as_ptr(), other.graph.weights()[0].view().bytes.as_ptr());
    drop((one, other));
    assert!(Model::open(file.path()).is_ok(), "it is read anew");
}

#[test]
fn memory_goes_back_when_it_is_asked_to() {
    let model = small();
    let session = Session::new(&model);
    run(&session, 1000).expect("it runs");
    assert!(session.statistics().total_allocated > 0);
    session.release_memory();
    assert_eq!(session.statistics().total_allocated, 0);
    let x = floats(1000);
    let shrink = RunOptions::new().memory_arena_shrinkage(true);
    session.run_with(&[("x", x.view())], shrink).expect("it runs");
    let statistics = session.statistics();
    assert_eq!((statistics.total_allocated, statistics.num_arena_shrinkages), (0, 2));
    let never = Session::with_options(&model, Options::new().memory_arena(false).max_mem(1 << 20));
    run(&never, 1000).expect("it runs");
    assert_eq!(never.statistics().total_allocated, ONE);
}

#[test]
fn the_plan_that_was_used_longest_ago_goes() {
    for (plans, made) in [(1, 4), (2, 3), (3, 3)] {
        let model = small();
        let session = Session::with_options(&model, Options::new().plans(plans));
        for count in [100, 200, 200, 350, 200] {
            run(&session, count).expect("it runs");
        }
        assert_eq!(session.plans_made(), made, "of {plans} kept");
    }
}

#[test]
fn branches_run_one_after_the_other_where_the_file_has_them_side_by_side() {
    // Four branches that make eight times as much of x, and a sum of each: first all large ones, then the sums.
    let mut parts = vec![
        value(11, "x", 1, &[1, 1000]),
        tensor(5, "repeats", 7, &[2]).bytes(9, &[8i64.to_le_bytes(), 1i64.to_le_bytes()].concat()),
    ];
    let names = |stem: &str| (0..4).map(|branch| format!("{stem}{branch}")).collect::<Vec<_>>();
    let (large, sums) = (names("large"), names("sum"));
    parts.extend(large.iter().map(|name| node("Tile", &["x", "repeats"], &[name])));
    parts.extend(large.iter().zip(&sums).map(|(large, sum)| node("ReduceSum", &[large], &[sum])));
    parts.push(node("Sum", &sums.iter().map(String::as_str).collect::<Vec<_>>(), &["y"]));
    parts.push(value(12, "y", 1, &[1, 1]));
    let model = Model::from_bytes(model(&graph(parts))).expect("a model");
    let session = Session::new(&model);
    let x = Tensor::from_elements([1, 1000], &[1.0f32; 1000]).expect("a thousand");
    let figures = session.figures(&[Some(x.view())]).expect("a plan");
    assert!(figures.lower_bound_bytes < 2 * 32_000, "{figures:?}");
    let outputs = session.run(&[("x", x.view())]).expect("it runs");
    assert_eq!(outputs[0].1.view().elements::<f32>(), [32_000.0]);
}

#[test]
fn types_alone_tell_what_a_run_counts_as_far_as_elements_do_not_decide() {
    let session = Session::new(&small());
    let by_type = |shape: &'static [usize]| View { dtype: DataType::F32, shape, bytes: &[] };
    let wanted = session.wanted_bytes(&[Some(floats(1024).view())]).expect("a plan");
    assert_eq!(session.wanted_bytes(&[Some(by_type(&[1024]))]).expect("a plan"), wanted);
    let large = session.wanted_bytes(&[Some(by_type(&[1024 << 30]))]).expect("a plan");
    assert_eq!(large - ONE, (wanted - ONE) << 30);
    // As many zeros as s says.
    let graph = graph([
        open_value(11, "s", 7, 1),
        node("ConstantOfShape", &["s"], &["zeros"]),
        node("Abs", &["zeros"], &["y"]),
        open_value(12, "y", 1, 1),
    ]);
    let session = Session::new(&Model::from_bytes(model(&graph)).expect("a model"));
    let s = Tensor::from_elements([1], &[1000i64]).expect("one");
    assert_eq!(session.wanted_bytes(&[Some(s.view())]).expect("a plan"), 4000);
    let by_type = View { bytes: &[], ..s.view() };
    assert!(session.figures(&[Some(by_type)]).expect("a plan").unplanned_nodes > 0);
}

#[test]
fn inputs_whose_bytes_are_not_their_elements_are_refused() {
    let session = Session::new(&small());
    let x = floats(8);
    let refused = |inputs: &[(&str, View<'_>)], why: &str| {
        let error = session.run(inputs).expect_err("not its elements").to_string();
        assert!(error.contains("input x") && error.contains(why), "{error}");
    };
    let (bytes, shape) = (x.view().bytes, &[4][..]);
    refused(&[("x", View { shape, bytes: &bytes[1..17], ..x.view() })], "multiple of 4");
    refused(&[("x", View { shape, bytes: &[], ..x.view() })], "0 bytes");
    refused(&[("x", View { shape: &[usize::MAX, 4], ..x.view() })], "32 bytes");
    refused(&[("x", x.view()), ("x", x.view())], "twice");
    assert!(session.run(&[("x", View { shape, bytes: &bytes[4..20], ..x.view() })]).is_ok());
}

/// Zeros, as many as `s` says, beside something of any length.
fn beside() -> Session {
    let graph = graph([
        open_value(11, "s", 7, 1),
        open_value(11, "x", 1, 1),
        node("ConstantOfShape", &["s"], &["zeros"]),
        node("Concat", &["zeros", "x"], &["y"]).message(5, &attribute("axis", 2).number(3, 0)),
        open_value(12, "y", 1, 1),
    ]);
    Session::new(&Model::from_bytes(model(&graph)).expect("a model"))
}

#[test]
fn integers_that_decide_are_followed_for_any_number_of_shapes() {
    let session = beside();
    let unplanned = |s: i64, count: usize| {
        let (s, x) = (Tensor::from_elements([1], &[s]).expect("one"), floats(count));
        session.run(&[("s", s.view()), ("x", x.view())]).expect("it runs");
        session.figures(&[Some(s.view()), Some(x.view())]).expect("a plan").unplanned_nodes
    };
    for count in 1..200 {
        assert_eq!(unplanned(5, count), 0, "{count}");
    }
    // Where they are others each time they are data; what was told before still is.
    for s in 1..200 {
        unplanned(s, 1);
    }
    assert!(unplanned(1000, 1) > 0);
    assert_eq!((unplanned(5, 1), unplanned(5, 500)), (0, 0));
}

#[test]
fn a_cancelled_run_is_an_error_and_the_next_one_is_not() {
    let session = Session::new(&small());
    let (cancel, x) = (Cancel::new(), floats(1000));
    let run = || session.run_with(&[("x", x.view())], RunOptions::new().cancel(&cancel));
    std::thread::scope(|scope| drop(scope.spawn(|| cancel.cancel())));
    assert!(matches!(run(), Err(Error::Cancelled)));
    assert_eq!(session.statistics().in_use, 0);
    cancel.reset();
    assert!(run().is_ok());
}

#[test]
fn a_loop_without_an_end_is_cancelled_from_another_thread() {
    for nodes in [vec![], vec![node("Add", &["state", "state"], &["next"])]] {
        let next = if nodes.is_empty() { "state" } else { "next" };
        let values = [value(11, "i", 7, &[]), value(11, "go", 9, &[]), open_value(11, "state", 1, 1)];
        let outputs = [value(12, "go", 9, &[]), open_value(12, next, 1, 1)];
        let body = graph(values.into_iter().chain(nodes).chain(outputs));
        let graph = graph([
            open_value(11, "x", 1, 1),
            tensor(5, "yes", 9, &[]).bytes(9, &[1]),
            node("Loop", &["", "yes", "x"], &["y"]).message(5, &attribute("body", 5).message(6, &body)),
            open_value(12, "y", 1, 1),
        ]);
        let session = Session::new(&Model::from_bytes(model(&graph)).expect("a model"));
        let (cancel, x) = (Cancel::new(), floats(1000));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(std::time::Duration::from_millis(50));
                cancel.cancel();
            });
            let done = session.run_with(&[("x", x.view())], RunOptions::new().cancel(&cancel));
            assert!(matches!(done, Err(Error::Cancelled)), "{:?}", done.map(drop));
        });
        assert_eq!(session.statistics().in_use, 0);
    }
}

/// For tests that make threads, or count them.
static THREADS: std::sync::Mutex<()> = std::sync::Mutex::new(());

/// Threads of this process that sessions have made for themselves.
fn own_threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").expect("the kernel tells");
    let name = |task: std::io::Result<std::fs::DirEntry>| {
        std::fs::read_to_string(task.ok()?.path().join("comm")).ok()
    };
    tasks.filter_map(name).filter(|name| name.starts_with("stepalloc-")).count()
}

#[test]
fn a_session_has_the_threads_it_is_told_from_its_first_run_to_its_end() {
    let _alone = THREADS.lock();
    let options = Options::new().intra_op_num_threads(2).compilation_num_threads(3);
    let session = Session::with_options(&small(), options);
    let wait_for = |count: usize| {
        // Threads end some time after they were told to.
        let began = std::time::Instant::now();
        while own_threads() != count && began.elapsed().as_secs() < 10 {
            std::thread::yield_now();
        }
        assert_eq!(own_threads(), count);
    };
    wait_for(0);
    assert_eq!(run(&session, 1000).expect("it runs")[..3], [2.0, 3.0, 4.0]);
    wait_for(2);
    drop(session);
    wait_for(0);
}

#[test]
fn scratch_memory_is_for_the_threads_of_runs_not_of_planning() {
    let _alone = THREADS.lock();
    let graph = graph([
        open_value(11, "x", 1, 4),
        tensor(5, "w", 1, &[32, 8, 3, 3]).bytes(9, &1.0f32.to_le_bytes().repeat(32 * 8 * 9)),
        node("Conv", &["x", "w"], &["y"]),
        open_value(12, "y", 1, 4),
    ]);
    let model = Model::from_bytes(model(&graph)).expect("a model");
    let x =
        Tensor::from_elements([1, 8, 100, 100], &[1.0f32; 8 * 100 * 100]).expect("as many as the shape says");
    let arena = |runs: usize, planning: usize| {
        let options = Options::new().intra_op_num_threads(runs).compilation_num_threads(planning);
        let session = Session::with_options(&model, options);
        let outputs = session.run(&[("x", x.view())]).expect("it runs");
        assert!(outputs[0].1.view().elements::<f32>().iter().all(|&sum| sum == 72.0));
        session.figures(&[Some(x.view())]).expect("it is planned").arena_bytes
    };
    let one = arena(1, 0);
    assert!(one > 0);
    for (runs, planning) in [(1, 4), (4, 0), (4, 1), (4, 2)] {
        let (arena, most) = (arena(runs, planning), runs as u64 * one);
        // Each block is rounded up to 64 bytes, but cores' shares of one are not.
        assert!(
            arena <= most && most - arena <= 64 * runs as u64,
            "{arena} for {runs} planned on {planning}, {one} for one"
        );
    }
}

#[test]
fn graphs_within_nodes_have_scratch_memory_for_the_threads_of_the_run_around() {
    let _alone = THREADS.lock();
    let body = graph([
        value(11, "i", 7, &[]),
        value(11, "go", 9, &[]),
        node("Identity", &["go"], &["on"]),
        node("Conv", &["x", "w"], &["sums"]),
        value(12, "on", 9, &[]),
        open_value(12, "sums", 1, 4),
    ]);
    let graph = graph([
        open_value(11, "x", 1, 4),
        value(11, "count", 7, &[]),
        tensor(5, "w", 1, &[32, 8, 3, 3]).bytes(9, &1.0f32.to_le_bytes().repeat(32 * 8 * 9)),
        node("Loop", &["count", ""], &["y"]).message(5, &attribute("body", 5).message(6, &body)),
        open_value(12, "y", 1, 5),
    ]);
    let model = Model::from_bytes(model(&graph)).expect("a model");
    let x =
        Tensor::from_elements([1, 8, 100, 100], &[1.0f32; 8 * 100 * 100]).expect("as many as the shape says");
    let count = Tensor::from_elements([], &[2i64]).expect("one element");
    // Sessions that are there at the same time have the graph within the node in common. Nothing else takes bytes of an arena.
    let session = |runs: usize| {
        let options = Options::new().intra_op_num_threads(runs).arenas(&Arenas::new());
        Session::with_options(&model, options)
    };
    let sessions = [session(1), session(4), session(1)];
    let scratch = sessions.each_ref().map(|session| {
        let outputs = session.run(&[("x", x.view()), ("count", count.view())]).expect("it runs");
        assert!(outputs[0].1.view().elements::<f32>().iter().all(|&sum| sum == 72.0));
        session.statistics().max_alloc_size
    });
    let [one, four, again] = scratch;
    assert!(one > 0 && four <= 4 * one && 4 * one - four <= 4 * 64, "{four} for four threads, {one} for one");
    assert_eq!(again, one);
}

/// y = x w, where w has 256 rows and 1024 columns, a megabyte, or half of one that is cast; in a file, `shift` bytes from where it would else
/// be.
fn product(shift: usize, of_halves: bool) -> tempfile::NamedTempFile {
    let numbers = (0..256 * 1024).map(|at| (at % 13) as f32 - 6.0);
    let name = "w".repeat(1 + shift);
    let weights = if of_halves {
        let halves: Vec<u8> = numbers.flat_map(|number| f16::from_f32(number).to_le_bytes()).collect();
        let to_f32 = attribute("to", 2).number(3, 1);
        vec![
            tensor(5, &name, 10, &[256, 1024]).bytes(9, &halves),
            node("Cast", &[&name], &["f"]).message(5, &to_f32),
            node("MatMul", &["x", "f"], &["y"]),
        ]
    } else {
        let floats: Vec<u8> = numbers.flat_map(f32::to_le_bytes).collect();
        vec![tensor(5, &name, 1, &[256, 1024]).bytes(9, &floats), node("MatMul", &["x", &name], &["y"])]
    };
    let (x, y) = (open_value(11, "x", 1, 2), open_value(12, "y", 1, 2));
    let graph = graph([x].into_iter().chain(weights).chain([y]));
    let mut file = tempfile::NamedTempFile::new().expect("a file");
    file.write_all(&model(&graph)).expect("it is written");
    file
}

/// Bytes of a mapped file that are in memory.
fn resident(file: &tempfile::NamedTempFile) -> u64 {
    let (path, mut within, mut bytes) = (file.path().to_str().expect("text"), false, 0);
    for line in std::fs::read_to_string("/proc/self/smaps").expect("the kernel tells").lines() {
        if let Some(size) = line.strip_prefix("Rss:").filter(|_| within) {
            let kibibytes: u64 = size.trim().trim_end_matches(" kB").parse().expect("a number");
            bytes += kibibytes << 10;
        } else if line.split(' ').next().is_some_and(|range| range.contains('-')) {
            within = line.ends_with(path);
        }
    }
    bytes
}

#[test]
fn packed_factors_take_the_place_of_the_file_s_pages() {
    let elements: Vec<_> = (0..4 * 256).map(|at| (at % 5) as f32).collect();
    let x = Tensor::from_elements([4, 256], &elements).expect("as many as the shape says");
    // One of these shifts, at least, has the weight where it is used in place, and one where it is not.
    for (shift, of_halves) in (0..4).flat_map(|shift| [(shift, false), (shift, true)]) {
        let file = product(shift, of_halves);
        let model = Model::open(file.path()).expect("a model");
        let needs = Session::new(&model).needs(&[Some(x.view())]).expect("it can be planned");
        assert!(needs.packed_weight_bytes >= 1 << 20 && needs.copied_weight_bytes == 0, "{needs:?}");
        let product = |options: Options| {
            let session = Session::with_options(&model, options);
            let outputs = session.run(&[("x", x.view())]).expect("it runs");
            let elements = outputs[0].1.view().elements::<f32>().to_vec();
            (elements, resident(&file))
        };
        let (packed, resident) = product(Options::new());
        assert!(resident <= 256 << 10, "{resident} bytes of the file are in memory");
        let (plain, _) = product(Options::new().prepacking(false));
        let (limited, _) = product(Options::new().max_mem(64 << 20));
        assert_eq!(packed, plain);
        assert_eq!(packed, limited);
        assert!(
            (packed[3]
                - (0..256).map(|k| (k % 5) as f32 * (((k * 1024 + 3) % 13) as f32 - 6.0)).sum::<f32>())
            .abs()
                < 1e-2
        );
    }
}

#[test]
fn a_profile_adds_up_what_nodes_take() {
    let options = Options::new().optimization(&Optimization::new(Level::Disable));
    let session = Session::with_options(&small(), options);
    let mut profile = Profile::new();
    for count in [1000, 1000, 10] {
        let x = floats(count);
        session.run_with(&[("x", x.view())], RunOptions::new().profile(&mut profile)).expect("it runs");
        let nodes: Vec<_> = profile.nodes.iter().map(|node| (&node.op_type[..], node.output_bytes)).collect();
        assert_eq!(nodes, [("Add", 4 * count as u64), ("Concat", 8 * count as u64)]);
    }
    // The newest plan is another one.
    assert_eq!(profile.runs, 1);
}
