//! The bytes of an arena at one moment of a sweep: blocks and gaps in the order of their offsets, gaps also by size.
//!
//! Neighbours are linked, so a block that goes away joins the gaps beside it at once (boundary tags, Knuth 1968). Gaps
//! hang in bins of nearly equal size, 32 to a power of two, with one bit each for "there is one" (two-level segregated
//! fit, Masmano et al. 2004): a fit that wastes little is found in constant time. The last gap is the room above
//! everything; it is so large that nothing else is left when it is taken.

use crate::timeline::align_up;

/// No node.
pub(crate) const NONE: u32 = u32::MAX;

/// Bins to a power of two, as a power of two: a gap is at most 1/32 larger than the smallest of its bin.
const FINE: u32 = 5;

/// Bins for every size of 64 bits.
const BINS: usize = 64 << FINE;

/// Gaps looked at for one block before the room above everything is taken: the bound on the time of one placement.
const TRIES: u32 = 16;

/// A block or a gap.
#[derive(Debug, Clone, Copy)]
struct Node {
    offset: u64,
    /// Bytes; 0 marks a node out of use.
    size: u64,
    /// The neighbours by offset.
    before: u32,
    after: u32,
    /// The neighbours in the bin of a gap.
    previous: u32,
    next: u32,
    /// When a block goes away; of no meaning for a gap.
    end: u32,
    gap: bool,
}

/// Which gap a block takes, and where in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Taste {
    /// The gap that leaves the least room, at its low end.
    Tight,
    /// A gap that leaves little room and has a neighbour that goes away at nearly the same time, beside it.
    Alike,
}

/// What a neighbour costs that goes away at quite another time: this part of the block's size, in as many steps up to a
/// difference of the block's whole life.
const UNLIKE: u64 = 4;
const STEPS: u64 = 16;

/// Gaps that fit among which the best is chosen.
const CHOICE: u32 = 8;

/// What is to be put down.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wish {
    pub size: u64,
    pub align: u64,
    /// When it goes away, on the sweep's clock, and how long it stays: at least 1.
    pub end: u32,
    pub length: u32,
}

impl Wish {
    /// The offset in a gap, at its low or its high end.
    pub fn within(&self, from: u64, to: u64, high: bool) -> Option<u64> {
        let low = align_up(from, self.align);
        if low > to || to - low < self.size {
            return None;
        }
        Some(if high { (to - self.size) & !(self.align - 1) } else { low })
    }
}

/// Blocks and gaps, by offset and by size.
#[derive(Debug)]
pub(crate) struct Gaps {
    nodes: Vec<Node>,
    /// Nodes out of use.
    spare: Vec<u32>,
    /// The first gap of each bin.
    heads: Vec<u32>,
    /// A bit for every bin with a gap in it.
    filled: [u64; BINS / 64],
    /// The gap above everything.
    above: u32,
}

/// The bin of gaps of this size; larger sizes have the same bin or a later one.
fn bin(size: u64) -> usize {
    let shift = (u64::BITS - size.leading_zeros()).saturating_sub(FINE + 1);
    // Sizes below 2^FINE have bins of their own.
    ((u64::from(shift) << FINE) + (size >> shift)) as usize
}

impl Gaps {
    /// Nothing but room.
    pub fn new() -> Gaps {
        let mut gaps = Gaps {
            nodes: Vec::new(),
            spare: Vec::new(),
            heads: vec![NONE; BINS],
            filled: [0; BINS / 64],
            above: 0,
        };
        let room = Node {
            offset: 0,
            size: u64::MAX,
            before: NONE,
            after: NONE,
            previous: NONE,
            next: NONE,
            end: 0,
            gap: true,
        };
        gaps.nodes.push(room);
        gaps.hang(0);
        gaps
    }

    /// The offset and the end in bytes of a node; nothing for one out of use.
    pub fn extent(&self, node: u32) -> Option<(u64, u64)> {
        let node = self.nodes.get(node as usize)?;
        (node.size > 0).then(|| (node.offset, node.offset + node.size))
    }

    /// The node that holds the byte at `offset`, found from another node in use; and how many nodes were passed.
    pub fn walk(&self, from: u32, offset: u64) -> (u32, u64) {
        let (mut at, mut steps) = (from, 0);
        loop {
            let node = &self.nodes[at as usize];
            at = if offset < node.offset {
                node.before
            } else if offset - node.offset >= node.size {
                node.after
            } else {
                return (at, steps);
            };
            steps += 1;
        }
    }

    /// The end of the highest block, in bytes.
    pub fn top(&self) -> u64 {
        self.nodes[self.above as usize].offset
    }

    /// The gap above everything: always in use.
    pub fn above(&self) -> u32 {
        self.above
    }

    /// The gap for a block, and the offset in it. `fit` says where in a gap (its offset and end; whether the high end is
    /// wanted) a block may lie; it must say yes to the gap above everything.
    pub fn find(
        &self,
        wish: Wish,
        taste: Taste,
        mut fit: impl FnMut(u64, u64, bool) -> Option<u64>,
    ) -> (u32, u64) {
        let (mut best, mut tries, mut fitting) = (None, 0, 0);
        let mut score = u64::MAX;
        let mut from = bin(wish.size);
        'bins: while let Some(bin) = self.filled_from(from) {
            let mut at = self.heads[bin];
            while at != NONE {
                let node = &self.nodes[at as usize];
                let (waste, gap) = (node.size.wrapping_sub(wish.size), at);
                at = node.next;
                if node.size < wish.size {
                    tries += 1;
                } else if gap == self.above && best.is_some() {
                    break 'bins;
                } else if waste >= score {
                    tries += 1;
                } else {
                    let high = taste != Taste::Tight && waste > 0 && self.nearer_above(gap, wish.end);
                    tries += 1;
                    if let Some(offset) = fit(node.offset, node.offset + node.size, high) {
                        fitting += 1;
                        let unlike = if taste == Taste::Alike { self.unlike(gap, wish) } else { 0 };
                        let this = waste.saturating_add(unlike);
                        if this < score {
                            (score, best) = (this, Some((gap, offset)));
                        }
                    }
                }
                if score == 0 || fitting >= CHOICE || tries >= TRIES {
                    break 'bins;
                }
            }
            if best.is_some() && taste != Taste::Alike {
                break;
            }
            from = bin + 1;
        }
        best.unwrap_or_else(|| {
            let Node { offset, size, .. } = self.nodes[self.above as usize];
            (self.above, fit(offset, offset + size, false).unwrap_or(offset))
        })
    }

    /// Whether the block above a gap goes away at a time nearer to `end` than the one below.
    fn nearer_above(&self, gap: u32, end: u32) -> bool {
        let Node { before, after, .. } = self.nodes[gap as usize];
        match (self.nodes.get(before as usize), self.nodes.get(after as usize)) {
            (Some(below), Some(above)) => above.end.abs_diff(end) < below.end.abs_diff(end),
            _ => false,
        }
    }

    /// What it costs, in bytes, that the blocks beside a gap go away at another time, the more alike of the two.
    fn unlike(&self, gap: u32, wish: Wish) -> u64 {
        let Node { before, after, .. } = self.nodes[gap as usize];
        let far =
            |node: u32| self.nodes.get(node as usize).map_or(u32::MAX, |node| node.end.abs_diff(wish.end));
        let far = u64::from(far(before).min(far(after)));
        (far * STEPS / u64::from(wish.length.max(1))).min(STEPS) * (wish.size / (STEPS * UNLIKE))
    }

    /// Puts a block into a gap, which holds it at `offset`. Returns the block's node.
    pub fn put(&mut self, gap: u32, offset: u64, size: u64, end: u32) -> u32 {
        self.unhang(gap);
        let old = self.nodes[gap as usize];
        let (below, behind) = (offset - old.offset, old.size - size - (offset - old.offset));
        let block = self.node(Node { offset, size, end, gap: false, ..old });
        let (mut before, mut after) = (old.before, old.after);
        // The gap above everything keeps its node, others theirs where room is left.
        let mut left = Some(gap);
        if behind > 0 {
            let rest = Node { offset: offset + size, size: behind, before: block, ..old };
            after = left.take().unwrap_or(gap);
            self.nodes[after as usize] = rest;
            self.hang(after);
        }
        if below > 0 {
            let rest = Node { size: below, after: block, ..old };
            before = match left.take() {
                Some(node) => {
                    self.nodes[node as usize] = rest;
                    node
                }
                None => {
                    let node = self.node(rest);
                    if rest.before != NONE {
                        self.nodes[rest.before as usize].after = node;
                    }
                    node
                }
            };
            self.hang(before);
        }
        if let Some(node) = left {
            self.drop(node);
        }
        self.link(before, block);
        self.link(block, after);
        block
    }

    /// Takes a block away; its room joins the gaps beside it.
    pub fn take(&mut self, block: u32) {
        let Node { mut offset, mut size, mut before, mut after, .. } = self.nodes[block as usize];
        if before != NONE && self.nodes[before as usize].gap {
            self.unhang(before);
            let gap = self.nodes[before as usize];
            self.drop(before);
            (offset, size, before) = (gap.offset, size + gap.size, gap.before);
        }
        if self.nodes[after as usize].gap {
            self.unhang(after);
            let gap = self.nodes[after as usize];
            size += gap.size;
            if after == self.above {
                self.above = block;
            }
            self.drop(after);
            after = gap.after;
        }
        let node = &mut self.nodes[block as usize];
        (node.offset, node.size, node.gap) = (offset, size, true);
        self.link(before, block);
        self.link(block, after);
        self.hang(block);
    }

    fn link(&mut self, before: u32, after: u32) {
        if before != NONE {
            self.nodes[before as usize].after = after;
        }
        if after != NONE {
            self.nodes[after as usize].before = before;
        }
    }

    fn node(&mut self, node: Node) -> u32 {
        if let Some(index) = self.spare.pop() {
            self.nodes[index as usize] = node;
            return index;
        }
        self.nodes.push(node);
        (self.nodes.len() - 1) as u32
    }

    fn drop(&mut self, node: u32) {
        self.nodes[node as usize].size = 0;
        self.spare.push(node);
    }

    /// Hangs a gap into its bin.
    fn hang(&mut self, gap: u32) {
        let bin = bin(self.nodes[gap as usize].size);
        let head = self.heads[bin];
        let node = &mut self.nodes[gap as usize];
        (node.previous, node.next) = (NONE, head);
        if head != NONE {
            self.nodes[head as usize].previous = gap;
        }
        self.heads[bin] = gap;
        self.filled[bin / 64] |= 1 << (bin % 64);
    }

    fn unhang(&mut self, gap: u32) {
        let Node { size, previous, next, .. } = self.nodes[gap as usize];
        if next != NONE {
            self.nodes[next as usize].previous = previous;
        }
        if previous != NONE {
            self.nodes[previous as usize].next = next;
            return;
        }
        let bin = bin(size);
        self.heads[bin] = next;
        if next == NONE {
            self.filled[bin / 64] &= !(1 << (bin % 64));
        }
    }

    /// The first bin from this one on with a gap in it.
    fn filled_from(&self, from: usize) -> Option<usize> {
        let mut word = from / 64;
        let mut bits = self.filled.get(word)? & (u64::MAX << (from % 64));
        while bits == 0 {
            word += 1;
            bits = *self.filled.get(word)?;
        }
        Some(word * 64 + bits.trailing_zeros() as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_ascend_with_the_size_and_reach_every_size() {
        let sizes: Vec<u64> =
            (0..64).flat_map(|log| [(1u64 << log) - 1, 1 << log, (1 << log) + (1 << log) / 3]).collect();
        assert!(sizes.windows(2).all(|pair| pair[0] > pair[1] || bin(pair[0]) <= bin(pair[1])));
        assert!(bin(u64::MAX) < BINS);
    }
}
