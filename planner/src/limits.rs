//! When to stop before the work is done: a time limit, or a word from the caller.

use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

/// How far planning is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Progress {
    /// The lowest plan so far, in bytes; `u64::MAX` before there is one.
    pub height: u64,
    /// What no plan can do without, in bytes.
    pub lower_bound: u64,
}

/// Looks on while a plan is made: called again and again, from the threads that plan, and may say stop.
#[derive(Clone)]
pub(crate) struct Watch(pub Arc<dyn Fn(Progress) -> ControlFlow<()> + Send + Sync>);

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watch")
    }
}

/// What ends planning early.
#[derive(Debug, Clone, Default)]
pub(crate) struct Limits {
    pub deadline: Option<Instant>,
    pub watch: Option<Watch>,
}

impl Limits {
    /// Whether anything can end planning early.
    pub fn any(&self) -> bool {
        self.deadline.is_some() || self.watch.is_some()
    }

    /// Whether to stop now. Asks the clock and the caller.
    pub fn over(&self, progress: Progress) -> bool {
        self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
            || self.watch.as_ref().is_some_and(|Watch(watch)| watch(progress).is_break())
    }
}
