//! Programs of operations on the allocator, against a map of what is alive.

use crate::feed::Feed;
use std::alloc::{GlobalAlloc, Layout};
use std::collections::BTreeMap;
use std::sync::Once;
use stepalloc::{Glibc, StatisticAllocator};

/// The allocator over the system's; its engine, its arena and its plan are one a process.
static TESTED: StatisticAllocator<Glibc> = StatisticAllocator::new(Glibc);

/// What makes small programs come to a plan soon: marked steps are collected from the second on, until three change nothing.
const SETTINGS: [(&str, &str); 4] = [
    ("START_STATISTIC_STEP", "1"),
    ("STABLE_STATISTIC_STEP", "2"),
    ("MAX_STATISTIC_STEP", "5"),
    ("STEPALLOC_MIN_BYTES", "1024"),
];

/// Places of a program, each of which holds a block or none.
const PLACES: usize = 32;
/// Times that an input's program runs, so that its steps are learned and served.
const TURNS: usize = 9;
/// Operations of one turn, at most.
const MOST: usize = 400;
/// Bytes of the largest block: 2 MiB and a half, beyond a huge page.
const LARGEST: usize = 5 << 19;
/// Blocks of more bytes are written and compared in part: the rest of their pages has nothing to tell.
const WHOLE: usize = 4096;
/// Of those the bytes at multiples of this: some of every page, and not of each the same.
const STRIDE: usize = 97;
/// And so many at either end.
const END: usize = 64;

/// Operations: what is alive shares no byte, is aligned, keeps its content, and is zero where that was asked for, whatever is
/// asked for and wherever steps begin. Each operation takes three bytes: what, which place, how much.
pub fn operations(data: &[u8]) {
    static SET: Once = Once::new();
    SET.call_once(|| {
        for (name, value) in SETTINGS {
            // SAFETY: no other thread of this process reads the environment or changes it.
            unsafe { std::env::set_var(name, value) };
        }
        stepalloc::initialise();
    });
    let mut heap = Heap { places: [const { None }; PLACES], ranges: BTreeMap::new(), next: 0 };
    for turn in 0..TURNS {
        let mut feed = Feed::new(data);
        for _ in 0..MOST {
            let (Some(what), Some(place), Some(size)) = (feed.byte(), feed.byte(), feed.byte()) else {
                break;
            };
            heap.does(what, place, size, turn);
        }
        stepalloc::boundary();
        heap.check();
    }
    for place in 0..PLACES {
        heap.free(place);
    }
    let statistics = stepalloc::statistics();
    assert_eq!(statistics.failed_plans, 0, "{statistics:?}");
    assert!(statistics.to_json().ends_with('}'));
}

/// A block and what it must contain.
struct Block {
    start: usize,
    layout: Layout,
    /// Where its pattern begins.
    seed: u8,
}

struct Heap {
    places: [Option<Block>; PLACES],
    /// Of all blocks alive, by their first byte, the end.
    ranges: BTreeMap<usize, usize>,
    next: u8,
}

/// Sizes: most below 64 KiB, some small ones that the backend has, some large.
fn size(what: u8, size: u8) -> usize {
    let size = usize::from(size) + 1;
    match what % 8 {
        0 => size,
        1 => size << 4,
        2 => size << 13,
        3 if what > 250 => LARGEST - size,
        _ => size << 8,
    }
}

impl Heap {
    fn does(&mut self, what: u8, place: u8, amount: u8, turn: usize) {
        // Some operations differ from turn to turn: steps do.
        let amount = if place >= 0xf0 { amount.wrapping_add(turn as u8) } else { amount };
        let place_index = usize::from(place) % PLACES;
        match what {
            0..=7 => stepalloc::boundary(),
            8 => drop(stepalloc::step()),
            9 => _ = stepalloc::release(),
            10 => self.check(),
            11..=110 => self.free(place_index),
            111..=160 => self.resize(place_index, size(what, amount)),
            161..=175 => self.allocate(place_index, size(what, amount), 1 << (amount % 17), false),
            176..=195 => self.allocate(place_index, size(what, amount), 16, true),
            _ => self.allocate(place_index, size(what, amount), 16, false),
        }
    }

    fn allocate(&mut self, place: usize, size: usize, align: usize, zeroed: bool) {
        let layout = Layout::from_size_align(size, align).expect("programs have legal layouts");
        // SAFETY: the size is not 0.
        let start =
            unsafe { if zeroed { TESTED.alloc_zeroed(layout) } else { TESTED.alloc(layout) } } as usize;
        let seed = self.seed();
        let block = Block { start, layout, seed };
        self.placed(&block);
        if zeroed {
            let is_zero =
                block.zeros().chunks(64).all(|bytes| bytes.iter().fold(0, |all, byte| all | byte) == 0);
            assert!(is_zero, "{size} bytes that were to be zero are not");
        }
        block.fill();
        // The block that was here goes after the new one came, as vectors that are replaced do.
        self.free(place);
        self.places[place] = Some(block);
    }

    fn seed(&mut self) -> u8 {
        self.next = self.next.wrapping_add(41);
        self.next
    }

    /// Notes where a block is, which no other may be.
    fn placed(&mut self, block: &Block) {
        let (start, size) = (block.start, block.layout.size());
        assert!(start != 0, "no memory for {size} bytes");
        assert!(
            start.is_multiple_of(block.layout.align()),
            "{start:#x} is not aligned to {:?}",
            block.layout
        );
        let end = start + size;
        let before = self.ranges.range(..end).next_back();
        assert!(
            before.is_none_or(|(_, &other)| other <= start),
            "{start:#x}..{end:#x} shares bytes with {before:x?}, which is alive"
        );
        self.ranges.insert(start, end);
    }

    fn free(&mut self, place: usize) {
        let Some(block) = self.places[place].take() else { return };
        block.check(block.layout.size());
        assert_eq!(self.ranges.remove(&block.start), Some(block.start + block.layout.size()));
        // SAFETY: live, and of this layout; the value is gone afterwards.
        unsafe { TESTED.dealloc(block.start as *mut u8, block.layout) };
    }

    fn resize(&mut self, place: usize, size: usize) {
        let Some(mut block) = self.places[place].take() else { return };
        let before = block.layout.size();
        block.check(before);
        self.ranges.remove(&block.start);
        // SAFETY: live, of this layout, and the new size is neither 0 nor too large for the alignment.
        block.start = unsafe { TESTED.realloc(block.start as *mut u8, block.layout, size) } as usize;
        block.layout =
            Layout::from_size_align(size, block.layout.align()).expect("programs have legal layouts");
        self.placed(&block);
        block.check(before);
        block.seed = self.seed();
        block.fill();
        self.places[place] = Some(block);
    }

    fn check(&self) {
        for block in self.places.iter().flatten() {
            block.check(block.layout.size());
        }
    }
}

impl Block {
    /// All bytes of one that was asked for zeroed, and was not written to since.
    fn zeros(&self) -> &[u8] {
        // SAFETY: live, of that size, and initialised by who made it.
        unsafe { std::slice::from_raw_parts(self.start as *const u8, self.layout.size()) }
    }

    /// The byte at a place of it.
    fn pattern(&self, at: usize) -> u8 {
        self.seed.wrapping_add((at % 251) as u8)
    }

    /// The bytes that are written and compared: all of a small block, and of a large one its ends and some of every page.
    fn places(length: usize) -> impl Iterator<Item = usize> {
        let (step, end) = if length <= WHOLE { (1, 0) } else { (STRIDE, END) };
        (0..end).chain((0..length).step_by(step)).chain(length - end..length)
    }

    fn fill(&self) {
        for at in Self::places(self.layout.size()) {
            // SAFETY: within the live block, which nobody else has.
            unsafe { (self.start as *mut u8).add(at).write(self.pattern(at)) };
        }
    }

    /// Compares what was written while it had so many bytes, as far as it still has them.
    fn check(&self, written: usize) {
        let length = self.layout.size();
        for at in Self::places(written).filter(|&at| at < length) {
            // SAFETY: within the live block, and written by `fill`.
            let byte = unsafe { (self.start as *const u8).add(at).read() };
            assert_eq!(byte, self.pattern(at), "byte {at} at {:#x}, {:?}", self.start, self.layout);
        }
    }
}
