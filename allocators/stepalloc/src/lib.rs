//! Stepalloc: a statistic allocator. (essay to come)

mod alloc;
mod arena;
pub mod backend;
mod collector;
mod matcher;
pub mod os;
mod phase;
mod recorder;
pub mod route;
mod settings;
mod statistics;
mod step;

pub use alloc::StatisticAllocator;
#[cfg(feature = "glibc")]
pub use backend::Glibc;
#[cfg(feature = "jemalloc")]
pub use backend::Jemalloc;
#[cfg(feature = "mimalloc")]
pub use backend::Mimalloc;
pub use backend::Backend;
pub use phase::{boundary, initialise, phase, statistics};
pub use settings::Settings;
pub use statistics::{LastSteps, Phase, Statistics};
pub use step::{Step, step};

/// Sets jemalloc's configuration for the whole program, read at its start.
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
