//! Changes one block in a hundred of large plans, and compares replanning with planning from scratch:
//! `cargo run --release -p stepalloc-planner --example replan -- [--quick] [--blocks 100000] [--rounds 3]`.
//!
//! "near": a tenth more or less of the size, or some events of the lifetime; "anew": other blocks elsewhere. Per kind of
//! problem and change, the medians over the rounds of three problems of
//!
//! - wall milliseconds of one thread: planning the changed problem from scratch, making a replanner, its `apply`, also in
//!   percent of the former, and `replan`;
//! - heights over the lower bound: before, what nobody can be below without moving others, replanned, and from scratch;
//!
//! and how many rounds there were in which the replanned height was at most 0.5 % above the one from scratch, in which
//! nobody could have been below it, and in which a block that nobody named moved. Every plan is verified.

use std::process::ExitCode;
use std::time::Instant;

use stepalloc_planner::generate::{self, Dice};
use stepalloc_planner::{Block, Change, Plan, Planner, Problem, ReplanError, Replanner, replan, verify};

/// Blocks changed of so many.
const CHANGED_OF: usize = 100;

/// Problems of each kind.
const SEEDS: u64 = 3;

/// Kinds of problems: a name, and the problem of so many blocks and a seed.
type Kind = (&'static str, fn(usize, u64) -> Problem);

const KINDS: [Kind; 5] = [
    ("malloc-like", generate::malloc_like),
    ("training-like", generate::training_like),
    ("training, periodic", |count, seed| {
        let problem = generate::training_like(count, seed);
        let end = problem.blocks.iter().map(|block| block.upper).max();
        problem.with_period(end)
    }),
    ("crossing", generate::crossing),
    ("crossing, uniform", generate::uniform),
];

fn main() -> ExitCode {
    let (mut count, mut rounds, mut planner) = (100_000, 3, Planner::new());
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut number =
            |least: usize| arguments.next().and_then(|text| text.parse().ok()).unwrap_or(least).max(least);
        match argument.as_str() {
            "--quick" => planner = Planner::quick(),
            "--blocks" => count = number(CHANGED_OF),
            "--rounds" => rounds = number(1),
            _ => {
                eprintln!("unknown argument {argument}; see the head of this file");
                return ExitCode::FAILURE;
            }
        }
    }
    println!(
        "{:<23} {:>8} {:>7} {:>7} {:>6} {:>7} {:>8} {:>8} {:>9} {:>8} {:>6} {:>6} {:>6}",
        "kind",
        "scratch",
        "index",
        "apply",
        "%",
        "replan",
        "before",
        "least",
        "replanned",
        "scratch",
        "within",
        "least",
        "moved"
    );
    let mut wrong = false;
    for (name, kind) in KINDS {
        for anew in [false, true] {
            let problems: Vec<Problem> = (1..=SEEDS).map(|seed| kind(count, seed)).collect();
            match measure(&problems, anew, rounds, &planner) {
                Ok(line) => {
                    println!("{:<23} {line}", format!("{name}, {}", if anew { "anew" } else { "near" }))
                }
                Err(error) => {
                    println!("{name}: WRONG: {error}");
                    wrong = true;
                }
            }
        }
    }
    if wrong { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// What one round showed; times in milliseconds, heights over the lower bound.
struct Round {
    scratch: f64,
    index: f64,
    apply: f64,
    carry: f64,
    before: f64,
    least: f64,
    replanned: f64,
    anew: f64,
    moved: bool,
}

fn measure(
    problems: &[Problem],
    anew: bool,
    rounds: usize,
    planner: &Planner,
) -> Result<String, Box<dyn std::error::Error>> {
    let mut dice = Dice::new(1);
    let mut seen = Vec::new();
    for problem in problems {
        let plan = planner.plan(problem)?;
        for _ in 0..rounds {
            seen.push(round(problem, &plan, anew, planner, &mut dice)?);
        }
    }
    let middle = |figure: fn(&Round) -> f64| median(seen.iter().map(figure).collect());
    let count = |of: fn(&&Round) -> bool| seen.iter().filter(of).count();
    Ok(format!(
        "{:>8.1} {:>7.1} {:>7.2} {:>6.2} {:>7.1} {:>8.5} {:>8.5} {:>9.5} {:>8.5} {:>6} {:>6} {:>6}",
        middle(|round| round.scratch),
        middle(|round| round.index),
        middle(|round| round.apply),
        middle(|round| 100.0 * round.apply / round.scratch),
        middle(|round| round.carry),
        middle(|round| round.before),
        middle(|round| round.least),
        middle(|round| round.replanned),
        middle(|round| round.anew),
        count(|round| round.replanned <= 1.005 * round.anew),
        count(|round| round.replanned <= round.least),
        count(|round| round.moved)
    ))
}

/// One round.
fn round(
    problem: &Problem,
    plan: &Plan,
    anew: bool,
    planner: &Planner,
    dice: &mut Dice,
) -> Result<Round, Box<dyn std::error::Error>> {
    let changes = changes(problem, anew, dice);
    let (index, replanner) = timed(|| Replanner::new(problem, &plan.offsets));
    let mut replanner = replanner?;
    let (apply, answer) = timed(|| replanner.apply(&changes));
    let answer = answer?;
    let (changed, after) = replanner.snapshot();
    verify(&changed, &after.offsets, after.height)?;
    if (after.height, answer.placed.len()) != (answer.height, changes.len()) {
        return Err("the answer is not what the snapshot says".into());
    }
    let named =
        |slot: usize| changes.iter().any(|change| matches!(change, Change::Replace(at, _) if *at == slot));
    let differs = |&slot: &usize| replanner.offset(slot) != Some(plan.offsets[slot]);
    let moved = (0..problem.blocks.len()).filter(differs).any(|slot| !named(slot));
    let (carry, carried) = timed(|| replan(problem, plan, &changed));
    let carried = carried?;
    verify(&changed, &carried.offsets, carried.height)?;
    let (scratch, fresh) = timed(|| planner.plan(&changed));
    let bound = after.lower_bound as f64;
    let least = unmoved(problem, &plan.offsets, &changes)?.max(after.lower_bound) as f64 / bound;
    let (replanned, anew) = (after.height as f64 / bound, fresh?.height as f64 / bound);
    Ok(Round { scratch, index, apply, carry, before: plan.ratio(), least, replanned, anew, moved })
}

/// The height that the blocks nobody named and each of the others alone among them take: no plan in which the former
/// stay is lower.
fn unmoved(problem: &Problem, offsets: &[u64], changes: &[Change]) -> Result<u64, ReplanError> {
    let mut replanner = Replanner::new(problem, offsets)?;
    let slot = |change: &Change| {
        if let Change::Replace(slot, _) = change { Some(Change::Remove(*slot)) } else { None }
    };
    let gone: Vec<Change> = changes.iter().filter_map(slot).collect();
    let mut least = replanner.apply(&gone)?.height;
    for change in changes {
        if let Change::Replace(_, block) = change {
            let alone = replanner.apply(&[Change::Add(*block)])?;
            least = least.max(alone.height);
            let gone: Vec<Change> = alone.placed.iter().map(|&(slot, _)| Change::Remove(slot)).collect();
            replanner.apply(&gone)?;
        }
    }
    Ok(least)
}

/// Other blocks elsewhere, or a little more or less of size or lifetime.
fn changes(problem: &Problem, anew: bool, dice: &mut Dice) -> Vec<Change> {
    let count = problem.blocks.len();
    let mut slots: Vec<usize> = (0..count).collect();
    let changed = count / CHANGED_OF;
    for i in 0..changed {
        slots.swap(i, i + dice.below((count - i) as u64) as usize);
    }
    // Where a lifetime that begins here has to end.
    let last = problem.blocks.iter().map(|block| block.upper).max().unwrap_or(1);
    let end = |lower: u64| problem.period.map_or(last, |period| lower + period);
    let mut draw = |old: Block| {
        if anew {
            let like = problem.blocks[dice.below(count as u64) as usize];
            let lower = problem.blocks[dice.below(count as u64) as usize].lower;
            Block { id: old.id, lower, upper: (lower + like.length()).min(end(lower)), ..like }
        } else if dice.below(2) == 0 {
            // Nine to eleven tenths.
            let size = old.size * 9 / 10 + dice.below(old.size / 5 + 1);
            Block { size: size.next_multiple_of(old.align), ..old }
        } else {
            let upper = (old.upper + dice.below(9)).saturating_sub(4);
            Block { upper: upper.clamp(old.lower + 1, end(old.lower)), ..old }
        }
    };
    let change = |&slot: &usize| {
        let old = problem.blocks[slot];
        let mut block = draw(old);
        while block == old {
            block = draw(old);
        }
        Change::Replace(slot, block)
    };
    slots[..changed].iter().map(change).collect()
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Milliseconds and result.
fn timed<T>(work: impl FnOnce() -> T) -> (f64, T) {
    let start = Instant::now();
    let result = work();
    (start.elapsed().as_secs_f64() * 1e3, result)
}
