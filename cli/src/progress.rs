//! A bar for long work, where standard error is a terminal.

use std::io::{self, IsTerminal};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A bar over `count` pieces, laid out as the template says; and whether nobody sees it, so that lines are wanted in its place.
pub fn bar(count: u64, template: &str) -> (ProgressBar, bool) {
    let lines = !io::stderr().is_terminal();
    let target = if lines { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
    let bar = ProgressBar::with_draw_target(Some(count), target);
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style.progress_chars("=> "));
    }
    if !lines {
        bar.enable_steady_tick(Duration::from_millis(250));
    }
    (bar, lines)
}
