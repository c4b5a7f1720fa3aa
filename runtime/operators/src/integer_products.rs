//! Products of 8-bit integers whose sums become real numbers, or 8-bit integers again: com.microsoft's `MatMulIntegerToFloat`,
//! `DynamicQuantizeMatMul` and `QGemm`, as ONNX Runtime writes them in place of several nodes.

use super::integer::{Bytes, flip, split};
use super::matmul::Batches;
use super::quantize::{scale_of, to_bytes};
use super::{Call, Definition, Known, Made, Operator, Types, Unclear, typed};
use smallvec::smallvec;
use stepalloc_kernels::broadcast::broadcast;
use stepalloc_kernels::gemm::int8::{self, Quantized, gemm_i8};
use stepalloc_kernels::gemm::{Matrix, PARALLEL};
use stepalloc_kernels::scales::load;
use stepalloc_tensor::{DataType, OpError, Type, View};
use stepalloc_threads as threads;

pub(super) fn make(node: &Definition<'_>) -> Made {
    let attributes = node.attributes;
    let told = |name: &str| attributes.int(name, 0) != 0;
    let there = |index: usize| node.inputs.get(index).copied().unwrap_or(false);
    Some(match node.op {
        "MatMulIntegerToFloat" => Ok(Box::new(Product {
            a_scale: Some(2),
            a_zero: 4,
            b: 1,
            b_scale: 3,
            b_zero: 5,
            bias: 6,
            output: None,
            alpha: 1.0,
            transposed: [false; 2],
        })),
        "DynamicQuantizeMatMul" => Ok(Box::new(Product {
            a_scale: None,
            a_zero: usize::MAX,
            b: 1,
            b_scale: 2,
            b_zero: 3,
            bias: 4,
            output: None,
            alpha: 1.0,
            transposed: [false; 2],
        })),
        "QGemm" => match [there(7), there(8)] {
            [true, false] => Err(OpError::arity("its output has a scale and no zero point")),
            [false, true] => Err(OpError::arity("its output has a zero point and no scale")),
            [output, _] => Ok(Box::new(Product {
                a_scale: Some(1),
                a_zero: 2,
                b: 3,
                b_scale: 4,
                b_zero: 5,
                bias: 6,
                output: output.then_some([7, 8]),
                alpha: attributes.float("alpha", 1.0),
                transposed: [told("transA"), told("transB")],
            })),
        },
        _ => return None,
    })
}

/// A product, and where its inputs are. Input 0 is the left operand.
struct Product {
    /// `None` where the left operand is real, and quantized here.
    a_scale: Option<usize>,
    a_zero: usize,
    b: usize,
    b_scale: usize,
    b_zero: usize,
    /// Integers that are added to the sums of a Gemm; reals that are added to what others make.
    bias: usize,
    /// Scale and zero point of an output of 8 bits.
    output: Option<[usize; 2]>,
    alpha: f32,
    transposed: [bool; 2],
}

/// Rows of sums that are kept at a time where the output has no room for them.
const ROWS: usize = 256;
/// Sums that become reals at a time.
const FEW: usize = 64;

fn is_byte(dtype: DataType) -> bool {
    matches!(dtype, DataType::U8 | DataType::I8)
}

impl Product {
    fn is_gemm(&self) -> bool {
        self.a_zero == 2
    }

    fn batches(&self, a: &[usize], b: &[usize]) -> Result<Batches, OpError> {
        if self.is_gemm() && (a.len() != 2 || b.len() != 2) {
            return Err(OpError::shape(format!("it multiplies matrices, and has shapes {a:?} and {b:?}")));
        }
        let turned = |shape: &[usize], transposed: bool| match *shape {
            [rows, cols] if transposed => Some([cols, rows]),
            _ => None,
        };
        let (a_turned, b_turned) = (turned(a, self.transposed[0]), turned(b, self.transposed[1]));
        let a = a_turned.as_ref().map_or(a, |shape| &shape[..]);
        Batches::new(a, b_turned.as_ref().map_or(b, |shape| &shape[..]))
    }

    /// Rows of sums that are kept at a time.
    fn rows(&self, m: usize) -> usize {
        if self.output.is_some() { m.min(ROWS) } else { m }
    }

    /// Bytes of scratch memory: sums, what the product needs, operands that are laid out or of the other sign, and zero points of rows
    /// and columns.
    fn space(&self, batches: &Batches, (a, a_elements): (DataType, usize), b: DataType) -> [usize; 6] {
        let Batches { m, n, k, .. } = *batches;
        let rows = self.rows(m);
        let sums = if self.output.is_some() { 4 * rows * n } else { 0 };
        let copied =
            |index: usize, flip: u8, size| if flip == 0 && !self.transposed[index] { 0 } else { size };
        let a_copy = match self.a_scale {
            Some(_) => copied(0, flip(a, DataType::U8), m * k),
            None => a_elements,
        };
        let b_copy = copied(1, flip(b, DataType::I8), k * n);
        [sums, int8::scratch(rows, n, k), a_copy, b_copy, m, n]
    }

    /// Checks scales, zero points and the bias.
    fn check(&self, inputs: &Known<'_>, Batches { n, .. }: &Batches) -> Result<(), Unclear> {
        let one = |index: usize, dtype: DataType| match inputs.opt(index) {
            Some(ty) if ty.dtype != dtype || ty.elements() != 1 => {
                let what = format!("input {index} is {ty}, not one element of {dtype}");
                Err(OpError::operand(ty, dtype, what))
            }
            _ => Ok(()),
        };
        let (a, b) = (inputs.ty(0)?, inputs.ty(self.b)?);
        if let Some(scale) = self.a_scale {
            inputs.ty(scale)?;
            one(scale, DataType::F32)?;
            one(self.a_zero, a.dtype)?;
        }
        inputs.ty(self.b_scale)?;
        for (index, dtype) in [(self.b_scale, DataType::F32), (self.b_zero, b.dtype)] {
            if let Some(ty) =
                inputs.opt(index).filter(|ty| ty.dtype != dtype || ![1, *n].contains(&ty.elements()))
            {
                let what = format!("input {index} is {ty}, not one element of {dtype} or {n}");
                return Err(OpError::operand(ty, dtype, what).into());
            }
        }
        if let Some([scale, zero]) = self.output {
            one(scale, DataType::F32)?;
            if let Some(zero) = inputs.opt(zero).filter(|zero| !is_byte(zero.dtype) || zero.elements() != 1) {
                let what = format!("its output's zero point is {zero}, not one element of 8 bits");
                return Err(if is_byte(zero.dtype) {
                    OpError::shape(what)
                } else {
                    OpError::element_type(what)
                }
                .into());
            }
        }
        Ok(())
    }
}

impl Operator for Product {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        let (a, b) = (inputs.ty(0)?, inputs.ty(self.b)?);
        let a_fits = if self.a_scale.is_some() { is_byte(a.dtype) } else { a.dtype == DataType::F32 };
        if !a_fits || !is_byte(b.dtype) {
            return Err(OpError::shape(format!("{a} and {b} cannot be multiplied by it")).into());
        }
        let batches = self.batches(&a.shape, &b.shape)?;
        self.check(inputs, &batches)?;
        if let Some(bias) = inputs.opt(self.bias) {
            let (dtype, fits) = match self.is_gemm() {
                true => (
                    DataType::I32,
                    broadcast([&batches.out[..], &bias.shape]).is_some_and(|all| all == batches.out[..]),
                ),
                false => (DataType::F32, bias.shape == [batches.n]),
            };
            if bias.dtype != dtype || !fits {
                return Err(OpError::shape(format!(
                    "a bias {bias} does not fit a product of shape {:?}",
                    batches.out
                ))
                .into());
            }
        }
        let dtype = match self.output {
            Some([_, zero]) => inputs.ty(zero)?.dtype,
            None => DataType::F32,
        };
        Ok(smallvec![typed(dtype, &batches.out[..])?])
    }

    fn scratch(&self, inputs: &Known<'_>, _: &[Type]) -> usize {
        let (Some(a), Some(b)) = (inputs.opt(0), inputs.opt(self.b)) else { return 0 };
        self.batches(&a.shape, &b.shape)
            .map_or(0, |batches| self.space(&batches, (a.dtype, a.elements()), b.dtype).iter().sum())
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let (a, b, out) = (call.input(0)?, call.input(self.b)?, call.output(0)?);
        let batches = self.batches(a.shape, b.shape)?;
        let Batches { m, n, k, .. } = batches;
        if out.bytes.is_empty() {
            return Ok(());
        }
        let parts = self.space(&batches, (a.dtype, a.len()), b.dtype);
        let [sums, product, a_copy, b_copy, a_zeros, b_zeros] = split(call.scratch(), parts);
        let zero_byte;
        let (mut a_scale, left, a_copy): (f32, Bytes<'_>, &mut [u8]) = match self.a_scale {
            Some(scale) => {
                let left = Bytes::new(&a, call.opt(self.a_zero), DataType::U8);
                (call.input(scale)?.elements::<f32>()[0], left, a_copy)
            }
            None => {
                let (scale, zero) = scale_of(a.elements());
                to_bytes(a.elements(), (scale, zero), DataType::U8, a_copy);
                zero_byte = [zero as u8];
                let byte = |shape, bytes| View { dtype: DataType::U8, shape, bytes };
                let left = Bytes::new(&byte(a.shape, a_copy), Some(byte(&[], &zero_byte)), DataType::U8);
                (scale, left, &mut [])
            }
        };
        a_scale *= self.alpha;
        let right = Bytes::new(&b, call.opt(self.b_zero), DataType::I8);
        left.fill_zeros(0, a_zeros);
        right.fill_zeros(0, b_zeros);
        let finish = Finish { scale: a_scale, b_scale: call.input(self.b_scale)?, bias: call.opt(self.bias) };
        let quantum = match self.output {
            None => None,
            Some([scale, zero]) => {
                let mut quantum = [0.0; 2];
                load(&call.input(scale)?, 0, &mut quantum[..1]);
                load(&call.input(zero)?, 0, &mut quantum[1..]);
                Some((quantum[0], quantum[1]))
            }
        };
        let (rows, dtype, width) = (self.rows(m), out.dtype, out.dtype.bytes());
        let kept: &mut [i32] = bytemuck::cast_slice_mut(sums);
        for (index, out) in out.bytes.chunks_exact_mut(m * n * width).enumerate() {
            let [a_at, b_at] = batches.operands(index);
            let left = match self.transposed[0] {
                true => turned(a.bytes, [k, m], flip(a.dtype, DataType::U8), a_copy),
                false => left.part(a_at * m * k..(a_at + 1) * m * k, a_copy),
            };
            let right = match self.transposed[1] {
                true => turned(b.bytes, [n, k], flip(b.dtype, DataType::I8), b_copy),
                false => right.part(b_at * k * n..(b_at + 1) * k * n, b_copy),
            };
            let (left, right) = (Matrix::new(left, m, k), Matrix::new(bytemuck::cast_slice(right), k, n));
            let right = Quantized { matrix: right, zeros: bytemuck::cast_slice(b_zeros) };
            for (index, out) in out.chunks_mut(rows * n * width).enumerate() {
                let first = index * rows;
                let height = out.len() / (n * width);
                let matrix = left.part(first..first + height, 0..k);
                let left = Quantized { matrix, zeros: &a_zeros[first..first + height] };
                match quantum {
                    // Sums lie where the reals that they become do.
                    None => {
                        let sums: &mut [i32] = bytemuck::cast_slice_mut(out);
                        gemm_i8(sums, left, right, product)?;
                        finish.reals(sums, first, n);
                    }
                    Some(quantum) => {
                        let sums = &mut kept[..height * n];
                        gemm_i8(sums, left, right, product)?;
                        finish.bytes(sums, first, n, (quantum, dtype), out);
                    }
                }
            }
        }
        Ok(())
    }
}

/// Bytes of `rows` x `cols` with rows and columns exchanged, of the other sign where `flip` is not 0.
fn turned<'c>(from: &[u8], [rows, cols]: [usize; 2], flip: u8, to: &'c mut [u8]) -> &'c [u8] {
    let least = if to.len() < PARALLEL { usize::MAX } else { PARALLEL.div_ceil(rows.max(1)) };
    threads::pieces(to, rows, least, &|col, to| {
        to.iter_mut().enumerate().for_each(|(row, to)| *to = from[row * cols + col] ^ flip);
    });
    to
}

/// How sums become reals.
struct Finish<'a> {
    scale: f32,
    b_scale: View<'a>,
    bias: Option<View<'a>>,
}

impl Finish<'_> {
    /// Some sums of a row, from a column on.
    fn few(&self, row: usize, col: usize, sums: &[i32], to: &mut [f32]) {
        let mut scales = [0.0; FEW];
        let scales = &mut scales[..sums.len()];
        if self.b_scale.len() == 1 {
            scales.fill(self.b_scale.elements::<f32>()[0]);
        } else {
            load(&self.b_scale, col, scales);
        }
        let real = |sum: i32, scale: f32| sum as f32 * (self.scale * scale);
        match &self.bias {
            Some(bias) if bias.dtype == DataType::I32 => {
                let elements = bias.elements::<i32>();
                // Dimensions of 1 repeat; one of two may be left out in front.
                let (by_row, by_col) = match *bias.shape {
                    [rows, cols] => (if rows == 1 { 0 } else { cols }, usize::from(cols > 1)),
                    _ => (0, usize::from(elements.len() > 1)),
                };
                for (at, ((to, &sum), scale)) in to.iter_mut().zip(sums).zip(scales).enumerate() {
                    let bias = elements[row * by_row + (col + at) * by_col];
                    *to = real(sum.wrapping_add(bias), *scale);
                }
            }
            bias => {
                to.iter_mut().zip(sums).zip(scales).for_each(|((to, &sum), scale)| *to = real(sum, *scale));
                if let Some(bias) = bias {
                    let bias = &bias.elements::<f32>()[col..];
                    to.iter_mut().zip(bias).for_each(|(to, bias)| *to += bias);
                }
            }
        }
    }

    /// Sums of rows of `n`, from row `first` on, to the reals that lie there afterwards.
    fn reals(&self, sums: &mut [i32], first: usize, n: usize) {
        let least = if sums.len() < PARALLEL { usize::MAX } else { PARALLEL.div_ceil(n) };
        threads::pieces(sums, n, least, &|row, sums| {
            for (index, sums) in sums.chunks_mut(FEW).enumerate() {
                let mut few = [0.0; FEW];
                let few = &mut few[..sums.len()];
                self.few(first + row, index * FEW, sums, few);
                sums.copy_from_slice(bytemuck::cast_slice(few));
            }
        });
    }

    /// The same to bytes of a scale and a zero point.
    fn bytes(
        &self,
        sums: &[i32],
        first: usize,
        n: usize,
        (quantum, dtype): ((f32, f32), DataType),
        out: &mut [u8],
    ) {
        let least = if sums.len() < PARALLEL { usize::MAX } else { PARALLEL.div_ceil(n) };
        threads::pieces(out, n, least, &|row, out| {
            let sums = &sums[row * n..];
            for (index, out) in out.chunks_mut(FEW).enumerate() {
                let mut few = [0.0; FEW];
                let few = &mut few[..out.len()];
                self.few(first + row, index * FEW, &sums[index * FEW..][..out.len()], few);
                to_bytes(few, quantum, dtype, out);
            }
        });
    }
}
