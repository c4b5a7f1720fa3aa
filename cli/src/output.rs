//! A file to be written at the end of long work, proven writable at its beginning.
//!
//! Opening keeps what an existing file holds until there is something to put in its place; a file that was made only
//! to see whether it can be is removed again when nothing is written.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use thiserror::Error;

/// Why a file cannot be written.
#[derive(Debug, Error)]
#[error("{}: cannot be written: {source}; name a file in a directory that exists and is yours to write, or - for standard output", .path.display())]
pub struct OutputError {
    path: PathBuf,
    source: io::Error,
}

/// Where a result goes.
#[derive(Debug)]
pub enum Output {
    /// Standard output.
    Standard,
    /// A file.
    File {
        /// As the user named it.
        path: PathBuf,
        /// Open for writing.
        file: File,
        /// Made by us, and nothing written yet.
        made: bool,
    },
}

impl Output {
    /// Opens `path` without changing what it holds; `-` is standard output.
    pub fn open(path: &Path) -> Result<Output, OutputError> {
        if is_standard(path) {
            return Ok(Output::Standard);
        }
        let made = !path.exists();
        match OpenOptions::new().write(true).create(true).truncate(false).open(path) {
            Ok(file) => Ok(Output::File { path: path.to_owned(), file, made }),
            Err(source) => Err(OutputError { path: path.to_owned(), source }),
        }
    }

    /// Replaces the file's content.
    pub fn write(mut self, bytes: &[u8]) -> Result<(), OutputError> {
        match &mut self {
            Output::Standard => {
                let mut out = io::stdout().lock();
                out.write_all(bytes)
                    .and_then(|()| out.flush())
                    .map_err(|source| OutputError { path: "standard output".into(), source })
            }
            Output::File { path, file, made } => {
                *made = false;
                // A pipe or a device has no length to set.
                let regular = file.metadata().is_ok_and(|data| data.is_file());
                let emptied = if regular { file.set_len(0) } else { Ok(()) };
                emptied
                    .and_then(|()| file.write_all(bytes))
                    .map_err(|source| OutputError { path: path.clone(), source })
            }
        }
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if let Output::File { path, made: true, .. } = self {
            let _ = fs::remove_file(path);
        }
    }
}

/// Whether a path stands for standard output.
pub fn is_standard(path: &Path) -> bool {
    path.as_os_str() == "-"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_existing_file_keeps_its_content_until_something_is_written() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("old");
        fs::write(&path, "a long old content").expect("written");
        drop(Output::open(&path).expect("opened"));
        assert_eq!(fs::read(&path).expect("read"), b"a long old content");
        Output::open(&path).expect("opened").write(b"new").expect("written");
        assert_eq!(fs::read(&path).expect("read"), b"new");
    }

    #[test]
    fn a_file_made_for_nothing_is_removed() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("new");
        drop(Output::open(&path).expect("opened"));
        assert!(!path.exists());
    }

    #[test]
    fn a_missing_directory_is_an_error_that_names_the_file() {
        let error = Output::open(Path::new("/nowhere/at/all")).expect_err("refused");
        assert!(error.to_string().starts_with("/nowhere/at/all: cannot be written"));
    }
}
