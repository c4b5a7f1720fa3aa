//! The matcher: finds a planned block's slot again.
//!
//! A block is known by its *class* (rounded size and alignment) and by how many of that class came before it in this
//! step. A class has one atomic counter, set to zero at every step boundary, and a run of slots in the order of the
//! plan. Allocations of other classes do not disturb it, threads race through it with one atomic addition, and a step
//! that repeats exactly hits every slot.
//!
//! The tables are a proposal only: what they say is checked by [`Arena::claim`]. They may therefore be rewritten for
//! a new plan while a thread still reads them; all entries are atomics and every index is bounded by the mapping's
//! fixed capacity, so such a thread reads a strange slot at worst, and the claim decides.

use crate::arena::{Arena, Run};
use crate::os;
use core::mem::size_of;
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering::*};

/// Bytes to which sizes are rounded before they are compared: a cache line, the smallest granule.
const SIZE_STEP: usize = 1 << crate::arena::GRANULE_MIN_SHIFT;
/// Slots of one class that are tried when the proposed one is busy. Under threads that race, a free one is found
/// after a few; a class with so many busy slots has overflowed, and a gap is found faster.
const OTHER_SLOTS_TRIED: u32 = 256;

/// The process's matcher.
pub(crate) static MATCHER: Matcher = Matcher::empty();

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
    /// Not served yet, but counted: the class's slots and the request's number, for [`Matcher::claim_counted`].
    Counted(u64, u32),
    /// Neither found nor counted.
    Uncounted,
}

/// Allocations of planned classes in one step, served or not.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Seen {
    pub(crate) allocations: u64,
    pub(crate) bytes: u64,
}

/// The tables of the plan in force.
pub(crate) struct Matcher {
    current: AtomicPtr<Table>,
    /// The tables of the plan before, rewritten for the next one.
    spare: AtomicPtr<Table>,
}

/// One mapping: this header, then the classes, then the slots. Never unmapped; the header never changes.
#[repr(C)]
struct Table {
    /// Number of classes less 1; the number is a power of two.
    class_mask: u32,
    /// Number of slots less 1; the number is a power of two.
    slot_mask: u32,
    /// Bytes from the header to the first slot.
    slots_at: usize,
}

#[repr(C, align(32))]
struct ClassEntry {
    /// 0: empty.
    class: AtomicU64,
    /// Index of the first slot, and in the high half the number of slots.
    slots: AtomicU64,
    /// Allocations of this class in the running step.
    counter: AtomicU32,
}

impl Matcher {
    const fn empty() -> Self {
        Self { current: AtomicPtr::new(ptr::null_mut()), spare: AtomicPtr::new(ptr::null_mut()) }
    }

    fn table(&self) -> Option<&Table> {
        // SAFETY: null or a mapping made by `Table::map`, which is never unmapped.
        unsafe { self.current.load(Acquire).as_ref() }
    }

    /// Looks up a request, counts it in its class and claims the slot planned for it, if that is quickly done.
    #[inline(always)]
    pub(crate) fn claim_quickly(&self, arena: &Arena, class: Class) -> Quick {
        let Some(table) = self.table() else { return Quick::Uncounted };
        let entry = table.class(table.home(class));
        // An empty entry has no slots, so a class of 0 finds none either.
        if entry.class.load(Relaxed) != class.0 {
            return Quick::Uncounted;
        }
        let nth = entry.counter.fetch_add(1, Relaxed);
        let slots = entry.slots.load(Relaxed);
        if nth < (slots >> 32) as u32 {
            let start = table.slot((slots as u32).wrapping_add(nth)).load(Relaxed);
            if let Some(block) = arena.claim_quickly(start, class.bytes() as usize) {
                return Quick::Block(block);
            }
        }
        Quick::Counted(slots, nth)
    }

    /// Looks up a request, counts it in its class and claims a slot for it.
    pub(crate) fn claim(&self, arena: &Arena, class: Class) -> Match {
        let Some(entry) = self.table().and_then(|table| table.find(class)) else { return Match::Unknown };
        let nth = entry.counter.fetch_add(1, Relaxed);
        self.claim_counted(arena, class, entry.slots.load(Relaxed), nth)
    }

    /// Claims a slot for a request that was counted: the one planned for it, or else another of its class.
    pub(crate) fn claim_counted(&self, arena: &Arena, class: Class, slots: u64, nth: u32) -> Match {
        let Some(table) = self.table() else { return Match::Unknown };
        let (first, count) = (slots as u32, (slots >> 32) as u32);
        let slot = |at: u32| table.slot(first.wrapping_add(at)).load(Relaxed);
        if nth < count && slot(nth) == NO_SLOT {
            return Match::Unplanned;
        }
        let mut at = nth.min(count);
        for _ in 0..count.min(OTHER_SLOTS_TRIED) {
            if at >= count {
                at = 0;
            }
            if let Some(block) = claim_slot(arena, slot(at), class) {
                return Match::Slot(block);
            }
            at += 1;
        }
        Match::Busy
    }

    /// Puts a new plan in force. `false` where the system has no memory for its tables; the old plan stays then.
    /// Called under the engine's lock.
    pub(crate) fn install(&self, classes: &[ClassSlots]) -> bool {
        let slots: usize = classes.iter().map(|class| class.slots.len()).sum();
        let capacity = (classes.len() * 2).next_power_of_two().max(2);
        let mut spare = self.spare.load(Relaxed);
        // SAFETY: null or a mapping made by `Table::map`.
        let fits = unsafe { spare.as_ref() }.is_some_and(|table| {
            table.class_mask as usize + 1 >= capacity && table.slot_mask as usize + 1 >= slots
        });
        if !fits {
            // The smaller mapping stays behind for readers that are late; doubling bounds the sum of them.
            let Some(table) = Table::map(capacity, slots.next_power_of_two().max(1)) else { return false };
            spare = table;
        }
        // SAFETY: a mapping made by `Table::map`; other threads may read it, hence atomics only.
        unsafe { &*spare }.fill(classes);
        self.spare.store(self.current.swap(spare, Release), Relaxed);
        true
    }

    /// Begins a new step: sets all counters to zero and returns what they had counted.
    pub(crate) fn next_step(&self) -> Seen {
        let mut seen = Seen::default();
        for entry in self.table().into_iter().flat_map(Table::classes) {
            let count = u64::from(entry.counter.swap(0, Relaxed));
            seen.allocations += count;
            seen.bytes += count * Class(entry.class.load(Relaxed)).bytes();
        }
        seen
    }
}

/// Where a table has no slot: beyond every limit.
const NO_SLOT: u32 = u32::MAX;

fn claim_slot(arena: &Arena, start: u32, class: Class) -> Option<*mut u8> {
    let length = u32::try_from(arena.granules_of(class.bytes() as usize)).ok()?;
    let block = arena.claim(Run { start, length })?;
    // Only a table that is being rewritten under us proposes a slot of another alignment.
    if !(block as usize).is_multiple_of(class.align() as usize) {
        arena.release(block as usize);
        return None;
    }
    Some(block)
}

impl Table {
    /// A table of at least these numbers of classes and slots, both powers of two.
    fn map(classes: usize, slots: usize) -> Option<*mut Self> {
        let slots_at = size_of::<ClassEntry>() * (classes + 1);
        let header = Self {
            class_mask: u32::try_from(classes - 1).ok()?,
            slot_mask: u32::try_from(slots - 1).ok()?,
            slots_at,
        };
        let table: *mut Self = os::map(slots_at + slots * size_of::<AtomicU32>())?.cast();
        // SAFETY: a fresh mapping, page-aligned and large enough; zeros are valid entries.
        unsafe { table.write(header) };
        Some(table)
    }

    /// All classes; the first lies where the header's own room, that of one entry, ends.
    fn classes(&self) -> impl Iterator<Item = &ClassEntry> {
        (0..=self.class_mask).map(|index| self.class(index))
    }

    #[inline(always)]
    fn class(&self, index: u32) -> &ClassEntry {
        let index = (index & self.class_mask) as usize;
        // SAFETY: the header is followed by `class_mask + 1` entries, zeroed or written as atomics; a mapping is
        // page-aligned.
        unsafe { &*ptr::from_ref(self).cast::<ClassEntry>().add(1 + index) }
    }

    #[inline(always)]
    fn slot(&self, index: u32) -> &AtomicU32 {
        let index = (index & self.slot_mask) as usize;
        // SAFETY: `slots_at` names the `slot_mask + 1` slots behind the classes in the same mapping.
        unsafe { &*ptr::from_ref(self).byte_add(self.slots_at).cast::<AtomicU32>().add(index) }
    }

    /// Where a class is looked for first: the high bits of a product with an odd constant (Knuth, TAOCP 3, 6.4).
    #[inline(always)]
    fn home(&self, class: Class) -> u32 {
        (class.0.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as u32
    }

    #[inline(never)]
    fn find(&self, class: Class) -> Option<&ClassEntry> {
        let home = self.home(class);
        // At most half of the entries are taken, so an empty one ends the search; the bound is for a table that is
        // being rewritten.
        for step in 0..=self.class_mask {
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

    fn fill(&self, classes: &[ClassSlots]) {
        for entry in self.classes() {
            entry.class.store(0, Relaxed);
            entry.slots.store(0, Relaxed);
            entry.counter.store(0, Relaxed);
        }
        let mut next = 0;
        for class in classes {
            let first = next;
            for &slot in &class.slots {
                self.slot(next).store(slot.unwrap_or(NO_SLOT), Relaxed);
                next += 1;
            }
            let mut index = self.home(class.class);
            while self.class(index).class.load(Relaxed) != 0 {
                index = index.wrapping_add(1);
            }
            let entry = self.class(index);
            entry.slots.store(u64::from(next - first) << 32 | u64::from(first), Relaxed);
            entry.class.store(class.class.0, Release);
        }
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
        assert!(matcher.install(&[
            ClassSlots { class: class(40_000), slots: vec![Some(0), Some(10), None, Some(20)] },
            ClassSlots { class: class(50_000), slots: vec![Some(0)] },
        ]));
        let at = |granule: usize| Match::Slot((arena.base() + granule * 4096) as *mut u8);
        let first = arena.base() as *mut u8;
        assert_eq!(matcher.claim_quickly(arena, class(40_000)), Quick::Block(first));
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
