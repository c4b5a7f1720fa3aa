//! Small models in one process: what passes leave of them, and what a session tells of a planned run.

mod planned;
mod sketch;
mod trials;
mod trials_fused;
#[path = "../wire/mod.rs"]
mod wire;
