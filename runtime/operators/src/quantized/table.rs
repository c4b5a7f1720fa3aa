//! Functions of a byte, as a table.

use super::{Call, Definition, Known, Operator, Types, Unclear, flip, made_type, typed};
use crate::Reuse;
use smallvec::smallvec;
use stepalloc_kernels::broadcast::{PARALLEL, PART};
use stepalloc_tensor::{DataType, OpError};
use stepalloc_threads as threads;

/// Inputs: x, and what each of its 256 values becomes, beginning with that of the byte 0.
pub(super) struct Table {
    dtype: DataType,
}

impl Table {
    pub(super) fn new(node: &Definition<'_>) -> Result<Self, OpError> {
        let dtype = made_type(node.attributes)?;
        flip(dtype, dtype)?;
        Ok(Self { dtype })
    }
}

impl Operator for Table {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        let (x, table) = (inputs.ty(0)?, inputs.ty(1)?);
        flip(x.dtype, DataType::U8)?;
        if table.dtype != self.dtype || table.elements() != 256 {
            return Err(OpError::operand(
                table,
                self.dtype,
                format!("a table {table} is not of 256 {}", self.dtype),
            )
            .into());
        }
        Ok(smallvec![typed(self.dtype, x.shape.clone())?])
    }

    fn reuse(&self) -> Reuse {
        Reuse::InPlace(&[0])
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let (table, out) = (call.input(1)?, call.output(0)?);
        let table: &[u8; 256] =
            table.bytes.try_into().map_err(|_| OpError::shape("a table is not of 256 bytes"))?;
        look_up(table, call.opt(0).map(|x| x.bytes), out.bytes);
        Ok(())
    }
}

/// What each byte becomes by a table. The output has the input's bytes where there is no input.
pub(crate) fn look_up(table: &[u8; 256], from: Option<&[u8]>, out: &mut [u8]) {
    let least = if out.len() < PARALLEL { usize::MAX } else { 1 };
    threads::pieces(out, PART, least, &|number, out| match from {
        Some(x) => out.iter_mut().zip(&x[number * PART..]).for_each(|(to, &x)| *to = table[usize::from(x)]),
        None => out.iter_mut().for_each(|x| *x = table[usize::from(*x)]),
    });
}
