//! Iterated skyline: place again and again in an order that learns from the last plan.
//!
//! What lies at the top of a plan was put down too late, so it is moved to a random earlier place in the order, now and
//! then together with a random exchange, and the skyline is built again. Plans as high as the best are the next start,
//! so that the search drifts over plateaus. This is iterated greedy (Ruiz, Stuetzle 2007) with the cheapest rule that
//! looks at the plan. The random numbers follow from a seed, and work is counted in placements: the same problem and
//! budget give the same plan everywhere.

use crate::dice::Dice;
use crate::forest::Forest;
use crate::skyline;
use crate::timeline::Timeline;

/// A walk from one order to better ones.
pub(crate) struct Walk {
    dice: Dice,
    /// The order of `offsets`, and the one on trial.
    order: Vec<u32>,
    trial: Vec<u32>,
    /// The lowest plan of the walk, by item, and its height in bytes.
    offsets: Vec<u64>,
    height: u64,
    /// Offsets on trial.
    placed: Vec<u64>,
}

impl Walk {
    /// Starts from the skyline plan of an order; chance begins at the seed.
    pub fn new(order: Vec<u32>, offsets: Vec<u64>, height: u64, seed: u64) -> Walk {
        Walk { dice: Dice::new(seed), trial: order.clone(), placed: offsets.clone(), order, offsets, height }
    }

    fn below(&mut self, sides: usize) -> usize {
        self.dice.below(sides as u64) as usize
    }

    /// Offsets of the lowest plan, by item.
    pub fn offsets(&self) -> &[u64] {
        &self.offsets
    }

    /// Its height in bytes.
    pub fn height(&self) -> u64 {
        self.height
    }

    /// Tries one other order with a skyline. Returns how many blocks were placed before it was worse or done.
    pub fn step(&mut self, timeline: &Timeline, forest: &mut Forest) -> u64 {
        self.step_by(timeline, |order, limit, offsets| {
            forest.fill(order);
            skyline::place(timeline, forest, limit, offsets)
        })
    }

    /// Tries one other order with a placement of the caller's: from an order, a limit that the height must not reach and
    /// room for offsets by item to the height, if below the limit, and the work done, which is returned.
    pub fn step_by(
        &mut self,
        timeline: &Timeline,
        mut place: impl FnMut(&[u32], u64, &mut [u64]) -> (Option<u64>, u64),
    ) -> u64 {
        self.trial.clone_from(&self.order);
        let count = self.trial.len();
        for at in 0..count {
            let item = self.trial[at] as usize;
            if self.offsets[item] + timeline.items[item].size >= self.height {
                let to = self.below(at + 1);
                self.trial[to..=at].rotate_right(1);
            }
        }
        if self.below(2) == 0 {
            let (a, b) = (self.below(count), self.below(count));
            self.trial.swap(a, b);
        }
        let limit = self.height.saturating_add(1);
        let (height, placements) = place(&self.trial, limit, &mut self.placed);
        if let Some(height) = height {
            self.height = height;
            std::mem::swap(&mut self.order, &mut self.trial);
            std::mem::swap(&mut self.offsets, &mut self.placed);
        }
        placements
    }
}
