//! First fit and best fit: put the blocks down one by one, each into a gap left by those it meets in time.
//!
//! First fit takes the lowest gap, best fit the smallest one that is large enough (the room above everything counts as
//! the largest). The blocks placed so far are kept by offset and scanned upward, which on real traces ends early and
//! needs no memory beyond them; O(n^2) at worst, with a small constant.

use crate::timeline::{Timeline, align_up, meet};

/// Which of the gaps that are large enough a block takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Fit {
    /// The lowest.
    First,
    /// The one that leaves the least room.
    Best,
}

impl Fit {
    /// The name in [`crate::Plan::algorithm`].
    pub fn name(self) -> &'static str {
        match self {
            Fit::First => "first",
            Fit::Best => "best",
        }
    }
}

/// A block put down.
#[derive(Debug, Clone, Copy)]
struct Placed {
    offset: u64,
    end: u64,
    /// Lifetime in ranks.
    span: (u32, u32),
}

/// Room for placing again and again without allocating.
#[derive(Debug, Default)]
pub(crate) struct Floor {
    placed: Vec<Placed>,
}

impl Floor {
    /// Places the items in this order into `offsets` (by item) and returns the height in bytes; `None`, and offsets
    /// without meaning, once the height would reach `limit`.
    pub fn place(
        &mut self,
        timeline: &Timeline,
        order: &[u32],
        fit: Fit,
        limit: u64,
        offsets: &mut [u64],
    ) -> Option<u64> {
        self.placed.clear();
        let mut height = 0;
        for &index in order {
            let item = &timeline.items[index as usize];
            let span = (item.lower, item.upper);
            let offset = self.gap(span, item.size, item.align, fit, timeline.turn);
            let end = offset + item.size;
            if end >= limit {
                return None;
            }
            height = end.max(height);
            offsets[index as usize] = offset;
            let at = self.placed.partition_point(|other| other.offset < offset);
            self.placed.insert(at, Placed { offset, end, span });
        }
        Some(height)
    }

    /// The offset for a block of `size` bytes alive over `span`.
    fn gap(&self, span: (u32, u32), size: u64, align: u64, fit: Fit, turn: u32) -> u64 {
        // Everything below `floor` is taken or too small; the best gap so far and what it leaves idle.
        let mut floor = 0;
        let mut best = None;
        for other in &self.placed {
            if !meet(span, other.span, turn) {
                continue;
            }
            if other.offset > floor {
                let offset = align_up(floor, align);
                if offset + size <= other.offset {
                    let idle = other.offset - floor - size;
                    if fit == Fit::First || idle == 0 {
                        return offset;
                    }
                    if best.is_none_or(|(least, _)| idle < least) {
                        best = Some((idle, offset));
                    }
                }
            }
            floor = floor.max(other.end);
        }
        best.map_or_else(|| align_up(floor, align), |(_, offset)| offset)
    }
}
