//! Memory that a tensor has together with somebody else: its caller, or another tensor; and memory that it has for a while.

use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;

/// Who keeps the memory of a tensor alive.
pub type Owner = Arc<dyn Any + Send + Sync>;

/// Bytes at an address, as long as their owner lives.
///
/// Whoever makes one promises that they are initialised, may be read and written, and that nobody writes them while a slice of them is
/// there, nor looks at them while a mutable one is.
pub(crate) struct Shared {
    begin: NonNull<u8>,
    bytes: usize,
    owner: Owner,
}

// SAFETY: it is an address of bytes that are read and written as a slice is, by the promise of whoever made it; the owner may be sent.
unsafe impl Send for Shared {}
// SAFETY: as above; through a shared reference the bytes are only read.
unsafe impl Sync for Shared {}

impl Shared {
    /// # Safety
    /// The promise of the type.
    pub(crate) unsafe fn new(begin: NonNull<u8>, bytes: usize, owner: Owner) -> Self {
        Self { begin, bytes, owner }
    }

    /// The same bytes once more.
    ///
    /// # Safety
    /// The promise of the type, for both.
    pub(crate) unsafe fn again(&self) -> Self {
        Self { begin: self.begin, bytes: self.bytes, owner: Arc::clone(&self.owner) }
    }

    pub(crate) fn get(&self) -> &[u8] {
        // SAFETY: the promise of the type; the owner lives as long as this.
        unsafe { std::slice::from_raw_parts(self.begin.as_ptr(), self.bytes) }
    }

    pub(crate) fn get_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.begin.as_ptr(), self.bytes) }
    }
}

/// Who lends memory for tensors, and has it back when they are gone.
pub trait Lender: Send + Sync {
    /// Takes bytes back that nobody looks at any more: as many, from the same address, as were lent.
    fn take_back(&self, begin: NonNull<u8>, bytes: usize);
}

/// Bytes of a lender that nobody else has meanwhile.
///
/// Whoever makes one promises that they are initialised, and may be read and written until they are taken back.
pub(crate) struct Leased {
    begin: NonNull<u8>,
    bytes: usize,
    lender: Arc<dyn Lender>,
}

// SAFETY: it is an address of bytes that only its owner reads and writes, by the promise of whoever made it; the lender may be sent.
unsafe impl Send for Leased {}
// SAFETY: as above; through a shared reference the bytes are only read.
unsafe impl Sync for Leased {}

impl Leased {
    /// # Safety
    /// The promise of the type.
    pub(crate) unsafe fn new(begin: NonNull<u8>, bytes: usize, lender: Arc<dyn Lender>) -> Self {
        Self { begin, bytes, lender }
    }

    pub(crate) fn get(&self) -> &[u8] {
        // SAFETY: the promise of the type.
        unsafe { std::slice::from_raw_parts(self.begin.as_ptr(), self.bytes) }
    }

    pub(crate) fn get_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.begin.as_ptr(), self.bytes) }
    }
}

impl Drop for Leased {
    fn drop(&mut self) {
        self.lender.take_back(self.begin, self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use crate::{DataType, Tensor, Type};
    use std::sync::Arc;

    fn floats(count: usize) -> Type {
        Type::new(DataType::F32, [count]).expect("small")
    }

    #[test]
    fn a_borrowed_tensor_is_read_and_written_where_it_is_and_keeps_its_owner() {
        let mut lent = Box::new([1.0f32, 2.0, 3.0]);
        let (begin, owner) = (lent.as_mut_ptr().cast(), Arc::new(()));
        // SAFETY: the box outlives the tensor and is not touched meanwhile.
        let mut tensor = unsafe { Tensor::borrowed(floats(3), begin, owner.clone()) }.expect("aligned");
        assert_eq!(Arc::strong_count(&owner), 2);
        assert_eq!(tensor.view().bytes.as_ptr(), begin);
        tensor.view_mut().elements::<f32>()[1] = 7.0;
        // A clone has memory of its own.
        let clone = tensor.clone();
        tensor.view_mut().elements::<f32>()[2] = 8.0;
        assert_eq!(clone.view().elements::<f32>(), [1.0, 7.0, 3.0]);
        drop(tensor);
        assert_eq!((*lent, Arc::strong_count(&owner)), ([1.0, 7.0, 8.0], 1));
    }

    #[test]
    fn memory_that_is_not_aligned_is_not_borrowed() {
        let mut lent = [0u32; 4];
        let begin = lent.as_mut_ptr().cast::<u8>().wrapping_add(2);
        // SAFETY: nothing is read or written.
        assert!(unsafe { Tensor::borrowed(floats(2), begin, Arc::new(())) }.is_none());
        // SAFETY: the same.
        assert!(unsafe { Tensor::borrowed(floats(2), std::ptr::null_mut(), Arc::new(())) }.is_none());
        // SAFETY: no bytes are read or written.
        assert!(unsafe { Tensor::borrowed(floats(0), std::ptr::null_mut(), Arc::new(())) }.is_some());
    }

    #[test]
    fn two_tensors_share_memory_and_the_last_one_keeps_it() {
        let mut one = Tensor::from_elements([2], &[1.0f32, 2.0]).expect("two elements");
        let begin = one.view().bytes.as_ptr();
        // SAFETY: neither is written while the other is looked at.
        let two = unsafe { one.share() };
        // SAFETY: the same.
        let three = unsafe { one.share() };
        one.view_mut().elements::<f32>()[0] = 5.0;
        assert_eq!(two.view().elements::<f32>(), [5.0, 2.0]);
        drop((one, two));
        assert_eq!((three.view().bytes.as_ptr(), three.view().elements::<f32>()), (begin, &[5.0, 2.0][..]));
    }
}
