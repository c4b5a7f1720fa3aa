//! Sums, products and the like of bytes, element by element, broadcast.

use super::{Call, Definition, Known, Operator, Types, Unclear, made_type, rounded, typed};
use crate::elementwise::broadcast_types;
use rten_simd::{Isa, SimdOp};
use smallvec::smallvec;
use stepalloc_kernels::broadcast::Walk;
use stepalloc_kernels::{no, scales::Rounded};
use stepalloc_tensor::{DataType, OpError, View};

/// Elements that are reals at a time.
const FEW: usize = 256;

/// How an operand's elements become reals: (x - zero) * scale; those of f32 are.
#[derive(Clone, Copy)]
struct Scaled {
    scale: f32,
    zero: f32,
}

/// Either input may be of f32.
pub(super) struct Binary<F> {
    operands: [Scaled; 2],
    /// The output's.
    scale: f32,
    dtype: DataType,
    rounded: Rounded,
    function: F,
}

impl<F> Binary<F> {
    pub(super) fn new(node: &Definition<'_>, function: F) -> Result<Self, OpError> {
        let attributes = node.attributes;
        let dtype = made_type(attributes)?;
        let scaled = |scale: &str, zero: &str| Scaled {
            scale: attributes.float(scale, 1.0),
            zero: attributes.int(zero, 0) as f32,
        };
        Ok(Self {
            operands: [scaled("a_scale", "a_zero"), scaled("b_scale", "b_zero")],
            scale: attributes.float("y_scale", 1.0),
            dtype,
            rounded: rounded(attributes, dtype)?,
            function,
        })
    }
}

/// Some elements of an operand: where they begin, and by how much they move on.
#[derive(Clone, Copy)]
struct Part<'a> {
    elements: Elements<'a>,
    begin: usize,
    step: usize,
    scaled: Scaled,
}

#[derive(Clone, Copy)]
enum Elements<'a> {
    U8(&'a [u8]),
    I8(&'a [i8]),
    F32(&'a [f32]),
}

impl<'a> Elements<'a> {
    fn new(view: &View<'a>) -> Result<Self, OpError> {
        Ok(match view.dtype {
            DataType::U8 => Self::U8(view.elements()),
            DataType::I8 => Self::I8(view.elements()),
            DataType::F32 => Self::F32(view.elements()),
            dtype => return Err(no(dtype)),
        })
    }
}

impl Part<'_> {
    /// From the `first` on, as reals.
    #[inline(always)]
    fn load(&self, first: usize, to: &mut [f32]) {
        #[inline(always)]
        fn reals<T: Copy + Into<f32>>(
            from: &[T],
            step: usize,
            Scaled { scale, zero }: Scaled,
            to: &mut [f32],
        ) {
            if step == 0 {
                return to.fill((from[0].into() - zero) * scale);
            }
            to.iter_mut().zip(from).for_each(|(to, &x)| *to = (x.into() - zero) * scale);
        }
        let at = self.begin + first * self.step;
        match self.elements {
            Elements::U8(x) => reals(&x[at..], self.step, self.scaled, to),
            Elements::I8(x) => reals(&x[at..], self.step, self.scaled, to),
            Elements::F32(x) => reals(&x[at..], self.step, Scaled { scale: 1.0, zero: 0.0 }, to),
        }
    }
}

/// A row, compiled for the machine's vectors.
struct Row<'a, F> {
    a: Part<'a>,
    b: Part<'a>,
    scale: f32,
    rounded: Rounded,
    function: &'a F,
    out: &'a mut [u8],
}

impl<F: Fn(f32, f32) -> f32> SimdOp for Row<'_, F> {
    type Output = ();

    #[inline(always)]
    fn eval<I: Isa>(self, _: I) {
        let Self { a, b, scale, rounded, function, out } = self;
        let (mut left, mut right) = ([0.0; FEW], [0.0; FEW]);
        for (number, out) in out.chunks_mut(FEW).enumerate() {
            let (left, right) = (&mut left[..out.len()], &mut right[..out.len()]);
            a.load(number * FEW, left);
            b.load(number * FEW, right);
            for ((to, &a), &b) in out.iter_mut().zip(&*left).zip(&*right) {
                *to = rounded.real(function(a, b) / scale);
            }
        }
    }
}

impl<F: Fn(f32, f32) -> f32 + Send + Sync> Operator for Binary<F> {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        let (a, b) = (inputs.ty(0)?, inputs.ty(1)?);
        for dtype in [a.dtype, b.dtype] {
            if !matches!(dtype, DataType::U8 | DataType::I8 | DataType::F32) {
                return Err(no(dtype).into());
            }
        }
        Ok(smallvec![typed(self.dtype, broadcast_types(&[a, b])?)?])
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let (a, b, out) = (call.input(0)?, call.input(1)?, call.output(0)?);
        let walk = Walk::new(out.shape, [a.shape, b.shape]);
        let (a, b) = (Elements::new(&a)?, Elements::new(&b)?);
        walk.write(out.bytes, |out, [(a_begin, a_step), (b_begin, b_step)]| {
            let [a_scaled, b_scaled] = self.operands;
            Row {
                a: Part { elements: a, begin: a_begin, step: a_step, scaled: a_scaled },
                b: Part { elements: b, begin: b_begin, step: b_step, scaled: b_scaled },
                scale: self.scale,
                rounded: self.rounded,
                function: &self.function,
                out,
            }
            .dispatch();
        });
        Ok(())
    }
}
