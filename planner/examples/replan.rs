//! Changes one block in a hundred of large plans, and compares replanning with planning from scratch:
//! `cargo run --release -p stepalloc-planner --example replan -- [--quick] [--blocks 100000] [--rounds 9]`.
//!
//! Per kind of problem: the time of planning the changed problem from scratch, of making a replanner, of the median
//! `apply`, and of `replan`; heights over the lower bound before, the least in which nobody else moves, replanned and from
//! scratch; how many blocks that nobody named lie elsewhere. "near": a tenth more or less of the size, or some events of the lifetime; "anew": other
//! blocks elsewhere. Times are wall milliseconds of one thread. Every plan is verified.

use std::process::ExitCode;
use std::time::Instant;

use stepalloc_planner::generate::Dice;
use stepalloc_planner::{Block, Change, Planner, Problem, ReplanError, Replanner, replan, verify};

/// Blocks changed of so many.
const CHANGED_OF: usize = 100;

fn main() -> ExitCode {
    let (mut count, mut rounds, mut planner) = (100_000, 9, Planner::new());
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut number =
            |least: u64| arguments.next().and_then(|text| text.parse().ok()).unwrap_or(least).max(least);
        match argument.as_str() {
            "--quick" => planner = Planner::quick(),
            "--blocks" => count = number(100),
            "--rounds" => rounds = number(1),
            _ => {
                eprintln!("unknown argument {argument}; see the head of this file");
                return ExitCode::FAILURE;
            }
        }
    }
    println!(
        "{:<15} {:>7} {:>9} {:>9} {:>9} {:>9} {:>7} {:>9} {:>9} {:>9} {:>9} {:>6}",
        "kind",
        "load/blk",
        "scratch",
        "index",
        "apply",
        "replan",
        "apply%",
        "before",
        "least",
        "replanned",
        "scratch",
        "moved"
    );
    let mut wrong = false;
    for kind in [Kind::Training, Kind::Malloc, Kind::Crossing] {
        for anew in [false, true] {
            match measure(kind, anew, count, rounds, &planner) {
                Ok(line) => println!("{line}"),
                Err(error) => {
                    println!("{kind:?}: WRONG: {error}");
                    wrong = true;
                }
            }
        }
    }
    if wrong { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn measure(
    kind: Kind,
    anew: bool,
    count: u64,
    rounds: u64,
    planner: &Planner,
) -> Result<String, Box<dyn std::error::Error>> {
    let mut dice = Dice::new(1);
    let problem = kind.problem(count, &mut dice);
    let plan = planner.plan(&problem)?;
    let (mut index, mut apply, mut carry) = (Vec::new(), Vec::new(), Vec::new());
    let (mut scratch_time, mut ratios, mut least, mut moved) = (0.0, (0.0, 0.0), 0.0, 0);
    for round in 0..rounds {
        let changes = kind.changes(&problem, anew, &mut dice);
        let (time, replanner) = timed(|| Replanner::new(&problem, &plan.offsets));
        let mut replanner = replanner?;
        index.push(time);
        let (time, answer) = timed(|| replanner.apply(&changes));
        let answer = answer?;
        apply.push(time);
        let (changed, after) = replanner.snapshot();
        verify(&changed, &after.offsets, after.height)?;
        if (after.height, answer.placed.len()) != (answer.height, changes.len()) {
            return Err("the answer is not what the snapshot says".into());
        }
        let named = |slot: usize| {
            changes.iter().any(|change| matches!(change, Change::Replace(at, _) if *at == slot))
        };
        let differs = |&slot: &usize| replanner.offset(slot) != Some(plan.offsets[slot]);
        moved += (0..problem.blocks.len()).filter(differs).filter(|&slot| !named(slot)).count();
        let (time, carried) = timed(|| replan(&problem, &plan, &changed));
        let carried = carried?;
        carry.push(time);
        verify(&changed, &carried.offsets, carried.height)?;
        if round + 1 == rounds {
            let (time, scratch) = timed(|| planner.plan(&changed));
            scratch_time = time;
            ratios = (after.ratio(), scratch?.ratio());
            least = unmoved(&problem, &plan.offsets, &changes)?.max(after.lower_bound) as f64
                / after.lower_bound as f64;
        }
    }
    let apply = median(apply);
    Ok(format!(
        "{:<15} {:>7} {:>9.1} {:>9.2} {:>9.3} {:>9.2} {:>7.3} {:>9.5} {:>9.5} {:>9.5} {:>9.5} {:>6}",
        format!("{kind:?} {}", if anew { "anew" } else { "near" }),
        problem.load().max * problem.blocks.len() as u64
            / problem.blocks.iter().map(|block| block.size).sum::<u64>(),
        scratch_time,
        median(index),
        apply,
        median(carry),
        100.0 * apply / scratch_time,
        plan.ratio(),
        least,
        ratios.0,
        ratios.1,
        moved
    ))
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

#[derive(Debug, Clone, Copy)]
enum Kind {
    /// Layers forth and back: what is saved forth lives until its layer comes back; gradients live into the next step.
    Training,
    /// Mostly short lives, some very long, sizes of twelve classes.
    Malloc,
    /// Lifetimes and sizes of all scales across each other.
    Crossing,
}

impl Kind {
    fn problem(self, count: u64, dice: &mut Dice) -> Problem {
        let period = matches!(self, Kind::Training).then_some(2 * count);
        let blocks = (0..count).map(|id| self.block(id, count, id, dice)).collect();
        Problem::new(blocks).with_period(period)
    }

    /// A block that begins `at` so many of `count`.
    fn block(self, id: u64, count: u64, at: u64, dice: &mut Dice) -> Block {
        let lower = 2 * at + dice.below(2);
        let (length, size) = match self {
            Kind::Training => {
                let forth = lower < count;
                match dice.below(200) {
                    0 | 1 if forth => (2 * (count - lower) + dice.below(20), 65536 * (1 + dice.below(8))),
                    0 => (count + dice.below(count / 2), 16384 * (1 + dice.below(16))),
                    _ => (1 + dice.below(40), 4096 * (1 + dice.below(64))),
                }
            }
            Kind::Malloc => {
                // Every second life is twice as long.
                let scale = dice.bits().trailing_zeros().min(16);
                let class = dice.below(12);
                (1 + dice.below(64 << scale), 16 + dice.below(16 << class))
            }
            Kind::Crossing => {
                let (scale, class) = (dice.below(8), dice.below(12));
                (1 + dice.below(2 << scale), 1 + dice.below(16 << class))
            }
        };
        let align = if matches!(self, Kind::Crossing) { 1 } else { 16 };
        Block { id, lower, upper: lower + length.min(2 * count), size: size.next_multiple_of(align), align }
    }

    /// Other blocks elsewhere, or a little more or less of size or lifetime.
    fn changes(self, problem: &Problem, anew: bool, dice: &mut Dice) -> Vec<Change> {
        let count = problem.blocks.len();
        let mut slots: Vec<usize> = (0..count).collect();
        let changed = count / CHANGED_OF;
        for i in 0..changed {
            slots.swap(i, i + dice.below((count - i) as u64) as usize);
        }
        let change = |&slot: &usize| {
            let old = problem.blocks[slot];
            let block = if anew {
                let at = dice.below(count as u64);
                self.block(old.id, count as u64, at, dice)
            } else if dice.below(2) == 0 {
                // Nine to eleven tenths.
                let size = old.size * 9 / 10 + dice.below(old.size / 5 + 1);
                Block { size: size.next_multiple_of(old.align), ..old }
            } else {
                let end = problem.period.map_or(u64::MAX, |period| old.lower + period);
                Block {
                    upper: (old.upper + dice.below(9)).saturating_sub(4).max(old.lower + 1).min(end),
                    ..old
                }
            };
            Change::Replace(slot, block)
        };
        slots[..changed].iter().map(change).collect()
    }
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
