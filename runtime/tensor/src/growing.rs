//! Tensors that grow along one axis where they are, as a decoder's keys and values do from token to token.
//!
//! Such a tensor's elements lie in blocks, one for each index in front of the axis, and each block has spare room behind its rows. More
//! rows are appended there ([`Grown::append`]), nothing is moved, and the tensor before stays what it was: it is the first rows of
//! the same blocks. Who appends to a tensor that somebody has appended to already gets blocks of its own, with a copy.
//!
//! Room is reserved as addresses; pages come when rows are written. So a row costs what it has, and each block part of a page.

use crate::tensor::{ALIGNMENT, Line, Memory, OutOfMemory, Tensor, Type};
use memmap2::{Advice, MmapOptions, MmapRaw};
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Rows that there is room for at least, where the system has the addresses.
const ROWS: usize = 8192;
/// Bytes of a page, at most.
const PAGE: usize = 4 << 10;

/// Blocks with room for more rows than they have.
struct Buffer {
    map: MmapRaw,
    blocks: usize,
    /// How far blocks are apart, in bytes.
    stride: usize,
    /// Bytes of a row.
    row: usize,
    /// Rows that a block has room for.
    capacity: usize,
    /// Rows that tensors have, the longest of them.
    used: AtomicUsize,
}

impl Buffer {
    /// Room for `rows` rows; more, if the system has the addresses.
    fn new(blocks: usize, row: usize, rows: usize) -> Result<Self, OutOfMemory> {
        let ample = rows.saturating_mul(2).next_power_of_two().max(ROWS);
        Self::with_capacity(blocks, row, ample).or_else(|_| Self::with_capacity(blocks, row, rows))
    }

    fn with_capacity(blocks: usize, row: usize, capacity: usize) -> Result<Self, OutOfMemory> {
        // Blocks that are a power of two apart would share the sets of the caches.
        let stride = row
            .checked_mul(capacity)
            .and_then(|bytes| bytes.checked_next_multiple_of(ALIGNMENT)?.checked_add(PAGE + ALIGNMENT))
            .ok_or(OutOfMemory { bytes: u64::MAX })?;
        let bytes = stride.checked_mul(blocks).ok_or(OutOfMemory { bytes: u64::MAX })?;
        let fail = |_| OutOfMemory { bytes: bytes as u64 };
        let map = MmapOptions::new().len(bytes).no_reserve_swap().map_anon().map_err(fail)?;
        // Where the system does not know the advice, pages are as large as it likes.
        let _ = map.advise(Advice::NoHugePage);
        Ok(Self { map: map.into(), blocks, stride, row, capacity, used: AtomicUsize::new(0) })
    }

    /// Takes the rows `from..to`, if nobody has them.
    fn claim(&self, from: usize, to: usize) -> bool {
        to <= self.capacity
            && self.used.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// The address of a block's row.
    fn at(&self, block: usize, row: usize) -> *mut u8 {
        assert!(block < self.blocks && row <= self.capacity, "a row beyond its memory");
        self.map.as_mut_ptr().wrapping_add(block * self.stride + row * self.row)
    }
}

/// The memory of a tensor that may grow.
#[derive(Clone)]
pub(crate) struct Grown {
    buffer: Arc<Buffer>,
    rows: usize,
    /// All elements one after the other, made when they are first read so.
    whole: Arc<OnceLock<Vec<Line>>>,
}

impl Grown {
    pub(crate) fn whole(&self) -> &[u8] {
        let blocks = self.blocks();
        let bytes = blocks.count() * blocks.bytes;
        let lines = self.whole.get_or_init(|| {
            let mut lines = vec![Line::default(); bytes.div_ceil(ALIGNMENT)];
            let parts = bytemuck::cast_slice_mut(&mut lines).chunks_exact_mut(blocks.bytes.max(1));
            parts.take(blocks.count()).enumerate().for_each(|(at, to)| to.copy_from_slice(blocks.block(at)));
            lines
        });
        &bytemuck::cast_slice(lines)[..bytes]
    }

    pub(crate) fn blocks(&self) -> Blocks<'_> {
        Blocks { buffer: &self.buffer, bytes: self.rows * self.buffer.row }
    }
}

/// The elements of a tensor block by block, one for each index in front of the axis along which it grows.
#[derive(Clone, Copy)]
pub struct Blocks<'a> {
    buffer: &'a Buffer,
    bytes: usize,
}

impl<'a> Blocks<'a> {
    /// How many there are.
    pub fn count(&self) -> usize {
        self.buffer.blocks
    }

    /// The elements of one.
    ///
    /// # Panics
    /// Where there is no such block.
    pub fn block(&self, at: usize) -> &'a [u8] {
        let begin = self.buffer.at(at, 0);
        // SAFETY: `begin` is that of a block, which has room for these bytes: no tensor has more rows than there is room for. The
        // mapping lives as long as the buffer, its pages are initialised (zero at first), and these rows are written no more: whoever
        // claims rows claims those behind all that tensors have.
        unsafe { std::slice::from_raw_parts(begin, self.bytes) }
    }
}

/// A tensor with new rows that are still to be written.
pub struct Append {
    ty: Type,
    buffer: Arc<Buffer>,
    from: usize,
    to: usize,
    /// Whether new rows are not written yet.
    is_missing: bool,
    copied: usize,
    is_done: bool,
}

impl Append {
    /// A tensor of this type, which begins with the rows along `axis` of another one; these are copied if that is not one that has grown
    /// itself along this axis, or somebody else appended to it.
    ///
    /// # Panics
    /// If the types differ in more than that the new one has more rows, or it has no elements.
    pub fn new(past: &Tensor, ty: Type, axis: usize) -> Result<Self, OutOfMemory> {
        let (blocks, row) = parts(&ty, axis);
        let (from, to) = (past.ty().shape[axis], ty.shape[axis]);
        let mut longer = past.ty().clone();
        longer.shape[axis] = to;
        assert!(longer == ty && from <= to && ty.bytes() > 0, "rows of another tensor");
        let is_missing = from < to;
        let append = |buffer, copied| Self { ty, buffer, from, to, is_missing, copied, is_done: false };
        if let Memory::Grown(Grown { buffer, .. }) = past.memory()
            && (buffer.blocks, buffer.row) == (blocks, row)
            && buffer.claim(from, to)
        {
            return Ok(append(Arc::clone(buffer), 0));
        }
        let buffer = Buffer::new(blocks, row, to)?;
        assert!(buffer.claim(0, to), "nobody else has it yet");
        let bytes = from * row;
        for block in 0..if bytes == 0 { 0 } else { blocks } {
            let old = match past.blocks().filter(|old| old.count() == blocks && old.bytes == bytes) {
                Some(old) => old.block(block),
                None => &past.view().bytes[block * bytes..][..bytes],
            };
            // SAFETY: the block has room for `to` rows, which these are the first of, and nobody else has the buffer yet.
            unsafe { std::ptr::copy_nonoverlapping(old.as_ptr(), buffer.at(block, 0), bytes) };
        }
        Ok(append(Arc::new(buffer), bytes * blocks))
    }

    /// Bytes of the other tensor that were copied.
    pub fn copied_bytes(&self) -> usize {
        self.copied
    }

    /// Writes the new rows: all elements of a tensor that has no others, one block after the other.
    ///
    /// # Panics
    /// If they are more or less bytes than the new rows have.
    pub fn write(&mut self, new: &[u8]) {
        let bytes = (self.to - self.from) * self.buffer.row;
        assert_eq!(new.len(), bytes * self.buffer.blocks, "other rows than the new ones");
        for (block, new) in new.chunks_exact(bytes.max(1)).enumerate() {
            // SAFETY: the block has room for these rows, which were claimed: no tensor has them, and nobody else writes them.
            unsafe { std::ptr::copy_nonoverlapping(new.as_ptr(), self.buffer.at(block, self.from), bytes) };
        }
        self.is_missing = false;
    }

    /// All rows, once the new ones are written.
    ///
    /// # Panics
    /// If they are not.
    pub fn blocks(&self) -> Blocks<'_> {
        assert!(!self.is_missing, "rows that were not written");
        Blocks { buffer: &self.buffer, bytes: self.to * self.buffer.row }
    }

    /// The tensor.
    ///
    /// # Panics
    /// If new rows were not written.
    pub fn finish(mut self) -> Tensor {
        let _ = self.blocks();
        self.is_done = true;
        let (buffer, ty) = (Arc::clone(&self.buffer), self.ty.clone());
        Tensor::grown(ty, Grown { buffer, rows: self.to, whole: Arc::default() })
    }
}

impl Drop for Append {
    /// Rows that no tensor got may be appended anew.
    fn drop(&mut self) {
        if !self.is_done {
            let _ =
                self.buffer.used.compare_exchange(self.to, self.from, Ordering::AcqRel, Ordering::Relaxed);
        }
    }
}

/// Blocks of a type along an axis, and bytes of a row.
fn parts(ty: &Type, axis: usize) -> (usize, usize) {
    let row: usize = ty.shape[axis + 1..].iter().product();
    (ty.shape[..axis].iter().product(), row * ty.dtype.bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(shape: &[usize], first: usize) -> Tensor {
        let count: usize = shape.iter().product();
        let elements: Vec<_> = (first..first + count).map(|x| x as f32).collect();
        Tensor::from_elements(shape, &elements).expect("as many as the shape says")
    }

    /// One tensor behind the other along axis 1, of blocks of rows of two.
    fn concatenated(a: &Tensor, b: &Tensor) -> Vec<f32> {
        let blocks = a.ty().shape[0];
        let part = |x: &Tensor, at: usize| {
            let rows = x.ty().shape[1] * 2;
            x.view().elements::<f32>()[at * rows..][..rows].to_vec()
        };
        (0..blocks).flat_map(|at| [part(a, at), part(b, at)].concat()).collect()
    }

    fn appended(past: &Tensor, new: &Tensor) -> (Tensor, usize) {
        let shape = [past.ty().shape[0], past.ty().shape[1] + new.ty().shape[1], 2];
        let ty = Type { shape: shape.into(), ..past.ty().clone() };
        let mut append = Append::new(past, ty, 1).expect("a few bytes");
        append.write(new.view().bytes);
        let copied = append.copied_bytes();
        (append.finish(), copied)
    }

    #[test]
    fn rows_are_appended_where_the_tensor_is_and_what_was_there_before_stays() {
        let start = numbers(&[3, 4, 2], 0);
        let (mut grown, copied) = appended(&start, &numbers(&[3, 1, 2], 100));
        assert_eq!(copied, 3 * 4 * 2 * 4);
        let mut all = concatenated(&start, &numbers(&[3, 1, 2], 100));
        for step in 0..40 {
            let new = numbers(&[3, 2, 2], 1000 * step);
            let (next, copied) = appended(&grown, &new);
            assert_eq!(copied, 0);
            assert_eq!(grown.view().elements::<f32>(), all);
            all = concatenated(&grown, &new);
            assert_eq!(next.view().elements::<f32>(), all);
            assert_eq!(
                next.blocks().expect("it has grown").block(0).as_ptr(),
                grown.blocks().expect("it has grown").block(0).as_ptr()
            );
            grown = next;
        }
    }

    #[test]
    fn two_that_append_to_one_tensor_do_not_see_each_other() {
        let (root, _) = appended(&numbers(&[2, 3, 2], 0), &numbers(&[2, 1, 2], 50));
        let news = [60, 70, 80].map(|first| numbers(&[2, 2, 2], first));
        let [(a, copied_a), (b, copied_b), (c, _)] = news.clone().map(|new| appended(&root, &new));
        assert_eq!((copied_a, copied_b), (0, 2 * 4 * 2 * 4));
        for (made, new) in [a, b, c].iter().zip(&news) {
            assert_eq!(made.view().elements::<f32>(), concatenated(&root, new));
        }
    }

    #[test]
    fn rows_that_were_never_given_to_a_tensor_are_free_again() {
        let (root, _) = appended(&numbers(&[2, 3, 2], 0), &numbers(&[2, 1, 2], 50));
        let ty = Type { shape: [2, 6, 2].into(), ..root.ty().clone() };
        drop(Append::new(&root, ty.clone(), 1).expect("a few bytes"));
        let again = Append::new(&root, ty, 1).expect("a few bytes");
        assert_eq!(again.copied_bytes(), 0);
    }

    #[test]
    fn what_has_no_more_room_moves() {
        let buffer = Buffer::with_capacity(2, 8, 5).expect("a few bytes");
        assert!(buffer.claim(0, 4));
        let memory = Grown { buffer: Arc::new(buffer), rows: 4, whole: Arc::default() };
        let full = Tensor::grown(Type::new(crate::DataType::F32, [2, 4, 2]).expect("small"), memory);
        let (fifth, copied) = appended(&full, &numbers(&[2, 1, 2], 1));
        assert_eq!(copied, 0);
        let (sixth, copied) = appended(&fifth, &numbers(&[2, 1, 2], 5));
        assert_eq!((copied, sixth.ty().shape[1]), (2 * 5 * 8, 6));
        assert_eq!(sixth.view().elements::<f32>(), concatenated(&fifth, &numbers(&[2, 1, 2], 5)));
    }

    #[test]
    #[should_panic(expected = "rows that were not written")]
    fn rows_that_were_not_written_are_not_read() {
        let past = numbers(&[2, 3, 2], 0);
        let ty = Type { shape: [2, 4, 2].into(), ..past.ty().clone() };
        let append = Append::new(&past, ty, 1).expect("a few bytes");
        let _ = append.blocks();
    }

    #[test]
    fn a_tensor_that_has_grown_is_written_in_memory_of_its_own() {
        let (grown, _) = appended(&numbers(&[2, 3, 2], 0), &numbers(&[2, 1, 2], 50));
        let mut other = grown.clone();
        other.view_mut().bytes.fill(0);
        assert!(other.blocks().is_none());
        assert_eq!(grown.view().elements::<f32>()[7], 51.0);
    }
}
