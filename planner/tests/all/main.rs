//! The planner from outside, topic by topic, in one binary.

mod arenas;
mod constrained;
mod edges;
mod files;
mod golden;
mod kinds;
mod replan;
mod steps;
mod verifier;
