//! The way of a request: which go to the backend at once, which are served from the plan, which are recorded.
//!
//! Two words decide on the hot path. Requests below the *threshold* go to the backend; it is larger than any request
//! while there is nothing to plan or record. Addresses outside the *watched range* are freed by the backend; it is
//! empty at first, everything while recording, and the arena when a plan serves. Whatever passes these comes to the
//! functions here, which are generic over the backend and used by [`StatisticAllocator`](crate::StatisticAllocator)
//! and by the library that is preloaded.

use crate::arena::{ARENA, GRANULE_MIN_SHIFT};
use crate::backend::Backend;
use crate::matcher::{Class, MATCHER, Match};
use crate::os;
use crate::recorder::{Event, RECORDER};
use crate::statistics::Counter;
use core::cell::Cell;
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicUsize, Ordering::*};

/// The least size in bytes that does not go to the backend at once. 0 until the allocator is first used, so that the
/// first request comes here and names the backend.
static THRESHOLD: AtomicUsize = AtomicUsize::new(0);
/// The threshold while there is nothing to plan or record: sizes from here on no object can have.
const CLOSED: usize = isize::MAX as usize + 1;
/// Bytes of the watched range, from the arena's base.
static WATCHED: AtomicUsize = AtomicUsize::new(0);
/// What the functions here do: a set of the flags below.
static MODE: AtomicU8 = AtomicU8::new(0);

const SERVING: u8 = 1;
const RECORDING: u8 = 2;
const ATTACHED: u8 = 4;

/// Threads that are working for the allocator itself now. Their requests go to the backend, unrecorded.
static WORKING: AtomicU32 = AtomicU32::new(0);

std::thread_local! {
    /// True while this thread works for the allocator itself. One byte, no destructor.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Blocks that no slot was free for, or that the plan does not know, since the last boundary, and where they went.
pub(crate) struct Misses {
    /// Of a class the matcher counted, but not served from a slot; wherever they went.
    pub(crate) counted: Counter,
    /// Served from a gap.
    pub(crate) gap: Counter,
    /// Served by the backend, though the plan did not leave them to it.
    pub(crate) fallback: Counter,
}

pub(crate) static MISSES: Misses =
    Misses { counted: Counter::new(), gap: Counter::new(), fallback: Counter::new() };

/// What the engine needs of the backend in use.
pub(crate) struct Attached {
    pub(crate) name: fn() -> &'static str,
    pub(crate) trim: fn(),
}

static BACKEND: AtomicPtr<Attached> = AtomicPtr::new(ptr::null_mut());

/// The least size in bytes of which requests come to [`allocate`]; smaller ones are the backend's alone.
#[inline(always)]
pub fn threshold() -> usize {
    THRESHOLD.load(Relaxed)
}

/// True for addresses that must be freed by [`deallocate`]; others are the backend's alone.
#[inline(always)]
pub fn watches(address: usize) -> bool {
    address.wrapping_sub(ARENA.base()) < WATCHED.load(Relaxed)
}

/// True for the address of every block in the arena.
#[inline]
pub fn owns(address: usize) -> bool {
    ARENA.contains(address)
}

/// Bytes of the arena's block at `address`, all of them writable.
pub fn usable_bytes(address: usize) -> usize {
    ARENA.usable_bytes(address)
}

/// Opens or closes the ways here, by what the engine does now.
pub(crate) fn set(serving: bool, recording: bool, min_bytes: usize) {
    let mode = if serving { SERVING } else { 0 } | if recording { RECORDING } else { 0 };
    MODE.store(mode | MODE.load(Relaxed) & ATTACHED, Release);
    let watched = if recording { usize::MAX } else if serving { ARENA.reserved() } else { 0 };
    WATCHED.store(watched, Release);
    THRESHOLD.store(if mode == 0 { CLOSED } else { min_bytes }, Release);
}

/// Ends recording in a forked child, where nobody will read the log. Atomics only.
pub(crate) fn stop_recording() {
    MODE.fetch_and(!RECORDING, Release);
    WORKING.store(0, Relaxed);
}

/// True while a plan serves.
pub(crate) fn is_serving() -> bool {
    MODE.load(Relaxed) & SERVING != 0
}

/// The backend, once the allocator was used.
pub(crate) fn attached() -> Option<&'static Attached> {
    // SAFETY: null or the address of a static, see `attach`.
    unsafe { BACKEND.load(Acquire).as_ref() }
}

/// Names the backend to the engine.
#[cold]
pub fn attach<B: Backend>() {
    BACKEND.store(ptr::from_ref(Attached::of::<B>()).cast_mut(), Release);
    MODE.fetch_or(ATTACHED, Release);
    // The engine may have set it already.
    let _ = THRESHOLD.compare_exchange(0, CLOSED, Release, Relaxed);
}

impl Attached {
    fn of<B: Backend>() -> &'static Self {
        const { &Self { name: B::name, trim: B::trim } }
    }
}

/// Runs `body` as work of the allocator itself: what this thread allocates meanwhile goes to the backend unrecorded.
pub(crate) fn inside<R>(body: impl FnOnce() -> R) -> R {
    WORKING.fetch_add(1, Relaxed);
    let before = INSIDE.replace(true);
    let result = body();
    INSIDE.set(before);
    // A fork during `body` has set the child's count to zero.
    let _ = WORKING.fetch_update(Relaxed, Relaxed, |count| count.checked_sub(1));
    result
}

/// What this request may be used for: a set of the flags above, empty for the allocator's own work.
#[inline]
fn mode<B: Backend>() -> u8 {
    let mode = MODE.load(Relaxed);
    if mode & ATTACHED == 0 {
        attach::<B>();
    }
    if WORKING.load(Relaxed) != 0 && INSIDE.get() { 0 } else { mode }
}

/// A block of at least `size` bytes at `align`; null when there is no memory.
///
/// # Safety
/// `align` is a power of two.
#[inline(never)]
pub unsafe fn allocate<B: Backend>(size: usize, align: usize, zeroed: bool) -> *mut u8 {
    let mode = mode::<B>();
    if mode & SERVING != 0
        && let Some(block) = serve(size, align)
    {
        if zeroed {
            // SAFETY: the arena's block holds `size` bytes and is the caller's alone.
            unsafe { ptr::write_bytes(block, 0, size) };
        }
        if mode & RECORDING != 0 {
            record(block, size, align, None);
        }
        return block;
    }
    // SAFETY: the caller's promise.
    let block = unsafe { if zeroed { B::allocate_zeroed(size, align) } else { B::allocate(size, align) } };
    if mode & RECORDING != 0 {
        record(block, size, align, None);
    }
    block
}

/// Takes a block back that [`allocate`], [`reallocate`] or the backend made. `size` is that of the request, or what
/// the backend says it holds.
///
/// # Safety
/// The block is live, and `size` and `align` are its own.
#[inline(never)]
pub unsafe fn deallocate<B: Backend>(block: *mut u8, size: usize, align: usize) {
    let mode = MODE.load(Relaxed);
    if mode & RECORDING != 0 && size >= threshold() && !(WORKING.load(Relaxed) != 0 && INSIDE.get()) {
        RECORDER.log(Event::Free { address: block as usize });
    }
    if ARENA.contains(block as usize) {
        release(block);
    } else {
        // SAFETY: the caller's promise; the block is not the arena's, so it is the backend's.
        unsafe { B::deallocate(block, size, align) };
    }
}

/// Changes a block's size, moving it where needed; on null the old block is as it was.
///
/// A planned block that changes its class always moves, as it did when the step was recorded: the plan has a slot for
/// the new size, and its number among the others of that size counts.
///
/// # Safety
/// The block is live, `old_size` and `align` are its own, and `new_size` is not 0.
#[inline(never)]
pub unsafe fn reallocate<B: Backend>(block: *mut u8, old_size: usize, align: usize, new_size: usize) -> *mut u8 {
    let mode = mode::<B>();
    let threshold = threshold();
    let in_arena = ARENA.contains(block as usize);
    if in_arena && new_size >= threshold && Class::of(old_size, align) == Class::of(new_size, align) {
        return block;
    }
    let serves = mode & SERVING != 0 && new_size >= threshold;
    if in_arena || serves {
        let served = if serves { serve(new_size, align) } else { None };
        // SAFETY: `align` is a power of two; a block of the arena cannot be handed to the backend's reallocate.
        let new = match served {
            Some(new) => new,
            None if in_arena => unsafe { B::allocate(new_size, align) },
            None => ptr::null_mut(),
        };
        if !new.is_null() {
            // SAFETY: both blocks are live, distinct, and hold the bytes copied; the old one is the caller's to give.
            unsafe {
                ptr::copy_nonoverlapping(block, new, old_size.min(new_size));
                free_moved::<B>(mode, block, old_size, align);
            }
            if mode & RECORDING != 0 {
                record(new, new_size, align, Some((block, old_size)));
            }
            return new;
        }
        if in_arena {
            return new;
        }
    }
    if mode & RECORDING != 0 && old_size >= threshold {
        RECORDER.log(Event::Free { address: block as usize });
    }
    // SAFETY: the block is the backend's; the rest is the caller's promise.
    let new = unsafe { B::reallocate(block, old_size, align, new_size) };
    if mode & RECORDING != 0 {
        if new.is_null() {
            record(block, old_size, align, None);
        } else {
            record(new, new_size, align, Some((block, old_size)));
        }
    }
    new
}

/// # Safety
/// As for [`deallocate`].
unsafe fn free_moved<B: Backend>(mode: u8, block: *mut u8, size: usize, align: usize) {
    if mode & RECORDING != 0 && size >= threshold() {
        RECORDER.log(Event::Free { address: block as usize });
    }
    if ARENA.contains(block as usize) {
        release(block);
    } else {
        // SAFETY: the caller's promise.
        unsafe { B::deallocate(block, size, align) };
    }
}

/// A slot or a gap of the arena for a request, if there is one.
#[inline]
fn serve(size: usize, align: usize) -> Option<*mut u8> {
    if size < threshold() || align > os::BASE_ALIGN {
        return None;
    }
    let class = Class::of(size, align)?;
    match MATCHER.claim(&ARENA, class) {
        Match::Slot(block) => Some(block),
        Match::Unplanned => {
            MISSES.counted.add(class.bytes());
            None
        }
        Match::Busy => {
            MISSES.counted.add(class.bytes());
            serve_from_gap(class)
        }
        Match::Unknown => serve_from_gap(class),
    }
}

#[cold]
fn serve_from_gap(class: Class) -> Option<*mut u8> {
    let align = (class.align() as usize).max(1 << GRANULE_MIN_SHIFT);
    let gap = ARENA.claim_gap(class.bytes() as usize, align);
    let counter = if gap.is_some() { &MISSES.gap } else { &MISSES.fallback };
    counter.add(class.bytes());
    gap
}

fn record(block: *mut u8, size: usize, align: usize, from: Option<(*mut u8, usize)>) {
    if block.is_null() || size < threshold() || align > os::BASE_ALIGN {
        return;
    }
    let Some(class) = Class::of(size, align) else { return };
    let address = block as usize;
    RECORDER.log(match from {
        Some((from, old_size)) if old_size >= threshold() => {
            Event::Move { address, class, from: from as usize }
        }
        _ => Event::Allocate { address, class },
    });
}

#[inline]
fn release(block: *mut u8) {
    if !ARENA.release(block as usize) {
        invalid_free(block);
    }
}

/// No block of the arena starts there: it was freed twice, or never allocated. The C library ends the process then,
/// and so do we, before two owners share a slot.
#[cold]
fn invalid_free(block: *mut u8) -> ! {
    os::say(format_args!("free of {block:p}, where no block of the arena starts (freed twice?)"));
    std::process::abort();
}
