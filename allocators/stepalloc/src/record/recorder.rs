//! The recorder: the log of planned-size allocations and frees while a step is being learned.
//!
//! Any thread appends with one atomic addition and two stores, into memory mapped by ourselves; nothing is
//! allocated, locked or formatted. Time is the event's index. An allocation is logged after the backend has
//! answered and a free before the backend gets it, so that the log is a legal history of every address. The
//! engine reads the log at step boundaries ([`Recorder::read`]).

use crate::lookup::Class;
use crate::word::{Atomics, Core, Number, Word};
use core::mem::size_of;
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering::*};

/// The process's recorder.
pub(crate) static RECORDER: Recorder = Recorder::closed();

/// Events the log holds between two readings: a step of a million planned-size blocks. Only what is used becomes
/// resident, and pages that were read are given back.
const CAPACITIES: [usize; 2] = [1 << 21, 1 << 17];

/// An event of the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Event {
    /// A block came to life at an address.
    Allocate { address: usize, class: Class },
    /// As `Allocate`, by a realloc of the planned-size block at `from`, which was freed just before.
    Move { address: usize, class: Class, from: usize },
    /// The block at an address, of so many bytes or a few less, is about to be freed.
    Free { address: usize, bytes: usize },
    /// That was logged just before, and was not so: the block could not be reallocated, and is as it was.
    Keep { address: usize, class: Class },
}

/// A ring of entries with one counter for writers.
pub(crate) struct Recorder<A: Atomics = Core> {
    entries: A::Ptr<Entry<A>>,
    capacity: A::Usize,
    /// Index of the next event ever to be logged.
    head: A::U64,
    /// Everything before it was read, and may be overwritten.
    tail: A::U64,
    /// The engine wants to read when so many events were logged: in detected steps.
    wake: A::U64,
}

/// An event; a move is two of them. (Sixteen bytes: a step of a thousand blocks touches eight pages of the log.)
#[repr(C)]
pub(super) struct Entry<A: Atomics> {
    /// What happened, [`ALLOCATED`], [`FREED`], [`MOVED`] or [`KEPT`], in the low bits; above them the class, or the bytes that were freed; above
    /// [`THREAD_SHIFT`] the thread.
    what: A::U64,
    /// The address in its low [`ADDRESS_BITS`]; above them the lap of the ring, stored last: says that the entry is complete.
    place: A::U64,
}

/// Words of an entry.
const WORDS: usize = 2;

/// Bits of an address that a program can have.
const ADDRESS_BITS: u32 = 48;

const ALLOCATED: u64 = 0;
const FREED: u64 = 1;
/// The next entry says where this block is from now on.
const MOVED: u64 = 2;
const KEPT: u64 = 3;
const KIND_BITS: u32 = 2;
/// Sizes have at most 47 bits.
const THREAD_SHIFT: u32 = 49;

impl<A: Atomics> Entry<A> {
    fn write(&self, lap: u64, address: usize, what: u64, kind: u64, thread: u16) {
        let what = (what << KIND_BITS | kind) & ((1 << THREAD_SHIFT) - 1);
        self.what.store(u64::from(thread) << THREAD_SHIFT | what, Relaxed);
        let address = address as u64 & ((1 << ADDRESS_BITS) - 1);
        self.place.store(lap << ADDRESS_BITS | address, Release);
    }

    /// Address, class or bytes, kind, and thread; `None` where a writer has not come back.
    fn read(&self, lap: u64) -> Option<(usize, u64, u64, u16)> {
        let place = completed::<A>(&self.place, lap)?;
        let what = self.what.load(Relaxed);
        let (thread, what) = (what >> THREAD_SHIFT, what & ((1 << THREAD_SHIFT) - 1));
        let address = place & ((1 << ADDRESS_BITS) - 1);
        Some((address as usize, what >> KIND_BITS, what & ((1 << KIND_BITS) - 1), thread as u16))
    }
}

/// The lap of the ring in which an index comes, never 0.
fn lap(index: u64, capacity: u64) -> u64 {
    index / capacity % u64::from(u16::MAX) + 1
}

impl Recorder {
    pub(crate) const fn closed() -> Self {
        Self {
            entries: AtomicPtr::new(ptr::null_mut()),
            capacity: AtomicUsize::new(0),
            head: AtomicU64::new(0),
            tail: AtomicU64::new(0),
            wake: AtomicU64::new(u64::MAX),
        }
    }
}

impl<A: Atomics> Recorder<A> {
    /// For models, over words that are 0.
    #[cfg(test)]
    pub(super) fn over(
        entries: A::Ptr<Entry<A>>,
        capacity: A::Usize,
        [head, tail, wake]: [A::U64; 3],
    ) -> Self {
        Self { entries, capacity, head, tail, wake }
    }

    /// Entries of a page. So many are never used: the page in which reading has stopped is given back with what was read
    /// before, and must not hold entries of the next round.
    const PAGE_ENTRIES: u64 = (A::PAGE / size_of::<Entry<A>>()) as u64;

    /// Maps the log where that was not done before; `false` where the system has no room.
    pub(crate) fn open(&self) -> bool {
        if !self.entries.load(Relaxed).is_null() {
            return true;
        }
        for capacity in CAPACITIES {
            let capacity = A::entries(capacity as u64) as usize;
            if let Some(entries) = A::map(capacity * WORDS) {
                self.capacity.store(capacity, Relaxed);
                self.entries.store(entries.cast(), Release);
                return true;
            }
        }
        false
    }

    /// Appends an event of a thread, by a number of which 15 bits count. Where the log is full it is lost, and the reader notices.
    pub(crate) fn log(&self, event: Event, thread: u16) {
        let entries = self.entries.load(Acquire);
        if entries.is_null() {
            return;
        }
        let capacity = self.capacity.load(Relaxed) as u64;
        let count = if matches!(event, Event::Move { .. }) { 2 } else { 1 };
        let index = self.head.fetch_add(count, Relaxed);
        if index + count - self.tail.load(Acquire).min(index) > capacity - Self::PAGE_ENTRIES {
            return;
        }
        // SAFETY: the mapping holds `capacity` entries, a power of two, and is never unmapped.
        let entry = |index: u64| unsafe { &*entries.add((index & (capacity - 1)) as usize) };
        let (entry, lap, next) =
            (entry(index), lap(index, capacity), (entry(index + 1), lap(index + 1, capacity)));
        match event {
            Event::Allocate { address, class } => {
                entry.write(lap, address, class.to_bits(), ALLOCATED, thread)
            }
            Event::Free { address, bytes } => entry.write(lap, address, bytes as u64, FREED, thread),
            Event::Keep { address, class } => entry.write(lap, address, class.to_bits(), KEPT, thread),
            Event::Move { address, class, from } => {
                entry.write(lap, from, 0, MOVED, thread);
                next.0.write(next.1, address, class.to_bits(), ALLOCATED, thread);
            }
        }
    }

    /// Whether it is time for the engine to read.
    pub(crate) fn wakes(&self) -> bool {
        self.head.load(Relaxed) >= self.wake.load(Relaxed)
    }

    /// Wakes the engine after so many more events; `None` for never.
    pub(crate) fn wake_after(&self, events: Option<u64>) {
        self.wake.store(events.map_or(u64::MAX, |events| self.head().saturating_add(events)), Relaxed);
    }

    /// Index of the next event.
    pub(crate) fn head(&self) -> u64 {
        self.head.load(Acquire)
    }

    /// Events before index `end` that were not read yet.
    pub(crate) fn unread(&self, end: u64) -> u64 {
        end - self.tail.load(Relaxed).min(end)
    }

    /// Forgets everything logged so far.
    pub(crate) fn clear(&self) {
        self.consume(self.head());
    }

    /// Hands every event before index `end` that was not read yet to `visit`, in order and with its thread, and drops it from the log.
    /// `false` where events were lost: the log was too small, or a writer never completed its entry.
    pub(crate) fn read(&self, end: u64, mut visit: impl FnMut(Event, u16)) -> bool {
        let tail = self.tail.load(Relaxed);
        let capacity = self.capacity.load(Relaxed) as u64;
        let entries = self.entries.load(Acquire);
        let mut whole = end.saturating_sub(tail) <= capacity - Self::PAGE_ENTRIES;
        if whole {
            let mut moved = None;
            for index in tail..end {
                // SAFETY: as in `log`.
                let entry = unsafe { &*entries.add((index & (capacity - 1)) as usize) };
                let Some((address, what, kind, thread)) = entry.read(lap(index, capacity)) else {
                    whole = false;
                    break;
                };
                match (kind, Class::from_bits(what)) {
                    (MOVED, _) => moved = Some(address),
                    (ALLOCATED, Some(class)) => {
                        let event = match moved.take() {
                            Some(from) => Event::Move { address, class, from },
                            None => Event::Allocate { address, class },
                        };
                        visit(event, thread);
                    }
                    (KEPT, Some(class)) => visit(Event::Keep { address, class }, thread),
                    _ => visit(Event::Free { address, bytes: what as usize }, thread),
                }
            }
        }
        self.consume(end);
        whole
    }

    fn consume(&self, end: u64) {
        let entries = self.entries.load(Acquire);
        let capacity = self.capacity.load(Relaxed) as u64;
        let tail = self.tail.load(Relaxed);
        if entries.is_null() || end <= tail {
            return;
        }
        // From the beginning of its page on: what lies before was read earlier.
        let (from, to) = (tail & (capacity - 1) & !(Self::PAGE_ENTRIES - 1), end & (capacity - 1));
        let discard = |from: u64, to: u64| {
            let start = entries.wrapping_add(from as usize).cast();
            // SAFETY: part of the log's mapping; the entries between are read or given up. The last page may hold newer
            // entries; it is not whole, and stays.
            unsafe { A::discard(start, (to - from) as usize * WORDS) };
        };
        if end - tail >= capacity {
            discard(0, capacity);
        } else if from <= to {
            discard(from, to);
        } else {
            discard(from, capacity);
            discard(0, to);
        }
        self.tail.store(end, Release);
    }
}

/// Waits for a writer that was interrupted between taking its index and finishing its entry.
fn completed<A: Atomics>(place: &A::U64, lap: u64) -> Option<u64> {
    // A preempted writer is back within some scheduler periods; one that never comes back was killed.
    for _ in 0..A::looks(10_000) {
        let place = place.load(Acquire);
        if place >> ADDRESS_BITS == lap {
            return Some(place);
        }
        A::yield_now();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_back_in_order_and_pages_are_reused() {
        let recorder = Recorder::closed();
        recorder.log(Event::Free { address: 1, bytes: 0 }, 0);
        assert_eq!(recorder.head(), 0, "nothing is logged before the log is open");
        assert!(recorder.open());
        let class = Class::of(40_000, 1).expect("possible size");
        let events = [
            Event::Allocate { address: 64, class },
            Event::Free { address: 64, bytes: 40_000 },
            Event::Move { address: 8, class, from: 64 },
        ];
        for _ in 0..3 {
            for _ in 0..500_000 {
                events.iter().zip(1..).for_each(|(&event, thread)| recorder.log(event, thread));
            }
            let mut seen = Vec::new();
            assert!(recorder.read(recorder.head(), |event, thread| seen.push((event, thread))));
            let events = [1, 2, 3].map(|thread| (events[usize::from(thread) - 1], thread));
            assert!(seen.len() == 1_500_000 && seen.chunks(3).all(|chunk| chunk == events));
        }
    }

    #[test]
    fn a_log_that_overflows_says_so_and_goes_on() {
        let recorder = Recorder::closed();
        assert!(recorder.open());
        for address in 0..CAPACITIES[0] + 10 {
            recorder.log(Event::Free { address, bytes: 0 }, 0);
        }
        assert!(!recorder.read(recorder.head(), |_, _| ()));
        recorder.log(Event::Free { address: 7, bytes: 9 }, 0);
        let mut seen = Vec::new();
        assert!(recorder.read(recorder.head(), |event, _| seen.push(event)));
        assert_eq!(seen, [Event::Free { address: 7, bytes: 9 }]);
    }
}
