//! Settings, read from the environment once: DeepRec's own variables and ours with the prefix `STEPALLOC_`.
//!
//! A value that cannot be read costs one line on standard error, which names the variable, the value and the default
//! used instead; the program goes on.

use crate::os;
use core::ffi::{CStr, c_char};
use core::fmt::{self, Display, Formatter};
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, Ordering::*};

/// What a user can set. The defaults are DeepRec's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// `ENABLE_MEMORY_OPTIMIZATION`: `false` sends every call straight to the backend.
    pub enabled: bool,
    /// `START_STATISTIC_STEP`: the first step that is collected, counted from 0; see [`Settings::start`].
    pub start_step: Option<u64>,
    /// `STABLE_STATISTIC_STEP`: collecting ends when more than this many steps in a row changed nothing; see
    /// [`Settings::stable`].
    pub stable_steps: Option<u64>,
    /// `MAX_STATISTIC_STEP`: or when more than this many steps were collected.
    pub max_steps: u64,
    /// `STEPALLOC_MIN_BYTES`: smaller blocks are never planned.
    pub min_bytes: usize,
    /// `STEPALLOC_MAX_ARENA`: the arena never grows beyond this many bytes.
    pub max_arena: usize,
    /// `STEPALLOC_HUGEPAGES`: where there are huge pages behind the arena.
    pub huge_pages: HugePages,
    /// `STEPALLOC_POPULATE`: the arena's pages are there as soon as it is planned, and not when they are first touched.
    pub populate: bool,
    /// `STEPALLOC_IDLE`: seconds without a request of planned size after which the arena's pages go back to the system; 0:
    /// never.
    pub idle_seconds: u64,
    /// `STEPALLOC_LARGE`: where blocks of `min_bytes` and more come from that no plan serves.
    pub large: Large,
}

/// Where blocks of planned size come from that no plan serves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Large {
    /// The large heap: `heap`, or unset.
    Heap,
    /// The backend, as in DeepRec: `backend`.
    Backend,
}

/// Where huge pages are put behind the arena.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HugePages {
    /// Nowhere: 0.
    Never,
    /// Where all of the memory is there anyway, so that they take no more: unset. It is looked for by the thread that looks
    /// for idleness too.
    WhereResident,
    /// Everywhere, from the beginning: 1.
    Always,
}

impl Settings {
    /// The defaults.
    pub const DEFAULT: Self = Self {
        enabled: true,
        start_step: None,
        stable_steps: None,
        max_steps: 100,
        min_bytes: 32 << 10,
        max_arena: usize::MAX,
        huge_pages: HugePages::WhereResident,
        populate: false,
        idle_seconds: 10,
        large: Large::Heap,
    };

    /// Reads the environment. Bad values are reported on standard error.
    pub fn from_environment() -> Self {
        let default = Self::DEFAULT;
        Self {
            enabled: switch(c"ENABLE_MEMORY_OPTIMIZATION", default.enabled),
            start_step: optional(c"START_STATISTIC_STEP", "100, or 0 of detected steps"),
            stable_steps: optional(c"STABLE_STATISTIC_STEP", "10, or two detected steps"),
            max_steps: number(c"MAX_STATISTIC_STEP", 0, default.max_steps),
            min_bytes: number(c"STEPALLOC_MIN_BYTES", LEAST_MIN_BYTES, default.min_bytes as u64) as usize,
            max_arena: number(c"STEPALLOC_MAX_ARENA", 0, default.max_arena as u64) as usize,
            huge_pages: read(
                c"STEPALLOC_HUGEPAGES",
                "0 or 1",
                default.huge_pages,
                "where all of the memory is there anyway",
                |value| match value {
                    b"0" => Some(HugePages::Never),
                    b"1" => Some(HugePages::Always),
                    _ => None,
                },
            ),
            populate: switch(c"STEPALLOC_POPULATE", default.populate),
            idle_seconds: number(c"STEPALLOC_IDLE", 0, default.idle_seconds),
            large: read(c"STEPALLOC_LARGE", "heap or backend", default.large, "heap", |value| match value {
                b"heap" => Some(Large::Heap),
                b"backend" => Some(Large::Backend),
                _ => None,
            }),
        }
    }
}

/// DeepRec's START, where steps are marked.
const START: u64 = 100;
/// DeepRec's STABLE, where steps are marked.
const STABLE: u64 = 10;
/// START where steps are detected: detecting their period takes long enough.
const START_FOUND: u64 = 0;

impl Settings {
    /// The first step that is collected: as set, else 100 of those that are marked, and 0 of detected ones.
    pub fn start(&self, marked: bool) -> u64 {
        self.start_step.unwrap_or(if marked { START } else { START_FOUND })
    }

    /// Steps that must have changed nothing: as set, else 10 of those that are marked. `None` for detected
    /// ones: their period shows that they agree, and two of them show what lives on from one to the next.
    pub fn stable(&self, marked: bool) -> Option<u64> {
        self.stable_steps.or(marked.then_some(STABLE))
    }
}

/// The least `STEPALLOC_MIN_BYTES`: below a kibibyte a slot's bookkeeping costs more than the block.
const LEAST_MIN_BYTES: u64 = 1 << 10;

/// The least size in bytes that is sampled from the first allocation on; `None` where planning is switched
/// off. Says nothing of bad values: [`Settings::from_environment`] will.
pub(crate) fn sampled_from() -> Option<usize> {
    if os::environment(c"ENABLE_MEMORY_OPTIMIZATION") == Some(b"0") {
        return None;
    }
    Some(least_bytes())
}

/// Whether blocks that no plan serves are the backend's, whatever their size. Says nothing of a bad value.
pub(crate) fn leaves_large_to_backend() -> bool {
    os::environment(c"STEPALLOC_LARGE") == Some(b"backend")
}

/// The least planned size in bytes. Says nothing of a bad value, either.
pub(crate) fn least_bytes() -> usize {
    let set = os::environment(c"STEPALLOC_MIN_BYTES").and_then(parse_decimal);
    let usable = set.filter(|&bytes| bytes >= LEAST_MIN_BYTES);
    usable.map_or(Settings::DEFAULT.min_bytes, |bytes| bytes as usize)
}

/// A setting that names a file. Its value is copied when it is first wanted, which is when the library is loaded: at the process's end, and in
/// the midst of an allocation, another thread may be changing the environment.
pub(crate) struct PathSetting {
    name: &'static CStr,
    /// The copy, which stays; null where nothing is set.
    path: AtomicPtr<c_char>,
    state: AtomicU8,
}

// The states of a path.
const UNREAD: u8 = 0;
const BEING_READ: u8 = 1;
const READ: u8 = 2;

/// Where figures go at the process's end.
pub(crate) static JSON: PathSetting = PathSetting::new(c"STEPALLOC_JSON");
/// Where plans are kept.
pub(crate) static PLAN: PathSetting = PathSetting::new(c"STEPALLOC_PLAN");
/// Where the trace goes, with the process's id behind it.
pub(crate) static TRACE: PathSetting = PathSetting::new(c"STEPALLOC_TRACE");
/// Where the journal goes.
pub(crate) static STEPS: PathSetting = PathSetting::new(c"STEPALLOC_STEPS");
/// Where the preloaded library says that it was loaded: `stepalloc run` wants to know.
static ATTACHED: PathSetting = PathSetting::new(c"STEPALLOC_ATTACHED");

impl PathSetting {
    const fn new(name: &'static CStr) -> Self {
        Self { name, path: AtomicPtr::new(ptr::null_mut()), state: AtomicU8::new(UNREAD) }
    }

    /// The environment's name for it.
    pub(crate) fn name(&self) -> &'static str {
        text(self.name.to_bytes())
    }

    /// The path, if one is set; `None` too while another thread is reading it.
    pub(crate) fn path(&self) -> Option<&'static CStr> {
        if self.state.load(Acquire) == UNREAD
            && self.state.compare_exchange(UNREAD, BEING_READ, Acquire, Relaxed).is_ok()
        {
            self.path.store(self.read().unwrap_or(ptr::null_mut()), Release);
            self.state.store(READ, Release);
        }
        let path = self.path.load(Acquire);
        // SAFETY: `read` has ended it with a nul byte; the copy stays as it is.
        (!path.is_null()).then(|| unsafe { CStr::from_ptr(path) })
    }

    /// A copy of the environment's value.
    fn read(&self) -> Option<*mut c_char> {
        let value = os::environment(self.name).filter(|value| !value.is_empty())?;
        let copy = os::map(value.len() + 1)?;
        // SAFETY: so many bytes were mapped, zero at first, which nobody else knows of.
        unsafe { ptr::copy_nonoverlapping(value.as_ptr(), copy, value.len()) };
        Some(copy.cast())
    }
}

/// Takes the paths from the environment.
pub(crate) fn read_paths() {
    [&JSON, &PLAN, &TRACE, &STEPS, &ATTACHED].into_iter().for_each(|path| _ = path.path());
}

/// Where the preloaded library says that it was loaded.
#[doc(hidden)]
pub fn attached_path() -> Option<&'static CStr> {
    ATTACHED.path()
}

/// Whether `stepalloc run` has started this process, or one that has started it.
pub(crate) fn is_started_by_command() -> bool {
    attached_path().is_some()
}

/// True once bad values were reported.
static REPORTED: AtomicBool = AtomicBool::new(false);

/// Bad values are reported no more: a forked child reads the same ones again.
pub(crate) fn all_reported() {
    REPORTED.store(true, Relaxed);
}

fn switch(name: &CStr, default: bool) -> bool {
    let shown = if default { "1" } else { "0" };
    read(name, "0 or 1", default, shown, |value| match value {
        b"0" => Some(false),
        b"1" => Some(true),
        _ => None,
    })
}

/// A number whose default, as it is `shown`, depends on how steps are known.
fn optional(name: &CStr, shown: &str) -> Option<u64> {
    read(name, "a whole number, 0 or more", None, shown, |value| parse_decimal(value).map(Some))
}

fn number(name: &CStr, least: u64, default: u64) -> u64 {
    read(name, format_args!("a whole number, {least} or more"), default, Limit(default), |value| {
        parse_decimal(value).filter(|&number| number >= least)
    })
}

/// A number of which the largest is no limit.
struct Limit(u64);

impl Display for Limit {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        if self.0 == usize::MAX as u64 { out.write_str("no limit") } else { write!(out, "{}", self.0) }
    }
}

/// The signal of `STEPALLOC_STATS_SIGNAL`, by name with or without `SIG`; `None` where the variable is not set.
pub(crate) fn statistics_signal() -> Option<i32> {
    const NAMES: [(&[u8], i32); 8] = [
        (b"USR1", libc::SIGUSR1),
        (b"USR2", libc::SIGUSR2),
        (b"HUP", libc::SIGHUP),
        (b"ALRM", libc::SIGALRM),
        (b"URG", libc::SIGURG),
        (b"WINCH", libc::SIGWINCH),
        (b"IO", libc::SIGIO),
        (b"QUIT", libc::SIGQUIT),
    ];
    read(
        c"STEPALLOC_STATS_SIGNAL",
        "USR1, USR2, HUP, ALRM, URG, WINCH, IO or QUIT",
        None,
        "no signal",
        |value| {
            let name = value.strip_prefix(b"SIG").unwrap_or(value);
            NAMES.iter().find(|known| known.0 == name).map(|known| Some(known.1))
        },
    )
}

/// Reads one variable; `parse` returns `None` for a value that is none.
pub(crate) fn read<T>(
    name: &CStr,
    wanted: impl Display,
    default: T,
    shown: impl Display,
    parse: impl FnOnce(&[u8]) -> Option<T>,
) -> T {
    let Some(value) = os::environment(name) else { return default };
    parse(value).unwrap_or_else(|| {
        if !REPORTED.load(Relaxed) {
            let name = text(name.to_bytes());
            let cut = &value[..value.len().min(100)];
            let value = OneLine(core::str::from_utf8(cut).unwrap_or("(not UTF-8)"));
            os::log_stderr(format_args!("{name}={value}: expected {wanted}; using the default, {shown}"));
        }
        default
    })
}

/// A value that stays within its line, and moves no cursor, whatever is in it.
struct OneLine<'a>(&'a str);

impl Display for OneLine<'_> {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        let shown = |letter: char| if letter.is_control() { '?' } else { letter };
        self.0.chars().try_for_each(|letter| fmt::Write::write_char(out, shown(letter)))
    }
}

fn text(bytes: &[u8]) -> &str {
    core::str::from_utf8(bytes).unwrap_or("?")
}

/// Digits only: no sign, no spaces, no overflow, not empty.
pub(crate) fn parse_decimal(value: &[u8]) -> Option<u64> {
    if value.is_empty() {
        return None;
    }
    value.iter().try_fold(0u64, |number, &byte| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        number.checked_mul(10)?.checked_add(digit)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_decimal_numbers_are_numbers() {
        assert_eq!(parse_decimal(b"0"), Some(0));
        assert_eq!(parse_decimal(b"32768"), Some(32_768));
        assert_eq!(parse_decimal(b"18446744073709551615"), Some(u64::MAX));
        for junk in
            [&b""[..], b"-1", b"+1", b" 1", b"1 ", b"0x10", b"1e3", b"1k", b"18446744073709551616", b"\xff"]
        {
            assert_eq!(parse_decimal(junk), None, "{junk:?}");
        }
    }
}
