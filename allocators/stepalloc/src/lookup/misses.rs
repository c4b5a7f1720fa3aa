//! Slot misses: blocks of planned size that found no slot, how many and why.
//!
//! Only slot misses are counted one by one; what finds its slot costs nothing here. Sums are those of the
//! running step and taken at its boundary; the reasons, by size, are those since the plan in force serves.

use super::class::Class;
use super::counter::Counter;
use crate::word::{Atomics, Core, Word};
use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering::*};

/// The slot misses of the process.
pub(crate) static MISSES: Misses = Misses {
    counted: Counter::new(),
    gap: Counter::new(),
    fallback: Counter::new(),
    busy: Counter::new(),
    reasons: [const { Entry::new() }; PLACES],
    others: Entry::new(),
};

/// Sizes counted apart, as a power of two.
const PLACES: usize = 256;
/// Places looked at for one of them.
const TRIES: usize = 8;
/// Slot misses that are reported.
pub const REPORTED: usize = 16;

/// Why a block found no slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Reason {
    /// The step asks for more blocks of the size than were planned, or the plan knows nothing like it.
    NoSlot = 1,
    /// Its slot is still held by another block.
    Busy = 2,
    /// The plan has slots of nearly that size only.
    Size = 3,
    /// Another step variant has slots of that size: the steps came in another order than expected.
    OtherOrder = 4,
}

impl Reason {
    /// In words.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NoSlot => "no slot",
            Self::Busy => "busy",
            Self::Size => "size",
            Self::OtherOrder => "other order",
        }
    }

    const ALL: [Self; 4] = [Self::NoSlot, Self::Busy, Self::Size, Self::OtherOrder];
}

impl fmt::Display for Reason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// Blocks of one size that found no slot for one reason, since the plan in force serves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Miss {
    /// Why.
    pub reason: Reason,
    /// Bytes of each, rounded up to 64; 0 for all sizes that are not counted apart.
    pub size: u64,
    /// Blocks that a gap of the arena served.
    pub gap_allocations: u64,
    /// Blocks that the backend served.
    pub fallback_allocations: u64,
}

impl Miss {
    /// Bytes of all of them.
    pub fn bytes(&self) -> u64 {
        self.size.saturating_mul(self.gap_allocations + self.fallback_allocations)
    }
}

/// Sums and reasons.
pub(crate) struct Misses {
    /// Of a class the matcher counted, but not served from a slot; wherever they went.
    pub(crate) counted: Counter,
    /// Served from a gap.
    pub(crate) gap: Counter,
    /// Served by the backend, though the plan did not leave them to it.
    pub(crate) fallback: Counter,
    /// Of those two, what had a slot that was held.
    pub(crate) busy: Counter,
    reasons: [Entry; PLACES],
    /// What has no place there.
    others: Entry,
}

pub(super) struct Entry<A: Atomics = Core> {
    /// The class, and the reason above it; 0 for none.
    key: A::U64,
    gap: A::U64,
    fallback: A::U64,
}

/// Bits of a class's number.
const CLASS_BITS: u32 = 56;

impl Entry {
    const fn new() -> Self {
        Self { key: AtomicU64::new(0), gap: AtomicU64::new(0), fallback: AtomicU64::new(0) }
    }
}

impl<A: Atomics> Entry<A> {
    /// For models, over words that are 0.
    #[cfg(test)]
    pub(super) fn over([key, gap, fallback]: [A::U64; 3]) -> Self {
        Self { key, gap, fallback }
    }

    /// Whether it counts what has this key, or does from now on.
    pub(super) fn is_of(&self, key: u64) -> bool {
        self.key.load(Relaxed) == key
            || self.key.compare_exchange(0, key, Relaxed, Relaxed).is_ok()
            || self.key.load(Relaxed) == key
    }
}

impl Misses {
    /// Counts a block that found no slot.
    pub(crate) fn add(&self, class: Class, reason: Reason, from_gap: bool) {
        let sum = if from_gap { &self.gap } else { &self.fallback };
        sum.add(class.bytes());
        if reason == Reason::Busy {
            self.busy.add(class.bytes());
        }
        let key = class.in_lane(0).to_bits() | (reason as u64) << CLASS_BITS;
        // The high bits of a product (Knuth, TAOCP 3, 6.4).
        let home = (key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as usize;
        let places = (0..TRIES).map(|at| &self.reasons[home.wrapping_add(at) % PLACES]);
        let entry = places.into_iter().find(|entry| entry.is_of(key)).unwrap_or(&self.others);
        let counter = if from_gap { &entry.gap } else { &entry.fallback };
        counter.fetch_add(1, Relaxed);
    }

    /// Forgets the sums of the running step.
    pub(crate) fn forget_step(&self) {
        let _ = (self.counted.take(), self.gap.take(), self.fallback.take(), self.busy.take());
    }

    /// Forgets the reasons: another plan serves.
    pub(crate) fn forget_reasons(&self) {
        for entry in self.reasons.iter().chain([&self.others]) {
            entry.gap.store(0, Relaxed);
            entry.fallback.store(0, Relaxed);
            entry.key.store(0, Relaxed);
        }
    }

    /// The misses of the most bytes, the largest first, and those of sizes that are not counted apart.
    /// `is_alike` says whether the plan has slots of nearly the size of a class that it does not know.
    pub(crate) fn largest(&self, is_alike: impl Fn(Class) -> bool) -> [Option<Miss>; REPORTED] {
        let mut largest = [None; REPORTED];
        for entry in self.reasons.iter().chain([&self.others]) {
            let key = entry.key.load(Relaxed);
            let class = Class::from_bits(key & ((1 << CLASS_BITS) - 1));
            let reason = Reason::ALL.into_iter().find(|&reason| reason as u64 == key >> CLASS_BITS);
            let mut miss = Miss {
                reason: reason.unwrap_or(Reason::NoSlot),
                size: class.map_or(0, Class::bytes),
                gap_allocations: entry.gap.load(Relaxed),
                fallback_allocations: entry.fallback.load(Relaxed),
            };
            if miss.gap_allocations + miss.fallback_allocations == 0 {
                continue;
            }
            if miss.reason == Reason::NoSlot && class.is_some_and(&is_alike) {
                miss.reason = Reason::Size;
            }
            let bytes = |miss: &Option<Miss>| miss.map_or(0, |miss| miss.bytes());
            let at = largest.partition_point(|known| known.is_some() && bytes(known) >= miss.bytes());
            if at < REPORTED {
                largest[at..].rotate_right(1);
                largest[at] = Some(miss);
            }
        }
        largest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(bytes: usize) -> Class {
        Class::of(bytes, 1).expect("a size that can be")
    }

    static OWN: Misses = Misses {
        counted: Counter::new(),
        gap: Counter::new(),
        fallback: Counter::new(),
        busy: Counter::new(),
        reasons: [const { Entry::new() }; PLACES],
        others: Entry::new(),
    };

    #[test]
    fn the_largest_come_first_and_all_are_counted() {
        for _ in 0..3 {
            OWN.add(class(1 << 20), Reason::Busy, false);
        }
        OWN.add(class(1 << 20), Reason::Busy, true);
        OWN.add(class(4096), Reason::NoSlot, false);
        OWN.add(class(8192), Reason::NoSlot, false);
        let reported = OWN.largest(|class| class.bytes() == 8192);
        let miss = |reason, size, gap_allocations, fallback_allocations| {
            Some(Miss { reason, size, gap_allocations, fallback_allocations })
        };
        assert_eq!(reported[0], miss(Reason::Busy, 1 << 20, 1, 3));
        assert_eq!(reported[1], miss(Reason::Size, 8192, 0, 1));
        assert_eq!(reported[2], miss(Reason::NoSlot, 4096, 0, 1));
        assert_eq!(reported[3], None);
        assert_eq!((OWN.fallback.get().allocations, OWN.gap.get().bytes), (5, 1 << 20));
        for size in 1..1000 {
            OWN.add(class(size * 64), Reason::NoSlot, false);
        }
        let counted: u64 = OWN
            .reasons
            .iter()
            .chain([&OWN.others])
            .map(|entry| entry.gap.load(Relaxed) + entry.fallback.load(Relaxed))
            .sum();
        assert_eq!(counted, 6 + 999);
        OWN.forget_reasons();
        assert_eq!(OWN.largest(|_| false), [None; REPORTED]);
    }
}
