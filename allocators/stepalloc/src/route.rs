//! The dispatch of requests: which are served from the plan, which by the large heap, which are recorded.
//!
//! The [switches](crate::switches) send requests here, small ones and frees of the backend's blocks excepted. All functions are generic over
//! the backend, and used by [`StatisticAllocator`](crate::StatisticAllocator) and by the library that is preloaded.

use crate::arena::cells::{Half, Slot};
use crate::arena::granules::Run;
use crate::arena::{GRANULE_MIN_SHIFT, Released};
use crate::backend::{self, Backend};
use crate::engine;
use crate::heap::HEAP;
use crate::lookup::misses::{MISSES, Reason};
use crate::lookup::{Class, Match, Quick};
use crate::os;
use crate::profile::step_profile;
use crate::record::recorder::{Event, RECORDER};
use crate::record::size_log::SIZE_LOG;
use crate::record::tracer::{TRACER, Traced};
use crate::reentrant;
use crate::settings;
use crate::switches::{
    self, ATTACHED, FILLING, FLAGS, IN_LANES, MISS_LIMIT, MISSES_IN_STEP, PLANNED, RECORDING, SAMPLED,
    SAMPLING, SERVING, STATE, TRACING,
};
use core::ptr;
use core::sync::atomic::{AtomicU64, Ordering::*};

pub use crate::switches::{
    THRESHOLD, WATCHED_BYTES, WATCHED_END, WATCHED_NEGATED, Word, threshold, watched_offset,
};

/// True for addresses that must be freed by [`deallocate`]; others are the backend's alone.
#[inline(always)]
pub fn watches(address: usize) -> bool {
    watched_offset(address).is_some()
}

/// True for the address of every block in the arena and in the large heap.
#[inline]
pub fn owns(address: usize) -> bool {
    STATE.arena.contains(address) || HEAP.contains(address)
}

/// Gives the large heap's free pages back to the system; returns their bytes. The arena's stay, for the plan that serves from them.
pub fn give_back_extents() -> usize {
    os::keeping_errno(|| HEAP.give_back(u64::MAX))
}

/// A block of the large heap for the allocator's own work, of at least `size` bytes from the beginning of a page; `None` where the heap is closed,
/// or has no room. It is unknown to plans.
pub fn lend(size: usize, zeroed: bool) -> Option<*mut u8> {
    HEAP.lend(size, zeroed)
}

/// Takes a block back; `false`, and nothing done, where it was not [lent](lend).
///
/// # Safety
/// Nobody uses the block.
pub unsafe fn take_back(block: *mut u8) -> bool {
    HEAP.contains(block as usize) && HEAP.take_back(block as usize)
}

/// True for the address of every block in the arena.
#[inline]
pub fn in_arena(address: usize) -> bool {
    STATE.arena.contains(address)
}

/// Bytes of the block at `address` in the arena or the large heap, all of them writable.
pub fn usable_bytes(address: usize) -> usize {
    if HEAP.contains(address) { HEAP.usable_bytes(address) } else { STATE.arena.usable_bytes(address) }
}

/// Names the backend to the engine, at the first request.
#[cold]
fn attach<B: Backend>() {
    B::begin();
    let sampled = settings::sampled_from();
    if sampled.is_none() || settings::leaves_large_to_backend() {
        HEAP.disable();
    }
    backend::attach::<B>();
    let traced = TRACER.is_wanted().then(settings::least_bytes);
    if switches::begin(sampled, traced) && settings::PLAN.path().is_some() {
        SIZE_LOG.wake_after(step_profile::FINGERPRINT as u64);
    }
}

/// What a request of this thread may be used for: a set of flags, none for the allocator's own work.
#[cold]
fn flags<B: Backend>(mode: u32) -> u32 {
    if mode & ATTACHED == 0 {
        attach::<B>();
    }
    if reentrant::may_be(mode) && reentrant::is_reentrant() { 0 } else { mode & FLAGS }
}

/// The flags, at little cost where a plan serves.
#[inline(always)]
fn mode<B: Backend>() -> u32 {
    let mode = STATE.mode.load(Acquire);
    if mode == PLANNED { PLANNED } else { flags::<B>(mode) }
}

/// A block of at least `size` bytes at `align`; null when there is no memory.
///
/// # Safety
/// `align` is a power of two.
#[inline(always)]
pub unsafe fn allocate<B: Backend>(size: usize, align: usize) -> *mut u8 {
    if STATE.mode.load(Acquire) == PLANNED && align <= 1 << GRANULE_MIN_SHIFT {
        // SAFETY: there is one arena, for which plans are installed.
        match unsafe { STATE.matcher.claim_quickly(&STATE.arena, Class::of_bytes(size)) } {
            Quick::Block(block) => return block,
            // SAFETY: the caller's promise; the matcher's answer.
            Quick::Counted(nth) => return unsafe { allocate_counted::<B>(size, align, nth) },
            // SAFETY: as above.
            Quick::Several(nth, slot) => return unsafe { allocate_several::<B>(size, align, nth, slot) },
            Quick::Half(nth, Half { word, lower, run }) => {
                // SAFETY: as above.
                return unsafe { allocate_undone::<B>(size, align, nth, word, lower, run) };
            }
            Quick::Uncounted => {}
        }
    }
    // SAFETY: the caller's promise.
    unsafe { allocate_otherwise::<B>(size, align, false) }
}

/// As [`allocate`], all zeros.
///
/// # Safety
/// As for [`allocate`].
#[cold]
#[inline(never)]
pub unsafe fn allocate_zeroed<B: Backend>(size: usize, align: usize) -> *mut u8 {
    // SAFETY: the caller's promise.
    unsafe { allocate_otherwise::<B>(size, align, true) }
}

/// [`allocate_counted`] of a request whose slot, if it has one, has cells in more than two words.
///
/// # Safety
/// As there.
#[inline(never)]
unsafe fn allocate_several<B: Backend>(size: usize, align: usize, nth: u32, slot: *const Slot) -> *mut u8 {
    // SAFETY: the matcher's answer; the caller's promise.
    unsafe {
        match STATE.arena.claim_several(&*slot) {
            Some(block) => block,
            None => allocate_counted::<B>(size, align, nth),
        }
    }
}

/// [`allocate_counted`] of a request of whose slot a half was taken. (Its parts one by one go in registers.)
///
/// # Safety
/// As there.
#[cold]
#[inline(never)]
unsafe fn allocate_undone<B: Backend>(
    size: usize,
    align: usize,
    nth: u32,
    word: *const AtomicU64,
    lower: u64,
    run: Run,
) -> *mut u8 {
    // SAFETY: the caller's promise.
    unsafe {
        STATE.arena.undo(word, lower, run);
        allocate_counted::<B>(size, align, nth)
    }
}

/// [`allocate`] of a request that was counted in its class, but not served: its slot is not to be had, or not in one
/// attempt.
///
/// # Safety
/// As for [`allocate`]; `nth` is the matcher's answer to this request.
#[cold]
#[inline(never)]
unsafe fn allocate_counted<B: Backend>(size: usize, align: usize, nth: u32) -> *mut u8 {
    let served = Class::of(size, 1)
        .and_then(|class| found_or_gap(STATE.matcher.claim_counted(&STATE.arena, class, nth), class));
    // SAFETY: the caller's promise.
    unsafe { served_or_backend::<B>(served, size, align, false) }
}

/// # Safety
/// As for [`allocate`]; `served` is null-free, holds `size` bytes at `align`, and is the caller's alone.
unsafe fn served_or_backend<B: Backend>(
    served: Option<*mut u8>,
    size: usize,
    align: usize,
    zeroed: bool,
) -> *mut u8 {
    // SAFETY: the caller's promise.
    unsafe {
        match served {
            Some(block) => {
                if zeroed {
                    os::zero(block, size);
                }
                block
            }
            None => unplanned::<B>(size, align, zeroed),
        }
    }
}

/// A block that no plan serves: an extent of the large heap, or the backend's.
///
/// # Safety
/// As for [`allocate`].
#[inline]
unsafe fn unplanned<B: Backend>(size: usize, align: usize, zeroed: bool) -> *mut u8 {
    match allocate_extent(size, align, zeroed) {
        Some(block) => block,
        // SAFETY: the caller's promise.
        None if zeroed => unsafe { B::allocate_zeroed(size, align) },
        // SAFETY: as above.
        None => unsafe { B::allocate(size, align) },
    }
}

/// A block of the large heap, where it serves such.
#[inline]
fn allocate_extent(size: usize, align: usize, zeroed: bool) -> Option<*mut u8> {
    if HEAP.is_unopened() {
        // The process's first request comes here whatever its size: most processes ask for nothing large.
        if size < threshold() {
            return None;
        }
        engine::open_heap();
    }
    let relieve = if zeroed { engine::relieve_of_zeros } else { engine::relieve };
    let block = HEAP.allocate(size, align, zeroed, relieve)?;
    if HEAP.wants_trim() {
        engine::trim_backend();
    }
    Some(block)
}

/// [`allocate`] where no plan serves yet, or something is recorded, or the allocator itself asks.
///
/// # Safety
/// As for [`allocate`].
#[cold]
#[inline(never)]
unsafe fn allocate_otherwise<B: Backend>(size: usize, align: usize, zeroed: bool) -> *mut u8 {
    // SAFETY: the caller's promise.
    unsafe {
        if STATE.mode.load(Acquire) == SAMPLED {
            return allocate_sampled::<B>(size, align, zeroed);
        }
        allocate_watched::<B>(size, align, zeroed)
    }
}

/// [`allocate`] where sizes are logged and nothing else is done, as in all programs without a period.
///
/// # Safety
/// As for [`allocate`].
#[inline(never)]
unsafe fn allocate_sampled<B: Backend>(size: usize, align: usize, zeroed: bool) -> *mut u8 {
    // SAFETY: the caller's promise.
    let block = unsafe { served_or_backend::<B>(None, size, align, zeroed) };
    if let Some(class) = planned_class(block, size, align)
        && SIZE_LOG.log(class)
    {
        engine::sampled();
    }
    block
}

/// # Safety
/// As for [`allocate`].
#[cold]
#[inline(never)]
unsafe fn allocate_watched<B: Backend>(size: usize, align: usize, zeroed: bool) -> *mut u8 {
    let mode = mode::<B>();
    let served = if mode & SERVING != 0 { serve(mode, size, align) } else { None };
    if mode & FILLING != 0
        && let Some((start, bytes)) = served.and_then(|block| STATE.arena.span(block as usize))
    {
        HEAP.fill(start, bytes, zeroed);
    }
    // SAFETY: the caller's promise.
    let block = unsafe { served_or_backend::<B>(served, size, align, zeroed) };
    record(mode, block, size, align, None);
    block
}

/// Takes a block back that [`allocate`], [`reallocate`] or the backend made. `size` is that of the request, or what
/// the backend says it holds.
///
/// # Safety
/// The block is live, and `size` and `align` are its own.
#[inline]
pub unsafe fn deallocate<B: Backend>(block: *mut u8, size: usize, align: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        if !release_at(switches::offset(block as usize)) {
            deallocate_otherwise::<B>(block, size, align);
        }
    }
}

/// [`deallocate`] of what is the backend's, or must be recorded.
///
/// # Safety
/// As for [`deallocate`].
#[inline(never)]
unsafe fn deallocate_otherwise<B: Backend>(block: *mut u8, size: usize, align: usize) {
    // SAFETY: the caller's promise.
    unsafe { free_moved::<B>(mode::<B>(), block, size, align) };
}

/// Frees the block at an offset in the watched range, without asking for its size; `false`, and nothing done, where neither
/// the arena nor the large heap has one there, or it must be recorded.
///
/// # Safety
/// Where a live block starts there, it is the caller's to free.
#[inline(always)]
pub unsafe fn release_at(offset: usize) -> bool {
    STATE.arena.release_at(offset) || release_extent(offset)
}

/// [`release_at`] for the large heap.
#[inline(never)]
fn release_extent(offset: usize) -> bool {
    let released = HEAP.release_at(offset);
    if HEAP.wants_watch() {
        engine::watch_heap();
    }
    HEAP.look_at_process();
    released
}

/// Changes a block's size, moving it where needed; on null the old block is as it was.
///
/// A block that gets a planned size always moves, however little it grows: when the step was recorded this was a new
/// block, which has a slot of its own and counts among the others of its size.
///
/// # Safety
/// The block is live, `old_size` and `align` are its own, and `new_size` is not 0.
#[inline(never)]
pub unsafe fn reallocate<B: Backend>(
    block: *mut u8,
    old_size: usize,
    align: usize,
    new_size: usize,
) -> *mut u8 {
    let mode = mode::<B>();
    let threshold = threshold();
    let address = block as usize;
    let (in_arena, in_heap) = (STATE.arena.contains(address), HEAP.contains(address));
    let serves = mode & SERVING != 0 && new_size >= threshold;
    // No gap: who grows a block again and again would have it copied each time, which an extent mostly spares him.
    let served = if serves { serve_from_slot(mode, new_size, align) } else { None };
    let is_backends = !in_arena && !in_heap;
    let served = served.or_else(|| if is_backends { allocate_extent(new_size, align, false) } else { None });
    if served.is_none() && !in_arena {
        // It may stay with who has it.
        let extent = in_heap && align <= os::PAGE;
        if extent || is_backends {
            if old_size >= threshold {
                record_free(mode, block, old_size);
            }
            let new = if extent {
                HEAP.reallocate(address, new_size, engine::relieve).unwrap_or(ptr::null_mut())
            } else {
                // SAFETY: the block is the backend's; the rest is the caller's promise.
                unsafe { B::reallocate(block, old_size, align, new_size) }
            };
            if !new.is_null() {
                record(mode, new, new_size, align, Some((block, old_size)));
                return new;
            }
            if old_size >= threshold {
                record_kept(mode, block, old_size, align);
            }
            if !extent {
                return new;
            }
        }
    }
    // SAFETY: `align` is a power of two.
    let new = served.unwrap_or_else(|| unsafe { unplanned::<B>(new_size, align, false) });
    if !new.is_null() {
        // SAFETY: both blocks are live, distinct, and hold the bytes copied; the old one is the caller's to give.
        unsafe {
            ptr::copy_nonoverlapping(block, new, old_size.min(new_size));
            free_moved::<B>(mode, block, old_size, align);
        }
        record(mode, new, new_size, align, Some((block, old_size)));
    }
    new
}

/// # Safety
/// As for [`deallocate`].
#[inline]
unsafe fn free_moved<B: Backend>(mode: u32, block: *mut u8, size: usize, align: usize) {
    if size >= threshold() {
        record_free(mode, block, size);
    }
    match STATE.arena.release(block as usize) {
        Released::Block => {}
        Released::Foreign if HEAP.contains(block as usize) => {
            if !HEAP.release(block as usize) {
                invalid_free(block);
            }
            if HEAP.wants_watch() {
                engine::watch_heap();
            }
            HEAP.look_at_process();
        }
        // SAFETY: the caller's promise; the block is not the arena's nor the heap's, so it is the backend's.
        Released::Foreign => unsafe { B::deallocate(block, size, align) },
        Released::Invalid => invalid_free(block),
    }
}

/// The class of a request by which the plan in force knows it, if it may.
fn servable_class(mode: u32, size: usize, align: usize) -> Option<Class> {
    let class = Class::of(size, align).filter(|_| align <= os::BASE_ALIGN)?;
    Some(if mode & IN_LANES != 0 { class.in_lane(switches::lane()) } else { class })
}

/// A slot or a gap of the arena for a request, if there is one.
fn serve(mode: u32, size: usize, align: usize) -> Option<*mut u8> {
    let class = servable_class(mode, size, align)?;
    found_or_gap(STATE.matcher.claim(&STATE.arena, class), class)
}

/// A slot of the arena for a block that moves, if there is one.
fn serve_from_slot(mode: u32, size: usize, align: usize) -> Option<*mut u8> {
    let class = servable_class(mode, size, align)?;
    let found = in_detected_step(STATE.matcher.claim(&STATE.arena, class), class);
    if let Match::Slot(block) = found {
        return Some(block);
    }
    if found != Match::Unknown {
        MISSES.counted.add(class.bytes());
    }
    if found != Match::Unplanned {
        MISSES.add(class, why(found, class), false);
    }
    None
}

/// What the matcher found. Where this request begins the next detected step, the last one ends here, and the
/// matcher is asked again.
fn in_detected_step(found: Match, class: Class) -> Match {
    match found {
        Match::Over(step) if engine::detected_boundary(class, step) => {
            STATE.matcher.claim(&STATE.arena, class)
        }
        found => found,
    }
}

/// The block the matcher found, or a gap where it found none though it should have.
fn found_or_gap(found: Match, class: Class) -> Option<*mut u8> {
    let found = in_detected_step(found, class);
    match found {
        Match::Slot(block) => Some(block),
        Match::Unplanned => {
            MISSES.counted.add(class.bytes());
            None
        }
        // Over: another thread is about the boundary.
        Match::Busy | Match::Over(_) => {
            MISSES.counted.add(class.bytes());
            serve_from_gap(class, found)
        }
        Match::Unknown => serve_from_gap(class, found),
    }
}

/// Why a request has no slot, when this is what the matcher found.
fn why(found: Match, class: Class) -> Reason {
    match found {
        Match::Over(_) => Reason::OtherOrder,
        _ => STATE.matcher.why(class),
    }
}

#[cold]
fn serve_from_gap(class: Class, found: Match) -> Option<*mut u8> {
    let align = (class.align() as usize).max(1 << GRANULE_MIN_SHIFT);
    let gap = STATE.arena.claim_gap(class.bytes() as usize, align);
    MISSES.add(class, why(found, class), gap.is_some());
    if MISSES_IN_STEP.fetch_add(1, Relaxed) >= MISS_LIMIT.load(Relaxed) {
        engine::period_lost();
    }
    gap
}

/// The class of a block that may be planned.
#[inline(always)]
fn planned_class(block: *mut u8, size: usize, align: usize) -> Option<Class> {
    if block.is_null() || size < threshold() || align > os::BASE_ALIGN {
        return None;
    }
    Class::of(size, align)
}

/// Adds to the trace; where it is long enough, there will be no more of it.
#[cold]
fn trace(traced: Traced) {
    os::keeping_errno(|| {
        let wants_more = reentrant::guard(|| TRACER.log(traced, switches::this_thread()));
        if !wants_more {
            engine::end_trace();
        }
    });
}

/// Logs that a block of planned size is about to be freed.
#[inline]
fn record_free(mode: u32, block: *mut u8, size: usize) {
    let address = block as usize;
    if mode & RECORDING != 0 {
        RECORDER.log(Event::Free { address, bytes: size }, switches::lane());
    }
    if mode & TRACING != 0 {
        trace(Traced::Free { address });
    }
}

/// A block that was said to be freed is as it was.
#[cold]
fn record_kept(mode: u32, block: *mut u8, size: usize, align: usize) {
    record(mode & TRACING, block, size, align, None);
    if mode & RECORDING != 0
        && let Some(class) = planned_class(block, size, align)
    {
        RECORDER.log(Event::Keep { address: block as usize, class }, switches::lane());
    }
}

fn record(mode: u32, block: *mut u8, size: usize, align: usize, from: Option<(*mut u8, usize)>) {
    if mode & (RECORDING | SAMPLING | TRACING) == 0 {
        return;
    }
    if mode & TRACING != 0 && !block.is_null() && size >= threshold() {
        let from = from.filter(|&(_, old_size)| old_size >= threshold()).map_or(0, |(from, _)| from as usize);
        trace(Traced::Allocate { address: block as usize, bytes: size, align, from });
    }
    let Some(class) = planned_class(block, size, align) else { return };
    let address = block as usize;
    let mut wakes = false;
    if mode & RECORDING != 0 {
        let event = match from {
            Some((from, old_size)) if old_size >= threshold() => {
                Event::Move { address, class, from: from as usize }
            }
            _ => Event::Allocate { address, class },
        };
        RECORDER.log(event, switches::lane());
        wakes = RECORDER.wakes();
    }
    if mode & SAMPLING != 0 {
        wakes |= SIZE_LOG.log(class);
    }
    if wakes {
        engine::sampled();
    }
}

/// No block of the arena starts there: it was freed twice, or never allocated. The C library ends the process then,
/// and so do we, before two owners share a slot.
#[cold]
fn invalid_free(block: *mut u8) -> ! {
    os::log_stderr(format_args!("free of {block:p}, where no block starts (freed twice?)"));
    std::process::abort();
}
