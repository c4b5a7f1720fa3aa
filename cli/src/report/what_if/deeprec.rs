//! DeepRec's statistic allocator: bins of sizes, in which blocks are reused by lifetime.
//!
//! What `tensorflow/core/common_runtime/memory_planner.cc` and `tensorpool_allocator.cc` of DeepRec do, as facts:
//!
//! - Blocks above 32 KiB get a header of 64 bytes (of their alignment, where that is more) and a bin of sizes in steps of 4,
//!   8 or 16 KiB. All three widths are tried; the one that needs the least bytes is taken.
//! - At the end of each step the blocks freed in it are dealt out, bin by bin from the largest down, in the order in which
//!   they were freed: a block takes the first slot of its own bin that no other block had during its lifetime, else the
//!   first such slot of the next larger bins, else a new slot in its own bin. Slots and lifetimes stay from step to step.
//! - The pool has all slots of all bins side by side. Blocks of 32 KiB and less go to malloc.
//!
//! Here a block that is never freed lives to the end, in the last step; DeepRec does not see those at all. Requests that
//! find no slot when the plan is used, which go to malloc as well, are not counted: the lifetimes that were planned are
//! served, and no others.

use std::collections::BTreeMap;

use super::simulate::pool;
use super::stream::{Action, Request, Stream};

/// Up to here malloc serves.
const SMALL: u64 = 32 << 10;
/// `sizeof(Header)`.
const HEADER: u64 = 64;
/// The widths of bins that DeepRec tries.
const WIDTHS: [u64; 3] = [4 << 10, 8 << 10, 16 << 10];
/// Slots to be looked at for one width; beyond, the answer is estimated. A slot takes 20 ns or so: some tenths of a second
/// for all widths.
const PATIENCE: u64 = 5_000_000;

/// What the bins need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bins {
    /// Bytes, those of small blocks included.
    pub bytes: u64,
    /// The width of the bins.
    pub width: u64,
    /// Whether too many slots had to be looked at, and the bytes are those without slots of larger bins.
    pub estimated: bool,
}

/// A place for blocks that are not alive at the same time.
#[derive(Debug, Default)]
struct Slot {
    /// Lifetimes: begin to end. They do not overlap.
    busy: BTreeMap<usize, usize>,
    /// The last of the ends.
    last: usize,
}

impl Slot {
    fn free(&self, begin: usize, end: usize) -> bool {
        // No two events are at one time.
        self.last < begin || self.busy.range(..end).next_back().is_none_or(|(_, &before)| before < begin)
    }

    fn take(&mut self, begin: usize, end: usize) {
        self.busy.insert(begin, end);
        self.last = self.last.max(end);
    }
}

/// The bytes of DeepRec's pool.
pub fn bins(stream: &Stream) -> Bins {
    // The first of the best, as DeepRec takes it.
    let of_widths = WIDTHS.map(|width| of_width(stream, width));
    of_widths.into_iter().fold(of_widths[0], |best, bins| if bins.bytes < best.bytes { bins } else { best })
}

fn of_width(stream: &Stream, width: u64) -> Bins {
    let slots = deal(stream, width);
    let estimated = slots.is_none();
    // A pool of the small blocks' load, and of the bins' slots.
    let malloc = small_load(stream);
    let bytes = slots.unwrap_or_else(|| {
        pool(stream, |request| if request.size > SMALL { chunk(request, width) } else { 0 })
    });
    Bins { bytes: malloc + bytes, width, estimated }
}

/// The bytes of a block's slot in its own bin.
fn chunk(request: &Request, width: u64) -> u64 {
    (request.size + HEADER.max(request.align)).next_multiple_of(width)
}

/// Bytes of small blocks alive at the worst moment: malloc at its best.
fn small_load(stream: &Stream) -> u64 {
    let (mut live, mut most) = (0u64, 0);
    for action in &stream.actions {
        match *action {
            Action::Allocate(block) if stream.blocks[block].size <= SMALL => {
                live += stream.blocks[block].size
            }
            Action::Free(block) if stream.blocks[block].size <= SMALL => live -= stream.blocks[block].size,
            _ => {}
        }
        most = live.max(most);
    }
    most
}

/// Deals all blocks out and says how many bytes all slots have; `None` where that takes too long.
fn deal(stream: &Stream, width: u64) -> Option<u64> {
    let mut begins = vec![0; stream.blocks.len()];
    let mut alive = vec![false; stream.blocks.len()];
    let mut bins: BTreeMap<u64, Vec<Slot>> = BTreeMap::new();
    let mut patience = PATIENCE;
    let mut start = 0;
    for (step, &end) in stream.ends.iter().enumerate() {
        // Slot size, begin and end of what dies in this step.
        let mut freed: Vec<(u64, usize, usize)> = Vec::new();
        let mut free = |block: usize, begin: usize, end: usize| {
            let request = &stream.blocks[block];
            if request.size > SMALL {
                freed.push((chunk(request, width), begin, end));
            }
        };
        for (at, action) in stream.actions.iter().enumerate().take(end).skip(start) {
            match *action {
                Action::Allocate(block) => (begins[block], alive[block]) = (at, true),
                Action::Free(block) => {
                    alive[block] = false;
                    free(block, begins[block], at);
                }
            }
        }
        if step + 1 == stream.ends.len() {
            for block in (0..alive.len()).filter(|&block| alive[block]) {
                free(block, begins[block], end);
            }
        }
        start = end;
        freed.sort_by_key(|&(chunk, ..)| std::cmp::Reverse(chunk));
        for (chunk, begin, end) in freed {
            let mut candidates = bins.range_mut(chunk..).flat_map(|(_, slots)| slots);
            let found = candidates.find(|slot| {
                patience = patience.saturating_sub(1);
                patience == 0 || slot.free(begin, end)
            });
            if patience == 0 {
                return None;
            }
            match found {
                Some(slot) => slot.take(begin, end),
                None => {
                    let slots = bins.entry(chunk).or_default();
                    slots.push(Slot::default());
                    if let Some(slot) = slots.last_mut() {
                        slot.take(begin, end);
                    }
                }
            }
        }
    }
    Some(bins.iter().map(|(chunk, slots)| chunk * slots.len() as u64).sum())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::what_if::stream::tests::stream;

    const KIB: i64 = 1 << 10;

    #[test]
    fn a_header_may_take_a_block_to_the_next_bin() {
        // 40 KiB and a header: 44, 48 or 48 KiB.
        let one = bins(&stream(&[40 * KIB, -1]));
        assert_eq!(one, Bins { bytes: 44 << 10, width: 4 << 10, estimated: false });
        assert_eq!(bins(&stream(&[40 * KIB - 64, -1])).bytes, 40 << 10);
    }

    #[test]
    fn blocks_of_one_bin_share_a_slot_when_they_are_not_alive_together() {
        assert_eq!(bins(&stream(&[40 * KIB, -1, 41 * KIB, -2])).bytes, 44 << 10);
        assert_eq!(bins(&stream(&[40 * KIB, 41 * KIB, -1, -2])).bytes, 88 << 10);
    }

    #[test]
    fn small_bins_borrow_slots_of_larger_ones() {
        // The larger block's slot is free before and after it.
        assert_eq!(bins(&stream(&[40 * KIB, -1, 100 * KIB, -2, 40 * KIB, -3])).bytes, 104 << 10);
        // But never lend theirs to it.
        assert_eq!(bins(&stream(&[100 * KIB, 40 * KIB, -1, -2])).bytes, (104 + 44) << 10);
    }

    #[test]
    fn slots_stay_from_step_to_step() {
        let mut two = stream(&[40 * KIB, -1, 100 * KIB, -2]);
        assert_eq!(bins(&two).bytes, 104 << 10);
        // In the first step nothing larger was there to be borrowed from.
        two.ends.insert(0, 2);
        assert_eq!(bins(&two).bytes, (104 + 44) << 10);
    }

    #[test]
    fn small_blocks_are_left_to_malloc_and_the_living_are_dealt_out_at_the_end() {
        assert_eq!(bins(&stream(&[32 * KIB, 1000, -1, 32 * KIB])).bytes, (32 << 10) + 1000);
        assert_eq!(bins(&stream(&[40 * KIB])).bytes, 44 << 10);
        assert_eq!(bins(&stream(&[])).bytes, 0);
    }

    #[test]
    fn too_many_slots_are_estimated() {
        let mut actions: Vec<i64> = vec![40 * KIB; 5000];
        actions.extend((1..=5000).map(|block| -block));
        let bins = bins(&stream(&actions));
        assert_eq!((bins.bytes, bins.estimated), (5000 * (44 << 10), true));
    }
}
