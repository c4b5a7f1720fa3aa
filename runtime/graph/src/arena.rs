//! Memory that plans' offsets point into: arenas, which sessions use in turns, within a limit.

use crate::error::Error;
use crate::pool::Pool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use stepalloc::Region;
use stepalloc_tensor::{Tensor, Type};

/// A range of addresses from the system, as the allocator's own arena has one: pages come when they are first written, and go back
/// when it is dropped.
struct Arena {
    /// `None` for no bytes.
    region: Option<Region>,
    bytes: usize,
}

impl Arena {
    /// So many bytes, all zero.
    fn new(bytes: usize, huge_pages: bool) -> Result<Self, Error> {
        if bytes == 0 {
            return Ok(Self { region: None, bytes });
        }
        let region = Region::new(bytes).filter(|region| region.commit(bytes, huge_pages));
        let fail = || Error::Memory { bytes: bytes as u64, why: "the system has no more".into() };
        Ok(Self { region: Some(region.ok_or_else(fail)?), bytes })
    }

    /// Makes it larger where it is; `false` where that cannot be, and nothing has changed.
    fn grow(&mut self, bytes: usize, huge_pages: bool) -> bool {
        let grows = self.region.as_ref().is_some_and(|region| region.commit(bytes, huge_pages));
        if grows {
            self.bytes = bytes;
        }
        grows
    }
}

/// An arena as long as a run has it; it goes back when it is dropped, whatever became of the run.
pub(crate) struct Lent<'a> {
    arenas: &'a Arenas,
    arena: Option<Arena>,
    /// What the run asked for.
    asked: usize,
    /// Whether it is kept for the next run.
    keep: bool,
}

impl Lent<'_> {
    pub(crate) fn memory(&mut self) -> &mut [u8] {
        let region = self.arena.as_mut().and_then(|arena| arena.region.as_mut());
        region.map_or(&mut [], |region| &mut region.memory()[..self.asked])
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        let mut kept = self.arenas.kept();
        kept.statistics.in_use -= self.asked as u64;
        match self.arena.take() {
            Some(arena) if self.keep => kept.free.push(arena),
            Some(arena) => {
                kept.lose(arena);
                kept.statistics.total_allocated -= self.arenas.0.pool.release();
            }
            None => {}
        }
    }
}

/// How a session takes an arena.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taking {
    pub extend: ArenaExtendStrategy,
    /// Whether the system is asked for huge pages.
    pub huge_pages: bool,
    /// Whether it is kept for the next run.
    pub keep: bool,
}

/// How large an arena is made when no kept one is large enough. Named as in ONNX Runtime.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ArenaExtendStrategy {
    /// As large as the plan says.
    #[default]
    SameAsRequested,
    /// The next power of two, so that plans that are a little larger need no new one. Pages that no plan reaches take no memory,
    /// but count in [`Statistics::total_allocated`]; where the limit is too low for it, it is as large as the plan says.
    NextPowerOfTwo,
}

/// What arenas have and had, in the words of ONNX Runtime's arena statistics. A run is one allocation: that of its plan's bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// The most bytes there may be; `u64::MAX` if there is no limit.
    pub limit: u64,
    /// Bytes that runs have now: of their plans, and of tensors beside the arena.
    pub in_use: u64,
    /// Bytes from the system now: arenas, tensors beside them, and what is kept for such tensors.
    pub total_allocated: u64,
    /// The most that was ever in use.
    pub max_in_use: u64,
    /// How often a run asked for an arena.
    pub num_allocs: u64,
    /// How often memory beside arenas was taken: for outputs, and for what could not be planned.
    pub num_reserves: u64,
    /// How often an arena was taken from the system or made larger so far.
    pub num_arena_extensions: u64,
    /// Arenas given back to the system so far.
    pub num_arena_shrinkages: u64,
    /// The most bytes that a run asked for.
    pub max_alloc_size: u64,
}

/// Arenas of many sessions: those that do not run at the same time use the same one.
///
/// The sessions of one [`Model`](crate::Model) share arenas in any case, unless they have limits of their own.
///
/// ```
/// use stepalloc_graph::{Arenas, Options};
///
/// let arenas = Arenas::with_max_mem(64 << 20);
/// let (small, large) = (Options::new().arenas(&arenas), Options::new().arenas(&arenas));
/// # let _ = (small, large);
/// assert_eq!(arenas.statistics().limit, 64 << 20);
/// ```
#[derive(Clone, Debug)]
pub struct Arenas(Arc<Shared>);

struct Shared {
    limit: u64,
    /// For what has no place in an arena, where there is no limit.
    pool: Arc<Pool>,
    kept: Mutex<Kept>,
    /// Copies of graphs' weights that count.
    weights: Mutex<Vec<(usize, Weak<Charge>)>>,
}

#[derive(Default)]
struct Kept {
    /// Arenas that no run has now.
    free: Vec<Arena>,
    statistics: Statistics,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        write!(f, "limit {}, {} free, {:?}", self.limit, kept.free.len(), kept.statistics)
    }
}

impl Default for Arenas {
    fn default() -> Self {
        Self::with_max_mem(u64::MAX)
    }
}

impl Arenas {
    /// Without a limit.
    pub fn new() -> Self {
        Self::default()
    }

    /// All sessions that use them may have so many bytes at one time, together: arenas, outputs that they make (until the caller
    /// has them), tensors that could not be planned, and weights that are copied from a file. What would be more is an error.
    pub fn with_max_mem(bytes: u64) -> Self {
        let (pool, kept, weights) = (Arc::default(), Mutex::default(), Mutex::default());
        Self(Arc::new(Shared { limit: bytes, pool, kept, weights }))
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.0.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What they have and had.
    pub fn statistics(&self) -> Statistics {
        Statistics { limit: self.0.limit, ..self.kept().statistics }
    }

    /// Gives arenas that no run has now back to the system, with what is kept for tensors beside them. The next run takes them anew.
    pub fn release_memory(&self) {
        let mut kept = self.kept();
        while kept.drop_largest() {}
        kept.statistics.total_allocated -= self.0.pool.release();
    }

    /// An arena for a plan: the smallest kept one that is large enough, or else the largest, which is made larger where it is, or
    /// replaced, so that what was taken for smaller inputs does not stay beside it.
    pub(crate) fn arena(&self, bytes: usize, taking: Taking) -> Result<Lent<'_>, Error> {
        let mut kept = self.kept();
        let fitting = (0..kept.free.len())
            .filter(|&index| kept.free[index].bytes >= bytes)
            .min_by_key(|&index| kept.free[index].bytes);
        let arena = match fitting {
            Some(index) => kept.free.swap_remove(index),
            None => kept.extend(bytes, self.0.limit, taking)?,
        };
        kept.statistics.num_allocs += 1;
        kept.statistics.max_alloc_size = kept.statistics.max_alloc_size.max(bytes as u64);
        kept.uses(bytes as u64);
        Ok(Lent { arenas: self, arena: Some(arena), asked: bytes, keep: taking.keep })
    }

    /// Counts weights that sessions of a graph, told by its address, have a copy of; once for all of them.
    pub(crate) fn weights(&self, graph: usize, bytes: u64) -> Result<Arc<Charge>, Error> {
        let weights = &mut *self.0.weights.lock().unwrap_or_else(PoisonError::into_inner);
        weights.retain(|(_, charge)| charge.strong_count() > 0);
        if let Some(charge) =
            weights.iter().find_map(|(of, charge)| charge.upgrade().filter(|_| *of == graph))
        {
            return Ok(charge);
        }
        let mut charge = Charge::new(self);
        charge.grow(bytes)?;
        let charge = Arc::new(charge);
        weights.push((graph, Arc::downgrade(&charge)));
        Ok(charge)
    }

    /// A tensor beside the arena, in which is anything: in memory that is kept for the next run, or, where there is a limit, in memory of
    /// its own, so that no more counts than is there.
    pub(crate) fn tensor(&self, ty: Type) -> Result<Tensor, Error> {
        if self.is_limited() {
            return Ok(Tensor::try_zeroed(ty)?);
        }
        let (tensor, grown) = self.0.pool.tensor(ty)?;
        if grown > 0 {
            self.kept().statistics.total_allocated += grown;
        }
        Ok(tensor)
    }

    /// Whether there is a limit.
    pub(crate) fn is_limited(&self) -> bool {
        self.0.limit < u64::MAX
    }
}

impl Kept {
    /// The largest free arena made larger, or a new one in its place.
    fn extend(&mut self, bytes: usize, limit: u64, taking: Taking) -> Result<Arena, Error> {
        self.check(bytes as u64, limit)?;
        let largest = (0..self.free.len()).max_by_key(|&index| self.free[index].bytes);
        let mut largest = largest.map(|index| self.free.swap_remove(index));
        let had = largest.as_ref().map_or(0, |arena| arena.bytes);
        // All that is free may go for it: so it was checked.
        while self.room(limit) < (bytes - had) as u64 && self.drop_largest() {}
        let rounded = match taking.extend {
            ArenaExtendStrategy::SameAsRequested => bytes,
            ArenaExtendStrategy::NextPowerOfTwo => bytes.checked_next_power_of_two().unwrap_or(bytes),
        };
        let rounded = if self.room(limit) < (rounded - had) as u64 { bytes } else { rounded };
        let huge_pages = taking.huge_pages;
        let grows = |arena: &mut Arena| arena.grow(rounded, huge_pages) || arena.grow(bytes, huge_pages);
        let grown = largest.take_if(grows);
        let arena = match grown {
            Some(arena) => {
                self.statistics.total_allocated += (arena.bytes - had) as u64;
                arena
            }
            None => {
                largest.into_iter().for_each(|arena| self.lose(arena));
                let arena = Arena::new(rounded, huge_pages).or_else(|_| Arena::new(bytes, huge_pages))?;
                self.statistics.total_allocated += arena.bytes as u64;
                arena
            }
        };
        self.statistics.num_arena_extensions += 1;
        Ok(arena)
    }

    fn uses(&mut self, bytes: u64) {
        self.statistics.in_use += bytes;
        self.statistics.max_in_use = self.statistics.max_in_use.max(self.statistics.in_use);
    }

    fn room(&self, limit: u64) -> u64 {
        limit.saturating_sub(self.statistics.total_allocated)
    }

    /// Whether so many bytes more are within the limit once free arenas are dropped.
    fn check(&self, bytes: u64, limit: u64) -> Result<(), Error> {
        let free: u64 = self.free.iter().map(|arena| arena.bytes as u64).sum();
        let total = (self.statistics.total_allocated - free).saturating_add(bytes);
        if total <= limit {
            return Ok(());
        }
        Err(Error::Memory { bytes: total, why: format!("max_mem allows {limit} bytes") })
    }

    /// Drops free arenas until so many bytes are within the limit; none if that cannot be.
    fn make_room(&mut self, bytes: u64, limit: u64) -> Result<(), Error> {
        self.check(bytes, limit)?;
        while self.room(limit) < bytes && self.drop_largest() {}
        Ok(())
    }

    fn lose(&mut self, arena: Arena) {
        self.statistics.total_allocated -= arena.bytes as u64;
        self.statistics.num_arena_shrinkages += 1;
    }

    fn drop_largest(&mut self) -> bool {
        let largest = (0..self.free.len()).max_by_key(|&index| self.free[index].bytes);
        let arena = largest.map(|index| self.free.swap_remove(index));
        arena.map(|arena| self.lose(arena)).is_some()
    }
}

/// Bytes beside arenas that count towards their limit, as long as it lives.
#[derive(Debug)]
pub(crate) struct Charge {
    arenas: Arenas,
    bytes: u64,
    /// Whether the memory counts elsewhere, as that which is kept for tensors does: then it is only in use.
    is_kept: bool,
}

impl Charge {
    pub(crate) fn new(arenas: &Arenas) -> Self {
        Self { arenas: arenas.clone(), bytes: 0, is_kept: false }
    }

    /// Of tensors that [`Arenas::tensor`] makes.
    pub(crate) fn of_tensors(arenas: &Arenas) -> Self {
        Self { arenas: arenas.clone(), bytes: 0, is_kept: !arenas.is_limited() }
    }

    /// Counts so many more; an error, and no change, if that is beyond the limit.
    pub(crate) fn grow(&mut self, bytes: u64) -> Result<(), Error> {
        if bytes == 0 {
            return Ok(());
        }
        let mut kept = self.arenas.kept();
        if !self.is_kept {
            kept.make_room(bytes, self.arenas.0.limit)?;
            kept.statistics.total_allocated += bytes;
        }
        kept.statistics.num_reserves += 1;
        kept.uses(bytes);
        self.bytes += bytes;
        Ok(())
    }

    /// Counts so many less.
    pub(crate) fn shrink(&mut self, bytes: u64) {
        let bytes = bytes.min(self.bytes);
        if bytes == 0 {
            return;
        }
        let mut kept = self.arenas.kept();
        if !self.is_kept {
            kept.statistics.total_allocated -= bytes;
        }
        kept.statistics.in_use -= bytes;
        self.bytes -= bytes;
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.shrink(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAME: Taking =
        Taking { extend: ArenaExtendStrategy::SameAsRequested, huge_pages: false, keep: true };

    #[test]
    fn one_arena_serves_those_who_come_in_turns() {
        let arenas = Arenas::new();
        for bytes in [1000, 500, 1000] {
            let mut arena = arenas.arena(bytes, SAME).expect("there is no limit");
            assert_eq!(arena.memory().len(), bytes);
        }
        let statistics = arenas.statistics();
        assert_eq!((statistics.num_allocs, statistics.num_arena_extensions), (3, 1));
        assert_eq!((statistics.total_allocated, statistics.in_use, statistics.max_in_use), (1000, 0, 1000));
        arenas.release_memory();
        assert_eq!((arenas.statistics().total_allocated, arenas.statistics().num_arena_shrinkages), (0, 1));
    }

    #[test]
    fn an_arena_grows_where_it_is_and_what_is_in_it_stays() {
        let arenas = Arenas::new();
        let base = {
            let mut arena = arenas.arena(1000, SAME).expect("there is no limit");
            arena.memory().fill(7);
            arena.memory().as_ptr()
        };
        let mut arena = arenas.arena(8000, SAME).expect("there is no limit");
        assert_eq!((arena.memory().as_ptr(), arena.memory()[999], arena.memory()[5000]), (base, 7, 0));
        drop(arena);
        // Beyond what was reserved for it.
        drop(arenas.arena(64 << 20, SAME).expect("there is no limit"));
        let statistics = arenas.statistics();
        assert_eq!(statistics.total_allocated, 64 << 20);
        assert_eq!((statistics.num_arena_extensions, statistics.num_arena_shrinkages), (3, 1));
    }

    #[test]
    fn an_arena_goes_back_when_what_has_it_panics() {
        let arenas = Arenas::new();
        let panics = || {
            let _arena = arenas.arena(1000, SAME).expect("there is no limit");
            panic!("as an operator might");
        };
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(panics)).is_err());
        let statistics = arenas.statistics();
        assert_eq!((statistics.in_use, statistics.total_allocated), (0, 1000));
        drop(arenas.arena(1000, SAME).expect("there is no limit"));
        assert_eq!(arenas.statistics().num_arena_extensions, 1);
    }

    #[test]
    fn arenas_that_are_not_kept_go_at_once() {
        let arenas = Arenas::new();
        drop(arenas.arena(1000, Taking { keep: false, ..SAME }).expect("there is no limit"));
        assert_eq!((arenas.statistics().total_allocated, arenas.statistics().num_arena_shrinkages), (0, 1));
    }

    #[test]
    fn powers_of_two_serve_plans_that_are_a_little_larger() {
        let arenas = Arenas::with_max_mem(6000);
        for (bytes, total, extensions) in [(1100, 2048, 1), (1900, 2048, 1), (2100, 4096, 2), (5000, 5000, 3)]
        {
            let taking = Taking { extend: ArenaExtendStrategy::NextPowerOfTwo, ..SAME };
            drop(arenas.arena(bytes, taking).expect("it is within the limit"));
            let statistics = arenas.statistics();
            assert_eq!((statistics.total_allocated, statistics.num_arena_extensions), (total, extensions));
        }
    }

    #[test]
    fn the_limit_holds_and_errors_cost_nothing() {
        let arenas = Arenas::with_max_mem(1000);
        drop(arenas.arena(600, SAME).expect("it is within the limit"));
        assert!(arenas.arena(1001, SAME).is_err());
        let mut charge = Charge::new(&arenas);
        charge.grow(400).expect("it is within the limit");
        assert!(charge.grow(700).is_err());
        assert_eq!(arenas.statistics().total_allocated, 1000, "the kept arena is still there");
        charge.grow(300).expect("the kept arena goes for it");
        assert_eq!(arenas.statistics().total_allocated, 700);
        let error = arenas.arena(600, SAME).map(|_| ()).expect_err("there is no room");
        assert_eq!(error.to_string(), "1300 bytes of memory are wanted: max_mem allows 1000 bytes");
        drop(charge);
        assert_eq!(arenas.statistics().total_allocated, 0);
        assert!(arenas.arena(600, SAME).is_ok());
    }
}
