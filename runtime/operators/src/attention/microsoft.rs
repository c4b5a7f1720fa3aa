//! com.microsoft's `Attention`: queries, keys and values are made of one input by one matrix, and attended to head by head.

use super::{FEW, clear, types_of};
use crate::{Call, Definition, Known, Operator, Types, Unclear, typed};
use smallvec::{SmallVec, smallvec};
use stepalloc_kernels::{
    attention::{Bias, Heads, Job, Mask, Rule, Sizes, repack},
    gemm::{BiasVector, Matrix, gemm_f32},
    real::{Space, Target, narrow, widened, widened_bytes},
};
use stepalloc_tensor::{DataType, OpError, Type, View, ViewMut};

pub(super) struct Fused {
    heads: usize,
    /// Elements of all heads of queries, keys and values; equal thirds where they are not told.
    widths: Option<[usize; 3]>,
    rule: Rule,
    scale: Option<f32>,
    /// What is added to the scores of keys that the mask hides.
    hidden: f32,
    /// Whether keys and values are wanted as an output.
    present: bool,
}

/// Its inputs behind the first two.
const BIAS: usize = 2;
const MASK: usize = 3;
const PAST: usize = 4;
const SCORES: usize = 5;
const PAST_LENGTH: usize = 6;

/// What is known of a call.
struct Shapes {
    sizes: Sizes,
    widths: [usize; 3],
    /// Elements of a row of the input.
    depth: usize,
    /// Members of the batch, heads and queries that the numbers added to scores differ for.
    mask: [usize; 3],
}

impl Fused {
    pub(super) fn new(node: &Definition<'_>) -> Result<Self, OpError> {
        let attributes = node.attributes;
        let there = |index: usize| node.inputs.get(index).copied().unwrap_or(false);
        for name in ["do_rotary", "past_present_share_buffer"] {
            if attributes.int(name, 0) != 0 {
                return Err(OpError::unsupported(format!("{name} is not known to it")));
            }
        }
        if there(PAST_LENGTH) {
            return Err(OpError::unsupported(
                "keys of the past in a buffer that is longer (past_sequence_length) are not known to it",
            ));
        }
        let heads = attributes.int("num_heads", 0);
        let widths = match attributes.ints("qkv_hidden_sizes") {
            None => None,
            Some(told) => {
                let sizes: Vec<_> = told.iter().filter_map(|&size| usize::try_from(size).ok()).collect();
                let wrong =
                    |_| OpError::attribute(format!("its qkv_hidden_sizes are {told:?}, no three sizes"));
                Some(<[usize; 3]>::try_from(sizes).map_err(wrong)?)
            }
        };
        Ok(Self {
            heads: usize::try_from(heads)
                .ok()
                .filter(|&heads| heads > 0)
                .ok_or_else(|| OpError::attribute(format!("its num_heads is {heads}")))?,
            widths,
            rule: Rule {
                softcap: 0.0,
                is_causal: attributes.int("unidirectional", 0) != 0,
                window: [None; 2],
                mode: 0,
                precision: None,
                nothing_is_zero: false,
            },
            scale: attributes.opt_float("scale").filter(|&scale| scale != 0.0),
            hidden: attributes.float("mask_filter_value", -10000.0),
            present: node.outputs.get(1).copied().unwrap_or(false),
        })
    }

    fn shapes(&self, inputs: &Known<'_>) -> Result<Shapes, Unclear> {
        let (x, weights) = (inputs.ty(0)?, inputs.ty(1)?);
        let wrong =
            || OpError::shape(format!("an input {x} and weights {weights} do not fit {} heads", self.heads));
        if !matches!(x.dtype, DataType::F32 | DataType::F16 | DataType::BF16) {
            return Err(stepalloc_kernels::no(x.dtype).into());
        }
        let (&[batch, queries, depth], &[rows, cols]) = (&x.shape[..], &weights.shape[..]) else {
            return Err(wrong().into());
        };
        let widths = self.widths.unwrap_or([cols / 3; 3]);
        let heads = self.heads;
        let all = widths.iter().try_fold(0usize, |sum, &width| sum.checked_add(width));
        let fits = rows == depth && all == Some(cols) && widths[0] == widths[1];
        if !fits || widths.iter().any(|width| !width.is_multiple_of(heads)) || weights.dtype != x.dtype {
            return Err(wrong().into());
        }
        let bias = inputs.opt(BIAS);
        if let Some(bias) = bias.filter(|bias| bias.dtype != x.dtype || bias.shape != [cols]) {
            return Err(OpError::shape(format!("a bias {bias} does not fit weights {weights}")).into());
        }
        let (head, v_head) = (widths[0] / heads, widths[2] / heads);
        let past = match inputs.opt(PAST) {
            None => 0,
            Some(ty) => match ty.shape[..] {
                [2, b, h, past, width]
                    if [b, h, width] == [batch, heads, head] && v_head == head && ty.dtype == x.dtype =>
                {
                    past
                }
                _ => {
                    return Err(OpError::shape(format!(
                        "keys and values of the past {ty} do not fit the new ones"
                    ))
                    .into());
                }
            },
        };
        if self.present && head != v_head {
            return Err(OpError::shape("keys and values of two widths are no one output").into());
        }
        let keys = past.checked_add(queries).ok_or_else(|| OpError::shape("there are too many keys"))?;
        let sizes =
            Sizes { batch, q_heads: heads, kv_heads: heads, queries, past, keys, head, v_head, packed: true };
        typed(DataType::F64, [batch, heads, queries, keys])?;
        Ok(Shapes { sizes, widths, depth, mask: self.mask(inputs, sizes)? })
    }

    /// What the numbers differ for that mask and bias add to scores.
    fn mask(&self, inputs: &Known<'_>, sizes: Sizes) -> Result<[usize; 3], OpError> {
        let Sizes { batch, q_heads, queries, keys, .. } = sizes;
        let mut differs = [1; 3];
        if let Some(mask) = inputs.opt(MASK) {
            let by_query = mask.shape == [batch, queries, keys];
            let fits = by_query || [&[batch][..], &[2 * batch], &[batch, keys]].contains(&&mask.shape[..]);
            if mask.dtype != DataType::I32 || !fits {
                return Err(OpError::unsupported(format!(
                    "a mask {mask} is not known to it: it takes numbers of keys ({batch}), their ends and begins ({}), or \
                     what is shown ({batch} x {keys} or {batch} x {queries} x {keys}), of int32",
                    2 * batch
                )));
            }
            differs = [batch, 1, if by_query { queries } else { 1 }];
        }
        if let Some(bias) = inputs.opt(SCORES) {
            let (&[b, h, q, k], Some(x)) = (&bias.shape[..], inputs.opt(0)) else {
                return Err(OpError::shape(format!(
                    "what is added to scores, {bias}, has no four dimensions"
                )));
            };
            let fits = [1, batch].contains(&b) && [1, q_heads].contains(&h) && [q, k] == [queries, keys];
            if !fits || bias.dtype != x.dtype {
                return Err(OpError::shape(format!(
                    "what is added to scores, {bias}, does not fit {batch} x {q_heads} x {queries} x {keys}"
                )));
            }
            differs = [differs[0].max(b), h, queries];
        }
        Ok(differs)
    }

    /// Keys and values are laid out behind those of the past.
    fn lays_out(&self, sizes: &Sizes, has_past: bool) -> bool {
        sizes.past > 0 || has_past || self.present
    }

    /// Numbers that are added to scores, each for a query and a key, in `to`.
    fn added(&self, call: &Call<'_, '_>, shapes: &Shapes, to: &mut [f32]) {
        let ([members, heads, queries], Sizes { batch, keys, .. }) = (shapes.mask, shapes.sizes);
        let hides = |view: &View<'_>, member: usize, query: usize, key: usize| {
            let told = view.elements::<i32>();
            let key_number = key as i64;
            match view.shape.len() {
                1 if told.len() == batch => key_number >= told[member].into(),
                1 => key_number >= told[member].into() || key_number < told[batch + member].into(),
                2 => told[member * keys + key] <= 0,
                _ => told[(member * shapes.sizes.queries + query) * keys + key] <= 0,
            }
        };
        let mask = call.opt(MASK);
        let scores = call.opt(SCORES);
        for (number, row) in to.chunks_exact_mut(keys.max(1)).enumerate() {
            let (member, head, query) =
                (number / (heads * queries), number / queries % heads, number % queries);
            debug_assert!(member < members);
            match &scores {
                None => row.fill(0.0),
                Some(view) => {
                    let [b, h, q, _] = [0, 1, 2, 3].map(|at| view.shape[at]);
                    let at = ((member % b * h + head % h) * q + query) * keys;
                    stepalloc_kernels::scales::load(view, at, row);
                }
            }
            if let Some(mask) = &mask {
                for (key, to) in row.iter_mut().enumerate() {
                    *to += if hides(mask, member, query, key) { self.hidden } else { 0.0 };
                }
            }
        }
    }
}

impl Operator for Fused {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        let Shapes { sizes, widths, .. } = self.shapes(inputs)?;
        let dtype = inputs.ty(0)?.dtype;
        let mut types = smallvec![typed(dtype, [sizes.batch, sizes.queries, widths[2]])?];
        if self.present {
            types.push(typed(dtype, [2, sizes.batch, sizes.q_heads, sizes.keys, sizes.head])?);
        }
        Ok(types)
    }

    fn scratch(&self, inputs: &Known<'_>, _: &[Type]) -> usize {
        let (Ok(shapes), Ok(x)) = (self.shapes(inputs), inputs.ty(0)) else { return 0 };
        let Shapes { sizes, widths, mask, .. } = shapes;
        let rows = sizes.batch * sizes.queries;
        let mut bytes = [0, 1, BIAS].into_iter().filter_map(|at| inputs.opt(at));
        let mut all: usize = bytes.by_ref().map(|ty| widened_bytes::<f32>(ty.dtype, ty.elements())).sum();
        all += widths.iter().map(|width| Space::bytes::<f32>(rows * width)).sum::<usize>();
        if self.lays_out(&sizes, inputs.opt(PAST).is_some()) {
            let keys = sizes.batch * sizes.q_heads * sizes.keys;
            let is_there = self.present && x.dtype == DataType::F32;
            all += if is_there { 0 } else { 2 * Space::bytes::<f32>(keys * sizes.head) };
        }
        if inputs.opt(MASK).is_some() || inputs.opt(SCORES).is_some() {
            all += Space::bytes::<f32>(mask.iter().product::<usize>() * sizes.keys);
        }
        let (y, _) = sizes.outputs();
        let by_heads = if sizes.repacks() { Space::bytes::<f32>(y) } else { 0 };
        let blocks = sizes.threads(inputs.context.threads()) * Space::bytes::<f32>(sizes.block());
        all + by_heads + widened_bytes::<f32>(x.dtype, y) + blocks
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let types = types_of(call.inputs);
        let types: SmallVec<[_; FEW]> = types.iter().map(Option::as_ref).collect();
        let shapes =
            clear(self.shapes(&Known { types: &types, values: call.inputs, context: call.context }))?;
        let Shapes { sizes, widths, depth, mask } = shapes;
        let Sizes { batch, q_heads: heads, queries, keys, head, v_head, .. } = sizes;
        let mut space = Space(call.scratch());
        let x = Matrix::new(widened::<f32>(&call.input(0)?, &mut space)?, batch * queries, depth);
        let all = widths.iter().sum();
        let weights = Matrix::new(widened::<f32>(&call.input(1)?, &mut space)?, depth, all);
        let bias = call.opt(BIAS).map(|bias| widened::<f32>(&bias, &mut space)).transpose()?;
        let mut made: [&mut [f32]; 3] = [&mut [], &mut [], &mut []];
        let mut first = 0;
        for (made, width) in made.iter_mut().zip(widths) {
            *made = space.take(batch * queries * width)?;
            let columns = first..first + width;
            if !made.is_empty() {
                let bias = bias.map(|bias| BiasVector::Row(&bias[columns.clone()]));
                gemm_f32(made, x, weights.part(0..depth, columns), (1.0, 0.0), bias)?;
            }
            first += width;
        }
        let [q, k, v] = made;
        let past = call.opt(PAST);
        let (k, v, packed): (&[f32], &[f32], bool) = if self.lays_out(&sizes, past.is_some()) {
            let (present, elements) = (call.opt_output(1), batch * heads * keys * head);
            let (wide, narrowed): (&mut [f32], Option<ViewMut<'_>>) = match present {
                Some(present) if present.dtype == DataType::F32 => (present.elements(), None),
                other => {
                    let (wide, _) =
                        space.take::<f32>(2 * Space::bytes::<f32>(elements) / 4)?.split_at_mut(2 * elements);
                    (wide, other)
                }
            };
            let (keys_of, values_of) = wide.split_at_mut(elements);
            lay_out(keys_of, past.as_ref(), 0, k, &sizes);
            lay_out(values_of, past.as_ref(), elements - k.len(), v, &sizes);
            if let Some(present) = narrowed {
                narrow(wide, present)?;
            }
            let (keys_of, values_of) = wide.split_at(elements);
            (keys_of, values_of, false)
        } else {
            (k, v, true)
        };
        let has_mask = call.opt(MASK).is_some() || call.opt(SCORES).is_some();
        let mut added: &[f32] = &[];
        if has_mask {
            let numbers = space.take::<f32>(mask.iter().product::<usize>() * keys)?;
            self.added(call, &shapes, numbers);
            added = numbers;
        }
        let [members, mask_heads, mask_queries] = mask;
        let stride = |differs: usize, inner: usize| if differs == 1 { 0 } else { inner };
        let strides = [
            stride(members, mask_heads * mask_queries * keys),
            stride(mask_heads, mask_queries * keys),
            stride(mask_queries, keys),
            1,
        ];
        let job = Job {
            rule: &self.rule,
            sizes,
            group: 1,
            scale: self.scale.unwrap_or(1.0 / (head as f32).sqrt()),
            q: Heads::new(q, true, heads, queries, head),
            k: Heads::new(k, packed, heads, keys, head),
            v: Heads::new(v, packed, heads, keys, v_head),
            mask: Mask { bias: if has_mask { Bias::Real(added) } else { Bias::None }, strides, keys },
            lengths: None,
        };
        let Some(y) = call.opt_output(0) else { return Ok(()) };
        let y = Target::new(y, &mut space)?;
        if sizes.repacks() {
            let by_heads = space.take::<f32>(sizes.outputs().0)?;
            job.run(by_heads, None, space.0)?;
            repack(by_heads, y.wide, sizes);
        } else {
            job.run(y.wide, None, space.0)?;
        }
        y.finish()
    }
}

/// Rows of all heads, those of the past in front, head by head; `from` is where those of the past begin in it.
fn lay_out(to: &mut [f32], past: Option<&View<'_>>, from: usize, new: &[f32], sizes: &Sizes) {
    let &Sizes { q_heads: heads, queries, past: old, keys, head, .. } = sizes;
    for (number, to) in to.chunks_exact_mut((keys * head).max(1)).enumerate() {
        let (kept, fresh) = to.split_at_mut(old * head);
        if let Some(past) = past {
            stepalloc_kernels::scales::load(past, from + number * kept.len(), kept);
        }
        let (member, at) = (number / heads, number % heads);
        for (query, to) in fresh.chunks_exact_mut(head.max(1)).enumerate() {
            to.copy_from_slice(&new[((member * queries + query) * heads + at) * head..][..head]);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::trial::{Trial, close, floats, numbers, run, tensor};
    use stepalloc_graph::Attribute;
    use stepalloc_tensor::{Bool, Tensor};

    const HEADS: usize = 2;
    const HEAD: usize = 4;

    fn fused<'a>(inputs: Vec<Option<Tensor>>) -> Trial<'a> {
        let told = [("num_heads", Attribute::Int(HEADS as i64))];
        Trial { domain: "com.microsoft", opset: 1, ..Trial::new("Attention", &told, inputs) }
    }

    /// Queries, keys or values by a product and a sum, packed.
    fn side(x: &Tensor, weights: &Tensor, bias: &Tensor, which: usize) -> Tensor {
        let width = HEADS * HEAD;
        let rows = floats(weights).chunks(3 * width).flat_map(|row| row[which * width..][..width].to_vec());
        let part = tensor(&[weights.ty().shape[0], width], &rows.collect::<Vec<_>>());
        let bias = tensor(&[width], &floats(bias)[which * width..][..width]);
        let product = run("MatMul", 13, &[], &[Some(x), Some(&part)]).expect("a product").remove(0);
        run("Add", 14, &[], &[Some(&product), Some(&bias)]).expect("a sum").remove(0)
    }

    fn given() -> [Tensor; 3] {
        [numbers(&[2, 5, 6], 1), numbers(&[6, 3 * HEADS * HEAD], 2), numbers(&[3 * HEADS * HEAD], 3)]
    }

    /// The same by ONNX's operator, with what it takes further.
    fn wanted<'a>(given: &[Tensor; 3], further: &[Option<Tensor>]) -> Trial<'a> {
        let [x, weights, bias] = given;
        let sides = [0, 1, 2].map(|which| Some(side(x, weights, bias, which)));
        let inputs = sides.into_iter().chain(further.iter().cloned());
        Trial::new("Attention", &[], inputs)
            .int("q_num_heads", HEADS as i64)
            .int("kv_num_heads", HEADS as i64)
    }

    #[test]
    fn it_is_three_products_and_an_attention() {
        for causal in [0, 1] {
            let made =
                fused(given().map(Some).to_vec()).int("unidirectional", causal).run().expect("it runs");
            let wanted = wanted(&given(), &[]).int("is_causal", causal).run().expect("it runs");
            assert_eq!(made[0].ty(), wanted[0].ty());
            assert!(close(floats(&made[0]), floats(&wanted[0])), "causal {causal}");
        }
        // Scores are the same for all keys then.
        let equal = fused(given().map(Some).to_vec()).with("scale", Attribute::Float(1e-30)).run();
        let wanted = wanted(&given(), &[]).with("scale", Attribute::Float(0.0)).run().expect("it runs");
        assert!(close(floats(&equal.expect("it runs")[0]), floats(&wanted[0])));
    }

    #[test]
    fn masks_of_every_kind_hide_keys() {
        let shown = |member: usize, key: usize| if member == 0 { key < 3 } else { (1..5).contains(&key) };
        let by_member = || (0..10).map(|at| shown(at / 5, at % 5));
        let bools: Vec<Bool> = by_member().map(Bool::from).collect();
        let wanted =
            wanted(&given(), &[Some(tensor(&[2, 1, 1, 5], &bools).reshaped([2, 1, 1, 5]).expect("as many"))]);
        // One row is for all queries.
        let all: Vec<Bool> = (0..50).map(|at| bools[at / 25 * 5 + at % 5]).collect();
        let wanted = Trial {
            inputs: {
                let mut inputs = wanted.inputs.clone();
                inputs[3] = Some(tensor(&[2, 1, 5, 5], &all));
                inputs
            },
            ..wanted
        };
        let wanted = wanted.run().expect("it runs").remove(0);
        let raw: Vec<i32> = by_member().map(i32::from).collect();
        let each: Vec<i32> = (0..50).map(|at| raw[at / 25 * 5 + at % 5]).collect();
        let masks = [tensor(&[4], &[3i32, 5, 0, 1]), tensor(&[2, 5], &raw), tensor(&[2, 5, 5], &each)];
        for mask in masks {
            let kind = mask.ty().to_string();
            let mut inputs = given().map(Some).to_vec();
            inputs.push(Some(mask));
            let made = fused(inputs).run().expect("it runs");
            assert!(close(floats(&made[0]), floats(&wanted)), "{kind}");
        }
        let mut inputs = given().map(Some).to_vec();
        inputs.push(Some(tensor(&[2], &[3i32, 5])));
        let ends = fused(inputs).run().expect("it runs").remove(0);
        assert!(close(&floats(&ends)[..40], &floats(&wanted)[..40]), "the first member is shown three keys");
        assert!(!close(&floats(&ends)[40..], &floats(&wanted)[40..]), "the second one all of them");
    }

    #[test]
    fn numbers_are_added_to_scores_beside_a_mask() {
        let bias = numbers(&[1, HEADS, 5, 5], 9);
        let hidden: Vec<f32> = (0..2 * HEADS * 25)
            .map(|at| {
                let key = at % 5;
                let member = at / (HEADS * 25);
                let hides = if member == 0 { key >= 3 } else { key == 0 };
                floats(&bias)[at % (HEADS * 25)] + if hides { -10000.0 } else { 0.0 }
            })
            .collect();
        let all = tensor(&[2, HEADS, 5, 5], &hidden);
        let wanted = wanted(&given(), &[Some(all)]).run().expect("it runs");
        let mut inputs = given().map(Some).to_vec();
        inputs.extend([Some(tensor(&[4], &[3i32, 5, 0, 1])), None, Some(bias)]);
        let made = fused(inputs).run().expect("it runs");
        assert!(close(floats(&made[0]), floats(&wanted[0])));
    }

    #[test]
    fn keys_and_values_of_the_past_come_first() {
        let past = numbers(&[2, 2, HEADS, 3, HEAD], 5);
        let half = |which: usize| {
            let elements = floats(&past);
            tensor(&[2, HEADS, 3, HEAD], &elements[which * elements.len() / 2..][..elements.len() / 2])
        };
        let wanted = wanted(&given(), &[None, Some(half(0)), Some(half(1))]).outputs(3);
        let wanted = wanted.int("is_causal", 1).run().expect("it runs");
        let mut inputs = given().map(Some).to_vec();
        inputs.extend([None, Some(past)]);
        for outputs in [1, 2] {
            let trial = fused(inputs.clone()).int("unidirectional", 1).outputs(outputs);
            let made = trial.run().expect("it runs");
            assert!(close(floats(&made[0]), floats(&wanted[0])), "{outputs}");
            if outputs == 2 {
                assert_eq!(made[1].ty().shape, [2, 2, HEADS, 8, HEAD]);
                assert!(close(floats(&made[1]), &[floats(&wanted[1]), floats(&wanted[2])].concat()));
            }
        }
    }

    #[test]
    fn what_it_does_not_take_is_an_error() {
        let said =
            |trial: Trial<'_>| trial.operator().err().map_or_else(String::new, |error| error.to_string());
        let plain = || fused(given().map(Some).to_vec());
        assert!(said(plain().int("do_rotary", 1)).contains("do_rotary"));
        assert!(said(plain().int("past_present_share_buffer", 1)).contains("share_buffer"));
        assert!(said(Trial { attributes: Vec::new(), ..plain() }).contains("num_heads"));
        assert!(plain().with("qkv_hidden_sizes", Attribute::Ints(vec![8, 8, 9])).run().is_err());
        let masked = |mask: Tensor| {
            let mut inputs = given().map(Some).to_vec();
            inputs.push(Some(mask));
            fused(inputs).run().err().map_or_else(String::new, |error| error.to_string())
        };
        assert!(masked(tensor(&[2, 1, 8, 8], &[1i32; 128])).contains("mask"));
        assert!(masked(tensor(&[3], &[1i32; 3])).contains("mask"));
    }
}
