//! Random problems with constraints of every kind, and short ways of writing one down.

use proptest::prelude::*;
use stepalloc_planner::{Block, Constraints, Fixed, Gap, InPlace, Inside, Problem};

/// Blocks of (lower, upper, size, alignment); ids from 100.
pub fn problem(rows: &[(u64, u64, u64, u64)], period: Option<u64>) -> Problem {
    let block = |(index, &(lower, upper, size, align)): (usize, &(u64, u64, u64, u64))| Block {
        id: 100 + index as u64,
        lower,
        upper,
        size,
        align,
    };
    Problem::new(rows.iter().enumerate().map(block).collect()).with_period(period)
}

pub fn fixed(block: usize, offset: u64) -> Constraints {
    Constraints { fixed: vec![Fixed { block, offset }], ..Constraints::default() }
}

pub fn gap(block: usize, lower: u64, upper: u64, window: Option<(u64, u64)>) -> Constraints {
    Constraints { gaps: vec![Gap { block, lower, upper, window }], ..Constraints::default() }
}

pub fn inside(block: usize, of: usize, distance: u64) -> Constraints {
    Constraints { inside: vec![Inside { block, of, distance }], ..Constraints::default() }
}

pub fn in_place(pairs: &[(usize, usize)]) -> Constraints {
    let pair = |&(first, second): &(usize, usize)| InPlace { first, second };
    Constraints { in_place: pairs.iter().map(pair).collect(), ..Constraints::default() }
}

/// How large random problems are.
#[derive(Debug, Clone, Copy)]
pub struct Extent {
    pub blocks: usize,
    pub events: u64,
    pub size: u64,
    /// Logarithm of the largest alignment.
    pub align: u32,
}

/// Random problems on a line or a circle. Constraints that contradict the ones before them are left out, so that all
/// problems pass their check.
pub fn problems(extent: Extent) -> impl Strategy<Value = Problem> {
    let Extent { blocks, events, size, align } = extent;
    let size = prop_oneof![1 => Just(0), 4 => Just(size / 2), 8 => 1..=size];
    let log = prop_oneof![6 => Just(0u32), 3 => 0..=align.min(4), 1 => 0..=align];
    let block = (0..events, 0..=events, size, log);
    let wish = (0usize..8, any::<[prop::sample::Index; 2]>(), any::<[u16; 4]>());
    (prop::collection::vec(block, 1..=blocks), any::<bool>(), prop::collection::vec(wish, 0..=2 * blocks))
        .prop_map(move |(rows, periodic, wishes)| {
            let block =
                |&(lower, length, size, log): &(u64, u64, u64, u32)| (lower, lower + length, size, 1 << log);
            let rows: Vec<_> = rows.iter().map(block).collect();
            let mut problem = problem(&rows, periodic.then_some(events));
            for (kind, blocks, numbers) in wishes {
                let [a, b] = blocks.map(|block| block.index(rows.len()));
                grant(&mut problem, kind, (a, b), numbers.map(u64::from));
            }
            problem
        })
}

/// Adds a constraint if it contradicts none before it.
fn grant(problem: &mut Problem, kind: usize, (a, b): (usize, usize), [w, x, y, z]: [u64; 4]) {
    let before = problem.constraints.clone();
    let (one, other) = (problem.blocks[a], problem.blocks[b]);
    let constraints = &mut problem.constraints;
    match kind {
        0 => {
            // A multiple of the alignment that does not lie too high.
            let offset = (w % (3 * one.size + 4)).next_multiple_of(one.align);
            constraints.fixed.push(Fixed { block: a, offset });
        }
        1..=3 => {
            let lower = one.lower + w % one.length().max(1);
            let upper = lower + 1 + x % 4;
            let from = y % (one.size + 1);
            let window = (z % 2 == 0).then_some((from, from + z / 2 % (one.size - from + 1)));
            constraints.gaps.push(Gap { block: a, lower, upper, window });
        }
        4..=5 => {
            let distance = w % (other.size.saturating_sub(one.size) + 1);
            let distance = if x % 2 == 0 { 0 } else { distance };
            constraints.inside.push(Inside { block: a, of: b, distance });
        }
        _ => constraints.in_place.push(InPlace { first: a, second: b }),
    }
    if problem.check().is_err() {
        problem.constraints = before;
    }
}
