//! The allocators that are compared: by what environment each comes to serve a process.

use std::collections::HashSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use thiserror::Error;

use crate::run::{Backend, Library};

/// glibc's thresholds out of the way, so that it returns and maps nothing within a step.
const TUNED: [(&str, &str); 3] = [
    ("MALLOC_MMAP_THRESHOLD_", "1073741824"),
    ("MALLOC_TRIM_THRESHOLD_", "1073741824"),
    ("MALLOC_TOP_PAD_", "67108864"),
];
/// Where distributions put tcmalloc.
const TCMALLOC: [&str; 2] = ["libtcmalloc_minimal.so.4", "libtcmalloc.so.4"];
const PLACES: [&str; 6] = [
    "/usr/local/lib",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/lib64",
];
/// Those of the user's variables that would make an allocator another one than its name says, or write into his files.
const NOT_HANDED_ON: [&str; 6] = [
    "STEPALLOC_BACKEND",
    "STEPALLOC_JSON",
    "STEPALLOC_PLAN",
    "STEPALLOC_TRACE",
    "STEPALLOC_STEPS",
    "ENABLE_MEMORY_OPTIMIZATION",
];

/// Why there is nothing to compare.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum AllocatorError {
    /// No such name.
    #[error("--allocators: no allocator is called {0:?}; known are {names}, stepalloc (all three), and those that --allocator names", names = names())]
    Unknown(String),
    /// Not installed.
    #[error(
        "--allocators tcmalloc: it is not installed (Debian: libtcmalloc-minimal4); install it, or name the library: --allocator tcmalloc=/path/to/libtcmalloc.so"
    )]
    NoTcmalloc,
    /// `--allocator` without a name.
    #[error(
        "--allocator {0:?}: expected NAME=LIB[,VAR=VALUE...], for instance --allocator mine=/usr/lib/libmine.so,MINE_CONF=decay:0"
    )]
    Form(String),
    /// The library is not there, which ld.so would say in each run and go on.
    #[error(
        "--allocator {0}: {1}: no such file; give the library's path (nothing before the comma if only variables are to be set)"
    )]
    NoLibrary(String, String),
    /// ld.so splits there.
    #[error(
        "--allocator {0}: {1}: LD_PRELOAD cannot hold a path with a space, a colon or a dollar sign; give a link to it"
    )]
    Path(String, String),
    /// One name for two.
    #[error("two allocators are called {0}; give one of them another name")]
    Twice(String),
    /// Nothing to compare with.
    #[error("only {0} is left to be measured; a comparison needs two allocators")]
    Alone(String),
}

/// Who serves the memory of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allocator {
    /// As tables call it.
    pub name: String,
    how: How,
    variables: Vec<(String, String)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum How {
    /// As the program is started without us.
    Bare,
    /// With this library in front.
    Preloaded(PathBuf),
    /// Through our library, which does no more than jump to the backend.
    Backend(Backend),
    /// Planned, over this backend.
    Planned(Backend),
}

const BACKENDS: [Backend; 3] = [Backend::Glibc, Backend::Jemalloc, Backend::Mimalloc];

fn names() -> String {
    let planned = BACKENDS.map(planned_name);
    let own = ["glibc", "glibc-tuned", "jemalloc", "mimalloc", "tcmalloc"].map(str::to_owned);
    [own.as_slice(), &planned].concat().join(", ")
}

fn planned_name(backend: Backend) -> String {
    format!("stepalloc/{}", backend.name())
}

/// tcmalloc's library, where it is installed.
fn tcmalloc() -> Option<PathBuf> {
    let files = TCMALLOC.iter().flat_map(|file| PLACES.map(|place| Path::new(place).join(file)));
    files.into_iter().find(|file| file.is_file())
}

impl Allocator {
    fn new(name: impl Into<String>, how: How) -> Allocator {
        Allocator { name: name.into(), how, variables: Vec::new() }
    }

    /// All that are compared where nothing is said, but those that are not installed.
    pub fn usual() -> Vec<Allocator> {
        let named = ["glibc", "glibc-tuned", "jemalloc", "mimalloc", "tcmalloc", "stepalloc"];
        named.into_iter().filter_map(|name| Allocator::known(name).ok()).flatten().collect()
    }

    /// Those of a name.
    fn known(name: &str) -> Result<Vec<Allocator>, AllocatorError> {
        if name == "stepalloc" {
            return Ok(BACKENDS
                .map(|backend| Allocator::new(planned_name(backend), How::Planned(backend)))
                .to_vec());
        }
        if let Some(backend) = BACKENDS.into_iter().find(|&backend| planned_name(backend) == name) {
            return Ok(vec![Allocator::new(name, How::Planned(backend))]);
        }
        let mut allocator = Allocator::new(
            name,
            match name {
                "glibc" | "glibc-tuned" => How::Bare,
                "jemalloc" => How::Backend(Backend::Jemalloc),
                "mimalloc" => How::Backend(Backend::Mimalloc),
                "tcmalloc" => How::Preloaded(tcmalloc().ok_or(AllocatorError::NoTcmalloc)?),
                _ => return Err(AllocatorError::Unknown(name.to_owned())),
            },
        );
        if name == "glibc-tuned" {
            allocator.variables = TUNED.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
        }
        Ok(vec![allocator])
    }

    /// `NAME=LIB[,VAR=VALUE...]`.
    fn given(text: &str) -> Result<Allocator, AllocatorError> {
        let form = || AllocatorError::Form(text.to_owned());
        let (name, rest) = text.split_once('=').filter(|(name, _)| !name.is_empty()).ok_or_else(form)?;
        let mut parts = rest.split(',');
        let library = parts.next().unwrap_or_default();
        let mut variables: Vec<(String, String)> = Vec::new();
        for part in parts {
            match (part.split_once('='), variables.last_mut()) {
                (Some((name, value)), _) if !name.is_empty() => variables.push((name.into(), value.into())),
                // A comma of the value's own, as in jemalloc's settings.
                (None, Some((_, value))) => {
                    value.push(',');
                    value.push_str(part);
                }
                _ => return Err(form()),
            }
        }
        let how = if library.is_empty() {
            How::Bare
        } else {
            // The program may change its directory before it starts others.
            let path = Path::new(library).canonicalize().ok().filter(|path| path.is_file());
            let path = path.ok_or_else(|| AllocatorError::NoLibrary(name.into(), library.into()))?;
            if path.to_string_lossy().contains([' ', ':', '$']) {
                return Err(AllocatorError::Path(name.into(), library.into()));
            }
            How::Preloaded(path)
        };
        Ok(Allocator { variables, ..Allocator::new(name, how) })
    }

    /// Those of `--allocators` and `--allocator`.
    pub fn chosen(names: &[String], given: &[String]) -> Result<Vec<Allocator>, AllocatorError> {
        let given = given.iter().map(|text| Allocator::given(text)).collect::<Result<Vec<_>, _>>()?;
        let mut chosen = Vec::new();
        for name in names {
            match given.iter().find(|allocator| allocator.name == *name) {
                Some(allocator) => chosen.push(allocator.clone()),
                None => chosen.extend(Allocator::known(name)?),
            }
        }
        if names.is_empty() {
            chosen = Allocator::usual();
        }
        let more = given.into_iter().filter(|allocator| !names.contains(&allocator.name));
        chosen.extend(more.collect::<Vec<_>>());
        let mut seen = HashSet::new();
        if let Some(twice) = chosen.iter().find(|allocator| !seen.insert(&allocator.name)) {
            return Err(AllocatorError::Twice(twice.name.clone()));
        }
        match chosen.as_slice() {
            [only] => Err(AllocatorError::Alone(only.name.clone())),
            _ => Ok(chosen),
        }
    }

    /// Whether it is the statistic allocator, whose processes leave figures of their own.
    pub fn is_planned(&self) -> bool {
        matches!(self.how, How::Planned(_))
    }

    /// Whether our library is in front of the program's malloc.
    pub fn is_ours(&self) -> bool {
        matches!(self.how, How::Backend(_) | How::Planned(_))
    }

    /// The library in front of the program's malloc, if it is not one of ours.
    pub fn library(&self) -> Option<&Path> {
        match &self.how {
            How::Preloaded(path) => Some(path),
            _ => None,
        }
    }

    /// The variables that are set.
    pub fn variables(&self) -> &[(String, String)] {
        &self.variables
    }

    /// Puts the allocator into a command's environment. `figures` is where the statistic allocator writes, `attached` where
    /// our library says in which processes it is.
    pub fn prepare(&self, command: &mut Command, library: &Library, figures: &Path, attached: &Path) {
        if self.is_ours() {
            command.env("STEPALLOC_ATTACHED", attached);
        }
        NOT_HANDED_ON.iter().for_each(|name| _ = command.env_remove(name));
        let existing = std::env::var_os("LD_PRELOAD");
        match &self.how {
            How::Bare => {}
            How::Preloaded(path) => {
                let mut list = OsString::from(path);
                if let Some(existing) = existing.filter(|existing| !existing.is_empty()) {
                    list.push(":");
                    list.push(existing);
                }
                command.env("LD_PRELOAD", list);
            }
            How::Backend(backend) => {
                command.env("LD_PRELOAD", library.before(existing));
                command.env("STEPALLOC_BACKEND", backend.name()).env("ENABLE_MEMORY_OPTIMIZATION", "0");
                if *backend == Backend::Mimalloc && std::env::var_os("MIMALLOC_ARENA_EAGER_COMMIT").is_none()
                {
                    // mimalloc's own default, where the statistic allocator would prefer another.
                    command.env("MIMALLOC_ARENA_EAGER_COMMIT", "2");
                }
            }
            How::Planned(backend) => {
                command.env("LD_PRELOAD", library.before(existing));
                command.env("STEPALLOC_BACKEND", backend.name()).env("STEPALLOC_JSON", figures);
            }
        }
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(names: &[&str], given: &[&str]) -> Result<Vec<String>, AllocatorError> {
        let owned = |texts: &[&str]| texts.iter().map(|&text| text.to_owned()).collect::<Vec<_>>();
        let chosen = Allocator::chosen(&owned(names), &owned(given))?;
        Ok(chosen.into_iter().map(|allocator| allocator.name).collect())
    }

    #[test]
    fn names_stand_for_allocators() {
        let usual = chosen(&[], &[]).expect("the usual ones");
        assert!(
            ["glibc", "glibc-tuned", "jemalloc", "mimalloc", "stepalloc/jemalloc"]
                .iter()
                .all(|&name| usual.iter().any(|usual| usual == name))
        );
        assert_eq!(
            chosen(&["glibc", "stepalloc"], &[]).expect("known"),
            ["glibc", "stepalloc/glibc", "stepalloc/jemalloc", "stepalloc/mimalloc"]
        );
        assert_eq!(chosen(&["mine", "glibc"], &["mine=,A=1"]).expect("given"), ["mine", "glibc"]);
        assert_eq!(chosen(&["glibc"], &["mine=/proc/self/exe"]).expect("given"), ["glibc", "mine"]);
    }

    #[test]
    fn values_may_have_commas() {
        let given = Allocator::given("mine=,A=narenas:1,decay:0,B=2").expect("it is well formed");
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(given.variables(), [pair("A", "narenas:1,decay:0"), pair("B", "2")]);
    }

    #[test]
    fn what_cannot_be_is_named() {
        let error = |names, given| chosen(names, given).expect_err("refused");
        assert_eq!(error(&["tmalloc"], &[]), AllocatorError::Unknown("tmalloc".into()));
        assert_eq!(error(&["glibc"], &[]), AllocatorError::Alone("glibc".into()));
        assert_eq!(error(&["glibc", "glibc"], &[]), AllocatorError::Twice("glibc".into()));
        assert_eq!(error(&[], &["mine"]), AllocatorError::Form("mine".into()));
        assert_eq!(error(&[], &["mine=,A"]), AllocatorError::Form("mine=,A".into()));
        assert_eq!(error(&[], &["mine=,=1"]), AllocatorError::Form("mine=,=1".into()));
        assert_eq!(error(&[], &["mine=/no.so"]), AllocatorError::NoLibrary("mine".into(), "/no.so".into()));
    }
}
