//! The steps a program marks, under any allocator: where libstepalloc_marks.so wrote their times, and what they say.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::run::Library;

/// The file of a process is a full stop and its number longer.
const VARIABLE: &str = "STEPALLOC_MARKS";
/// Fewer steps than these are no steps of equal work: the first ones make what later ones use.
const LEAST_STEPS: u64 = 4;

/// The library, and the folder where it writes.
pub struct Marks {
    library: Library,
    folder: PathBuf,
}

/// How many steps a process has made, and how long they took.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Steps {
    /// Ended by a boundary.
    pub count: u64,
    /// Of one of the newer half, in the mean.
    pub seconds: f64,
}

impl Marks {
    /// `None` where there is no library to time steps.
    pub fn find(library: &Library, directory: &Path) -> Option<Marks> {
        let folder = directory.join("marks");
        fs::create_dir(&folder).ok()?;
        Some(Marks { library: library.marks(directory)?, folder })
    }

    /// Puts the library in front of what a prepared command preloads.
    pub fn prepare(&self, command: &mut Command) {
        let set = command.get_envs().find(|(name, _)| *name == "LD_PRELOAD").map(|(_, list)| list);
        let list = set.map_or_else(|| std::env::var_os("LD_PRELOAD"), |list| list.map(Into::into));
        command.env("LD_PRELOAD", self.library.before(list)).env(VARIABLE, self.folder.join("process"));
    }

    /// What the process with the most steps has done since this was asked last.
    pub fn take(&self) -> Option<Steps> {
        let files = fs::read_dir(&self.folder).ok()?.flatten();
        let steps = files.filter_map(|file| {
            let bytes = fs::read(file.path());
            let _ = fs::remove_file(file.path());
            Steps::of(&bytes.ok()?)
        });
        steps.max_by_key(|steps| steps.count)
    }
}

impl Steps {
    /// Of a file: 64-bit words, the number of marks, of how many each one's time is kept, and these times in nanoseconds.
    fn of(file: &[u8]) -> Option<Steps> {
        let mut words =
            file.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap_or_default()));
        let (marks, stride) = (words.next()?, words.next()?);
        let count = marks.checked_sub(1).filter(|&count| count >= LEAST_STEPS)?;
        let times: Vec<u64> = words.collect();
        let newest = count.checked_div(stride)?;
        let middle = newest / 2;
        let time = |place: u64| times.get(usize::try_from(place).ok()?).copied();
        let nanoseconds = time(newest)?.checked_sub(time(middle)?)?;
        let seconds = nanoseconds as f64 / 1e9 / ((newest - middle) * stride) as f64;
        Some(Steps { count, seconds }).filter(|steps| steps.seconds.is_finite())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    #[test]
    fn steps_are_those_of_the_newer_half() {
        // Two slow ones, and three of 2 s.
        let times = [0, 100, 200, 202, 204, 206].map(|second: u64| second * 1_000_000_000);
        let steps = Steps::of(&file(&[&[6, 1], &times[..]].concat())).expect("five steps");
        assert_eq!(steps, Steps { count: 5, seconds: 2.0 });
        // Of 21 marks those numbered 0, 4, 8, 12, 16 and 20 are kept.
        let steps = Steps::of(&file(&[&[21, 4], &times[..]].concat())).expect("twenty steps");
        assert_eq!(steps, Steps { count: 20, seconds: 0.5 });
    }

    #[test]
    fn no_steps_are_made_of_too_little() {
        assert_eq!(Steps::of(&[]), None);
        assert_eq!(Steps::of(&file(&[0, 0])), None);
        assert_eq!(Steps::of(&file(&[4, 1, 1, 2, 3, 4])), None);
        assert_eq!(Steps::of(&file(&[9, 1, 1, 2, 3, 4])), None);
        assert_eq!(Steps::of(&file(&[9, 0, 1, 2, 3, 4])), None);
    }
}
