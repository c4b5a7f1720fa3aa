//! The reader against files that mean harm: an error, never a crash, nor more memory than ten times the file and 16 MiB
//! (`onnx::weigh`; functions in place of their calls: 64 MiB).
//!
//! Peaks are those of this binary's allocator, for each thread alone; grown blocks count twice while they are copied.

use super::memory;
use super::wire::{
    self, Message, attribute, graph, model, model_of, model_with, node, open_value, opset, tensor, value,
};
use stepalloc_runtime::{Error, Model, Session, Tensor};

/// What is allowed beside ten times the file.
const BASE: usize = 16 << 20;
/// The same of files of a few hundred bytes that were damaged: they have no room for harm.
const SMALL: usize = 256 << 10;

/// Reads it, and asserts what it took at most.
fn read(file: Vec<u8>, base: usize) -> Result<Model, Error> {
    within(file.len(), base, || Model::from_bytes(file))
}

/// Reads a file of so many bytes, and asserts what it took at most.
fn within(bytes: usize, base: usize, read: impl FnOnce() -> Result<Model, Error>) -> Result<Model, Error> {
    memory::within(bytes, 10, base, read)
}

/// Reads it, and plans it if it is a model.
fn read_and_plan(file: Vec<u8>, base: usize) -> bool {
    let Ok(model) = read(file, base) else { return false };
    let inputs = model.graph.inputs.len();
    // Inputs without a value are missing: it is an error, or there are none.
    let _ = Session::new(&model).figures(&vec![None; inputs]);
    true
}

/// Numbers that only look random (xorshift64), the same each time.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound.max(1) as u64) as usize
    }
}

/// Small models with something of everything.
fn seeds() -> Vec<Vec<u8>> {
    let floats: Vec<u8> = (0..64u32).flat_map(|index| (index as f32).to_le_bytes()).collect();
    let chain = graph([
        value(11, "x", 1, &[1, 64]),
        value(12, "y", 1, &[1, 64]),
        tensor(5, "w", 1, &[64]).bytes(9, &floats),
        tensor(5, "b", 1, &[4]).bytes(4, &floats[..16]),
        tensor(5, "s", 7, &[2]).bytes(7, &[1, 64]),
        node("Reshape", &["w", "s"], &["r"]),
        node("Add", &["x", "r"], &["t"]).text(3, "the sum"),
        node("Softmax", &["t"], &["u"]).message(5, &attribute("axis", 2).number(3, 1)),
        node("Transpose", &["u"], &["v"]).message(5, &attribute("perm", 7).number(8, 0).number(8, 1)),
        node("Relu", &["v"], &["y"]),
    ]);
    let branch = |name: &str| graph([node("Add", &["x", "k"], &[name]), value(12, name, 1, &[4])]);
    let branches = graph([
        value(11, "x", 1, &[4]),
        value(11, "c", 9, &[]),
        value(12, "y", 1, &[4]),
        node("Constant", &[], &["k"]).message(
            5,
            &attribute("value", 4).message(5, &tensor(5, "", 1, &[4]).bytes(9, &floats[..16]).alone()),
        ),
        node("If", &["c"], &["y"])
            .message(5, &attribute("then_branch", 5).message(6, &branch("a")))
            .message(5, &attribute("else_branch", 5).message(6, &branch("b"))),
    ]);
    let function = Message::new()
        .text(1, "Twice")
        .text(10, "own")
        .text(4, "p")
        .text(5, "q")
        .message(7, &node("Add", &["p", "p"], &["q"]).alone())
        .message(9, &Message::new().number(2, 17));
    let calls = graph([
        value(11, "x", 1, &[4]),
        value(12, "y", 1, &[4]),
        node("Twice", &["x"], &["t"]).text(7, "own"),
        node("Twice", &["t"], &["y"]).text(7, "own"),
    ]);
    let outside = graph([
        value(12, "y", 1, &[1 << 20]),
        tensor(5, "w", 1, &[1 << 20])
            .message(13, &Message::new().text(1, "location").text(2, "weights.bin"))
            .message(13, &Message::new().text(1, "offset").text(2, "4096"))
            .number(14, 1),
        node("Relu", &["w"], &["y"]),
    ]);
    vec![model(&chain), model(&branches), model_of(&calls, &[(25, function)]), model(&outside)]
}

#[test]
fn whole_seeds_are_models() {
    let seeds = seeds();
    for (index, seed) in seeds[..3].iter().enumerate() {
        let read = read(seed.clone(), SMALL);
        assert!(read.is_ok(), "seed {index}: {:?}", read.err());
    }
    assert!(read(seeds[3].clone(), SMALL).is_err_and(|error| error.to_string().contains("initializer w")));
}

#[test]
fn every_truncation_is_an_error_or_a_model() {
    for seed in seeds() {
        for end in 0..seed.len() {
            read_and_plan(seed[..end].to_vec(), SMALL);
        }
    }
}

/// Does some damage to one of these files.
fn damaged(seeds: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    let mut file = seeds[random.below(seeds.len())].clone();
    for _ in 0..=random.below(4) {
        let at = random.below(file.len());
        match random.below(7) {
            0 => file[at] ^= 1 << random.below(8),
            1 => file[at] = random.below(256) as u8,
            2 => file.truncate(at.max(1)),
            // A varint of any length, over what is there or between it.
            3 => {
                let huge = wire::varint(u64::MAX >> random.below(64));
                let end = if random.below(2) == 0 { at } else { (at + huge.len()).min(file.len()) };
                file.splice(at..end, huge);
            }
            // A part of another file, or of this one again.
            4 | 5 => {
                let other = &seeds[random.below(seeds.len())];
                let from = random.below(other.len());
                let part = other[from..(from + 1 + random.below(64)).min(other.len())].to_vec();
                file.splice(at..at, part);
            }
            _ => {
                let end = (at + 1 + random.below(16)).min(file.len());
                file.drain(at..end);
            }
        }
        if file.is_empty() {
            break;
        }
    }
    file
}

#[test]
fn damaged_files_are_errors_or_models() {
    let (seeds, mut random) = (seeds(), Random(0x5DEE_CE66));
    let models = (0..20_000).filter(|_| read_and_plan(damaged(&seeds, &mut random), SMALL)).count();
    assert!(models > 100, "only {models} damaged files could still be read");
}

/// With `STEPALLOC_SEEDS=DIR`, and `--ignored`: the same with the models below a directory, a hundred turns for each.
#[test]
#[ignore = "minutes; needs a directory of models"]
fn damaged_models_of_a_directory_are_errors_or_models() {
    let directory = std::env::var_os("STEPALLOC_SEEDS").expect("STEPALLOC_SEEDS is a directory of models");
    let found = stepalloc_runtime::conformance::tests(directory.as_ref()).expect("it can be read");
    let files = found.iter().map(|test| std::fs::read(test.join("model.onnx")).expect("it can be read"));
    let seeds: Vec<_> = files.filter(|file| file.len() < 64 << 10).collect();
    let mut random = Random(0x0DDB_1A5E);
    let models =
        (0..100 * seeds.len()).filter(|_| read_and_plan(damaged(&seeds, &mut random), 8 << 20)).count();
    println!("{models} could still be read");
}

#[test]
fn random_bytes_are_no_models() {
    let mut random = Random(0xC0FF_EE11);
    for _ in 0..2_000 {
        let length = random.below(300);
        let file: Vec<u8> = (0..length).map(|_| random.below(256) as u8).collect();
        let _ = read(file, SMALL);
    }
}

/// A graph with so many copies of a field.
fn repeated(count: usize, field: &Message) -> Vec<u8> {
    model(&graph([]).bytes_raw(&field.bytes_of().repeat(count)))
}

#[test]
fn messages_of_few_bytes_do_not_become_many() {
    let empty = Message::new();
    // One of each is small; what they become is not.
    let in_graph = [1, 5, 11, 12, 13, 14, 15, 16].map(|field| Message::new().message(field, &empty));
    let names =
        Message::new().message(1, &(0..200).fold(Message::new().text(4, "Sum"), |node, _| node.text(1, "")));
    let attributes = Message::new()
        .message(1, &(0..200).fold(Message::new().text(4, "Abs"), |node, _| node.message(5, &empty)));
    let dims = Message::new().message(5, &Message::new().bytes(1, &[1; 100]).text(8, "w"));
    let strings = Message::new().message(5, &(0..100).fold(Message::new(), |tensor, _| tensor.bytes(6, &[])));
    let sharding =
        Message::new().message(1, &(0..100).fold(Message::new(), |node, _| node.message(10, &empty)));
    let types = Message::new()
        .message(1, &Message::new().message(5, &(0..100).fold(Message::new(), |a, _| a.message(15, &empty))));
    let shapes = Message::new().message(
        13,
        &Message::new().message(
            2,
            &Message::new().message(
                1,
                &Message::new().message(2, &(0..100).fold(Message::new(), |s, _| s.message(1, &empty))),
            ),
        ),
    );
    for field in in_graph.iter().chain([&names, &attributes, &dims, &strings, &sharding, &types, &shapes]) {
        for power in 6..18 {
            let count = (1usize << power) + 1;
            if count * field.len() < 4 << 20 {
                let _ = read(repeated(count, field), BASE);
            }
        }
        let error = read(repeated((3 << 20) / field.len(), field), BASE).expect_err("too small to be true");
        let _ = error.to_string();
    }
    for (field, count) in [(8, 1 << 20), (14, 1 << 20), (25, 1 << 20), (20, 1 << 18), (26, 1 << 20)] {
        let many = Message::new().message(field, &empty).bytes_of().repeat(count);
        assert!(
            read(model_of(&graph([]), &[]).into_iter().chain(many).collect(), BASE).is_err(),
            "field {field}"
        );
    }
}

#[test]
fn models_that_are_right_take_no_more_than_they_may() {
    for count in [100, 1_000, 10_000, 20_000, 100_000] {
        let read = read(model(&chain(count, "/a/module/of/a/network/layer.", "/Relu_output_0")), BASE);
        assert!(read.is_ok(), "{count} nodes: {:?}", read.err());
    }
    // Of short names there is a bound, below which they take what they may.
    for count in (4..40).map(|thousands| thousands * 1_000) {
        let read = read(model(&chain(count, "", "")), BASE);
        assert!(read.is_ok() || count > 10_000, "{count} nodes: {:?}", read.err());
    }
}

/// So many nodes in a row; a value's name is its number between two texts.
fn chain(count: usize, before: &str, after: &str) -> Message {
    let name = |index: usize| format!("{before}{index}{after}");
    let nodes =
        (0..count).map(|index| node("Relu", &[&name(index)], &[&name(index + 1)]).text(3, &name(index)));
    let ends = [value(11, &name(0), 1, &[4]), value(12, &name(count), 1, &[4])];
    graph(nodes.chain(ends))
}

#[test]
fn a_hundred_thousand_nodes_may_have_all_weights_in_another_file() {
    const COUNT: usize = 100_000;
    let folder = tempfile::tempdir().expect("a directory");
    // A kilobyte each, which nobody reads.
    let weights = std::fs::File::create(folder.path().join("weights.bin")).expect("a file");
    weights.set_len(COUNT as u64 * 1024).expect("it has no pages");
    let name = |index: usize| format!("/model/layers.{}/block.{}/Add_output_0", index / 100, index % 100);
    let weight = |index: usize| format!("model.layers.{}.block.{}.bias", index / 100, index % 100);
    let nodes = (0..COUNT)
        .map(|index| node("Add", &[&name(index), &weight(index)], &[&name(index + 1)]).text(3, &name(index)));
    let weights = (0..COUNT).map(|index| {
        let entry = |key: &str, value: &str| Message::new().text(1, key).text(2, value);
        tensor(5, &weight(index), 1, &[256])
            .message(13, &entry("location", "weights.bin"))
            .message(13, &entry("offset", &(index * 1024).to_string()))
            .message(13, &entry("length", "1024"))
            .number(14, 1)
    });
    let ends = [value(11, &name(0), 1, &[256]), value(12, &name(COUNT), 1, &[256])];
    let (file, path) = (model(&graph(nodes.chain(weights).chain(ends))), folder.path().join("model.onnx"));
    std::fs::write(&path, &file).expect("a file");
    let model = within(file.len(), BASE, || Model::open(&path)).expect("a model");
    assert_eq!(model.graph.nodes.len(), COUNT);
}

#[test]
fn elements_of_one_byte_in_the_file_may_take_what_they_must() {
    for count in [1_000, 100_000, 300_000] {
        let numbers = graph([
            tensor(5, "w", 7, &[count]).bytes(7, &vec![1; count]),
            node("Abs", &["w"], &["y"]),
            value(12, "y", 7, &[count]),
        ]);
        assert!(read(model(&numbers), BASE).is_ok(), "{count}");
    }
    let _ = read(model(&graph([tensor(5, "w", 7, &[4 << 20]).bytes(7, &vec![1; 4 << 20])])), BASE);
    let _ = read(model(&graph([tensor(5, "w", 3, &[4 << 20]).bytes(5, &vec![1; 4 << 20])])), BASE);
}

#[test]
fn tensors_larger_than_their_elements_are_refused() {
    let billion = 1usize << 30;
    for dims in [
        vec![billion],
        vec![billion, billion],
        vec![usize::MAX / 2],
        vec![0, usize::MAX],
        vec![usize::MAX; 9],
    ] {
        for dtype in [1, 2, 3, 6, 7, 9, 10, 11, 21, 22, 23] {
            for data in [
                Message::new(),
                Message::new().bytes(9, &[0; 8]),
                Message::new().bytes(7, &[1]),
                Message::new().bytes(5, &[1]),
            ] {
                let tensor = tensor(5, "w", dtype, &dims).also(&data);
                let read = read(model(&graph([tensor])), SMALL);
                assert!(read.is_err() || dims.contains(&0), "{dims:?} of type {dtype}");
            }
        }
    }
}

#[test]
fn sizes_beyond_all_memory_are_errors_of_planning_or_running() {
    let huge: Vec<u8> = (1i64 << 46).to_le_bytes().into();
    let fill = graph([
        tensor(5, "s", 7, &[1]).bytes(9, &huge),
        node("ConstantOfShape", &["s"], &["y"]),
        value(12, "y", 1, &[]),
    ]);
    let model = read(model(&fill), SMALL).expect("a model");
    assert!(Session::new(&model).run(&[]).is_err());
}

#[test]
fn deep_nesting_is_an_error() {
    for depth in [10, 30, 33, 34, 100, 10_000] {
        let mut inner = graph([node("Relu", &["x"], &["y"]), value(12, "y", 1, &[4])]);
        for _ in 0..depth {
            let holder = node("If", &["c"], &["y"])
                .message(5, &attribute("then_branch", 5).message(6, &inner))
                .message(
                    5,
                    &attribute("else_branch", 5)
                        .message(6, &graph([node("Relu", &["x"], &["y"]), value(12, "y", 1, &[4])])),
                );
            inner = graph([holder, value(12, "y", 1, &[4])]);
            if inner.len() > 2 << 20 {
                break;
            }
        }
        let whole = inner.also(&value(11, "x", 1, &[4])).also(&value(11, "c", 9, &[]));
        let read = read(model(&whole), BASE);
        assert!(depth >= 33 || read.is_ok(), "{depth}: {:?}", read.err());
        assert!(depth <= 33 || read.is_err(), "{depth}");
    }
    // Types of sequences of sequences, and groups within groups.
    let mut ty = Message::new();
    for _ in 0..10_000 {
        ty = Message::new().message(4, &Message::new().message(1, &ty));
    }
    assert!(
        read(model(&graph([Message::new().message(11, &Message::new().message(2, &ty))])), BASE).is_err()
    );
    assert!(read(model(&graph([]).bytes_raw(&[0xfb; 100_000])), BASE).is_err());
    assert!(read([0xfb, 0x7f].repeat(100_000), BASE).is_err());
}

#[test]
fn names_that_are_taken_through_many_graphs_are_counted() {
    let mut inner =
        graph((0..2_000).map(|index| node("Relu", &[&format!("v{index}")], &[&format!("o{index}")])));
    for level in 0..25 {
        let output = format!("y{level}");
        let branch = graph([node("Abs", &["v0"], &[&output]), value(12, &output, 1, &[])]);
        let inner_output = if level == 0 { "o0".to_owned() } else { format!("y{}", level - 1) };
        let holder = node("If", &["c"], &[&output])
            .message(
                5,
                &attribute("then_branch", 5).message(6, &inner.also(&value(12, &inner_output, 1, &[]))),
            )
            .message(5, &attribute("else_branch", 5).message(6, &branch));
        inner = graph([holder]);
    }
    let inputs =
        (0..2_000).map(|index| value(11, &format!("v{index}"), 1, &[4])).chain([value(11, "c", 9, &[])]);
    let whole = inputs.fold(inner.also(&value(12, "y24", 1, &[])), |graph, input| graph.also(&input));
    let _ = read(model(&whole), BASE);
}

#[test]
fn functions_that_call_the_next_one_twice_are_refused() {
    let functions = |count: usize, calls: usize| {
        let function = |index: usize| {
            let next = format!("F{}", index + 1);
            let called =
                (0..calls).map(|call| node(&next, &["p"], &[&format!("q{call}")]).text(7, "own").alone());
            let leaf = node("Relu", &["p"], &["q0"]).alone();
            let body: Vec<_> = if index + 1 == count { vec![leaf] } else { called.collect() };
            let head =
                Message::new().text(1, &format!("F{index}")).text(10, "own").text(4, "p").text(5, "q0");
            (25, body.iter().fold(head, |function, node| function.message(7, node)))
        };
        let graph = graph([
            value(11, "x", 1, &[4]),
            node("F0", &["x"], &["y"]).text(7, "own"),
            value(12, "y", 1, &[4]),
        ]);
        model_of(&graph, &(0..count).map(function).collect::<Vec<_>>())
    };
    assert!(read(functions(8, 2), BASE).is_ok());
    let error = read(functions(30, 2), 64 << 20).expect_err("a billion nodes");
    assert!(error.to_string().contains("functions"), "{error}");
    assert!(read(functions(4, 1_000), 64 << 20).is_err());
    assert!(read(functions(40, 1), BASE).is_err(), "they call each other too deep");
}

#[test]
fn functions_that_call_themselves_within_graphs_are_refused() {
    let branch = |op: &str| {
        let node = node(op, &["p"], &["b"]).text(7, if op == "F" { "own" } else { "" });
        graph([node, value(12, "b", 1, &[4])])
    };
    let holder = node("If", &["c"], &["q"])
        .message(5, &attribute("then_branch", 5).message(6, &branch("F")))
        .message(5, &attribute("else_branch", 5).message(6, &branch("Relu")))
        .alone();
    let function = Message::new().text(1, "F").text(10, "own").text(4, "p").text(5, "q");
    let constant = node("Constant", &[], &["c"])
        .message(5, &attribute("value", 4).message(5, &tensor(5, "", 9, &[]).bytes(9, &[1]).alone()))
        .alone();
    let function = function.message(9, &opset("", 17)).message(9, &opset("own", 1));
    let function = function.message(7, &constant).message(7, &holder);
    let graph =
        graph([value(11, "x", 1, &[4]), node("F", &["x"], &["y"]).text(7, "own"), value(12, "y", 1, &[4])]);
    let file = model_of(&graph, &[(25, function)]);
    // On a thread of little stack, which is no place to go deep.
    let error = std::thread::Builder::new().stack_size(2 << 20).spawn(|| Model::from_bytes(file).map(drop));
    let error = error.expect("a thread").join().expect("no panic").expect_err("a function without an end");
    assert!(error.to_string().contains("deep within others"), "{error}");
}

#[test]
fn operators_that_meant_another_thing_before_version_7_are_refused() {
    let add = graph([
        value(11, "a", 1, &[2, 3, 3]),
        value(11, "b", 1, &[3]),
        node("Add", &["a", "b"], &["y"])
            .message(5, &attribute("broadcast", 2).number(3, 1))
            .message(5, &attribute("axis", 2).number(3, 1)),
        value(12, "y", 1, &[2, 3, 3]),
    ]);
    let file = |versions: &[u64]| {
        let head = Message::new().number(1, 3).message(7, &add);
        versions.iter().fold(head, |head, &version| head.message(8, &opset("", version))).bytes_of()
    };
    assert!(Model::from_bytes(file(&[7])).is_ok());
    for versions in [&[6][..], &[1], &[]] {
        let error = Model::from_bytes(file(versions)).map(drop).expect_err("an old model").to_string();
        assert!(error.contains("ai.onnx.Add (version "), "{error}");
    }
    let relu = graph([value(11, "x", 1, &[3]), node("Relu", &["x"], &["y"]), value(12, "y", 1, &[3])]);
    assert!(Model::from_bytes(model_with(&relu, 1)).is_ok());
}

#[test]
fn images_of_too_many_dimensions_are_refused_where_all_neighbours_are_taken() {
    let grid_of = |dims: usize| {
        let (ones, mut grid) = (vec![1; 2 + dims], vec![1; 1 + dims]);
        grid.push(dims);
        graph([
            value(11, "x", 1, &ones),
            value(11, "grid", 1, &grid),
            node("GridSample", &["x", "grid"], &["y"]).message(5, &attribute("mode", 3).bytes(4, b"cubic")),
            open_value(12, "y", 1, 2 + dims),
        ])
    };
    for (dims, right) in [(2, true), (8, true), (9, false), (32, false)] {
        let read = Model::from_bytes(model_with(&grid_of(dims), 20)).expect("a model");
        let ones = vec![1; 2 + dims];
        let mut grid = vec![1; 1 + dims];
        grid.push(dims);
        let x = Tensor::from_elements(ones, &[1.0f32]).expect("one");
        let grid = Tensor::from_elements(grid, &vec![0.0f32; dims]).expect("as many");
        let made = Session::new(&read).run(&[("x", x.view()), ("grid", grid.view())]);
        assert_eq!(made.is_ok(), right, "{dims}: {:?}", made.err());
    }
}
