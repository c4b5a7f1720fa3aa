//! What the tests of this package share: the programs they run, how much they do, and what the suite's table says of them.

mod built;
mod setting;

pub use built::built;
pub use setting::{by_setting, count, seed};
