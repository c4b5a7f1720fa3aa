//! Orders in which blocks are placed.
//!
//! No order wins everywhere (PLANNING: several, keep the best). Long blocks first leaves stack-like lifetimes without a
//! hole; large first is what TFLite, TVM and XLA do; area weighs both; the conflicts of a block, in bytes, are what
//! IBM's and SOMAS's planners sort by.

use std::cmp::Reverse;

use crate::timeline::Timeline;

/// What blocks are sorted by, the largest first. Ties fall to the other quantities, then to the problem's order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Order {
    /// Length of the lifetime in events.
    Length,
    /// Length times size.
    Area,
    /// Size in bytes.
    Size,
    /// The largest load during the lifetime, then the size: what is alive at the peak comes first.
    Load,
    /// Start of the lifetime, earliest first: what an online allocator does.
    Start,
}

impl Order {
    /// All orders, the most successful first.
    pub const ALL: [Order; 5] = [Order::Length, Order::Start, Order::Size, Order::Area, Order::Load];

    /// The name in [`crate::Plan::algorithm`].
    pub fn name(self) -> &'static str {
        match self {
            Order::Length => "length",
            Order::Area => "area",
            Order::Size => "size",
            Order::Load => "load",
            Order::Start => "start",
        }
    }

    /// Indices of the timeline's items in this order.
    pub(crate) fn sort(self, timeline: &Timeline) -> Vec<u32> {
        let items = &timeline.items;
        let mut order: Vec<u32> = (0..items.len() as u32).collect();
        let item = |i: &u32| &items[*i as usize];
        match self {
            Order::Length => order.sort_by_key(|i| Reverse((item(i).length, item(i).size))),
            Order::Size => order.sort_by_key(|i| Reverse((item(i).size, item(i).length))),
            Order::Area => {
                order.sort_by_key(|i| {
                    Reverse((u128::from(item(i).size) * u128::from(item(i).length), item(i).size))
                });
            }
            Order::Start => order.sort_by_key(|i| (item(i).lower, Reverse(item(i).length))),
            Order::Load => {
                let peaks = peaks(timeline);
                order.sort_by_key(|i| Reverse((peaks[*i as usize], item(i).size, item(i).length)));
            }
        }
        order
    }
}

/// The largest load in bytes during each item's lifetime.
fn peaks(timeline: &Timeline) -> Vec<u64> {
    let ranks = timeline.ranks as usize;
    // Twice round, so that a lifetime that wraps is one range.
    let rounds = if timeline.circular() { 2 } else { 1 };
    let mut change = vec![0i128; ranks * rounds + 1];
    for item in &timeline.items {
        let (lower, upper, bytes) = (item.lower as usize, item.upper as usize, i128::from(item.size));
        for round in 0..rounds {
            let shift = round * ranks;
            change[(lower + shift).min(ranks * rounds)] += bytes;
            change[(upper + shift).min(ranks * rounds)] -= bytes;
        }
        if upper > ranks {
            change[0] += bytes;
            change[upper - ranks] -= bytes;
        }
    }
    let mut live = 0i128;
    let load: Vec<u64> = change
        .iter()
        .map(|&bytes| {
            live += bytes;
            live as u64
        })
        .collect();
    let highest = Highest::new(load);
    timeline.items.iter().map(|item| highest.within(item.lower as usize, item.upper as usize)).collect()
}

/// Maximum of any range of a fixed row, by a table of ranges of doubling length.
struct Highest {
    rows: Vec<Vec<u64>>,
}

impl Highest {
    fn new(row: Vec<u64>) -> Highest {
        let mut rows = vec![row];
        let mut width = 1;
        while let Some(last) = rows.last()
            && last.len() > width
        {
            let next = (0..last.len() - width).map(|i| last[i].max(last[i + width])).collect();
            rows.push(next);
            width *= 2;
        }
        Highest { rows }
    }

    /// Maximum over `[from, to)`, which is not empty.
    fn within(&self, from: usize, to: usize) -> u64 {
        let level = (to - from).ilog2() as usize;
        let row = &self.rows[level];
        row[from].max(row[to - (1 << level)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::{Block, Problem};

    #[test]
    fn the_peak_of_a_block_that_wraps_is_found_in_the_next_round() {
        let block = |lower, upper, size| Block { id: 0, lower, upper, size, align: 1 };
        let problem = Problem {
            blocks: vec![block(8, 12, 1), block(1, 3, 5), block(4, 6, 2), block(5, 9, 2)],
            period: Some(10),
            ..Problem::default()
        };
        assert_eq!(peaks(&Timeline::new(&problem)), [6, 6, 4, 4]);
    }
}
