//! A model that is ready to run.

use crate::options::{StepallocOptions, StepallocRunOptions};
use crate::status::{
    Failure, StepallocStatus, c_text, given, given_mut, hand_out, items, status, take_back, text, texts,
    wrong,
};
use crate::value::{Looked, StepallocTensor, StepallocValue};
use runtime::{Dim, Graph, Model, Options, RunOptions, Session, Value, View};
use std::ffi::{CString, c_char};
use std::ptr::{null, null_mut};

/// A model that is ready to run, and the memory of its runs.
pub struct StepallocSession {
    pub(crate) session: Session,
    pub(crate) model: Model,
    pub(crate) options: Options,
    inputs: Ports,
    outputs: Ports,
}

/// An input or output as the model declares it.
#[repr(C)]
pub struct StepallocPort {
    /// Its name.
    pub name: *const c_char,
    /// ONNX's number of the element type; 0 where the model does not say it.
    pub element_type: i32,
    /// The number of dimensions; -1 where the model does not say it.
    pub rank: isize,
    /// Elements along each dimension; -1 where the model leaves it open.
    pub dims: *const i64,
    /// The names of dimensions that are left open; null for those that have none.
    pub dim_names: *const *const c_char,
    /// An input that has a value, and may be left out.
    pub has_default: bool,
}

/// Inputs or outputs, with what their pointers point to.
struct Ports {
    ports: Vec<StepallocPort>,
    texts: Vec<CString>,
    dims: Vec<Box<[i64]>>,
    dim_names: Vec<Box<[*const c_char]>>,
}

// SAFETY: all pointers are to what stands beside them, which nobody changes.
unsafe impl Send for Ports {}
// SAFETY: as above.
unsafe impl Sync for Ports {}

impl Ports {
    fn of(graph: &Graph, ids: &[usize]) -> Self {
        let mut made = Self { ports: Vec::new(), texts: Vec::new(), dims: Vec::new(), dim_names: Vec::new() };
        ids.iter().for_each(|&id| made.push(&graph.values[id]));
        made
    }

    fn push(&mut self, value: &Value) {
        let declared = value.declared.as_ref();
        let dims = declared.and_then(|declared| declared.dims.as_deref());
        let known = dims.unwrap_or_default();
        let size = |dim: &Dim| if let Dim::Fixed(size) = dim { *size as i64 } else { -1 };
        let sizes: Box<[_]> = known.iter().map(size).collect();
        let name = |dim: &Dim| if let Dim::Named(name) = dim { self.text(name) } else { null() };
        let names: Box<[_]> = known.iter().map(name).collect();
        let name = self.text(&value.name);
        self.ports.push(StepallocPort {
            name,
            element_type: declared.map_or(0, |declared| declared.dtype as i32),
            rank: dims.map_or(-1, |dims| dims.len() as isize),
            dims: sizes.as_ptr(),
            dim_names: names.as_ptr(),
            has_default: value.constant.is_some(),
        });
        // What a box has stays where it is.
        self.dims.push(sizes);
        self.dim_names.push(names);
    }

    fn text(&mut self, text: &str) -> *const c_char {
        let text = c_text(text);
        let pointer = text.as_ptr();
        self.texts.push(text);
        pointer
    }
}

impl StepallocSession {
    fn new(model: Model, options: Option<&StepallocOptions>) -> Result<Self, Failure> {
        let defaults = StepallocOptions::new();
        let told = options.unwrap_or(&defaults);
        let optimization = told.optimization()?;
        if let Some(path) = &told.optimized_model {
            model.clone().optimize(&optimization).0.save(path)?;
        }
        let options = told.options.clone().optimization(&optimization);
        let session = Session::with_options(&model, options.clone());
        let graph = &model.graph;
        let (inputs, outputs) = (Ports::of(graph, &graph.inputs), Ports::of(graph, &graph.outputs));
        Ok(Self { session, model, options, inputs, outputs })
    }
}

/// Inputs by name, as they are looked at during a call.
///
/// # Safety
/// Both pointers are null or have `count` items, names end with nul bytes, and tensors are as [`Looked::or_type`] wants them.
pub(crate) unsafe fn looked_at<'a>(
    names: *const *const c_char,
    tensors: *const StepallocTensor,
    count: usize,
    may_be_types: bool,
) -> Result<Vec<(&'a str, Looked<'a>)>, Failure> {
    // SAFETY: the caller's promise.
    let (names, tensors) = unsafe { (texts(names, count, "input_names")?, items(tensors, count, "inputs")?) };
    let look = |(name, tensor): (&'a str, &'a StepallocTensor)| {
        // SAFETY: the caller's promise.
        let looked = unsafe { if may_be_types { Looked::or_type(tensor) } else { Looked::at(tensor) } };
        looked.map(|looked| (name, looked)).map_err(|failure| failure.of(&format!("input {name}")))
    };
    names.into_iter().zip(tensors).map(look).collect()
}

/// Reads a model from a file of ONNX, or of OpenVINO (.xml), and prepares it. `options` may be null.
///
/// # Safety
/// `path` is null or ends with a nul byte, `options` is null or a handle, `session` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stepalloc_session_open(
    path: *const c_char,
    options: *const StepallocOptions,
    session: *mut *mut StepallocSession,
) -> *mut StepallocStatus {
    status(|| {
        // SAFETY: the caller's promise.
        let (path, out) = unsafe { (text(path, "path")?, given_mut(session, "session")?) };
        // SAFETY: the same.
        hand_out(out, StepallocSession::new(Model::open(path)?, unsafe { options.as_ref() })?);
        Ok(())
    })
}

/// The same of an ONNX model in memory, which is copied. Its weights must be in it.
///
/// # Safety
/// `model` is null or has `bytes` bytes; the others as for `stepalloc_session_open`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stepalloc_session_open_bytes(
    model: *const u8,
    bytes: usize,
    options: *const StepallocOptions,
    session: *mut *mut StepallocSession,
) -> *mut StepallocStatus {
    status(|| {
        // SAFETY: the caller's promise.
        let (model, out) = unsafe { (items(model, bytes, "model")?, given_mut(session, "session")?) };
        let model = Model::from_bytes(model.to_vec())?;
        // SAFETY: the same.
        hand_out(out, StepallocSession::new(model, unsafe { options.as_ref() })?);
        Ok(())
    })
}

/// Releases a session; null is none. Its bindings stay as they are.
///
/// # Safety
/// `session` is null or a handle that was not released, and that no run has.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stepalloc_session_release(session: *mut StepallocSession) {
    // SAFETY: the caller's promise.
    unsafe { take_back(session) };
}

/// The model's inputs, in its order, those with a default among them; how many there are goes to `count`. They are there as long as the
/// session. Null of null.
///
/// # Safety
/// `session` is null or a handle, `count` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stepalloc_session_inputs(
    session: *const StepallocSession,
    count: *mut usize,
) -> *const StepallocPort {
    // SAFETY: the caller's promise.
    unsafe { ports(session.as_ref().map(|session| &session.inputs), count) }
}

/// The model's outputs, in its order; how many there are goes to `count`. They are there as long as the session. Null of null.
///
/// # Safety
/// `session` is null or a handle, `count` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stepalloc_session_outputs(
    session: *const StepallocSession,
    count: *mut usize,
) -> *const StepallocPort {
    // SAFETY: the caller's promise.
    unsafe { ports(session.as_ref().map(|session| &session.outputs), count) }
}

/// # Safety
/// `count` is null or writable.
unsafe fn ports(ports: Option<&Ports>, count: *mut usize) -> *const StepallocPort {
    let ports = ports.map_or(&[][..], |ports| &ports.ports);
    // SAFETY: the caller's promise.
    if let Some(count) = unsafe { count.as_mut() } {
        *count = ports.len();
    }
    if ports.is_empty() { null() } else { ports.as_ptr() }
}

/// Runs the model on `input_count` inputs by name, which are looked at during the call and not copied. Outputs are new values, released by
/// the caller: those of `output_names`, in that order, or all in the model's order where it is null. `outputs` has room for
/// `output_count`. `options` may be null.
///
/// # Safety
/// `session` and `options` are null or handles; names and inputs are null or as many as is said; names end with nul bytes; inputs describe
/// memory that nobody writes during the call; `outputs` is null or writable for `output_count` handles.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stepalloc_session_run(
    session: *const StepallocSession,
    options: *const StepallocRunOptions,
    input_names: *const *const c_char,
    inputs: *const StepallocTensor,
    input_count: usize,
    output_names: *const *const c_char,
    output_count: usize,
    outputs: *mut *mut StepallocValue,
) -> *mut StepallocStatus {
    status(|| {
        // SAFETY: the caller's promise.
        let session = &unsafe { given(session, "session")? }.session;
        // SAFETY: the same.
        let inputs = unsafe { looked_at(input_names, inputs, input_count, false)? };
        let graph = session.graph();
        let names: Vec<_> = graph.outputs.iter().map(|&id| graph.values[id].name.as_str()).collect();
        let wanted = match output_names.is_null() {
            true => names.clone(),
            // SAFETY: the same.
            false => unsafe { texts(output_names, output_count, "output_names")? },
        };
        if wanted.len() != output_count || output_count > 0 && outputs.is_null() {
            let room = if outputs.is_null() { 0 } else { output_count };
            return Err(wrong(format!("there are {} outputs, and room for {room}", wanted.len())));
        }
        let number = |name: &&str| names.iter().position(|other| other == name);
        if let Some(unknown) = wanted.iter().find(|name| number(name).is_none()) {
            return Err(wrong(format!("there is no output {unknown}; outputs are {}", names.join(", "))));
        }
        let views: Vec<(&str, View<'_>)> =
            inputs.iter().map(|(name, looked)| (*name, looked.view())).collect();
        // SAFETY: the same.
        let made = session.run_with(&views, run_options(unsafe { options.as_ref() }))?;
        let made: Vec<_> = made.into_iter().map(|(_, tensor)| StepallocValue::of(tensor)).collect();
        for (at, name) in wanted.iter().enumerate() {
            let mut handle = null_mut();
            hand_out(&mut handle, made[number(name).expect("it was looked for")].again());
            // SAFETY: there is room for as many as are wanted.
            unsafe { outputs.add(at).write(handle) };
        }
        Ok(())
    })
}

/// How a run is made.
pub(crate) fn run_options(options: Option<&StepallocRunOptions>) -> RunOptions<'_> {
    let all = RunOptions::new();
    match options {
        Some(options) => all.cancel(&options.cancel).memory_arena_shrinkage(options.shrinks),
        None => all,
    }
}

/// Gives arenas that no run has now back to the system. The next run takes one anew.
///
/// # Safety
/// `session` is null or a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stepalloc_session_release_memory(
    session: *const StepallocSession,
) -> *mut StepallocStatus {
    status(|| {
        // SAFETY: the caller's promise.
        unsafe { given(session, "session")? }.session.release_memory();
        Ok(())
    })
}
