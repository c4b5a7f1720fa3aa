//! Inputs and outputs that stay where they are from run to run.

use crate::options::StepallocRunOptions;
use crate::session::{StepallocSession, run_options};
use crate::status::{Failure, StepallocStatus, given, given_mut, hand_out, status, take_back, text, wrong};
use crate::value::StepallocValue;
use runtime::{Binding, Tensor};
use std::ffi::c_char;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Values that are bound to a session's inputs and outputs.
pub struct StepallocBinding {
    bound: Mutex<Bound>,
}

struct Bound {
    binding: Binding,
    /// What the caller has bound, by name.
    inputs: Vec<(String, StepallocValue)>,
    outputs: Vec<(String, StepallocValue)>,
    /// Outputs that are fed back.
    fed_back: Vec<String>,
}

fn overlap(one: &Range<usize>, other: &Range<usize>) -> bool {
    one.start < other.end && other.start < one.end
}

/// What is bound among these whose memory is a value's, but for the one of that name.
fn find_overlap<'b>(
    bound: &'b [(String, StepallocValue)],
    value: &StepallocValue,
    but: &str,
) -> Option<&'b str> {
    let addresses = value.addresses();
    let mut others = bound.iter().filter(|(name, _)| name != but);
    others.find(|(_, other)| overlap(&other.addresses(), &addresses)).map(|(name, _)| name.as_str())
}

impl Bound {
    fn bind_input(&mut self, name: &str, value: &StepallocValue) -> Result<(), Failure> {
        if let Some(output) = find_overlap(&self.outputs, value, "") {
            return Err(wrong(format!("input {name} lies in the memory that is bound to output {output}")));
        }
        // An output that this library has made, and that goes in again, is made anew by the next run.
        let addresses = value.addresses();
        let lies_there = |tensor: &Tensor| {
            let bytes = tensor.blocks().is_none().then(|| tensor.view().bytes.as_ptr_range());
            bytes.is_some_and(|range| overlap(&(range.start.addr()..range.end.addr()), &addresses))
        };
        let made: Vec<_> = self.binding.outputs().map(|output| output.is_some_and(lies_there)).collect();
        let graph = self.binding.session().graph();
        let names = graph.outputs.iter().map(|&id| graph.values[id].name.clone());
        for name in
            names.zip(made).filter_map(|(name, lies_there)| lies_there.then_some(name)).collect::<Vec<_>>()
        {
            self.binding.take_output(&name)?;
        }
        // SAFETY: no output of the binding lies there; that nobody else writes there during runs is the caller's promise.
        self.binding.bind_input(name, unsafe { value.borrow() })?;
        put(&mut self.inputs, name, Some(value.again()));
        Ok(())
    }

    fn bind_output(&mut self, name: &str, value: Option<&StepallocValue>) -> Result<(), Failure> {
        let graph = self.binding.session().graph();
        if !graph.outputs.iter().any(|&id| graph.values[id].name == name) {
            return Err(wrong(format!("there is no output {name}")));
        }
        if let Some(value) = value {
            if self.fed_back.iter().any(|fed| fed == name) {
                return Err(wrong(format!("output {name} is fed back, and has other memory in each run")));
            }
            if let Some(input) = find_overlap(&self.inputs, value, "") {
                return Err(wrong(format!(
                    "output {name} lies in the memory that is bound to input {input}"
                )));
            }
            if let Some(output) = find_overlap(&self.outputs, value, name) {
                return Err(wrong(format!(
                    "output {name} lies in the memory that is bound to output {output}"
                )));
            }
            // SAFETY: nothing else of the binding lies there; that nobody else does anything there during runs is the caller's promise.
            self.binding.bind_output(name, unsafe { value.borrow() })?;
        } else {
            // One that was not made yet cannot be taken.
            let _ = self.binding.take_output(name);
        }
        put(&mut self.outputs, name, value.map(StepallocValue::again));
        Ok(())
    }

    fn run(&mut self, options: Option<&StepallocRunOptions>) -> Result<(), Failure> {
        let done = self.binding.run_with(run_options(options)).map_err(Failure::from);
        let mut misfit = Ok(());
        for (name, value) in &self.outputs {
            let made = self.binding.output(name).ok();
            if made.is_some_and(|made| made.bytes.as_ptr().addr() == value.addresses().start) {
                continue;
            }
            // SAFETY: as when it was bound.
            let mut bound = unsafe { value.borrow() };
            if let (Ok(()), Some(made)) = (&done, made) {
                let (is, wanted) = (&made, value.ty());
                if (is.dtype, is.shape) == (wanted.dtype, &wanted.shape[..]) {
                    bound.view_mut().bytes.copy_from_slice(is.bytes);
                } else if misfit.is_ok() {
                    misfit = Err(wrong(format!(
                        "output {name} is {}{:?}, and the memory that is bound to it {wanted}",
                        is.dtype, is.shape
                    )));
                }
            }
            self.binding.bind_output(name, bound)?;
        }
        done.and(misfit)
    }

    fn output(&mut self, name: &str) -> Result<StepallocValue, Failure> {
        if let Some((_, value)) = self.outputs.iter().find(|(other, _)| other == name) {
            return Ok(value.again());
        }
        // SAFETY: that nobody looks at it during runs is the caller's promise.
        Ok(StepallocValue::of(unsafe { self.binding.share_output(name)? }))
    }
}

/// Puts a value in the place of what is there by that name, or none.
fn put(bound: &mut Vec<(String, StepallocValue)>, name: &str, value: Option<StepallocValue>) {
    bound.retain(|(other, _)| other != name);
    bound.extend(value.map(|value| (name.to_owned(), value)));
}

impl StepallocBinding {
    fn bound(&self) -> MutexGuard<'_, Bound> {
        self.bound.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A binding of a session with nothing bound. It keeps the session.
///
/// # Safety
/// `session` is null or a handle, `binding` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stepalloc_binding_new(
    session: *const StepallocSession,
    binding: *mut *mut StepallocBinding,
) -> *mut StepallocStatus {
    status(|| {
        // SAFETY: the caller's promise.
        let (session, out) = unsafe { (given(session, "session")?, given_mut(binding, "binding")?) };
        let bound = Bound {
            binding: session.session.binding(),
            inputs: Vec::new(),
            outputs: Vec::new(),
            fed_back: Vec::new(),
        };
        hand_out(out, StepallocBinding { bound: Mutex::new(bound) });
        Ok(())
    })
}

/// Binds a value to an input, in place of what was bound to it. The binding keeps the value's memory; elements may be changed between
/// runs. An error where the model declares another type, or a bound output lies in that memory.
///
/// # Safety
/// `binding` and `value` are null or handles, `name` is null or ends with a nul byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stepalloc_binding_bind_input(
    binding: *const StepallocBinding,
    name: *const c_char,
    value: *const StepallocValue,
) -> *mut StepallocStatus {
    status(|| {
        // SAFETY: the caller's promise.
        let (binding, name, value) =
            unsafe { (given(binding, "binding")?, text(name, "name")?, given(value, "value")?) };
        binding.bound().bind_input(name, value)
    })
}

/// Binds a value to an output: runs write there, and a run whose output is of another type is an error. Null: the library makes memory for
/// it in the next run, and uses it again as long as the type is the same.
///
/// # Safety
/// `binding` and `value` are null or handles, `name` is null or ends with a nul byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stepalloc_binding_bind_output(
    binding: *const StepallocBinding,
    name: *const c_char,
    value: *const StepallocValue,
) -> *mut StepallocStatus {
    status(|| {
        // SAFETY: the caller's promise.
        let (binding, name) = unsafe { (given(binding, "binding")?, text(name, "name")?) };
        // SAFETY: the same.
        binding.bound().bind_output(name, unsafe { value.as_ref() })
    })
}

/// What comes out of `output` is what `input` is in the next run; where it is that input with rows appended (a decoder's cache), they
/// are appended where it lies.
///
/// # Safety
/// `binding` is null or a handle, names are null or end with a nul byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stepalloc_binding_feed_back(
    binding: *const StepallocBinding,
    output: *const c_char,
    input: *const c_char,
) -> *mut StepallocStatus {
    status(|| {
        // SAFETY: the caller's promise.
        let (binding, output, input) =
            unsafe { (given(binding, "binding")?, text(output, "output")?, text(input, "input")?) };
        let mut bound = binding.bound();
        if bound.outputs.iter().any(|(name, _)| name == output) {
            return Err(wrong(format!("output {output} has memory bound to it, and cannot be fed back")));
        }
        bound.binding.feed_back(output, input)?;
        bound.fed_back.push(output.to_owned());
        Ok(())
    })
}

/// Forgets all inputs.
///
/// # Safety
/// `binding` is null or a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stepalloc_binding_clear_inputs(
    binding: *const StepallocBinding,
) -> *mut StepallocStatus {
    status(|| {
        // SAFETY: the caller's promise.
        let mut bound = unsafe { given(binding, "binding")? }.bound();
        bound.binding.clear_inputs();
        bound.inputs.clear();
        Ok(())
    })
}

/// Forgets all outputs.
///
/// # Safety
/// `binding` is null or a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stepalloc_binding_clear_outputs(
    binding: *const StepallocBinding,
) -> *mut StepallocStatus {
    status(|| {
        // SAFETY: the caller's promise.
        let mut bound = unsafe { given(binding, "binding")? }.bound();
        bound.binding.clear_outputs();
        bound.outputs.clear();
        Ok(())
    })
}

/// Runs the session on what is bound. `options` may be null. Runs of one binding wait for one another.
///
/// # Safety
/// `binding` and `options` are null or handles; the memory of bound values is as `stepalloc_value_borrow` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stepalloc_binding_run(
    binding: *const StepallocBinding,
    options: *const StepallocRunOptions,
) -> *mut StepallocStatus {
    status(|| {
        // SAFETY: the caller's promise.
        let binding = unsafe { given(binding, "binding")? };
        // SAFETY: the same.
        binding.bound().run(unsafe { options.as_ref() })
    })
}

/// An output of the newest run, as a value of the same memory: the next run writes there again, unless its type is another then, it is
/// bound to an input, or `stepalloc_binding_bind_output` was called for it. It is released by the caller, and outlives the binding.
///
/// # Safety
/// `binding` is null or a handle, `name` is null or ends with a nul byte, `value` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stepalloc_binding_output(
    binding: *const StepallocBinding,
    name: *const c_char,
    value: *mut *mut StepallocValue,
) -> *mut StepallocStatus {
    status(|| {
        // SAFETY: the caller's promise.
        let (binding, name, out) =
            unsafe { (given(binding, "binding")?, text(name, "name")?, given_mut(value, "value")?) };
        hand_out(out, binding.bound().output(name)?);
        Ok(())
    })
}

/// Releases a binding; null is none.
///
/// # Safety
/// `binding` is null or a handle that was not released, and that no run has.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stepalloc_binding_release(binding: *mut StepallocBinding) {
    // SAFETY: the caller's promise.
    unsafe { take_back(binding) };
}
