//! The table of one step variant: which slots a class has.

use super::{Class, ClassSlots, LACKING, Match, OTHER_SLOTS_TRIED, Tables};
use crate::arena::cells::Slot;
use crate::arena::granules::Run;
use crate::arena::{Arena, Refused, shift_lines};
use crate::os;
use core::mem::size_of;
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering::*};

/// Entries of a table of classes beyond which rare collisions are not worth their memory.
const MANY_CLASSES: usize = 4096;
/// Multiplications spent on finding a multiplier with few collisions: a fraction of a millisecond.
const MULTIPLICATIONS: usize = 100_000;

/// In one mapping: the slots; this header; the classes; the families. The slots of a class are found by an address, which is
/// read before their number.
#[repr(C, align(64))]
pub(super) struct Table {
    /// Bytes of the classes but one; their number is a power of two.
    class_mask: AtomicUsize,
    /// What classes are multiplied by to find their places.
    multiplier: AtomicU64,
    /// The class of [`Begin`]; 0 where steps are marked.
    pub(super) begin: AtomicU64,
    /// The table of the variant that followed this one last; null before any has.
    pub(super) follows: AtomicPtr<Table>,
    /// When a step of this variant ended last, in steps.
    pub(super) used: AtomicU64,
    /// Allocations whose count says that a step is over.
    enough: AtomicU64,
    /// Number of families.
    families: AtomicUsize,
    /// Bytes of the slots. Not read once the plan was replaced, nor is the next.
    slot_bytes: usize,
    /// Bytes of the mapping.
    bytes: usize,
}

#[repr(C, align(32))]
pub(super) struct ClassEntry {
    /// 0: empty.
    pub(super) class: AtomicU64,
    /// The first slot.
    pub(super) slots: AtomicPtr<Slot>,
    /// Number of slots.
    pub(super) count: AtomicU32,
    /// Allocations of this class in the running step.
    pub(super) counter: AtomicU32,
}

impl ClassEntry {
    /// Takes back that a request was counted.
    pub(super) fn uncount(&self) {
        let _ = self.counter.fetch_update(Relaxed, Relaxed, |counter| counter.checked_sub(1));
    }
}

/// A family of sizes, whose largest names its class.
#[repr(C)]
struct FamilyEntry {
    smallest: AtomicU64,
    largest: AtomicU64,
}

/// What is looked at before there is a plan: one empty class.
#[repr(C)]
pub(super) struct NoTable {
    pub(super) header: Table,
    class: ClassEntry,
}

pub(super) static NO_TABLE: NoTable = NoTable {
    header: Table {
        class_mask: AtomicUsize::new(0),
        multiplier: AtomicU64::new(0),
        begin: AtomicU64::new(0),
        follows: AtomicPtr::new(ptr::null_mut()),
        used: AtomicU64::new(0),
        enough: AtomicU64::new(0),
        families: AtomicUsize::new(0),
        slot_bytes: 0,
        bytes: 0,
    },
    class: ClassEntry {
        class: AtomicU64::new(0),
        slots: AtomicPtr::new(ptr::null_mut()),
        count: AtomicU32::new(0),
        counter: AtomicU32::new(0),
    },
};

impl Table {
    /// Claims a slot of an entry for the request of number `nth`.
    pub(super) fn claim(&self, arena: &Arena, class: Class, entry: &ClassEntry, nth: u32) -> Match {
        // In this order, see `Matcher::claim_quickly`.
        let (slots, count) = (entry.slots.load(Acquire), entry.count.load(Relaxed));
        // SAFETY: so many slots begin there, in a mapping that is never undone.
        let slot = |at: u32| unsafe { &*slots.add(at as usize) };
        if nth < count && slot(nth).is_none() {
            return Match::Unplanned;
        }
        let mut at = nth.min(count);
        for _ in 0..count.min(OTHER_SLOTS_TRIED) {
            if at >= count {
                at = 0;
            }
            // SAFETY: a slot of this class in this arena.
            match unsafe { arena.claim(slot(at)) } {
                Ok(block) => {
                    debug_assert!((block as usize).is_multiple_of(class.align() as usize));
                    return Match::Slot(block);
                }
                Err(Refused::Busy) => {}
                Err(Refused::Locked) => break,
            }
            at += 1;
        }
        Match::Busy
    }

    /// Whether so many of the step's allocations were counted that nearly all are.
    pub(super) fn is_over(&self) -> bool {
        let counted =
            |entry: &ClassEntry| u64::from(entry.counter.load(Relaxed).min(entry.count.load(Relaxed)));
        let enough = self.enough.load(Relaxed);
        enough != 0 && self.classes().map(counted).sum::<u64>() >= enough
    }

    /// The table of a plan, but for what its slots say; `None` where the system has no memory for it.
    pub(super) fn map(Tables { classes, families, begin }: Tables<'_>) -> Option<*mut Self> {
        let slots: usize = classes.iter().map(|class| class.slots.len()).sum();
        i32::try_from(slots).ok()?;
        let slot_bytes = slots * size_of::<Slot>();
        // At least three quarters stay empty, and more where that makes collisions rare.
        let capacity =
            (classes.len().pow(2) / 8).clamp(1, MANY_CLASSES).max(4 * classes.len()).next_power_of_two();
        // Whole pages, so that all of them can be given back.
        let class_bytes = capacity * size_of::<ClassEntry>();
        let family_bytes = families.len() * size_of::<FamilyEntry>();
        let bytes = (slot_bytes + size_of::<Self>() + class_bytes + family_bytes).next_multiple_of(os::PAGE);
        let map = os::map_resident(bytes)?;
        let table: *mut Self = map.wrapping_add(slot_bytes).cast();
        let class_mask = (capacity - 1) * size_of::<ClassEntry>();
        let multiplier = best_multiplier(classes, class_mask);
        let allocations = begin.map_or(0, |begin| u64::from(begin.allocations));
        let header = Self {
            class_mask: class_mask.into(),
            multiplier: multiplier.into(),
            begin: begin.map_or(0, |begin| begin.class.0).into(),
            follows: AtomicPtr::new(ptr::null_mut()),
            used: 0.into(),
            enough: (allocations - allocations / LACKING).into(),
            families: families.len().into(),
            slot_bytes,
            bytes,
        };
        // SAFETY: inside a fresh mapping that is large enough, aligned; zeros are valid entries.
        unsafe { table.write(header) };
        for (index, &(smallest, largest)) in families.iter().enumerate() {
            // SAFETY: the header was just written, and after it there is room for so many.
            let entry = unsafe { (&*table).family(index) };
            entry.smallest.store(smallest, Relaxed);
            entry.largest.store(largest, Relaxed);
        }
        let mut slots: *mut Slot = map.cast();
        for class in classes {
            // SAFETY: the header was just written.
            let entry =
                unsafe { &*table }.places(class.class).find(|entry| entry.class.load(Relaxed) == 0)?;
            entry.slots.store(slots, Relaxed);
            entry.count.store(class.slots.len() as u32, Relaxed);
            entry.class.store(class.class.0, Relaxed);
            slots = slots.wrapping_add(class.slots.len());
        }
        Some(table)
    }

    /// Undoes [`Table::map`].
    ///
    /// # Safety
    /// No other thread has its address.
    pub(super) unsafe fn unmap(table: *mut Self) {
        // SAFETY: the caller's promise.
        unsafe { os::unmap(table.byte_sub((*table).slot_bytes).cast(), (*table).bytes) };
    }

    /// The slots, each with its run in granules of `1 << shift` bytes and its [lines](shift_lines); those that the plan leaves to the
    /// backend are left out.
    pub(super) fn slots<'a>(
        &'a self,
        shift: u32,
        classes: &'a [ClassSlots],
    ) -> impl Iterator<Item = (&'a Slot, Run, u32)> {
        // SAFETY: the slots begin where the mapping does, before the header, one for each of the classes'.
        let first: *const Slot = unsafe { ptr::from_ref(self).byte_sub(self.slot_bytes).cast() };
        let runs = classes.iter().flat_map(move |slots| slots.runs(shift).map(|run| (slots.class, run)));
        runs.enumerate().filter_map(move |(index, (class, run))| {
            let lines = shift_lines(run?, class.bytes() as usize, class.align() as usize, shift);
            // SAFETY: as above.
            Some((unsafe { &*first.add(index) }, run?, lines))
        })
    }

    /// Gives the table's memory back to the system.
    ///
    /// # Safety
    /// It was made by [`Table::map`] and another is in force.
    pub(super) unsafe fn discard(table: *mut Self) {
        // SAFETY: readers find their way when all or part of it is zeros.
        unsafe { os::discard(table.byte_sub((*table).slot_bytes).cast(), (*table).bytes) };
    }

    /// The entry of a class, or of its family.
    pub(super) fn find_or_family(&self, class: Class) -> Option<&ClassEntry> {
        self.find(class).or_else(|| {
            let bytes = class.bytes();
            // SAFETY: there are so many. Where the table was given up, the rest reads as zeros.
            let families = (0..self.families.load(Relaxed)).map(|index| unsafe { self.family(index) });
            let of = |entry: &&FamilyEntry| {
                entry.smallest.load(Relaxed) <= bytes && bytes <= entry.largest.load(Relaxed)
            };
            let largest = families.into_iter().find(of)?.largest.load(Relaxed);
            self.find(class.with_bytes(largest))
        })
    }

    /// # Safety
    /// There are more families than `index`.
    unsafe fn family(&self, index: usize) -> &FamilyEntry {
        let classes = self.class_mask.load(Relaxed) + size_of::<ClassEntry>();
        // SAFETY: the families follow the classes; where these read as one, the place is still in the mapping.
        unsafe { &*ptr::from_ref(self).add(1).cast::<FamilyEntry>().byte_add(classes).add(index) }
    }

    /// How many requests of a class have slots.
    pub(super) fn slots_of(&self, class: Class) -> u32 {
        self.find_or_family(class).map_or(0, |entry| entry.count.load(Relaxed))
    }

    /// Whether a detected step of this variant begins with a request of this class.
    pub(super) fn begins_with(&self, class: Class) -> bool {
        let begin = self.begin.load(Relaxed);
        begin != 0 && self.find_or_family(class).is_some_and(|entry| entry.class.load(Relaxed) == begin)
    }

    /// Nothing was asked for.
    pub(super) fn forget_counts(&self) {
        self.counted_classes().for_each(|entry| entry.counter.store(0, Relaxed));
    }

    /// The classes that were asked for in the running step.
    pub(super) fn counted_classes(&self) -> impl Iterator<Item = &ClassEntry> {
        // Most entries are empty; none of them is written to, so that their pages have no memory.
        self.classes().filter(|entry| entry.counter.load(Relaxed) != 0)
    }

    /// All classes.
    pub(super) fn classes(&self) -> impl Iterator<Item = &ClassEntry> {
        (0..=self.class_mask.load(Relaxed)).step_by(size_of::<ClassEntry>()).map(|place| self.class(place))
    }

    /// The class at a place, in bytes from the first one and beyond all of them from the first one again.
    #[inline(always)]
    fn class(&self, place: usize) -> &ClassEntry {
        let place = place & self.class_mask.load(Relaxed);
        // SAFETY: the classes follow the header, one at least also where it reads as 0; the mask has no bits below
        // the size of one.
        unsafe { &*ptr::from_ref(self).add(1).cast::<ClassEntry>().byte_add(place) }
    }

    /// The places at which a class may be, in order. An empty one, of which there are many, ends the search.
    #[inline(always)]
    fn places(&self, class: Class) -> impl Iterator<Item = &ClassEntry> {
        let home = home(class, self.multiplier.load(Relaxed));
        (0..).map(move |step| self.class(home.wrapping_add(step * size_of::<ClassEntry>())))
    }

    #[inline(always)]
    pub(super) fn find(&self, class: Class) -> Option<&ClassEntry> {
        for entry in self.places(class) {
            let found = entry.class.load(Relaxed);
            if found == class.0 {
                return Some(entry);
            }
            if found == 0 {
                break;
            }
        }
        None
    }
}

/// Where a class is looked for first: the high bits of a product (Knuth, TAOCP 3, 6.4).
#[inline(always)]
fn home(class: Class, multiplier: u64) -> usize {
    (class.0.wrapping_mul(multiplier) >> 32) as usize
}

/// The multiplier, of a few, with which the fewest slots are of a class that is not in its first place.
fn best_multiplier(classes: &[ClassSlots], class_mask: usize) -> u64 {
    const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;
    let mut taken = vec![u32::MAX; class_mask / size_of::<ClassEntry>() + 1];
    let attempts = (MULTIPLICATIONS / classes.len().max(1)).clamp(1, 256) as u32;
    let mut best = (usize::MAX, GOLDEN);
    for attempt in 0..attempts {
        let multiplier = GOLDEN.wrapping_mul(2 * u64::from(attempt) + 1);
        let mut collided = 0;
        for class in classes {
            let place = (home(class.class, multiplier) & class_mask) / size_of::<ClassEntry>();
            if core::mem::replace(&mut taken[place], attempt) == attempt {
                collided += class.slots.len();
            }
        }
        if collided < best.0 {
            best = (collided, multiplier);
        }
        if collided == 0 {
            break;
        }
    }
    best.1
}
