//! The blocks not yet placed, searchable by where they lie in time: "the first in the order inside this valley".
//!
//! A k-d tree over (lower, upper), as an implicit binary tree of boxes with few blocks in each leaf. A node knows its
//! box and the best place in the order among its blocks still there, so a search skips what lies outside, takes whole
//! boxes inside at once, and gives up on what cannot beat the best found.

use crate::timeline::Timeline;

/// Blocks in a leaf: few enough that scanning them costs what another level would.
const LEAF: usize = 8;

/// No block: worse than any place in an order.
const NONE: u32 = u32::MAX;

#[derive(Debug, Clone, Copy)]
struct Node {
    lower_min: u32,
    lower_max: u32,
    upper_min: u32,
    upper_max: u32,
    /// The best place in the order among the blocks below.
    best: u32,
    /// Range of `leaves` below.
    from: u32,
    to: u32,
}

/// A set of items with an order. Built once per timeline, filled once per order.
#[derive(Debug)]
pub(crate) struct Forest {
    /// Node `i` has the children `2i + 1` and `2i + 2`.
    nodes: Vec<Node>,
    /// Items leaf by leaf.
    leaves: Vec<u32>,
    /// By position in `leaves`: lower and upper.
    spans: Vec<(u32, u32)>,
    /// By position in `leaves`: place in the order, or `NONE` when gone.
    places: Vec<u32>,
    /// By item: position in `leaves`.
    seats: Vec<u32>,
    /// By place in the order: the item.
    order: Vec<u32>,
    /// Nodes in the lower half: those from here on are leaves.
    first_leaf: usize,
}

impl Forest {
    pub fn new(timeline: &Timeline) -> Forest {
        let count = timeline.items.len();
        let first_leaf = count.div_ceil(LEAF).max(1).next_power_of_two() - 1;
        let empty =
            Node { lower_min: 0, lower_max: 0, upper_min: 0, upper_max: 0, best: NONE, from: 0, to: 0 };
        let mut forest = Forest {
            nodes: vec![empty; 2 * first_leaf + 1],
            leaves: (0..count as u32).collect(),
            spans: Vec::new(),
            places: vec![NONE; count],
            seats: vec![0; count],
            order: Vec::new(),
            first_leaf,
        };
        let mut leaves = std::mem::take(&mut forest.leaves);
        forest.split(timeline, &mut leaves, 0, 0, true);
        forest.spans = leaves
            .iter()
            .map(|&i| (timeline.items[i as usize].lower, timeline.items[i as usize].upper))
            .collect();
        for (seat, &item) in leaves.iter().enumerate() {
            forest.seats[item as usize] = seat as u32;
        }
        forest.leaves = leaves;
        forest
    }

    /// Gives node `index` the items `part`, which begin at `from` among all.
    fn split(&mut self, timeline: &Timeline, part: &mut [u32], from: usize, index: usize, by_lower: bool) {
        let item = |i: &u32| &timeline.items[*i as usize];
        let node = &mut self.nodes[index];
        node.from = from as u32;
        node.to = (from + part.len()) as u32;
        node.lower_min = part.iter().map(|i| item(i).lower).min().unwrap_or(u32::MAX);
        node.lower_max = part.iter().map(|i| item(i).lower).max().unwrap_or(0);
        node.upper_min = part.iter().map(|i| item(i).upper).min().unwrap_or(u32::MAX);
        node.upper_max = part.iter().map(|i| item(i).upper).max().unwrap_or(0);
        if index >= self.first_leaf {
            return;
        }
        let middle = part.len() / 2;
        if middle > 0 {
            if by_lower {
                part.select_nth_unstable_by_key(middle, |i| (item(i).lower, item(i).upper, *i));
            } else {
                part.select_nth_unstable_by_key(middle, |i| (item(i).upper, item(i).lower, *i));
            }
        }
        let (left, right) = part.split_at_mut(middle);
        self.split(timeline, left, from, 2 * index + 1, !by_lower);
        self.split(timeline, right, from + middle, 2 * index + 2, !by_lower);
    }

    /// Puts all items in, in this order.
    pub fn fill(&mut self, order: &[u32]) {
        for (place, &item) in order.iter().enumerate() {
            self.places[self.seats[item as usize] as usize] = place as u32;
        }
        self.order.clear();
        self.order.extend_from_slice(order);
        for index in (0..self.nodes.len()).rev() {
            self.nodes[index].best = self.best_below(index);
        }
    }

    /// The best place among the children or in the leaf.
    fn best_below(&self, index: usize) -> u32 {
        let node = &self.nodes[index];
        if index < self.first_leaf {
            self.nodes[2 * index + 1].best.min(self.nodes[2 * index + 2].best)
        } else {
            self.places[node.from as usize..node.to as usize].iter().copied().min().unwrap_or(NONE)
        }
    }

    /// Place and item of the first in the order.
    pub fn first(&self) -> Option<(u32, u32)> {
        self.named(self.nodes[0].best)
    }

    /// Place and item of the first in the order with `lower >= from`, `upper <= to` and a place below `limit`.
    pub fn first_within(&self, from: u32, to: u32, limit: u32) -> Option<(u32, u32)> {
        let best = self.search(0, from, to, limit);
        if best < limit { self.named(best) } else { None }
    }

    fn named(&self, place: u32) -> Option<(u32, u32)> {
        (place != NONE).then(|| (place, self.order[place as usize]))
    }

    fn search(&self, index: usize, from: u32, to: u32, best: u32) -> u32 {
        let node = &self.nodes[index];
        if node.best >= best || node.lower_max < from || node.upper_min > to {
            return best;
        }
        if node.lower_min >= from && node.upper_max <= to {
            return node.best;
        }
        if index >= self.first_leaf {
            let seats = node.from as usize..node.to as usize;
            return self.spans[seats.clone()]
                .iter()
                .zip(&self.places[seats])
                .filter(|((lower, upper), _)| *lower >= from && *upper <= to)
                .map(|(_, &place)| place)
                .fold(best, u32::min);
        }
        // The child with the better block first: what it finds spares the other.
        let (left, right) = (2 * index + 1, 2 * index + 2);
        let (near, far) =
            if self.nodes[left].best <= self.nodes[right].best { (left, right) } else { (right, left) };
        let best = self.search(near, from, to, best);
        self.search(far, from, to, best)
    }

    /// Takes an item out.
    pub fn remove(&mut self, item: u32) {
        let seat = self.seats[item as usize];
        self.places[seat as usize] = NONE;
        let mut index = 0;
        while index < self.first_leaf {
            let right = 2 * index + 2;
            index = if seat >= self.nodes[right].from { right } else { right - 1 };
        }
        loop {
            let best = self.best_below(index);
            if self.nodes[index].best == best {
                break;
            }
            self.nodes[index].best = best;
            if index == 0 {
                break;
            }
            index = (index - 1) / 2;
        }
    }
}
