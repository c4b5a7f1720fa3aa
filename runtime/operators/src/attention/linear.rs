//! Linear attention: what was seen is kept in a matrix for each head, which each key and value change and each query reads.

use super::{FEW, clear, heads, types_of};
use crate::{Call, Definition, Known, Operator, Types, Unclear, typed};
use smallvec::{SmallVec, smallvec};
use stepalloc_kernels::real::{Space, Target, is_double, widened, widened_bytes};
use stepalloc_tensor::{DataType, OpError, Type};
use stepalloc_threads as threads;

/// Less work than so many multiplications is done by one thread.
const WORTH_SHARING: usize = 1 << 18;

pub(super) struct LinearAttention {
    q_heads: usize,
    kv_heads: usize,
    scale: f32,
    /// The state decays before each step.
    is_gated: bool,
    /// Only what is new in a value is written.
    is_delta: bool,
    /// Somebody wants more than the state.
    shows: bool,
}

#[derive(Clone, Copy)]
struct Sizes {
    batch: usize,
    steps: usize,
    head: usize,
    v_head: usize,
}

/// All inputs of one member of the batch.
struct Member<'a> {
    query: &'a [f32],
    key: &'a [f32],
    value: &'a [f32],
    decay: &'a [f32],
    beta: &'a [f32],
}

/// The number of a member of the batch, its state, its output, and room for one value.
type Place<'a> = (usize, &'a mut [f32], &'a mut [f32], &'a mut [f32]);

impl LinearAttention {
    pub(super) fn new(node: &Definition<'_>) -> Result<Self, OpError> {
        let attributes = node.attributes;
        let (is_gated, is_delta) = match attributes.text("update_rule", "gated_delta") {
            "linear" => (false, false),
            "gated" => (true, false),
            "delta" => (false, true),
            "gated_delta" => (true, true),
            other => return Err(OpError::attribute(format!("there is no update rule {other}"))),
        };
        let q_heads = heads(attributes.opt_int("q_num_heads"), "q_num_heads")?;
        let kv_heads = heads(attributes.opt_int("kv_num_heads"), "kv_num_heads")?;
        if q_heads % kv_heads != 0 {
            return Err(OpError::shape(format!(
                "{kv_heads} heads of keys cannot be shared by {q_heads} of queries"
            )));
        }
        let has = |index: usize| node.inputs.get(index).copied().unwrap_or(false);
        if has(4) != is_gated || has(5) != is_delta {
            return Err(OpError::arity("its decay and beta are not those that its update rule takes"));
        }
        let shows = node.outputs.first().copied().unwrap_or(false);
        Ok(Self { q_heads, kv_heads, scale: attributes.float("scale", 0.0), is_gated, is_delta, shows })
    }

    fn sizes(&self, inputs: &Known<'_>) -> Result<Sizes, Unclear> {
        let (q, k, v) = (inputs.ty(0)?, inputs.ty(1)?, inputs.ty(2)?);
        let wrong =
            || Unclear::Wrong(OpError::shape(format!("queries {q}, keys {k} and values {v} do not fit")));
        let (&[batch, steps, q_width], &[_, _, v_width]) = (&q.shape[..], &v.shape[..]) else {
            return Err(wrong());
        };
        let (head, v_head) = (q_width / self.q_heads, v_width / self.kv_heads);
        let fits = q_width == head * self.q_heads
            && v_width == v_head * self.kv_heads
            && k.shape == [batch, steps, head * self.kv_heads]
            && v.shape[..2] == [batch, steps];
        if !fits {
            return Err(wrong());
        }
        let mut all = vec![q, k, v];
        let is = |index: usize, shapes: [&[usize]; 2]| match inputs.opt(index) {
            Some(ty) if !shapes.contains(&&ty.shape[..]) => Err(Unclear::Wrong(OpError::shape(format!(
                "input {index} is {ty}, and should be of shape {:?}",
                shapes[0]
            )))),
            other => Ok(other),
        };
        let state: &[usize] = &[batch, self.kv_heads, head, v_head];
        all.extend(is(3, [state, state])?);
        all.extend(is(4, [&[batch, steps, self.kv_heads], &k.shape])?);
        all.extend(is(5, [&[batch, steps, self.kv_heads], &[batch, steps, 1]])?);
        for ty in all {
            is_double(ty.dtype)?;
        }
        typed(DataType::F64, state)?;
        let width = v_head.checked_mul(self.q_heads).ok_or_else(wrong)?;
        typed(DataType::F64, [batch, steps, width])?;
        Ok(Sizes { batch, steps, head, v_head })
    }

    /// Walks through the steps of one member of the batch; `state` has been begun, and `spare` has room for one value.
    fn walk(
        &self,
        sizes: Sizes,
        scale: f32,
        member: &Member<'_>,
        state: &mut [f32],
        out: &mut [f32],
        spare: &mut [f32],
    ) {
        let Sizes { steps, head, v_head, .. } = sizes;
        let group = self.q_heads / self.kv_heads;
        let per_step = |all: &[f32]| all.len().checked_div(steps).unwrap_or(0);
        let (decays, betas) = (per_step(member.decay), per_step(member.beta));
        for step in 0..steps {
            for kv_head in 0..self.kv_heads {
                let at = step * self.kv_heads + kv_head;
                let state = &mut state[kv_head * head * v_head..][..head * v_head];
                let key = &member.key[at * head..][..head];
                let value = &member.value[at * v_head..][..v_head];
                let rows = |state: &mut [f32], change: &mut dyn FnMut(usize, &mut [f32])| {
                    state.chunks_exact_mut(v_head.max(1)).enumerate().for_each(|(d, row)| change(d, row));
                };
                if self.is_gated {
                    let decay = &member.decay[step * decays..][..decays];
                    let each = decays != self.kv_heads;
                    let shared = if each { 0.0 } else { decay[kv_head].exp() };
                    rows(state, &mut |d, row| {
                        let factor = if each { decay[kv_head * head + d].exp() } else { shared };
                        row.iter_mut().for_each(|x| *x *= factor);
                    });
                }
                spare.copy_from_slice(value);
                if self.is_delta {
                    let beta = member.beta[step * betas + if betas == 1 { 0 } else { kv_head }];
                    rows(state, &mut |d, row| {
                        spare.iter_mut().zip(&*row).for_each(|(v, &s)| *v -= s * key[d]);
                    });
                    spare.iter_mut().for_each(|v| *v *= beta);
                }
                rows(state, &mut |d, row| {
                    row.iter_mut().zip(&*spare).for_each(|(s, &v)| *s += key[d] * v);
                });
                for q_head in kv_head * group..(kv_head + 1) * group {
                    let at = step * self.q_heads + q_head;
                    let query = &member.query[at * head..][..head];
                    let out = &mut out[at * v_head..][..v_head];
                    out.fill(0.0);
                    rows(state, &mut |d, row| {
                        let q = scale * query[d];
                        out.iter_mut().zip(&*row).for_each(|(o, &s)| *o += q * s);
                    });
                }
            }
        }
    }
}

impl Operator for LinearAttention {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        let Sizes { batch, steps, head, v_head } = self.sizes(inputs)?;
        let dtype = inputs.ty(0)?.dtype;
        let state = inputs.opt(3).map_or(dtype, |past| past.dtype);
        Ok(smallvec![
            typed(dtype, [batch, steps, self.q_heads * v_head])?,
            typed(state, [batch, self.kv_heads, head, v_head])?,
        ])
    }

    fn scratch(&self, inputs: &Known<'_>, _: &[Type]) -> usize {
        let (Ok(sizes), Ok(outputs)) = (self.sizes(inputs), self.infer(inputs)) else { return 0 };
        let copied = |ty: &Type| widened_bytes::<f32>(ty.dtype, ty.elements());
        let inputs: usize = (0..6).filter_map(|index| inputs.opt(index)).map(copied).sum();
        // The state has memory here even if it is no output.
        let state = Space::bytes::<f32>(outputs[1].elements());
        let shown = if self.shows { copied(&outputs[0]) } else { Space::bytes::<f32>(outputs[0].elements()) };
        inputs + shown + state + Space::bytes::<f32>(sizes.batch * sizes.v_head)
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let types = types_of(call.inputs);
        let types: SmallVec<[_; FEW]> = types.iter().map(Option::as_ref).collect();
        let sizes = clear(self.sizes(&Known { types: &types, values: call.inputs, context: call.context }))?;
        let Sizes { batch, steps, head, v_head } = sizes;
        let mut space = Space(call.scratch());
        let mut wide = [&[][..]; 6];
        for (index, wide) in wide.iter_mut().enumerate() {
            if let Some(view) = call.opt(index) {
                *wide = widened::<f32>(&view, &mut space)?;
            }
        }
        let [query, key, value, past, decay, beta] = wide;
        let mut out = call.opt_output(0).map(|output| Target::new(output, &mut space)).transpose()?;
        let mut present = call.opt_output(1).map(|output| Target::new(output, &mut space)).transpose()?;
        let state_size = self.kv_heads * head * v_head;
        let state = match &mut present {
            Some(present) => &mut *present.wide,
            None => space.take::<f32>(batch * state_size)?,
        };
        if past.is_empty() {
            state.fill(0.0)
        } else {
            state.copy_from_slice(past)
        }
        let spare = space.take::<f32>(batch * v_head)?;
        let scale = if self.scale == 0.0 { 1.0 / (head as f32).sqrt() } else { self.scale };
        let shown = match &mut out {
            Some(out) => &mut *out.wide,
            None => space.take::<f32>(batch * steps * self.q_heads * v_head)?,
        };
        if !shown.is_empty() {
            let part = |all: &'_ [f32], member: usize| -> std::ops::Range<usize> {
                let length = all.len() / batch;
                member * length..(member + 1) * length
            };
            let walk = |(member, state, out, spare): Place<'_>| {
                let member = Member {
                    query: &query[part(query, member)],
                    key: &key[part(key, member)],
                    value: &value[part(value, member)],
                    decay: &decay[part(decay, member)],
                    beta: &beta[part(beta, member)],
                };
                self.walk(sizes, scale, &member, state, out, spare);
            };
            let out_size = shown.len() / batch;
            if head == 0 {
                shown.fill(0.0);
            } else {
                let states = state.chunks_exact_mut(state_size).zip(shown.chunks_exact_mut(out_size));
                let places = states.zip(spare.chunks_exact_mut(v_head)).enumerate();
                let places = places.map(|(member, ((state, out), spare))| (member, state, out, spare));
                if batch * steps * self.q_heads * head * v_head < WORTH_SHARING {
                    places.for_each(walk);
                } else {
                    threads::each(places, &walk);
                }
            }
        }
        [out, present].into_iter().flatten().try_for_each(Target::finish)
    }
}
