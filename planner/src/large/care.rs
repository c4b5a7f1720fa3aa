//! What is placed with care, before a sweep fills the holes.

use std::cmp::Reverse;
use std::fmt;

use super::start::Start;
use super::{FILLED, ORDERS, Work, skyline_work};
use crate::forest::Forest;
use crate::improve::Walk;
use crate::skyline;
use crate::timeline::Timeline;

/// Skylines tried on from the best. Most of what is to be gained comes with the first few dozen.
const STEPS: u32 = 64;

/// Which blocks are placed with care.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Care {
    /// Those of so many bytes, and more.
    Bytes(u64),
    /// One of so many, the largest.
    Size(usize),
    /// One of so many, those of most bytes and events.
    Area(usize),
}

impl fmt::Display for Care {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Care::Bytes(least) => write!(f, "blocks of {least} bytes and more"),
            Care::Size(part) => write!(f, "the largest 1/{part} by size"),
            Care::Area(part) => write!(f, "the largest 1/{part} by area"),
        }
    }
}

impl Care {
    /// Whether there are such blocks, and others.
    pub fn any(self, timeline: &Timeline) -> bool {
        let most = timeline.items.len() / 4;
        match self {
            Care::Bytes(least) => {
                (1..=most).contains(&timeline.items.iter().filter(|item| item.size >= least).count())
            }
            Care::Size(part) | Care::Area(part) => timeline.items.len() >= part,
        }
    }
}

/// Offsets found with care.
pub(super) struct Placed {
    pub care: Care,
    /// Items, ascending, and where they lie.
    items: Vec<u32>,
    offsets: Vec<u64>,
    /// How many items there are in all.
    count: usize,
}

impl Placed {
    /// Writes the offsets. Returns, by item, whether it is one of them.
    pub fn give(&self, offsets: &mut [u64]) -> Vec<bool> {
        let mut given = vec![false; self.count];
        for (&item, &offset) in self.items.iter().zip(&self.offsets) {
            (offsets[item as usize], given[item as usize]) = (offset, true);
        }
        given
    }
}

/// Places these blocks, and what lives across the start, by the lowest skyline and some better ones; `None` where it is
/// too much work or no lower than `limit`.
pub(super) fn place(
    timeline: &Timeline,
    care: Care,
    start: &Start,
    limit: u64,
    work: &mut Work,
) -> Option<Placed> {
    let count = timeline.items.len();
    let mut items = chosen(timeline, care);
    items.extend_from_slice(&start.across);
    items.sort_unstable();
    items.dedup();
    let cost = skyline_work(items.len() as u64);
    let some = timeline.of(&items);
    let mut forest = Forest::new(&some);
    let (mut best, mut offsets) = (None, vec![0; items.len()]);
    let mut limit = limit;
    for order in ORDERS {
        if work.left < cost || (work.stop)() {
            break;
        }
        forest.fill(&order.sort(&some));
        let (height, placed) = skyline::place(&some, &mut forest, limit, &mut offsets);
        work.left -= cost * placed / items.len().max(1) as u64;
        if let Some(height) = height {
            // Never better than the best in its own right: the others are not placed yet.
            limit = height;
            best = Some((order, offsets.clone()));
        }
    }
    let (order, offsets) = best?;
    let mut walk = Walk::new(order.sort(&some), offsets, limit, 0);
    // No more than the sweep round them takes.
    let enough = work.left.saturating_sub(FILLED * count as u64);
    for _ in 0..STEPS {
        if work.left < enough.max(cost) || (work.stop)() {
            break;
        }
        work.left -= cost * walk.step(&some, &mut forest) / items.len().max(1) as u64;
    }
    Some(Placed { care, items, offsets: walk.offsets().to_vec(), count })
}

/// The items to be placed with care.
fn chosen(timeline: &Timeline, care: Care) -> Vec<u32> {
    let item = |index: u32| &timeline.items[index as usize];
    let all = 0..timeline.items.len() as u32;
    let size = |index: u32| u128::from(item(index).size);
    let area = |index: u32| size(index) * u128::from(item(index).length);
    // Of equals the larger first, as what is small finds room later.
    let largest = |part: usize, weight: &dyn Fn(u32) -> u128| {
        let some = (timeline.items.len() / part).max(1);
        let mut items: Vec<(u128, u64, Reverse<u32>)> =
            all.clone().map(|index| (weight(index), item(index).size, Reverse(index))).collect();
        items.select_nth_unstable_by(some - 1, |one, other| other.cmp(one));
        items.truncate(some);
        items.into_iter().map(|(.., Reverse(index))| index).collect()
    };
    match care {
        Care::Bytes(least) => all.filter(|&index| item(index).size >= least).collect(),
        Care::Size(part) => largest(part, &size),
        Care::Area(part) => largest(part, &area),
    }
}
