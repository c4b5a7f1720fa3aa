//! Skyline placement: fill the lowest valley first.
//!
//! The skyline is the height already used at every rank. Again and again take its lowest valley, and of the blocks
//! whose lifetime lies inside the valley put down the first in the order; where none fits, raise the valley to its lower
//! neighbour. This is the best-fit heuristic of strip packing (Burke, Kendall, Whitwell 2004) as Sekiyama et al. (2018)
//! turned it to memory, here on a circle: the valleys of a periodic problem form a ring, and a block that wraps round
//! lies in a valley that does.
//!
//! Nothing is ever put below the skyline, so no overlap can come about: a block's range of ranks lies in one valley.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::forest::Forest;
use crate::timeline::{Timeline, align_up};

/// No neighbour: a wall at the end of a line of time.
const WALL: u32 = u32::MAX;

/// A stretch of the skyline of one height.
#[derive(Debug, Clone, Copy)]
struct Valley {
    /// First rank.
    start: u32,
    /// Ranks; 0 marks a valley merged away.
    width: u32,
    height: u64,
    before: u32,
    after: u32,
}

/// Places all items of `forest`, which was filled with an order and is emptied by this, into `offsets` (by item).
///
/// Returns the height in bytes, `None` (and offsets without meaning) once it would reach `limit`; and how many blocks
/// were placed.
pub(crate) fn place(
    timeline: &Timeline,
    forest: &mut Forest,
    limit: u64,
    offsets: &mut [u64],
) -> (Option<u64>, u64) {
    let mut sky = Skyline::new(timeline);
    let (mut top, mut placed) = (0, 0);
    while placed < timeline.items.len() as u64 {
        let valley = sky.lowest();
        let Valley { start, width, height, .. } = sky.valleys[valley as usize];
        let Some(item) = first_inside(timeline, forest, start, width) else {
            sky.raise(valley);
            continue;
        };
        forest.remove(item);
        placed += 1;
        let it = &timeline.items[item as usize];
        let offset = align_up(height, it.align);
        let end = offset + it.size;
        if end >= limit {
            return (None, placed);
        }
        offsets[item as usize] = offset;
        top = end.max(top);
        sky.build(valley, it.lower, it.upper - it.lower, end);
    }
    (Some(top), placed)
}

/// The first block in the order that lies inside `width` ranks from `start` on.
fn first_inside(timeline: &Timeline, forest: &Forest, start: u32, width: u32) -> Option<u32> {
    if timeline.circular() && width == timeline.turn {
        return forest.first().map(|(_, item)| item);
    }
    let end = start + width;
    let mut found = forest.first_within(start, end, u32::MAX);
    if end > timeline.turn {
        // The part of the valley beyond the turn holds blocks that start there.
        let limit = found.map_or(u32::MAX, |(place, _)| place);
        found = forest.first_within(0, end - timeline.turn, limit).or(found);
    }
    found.map(|(_, item)| item)
}

/// The skyline: a list of valleys, closed to a ring where time is a circle, and a heap of their heights.
struct Skyline {
    valleys: Vec<Valley>,
    /// Lowest first, then leftmost. Entries of valleys that changed since are skipped when they come up.
    heap: BinaryHeap<Reverse<(u64, u32, u32)>>,
    turn: u32,
    circular: bool,
}

impl Skyline {
    fn new(timeline: &Timeline) -> Skyline {
        let circular = timeline.circular();
        let neighbour = if circular { 0 } else { WALL };
        let all = Valley { start: 0, width: timeline.ranks, height: 0, before: neighbour, after: neighbour };
        Skyline {
            valleys: vec![all],
            heap: BinaryHeap::from([Reverse((0, 0, 0))]),
            turn: timeline.turn,
            circular,
        }
    }

    /// The lowest valley. It stays in the heap until it changes.
    fn lowest(&mut self) -> u32 {
        loop {
            let Some(&Reverse((height, start, index))) = self.heap.peek() else {
                unreachable!("the skyline covers all of time")
            };
            let valley = &self.valleys[index as usize];
            if valley.width > 0 && valley.height == height && valley.start == start {
                return index;
            }
            self.heap.pop();
        }
    }

    fn announce(&mut self, index: u32) {
        let valley = &self.valleys[index as usize];
        self.heap.push(Reverse((valley.height, valley.start, index)));
    }

    /// Lifts a valley in which nothing fits to its lower neighbour.
    fn raise(&mut self, index: u32) {
        let Valley { before, after, .. } = self.valleys[index as usize];
        let height = |other: u32| if other == WALL { u64::MAX } else { self.valleys[other as usize].height };
        self.valleys[index as usize].height = height(before).min(height(after));
        let index = self.join(index);
        self.announce(index);
    }

    /// Raises `width` ranks from `lower` on, all inside the valley, to `top`.
    fn build(&mut self, index: u32, lower: u32, width: u32, top: u64) {
        let old = self.valleys[index as usize];
        let from = if lower >= old.start { lower - old.start } else { lower + self.turn - old.start };
        let whole_ring = self.circular && old.width == self.turn;
        if whole_ring && width < old.width {
            // A ring of one valley is cut where the block begins.
            let rest = self.valleys.len() as u32;
            self.valleys[index as usize] =
                Valley { start: lower, width, height: top, before: rest, after: rest };
            let start = self.wrap(lower + width);
            let (width, height) = (old.width - width, old.height);
            self.valleys.push(Valley { start, width, height, before: index, after: index });
            self.announce(index);
            self.announce(rest);
            return;
        }
        let behind = old.width.saturating_sub(from + width);
        let middle = if from == 0 || whole_ring {
            index
        } else {
            // The valley keeps its start and is cut short; the block's top follows it.
            self.valleys[index as usize].width = from;
            self.insert_after(index, self.wrap(old.start + from), width, top)
        };
        let valley = &mut self.valleys[middle as usize];
        valley.height = top;
        valley.width = old.width.min(width);
        if behind > 0 {
            let rest = self.insert_after(middle, self.wrap(old.start + from + width), behind, old.height);
            self.announce(rest);
        }
        let middle = self.join(middle);
        self.announce(middle);
    }

    fn insert_after(&mut self, before: u32, start: u32, width: u32, height: u64) -> u32 {
        let index = self.valleys.len() as u32;
        let after = self.valleys[before as usize].after;
        self.valleys.push(Valley { start, width, height, before, after });
        self.valleys[before as usize].after = index;
        if after != WALL {
            self.valleys[after as usize].before = index;
        }
        index
    }

    /// Merges a valley with neighbours of its height; returns the one that is left.
    fn join(&mut self, index: u32) -> u32 {
        let mut index = index;
        let Valley { before, height, .. } = self.valleys[index as usize];
        if before != WALL && before != index && self.valleys[before as usize].height == height {
            self.swallow(before, index);
            index = before;
        }
        let after = self.valleys[index as usize].after;
        if after != WALL && after != index && self.valleys[after as usize].height == height {
            self.swallow(index, after);
        }
        index
    }

    /// Adds the valley `gone`, which follows `kept`, to it.
    fn swallow(&mut self, kept: u32, gone: u32) {
        let Valley { width, after, .. } = self.valleys[gone as usize];
        self.valleys[gone as usize].width = 0;
        self.valleys[kept as usize].width += width;
        self.valleys[kept as usize].after = after;
        if after != WALL {
            self.valleys[after as usize].before = kept;
        }
    }

    fn wrap(&self, rank: u32) -> u32 {
        if rank >= self.turn { rank - self.turn } else { rank }
    }
}
