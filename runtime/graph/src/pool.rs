//! Memory for tensors whose sizes are known only while a model runs.
//!
//! They come and go in the order in which nodes run, and the next run makes them again, as large or nearly so. So the memory is kept:
//! blocks are cut from a range of addresses, the closest fit first and the lowest among equals, what is free joins its free neighbours,
//! and the range grows where nothing fits. A run that needs no more than one before it takes nothing from the system.

use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use stepalloc::Region;
use stepalloc_tensor::shared::Lender;
use stepalloc_tensor::{ALIGNMENT, OutOfMemory, Tensor, Type};

/// Bytes that the first range is for, where the system has as many addresses: it has room for some times as many, and what is not used
/// takes no memory.
const FIRST: usize = 32 << 20;

/// Memory that is lent to tensors.
#[derive(Default)]
pub(crate) struct Pool(Mutex<Vec<Range>>);

/// A range of addresses: blocks from its begin on.
struct Range {
    region: Region,
    /// Bytes that blocks have, or had.
    bytes: usize,
    /// Offset and bytes of what is free, in this order; no two of them touch.
    free: Vec<(usize, usize)>,
}

impl Range {
    /// For at least this many bytes, and more if there are addresses.
    fn new(bytes: usize) -> Option<Self> {
        Some(Self { region: Region::new(bytes)?, bytes: 0, free: Vec::new() })
    }

    fn base(&self) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.region.base())
    }

    /// The free block that fits closest: its number and bytes.
    fn fitting(&self, bytes: usize) -> Option<(usize, usize)> {
        let fits = self.free.iter().enumerate().filter(|(_, (_, free))| *free >= bytes);
        fits.map(|(number, &(_, free))| (number, free)).min_by_key(|&(_, free)| free)
    }

    /// The begin of a free block, from which the bytes are taken.
    fn take(&mut self, number: usize, bytes: usize) -> usize {
        let (begin, free) = self.free[number];
        match free - bytes {
            0 => drop(self.free.remove(number)),
            left => self.free[number] = (begin + bytes, left),
        }
        begin
    }

    /// Takes bytes behind all blocks; `None` where there is no room for them.
    fn extend(&mut self, bytes: usize) -> Option<usize> {
        let last = self.free.last().filter(|(begin, free)| begin + free == self.bytes);
        let begin = last.map_or(self.bytes, |&(begin, _)| begin);
        let (end, is_last) = (begin.checked_add(bytes)?, last.is_some());
        if !self.region.commit(end, false) {
            return None;
        }
        if is_last {
            self.free.pop();
        }
        self.bytes = end;
        Some(begin)
    }

    fn give_back(&mut self, begin: usize, bytes: usize) {
        let at = self.free.partition_point(|&(other, _)| other < begin);
        let joins_next = self.free.get(at).is_some_and(|&(next, _)| begin + bytes == next);
        let joins_last = at > 0 && self.free[at - 1].0 + self.free[at - 1].1 == begin;
        match (joins_last, joins_next) {
            (true, true) => self.free[at - 1].1 += bytes + self.free.remove(at).1,
            (true, false) => self.free[at - 1].1 += bytes,
            (false, true) => self.free[at] = (begin, bytes + self.free[at].1),
            (false, false) => self.free.insert(at, (begin, bytes)),
        }
    }

    fn is_free(&self) -> bool {
        self.bytes == 0 || self.free == [(0, self.bytes)]
    }
}

impl Pool {
    fn ranges(&self) -> MutexGuard<'_, Vec<Range>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A tensor, in which is anything, and the bytes by which the memory has grown for it.
    pub(crate) fn tensor(self: &Arc<Self>, ty: Type) -> Result<(Tensor, u64), OutOfMemory> {
        let failed = OutOfMemory { bytes: ty.bytes() as u64 };
        if ty.bytes() == 0 {
            return Ok((Tensor::zeroed(ty), 0));
        }
        let bytes = ty.bytes().checked_next_multiple_of(ALIGNMENT).ok_or(failed)?;
        let (begin, grown) = self.take(bytes).ok_or(failed)?;
        let lender: Arc<dyn Lender> = self.clone();
        // SAFETY: these bytes are of the region's usable memory, which is initialised (zero at first) and stays where it is until no
        // block of it is lent. Nobody has them: what is lent is not free, and becomes so when the tensor gives it back.
        let tensor = unsafe { Tensor::leased(ty, begin, bytes, lender) };
        Ok((tensor, grown))
    }

    /// The address of a block that nobody has any more, and the bytes by which the memory has grown.
    fn take(&self, bytes: usize) -> Option<(NonNull<u8>, u64)> {
        let mut ranges = self.ranges();
        let best = ranges.iter().enumerate().filter_map(|(at, range)| {
            let (number, free) = range.fitting(bytes)?;
            Some((free, at, number))
        });
        if let Some((_, at, number)) = best.min() {
            let range = &mut ranges[at];
            let begin = range.take(number, bytes);
            return Some((NonNull::new(range.base().wrapping_add(begin))?, 0));
        }
        let had = ranges.last().map_or(0, |range| range.bytes);
        let extended = ranges.last_mut().and_then(|range| range.extend(bytes));
        if let (Some(begin), Some(range)) = (extended, ranges.last()) {
            return Some((NonNull::new(range.base().wrapping_add(begin))?, (range.bytes - had) as u64));
        }
        let all: usize = ranges.iter().map(|range| range.bytes).sum();
        let mut range = Range::new(bytes.max(all).max(FIRST)).or_else(|| Range::new(bytes))?;
        let begin = range.extend(bytes)?;
        let address = NonNull::new(range.base().wrapping_add(begin))?;
        ranges.push(range);
        Some((address, bytes as u64))
    }

    /// Gives ranges that nobody has a block of back to the system; as many bytes as blocks had.
    pub(crate) fn release(&self) -> u64 {
        let mut released = 0;
        self.ranges().retain(|range| {
            released += if range.is_free() { range.bytes as u64 } else { 0 };
            !range.is_free()
        });
        released
    }
}

impl Lender for Pool {
    fn take_back(&self, begin: NonNull<u8>, bytes: usize) {
        let mut ranges = self.ranges();
        let address = begin.addr().get();
        if let Some(range) = ranges.iter_mut().find(|range| range.region.contains(address)) {
            let offset = address - range.region.base();
            range.give_back(offset, bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stepalloc_tensor::DataType;

    fn bytes(count: usize) -> Type {
        Type::new(DataType::U8, [count]).expect("it can be addressed")
    }

    #[test]
    fn the_same_sizes_in_the_same_order_grow_it_once() {
        let pool = Arc::new(Pool::default());
        let run = || {
            let mut grown = 0;
            let mut make = |count: usize| {
                let (mut tensor, more) = pool.tensor(bytes(count)).expect("there is memory");
                assert!((tensor.view().bytes.as_ptr() as usize).is_multiple_of(ALIGNMENT));
                tensor.view_mut().bytes.fill(count as u8);
                grown += more;
                tensor
            };
            let (one, two) = (make(1000), make(70));
            drop(one);
            let (three, four, five) = (make(500), make(400), make(3_000_000));
            for tensor in [&two, &three, &four, &five] {
                let count = tensor.ty().bytes();
                assert!(tensor.view().bytes.iter().all(|&byte| byte == count as u8), "{count}");
            }
            grown
        };
        let first = run();
        assert_eq!(first, 1024 + 128 + 3_000_000u64.next_multiple_of(64), "two lie where the first one lay");
        assert_eq!((run(), run()), (0, 0));
        assert_eq!((pool.release(), pool.release()), (first, 0));
        assert_eq!(run(), first);
    }

    #[test]
    fn what_is_lent_stays_when_memory_is_released() {
        let pool = Arc::new(Pool::default());
        let (mut kept, _) = pool.tensor(bytes(100)).expect("there is memory");
        kept.view_mut().bytes.fill(7);
        assert_eq!(pool.release(), 0);
        assert!(kept.view().bytes.iter().all(|&byte| byte == 7));
        drop(kept);
        assert_eq!(pool.release(), 128);
    }

    /// Blocks at random against what each of them holds.
    #[test]
    fn blocks_that_come_and_go_at_random_never_overlap() {
        let pool = Arc::new(Pool::default());
        let (mut state, mut alive) = (1u64, Vec::<(Tensor, u8)>::new());
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for turn in 0..20_000u64 {
            if alive.len() > 40 || !alive.is_empty() && random(2) == 0 {
                let (tensor, mark) = alive.swap_remove(random(alive.len() as u64) as usize);
                assert!(tensor.view().bytes.iter().all(|&byte| byte == mark));
            } else {
                let (mut tensor, _) = pool.tensor(bytes(random(5000) as usize)).expect("there is memory");
                tensor.view_mut().bytes.fill(turn as u8);
                alive.push((tensor, turn as u8));
            }
        }
        alive.clear();
        assert!(pool.ranges().iter().all(Range::is_free), "all of it has joined again");
    }
}
