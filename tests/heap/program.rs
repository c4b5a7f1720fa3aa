//! Programs of operations: what a thread does in one step, generated from a seed and changed little by little.

use crate::shadow::{Block, LARGEST, Random};

/// The least planned size of all programs here, in bytes: small, so that planned blocks are cheap to fill.
pub(crate) const MIN_BYTES: usize = 1024;
/// The same as a setting.
pub(crate) const MIN_BYTES_SETTING: (&str, &str) = ("STEPALLOC_MIN_BYTES", "1024");

/// One operation on a thread's numbered places, each of which holds a block or none.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Operation {
    /// Puts a new block into a place; the block that was there is freed after that.
    Allocate { place: usize, size: usize, align: usize, zeroed: bool },
    /// Frees a place's block.
    Free { place: usize },
    /// Changes the size of a place's block.
    Resize { place: usize, size: usize },
    /// Gives a place's block to another thread.
    Send { place: usize, thread: usize },
    /// Frees all blocks that others gave.
    FreeReceived,
}

/// A size as programs ask for: mostly some KiB, a few round `MIN_BYTES`, few large.
pub(crate) fn size(random: &mut Random) -> usize {
    match random.below(1000) {
        0..150 => 1 + random.below(MIN_BYTES - 1),
        150..200 => MIN_BYTES - 2 + random.below(5),
        200..300 => MIN_BYTES + random.below(512),
        300..900 => 1024 * (1 + random.below(4)) + random.below(3) * 64,
        900..980 => 1024 * (4 + random.below(28)),
        980..998 => 1024 * (32 + random.below(224)),
        998 => 4096 * (64 + random.below(64)),
        _ => (1 << 20) + random.below(LARGEST / 2 - (1 << 20)),
    }
}

/// An alignment: mostly natural, up to 2 MiB, and rarely 4 MiB, which no arena gives.
pub(crate) fn align(random: &mut Random) -> usize {
    match random.below(2000) {
        0..1600 => 1 << random.below(5),
        1600..1800 => 64,
        1800..1990 => 1 << (7 + random.below(6)),
        1990..1998 => 1 << (13 + random.below(8)),
        1998 => 2 << 20,
        _ => 4 << 20,
    }
}

/// A random operation on `places` places among `threads` threads.
pub(crate) fn operation(random: &mut Random, places: usize, threads: usize) -> Operation {
    let place = random.below(places);
    match random.below(100) {
        0..50 => Operation::Allocate {
            place,
            size: size(random),
            align: align(random),
            zeroed: random.below(4) == 0,
        },
        50..75 => Operation::Free { place },
        75..88 => Operation::Resize { place, size: size(random) },
        88..97 => Operation::Send { place, thread: random.below(threads) },
        _ => Operation::FreeReceived,
    }
}

/// A program of `length` operations.
pub(crate) fn program(random: &mut Random, length: usize, places: usize, threads: usize) -> Vec<Operation> {
    (0..length).map(|_| operation(random, places, threads)).collect()
}

/// Changes about one operation in `every`: other size, deleted, inserted, swapped with its neighbour.
pub(crate) fn perturb(
    program: &mut Vec<Operation>,
    random: &mut Random,
    every: usize,
    places: usize,
    threads: usize,
) {
    for _ in 0..program.len().div_ceil(every) {
        let at = random.below(program.len().max(1));
        match random.below(4) {
            0 if program.len() > 1 => drop(program.remove(at)),
            1 => program.insert(at, operation(random, places, threads)),
            2 if at + 1 < program.len() => program.swap(at, at + 1),
            _ => match program.get_mut(at) {
                Some(Operation::Allocate { size: old, .. } | Operation::Resize { size: old, .. }) => {
                    *old = size(random)
                }
                Some(other) => *other = operation(random, places, threads),
                None => program.push(operation(random, places, threads)),
            },
        }
    }
}

/// Changes every size, so that no plan made before fits.
pub(crate) fn change_sizes(program: &mut [Operation], random: &mut Random) {
    for operation in program {
        if let Operation::Allocate { size: old, .. } | Operation::Resize { size: old, .. } = operation {
            *old = size(random);
        }
    }
}

/// The blocks of a thread, and how often it called the allocator.
#[derive(Default)]
pub(crate) struct Places {
    pub(crate) blocks: Vec<Option<Block>>,
    /// Calls of the allocator: operations on empty places are none.
    pub(crate) calls: u64,
    /// Blocks of planned size that were allocated, and those of them that lay in the arena.
    pub(crate) planned_size: u64,
    pub(crate) in_arena: u64,
}

impl Places {
    pub(crate) fn new(places: usize) -> Self {
        Self { blocks: (0..places).map(|_| None).collect(), ..Self::default() }
    }

    /// Runs one operation. `give` and `take` reach the other threads.
    pub(crate) fn run(
        &mut self,
        operation: Operation,
        give: impl FnOnce(usize, Block),
        take: impl FnOnce() -> Vec<Block>,
    ) -> Result<(), String> {
        match operation {
            Operation::Allocate { place, size, align, zeroed } => {
                let block = Block::new(size, align, zeroed)?;
                self.calls += 1;
                self.count(&block);
                if let Some(old) = self.blocks[place].replace(block) {
                    self.calls += 1;
                    old.free()?;
                }
            }
            Operation::Free { place } => {
                if let Some(block) = self.blocks[place].take() {
                    self.calls += 1;
                    block.free()?;
                }
            }
            Operation::Resize { place, size } => {
                if let Some(mut block) = self.blocks[place].take() {
                    self.calls += 1;
                    block.resize(size)?;
                    self.count(&block);
                    self.blocks[place] = Some(block);
                }
            }
            Operation::Send { place, thread } => {
                if let Some(block) = self.blocks[place].take() {
                    give(thread, block);
                }
            }
            Operation::FreeReceived => {
                for block in take() {
                    self.calls += 1;
                    block.free()?;
                }
            }
        }
        Ok(())
    }

    fn count(&mut self, block: &Block) {
        if block.size() >= MIN_BYTES {
            self.planned_size += 1;
            self.in_arena += u64::from(block.is_in_arena());
        }
    }
}
