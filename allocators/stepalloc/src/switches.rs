//! The words that every request reads: which of them go to the backend at once, and what is observed of the others.
//!
//! Requests below the *threshold* are the backend's. Addresses outside the *watched range* are freed by the backend; the range is empty
//! at first, everything while recording, and else that of the arena and the large heap.

use crate::arena::Arena;
use crate::heap::HEAP;
use crate::lookup::Matcher;
use crate::os;
use crate::word::{Atomics, Core, Word as _};
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering::*};

/// A word of the hot path, which the preloaded library's assembly reads by its address. Only this module writes it: whoever else could would
/// have blocks freed by the wrong owner.
#[repr(transparent)]
#[derive(Debug)]
pub struct Word(AtomicUsize);

/// The least size in bytes that does not go to the backend at once. 0 until the allocator is first used, so that the
/// first request comes to the dispatch and names the backend.
pub static THRESHOLD: Word = Word(AtomicUsize::new(0));
/// Above any request: every allocation takes the backend path.
pub(crate) const CLOSED: usize = 1 << 47;
/// The end of the watched range. Addresses from here on, which are nearly all where the arena lies low, are the backend's.
pub static WATCHED_END: Word = Word(AtomicUsize::new(0));
/// Added to an address, gives its offset in the watched range, and for addresses outside no less than [`WATCHED_BYTES`]; one byte more while
/// recording, so that no free matches a block's start and passes unrecorded. (Not more than a byte: these words are read one after the
/// other while they change, and any mixture of old and new ones must watch all blocks of the arena.)
pub static WATCHED_NEGATED: Word = Word(AtomicUsize::new(1));
/// Bytes of the watched range.
pub static WATCHED_BYTES: Word = Word(AtomicUsize::new(0));

/// Slot misses since the last boundary, in detected steps.
pub(crate) static MISSES_IN_STEP: AtomicU32 = AtomicU32::new(0);
/// More of them mean that the program has lost its period.
pub(crate) static MISS_LIMIT: AtomicU32 = AtomicU32::new(u32::MAX);

/// The process's state, in one place, so that a planned request finds all of it from one address.
pub(crate) static STATE: State =
    State { mode: AtomicU32::new(0), matcher: Matcher::empty(), arena: Arena::closed() };

/// What planned requests read.
pub(crate) struct State {
    /// What the dispatch does: a set of the flags below; above them the number of threads that work for the allocator itself now, whose
    /// requests go to the backend unrecorded.
    pub(crate) mode: AtomicU32,
    pub(crate) matcher: Matcher,
    pub(crate) arena: Arena,
}

pub(crate) const SERVING: u32 = 1;
pub(crate) const RECORDING: u32 = 2;
pub(crate) const ATTACHED: u32 = 4;
pub(crate) const SAMPLING: u32 = 8;
pub(crate) const TRACING: u32 = 16;
/// A plan has come into force: its slots take over the large heap's free pages as they are claimed for the first time.
pub(crate) const FILLING: u32 = 32;
/// The plan in force has classes for each thread.
pub(crate) const IN_LANES: u32 = 64;
pub(crate) const FLAGS: u32 = 127;
/// One thread that works for the allocator itself; the mode counts them above its flags.
pub(crate) const WORKER: u32 = 128;
/// The mode of a planned process: a plan serves, nothing is recorded, no thread works for the allocator
/// itself.
pub(crate) const PLANNED: u32 = SERVING | ATTACHED;
/// That of one whose sizes are logged and nothing else.
pub(crate) const SAMPLED: u32 = SAMPLING | ATTACHED;

/// What is observed of large blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Watch {
    /// Nothing.
    Nothing,
    /// The order of their sizes.
    Sizes,
    /// Every allocation and free.
    Events,
    /// Both.
    All,
}

/// The least size in bytes of which requests come to the dispatch; smaller ones are the backend's alone.
#[inline(always)]
pub fn threshold() -> usize {
    THRESHOLD.0.load(Relaxed)
}

/// The offset of an address in the watched range; `None` where it is the backend's alone.
#[inline(always)]
pub fn watched_offset(address: usize) -> Option<usize> {
    watched().offset(address)
}

/// The words that say which addresses are watched.
struct Watched<'a, A: Atomics = Core> {
    negated: &'a A::Usize,
    bytes: &'a A::Usize,
    end: &'a A::Usize,
}

#[inline(always)]
fn watched() -> Watched<'static> {
    Watched { negated: &WATCHED_NEGATED.0, bytes: &WATCHED_BYTES.0, end: &WATCHED_END.0 }
}

/// Addresses that are watched, as the words say it.
#[derive(Clone, Copy)]
struct Range {
    negated: usize,
    bytes: usize,
    end: usize,
}

impl Range {
    const NONE: Self = Self { negated: 1, bytes: 0, end: 0 };

    /// All addresses; `base` is that of ours, if there are any.
    fn all(base: usize) -> Self {
        Self { negated: base.wrapping_neg().wrapping_add(1), bytes: usize::MAX, end: usize::MAX }
    }

    fn of(base: usize, bytes: usize) -> Self {
        Self { negated: base.wrapping_neg(), bytes, end: base + bytes }
    }
}

impl<A: Atomics> Watched<'_, A> {
    /// See [`watched_offset`].
    #[inline(always)]
    fn offset(&self, address: usize) -> Option<usize> {
        let offset = address.wrapping_add(self.negated.load(Relaxed));
        (address < self.end.load(Relaxed) && offset < self.bytes.load(Relaxed)).then_some(offset)
    }

    fn set(&self, range: Range) {
        self.negated.store(range.negated, Release);
        self.bytes.store(range.bytes, Release);
        self.end.store(range.end, Release);
    }

    /// Watches a range, and puts flags in the place of [`SERVING`] and what says that something is observed.
    fn change(&self, range: Range, mode: &A::U32, flags: u32) {
        // First the range, then the mode: whoever is handed a block of the arena must find its address watched.
        self.set(range);
        let _ = mode
            .fetch_update(Release, Relaxed, |mode| Some(mode & !(SERVING | RECORDING | SAMPLING) | flags));
    }
}

/// The offset of an address that may be in the watched range.
#[inline(always)]
pub(crate) fn offset(address: usize) -> usize {
    address.wrapping_add(WATCHED_NEGATED.0.load(Relaxed))
}

/// Opens or closes the ways of requests, by whether a plan serves and what is observed.
pub(crate) fn set(serving: bool, watch: Watch, min_bytes: usize) {
    let observing = match watch {
        Watch::Nothing => 0,
        Watch::Sizes => SAMPLING,
        Watch::Events => RECORDING,
        Watch::All => SAMPLING | RECORDING,
    };
    let flags = if serving { SERVING } else { 0 } | observing;
    let tracing = is_tracing();
    let range = range();
    let to_watch = match range {
        _ if flags & RECORDING != 0 || tracing => all(),
        Some((base, bytes)) => Range::of(base, bytes),
        None => Range::NONE,
    };
    watched().change(to_watch, &STATE.mode, flags);
    // Blocks of the arena and the heap, once there may be any, must be freed there: none may fall below the threshold.
    let min_bytes = match (range, threshold()) {
        (Some(_), before @ 1..) => min_bytes.min(before),
        _ => min_bytes,
    };
    let closed = flags == 0 && !tracing && range.is_none() && !HEAP.is_unopened();
    THRESHOLD.0.store(if closed { CLOSED } else { min_bytes }, Release);
}

/// All addresses.
fn all() -> Range {
    Range::all(range().map_or(0, |(base, _)| base))
}

/// The addresses that are ours: those of the arena and the large heap, or the arena's alone; its first is the arena's.
fn range() -> Option<(usize, usize)> {
    HEAP.range().or_else(|| STATE.arena.is_open().then(|| (STATE.arena.base(), STATE.arena.reserved())))
}

/// The large heap is open now, or no more: its addresses are watched. Under the engine's lock, as [`set`].
pub(crate) fn refresh(min_bytes: usize) {
    let mode = STATE.mode.load(Relaxed);
    set(mode & SERVING != 0, watch_of(mode), min_bytes);
}

/// What is observed in a mode.
fn watch_of(mode: u32) -> Watch {
    match (mode & SAMPLING != 0, mode & RECORDING != 0) {
        (false, false) => Watch::Nothing,
        (true, false) => Watch::Sizes,
        (false, true) => Watch::Events,
        (true, true) => Watch::All,
    }
}

/// Opens the ways of requests at the first of them, unless the engine has done so: sizes are logged from `sampled` bytes on, where there is
/// such a number, and everything from `traced` bytes on. Whether sizes are logged for that.
pub(crate) fn begin(sampled: Option<usize>, traced: Option<usize>) -> bool {
    let threshold = sampled.unwrap_or(CLOSED);
    let is_first = THRESHOLD.0.compare_exchange(0, threshold, Release, Relaxed).is_ok();
    let samples = is_first && sampled.is_some();
    if samples {
        STATE.mode.fetch_or(SAMPLING, Release);
    }
    if let Some(bytes) = traced {
        STATE.mode.fetch_or(TRACING, Release);
        watched().set(all());
        THRESHOLD.0.fetch_min(bytes, Release);
    }
    STATE.mode.fetch_or(ATTACHED, Release);
    samples
}

/// Ends tracing. Only who holds the engine's lock may call this: as [`set`], it must not run twice at a time.
pub(crate) fn stop_tracing(min_bytes: usize) {
    let mode = STATE.mode.fetch_and(!TRACING, Release);
    if mode & TRACING != 0 {
        set(mode & SERVING != 0, watch_of(mode), min_bytes);
    }
}

/// Slots take over the large heap's free pages from now on, or no more.
pub(crate) fn set_filling(filling: bool) {
    if filling {
        STATE.mode.fetch_or(FILLING, Release);
    } else {
        STATE.mode.fetch_and(!FILLING, Release);
    }
}

/// Says whether the plan that comes into force has classes for each thread.
pub(crate) fn set_in_lanes(in_lanes: bool) {
    if in_lanes {
        STATE.mode.fetch_or(IN_LANES, Release);
    } else {
        STATE.mode.fetch_and(!IN_LANES, Release);
    }
}

/// Whether a trace is made.
pub(crate) fn is_tracing() -> bool {
    STATE.mode.load(Relaxed) & TRACING != 0
}

/// Ends recording and tracing in a forked child, where nobody will read the log, and forgets threads that worked for the
/// allocator in the parent. Atomics only.
pub(crate) fn stop_recording() {
    let mode = STATE.mode.fetch_and(FLAGS & !(RECORDING | TRACING), Release);
    if mode & (RECORDING | TRACING) != 0 {
        set(mode & SERVING != 0, watch_of(mode & !RECORDING), threshold());
    }
}

/// True while a plan serves.
pub(crate) fn is_serving() -> bool {
    STATE.mode.load(Acquire) & SERVING != 0
}

/// A number by which this thread differs from most others.
#[inline(always)]
pub(crate) fn this_thread() -> u16 {
    // The high bits of a product (Knuth, TAOCP 3, 6.4).
    ((os::thread_pointer() as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 48) as u16
}

/// The same in 15 bits, and never 0: what the recorder notes of a thread, and what names the classes of its own.
#[inline(always)]
pub(crate) fn lane() -> u16 {
    (this_thread() >> 1).max(1)
}

#[cfg(test)]
mod models {
    use super::*;
    use crate::models::{Loom, U32, Usize, explore, leak};
    use crate::word::Number as _;
    use loom::thread;

    /// The mode and the words of the watched range.
    struct Ways {
        mode: <Loom as Atomics>::U32,
        negated: <Loom as Atomics>::Usize,
        bytes: <Loom as Atomics>::Usize,
        end: <Loom as Atomics>::Usize,
    }

    impl Ways {
        fn new(range: Range, mode: u32) -> &'static Self {
            let [negated, bytes, end] = [range.negated, range.bytes, range.end].map(Usize::new);
            leak(Self { mode: U32::new(mode), negated, bytes, end })
        }

        fn watched(&self) -> Watched<'_, Loom> {
            Watched { negated: &self.negated, bytes: &self.bytes, end: &self.end }
        }
    }

    /// Ours, and a block in it.
    const BASE: usize = 1 << 20;
    const BYTES: usize = 1 << 16;
    const BLOCK: usize = BASE + 4096;

    #[test]
    fn who_finds_that_a_plan_serves_finds_the_arena_watched() {
        explore(None, || {
            let ways = Ways::new(Range::NONE, 0);
            let other = thread::spawn(|| {
                ways.watched().change(Range::of(BASE, BYTES), &ways.mode, SERVING | SAMPLING)
            });
            if ways.mode.load(Acquire) & SERVING != 0 {
                assert_eq!(ways.watched().offset(BLOCK), Some(BLOCK - BASE));
            }
            other.join().expect("no panic");
        });
    }

    #[test]
    fn any_mixture_of_the_words_of_two_ranges_watches_all_blocks() {
        let one = Range::of(BASE, BYTES);
        for (from, to) in [(one, Range::all(BASE)), (Range::all(BASE), one)] {
            explore(3, move || {
                let ways = Ways::new(from, SERVING);
                let other = thread::spawn(move || ways.watched().change(to, &ways.mode, SERVING | RECORDING));
                for block in [BASE, BLOCK, BASE + BYTES - 4096] {
                    let offset = ways.watched().offset(block).expect("a block of ours");
                    assert!(offset == block - BASE || offset == block - BASE + 1);
                }
                other.join().expect("no panic");
            });
        }
    }

    #[test]
    fn flags_and_workers_change_at_once_and_none_is_lost() {
        explore(None, || {
            let ways = Ways::new(Range::NONE, ATTACHED);
            let other = thread::spawn(|| ways.mode.fetch_add(WORKER, Relaxed));
            ways.watched().change(Range::of(BASE, BYTES), &ways.mode, SERVING);
            other.join().expect("no panic");
            assert_eq!(ways.mode.load(Relaxed), ATTACHED | SERVING | WORKER);
        });
    }
}
