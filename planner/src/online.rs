//! Placement in the order of time, with the future known: what an allocator would do that also knows when blocks go.
//!
//! A sweep walks along time, takes blocks away that end and puts those that begin into the best gap ([`crate::bins`]).
//! It may begin anywhere, run either way, and may find blocks *given*: they have their offset already, and their room
//! is kept free for them. The bytes between two neighbouring boundaries of given blocks are a *cell*; a cell knows when
//! the next given block begins in it, and a block may only lie in cells where that is after its own end. O(n log n).
//!
//! The smallest blocks may *hang*: they have gaps of their own, counted from a ceiling that is put as low as the highest
//! sum of both needs. So they pin no gap between larger blocks that would else grow together.

use crate::bins::{Gaps, Taste, Wish};
use crate::timeline::{Item, Timeline, align_up};

/// Cells looked at in one gap, and nodes passed per given block on average: what keeps a sweep from growing quadratic.
const CELLS: usize = 32;
const STEPS: u64 = 4096;

/// Cells on either side in which a node is looked for that leads to a given block's.
const FAR: usize = 64;

/// A way to look at a timeline: from where, and which way. Its clock runs from 0 to the number of ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct View {
    /// The rank at which the sweep begins, or ends where it runs backward.
    pub from: u32,
    pub backward: bool,
}

/// How a sweep places blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Manner {
    pub taste: Taste,
    /// Blocks of fewer bytes, with their alignment, hang from a ceiling as low as it can be, and so leave the gaps
    /// between larger ones whole.
    pub hung: u64,
}

/// One stretch of a block's life on the clock of a view.
#[derive(Debug, Clone, Copy)]
struct Piece {
    start: u32,
    end: u32,
    item: u32,
    /// The block had its offset before the sweep.
    given: bool,
}

/// Cells below a node of the tree over them, as a power of two: five levels for 32,000 cells.
const FAN: u32 = 3;

/// The boundaries of given blocks, and when they begin in between.
///
/// A tree over the cells, each given block noted at the few nodes that make up its cells, as segment trees do: all
/// blocks take O(m log m) however many cells they cover, and a cell is asked for by asking the nodes above it.
#[derive(Debug, Default)]
struct Cells {
    /// Offsets, ascending; cell `i` is `[bounds[i], bounds[i + 1])`, the last reaches up to everything.
    bounds: Vec<u64>,
    /// Where each level of the tree begins in `ranges`; the cells themselves are the first.
    levels: Vec<usize>,
    /// By node: its range of `starts`, of which those gone by are left out as the sweep goes on.
    ranges: Vec<(u32, u32)>,
    /// Starts of given blocks, ascending in each node.
    starts: Vec<u32>,
    /// By cell: a node of the gaps that was seen near it.
    hints: Vec<u32>,
}

impl Cells {
    /// The cells of pieces, which are ordered by their start.
    fn new(timeline: &Timeline, pieces: &[Piece], offsets: &[u64]) -> Cells {
        let extent = |piece: &Piece| {
            let offset = offsets[piece.item as usize];
            (offset, offset + timeline.items[piece.item as usize].size)
        };
        // Those alive at the beginning are in the way of nobody who begins later.
        let late = || pieces.iter().filter(|piece| piece.given && piece.start > 0);
        let mut bounds: Vec<u64> = late().map(extent).flat_map(|(from, to)| [from, to]).collect();
        if bounds.is_empty() {
            return Cells::default();
        }
        bounds.push(0);
        bounds.sort_unstable();
        bounds.dedup();
        let (mut levels, mut nodes, mut width) = (Vec::new(), 0, bounds.len());
        loop {
            levels.push(nodes);
            nodes += width;
            if width == 1 {
                break;
            }
            width = width.div_ceil(1 << FAN);
        }
        let at = |offset: u64| bounds.partition_point(|&bound| bound < offset);
        let extents: Vec<(usize, usize)> = late().map(extent).map(|(from, to)| (at(from), at(to))).collect();
        let mut ranges = vec![(0u32, 0u32); nodes];
        for &(from, to) in &extents {
            cover(&levels, from, to, |node| ranges[node].1 += 1);
        }
        let mut sum = 0;
        for range in &mut ranges {
            let count = range.1;
            *range = (sum, sum);
            sum += count;
        }
        let mut starts = vec![0; sum as usize];
        for (piece, &(from, to)) in late().zip(&extents) {
            cover(&levels, from, to, |node| {
                let end = &mut ranges[node].1;
                starts[*end as usize] = piece.start;
                *end += 1;
            });
        }
        let hints = vec![crate::bins::NONE; bounds.len()];
        Cells { bounds, levels, ranges, starts, hints }
    }

    fn is_empty(&self) -> bool {
        self.bounds.is_empty()
    }

    /// The cell that holds the byte at `offset`.
    fn holding(&self, offset: u64) -> usize {
        self.bounds.partition_point(|&bound| bound <= offset) - 1
    }

    /// Whether a given block begins in a cell after `now` and before `end`.
    fn claimed(&mut self, cell: usize, now: u32, end: u32) -> bool {
        let mut node = cell;
        self.levels.iter().any(|level| {
            let range = &mut self.ranges[level + node];
            node >>= FAN;
            while range.0 < range.1 && self.starts[range.0 as usize] <= now {
                range.0 += 1;
            }
            range.0 < range.1 && self.starts[range.0 as usize] < end
        })
    }

    /// A node not far from `offset`, where one is known.
    fn near(&self, offset: u64, gaps: &Gaps) -> Option<u32> {
        let cell = self.holding(offset);
        let (first, last) = (cell.saturating_sub(FAR), (cell + FAR).min(self.bounds.len() - 1));
        let around = self.bounds[first]..=self.bounds[last];
        // Nodes out of use, and such that now lie elsewhere, are of no help.
        let there = |&hint: &u32| gaps.extent(hint).is_some_and(|(from, _)| around.contains(&from));
        let below = self.hints[first..=cell].iter().rev().copied().find(there);
        below.or_else(|| self.hints[cell..=last].iter().copied().find(there))
    }

    /// The lowest offset in a gap, up to `end` bytes, at which a block can stay from `now` on.
    fn lowest(&mut self, from: u64, to: u64, wish: Wish, now: u32, bounded: bool) -> Option<u64> {
        let mut offset = align_up(from, wish.align);
        let mut cell = self.holding(offset);
        let mut looked = 0;
        loop {
            if offset > to || to - offset < wish.size {
                return None;
            }
            looked += 1;
            if bounded && looked > CELLS {
                return None;
            }
            let next = self.bounds.get(cell + 1).copied();
            if self.claimed(cell, now, wish.end) {
                offset = align_up(next?, wish.align);
                while self.bounds.get(cell + 1).is_some_and(|&bound| bound <= offset) {
                    cell += 1;
                }
                continue;
            }
            if next.is_none_or(|next| next >= offset + wish.size) {
                return Some(offset);
            }
            cell += 1;
        }
    }
}

/// The nodes of a tree with these levels that make up the cells from `from` to `to`.
fn cover(levels: &[usize], mut from: usize, mut to: usize, mut visit: impl FnMut(usize)) {
    let mask = (1 << FAN) - 1;
    for level in levels {
        while from < to && from & mask != 0 {
            visit(level + from);
            from += 1;
        }
        while from < to && to & mask != 0 {
            to -= 1;
            visit(level + to);
        }
        (from, to) = (from >> FAN, to >> FAN);
    }
}

/// Places the items that have no offset yet; by item, `given` says which have. All that wrap round the beginning of the
/// view on a circle must be given, and on a line all that live at it, where it is not an end. Returns the height in bytes
/// and how many were placed; `None`, and offsets without meaning, where the given blocks make it too much work or the
/// height would reach `limit`.
pub(crate) fn sweep(
    timeline: &Timeline,
    view: View,
    manner: Manner,
    given: impl Fn(u32) -> bool,
    limit: u64,
    offsets: &mut [u64],
) -> (Option<u64>, u64) {
    let mut pieces = pieces(timeline, view, given);
    // From the bottom up each is the neighbour of the one before.
    let begun = pieces.partition_point(|piece| piece.start == 0 && piece.given);
    pieces[..begun].sort_unstable_by_key(|piece| offsets[piece.item as usize]);
    let mut placed = 0;
    (run(timeline, &pieces, manner, limit, offsets, &mut placed), placed)
}

/// Walks along the pieces, counting those placed.
fn run(
    timeline: &Timeline,
    pieces: &[Piece],
    manner: Manner,
    limit: u64,
    offsets: &mut [u64],
    placed: &mut u64,
) -> Option<u64> {
    let Manner { taste, hung } = manner;
    let mut cells = Cells::new(timeline, pieces, offsets);
    let mut gaps = Gaps::new();
    let mut ceiling = Gaps::new();
    // What ceiling blocks are aligned to.
    let mut grain = 1;
    let ends = ends(pieces, timeline.ranks);
    let mut nodes = vec![0u32; pieces.len()];
    let mut steps = STEPS * 16 + 8 * pieces.len() as u64;
    let (mut ended, mut height) = (0, 0);
    let mut seen = gaps.above();
    for (index, piece) in pieces.iter().enumerate() {
        while let Some(&gone) = ends.get(ended)
            && pieces[gone as usize].end <= piece.start
        {
            let piece = &pieces[gone as usize];
            let hangs = !piece.given && hangs(&timeline.items[piece.item as usize], hung).is_some();
            let from = if hangs { &mut ceiling } else { &mut gaps };
            from.take(nodes[gone as usize]);
            ended += 1;
        }
        *placed += 1;
        let item = &timeline.items[piece.item as usize];
        let length = piece.end - piece.start;
        if !piece.given
            && let Some(size) = hangs(item, hung)
        {
            grain = item.align.max(grain);
            let wish = Wish { size, align: item.align, end: piece.end, length };
            let (gap, offset) = ceiling.find(wish, taste, |from, to, high| wish.within(from, to, high));
            nodes[index] = ceiling.put(gap, offset, size, piece.end);
            offsets[piece.item as usize] = offset + size;
            height = height.max(gaps.top() + ceiling.top());
            if height >= limit {
                return None;
            }
            continue;
        }
        let wish = Wish { size: item.size, align: item.align, end: piece.end, length };
        let (gap, offset) = if piece.given {
            let offset = offsets[piece.item as usize];
            let near = if cells.is_empty() { None } else { cells.near(offset, &gaps) };
            let from = near.or(gaps.extent(seen).map(|_| seen)).unwrap_or(gaps.above());
            let (gap, passed) = gaps.walk(from, offset);
            steps = (steps + 64).checked_sub(passed)?;
            (gap, offset)
        } else if cells.is_empty() {
            gaps.find(wish, taste, |from, to, high| wish.within(from, to, high))
        } else {
            let above = gaps.top();
            gaps.find(wish, taste, |from, to, high| {
                if high {
                    let offset = (to - wish.size) & !(wish.align - 1);
                    if offset >= from && cells.lowest(offset, to, wish, piece.start, true) == Some(offset) {
                        return Some(offset);
                    }
                }
                cells.lowest(from, to, wish, piece.start, from < above)
            })
        };
        offsets[piece.item as usize] = offset;
        nodes[index] = gaps.put(gap, offset, item.size, piece.end);
        height = height.max(gaps.top() + ceiling.top());
        if height >= limit {
            return None;
        }
        seen = nodes[index];
        if !cells.is_empty() {
            let cell = cells.holding(offset);
            cells.hints[cell] = seen;
        }
    }
    if hung > 0 {
        height = align_up(height, grain);
        for piece in pieces.iter().filter(|piece| !piece.given) {
            if hangs(&timeline.items[piece.item as usize], hung).is_some() {
                offsets[piece.item as usize] = height - offsets[piece.item as usize];
            }
        }
    }
    (height < limit).then_some(height)
}

/// The bytes of an item with its alignment, if it hangs from the ceiling.
fn hangs(item: &Item, hung: u64) -> Option<u64> {
    let size = align_up(item.size, item.align);
    (size < hung).then_some(size)
}

/// The lives of all items on the clock of a view, by their start, given blocks first.
fn pieces(timeline: &Timeline, view: View, given: impl Fn(u32) -> bool) -> Vec<Piece> {
    let ranks = timeline.ranks;
    let mut pieces = Vec::with_capacity(timeline.items.len());
    for (item, it) in (0..).zip(&timeline.items) {
        let given = given(item);
        if !timeline.circular() {
            // A line is cut off where the view begins.
            let (start, end) = if view.backward {
                (view.from.saturating_sub(it.upper), view.from.saturating_sub(it.lower))
            } else {
                (it.lower.saturating_sub(view.from), it.upper.saturating_sub(view.from))
            };
            if start < end {
                pieces.push(Piece { start, end, item, given });
            }
            continue;
        }
        let lower = if it.lower >= view.from { it.lower } else { it.lower + ranks } - view.from;
        let upper = lower + (it.upper - it.lower);
        // What wraps round the beginning has two pieces.
        for (start, end) in [(lower, upper.min(ranks)), (0, upper.saturating_sub(ranks))] {
            if start < end {
                let (start, end) = if view.backward { (ranks - end, ranks - start) } else { (start, end) };
                pieces.push(Piece { start, end, item, given });
            }
        }
    }
    by(&pieces, 2 * ranks as usize + 1, |piece| 2 * piece.start as usize + usize::from(!piece.given))
}

/// The pieces' indices by their end.
fn ends(pieces: &[Piece], ranks: u32) -> Vec<u32> {
    let all: Vec<u32> = (0..pieces.len() as u32).collect();
    by(&all, ranks as usize, |&index| pieces[index as usize].end as usize)
}

/// Sorts by a number up to `most`, in linear time, keeping the order of equals.
fn by<T: Copy>(values: &[T], most: usize, place: impl Fn(&T) -> usize) -> Vec<T> {
    let Some(&first) = values.first() else {
        return Vec::new();
    };
    if values.is_sorted_by_key(&place) {
        return values.to_vec();
    }
    let mut counts = vec![0u32; most + 2];
    for value in values {
        counts[place(value) + 1] += 1;
    }
    for at in 1..counts.len() {
        counts[at] += counts[at - 1];
    }
    let mut sorted = vec![first; values.len()];
    for value in values {
        let count = &mut counts[place(value)];
        sorted[*count as usize] = *value;
        *count += 1;
    }
    sorted
}
