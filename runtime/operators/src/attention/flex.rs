//! Attention whose scores and probabilities are changed by graphs of the node.
//!
//! The graphs are given the scores of all heads at once, so that all of them are in memory.

use super::{FEW, clear, softmax_precision, types_of};
use crate::control::{Body, bodies};
use crate::{Call, Definition, Known, Operator, RunContext, Types, Unclear, typed, zeroed};
use smallvec::{SmallVec, smallvec};
use stepalloc_kernels::gemm::Matrix;
use stepalloc_kernels::{
    attention::{Heads, probabilities},
    real::{Real, Space, Target, is_double, narrow, widened, widened_bytes},
};
use stepalloc_tensor::{DataType, OpError, Type, View};

pub(super) struct FlexAttention {
    scale: Option<f32>,
    /// Of the scores.
    precision: Option<DataType>,
    prob_mod: Option<Body>,
    score_mod: Option<Body>,
}

#[derive(Clone, Copy)]
struct Sizes {
    batch: usize,
    q_heads: usize,
    kv_heads: usize,
    queries: usize,
    keys: usize,
    head: usize,
    v_head: usize,
}

impl FlexAttention {
    pub(super) fn new(node: &Definition<'_>) -> Result<Self, OpError> {
        let [prob_mod, score_mod] = bodies(node, ["prob_mod", "score_mod"])?;
        if [&prob_mod, &score_mod].into_iter().flatten().any(|body| body.inputs != 1 || body.outputs != 1) {
            return Err(OpError::attribute("a graph that changes scores has not one input and one output"));
        }
        Ok(Self {
            scale: node.attributes.opt_float("scale"),
            precision: softmax_precision(node.attributes)?,
            prob_mod,
            score_mod,
        })
    }

    fn sizes(&self, inputs: &Known<'_>) -> Result<Sizes, Unclear> {
        let (q, k, v) = (inputs.ty(0)?, inputs.ty(1)?, inputs.ty(2)?);
        let wrong =
            || Unclear::Wrong(OpError::shape(format!("queries {q}, keys {k} and values {v} do not fit")));
        let (&[batch, q_heads, queries, head], &[_, kv_heads, keys, v_head]) = (&q.shape[..], &v.shape[..])
        else {
            return Err(wrong());
        };
        let shared = q_heads == 0 || kv_heads != 0 && q_heads % kv_heads == 0;
        if k.shape != [batch, kv_heads, keys, head] || v.shape[0] != batch || !shared {
            return Err(wrong());
        }
        [q, k, v].into_iter().try_for_each(|ty| is_double(ty.dtype).map(drop))?;
        typed(DataType::F64, [batch, q_heads, queries, keys])?;
        typed(DataType::F64, [batch, q_heads, queries, v_head])?;
        Ok(Sizes { batch, q_heads, kv_heads, queries, keys, head, v_head })
    }

    /// The type of the scores.
    fn precision(&self, q: DataType) -> DataType {
        self.precision.unwrap_or(if q == DataType::F64 { DataType::F64 } else { DataType::F32 })
    }

    /// Whether it computes in f64.
    fn is_double(&self, q: DataType) -> bool {
        q == DataType::F64 || self.precision(q) == DataType::F64
    }

    fn scratch_of<W: Real>(&self, sizes: Sizes, inputs: &Known<'_>) -> usize {
        let copied = |ty: &Type| widened_bytes::<W>(ty.dtype, ty.elements());
        let all: usize = (0..3).filter_map(|index| inputs.opt(index)).map(copied).sum();
        let rows = sizes.batch * sizes.q_heads * sizes.queries;
        let y = inputs.opt(0).map_or(0, |q| widened_bytes::<W>(q.dtype, rows * sizes.v_head));
        all + y + Space::bytes::<W>(rows * sizes.keys)
    }

    fn compute<W: Real>(&self, sizes: Sizes, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let Sizes { batch, q_heads, kv_heads, queries, keys, head, v_head } = sizes;
        let precision = self.precision(call.dtype(0)?);
        let mut space = Space(call.scratch());
        let mut wide = |index| widened::<W>(&call.input(index)?, &mut space);
        let (q, k, v) = (wide(0)?, wide(1)?, wide(2)?);
        let q = Heads::new(q, false, q_heads, queries, head);
        let k = Heads::new(k, false, kv_heads, keys, head);
        let v = Heads::new(v, false, kv_heads, keys, v_head);
        let y = Target::new(call.output(0)?, &mut space)?;
        let scores = space.take::<W>(batch * q_heads * queries * keys)?;
        let scale = self.scale.unwrap_or(1.0 / (head as f32).sqrt());
        let share = q_heads.checked_div(kv_heads).unwrap_or(1).max(1);
        for (at, scores) in scores.chunks_exact_mut((queries * keys).max(1)).enumerate() {
            let (b, h) = (at / q_heads, at % q_heads);
            let k = k.rows(b, h / share, 0..keys).transposed();
            W::multiply(scores, q.rows(b, h, 0..queries), k, scale, W::default());
        }
        let shape = [batch, q_heads, queries, keys];
        let change = |body: &Option<Body>, scores: &mut [W]| match body {
            Some(body) => changed(body, scores, &shape, precision, call.inputs, call.context),
            None => Ok(()),
        };
        change(&self.score_mod, scores)?;
        for row in scores.chunks_exact_mut(keys.max(1)) {
            probabilities(row, Some(precision));
        }
        change(&self.prob_mod, scores)?;
        if queries * v_head > 0 {
            for (at, y) in y.wide.chunks_exact_mut(queries * v_head).enumerate() {
                let (b, h) = (at / q_heads, at % q_heads);
                let scores = Matrix::new(&scores[at * queries * keys..], queries, keys);
                W::multiply(y, scores, v.rows(b, h / share, 0..keys), 1.0, W::default());
            }
        }
        y.finish()
    }
}

/// Has a graph change scores.
fn changed<W: Real>(
    body: &Body,
    scores: &mut [W],
    shape: &[usize],
    dtype: DataType,
    inputs: &[Option<View<'_>>],
    context: &RunContext,
) -> Result<(), OpError> {
    let made = if dtype == W::DTYPE {
        body.run([View { dtype, shape, bytes: bytemuck::cast_slice(scores) }], inputs, context)?
    } else {
        let mut given = zeroed(typed(dtype, shape)?)?;
        narrow(scores, given.view_mut())?;
        body.run([given.view()], inputs, context)?
    };
    let made = made.first().ok_or_else(|| OpError::arity("its graph has no output"))?.view();
    if made.dtype != dtype || made.shape != shape {
        return Err(OpError::shape(format!(
            "its graph makes {}{:?} of scores {dtype}{shape:?}",
            made.dtype, made.shape
        )));
    }
    let mut memory = Vec::new();
    if dtype != W::DTYPE {
        memory.resize(widened_bytes::<W>(dtype, scores.len()) / size_of::<W>(), W::default());
    }
    scores.copy_from_slice(widened::<W>(&made, &mut Space(bytemuck::cast_slice_mut(&mut memory)))?);
    Ok(())
}

impl Operator for FlexAttention {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        let Sizes { batch, q_heads, queries, v_head, .. } = self.sizes(inputs)?;
        Ok(smallvec![typed(inputs.ty(0)?.dtype, [batch, q_heads, queries, v_head])?])
    }

    fn scratch(&self, inputs: &Known<'_>, _: &[Type]) -> usize {
        let (Ok(sizes), Ok(q)) = (self.sizes(inputs), inputs.ty(0)) else { return 0 };
        match self.is_double(q.dtype) {
            true => self.scratch_of::<f64>(sizes, inputs),
            false => self.scratch_of::<f32>(sizes, inputs),
        }
    }

    fn is_pure(&self) -> bool {
        [&self.prob_mod, &self.score_mod].into_iter().flatten().all(Body::is_pure)
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let types = types_of(call.inputs);
        let types: SmallVec<[_; FEW]> = types.iter().map(Option::as_ref).collect();
        let sizes = clear(self.sizes(&Known { types: &types, values: call.inputs, context: call.context }))?;
        match self.is_double(call.dtype(0)?) {
            true => self.compute::<f64>(sizes, call),
            false => self.compute::<f32>(sizes, call),
        }
    }
}
