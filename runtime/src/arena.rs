//! Memory that plans' offsets point into: arenas, which sessions use in turns, within a limit.

use crate::error::Error;
use memmap2::MmapMut;
use std::cell::RefCell;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// A range of addresses from the system: pages come when they are first written, and go back when it is dropped.
pub(crate) struct Arena {
    map: Option<MmapMut>,
    bytes: usize,
    /// What the run that has it asked for.
    asked: usize,
}

impl Arena {
    /// So many bytes, all zero.
    fn new(bytes: usize) -> Result<Self, Error> {
        let map = (bytes > 0).then(|| MmapMut::map_anon(bytes)).transpose();
        let map = map.map_err(|source| Error::Memory { bytes: bytes as u64, why: source.to_string() })?;
        Ok(Self { map, bytes, asked: 0 })
    }

    pub(crate) fn memory(&mut self) -> &mut [u8] {
        self.map.as_deref_mut().unwrap_or_default()
    }
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
    /// Bytes from the system now: arenas, and tensors beside them.
    pub total_allocated: u64,
    /// The most that was ever in use.
    pub max_in_use: u64,
    /// How often a run asked for an arena.
    pub num_allocs: u64,
    /// How often memory beside arenas was taken: for outputs, and for what could not be planned.
    pub num_reserves: u64,
    /// Arenas taken from the system so far.
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
/// use stepalloc_runtime::{Arenas, Options};
///
/// let arenas = Arenas::with_max_mem(64 << 20);
/// let (small, large) = (Options::new().arenas(&arenas), Options::new().arenas(&arenas));
/// # let _ = (small, large);
/// assert_eq!(arenas.statistics().limit, 64 << 20);
/// ```
#[derive(Clone, Debug)]
pub struct Arenas(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    limit: u64,
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

impl std::fmt::Debug for Kept {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} free, {:?}", self.free.len(), self.statistics)
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
        Self(Arc::new(Shared { limit: bytes, kept: Mutex::default(), weights: Mutex::default() }))
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.0.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What they have and had.
    pub fn statistics(&self) -> Statistics {
        Statistics { limit: self.0.limit, ..self.kept().statistics }
    }

    /// Gives arenas that no run has now back to the system. The next run takes one anew.
    pub fn release_memory(&self) {
        let mut kept = self.kept();
        while kept.drop_largest() {}
    }

    /// An arena for a plan: the smallest kept one that is large enough, or a new one in place of the largest that is kept and too
    /// small, so that what was taken for smaller inputs does not stay beside it.
    pub(crate) fn arena(&self, bytes: usize, extend: ArenaExtendStrategy) -> Result<Arena, Error> {
        let mut kept = self.kept();
        let fitting = (0..kept.free.len())
            .filter(|&index| kept.free[index].bytes >= bytes)
            .min_by_key(|&index| kept.free[index].bytes);
        let mut arena = match fitting {
            Some(index) => kept.free.swap_remove(index),
            None => {
                kept.check(bytes as u64, self.0.limit)?;
                kept.drop_largest();
                kept.make_room(bytes as u64, self.0.limit)?;
                let rounded = match extend {
                    ArenaExtendStrategy::SameAsRequested => bytes,
                    ArenaExtendStrategy::NextPowerOfTwo => bytes.checked_next_power_of_two().unwrap_or(bytes),
                };
                let rounded = if kept.room(self.0.limit) < rounded as u64 { bytes } else { rounded };
                let arena = Arena::new(rounded).or_else(|_| Arena::new(bytes))?;
                kept.statistics.total_allocated += arena.bytes as u64;
                kept.statistics.num_arena_extensions += 1;
                arena
            }
        };
        arena.asked = bytes;
        kept.statistics.num_allocs += 1;
        kept.statistics.max_alloc_size = kept.statistics.max_alloc_size.max(bytes as u64);
        kept.uses(bytes as u64);
        Ok(arena)
    }

    /// Takes back an arena that a run is over with, for the next one or for the system.
    pub(crate) fn give_back(&self, arena: Arena, keep: bool) {
        let mut kept = self.kept();
        kept.statistics.in_use -= arena.asked as u64;
        if keep {
            kept.free.push(arena);
        } else {
            kept.lose(arena);
        }
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

    /// Whether there is a limit.
    pub(crate) fn is_limited(&self) -> bool {
        self.0.limit < u64::MAX
    }

    /// Those that the run on this thread uses; others if there is none.
    pub(crate) fn current() -> Self {
        CURRENT.with_borrow(|current| current.clone()).unwrap_or_default()
    }

    /// What runs on this thread within `body` uses these as well.
    pub(crate) fn during<R>(&self, body: impl FnOnce() -> R) -> R {
        struct Before(Option<Arenas>);
        impl Drop for Before {
            fn drop(&mut self) {
                CURRENT.set(self.0.take());
            }
        }
        let _before = Before(CURRENT.replace(Some(self.clone())));
        body()
    }
}

thread_local! {
    /// For graphs within nodes: what the run around them uses.
    static CURRENT: RefCell<Option<Arenas>> = const { RefCell::new(None) };
}

impl Kept {
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
}

impl Charge {
    pub(crate) fn new(arenas: &Arenas) -> Self {
        Self { arenas: arenas.clone(), bytes: 0 }
    }

    /// All that was counted, to be counted on elsewhere.
    pub(crate) fn take(&mut self) -> Self {
        Self { arenas: self.arenas.clone(), bytes: std::mem::take(&mut self.bytes) }
    }

    /// Counts so many more; an error, and no change, if that is beyond the limit.
    pub(crate) fn grow(&mut self, bytes: u64) -> Result<(), Error> {
        if bytes == 0 {
            return Ok(());
        }
        let mut kept = self.arenas.kept();
        kept.make_room(bytes, self.arenas.0.limit)?;
        kept.statistics.total_allocated += bytes;
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
        kept.statistics.total_allocated -= bytes;
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

    const SAME: ArenaExtendStrategy = ArenaExtendStrategy::SameAsRequested;

    #[test]
    fn one_arena_serves_those_who_come_in_turns() {
        let arenas = Arenas::new();
        for bytes in [1000, 500, 1000] {
            let arena = arenas.arena(bytes, SAME).expect("there is no limit");
            arenas.give_back(arena, true);
        }
        let statistics = arenas.statistics();
        assert_eq!((statistics.num_allocs, statistics.num_arena_extensions), (3, 1));
        assert_eq!((statistics.total_allocated, statistics.in_use, statistics.max_in_use), (1000, 0, 1000));
        arenas.release_memory();
        assert_eq!((arenas.statistics().total_allocated, arenas.statistics().num_arena_shrinkages), (0, 1));
    }

    #[test]
    fn a_larger_arena_takes_the_place_of_the_one_that_was_kept() {
        let arenas = Arenas::new();
        for bytes in [1000, 2000] {
            let arena = arenas.arena(bytes, SAME).expect("there is no limit");
            arenas.give_back(arena, true);
        }
        assert_eq!(arenas.statistics().total_allocated, 2000);
    }

    #[test]
    fn powers_of_two_serve_plans_that_are_a_little_larger() {
        let arenas = Arenas::with_max_mem(6000);
        for (bytes, total, extensions) in [(1100, 2048, 1), (1900, 2048, 1), (2100, 4096, 2), (5000, 5000, 3)]
        {
            let arena =
                arenas.arena(bytes, ArenaExtendStrategy::NextPowerOfTwo).expect("it is within the limit");
            arenas.give_back(arena, true);
            let statistics = arenas.statistics();
            assert_eq!((statistics.total_allocated, statistics.num_arena_extensions), (total, extensions));
        }
    }

    #[test]
    fn the_limit_holds_and_errors_cost_nothing() {
        let arenas = Arenas::with_max_mem(1000);
        let arena = arenas.arena(600, SAME).expect("it is within the limit");
        arenas.give_back(arena, true);
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

    #[test]
    fn runs_within_a_run_use_its_arenas() {
        let arenas = Arenas::with_max_mem(77);
        assert_eq!(arenas.during(|| Arenas::current().statistics().limit), 77);
        assert_eq!(Arenas::current().statistics().limit, u64::MAX);
    }
}
