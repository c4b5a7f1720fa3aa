//! A file to be written at the end of long work, proven writable at its beginning.
//!
//! Opening keeps what an existing file holds until there is something to put in its place; a file that was made only
//! to see whether it can be is removed again at once, so that however the work ends, nothing empty is left behind.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
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
        /// Open for writing; `None` where there was none.
        old: Option<File>,
    },
}

impl Output {
    /// Opens `path` without changing what it holds; `-` is standard output.
    pub fn open(path: &Path) -> Result<Output, OutputError> {
        if is_standard(path) {
            return Ok(Output::Standard);
        }
        // A link that leads nowhere yet is no file of ours to remove.
        let made = fs::symlink_metadata(path).is_err();
        let opened = OpenOptions::new().write(true).create(true).truncate(false).open(path);
        let old =
            opened.and_then(|file| if made { fs::remove_file(path).map(|()| None) } else { Ok(Some(file)) });
        match old {
            Ok(old) => Ok(Output::File { path: path.to_owned(), old }),
            Err(source) => Err(OutputError { path: path.to_owned(), source }),
        }
    }

    /// Replaces the file's content. A file that was not there and cannot be written whole is removed again.
    pub fn write(self, bytes: &[u8]) -> Result<(), OutputError> {
        match self {
            Output::Standard => {
                let mut out = io::stdout().lock();
                out.write_all(bytes)
                    .and_then(|()| out.flush())
                    .map_err(|source| OutputError { path: "standard output".into(), source })
            }
            Output::File { path, old: Some(mut file) } => {
                // A pipe or a device has no length to set.
                let regular = file.metadata().is_ok_and(|data| data.is_file());
                let emptied = if regular { file.set_len(0) } else { Ok(()) };
                emptied.and_then(|()| file.write_all(bytes)).map_err(|source| OutputError { path, source })
            }
            Output::File { path, old: None } => {
                let failed = |source| OutputError { path: path.clone(), source };
                let mut file = File::create(&path).map_err(failed)?;
                file.write_all(bytes).map_err(|source| {
                    let _ = fs::remove_file(&path);
                    failed(source)
                })
            }
        }
    }
}

/// Whether a path stands for standard output.
pub fn is_standard(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// Whether two paths lead to one file, so that writing the one overwrites the other. Devices and pipes take both.
pub fn same(one: &Path, other: &Path) -> bool {
    match (fs::metadata(one), fs::metadata(other)) {
        (Ok(one), Ok(other)) => one.is_file() && (one.dev(), one.ino()) == (other.dev(), other.ino()),
        (Err(_), Err(_)) => resolved(one).is_some_and(|one| resolved(other) == Some(one)),
        _ => false,
    }
}

/// The path of a file that is not there, without links and dots.
fn resolved(path: &Path) -> Option<PathBuf> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Some(fs::canonicalize(directory).ok()?.join(path.file_name()?))
}

/// Exit status of who writes to a pipe that nobody reads: 128 and the number of SIGPIPE.
const NOBODY_READS: i32 = 141;

/// Writes a line to standard output. Where that is a pipe whose reader has gone (`| head`), the program ends, as others do; it ends as
/// well, and says why, where nothing can be written.
pub(crate) fn line(text: std::fmt::Arguments<'_>) {
    let Err(error) = writeln!(io::stdout(), "{text}") else { return };
    if error.kind() == io::ErrorKind::BrokenPipe {
        std::process::exit(NOBODY_READS);
    }
    eprintln!("stepalloc: standard output cannot be written: {error}");
    std::process::exit(crate::USAGE.into());
}

/// [`line`] of what `format!` takes.
macro_rules! say {
    ($($text:tt)*) => { crate::output::line(format_args!($($text)*)) };
}
pub(crate) use say;

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
    fn a_new_file_is_there_only_when_it_is_written() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("new");
        let output = Output::open(&path).expect("opened");
        assert!(!path.exists());
        output.write(b"new").expect("written");
        assert_eq!(fs::read(&path).expect("read"), b"new");
    }

    #[test]
    fn a_link_to_a_file_that_is_not_there_yet_stays_one() {
        let directory = tempfile::tempdir().expect("a directory");
        let (link, path) = (directory.path().join("link"), directory.path().join("new"));
        std::os::unix::fs::symlink(&path, &link).expect("a link");
        Output::open(&link).expect("opened").write(b"new").expect("written");
        assert_eq!(fs::read(&path).expect("read"), b"new");
    }

    #[test]
    fn one_file_by_two_names_is_the_same_and_a_device_is_not() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = |name: &str| directory.path().join(name);
        assert!(same(&path("new"), &path("./new")));
        assert!(!same(&path("new"), &path("other")));
        fs::write(path("old"), "").expect("written");
        fs::hard_link(path("old"), path("link")).expect("a link");
        assert!(same(&path("old"), &path("link")));
        assert!(!same(&path("old"), &path("new")));
        assert!(!same(Path::new("/dev/null"), Path::new("/dev/null")));
    }

    #[test]
    fn a_missing_directory_is_an_error_that_names_the_file() {
        let error = Output::open(Path::new("/nowhere/at/all")).expect_err("refused");
        assert!(error.to_string().starts_with("/nowhere/at/all: cannot be written"));
    }
}
