//! Threads that look at what the program does not say: that it asks for nothing any more.
//!
//! The arena's pages while a plan serves: memory goes back, on request and when the program has asked for nothing of planned
//! size for a while, and huge pages come where all of it is there.
//!
//! A thread looks to it now and then. It is there only while a plan serves and is used: it ends when it has given the arena's
//! pages back, and is started again at the next boundary. The pages come again when they are touched; plans stay as they are.
//!
//! It is there too while the large heap holds much, used or not: started when the heap grows, so that no free has to.

use super::{ENGINE, Engine, enter, trim};
use crate::heap::HEAP;
use crate::lookup::misses::MISSES;
use crate::os;
use crate::reentrant;
use crate::settings::{HugePages, Settings};
use crate::switches::{self, STATE};
use core::ffi::c_void;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use core::time::Duration;
use std::panic;

/// There is such a thread.
static WATCHED: AtomicBool = AtomicBool::new(false);
/// It looks for huge pages too.
static UNITING: AtomicBool = AtomicBool::new(false);
/// Looks in the time after which memory goes back.
const LOOKS: u32 = 4;
/// The thread sleeps no longer at a time, so that a process ends with its other threads where nobody has noticed that the first has ended.
const NAP: Duration = Duration::from_secs(1);
/// Times that memory went back because nothing was asked for.
static RELEASES: AtomicU64 = AtomicU64::new(0);

/// Gives the memory that no live block needs back to the system: the arena's free pages, and what the backend keeps. Plans
/// stay, and their pages come again when they are touched. Returns the arena's bytes given back.
///
/// For programs that will not run a step for some time. They are given back by themselves after `STEPALLOC_IDLE` seconds
/// without a request of planned size.
pub fn release() -> usize {
    os::keeping_errno(|| {
        reentrant::guard(|| {
            let bytes = give_back() + HEAP.give_back(u64::MAX);
            HEAP.arena_holds(STATE.arena.occupied_bytes());
            trim();
            bytes
        })
    })
}

/// At the process's end: free pages would only add to its peak what runs now for the first time, destructors and the tables of symbols that the
/// dynamic linker reads for them (three MiB in a program of two hundred libraries). The system would take them in a moment anyway.
pub(super) extern "C" fn release_at_exit() {
    // A handler of a signal may have interrupted whoever holds the lock to come here; or malloc, so that the backend is not asked.
    if HEAP.is_at_hand() {
        os::keeping_errno(|| {
            reentrant::guard(|| {
                HEAP.give_back(u64::MAX);
                give_back();
            })
        });
    }
}

/// Has the backend give back what it keeps free, where the large heap has grown to another peak: it would show in the process's. Called
/// within an allocation, before its block is touched.
#[cold]
pub(crate) fn trim_backend() {
    os::keeping_errno(|| reentrant::guard(trim));
}

/// Gives the arena's free pages back to the system; they come again when they are touched. Returns their bytes.
fn give_back() -> usize {
    STATE.arena.each_free(|start, bytes| HEAP.discard_in_arena(start, bytes))
}

/// Has the arena give free pages to the heap, so many bytes of them, where the process would rise above its peak otherwise. Slots take
/// them over again when they are claimed. Called within an allocation.
#[cold]
pub(crate) fn relieve(bytes: usize) {
    take_from_arena(bytes, false);
}

/// As [`relieve`], for a block of zeros: the pages go back to the system.
#[cold]
pub(crate) fn relieve_of_zeros(bytes: usize) {
    take_from_arena(bytes, true);
}

fn take_from_arena(bytes: usize, zeros: bool) {
    os::keeping_errno(|| {
        // Before the machine can learn of it, and before slots have holes.
        if switches::is_serving() {
            switches::set_filling(true);
        }
        let mut left = bytes;
        STATE.arena.each_free(|start, bytes| {
            let taken = if left > 0 { HEAP.adopt(start, bytes, left, zeros) } else { 0 };
            left = left.saturating_sub(taken);
            taken
        });
        HEAP.relieved();
    });
}

/// In a forked child, which has no such thread.
pub(super) fn forget_threads() {
    WATCHED.store(false, Relaxed);
    os::forget_first_thread();
}

/// Times that memory went back because nothing was asked for.
pub(super) fn releases() -> u64 {
    RELEASES.load(Relaxed)
}

/// What was asked for of planned size so far, as a number that changes with each request.
fn activity() -> u64 {
    let counted = STATE.matcher.counted();
    let missed = MISSES.gap.get().allocations + MISSES.fallback.get().allocations;
    counted.wrapping_add(missed << 32).wrapping_add(HEAP.activity() << 16)
}

/// Starts the thread that looks, where there is none.
pub(super) fn watch(settings: &Settings) {
    let seconds = settings.idle_seconds;
    if seconds == 0 || WATCHED.swap(true, Relaxed) {
        return;
    }
    UNITING.store(settings.huge_pages == HugePages::WhereResident, Relaxed);
    // Where no thread can be had, it is not tried again.
    let _ = os::start_thread(look, usize::try_from(seconds).unwrap_or(usize::MAX), os::STACK_BYTES);
}

/// Starts the thread that looks, because the large heap has much that is free. Called within a free.
#[cold]
pub(crate) fn watch_heap() {
    let started = enter(Some(1), |engine| watch(&engine.settings()));
    if started.is_none() {
        // Another time.
        HEAP.end_watch();
    }
}

/// Naps since there is more or less of the arena.
#[derive(Default)]
struct Naps {
    committed: usize,
    count: u64,
}

impl Naps {
    /// Puts huge pages where all of the memory is there by now: after one nap, two, four and so on, as what is there stays,
    /// and the rest comes ever more rarely.
    fn unite_pages(&mut self) {
        let committed = STATE.arena.committed();
        if committed != self.committed {
            *self = Self { committed, count: 0 };
        }
        self.count += 1;
        if self.count.is_power_of_two() {
            STATE.arena.unite_pages();
        }
    }
}

/// The thread. A panic in it ends planning, as anywhere in the engine.
extern "C" fn look(seconds: *mut c_void) -> *mut c_void {
    if panic::catch_unwind(|| give_back_when_idle(seconds.addr() as u64)).is_err() {
        reentrant::guard(|| ENGINE.with(None, Engine::stop));
    }
    ptr::null_mut()
}

/// Gives memory back whenever nothing was asked for over some looks in so many seconds, and ends then, unless the large heap holds much
/// still. Allocates nothing until then.
fn give_back_when_idle(seconds: u64) {
    os::name_thread(c"stepalloc");
    let pause = Duration::from_secs(seconds) / LOOKS;
    let (mut before, mut unchanged, mut naps) = (activity(), 0, Naps::default());
    loop {
        let mut left = pause;
        while !left.is_zero() {
            os::sleep_beside_first_thread(left.min(NAP).as_nanos() as u64);
            left = left.saturating_sub(NAP);
            if os::first_thread_is_gone() {
                return;
            }
            HEAP.second();
            if UNITING.load(Relaxed) {
                naps.unite_pages();
            }
        }
        let now = activity();
        unchanged = if now == before { unchanged + 1 } else { 0 };
        before = now;
        if unchanged == LOOKS {
            release();
            RELEASES.fetch_add(1, Relaxed);
        }
        if unchanged >= LOOKS && !HEAP.is_watched_on() {
            // The next boundary starts another, and so does the heap when it grows.
            WATCHED.store(false, Relaxed);
            HEAP.end_watch();
            return;
        }
    }
}
