//! What is written down while a program runs: the [`size_log`] of large allocations in their order, the [`recorder`]'s events while steps are
//! learned, the [`journal`] of what each step has cost, and the [`tracer`]'s file of all events.

pub(crate) mod journal;
#[cfg(test)]
mod models;
pub(crate) mod recorder;
pub(crate) mod size_log;
pub mod tracer;
