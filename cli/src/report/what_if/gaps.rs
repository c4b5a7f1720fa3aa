//! Gaps between blocks by address: a treap whose nodes know the largest gap below them.
//!
//! The lowest gap that holds a block is found from the root down, past whole subtrees of smaller gaps (Seidel, Aragon:
//! Randomized search trees, Algorithmica 16, 1996). The dice are fixed: the same calls give the same tree.

/// No node.
const NONE: usize = usize::MAX;

/// A gap.
#[derive(Debug, Clone, Copy)]
struct Node {
    at: u64,
    size: u64,
    /// Of the subtree.
    largest: u64,
    priority: u64,
    left: usize,
    right: usize,
}

/// Gaps, none of which overlap.
#[derive(Debug)]
pub struct Gaps {
    nodes: Vec<Node>,
    /// Nodes free for use.
    vacant: Vec<usize>,
    root: usize,
    dice: u64,
}

impl Gaps {
    /// No gaps.
    pub fn new() -> Gaps {
        Gaps { nodes: Vec::new(), vacant: Vec::new(), root: NONE, dice: 0x9e37_79b9_7f4a_7c15 }
    }

    /// A gap more; one of no bytes is none.
    pub fn insert(&mut self, at: u64, size: u64) {
        if size == 0 {
            return;
        }
        // xorshift64 (Marsaglia, J. of Statistical Software 8, 2003).
        self.dice ^= self.dice << 13;
        self.dice ^= self.dice >> 7;
        self.dice ^= self.dice << 17;
        let node = Node { at, size, largest: size, priority: self.dice, left: NONE, right: NONE };
        let index = match self.vacant.pop() {
            Some(index) => {
                self.nodes[index] = node;
                index
            }
            None => {
                self.nodes.push(node);
                self.nodes.len() - 1
            }
        };
        let (lower, upper) = self.split(self.root, at);
        let lower = self.merge(lower, index);
        self.root = self.merge(lower, upper);
    }

    /// Takes away the gap at an address and says how large it was.
    pub fn remove(&mut self, at: u64) -> Option<u64> {
        let (lower, rest) = self.split(self.root, at);
        let (found, upper) = self.split(rest, at.saturating_add(1));
        self.root = self.merge(lower, upper);
        let size = self.nodes.get(found)?.size;
        self.vacant.push(found);
        Some(size)
    }

    /// Takes away the gap that ends at an address and says where it begins.
    pub fn remove_before(&mut self, end: u64) -> Option<u64> {
        let (mut node, mut below) = (self.root, None);
        while let Some(&Node { at, size, left, right, .. }) = self.nodes.get(node) {
            if at < end {
                (node, below) = (right, Some((at, size)));
            } else {
                node = left;
            }
        }
        let (at, _) = below.filter(|&(at, size)| at + size == end)?;
        self.remove(at);
        Some(at)
    }

    /// The lowest gap that holds `size` bytes at a multiple of `align`: its address and size.
    pub fn lowest(&self, size: u64, align: u64) -> Option<(u64, u64)> {
        self.lowest_of(self.root, size, align)
    }

    fn lowest_of(&self, index: usize, size: u64, align: u64) -> Option<(u64, u64)> {
        let node = self.nodes.get(index).filter(|node| node.largest >= size)?;
        let holds = || node.at.next_multiple_of(align) + size <= node.at + node.size;
        let lower = self.lowest_of(node.left, size, align);
        let own = || holds().then_some((node.at, node.size));
        lower.or_else(own).or_else(|| self.lowest_of(node.right, size, align))
    }

    fn largest(&self, index: usize) -> u64 {
        self.nodes.get(index).map_or(0, |node| node.largest)
    }

    /// Sets what a node knows of the nodes below it.
    fn update(&mut self, index: usize) {
        let Node { size, left, right, .. } = self.nodes[index];
        self.nodes[index].largest = size.max(self.largest(left)).max(self.largest(right));
    }

    /// A subtree's gaps below an address, and the others.
    fn split(&mut self, index: usize, at: u64) -> (usize, usize) {
        let Some(&node) = self.nodes.get(index) else { return (NONE, NONE) };
        if node.at < at {
            let (lower, upper) = self.split(node.right, at);
            self.nodes[index].right = lower;
            self.update(index);
            (index, upper)
        } else {
            let (lower, upper) = self.split(node.left, at);
            self.nodes[index].left = upper;
            self.update(index);
            (lower, index)
        }
    }

    /// Two subtrees as one; all gaps of the first lie below those of the second.
    fn merge(&mut self, lower: usize, upper: usize) -> usize {
        let (Some(&below), Some(&above)) = (self.nodes.get(lower), self.nodes.get(upper)) else {
            return if lower == NONE { upper } else { lower };
        };
        if below.priority > above.priority {
            self.nodes[lower].right = self.merge(below.right, upper);
            self.update(lower);
            lower
        } else {
            self.nodes[upper].left = self.merge(lower, above.left);
            self.update(upper);
            upper
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_gap_that_holds_the_block_where_it_must_begin_is_found() {
        let mut gaps = Gaps::new();
        for (at, size) in [(1000, 50), (100, 10), (300, 100), (600, 100)] {
            gaps.insert(at, size);
        }
        assert_eq!(gaps.lowest(10, 1), Some((100, 10)));
        assert_eq!(gaps.lowest(11, 1), Some((300, 100)));
        assert_eq!(gaps.lowest(80, 512), None);
        assert_eq!(gaps.lowest(20, 512), Some((1000, 50)));
        assert_eq!(gaps.remove(300), Some(100));
        assert_eq!(gaps.remove(300), None);
        assert_eq!(gaps.lowest(11, 1), Some((600, 100)));
        assert_eq!((gaps.remove_before(699), gaps.remove_before(700)), (None, Some(600)));
        assert_eq!(gaps.lowest(51, 1), None);
    }
}
