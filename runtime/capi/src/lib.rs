//! The runtime for C: sessions, tensors in the caller's memory, bindings, arenas, plans, quantization.
//!
//! What is said here in words holds for every function; the header, `include/stepalloc_runtime.h`, is made of this crate by cbindgen.
//!
//! - *Errors.* A function that may fail returns a status: null where all went well, else a [`status::StepallocStatus`] with a code and a
//!   message, which the caller releases. What a function was to give is only written where all went well. A null pointer is an error
//!   wherever the text of a function does not allow it. Nothing unwinds into C.
//! - *Handles.* What `..._new` or `..._open` gives is released once by the function of that name; null is allowed there. A session, its
//!   bindings and values may be released in any order: each keeps what it needs.
//! - *Text* is UTF-8 with a nul byte at its end. What is given as `char **` is released by `stepalloc_text_release`.
//! - *Threads.* All handles may be used by several threads at once, but for being released. Options are to be set by one thread.
//! - *Memory of tensors.* Elements lie row by row (C order). The address of the first is a multiple of an element's bytes (64 is
//!   best). Elements of less than a byte take a byte each. Element types have ONNX's numbers (`TensorProto.DataType`); strings and
//!   complex numbers are refused.
//!
//! | module | what it has |
//! |---|---|
//! | [`status`] | errors, and what arguments from C are checked by |
//! | [`options`] | options of sessions and runs; arenas |
//! | [`value`] | tensors |
//! | [`session`], [`binding`] | a model that is ready to run; inputs and outputs that stay |
//! | [`reports`] | plans, profiles, statistics, batches, as JSON |
//! | [`quantize`] | weights of 8 bits |

mod binding;
mod options;
mod quantize;
mod reports;
mod session;
mod status;
mod value;
