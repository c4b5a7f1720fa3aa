//! A constrained problem as the placers see it: groups of blocks at fixed distances, in place of single blocks.
//!
//! A *group* is a family of views, or a block alone; where pairs may work in place, groups of such a pair can be
//! *joined*, so that both blocks begin at one offset. One offset decides a whole group. It is an item of a timeline by
//! its *hull*: all its bytes, from the multiple of its alignment it begins at, over the shortest span that covers all
//! its uses. What it really uses are its *parts*: ranges of ranks times ranges of bytes. The skyline sees hulls, first
//! and best fit see parts.
//!
//! Members lie within the group's size, parts within their members, fixed groups at multiples of their alignment.

use crate::pieces::{self, Families, Padding, Sharing};
use crate::problem::Problem;
use crate::timeline::{Item, NEVER, Timeline, meet};

/// Pairs of members between two questions whether to stop: a few milliseconds.
const ASK: usize = 1 << 18;

/// Bytes of a group in use over a span of ranks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Part {
    /// Ranks on the unrolled circle, as an item's.
    pub span: (u32, u32),
    /// First byte, from the group's beginning.
    pub from: u64,
    /// First byte after it.
    pub to: u64,
    /// Index of the block that uses it.
    pub block: u32,
    /// Whether that block may share bytes with any other.
    pub shares: bool,
}

/// The groups of a problem with constraints.
pub(crate) struct Groups {
    /// Hulls of the groups that use any bytes. An item's `block` is one of the group's.
    pub timeline: Timeline,
    /// By item: the offset, where it is given.
    pub fixed: Vec<Option<u64>>,
    /// Parts of all items.
    parts: Vec<Part>,
    /// By item, and one more: where its parts begin.
    firsts: Vec<usize>,
    /// Block, item, and bytes from the item's beginning to the block's.
    members: Vec<(u32, u32, u64)>,
    /// Block and offset, of groups that never use a byte.
    resting: Vec<(u32, u64)>,
    /// Who works in place of whom.
    pub sharing: Sharing,
    /// How many pairs were joined.
    pub joined: usize,
}

impl Groups {
    /// The groups of a problem that passes its check.
    pub fn new(problem: &Problem) -> Groups {
        Assembly::new(problem).finish(0)
    }

    /// The same with pairs of equal size that may work in place joined where that contradicts nothing, until `stop` says
    /// so.
    pub fn joined(problem: &Problem, stop: &dyn Fn() -> bool) -> Groups {
        let mut assembly = Assembly::new(problem);
        let joined = assembly.join_pairs(stop);
        assembly.finish(joined)
    }

    /// The parts of an item.
    pub fn parts(&self, item: u32) -> &[Part] {
        &self.parts[self.firsts[item as usize]..self.firsts[item as usize + 1]]
    }

    /// Whether any offset is given.
    pub fn any_fixed(&self) -> bool {
        self.fixed.iter().any(Option::is_some)
    }

    /// Offsets by block from offsets by item.
    pub fn offsets(&self, by_item: &[u64], blocks: usize) -> Vec<u64> {
        let mut offsets = vec![0; blocks];
        for &(block, item, distance) in &self.members {
            offsets[block as usize] = by_item[item as usize] + distance;
        }
        for &(block, offset) in &self.resting {
            offsets[block as usize] = offset;
        }
        offsets
    }
}

/// Groups while they are put together.
struct Assembly<'a> {
    problem: &'a Problem,
    families: Families,
    sharing: Sharing,
    /// Events that are ranks.
    moments: Vec<u64>,
    /// By block, bytes from the block's beginning.
    parts: Vec<Part>,
    /// By block, and one more: where its parts begin.
    firsts: Vec<usize>,
    /// Blocks and their distances from the group's beginning; empty where a group was joined to another.
    groups: Vec<Vec<(u32, u64)>>,
    /// By block: its group, and bytes from the group's beginning.
    home: Vec<u32>,
    distance: Vec<u64>,
    /// By block: its fixed offset.
    fixed: Vec<Option<u64>>,
}

impl Assembly<'_> {
    fn new(problem: &Problem) -> Assembly<'_> {
        // Views that go in a circle were refused by the check.
        let families = Families::new(problem).unwrap_or_else(|_| Families {
            root: (0..problem.blocks.len() as u32).collect(),
            distance: vec![0; problem.blocks.len()],
        });
        let count = problem.blocks.len();
        let pieces = pieces::pieces(problem);
        let fold = |time: u64| match problem.period {
            Some(period) if time >= period => time - period,
            _ => time,
        };
        let mut moments: Vec<u64> =
            pieces.iter().flat_map(|piece| [fold(piece.lower), fold(piece.upper)]).collect();
        moments.sort_unstable();
        moments.dedup();
        let ranks = moments.len() as u32;
        let rank = |time: u64| moments.partition_point(|&moment| moment < time) as u32;
        let sharing = Sharing::new(problem, &families);
        let mut firsts = vec![0; count + 1];
        let mut parts = Vec::with_capacity(pieces.len());
        for piece in pieces {
            let (lower, mut upper) = (rank(fold(piece.lower)), rank(fold(piece.upper)));
            if upper <= lower {
                upper += ranks; // It wraps.
            }
            let (block, shares) = (piece.block, sharing.shares(piece.block));
            parts.push(Part { span: (lower, upper), from: piece.from, to: piece.to, block, shares });
            firsts[block as usize + 1] = parts.len();
        }
        for block in 0..count {
            firsts[block + 1] = firsts[block + 1].max(firsts[block]);
        }
        let mut groups = vec![Vec::new(); count];
        for (block, (&root, &distance)) in families.root.iter().zip(&families.distance).enumerate() {
            groups[root as usize].push((block as u32, distance));
        }
        let mut fixed = vec![None; count];
        for given in &problem.constraints.fixed {
            fixed[given.block] = Some(given.offset);
        }
        let (home, distance) = (families.root.clone(), families.distance.clone());
        Assembly { problem, families, sharing, moments, parts, firsts, groups, home, distance, fixed }
    }

    fn turn(&self) -> u32 {
        if self.problem.period.is_some() { self.moments.len() as u32 } else { NEVER }
    }

    fn parts_of(&self, block: u32) -> &[Part] {
        &self.parts[self.firsts[block as usize]..self.firsts[block as usize + 1]]
    }

    /// Joins the groups of pairs of equal size, until `stop` says so. Returns how many.
    fn join_pairs(&mut self, stop: &dyn Fn() -> bool) -> usize {
        let (mut joined, mut work) = (0, 0);
        for pair in &self.problem.constraints.in_place {
            if self.problem.blocks[pair.first].size != self.problem.blocks[pair.second].size {
                continue;
            }
            let (first, second) = (self.home[pair.first], self.home[pair.second]);
            if first == second {
                continue;
            }
            work += self.groups[first as usize].len() * self.groups[second as usize].len();
            if work >= ASK {
                work = 0;
                if stop() {
                    break;
                }
            }
            let (a, b) = (self.distance[pair.first], self.distance[pair.second]);
            let (up_first, up_second) = (b.saturating_sub(a), a.saturating_sub(b));
            if self.may_join((first, up_first), (second, up_second)) {
                self.lift(first, up_first);
                self.lift(second, up_second);
                let taken = std::mem::take(&mut self.groups[second as usize]);
                for &(block, _) in &taken {
                    self.home[block as usize] = first;
                }
                self.groups[first as usize].extend(taken);
                joined += 1;
            }
        }
        joined
    }

    /// Moves the members of a group up by so many bytes.
    fn lift(&mut self, group: u32, by: u64) {
        let members = self.groups[group as usize].iter_mut().filter(|_| by > 0);
        for (block, distance) in members {
            *distance += by;
            self.distance[*block as usize] = *distance;
        }
    }

    /// Whether two groups, moved up by so many bytes, contradict neither each other nor what is fixed.
    fn may_join(&self, kept: (u32, u64), taken: (u32, u64)) -> bool {
        let of = |(group, up): (u32, u64)| {
            self.groups[group as usize].iter().map(move |&(block, distance)| (block, distance + up))
        };
        let all = || of(kept).chain(of(taken));
        // What is joined to a fixed block could meet another fixed block there.
        if all().any(|(block, _)| self.fixed[block as usize].is_some()) {
            return false;
        }
        let members: Vec<(u64, u64)> =
            all().map(|(block, distance)| (distance, self.problem.blocks[block as usize].align)).collect();
        if Padding::of(&members).is_none() {
            return false;
        }
        let turn = self.turn();
        let clash = |(a, at): (u32, u64), (b, bt): (u32, u64)| {
            let meeting = self.parts_of(a).iter().any(|p| {
                self.parts_of(b)
                    .iter()
                    .any(|q| meet(p.span, q.span, turn) && at + p.from < bt + q.to && bt + q.from < at + p.to)
            });
            meeting && !self.sharing.allows(&self.families, a, b)
        };
        !of(kept).any(|a| of(taken).any(|b| clash(a, b)))
    }

    fn finish(self, joined: usize) -> Groups {
        let (turn, ranks) = (self.turn(), self.moments.len() as u32);
        let mut groups = Groups {
            timeline: Timeline { items: Vec::new(), ranks, turn },
            fixed: Vec::new(),
            parts: Vec::with_capacity(self.parts.len()),
            firsts: vec![0],
            members: Vec::with_capacity(self.home.len()),
            resting: Vec::new(),
            sharing: Sharing::default(),
            joined,
        };
        for group in &self.groups {
            let Some(&(block, _)) = group.first() else { continue };
            let members: Vec<(u64, u64)> = group
                .iter()
                .map(|&(block, distance)| (distance, self.problem.blocks[block as usize].align))
                .collect();
            // The check and `may_join` let no group through whose alignments contradict each other.
            let Padding { align, pad } = Padding::of(&members).unwrap_or(Padding { align: 1, pad: 0 });
            let item = groups.timeline.items.len() as u32;
            let mut size = 0;
            let mut fixed = None;
            for &(block, distance) in group {
                let distance = pad + distance;
                size = size.max(distance + self.problem.blocks[block as usize].size);
                if let Some(offset) = self.fixed[block as usize] {
                    fixed = offset.checked_sub(distance);
                }
                let part = |part: &Part| Part { from: part.from + distance, to: part.to + distance, ..*part };
                groups.parts.extend(self.parts_of(block).iter().map(part));
            }
            let parts = &groups.parts[groups.firsts[item as usize]..];
            let placed = |&(block, distance): &(u32, u64)| (block, item, pad + distance);
            match hull(parts, turn) {
                Some((lower, upper)) => {
                    let length = self.time(upper) - self.time(lower);
                    groups.timeline.items.push(Item { lower, upper, size, align, block, length });
                    groups.members.extend(group.iter().map(placed));
                    groups.fixed.push(fixed);
                    groups.firsts.push(groups.parts.len());
                }
                None => {
                    let at = fixed.unwrap_or(0) + pad;
                    groups.resting.extend(group.iter().map(|&(block, distance)| (block, at + distance)));
                }
            }
        }
        groups.sharing = self.sharing;
        groups
    }

    /// The event of a rank on the unrolled circle.
    fn time(&self, rank: u32) -> u64 {
        let (rank, ranks) = (rank as usize, self.moments.len());
        match self.problem.period {
            Some(period) if rank >= ranks => self.moments[rank % ranks] + (rank / ranks) as u64 * period,
            _ => self.moments[rank],
        }
    }
}

/// The shortest span that covers all parts; `None` where there are none.
fn hull(parts: &[Part], turn: u32) -> Option<(u32, u32)> {
    let mut spans: Vec<(u32, u32)> = parts.iter().map(|part| part.span).collect();
    spans.sort_unstable();
    let &(first, _) = spans.first()?;
    let last = spans.iter().map(|span| span.1).max()?;
    if turn == NEVER {
        return Some((first, last));
    }
    // The widest stretch of the circle that nothing covers; at first the one across the turn.
    let (mut widest, mut span) = ((first + turn).saturating_sub(last), (first, last.min(first + turn)));
    let mut reach = first.max(last.saturating_sub(turn));
    for (lower, upper) in spans {
        if lower > reach && lower - reach > widest {
            widest = lower - reach;
            span = (lower, reach + turn);
        }
        reach = reach.max(upper);
    }
    Some(span)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spans(spans: &[(u32, u32)], turn: u32) -> Option<(u32, u32)> {
        let part = |&span: &(u32, u32)| Part { span, from: 0, to: 1, block: 0, shares: false };
        hull(&spans.iter().map(part).collect::<Vec<_>>(), turn)
    }

    #[test]
    fn a_hull_is_the_shortest_span_around_all_uses() {
        assert_eq!(spans(&[], 10), None);
        assert_eq!(spans(&[(3, 5), (7, 8)], NEVER), Some((3, 8)));
        assert_eq!(spans(&[(3, 5), (7, 8)], 10), Some((3, 8)));
        assert_eq!(spans(&[(0, 1), (8, 9)], 10), Some((8, 11)));
        assert_eq!(spans(&[(8, 12), (4, 5)], 10), Some((8, 15)));
        assert_eq!(spans(&[(8, 12), (5, 6)], 10), Some((5, 12)));
        assert_eq!(spans(&[(8, 12), (3, 4)], 10), Some((8, 14)));
        assert_eq!(spans(&[(0, 5), (5, 10)], 10), Some((0, 10)));
        assert_eq!(spans(&[(0, 4), (3, 8), (7, 11)], 10), Some((0, 10)));
    }
}
