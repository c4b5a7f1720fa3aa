//! The size log: the sizes of planned-size allocations in their order, while no step boundaries are known.
//!
//! Any thread appends with one atomic addition and a store, into a ring mapped by ourselves. Only allocations
//! are logged: frees would have to be looked at one by one to find those of planned size. The engine reads
//! the newest entries ever more rarely, so that a program without a period does not feel it.

use crate::lookup::Class;
use crate::word::{Atomics, Core, Number, Word};
use core::ops::Range;
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering::*};

/// The process's size log.
pub(crate) static SIZE_LOG: SizeLog = SizeLog::closed();

/// Entries of the ring: twice the longest period that can be found. A power of two.
const ENTRIES: u64 = 1 << 16;
/// Allocations before the first sample: below, no period is found.
const FIRST: u64 = 64;
/// From one sample of the whole log to the next, the log grows by one part in this many.
const GROWTH: u64 = 8;
/// The same for samples of its newest part, so that a period that has begun after much else is found within a
/// step or two. A sample costs 2.4 ns for each of its sizes: all of them together 100 ns an allocation at
/// first, 40 ns later, 20 ns in the end.
const SOONER: u64 = 64;
/// Logged allocations from which on both kinds of samples come half as often: a program without a period is not to pay for ever, and where one
/// begins this late, its steps come after much else anyway.
const LATE: u64 = 1 << 14;
/// The newest part is one in this many of all that was logged,
const PART: u64 = 8;
/// and so many allocations at least: three periods of most steps.
const PART_LEAST: u64 = 1024;
/// Allocations from one sample to the next at least: the smallest program's step or two.
const PAUSE_LEAST: u64 = 32;
/// Allocations of one size, one after the other, after which it counts as the only one.
const ROW: u64 = 512;
/// When the ring is full, the time to the next sample doubles, up to this many allocations.
const RAREST: u64 = 1 << 22;

/// A ring of classes with one counter for writers.
pub(crate) struct SizeLog<A: Atomics = Core> {
    entries: A::Ptr<A::U64>,
    /// Allocations ever logged.
    head: A::U64,
    /// Entries before this one are out of date: the parent process logged them, or an earlier plan served
    /// them.
    start: A::U64,
    /// The engine takes a sample when so many were logged.
    wake: A::U64,
    /// The log's length at the last sample of the whole.
    sampled: A::U64,
}

impl SizeLog {
    pub(crate) const fn closed() -> Self {
        Self {
            entries: AtomicPtr::new(ptr::null_mut()),
            head: AtomicU64::new(0),
            start: AtomicU64::new(0),
            wake: AtomicU64::new(FIRST),
            sampled: AtomicU64::new(0),
        }
    }
}

impl<A: Atomics> SizeLog<A> {
    /// For models, over a null pointer and these words.
    #[cfg(test)]
    pub(super) fn over(entries: A::Ptr<A::U64>, [head, start, wake, sampled]: [A::U64; 4]) -> Self {
        Self { entries, head, start, wake, sampled }
    }

    /// Entries of the ring.
    #[inline(always)]
    fn entries() -> u64 {
        A::entries(ENTRIES)
    }

    /// Logs an allocation; `true` when it is time for a sample.
    pub(crate) fn log(&self, class: Class) -> bool {
        let entries = self.entries.load(Acquire);
        if entries.is_null() {
            return self.open();
        }
        let index = self.head.fetch_add(1, Relaxed);
        // SAFETY: the mapping holds so many entries, and is never unmapped.
        unsafe { &*entries.add((index & (Self::entries() - 1)) as usize) }.store(class.to_bits(), Release);
        index + 1 >= self.wake.load(Relaxed)
    }

    /// Maps the ring. Whoever comes second to it gives his own back.
    #[cold]
    fn open(&self) -> bool {
        let words = Self::entries() as usize;
        if let Some(map) = A::map(words)
            && self.entries.compare_exchange(ptr::null_mut(), map, AcqRel, Relaxed).is_err()
        {
            // SAFETY: mapped just now, and no other thread has its address.
            unsafe { A::unmap(map, words) };
        }
        false
    }

    /// Begins anew.
    pub(crate) fn clear(&self) {
        // At the beginning of the ring again, whose first pages have memory.
        let head = self.head.load(Acquire).next_multiple_of(Self::entries());
        self.head.store(head, Release);
        self.start.store(head, Relaxed);
        self.wake.store(head + FIRST, Relaxed);
        self.sampled.store(0, Relaxed);
    }

    /// Allocations ever logged.
    pub(crate) fn head(&self) -> u64 {
        self.head.load(Acquire)
    }

    /// Allocations logged since the log began anew.
    pub(crate) fn logged(&self) -> u64 {
        self.head().saturating_sub(self.start.load(Relaxed))
    }

    /// The newest allocations, at most so many.
    pub(crate) fn newest(&self, most: usize) -> Vec<Class> {
        self.classes(self.head().saturating_sub(most as u64))
    }

    /// Wakes the engine after so many more allocations.
    pub(crate) fn wake_after(&self, allocations: u64) {
        self.wake.store(self.head().saturating_add(allocations.max(1)), Relaxed);
    }

    /// Wakes the engine when the log has grown enough for another sample.
    pub(crate) fn wake_later(&self) {
        let logged = self.logged();
        let pause = if logged <= ENTRIES {
            (logged / SOONER * lateness(logged)).max(PAUSE_LEAST)
        } else {
            logged - ENTRIES + ENTRIES / SOONER
        };
        self.wake_after(pause.min(RAREST));
    }

    /// A sample of the log: now and then all entries of the ring, else the newest part.
    pub(crate) fn sample(&self) -> Vec<Class> {
        let (logged, sampled) = (self.logged(), self.sampled.load(Relaxed));
        if logged >= sampled + sampled / GROWTH * lateness(sampled) {
            self.sampled.store(logged, Relaxed);
            return self.classes(0);
        }
        self.newest((logged / PART).max(PART_LEAST) as usize)
    }

    /// The newest classes since `from`, at most those of the ring, without entries that are not yet written.
    pub(crate) fn classes(&self, from: u64) -> Vec<Class> {
        let entries = self.entries_since(from);
        // As long as it may be, for it grows by copies otherwise.
        let mut classes = Vec::with_capacity((entries.end - entries.start) as usize);
        // An entry that is not written yet has no class.
        classes.extend(entries.filter_map(|index| Class::from_bits(self.entry(index))));
        classes
    }

    /// Whether the newest quarter of the log, at most [`ROW`] entries, is of one size, as of buffers for one
    /// file after another. The scan ends at the newest entry that differs.
    pub(crate) fn is_of_one_size(&self) -> bool {
        let entries = self.entries_since(0);
        let quarter = entries.end - ((entries.end - entries.start) / 4).min(ROW)..entries.end;
        let mut sizes = quarter.rev().map(|index| self.entry(index));
        let newest = sizes.next();
        sizes.all(|size| Some(size) == newest)
    }

    /// The indexes since `from` of which there are entries.
    fn entries_since(&self, from: u64) -> Range<u64> {
        if self.entries.load(Acquire).is_null() {
            return 0..0;
        }
        let head = self.head();
        from.max(self.start.load(Relaxed)).max(head.saturating_sub(Self::entries())).min(head)..head
    }

    /// An entry: the bits of a class.
    #[inline(always)]
    fn entry(&self, index: u64) -> u64 {
        // SAFETY: `entries_since` returns indexes of a ring that is mapped; else as in `log`.
        unsafe { &*self.entries.load(Relaxed).add((index & (Self::entries() - 1)) as usize) }.load(Acquire)
    }
}

/// What the time to the next sample is multiplied by.
fn lateness(logged: u64) -> u64 {
    if logged < LATE { 1 } else { 2 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_stay_and_the_engine_is_woken_ever_more_rarely() {
        let log = SizeLog::closed();
        let class = |bytes: u64| Class::from_bits(bytes * 64).expect("not 0");
        assert!(!log.log(class(1)), "the ring is made");
        let mut woken = 0;
        for bytes in 1..=300_000 {
            if log.log(class(bytes)) {
                woken += 1;
                log.wake_later();
            }
        }
        assert!((200..400).contains(&woken), "{woken}");
        let classes = log.classes(0);
        assert_eq!((classes.len() as u64, classes[0]), (ENTRIES, class(300_001 - ENTRIES)));
        log.clear();
        assert_eq!((log.logged(), log.classes(0).len()), (0, 0));
        assert!((1..=FIRST).all(|bytes| log.log(class(bytes)) == (bytes == FIRST)));
    }
}
