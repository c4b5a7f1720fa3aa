//! Skylines and sweeps of one timeline, one after the other, each tried only as far as it is lower than the best.

use std::cmp::Reverse;

use super::care;
use super::start::{Start, load, stack};
use super::tries::{HUNG, Try, heavy, smallest, tries};
use super::{FILLED, ORDERS, Placement, SWEPT, Work, skyline_work};
use crate::bins::Taste;
use crate::forest::Forest;
use crate::improve::Walk;
use crate::online::{Manner, View, sweep};
use crate::order::Order;
use crate::skyline;
use crate::timeline::Timeline;
use crate::tower;

/// Blocks up to which skylines of all of them are tried, each a microsecond or two for a block.
const SMALL: u64 = 200_000;

/// Steps on from the best of these skylines: most of what is to be gained comes with the first few.
const STEPS: u64 = 6;

/// The way on from a skyline.
struct On {
    order: Order,
    forest: Forest,
    walk: Walk,
}

/// Sweeps of one timeline, one after the other.
pub(super) struct Sweeps<'a> {
    timeline: &'a Timeline,
    bound: u64,
    start: Start,
    /// What is still to try, the next one last; without and with care.
    tries: [Vec<Try>; 2],
    /// The least height in bytes without and with care, once there was one.
    least: [Option<u64>; 2],
    /// Whether care is the more promising.
    heavy: bool,
    /// What was placed with care last.
    placed: Option<care::Placed>,
    /// Offsets by item, of the sweep on trial.
    trial: Vec<u64>,
}

impl<'a> Sweeps<'a> {
    pub fn new(timeline: &'a Timeline, bound: u64) -> Sweeps<'a> {
        Sweeps {
            timeline,
            bound,
            start: Start::new(timeline),
            tries: tries(timeline, bound),
            least: [None; 2],
            heavy: heavy(timeline, bound),
            placed: None,
            trial: vec![0; timeline.items.len()],
        }
    }

    fn count(&self) -> u64 {
        self.timeline.items.len() as u64
    }

    /// A placement in nearly linear time.
    pub fn first(&mut self, work: &mut Work) -> Placement {
        // Blocks given before may make a sweep too much work.
        for _ in 0..2 {
            if let Some(next) = self.next()
                && let Some(height) = self.run(next, u64::MAX, work)
            {
                return Placement { offsets: self.trial.clone(), height, name: next.name() };
            }
        }
        // This is always valid, and never too much.
        let order = Order::Length.sort(self.timeline);
        let height = tower::place(self.timeline, &order, u64::MAX, &mut self.trial).unwrap_or(u64::MAX);
        Placement { offsets: self.trial.clone(), height, name: String::from("tower by length") }
    }

    /// The sweep to try next: each kind once, the more promising first, and then the lower one again.
    fn next(&mut self) -> Option<Try> {
        let [plain, careful] = self.least;
        let careful = careful < plain || careful.is_none() && plain.is_none() && self.heavy;
        let [first, other] = if careful { [1, 0] } else { [0, 1] };
        self.tries[first].pop().or_else(|| self.tries[other].pop())
    }

    /// One sweep, into `trial`. Returns its height in bytes, where it is less than `limit`.
    fn run(&mut self, next: Try, limit: u64, work: &mut Work) -> Option<u64> {
        let timeline = self.timeline;
        let manner = Manner { taste: next.taste, hung: smallest(timeline, next.hung) };
        let view = self.start.view(timeline, next.backward);
        let (kind, cost, (height, placed)) = if let Some(care) = next.care {
            if self.placed.as_ref().is_none_or(|placed| placed.care != care) {
                self.placed = care::place(timeline, care, &self.start, limit, work);
            }
            let swept = self.placed.as_ref().map(|placed| {
                let given = placed.give(&mut self.trial);
                let given = |item: u32| given[item as usize];
                sweep(timeline, view, manner, given, limit, &mut self.trial)
            });
            (1, FILLED, swept.unwrap_or((None, 0)))
        } else {
            let given = self.start.give(timeline, &mut self.trial);
            let given = |item: u32| given[item as usize];
            (0, SWEPT, sweep(timeline, view, manner, given, limit, &mut self.trial))
        };
        work.left = work.left.saturating_sub(cost * placed);
        let this = height.unwrap_or(limit);
        let least = &mut self.least[kind];
        *least = Some(least.map_or(this, |least| least.min(this)));
        height
    }

    /// Skylines of everything; returns the way on from the lowest of them.
    fn skylines(&mut self, best: &mut Placement, work: &mut Work) -> Option<On> {
        let timeline = self.timeline;
        let mut forest = Forest::new(timeline);
        let mut lowest = None;
        for order in ORDERS {
            if !self.goes_on(best, skyline_work(self.count()), work) {
                return None;
            }
            let sorted = order.sort(timeline);
            forest.fill(&sorted);
            let (height, placed) = skyline::place(timeline, &mut forest, best.height, &mut self.trial);
            // What is given up early costs less.
            work.left -= skyline_work(self.count()) * placed / self.count().max(1);
            if height.is_some() {
                lowest = Some((order, sorted));
            }
            self.offer(height, best, || format!("skyline by {}", order.name()));
        }
        let (order, sorted) = lowest?;
        let walk = Walk::new(sorted, best.offsets.clone(), best.height, 0);
        Some(On { order, forest, walk })
    }

    /// Goes on from a skyline.
    fn go_on(&self, on: &mut On, steps: u64, best: &mut Placement, work: &mut Work) {
        let cost = skyline_work(self.count());
        for _ in 0..steps {
            if !self.goes_on(best, cost, work) {
                return;
            }
            // Any work, or this might never end.
            let placed = on.walk.step(self.timeline, &mut on.forest);
            work.left -= (cost * placed / self.count().max(1)).clamp(1, cost);
            if on.walk.height() < best.height {
                best.offsets.copy_from_slice(on.walk.offsets());
                best.height = on.walk.height();
                best.name = format!("iterated skyline by {}", on.order.name());
            }
        }
    }

    /// Whether something of this cost is to be tried yet.
    fn goes_on(&self, best: &Placement, cost: u64, work: &Work) -> bool {
        best.height > self.bound && work.left >= cost.max(1) && !(work.stop)()
    }

    /// Tries to bring a placement down, until it is no higher than the bound or the work is done.
    pub fn improve(&mut self, best: &mut Placement, work: &mut Work) {
        let (count, timeline) = (self.count(), self.timeline);
        let mut on = if count <= SMALL { self.skylines(best, work) } else { None };
        if let Some(on) = &mut on {
            self.go_on(on, STEPS, best, work);
        }
        // How long one takes is known to a factor of two.
        while self.goes_on(best, 2 * FILLED * count, work)
            && let Some(next) = self.next()
        {
            let height = self.run(next, best.height, work);
            self.offer(height, best, || next.name());
        }
        if !timeline.circular() && self.goes_on(best, 2 * SWEPT * count, work) {
            work.left -= 2 * SWEPT * count;
            let (height, _) = outward(timeline, best.height, &mut self.trial);
            self.offer(height, best, || String::from("sweep outward"));
        }
        if let Some(on) = &mut on {
            self.go_on(on, u64::MAX, best, work);
        }
    }

    /// Takes the trial as the best, if it is a placement lower than that.
    fn offer(&self, height: Option<u64>, best: &mut Placement, name: impl FnOnce() -> String) {
        if let Some(height) = height.filter(|&height| height < best.height) {
            *best = Placement { offsets: self.trial.clone(), height, name: name() };
        }
    }
}

/// What lives at the peak of a line side by side, the rest by sweeps from there to either end.
pub(super) fn outward(timeline: &Timeline, limit: u64, offsets: &mut [u64]) -> (Option<u64>, u64) {
    let load = load(timeline);
    let peak = (0..timeline.ranks).max_by_key(|&rank| (load[rank as usize], Reverse(rank))).unwrap_or(0);
    let alive = |item: &u32| {
        let item = &timeline.items[*item as usize];
        item.lower <= peak && peak < item.upper
    };
    let mut items: Vec<u32> = (0..timeline.items.len() as u32).filter(alive).collect();
    items.sort_by_key(|&item| Reverse(timeline.items[item as usize].length));
    let given = stack(timeline, &items, offsets);
    let (mut height, mut placed) = (Some(0), 0);
    let manner = Manner { taste: Taste::Alike, hung: smallest(timeline, HUNG[0]) };
    for backward in [false, true] {
        let view = View { from: peak, backward };
        let given = |item: u32| given[item as usize];
        if let Some(before) = height {
            let (half, some) = sweep(timeline, view, manner, given, limit, offsets);
            (height, placed) = (half.map(|half| half.max(before)), placed + some);
        }
    }
    (height, placed)
}
