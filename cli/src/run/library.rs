//! Where the libraries to preload are, and how the dynamic linker is told.
//!
//! LD_PRELOAD is a list that spaces and colons separate and in which `$` has a meaning; none can be escaped. A path
//! that holds one of them is reached through a link in the run's temporary directory.

use std::ffi::OsString;
use std::io;
use std::os::unix::{ffi::OsStrExt, fs::symlink};
use std::path::{Path, PathBuf};

use thiserror::Error;

const FILE: &str = "libstepalloc.so";
/// Times the steps of programs under other allocators.
const MARKS: &str = "libstepalloc_marks.so";
const VARIABLE: &str = "STEPALLOC_LIBRARY";

/// Why there is no library to preload.
#[derive(Debug, Error)]
pub enum LibraryError {
    /// The variable names no file.
    #[error("{VARIABLE}={}: no such file; set it to the path of {FILE}, or unset it", .0.display())]
    Setting(PathBuf),
    /// It is in none of the usual places.
    #[error("{FILE} was not found ({}); build it with `cargo build --release -p stepalloc-preload`, or set {VARIABLE} to its path", list(.0))]
    NotFound(Vec<PathBuf>),
    /// The path cannot be given to the linker, nor a link to it.
    #[error("{}: LD_PRELOAD cannot hold a path with a space, a colon or a dollar sign, and no link to it can be made in {}: {source}; move the library, or set TMPDIR", .path.display(), .directory.display())]
    Path {
        /// The library.
        path: PathBuf,
        /// Where the link was to be.
        directory: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

fn list(places: &[PathBuf]) -> String {
    let places: Vec<String> = places.iter().map(|place| place.display().to_string()).collect();
    format!("looked for {}", places.join(", "))
}

/// A library, by a path the linker understands.
#[derive(Debug)]
pub struct Library(PathBuf);

impl Library {
    /// Looks in the variable, beside this executable, in `lib` beside its directory; links go into `directory`.
    pub fn find(directory: &Path) -> Result<Library, LibraryError> {
        if let Some(path) = std::env::var_os(VARIABLE).filter(|path| !path.is_empty()) {
            let path = PathBuf::from(path);
            return match path.canonicalize() {
                Ok(found) if found.is_file() => Library::reachable(found, FILE, directory),
                _ => Err(LibraryError::Setting(path)),
            };
        }
        match places(FILE).iter().find_map(|place| place.canonicalize().ok()) {
            Some(found) => Library::reachable(found, FILE, directory),
            None => Err(LibraryError::NotFound(places(FILE))),
        }
    }

    /// The library that times steps, beside the other; where it is not, steps of programs are not known.
    pub fn marks(&self, directory: &Path) -> Option<Library> {
        let beside = self.0.canonicalize().ok()?.with_file_name(MARKS);
        Library::reachable(beside.canonicalize().ok()?, MARKS, directory).ok()
    }

    /// By itself, or by a link of this name.
    fn reachable(path: PathBuf, name: &str, directory: &Path) -> Result<Library, LibraryError> {
        if understood(&path) {
            return Ok(Library(path));
        }
        let link = directory.join(name);
        let linked = if understood(&link) {
            symlink(&path, &link)
        } else {
            Err(io::Error::other("its path has one, too"))
        };
        match linked {
            Ok(()) => Ok(Library(link)),
            Err(source) => Err(LibraryError::Path { path, directory: directory.to_owned(), source }),
        }
    }

    /// LD_PRELOAD with this library before what is there already.
    pub fn before(&self, existing: Option<OsString>) -> OsString {
        let mut list = self.0.clone().into_os_string();
        if let Some(existing) = existing.filter(|existing| !existing.is_empty()) {
            list.push(":");
            list.push(existing);
        }
        list
    }
}

/// Where a library is looked for: beside this executable, and in `lib` beside its directory.
fn places(file: &str) -> Vec<PathBuf> {
    let executable = std::env::current_exe().unwrap_or_default();
    let beside = executable.parent().unwrap_or(Path::new("/"));
    vec![beside.join(file), beside.join("../lib").join(file)]
}

/// Whether LD_PRELOAD can hold the path.
fn understood(path: &Path) -> bool {
    !path.as_os_str().as_bytes().iter().any(|byte| b" :$".contains(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ours_is_loaded_before_what_the_user_preloads() {
        let library = Library(PathBuf::from("/a/libstepalloc.so"));
        assert_eq!(library.before(None), "/a/libstepalloc.so");
        assert_eq!(library.before(Some("/b.so /c.so".into())), "/a/libstepalloc.so:/b.so /c.so");
    }

    #[test]
    fn a_path_the_linker_would_split_is_reached_through_a_link() {
        let directory = tempfile::tempdir().expect("a directory");
        let library =
            Library::reachable("/with space/a b.so".into(), MARKS, directory.path()).expect("linked");
        assert_eq!(library.0, directory.path().join(MARKS));
        assert_eq!(library.0.read_link().expect("a link"), Path::new("/with space/a b.so"));
    }
}
