//! Placement in any order: each block on top of all that is below it in its lifetime.
//!
//! The height used at every rank is kept in a segment tree with "the largest of a range" and "set a range", both
//! O(log n), so any order of n blocks takes O(n log n). Nothing is ever put into a hole; in an order that leaves none, as
//! longest first does where lifetimes nest, none is missed.

use crate::timeline::{Timeline, align_up};

/// No height to hand down.
const NONE: u64 = u64::MAX;

/// The height at every rank.
#[derive(Debug)]
struct Tower {
    /// The largest height below each node of a complete binary tree; the leaves are the ranks.
    most: Vec<u64>,
    /// The height all ranks below an inner node were set to since, or `NONE`.
    set: Vec<u64>,
    leaves: usize,
}

impl Tower {
    fn new(ranks: usize) -> Tower {
        let leaves = ranks.next_power_of_two();
        Tower { most: vec![0; 2 * leaves], set: vec![NONE; leaves], leaves }
    }

    /// Hands a height that was set down to the children of a node.
    fn push(&mut self, node: usize) {
        let height = std::mem::replace(&mut self.set[node], NONE);
        if height == NONE {
            return;
        }
        for child in [2 * node, 2 * node + 1] {
            self.most[child] = height;
            if child < self.leaves {
                self.set[child] = height;
            }
        }
    }

    /// Pushes all that lies above the leaf of a rank.
    fn push_to(&mut self, leaf: usize) {
        for level in (1..=self.leaves.trailing_zeros()).rev() {
            self.push(leaf >> level);
        }
    }

    /// The largest height in a range of ranks, which is not empty.
    fn highest(&mut self, from: usize, to: usize) -> u64 {
        let (mut left, mut right) = (from + self.leaves, to + self.leaves);
        self.push_to(left);
        self.push_to(right - 1);
        let mut most = 0;
        while left < right {
            if left % 2 == 1 {
                most = most.max(self.most[left]);
                left += 1;
            }
            if right % 2 == 1 {
                right -= 1;
                most = most.max(self.most[right]);
            }
            left /= 2;
            right /= 2;
        }
        most
    }

    /// Sets a range, whose [`Tower::highest`] was asked for just before, to a height.
    fn raise(&mut self, from: usize, to: usize, height: u64) {
        let (mut left, mut right) = (from + self.leaves, to + self.leaves);
        let (first, last) = (left, right - 1);
        while left < right {
            if left % 2 == 1 {
                self.assign(left, height);
                left += 1;
            }
            if right % 2 == 1 {
                right -= 1;
                self.assign(right, height);
            }
            left /= 2;
            right /= 2;
        }
        for mut node in [first / 2, last / 2] {
            while node > 0 {
                if self.set[node] == NONE {
                    self.most[node] = self.most[2 * node].max(self.most[2 * node + 1]);
                }
                node /= 2;
            }
        }
    }

    fn assign(&mut self, node: usize, height: u64) {
        self.most[node] = height;
        if node < self.leaves {
            self.set[node] = height;
        }
    }
}

/// Places the items in this order into `offsets` (by item) and returns the height in bytes; `None`, and offsets without
/// meaning, once the height would reach `limit`.
pub(crate) fn place(timeline: &Timeline, order: &[u32], limit: u64, offsets: &mut [u64]) -> Option<u64> {
    let ranks = timeline.ranks as usize;
    let mut tower = Tower::new(ranks);
    let mut top = 0;
    for &index in order {
        let item = &timeline.items[index as usize];
        let (lower, upper) = (item.lower as usize, item.upper as usize);
        // A lifetime that wraps is two ranges.
        let pieces = [(lower, upper.min(ranks)), (0, upper.saturating_sub(ranks))];
        let pieces = || pieces.into_iter().filter(|(from, to)| from < to);
        let below = pieces().map(|(from, to)| tower.highest(from, to)).max().unwrap_or(0);
        let offset = align_up(below, item.align);
        let end = offset + item.size;
        if end >= limit {
            return None;
        }
        for (from, to) in pieces() {
            // The second piece may lie below nodes set for the first.
            tower.push_to(from + tower.leaves);
            tower.push_to(to - 1 + tower.leaves);
            tower.raise(from, to, end);
        }
        offsets[index as usize] = offset;
        top = end.max(top);
    }
    Some(top)
}
