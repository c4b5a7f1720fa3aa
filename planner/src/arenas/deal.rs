//! Dealing blocks out to arenas. A family of views is dealt as one, by the index of its root.

use std::cmp::Reverse;

use super::{Arena, ArenaError, ArenasPlan, Place, Used};
use crate::constraints::{ConstraintError, Constraints};
use crate::fit::Fit;
use crate::groups::Groups;
use crate::mosaic::Mosaic;
use crate::order::Order;
use crate::pieces::Families;
use crate::planner::{Effort, Planner};
use crate::problem::{Block, Problem, ProblemError};

/// Plans made to move single families up. What is left then stays where it is: the families of most bytes and events
/// come first.
const MOVES: usize = 64;

/// The same at more than [`Effort::Quick`], where what does not go up has been tried before: one in twenty succeeds, and
/// each costs tenths of a second to seconds.
const CAREFUL_MOVES: usize = 8;

/// Families looked at for that, by the bound of the arena with them in it: O(n log n) each.
const LOOKS: usize = 16 * MOVES;

/// What became of planning an arena below a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Taken,
    /// No such plan was found.
    Higher,
    /// There is none, and none was looked for.
    Hopeless,
}

/// Blocks on their way to arenas.
pub(super) struct Deal<'a> {
    planner: Planner,
    problem: &'a Problem,
    arenas: &'a [Arena],
    families: Families,
    /// By root: the arenas the whole family may go to, ascending.
    allowed: Vec<Vec<usize>>,
    /// By block: the arena, if it has found one.
    home: Vec<Option<usize>>,
    /// By block.
    offsets: Vec<u64>,
}

impl<'a> Deal<'a> {
    /// Nobody has a place yet.
    pub fn new(
        planner: Planner,
        problem: &'a Problem,
        arenas: &'a [Arena],
        allowed: &[Vec<usize>],
    ) -> Result<Deal<'a>, ArenaError> {
        let blocks = &problem.blocks;
        // Blocks fixed in different arenas may overlap, so fixed offsets are checked arena by arena.
        let Constraints { gaps, inside, in_place, .. } = problem.constraints.clone();
        let movable = Constraints { gaps, inside, in_place, fixed: Vec::new() };
        problem.clone().with_constraints(movable).check()?;
        if !allowed.is_empty() && allowed.len() != blocks.len() {
            return Err(ArenaError::Allowed { lists: allowed.len(), blocks: blocks.len() });
        }
        let families = Families::new(problem).map_err(|root| ArenaError::Nowhere { id: blocks[root].id })?;
        let mut common: Vec<Vec<usize>> = blocks.iter().map(|_| (0..arenas.len()).collect()).collect();
        for (list, (block, &root)) in allowed.iter().zip(blocks.iter().zip(&families.root)) {
            if let Some(&arena) = list.iter().find(|&&arena| arena >= arenas.len()) {
                return Err(ArenaError::NoSuchArena { id: block.id, arena, arenas: arenas.len() });
            }
            common[root as usize].retain(|arena| list.contains(arena));
        }
        if let Some(&root) = families.root.iter().find(|&&root| common[root as usize].is_empty()) {
            return Err(ArenaError::Nowhere { id: blocks[root as usize].id });
        }
        let home = vec![None; blocks.len()];
        let mut deal = Deal {
            planner,
            problem,
            arenas,
            families,
            allowed: common,
            home,
            offsets: vec![0; blocks.len()],
        };
        let room = blocks.iter().map(|block| block.size.saturating_add(2 * (block.align - 1)));
        let room = room.fold(0, u64::saturating_add);
        for fixed in &problem.constraints.fixed {
            let Some(block) = blocks.get(fixed.block) else { continue };
            if fixed.offset.checked_add(room).is_none() {
                let Block { id, size, .. } = *block;
                let overflow = ConstraintError::FixedOverflow { id, offset: fixed.offset, size };
                return Err(ProblemError::from(overflow).into());
            }
            let root = deal.families.root[fixed.block] as usize;
            if deal.allowed[root].len() > 1 {
                return Err(ArenaError::FixedAnywhere { id: block.id });
            }
            deal.put(root, deal.allowed[root].first().copied());
        }
        for arena in 0..arenas.len() {
            deal.part(arena).check()?;
        }
        Ok(deal)
    }

    /// Sets the arena of a family.
    fn put(&mut self, root: usize, arena: Option<usize>) {
        for (home, &of) in self.home.iter_mut().zip(&self.families.root) {
            if of as usize == root {
                *home = arena;
            }
        }
    }

    /// An arena's blocks as a problem of their own. The others are in it without bytes, so that indices stay.
    fn part(&self, arena: usize) -> Problem {
        let here = |index: usize| self.home.get(index).is_none_or(|&home| home == Some(arena));
        let mut part = self.problem.clone();
        for (index, block) in part.blocks.iter_mut().enumerate() {
            if !here(index) {
                (block.size, block.align) = (0, 1);
            }
        }
        part.constraints.fixed.retain(|fixed| here(fixed.block));
        part.constraints.gaps.retain(|gap| here(gap.block));
        part.constraints.inside.retain(|view| here(view.block));
        part.constraints.in_place.retain(|pair| here(pair.first) && here(pair.second));
        part
    }

    /// Bytes of an arena as it is.
    fn height(&self, arena: usize) -> u64 {
        let blocks = self.problem.blocks.iter().zip(&self.offsets).zip(&self.home);
        let ends = blocks.filter(|&(_, &home)| home == Some(arena)).map(|((block, at), _)| at + block.size);
        ends.max().unwrap_or(0)
    }

    /// Plans an arena's blocks anew, and takes the plan where it is below `limit`.
    fn plan(&mut self, arena: usize, limit: Option<u64>) -> Outcome {
        let part = self.part(arena);
        if limit.is_some_and(|limit| part.lower_bound().bytes >= limit) {
            return Outcome::Hopeless;
        }
        let Ok(plan) = self.planner.plan(&part) else { return Outcome::Higher };
        let taken = limit.is_none_or(|limit| plan.height < limit);
        if taken {
            for ((offset, planned), home) in self.offsets.iter_mut().zip(plan.offsets).zip(&self.home) {
                if *home == Some(arena) {
                    *offset = planned;
                }
            }
        }
        if taken { Outcome::Taken } else { Outcome::Higher }
    }

    /// What no plan of an arena may reach; `None`: it can have all bytes there are.
    fn limit(&self, arena: usize) -> Option<u64> {
        self.arenas[arena].capacity.and_then(|capacity| capacity.checked_add(1))
    }

    /// Puts every block into the arena it likes best. Returns whether all found room there.
    pub fn put_all_first(&mut self) -> bool {
        let roots = &self.families.root;
        self.home = roots.iter().map(|&root| self.allowed[root as usize].first().copied()).collect();
        (0..self.arenas.len()).all(|arena| self.plan(arena, self.limit(arena)) == Outcome::Taken)
    }

    /// Deals all blocks out by first fit in several orders, improves each a little, and the best at full effort.
    pub fn deal_out(&mut self) {
        let planner = self.planner.clone();
        self.planner = planner.clone().effort(Effort::Quick);
        let groups = Groups::new(self.problem);
        let mut best: Option<(_, Vec<Option<usize>>, Vec<u64>)> = None;
        for order in Order::ALL {
            self.fill(&groups, order.sort(&groups.timeline));
            self.improve();
            let cost = self.cost();
            if best.as_ref().is_none_or(|(least, ..)| cost < *least) {
                best = Some((cost, self.home.clone(), self.offsets.clone()));
            }
            if self.stopped() {
                break;
            }
        }
        if let Some((_, home, offsets)) = best {
            (self.home, self.offsets) = (home, offsets);
        }
        self.planner = planner;
        if !self.stopped() {
            self.improve();
        }
    }

    /// Whether the caller's watch says stop.
    fn stopped(&self) -> bool {
        let height = (0..self.arenas.len()).map(|arena| self.height(arena)).max();
        self.planner.stopped(height.unwrap_or(0), 0)
    }

    /// First fit in an order, but families that have few arenas to go to come first.
    fn fill(&mut self, groups: &Groups, mut order: Vec<u32>) {
        let items = &groups.timeline.items;
        let root = |item: u32| self.families.root[items[item as usize].block as usize] as usize;
        let fixed = |item: u32| groups.fixed[item as usize];
        order.sort_by_key(|&item| (fixed(item).is_none(), self.allowed[root(item)].len()));
        let mut mosaics: Vec<Mosaic> = self.arenas.iter().map(|_| Mosaic::default()).collect();
        let mut by_item = vec![0; items.len()];
        // By root.
        let mut homes: Vec<Option<usize>> = vec![None; self.home.len()];
        let mut placed = vec![false; self.home.len()];
        for item in order {
            let root = root(item);
            placed[root] = true;
            for &arena in &self.allowed[root] {
                let mosaic = &mut mosaics[arena];
                let offset = fixed(item).unwrap_or_else(|| mosaic.room(groups, item, Fit::First));
                if self.arenas[arena].holds(offset + items[item as usize].size) {
                    mosaic.lay(groups, item, offset);
                    by_item[item as usize] = offset;
                    homes[root] = Some(arena);
                    break;
                }
            }
        }
        self.offsets = groups.offsets(&by_item, self.home.len());
        // What is never in use goes wherever there is room for it alone.
        let mut ends = vec![0; self.home.len()];
        for (index, block) in self.problem.blocks.iter().enumerate() {
            let end: &mut u64 = &mut ends[self.families.root[index] as usize];
            *end = (*end).max(self.offsets[index] + block.size);
        }
        for (root, end) in ends.into_iter().enumerate().filter(|&(root, _)| !placed[root]) {
            let mut fitting = self.allowed[root].iter();
            homes[root] = fitting.find(|&&arena| self.arenas[arena].holds(end)).copied();
        }
        self.home = self.families.root.iter().map(|&root| homes[root as usize]).collect();
    }

    /// The lower the better: bytes without a place, bytes of arenas without a capacity, bytes times events in arenas
    /// times the number of arenas their blocks like better.
    fn cost(&self) -> (u64, u64, u128) {
        let blocks = || self.problem.blocks.iter().zip(&self.home);
        let homeless = blocks().filter(|(_, home)| home.is_none()).map(|(block, _)| block.size).sum();
        let open = (0..self.arenas.len()).filter(|&arena| self.arenas[arena].capacity.is_none());
        let open = open.map(|arena| self.height(arena)).fold(0, u64::saturating_add);
        let away = (0..self.home.len()).map(|index| self.weight(index).saturating_mul(self.away(index)));
        (homeless, open, away.fold(0, u128::saturating_add))
    }

    /// Bytes times events of a block.
    fn weight(&self, index: usize) -> u128 {
        let block = &self.problem.blocks[index];
        u128::from(block.size) * u128::from(block.length())
    }

    /// How many arenas a block's family likes better than the one it is in.
    fn away(&self, index: usize) -> u128 {
        let allowed = &self.allowed[self.families.root[index] as usize];
        let better = allowed.iter().take_while(|&&arena| self.home[index] != Some(arena));
        better.count() as u128
    }

    /// Plans the arenas, and moves what it can.
    fn improve(&mut self) {
        self.plan_each();
        self.move_up();
        self.plan_each();
    }

    /// Plans every arena by itself, where that makes it lower.
    fn plan_each(&mut self) {
        for arena in 0..self.arenas.len() {
            let height = self.height(arena);
            self.plan(arena, Some(height));
        }
    }

    /// Moves families to arenas they like better, those without a place first, then those of most bytes and events.
    fn move_up(&mut self) {
        let mut roots: Vec<usize> = (0..self.home.len())
            .filter(|&index| self.families.root[index] as usize == index && self.away(index) > 0)
            .collect();
        roots.sort_by_key(|&root| (self.home[root].is_some(), Reverse(self.weight(root))));
        let most = if self.planner.worth() == Effort::Quick { MOVES } else { CAREFUL_MOVES };
        let mut plans = 0;
        for root in roots.into_iter().take(LOOKS) {
            let before = self.home[root];
            for arena in self.allowed[root].clone() {
                if plans >= most || before == Some(arena) {
                    break;
                }
                if self.stopped() {
                    return;
                }
                self.put(root, Some(arena));
                let outcome = self.plan(arena, self.limit(arena));
                plans += usize::from(outcome != Outcome::Hopeless);
                if outcome == Outcome::Taken {
                    break;
                }
                self.put(root, before);
            }
        }
    }

    /// The plan, if everybody has a place.
    pub fn into_plan(self) -> Result<ArenasPlan, ArenaError> {
        let blocks = self.problem.blocks.iter().zip(&self.home);
        let ids: Vec<u64> = blocks.filter(|(_, home)| home.is_none()).map(|(block, _)| block.id).collect();
        if !ids.is_empty() {
            return Err(ArenaError::Full { ids });
        }
        let used = (0..self.arenas.len())
            .map(|arena| Used {
                height: self.height(arena),
                lower_bound: self.part(arena).lower_bound().bytes,
            })
            .collect();
        let places = self.home.iter().zip(&self.offsets);
        let places = places.flat_map(|(home, &offset)| home.map(|arena| Place { arena, offset })).collect();
        Ok(ArenasPlan { places, used })
    }
}
