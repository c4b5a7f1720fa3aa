//! Whether constraints can be understood and kept together: what [`crate::Problem::check`] says about them.

use std::collections::BTreeMap;

use crate::constraints::{ConstraintError, Constraints, Fixed, Gap, Inside};
use crate::pieces::{self, Families, Padding, Piece, Sharing};
use crate::problem::{MAX_BLOCKS, Problem};

impl Constraints {
    /// Whether all constraints can be kept together. The blocks must have passed their own check; `total` is what they
    /// sum up to there.
    pub(crate) fn check(&self, problem: &Problem, total: u64) -> Result<(), ConstraintError> {
        self.check_indices(problem)?;
        self.check_gaps(problem)?;
        let families = self.check_views(problem)?;
        let paddings = check_alignments(problem, &families)?;
        let places = self.check_fixed(problem, &families, &paddings, total)?;
        if let Some(pair) = self.in_place.iter().find(|pair| pair.first == pair.second) {
            return Err(ConstraintError::InPlaceSelf { id: problem.blocks[pair.first].id });
        }
        self.check_overlaps(problem, &families, &places)
    }

    fn check_indices(&self, problem: &Problem) -> Result<(), ConstraintError> {
        let blocks = problem.blocks.len();
        let fixed = self.fixed.iter().enumerate().map(|(at, fixed)| ("fixed", at, fixed.block));
        let gaps = self.gaps.iter().enumerate().map(|(at, gap)| ("gaps", at, gap.block));
        let inside = self.inside.iter().enumerate();
        let inside = inside.flat_map(|(at, view)| [("inside", at, view.block), ("inside", at, view.of)]);
        let pairs = self.in_place.iter().enumerate();
        let pairs =
            pairs.flat_map(|(at, pair)| [("in_place", at, pair.first), ("in_place", at, pair.second)]);
        match fixed.chain(gaps).chain(inside).chain(pairs).find(|&(_, _, index)| index >= blocks) {
            Some((list, at, index)) => Err(ConstraintError::NoSuchBlock { list, at, index, blocks }),
            None => Ok(()),
        }
    }

    fn check_gaps(&self, problem: &Problem) -> Result<(), ConstraintError> {
        let gaps = self.gaps.len();
        if gaps > (MAX_BLOCKS - problem.blocks.len()) / 2 {
            return Err(ConstraintError::TooManyGaps { gaps });
        }
        let mut sorted: Vec<&Gap> = self.gaps.iter().collect();
        sorted.sort_by_key(|gap| (gap.block, gap.lower));
        let mut last: Option<&Gap> = None;
        for gap in sorted {
            let block = &problem.blocks[gap.block];
            let (id, Gap { lower, upper, .. }) = (block.id, *gap);
            if lower >= upper {
                return Err(ConstraintError::EmptyGap { id, lower, upper });
            }
            if lower < block.lower || upper > block.upper {
                let (from, to) = (block.lower, block.upper);
                return Err(ConstraintError::GapOutside { id, lower, upper, from, to });
            }
            if let Some(last) = last.filter(|last| last.block == gap.block && last.upper > lower) {
                let (first, second) = ((last.lower, last.upper), (lower, upper));
                return Err(ConstraintError::GapsOverlap { id, first, second });
            }
            if let Some((from, to)) = gap.window.filter(|&(from, to)| from > to || to > block.size) {
                return Err(ConstraintError::Window { id, from, to, size: block.size });
            }
            last = Some(gap);
        }
        Ok(())
    }

    fn check_views(&self, problem: &Problem) -> Result<Families, ConstraintError> {
        let mut sorted: Vec<&Inside> = self.inside.iter().collect();
        sorted.sort_by_key(|view| view.block);
        let id = |index: usize| problem.blocks[index].id;
        for pair in sorted.windows(2) {
            if pair[0].block == pair[1].block && pair[0] != pair[1] {
                let (first, second) = (id(pair[0].of), id(pair[1].of));
                return Err(ConstraintError::InsideTwice { id: id(pair[0].block), first, second });
            }
        }
        for &Inside { block, of, distance } in sorted {
            let (size, of_size) = (problem.blocks[block].size, problem.blocks[of].size);
            if distance.checked_add(size).is_none_or(|end| end > of_size) {
                let (id, of) = (id(block), id(of));
                return Err(ConstraintError::InsideBeyond { id, size, distance, of, of_size });
            }
        }
        Families::new(problem).map_err(|index| ConstraintError::InsideCycle { id: id(index) })
    }

    /// The offset of every root that is fixed, be it by one of its views.
    fn check_fixed(
        &self,
        problem: &Problem,
        families: &Families,
        paddings: &[Padding],
        total: u64,
    ) -> Result<Vec<Option<u64>>, ConstraintError> {
        let mut own = vec![None; problem.blocks.len()];
        let mut places: Vec<Option<u64>> = vec![None; problem.blocks.len()];
        for &Fixed { block: index, offset } in &self.fixed {
            let block = &problem.blocks[index];
            let (id, align, size) = (block.id, block.align, block.size);
            if let Some(first) = own[index].replace(offset).filter(|&first| first != offset) {
                return Err(ConstraintError::FixedTwice { id, first, second: offset });
            }
            if offset % align != 0 {
                return Err(ConstraintError::FixedMisaligned { id, offset, align });
            }
            let (root, distance) = (families.root[index] as usize, families.distance[index]);
            let (root_block, place) = (&problem.blocks[root], offset.checked_sub(distance));
            let before = places[root];
            let Some(place) = place.filter(|&place| before.is_none_or(|before| before == place)) else {
                let (root, root_offset) = (root_block.id, before);
                return Err(ConstraintError::FixedView { id, offset, root, distance, root_offset });
            };
            let end = place.checked_add(root_block.size);
            if end.and_then(|end| end.checked_add(total)).is_none_or(|top| top == u64::MAX) {
                return Err(ConstraintError::FixedOverflow { id, offset, size });
            }
            let Padding { align: common, pad } = paddings[root];
            if place % common != pad {
                let root = root_block.id;
                return Err(ConstraintError::InsideMisaligned { id, align: common, root, distance });
            }
            places[root] = Some(place);
        }
        Ok(places)
    }

    /// Whether fixed blocks overlap, by a sweep over time. Blocks that share with others are kept apart from those that
    /// never overlap.
    fn check_overlaps(
        &self,
        problem: &Problem,
        families: &Families,
        places: &[Option<u64>],
    ) -> Result<(), ConstraintError> {
        if self.fixed.is_empty() {
            return Ok(());
        }
        let sharing = Sharing::new(problem, families);
        let mut edges: Vec<(u64, bool, u32, u64, u64)> = Vec::new();
        for piece in pieces::pieces(problem) {
            let index = piece.block as usize;
            if let Some(root) = places[families.root[index] as usize] {
                let Piece { block, from, to, .. } = piece;
                let at = root + families.distance[index];
                for (lower, upper) in piece.spans(problem.period) {
                    edges.push((lower, true, block, at + from, at + to));
                    edges.push((upper, false, block, at + from, at + to));
                }
            }
        }
        edges.sort_unstable();
        let mut alone: BTreeMap<u64, (u64, u32)> = BTreeMap::new();
        let mut shared: Vec<(u64, u64, u32)> = Vec::new();
        for (at, starts, block, start, end) in edges {
            let shares = sharing.shares(block);
            if !starts {
                if shares {
                    shared.retain(|&piece| piece != (start, end, block));
                } else {
                    alone.remove(&start);
                }
                continue;
            }
            let below = alone.range(..end).next_back().map(|(&start, &(end, other))| (start, end, other));
            let others = below.into_iter().chain(shared.iter().copied());
            let clash = |&(from, to, other): &(u64, u64, u32)| {
                from < end && start < to && !sharing.allows(families, block, other)
            };
            if let Some((from, _, other)) = others.into_iter().find(clash) {
                let (first, second) = (problem.blocks[other as usize].id, problem.blocks[block as usize].id);
                return Err(ConstraintError::FixedOverlap { first, second, byte: from.max(start), at });
            }
            if shares {
                shared.push((start, end, block));
            } else {
                alone.insert(start, (end, block));
            }
        }
        Ok(())
    }
}

/// The alignment of every family, by root.
fn check_alignments(problem: &Problem, families: &Families) -> Result<Vec<Padding>, ConstraintError> {
    let mut paddings = vec![Padding { align: 1, pad: 0 }; problem.blocks.len()];
    for (index, block) in problem.blocks.iter().enumerate() {
        let padding = &mut paddings[families.root[index] as usize];
        if block.align > padding.align {
            let pad = families.distance[index].wrapping_neg() & (block.align - 1);
            *padding = Padding { align: block.align, pad };
        }
    }
    for (index, block) in problem.blocks.iter().enumerate() {
        let (root, distance) = (families.root[index] as usize, families.distance[index]);
        if !paddings[root].suits(distance, block.align) {
            let (id, root) = (block.id, problem.blocks[root].id);
            return Err(ConstraintError::InsideMisaligned { id, align: block.align, root, distance });
        }
    }
    Ok(paddings)
}
