//! Time to merge recorded steps into a problem, and to plan it: generated training steps, and a recorded one where the
//! traces are at hand.

use std::hint::black_box;
use std::path::Path;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, SamplingMode, Throughput, criterion_group, criterion_main};
use stepalloc_planner::generate::{self, Dice};
use stepalloc_planner::{Event, Planner, Problem, StepProblem, Steps, trace, verify};

/// Smaller blocks of the trace are left out: the allocator's default threshold, in bytes.
const MIN_BYTES: u64 = 32 << 10;
/// Generated steps to merge: as in training, the second is the first to free gradients of the one before.
const STEPS: u32 = 3;
/// Blocks of a generated layer.
const LAYER: u32 = 5;

/// Steps to merge and plan.
struct Case {
    name: String,
    steps: Vec<Vec<Event>>,
}

impl Case {
    fn merged(&self) -> StepProblem {
        let mut steps = Steps::new();
        for events in &self.steps {
            steps.step(events.iter().copied());
        }
        steps.problem()
    }
}

/// Training of a network of `blocks / LAYER` layers. Forward, each allocates an activation that is kept, and a workspace;
/// backward, in the reverse order, a workspace, the gradient of its input, and that of its weights, which the next step
/// frees as it begins.
fn generated(blocks: u32) -> Case {
    let layers = blocks / LAYER;
    let mut random = Dice::new(1);
    let mut dice = |sides: u64| random.below(sides);
    // 32 KiB to 16 MiB, of few kinds, as layers of networks are alike.
    let kinds: Vec<u64> = (0..16).map(|_| (MIN_BYTES + 64 * dice(512)) << dice(9)).collect();
    let sizes: Vec<u64> = (0..blocks).map(|_| kinds[dice(16) as usize]).collect();

    let step = |index: u32| {
        let mut events = Vec::with_capacity(2 * blocks as usize);
        let handle = |step: u32, layer: u32, role: u32| step * blocks + layer * LAYER + role;
        let name = |layer, role| handle(index, layer, role);
        let allocate = |layer, role| Event::Allocate {
            block: name(layer, role),
            size: sizes[(layer * LAYER + role) as usize],
            align: 64,
            moved_from: None,
        };
        let free = |layer, role| Event::Free { block: name(layer, role) };
        let [activation, forward, backward, gradient, weights] = [0, 1, 2, 3, 4];
        if let Some(before) = index.checked_sub(1) {
            events.extend((0..layers).map(|layer| Event::Free { block: handle(before, layer, weights) }));
        }
        for layer in 0..layers {
            events.extend([allocate(layer, activation), allocate(layer, forward), free(layer, forward)]);
        }
        for layer in (0..layers).rev() {
            events.extend([
                allocate(layer, backward),
                allocate(layer, gradient),
                allocate(layer, weights),
                free(layer, backward),
                free(layer, activation),
            ]);
            if layer + 1 < layers {
                events.push(free(layer + 1, gradient));
            }
        }
        events.push(free(0, gradient));
        events
    };
    Case { name: format!("generated {blocks}"), steps: (0..STEPS).map(step).collect() }
}

/// A recorded training; `None` where the traces are not beside the repository.
fn recorded(name: &str) -> Option<Case> {
    let traces = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/traces");
    let path = traces.join(name).with_extension("csv.gz");
    if !path.exists() {
        eprintln!("{}: not there, and left out", path.display());
        return None;
    }
    let trace = trace::read(&path).unwrap_or_else(|error| panic!("{error}"));
    let wanted = |event: &Event| !matches!(event, Event::Allocate { size, .. } if *size < MIN_BYTES);
    // Step 0 is the process's warm-up.
    let steps = trace.steps.into_iter().skip(1).map(|step| step.events.into_iter().filter(wanted).collect());
    Some(Case { name: name.to_owned(), steps: steps.collect() })
}

fn plan(planner: &Planner, problem: &Problem) -> (Vec<u64>, u64) {
    let plan = planner.plan(problem).unwrap_or_else(|error| panic!("{error}"));
    (plan.offsets, plan.height)
}

fn planning(criterion: &mut Criterion) {
    let cases = [100, 1_000, 10_000].map(generated).into_iter().chain(recorded("torch_transformer_train"));
    let with_problem = |case: Case| (case.merged().problem, case);
    let cases: Vec<(Problem, Case)> = cases.map(with_problem).collect();

    let mut group = criterion.benchmark_group("merge");
    for (_, case) in &cases {
        let events = case.steps.iter().map(Vec::len).sum::<usize>();
        group.throughput(Throughput::Elements(events as u64));
        group.bench_function(&case.name, |bencher| bencher.iter(|| black_box(case).merged()));
    }
    group.finish();

    for (effort, planner) in [("quick", &Planner::quick()), ("new", &Planner::new())] {
        let mut group = criterion.benchmark_group("plan");
        // A plan of 10,000 blocks may take seconds.
        group.sample_size(10).sampling_mode(SamplingMode::Flat);
        group.warm_up_time(Duration::from_millis(500)).measurement_time(Duration::from_secs(3));
        for (problem, case) in &cases {
            let (offsets, height) = plan(planner, problem);
            assert_eq!(verify(problem, &offsets, height), Ok(()), "{}", case.name);
            group.throughput(Throughput::Elements(problem.blocks.len() as u64));
            group.bench_function(BenchmarkId::new(effort, &case.name), |bencher| {
                bencher.iter(|| plan(planner, black_box(problem)));
            });
        }
        group.finish();
    }
}

/// Kinds of generated problems.
type Kind = (&'static str, fn(usize, u64) -> Problem);

/// Load and plan of generated problems by their size, from a hundred blocks to a million.
fn scale(criterion: &mut Criterion) {
    let kinds: [Kind; 3] = [
        ("malloc-like", generate::malloc_like),
        ("training-like", generate::training_like),
        ("crossing", generate::crossing),
    ];
    for (name, kind) in kinds {
        let mut group = criterion.benchmark_group(name);
        group.sample_size(10).sampling_mode(SamplingMode::Flat);
        group.warm_up_time(Duration::from_millis(500)).measurement_time(Duration::from_secs(3));
        for count in [100, 1_000, 10_000, 100_000, 1_000_000] {
            let problem = kind(count, 1);
            group.throughput(Throughput::Elements(count as u64));
            group.bench_function(BenchmarkId::new("load", count), |bencher| {
                bencher.iter(|| black_box(&problem).load());
            });
            group.bench_function(BenchmarkId::new("plan", count), |bencher| {
                bencher.iter(|| plan(&Planner::new(), black_box(&problem)));
            });
        }
        group.finish();
    }
}

criterion_group!(benches, planning, scale);
criterion_main!(benches);
