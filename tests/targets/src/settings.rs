//! Settings: variables of the environment.

use libc::{c_int, dup, dup2};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use stepalloc::{HugePages, Large, Settings};

/// The variables, in the order in which the input's lines are their values.
const NAMES: [&str; 10] = [
    "ENABLE_MEMORY_OPTIMIZATION",
    "START_STATISTIC_STEP",
    "STABLE_STATISTIC_STEP",
    "MAX_STATISTIC_STEP",
    "STEPALLOC_MIN_BYTES",
    "STEPALLOC_MAX_ARENA",
    "STEPALLOC_HUGEPAGES",
    "STEPALLOC_POPULATE",
    "STEPALLOC_IDLE",
    "STEPALLOC_LARGE",
];

/// Settings: a value is used where it is right; each one that is not costs one line that names it, and the default is used.
/// The input has one line `NAME=VALUE` for each variable that is set.
pub fn settings(data: &[u8]) {
    let mut values: [Option<&[u8]>; NAMES.len()] = [None; NAMES.len()];
    for line in data.split(|&byte| byte == b'\n').filter(|line| !line.contains(&0)) {
        let Some(equals) = line.iter().position(|&byte| byte == b'=') else { continue };
        let (name, value) = (&line[..equals], &line[equals + 1..]);
        if let Some(index) = NAMES.iter().position(|known| known.as_bytes() == name) {
            values[index] = Some(value);
        }
    }
    let before = NAMES.map(std::env::var_os);
    for (name, value) in NAMES.iter().zip(values) {
        // SAFETY: no other thread of this process reads the environment or changes it.
        unsafe {
            match value {
                Some(value) => std::env::set_var(name, OsStr::from_bytes(value)),
                None => std::env::remove_var(name),
            }
        }
    }
    let (read, said) = said(Settings::from_environment);
    for (name, value) in NAMES.iter().zip(before) {
        // SAFETY: as above.
        unsafe {
            match value {
                Some(value) => std::env::set_var(name, value),
                None => std::env::remove_var(name),
            }
        }
    }
    holds(&values, &read, &said);
}

/// What comes of it, and what is written to standard error meanwhile.
fn said<T>(what: impl FnOnce() -> T) -> (T, Vec<u8>) {
    // SAFETY: the name ends with a nul byte.
    let memory = unsafe { libc::memfd_create(c"said".as_ptr(), libc::MFD_CLOEXEC) };
    assert!(memory >= 0, "there is no file in memory");
    // SAFETY: it was opened above, and nobody else has it.
    let mut memory = unsafe { File::from_raw_fd(memory) };
    // SAFETY: descriptors are numbers; the copy is closed below.
    let kept: c_int = unsafe { dup(2) };
    // SAFETY: as above. Nothing panics until standard error is what it was.
    unsafe { dup2(memory.as_raw_fd(), 2) };
    let done = what();
    // SAFETY: as above.
    unsafe {
        dup2(kept, 2);
        libc::close(kept);
    }
    let mut text = Vec::new();
    memory.seek(SeekFrom::Start(0)).and_then(|_| memory.read_to_end(&mut text)).expect("memory can be read");
    (done, text)
}

fn holds(values: &[Option<&[u8]>; NAMES.len()], read: &Settings, said: &[u8]) {
    let mut wrong = Vec::new();
    let mut number = |index: usize, least: u64| -> Option<u64> {
        let value = values[index]?;
        // What the standard library reads, without its sign.
        let text = std::str::from_utf8(value).ok().filter(|text| !text.starts_with('+'));
        let number = text.and_then(|text| text.parse().ok()).filter(|&number| number >= least);
        if number.is_none() {
            wrong.push(index);
        }
        number
    };
    let default = Settings::DEFAULT;
    let (start_step, stable_steps) = (number(1, 0), number(2, 0));
    let max_steps = number(3, 0).unwrap_or(default.max_steps);
    let min_bytes = number(4, 1024).map_or(default.min_bytes, |bytes| bytes as usize);
    let max_arena = number(5, 0).map_or(default.max_arena, |bytes| bytes as usize);
    let idle_seconds = number(8, 0).unwrap_or(default.idle_seconds);
    let mut switch = |index: usize, texts: [&str; 2]| -> Option<bool> {
        let value = values[index]?;
        let place = texts.iter().position(|text| text.as_bytes() == value);
        if place.is_none() {
            wrong.push(index);
        }
        place.map(|place| place == 1)
    };
    let expected = Settings {
        enabled: switch(0, ["0", "1"]).unwrap_or(default.enabled),
        start_step,
        stable_steps,
        max_steps,
        min_bytes,
        max_arena,
        huge_pages: match switch(6, ["0", "1"]) {
            Some(false) => HugePages::Never,
            Some(true) => HugePages::Always,
            None => default.huge_pages,
        },
        populate: switch(7, ["0", "1"]).unwrap_or(default.populate),
        idle_seconds,
        large: match switch(9, ["heap", "backend"]) {
            Some(false) => Large::Heap,
            Some(true) => Large::Backend,
            None => default.large,
        },
    };
    assert_eq!(read, &expected);
    let shown = String::from_utf8_lossy(said);
    for &index in &wrong {
        let begin = format!("stepalloc: {}=", NAMES[index]);
        assert_eq!(shown.lines().filter(|line| line.starts_with(&begin)).count(), 1, "{begin} in {shown:?}");
    }
    // One line each, whatever bytes the value has.
    let lines: Vec<&str> = shown.split('\n').filter(|line| !line.is_empty()).collect();
    assert_eq!(lines.len(), wrong.len(), "{lines:?}");
    for line in lines {
        assert!(line.len() < 400 && !line.chars().any(char::is_control), "{line:?}");
    }
}
