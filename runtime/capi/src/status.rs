//! Errors, and what arguments from C are checked by.

use runtime::{Error, OpError};
use std::ffi::{CStr, CString, c_char};
use std::slice;

/// What kind of error it is.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepallocCode {
    /// None.
    Ok = 0,
    /// An argument is wrong: a name, a shape, an element type, an option, or elements that are out of range for a node.
    Argument = 1,
    /// A file cannot be read or written.
    File = 2,
    /// What was read is no model, or a damaged one.
    Model = 3,
    /// The model asks for what there is not here: an operator, or one of its attributes' values or element types.
    Unsupported = 4,
    /// A node cannot be run on its inputs: their shapes do not fit.
    Node = 5,
    /// Memory is not to be had, or more than the options allow.
    Memory = 6,
    /// The run was ended by its options.
    Cancelled = 7,
    /// A node is wrong whatever its inputs are: an attribute, or the number of its inputs or outputs.
    Graph = 8,
}

/// An error; null where there is none.
pub struct StepallocStatus {
    code: StepallocCode,
    message: CString,
}

/// What went wrong, before the caller is told.
pub(crate) struct Failure {
    code: StepallocCode,
    message: String,
}

impl Failure {
    /// The same of something that has a name.
    pub(crate) fn of(self, what: &str) -> Self {
        Self { message: format!("{what}: {}", self.message), ..self }
    }
}

/// An argument is wrong.
pub(crate) fn wrong(message: impl Into<String>) -> Failure {
    Failure { code: StepallocCode::Argument, message: message.into() }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        // Of a graph within a node counts what went wrong in it.
        let code = match error.innermost() {
            Error::File { .. } => StepallocCode::File,
            Error::Model(_) => StepallocCode::Model,
            Error::Unsupported { .. } => StepallocCode::Unsupported,
            Error::Node { source, .. } => match source {
                OpError::Attribute(_) | OpError::MissingInput(_) | OpError::Arity(_) => StepallocCode::Graph,
                OpError::ElementType(_) | OpError::Unsupported(_) => StepallocCode::Unsupported,
                OpError::Value(_) => StepallocCode::Argument,
                OpError::Memory { .. } => StepallocCode::Memory,
                OpError::Shape(_) | OpError::Graph(_) | OpError::Internal(_) => StepallocCode::Node,
            },
            Error::Memory { .. } => StepallocCode::Memory,
            Error::Cancelled => StepallocCode::Cancelled,
            Error::Argument(_) => StepallocCode::Argument,
        };
        Self { code, message: error.to_string() }
    }
}

/// Text for C; what is behind a nul byte in it, which C would not see, is left out.
pub(crate) fn c_text(text: &str) -> CString {
    let end = text.find('\0').unwrap_or(text.len());
    CString::new(&text[..end]).unwrap_or_default()
}

/// The status of what was done.
pub(crate) fn status(done: impl FnOnce() -> Result<(), Failure>) -> *mut StepallocStatus {
    match done() {
        Ok(()) => std::ptr::null_mut(),
        Err(Failure { code, message }) => {
            Box::into_raw(Box::new(StepallocStatus { code, message: c_text(&message) }))
        }
    }
}

/// What a pointer of the caller's points to.
///
/// # Safety
/// It is null, or points to one for `'a`.
pub(crate) unsafe fn given<'a, T>(pointer: *const T, name: &str) -> Result<&'a T, Failure> {
    // SAFETY: the caller's promise.
    unsafe { pointer.as_ref() }.ok_or_else(|| wrong(format!("{name} is null")))
}

/// The same, to be changed.
///
/// # Safety
/// It is null, or points to one for `'a` that nobody else looks at.
pub(crate) unsafe fn given_mut<'a, T>(pointer: *mut T, name: &str) -> Result<&'a mut T, Failure> {
    // SAFETY: the caller's promise.
    unsafe { pointer.as_mut() }.ok_or_else(|| wrong(format!("{name} is null")))
}

/// As many items as the caller says; none may be at null.
///
/// # Safety
/// It is null, or points to so many for `'a`.
pub(crate) unsafe fn items<'a, T>(pointer: *const T, count: usize, name: &str) -> Result<&'a [T], Failure> {
    if count == 0 {
        return Ok(&[]);
    }
    let first: *const T = pointer;
    if first.is_null() {
        return Err(wrong(format!("{name} is null, and {count} of them are announced")));
    }
    if !first.is_aligned() || count > isize::MAX as usize / size_of::<T>().max(1) {
        return Err(wrong(format!("{name} cannot be {count} of them at that address")));
    }
    // SAFETY: the caller's promise, for so many bytes as a slice may have.
    Ok(unsafe { slice::from_raw_parts(first, count) })
}

/// Text of the caller's.
///
/// # Safety
/// It is null, or ends with a nul byte, and stays for `'a`.
pub(crate) unsafe fn text<'a>(pointer: *const c_char, name: &str) -> Result<&'a str, Failure> {
    if pointer.is_null() {
        return Err(wrong(format!("{name} is null")));
    }
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str().map_err(|_| wrong(format!("{name} is no UTF-8: {}", text.to_string_lossy())))
}

/// Texts of the caller's.
///
/// # Safety
/// As for [`items`] and [`text`].
pub(crate) unsafe fn texts<'a>(
    pointer: *const *const c_char,
    count: usize,
    name: &str,
) -> Result<Vec<&'a str>, Failure> {
    // SAFETY: the caller's promise.
    let pointers = unsafe { items(pointer, count, name)? };
    // SAFETY: the same.
    pointers.iter().map(|&pointer| unsafe { text(pointer, name) }).collect()
}

/// Gives the caller a handle.
pub(crate) fn hand_out<T>(out: &mut *mut T, what: T) {
    *out = Box::into_raw(Box::new(what));
}

/// Takes a handle back; null is none.
///
/// # Safety
/// It is null, or was handed out and not taken back yet.
pub(crate) unsafe fn take_back<T>(handle: *mut T) {
    if !handle.is_null() {
        // SAFETY: the caller's promise.
        drop(unsafe { Box::from_raw(handle) });
    }
}

/// Gives the caller text.
pub(crate) fn hand_out_text(out: &mut *mut c_char, text: &str) {
    *out = c_text(text).into_raw();
}

/// The code of a status; `Ok` of null.
///
/// # Safety
/// The status is null, or was given by this library and not released.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stepalloc_status_code(status: *const StepallocStatus) -> StepallocCode {
    // SAFETY: the caller's promise.
    unsafe { status.as_ref() }.map_or(StepallocCode::Ok, |status| status.code)
}

/// What is wrong, where, and what to do; an empty text of null. It is there as long as the status.
///
/// # Safety
/// The status is null, or was given by this library and not released.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stepalloc_status_message(status: *const StepallocStatus) -> *const c_char {
    // SAFETY: the caller's promise.
    unsafe { status.as_ref() }.map_or(c"".as_ptr(), |status| status.message.as_ptr())
}

/// Releases a status; null is none.
///
/// # Safety
/// The status is null, or was given by this library and not released.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stepalloc_status_release(status: *mut StepallocStatus) {
    // SAFETY: the caller's promise.
    unsafe { take_back(status) };
}

/// Releases text that was given as `char **`; null is none.
///
/// # Safety
/// The text is null, or was given by this library to be released, and was not.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stepalloc_text_release(text: *mut c_char) {
    if !text.is_null() {
        // SAFETY: the caller's promise: `hand_out_text` gave it.
        drop(unsafe { CString::from_raw(text) });
    }
}

/// The version of this library, as 0.1.0. It is there for good.
#[unsafe(no_mangle)]
pub extern "C" fn stepalloc_runtime_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}
