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

use crate::arena::{Arena, Refused};
use crate::cells::{Cells, Cut, Half, Slot, Taken};
use crate::granules::Run;
use crate::os;
use core::mem::size_of;
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering::*};

/// Bytes to which sizes are rounded before they are compared: a cache line, the smallest granule.
const SIZE_STEP: usize = 1 << crate::arena::GRANULE_MIN_SHIFT;
/// Entries of a table of classes beyond which rare collisions are not worth their memory.
const MANY_CLASSES: usize = 4096;
/// Multiplications spent on finding a multiplier with few collisions: a fraction of a millisecond.
const MULTIPLICATIONS: usize = 100_000;
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

    /// The class of as much aligned blocks of so many bytes, which are whole cache lines.
    pub(crate) fn with_bytes(self, bytes: u64) -> Self {
        Self(bytes | self.0 & (SIZE_STEP as u64 - 1))
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

impl ClassSlots {
    /// The runs of the slots, in granules of `1 << shift` bytes.
    pub(crate) fn runs(&self, shift: u32) -> impl Iterator<Item = Option<Run>> {
        // A class larger than every arena has no slot in it.
        let length = self.class.bytes().div_ceil(1 << shift) as u32;
        self.slots.iter().map(move |slot| slot.map(|start| Run::new(start, length)))
    }
}

/// What a plan says to the matcher.
#[derive(Clone, Copy)]
pub(crate) struct Tables<'a> {
    pub(crate) classes: &'a [ClassSlots],
    /// Smallest and largest size of each family, disjoint and ascending; its class is that of the largest.
    pub(crate) families: &'a [(u64, u64)],
    /// How steps are known that nobody marks.
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
    /// The step is over: this request begins the next one, see [`Begin`].
    Over,
}

/// How a step is known to begin that nobody marks: all its allocations of this class were counted, and most of the
/// others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Begin {
    /// The class of a step's first allocation.
    pub(crate) class: Class,
    /// Allocations in a step.
    pub(crate) allocations: u32,
}

/// A step may lack one part in this many of its allocations and still be over.
const LACKING: u64 = 8;

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

/// The table of the plan in force.
pub(crate) struct Matcher {
    current: AtomicPtr<Table>,
}

/// In one mapping: the slots; this header; the classes; the families. The slots of a class are found by an address, which is read before
/// their number.
#[repr(C, align(64))]
struct Table {
    /// Bytes of the classes but one; their number is a power of two.
    class_mask: AtomicUsize,
    /// What classes are multiplied by to find their places.
    multiplier: AtomicU64,
    /// The class of [`Begin`]; 0 where steps are marked.
    begin: AtomicU64,
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
struct ClassEntry {
    /// 0: empty.
    class: AtomicU64,
    /// The first slot.
    slots: AtomicPtr<Slot>,
    /// Number of slots.
    count: AtomicU32,
    /// Allocations of this class in the running step.
    counter: AtomicU32,
}

/// A family of sizes, whose largest names its class.
#[repr(C)]
struct FamilyEntry {
    smallest: AtomicU64,
    largest: AtomicU64,
}

/// What is looked at before there is a plan: one empty class.
#[repr(C)]
struct NoTable {
    header: Table,
    class: ClassEntry,
}

static NO_TABLE: NoTable = NoTable {
    header: Table {
        class_mask: AtomicUsize::new(0),
        multiplier: AtomicU64::new(0),
        begin: AtomicU64::new(0),
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
        let Some(entry) = table.find_or_family(class) else { return Match::Unknown };
        table.claim(arena, class, entry, entry.counter.fetch_add(1, Relaxed))
    }

    /// Claims a slot for a request that was counted: the one planned for it, or else another of its class.
    pub(crate) fn claim_counted(&self, arena: &Arena, class: Class, nth: u32) -> Match {
        let table = self.table();
        let Some(entry) = table.find(class) else { return Match::Unknown };
        table.claim(arena, class, entry, nth)
    }

    /// Puts a new plan in force, in an arena cut at its slots' edges. `false` where the system has no memory for its
    /// tables; the old plan stays then. Called under the engine's lock.
    ///
    /// # Safety
    /// The cut is that of the classes' runs, and the arena was made usable up to its end.
    pub(crate) unsafe fn install(&self, arena: &Arena, tables: Tables<'_>, cut: &Cut) -> bool {
        let Some(table) = Table::map(tables) else { return false };
        // SAFETY: a mapping made just now, which stays unless it is undone below.
        let Some(cells) = (unsafe { &*table }).cells(arena.shift(), tables.classes, cut) else {
            // SAFETY: nobody was told of it.
            unsafe { Table::unmap(table) };
            return false;
        };
        if !arena.exchange(cells) {
            // SAFETY: nobody was told of them.
            unsafe {
                cells.unmap();
                Table::unmap(table);
            }
            return false;
        }
        let old = self.current.swap(table, Release);
        if !ptr::eq(old, &raw const NO_TABLE.header) {
            // SAFETY: a mapping made by `Table::map`, in which readers find their way when all or part of it is zeros.
            unsafe { os::discard(old.byte_sub((*old).slot_bytes).cast(), (*old).bytes) };
        }
        true
    }

    /// Steps are marked from now on.
    pub(crate) fn ignore_begin(&self) {
        let table = self.current.load(Acquire);
        if !ptr::eq(table, &raw const NO_TABLE.header) {
            self.table().begin.store(0, Relaxed);
        }
    }

    /// Whether the plan has slots for requests of a class.
    pub(crate) fn knows(&self, class: Class) -> bool {
        self.table().find_or_family(class).is_some()
    }

    /// Counts an allocation of the running step that was made before the plan was in force.
    pub(crate) fn count(&self, class: Class) {
        if let Some(entry) = self.table().find_or_family(class) {
            entry.counter.fetch_add(1, Relaxed);
        }
    }

    /// Takes back that an allocation was counted: it is the next step's.
    pub(crate) fn uncount(&self, class: Class) {
        if let Some(entry) = self.table().find_or_family(class) {
            let _ = entry.counter.fetch_update(Relaxed, Relaxed, |counter| counter.checked_sub(1));
        }
    }

    /// Begins a new step: sets all counters to zero and returns what they had counted.
    pub(crate) fn next_step(&self) -> Seen {
        let mut seen = Seen::default();
        for entry in self.table().classes() {
            let class = Class(entry.class.load(Relaxed));
            // Empty entries are not written to: most of their pages have no memory.
            let count = if class.0 == 0 { 0 } else { u64::from(entry.counter.swap(0, Relaxed)) };
            seen.allocations += count;
            seen.bytes += count * class.bytes();
        }
        seen
    }
}

impl Table {
    /// Claims a slot of an entry for the request of number `nth`.
    fn claim(&self, arena: &Arena, class: Class, entry: &ClassEntry, nth: u32) -> Match {
        // In this order, see `claim_quickly`.
        let (slots, count) = (entry.slots.load(Acquire), entry.count.load(Relaxed));
        // SAFETY: so many slots begin there, in a mapping that is never undone.
        let slot = |at: u32| unsafe { &*slots.add(at as usize) };
        if nth >= count {
            // Asked ever more rarely, because it takes a look at all classes.
            let over = nth - count;
            let asked = over == 0 || over.is_power_of_two();
            if asked && self.begin.load(Relaxed) == entry.class.load(Relaxed) && self.is_over() {
                return Match::Over;
            }
        } else if slot(nth).is_none() {
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
    fn is_over(&self) -> bool {
        let counted =
            |entry: &ClassEntry| u64::from(entry.counter.load(Relaxed).min(entry.count.load(Relaxed)));
        self.classes().map(counted).sum::<u64>() >= self.enough.load(Relaxed)
    }

    /// The table of a plan, but for what its slots say; `None` where the system has no memory for it.
    fn map(Tables { classes, families, begin }: Tables<'_>) -> Option<*mut Self> {
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
        let map = os::map(bytes)?;
        let table: *mut Self = map.wrapping_add(slot_bytes).cast();
        let class_mask = (capacity - 1) * size_of::<ClassEntry>();
        let multiplier = best_multiplier(classes, class_mask);
        let allocations = begin.map_or(0, |begin| u64::from(begin.allocations));
        let header = Self {
            class_mask: class_mask.into(),
            multiplier: multiplier.into(),
            begin: begin.map_or(0, |begin| begin.class.0).into(),
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
    /// Nobody was told of it.
    unsafe fn unmap(table: *mut Self) {
        // SAFETY: the caller's promise.
        unsafe { os::unmap(table.byte_sub((*table).slot_bytes).cast(), (*table).bytes) };
    }

    /// Makes the cells, and writes the slots down in the table; `None` where the system has no memory for them.
    fn cells(&self, shift: u32, classes: &[ClassSlots], cut: &Cut) -> Option<&'static Cells> {
        // SAFETY: the slots begin where the mapping does, before the header, one for each of the classes'.
        let first: *const Slot = unsafe { ptr::from_ref(self).byte_sub(self.slot_bytes).cast() };
        let runs = classes.iter().flat_map(|class| class.runs(shift)).enumerate();
        // SAFETY: as above.
        let slots = runs.filter_map(|(index, run)| Some((unsafe { &*first.add(index) }, run?)));
        Cells::map(cut, slots)
    }

    /// The entry of a class, or of its family.
    fn find_or_family(&self, class: Class) -> Option<&ClassEntry> {
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

    /// All classes.
    fn classes(&self) -> impl Iterator<Item = &ClassEntry> {
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
    fn find(&self, class: Class) -> Option<&ClassEntry> {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn class(bytes: usize) -> Class {
        Class::of(bytes, 16).expect("possible size")
    }

    /// Puts a plan in force in pages up to `limit`.
    fn install(matcher: &Matcher, arena: &Arena, classes: &[ClassSlots], limit: u32) {
        let runs: Vec<_> = classes.iter().flat_map(|class| class.runs(12)).flatten().collect();
        // SAFETY: cut at these runs, up to what tests make usable.
        assert!(unsafe {
            matcher.install(arena, Tables { classes, families: &[], begin: None }, &Cut::of(&runs, limit))
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
    fn slots_are_served_in_order_and_busy_ones_replaced() {
        let arena: &'static Arena = crate::arena::tests_arena(12, 4096 * 64);
        let matcher = Matcher::empty();
        assert_eq!(matcher.claim(arena, class(40_000)), Match::Unknown);
        let classes = [
            ClassSlots { class: class(40_000), slots: vec![Some(0), Some(10), None, Some(20)] },
            ClassSlots { class: class(50_000), slots: vec![Some(0)] },
        ];
        install(&matcher, arena, &classes, 64);
        let at = |granule: usize| Match::Slot((arena.base() + granule * 4096) as *mut u8);
        // SAFETY: installed for this arena, or not at all.
        let quickly = |bytes| unsafe { matcher.claim_quickly(arena, class(bytes)) };
        assert_eq!(quickly(60_000), Quick::Uncounted);
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
        // Sizes of 9 to 400 granules, as large as many cells of the smaller.
        let sizes = [9, 10, 13, 40, 90, 400].map(|granules| granules * 4096);
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
                            let first = (block - arena.base()) / 4096;
                            for owner in &owners[first..first + bytes / 4096] {
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
                        let first = (block as usize - arena.base()) / 4096;
                        for owner in &owners[first..first + bytes / 4096] {
                            assert_eq!(owner.swap(thread, Relaxed), 0, "two blocks share a granule");
                        }
                        live.push((block as usize, bytes));
                    }
                    for (block, bytes) in live {
                        let first = (block - arena.base()) / 4096;
                        owners[first..first + bytes / 4096].iter().for_each(|owner| owner.store(0, Relaxed));
                        assert_eq!(arena.release(block), crate::arena::Released::Block);
                    }
                    all_served.iter().zip(served).for_each(|(all, count)| _ = all.fetch_add(count, Relaxed));
                });
            }
            let mut state = 77;
            let mut plans = 0;
            while running.load(Relaxed) > 0 || plans < 100 {
                let classes = sizes.map(|bytes| {
                    let mut start = || Some(random(&mut state) % (GRANULES - (bytes / 4096) as u32 + 1));
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
        assert_eq!(arena.claim_gap(4096 * GRANULES as usize, 1), Some(arena.base() as *mut u8));
    }
}
