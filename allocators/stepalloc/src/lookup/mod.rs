//! The matcher: finds a planned block's slot again.
//!
//! A block is known by its *class* (rounded size and alignment) and by how many of that class came before it in this
//! step. A class has one atomic counter, set to zero at every step boundary, and a run of slots in the order of the
//! plan. Allocations of other classes do not disturb it, threads race through it with one atomic addition, and a step
//! that repeats exactly hits every slot.
//!
//! A program may repeat several *variants* of its step: sequences of other lengths, training and evaluation.
//! Each variant has a table, all of them over the same cells of one arena, and one table is current. The
//! variant that followed last time is expected. A request without a slot in it is looked up in the others,
//! and a table that explains the step so far becomes current. Nothing of this is done on the way of a request
//! that finds its slot.
//!
//! What the tables say is a proposal only, checked by the arena. A table never changes but for its counters. When new
//! plans replace it, its pages are given back to the system: a thread that still reads it finds zeros, which is to say no
//! class, or no bits that would be ready. Its addresses are never used again.

use crate::arena::Arena;
use crate::arena::cells::{Cells, Cut, Half, Slot, Taken};
use crate::arena::granules::Run;
use crate::lookup::misses::Reason;
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering::*};

mod class;
pub(crate) mod counter;
pub(crate) mod misses;
#[cfg(test)]
mod models;
mod table;

pub(crate) use class::Class;
use table::{ClassEntry, NO_TABLE, Table};

/// Upper bound of the step variants planned.
pub(crate) const VARIANTS: usize = 8;
/// Slots of one class that are tried when the proposed one is occupied. Under threads that race, a free one
/// is found after a few; a class with so many occupied slots has overflowed, and a gap is found faster.
const OTHER_SLOTS_TRIED: u32 = 256;

/// What a plan proposes for one class: its slots by number in the step. `None` is a block that the plan leaves to the
/// backend.
pub(crate) struct ClassSlots {
    pub(crate) class: Class,
    /// The granule at which each slot starts; its length follows from the class.
    pub(crate) slots: Vec<Option<u32>>,
}

impl ClassSlots {
    /// The runs of the slots, in granules of `1 << shift` bytes.
    pub(crate) fn runs(&self, shift: u32) -> impl Iterator<Item = Option<Run>> {
        // A class larger than every arena has no slot in it.
        let length = self.class.granules(shift) as u32;
        self.slots.iter().map(move |slot| slot.map(|start| Run::new(start, length)))
    }
}

/// What the matcher takes of one step variant's plan.
#[derive(Clone, Copy)]
pub(crate) struct Tables<'a> {
    pub(crate) classes: &'a [ClassSlots],
    /// Smallest and largest size of each family, disjoint and ascending; its class is that of the largest.
    pub(crate) families: &'a [(u64, u64)],
    /// How the beginning of a detected step is recognised.
    pub(crate) begin: Option<Begin>,
}

/// How a request was answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Match {
    /// Its own slot, or another free one of its class.
    Slot(*mut u8),
    /// The plan leaves this block to the backend.
    Unplanned,
    /// The class is in the plan, but no slot of it is free or left.
    Busy,
    /// The plan does not know the class.
    Unknown,
    /// The step of this number is over: this request begins the next one, see [`Begin`].
    Over(u64),
}

/// How the beginning of a detected step is recognised: all the last step's allocations of this class were
/// counted, and most of the others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Begin {
    /// The class of a step's first allocation.
    pub(crate) class: Class,
    /// Allocations in a step.
    pub(crate) allocations: u32,
}

/// A step may lack one part in this many of its allocations and still be over.
const LACKING: u64 = 8;
/// Another variant may leave one part in this many of a step's bytes without a slot and still explain it.
const UNEXPLAINED: u64 = 8;

/// Sizes within one part in this many of each other are nearly the same, as for a period.
const ALIKE: u64 = 16;

/// The answer of [`Matcher::claim_quickly`].
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Quick {
    /// The slot planned for the request.
    Block(*mut u8),
    /// Not served, but counted, and this is the request's number in its class, for [`Matcher::claim_counted`].
    Counted(u32),
    /// Counted, and half of its slot taken, which must be given back.
    Half(u32, Half),
    /// Counted, and its slot has cells in more than two words, or is none.
    Several(u32, *const Slot),
    /// Neither found nor counted.
    Uncounted,
}

/// Allocations of planned classes in one step, served or not.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Seen {
    pub(crate) allocations: u64,
    pub(crate) bytes: u64,
}

/// The tables of the plans in force.
pub(crate) struct Matcher {
    /// The current table.
    current: AtomicPtr<Table>,
    /// The tables of all variants, then null.
    tables: [AtomicPtr<Table>; VARIANTS],
    /// The table of the step that ended last; null before any has.
    before: AtomicPtr<Table>,
    /// The number of the step: it is another after each boundary.
    steps: AtomicU64,
    /// Requests of this step for which another variant was to be looked for.
    sought: AtomicU32,
    /// Bytes of the requests whose class the current table does not know.
    unknown_bytes: AtomicU64,
}

/// True for the first few, and then ever more rarely.
fn asked(times: u32) -> bool {
    times < 4 || times.is_power_of_two()
}

impl Matcher {
    pub(crate) const fn empty() -> Self {
        let none = (&raw const NO_TABLE).cast::<Table>().cast_mut();
        Self {
            current: AtomicPtr::new(none),
            tables: [const { AtomicPtr::new(ptr::null_mut()) }; VARIANTS],
            before: AtomicPtr::new(ptr::null_mut()),
            steps: AtomicU64::new(0),
            sought: AtomicU32::new(0),
            unknown_bytes: AtomicU64::new(0),
        }
    }

    #[inline(always)]
    fn table(&self) -> &Table {
        // SAFETY: `NO_TABLE`, or a mapping made by `Table::map`, which is never unmapped.
        unsafe { &*self.current.load(Acquire) }
    }

    /// The tables of all variants.
    fn tables(&self) -> impl Iterator<Item = &Table> {
        // SAFETY: null, or a mapping made by `Table::map`, which is never unmapped.
        self.tables.iter().filter_map(|table| unsafe { table.load(Acquire).as_ref() })
    }

    /// Looks up a request, counts it in its class and claims the slot planned for it, if that is quickly done.
    ///
    /// # Safety
    /// The plans in force were installed for this arena.
    #[inline(always)]
    pub(crate) unsafe fn claim_quickly(&self, arena: &Arena, class: Class) -> Quick {
        // An empty entry has no slots, so a class of 0 finds none either.
        let Some(entry) = self.table().find(class) else { return Quick::Uncounted };
        let nth = entry.counter.fetch_add(1, Relaxed);
        // In this order: whoever finds a count has found the slots.
        let slots = entry.slots.load(Acquire);
        if nth >= entry.count.load(Relaxed) {
            return Quick::Counted(nth);
        }
        // SAFETY: one of so many slots, of this class in this arena.
        unsafe {
            let slot = &*slots.add(nth as usize);
            match arena.claim_quickly(slot) {
                Taken::All(block) => Quick::Block(block),
                Taken::Half(half) => Quick::Half(nth, half),
                Taken::Nothing => Quick::Counted(nth),
                Taken::Several => Quick::Several(nth, slot),
            }
        }
    }

    /// Looks up a request, counts it in its class and claims a slot for it.
    pub(crate) fn claim(&self, arena: &Arena, class: Class) -> Match {
        let table = self.table();
        match table.find_or_family(class) {
            Some(entry) => {
                self.claim_numbered(arena, table, entry, class, entry.counter.fetch_add(1, Relaxed))
            }
            None => self.claim_unknown(arena, table, class),
        }
    }

    /// Claims a slot for a request that was counted: the one planned for it, or else another of its class.
    pub(crate) fn claim_counted(&self, arena: &Arena, class: Class, nth: u32) -> Match {
        let table = self.table();
        let Some(entry) = table.find(class) else { return Match::Unknown };
        self.claim_numbered(arena, table, entry, class, nth)
    }

    fn claim_numbered(
        &self,
        arena: &Arena,
        table: &Table,
        entry: &ClassEntry,
        class: Class,
        nth: u32,
    ) -> Match {
        let step = self.step();
        let count = entry.count.load(Relaxed);
        if nth >= count && asked(nth - count) {
            if self.tables().any(|other| other.begins_with(class)) && table.is_over() {
                return Match::Over(step);
            }
            if let Some(other) = self.better(table, class, nth) {
                // This request is the other's.
                entry.uncount();
                if let Some(found) = self.switch_table(arena, table, other, class) {
                    return found;
                }
                entry.counter.fetch_add(1, Relaxed);
            }
        }
        table.claim(arena, class, entry, nth)
    }

    /// Why a request of this class, just counted where the plan knows it, has no slot.
    #[cold]
    pub(crate) fn why(&self, class: Class) -> Reason {
        match self.table().find_or_family(class) {
            Some(entry) if entry.counter.load(Relaxed) <= entry.count.load(Relaxed) => Reason::Busy,
            Some(_) => Reason::NoSlot,
            None if self.tables().any(|other| other.slots_of(class) > 0) => Reason::OtherOrder,
            None => Reason::NoSlot,
        }
    }

    /// Whether the plans know no such class, but one of nearly its size.
    pub(crate) fn has_alike(&self, class: Class) -> bool {
        let (bytes, near) = (class.bytes(), class.bytes() / ALIKE);
        let alike = |other: u64| other != 0 && Class(other).bytes().abs_diff(bytes) <= near;
        let classes = |table: &Table| table.classes().any(|entry| alike(entry.class.load(Relaxed)));
        self.tables().all(|table| table.slots_of(class) == 0) && self.tables().any(classes)
    }

    /// Claims a slot of another variant for a request whose class the current table does not know, if that
    /// explains the step.
    #[cold]
    fn claim_unknown(&self, arena: &Arena, table: &Table, class: Class) -> Match {
        let step = self.step();
        self.unknown_bytes.fetch_add(class.bytes(), Relaxed);
        if self.tables().any(|other| other.begins_with(class)) && table.is_over() {
            return Match::Over(step);
        }
        let other = self.better(table, class, 0);
        other.and_then(|other| self.switch_table(arena, table, other, class)).unwrap_or(Match::Unknown)
    }

    /// The table that has a slot for a class of which `nth` were asked for before in this step, and leaves
    /// the fewest bytes of the step so far without one: few, and fewer than the current table.
    fn better(&self, table: &Table, class: Class, nth: u32) -> Option<&Table> {
        // The search looks at all classes of all tables.
        if self.tables().nth(1).is_none() || !asked(self.sought.fetch_add(1, Relaxed)) {
            return None;
        }
        let unknown = self.unknown_bytes.load(Relaxed);
        let others = self.tables().filter(|other| !ptr::eq(*other, table));
        let knowing = others.filter(|other| other.slots_of(class) > nth);
        let unexplained = |other: &Table| -> u64 {
            let missing = |entry: &ClassEntry| {
                let class = Class(entry.class.load(Relaxed));
                let missing = entry.counter.load(Relaxed).saturating_sub(other.slots_of(class));
                u64::from(missing) * class.bytes()
            };
            table.counted_classes().map(missing).sum()
        };
        let (other, missing) = knowing
            .map(|other| (other, unexplained(other)))
            .min_by_key(|&(other, missing)| (missing, core::cmp::Reverse(other.used.load(Relaxed))))?;
        let bytes = |entry: &ClassEntry| {
            u64::from(entry.counter.load(Relaxed)) * Class(entry.class.load(Relaxed)).bytes()
        };
        let all: u64 = unknown + table.counted_classes().map(bytes).sum::<u64>();
        (missing * UNEXPLAINED <= all && missing < unknown + unexplained(table)).then_some(other)
    }

    /// Makes another table current, takes over the counts, and claims a slot of it. `None` where another
    /// thread switched the table.
    fn switch_table(&self, arena: &Arena, from: &Table, to: &Table, class: Class) -> Option<Match> {
        let (from_ptr, to_ptr) = (ptr::from_ref(from).cast_mut(), ptr::from_ref(to).cast_mut());
        to.forget_counts();
        self.current.compare_exchange(from_ptr, to_ptr, AcqRel, Relaxed).ok()?;
        for entry in from.counted_classes() {
            let count = entry.counter.swap(0, Relaxed);
            if let Some(entry) = to.find_or_family(Class(entry.class.load(Relaxed))) {
                entry.counter.fetch_add(count, Relaxed);
            }
        }
        self.forget_unknown();
        let entry = to.find_or_family(class)?;
        Some(to.claim(arena, class, entry, entry.counter.fetch_add(1, Relaxed)))
    }

    /// Puts new plans in force, at most [`VARIANTS`], in an arena cut at all their slots' edges; the first is
    /// current. `false` where the system has no memory for its tables; the old ones stay then. Called under
    /// the engine's lock.
    ///
    /// # Safety
    /// The cut is that of all classes' runs in their order, and the arena was made usable up to its end.
    pub(crate) unsafe fn install(&self, arena: &Arena, plans: &[Tables<'_>], cut: &Cut) -> bool {
        let mut new = [ptr::null_mut(); VARIANTS];
        // Where all of the arena is gaps, there is a table without classes.
        let plans =
            if plans.is_empty() { &[Tables { classes: &[], families: &[], begin: None }] } else { plans };
        let made = new.iter_mut().zip(plans).all(|(place, plan)| match Table::map(*plan) {
            Some(table) => {
                *place = table;
                true
            }
            None => false,
        });
        let slots = || {
            // SAFETY: mappings made just now, which stay unless they are undone below.
            let tables = new.iter().filter_map(|table| unsafe { table.as_ref() });
            tables.zip(plans).flat_map(|(table, plan)| table.slots(arena.shift(), plan.classes))
        };
        let cells = if made { Cells::map(cut, slots()) } else { None };
        if !cells.is_some_and(|cells| arena.exchange(cells)) {
            // SAFETY: no other thread has their addresses.
            unsafe {
                if let Some(cells) = cells {
                    cells.unmap();
                }
                new.into_iter().filter(|table| !table.is_null()).for_each(|table| Table::unmap(table));
            }
            return false;
        }
        let mut old = [ptr::null_mut(); VARIANTS];
        for ((table, new), old) in self.tables.iter().zip(new).zip(&mut old) {
            *old = table.swap(new, AcqRel);
        }
        let now = self.steps.load(Relaxed);
        (0..).zip(self.tables()).for_each(|(age, table)| table.used.store(now.saturating_sub(age), Relaxed));
        self.current.store(new[0], Release);
        self.before.store(ptr::null_mut(), Relaxed);
        self.forget_unknown();
        for table in old.into_iter().filter(|table| !table.is_null()) {
            // SAFETY: no longer in force.
            unsafe { Table::discard(table) };
        }
        true
    }

    /// Steps are marked from now on.
    pub(crate) fn ignore_begin(&self) {
        self.tables().for_each(|table| table.begin.store(0, Relaxed));
    }

    /// The number of the running step.
    pub(crate) fn step(&self) -> u64 {
        self.steps.load(Relaxed)
    }

    /// Steps since each variant's table was current last, in the order of the variants.
    pub(crate) fn unused(&self) -> impl Iterator<Item = u64> {
        let now = self.steps.load(Relaxed);
        self.tables().map(move |table| now.saturating_sub(table.used.load(Relaxed)))
    }

    /// The variant whose table leaves the fewest bytes of a sequence of classes without a slot, and these
    /// bytes.
    pub(crate) fn best(&self, classes: &[Class]) -> Option<(usize, u64)> {
        let mut sorted = classes.to_vec();
        sorted.sort_unstable_by_key(|class| class.to_bits());
        let unexplained = |table: &Table| -> u64 {
            let missing = |equal: &[Class]| {
                let slots = table.slots_of(equal[0]) as usize;
                equal.len().saturating_sub(slots) as u64 * equal[0].bytes()
            };
            sorted.chunk_by(|one, other| one == other).map(missing).sum()
        };
        self.tables().map(unexplained).enumerate().min_by_key(|&(_, missing)| missing)
    }

    /// Makes a variant's table current, in the midst of a step that has asked for a sequence of classes so
    /// far.
    pub(crate) fn resume(&self, variant: usize, classes: &[Class]) {
        let Some(table) = self.tables().nth(variant) else { return };
        self.next_step();
        table.forget_counts();
        self.current.store(ptr::from_ref(table).cast_mut(), Release);
        for &class in classes {
            if let Some(entry) = table.find_or_family(class) {
                entry.counter.fetch_add(1, Relaxed);
            }
        }
    }

    fn forget_unknown(&self) {
        self.sought.store(0, Relaxed);
        self.unknown_bytes.store(0, Relaxed);
    }

    /// Allocations counted in the running step, and steps in the high half: a number that changes with each.
    pub(crate) fn counted(&self) -> u64 {
        let counters = self.table().counted_classes().map(|entry| u64::from(entry.counter.load(Relaxed)));
        counters.sum::<u64>().wrapping_add(self.steps.load(Relaxed) << 32)
    }

    /// Takes back that an allocation was counted: it is the next step's.
    pub(crate) fn uncount(&self, class: Class) {
        if let Some(entry) = self.table().find_or_family(class) {
            entry.uncount();
        }
    }

    /// Begins a new step: sets all counters to zero and returns what they had counted.
    pub(crate) fn next_step(&self) -> Seen {
        let mut seen = Seen::default();
        let table = self.table();
        for entry in table.counted_classes() {
            let count = u64::from(entry.counter.swap(0, Relaxed));
            seen.allocations += count;
            seen.bytes += count * Class(entry.class.load(Relaxed)).bytes();
        }
        self.forget_unknown();
        let steps = self.steps.fetch_add(1, Relaxed);
        table.used.store(steps, Relaxed);
        seen
    }

    /// Chooses the table of the step that begins: the one that followed last time; or, where the first class
    /// is known, one that begins with it. Under the engine's lock.
    pub(crate) fn expect(&self, first: Option<Class>) {
        let ended = self.current.load(Acquire);
        // SAFETY: null, or a mapping made by `Table::map`, which is never unmapped.
        if let Some(before) = unsafe { self.before.swap(ended, Relaxed).as_ref() } {
            before.follows.store(ended, Relaxed);
        }
        // SAFETY: as above.
        let follows = unsafe { self.table().follows.load(Relaxed).as_ref() };
        let begins = |table: &&Table| first.is_none_or(|class| table.begins_with(class));
        let expected = follows.filter(begins).or_else(|| Some(self.table()).filter(begins));
        let newest = || self.tables().filter(begins).max_by_key(|table| table.used.load(Relaxed));
        if let Some(table) = expected.or_else(newest) {
            // A thread that had looked at it earlier may have counted since.
            table.forget_counts();
            self.current.store(ptr::from_ref(table).cast_mut(), Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicUsize;

    fn class(bytes: usize) -> Class {
        Class::of(bytes, 16).expect("possible size")
    }

    /// Puts a plan in force in pages up to `limit`.
    fn install(matcher: &Matcher, arena: &Arena, classes: &[ClassSlots], limit: u32) {
        let runs: Vec<_> = classes.iter().flat_map(|class| class.runs(12)).flatten().collect();
        // SAFETY: cut at these runs, up to what tests make usable.
        assert!(unsafe {
            matcher.install(arena, &[Tables { classes, families: &[], begin: None }], &Cut::of(&runs, limit))
        });
    }

    #[test]
    fn a_class_is_the_size_in_cache_lines_and_the_large_alignment() {
        assert_eq!(class(65_537), class(65_600));
        assert_ne!(class(65_537), class(65_601));
        assert_eq!(Class::of(4096, 64), Class::of(4096, 1));
        let aligned = Class::of(100_000, 2 << 20).expect("possible size");
        assert_eq!((aligned.bytes(), aligned.align()), (100_032, 2 << 20));
        assert_eq!(Class::of(usize::MAX, 1), None);
    }

    #[test]
    fn slots_are_served_in_order_and_occupied_ones_replaced() {
        let arena: &'static Arena = crate::arena::tests_arena(12, 4096 * 64);
        let matcher = Matcher::empty();
        assert_eq!(matcher.claim(arena, class(40_000)), Match::Unknown);
        let classes = [
            ClassSlots { class: class(40_000), slots: vec![Some(0), Some(10), None, Some(20)] },
            ClassSlots { class: class(50_000), slots: vec![Some(0)] },
        ];
        install(&matcher, arena, &classes, 64);
        // Starts are moved by a few lines.
        let at = |found: Match| match found {
            Match::Slot(block) => (block as usize - arena.base()) / 4096,
            _ => panic!("{found:?}"),
        };
        // SAFETY: installed for this arena, or not at all.
        let quickly = |bytes| unsafe { matcher.claim_quickly(arena, class(bytes)) };
        assert_eq!(quickly(60_000), Quick::Uncounted);
        assert!(matches!(quickly(40_000), Quick::Block(block) if (block as usize - arena.base()) < 4096));
        assert_eq!(matcher.claim(arena, class(50_000)), Match::Busy);
        assert_eq!(matcher.claim(arena, class(60_000)), Match::Unknown);
        let second = matcher.claim(arena, class(39_999));
        assert_eq!(at(second), 10);
        assert_eq!(matcher.claim(arena, class(40_000)), Match::Unplanned);
        assert_eq!(at(matcher.claim(arena, class(40_000))), 20);
        assert_eq!(matcher.claim(arena, class(40_000)), Match::Busy);
        assert_eq!(
            matcher.next_step(),
            Seen { allocations: 6, bytes: 5 * class(40_000).bytes() + class(50_000).bytes() }
        );
        let Match::Slot(second) = second else { panic!("served above") };
        assert_eq!(arena.release(second as usize), crate::arena::Released::Block);
        assert_eq!(at(matcher.claim(arena, class(40_000))), 10, "its own slot is occupied, another is free");
        assert_eq!(matcher.next_step().allocations, 1);
    }

    #[test]
    fn a_request_that_makes_another_variant_current_gets_the_slot_planned_for_it_there() {
        let arena: &'static Arena = crate::arena::tests_arena(12, 4096 * 64);
        let matcher = Matcher::empty();
        let shorter = [ClassSlots { class: class(40_000), slots: vec![Some(0)] }];
        let longer = [ClassSlots { class: class(40_000), slots: vec![Some(0), Some(10), Some(20)] }];
        let classes = shorter.iter().chain(&longer);
        let runs: Vec<_> = classes.flat_map(|class| class.runs(12)).flatten().collect();
        let variants = [&shorter, &longer].map(|classes| Tables { classes, families: &[], begin: None });
        // SAFETY: cut at the runs of both, in pages that `tests_arena` made usable.
        assert!(unsafe { matcher.install(arena, &variants, &Cut::of(&runs, 64)) });
        let page = || match matcher.claim(arena, class(40_000)) {
            Match::Slot(block) => (block as usize - arena.base()) / 4096,
            found => panic!("{found:?}"),
        };
        // A thread that had looked at the other table before may have counted in it.
        let other = matcher.tables().nth(1).and_then(|table| table.find(class(40_000))).expect("its class");
        other.counter.store(1, Relaxed);
        assert_eq!([page(), page(), page()], [0, 10, 20]);
        assert_eq!(matcher.next_step().allocations, 3);
    }

    #[test]
    fn moved_starts_keep_their_alignment_and_their_size() {
        let arena: &'static Arena = crate::arena::tests_arena(12, 4096 * 1000);
        let matcher = Matcher::empty();
        let aligns = [1, 64, 128, 512, 1024, 2048, 4096, 8192];
        let aligned = |align: usize, at: usize| Class::of(200_001 + 300 * at, align).expect("possible size");
        let mut start = 0;
        let mut place = |align: usize| {
            start = (start + 60usize).next_multiple_of((align / 4096).max(1));
            Some(start as u32)
        };
        let classes: Vec<_> = (0..)
            .zip(aligns)
            .map(|(at, align)| ClassSlots {
                class: aligned(align, at),
                slots: vec![place(align), place(align)],
            })
            .collect();
        install(&matcher, arena, &classes, 1000);
        let mut moved = 0;
        for (at, align) in (0..).zip(aligns) {
            for _ in 0..2 {
                let class = aligned(align, at);
                let Match::Slot(block) = matcher.claim(arena, class) else { panic!("{align}") };
                let block = block as usize;
                assert!(block.is_multiple_of(align) && arena.usable_bytes(block) >= class.bytes() as usize);
                moved += usize::from(!block.is_multiple_of(4096));
                assert_eq!(arena.release(block), crate::arena::Released::Block);
            }
        }
        assert!(moved >= 6, "{moved} of 16");
    }

    /// Counts a thread as gone when it is, in whichever way.
    struct Running<'a>(&'a AtomicUsize);

    impl Drop for Running<'_> {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Relaxed);
        }
    }

    /// Threads claim and free, by slots and gaps, while one plan after the other comes into force.
    #[test]
    fn no_two_blocks_share_a_granule_while_plans_are_exchanged() {
        const GRANULES: u32 = 600;
        const THREADS: usize = 4;
        static MATCHER: Matcher = Matcher::empty();
        let arena = crate::arena::tests_arena(12, 4096 * GRANULES as usize);
        let owners: Vec<AtomicU32> = (0..GRANULES).map(|_| AtomicU32::new(0)).collect();
        // Sizes of 9 to 400 granules, as large as many cells of the smaller; most start within a page.
        let sizes = [9 * 4096, 9 * 4096 + 1, 13 * 4096 - 1, 39 * 4096, 90 * 4096 - 1500, 400 * 4096 - 2048];
        let pages = |block: usize, bytes: usize| {
            (block - arena.base()) / 4096..(block - arena.base() + bytes).div_ceil(4096)
        };
        let random = |state: &mut u32| {
            *state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            *state >> 8
        };
        let running = AtomicUsize::new(THREADS);
        // From its own slot, after a second look, from a gap, and from a slot in more than two words.
        let all_served = [const { AtomicUsize::new(0) }; 4];
        std::thread::scope(|scope| {
            for thread in 1..=THREADS as u32 {
                let (owners, running, all_served) = (&owners, &running, &all_served);
                scope.spawn(move || {
                    let _running = Running(running);
                    let mut state = thread;
                    let mut served = [0; 4];
                    let mut live: Vec<(usize, usize)> = Vec::new();
                    for turn in 0..200_000 {
                        if random(&mut state) % 8 < live.len() as u32 {
                            let (block, bytes) = live.swap_remove(random(&mut state) as usize % live.len());
                            for owner in &owners[pages(block, bytes)] {
                                assert_eq!(owner.swap(0, Relaxed), thread);
                            }
                            assert_eq!(arena.release(block), crate::arena::Released::Block);
                            continue;
                        }
                        let bytes = sizes[random(&mut state) as usize % sizes.len()];
                        let slowly = |nth| match MATCHER.claim_counted(arena, class(bytes), nth) {
                            Match::Slot(block) => (Some(block), 1),
                            _ => (arena.claim_gap(bytes, 1), 2),
                        };
                        // SAFETY: installed for this arena.
                        let (block, how) = match unsafe { MATCHER.claim_quickly(arena, class(bytes)) } {
                            Quick::Block(block) => (Some(block), 0),
                            Quick::Uncounted => (arena.claim_gap(bytes, 1), 2),
                            Quick::Half(nth, half) => {
                                // SAFETY: what was taken just now.
                                unsafe { arena.undo(half.word, half.lower, half.run) };
                                slowly(nth)
                            }
                            Quick::Several(nth, slot) => {
                                // SAFETY: the matcher's answer.
                                let block = unsafe { arena.claim_several(&*slot) };
                                block.map_or_else(|| slowly(nth), |block| (Some(block), 3))
                            }
                            Quick::Counted(nth) => slowly(nth),
                        };
                        if turn % 16 == 0 {
                            MATCHER.next_step();
                        }
                        let Some(block) = block else { continue };
                        served[how] += 1;
                        for owner in &owners[pages(block as usize, bytes)] {
                            assert_eq!(owner.swap(thread, Relaxed), 0, "two blocks share a granule");
                        }
                        live.push((block as usize, bytes));
                    }
                    for (block, bytes) in live {
                        owners[pages(block, bytes)].iter().for_each(|owner| owner.store(0, Relaxed));
                        assert_eq!(arena.release(block), crate::arena::Released::Block);
                    }
                    all_served.iter().zip(served).for_each(|(all, count)| _ = all.fetch_add(count, Relaxed));
                });
            }
            let mut state = 77;
            let mut plans = 0;
            while running.load(Relaxed) > 0 || plans < 100 {
                let classes = sizes.map(|bytes| {
                    let mut start =
                        || Some(random(&mut state) % (GRANULES - class(bytes).granules(12) as u32 + 1));
                    ClassSlots { class: class(bytes), slots: (0..30).map(|_| start()).collect() }
                });
                install(&MATCHER, arena, &classes, GRANULES);
                plans += 1;
                std::thread::sleep(std::time::Duration::from_micros(u64::from(random(&mut state) % 300)));
            }
        });
        let all_served = all_served.map(AtomicUsize::into_inner);
        assert!(all_served.iter().all(|&count| count > 0), "{all_served:?}");
        assert_eq!(arena.occupied_bytes(), 0);
        assert!(owners.iter().all(|owner| owner.load(Relaxed) == 0));
        // Nothing is left behind that would keep a slot or a gap from being claimed.
        let all = arena.claim_gap(4096 * GRANULES as usize - 2048, 1);
        assert!(all.is_some_and(|block| (block as usize - arena.base()) < 4096));
    }
}
