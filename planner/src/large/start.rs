//! Where sweeps begin, and what has its offset then.

use std::cmp::Reverse;

use crate::online::View;
use crate::timeline::{Timeline, align_up};

/// Where sweeps begin.
pub(super) struct Start {
    rank: u32,
    /// Items that live across it: none on a line.
    pub across: Vec<u32>,
}

impl Start {
    /// On a circle where the fewest bytes live.
    pub fn new(timeline: &Timeline) -> Start {
        if !timeline.circular() {
            return Start { rank: 0, across: Vec::new() };
        }
        let load = load(timeline);
        let rank = (0..timeline.ranks).min_by_key(|&rank| load[rank as usize]).unwrap_or(0);
        let across = |item: &u32| {
            let item = &timeline.items[*item as usize];
            item.lower < rank && rank < item.upper || item.upper > rank + timeline.ranks
        };
        let mut across: Vec<u32> = (0..timeline.items.len() as u32).filter(across).collect();
        across.sort_by_key(|&item| Reverse(timeline.items[item as usize].length));
        Start { rank, across }
    }

    pub fn view(&self, timeline: &Timeline, backward: bool) -> View {
        View { from: if backward && !timeline.circular() { timeline.ranks } else { self.rank }, backward }
    }

    /// Puts what lives across the start at the bottom. Returns, by item, whether it has its offset.
    pub fn give(&self, timeline: &Timeline, offsets: &mut [u64]) -> Vec<bool> {
        stack(timeline, &self.across, offsets)
    }
}

/// Puts items one on another. Returns, by item, whether it is one of them.
pub(super) fn stack(timeline: &Timeline, items: &[u32], offsets: &mut [u64]) -> Vec<bool> {
    let mut given = vec![false; timeline.items.len()];
    let mut top = 0;
    for &index in items {
        let item = &timeline.items[index as usize];
        let offset = align_up(top, item.align);
        (offsets[index as usize], given[index as usize]) = (offset, true);
        top = offset + item.size;
    }
    given
}

/// Live bytes by rank.
pub(super) fn load(timeline: &Timeline) -> Vec<u64> {
    let ranks = timeline.ranks as usize;
    // Changes modulo 2^64: their sums are bytes alive.
    let mut load = vec![0u64; ranks + 1];
    let mut change = |rank: usize, bytes: u64| load[rank] = load[rank].wrapping_add(bytes);
    for item in &timeline.items {
        let (lower, upper) = (item.lower as usize, item.upper as usize);
        change(lower, item.size);
        if upper > ranks {
            change(0, item.size);
            change(upper - ranks, item.size.wrapping_neg());
        } else {
            change(upper, item.size.wrapping_neg());
        }
    }
    let mut live = 0u64;
    for bytes in &mut load {
        live = live.wrapping_add(*bytes);
        *bytes = live;
    }
    load.truncate(ranks);
    load
}
