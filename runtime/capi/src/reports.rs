//! What is known of a session, as JSON.

use crate::session::{StepallocSession, looked_at};
use crate::status::{Failure, StepallocStatus, given, given_mut, hand_out_text, status, wrong};
use crate::value::StepallocTensor;
use runtime::{
    BatchInput, Batches, Dim, Error, Graph, Needs, PlannedBlock, PlannedStep, PlannedValue, Profile,
    RunOptions, Type, View,
};
use serde_json::{Value, json};
use std::ffi::c_char;

/// Types of inputs that are not given: as the model declares them, with 1 for what it leaves open; none for those with a default,
/// and where the model says nothing.
fn declared_types(graph: &Graph) -> Result<Vec<Option<Type>>, Failure> {
    let ty = |&id: &usize| {
        let value = &graph.values[id];
        let Some(declared) = value.declared.as_ref().filter(|_| value.constant.is_none()) else {
            return Ok(None);
        };
        let size = |dim: &Dim| if let Dim::Fixed(size) = dim { *size } else { 1 };
        let shape: Vec<_> = declared.dims.iter().flatten().map(size).collect();
        let ty = Type::new(declared.dtype, shape);
        ty.map(Some).ok_or_else(|| wrong(format!("input {} would be too large", value.name)))
    };
    graph.inputs.iter().map(ty).collect()
}

/// Does something with all inputs in the graph's order: those that are given, and else their types.
fn with_inputs<R>(
    graph: &Graph,
    given: &[(&str, View<'_>)],
    body: impl FnOnce(&[Option<View<'_>>]) -> Result<R, Error>,
) -> Result<R, Failure> {
    let name = |id: usize| graph.values[id].name.as_str();
    if let Some((unknown, _)) =
        given.iter().find(|(given, _)| !graph.inputs.iter().any(|&id| name(id) == *given))
    {
        let names: Vec<_> = graph.inputs.iter().map(|&id| name(id)).collect();
        return Err(wrong(format!("there is no input {unknown}; inputs are {}", names.join(", "))));
    }
    let types = declared_types(graph)?;
    let view = |(&id, ty)| match given.iter().find(|(given, _)| *given == name(id)) {
        Some((_, view)) => Some(*view),
        None => Option::as_ref(ty).map(|ty: &Type| View { dtype: ty.dtype, shape: &ty.shape, bytes: &[] }),
    };
    let views: Vec<_> = graph.inputs.iter().zip(&types).map(view).collect();
    Ok(body(&views)?)
}

/// What the model's file says of it: producer, producer_version, graph_name, domain, description, version, metadata (an object), opsets (an
/// object), nodes, weights, weight_bytes; null where it says nothing.
///
/// # Safety
/// `session` is null or a handle, `json` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stepalloc_session_metadata(
    session: *const StepallocSession,
    json: *mut *mut c_char,
) -> *mut StepallocStatus {
    status(|| {
        // SAFETY: the caller's promise.
        let (session, out) = unsafe { (given(session, "session")?, given_mut(json, "json")?) };
        let (model, header, weights) = (&session.model, &session.model.header, session.model.graph.weights());
        let object =
            |pairs: &mut dyn Iterator<Item = (String, Value)>| -> Value { Value::Object(pairs.collect()) };
        let text = json!({
            "producer": model.producer,
            "producer_version": header.producer_version,
            "graph_name": model.graph.name,
            "domain": header.domain,
            "description": header.doc_string,
            "version": header.model_version,
            "metadata": object(&mut header.metadata.iter().map(|(name, text)| (name.clone(), text.clone().into()))),
            "opsets": object(&mut model.opsets.iter().map(|(name, version)| (name.clone(), (*version).into()))),
            "nodes": model.graph.nodes.len(),
            "weights": weights.len(),
            "weight_bytes": weights.iter().map(|tensor| tensor.ty().bytes() as u64).sum::<u64>(),
        });
        hand_out_text(out, &text.to_string());
        Ok(())
    })
}

/// What the session's arenas have and had, in bytes and in the words of ONNX Runtime: limit (null: none), in_use, total_allocated,
/// max_in_use, num_allocs, num_reserves, num_arena_extensions, num_arena_shrinkages, max_alloc_size; and plans_made.
///
/// # Safety
/// `session` is null or a handle, `json` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stepalloc_session_statistics(
    session: *const StepallocSession,
    json: *mut *mut c_char,
) -> *mut StepallocStatus {
    status(|| {
        // SAFETY: the caller's promise.
        let (session, out) = unsafe { (&given(session, "session")?.session, given_mut(json, "json")?) };
        let statistics = session.statistics();
        let text = json!({
            "limit": (statistics.limit < u64::MAX).then_some(statistics.limit),
            "in_use": statistics.in_use,
            "total_allocated": statistics.total_allocated,
            "max_in_use": statistics.max_in_use,
            "num_allocs": statistics.num_allocs,
            "num_reserves": statistics.num_reserves,
            "num_arena_extensions": statistics.num_arena_extensions,
            "num_arena_shrinkages": statistics.num_arena_shrinkages,
            "max_alloc_size": statistics.max_alloc_size,
            "plans_made": session.plans_made(),
        });
        hand_out_text(out, &text.to_string());
        Ok(())
    })
}

/// Pairs of an output and an input, where the output is the input with rows appended: what `stepalloc_binding_feed_back` is for. The
/// graph is optimized for that, if it was not.
///
/// # Safety
/// `session` is null or a handle, `json` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stepalloc_session_appended(
    session: *const StepallocSession,
    json: *mut *mut c_char,
) -> *mut StepallocStatus {
    status(|| {
        // SAFETY: the caller's promise.
        let (session, out) = unsafe { (&given(session, "session")?.session, given_mut(json, "json")?) };
        hand_out_text(out, &json!(session.appended()).to_string());
        Ok(())
    })
}

/// What the plan of a run on these inputs says, without a run; an input without `data` stands for its type, and one that is left out is as
/// the model declares it, with 1 for open dimensions. Bytes: arena_bytes, lower_bound_bytes (no arena can do with less), wanted_bytes (what
/// `max_mem` counts). Counts: planned_tensors, inplace_tensors, unplanned_nodes, folded_nodes. steps: of each node that runs, in order,
/// name, op, is_view, is_unplanned. blocks: of each part of the arena offset, bytes, first and end (the steps in which its bytes are its
/// own), and values, which lie there one after the other, with name, type, and step.
///
/// # Safety
/// `session` is null or a handle; names and inputs are null or `count`; names end with nul bytes; inputs describe memory that nobody
/// writes during the call; `json` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stepalloc_session_plan(
    session: *const StepallocSession,
    input_names: *const *const c_char,
    inputs: *const StepallocTensor,
    count: usize,
    json: *mut *mut c_char,
) -> *mut StepallocStatus {
    status(|| {
        // SAFETY: the caller's promise.
        let (session, out) = unsafe { (&given(session, "session")?.session, given_mut(json, "json")?) };
        // SAFETY: the same.
        let inputs = unsafe { looked_at(input_names, inputs, count, true)? };
        let inputs: Vec<_> = inputs.iter().map(|(name, looked)| (*name, looked.view())).collect();
        let text = with_inputs(session.graph(), &inputs, |views| {
            let (figures, run) = (session.figures(views)?, session.planned_run(views)?);
            Ok(json!({
                "arena_bytes": figures.arena_bytes,
                "lower_bound_bytes": figures.lower_bound_bytes,
                "wanted_bytes": session.wanted_bytes(views)?,
                "planned_tensors": figures.planned_tensors,
                "inplace_tensors": figures.inplace_tensors,
                "unplanned_nodes": figures.unplanned_nodes,
                "folded_nodes": figures.folded_nodes,
                "steps": run.steps.iter().map(step).collect::<Vec<_>>(),
                "blocks": run.blocks.iter().map(block).collect::<Vec<_>>(),
            }))
        })?;
        hand_out_text(out, &text.to_string());
        Ok(())
    })
}

fn step(step: &PlannedStep) -> Value {
    json!({"name": step.name, "op": step.op_type, "is_view": step.is_view, "is_unplanned": step.is_unplanned})
}

fn block(block: &PlannedBlock) -> Value {
    let value =
        |value: &PlannedValue| json!({"name": value.name, "type": value.ty.to_string(), "step": value.step});
    json!({
        "offset": block.offset,
        "bytes": block.bytes,
        "first": block.steps.start,
        "end": block.steps.end,
        "values": block.values.iter().map(value).collect::<Vec<_>>(),
    })
}

/// Bytes that a run on these inputs counts towards `max_mem`, as its plan tells, without a run. Inputs as for `stepalloc_session_plan`.
///
/// # Safety
/// As for `stepalloc_session_plan`; `bytes` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stepalloc_session_predict(
    session: *const StepallocSession,
    input_names: *const *const c_char,
    inputs: *const StepallocTensor,
    count: usize,
    bytes: *mut u64,
) -> *mut StepallocStatus {
    status(|| {
        // SAFETY: the caller's promise.
        let (session, out) = unsafe { (&given(session, "session")?.session, given_mut(bytes, "bytes")?) };
        // SAFETY: the same.
        let inputs = unsafe { looked_at(input_names, inputs, count, true)? };
        let inputs: Vec<_> = inputs.iter().map(|(name, looked)| (*name, looked.view())).collect();
        *out = with_inputs(session.graph(), &inputs, |views| session.wanted_bytes(views))?;
        Ok(())
    })
}

/// Gets the session ready for inputs of these types, so that a first run on such neither plans nor takes an arena, nor faults pages of the
/// arena in: the plan is made, constant inputs are packed, and the arena is taken and touched. Inputs as for `stepalloc_session_plan`; those of
/// few integers that decide sizes (shapes, numbers of rounds) need their `data`. To be called for each set of types that is expected, the
/// largest one first: so the arena is taken once. No more sets than plans are kept (the option `plans`).
///
/// # Safety
/// As for `stepalloc_session_plan`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stepalloc_session_warm_up(
    session: *const StepallocSession,
    input_names: *const *const c_char,
    inputs: *const StepallocTensor,
    count: usize,
) -> *mut StepallocStatus {
    status(|| {
        // SAFETY: the caller's promise.
        let session = unsafe { &given(session, "session")?.session };
        // SAFETY: the same.
        let inputs = unsafe { looked_at(input_names, inputs, count, true)? };
        let inputs: Vec<_> = inputs.iter().map(|(name, looked)| (*name, looked.view())).collect();
        with_inputs(session.graph(), &inputs, |views| session.warm_up(&[views]))?;
        Ok(())
    })
}

/// The largest batch whose run counts at most `max_mem` bytes, told by plans: batch, bytes, next_bytes (what one more would take; null
/// where there is none: next_error says why), shapes (an object: those of the inputs). The batch is the first dimension of the first input
/// that is open, and dimensions of that name; inputs with `data` stay as they are.
///
/// # Safety
/// As for `stepalloc_session_plan`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stepalloc_session_find_batch(
    session: *const StepallocSession,
    input_names: *const *const c_char,
    inputs: *const StepallocTensor,
    count: usize,
    max_mem: u64,
    json: *mut *mut c_char,
) -> *mut StepallocStatus {
    status(|| {
        // SAFETY: the caller's promise.
        let (session, out) = unsafe { (given(session, "session")?, given_mut(json, "json")?) };
        // SAFETY: the same.
        let inputs = unsafe { looked_at(input_names, inputs, count, true)? };
        let inputs = inputs.iter().map(|(name, looked)| {
            let view = looked.view();
            let input = match looked.is_type() {
                true => BatchInput::Shape(view.shape.to_vec()),
                false => BatchInput::Fixed(view.to_tensor()),
            };
            ((*name).to_owned(), input)
        });
        let batches = Batches::new(&session.model, &session.options, &inputs.collect::<Vec<_>>())?;
        let found = batches.largest(max_mem)?;
        let shapes = batches.shapes(found.batch).into_iter();
        let text = json!({
            "batch": found.batch,
            "bytes": found.needs.limited_bytes(),
            "next_bytes": found.next.as_ref().ok().map(Needs::limited_bytes),
            "next_error": found.next.as_ref().err().map(ToString::to_string),
            "shapes": Value::Object(shapes.map(|(name, shape)| (name.to_owned(), shape.into())).collect()),
        });
        hand_out_text(out, &text.to_string());
        Ok(())
    })
}

/// Runs the model `runs` times on these inputs, and tells of each node that runs, in order: name, op, ms (of a run), output_bytes,
/// scratch_bytes, in_place.
///
/// # Safety
/// As for `stepalloc_session_plan`; all inputs have `data`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stepalloc_session_profile(
    session: *const StepallocSession,
    input_names: *const *const c_char,
    inputs: *const StepallocTensor,
    count: usize,
    runs: usize,
    json: *mut *mut c_char,
) -> *mut StepallocStatus {
    status(|| {
        // SAFETY: the caller's promise.
        let (session, out) = unsafe { (&given(session, "session")?.session, given_mut(json, "json")?) };
        // SAFETY: the same.
        let inputs = unsafe { looked_at(input_names, inputs, count, false)? };
        let inputs: Vec<_> = inputs.iter().map(|(name, looked)| (*name, looked.view())).collect();
        let mut profile = Profile::new();
        for _ in 0..runs {
            session.run_with(&inputs, RunOptions::new().profile(&mut profile))?;
        }
        let nodes = profile.nodes.iter().map(|node| {
            json!({
                "name": node.name,
                "op": node.op_type,
                "ms": node.time.as_secs_f64() * 1e3 / profile.runs.max(1) as f64,
                "output_bytes": node.output_bytes,
                "scratch_bytes": node.scratch_bytes,
                "in_place": node.in_place,
            })
        });
        hand_out_text(out, &nodes.collect::<Value>().to_string());
        Ok(())
    })
}
