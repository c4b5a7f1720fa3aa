//! Numbered lines of a text file, gzip'ed or plain, and the error that names one.
//!
//! Whether a file is gzip'ed is told by its first two bytes, not its name. Lines have a length limit, so that junk
//! without line ends is an error and not a full memory.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use flate2::bufread::MultiGzDecoder;
use thiserror::Error;

use crate::problem::ProblemError;

/// Bytes of the longest line read. Headers and events take tens of bytes; ids are names, not novels.
const LINE: u64 = 64 * 1024;
/// What a file should be.
const TEXT: &str = "a text file with one record a line, plain or gzip'ed";

/// Why a file cannot be read: which file, which line, what is wrong and what was expected.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The operating system or gzip refused.
    #[error("{}: cannot be read{}: {source}; check that the file exists and is complete", .path.display(), after(*.line))]
    Io {
        /// The file.
        path: PathBuf,
        /// Lines read before (0: none).
        line: u64,
        /// What was said.
        source: io::Error,
    },
    /// A line is not what the format asks for.
    #[error("{}:{line}: {what}; expected {expected}", .path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Its line, from 1.
        line: u64,
        /// What was found.
        what: String,
        /// What should be there.
        expected: String,
    },
    /// The file as a whole lacks something.
    #[error("{}: {what}; expected {expected}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What was found.
        what: String,
        /// What should be there.
        expected: String,
    },
    /// The buffers are no problem that can be planned.
    #[error("{}{}: {source}{names}", .path.display(), colon(*.line))]
    Problem {
        /// The file.
        path: PathBuf,
        /// The line of the first block that is named; `None` where none is.
        line: Option<u64>,
        /// What is wrong with them.
        source: ProblemError,
        /// Where the blocks named stand in the file and what their ids are there, where that is not clear without;
        /// else empty.
        names: String,
    },
}

fn after(line: u64) -> String {
    if line == 0 { String::new() } else { format!(" after line {line}") }
}

fn colon(line: Option<u64>) -> String {
    line.map_or_else(String::new, |line| format!(":{line}"))
}

/// What is wrong with a line, before file and number are known.
#[derive(Debug)]
pub(crate) struct Fault {
    pub what: String,
    pub expected: String,
}

impl Fault {
    pub fn new(what: impl Into<String>, expected: impl Into<String>) -> Fault {
        Fault { what: what.into(), expected: expected.into() }
    }
}

/// A file read line by line.
pub(crate) struct Lines {
    path: PathBuf,
    reader: Box<dyn BufRead>,
    line: u64,
    text: Vec<u8>,
    /// The current line is to be given once more.
    again: bool,
}

impl Lines {
    pub fn open(path: &Path) -> Result<Lines, ReadError> {
        let file = File::open(path);
        Lines::new(file.map_err(|source| ReadError::Io { path: path.to_owned(), line: 0, source })?, path)
    }

    /// Of what `reader` gives; `path` is its name in errors.
    pub fn new(reader: impl Read + 'static, path: &Path) -> Result<Lines, ReadError> {
        let io = |source| ReadError::Io { path: path.to_owned(), line: 0, source };
        let mut reader = BufReader::new(reader);
        let zipped = reader.fill_buf().map_err(io)?.starts_with(&[0x1f, 0x8b]);
        let reader: Box<dyn BufRead> =
            if zipped { Box::new(BufReader::new(MultiGzDecoder::new(reader))) } else { Box::new(reader) };
        Ok(Lines { path: path.to_owned(), reader, line: 0, text: Vec::new(), again: false })
    }

    /// The next line that is not blank, without white space around it.
    pub fn next(&mut self) -> Result<Option<&str>, ReadError> {
        if !self.again {
            loop {
                self.text.clear();
                let taken = self.reader.by_ref().take(LINE + 1).read_until(b'\n', &mut self.text);
                let taken = taken.map_err(|source| ReadError::Io {
                    path: self.path.clone(),
                    line: self.line,
                    source,
                })?;
                if taken == 0 {
                    return Ok(None);
                }
                self.line += 1;
                if taken as u64 > LINE {
                    return Err(self.fault(Fault::new(format!("the line is longer than {LINE} bytes"), TEXT)));
                }
                if !self.text.trim_ascii().is_empty() {
                    break;
                }
            }
        }
        self.again = false;
        match std::str::from_utf8(self.text.trim_ascii()) {
            Ok(text) => Ok(Some(text)),
            Err(_) => Err(self.fault(Fault::new("the line is not UTF-8 text", TEXT))),
        }
    }

    /// Makes [`Lines::next`] give the last line once more.
    pub fn unread(&mut self) {
        // Nothing was given at the end of the file.
        self.again = !self.text.is_empty();
    }

    /// An error about the last line.
    pub fn fault(&self, fault: Fault) -> ReadError {
        self.fault_at(self.line, fault)
    }

    /// An error about a line.
    pub fn fault_at(&self, line: u64, fault: Fault) -> ReadError {
        ReadError::Line { path: self.path.clone(), line, what: fault.what, expected: fault.expected }
    }

    /// An error about the file.
    pub fn whole(&self, what: impl Into<String>, expected: impl Into<String>) -> ReadError {
        ReadError::File { path: self.path.clone(), what: what.into(), expected: expected.into() }
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file's name without directories and without `.csv` and `.gz`.
    pub fn stem(&self) -> String {
        let name = self.path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let name = name.strip_suffix(".gz").unwrap_or(&name);
        name.strip_suffix(".csv").unwrap_or(name).to_owned()
    }

    /// Number of the last line, from 1.
    pub fn number(&self) -> u64 {
        self.line
    }
}

/// Reads a whole number, written without a sign; `what` names the column.
pub(crate) fn number<T: std::str::FromStr>(text: &str, what: &str) -> Result<T, Fault> {
    // The standard library reads "+1", too.
    let digits = if text.starts_with('+') { "" } else { text };
    digits.parse().map_err(|_| {
        let shown: String = text.chars().take(40).collect();
        let bits = 8 * size_of::<T>();
        Fault::new(
            format!("the {what} \"{}\" is not a number", shown.escape_default()),
            format!("a whole number from 0 to 2^{bits} - 1"),
        )
    })
}
