//! Stepalloc: an allocator that learns a program's step.
//!
//! A program that trains, infers, renders or simulates repeats a *step*, and each step asks for the same memory. This
//! crate's [`StatisticAllocator`] counts steps, records some of them, plans their memory close to the proven minimum,
//! and then serves each block from its place in one fixed *arena*: no page faults, no searching, no fragmentation. It
//! is DeepRec's statistic allocator, with its variables and thresholds, over glibc, jemalloc or mimalloc.
//!
//! ```
//! use stepalloc::{Glibc, StatisticAllocator};
//!
//! #[global_allocator]
//! static ALLOCATOR: StatisticAllocator<Glibc> = StatisticAllocator::new(Glibc);
//!
//! fn main() {
//!     for _ in 0..200 {
//!         let _step = stepalloc::step();
//!         let activations = vec![0.0f32; 1 << 16];
//!         let gradients = vec![1.0f32; 1 << 16];
//!         std::hint::black_box((activations, gradients));
//!     }
//!     println!("{}", stepalloc::statistics().to_json());
//! }
//! ```
//!
//! # The way of an allocation
//!
//! ```text
//! alloc(size)  below the threshold -----------------> backend
//!              no plan yet, recorded or not --------> large heap; where that is closed or full, backend
//!              planned: the slot of the n-th block of this size in this step
//!                       free: claim it; occupied: another of its size, or a gap -> else large heap
//! free(p)      in the arena or the heap: release;   else backend
//! ```
//!
//! # Steps
//!
//! A program marks its steps ([`step`], [`boundary`]), or does not: then the period of its large allocations
//! is found from their sizes alone, and a step begins at the fewest live bytes. Marks, once given, are all
//! that counts. Several step variants (sequence lengths, training and evaluation) have a plan each, in one
//! arena. Where sizes follow the data and differ by some percent from step to step, a block is known by its
//! family of sizes, and its slot is as large as the family's largest.
//!
//! # Phases
//!
//! *Waiting* counts steps until `START_STATISTIC_STEP`, or samples sizes until a period is found.
//! *Collecting* records blocks of `STEPALLOC_MIN_BYTES` and more, until more than `STABLE_STATISTIC_STEP`
//! steps in a row changed nothing in the step profile, or more than `MAX_STATISTIC_STEP` were seen; of
//! detected steps two are enough. *Planned* serves; when less than nine tenths of the bytes find their slot
//! for several steps, the heap serves until the profiles were collected again. All [`Settings`] come from the
//! environment.
//!
//! # What holds whatever the program does
//!
//! A plan is a proposal: a block is served only where the count of what is really occupied says that nothing lives, by
//! an atomic change of it. So blocks never overlap, whatever order, sizes and threads the program turns to. There is no
//! header in or before a block. The allocation path allocates nothing and unwinds nowhere; planned blocks are served and
//! all blocks freed without waiting for a lock, and for a gap or an extent a lock is asked for a bounded time, which a fork leaves free.
//! Where there is no plan, no arena or no memory for one, the large heap serves, and where it cannot, the backend.
//!
//! # Costs and limits
//!
//! Blocks below the threshold cost two comparisons more than the backend a pair, in all phases;
//! `benches/instructions.py` counts what they come to. While collecting, an event of 16 bytes is recorded for
//! each planned-size allocation and free of a step. A boundary costs three system calls. Memory of the arena
//! goes back to the system after ten seconds without a request of planned size, or by [`release`]; while a
//! plan serves, a thread looks for that. Programs whose sizes never repeat gain from the large heap only.
//! Linux with glibc only.
//!
//! # Layout
//!
//! A request comes to `alloc`, or in the preloaded library to the C ABI; the `switches` say whether it goes
//! on to `route`, the dispatch, or to the [`backend`]. `lookup` says which slot a plan proposes, `arena`
//! whether it is free, and `heap` serves what no plan does. `record` writes down what is asked for, `detect`
//! finds the steps of programs that mark none (`step` has marked ones), `profile` merges and plans them (by
//! stepalloc-planner), and `engine` decides when, by the thresholds in `policy`. [`os`] has every system
//! call.

mod alloc;
mod arena;
pub mod backend;
mod checksum;
mod detect;
mod engine;
#[doc(hidden)]
pub mod fail_point;
mod heap;
mod lock;
mod lookup;
#[cfg(test)]
mod models;
pub mod os;
mod policy;
mod profile;
mod record;
mod reentrant;
#[doc(hidden)]
pub mod route;
#[doc(hidden)]
pub mod scarcity;
mod settings;
mod statistics;
mod step;
mod switches;
mod thread_locals;
mod word;

pub use alloc::StatisticAllocator;
pub use arena::region::Region;
pub use backend::Backend;
#[cfg(feature = "glibc")]
pub use backend::{Glibc, GlibcTuning};
#[cfg(feature = "jemalloc")]
pub use backend::{Jemalloc, JemallocTuning};
#[cfg(feature = "mimalloc")]
pub use backend::{Mimalloc, MimallocOption};
pub use engine::{boundary, disable, initialise, phase, release, statistics};
pub use lookup::misses::{Miss, Reason};
#[doc(hidden)]
pub use profile::plan_file::rewrite_plans;
pub use profile::plan_file::{PLAN_MAGIC, PlanFileError, StoredPlans, plan_class, read_plans};
pub use record::tracer;
#[doc(hidden)]
pub use settings::attached_path;
pub use settings::{HugePages, Large, Settings};
pub use statistics::{LastSteps, Phase, Statistics};
pub use step::{SharedStep, Step, StepGuard, step};

/// Sets jemalloc's configuration for the whole program; read when it starts, before `main`, and overruled by
/// `_RJEM_MALLOC_CONF`. With DeepRec's recommendation:
///
/// ```
/// stepalloc::jemalloc_conf!("background_thread:true,metadata_thp:auto,dirty_decay_ms:20000,muzzy_decay_ms:20000");
/// # fn main() {}
/// ```
#[cfg(feature = "jemalloc")]
#[macro_export]
macro_rules! jemalloc_conf {
    ($text:literal) => {
        const _: () = {
            #[repr(transparent)]
            struct Text(*const ::core::ffi::c_char);
            // SAFETY: points to a constant string that nobody changes.
            unsafe impl Sync for Text {}
            #[unsafe(export_name = "_rjem_malloc_conf")]
            static CONFIGURATION: Text = Text(concat!($text, "\0").as_ptr().cast());
        };
    };
}

#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct ReadmeExamples;
