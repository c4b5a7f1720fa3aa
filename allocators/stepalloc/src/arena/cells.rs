//! The arena cut at the edges of a plan's slots.
//!
//! A *cell* is what lies between two neighbouring edges. A slot is a run of cells, so a block in its slot takes and frees
//! cells only, and of these the states lie in one word for nearly all slots of a plan, in two for most others. Words are
//! begun at edges that few slots cross ([`Cut::of`]).
//!
//! A cell is *free*; or *whole*, one block in its slot has all of it; or *split*, and then the bits of its granules (see
//! [`crate::arena::granules`]) say what is taken. Free and whole change into each other by compare-and-swap alone. Cells are split,
//! and split ones made free again, under the arena's lock.
//!
//! Another plan has other cells. The old ones are *closed* then: what was whole is handed to the bits of its granules, all
//! cells are split and stay so. A thread that still claims by the old cells finds none that is free, and one that frees a
//! block in them finds that its granules' bits are what it has to clear. Then the memory of the old cells is given back to
//! the system; it reads as zeros, which is to say as split. Its addresses are never used again.

use crate::arena::granules::{Granules, Run};
use crate::os;
use crate::word::{Atomics, Core, Number, Word};
use core::mem::size_of;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering::*};

/// Cells whose states lie in one word.
pub(crate) const CELLS_A_WORD: u32 = 32;
/// Cells a word is given at least; fewer where no more are left.
const CELLS_A_WORD_MIN: u32 = 16;

/// The lower bit of every cell's state in a word. The states are: split 00, free 01, whole 10. A block's cells in one word
/// stay whole until it is freed, or the word is closed, that is 0.
const LOWER: u64 = 0x5555_5555_5555_5555;

/// The cells of one plan: this header, in the same mapping the states, then the edges.
#[repr(C, align(64))]
pub(crate) struct Cells<A: Atomics = Core> {
    /// Words of states.
    words: A::Fixed,
    /// Granules they cover.
    limit: A::Fixed,
    /// True once they are being closed. They stay in force like this in a child that was forked meanwhile.
    closing: A::Bool,
    /// Bytes of the mapping. Not read once they were closed.
    bytes: usize,
}

/// A planned block's place, worked out beforehand. All zeros where the plan leaves a block to the backend, and once the
/// plan was replaced; whoever reads it while that happens finds some zeros.
#[repr(C, align(64))]
pub(crate) struct Slot<A: Atomics = Core> {
    /// The first granule, and in the high half the number of granules.
    run: A::U64,
    /// The word in which its cells begin.
    word: A::Ptr<A::U64>,
    /// The lower bits of its cells in that word; 0 where they lie in more than two.
    first: A::U64,
    /// Those in the next word, if any.
    second: A::U64,
    /// The edge with which the next word begins.
    middle: A::Fixed,
    /// The number of the first cell in its word.
    start: A::Fixed,
    /// The number of cells.
    count: A::Fixed,
    /// [Lines](crate::arena::shift_lines) by which the block's start is moved.
    lines: A::Fixed,
    /// The edge with which the word begins, among all edges.
    edges: A::Ptr<A::Fixed>,
}

/// What blocks in gaps have.
pub(crate) static NO_SLOT: Slot = Slot {
    run: AtomicU64::new(0),
    word: AtomicPtr::new(ptr::null_mut()),
    first: AtomicU64::new(0),
    second: AtomicU64::new(0),
    middle: AtomicU32::new(0),
    start: AtomicU32::new(0),
    count: AtomicU32::new(0),
    lines: AtomicU32::new(0),
    edges: AtomicPtr::new(ptr::null_mut()),
};

/// A slot as it was read, whole.
struct Place<A: Atomics> {
    run: Run,
    words: *const A::U64,
    edges: *const A::Fixed,
    start: u32,
    end: u32,
}

/// What [`Slot::take_quickly`] took.
pub(crate) enum Taken<T, A: Atomics = Core> {
    /// All of the slot.
    All(T),
    /// The first of its two words. To be given back.
    Half(Half<A>),
    /// Nothing, because not all of it is free, or another thread changes a word just now.
    Nothing,
    /// Nothing, because its cells lie in more than two words, or there are none.
    Several,
}

/// A slot's cells of one word.
#[derive(Debug)]
pub(crate) struct Half<A: Atomics = Core> {
    pub(crate) word: *const A::U64,
    pub(crate) lower: u64,
    /// Their granules.
    pub(crate) run: Run,
}

impl<A: Atomics> PartialEq for Half<A> {
    fn eq(&self, other: &Self) -> bool {
        ptr::eq(self.word, other.word) && (self.lower, self.run) == (other.lower, other.run)
    }
}

impl<A: Atomics> Eq for Half<A> {}

impl<A: Atomics> Slot<A> {
    /// Cache lines by which the block's start is moved.
    #[inline(always)]
    pub(crate) fn lines(&self) -> u32 {
        self.lines.load(Relaxed)
    }

    /// Takes the slot's cells, if they lie in one word or two and all are free, in one attempt.
    #[inline(always)]
    pub(crate) fn take_quickly(&self) -> Taken<Run, A> {
        // In this order: whoever finds the first bits has found the rest.
        let run = self.run.load(Acquire);
        let word = self.word.load(Acquire);
        let second = self.second.load(Acquire);
        let middle = self.middle.load(Acquire);
        let first = self.first.load(Relaxed);
        if first == 0 {
            return Taken::Several;
        }
        // SAFETY: a word of states, in a mapping that is never undone.
        let word = unsafe { &*word };
        if !take::<A>(word, first) {
            return Taken::Nothing;
        }
        // SAFETY: as above; the second word follows the first.
        if second != 0 && !take::<A>(unsafe { &*ptr::from_ref(word).add(1) }, second) {
            let run = Run::between(Run::from_bits(run).start(), middle);
            return Taken::Half(Half { word, lower: first, run });
        }
        Taken::All(Run::from_bits(run))
    }

    /// Gives back the cells of a block in this slot, or clears the bits of its granules where they were handed to them;
    /// `run` is the block.
    #[inline(always)]
    pub(crate) fn give_back(&self, granules: &Granules<A>, run: Run) {
        // In this order, see `take_quickly`.
        let word = self.word.load(Acquire);
        let second = self.second.load(Acquire);
        let middle = self.middle.load(Acquire);
        let first = self.first.load(Relaxed);
        // SAFETY: a word of states, in a mapping that is never undone, if there are bits in it.
        if first == 0 || !give_back::<A>(unsafe { &*word }, first) {
            return self.give_back_slowly(granules, run);
        }
        if second != 0 {
            // SAFETY: as above; the second word follows the first.
            let word = unsafe { &*word.add(1) };
            if !give_back::<A>(word, second) {
                give_back_surely::<A>(word, second, Run::between(middle, run.end()), granules);
            }
        }
    }

    /// [`Slot::give_back`] in as many attempts as it needs.
    #[cold]
    #[inline(never)]
    fn give_back_slowly(&self, granules: &Granules<A>, run: Run) {
        match self.place() {
            Some(place) => place.give_back(granules),
            // There is no slot, or its cells were closed before it was.
            None => granules.clear(run),
        }
    }

    /// Takes the slot's cells if all of them are free.
    #[inline(always)]
    pub(crate) fn take(&self, granules: &Granules<A>) -> Option<Run> {
        let place = self.place()?;
        place.take(granules).then_some(place.run)
    }

    /// True if no cell of the slot is whole and no granule of it taken, at a glance: so that nobody waits for the lock to
    /// find a slot busy.
    pub(crate) fn seems_split(&self, granules: &Granules<A>) -> bool {
        self.place().is_some_and(|place| {
            let is_whole = |(word, lower, _): (&A::U64, u64, _)| word.load(Relaxed) & (2 * lower) != 0;
            !place.parts().any(is_whole) && granules.are_free(place.run)
        })
    }

    /// Writes the slot down.
    fn fill(&self, run: Run, lines: u32, cells: &Cells<A>, start: u32, end: u32) {
        self.lines.store(lines, Relaxed);
        let word = start / CELLS_A_WORD;
        let place = Place::<A> {
            run,
            words: cells.word(word),
            edges: cells.edge(word * CELLS_A_WORD),
            start: start % CELLS_A_WORD,
            end: end - word * CELLS_A_WORD,
        };
        self.run.store(run.to_bits(), Relaxed);
        self.word.store(place.words.cast_mut(), Relaxed);
        self.edges.store(place.edges.cast_mut(), Relaxed);
        self.start.store(place.start, Relaxed);
        self.count.store(place.end - place.start, Relaxed);
        let mut parts = place.parts();
        if let (Some((_, first, middle)), second, None) = (parts.next(), parts.next(), parts.next()) {
            self.first.store(first, Relaxed);
            self.middle.store(middle, Relaxed);
            self.second.store(second.map_or(0, |(_, second, _)| second), Relaxed);
        }
    }

    /// The slot, if it can be read whole.
    #[inline(always)]
    fn place(&self) -> Option<Place<A>> {
        // In this order: whoever finds cells has found the rest.
        let run = Run::from_bits(self.run.load(Acquire));
        let words = self.word.load(Acquire);
        let edges = self.edges.load(Acquire);
        let start = self.start.load(Acquire);
        let count = self.count.load(Relaxed);
        (count != 0).then_some(Place { run, words, edges, start, end: start + count })
    }

    /// True where the plan leaves the block to the backend, or was replaced.
    pub(crate) fn is_none(&self) -> bool {
        self.run.load(Relaxed) == 0
    }
}

impl<A: Atomics> Place<A> {
    /// The words in which the cells lie, with the lower bits of the cells in each, and the granule with which the next
    /// one begins: read before the word is reached, and 0 where the cells were closed.
    #[inline(always)]
    fn parts(&self) -> impl Iterator<Item = (&A::U64, u64, u32)> {
        let (mut word, mut edges, mut rest) = (self.words, self.edges, self.end);
        let mut lower = LOWER << (2 * self.start);
        core::iter::from_fn(move || {
            // SAFETY: one of the words of states, if there is a rest, and with it the edge of the next word, if there is
            // more: in a mapping that is never undone.
            unsafe {
                let this = word;
                let part = if rest > CELLS_A_WORD {
                    (lower, (*edges.add(CELLS_A_WORD as usize)).load(Acquire))
                } else if rest != 0 {
                    (lower & LOWER >> (2 * (CELLS_A_WORD - rest)), self.run.end())
                } else {
                    return None;
                };
                rest -= rest.min(CELLS_A_WORD);
                (word, edges, lower) =
                    (word.wrapping_add(1), edges.wrapping_add(CELLS_A_WORD as usize), LOWER);
                Some((&*this, part.0, part.1))
            }
        })
    }

    #[inline(always)]
    fn take(&self, granules: &Granules<A>) -> bool {
        let mut at = self.run.start();
        for (word, lower, next) in self.parts() {
            if next == 0 || !(take::<A>(word, lower) || take_surely::<A>(word, lower)) {
                self.undo(granules, at);
                return false;
            }
            at = next;
        }
        true
    }

    /// Gives back the cells before granule `end`.
    #[cold]
    #[inline(never)]
    fn undo(&self, granules: &Granules<A>, end: u32) {
        let part = Self { run: Run::between(self.run.start(), end), ..*self };
        part.give_back(granules);
    }

    /// Gives back the cells up to the end of the run, at which a word ends, or the slot.
    #[inline(always)]
    fn give_back(&self, granules: &Granules<A>) {
        let mut at = self.run.start();
        for (word, lower, next) in self.parts() {
            if at == self.run.end() {
                break;
            }
            if next == 0 {
                // Closed, all of them: what is left to give back is in the granules' bits.
                return granules.clear(Run::between(at, self.run.end()));
            }
            if !give_back::<A>(word, lower) {
                give_back_surely::<A>(word, lower, Run::between(at, next), granules);
            }
            at = next;
        }
    }
}

/// Makes free cells of a word whole; `false`, and nothing done, where one is not free, or another thread changes the word
/// just now.
#[inline(always)]
fn take<A: Atomics>(word: &A::U64, lower: u64) -> bool {
    let seen = word.load(Relaxed);
    !seen & lower == 0 && word.compare_exchange(seen, seen + lower, Acquire, Relaxed).is_ok()
}

/// Makes free cells of a word whole; `false`, and nothing done, where one is not free.
#[cold]
#[inline(never)]
fn take_surely<A: Atomics>(word: &A::U64, lower: u64) -> bool {
    word.fetch_update(Acquire, Relaxed, |seen| (!seen & lower == 0).then(|| seen + lower)).is_ok()
}

/// Makes a block's cells of a word free; `false`, and nothing done, where they were closed, or another thread changes the
/// word just now.
#[inline(always)]
fn give_back<A: Atomics>(word: &A::U64, lower: u64) -> bool {
    let seen = word.load(Relaxed);
    seen != 0 && word.compare_exchange(seen, seen - lower, Release, Relaxed).is_ok()
}

/// Makes a block's cells of a word free, or clears the bits of their granules, which are `run`, where they were closed.
#[cold]
#[inline(never)]
pub(crate) fn give_back_surely<A: Atomics>(word: &A::U64, lower: u64, run: Run, granules: &Granules<A>) {
    let free = |seen: u64| {
        debug_assert!(seen == 0 || !seen & (2 * lower) == 0, "{seen:x} {lower:x}");
        (seen != 0).then(|| seen - lower)
    };
    if word.fetch_update(Release, Acquire, free).is_err() {
        granules.clear(run);
    }
}

/// The state of a cell.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Split,
    Whole,
    Free,
}

impl State {
    /// That of a cell's two bits.
    fn of(bits: u64) -> Self {
        match bits {
            0 => Self::Split,
            1 => Self::Free,
            _ => Self::Whole,
        }
    }
}

impl Cells {
    /// Makes the cells, all split, and writes down the slots of the runs that were cut, each with its lines; `None` where the system has no
    /// memory for them.
    pub(crate) fn map<'a>(
        cut: &Cut,
        slots: impl Iterator<Item = (&'a Slot, Run, u32)>,
    ) -> Option<&'static Self> {
        let words = cut.edges.len() / CELLS_A_WORD as usize;
        let limit = *cut.edges.last()?;
        let bytes = size_of::<Self>() + words * size_of::<u64>() + size_of_val(&cut.edges[..]);
        // Whole pages, so that all of them can be given back.
        let bytes = bytes.next_multiple_of(os::PAGE);
        let map: *mut Self = os::map_resident(bytes)?.cast();
        // SAFETY: a fresh mapping that is large enough and aligned to a page; zeros are valid words and edges.
        let cells = unsafe {
            map.write(Self {
                words: AtomicU32::new(words as u32),
                limit: AtomicU32::new(limit),
                closing: AtomicBool::new(false),
                bytes,
            });
            &*map
        };
        cells.write(cut, slots);
        Some(cells)
    }

    /// Undoes [`Cells::map`].
    ///
    /// # Safety
    /// No other thread has their address, nor a slot of theirs.
    pub(crate) unsafe fn unmap(&'static self) {
        // SAFETY: the caller's promise.
        unsafe { os::unmap(ptr::from_ref(self).cast_mut().cast(), self.bytes) };
    }
}

impl<A: Atomics> Cells<A> {
    /// Writes down the edges, and the slots of the runs.
    fn write<'a>(&self, cut: &Cut, slots: impl Iterator<Item = (&'a Slot<A>, Run, u32)>) {
        for (index, &edge) in (0..).zip(&cut.edges) {
            self.edge(index).store(edge, Relaxed);
        }
        for ((slot, run, lines), &(start, end)) in slots.zip(&cut.runs) {
            slot.fill(run, lines, self, start, end);
        }
    }

    /// Granules they cover.
    pub(crate) fn limit(&self) -> u32 {
        self.limit.load(Relaxed)
    }

    fn word(&self, index: u32) -> &A::U64 {
        // SAFETY: the words of states follow the header; callers pass one of them.
        unsafe { &*ptr::from_ref(self).add(1).cast::<A::U64>().add(index as usize) }
    }

    /// The granule with which a cell begins.
    fn edge(&self, cell: u32) -> &A::Fixed {
        let words = self.words.load(Relaxed) as usize;
        // SAFETY: the edges follow the words, one more than cells. Callers pass one of them; where the header reads as 0
        // already, what lies there instead is in the mapping too.
        unsafe {
            &*ptr::from_ref(self).add(1).cast::<A::U64>().add(words).cast::<A::Fixed>().add(cell as usize)
        }
    }

    fn run(&self, cell: u32) -> Run {
        Run::between(self.edge(cell).load(Relaxed), self.edge(cell + 1).load(Relaxed))
    }

    fn state(&self, cell: u32) -> State {
        let word = self.word(cell / CELLS_A_WORD).load(Acquire);
        State::of(word >> (2 * (cell % CELLS_A_WORD)) & 3)
    }

    /// All cells that are not empty.
    fn all(&self) -> impl Iterator<Item = (u32, Run)> {
        let cells = self.words.load(Relaxed) * CELLS_A_WORD;
        (0..cells).map(|cell| (cell, self.run(cell))).filter(|(_, run)| run.length() != 0)
    }

    /// The cells that a run that is not empty lies in.
    fn under(&self, run: Run) -> impl Iterator<Item = u32> {
        // The last cell that begins at the run's start or before it; binary search.
        let (mut low, mut high) = (0, self.words.load(Relaxed) * CELLS_A_WORD);
        while high - low > 1 {
            let middle = low.midpoint(high);
            if self.edge(middle).load(Relaxed) <= run.start() { low = middle } else { high = middle }
        }
        (low..).take_while(move |&cell| self.edge(cell).load(Relaxed) < run.end())
    }

    /// Makes cells free where nothing is taken of their granules; all others stay split. Before anybody else knows these
    /// cells, and when those before them are closed.
    pub(crate) fn open(&self, granules: &Granules<A>) {
        for index in 0..self.words.load(Relaxed) {
            let cells = index * CELLS_A_WORD..(index + 1) * CELLS_A_WORD;
            let free = |&cell: &u32| granules.are_free(self.run(cell));
            let states = cells.filter(free).map(|cell| 1 << (2 * (cell % CELLS_A_WORD))).sum();
            self.word(index).store(states, Relaxed);
        }
    }

    /// Hands what is whole to its granules' bits and splits all cells for good. Under the arena's lock.
    pub(crate) fn close(&self, granules: &Granules<A>) {
        self.closing.store(true, Release);
        (0..self.words.load(Relaxed)).for_each(|index| self.close_word(index, granules));
    }

    /// A step of [`Cells::close`].
    pub(crate) fn close_word(&self, index: u32, granules: &Granules<A>) {
        let word = self.word(index);
        loop {
            // What is free is split first: what is freed and claimed over and over would keep this loop busy.
            let seen = word.fetch_and(!LOWER, AcqRel) & !LOWER;
            let is_whole = |cell: &u32| seen >> (2 * cell) & 2 != 0;
            let whole =
                || (0..CELLS_A_WORD).filter(is_whole).map(|cell| self.run(index * CELLS_A_WORD + cell));
            // Bits first: whoever frees a block and finds its cells closed clears them.
            whole().for_each(|run| granules.take(run));
            if word.compare_exchange(seen, 0, AcqRel, Relaxed).is_ok() {
                break;
            }
            // Bits of a whole cell are this thread's alone.
            whole().for_each(|run| granules.clear(run));
        }
    }

    /// Gives the memory of closed cells back to the system.
    pub(crate) fn discard(&'static self) {
        // SAFETY: a mapping of ours, in which readers find their way when all or part of it is zeros.
        unsafe { A::discard_shared(ptr::from_ref(self).cast_mut().cast(), self.bytes) };
    }

    /// Makes the split cells of a slot free if nothing is taken of their granules; `true` if all of the slot's cells are
    /// free then. Under the arena's lock.
    pub(crate) fn unite(&self, slot: &Slot<A>, granules: &Granules<A>) -> bool {
        let Some(place) = slot.place() else { return false };
        // Closed cells stay split: those of another plan, and these, if a fork found them half closed.
        let words = ptr::from_ref(self.word(0))..self.word(self.words.load(Relaxed));
        if !words.contains(&place.words) || self.closing.load(Relaxed) {
            return false;
        }
        self.under(place.run).all(|cell| match self.state(cell) {
            State::Free => true,
            State::Whole => false,
            State::Split if granules.are_free(self.run(cell)) => {
                self.word(cell / CELLS_A_WORD).fetch_or(1 << (2 * (cell % CELLS_A_WORD)), Release);
                true
            }
            State::Split => false,
        })
    }

    /// Splits the cells that a run lies in; `false` if one is whole. Under the arena's lock.
    pub(crate) fn split(&self, run: Run) -> bool {
        // Empty cells belong to slots that end there, and have no granules.
        let mut cells = self.under(run).filter(|&cell| self.run(cell).length() != 0);
        cells.all(|cell| {
            let free = 1 << (2 * (cell % CELLS_A_WORD));
            let split = |seen: u64| (seen & free != 0).then(|| seen - free);
            let word = self.word(cell / CELLS_A_WORD);
            word.fetch_update(Acquire, Acquire, split).is_ok() || self.state(cell) == State::Split
        })
    }

    /// Calls `found` with each longest run of free granules that has at least `least`, and with some that have fewer.
    pub(crate) fn free_runs(&self, granules: &Granules<A>, least: u32, mut found: impl FnMut(Run)) {
        let mut free = Run::new(0, 0);
        let mut piece = |from: u32, to: u32| {
            if free.end() != from {
                if free.length() != 0 {
                    found(free);
                }
                free = Run::new(from, 0);
            }
            free = Run::between(free.start(), to);
        };
        for index in 0..self.words.load(Relaxed) {
            let word = self.word(index).load(Acquire);
            let mut cell = 0;
            while cell < CELLS_A_WORD {
                // All cells of a word that have the same state are one step, for this is asked for each block in a gap.
                let state = word >> (2 * cell) & 3;
                let others = (word ^ (LOWER * state)) >> (2 * cell);
                let next = CELLS_A_WORD.min(cell + others.trailing_zeros() / 2);
                let edge = |cell: u32| self.edge(index * CELLS_A_WORD + cell).load(Relaxed);
                match State::of(state) {
                    State::Whole => {}
                    State::Free => piece(edge(cell), edge(next)),
                    State::Split => {
                        granules.free_pieces(Run::between(edge(cell), edge(next)), least, &mut piece)
                    }
                }
                cell = next;
            }
        }
        // An empty piece beyond all others ends the last one.
        piece(u32::MAX, u32::MAX);
    }

    /// Calls `found` with each longest run of cells that are free, and stay so until it returns: they are split for as long. Then with what is
    /// free of split cells between them, in pieces of at least `least` granules: nobody is given any of that without the lock.
    /// Under the arena's lock.
    pub(crate) fn while_free(&self, granules: &Granules<A>, least: u32, mut found: impl FnMut(Run)) {
        if self.closing.load(Relaxed) {
            return;
        }
        let cells = self.words.load(Relaxed) * CELLS_A_WORD;
        let bit = |cell: u32| 1 << (2 * (cell % CELLS_A_WORD));
        let hold = |cell: u32| {
            let split = |seen: u64| (seen & bit(cell) != 0).then(|| seen - bit(cell));
            let run = self.run(cell);
            run.length() == 0
                || self.word(cell / CELLS_A_WORD).fetch_update(Acquire, Relaxed, split).is_ok()
                || self.state(cell) == State::Split && granules.are_free(run)
        };
        let mut first = 0;
        for cell in 0..=cells {
            if cell < cells && hold(cell) {
                continue;
            }
            let run = Run::between(self.edge(first).load(Relaxed), self.edge(cell).load(Relaxed));
            if run.length() != 0 {
                found(run);
            }
            for held in (first..cell).filter(|&held| self.run(held).length() != 0) {
                self.word(held / CELLS_A_WORD).fetch_or(bit(held), Release);
            }
            if cell < cells && self.state(cell) == State::Split {
                granules.free_pieces(self.run(cell), least, |from, to| {
                    if to - from >= least {
                        found(Run::between(from, to));
                    }
                });
            }
            first = cell + 1;
        }
    }

    /// Granules that are taken.
    pub(crate) fn occupied(&self, granules: &Granules<A>) -> u64 {
        let taken = |(cell, run): (u32, Run)| match self.state(cell) {
            State::Free => 0,
            State::Whole => u64::from(run.length()),
            State::Split => granules.count(run),
        };
        self.all().map(taken).sum()
    }
}

/// Edges and words of cells yet to be made.
pub(crate) struct Cut {
    /// The granule with which each cell begins, and the limit. All words are full, with empty cells where need be.
    edges: Vec<u32>,
    /// The first cell of each run, and the one after its last.
    runs: Vec<(u32, u32)>,
}

impl Cut {
    /// Cuts the granules below `limit` at both ends of each run; runs end at the limit or below.
    pub(crate) fn of(runs: &[Run], limit: u32) -> Self {
        // Ends before starts where both are at the same granule; the number is that of the run.
        const START: u64 = 1 << 31;
        let point = |granule: u32, rest: u64| u64::from(granule) << 32 | rest;
        let mut points = Vec::with_capacity(2 * runs.len());
        for (number, run) in (0..).zip(runs) {
            points.push(point(run.start(), START | number));
            points.push(point(run.start() + run.length(), number));
        }
        points.sort_unstable();
        // Each edge, and how many runs cross it.
        let mut edges: Vec<(u32, u32)> = vec![(0, 0)];
        let mut ordinals = vec![(0, 0); runs.len()];
        let mut open = 0;
        for point in points {
            let (granule, number) = ((point >> 32) as u32, (point & (START - 1)) as usize);
            if edges.last().is_some_and(|&(last, _)| last != granule) {
                edges.push((granule, open));
            }
            let edge = edges.len() - 1;
            if point & START == 0 {
                open -= 1;
                edges[edge].1 = open;
                ordinals[number].1 = edge;
            } else {
                open += 1;
                ordinals[number].0 = edge;
            }
        }
        if edges.last().is_some_and(|&(last, _)| last != limit) {
            edges.push((limit, 0));
        }
        let mut cut =
            Self { edges: Vec::with_capacity(2 * edges.len()), runs: Vec::with_capacity(runs.len()) };
        let numbers = cut.fill_words(&edges);
        cut.runs.extend(ordinals.iter().map(|&(start, end)| (numbers[start], numbers[end])));
        cut
    }

    /// Deals the cells out to words, and returns the number that each edge gets.
    fn fill_words(&mut self, edges: &[(u32, u32)]) -> Vec<u32> {
        let mut numbers = Vec::with_capacity(edges.len());
        let mut rest = edges;
        while rest.len() > CELLS_A_WORD as usize + 1 {
            let begin = (CELLS_A_WORD_MIN..=CELLS_A_WORD)
                .rev()
                .min_by_key(|&edge| rest[edge as usize].1)
                .unwrap_or(CELLS_A_WORD) as usize;
            numbers.extend((self.edges.len() as u32..).take(begin));
            self.edges.extend(rest[..begin].iter().map(|edge| edge.0));
            self.end_word(rest[begin].0);
            rest = &rest[begin..];
        }
        numbers.extend((self.edges.len() as u32..).take(rest.len()));
        if let Some((&(limit, _), begins)) = rest.split_last() {
            self.edges.extend(begins.iter().map(|edge| edge.0));
            self.end_word(limit);
            self.edges.push(limit);
        }
        numbers
    }

    /// Fills a word with empty cells.
    fn end_word(&mut self, edge: u32) {
        self.edges.resize(self.edges.len().next_multiple_of(CELLS_A_WORD as usize), edge);
    }
}

#[cfg(test)]
impl Cut {
    /// In how many words each run has its cells.
    pub(crate) fn words(&self) -> impl Iterator<Item = u32> {
        self.runs.iter().map(|&(start, end)| (end - 1) / CELLS_A_WORD - start / CELLS_A_WORD + 1)
    }
}

/// Puts cells in force in a test's arena, up to `limit` granules, and returns the slots of these runs.
#[cfg(test)]
pub(crate) fn tests_slots(arena: &crate::arena::Arena, limit: u32, runs: &[Run]) -> &'static [Slot] {
    let map: *const Slot = os::map((runs.len() + 1) * size_of::<Slot>()).expect("memory").cast();
    // SAFETY: a fresh mapping for as many slots, which stays; zeros are valid ones.
    let slots = unsafe { core::slice::from_raw_parts(map, runs.len()) };
    let cells = Cells::map(&Cut::of(runs, limit), slots.iter().zip(runs).map(|(slot, &run)| (slot, run, 0)));
    assert!(arena.exchange(cells.expect("memory")));
    slots
}

#[cfg(test)]
mod models;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_run_is_a_run_of_cells(runs in prop::collection::vec((0u32..2000, 1u32..300), 0..400)) {
            let runs: Vec<_> = runs.iter().map(|&(start, length)| Run::new(start, length)).collect();
            let cut = Cut::of(&runs, 2500);
            prop_assert_eq!(cut.edges.len() % CELLS_A_WORD as usize, 1);
            prop_assert!(cut.edges.is_sorted());
            prop_assert_eq!((cut.edges[0], cut.edges[cut.edges.len() - 1]), (0, 2500));
            for (run, &(start, end)) in runs.iter().zip(&cut.runs) {
                prop_assert_eq!(cut.edges[start as usize], run.start());
                prop_assert_eq!(cut.edges[end as usize], run.end());
                // No empty cell at the beginning, which would be the word's before.
                prop_assert!(cut.edges[start as usize + 1] > run.start());
            }
        }
    }

    #[test]
    fn words_begin_where_few_runs_cross() {
        // 100 single granules, and a run across each edge but every twentieth.
        let mut runs: Vec<_> = (0..100).map(|granule| Run::new(granule, 1)).collect();
        runs.extend((1..100).filter(|edge| edge % 20 != 0).map(|edge| Run::new(edge - 1, 2)));
        let cut = Cut::of(&runs, 100);
        assert_eq!(cut.edges.len(), 5 * 32 + 1);
        for &(start, end) in &cut.runs {
            assert_eq!(start / CELLS_A_WORD, (end - 1) / CELLS_A_WORD);
        }
    }
}
