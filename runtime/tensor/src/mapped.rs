//! Files of weights: mapped once in a process, however often they are opened, and read into memory only where they must be.
//!
//! A mapped page costs memory from its first use on, and the system maps sixteen at once. So weights are used where they lie in the
//! file if they are large and their address suits their elements. All others are *copied*: when they are first used, not before,
//! by reading the file (which maps nothing), into memory that everybody shares who opened the file.

use crate::element::DataType;
use crate::tensor::{ALIGNMENT, Line};
use bytes::Bytes;
use half::{bf16, f16, slice::HalfFloatSliceExt};
use memmap2::{Mmap, MmapMut, UncheckedAdvice};
use std::any::Any;
use std::collections::HashMap;
use std::fs::{File, Metadata};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

/// Tensors of fewer bytes are copied even if they could be used in place: the system would map 64 KiB around each of them, of which
/// most may belong to others.
const LEAST_IN_PLACE: usize = 64 << 10;

/// Copies of fewer bytes are the allocator's: in pages of their own more than an eighth could be for nothing.
const LEAST_IN_PAGES: usize = 32 << 10;

/// Bytes of a page, or a multiple of them.
const MOST_PAGE: usize = if cfg!(target_arch = "x86_64") { 4 << 10 } else { 64 << 10 };

/// Which file it is, and which version of it.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Identity {
    device: u64,
    inode: u64,
    bytes: u64,
    changed: [i64; 4],
}

impl Identity {
    fn of(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            bytes: metadata.len(),
            changed: [metadata.mtime(), metadata.mtime_nsec(), metadata.ctime(), metadata.ctime_nsec()],
        }
    }
}

/// A part of a file: its offset, its bytes, and whether they are halves that are made f32.
type Part = (usize, usize, Option<Halves>);

/// A mapped file, and what was copied from it.
pub(crate) struct Mapped {
    map: Mmap,
    file: File,
    copies: Mutex<HashMap<Part, Weak<Copied>>>,
    note: Mutex<Option<Note>>,
}

/// What somebody keeps with a file as long as it is mapped.
type Note = Arc<dyn Any + Send + Sync>;

/// Files that are mapped now.
static FILES: Mutex<Vec<(Identity, Weak<Mapped>)>> = Mutex::new(Vec::new());

fn files() -> MutexGuard<'static, Vec<(Identity, Weak<Mapped>)>> {
    FILES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps a mapping as long as any of its bytes are in use.
struct Owner(Arc<Mapped>);

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        &self.0.map
    }
}

/// The bytes of a file: those of whoever has it mapped already.
pub fn open(path: &Path) -> std::io::Result<Bytes> {
    let file = File::open(path)?;
    let metadata = file.metadata()?;
    if metadata.len() == 0 {
        return Ok(Bytes::new());
    }
    let identity = Identity::of(&metadata);
    let mut files = files();
    files.retain(|(_, mapped)| mapped.strong_count() > 0);
    let found = files.iter().find(|(other, _)| *other == identity).and_then(|(_, mapped)| mapped.upgrade());
    let mapped = match found {
        Some(mapped) => mapped,
        None => {
            // SAFETY: nothing writes through the mapping, which is read only. That nobody else changes the file while a model of it is
            // in use cannot be seen to from here, as by no library that maps its weights: the documentation of `Model` asks for it.
            let map = unsafe { Mmap::map(&file)? };
            let mapped = Arc::new(Mapped { map, file, copies: Mutex::default(), note: Mutex::default() });
            files.push((identity, Arc::downgrade(&mapped)));
            mapped
        }
    };
    Ok(Bytes::from_owner(Owner(mapped)))
}

/// The file that these bytes are of, and where they are in it.
fn holding(bytes: &[u8]) -> Option<(Arc<Mapped>, usize)> {
    files().iter().find_map(|(_, mapped)| {
        let mapped = mapped.upgrade()?;
        let offset = (bytes.as_ptr() as usize).checked_sub(mapped.map.as_ptr() as usize)?;
        // As the caller has the bytes, their mapping is still there: another one cannot have its addresses.
        (offset.checked_add(bytes.len())? <= mapped.map.len()).then_some((mapped, offset))
    })
}

/// Lets the system take the pages back that reading a file's structure has mapped. They come again when they are used.
pub fn settle(bytes: &Bytes) {
    if let Some((mapped, _)) = holding(bytes) {
        // SAFETY: pages of a private mapping that nobody writes to are those of the file, before and afterwards.
        let _ = unsafe { mapped.map.unchecked_advise(UncheckedAdvice::DontNeed) };
    }
}

/// The same of the pages that are all of these bytes, which are of a mapped file.
pub fn settle_part(bytes: &[u8]) {
    let Some((mapped, offset)) = holding(bytes) else { return };
    let from = offset.next_multiple_of(MOST_PAGE);
    let to = (offset + bytes.len()) / MOST_PAGE * MOST_PAGE;
    if from < to {
        // SAFETY: as in `settle`.
        let _ = unsafe { mapped.map.unchecked_advise_range(UncheckedAdvice::DontNeed, from, to - from) };
    }
}

/// What was left with the mapped file that these bytes are of.
pub fn note<T: Any + Send + Sync>(bytes: &[u8]) -> Option<Arc<T>> {
    let (mapped, _) = holding(bytes)?;
    let note = mapped.note.lock().unwrap_or_else(PoisonError::into_inner).clone();
    note?.downcast().ok()
}

/// Leaves something with the mapped file that these bytes are of, in place of what was there, until nobody has the file mapped. It
/// must not hold bytes of the file: that would keep the file mapped for good.
pub fn leave_note<T: Any + Send + Sync>(bytes: &[u8], note: Arc<T>) {
    if let Some((mapped, _)) = holding(bytes) {
        *mapped.note.lock().unwrap_or_else(PoisonError::into_inner) = Some(note);
    }
}

/// Bytes of a file that are used by way of a copy; `None` if they are of no file, or may be used where they are.
pub(crate) fn copied(bytes: &Bytes, alignment: usize) -> Option<Arc<Copied>> {
    let suits = (bytes.as_ptr() as usize).is_multiple_of(alignment);
    if suits && bytes.len() >= LEAST_IN_PLACE {
        return None;
    }
    shared(bytes, None)
}

/// Halves of a file, which are made f32 when they are first used; `None` if they are of no file.
pub(crate) fn widened(bytes: &Bytes, halves: Halves) -> Option<Arc<Copied>> {
    shared(bytes, Some(halves))
}

/// What everybody shares who wants the same of a file.
fn shared(bytes: &Bytes, halves: Option<Halves>) -> Option<Arc<Copied>> {
    let (mapped, offset) = holding(bytes)?;
    let mut copies = mapped.copies.lock().unwrap_or_else(PoisonError::into_inner);
    let slot = copies.entry((offset, bytes.len(), halves)).or_default();
    if let Some(copied) = slot.upgrade() {
        return Some(copied);
    }
    let copied = Arc::new(Copied { halves, ..Copied::new(bytes, offset, Order::AS_IT_IS, &mapped) });
    *slot = Arc::downgrade(&copied);
    drop(copies);
    Some(copied)
}

/// A type of two bytes that f32 has all numbers of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Halves {
    F16,
    BF16,
}

impl Halves {
    /// `None` for other types.
    pub(crate) fn of(dtype: DataType) -> Option<Self> {
        match dtype {
            DataType::F16 => Some(Self::F16),
            DataType::BF16 => Some(Self::BF16),
            _ => None,
        }
    }

    /// As many halves as there is room for f32.
    pub(crate) fn widen(self, halves: &[u8], to: &mut [f32]) {
        match self {
            Self::F16 => bytemuck::cast_slice::<_, f16>(halves).convert_to_f32_slice(to),
            Self::BF16 => bytemuck::cast_slice::<_, bf16>(halves).convert_to_f32_slice(to),
        }
    }
}

/// Blocks of one length in another order: in each of so many groups, the first one comes from that number, and so on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// How many.
    pub groups: usize,
    /// Where each block of a group comes from.
    pub blocks: &'static [usize],
}

impl Order {
    const AS_IT_IS: Self = Self { groups: 1, blocks: &[0] };

    /// Bytes of a block of so many bytes.
    fn block(self, bytes: usize) -> usize {
        bytes / self.groups / self.blocks.len()
    }

    /// Fills a place block by block: `fill` is told where each begins in what it comes from.
    pub(crate) fn fill(self, place: &mut [u8], fill: impl Fn(usize, &mut [u8])) {
        let length = self.block(place.len());
        for (group, place) in place.chunks_exact_mut(length * self.blocks.len()).enumerate() {
            for (block, place) in self.blocks.iter().zip(place.chunks_exact_mut(length)) {
                fill((group * self.blocks.len() + block) * length, place);
            }
        }
    }
}

/// Bytes of a file that are used by way of a copy in another order, into whose blocks they can be cut; `None` if they are of no file.
pub(crate) fn reordered(bytes: &Bytes, order: Order) -> Option<Arc<Copied>> {
    let (mapped, offset) = holding(bytes)?;
    Some(Arc::new(Copied::new(bytes, offset, order, &mapped)))
}

/// A part of a file that is copied when it is first used.
pub(crate) struct Copied {
    bytes: Bytes,
    offset: usize,
    order: Order,
    /// What is made f32 on the way.
    halves: Option<Halves>,
    file: Weak<Mapped>,
    copy: OnceLock<Own>,
}

/// Halves that are read at a time.
const HALVES: usize = 2048;

/// Memory of a copy. Large ones are pages of their own, which leave no gap among the allocator's blocks when they go.
enum Own {
    Lines(Vec<Line>),
    Pages(MmapMut),
}

impl Own {
    /// For so many bytes.
    fn new(bytes: usize) -> Self {
        let pages = (bytes >= LEAST_IN_PAGES).then(|| MmapMut::map_anon(bytes).ok()).flatten();
        pages.map_or_else(|| Self::Lines(vec![Line::default(); bytes.div_ceil(ALIGNMENT)]), Self::Pages)
    }
}

impl Copied {
    fn new(bytes: &Bytes, offset: usize, order: Order, mapped: &Arc<Mapped>) -> Self {
        let (bytes, file) = (bytes.clone(), Arc::downgrade(mapped));
        Self { bytes, offset, order, halves: None, file, copy: OnceLock::new() }
    }

    /// Bytes of the copy.
    fn len(&self) -> usize {
        self.bytes.len() * if self.halves.is_some() { size_of::<f32>() / size_of::<f16>() } else { 1 }
    }

    /// The copy; at least as many bytes as it has.
    pub(crate) fn copy(&self) -> &[u8] {
        let copy = self.copy.get_or_init(|| {
            let mut copy = Own::new(self.len());
            let place = match &mut copy {
                Own::Lines(lines) => bytemuck::cast_slice_mut(lines),
                Own::Pages(pages) => &mut pages[..],
            };
            self.read(&mut place[..self.len()]);
            copy
        });
        match copy {
            Own::Lines(lines) => bytemuck::cast_slice(lines),
            Own::Pages(pages) => pages,
        }
    }

    /// Reads it into as many bytes, without keeping a copy.
    pub(crate) fn read(&self, place: &mut [u8]) {
        self.read_part(0, place);
    }

    /// The same of a part that begins there: of halves, at a whole f32.
    pub(crate) fn read_part(&self, begin: usize, place: &mut [u8]) {
        let Some(halves) = self.halves else { return self.read_bytes(begin, place) };
        let (mut read, mut wide) = ([f16::ZERO; HALVES], [0.0; HALVES]);
        let (wanted, length) = (begin / size_of::<f32>(), HALVES * size_of::<f32>());
        for (number, place) in place.chunks_mut(length).enumerate() {
            let count = place.len() / size_of::<f32>();
            let (read, wide) = (bytemuck::cast_slice_mut(&mut read[..count]), &mut wide[..count]);
            self.read_bytes((wanted + number * HALVES) * size_of::<f16>(), read);
            halves.widen(read, wide);
            place.copy_from_slice(bytemuck::cast_slice(wide));
        }
    }

    /// Reads a part of what the file has.
    fn read_bytes(&self, begin: usize, place: &mut [u8]) {
        let file = self.file.upgrade();
        let read = |from: usize, place: &mut [u8]| {
            let read =
                file.as_ref().map(|mapped| mapped.file.read_exact_at(place, (self.offset + from) as u64));
            if !matches!(read, Some(Ok(()))) {
                // What cannot be read may still be mapped.
                place.copy_from_slice(&self.bytes[from..][..place.len()]);
            }
        };
        let (Order { blocks, .. }, length) = (self.order, self.order.block(self.bytes.len()));
        let (mut at, mut place) = (begin, place);
        while !place.is_empty() {
            let (block, within) = (at / length, at % length);
            let source = (block / blocks.len() * blocks.len() + blocks[block % blocks.len()]) * length;
            let (here, rest) = place.split_at_mut((length - within).min(place.len()));
            read(source + within, here);
            at += here.len();
            place = rest;
        }
    }

    /// The bytes in the file, if they are copied as they are there.
    pub(crate) fn as_it_is(&self) -> Option<&Bytes> {
        (self.order == Order::AS_IT_IS && self.halves.is_none()).then_some(&self.bytes)
    }

    /// Whether it was used already.
    pub(crate) fn is_there(&self) -> bool {
        self.copy.get().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::element::DataType;
    use crate::tensor::{Tensor, Type};
    use std::io::Write;

    /// A file of so many bytes, each its number modulo 251.
    fn file(bytes: usize) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        let content: Vec<u8> = (0..bytes).map(|index| (index % 251) as u8).collect();
        file.write_all(&content).expect("it is written");
        file
    }

    fn tensor(bytes: Bytes) -> Tensor {
        let ty = Type::new(DataType::F32, [bytes.len() / 4]).expect("a type");
        Tensor::from_bytes(ty, bytes).expect("as many bytes as its type says")
    }

    /// Bytes of the mapping at this address that take memory.
    fn resident(address: *const u8) -> u64 {
        let text = std::fs::read_to_string("/proc/self/smaps").expect("the kernel tells");
        let mut within = false;
        for line in text.lines() {
            let range = line.split(' ').next().and_then(|range| range.split_once('-'));
            if let Some((Ok(from), Ok(to))) =
                range.map(|(from, to)| (usize::from_str_radix(from, 16), usize::from_str_radix(to, 16)))
            {
                within = (from..to).contains(&(address as usize));
            } else if let (true, Some(size)) = (within, line.strip_prefix("Rss:")) {
                let kibibytes = size.trim().strip_suffix(" kB").expect("kibibytes");
                return kibibytes.parse::<u64>().expect("a number") << 10;
            }
        }
        0
    }

    #[test]
    fn a_file_is_mapped_once_and_copied_once() {
        let file = file(1 << 20);
        let (first, second) = (open(file.path()).expect("mapped"), open(file.path()).expect("mapped"));
        assert_eq!(first.as_ptr(), second.as_ptr());
        let (one, other) = (tensor(first.slice(1..200_001)), tensor(second.slice(1..200_001)));
        assert_eq!(one.view().bytes, &first[1..200_001]);
        assert_eq!(one.view().bytes.as_ptr(), other.view().bytes.as_ptr());
    }

    #[test]
    fn large_aligned_tensors_lie_in_the_file_and_small_ones_do_not() {
        let file = file(1 << 20);
        let bytes = open(file.path()).expect("mapped");
        let (large, small) = (tensor(bytes.slice(4..200_004)), tensor(bytes.slice(4..1_004)));
        assert_eq!(large.view().bytes.as_ptr(), bytes[4..].as_ptr());
        assert_ne!(small.view().bytes.as_ptr(), bytes[4..].as_ptr());
        assert_eq!(small.view().bytes, &bytes[4..1_004]);
    }

    #[test]
    fn copies_map_nothing_and_what_was_mapped_goes_back() {
        let file = file(4 << 20);
        let bytes = open(file.path()).expect("mapped");
        let odd = tensor(bytes.slice(1..4_000_001));
        assert_eq!(odd.view().bytes.len(), 4_000_000);
        assert_eq!(resident(bytes.as_ptr()), 0);
        assert!(bytes.iter().map(|&byte| u64::from(byte)).sum::<u64>() > 0);
        assert!(resident(bytes.as_ptr()) >= 4 << 20);
        settle(&bytes);
        assert_eq!(resident(bytes.as_ptr()), 0);
        assert_eq!(bytes[1000], (1000 % 251) as u8);
    }

    #[test]
    fn a_file_that_changed_is_mapped_anew() {
        let mut file = file(1 << 16);
        let before = open(file.path()).expect("mapped");
        file.write_all(&[7; 1 << 16]).expect("it is written");
        let after = open(file.path()).expect("mapped");
        assert_eq!((before.len(), after.len(), after[1 << 16]), (1 << 16, 1 << 17, 7));
    }

    #[test]
    fn halves_are_widened_when_they_are_read() {
        let file = file(1 << 20);
        let bytes = open(file.path()).expect("mapped");
        for begin in [1, 64] {
            let halves = bytes.slice(begin..begin + 400_000);
            let wanted: Vec<u8> = halves
                .chunks_exact(2)
                .flat_map(|half| f16::from_ne_bytes([half[0], half[1]]).to_f32().to_ne_bytes())
                .collect();
            let make = || {
                let ty = Type::new(DataType::F16, [200_000]).expect("a type");
                let tensor = Tensor::from_bytes(ty, halves.clone()).expect("as many bytes as its type says");
                tensor.widened().expect("they are halves")
            };
            let (one, other) = (make(), make());
            for length in [800_000, 4 * HALVES, 12, 799_996] {
                let mut pieces = Vec::new();
                one.pieces(length, &mut |_, piece| pieces.extend_from_slice(piece));
                assert!(pieces == wanted, "pieces of {length} bytes");
            }
            assert!(one.is_of_file() && one.own_bytes() == 0 && one.is_alike(&other));
            assert!(one.view().bytes == wanted);
            assert_eq!((one.own_bytes(), other.view().bytes.as_ptr()), (800_000, one.view().bytes.as_ptr()));
            // The blocks of what is widened are those of f32.
            let turned = one.reordered(Order { groups: 1, blocks: &[1, 0] });
            assert!(turned.view().bytes[..400_000] == wanted[400_000..]);
        }
    }

    #[test]
    fn pieces_of_a_tensor_leave_nothing_behind() {
        const ORDER: Order = Order { groups: 2, blocks: &[2, 0, 3, 1] };
        let file = file(4 << 20);
        let bytes = open(file.path()).expect("mapped");
        let (odd, lent) = (tensor(bytes.slice(1..4_000_001)), tensor(bytes.slice(64..4_000_064)));
        let turned = odd.reordered(ORDER);
        for (tensor, wanted) in [(&odd, &bytes[1..4_000_001]), (&lent, &bytes[64..4_000_064]), (&turned, &[])]
        {
            for length in [4_000_000, 999_996, 64] {
                let mut pieces = Vec::new();
                tensor.pieces(length, &mut |begin, piece| {
                    assert_eq!((begin, piece.len()), (pieces.len(), length.min(4_000_000 - begin)));
                    pieces.extend_from_slice(piece);
                });
                assert_eq!(tensor.own_bytes(), 0, "no copy stays");
                match wanted {
                    [] => assert!(turned.in_passing().is_some_and(|read| read.view().bytes == pieces)),
                    wanted => assert!(pieces == wanted),
                }
            }
        }
        settle(&bytes);
        lent.pieces(1 << 20, &mut |_, _| {});
        assert!(resident(bytes.as_ptr()) <= 64 << 10, "pages go back");
        assert!(odd.is_alike(&odd.reordered(Order { groups: 1, blocks: &[0] })) && !odd.is_alike(&lent));
        assert!(!turned.is_alike(&odd) && turned.is_alike(&turned));
    }
}
