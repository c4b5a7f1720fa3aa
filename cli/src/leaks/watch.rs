//! Samples of a program while it runs: at its own round markers, or by the clock.
//!
//! Its standard output goes through us byte by byte as it comes. Where ours cannot be written any more, the pipe is closed,
//! so that the program meets what it would have met without us.

use std::io::{self, Read, Write};
use std::process::ChildStdout;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use stepalloc_leaks::Sample;

use crate::os;

/// A pipe holds as much by default.
const BUFFER: usize = 64 << 10;
/// A program that was asked to end has so long to do so.
const TO_END: Duration = Duration::from_secs(10);
/// What others still hold open is read until nothing has come for so long after the program's end.
const AFTER_THE_END: Duration = Duration::from_millis(500);

/// The rounds so far.
#[derive(Debug, Default)]
pub struct Rounds {
    /// Rounds that have ended.
    pub ended: u64,
    /// In the order of the rounds; of rounds that ended while the one before was sampled, the last one's only.
    pub samples: Vec<Sample>,
    /// There were as many as were asked for, and we ended the program.
    pub is_complete: bool,
}

/// Takes samples of a process until that ends.
pub struct Observer {
    rounds: Arc<Mutex<Rounds>>,
    /// Dropped when the process has ended.
    running: Sender<()>,
    /// A message for each piece of output; closed when the last one was passed on.
    passed_on: Receiver<()>,
}

impl Observer {
    /// A round ends with each line that begins with `word`.
    pub fn of_lines(pid: u32, most: Option<u64>, word: &str, output: ChildStdout) -> Observer {
        let (observer, mut sampler, passing) = Observer::new(pid, most);
        let mut marker = Marker::new(word);
        thread::spawn(move || pass_on(output, |bytes| sampler.end_rounds(marker.count(bytes)), &passing));
        observer
    }

    /// A round ends each time that this much time has gone by.
    pub fn of_time(pid: u32, most: Option<u64>, every: Duration) -> Observer {
        let (observer, mut sampler, passing) = Observer::new(pid, most);
        thread::spawn(move || {
            while sampler.sleep(every) {
                sampler.end_rounds(1);
            }
            drop(passing);
        });
        observer
    }

    fn new(pid: u32, most: Option<u64>) -> (Observer, Sampler, Sender<()>) {
        let rounds = Arc::<Mutex<Rounds>>::default();
        let (running, is_running) = mpsc::channel();
        let (passing, passed_on) = mpsc::channel();
        let sampler = Sampler { pid, most, rounds: Arc::clone(&rounds), is_running: Some(is_running) };
        (Observer { rounds, running, passed_on }, sampler, passing)
    }

    /// What was seen, when the process has ended and what it wrote is passed on.
    pub fn end(self) -> Rounds {
        drop(self.running);
        while self.passed_on.recv_timeout(AFTER_THE_END).is_ok() {}
        std::mem::take(&mut *self.rounds.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Notes rounds of a process.
struct Sampler {
    pid: u32,
    /// The process is ended after so many.
    most: Option<u64>,
    rounds: Arc<Mutex<Rounds>>,
    /// Closed when the process has ended; `None` once another thread waits for that.
    is_running: Option<Receiver<()>>,
}

impl Sampler {
    /// Whether the process still runs after this time.
    fn sleep(&self, time: Duration) -> bool {
        self.is_running
            .as_ref()
            .is_some_and(|running| running.recv_timeout(time) == Err(RecvTimeoutError::Timeout))
    }

    /// One or more rounds have ended.
    fn end_rounds(&mut self, count: u64) {
        let mut rounds = self.rounds.lock().unwrap_or_else(PoisonError::into_inner);
        if count == 0 || rounds.is_complete {
            return;
        }
        rounds.ended += count;
        // Of a process that has just ended there is nothing to be seen.
        if let Ok(sample) = Sample::of(self.pid, rounds.ended) {
            rounds.samples.push(sample);
        }
        if self.most.is_some_and(|most| rounds.ended >= most)
            && let Some(is_running) = self.is_running.take()
        {
            rounds.is_complete = true;
            os::end_child(false);
            thread::spawn(move || {
                if is_running.recv_timeout(TO_END) == Err(RecvTimeoutError::Timeout) {
                    os::end_child(true);
                }
            });
        }
    }
}

/// Passes a program's output on, each piece after `see` has had it.
fn pass_on(mut from: ChildStdout, mut see: impl FnMut(&[u8]), passing: &Sender<()>) {
    let mut buffer = vec![0; BUFFER];
    loop {
        let length = match from.read(&mut buffer) {
            Ok(0) => return,
            Ok(length) => length,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return os::say(&format!("the program's standard output cannot be read: {error}")),
        };
        see(&buffer[..length]);
        let mut out = io::stdout().lock();
        match out.write_all(&buffer[..length]).and_then(|()| out.flush()) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return,
            Err(error) => return os::say(&format!("standard output cannot be written: {error}")),
        }
        if passing.send(()).is_err() {
            return;
        }
    }
}

/// Finds lines that begin with a word, in pieces of any length.
struct Marker {
    word: Vec<u8>,
    /// Bytes of the word that the line has so far; `None` where it is another line, or was counted.
    matched: Option<usize>,
}

impl Marker {
    fn new(word: &str) -> Marker {
        Marker { word: word.as_bytes().to_vec(), matched: Some(0) }
    }

    /// Lines whose word ends in this piece.
    fn count(&mut self, bytes: &[u8]) -> u64 {
        let mut found = 0;
        for &byte in bytes {
            self.matched = match self.matched {
                _ if byte == b'\n' => Some(0),
                Some(length) if self.word[length] == byte => Some(length + 1),
                _ => None,
            };
            if self.matched == Some(self.word.len()) {
                found += 1;
                self.matched = None;
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_counted_by_their_beginning() {
        let text = b"round 1\n round 2\nrounds\nno round\n\nroun\nround";
        assert_eq!(Marker::new("round").count(text), 3);
        assert_eq!(Marker::new("round ").count(text), 1);
        assert_eq!(Marker::new("\u{e9}").count("\u{e9}t\u{e9}\n\u{e9}".as_bytes()), 2);
    }

    #[test]
    fn pieces_may_end_anywhere() {
        let text = b"round 1\nroround\nround 2 round 3\nrou";
        for length in 1..text.len() {
            let mut marker = Marker::new("round");
            let found: u64 = text.chunks(length).map(|piece| marker.count(piece)).sum();
            assert_eq!(found, 2, "in pieces of {length}");
            assert_eq!(marker.count(b"nd"), 1);
        }
    }
}
