//! For those who wait for a plan: a line on the terminal that tells how far it is, and Ctrl-C, which takes the best so far.

use std::io::{self, IsTerminal, Write};
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use stepalloc_planner::Progress;

use crate::os;
use crate::size;

/// Nobody misses a line about what takes no longer.
const PATIENCE: Duration = Duration::from_secs(1);
/// As often as one reads.
const INTERVAL: Duration = Duration::from_millis(200);

/// The line, and what it knows.
#[derive(Clone)]
pub struct Waiting {
    start: Instant,
    /// When the line is written next; `None` where standard error is no terminal.
    next: Arc<Mutex<Option<Instant>>>,
}

impl Waiting {
    /// From now on Ctrl-C is noticed instead of ending the process; a second one ends it.
    pub fn new() -> Waiting {
        os::notice_interrupt();
        let start = Instant::now();
        let next = io::stderr().is_terminal().then(|| start + PATIENCE);
        Waiting { start, next: Arc::new(Mutex::new(next)) }
    }

    /// Writes the line where it is time, and says stop after Ctrl-C.
    pub fn tell(&self, progress: Progress) -> ControlFlow<()> {
        if os::interrupted() {
            return ControlFlow::Break(());
        }
        let now = Instant::now();
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        if next.is_some_and(|next| now >= next) {
            *next = Some(now + INTERVAL);
            let line = line(progress, now - self.start);
            // To the line's beginning, and clear it.
            let _ = write!(io::stderr().lock(), "\r\x1b[K{line}");
        }
        ControlFlow::Continue(())
    }

    /// Takes the line away.
    pub fn end(&self) {
        let next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        if next.is_some_and(|next| next > self.start + PATIENCE) {
            let _ = write!(io::stderr().lock(), "\r\x1b[K");
        }
        if os::interrupted() {
            os::say("interrupted: this is the best plan so far");
        }
    }
}

fn line(progress: Progress, since: Duration) -> String {
    let Progress { height, lower_bound } = progress;
    let seconds = since.as_secs();
    if height == u64::MAX {
        return format!("{seconds} s, no plan yet");
    }
    let ratio = if lower_bound == 0 { 1.0 } else { height as f64 / lower_bound as f64 };
    format!("{seconds} s, {}, {ratio:.4} x lower bound; Ctrl-C takes it as it is", size::show(height))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_tells_time_height_and_ratio() {
        let progress = Progress { height: 3 << 20, lower_bound: 2 << 20 };
        assert_eq!(
            line(progress, Duration::from_millis(7_900)),
            "7 s, 3.0 MiB, 1.5000 x lower bound; Ctrl-C takes it as it is"
        );
        let none = Progress { height: u64::MAX, lower_bound: 0 };
        assert_eq!(line(none, Duration::ZERO), "0 s, no plan yet");
    }
}
