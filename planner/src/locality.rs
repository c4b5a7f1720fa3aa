//! Of plans of one height, one whose blocks come where memory was used just before.
//!
//! A plan that is only low may deal memory out in turn, so that each block begins with what no cache has any more. An allocator that
//! hands out again what was freed last does better, and so can a plan: most blocks of a step live for a short time only, meet few others,
//! and may lie at many offsets without a byte more of height. Each block in turn, in the order of allocation, is moved to the offset
//! that has most of the bytes that other blocks have left within the last few MiB of *traffic*: what is written when a
//! block is allocated, and read until it is freed.
//!
//! Each block is compared with all others: quadratic, with a small constant.

use crate::problem::{Block, Problem};

/// Blocks freed before a block that are looked at, the newest first.
const RECENT: usize = 16;
/// A move must gain so many parts of the block's size.
const GAIN: f64 = 1.0 / 64.0;

/// A range of bytes, from its first to behind its last.
type Range = (u64, u64);

/// Moves blocks of a valid plan to where memory was used just before, as far as a cache of `cache` bytes remembers, and returns how many
/// moved. The plan stays valid, and no higher than `height`. Problems with constraints are left as they are.
pub fn reuse_recent(problem: &Problem, offsets: &mut [u64], height: u64, cache: u64) -> usize {
    if !problem.constraints.is_empty() || problem.blocks.len() != offsets.len() {
        return 0;
    }
    let blocks = &problem.blocks;
    let traffic = Traffic::of(problem);
    let mut order: Vec<usize> = (0..blocks.len()).filter(|&at| blocks[at].size > 0).collect();
    order.sort_unstable_by_key(|&at| (blocks[at].lower, at));
    let (mut recent, mut held, mut gaps) =
        (Vec::with_capacity(RECENT), Vec::with_capacity(order.len()), Vec::new());
    let mut cold = [Vec::new(), Vec::new()];
    let mut moved = 0;
    for at in order {
        recent.clear();
        recent.extend(traffic.recent(at, cache, blocks, offsets));
        if recent.is_empty() {
            continue;
        }
        let block = &blocks[at];
        let mut warmth = |offset: u64| warmth((offset, offset + block.size), &recent, &mut cold);
        let (mut best, mut warmest) = (offsets[at], warmth(offsets[at]) + block.size as f64 * GAIN);
        if warmest >= block.size as f64 {
            continue;
        }
        find_gaps(at, problem, offsets, height, &mut held, &mut gaps);
        for &gap in &gaps {
            let last = gap.1 - block.size;
            for &((from, to), _) in &recent {
                // Only where the gap has some of it.
                if from >= gap.1 || to <= gap.0 {
                    continue;
                }
                for wanted in [from, to.saturating_sub(block.size)] {
                    let offset = wanted.clamp(gap.0, last).next_multiple_of(block.align.max(1));
                    if offset <= last && offset != best {
                        let warm = warmth(offset);
                        if warm > warmest {
                            (best, warmest) = (offset, warm);
                        }
                    }
                }
            }
        }
        moved += usize::from(best != offsets[at]);
        offsets[at] = best;
    }
    moved
}

/// When blocks are written and read, in bytes of traffic.
struct Traffic {
    /// Of each block's begin, before it is written.
    begins: Vec<u64>,
    /// Of each block's end, in order, and which block that is.
    ends: Vec<(u64, usize)>,
    /// Of a whole period, where there is one.
    period: Option<u64>,
}

impl Traffic {
    fn of(problem: &Problem) -> Self {
        let time = |time: u64| problem.period.map_or(time, |period| time % period.max(1));
        let mut events = Vec::with_capacity(2 * problem.blocks.len());
        for (at, block) in problem.blocks.iter().enumerate() {
            events.push((time(block.upper), false, at));
            events.push((time(block.lower), true, at));
        }
        // What is freed before what is allocated at the same time.
        events.sort_unstable();
        let (mut begins, mut ends) =
            (vec![0; problem.blocks.len()], Vec::with_capacity(problem.blocks.len()));
        let mut bytes = 0u64;
        for (_, begins_here, at) in events {
            if begins_here {
                begins[at] = bytes;
            }
            bytes = bytes.saturating_add(problem.blocks[at].size);
            if !begins_here {
                ends.push((bytes, at));
            }
        }
        Self { begins, ends, period: problem.period.map(|_| bytes) }
    }

    /// Where the blocks lie that ended within `cache` bytes of traffic before this one's begin, the newest first, and how warm each still is:
    /// from 1 down to a half.
    fn recent(
        &self,
        at: usize,
        cache: u64,
        blocks: &[Block],
        offsets: &[u64],
    ) -> impl Iterator<Item = (Range, f64)> {
        let begin = self.begins[at];
        let next = self.ends.partition_point(|&(end, _)| end <= begin);
        let before = self.ends[..next].iter().rev().map(move |&(end, other)| (begin - end, other));
        let period = self.period.unwrap_or(0);
        let wrapped = self.ends[next..].iter().rev().map(move |&(end, other)| (begin + period - end, other));
        let wrapped = wrapped.filter(move |_| self.period.is_some());
        let range = move |other: usize| (offsets[other], offsets[other] + blocks[other].size);
        before
            .chain(wrapped)
            .take_while(move |&(distance, _)| distance <= cache)
            .filter(move |&(_, other)| other != at && blocks[other].size > 0)
            .take(RECENT)
            .map(move |(distance, other)| (range(other), 1.0 - distance as f64 / (2 * cache.max(1)) as f64))
    }
}

/// Bytes of a range that are still warm, each weighed by how much.
fn warmth(range: Range, recent: &[(Range, f64)], [cold, next]: &mut [Vec<Range>; 2]) -> f64 {
    cold.clear();
    cold.push(range);
    let mut warm = 0.0;
    for &((from, to), weight) in recent {
        for &(begin, end) in &*cold {
            let (first, last) = (begin.max(from), end.min(to));
            if first >= last {
                next.push((begin, end));
                continue;
            }
            warm += (last - first) as f64 * weight;
            next.extend([(begin, first), (last, end)].into_iter().filter(|(begin, end)| begin < end));
        }
        std::mem::swap(cold, next);
        next.clear();
        if cold.is_empty() {
            break;
        }
    }
    warm
}

/// Puts what blocks that are alive with this one leave free into `gaps`, where it has room; `held` is for what these have.
fn find_gaps(
    at: usize,
    problem: &Problem,
    offsets: &[u64],
    height: u64,
    held: &mut Vec<Range>,
    gaps: &mut Vec<Range>,
) {
    let block = &problem.blocks[at];
    let others = problem.blocks.iter().zip(offsets).enumerate();
    held.clear();
    held.extend(
        others
            .filter(|&(other, (it, _))| other != at && it.size > 0 && meet(block, it, problem.period))
            .map(|(_, (it, &offset))| (offset, offset + it.size)),
    );
    held.sort_unstable();
    gaps.clear();
    let mut free = 0;
    for &(from, to) in held.iter().chain([&(height, height)]) {
        if from.saturating_sub(free) >= block.size {
            gaps.push((free, from));
        }
        free = free.max(to);
    }
}

/// Whether two blocks are ever alive at once.
fn meet(one: &Block, other: &Block, period: Option<u64>) -> bool {
    if one.lower == one.upper || other.lower == other.upper {
        return false;
    }
    let meets = |shift: u64| one.lower < other.upper + shift && other.lower + shift < one.upper;
    let turned = |shift: u64| other.lower < one.upper + shift && one.lower + shift < other.upper;
    meets(0)
        || period.is_some_and(|period| {
            one.length().max(other.length()) >= period || meets(period) || turned(period)
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dice::Dice;
    use crate::{Planner, verify};

    fn block(id: u64, lower: u64, upper: u64, size: u64) -> Block {
        Block { id, lower, upper, size, align: 1 }
    }

    #[test]
    fn a_block_comes_where_another_was_freed_just_before() {
        // Layers whose input and output take turns, beside weights: anything above them would do.
        let mut blocks = vec![block(0, 0, 100, 50)];
        blocks.extend((1..20).map(|layer| block(layer, 4 * layer, 4 * layer + 5, 10)));
        blocks.push(block(20, 90, 99, 80));
        let problem = Problem::new(blocks);
        let mut offsets: Vec<u64> = (0..19).map(|layer| 50 + 10 * (layer % 8)).collect();
        offsets.insert(0, 0);
        offsets.push(50);
        assert_eq!(verify(&problem, &offsets, 130), Ok(()));
        assert!(reuse_recent(&problem, &mut offsets, 130, 100) > 10);
        assert_eq!(verify(&problem, &offsets, 130), Ok(()));
        // From the third on, each takes what the one before the last has left.
        assert!((3..20).all(|layer| offsets[layer] == offsets[layer - 2]), "{offsets:?}");
    }

    #[test]
    fn the_end_of_a_period_comes_before_its_beginning() {
        let blocks = vec![block(0, 10, 18, 40), block(1, 1, 5, 40), block(2, 2, 12, 40)];
        let problem = Problem::new(blocks).with_period(20);
        let mut offsets = vec![40, 80, 0];
        assert_eq!(reuse_recent(&problem, &mut offsets, 120, 1000), 1);
        assert_eq!(offsets, [40, 40, 0]);
    }

    #[test]
    fn plans_stay_valid_and_as_low() {
        let mut dice = Dice::new(5);
        for round in 0..60 {
            let period = [None, Some(40_000)][round % 2];
            let blocks = (0..80).map(|id| {
                // No two events at once.
                let lower = 200 * dice.below(200) + 2 * id;
                let most = if dice.below(4) == 0 { 190 } else { 20 };
                let upper = lower + 200 * (1 + dice.below(most)) + 1;
                Block { align: 1 << dice.below(7), ..block(id, lower, upper, 1 + dice.below(5000)) }
            });
            let problem = Problem::new(blocks.collect()).with_period(period);
            let plan = Planner::quick().plan(&problem).expect("a plan");
            let mut offsets = plan.offsets.clone();
            let moved = reuse_recent(&problem, &mut offsets, plan.height, 40_000);
            assert_eq!(verify(&problem, &offsets, plan.height), Ok(()), "round {round}");
            let differ = offsets.iter().zip(&plan.offsets).filter(|(new, old)| new != old).count();
            assert_eq!(moved, differ);
            assert!(moved > 0, "round {round}");
        }
    }
}
