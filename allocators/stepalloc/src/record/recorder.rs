//! The recorder: the log of planned-size allocations and frees while a step is being learned.
//!
//! Any thread appends with one atomic addition and three stores, into memory mapped by ourselves; nothing is
//! allocated, locked or formatted. Time is the event's index. An allocation is logged after the backend has
//! answered and a free before the backend gets it, so that the log is a legal history of every address. The
//! engine reads the log at step boundaries ([`Recorder::read`]).

use crate::lookup::Class;
use crate::os;
use core::mem::size_of;
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering::*};

/// The process's recorder.
pub(crate) static RECORDER: Recorder = Recorder::closed();

/// Events the log holds between two readings: a step of a million planned-size blocks. Only what is used becomes
/// resident, and pages that were read are given back.
const CAPACITIES: [usize; 2] = [1 << 21, 1 << 17];

/// Entries of a page. So many are never used: the page in which reading has stopped is given back with what was read
/// before, and must not hold entries of the next round.
const PAGE_ENTRIES: u64 = (os::PAGE / size_of::<Entry>()) as u64;

/// An event of the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Event {
    /// A block came to life at an address.
    Allocate { address: usize, class: Class },
    /// As `Allocate`, by a realloc of the planned-size block at `from`, which was freed just before.
    Move { address: usize, class: Class, from: usize },
    /// The block at an address, of so many bytes or a few less, is about to be freed.
    Free { address: usize, bytes: usize },
}

/// A ring of entries with one counter for writers.
pub(crate) struct Recorder {
    entries: AtomicPtr<Entry>,
    capacity: AtomicUsize,
    /// Index of the next event ever to be logged.
    head: AtomicU64,
    /// Everything before it was read, and may be overwritten.
    tail: AtomicU64,
    /// The engine wants to read when so many events were logged: in detected steps.
    wake: AtomicU64,
}

#[repr(C)]
struct Entry {
    address: AtomicUsize,
    /// The class; 0 for a free.
    class: AtomicU64,
    /// For a move, the old address; for a free, the bytes; else 0.
    from: AtomicUsize,
    /// Index of the event + 1, stored last: says that the entry is complete.
    complete: AtomicU64,
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

    /// Maps the log where that was not done before; `false` where the system has no room.
    pub(crate) fn open(&self) -> bool {
        if !self.entries.load(Relaxed).is_null() {
            return true;
        }
        for capacity in CAPACITIES {
            if let Some(entries) = os::map(capacity * size_of::<Entry>()) {
                self.capacity.store(capacity, Relaxed);
                self.entries.store(entries.cast(), Release);
                return true;
            }
        }
        false
    }

    /// Appends an event. Where the log is full it is lost, and the reader notices.
    pub(crate) fn log(&self, event: Event) {
        let entries = self.entries.load(Acquire);
        if entries.is_null() {
            return;
        }
        let capacity = self.capacity.load(Relaxed) as u64;
        let index = self.head.fetch_add(1, Relaxed);
        if index - self.tail.load(Acquire).min(index) >= capacity - PAGE_ENTRIES {
            return;
        }
        // SAFETY: the mapping holds `capacity` entries, a power of two, and is never unmapped.
        let entry = unsafe { &*entries.add((index & (capacity - 1)) as usize) };
        let (address, class, from) = match event {
            Event::Allocate { address, class } => (address, class.to_bits(), 0),
            Event::Move { address, class, from } => (address, class.to_bits(), from),
            Event::Free { address, bytes } => (address, 0, bytes),
        };
        entry.address.store(address, Relaxed);
        entry.class.store(class, Relaxed);
        entry.from.store(from, Relaxed);
        entry.complete.store(index + 1, Release);
    }

    /// Whether it is time for the engine to read.
    pub(crate) fn wakes(&self) -> bool {
        self.head.load(Relaxed) >= self.wake.load(Relaxed)
    }

    /// Wakes the engine after so many more events; `None` for never.
    pub(crate) fn wake_after(&self, events: Option<u64>) {
        self.wake.store(events.map_or(u64::MAX, |events| self.head() + events), Relaxed);
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

    /// Hands every event before index `end` that was not read yet to `visit`, in order, and drops it from the log.
    /// `false` where events were lost: the log was too small, or a writer never completed its entry.
    pub(crate) fn read(&self, end: u64, mut visit: impl FnMut(Event)) -> bool {
        let tail = self.tail.load(Relaxed);
        let capacity = self.capacity.load(Relaxed) as u64;
        let entries = self.entries.load(Acquire);
        let mut whole = end.saturating_sub(tail) <= capacity - PAGE_ENTRIES;
        if whole {
            for index in tail..end {
                // SAFETY: as in `log`.
                let entry = unsafe { &*entries.add((index & (capacity - 1)) as usize) };
                if !completed(entry, index + 1) {
                    whole = false;
                    break;
                }
                let address = entry.address.load(Relaxed);
                let from = entry.from.load(Relaxed);
                visit(match Class::from_bits(entry.class.load(Relaxed)) {
                    None => Event::Free { address, bytes: from },
                    Some(class) if from == 0 => Event::Allocate { address, class },
                    Some(class) => Event::Move { address, class, from },
                });
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
        let (from, to) = (tail & (capacity - 1) & !(PAGE_ENTRIES - 1), end & (capacity - 1));
        let size = size_of::<Entry>() as u64;
        let discard = |from: u64, to: u64| {
            let start = entries.cast::<u8>().wrapping_add((from * size) as usize);
            // SAFETY: part of the log's mapping; the entries between are read or given up. The last page may hold newer
            // entries; it is not whole, and stays.
            unsafe { os::discard(start, ((to - from) * size) as usize) };
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
fn completed(entry: &Entry, index: u64) -> bool {
    // A preempted writer is back within some scheduler periods; one that never comes back was killed.
    for _ in 0..10_000 {
        if entry.complete.load(Acquire) == index {
            return true;
        }
        os::yield_now();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_back_in_order_and_pages_are_reused() {
        let recorder = Recorder::closed();
        recorder.log(Event::Free { address: 1, bytes: 0 });
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
                events.iter().for_each(|&event| recorder.log(event));
            }
            let mut seen = Vec::new();
            assert!(recorder.read(recorder.head(), |event| seen.push(event)));
            assert!(seen.len() == 1_500_000 && seen.chunks(3).all(|chunk| chunk == events));
        }
    }

    #[test]
    fn a_log_that_overflows_says_so_and_goes_on() {
        let recorder = Recorder::closed();
        assert!(recorder.open());
        for address in 0..CAPACITIES[0] + 10 {
            recorder.log(Event::Free { address, bytes: 0 });
        }
        assert!(!recorder.read(recorder.head(), |_| ()));
        recorder.log(Event::Free { address: 7, bytes: 9 });
        let mut seen = Vec::new();
        assert!(recorder.read(recorder.head(), |event| seen.push(event)));
        assert_eq!(seen, [Event::Free { address: 7, bytes: 9 }]);
    }
}
