//! Problems made from a seed, for benches, examples and tests: the same arguments give the same problem everywhere.
//!
//! Each generator stands for one shape of lifetimes that planners meet: a C program's heap, steps of training, lifetimes
//! that cross at random, a stack, and a rectangle cut to pieces, whose best plan is known. Numbers come from integers
//! alone, never from floating point, so that no machine rounds them differently. Blocks are ordered by their start, as a
//! recorder hands them out; times are events in which one block begins or ends, unless a generator says otherwise.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

pub use crate::dice::Dice;
use crate::problem::{Block, Problem};

/// What `malloc` aligns to, in bytes.
const MALLOC_ALIGN: u64 = 16;

/// What tensors are aligned to, in bytes.
const TENSOR_ALIGN: u64 = 64;

/// What the heap of [`heap`] looks like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heap {
    /// Of 100 blocks, how many have lifetimes of every order of magnitude alike; the others' are short, with a heavy
    /// tail.
    pub lasting: u64,
    /// Longest lifetime, as a power of two of blocks allocated in the meantime; more than 62 count as 62.
    pub longest: u64,
    /// Of 100 blocks, how many have between 256 bytes and 16 KiB.
    pub medium: u64,
    /// Of 1000 blocks, how many have between 16 KiB and 1 MiB.
    pub large: u64,
}

/// Blocks like those of a C program under `malloc`: nine of ten have 16 to 512 bytes, a few up to a megabyte; most are
/// freed soon, a quarter live for any order of magnitude of time up to the whole run, so that at a million blocks tens
/// of thousands are alive at once. Alignment 16, as `malloc` gives.
pub fn malloc_like(count: usize, seed: u64) -> Problem {
    let longest = u64::from((count as u64 + 1).ilog2());
    heap(count, seed, Heap { lasting: 25, longest, medium: 9, large: 10 })
}

/// [`malloc_like`] with other shares.
pub fn heap(count: usize, seed: u64, mix: Heap) -> Problem {
    let mut dice = Dice::new(seed);
    let mut program = Program::default();
    // Beyond every problem, and no time overflows.
    let longest = mix.longest.min(62);
    for step in 0..count as u64 {
        program.free_until(step);
        let roll = dice.below(1000);
        let size = if roll < mix.large {
            dice.scaled(14, 20)
        } else if roll < mix.large + 10 * mix.medium {
            dice.scaled(8, 14)
        } else {
            dice.scaled(4, 9)
        };
        let length =
            if dice.below(100) < mix.lasting { dice.scaled(0, longest.max(1)) } else { dice.heavy(longest) };
        let block = program.allocate(size.next_multiple_of(MALLOC_ALIGN), MALLOC_ALIGN);
        program.pending.push(Reverse((step + length, block)));
    }
    program.end()
}

/// Steps of training of a network of up to 100 layers: see [`training`].
pub fn training_like(count: usize, seed: u64) -> Problem {
    training(count, seed, 100)
}

/// Steps of training of a network of `layers` layers, as many as `count` blocks allow (the last is cut short).
///
/// Forward, a layer allocates its activation, often a second tensor kept for the backward pass, and a workspace;
/// backward, in the reverse order, a workspace, the gradient of its input, and that of its weights, which lives until
/// the optimizer has used it after the pass. Sizes are those of few kinds of layers, 1 KiB to 16 MiB, other for every
/// seed; alignment 64.
pub fn training(count: usize, seed: u64, layers: usize) -> Problem {
    let mut dice = Dice::new(seed);
    let layers = layers.clamp(1, count.max(1));
    // Role by role: activation, saved, workspaces forward and backward, gradients of the input and of the weights.
    let kinds: Vec<[u64; 6]> =
        (0..8).map(|_| [0; 6].map(|_: u64| dice.scaled(10, 24).next_multiple_of(TENSOR_ALIGN))).collect();
    let network: Vec<[u64; 6]> = (0..layers).map(|_| kinds[dice.below(8) as usize]).collect();
    let keeps: Vec<bool> = (0..layers).map(|_| dice.below(3) > 0).collect();
    let mut program = Program::default();
    while program.blocks.len() < count {
        let mut kept = Vec::with_capacity(layers);
        for (sizes, &keeps) in network.iter().zip(&keeps) {
            let activation = program.allocate(sizes[0], TENSOR_ALIGN);
            let saved = keeps.then(|| program.allocate(sizes[1], TENSOR_ALIGN));
            let workspace = program.allocate(sizes[2], TENSOR_ALIGN);
            program.free(workspace);
            kept.push((activation, saved));
        }
        let mut weights = Vec::with_capacity(layers);
        let mut gradient: Option<usize> = None;
        for (sizes, (activation, saved)) in network.iter().zip(kept).rev() {
            let workspace = program.allocate(sizes[3], TENSOR_ALIGN);
            let input = program.allocate(sizes[4], TENSOR_ALIGN);
            weights.push(program.allocate(sizes[5], TENSOR_ALIGN));
            program.free(workspace);
            program.free(activation);
            saved.into_iter().chain(gradient.replace(input)).for_each(|block| program.free(block));
        }
        gradient.into_iter().chain(weights).for_each(|block| program.free(block));
    }
    let mut problem = program.end();
    problem.blocks.truncate(count);
    problem
}

/// Lifetimes that cross at random: starts anywhere in `0..2 * count`, lengths up to 512 events and sizes up to 64 KiB of
/// every order of magnitude. Several blocks may begin or end at one event; alignment 1.
pub fn crossing(count: usize, seed: u64) -> Problem {
    let mut dice = Dice::new(seed);
    let blocks = (0..count as u64).map(|id| {
        let lower = dice.below(2 * count as u64);
        let (scale, class) = (dice.below(8), dice.below(12));
        let (length, size) = (1 + dice.below(2 << scale), 1 + dice.below(16 << class));
        Block { id, lower, upper: lower + length, size, align: 1 }
    });
    ordered(blocks.collect())
}

/// Lifetimes that cross at random, of any length up to a fifth of the problem's, so that the more blocks there are the
/// more are alive at once; sizes up to 64 KiB of every order of magnitude; alignment 1.
pub fn uniform(count: usize, seed: u64) -> Problem {
    let mut dice = Dice::new(seed);
    let blocks = (0..count as u64).map(|id| {
        let lower = dice.below(2 * count as u64);
        let (length, class) = (1 + dice.below(count as u64 / 5), dice.below(12));
        Block { id, lower, upper: lower + length, size: 1 + dice.below(16 << class), align: 1 }
    });
    ordered(blocks.collect())
}

/// A rectangle of `2 * count` events and at most `64 * count` bytes, cut at random along time or along bytes into `count`
/// blocks (fewer where no piece can be cut any more): a plan as high as the load exists. Alignment 1.
pub fn perfect(count: usize, seed: u64) -> Problem {
    let mut dice = Dice::new(seed);
    let count = count as u64;
    let mut blocks = Vec::with_capacity(count as usize);
    let mut pieces = vec![(0, 2 * count, 64 * count, count)];
    while let Some((lower, upper, size, parts)) = pieces.pop() {
        let length = upper - lower;
        let (long, tall) = (length > 1, size > 1);
        if parts < 2 || !(long || tall) {
            if parts > 0 {
                blocks.push(Block { id: blocks.len() as u64, lower, upper, size, align: 1 });
            }
            continue;
        }
        // Between a quarter and three quarters of the way, with as many of the parts.
        let cut = |whole: u64, dice: &mut Dice| (whole / 4 + dice.below(whole / 2 + 1)).clamp(1, whole - 1);
        let share = |cut: u64, whole: u64| {
            (((u128::from(parts) * u128::from(cut)) / u128::from(whole)) as u64).clamp(1, parts - 1)
        };
        if long && (!tall || dice.below(2) == 0) {
            let at = cut(length, &mut dice);
            let some = share(at, length);
            pieces.extend([(lower, lower + at, size, some), (lower + at, upper, size, parts - some)]);
        } else {
            let at = cut(size, &mut dice);
            let some = share(at, size);
            pieces.extend([(lower, upper, at, some), (lower, upper, size - at, parts - some)]);
        }
    }
    ordered(blocks)
}

/// Lifetimes that nest, as a stack's do: at every event a block of 1 byte to 64 KiB is pushed, or the newest is popped.
/// Alignment 1.
pub fn laminar(count: usize, seed: u64) -> Problem {
    let mut dice = Dice::new(seed);
    let mut program = Program::default();
    let mut stack = Vec::new();
    while program.blocks.len() < count {
        match stack.pop_if(|_| dice.below(2) == 0) {
            Some(block) => program.free(block),
            None => stack.push(program.allocate(dice.scaled(0, 16), 1)),
        }
    }
    while let Some(block) = stack.pop() {
        program.free(block);
    }
    program.end()
}

/// Blocks by their start, numbered anew.
fn ordered(mut blocks: Vec<Block>) -> Problem {
    blocks.sort_by_key(|block| block.lower);
    for (id, block) in (0..).zip(&mut blocks) {
        block.id = id;
    }
    Problem::new(blocks)
}

/// A program under way: one event for each allocation and each free.
#[derive(Debug, Default)]
struct Program {
    blocks: Vec<Block>,
    event: u64,
    /// When blocks are to be freed, on the generator's own clock.
    pending: BinaryHeap<Reverse<(u64, usize)>>,
}

impl Program {
    fn allocate(&mut self, size: u64, align: u64) -> usize {
        let id = self.blocks.len();
        // What is never freed lives to the end.
        self.blocks.push(Block { id: id as u64, lower: self.event, upper: u64::MAX, size, align });
        self.event += 1;
        id
    }

    fn free(&mut self, block: usize) {
        self.blocks[block].upper = self.event;
        self.event += 1;
    }

    /// Frees what is due by this moment of the generator's clock.
    fn free_until(&mut self, clock: u64) {
        while let Some(&Reverse((due, block))) = self.pending.peek()
            && due <= clock
        {
            self.pending.pop();
            self.free(block);
        }
    }

    fn end(mut self) -> Problem {
        for block in &mut self.blocks {
            block.upper = block.upper.min(self.event);
        }
        Problem::new(self.blocks)
    }
}
