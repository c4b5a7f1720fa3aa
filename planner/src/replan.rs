//! Planning again after a change, in proportion to the change: what did not change stays where it is.
//!
//! A [`Replanner`] is made once from a plan and keeps an index of it by time. Each [`Replanner::apply`] takes changed
//! blocks out, leaves those where they were that still fit there, puts the others into gaps, and tries again with the
//! changed blocks round the highest one where it is higher than all others. A block nobody named never moves, so the
//! height can only follow the load as far as the gaps allow: the answer says how far it is above the bound, and
//! [`Planner::plan`](crate::Planner::plan) on [`Replanner::snapshot`] is the way to a better one. [`replan()`] finds the
//! changes between two problems itself.
//!
//! Words: a *slot* names a block for good, through all changes; the blocks of the first problem have their indices as
//! slots. A block that has no bytes or never lives is *idle*: it conflicts with nothing.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use thiserror::Error;

use crate::calendar::{Calendar, Span, Stay, Wish};
use crate::plan::{Plan, Proof};
use crate::problem::{Block, MAX_BLOCKS, Problem, ProblemError};
use crate::timeline::align_up;
use crate::verify::{Violation, verify};

pub use crate::carry::replan;

/// The most bytes of height and blocks together, so that the bounds kept by the calendar's levels cannot overflow.
const MAX_BYTES: u64 = u64::MAX >> 5;

/// Placements of the repair: one for so many blocks that changed, and a few at least. More of them take longer than
/// the change itself and lower the height by less than a thousandth.
const REPAIRS: usize = 4;
const FEW_REPAIRS: usize = 64;

/// Blocks looked at in the time of a placement.
const LOOKS: usize = 64;

/// Visitors of a leaf of the calendar, in multiples of the square root of all blocks, from which on a new one pays: a
/// visitor costs some tens of nanoseconds for every block placed there, a new calendar a microsecond for every block.
const CROWD: usize = 8;

/// Slots that are passed, of blocks that may be gone, for each block placed since the calendar was made.
const SLOTS: usize = 64;

/// What is to change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Change {
    /// A new block, in a new slot.
    Add(Block),
    /// The slot's block is gone.
    Remove(usize),
    /// The slot's block has another lifetime, size or alignment.
    Replace(usize, Block),
}

/// What came of some changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replanned {
    /// Slot and offset in bytes of each block that was added or replaced, in the order of the changes. No other moved.
    pub placed: Vec<(usize, u64)>,
    /// Bytes of the arena now.
    pub height: u64,
    /// Bytes no plan of the problem as it is now can do without. [`Problem::lower_bound`] may know more, as it looks
    /// for the alignment that matters most now; here it is that of the first problem, looked for again when the index is
    /// made anew unless it was 1.
    pub lower_bound: u64,
}

impl Replanned {
    /// Height over lower bound, at least 1: whether planning from scratch may be worth while.
    pub fn ratio(&self) -> f64 {
        if self.lower_bound == 0 { 1.0 } else { self.height as f64 / self.lower_bound as f64 }
    }
}

/// Why there is no new plan; nothing was changed then.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ReplanError {
    /// The problem cannot be planned, or the changes would make it so.
    #[error(transparent)]
    Problem(#[from] ProblemError),
    /// The old plan is not valid.
    #[error("the old plan cannot be built upon: {0}")]
    Plan(#[from] Violation),
    /// The problem has constraints.
    #[error("problems with constraints cannot be replanned yet; plan them from scratch")]
    Constraints,
    /// A slot that never was, or whose block is gone.
    #[error(
        "no block is in slot {slot}; slots are indices of the first problem or were given by an addition"
    )]
    NoBlock {
        /// The slot.
        slot: usize,
    },
    /// Two changes of one block.
    #[error("slot {slot} is changed twice at once; give the changes one after the other or only the last")]
    Twice {
        /// The slot.
        slot: usize,
    },
    /// Height and sizes beyond what the index can count.
    #[error(
        "the arena, its blocks and their alignments take 2^59 bytes or more together; check sizes, offsets and alignments"
    )]
    TooLarge,
}

/// A block in its place.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Placed {
    pub block: Block,
    pub offset: u64,
}

impl Placed {
    fn end(&self) -> u64 {
        self.offset + self.block.size
    }
}

/// Changes that can be made.
struct Checked {
    /// The slots they name, ascending, with the new blocks of those that are replaced.
    named: Vec<(usize, Option<Block>)>,
    added: Vec<Block>,
}

/// What became of putting some blocks again.
enum Again {
    Lower,
    Higher,
    /// The first one does not go lower even with the others out of its way: what nobody may move holds it up.
    Hopeless,
}

/// A plan that follows the changes of its problem.
#[derive(Debug)]
pub struct Replanner {
    period: Option<u64>,
    slots: Vec<Option<Placed>>,
    calendar: Calendar,
    /// Ends of the idle blocks, and how many end there.
    idle: BTreeMap<u64, usize>,
    /// Size and alignment of all blocks.
    bytes: u64,
    /// The alignment at which the load is counted: see [`crate::bound`].
    unit: u64,
    /// Blocks placed since the calendar was made.
    aged: usize,
    /// Blocks in the calendar when it was made, and the most visitors that one of its leaves had then.
    indexed: usize,
    crowd: usize,
}

impl Replanner {
    /// An index of a plan: `offsets` in bytes, one for each block of the problem.
    ///
    /// O(n log n), about as long as verifying the plan, which it does, too.
    ///
    /// # Errors
    /// [`ReplanError::Problem`] or [`ReplanError::Plan`] where either is not valid, [`ReplanError::Constraints`],
    /// [`ReplanError::TooLarge`].
    pub fn new(problem: &Problem, offsets: &[u64]) -> Result<Replanner, ReplanError> {
        if !problem.constraints.is_empty() {
            return Err(ReplanError::Constraints);
        }
        problem.check()?;
        verify(problem, offsets, u64::MAX)?;
        let placed = |(&block, &offset)| Some(Placed { block, offset });
        let slots = problem.blocks.iter().zip(offsets).map(placed).collect();
        Replanner::of(slots, problem.period, problem.lower_bound().align)
    }

    /// An index of blocks that are known to lie well.
    pub(crate) fn of(
        slots: Vec<Option<Placed>>,
        period: Option<u64>,
        unit: u64,
    ) -> Result<Replanner, ReplanError> {
        let mut replanner = Replanner {
            period,
            slots,
            calendar: Calendar::new(Vec::new(), u64::MAX),
            idle: BTreeMap::new(),
            bytes: 0,
            unit,
            aged: 0,
            indexed: 0,
            crowd: 0,
        };
        let (mut height, mut bytes) = (0, 0u64);
        for placed in replanner.slots.iter().flatten() {
            bytes = bytes.saturating_add(room(&placed.block));
            height = placed.end().max(height);
            if idle(&placed.block) {
                *replanner.idle.entry(placed.end()).or_default() += 1;
            }
        }
        if bytes.saturating_add(height) > MAX_BYTES {
            return Err(ReplanError::TooLarge);
        }
        replanner.bytes = bytes;
        replanner.index();
        Ok(replanner)
    }

    /// Makes the calendar anew, its leaves cut to the lifetimes as they are now.
    fn index(&mut self) {
        let placed = self.slots.iter().flatten().filter(|placed| !idle(&placed.block));
        let stays: Vec<Stay> = placed.map(|placed| self.stay(placed)).collect();
        self.indexed = stays.len();
        self.calendar = Calendar::new(stays, self.period.unwrap_or(u64::MAX));
        self.calendar.peak();
        self.crowd = self.calendar.crowd();
        self.aged = 0;
    }

    /// Counts one more block placed, and makes the calendar anew where it is worn: where as many blocks were placed as it
    /// was made for, or so many in one leaf that another cut pays. Returns whether it did.
    fn renew(&mut self) -> bool {
        self.aged += 1;
        let crowded = (CROWD * self.slots.len().isqrt()).max(2 * self.crowd);
        let worn = self.aged > self.indexed || self.calendar.crowd() > crowded;
        let renew = worn && self.aged > self.slots.len() / SLOTS;
        if renew {
            self.index();
        }
        renew
    }

    /// Bytes of the arena: the largest offset + size.
    pub fn height(&self) -> u64 {
        let idle = self.idle.last_key_value().map_or(0, |(&end, _)| end);
        self.calendar.top().max(idle)
    }

    /// The block in a slot.
    pub fn block(&self, slot: usize) -> Option<&Block> {
        self.slots.get(slot)?.as_ref().map(|placed| &placed.block)
    }

    /// Where the block in a slot begins, in bytes.
    pub fn offset(&self, slot: usize) -> Option<u64> {
        self.slots.get(slot)?.as_ref().map(|placed| placed.offset)
    }

    /// The problem as it is now.
    fn problem(&self) -> Problem {
        let blocks = self.slots.iter().flatten().map(|placed| placed.block).collect();
        Problem::new(blocks).with_period(self.period)
    }

    /// The problem as it is now and its plan: the blocks by slot, those that are gone left out. Linear, and looks for
    /// the lower bound anew.
    pub fn snapshot(&self) -> (Problem, Plan) {
        let problem = self.problem();
        let (height, lower_bound) = (self.height(), problem.lower_bound().bytes);
        let plan = Plan {
            offsets: self.slots.iter().flatten().map(|placed| placed.offset).collect(),
            height,
            lower_bound,
            proof: (height == lower_bound).then_some(Proof::LoadBound),
            algorithm: String::from("replanned by best fit"),
        };
        (problem, plan)
    }

    /// Changes blocks, all at once.
    ///
    /// Work is in proportion to the changes, but for a new index when as many blocks were placed as it was made for, or
    /// very many in one stretch of time. A slot is never given again: where blocks come and go without end, make a new
    /// replanner of the [`snapshot`](Self::snapshot) from time to time.
    ///
    /// # Errors
    /// As [`Replanner::new`], and [`ReplanError::NoBlock`] and [`ReplanError::Twice`]. Nothing is changed then.
    pub fn apply(&mut self, changes: &[Change]) -> Result<Replanned, ReplanError> {
        let Checked { named, added } = self.check(changes)?;
        let first = self.slots.len();
        self.slots.resize(first + added.len(), None);
        // Those that stay where they were, and those that have no place yet, with the offset that they had.
        let (mut new, mut rest) = (Vec::with_capacity(changes.len()), Vec::new());
        // In the order of slots, which is mostly that of time: what lies close together in the index is changed together.
        for (slot, block) in named {
            let Some(old) = self.slots[slot].take() else { continue };
            self.bytes -= room(&old.block);
            match block {
                Some(block) if self.adapt(&old, &block) => {
                    self.bytes += room(&block);
                    self.slots[slot] = Some(Placed { block, offset: old.offset });
                    new.push((slot, block));
                }
                block => {
                    self.lift(&old);
                    let Some(block) = block else { continue };
                    // A block of quite another time has nothing to do with the place.
                    let near = meet(self.spans(&old.block), self.spans(&block));
                    rest.push((slot, block, near.then_some(old.offset)));
                }
            }
        }
        rest.extend((first..).zip(added).map(|(slot, block)| (slot, block, None)));
        self.place(new, rest);
        let mut slots = first..;
        let slot = |change: &Change| match *change {
            Change::Add(_) => slots.next(),
            Change::Replace(slot, _) => Some(slot),
            Change::Remove(_) => None,
        };
        let placed = changes.iter().filter_map(slot).map(|slot| (slot, self.offset(slot).unwrap_or(0)));
        Ok(Replanned { placed: placed.collect(), height: self.height(), lower_bound: self.lower_bound() })
    }

    /// Whether all changes can be made, and in order.
    fn check(&self, changes: &[Change]) -> Result<Checked, ReplanError> {
        let (mut named, mut blocks, mut added) = (Vec::new(), Vec::new(), Vec::new());
        for change in changes {
            let (slot, block) = match *change {
                Change::Add(block) => (None, Some(block)),
                Change::Remove(slot) => (Some(slot), None),
                Change::Replace(slot, block) => (Some(slot), Some(block)),
            };
            match slot {
                Some(slot) => {
                    self.block(slot).ok_or(ReplanError::NoBlock { slot })?;
                    named.push((slot, block));
                }
                None => added.extend(block),
            }
            blocks.extend(block);
        }
        named.sort_unstable_by_key(|&(slot, _)| slot);
        if let Some(pair) = named.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return Err(ReplanError::Twice { slot: pair[0].0 });
        }
        let count = self.slots.len() + added.len();
        if count > MAX_BLOCKS {
            return Err(ProblemError::TooManyBlocks { count }.into());
        }
        let new = Problem::new(blocks).with_period(self.period);
        new.check()?;
        // Each is there and counted once.
        let gone = named.iter().filter_map(|&(slot, _)| self.block(slot)).map(room).sum::<u64>();
        let come = new.blocks.iter().map(room).sum::<u64>();
        // No block is put more than its room above the height, and repairs only lower it.
        let after = (self.bytes - gone).saturating_add(come);
        if after.saturating_add(self.height()).saturating_add(come) > MAX_BYTES {
            return Err(ReplanError::TooLarge);
        }
        Ok(Checked { named, added })
    }

    /// Bytes no plan can do without.
    fn lower_bound(&mut self) -> u64 {
        // The topmost block is not rounded.
        self.calendar.peak().saturating_sub(self.unit - 1)
    }

    /// Whether a block can take another's place by a small change of the index: less bytes or a little more or less
    /// time.
    fn adapt(&mut self, old: &Placed, block: &Block) -> bool {
        if idle(&old.block) || idle(block) || !old.offset.is_multiple_of(block.align) {
            return false;
        }
        let (was, is) = (self.stay(old), self.stay(&Placed { block: *block, ..*old }));
        if was.spans == is.spans && is.bytes.1 < was.bytes.1 && is.weight <= was.weight {
            self.calendar.shrink(&was, is.bytes.1, is.weight);
            return true;
        }
        (was.bytes, was.weight) == (is.bytes, is.weight) && self.calendar.shift(&was, is.spans)
    }

    /// Puts `rest` into their empty slots, those first that fit where they were; `new` were put before.
    fn place(&mut self, mut new: Vec<(usize, Block)>, blocks: Vec<(usize, Block, Option<u64>)>) {
        let floor = self.height();
        let (mut rest, mut renewed) = (Vec::new(), false);
        for (slot, block, was) in blocks {
            self.bytes += room(&block);
            if idle(&block) {
                self.put(slot, block, 0);
            } else if let Some(offset) = was.filter(|&offset| self.stays(&block, offset, floor)) {
                self.put(slot, block, offset);
                renewed |= self.renew();
                new.push((slot, block));
            } else {
                rest.push((slot, block));
            }
        }
        // The hardest first: what is put first finds the most gaps, and the small and short ones fit anywhere.
        rest.sort_by_cached_key(|(_, block)| Reverse((demand(block), block.size)));
        let mut ceiling = floor;
        for &(slot, block) in &rest {
            let offset = self.best(&block, ceiling);
            ceiling = ceiling.max(offset + block.size);
            self.put(slot, block, offset);
            renewed |= self.renew();
        }
        if renewed && self.unit > 1 {
            // Blocks of smaller alignment count nothing at a unit above 1, so it goes with those that it was for.
            let unit = self.problem().lower_bound().align;
            if unit != self.unit {
                self.unit = unit;
                self.index();
            }
        }
        new.extend(rest);
        self.repair(&new);
    }

    /// Whether a block may be put here, below `ceiling`.
    fn stays(&mut self, block: &Block, offset: u64, ceiling: u64) -> bool {
        let end = offset + block.size;
        let stay = self.stay(&Placed { block: *block, offset });
        offset.is_multiple_of(block.align) && end <= ceiling && self.calendar.fits(&stay)
    }

    /// Lowers the highest of the new blocks as long as that succeeds and no other is higher.
    ///
    /// All new blocks that meet it are lifted, and put again after it, in several orders.
    fn repair(&mut self, new: &[(usize, Block)]) {
        let mut left = (new.len() / REPAIRS).max(FEW_REPAIRS);
        // Looking through all of them costs, too.
        let look = new.len() / LOOKS;
        let orders: [fn(&Block) -> u128; 3] = [
            |block| u128::from(block.size),
            |block| u128::from(block.size) * u128::from(block.length()),
            |block| u128::from(block.length()),
        ];
        let mut tried = 0;
        while tried < orders.len() {
            let end = |&&(slot, _): &&(usize, Block)| self.slots[slot].map_or(0, |placed| placed.end());
            let Some(&(highest, block)) = new.iter().max_by_key(end) else { return };
            let height = end(&&(highest, block));
            if height < self.height() || height <= self.lower_bound() {
                return;
            }
            let meets = |other: &Block| meet(self.spans(&block), self.spans(other));
            let mut group: Vec<(usize, Block)> =
                new.iter().filter(|(_, other)| meets(other)).copied().collect();
            if group.len() + look > left {
                return;
            }
            left -= group.len() + look;
            group.sort_by_key(|(slot, other)| Reverse((*slot == highest, orders[tried](other))));
            match self.again(&group, height) {
                Again::Lower => tried = 0,
                Again::Higher => tried += 1,
                Again::Hopeless => return,
            }
        }
    }

    /// Puts blocks again in this order, all of them to end below `limit`; or leaves them where they were.
    fn again(&mut self, group: &[(usize, Block)], limit: u64) -> Again {
        let old: Vec<Option<Placed>> = group.iter().map(|&(slot, _)| self.slots[slot].take()).collect();
        for placed in old.iter().flatten() {
            self.lift(placed);
        }
        let mut ceiling = self.height();
        for (done, &(slot, block)) in group.iter().enumerate() {
            let offset = self.best(&block, ceiling);
            let end = offset + block.size;
            if end >= limit {
                for &(slot, _) in &group[..done] {
                    if let Some(placed) = self.slots[slot].take() {
                        self.lift(&placed);
                    }
                }
                for (&(slot, block), placed) in group.iter().zip(&old) {
                    self.put(slot, block, placed.map_or(0, |placed| placed.offset));
                }
                return if done == 0 { Again::Hopeless } else { Again::Higher };
            }
            ceiling = ceiling.max(end);
            self.put(slot, block, offset);
        }
        Again::Lower
    }

    /// The offset in the smallest of the lowest gaps below `ceiling`, the lowest of those; without one the lowest offset
    /// at all.
    fn best(&mut self, block: &Block, ceiling: u64) -> u64 {
        let wish = Wish { spans: self.spans(block), size: block.size, align: block.align };
        let gaps = self.calendar.gaps(&wish, ceiling).iter();
        let fits = |&&(from, _): &&(u64, u64)| align_up(from, block.align) + block.size <= ceiling;
        let left = |&&(from, to): &&(u64, u64)| to.min(ceiling) - from;
        // The last gap has no end, so there is always a lowest one.
        let gap = gaps.clone().filter(fits).min_by_key(left).or(gaps.as_slice().first());
        gap.map_or(0, |&(from, _)| align_up(from, block.align))
    }

    fn put(&mut self, slot: usize, block: Block, offset: u64) {
        let placed = Placed { block, offset };
        self.slots[slot] = Some(placed);
        if idle(&block) {
            *self.idle.entry(placed.end()).or_default() += 1;
        } else {
            let stay = self.stay(&placed);
            self.calendar.add(&stay);
        }
    }

    fn lift(&mut self, placed: &Placed) {
        if !idle(&placed.block) {
            let stay = self.stay(placed);
            self.calendar.remove(&stay);
        } else if let Some(count) = self.idle.get_mut(&placed.end()) {
            *count -= 1;
            if *count == 0 {
                self.idle.remove(&placed.end());
            }
        }
    }

    fn stay(&self, placed: &Placed) -> Stay {
        let Block { size, align, .. } = placed.block;
        let weight = if align >= self.unit { size.next_multiple_of(self.unit) } else { 0 };
        Stay { bytes: (placed.offset, placed.end()), spans: self.spans(&placed.block), weight }
    }

    /// The lifetime in pieces that do not wrap.
    fn spans(&self, block: &Block) -> [Option<Span>; 2] {
        match self.period {
            Some(period) if block.upper > period => {
                [Some((block.lower, period)), Some((0, block.upper - period))]
            }
            _ => [Some((block.lower, block.upper)), None],
        }
    }
}

/// How hard it is to find a gap for a block. Size counts for more than time: of size, size times time and this, this
/// left the lowest heights.
fn demand(block: &Block) -> u128 {
    u128::from(block.size) * u128::from(block.length().isqrt())
}

/// Whether a block conflicts with nothing.
fn idle(block: &Block) -> bool {
    block.size == 0 || block.length() == 0
}

/// Size and what alignment may cost, in bytes; sums of it stay below 2^64 by [`Problem::check`].
fn room(block: &Block) -> u64 {
    block.size + (block.align - 1)
}

fn meet(one: [Option<Span>; 2], other: [Option<Span>; 2]) -> bool {
    let other = || other.into_iter().flatten();
    one.into_iter().flatten().any(|(from, to)| other().any(|(lower, upper)| from < upper && lower < to))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_is_cut_anew_as_blocks_stay_where_they_were_for_other_times() {
        const COUNT: u64 = 4000;
        let rows = (0..COUNT).map(|id| Block { id, lower: 0, upper: 1 << 30, size: 1, align: 1 });
        let offsets: Vec<u64> = (0..COUNT).collect();
        let mut replanner = Replanner::new(&Problem::new(rows.collect()), &offsets).expect("a stack");
        for id in 0..COUNT - 1 {
            let block = Block { id, lower: 2 * id, upper: 2 * id + 1, size: 1, align: 1 };
            let answer = replanner.apply(&[Change::Replace(id as usize, block)]).expect("a sound change");
            assert_eq!(answer.placed, [(id as usize, id)]);
            let crowd = replanner.calendar.crowd();
            assert!(crowd <= 2 * CROWD * COUNT.isqrt() as usize, "{crowd} in one leaf after {id}");
        }
    }

    #[test]
    fn an_index_of_nothing_is_cut_anew_as_blocks_come_one_by_one() {
        const COUNT: u64 = 4000;
        let mut replanner = Replanner::new(&Problem::default(), &[]).expect("nothing to place");
        for id in 0..COUNT {
            // Scattered over time at first, then each after all others.
            let lower = if id < COUNT / 2 { id * 7919 % COUNT } else { COUNT + id };
            let block = Block { id, lower, upper: lower + 5, size: 1 + id % 100, align: 1 };
            replanner.apply(&[Change::Add(block)]).expect("a sound change");
            let crowd = replanner.calendar.crowd();
            assert!(crowd <= 2 * CROWD * COUNT.isqrt() as usize, "{crowd} in one leaf after {id}");
        }
        let (problem, plan) = replanner.snapshot();
        assert_eq!(verify(&problem, &plan.offsets, plan.height), Ok(()));
    }
}
