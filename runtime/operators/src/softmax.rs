//! Softmax and its kin: each element is put in proportion to all along a dimension.

use super::reduce::{greater, is_nan};
use super::slabs::{self, Kernel, Real};
use super::{Call, Definition, Known, Made, Operator, Reuse, Types, Unclear, axis};
use smallvec::smallvec;
use stepalloc_tensor::{DataType, OpError, Type, bf16, f16};

/// Columns that are walked down at once.
const COLUMNS: usize = 256;

pub(super) fn make(node: &Definition<'_>) -> Made {
    let kind = match node.op {
        "Softmax" => Kind::Softmax,
        "LogSoftmax" => Kind::LogSoftmax,
        "Hardmax" => Kind::Hardmax,
        "LpNormalization" => match node.attributes.int("p", 2) {
            1 => Kind::L1,
            2 => Kind::L2,
            p => return Some(Err(OpError::attribute(format!("its p is {p}, neither 1 nor 2")))),
        },
        _ => return None,
    };
    let flat = node.opset < 13 && node.op != "LpNormalization";
    let axis = node.attributes.int("axis", if flat { 1 } else { -1 });
    Some(Ok(Box::new(Proportion { kind, axis, flat })))
}

#[derive(Clone, Copy)]
enum Kind {
    Softmax,
    LogSoftmax,
    Hardmax,
    /// Divided by the sum of what they amount to.
    L1,
    /// Divided by the root of the sum of their squares.
    L2,
}

struct Proportion {
    kind: Kind,
    axis: i64,
    /// All dimensions from the axis on count as one.
    flat: bool,
}

impl Proportion {
    fn column(&self, shape: &[usize]) -> Result<Column, OpError> {
        let rank = shape.len();
        let (length, inner) = if self.flat {
            let at = if self.axis == rank as i64 { rank } else { axis(self.axis, rank)? };
            (shape[at..].iter().product(), 1)
        } else if rank == 0 && matches!(self.axis, 0 | -1) {
            (1, 1)
        } else {
            let at = axis(self.axis, rank)?;
            (shape[at], shape[at + 1..].iter().product())
        };
        Ok(Column { rounds: None, kind: self.kind, length, inner })
    }
}

impl Operator for Proportion {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        let input = inputs.ty(0)?;
        self.column(&input.shape)?;
        Ok(smallvec![input.clone()])
    }

    fn reuse(&self) -> Reuse {
        Reuse::InPlace(&[0])
    }

    fn scratch(&self, inputs: &Known<'_>, outputs: &[Type]) -> usize {
        let Some(column) = outputs.first().and_then(|ty| self.column(&ty.shape).ok()) else { return 0 };
        slabs::scratch(inputs, outputs[0].dtype, column.length * column.inner, &[], false)
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let Some(shape) = call.outputs.first().and_then(|output| Some(output.as_ref()?.shape)) else {
            return Ok(());
        };
        let mut column = self.column(shape)?;
        column.rounds = match call.dtype(0)? {
            DataType::F16 => Some(|x| f16::from_f64(x).to_f64()),
            DataType::BF16 => Some(|x| bf16::from_f64(x).to_f64()),
            _ => None,
        };
        slabs::run(call, column.length * column.inner, &[], false, &column)
    }
}

/// So many elements, the next `inner` places further.
struct Column {
    kind: Kind,
    /// How halves round.
    rounds: Option<fn(f64) -> f64>,
    length: usize,
    inner: usize,
}

impl Kernel for Column {
    fn run<R: Real>(&self, slab: &mut [R], _: usize, _: &[&[R]]) -> [R; 2] {
        match self.kind {
            Kind::Softmax if self.rounds.is_some() => self.round_each_step(slab),
            Kind::Softmax if self.inner == 1 => R::softmax(slab),
            Kind::LogSoftmax if self.inner == 1 => R::log_softmax(slab),
            _ => (0..self.inner).step_by(COLUMNS).for_each(|begin| self.columns(slab, begin)),
        }
        [R::default(); 2]
    }
}

impl Column {
    /// Softmax of halves: rounded after each step, as the operators are that it stands for. A model that was trained so, or spells
    /// it out, gets the same numbers.
    fn round_each_step<R: Real>(&self, slab: &mut [R]) {
        let round = |x: R| R::from_f64(self.rounds.map_or(x.to_f64(), |rounds| rounds(x.to_f64())));
        for begin in 0..self.inner {
            let places = || (0..self.length).map(|number| begin + number * self.inner);
            let most = places().fold(R::from_f64(f64::NEG_INFINITY), |most, at| greater(most, slab[at]));
            let mut sum = R::default();
            for at in places() {
                let mut row = [round(slab[at] - most)];
                R::exp(&mut row);
                slab[at] = round(row[0]);
                sum = sum + slab[at];
            }
            let sum = round(sum);
            places().for_each(|at| slab[at] = slab[at] / sum);
        }
    }

    /// The same for as many columns as fit a block, from one on.
    fn columns<R: Real>(&self, slab: &mut [R], begin: usize) {
        let columns = COLUMNS.min(self.inner - begin);
        let row = |number: usize| begin + number * self.inner..begin + number * self.inner + columns;
        let rows = (0..self.length).map(row);
        let zero = R::default();
        let sums = &mut [zero; COLUMNS][..columns];
        let most = &mut [R::from_f64(f64::NEG_INFINITY); COLUMNS][..columns];
        if !matches!(self.kind, Kind::L1 | Kind::L2) {
            for row in rows.clone() {
                most.iter_mut().zip(&slab[row]).for_each(|(most, &x)| *most = greater(*most, x));
            }
        }
        match self.kind {
            Kind::Softmax => {
                for row in rows.clone() {
                    let row = &mut slab[row];
                    row.iter_mut().zip(&*most).for_each(|(x, &most)| *x = *x - most);
                    R::exp(row);
                    sums.iter_mut().zip(&*row).for_each(|(sum, &x)| *sum = *sum + x);
                }
                for row in rows {
                    slab[row].iter_mut().zip(&*sums).for_each(|(x, &sum)| *x = *x / sum);
                }
            }
            Kind::LogSoftmax => {
                let exps = &mut [zero; COLUMNS][..columns];
                for row in rows.clone() {
                    let row = &mut slab[row];
                    row.iter_mut().zip(&*most).for_each(|(x, &most)| *x = *x - most);
                    exps.copy_from_slice(row);
                    R::exp(exps);
                    sums.iter_mut().zip(&*exps).for_each(|(sum, &x)| *sum = *sum + x);
                }
                sums.iter_mut().for_each(|sum| *sum = R::from_f64(sum.to_f64().ln()));
                for row in rows {
                    slab[row].iter_mut().zip(&*sums).for_each(|(x, &sum)| *x = *x - sum);
                }
            }
            Kind::Hardmax => {
                // The sums say whether the first of the greatest was found.
                let one = R::from_i64(1);
                for row in rows {
                    for ((x, &most), found) in slab[row].iter_mut().zip(&*most).zip(&mut *sums) {
                        // A NaN is the greatest where there is one.
                        let first = *found == zero && (*x == most || is_nan(*x));
                        *x = if first { one } else { zero };
                        *found = if first { one } else { *found };
                    }
                }
            }
            Kind::L1 | Kind::L2 => {
                let squares = matches!(self.kind, Kind::L2);
                for row in rows.clone() {
                    for (sum, &x) in sums.iter_mut().zip(&slab[row]) {
                        let amount = if x < zero { zero - x } else { x };
                        *sum = *sum + if squares { x * x } else { amount };
                    }
                }
                if squares {
                    sums.iter_mut().for_each(|sum| *sum = sum.sqrt());
                }
                for row in rows {
                    let divide = |(x, &sum): (&mut R, &R)| *x = if sum == zero { zero } else { *x / sum };
                    slab[row].iter_mut().zip(&*sums).for_each(divide);
                }
            }
        }
    }
}
