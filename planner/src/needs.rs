//! The load under constraints: bytes that no plan can do without, moment by moment.
//!
//! What is alive at a moment needs at least the bytes of any set of blocks no two of which may share. The members of a
//! family count once, as the union of their pieces, at distances that every plan keeps. Families joined by pairs that
//! work in place form a *cluster*; of it a set is chosen greedily, the largest first, without two that are a pair. (A
//! matching would count too much: `b` may share with `a` and with `c`, which then lie side by side below it.) For a pair
//! alone that is the larger of the two. Blocks in neither views nor pairs are clusters by themselves.

use std::collections::{BTreeMap, BTreeSet};

use crate::pieces::{self, Families, Piece, Sharing};
use crate::problem::Problem;

/// Families of a cluster looked at when a set of them is chosen: the largest ones. Fewer than all is a lower bound, too,
/// and keeps a cluster of thousands alive at once from costing their number squared.
const MOST_CHOSEN: usize = 256;

/// What a problem needs.
pub(crate) struct Needs {
    families: Families,
    /// All pieces in use.
    pieces: Vec<Piece>,
    /// By root: the roots of families in which some block works in place of one of its own.
    partners: BTreeMap<u32, BTreeSet<u32>>,
    /// By block: the least root in its cluster.
    cluster: Vec<u32>,
    /// By block: whether its family and cluster are the block alone.
    alone: Vec<bool>,
}

/// A piece of a family within one turn.
#[derive(Clone, Copy)]
struct Span {
    root: u32,
    block: u32,
    /// Bytes from the root's beginning.
    from: u64,
    to: u64,
}

impl Needs {
    /// Of a problem that passes its check.
    pub fn new(problem: &Problem, families: Families) -> Needs {
        let count = problem.blocks.len();
        let sharing = Sharing::new(problem, &families);
        let alone = (0..count as u32).map(|block| !sharing.shares(block)).collect();
        let mut partners: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
        for pair in &problem.constraints.in_place {
            let (a, b) = (families.root[pair.first], families.root[pair.second]);
            if a != b {
                partners.entry(a).or_default().insert(b);
                partners.entry(b).or_default().insert(a);
            }
        }
        let mut cluster = families.root.clone();
        let mut seen = vec![false; count];
        for &root in partners.keys() {
            let mut next = vec![root];
            while let Some(member) = next.pop() {
                if !std::mem::replace(&mut seen[member as usize], true) {
                    cluster[member as usize] = root;
                    next.extend(partners.get(&member).into_iter().flatten());
                }
            }
        }
        for block in 0..count {
            cluster[block] = cluster[families.root[block] as usize];
        }
        let pieces = pieces::pieces(problem);
        Needs { families, pieces, partners, cluster, alone }
    }

    /// Whether a block is neither in a family of several nor in a pair, so that it counts in full at all times.
    pub fn alone(&self, block: u32) -> bool {
        self.alone[block as usize]
    }

    /// All pieces in use.
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// The changes of the load: events of `[0, period)` and bytes, in no order.
    pub fn changes(&self, problem: &Problem) -> Vec<(u64, i128)> {
        let mut changes = Vec::with_capacity(2 * self.pieces.len());
        let mut shared: Vec<(u32, u64, bool, Span)> = Vec::new();
        for piece in &self.pieces {
            let (span, cluster) = (self.span(piece), self.cluster[piece.block as usize]);
            for (lower, upper) in piece.spans(problem.period) {
                if self.alone(piece.block) {
                    let bytes = i128::from(piece.to - piece.from);
                    changes.push((lower, bytes));
                    if problem.period != Some(upper) {
                        changes.push((upper, -bytes));
                    }
                } else {
                    shared.push((cluster, lower, true, span));
                    shared.push((cluster, upper, false, span));
                }
            }
        }
        shared.sort_unstable_by_key(|&(cluster, at, starts, span)| (cluster, at, starts, span.block));
        for cluster in shared.chunk_by(|a, b| a.0 == b.0) {
            self.add_cluster(cluster, problem.period, &mut changes);
        }
        changes
    }

    /// Adds the changes of a cluster, given by its edges in the order of time.
    fn add_cluster(
        &self,
        edges: &[(u32, u64, bool, Span)],
        period: Option<u64>,
        changes: &mut Vec<(u64, i128)>,
    ) {
        let mut unions: BTreeMap<u32, Union> = BTreeMap::new();
        for (.., starts, span) in edges {
            if *starts {
                unions.entry(span.root).or_default().know(span);
            }
        }
        for union in unions.values_mut() {
            union.build();
        }
        let mut live: BTreeSet<(u64, u32)> = BTreeSet::new();
        let mut before = 0i128;
        for group in edges.chunk_by(|a, b| a.1 == b.1) {
            for (.., starts, span) in group {
                let Some(union) = unions.get_mut(&span.root) else { continue };
                live.remove(&(union.bytes(), span.root));
                union.turn(span, *starts);
                live.insert((union.bytes(), span.root));
            }
            let at = group[0].1;
            let bytes = i128::from(self.choose(&live).iter().map(|&(bytes, _)| bytes).sum::<u64>());
            if period.is_none_or(|period| at < period) {
                changes.push((at, bytes - before));
            }
            before = bytes;
        }
    }

    /// Of families with their bytes, the largest no two of which are a pair.
    fn choose(&self, live: &BTreeSet<(u64, u32)>) -> Vec<(u64, u32)> {
        let mut chosen = Vec::new();
        let mut taken = BTreeSet::new();
        for &(bytes, root) in live.iter().rev().take(MOST_CHOSEN).filter(|family| family.0 > 0) {
            let partners = self.partners.get(&root);
            if partners.is_none_or(|partners| partners.is_disjoint(&taken)) {
                chosen.push((bytes, root));
                taken.insert(root);
            }
        }
        chosen
    }

    /// The blocks that need the load at an event.
    pub fn witness(&self, problem: &Problem, at: u64) -> Vec<usize> {
        let mut witness = Vec::new();
        let mut clusters: BTreeMap<u32, BTreeMap<u32, Vec<Span>>> = BTreeMap::new();
        for piece in &self.pieces {
            if !piece.spans(problem.period).any(|(lower, upper)| lower <= at && at < upper) {
                continue;
            }
            if self.alone(piece.block) {
                witness.push(piece.block as usize);
                continue;
            }
            let span = self.span(piece);
            let cluster = clusters.entry(self.cluster[piece.block as usize]).or_default();
            cluster.entry(span.root).or_default().push(span);
        }
        for families in clusters.values() {
            let mut live = BTreeSet::new();
            for (&root, spans) in families {
                let mut union = Union::default();
                spans.iter().for_each(|span| union.know(span));
                union.build();
                spans.iter().for_each(|span| union.turn(span, true));
                live.insert((union.bytes(), root));
            }
            for (_, root) in self.choose(&live) {
                witness.extend(families[&root].iter().map(|span| span.block as usize));
            }
        }
        witness.sort_unstable();
        witness
    }

    fn span(&self, piece: &Piece) -> Span {
        let block = piece.block as usize;
        let (root, distance) = (self.families.root[block], self.families.distance[block]);
        Span { root, block: piece.block, from: distance + piece.from, to: distance + piece.to }
    }
}

/// The union of ranges of bytes that come and go: a tree over the ranges' ends (Klee's measure, Bentley 1977).
#[derive(Default)]
struct Union {
    /// All ends of ranges that will come, sorted.
    ends: Vec<u64>,
    /// By node: ranges that cover it whole and not its parent, and bytes covered in it. Node `i` has the children
    /// `2i + 1` and `2i + 2`; the root stands for all between the ends.
    nodes: Vec<(u32, u64)>,
}

impl Union {
    /// Makes room for a range.
    fn know(&mut self, span: &Span) {
        self.ends.extend([span.from, span.to]);
    }

    /// When all ranges are known.
    fn build(&mut self) {
        self.ends.sort_unstable();
        self.ends.dedup();
        self.nodes = vec![(0, 0); 2 * self.ends.len().next_power_of_two()];
    }

    /// A range comes or goes.
    fn turn(&mut self, span: &Span, comes: bool) {
        let place = |end: u64| self.ends.partition_point(|&other| other < end);
        let (from, to) = (place(span.from), place(span.to));
        self.cover(0, 0, self.ends.len() - 1, from, to, comes);
    }

    /// Counts the cells `from..to` in the node of the cells `first..last`, a cell being what lies between two ends.
    fn cover(&mut self, node: usize, first: usize, last: usize, from: usize, to: usize, comes: bool) {
        if to <= first || last <= from {
            return;
        }
        if from <= first && last <= to {
            let count = &mut self.nodes[node].0;
            *count = if comes { *count + 1 } else { *count - 1 };
        } else {
            let middle = first.midpoint(last);
            self.cover(2 * node + 1, first, middle, from, to, comes);
            self.cover(2 * node + 2, middle, last, from, to, comes);
        }
        self.nodes[node].1 = if self.nodes[node].0 > 0 {
            self.ends[last] - self.ends[first]
        } else if last - first == 1 {
            0
        } else {
            self.nodes[2 * node + 1].1 + self.nodes[2 * node + 2].1
        };
    }

    /// Bytes covered now.
    fn bytes(&self) -> u64 {
        self.nodes.first().map_or(0, |node| node.1)
    }
}
