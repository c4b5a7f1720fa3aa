//! From recorded steps to plans: [`collector`] merges steps, a [`step_profile`] is what one step variant asks
//! for, a [`proposal`] places it, and a [`plan_file`] keeps that for the next process.

pub(crate) mod collector;
mod lanes;
pub(crate) mod plan_file;
pub(crate) mod proposal;
pub(crate) mod step_profile;
