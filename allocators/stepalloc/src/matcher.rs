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
        let rounded = (bytes + SIZE_STEP - 1) & !(SIZE_STEP - 1);
        Some(Self(if align <= SIZE_STEP { rounded as u64 } else { rounded as u64 | u64::from(align.trailing_zeros()) }))
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
    pub(crate) slots: Vec<Option<Run>>,
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

/// One mapping: this header, then `class_capacity` classes, then `slot_capacity` slots. Never unmapped.
#[repr(C)]
struct Table {
    /// Power of two, fixed for the mapping.
    class_capacity: u32,
    /// Fixed for the mapping.
    slot_capacity: u32,
}

#[repr(C)]
struct ClassEntry {
    /// 0: empty.
    class: AtomicU64,
    /// Allocations of this class in the running step.
    counter: AtomicU32,
    /// Index of the first slot.
    first: AtomicU32,
    /// Number of slots.
    count: AtomicU32,
    _pad: u32,
}

impl Matcher {
    const fn empty() -> Self {
        Self { current: AtomicPtr::new(ptr::null_mut()), spare: AtomicPtr::new(ptr::null_mut()) }
    }

    fn table(&self) -> Option<&Table> {
        // SAFETY: null or a mapping made by `Table::map`, which is never unmapped.
        unsafe { self.current.load(Acquire).as_ref() }
    }

    /// Looks up a request, counts it in its class and claims a slot for it.
    #[inline]
    pub(crate) fn claim(&self, arena: &Arena, class: Class) -> Match {
        let Some(table) = self.table() else { return Match::Unknown };
        let Some(entry) = table.find(class) else { return Match::Unknown };
        let nth = entry.counter.fetch_add(1, Relaxed);
        let count = entry.count.load(Relaxed);
        if nth < count {
            let slot = table.slot(entry.first.load(Relaxed).wrapping_add(nth)).load(Relaxed);
            if let Some(block) = claim_slot(arena, slot, class) {
                return Match::Slot(block);
            }
            if slot == 0 {
                return Match::Unplanned;
            }
        }
        table.claim_other(arena, entry, nth, count, class)
    }

    /// Puts a new plan in force. `false` where the system has no memory for its tables; the old plan stays then.
    /// Called under the engine's lock.
    pub(crate) fn install(&self, classes: &[ClassSlots]) -> bool {
        let slots: usize = classes.iter().map(|class| class.slots.len()).sum();
        let capacity = (classes.len() * 2).next_power_of_two().max(2);
        let mut spare = self.spare.load(Relaxed);
        // SAFETY: null or a mapping made by `Table::map`.
        let fits = unsafe { spare.as_ref() }
            .is_some_and(|table| table.class_capacity as usize >= capacity && table.slot_capacity as usize >= slots);
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
        for entry in self.table().map_or(&[][..], Table::classes) {
            let count = u64::from(entry.counter.swap(0, Relaxed));
            seen.allocations += count;
            seen.bytes += count * Class(entry.class.load(Relaxed)).bytes();
        }
        seen
    }
}

/// A slot is two words in one, so that it is never read half-changed; 0 is none.
fn pack(slot: Option<Run>) -> u64 {
    slot.map_or(0, |run| u64::from(run.length) << 32 | u64::from(run.start))
}

#[inline]
fn claim_slot(arena: &Arena, slot: u64, class: Class) -> Option<*mut u8> {
    let run = Run { start: slot as u32, length: (slot >> 32) as u32 };
    if (u64::from(run.length) << arena.shift()) < class.bytes() {
        return None;
    }
    let block = arena.claim(run)?;
    // Only a table that is being rewritten under us proposes a slot of another alignment.
    if block as usize & (class.align() as usize - 1) != 0 {
        arena.release(block as usize);
        return None;
    }
    Some(block)
}

impl Table {
    fn map(class_capacity: usize, slot_capacity: usize) -> Option<*mut Self> {
        let bytes = size_of::<Self>() + class_capacity * size_of::<ClassEntry>() + slot_capacity * size_of::<AtomicU64>();
        let header = Self {
            class_capacity: u32::try_from(class_capacity).ok()?,
            slot_capacity: u32::try_from(slot_capacity).ok()?,
        };
        let table: *mut Self = os::map(bytes)?.cast();
        // SAFETY: a fresh mapping, page-aligned and large enough; zeros are valid entries.
        unsafe { table.write(header) };
        Some(table)
    }

    #[inline]
    fn classes(&self) -> &[ClassEntry] {
        // SAFETY: the header is followed by `class_capacity` entries of the same mapping, zeroed or written as atomics.
        unsafe { core::slice::from_raw_parts(ptr::from_ref(self).add(1).cast(), self.class_capacity as usize) }
    }

    #[inline]
    fn slot(&self, index: u32) -> &AtomicU64 {
        let index = index.min(self.slot_capacity - 1) as usize;
        // SAFETY: the slots follow the classes in the same mapping, and the index is below their number (at least 1).
        unsafe { &*self.classes().as_ptr_range().end.cast::<AtomicU64>().add(index) }
    }

    /// Where a class is looked for first: the high bits of a product with an odd constant (Knuth, TAOCP 3, 6.4).
    #[inline]
    fn home(&self, class: Class) -> u32 {
        ((class.0.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as u32) & (self.class_capacity - 1)
    }

    #[inline]
    fn find(&self, class: Class) -> Option<&ClassEntry> {
        let classes = self.classes();
        let mut index = self.home(class);
        // At most half of the entries are taken, so an empty one ends the search; the bound is for a table that is
        // being rewritten.
        for _ in 0..self.class_capacity {
            // SAFETY: `home` and the mask keep the index below `class_capacity`.
            let entry = unsafe { classes.get_unchecked(index as usize) };
            let found = entry.class.load(Relaxed);
            if found == class.0 {
                return Some(entry);
            }
            if found == 0 {
                return None;
            }
            index = (index + 1) & (self.class_capacity - 1);
        }
        None
    }

    /// Tries the class's other slots, beginning behind the proposed one.
    #[cold]
    fn claim_other(&self, arena: &Arena, entry: &ClassEntry, nth: u32, count: u32, class: Class) -> Match {
        let first = entry.first.load(Relaxed);
        let mut at = nth.min(count);
        for _ in 0..count.min(OTHER_SLOTS_TRIED) {
            at = if at + 1 < count { at + 1 } else { 0 };
            if let Some(block) = claim_slot(arena, self.slot(first.wrapping_add(at)).load(Relaxed), class) {
                return Match::Slot(block);
            }
        }
        Match::Busy
    }

    fn fill(&self, classes: &[ClassSlots]) {
        for entry in self.classes() {
            entry.class.store(0, Relaxed);
            entry.counter.store(0, Relaxed);
            entry.count.store(0, Relaxed);
        }
        let mut next = 0;
        for class in classes {
            let first = next;
            for &slot in &class.slots {
                self.slot(next).store(pack(slot), Relaxed);
                next += 1;
            }
            let mut index = self.home(class.class);
            while self.classes()[index as usize].class.load(Relaxed) != 0 {
                index = (index + 1) & (self.class_capacity - 1);
            }
            let entry = &self.classes()[index as usize];
            entry.first.store(first, Relaxed);
            entry.count.store(next - first, Relaxed);
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
        let run = |start, length| Some(Run { start, length });
        assert!(matcher.install(&[
            ClassSlots { class: class(40_000), slots: vec![run(0, 10), run(10, 10), None, run(20, 10)] },
            ClassSlots { class: class(50_000), slots: vec![run(0, 13)] },
        ]));
        let at = |granule: usize| Match::Slot((arena.base() + granule * 4096) as *mut u8);
        assert_eq!(matcher.claim(arena, class(40_000)), at(0));
        assert_eq!(matcher.claim(arena, class(50_000)), Match::Busy);
        assert_eq!(matcher.claim(arena, class(60_000)), Match::Unknown);
        assert_eq!(matcher.claim(arena, class(39_999)), at(10));
        assert_eq!(matcher.claim(arena, class(40_000)), Match::Unplanned);
        assert_eq!(matcher.claim(arena, class(40_000)), at(20));
        assert_eq!(matcher.claim(arena, class(40_000)), Match::Busy);
        assert_eq!(matcher.next_step(), Seen { allocations: 6, bytes: 5 * class(40_000).bytes() + class(50_000).bytes() });
        assert!(arena.release(arena.base() + 10 * 4096));
        assert_eq!(matcher.claim(arena, class(40_000)), at(10), "its own slot is busy, another is free");
        assert_eq!(matcher.next_step().allocations, 1);
    }
}
