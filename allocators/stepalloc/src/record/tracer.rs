//! The tracer: every planned-size allocation and free of a process, and its step boundaries, appended to a
//! file for tools that show them (`stepalloc run --trace`, `--report`, `--call-sites`).
//!
//! `STEPALLOC_TRACE` names the files: the process's id follows it after a dot. Events stay in a fixed buffer
//! and written when it is full, at boundaries some time apart, and at exit, so that a process that is killed
//! loses the last of them only. An allocation is logged after it was served and a free before the block is
//! taken back, in one total order that is legal for every address. After [`EVENTS`] events
//! (`STEPALLOC_TRACE_EVENTS`) the tracer stops and costs nothing more.
//!
//! # Layout
//!
//! Records of four little-endian numbers of 64 bits. The first has the kind in its low byte, log2 of the alignment in the
//! next, the thread in the next two, and above them the number of the stack or the name in 16 bits.
//!
//! | kind | second | third | fourth |
//! |---|---|---|---|
//! | 1 begin | [`MAGIC`] | least size traced | process id |
//! | 2 allocate | address | size | the address it was moved from, or 0 |
//! | 3 free | address | | |
//! | 4 boundary | nanoseconds of a clock | | |
//! | 5 stack, new | frames; their return addresses follow, innermost first, in whole records | | |
//! | 6 name: where its thread was, in the words of an interpreter, at all its events since the last such record of it | bytes; they follow in whole records; 0 where the number is known | | |
//! | 7 end: no more is traced | | | |
//!
//! Call sites are taken with `STEPALLOC_CALL_SITES=1`, by the unwinder that every Linux program has (libgcc's, by the
//! tables that exceptions need, so that nothing has to be built with frame pointers); the file's name with `.maps` behind it
//! then holds where images lie, for whoever wants symbols.

use crate::checksum::checksum;
use crate::engine::{EXIT_ATTEMPTS, log_unwritten};
use crate::lock::Lock;
use crate::os::{self, Text};
use crate::reentrant;
use crate::settings;
use crate::switches;
use crate::thread_locals::ThreadLocals;
use core::cell::UnsafeCell;
use core::ffi::{CStr, c_int, c_void};
use core::fmt::Write;
use core::sync::atomic::{AtomicBool, AtomicU8, Ordering::*};
use std::io;

/// The process's tracer.
pub(crate) static TRACER: Tracer = Tracer::new();

/// How a trace begins.
pub const MAGIC: u64 = u64::from_le_bytes(*b"steptrce");
/// Numbers in a record.
pub const RECORD: usize = 4;
/// Kinds of records.
pub const BEGIN: u8 = 1;
/// A block came alive.
pub const ALLOCATE: u8 = 2;
/// A block is about to be freed.
pub const FREE: u8 = 3;
/// A step ended, and the next begins.
pub const BOUNDARY: u8 = 4;
/// A stack that was not seen before.
pub const STACK: u8 = 5;
/// Where a thread was, in the words of an interpreter.
pub const NAME: u8 = 6;
/// The tracer has stopped.
pub const END: u8 = 7;

/// Events that are traced at most, where nothing else is asked for: 128 MiB of them.
const EVENTS: u64 = 1 << 22;
/// Records of the buffer that is written when full.
const BUFFER: usize = 2048;
/// Boundaries write the buffer when so much time has passed since it was done last.
const FLUSH_NS: u64 = 100_000_000;
/// Different stacks and names, as a power of two, of which three quarters are numbered.
const SITES: usize = 1 << 14;
/// Frames of a stack, at most.
const FRAMES: usize = 64;
/// Bytes of a name, at most.
const NAME_BYTES: usize = 2048;

/// Events and the file they go to.
pub(crate) struct Tracer {
    lock: Lock,
    state: UnsafeCell<State>,
    /// Call sites are taken.
    sites: AtomicBool,
    /// Whether the environment asks for a trace: 0 not looked yet, 1 no, 2 yes.
    wanted: AtomicU8,
}

struct State {
    records: [[u64; RECORD]; BUFFER],
    used: usize,
    /// Events that may still be traced.
    left: u64,
    flushed_ns: u64,
    /// The process whose events these are; 0 before the first.
    process: u32,
    /// Hashes of the stacks and names seen, 0 where there is none, and their numbers.
    sites: [(u64, u16); SITES],
    sites_seen: usize,
    /// Sites seen when images were listed last.
    sites_listed: usize,
}

// SAFETY: the state is reached through `Tracer::with` only, by one thread at a time.
unsafe impl Sync for Tracer {}

/// What is to be traced.
#[derive(Clone, Copy)]
pub(crate) enum Traced {
    Allocate { address: usize, bytes: usize, align: usize, from: usize },
    Free { address: usize },
    Boundary,
}

impl Tracer {
    const fn new() -> Self {
        Self {
            lock: Lock::new(),
            state: UnsafeCell::new(State {
                records: [[0; RECORD]; BUFFER],
                used: 0,
                left: 0,
                flushed_ns: 0,
                process: 0,
                sites: [(0, 0); SITES],
                sites_seen: 0,
                sites_listed: 0,
            }),
            sites: AtomicBool::new(false),
            wanted: AtomicU8::new(0),
        }
    }

    /// Whether the environment asks for a trace.
    pub(crate) fn is_wanted(&self) -> bool {
        match self.wanted.load(Relaxed) {
            0 => {
                let wanted = settings::TRACE.path().is_some();
                self.wanted.store(1 + u8::from(wanted), Relaxed);
                self.sites.store(wanted && os::environment(c"STEPALLOC_CALL_SITES") == Some(b"1"), Relaxed);
                wanted
            }
            known => known == 2,
        }
    }

    fn with<R>(&self, attempts: Option<u32>, body: impl FnOnce(&mut State) -> R) -> Option<R> {
        self.lock.with(attempts, |poisoned| {
            // SAFETY: the lock is held.
            let state = unsafe { &mut *self.state.get() };
            if poisoned {
                // What a thread of the parent was in the midst of is the parent's to write.
                state.used = 0;
            }
            body(state)
        })
    }

    /// Adds an event; `false` where no more of them are wanted.
    pub(crate) fn log(&self, traced: Traced, thread: u16) -> bool {
        let mut frames = Frames::none();
        if matches!(traced, Traced::Allocate { .. }) && self.sites.load(Relaxed) {
            // Before the lock: the unwinder may want locks of its own.
            frames.take();
            ThreadLocals::with(|locals| locals.was_traced.set(true));
        }
        self.with(None, |state| state.log(traced, thread, &frames)).unwrap_or(true)
    }

    /// Writes what was not written yet, at the process's end. What a signal handler has interrupted on its way there is lost.
    fn flush_at_exit(&self) {
        self.with(Some(EXIT_ATTEMPTS), |state| {
            // A forked child has nothing of its own here.
            if state.process == os::pid() {
                state.flush();
            }
        });
    }

    /// Says where a thread was since the last time this was said.
    pub(crate) fn name(&self, name: &[u8], thread: u16) {
        self.with(None, |state| {
            if state.begin() {
                state.name(&name[..name.len().min(NAME_BYTES)], thread);
            }
        });
    }
}

impl State {
    /// Begins a trace of this process; `false` where it has ended.
    fn begin(&mut self) -> bool {
        let process = os::pid();
        if self.process == process {
            return self.left > 0;
        }
        let parents = self.process != 0;
        self.process = process;
        self.used = 0;
        if parents {
            // A forked child is not traced.
            self.left = 0;
            return false;
        }
        self.left =
            os::environment(c"STEPALLOC_TRACE_EVENTS").and_then(settings::parse_decimal).unwrap_or(EVENTS);
        self.push([u64::from(BEGIN), MAGIC, settings::least_bytes() as u64, u64::from(process)]);
        self.left > 0
    }

    fn log(&mut self, traced: Traced, thread: u16, frames: &Frames) -> bool {
        if !self.begin() {
            return false;
        }
        let place = u64::from(thread) << 16;
        match traced {
            Traced::Allocate { address, bytes, align, from } => {
                let site = self.stack(frames) << 32;
                let align = u64::from(align.trailing_zeros()) << 8;
                self.push([
                    u64::from(ALLOCATE) | align | place | site,
                    address as u64,
                    bytes as u64,
                    from as u64,
                ]);
            }
            Traced::Free { address } => self.push([u64::from(FREE) | place, address as u64, 0, 0]),
            Traced::Boundary => {
                let now = os::now_ns();
                self.push([u64::from(BOUNDARY) | place, now, 0, 0]);
                if now.saturating_sub(self.flushed_ns) > FLUSH_NS {
                    self.flushed_ns = now;
                    self.flush();
                }
            }
        }
        self.left -= 1;
        if self.left == 0 {
            self.push([u64::from(END), 0, 0, 0]);
            self.flush();
        }
        self.left > 0
    }

    /// The number of a stack, which is written where it is new; 0 for none, and where there are too many.
    fn stack(&mut self, frames: &Frames) -> u64 {
        let addresses = frames.addresses().iter().map(|&address| address as u64);
        if addresses.len() == 0 {
            return 0;
        }
        let (number, is_new) = self.number(addresses.clone());
        if is_new {
            self.push([u64::from(STACK) | number << 32, addresses.len() as u64, 0, 0]);
            self.push_all(addresses);
        }
        number
    }

    fn name(&mut self, name: &[u8], thread: u16) {
        let (words, rest) = name.as_chunks::<8>();
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        let last = (!rest.is_empty()).then_some(u64::from_le_bytes(last));
        let words = words.iter().map(|word| u64::from_le_bytes(*word)).chain(last);
        let (number, is_new) = self.number(words.clone());
        let bytes = if is_new { name.len() as u64 } else { 0 };
        self.push([u64::from(NAME) | u64::from(thread) << 16 | number << 32, bytes, 0, 0]);
        if is_new {
            self.push_all(words);
        }
    }

    /// The number of a sequence, and whether it is new; 0 where there are too many.
    fn number(&mut self, words: impl Iterator<Item = u64>) -> (u64, bool) {
        // Never 0.
        let hash = checksum(words) | 1;
        let mut at = (hash >> 32) as usize % SITES;
        loop {
            match self.sites[at] {
                (known, number) if known == hash => return (u64::from(number), false),
                (0, _) => break,
                _ => at = (at + 1) % SITES,
            }
        }
        if self.sites_seen >= SITES / 4 * 3 {
            return (0, false);
        }
        self.sites_seen += 1;
        self.sites[at] = (hash, self.sites_seen as u16);
        (self.sites_seen as u64, true)
    }

    fn push(&mut self, record: [u64; RECORD]) {
        if self.used == BUFFER {
            self.flush();
        }
        self.records[self.used] = record;
        self.used += 1;
    }

    /// Adds numbers in whole records, zeros behind the last.
    fn push_all(&mut self, mut numbers: impl Iterator<Item = u64>) {
        while let Some(first) = numbers.next() {
            let mut record = [first, 0, 0, 0];
            record[1..].iter_mut().for_each(|word| *word = numbers.next().unwrap_or(0));
            self.push(record);
        }
    }

    /// Writes the buffer.
    #[cold]
    fn flush(&mut self) {
        let used = core::mem::take(&mut self.used);
        let Some(name) = settings::TRACE.path().filter(|_| used > 0) else { return };
        let name = name.to_str().unwrap_or("(not UTF-8)");
        let mut path = Text::<4096>::new();
        let records = self.records[..used].as_flattened();
        // SAFETY: numbers are bytes as well; x86-64 and aarch64 have them in little-endian order.
        let bytes =
            unsafe { core::slice::from_raw_parts(records.as_ptr().cast::<u8>(), size_of_val(records)) };
        let named = write!(path, "{name}.{}\0", self.process).is_ok();
        let path = CStr::from_bytes_until_nul(path.as_bytes()).ok().filter(|_| named);
        let written = match path {
            Some(path) => os::append(path, bytes),
            None => Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG)),
        };
        if let Err(error) = written {
            log_unwritten(&settings::TRACE, &error, "; nothing more is traced");
            self.left = self.left.min(1);
            return;
        }
        if self.sites_listed < self.sites_seen {
            self.sites_listed = self.sites_seen;
            let mut path = Text::<4096>::new();
            if write!(path, "{name}.{}.maps\0", self.process).is_ok()
                && let Ok(path) = CStr::from_bytes_until_nul(path.as_bytes())
            {
                os::copy(c"/proc/self/maps", path);
            }
        }
    }
}

/// The return addresses of the calls that led here, innermost first.
struct Frames {
    addresses: [usize; FRAMES],
    count: usize,
}

impl Frames {
    fn none() -> Self {
        Self { addresses: [0; FRAMES], count: 0 }
    }

    #[cold]
    #[inline(never)]
    fn take(&mut self) {
        // SAFETY: the callback takes what it is handed here.
        unsafe { _Unwind_Backtrace(take_frame, (&raw mut *self).cast()) };
    }

    fn addresses(&self) -> &[usize] {
        &self.addresses[..self.count]
    }
}

// The unwinder's interface (Itanium C++ ABI: Exception Handling, 1.3; Linux Standard Base).
unsafe extern "C" {
    fn _Unwind_Backtrace(
        visit: unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int,
        argument: *mut c_void,
    ) -> c_int;
    fn _Unwind_GetIP(context: *mut c_void) -> usize;
}

/// # Safety
/// Called by the unwinder with the frames that `Frames::take` handed it.
unsafe extern "C" fn take_frame(context: *mut c_void, frames: *mut c_void) -> c_int {
    /// `_URC_NO_REASON` and `_URC_END_OF_STACK`: go on, and stop.
    const GO_ON: c_int = 0;
    const STOP: c_int = 5;
    // SAFETY: the caller's promise; nobody else reaches them meanwhile.
    let frames = unsafe { &mut *frames.cast::<Frames>() };
    // SAFETY: the unwinder's own context.
    let address = unsafe { _Unwind_GetIP(context) };
    if frames.count == FRAMES || address == 0 {
        return STOP;
    }
    frames.addresses[frames.count] = address;
    frames.count += 1;
    GO_ON
}

/// Whether call sites are taken, so that an interpreter names its own.
pub fn takes_sites() -> bool {
    TRACER.sites.load(Relaxed) && switches::is_tracing()
}

/// Whether something was traced of this thread since this was asked last.
pub fn was_traced() -> bool {
    ThreadLocals::with(|locals| locals.was_traced.replace(false))
}

/// Says where this thread was at everything that was traced of it since the last time this was said: an interpreter's frames
/// with semicolons between them, outermost first.
pub fn name_site(frames: &[u8]) {
    if takes_sites() {
        os::keeping_errno(|| reentrant::guard(|| TRACER.name(frames, switches::this_thread())));
    }
}

/// A boundary, for the trace.
pub(crate) fn boundary() {
    if switches::is_tracing() {
        os::keeping_errno(|| reentrant::guard(|| TRACER.log(Traced::Boundary, switches::this_thread())));
    }
}

/// Run when the process ends.
pub(crate) extern "C" fn flush_at_exit() {
    TRACER.flush_at_exit();
}
