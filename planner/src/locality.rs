//! Of plans of one height, one whose blocks come where memory was used just before.
//!
//! A plan that is only low may deal memory out in turn, so that each block begins with what no cache has any more. An allocator that
//! hands out again what was freed last does better, and so can a plan: most blocks of a step live for a short time only, meet few others,
//! and may lie at many offsets without a byte more of height. Each block in turn, in the order of allocation, is moved to the offset
//! that has most of the bytes that other blocks have left within the last few MiB of *traffic*: what is written when a
//! block is allocated, and read until it is freed.
//!
//! Each block is compared with all others: quadratic, with a small constant.

use crate::gaps::{Range, without};
use crate::problem::Problem;
use crate::timeline::{Item, Timeline, align_up, meet};

/// Blocks freed before a block that are looked at, the newest first.
const RECENT: usize = 16;
/// A move must gain at least this share of the block's size.
const GAIN: f64 = 1.0 / 64.0;

/// Moves blocks of a valid plan to where memory was used just before, as far as a cache that forgets after `cache` bytes of traffic remembers,
/// and returns how many moved. The plan stays valid, and no higher than `height`. Problems with constraints are left as they are.
pub fn reuse_recent(problem: &Problem, offsets: &mut [u64], height: u64, cache: u64) -> usize {
    if !problem.constraints.is_empty() || problem.blocks.len() != offsets.len() {
        return 0;
    }
    let timeline = Timeline::new(problem);
    let traffic = Traffic::of(&timeline);
    let mut order: Vec<u32> = (0..timeline.items.len() as u32).collect();
    order.sort_unstable_by_key(|&at| (timeline.items[at as usize].lower, at));
    let (mut recent, mut held, mut gaps) = (Vec::new(), Vec::new(), Vec::new());
    let mut cold = [Vec::new(), Vec::new()];
    let mut moved = 0;
    for at in order {
        recent.clear();
        recent.extend(traffic.recent(at, cache).map(|(other, warm)| (range(other, offsets), warm)));
        let item = &timeline.items[at as usize];
        let mut warmth = |offset: u64| warmth((offset, offset + item.size), &recent, &mut cold);
        let old = offsets[item.block as usize];
        let (mut best, mut warmest) = (old, warmth(old) + item.size as f64 * GAIN);
        if recent.is_empty() || warmest >= item.size as f64 {
            continue;
        }
        held.clear();
        let lives = |item: &Item| (item.lower, item.upper);
        let others = timeline.items.iter().filter(|other| other.block != item.block);
        let alive = others.filter(|other| meet(lives(item), lives(other), timeline.turn));
        held.extend(alive.map(|other| range(other, offsets)));
        held.sort_unstable();
        without(&[(0, height)], held.iter().copied(), item.size, &mut gaps);
        for &gap in &gaps {
            let last = gap.1 - item.size;
            for &((from, to), _) in &recent {
                // Only where the gap has some of it.
                if from >= gap.1 || to <= gap.0 {
                    continue;
                }
                for wanted in [from, to.saturating_sub(item.size)] {
                    let offset = align_up(wanted.clamp(gap.0, last), item.align);
                    let warm = if offset <= last { warmth(offset) } else { 0.0 };
                    if warm > warmest {
                        (best, warmest) = (offset, warm);
                    }
                }
            }
        }
        moved += usize::from(best != old);
        offsets[item.block as usize] = best;
    }
    moved
}

/// Where a block lies.
fn range(item: &Item, offsets: &[u64]) -> Range {
    let offset = offsets[item.block as usize];
    (offset, offset + item.size)
}

/// When blocks are written and read, in bytes of traffic.
struct Traffic<'a> {
    items: &'a [Item],
    /// Of each block's begin, before it is written.
    begins: Vec<u64>,
    /// Of each block's end, in order, and which block that is.
    ends: Vec<(u64, u32)>,
    /// Of a whole period, where there is one.
    period: Option<u64>,
}

impl<'a> Traffic<'a> {
    fn of(timeline: &'a Timeline) -> Self {
        let items = &timeline.items;
        let mut events = Vec::with_capacity(2 * items.len());
        for (at, item) in items.iter().enumerate() {
            events.push((item.upper % timeline.turn.max(1), false, at as u32));
            events.push((item.lower, true, at as u32));
        }
        // What is freed before what is allocated at the same time.
        events.sort_unstable();
        let (mut begins, mut ends) = (vec![0; items.len()], Vec::with_capacity(items.len()));
        let mut bytes = 0u64;
        for (_, begins_here, at) in events {
            if begins_here {
                begins[at as usize] = bytes;
            }
            bytes = bytes.saturating_add(items[at as usize].size);
            if !begins_here {
                ends.push((bytes, at));
            }
        }
        Self { items, begins, ends, period: timeline.circular().then_some(bytes) }
    }

    /// The blocks that ended within `cache` bytes of traffic before this one's begin, the newest first, and how warm each still is: from 1 down
    /// to a half.
    fn recent(&self, at: u32, cache: u64) -> impl Iterator<Item = (&Item, f64)> {
        let begin = self.begins[at as usize];
        let next = self.ends.partition_point(|&(end, _)| end <= begin);
        let before = self.ends[..next].iter().rev().map(move |&(end, other)| (begin - end, other));
        let wrapped = self.period.into_iter().flat_map(move |period| {
            self.ends[next..].iter().rev().map(move |&(end, other)| (begin + period - end, other))
        });
        before
            .chain(wrapped)
            .take_while(move |&(distance, _)| distance <= cache)
            .filter(move |&(_, other)| other != at)
            .take(RECENT)
            .map(move |(distance, other)| {
                (&self.items[other as usize], 1.0 - distance as f64 / (2 * cache.max(1)) as f64)
            })
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dice::Dice;
    use crate::{Block, Planner, verify};

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
