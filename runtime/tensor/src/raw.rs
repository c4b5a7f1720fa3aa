//! Elements as files have them: in the order of small machines, those of less than a byte packed.

use crate::error::OpError;
use crate::tensor::{Tensor, Type, ViewMut};
use bytes::Bytes;

/// A tensor of the bytes that files have for its elements.
pub fn from_raw(ty: Type, raw: Bytes) -> Result<Tensor, OpError> {
    let bits = ty.dtype.file_bits();
    let in_file = (ty.elements() as u128 * bits as u128).div_ceil(8);
    if raw.len() as u128 != in_file {
        return Err(OpError::shape(format!("{ty} has {} bytes instead of {in_file}", raw.len())));
    }
    if bits < 8 {
        let mut tensor = Tensor::zeroed(ty);
        unpack(bits, &raw, tensor.view_mut().bytes);
        return Ok(tensor);
    }
    if cfg!(target_endian = "big") && bits > 8 {
        let mut tensor = Tensor::zeroed(ty);
        let ViewMut { bytes, dtype, .. } = tensor.view_mut();
        for (to, from) in bytes.chunks_exact_mut(dtype.bytes()).zip(raw.chunks_exact(dtype.bytes())) {
            to.copy_from_slice(from);
            to.reverse();
        }
        return Ok(tensor);
    }
    Tensor::from_bytes(ty, raw).ok_or_else(|| OpError::shape("it has too few bytes"))
}

/// Elements of less than a byte, the first in the lowest bits; signs are kept.
pub fn unpack(bits: usize, packed: &[u8], elements: &mut [u8]) {
    let each = 8 / bits;
    for (index, element) in elements.iter_mut().enumerate() {
        *element = (packed[index / each] >> (index % each * bits)) & ((1 << bits) - 1);
    }
}
