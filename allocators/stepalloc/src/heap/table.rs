//! What the heap's lock guards: the free extents, the account of pages, and where the range ends.

use super::extents::{Extent, Extents, Run};
use super::pages::Touched;
use super::retention::Retention;
use super::{Heap, MOVE_LEAST};
use crate::os::{self, PAGE};
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering::*};

/// The heap is mapped by an eighth of what is, within these bounds in bytes.
const MAP_LEAST: usize = 1 << 20;
const MAP_MOST: usize = 64 << 20;
/// Free extents that are looked at when pages are to go back, from the top of the range down.
const SCANNED: usize = 256;
/// Pages of a part that is taken for resident ones that lie far apart, at most: [`SPARSE`] times those that are wanted, or [`SPARSE_LEAST`]. (With 2 and
/// 64, a Python program whose threads grow arrays had a peak larger by 3 %, as what is free was taken in too many parts.)
const SPARSE: u32 = 16;
const SPARSE_LEAST: u32 = 1024;
/// Stretches of resident pages in an extent where a block may be placed.
const STRETCHES: usize = 16;
/// The tables are made usable in steps of this many pages: a bit each fills a page of 64 KiB.
pub(super) const TABLE_STEP: u32 = 1 << 19;

/// What the lock guards.
pub(super) struct Table {
    pub(super) extents: AtomicPtr<Extents>,
    pub(super) retention: Retention,
    /// Pages that were ever part of an extent, from the first.
    pub(super) end: u32,
    /// Pages that are mapped.
    pub(super) mapped: u32,
    /// Pages for which there are tables, at least as many.
    pub(super) reached: u32,
    pub(super) counters: Counters,
}

/// Figures since the process's start.
pub(super) struct Counters {
    /// Blocks handed out and freed.
    pub(super) blocks: u64,
    /// Pages moved.
    pub(super) moved: u64,
    /// Pages given back.
    pub(super) returned: u64,
}

/// Parts of free extents that nobody can be given while their pages move or go back.
pub(super) struct Victims {
    extents: [Extent; Victims::MOST],
    pub(super) count: usize,
    /// Those of their pages that may be resident.
    pub(super) touched: u64,
}

impl Victims {
    pub(super) const MOST: usize = 32;

    pub(super) const fn none() -> Self {
        Self { extents: [Extent::new(0, 0); Self::MOST], count: 0, touched: 0 }
    }

    pub(super) fn push(&mut self, extent: Extent, touched: u32) {
        self.extents[self.count] = extent;
        self.count += 1;
        self.touched += u64::from(touched);
    }

    pub(super) fn is_full(&self) -> bool {
        self.count == Self::MOST
    }

    pub(super) fn all(&self) -> &[Extent] {
        &self.extents[..self.count]
    }
}

/// The last page of an extent from which on `enough` are resident, if they are.
fn last_with(touched: &Touched, extent: Extent, enough: u32) -> u32 {
    // Behind `end` they are too few.
    let (mut from, mut end, mut behind) = (extent.start, extent.end(), 0);
    while end - from > 1 {
        let midst = from + (end - from) / 2;
        let count = behind + touched.count(Extent::new(midst, end - midst));
        if count >= enough {
            from = midst;
        } else {
            (end, behind) = (midst, count);
        }
    }
    from
}

impl Table {
    pub(super) const fn new() -> Self {
        Self {
            extents: AtomicPtr::new(ptr::null_mut()),
            retention: Retention::new(),
            end: 0,
            mapped: 0,
            reached: 0,
            counters: Counters { blocks: 0, moved: 0, returned: 0 },
        }
    }

    pub(super) fn extents(&mut self) -> &mut Extents {
        // SAFETY: mapped when the heap was opened, and reached through this table only.
        unsafe { &mut **self.extents.get_mut() }
    }

    /// An extent of `pages` at an alignment in bytes, which nobody else has any more.
    #[inline]
    pub(super) fn place(&mut self, heap: &Heap, pages: u32, align: usize) -> Option<Extent> {
        let step = (align / PAGE).max(1) as u64;
        let base = (heap.base.load(Relaxed) / PAGE) as u64;
        let found = match step {
            1 => self.extents().take(pages, |part| heap.touched.count(part)),
            _ => self.extents().take_aligned(pages, step, base, |part| heap.touched.count(part)),
        };
        let Some(start) = found else { return self.place_at_end(heap, pages, step) };
        let extent = Extent::new(start, pages);
        let fresh = pages - heap.touched.count(extent);
        let exceeds = step == 1 && self.retention.exceeds(u64::from(pages), u64::from(fresh));
        Some(if exceeds { self.exchange(heap, extent) } else { extent })
    }

    /// For an extent whose fresh pages would have others moved there, or go back: one of the same length of which more are resident, if there is.
    #[cold]
    #[inline(never)]
    fn exchange(&mut self, heap: &Heap, extent: Extent) -> Extent {
        let (pages, touched) = (extent.pages, &heap.touched);
        let Some(Run { extent: run, resident }) = self.extents().most_resident(pages) else { return extent };
        let mut best = (touched.count(extent), extent);
        if resident.min(pages) > best.0 {
            for stretch in touched.stretches(run, true).take(STRETCHES) {
                let part = Extent::new(stretch.start.min(run.end() - pages), pages);
                let count = touched.count(part);
                if count > best.0 {
                    best = (count, part);
                }
                if count == pages {
                    break;
                }
            }
        }
        if best.1 != extent {
            self.extents().take_part(best.1, |part| touched.count(part));
            self.insert(heap, extent);
        }
        best.1
    }

    /// The same at the end of all extents.
    #[cold]
    pub(super) fn place_at_end(&mut self, heap: &Heap, pages: u32, step: u64) -> Option<Extent> {
        let base = (heap.base.load(Relaxed) / PAGE) as u64;
        let end = self.end;
        let last = self.extents().take_last(end);
        let from = last.map_or(end, |last| last.extent.start);
        let start = (base + u64::from(from)).next_multiple_of(step) - base;
        if !self.reach(heap, start + u64::from(pages)) {
            if let Some(last) = last {
                self.extents().insert(last);
            }
            return None;
        }
        let start = start as u32;
        if start > from {
            self.insert_run(heap, Extent::new(from, start - from));
        }
        if let Some(rest) = last.map(|last| last.extent).filter(|last| last.end() > start + pages) {
            self.insert_run(heap, Extent::new(start + pages, rest.end() - start - pages));
        }
        Some(Extent::new(start, pages))
    }

    /// An extent of `pages` none of which is resident: a part of a free one, or behind all extents.
    #[cold]
    pub(super) fn place_untouched(&mut self, heap: &Heap, pages: u32) -> Option<Extent> {
        self.take_untouched(heap, pages, pages).or_else(|| {
            let start = self.end;
            self.reach(heap, u64::from(start) + u64::from(pages)).then_some(Extent::new(start, pages))
        })
    }

    /// The same where a block can grow to twice its pages; behind all extents it can always.
    #[cold]
    pub(super) fn place_with_room(&mut self, heap: &Heap, pages: u32) -> Option<Extent> {
        self.take_untouched(heap, pages, pages.saturating_mul(2))
            .or_else(|| self.place_at_end(heap, pages, 1))
    }

    /// The first `pages` of the lowest free stretch of at least `room` pages none of which is resident.
    fn take_untouched(&mut self, heap: &Heap, pages: u32, room: u32) -> Option<Extent> {
        let stretch = |run: Run| heap.touched.stretches(run.extent, false).find(|part| part.pages >= room);
        let runs = self.extents().ascending(room).filter(|run| run.extent.pages - run.resident >= room);
        let found = runs.take(SCANNED).find_map(stretch)?;
        let part = Extent::new(found.start, pages);
        self.extents().take_part(part, |part| heap.touched.count(part));
        Some(part)
    }

    /// Takes the pages behind a block, if they are free.
    pub(super) fn extend(&mut self, heap: &Heap, more: Extent) -> bool {
        if self.extents().take_at(more, |part| heap.touched.count(part)) {
            return true;
        }
        let end = self.end;
        if more.start == end {
            return self.reach(heap, u64::from(more.end()));
        }
        // The last extent, free and too short.
        let last = self.extents().take_last(end);
        if last.is_some_and(|last| last.extent.start == more.start) && self.reach(heap, u64::from(more.end()))
        {
            return true;
        }
        if let Some(last) = last {
            self.extents().insert(last);
        }
        false
    }

    /// Makes pages up to `end` part of the heap, and usable; `false` where the range ends before, or the system refuses.
    fn reach(&mut self, heap: &Heap, end: u64) -> bool {
        if end > (heap.bytes.load(Relaxed) / PAGE) as u64 {
            return false;
        }
        let end = end as u32;
        if end > self.mapped {
            let most = heap.bytes.load(Relaxed) - self.mapped as usize * PAGE;
            let step = (self.mapped as usize * PAGE / 8).clamp(MAP_LEAST, MAP_MOST) & !(PAGE - 1);
            let least = (end - self.mapped) as usize * PAGE;
            let start = heap.address(self.mapped);
            let tried = [least.max(step).min(most), least];
            let pages = self.mapped + (tried[0] / PAGE) as u32;
            if pages > self.reached {
                let pages = pages.next_multiple_of(TABLE_STEP);
                if !heap.blocks.reach(self.reached, pages) || !heap.touched.reach(self.reached, pages) {
                    return false;
                }
                self.reached = pages;
            }
            let Some(bytes) = tried.into_iter().find(|&bytes| os::map_at(start, bytes, true)) else {
                return false;
            };
            self.mapped += (bytes / PAGE) as u32;
            heap.mapped.store(self.mapped as usize * PAGE, Release);
        }
        self.end = self.end.max(end);
        true
    }

    /// Counts a new block, or the new part of one, and chooses what must give way to it.
    #[inline]
    pub(super) fn account(&mut self, heap: &Heap, new: Extent, victims: &mut Victims) -> u64 {
        let fresh = new.pages - heap.touched.count(new);
        self.counters.blocks += 1;
        let excess = self.retention.allocate(u64::from(new.pages), u64::from(fresh));
        if fresh > 0 {
            heap.line.resident.store(self.retention.resident, Relaxed);
        }
        if excess > 0 {
            self.choose(&heap.touched, excess, victims);
        }
        self.retention.presses()
    }

    /// Takes parts of free extents with `wanted` resident pages in all, if there are: of the extents that have most, the last ones. What lies
    /// behind those stays free, for others meanwhile.
    #[cold]
    #[inline(never)]
    pub(super) fn choose(&mut self, touched: &Touched, wanted: u64, victims: &mut Victims) {
        // What is resident of each is known, and a part of it counted where its end is looked for.
        let mut runs = [(0, Extent::default()); SCANNED];
        for (run, Run { extent, resident }) in runs.iter_mut().zip(self.extents().descending()) {
            *run = (resident, extent);
        }
        while victims.touched < wanted && !victims.is_full() {
            let Some(run) = runs.iter_mut().max_by_key(|run| run.0).filter(|run| run.0 > 0) else { break };
            let (most, extent) = *run;
            let enough = (wanted - victims.touched).max(MOVE_LEAST.into()).min(most.into()) as u32;
            let from = if enough < most { last_with(touched, extent, enough) } else { extent.start };
            let end = last_with(touched, extent, 1) + 1;
            let from = from.max(end.saturating_sub(enough.saturating_mul(SPARSE).max(SPARSE_LEAST)));
            let part = Extent::new(from, end - from);
            self.extents().take_part(part, |part| touched.count(part));
            let count = touched.count(part);
            *run = (most - count, Extent::new(extent.start, from - extent.start));
            self.retention.resident -= u64::from(count);
            victims.push(part, count);
        }
    }

    /// Takes the highest free pages below a page that lie in a row, `most` at most.
    #[cold]
    pub(super) fn take_below(&mut self, touched: &Touched, below: u32, most: u32, victims: &mut Victims) {
        let Some(extent) = self.extents().last_before(below) else { return };
        let end = extent.end().min(below);
        let start = extent.start.max(end.saturating_sub(most));
        let part = Extent::new(start, end - start);
        let resident = touched.count(part);
        self.extents().take_part(part, |part| touched.count(part));
        self.retention.resident -= u64::from(resident);
        victims.push(part, resident);
    }

    #[inline]
    pub(super) fn free(&mut self, heap: &Heap, block: Extent) {
        self.retention.alive -= u64::from(block.pages);
        self.counters.blocks += 1;
        self.insert(heap, block);
        heap.line.free.store(self.retention.free(), Relaxed);
    }

    #[inline]
    pub(super) fn insert(&mut self, heap: &Heap, extent: Extent) {
        if !self.insert_run(heap, extent) {
            // No room in the table: its addresses are lost, its memory is not.
            self.retention.resident -= u64::from(heap.touched.count(extent));
            heap.touched.clear(extent);
            // SAFETY: pages of a free extent, which nobody is given any more.
            unsafe { os::discard(heap.address(extent.start), extent.pages as usize * PAGE) };
        }
    }

    fn insert_run(&mut self, heap: &Heap, extent: Extent) -> bool {
        self.extents().insert(Run { extent, resident: heap.touched.count(extent) })
    }
}
