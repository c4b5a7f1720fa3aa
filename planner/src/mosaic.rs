//! First and best fit of groups, part by part: what `fit` does for whole blocks.
//!
//! Every part put down before forbids a range of offsets to every part of the group to be placed that it meets in time,
//! unless the two may share bytes. The ranges, sorted, leave gaps; first fit takes the lowest, best fit the one with the
//! fewest offsets in it. Fixed groups are put down before all others. O(n log n) for a group.

use crate::fit::Fit;
use crate::groups::Groups;
use crate::timeline::{align_up, meet};

/// Comparisons of two parts that take as long as a skyline takes to place one block: work is counted in the latter.
const COMPARISONS: u64 = 64;

/// Comparisons between two questions whether to stop: a few milliseconds.
const ASK: u64 = 1 << 17;

/// A part put down.
#[derive(Debug, Clone, Copy)]
struct Laid {
    span: (u32, u32),
    start: u64,
    end: u64,
    block: u32,
    shares: bool,
}

/// Room for placing again and again without allocating.
#[derive(Debug, Default)]
pub(crate) struct Mosaic {
    laid: Vec<Laid>,
    /// Ranges of offsets that the group to be placed must not have.
    forbidden: Vec<(u64, u64)>,
}

impl Mosaic {
    /// Places the groups in this order into `offsets` (by item). Returns the height in bytes, `None` (and offsets
    /// without meaning) once it would reach `limit` or `stop` says so; and the work done, in placements.
    pub fn place(
        &mut self,
        groups: &Groups,
        order: &[u32],
        fit: Fit,
        (limit, stop): (u64, &dyn Fn() -> bool),
        offsets: &mut [u64],
    ) -> (Option<u64>, u64) {
        self.laid.clear();
        let (mut height, mut comparisons, mut ask) = (0, 0, ASK);
        let mut lay = |mosaic: &mut Mosaic, index: u32, offset: u64| {
            offsets[index as usize] = offset;
            height = height.max(offset + groups.timeline.items[index as usize].size);
            mosaic.lay(groups, index, offset);
            height < limit
        };
        for (index, fixed) in groups.fixed.iter().enumerate() {
            if let Some(offset) = *fixed
                && !lay(self, index as u32, offset)
            {
                return (None, 1);
            }
        }
        for &index in order {
            if groups.fixed[index as usize].is_none() {
                comparisons += (self.laid.len() * groups.parts(index).len()) as u64 + COMPARISONS;
                let offset = self.room(groups, index, fit);
                let goes_on = lay(self, index, offset) && (comparisons < ask || !stop());
                if !goes_on {
                    return (None, comparisons / COMPARISONS);
                }
                if comparisons >= ask {
                    ask = comparisons + ASK;
                }
            }
        }
        (Some(height), comparisons / COMPARISONS)
    }

    /// Puts a group down.
    pub fn lay(&mut self, groups: &Groups, index: u32, offset: u64) {
        self.laid.extend(groups.parts(index).iter().map(|part| Laid {
            span: part.span,
            start: offset + part.from,
            end: offset + part.to,
            block: part.block,
            shares: part.shares,
        }));
    }

    /// The offset for a group among those put down.
    pub fn room(&mut self, groups: &Groups, index: u32, fit: Fit) -> u64 {
        let (align, turn) = (groups.timeline.items[index as usize].align, groups.timeline.turn);
        self.forbidden.clear();
        for part in groups.parts(index) {
            for other in &self.laid {
                let apart = !meet(part.span, other.span, turn) || other.end <= part.from;
                if apart || part.shares && other.shares && groups.sharing.in_place(part.block, other.block) {
                    continue;
                }
                let first = (other.start + 1).saturating_sub(part.to);
                self.forbidden.push((first, other.end - part.from));
            }
        }
        self.forbidden.sort_unstable();
        // All offsets below `free` are forbidden or in gaps seen before.
        let mut free = 0;
        let mut best: Option<(u64, u64)> = None;
        for &(from, to) in &self.forbidden {
            let offset = align_up(free, align);
            if offset < from {
                let idle = from - 1 - free;
                if fit == Fit::First || idle == 0 {
                    return offset;
                }
                if best.is_none_or(|(least, _)| idle < least) {
                    best = Some((idle, offset));
                }
            }
            free = free.max(to);
        }
        best.map_or_else(|| align_up(free, align), |(_, offset)| offset)
    }
}
