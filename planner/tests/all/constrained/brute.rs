//! The rules once more, byte by byte and event by event: slow, short, and independent of the library.

use stepalloc_planner::Problem;

/// Bytes of a block in use at an event, from its own beginning.
fn in_use(problem: &Problem, block: usize, event: u64) -> Option<(u64, u64)> {
    let row = problem.blocks[block];
    // On the circle, the same event one turn later may lie in the lifetime.
    [Some(event), problem.period.map(|period| event + period)].into_iter().flatten().find_map(|at| {
        if at < row.lower || at >= row.upper {
            return None;
        }
        let gap = problem.constraints.gaps.iter().find(|g| g.block == block && g.lower <= at && at < g.upper);
        let (from, to) = gap.map_or((0, row.size), |gap| gap.window.unwrap_or((0, 0)));
        (from < to).then_some((from, to))
    })
}

/// Blocks that views join, as a matrix.
fn families(problem: &Problem) -> Vec<Vec<bool>> {
    let count = problem.blocks.len();
    let mut joined = vec![vec![false; count]; count];
    for view in &problem.constraints.inside {
        joined[view.block][view.of] = true;
        joined[view.of][view.block] = true;
    }
    for middle in 0..count {
        for a in 0..count {
            for b in 0..count {
                joined[a][b] |= joined[a][middle] && joined[middle][b];
            }
        }
    }
    joined
}

/// The rules of a small problem, written out.
pub struct Rules<'a> {
    problem: &'a Problem,
    /// By pair of blocks: whether they may share bytes.
    allowed: Vec<Vec<bool>>,
    /// By block and event: the bytes in use.
    uses: Vec<Vec<Option<(u64, u64)>>>,
}

impl Rules<'_> {
    pub fn new(problem: &Problem) -> Rules<'_> {
        let mut allowed = families(problem);
        for pair in &problem.constraints.in_place {
            allowed[pair.first][pair.second] = true;
            allowed[pair.second][pair.first] = true;
        }
        let last = problem.blocks.iter().map(|block| block.upper).max().unwrap_or(0);
        let events = problem.period.unwrap_or(last);
        let row = |block| (0..events).map(|event| in_use(problem, block, event)).collect();
        Rules { problem, allowed, uses: (0..problem.blocks.len()).map(row).collect() }
    }

    /// Whether two blocks at these offsets use a byte together that they may not share.
    fn clash(&self, (a, at): (usize, u64), (b, bt): (usize, u64)) -> bool {
        !self.allowed[a][b]
            && self.uses[a].iter().zip(&self.uses[b]).any(|(x, y)| match (x, y) {
                (Some(x), Some(y)) => at + x.0 < bt + y.1 && bt + y.0 < at + x.1,
                _ => false,
            })
    }

    /// Whether a block may have this offset, given those of the blocks before it.
    fn suits(&self, offsets: &[u64], offset: u64, height: u64) -> bool {
        let block = offsets.len();
        let row = self.problem.blocks[block];
        let at = |index: usize| if index == block { Some(offset) } else { offsets.get(index).copied() };
        let constraints = &self.problem.constraints;
        offset.is_multiple_of(row.align)
            && offset + row.size <= height
            && constraints.fixed.iter().all(|fixed| fixed.block != block || fixed.offset == offset)
            && constraints.inside.iter().all(|view| match (at(view.block), at(view.of)) {
                (Some(view_at), Some(of_at)) => view_at == of_at + view.distance,
                _ => true,
            })
            && (0..block).all(|other| !self.clash((other, offsets[other]), (block, offset)))
    }

    /// Whether a plan keeps all rules.
    pub fn keep(&self, offsets: &[u64], height: u64) -> bool {
        offsets.len() == self.problem.blocks.len()
            && (0..offsets.len()).all(|block| self.suits(&offsets[..block], offsets[block], height))
    }

    /// The lowest height of any plan, by trying all offsets.
    pub fn optimum(&self) -> u64 {
        (0..).find(|&height| self.complete(&mut Vec::new(), height)).expect("a problem that can be planned")
    }

    fn complete(&self, offsets: &mut Vec<u64>, height: u64) -> bool {
        let Some(row) = self.problem.blocks.get(offsets.len()) else { return true };
        for offset in (0..=height.saturating_sub(row.size)).step_by(row.align as usize) {
            if self.suits(offsets, offset, height) {
                offsets.push(offset);
                if self.complete(offsets, height) {
                    return true;
                }
                offsets.pop();
            }
        }
        false
    }
}
