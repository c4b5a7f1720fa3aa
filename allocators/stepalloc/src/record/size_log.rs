//! The listener: the sizes of planned-size allocations in their order, while nobody has said where steps begin.
//!
//! Any thread appends with one atomic addition and a store, into a ring mapped by ourselves. Only allocations are told:
//! frees would have to be looked at one by one to find those of planned size. The engine reads the newest of them ever
//! more rarely, so that a program without a rhythm does not feel it.

use crate::lookup::Class;
use crate::os;
use core::mem::size_of;
use core::ops::Range;
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering::*};

/// The process's listener.
pub(crate) static SIZE_LOG: SizeLog = SizeLog::closed();

/// Allocations kept: twice the longest period that can be found. A power of two.
const KEPT: u64 = 1 << 16;
/// The first look: below, no rhythm is found.
const FIRST: u64 = 64;
/// From one look at all that was seen to the next it grows by one part in this many.
const GROWTH: u64 = 8;
/// The same of looks at the newest part of it, so that a rhythm that has begun after much else is found within a step or two. A
/// look costs 2.4 ns for each size it looks at: all of them together 100 ns an allocation at first, 40 ns later, and 3 ms
/// until the ring is full.
const SOONER: u64 = 64;
/// The newest part is one in this many of all that was seen,
const PART: u64 = 8;
/// and so many allocations at least: three periods of most steps.
const PART_LEAST: u64 = 1024;
/// Allocations from one look to the next at least: the smallest program's step or two.
const PAUSE_LEAST: u64 = 32;
/// Allocations of one size, one after the other, after which it counts as the only one.
const ROW: u64 = 512;
/// When the ring is full, the time to the next look doubles, up to this many allocations.
const RAREST: u64 = 1 << 22;

/// A ring of classes with one counter for writers.
pub(crate) struct SizeLog {
    entries: AtomicPtr<AtomicU64>,
    /// Allocations ever told.
    head: AtomicU64,
    /// Those before are of another time: of the parent process, or served by a plan that did.
    start: AtomicU64,
    /// The engine wants to look when so many were told.
    wake: AtomicU64,
    /// What was seen when all of it was looked at last.
    looked: AtomicU64,
}

impl SizeLog {
    pub(crate) const fn closed() -> Self {
        Self {
            entries: AtomicPtr::new(ptr::null_mut()),
            head: AtomicU64::new(0),
            start: AtomicU64::new(0),
            wake: AtomicU64::new(FIRST),
            looked: AtomicU64::new(0),
        }
    }

    /// Takes in an allocation; `true` when it is time to look.
    pub(crate) fn log(&self, class: Class) -> bool {
        let entries = self.entries.load(Acquire);
        if entries.is_null() {
            return self.open();
        }
        let index = self.head.fetch_add(1, Relaxed);
        // SAFETY: the mapping holds so many entries, and is never unmapped.
        unsafe { &*entries.add((index & (KEPT - 1)) as usize) }.store(class.to_bits(), Release);
        index + 1 >= self.wake.load(Relaxed)
    }

    /// Maps the ring. Whoever comes second to it gives his own back.
    #[cold]
    fn open(&self) -> bool {
        let bytes = KEPT as usize * size_of::<AtomicU64>();
        if let Some(map) = os::map(bytes)
            && self.entries.compare_exchange(ptr::null_mut(), map.cast(), AcqRel, Relaxed).is_err()
        {
            // SAFETY: mapped just now, and nobody was told of it.
            unsafe { os::unmap(map, bytes) };
        }
        false
    }

    /// Begins anew.
    pub(crate) fn clear(&self) {
        // At the beginning of the ring again, whose first pages have memory.
        let head = self.head.load(Acquire).next_multiple_of(KEPT);
        self.head.store(head, Release);
        self.start.store(head, Relaxed);
        self.wake.store(head + FIRST, Relaxed);
        self.looked.store(0, Relaxed);
    }

    /// Allocations ever told.
    pub(crate) fn head(&self) -> u64 {
        self.head.load(Acquire)
    }

    /// Allocations told since it began anew.
    pub(crate) fn logged(&self) -> u64 {
        self.head().saturating_sub(self.start.load(Relaxed))
    }

    /// The newest allocations, at most so many.
    pub(crate) fn newest(&self, most: usize) -> Vec<Class> {
        self.classes(self.head().saturating_sub(most as u64))
    }

    /// Wakes the engine after so many more allocations.
    pub(crate) fn wake_after(&self, allocations: u64) {
        self.wake.store(self.head() + allocations.max(1), Relaxed);
    }

    /// Wakes the engine when it is worth another look.
    pub(crate) fn wake_later(&self) {
        let heard = self.logged();
        let pause =
            if heard <= KEPT { (heard / SOONER).max(PAUSE_LEAST) } else { heard - KEPT + KEPT / SOONER };
        self.wake_after(pause.min(RAREST));
    }

    /// The classes for a look: now and then all that are kept, else the newest part.
    pub(crate) fn look(&self) -> Vec<Class> {
        let (heard, looked) = (self.logged(), self.looked.load(Relaxed));
        if heard >= looked + looked / GROWTH {
            self.looked.store(heard, Relaxed);
            return self.classes(0);
        }
        self.newest((heard / PART).max(PART_LEAST) as usize)
    }

    /// The newest classes since `from`, at most those kept; zeros where a thread has not finished telling.
    pub(crate) fn classes(&self, from: u64) -> Vec<Class> {
        let told = self.told(from);
        // As long as it may be, for it grows by copies otherwise.
        let mut classes = Vec::with_capacity((told.end - told.start) as usize);
        // An entry that is not written yet has no class.
        classes.extend(told.filter_map(|index| Class::from_bits(self.entry(index))));
        classes
    }

    /// Whether the newest quarter of what was told, or so many as [`ROW`] says, is of one size, as of buffers for one file after
    /// another. Looks no further than to the newest that differs.
    pub(crate) fn is_of_one_size(&self) -> bool {
        let told = self.told(0);
        let quarter = told.end - ((told.end - told.start) / 4).min(ROW)..told.end;
        let mut sizes = quarter.rev().map(|index| self.entry(index));
        let newest = sizes.next();
        sizes.all(|size| Some(size) == newest)
    }

    /// The indexes since `from` of which there are entries.
    fn told(&self, from: u64) -> Range<u64> {
        if self.entries.load(Acquire).is_null() {
            return 0..0;
        }
        let head = self.head();
        from.max(self.start.load(Relaxed)).max(head.saturating_sub(KEPT)).min(head)..head
    }

    /// What was told: the bits of a class.
    #[inline(always)]
    fn entry(&self, index: u64) -> u64 {
        // SAFETY: `told` says so for a ring that is there; else as in `log`.
        unsafe { &*self.entries.load(Relaxed).add((index & (KEPT - 1)) as usize) }.load(Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_are_kept_and_the_engine_is_woken_ever_more_rarely() {
        let listener = SizeLog::closed();
        let class = |bytes: u64| Class::from_bits(bytes * 64).expect("not 0");
        assert!(!listener.log(class(1)), "the ring is made");
        let mut woken = 0;
        for bytes in 1..=300_000 {
            if listener.log(class(bytes)) {
                woken += 1;
                listener.wake_later();
            }
        }
        assert!((200..400).contains(&woken), "{woken}");
        let kept = listener.classes(0);
        assert_eq!((kept.len() as u64, kept[0]), (KEPT, class(300_001 - KEPT)));
        listener.clear();
        assert_eq!((listener.logged(), listener.classes(0).len()), (0, 0));
        assert!((1..=FIRST).all(|bytes| listener.log(class(bytes)) == (bytes == FIRST)));
    }
}
