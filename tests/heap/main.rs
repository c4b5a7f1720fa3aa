//! The allocator inside one process, against a shadow heap.
//!
//! The whole binary, test harness included, allocates through [`StatisticAllocator`] over the backend that
//! `STEPALLOC_BACKEND` names. Its engine is one a process and reads its settings once, so each scenario runs in a
//! process of its own (see [`process`]).
//!
//! - `operations`: 8 threads run programs of operations, ten million in all, through every phase and back;
//! - `model`: one thread, programs that shrink, every range of the heap compared after each allocation;
//! - `threads`: 8 threads at once: what the arena serves, and that nothing is lost;
//! - `concurrent`: steps that run on several threads at once;
//! - `one_size`: loops that ask for one size only;
//! - `phases`: when collecting begins and ends;
//! - `lifetimes`: blocks that outlive their step, double buffers, vectors that grow;
//! - `limits`: bounded arenas, address space that runs out, forks;
//! - `large`: the large heap, before a plan and beside it;
//! - `panics`: a panic of the engine's own;
//! - `period`: detected steps;
//! - `settings`: bad values and the statistics signal;
//! - `stall`: what a boundary costs the step's own thread.

mod concurrent;
mod large;
mod lifetimes;
mod limits;
mod model;
mod one_size;
mod operations;
mod panics;
mod period;
mod phases;
mod process;
mod program;
mod settings;
mod shadow;
mod stall;
mod threads;

use stepalloc::StatisticAllocator;
use stepalloc::backend::Chosen;

#[global_allocator]
static GLOBAL: StatisticAllocator<Chosen> = StatisticAllocator::new(Chosen);

/// Debug builds run this many times fewer operations and steps where their number is the only cost.
const DEBUG_DIVISOR: u64 = 40;

/// A number of operations or steps, by the profile.
fn scaled(count: u64) -> u64 {
    if cfg!(debug_assertions) { count / DEBUG_DIVISOR } else { count }
}
