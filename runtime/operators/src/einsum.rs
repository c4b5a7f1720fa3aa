//! Einsum: sums of products of elements, with a label for each dimension.
//!
//! Labels are numbered, those of the output first and in its order; an operand has a stride for each, 0 where it lacks the label. Two
//! operands are multiplied as matrices as far as labels of one kind lie side by side in memory, for each combination of the others.

use super::{Call, Definition, Known, Made, Operator, Types, Unclear, typed};
use smallvec::{SmallVec, smallvec};
use stepalloc_kernels::{
    gemm::{Matrix, product},
    no,
};
use stepalloc_tensor::{DataType, Number, OpError, View, ViewMut, bf16, by_type, f16};

pub(super) fn make(node: &Definition<'_>) -> Made {
    (node.op == "Einsum").then(|| {
        let equation: Vec<u8> =
            node.attributes.text("equation", "").bytes().filter(|byte| *byte != b' ').collect();
        let (terms, output) = match equation.windows(2).position(|pair| pair == b"->") {
            Some(at) => (&equation[..at], Some(&equation[at + 2..])),
            None => (&equation[..], None),
        };
        let terms: Vec<_> = terms.split(|&byte| byte == b',').map(term).collect::<Result<_, _>>()?;
        if terms.len() != node.inputs.len() {
            return Err(OpError::arity(format!(
                "an equation of {} terms has {} operands",
                terms.len(),
                node.inputs.len()
            )));
        }
        Ok(Box::new(Einsum { terms, output: output.map(term).transpose()? }) as _)
    })
}

/// What stands for the dimensions of an ellipsis in a term.
const ELLIPSIS: u16 = b'.' as u16;

/// The labels of a term: letters, and the ellipsis.
fn term(text: &[u8]) -> Result<Vec<u16>, OpError> {
    let mut labels = Vec::new();
    let mut rest = text;
    while let [first, others @ ..] = rest {
        rest = match (first, others) {
            (b'.', [b'.', b'.', others @ ..]) if !labels.contains(&ELLIPSIS) => {
                labels.push(ELLIPSIS);
                others
            }
            (letter, others) if letter.is_ascii_alphabetic() => {
                labels.push((*letter).into());
                others
            }
            _ => {
                return Err(OpError::attribute(format!(
                    "{:?} is no term of an equation",
                    String::from_utf8_lossy(text)
                )));
            }
        };
    }
    Ok(labels)
}

struct Einsum {
    terms: Vec<Vec<u16>>,
    output: Option<Vec<u16>>,
}

type Few = SmallVec<[usize; 8]>;

/// Labels as numbers: sizes, and each operand's strides.
struct Labels {
    sizes: Few,
    strides: SmallVec<[Few; 2]>,
    /// So many of them are the output's.
    output: usize,
}

/// A dimension of an ellipsis, counted from the last one.
fn hidden(from_last: usize) -> u16 {
    256 + from_last as u16
}

impl Einsum {
    /// Writes an ellipsis of so many dimensions out.
    fn spell(term: &[u16], hidden_dims: usize) -> impl Iterator<Item = u16> + '_ {
        term.iter().flat_map(move |&label| {
            let dims = if label == ELLIPSIS { hidden_dims } else { 1 };
            (0..dims).rev().map(move |at| if label == ELLIPSIS { hidden(at) } else { label })
        })
    }

    fn labels<'a>(&self, shapes: impl Iterator<Item = &'a [usize]> + Clone) -> Result<Labels, OpError> {
        let (mut spelled, mut most_hidden) = (SmallVec::<[SmallVec<[u16; 8]>; 2]>::new(), 0);
        for (term, shape) in self.terms.iter().zip(shapes.clone()) {
            let free = match term.contains(&ELLIPSIS) {
                true => (shape.len() + 1).checked_sub(term.len()),
                false => (shape.len() == term.len()).then_some(0),
            };
            let free = free.ok_or_else(|| {
                OpError::shape(format!("a term of {} labels is of shape {shape:?}", term.len()))
            })?;
            most_hidden = most_hidden.max(free);
            spelled.push(Self::spell(term, free).collect());
        }
        let occurs = |label: u16| spelled.iter().flatten().filter(|&&other| other == label).count();
        let mut names: SmallVec<[u16; 8]> = match &self.output {
            Some(output) => Self::spell(output, most_hidden).collect(),
            None => {
                let mut letters: SmallVec<[u16; 8]> = spelled.iter().flatten().copied().collect();
                letters.retain(|label| *label < 256 && occurs(*label) == 1);
                letters.sort_unstable();
                (0..most_hidden).rev().map(hidden).chain(letters).collect()
            }
        };
        for (at, &label) in names.iter().enumerate() {
            if occurs(label) == 0 || names[..at].contains(&label) {
                return Err(OpError::attribute(
                    "a label of the output is in no term, or twice in the output",
                ));
            }
        }
        let output = names.len();
        for &label in spelled.iter().flatten() {
            if !names.contains(&label) {
                names.push(label);
            }
        }
        let mut labels = Labels { sizes: smallvec![1; names.len()], strides: SmallVec::new(), output };
        for (term, shape) in spelled.iter().zip(shapes) {
            let (mut strides, mut next) = (Few::from_elem(0, names.len()), 1);
            for (label, &dim) in term.iter().zip(shape).rev() {
                let at = names.iter().position(|name| name == label).expect("all labels have numbers");
                if dim != 1 {
                    if labels.sizes[at] != 1 && labels.sizes[at] != dim {
                        return Err(OpError::shape(format!(
                            "one label is of {} and of {dim} elements",
                            labels.sizes[at]
                        )));
                    }
                    labels.sizes[at] = dim;
                    strides[at] += next;
                    next *= dim;
                }
            }
            labels.strides.push(strides);
        }
        Ok(labels)
    }
}

impl Operator for Einsum {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        let types = (0..self.terms.len()).map(|at| inputs.ty(at)).collect::<Result<Vec<_>, _>>()?;
        let dtype = types[0].dtype;
        if types.iter().any(|ty| ty.dtype != dtype) {
            return Err(OpError::element_type("its inputs have elements of several types").into());
        }
        let labels = self.labels(types.iter().map(|ty| &ty.shape[..]))?;
        Ok(smallvec![typed(dtype, &labels.sizes[..labels.output])?])
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let inputs = (0..self.terms.len()).map(|at| call.input(at));
        let inputs: SmallVec<[View<'_>; 4]> = inputs.collect::<Result<_, _>>()?;
        let out = call.output(0)?;
        let labels = self.labels(inputs.iter().map(|input| input.shape))?;
        if out.bytes.is_empty() {
            return Ok(());
        }
        if labels.sizes.contains(&0) {
            // Sums of nothing; zero is no bits in all types.
            out.bytes.fill(0);
            return Ok(());
        }
        if let ([a, b], DataType::F32 | DataType::F64) = (&inputs[..], out.dtype) {
            let (first, second) = (Matrices::new(&labels, 0, 1), Matrices::new(&labels, 1, 0));
            let chosen = first.map(|first| (first, a, b)).or_else(|| second.map(|second| (second, b, a)));
            if let Some((matrices, a, b)) = chosen {
                return by_type!(out.dtype, [F32, F64], T => {
                    matrices.multiply::<T>(&labels, out.elements(), a.elements(), b.elements())
                }, Err(no(out.dtype)));
            }
        }
        match out.dtype {
            DataType::F32 => sum::<f32>(&labels, out, &inputs),
            DataType::F64 => sum::<f64>(&labels, out, &inputs),
            DataType::F16 => sum::<f16>(&labels, out, &inputs),
            DataType::BF16 => sum::<bf16>(&labels, out, &inputs),
            // Integers wrap, whatever sign they have.
            DataType::I8 | DataType::U8 => sum::<u8>(&labels, out, &inputs),
            DataType::I16 | DataType::U16 => sum::<u16>(&labels, out, &inputs),
            DataType::I32 | DataType::U32 => sum::<u32>(&labels, out, &inputs),
            DataType::I64 | DataType::U64 => sum::<u64>(&labels, out, &inputs),
            other => return Err(no(other)),
        }
        Ok(())
    }
}

/// The element of each operand at a combination of labels, counted through as the digits of a number.
fn offsets(sizes: &[usize], strides: &[Few], of: impl Iterator<Item = usize> + Clone, number: usize) -> Few {
    let place = |strides: &Few| {
        let mut rest = number;
        let step = |label: usize| {
            let digit = rest % sizes[label];
            rest /= sizes[label];
            digit * strides[label]
        };
        of.clone().map(step).sum()
    };
    strides.iter().map(place).collect()
}

/// Is told of a run of terms; see [`runs`].
type Run<'r> = &'r mut dyn FnMut(usize, &[usize], &[usize], usize);

/// Goes through the terms of sums, one element of the output after the other: calls `run` with the element and where in each operand a
/// run of terms begins, by how much each moves on, and how many there are.
fn runs(labels: &Labels, count: usize, run: Run<'_>) {
    let Labels { sizes, strides, output } = labels;
    let last = sizes.len().checked_sub(1).filter(|last| last >= output);
    let (inner, reduced) = last.map_or((1, *output..*output), |last| (sizes[last], *output..last));
    let steps: Few = strides.iter().map(|strides| last.map_or(0, |last| strides[last])).collect();
    let outer: usize = reduced.clone().map(|label| sizes[label]).product();
    for element in 0..count {
        let begin = offsets(sizes, strides, (0..*output).rev(), element);
        for number in 0..outer {
            let mut at = offsets(sizes, strides, reduced.clone().rev(), number);
            at.iter_mut().zip(&begin).for_each(|(at, begin)| *at += begin);
            run(element, &at, &steps, inner);
        }
    }
}

fn sum<T: Number>(labels: &Labels, out: ViewMut<'_>, inputs: &[View<'_>]) {
    let operands: SmallVec<[&[T]; 4]> =
        inputs.iter().map(|input| bytemuck::cast_slice(input.bytes)).collect();
    plain(labels, bytemuck::cast_slice_mut(out.bytes), &operands);
}

/// Sums one element of the output after the other.
fn plain<T: Number>(labels: &Labels, out: &mut [T], operands: &[&[T]]) {
    let (mut sum, mut of) = (T::Wide::default(), 0);
    runs(labels, out.len(), &mut |element, at, steps, count| {
        if element != of {
            (sum, of) = (T::Wide::default(), element);
        }
        for inner in 0..count {
            let mut term = operands[0][at[0] + inner * steps[0]].wide();
            for n in 1..operands.len() {
                term = term.times(operands[n][at[n] + inner * steps[n]].wide());
            }
            sum = sum.plus(term);
        }
        out[element] = T::narrow(sum);
    });
}

/// Less work than this is done faster than a product of matrices begins.
const LEAST: usize = 256;

/// Two operands as matrices: rows of one, columns of the other, and a depth of both.
struct Matrices {
    /// Which operand has the rows.
    left: usize,
    m: (usize, usize),
    n: (usize, usize),
    /// Elements, and the left and right operand's stride.
    k: (usize, usize, usize),
    /// Labels of the output that neither is; they come before the others.
    outer: usize,
    /// Labels that are summed over and are not the depth.
    reduced: Few,
}

impl Matrices {
    fn new(labels: &Labels, left: usize, right: usize) -> Option<Self> {
        let (a, b) = (&labels.strides[left], &labels.strides[right]);
        let sizes = &labels.sizes;
        // Labels at the end of the output that only one operand has, as far as they lie side by side there.
        let run = |end: usize, own: &Few, other: &Few| {
            let (mut begin, mut all, mut stride) = (end, 1, 0);
            while begin > 0 {
                let label = begin - 1;
                if sizes[label] != 1 {
                    let fits =
                        own[label] != 0 && other[label] == 0 && (all == 1 || own[label] == stride * all);
                    if !fits {
                        break;
                    }
                    stride = if all == 1 { own[label] } else { stride };
                    all *= sizes[label];
                }
                begin = label;
            }
            (begin, (all, stride))
        };
        let (end, n) = run(labels.output, b, a);
        let (outer, m) = run(end, a, b);
        let mut reduced: Few = (labels.output..sizes.len()).filter(|&label| sizes[label] != 1).collect();
        reduced.sort_by_key(|&label| (b[label], a[label]));
        let mut k = (1, 0, 0);
        let mut taken = 0;
        if let Some(first) = reduced.iter().position(|&label| a[label] != 0 && b[label] != 0) {
            reduced[..=first].rotate_right(1);
            for &label in &reduced {
                let fits = match taken {
                    0 => true,
                    _ => a[label] == k.0 * k.1 && b[label] == k.0 * k.2,
                };
                if !fits {
                    break;
                }
                k = if taken == 0 {
                    (sizes[label], a[label], b[label])
                } else {
                    (k.0 * sizes[label], k.1, k.2)
                };
                taken += 1;
            }
        }
        reduced.drain(..taken);
        let work = m.0.saturating_mul(n.0).saturating_mul(k.0);
        (n.0 > 1 && work >= LEAST).then_some(Self { left, m, n, k, outer, reduced })
    }

    fn multiply<T: Number>(&self, labels: &Labels, out: &mut [T], a: &[T], b: &[T]) -> Result<(), OpError> {
        let (m, n, k) = (self.m, self.n, self.k);
        let sums: usize = self.reduced.iter().map(|&label| labels.sizes[label]).product();
        let place = |of: &Few| (of[self.left], of[1 - self.left]);
        for (number, out) in out.chunks_exact_mut(m.0 * n.0).enumerate() {
            let outer = place(&offsets(&labels.sizes, &labels.strides, (0..self.outer).rev(), number));
            for sum in 0..sums {
                let inner =
                    place(&offsets(&labels.sizes, &labels.strides, self.reduced.iter().copied(), sum));
                let a = &a[outer.0 + inner.0..];
                let b = &b[outer.1 + inner.1..];
                let a = Matrix { data: a, rows: m.0, cols: k.0, row_stride: m.1, col_stride: k.1 };
                let b = Matrix { data: b, rows: k.0, cols: n.0, row_stride: k.2, col_stride: n.1 };
                product(out, a, b, sum > 0)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn einsum(equation: &str) -> Einsum {
        let (terms, output) = equation.split_once("->").unwrap();
        let terms = terms.split(',').map(|text| term(text.as_bytes()).unwrap()).collect();
        Einsum { terms, output: Some(term(output.as_bytes()).unwrap()) }
    }

    #[test]
    fn matrices_make_what_sums_make() {
        for (equation, a, b) in [
            ("bhid,bhjd->bhij", &[2, 3, 17, 8][..], &[2, 3, 5, 8][..]),
            ("bid,bjd->bji", &[2, 17, 8], &[2, 5, 8]),
            ("ibnd,jbnd->bnij", &[9, 2, 3, 8], &[7, 2, 3, 8]),
            ("abcd,cde->abe", &[2, 9, 4, 5], &[4, 5, 6]),
            ("...ij,...jk->...ik", &[3, 1, 9, 8], &[2, 8, 11]),
            ("aib,bjc->ijc", &[2, 20, 3], &[3, 4, 20]),
        ] {
            let einsum = einsum(equation);
            let labels = einsum.labels([a, b].into_iter()).unwrap();
            let numbers =
                |shape: &[usize]| (0..shape.iter().product()).map(|x: usize| (x % 13) as f64 - 6.0).collect();
            let (x, y): (Vec<f64>, Vec<f64>) = (numbers(a), numbers(b));
            let all = labels.sizes[..labels.output].iter().product();
            let (mut plainly, mut quickly) = (vec![9.0; all], vec![7.0; all]);
            plain(&labels, &mut plainly, &[&x, &y]);
            match (Matrices::new(&labels, 0, 1), Matrices::new(&labels, 1, 0)) {
                (Some(matrices), _) => matrices.multiply(&labels, &mut quickly, &x, &y).unwrap(),
                (_, Some(matrices)) => matrices.multiply(&labels, &mut quickly, &y, &x).unwrap(),
                _ => panic!("{equation} is no product of matrices"),
            }
            assert_eq!(plainly, quickly, "{equation}");
        }
    }

    #[test]
    fn equations_that_do_not_fit_are_refused() {
        assert!(term(b"a.b").is_err() && term(b"......").is_err() && term(b"1").is_err());
        let shapes = |shape: &'static [usize]| std::iter::once(shape);
        assert!(einsum("ij->ij").labels(shapes(&[2])).is_err());
        assert!(einsum("ii->i").labels(shapes(&[2, 3])).is_err());
        assert!(einsum("i->j").labels(shapes(&[2])).is_err());
        assert!(einsum("...ij->ij").labels(shapes(&[2])).is_err());
        let diagonal = einsum("ii->i").labels(shapes(&[3, 3])).unwrap();
        assert_eq!(diagonal.strides[0][0], 4);
    }
}
