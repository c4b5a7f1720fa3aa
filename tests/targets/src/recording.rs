//! What the tracer leaves of a process, and the trace that the command makes of it.

#[path = "../../../cli/src/recording/mod.rs"]
#[allow(dead_code, reason = "the command needs the rest")]
#[allow(missing_docs, reason = "it is the command's")]
mod made;

use crate::memory::within;
use crate::scratch::Scratch;
use made::Recording;
use std::io::Cursor;
use stepalloc_planner::{Input, read_from};

/// A record of 32 bytes becomes an event, and has its place in the tables.
const TIMES: usize = 32;
/// The reader's buffer, twice.
const BASE: usize = 3 << 20;

/// Recordings: whatever a file of the tracer says, what the command makes of it is a trace.
pub fn recording(data: &[u8]) {
    let file = Scratch::new("trace", data);
    let Ok(Some(recording)) = within(data.len(), TIMES, BASE, || Recording::read(file.path())) else {
        return;
    };
    let text = recording.to_memtrace("a name");
    match read_from(Cursor::new(text.clone().into_bytes()), "file.csv", 4096) {
        Ok(Input::Trace { trace, .. }) => {
            assert_eq!((trace.name.as_str(), trace.min_bytes), ("a_name", recording.min_bytes));
            assert!(!trace.steps.is_empty());
        }
        Ok(Input::Buffers(_)) => panic!("no trace:\n{text}"),
        Err(error) => panic!("{error}:\n{text}"),
    }
}
