//! What is ours in the C ABI: steps, phase and statistics; and what happens when the library is loaded.

use core::ffi::{CStr, c_char, c_int};
use core::fmt::Write;
use statistic::os::{self, Text};

/// `void stepalloc_step(void)`: a boundary; ends the running step and begins the next.
#[unsafe(no_mangle)]
pub extern "C" fn stepalloc_step() {
    statistic::boundary();
}

/// `int stepalloc_phase(void)`: 0 waiting, 1 collecting, 2 planned.
#[unsafe(no_mangle)]
pub extern "C" fn stepalloc_phase() -> c_int {
    statistic::phase() as c_int
}

/// `size_t stepalloc_release(void)`: gives the memory that no live block needs back to the system, and returns the arena's
/// bytes among it. They come again when they are touched; plans stay.
#[unsafe(no_mangle)]
pub extern "C" fn stepalloc_release() -> usize {
    statistic::release()
}

/// `size_t stepalloc_stats_json(char *out, size_t len)`: writes the statistics as one JSON object with a nul byte behind
/// it, cut to `len` bytes, and returns its whole length without the nul byte, as snprintf does.
///
/// # Safety
/// `out` is writable for `len` bytes, or `len` is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stepalloc_stats_json(out: *mut c_char, len: usize) -> usize {
    let mut text = Text::<8192>::new();
    let _ = statistic::statistics().write_json(&mut text);
    let bytes = text.as_bytes();
    if len > 0 {
        let count = bytes.len().min(len - 1);
        // SAFETY: the caller's promise; the text and the caller's buffer are distinct.
        unsafe {
            core::ptr::copy_nonoverlapping(bytes.as_ptr(), out.cast(), count);
            *out.add(count) = 0;
        }
    }
    bytes.len()
}

/// `int stepalloc_traced(void)`: for an interpreter that says where it is: 1 where something was traced of this thread since
/// it asked last, with call sites; 0 where nothing was; -1 where nobody wants to know, or any more.
#[unsafe(no_mangle)]
pub extern "C" fn stepalloc_traced() -> c_int {
    match statistic::tracer::takes_sites() {
        true => statistic::tracer::was_traced().into(),
        false => -1,
    }
}

/// `void stepalloc_name_site(const char *frames)`: says where this thread was at all that was traced of it since the last
/// call: an interpreter's frames with semicolons between them, outermost first.
///
/// # Safety
/// `frames` ends with a nul byte, or is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stepalloc_name_site(frames: *const c_char) {
    if !frames.is_null() {
        // SAFETY: the caller's promise.
        statistic::tracer::name_site(unsafe { CStr::from_ptr(frames) }.to_bytes());
    }
}

/// Run by ld.so when the library is loaded.
#[used]
#[unsafe(link_section = ".init_array")]
static LOADED: extern "C" fn() = loaded;

extern "C" fn loaded() {
    crate::segments::end_loading();
    crate::backends::start();
    statistic::initialise();
    if let Some(path) = statistic::attached_path() {
        report_attached(path);
    }
}

/// Reports to whoever started us, in a file, that the library is in this process.
#[cold]
#[inline(never)]
fn report_attached(path: &CStr) {
    let mut line = Text::<16>::new();
    let _ = writeln!(line, "{}", std::process::id());
    // Who is gone meanwhile does not want to know.
    let _ = os::keeping_errno(|| os::append(path, line.as_bytes()));
}
