//! The matcher: finds a planned block's slot again.
//!
//! A block is known by its *class* (rounded size and alignment) and by how many of that class came before it in this
//! step. A class has one atomic counter, set to zero at every step boundary, and a run of slots in the order of the
//! plan. Allocations of other classes do not disturb it, threads race through it with one atomic addition, and a step
//! that repeats exactly hits every slot.
//!
//! What the tables say is a proposal only, checked by the arena. A table never changes but for its counters. When a new
//! plan replaces it, its pages are given back to the system: a thread that still reads it finds zeros, which is to say no
//! class, or no bits that would be ready. Its addresses are never used again.

use crate::arena::{Arena, ReadyRun, Run};
use crate::os;
use core::mem::size_of;
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering::*};

/// Bytes to which sizes are rounded before they are compared: a cache line, the smallest granule.
const SIZE_STEP: usize = 1 << crate::arena::GRANULE_MIN_SHIFT;
/// Slots of one class that are tried when the proposed one is busy. Under threads that race, a free one is found
/// after a few; a class with so many busy slots has overflowed, and a gap is found faster.
const OTHER_SLOTS_TRIED: u32 = 256;

/// A class of blocks: size rounded up to 64 bytes, with log2 of an alignment above 64 in the low bits. Never 0 for
/// a size that is planned.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Class(u64);

impl Class {
    /// The class of a request; `None` for sizes no object can have.
    #[inline]
    pub(crate) fn of(bytes: usize, align: usize) -> Option<Self> {
        if bytes > isize::MAX as usize - SIZE_STEP {
            return None;
        }
        let rounded = Self::round(bytes);
        Some(Self(if align <= SIZE_STEP {
            rounded as u64
        } else {
            rounded as u64 | u64::from(align.trailing_zeros())
        }))
    }

    /// The class of a request at an alignment that every slot has; for a size no object can have, one that no plan
    /// knows or that is 0.
    #[inline(always)]
    pub(crate) fn of_bytes(bytes: usize) -> Self {
        Self(Self::round(bytes) as u64)
    }

    #[inline(always)]
    fn round(bytes: usize) -> usize {
        bytes.wrapping_add(SIZE_STEP - 1) & !(SIZE_STEP - 1)
    }

    /// The class as a number, never 0.
    pub(crate) fn to_bits(self) -> u64 {
        self.0
    }

    /// The class of a number that is not 0.
    pub(crate) fn from_bits(bits: u64) -> Option<Self> {
        (bits != 0).then_some(Self(bits))
    }

    /// The rounded size in bytes.
    pub(crate) fn bytes(self) -> u64 {
        self.0 & !(SIZE_STEP as u64 - 1)
    }

    /// The alignment a slot must have; 1 where every slot is aligned enough.
    pub(crate) fn align(self) -> u64 {
        match self.0 & (SIZE_STEP as u64 - 1) {
            0 => 1,
            log2 => 1 << log2,
        }
    }
}

/// What a plan proposes for one class: its slots by number in the step. `None` is a block that the plan leaves to the
/// backend.
pub(crate) struct ClassSlots {
    pub(crate) class: Class,
    /// The granule at which each slot starts; its length follows from the class.
    pub(crate) slots: Vec<Option<u32>>,
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
}

/// The answer of [`Matcher::claim_quickly`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Quick {
    /// The slot planned for the request.
    Block(*mut u8),
    /// Not served yet, but counted: the slot planned for it whose bits lie in several words, if it has one, and the
    /// request's number in its class, for [`Matcher::claim_counted`].
    Counted(ReadyRun, u32),
    /// Neither found nor counted.
    Uncounted,
}

/// Allocations of planned classes in one step, served or not.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Seen {
    pub(crate) allocations: u64,
    pub(crate) bytes: u64,
}

/// The table of the plan in force.
pub(crate) struct Matcher {
    current: AtomicPtr<Table>,
}

/// In one mapping: the slots, the last one first; this header; the classes. So both are found from the header's address,
/// and no word that reads as 0 already leads a late reader from one kind to the other.
#[repr(C, align(32))]
struct Table {
    /// Number of classes less 1; the number is a power of two.
    class_mask: AtomicU32,
    /// Bytes of the slots before the header.
    slot_bytes: usize,
    /// Bytes of the mapping.
    bytes: usize,
}

/// The two words of a [`ReadyRun`]; [`ReadyRun::NONE`] is a block that the plan leaves to the backend.
#[repr(C, align(16))]
struct SlotEntry {
    run: AtomicU64,
    bits: AtomicU64,
}

#[repr(C, align(32))]
struct ClassEntry {
    /// 0: empty.
    class: AtomicU64,
    /// Index of the first slot.
    first: AtomicU32,
    /// Number of slots.
    count: AtomicU32,
    /// Allocations of this class in the running step.
    counter: AtomicU32,
}

/// What is looked at before there is a plan: one empty class.
#[repr(C)]
struct NoTable {
    header: Table,
    class: ClassEntry,
}

static NO_TABLE: NoTable = NoTable {
    header: Table { class_mask: AtomicU32::new(0), slot_bytes: 0, bytes: 0 },
    class: ClassEntry {
        class: AtomicU64::new(0),
        first: AtomicU32::new(0),
        count: AtomicU32::new(0),
        counter: AtomicU32::new(0),
    },
};

impl Matcher {
    pub(crate) const fn empty() -> Self {
        let none = (&raw const NO_TABLE).cast::<Table>().cast_mut();
        Self { current: AtomicPtr::new(none) }
    }

    #[inline(always)]
    fn table(&self) -> &Table {
        // SAFETY: `NO_TABLE`, or a mapping made by `Table::map`, which is never unmapped.
        unsafe { &*self.current.load(Acquire) }
    }

    /// Looks up a request, counts it in its class and claims the slot planned for it, if that is quickly done.
    ///
    /// # Safety
    /// The plan in force was installed for this arena.
    #[inline(always)]
    pub(crate) unsafe fn claim_quickly(&self, arena: &Arena, class: Class) -> Quick {
        let table = self.table();
        let entry = table.class(table.home(class));
        // An empty entry has no slots, so a class of 0 finds none either.
        if entry.class.load(Relaxed) != class.0 {
            return Quick::Uncounted;
        }
        let nth = entry.counter.fetch_add(1, Relaxed);
        // In this order: whoever finds a count has found the first slot.
        let first = entry.first.load(Acquire);
        if nth >= entry.count.load(Relaxed) {
            return Quick::Counted(ReadyRun::NONE, nth);
        }
        let slot = table.slot(first + nth);
        if slot.bits == 0 {
            return Quick::Counted(slot, nth);
        }
        // SAFETY: a slot of this class in this arena.
        match unsafe { arena.claim_ready(slot) } {
            Some(block) => Quick::Block(block),
            None => Quick::Counted(ReadyRun::NONE, nth),
        }
    }

    /// Looks up a request, counts it in its class and claims a slot for it.
    pub(crate) fn claim(&self, arena: &Arena, class: Class) -> Match {
        let table = self.table();
        let Some(entry) = table.find(class) else { return Match::Unknown };
        table.claim(arena, class, entry, entry.counter.fetch_add(1, Relaxed))
    }

    /// Claims a slot for a request that was counted: the one planned for it, or else another of its class.
    pub(crate) fn claim_counted(&self, arena: &Arena, class: Class, nth: u32) -> Match {
        let table = self.table();
        let Some(entry) = table.find(class) else { return Match::Unknown };
        table.claim(arena, class, entry, nth)
    }

    /// Puts a new plan in force. `false` where the system has no memory for its table; the old plan stays then.
    /// Called under the engine's lock.
    ///
    /// # Safety
    /// All slots lie inside what the arena's `resize` granted.
    pub(crate) unsafe fn install(&self, arena: &Arena, classes: &[ClassSlots]) -> bool {
        let Some(table) = Table::map(arena, classes) else { return false };
        let old = self.current.swap(table, Release);
        if !ptr::eq(old, &raw const NO_TABLE.header) {
            // SAFETY: a mapping made by `Table::map`, in which readers find their way when all or part of it is zeros.
            unsafe { os::discard(old.byte_sub((*old).slot_bytes).cast(), (*old).bytes) };
        }
        true
    }

    /// Begins a new step: sets all counters to zero and returns what they had counted.
    pub(crate) fn next_step(&self) -> Seen {
        let mut seen = Seen::default();
        for entry in self.table().classes() {
            let count = u64::from(entry.counter.swap(0, Relaxed));
            seen.allocations += count;
            seen.bytes += count * Class(entry.class.load(Relaxed)).bytes();
        }
        seen
    }
}

fn claim_slot(arena: &Arena, start: u32, class: Class) -> Option<*mut u8> {
    let length = u32::try_from(arena.granules_of(class.bytes() as usize)).ok()?;
    let block = arena.claim(Run { start, length })?;
    debug_assert!((block as usize).is_multiple_of(class.align() as usize));
    Some(block)
}

impl Table {
    /// Claims a slot of an entry for the request of number `nth`.
    fn claim(&self, arena: &Arena, class: Class, entry: &ClassEntry, nth: u32) -> Match {
        // In this order, see `claim_quickly`.
        let (first, count) = (entry.first.load(Acquire), entry.count.load(Relaxed));
        let slot = |at: u32| self.slot(first + at);
        if nth < count && slot(nth) == ReadyRun::NONE {
            return Match::Unplanned;
        }
        let mut at = nth.min(count);
        for _ in 0..count.min(OTHER_SLOTS_TRIED) {
            if at >= count {
                at = 0;
            }
            if let Some(block) = claim_slot(arena, slot(at).start(), class) {
                return Match::Slot(block);
            }
            at += 1;
        }
        Match::Busy
    }

    /// The table of a plan; `None` where the system has no memory for it.
    fn map(arena: &Arena, classes: &[ClassSlots]) -> Option<*mut Self> {
        let slots: usize = classes.iter().map(|class| class.slots.len()).sum();
        u32::try_from(slots).ok()?;
        let slot_bytes = (slots * size_of::<SlotEntry>()).next_multiple_of(align_of::<Self>());
        // At most half of the entries are taken.
        let capacity = (classes.len() * 2).next_power_of_two();
        let class_mask = u32::try_from(capacity - 1).ok()?.into();
        // Whole pages, so that all of them can be given back.
        let bytes =
            (slot_bytes + size_of::<Self>() + capacity * size_of::<ClassEntry>()).next_multiple_of(os::PAGE);
        let map: *mut Self = os::map(bytes)?.wrapping_add(slot_bytes).cast();
        // SAFETY: inside a fresh mapping that is large enough, aligned; zeros are valid entries.
        let table = unsafe {
            map.write(Self { class_mask, slot_bytes, bytes });
            &*map
        };
        let mut first = 0;
        for class in classes {
            // A class larger than every arena has no slot in it.
            let length = arena.granules_of(class.class.bytes() as usize) as u32;
            for (index, slot) in (first..).zip(&class.slots) {
                let ready = slot.map_or(ReadyRun::NONE, |start| ReadyRun::of(Run { start, length }));
                let entry = table.slot_entry(index);
                entry.run.store(ready.run, Relaxed);
                entry.bits.store(ready.bits, Relaxed);
            }
            let mut index = table.home(class.class);
            while table.class(index).class.load(Relaxed) != 0 {
                index = index.wrapping_add(1);
            }
            let entry = table.class(index);
            entry.first.store(first, Relaxed);
            entry.count.store(class.slots.len() as u32, Relaxed);
            entry.class.store(class.class.0, Relaxed);
            first += class.slots.len() as u32;
        }
        Some(map)
    }

    /// All classes.
    fn classes(&self) -> impl Iterator<Item = &ClassEntry> {
        (0..=self.class_mask.load(Relaxed)).map(|index| self.class(index))
    }

    #[inline(always)]
    fn class(&self, index: u32) -> &ClassEntry {
        let index = (index & self.class_mask.load(Relaxed)) as usize;
        // SAFETY: the header is followed by `class_mask + 1` entries, and by one at least where it reads as 0.
        unsafe { &*ptr::from_ref(self).add(1).cast::<ClassEntry>().add(index) }
    }

    /// A slot of an entry in this table.
    #[inline(always)]
    fn slot(&self, index: u32) -> ReadyRun {
        let entry = self.slot_entry(index);
        // In this order: whoever finds bits has found their run.
        ReadyRun { run: entry.run.load(Acquire), bits: entry.bits.load(Relaxed) }
    }

    #[inline(always)]
    fn slot_entry(&self, index: u32) -> &SlotEntry {
        // SAFETY: callers pass an index below the number of slots, which lie before the header.
        unsafe { &*ptr::from_ref(self).cast::<SlotEntry>().sub(1 + index as usize) }
    }

    /// Where a class is looked for first: the high bits of a product with an odd constant (Knuth, TAOCP 3, 6.4).
    #[inline(always)]
    fn home(&self, class: Class) -> u32 {
        (class.0.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as u32
    }

    #[inline(never)]
    fn find(&self, class: Class) -> Option<&ClassEntry> {
        let home = self.home(class);
        // At most half of the entries are taken, so an empty one ends the search.
        for step in 0..=self.class_mask.load(Relaxed) {
            let entry = self.class(home.wrapping_add(step));
            let found = entry.class.load(Relaxed);
            if found == class.0 {
                return Some(entry);
            }
            if found == 0 {
                return None;
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(bytes: usize) -> Class {
        Class::of(bytes, 16).expect("possible size")
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
    fn slots_are_served_in_order_and_busy_ones_replaced() {
        let arena: &'static Arena = crate::arena::tests_arena(12, 4096 * 64);
        let matcher = Matcher::empty();
        assert_eq!(matcher.claim(arena, class(40_000)), Match::Unknown);
        // SAFETY: slots inside the arena.
        let installed = unsafe {
            matcher.install(
                arena,
                &[
                    ClassSlots { class: class(40_000), slots: vec![Some(0), Some(10), None, Some(20)] },
                    ClassSlots { class: class(50_000), slots: vec![Some(0)] },
                ],
            )
        };
        assert!(installed);
        let at = |granule: usize| Match::Slot((arena.base() + granule * 4096) as *mut u8);
        // SAFETY: installed for this arena, or not at all.
        let quickly = |bytes| unsafe { matcher.claim_quickly(arena, class(bytes)) };
        assert_eq!(quickly(60_000), Quick::Uncounted);
        // The first claim of granules in a group is not a quick one.
        assert_eq!(quickly(40_000), Quick::Counted(ReadyRun::NONE, 0));
        assert_eq!(matcher.claim_counted(arena, class(40_000), 0), at(0));
        assert_eq!(matcher.next_step().allocations, 1);
        assert_eq!(arena.release(arena.base()), crate::arena::Released::Block);
        assert_eq!(quickly(40_000), Quick::Block(arena.base() as *mut u8));
        assert_eq!(matcher.claim(arena, class(50_000)), Match::Busy);
        assert_eq!(matcher.claim(arena, class(60_000)), Match::Unknown);
        assert_eq!(matcher.claim(arena, class(39_999)), at(10));
        assert_eq!(matcher.claim(arena, class(40_000)), Match::Unplanned);
        assert_eq!(matcher.claim(arena, class(40_000)), at(20));
        assert_eq!(matcher.claim(arena, class(40_000)), Match::Busy);
        assert_eq!(
            matcher.next_step(),
            Seen { allocations: 6, bytes: 5 * class(40_000).bytes() + class(50_000).bytes() }
        );
        assert_eq!(arena.release(arena.base() + 10 * 4096), crate::arena::Released::Block);
        assert_eq!(matcher.claim(arena, class(40_000)), at(10), "its own slot is busy, another is free");
        assert_eq!(matcher.next_step().allocations, 1);
    }
}
