//! Claim against release against gap against exchange of plans, of an arena of four granules.
//!
//! The edges of cells are plain words: they stay until their memory goes back. Kernel zeroing comes in one place
//! ([`a_slot_whose_memory_goes_back_is_read_whole_or_not_at_all`]), as stores; `discard` itself is the kernel's.

use super::*;
use crate::arena::{Arena, Block, Region, Released};
use crate::lock::Lock;
use crate::models::{Bool, Loom, Place as Content, Ptr, U32, U64, Usize, explore, leak};
use core::alloc::Layout;
use core::sync::atomic::AtomicU32 as Plain;
use loom::thread;

const SHIFT: u32 = 6;
const GRANULES: u32 = 4;
/// Where the arena lies; nothing is written there.
const BASE: usize = 1 << 20;

/// Four granules, two cells in the first word, and two in the second.
const EDGES: [u32; 2 * CELLS_A_WORD as usize + 1] = {
    let mut edges = [GRANULES; 2 * CELLS_A_WORD as usize + 1];
    let mut at = 0;
    while at < CELLS_A_WORD as usize {
        edges[at] = 2;
        at += 1;
    }
    (edges[0], edges[1]) = (0, 1);
    (edges[CELLS_A_WORD as usize], edges[CELLS_A_WORD as usize + 1]) = (2, 3);
    edges
};
/// The cell with which each of them begins, and the end.
const CELLS: [u32; GRANULES as usize + 1] = [0, 1, CELLS_A_WORD, CELLS_A_WORD + 1, CELLS_A_WORD + 2];

fn no_slot() -> Slot<Loom> {
    Slot {
        run: U64::new(0),
        word: Ptr::new(ptr::null_mut()),
        first: U64::new(0),
        second: U64::new(0),
        middle: Plain::new(0),
        start: Plain::new(0),
        count: Plain::new(0),
        lines: Plain::new(0),
        edges: Ptr::new(ptr::null_mut()),
    }
}

/// Cells of a plan with these slots, each from one granule to another.
fn plan<const N: usize>(runs: [(u32, u32); N]) -> (&'static Cells<Loom>, [&'static Slot<Loom>; N]) {
    let words = EDGES.len() / CELLS_A_WORD as usize;
    let bytes = size_of::<Cells<Loom>>() + words * size_of::<U64>() + EDGES.len() * size_of::<Plain>();
    let layout = Layout::from_size_align(bytes, align_of::<Cells<Loom>>()).expect("possible");
    // SAFETY: fresh memory, in which header, words and edges follow each other.
    let cells = unsafe {
        let map: *mut Cells<Loom> = std::alloc::alloc(layout).cast();
        map.write(Cells {
            words: Plain::new(words as u32),
            limit: Plain::new(GRANULES),
            closing: Bool::new(false),
            bytes,
        });
        let first: *mut U64 = map.add(1).cast();
        (0..words).for_each(|at| first.add(at).write(U64::new(0)));
        let edges: *mut Plain = first.add(words).cast();
        (0..EDGES.len()).for_each(|at| edges.add(at).write(Plain::new(0)));
        &*map
    };
    let slots = runs.map(|_| leak(no_slot()));
    let cut = Cut {
        edges: EDGES.to_vec(),
        runs: runs.iter().map(|&(start, end)| (CELLS[start as usize], CELLS[end as usize])).collect(),
    };
    let runs = runs.iter().map(|&(start, end)| Run::between(start, end));
    cells.write(&cut, slots.into_iter().zip(runs).map(|(slot, run)| (slot, run, 0)));
    (cells, slots)
}

/// An arena and what blocks have in its granules.
struct Model {
    arena: Arena<Loom>,
    contents: Vec<Content>,
}

/// An arena in which a plan is in force.
fn arena(cells: &'static Cells<Loom>) -> &'static Model {
    let blocks: Box<[Block<Loom>]> =
        (0..GRANULES).map(|_| Block { slot: Ptr::new(ptr::null_mut()), run: U64::new(0) }).collect();
    let bits = Loom::map(1).expect("memory");
    let arena = Arena {
        region: Region::closed(),
        shift: Plain::new(SHIFT),
        granules: Granules { bits: Ptr::new(bits) },
        window_shift: Plain::new(SHIFT),
        windows: Usize::new(GRANULES as usize),
        blocks: Ptr::new(Box::leak(blocks).as_mut_ptr()),
        cells: Ptr::new(ptr::null_mut()),
        lock: Lock::over(U32::new(0)),
    };
    arena.region.open(BASE as *mut u8, (GRANULES as usize) << SHIFT);
    cells.open(&arena.granules);
    arena.cells.store(ptr::from_ref(cells).cast_mut(), Release);
    leak(Model { arena, contents: (0..GRANULES).map(|_| Content::new()).collect() })
}

impl Model {
    /// A block by whichever way there is without the lock.
    fn claim_quickly(&self, slot: &Slot<Loom>) -> Option<*mut u8> {
        // SAFETY: a slot of this arena, which stays; the half that was taken.
        unsafe {
            match self.arena.claim_quickly(slot) {
                Taken::All(block) => Some(block),
                Taken::Half(half) => {
                    self.arena.undo(half.word, half.lower, half.run);
                    None
                }
                Taken::Nothing | Taken::Several => None,
            }
        }
    }

    fn claim(&self, slot: &Slot<Loom>) -> Option<*mut u8> {
        // SAFETY: a slot of this arena, which stays.
        unsafe { self.arena.claim(slot) }.ok()
    }

    fn gap(&self, none: &'static Slot<Loom>, length: u32) -> Option<*mut u8> {
        let run = self.arena.take_gap(length, 1)?;
        Some(self.arena.begin(run, none, 0))
    }

    /// Writes to a block.
    fn fill(&self, block: *mut u8) {
        let run = self.run(block);
        self.contents[run.start() as usize..run.end() as usize].iter().for_each(Content::own);
    }

    fn run(&self, block: *mut u8) -> Run {
        self.arena.find(block as usize - BASE).expect("a block that is alive").1
    }

    /// Writes to a block and frees it.
    fn end(&self, block: *mut u8) {
        self.fill(block);
        assert_eq!(self.arena.release(block as usize), Released::Block);
    }

    /// Looks at the end whether nothing is occupied, and all of the slots can be claimed, one after the other.
    fn is_empty(&self, slots: &[&'static Slot<Loom>]) {
        assert_eq!(self.arena.occupied_bytes(), 0);
        for slot in slots {
            let block = self.claim(slot).expect("all is free");
            self.end(block);
        }
    }
}

/// The addresses of blocks, which are nobody's memory.
struct Address(*mut u8);
// SAFETY: a number.
unsafe impl Send for Address {}

#[test]
fn a_slot_passes_from_one_thread_to_the_next() {
    explore(4, || {
        let (cells, [slot]) = plan([(0, 1)]);
        let model = arena(cells);
        let other = thread::spawn(move || {
            if let Some(block) = model.claim_quickly(slot) {
                model.end(block);
            }
        });
        if let Some(block) = model.claim_quickly(slot) {
            model.end(block);
        }
        other.join().expect("no panic");
        model.is_empty(&[slot]);
    });
}

#[test]
fn slots_that_share_words_are_never_both_taken() {
    explore(3, || {
        let (cells, [across, low, high]) = plan([(1, 3), (0, 2), (2, 4)]);
        let model = arena(cells);
        let others = [low, high].map(|slot| {
            thread::spawn(move || {
                if let Some(block) = model.claim_quickly(slot) {
                    model.end(block);
                }
            })
        });
        if let Some(block) = model.claim_quickly(across) {
            model.end(block);
        }
        others.into_iter().for_each(|other| other.join().expect("no panic"));
        model.is_empty(&[across, low, high]);
    });
}

#[test]
fn a_slot_of_two_words_is_taken_whole_or_not_at_all() {
    explore(4, || {
        let (cells, [across, high]) = plan([(1, 3), (2, 4)]);
        let model = arena(cells);
        let other = thread::spawn(move || {
            if let Some(block) = model.claim(across) {
                model.end(block);
            }
        });
        if let Some(block) = model.claim(high) {
            model.end(block);
        }
        other.join().expect("no panic");
        model.is_empty(&[across, high]);
    });
}

#[test]
fn a_gap_and_a_slot_are_never_both_taken() {
    explore(4, || {
        let (cells, [slot, all]) = plan([(0, 2), (0, 4)]);
        let none = leak(no_slot());
        let model = arena(cells);
        // One granule is left for the gap, beside that of the slot.
        let other = thread::spawn(move || {
            if let Some(block) = model.gap(none, 3) {
                model.end(block);
            }
        });
        if let Some(block) = model.claim_quickly(slot) {
            model.end(block);
        }
        other.join().expect("no panic");
        model.is_empty(&[slot, all]);
    });
}

#[test]
fn cells_in_which_a_gap_was_are_a_slot_again_once_it_is_free() {
    explore(3, || {
        let (cells, [slot]) = plan([(0, 2)]);
        let none = leak(no_slot());
        let model = arena(cells);
        let block = Address(model.gap(none, 1).expect("all is free"));
        let other = thread::spawn(move || {
            let block = block;
            model.end(block.0);
        });
        let third = thread::spawn(move || {
            if let Some(block) = model.claim_quickly(slot) {
                model.end(block);
            }
        });
        if let Some(block) = model.claim(slot) {
            model.end(block);
        }
        [other, third].into_iter().for_each(|other| other.join().expect("no panic"));
        model.is_empty(&[slot]);
    });
}

#[test]
fn cells_that_are_split_are_no_slot_while_another_gap_is_taken() {
    explore(3, || {
        let (cells, [slot]) = plan([(0, 2)]);
        let none = leak(no_slot());
        let model = arena(cells);
        // Splits them.
        let block = model.gap(none, 1).expect("all is free");
        model.end(block);
        let other = thread::spawn(move || {
            if let Some(block) = model.gap(none, 1) {
                model.end(block);
            }
        });
        if let Some(block) = model.claim(slot) {
            model.end(block);
        }
        other.join().expect("no panic");
        model.is_empty(&[slot]);
    });
}

/// Both short attempts fail then, and the cells are given back in as many as it needs.
#[test]
fn cells_are_given_back_while_others_of_their_word_change() {
    explore(3, || {
        let (cells, [slot, beside]) = plan([(0, 1), (1, 2)]);
        let model = arena(cells);
        let block = Address(model.claim_quickly(slot).expect("all is free"));
        let other = thread::spawn(move || {
            let block = block;
            model.end(block.0);
        });
        for slot in [beside, slot] {
            if let Some(block) = model.claim_quickly(slot) {
                model.end(block);
            }
        }
        other.join().expect("no panic");
        model.is_empty(&[slot, beside]);
    });
}

#[test]
fn a_block_that_is_freed_while_plans_change_is_free_in_the_new_one() {
    explore(3, || {
        let (cells, [old]) = plan([(0, 2)]);
        let (next, [new]) = plan([(1, 3)]);
        let model = arena(cells);
        let block = Address(model.claim_quickly(old).expect("all is free"));
        let other = thread::spawn(move || {
            let block = block;
            model.end(block.0);
        });
        assert!(model.arena.exchange(next));
        if let Some(block) = model.claim(new) {
            model.end(block);
        }
        other.join().expect("no panic");
        model.is_empty(&[new]);
    });
}

#[test]
fn a_slot_that_is_claimed_while_plans_change_is_occupied_in_the_new_one() {
    explore(3, || {
        let (cells, [old]) = plan([(1, 3)]);
        let (next, [new]) = plan([(0, 2)]);
        let model = arena(cells);
        let other = thread::spawn(move || {
            if let Some(block) = model.claim(old) {
                model.end(block);
            }
        });
        assert!(model.arena.exchange(next));
        if let Some(block) = model.claim_quickly(new) {
            model.end(block);
        }
        other.join().expect("no panic");
        model.is_empty(&[new]);
    });
}

#[test]
fn what_stays_free_for_the_system_is_given_to_nobody_meanwhile() {
    explore(3, || {
        let (cells, [slot, beside]) = plan([(0, 1), (1, 3)]);
        let model = arena(cells);
        let other = thread::spawn(move || {
            for slot in [slot, beside] {
                if let Some(block) = model.claim_quickly(slot) {
                    model.end(block);
                }
            }
        });
        cells.while_free(&model.arena.granules, 1, |run| {
            model.contents[run.start() as usize..run.end() as usize].iter().for_each(Content::own);
        });
        other.join().expect("no panic");
        model.is_empty(&[slot, beside]);
    });
}

/// The kernel replaces the slot's page by another: who finds one word 0 finds all of them 0 from then on. So what is read last is the first to
/// be 0 here.
#[test]
fn a_slot_whose_memory_goes_back_is_read_whole_or_not_at_all() {
    explore(2, || {
        let (cells, [slot]) = plan([(1, 3)]);
        let model = arena(cells);
        let block = model.claim_quickly(slot).expect("all is free");
        let other = thread::spawn(move || {
            cells.close(&model.arena.granules);
            slot.first.store(0, Relaxed);
            slot.count.store(0, Relaxed);
            slot.run.store(0, Release);
            slot.word.store(ptr::null_mut(), Release);
            slot.second.store(0, Release);
            slot.middle.store(0, Release);
            slot.start.store(0, Release);
            slot.edges.store(ptr::null_mut(), Release);
        });
        model.end(block);
        assert_eq!(
            model.claim_quickly(slot).map(|block| model.run(block)).filter(|run| run.length() != 2),
            None
        );
        other.join().expect("no panic");
    });
}
