//! What a session tells of a planned run: the blocks are those of its figures, and none is in another's place.

use super::wire::{Message, attribute, graph, model, node, open_value, tensor, value};
use stepalloc_runtime::{
    ALIGNMENT, Bool, Level, Model, Optimization, Options, PlannedRun, Session, Tensor, View,
};

/// Two branches: one has a value written over and looked at in another shape, the other one a convolution.
fn branches() -> Model {
    let ints = |field: &[i64]| field.iter().flat_map(|int| int.to_le_bytes()).collect::<Vec<_>>();
    let floats = |count: usize| [0.5f32.to_le_bytes()].repeat(count).concat();
    let graph = graph([
        value(11, "x", 1, &[1, 2, 20, 20]),
        tensor(5, "repeats", 7, &[4]).bytes(9, &ints(&[8, 1, 1, 1])),
        tensor(5, "flat", 7, &[2]).bytes(9, &ints(&[1, -1])),
        tensor(5, "axes", 7, &[1]).bytes(9, &ints(&[1])),
        tensor(5, "w", 1, &[6, 2, 3, 3]).bytes(9, &floats(6 * 2 * 9)),
        node("Tile", &["x", "repeats"], &["large"]),
        node("Relu", &["large"], &["over"]),
        node("Reshape", &["over", "flat"], &["row"]),
        node("ReduceSum", &["row", "axes"], &["sum"]),
        node("Conv", &["x", "w"], &["filtered"]),
        node("Reshape", &["filtered", "flat"], &["filtered row"]),
        node("ReduceSum", &["filtered row", "axes"], &["other"]),
        node("Add", &["sum", "other"], &["y"]),
        value(12, "y", 1, &[1, 1]),
    ]);
    Model::from_bytes(model(&graph)).expect("a model")
}

fn floats(shape: &[usize]) -> Tensor {
    Tensor::from_elements(shape, &vec![1.0f32; shape.iter().product()]).expect("as many as the shape says")
}

/// The run, with all that holds for any.
fn planned(session: &Session, inputs: &[Option<View<'_>>]) -> PlannedRun {
    let figures = session.figures(inputs).expect("a plan");
    let run = session.planned_run(inputs).expect("the same plan");
    for (at, one) in run.blocks.iter().enumerate() {
        assert!(!one.steps.is_empty() && one.steps.end <= run.steps.len() && one.bytes > 0, "{one:?}");
        assert!((one.offset | one.bytes).is_multiple_of(ALIGNMENT as u64), "{one:?}");
        let mut steps = one.values.iter().map(|value| value.step);
        assert!(steps.all(|step| one.steps.contains(&step)), "{one:?}");
        assert!(one.values.first().is_none_or(|first| first.step == one.steps.start), "{one:?}");
        assert!(one.values.iter().all(|value| value.ty.bytes() as u64 <= one.bytes), "{one:?}");
        for other in &run.blocks[..at] {
            let together = one.steps.start < other.steps.end && other.steps.start < one.steps.end;
            let apart = one.offset + one.bytes <= other.offset || other.offset + other.bytes <= one.offset;
            assert!(!together || apart, "{one:?} and {other:?}");
        }
    }
    let top = run.blocks.iter().map(|block| block.offset + block.bytes).max();
    assert_eq!(top.unwrap_or(0), figures.arena_bytes);
    let alive = |step: usize| -> u64 {
        run.blocks.iter().filter(|block| block.steps.contains(&step)).map(|block| block.bytes).sum()
    };
    assert_eq!((0..run.steps.len()).map(alive).max().unwrap_or(0), figures.lower_bound_bytes);
    let unplanned = run.steps.iter().filter(|step| step.is_unplanned).count();
    assert_eq!(unplanned as u64, figures.unplanned_nodes);
    run
}

#[test]
fn blocks_hold_what_is_written_over_and_looked_at() {
    let x = floats(&[1, 2, 20, 20]);
    let as_it_is = Options::new().optimization(&Optimization::new(Level::Disable));
    let run = planned(&Session::with_options(&branches(), as_it_is), &[Some(x.view())]);
    let block = |name: &str| {
        let found = run.blocks.iter().find(|block| block.values.iter().any(|value| value.name == name));
        found.unwrap_or_else(|| panic!("no block has {name}: {run:#?}"))
    };
    let names: Vec<_> = block("large").values.iter().map(|value| (&value.name[..], value.step)).collect();
    let step = |name: &str| run.steps.iter().position(|step| step.name == name).expect("a step");
    assert_eq!(names, [("large", step("large")), ("over", step("over")), ("row", step("row"))]);
    assert_eq!(block("large").bytes, 8 * 2 * 400 * 4);
    assert_eq!(block("large").steps, step("large")..step("sum") + 1);
    assert_eq!(block("row").values[2].ty.to_string(), "float32[1,6400]");
    let views: Vec<_> = run.steps.iter().filter(|step| step.is_view).map(|step| &step.op_type[..]).collect();
    assert_eq!((views, run.steps.len()), (vec!["Reshape", "Reshape"], 8));
    let scratch = run.blocks.iter().find(|block| block.values.is_empty()).expect("that of the convolution");
    assert_eq!(scratch.steps, step("filtered")..step("filtered") + 1);
    assert!(run.blocks.iter().all(|block| block.values.iter().all(|value| value.name != "y")), "an output");
}

#[test]
fn it_holds_for_optimized_graphs_and_for_values_with_memory_of_their_own() {
    let x = floats(&[1, 2, 20, 20]);
    planned(&Session::new(&branches()), &[Some(x.view())]);
    let apart = Session::with_options(&branches(), Options::new().memory_pattern(false));
    let run = planned(&apart, &[Some(x.view())]);
    assert!(run.blocks.iter().all(|block| block.values.len() <= 1), "{run:#?}");
}

#[test]
fn what_is_only_known_when_it_runs_is_said() {
    let graph = graph([
        open_value(11, "x", 1, 1),
        node("NonZero", &["x"], &["places"]),
        node("Cast", &["places"], &["y"]).message(5, &attribute("to", 2).number(3, 1)),
        open_value(12, "y", 1, 2),
    ]);
    let session = Session::new(&Model::from_bytes(model(&graph)).expect("a model"));
    let run = planned(&session, &[Some(floats(&[100]).view())]);
    let steps: Vec<_> = run.steps.iter().map(|step| (&step.op_type[..], step.is_unplanned)).collect();
    assert_eq!((steps, run.blocks.len()), (vec![("NonZero", true), ("Cast", true)], 0));
    assert!(session.planned_run(&[]).is_err(), "an input is missing");
}

#[test]
fn a_branch_that_an_input_tells_is_the_one_that_is_planned() {
    let branch = |op: &str| graph([node(op, &["t"], &["made"]), open_value(12, "made", 1, 1)]);
    let with_graph = |name: &str, graph: &Message| attribute(name, 5).message(6, graph);
    let graph = graph([
        value(11, "yes", 9, &[]),
        open_value(11, "x", 1, 1),
        node("Exp", &["x"], &["t"]),
        node("If", &["yes"], &["chosen"])
            .message(5, &with_graph("then_branch", &branch("Sin")))
            .message(5, &with_graph("else_branch", &branch("Cos"))),
        node("Concat", &["chosen", "x"], &["y"]).message(5, &attribute("axis", 2).number(3, 0)),
        open_value(12, "y", 1, 1),
    ]);
    let session = Session::new(&Model::from_bytes(model(&graph)).expect("a model"));
    let x = floats(&[1000]);
    for (yes, op) in [(true, "Sin"), (false, "Cos")] {
        let yes = Tensor::from_elements([], &[Bool::from(yes)]).expect("one element");
        let run = planned(&session, &[Some(yes.view()), Some(x.view())]);
        let steps: Vec<_> =
            run.steps.iter().filter(|step| !step.is_view).map(|step| &step.op_type[..]).collect();
        assert_eq!((steps, run.blocks.len()), (vec!["Exp", op, "Concat"], 1));
    }
}
