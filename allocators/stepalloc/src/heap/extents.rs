//! The free extents of the large heap: runs of pages, sorted by address, neighbours always joined.
//!
//! Programs have few of them (at most 45 in any recorded training or inference), so a flat table that is scanned beats trees: leaves of 64
//! runs, and for each leaf its first page and its longest run. Where they are many, only leaves whose longest run suffices are looked into.
//!
//! **Placement**: a run that exceeds the request by at most an eighth, the closest of them; else the lowest address among runs shorter
//! than 64 requests; else the lowest. Of seventeen rules simulated on sixteen recorded traces this one needs the fewest pages, 1.039 times
//! what is alive (best fit 1.050, first fit 1.057, next fit 1.115, buddy 1.221). The orders of jemalloc (oldest and lowest, long runs last)
//! and of tcmalloc's regions (lowest address) are its neighbours.
//!
//! Of each run it is known how many of its pages may be resident, so that a block can be placed where most are ([`Extents::most_resident`]).
//!
//! Plain numbers only: it knows of no address and makes no system call. Which pages may be resident its callers tell, the same for a page as
//! long as that is free.

/// Runs of a leaf.
const LEAF: usize = 64;
/// Leaves at most: with leaves half full, half a million free runs.
const LEAVES: usize = 1 << 14;
/// A run fits closely if it exceeds the request by at most one part in this many.
const CLOSE: u32 = 8;
/// A run this many times the request is taken only where no shorter one is free.
const LONG: u32 = 64;
/// Leaves with a long enough run that are scanned for a close fit, and for resident pages: fewer where that is done for most blocks.
const SCANNED: usize = 4;
const SCANNED_FOR_PAGES: usize = 16;

/// Ranks of runs that do not fit closely. A close fit's is the number of pages that it is too long.
const LOOSE: i32 = i32::MAX - 2;
const TOO_LONG: i32 = i32::MAX - 1;
const UNFIT: i32 = i32::MAX;

/// How well a run of `length` fits `pages`, the lower the better. Without a branch: no processor foretells it.
#[inline(always)]
fn rank(length: u32, pages: u32) -> i32 {
    let rank = if length / LONG < pages { LOOSE } else { TOO_LONG };
    // Less than nothing where it does not fit; pages are fewer than 2^31.
    let excess = length as i32 - pages as i32;
    let rank = if excess <= (pages / CLOSE) as i32 { excess } else { rank };
    if excess < 0 { UNFIT } else { rank }
}

/// A run of pages of the heap, by the number of its first page.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Extent {
    pub(super) start: u32,
    pub(super) pages: u32,
}

impl Extent {
    pub(super) const fn new(start: u32, pages: u32) -> Self {
        Self { start, pages }
    }

    pub(super) fn end(self) -> u32 {
        self.start + self.pages
    }
}

/// Runs in ascending order.
#[repr(C)]
struct Leaf {
    starts: [u32; LEAF],
    pages: [u32; LEAF],
    /// Of these, may be resident.
    resident: [u32; LEAF],
    /// Runs in use; in a leaf that is free, the number of the next free leaf, plus 1.
    count: u32,
}

impl Leaf {
    fn extent(&self, at: usize) -> Extent {
        Extent::new(self.starts[at], self.pages[at])
    }

    fn run(&self, at: usize) -> Run {
        Run { extent: self.extent(at), resident: self.resident[at] }
    }

    fn lengths(&self) -> &[u32] {
        &self.pages[..self.count as usize]
    }

    fn set(&mut self, at: usize, Run { extent, resident }: Run) {
        (self.starts[at], self.pages[at], self.resident[at]) = (extent.start, extent.pages, resident);
    }

    fn longest(&self) -> u32 {
        self.lengths().iter().fold(0, |longest, &pages| longest.max(pages))
    }

    fn insert(&mut self, at: usize, run: Run) {
        let count = self.count as usize;
        self.starts.copy_within(at..count, at + 1);
        self.pages.copy_within(at..count, at + 1);
        self.resident.copy_within(at..count, at + 1);
        self.set(at, run);
        self.count += 1;
    }

    fn remove(&mut self, at: usize) {
        let count = self.count as usize;
        self.starts.copy_within(at + 1..count, at);
        self.pages.copy_within(at + 1..count, at);
        self.resident.copy_within(at + 1..count, at);
        self.count -= 1;
    }
}

/// A free extent, and how many of its pages may be resident.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Run {
    pub(super) extent: Extent,
    pub(super) resident: u32,
}

/// Where a run stands: the place of its leaf in the order, and its place in the leaf.
type Place = (usize, usize);

/// The free extents. All zeros are an empty table, so that it may lie in fresh pages.
#[repr(C)]
pub(super) struct Extents {
    /// Leaves in use.
    count: usize,
    /// Leaves that were ever in use.
    used: usize,
    /// The first free leaf among these, plus 1; 0 for none.
    free: u32,
    /// First page of each leaf, in order.
    firsts: [u32; LEAVES],
    /// Pages of the longest run of each leaf, in order.
    longest: [u32; LEAVES],
    /// Number of each leaf, in order.
    order: [u16; LEAVES],
    leaves: [Leaf; LEAVES],
}

impl Extents {
    fn leaf(&self, at: usize) -> &Leaf {
        &self.leaves[self.order[at] as usize]
    }

    fn leaf_mut(&mut self, at: usize) -> &mut Leaf {
        &mut self.leaves[self.order[at] as usize]
    }

    fn extent(&self, (at, index): Place) -> Extent {
        self.leaf(at).extent(index)
    }

    fn run(&self, (at, index): Place) -> Run {
        self.leaf(at).run(index)
    }

    /// Brings the summary of a leaf up to date.
    fn refresh(&mut self, at: usize) {
        (self.firsts[at], self.longest[at]) = (self.leaf(at).starts[0], self.leaf(at).longest());
    }

    /// Where a run that begins at `start` belongs: behind all that begin before it.
    fn locate(&self, start: u32) -> Place {
        let at = self.firsts[..self.count].partition_point(|&first| first < start).saturating_sub(1);
        if self.count == 0 {
            return (0, 0);
        }
        let leaf = self.leaf(at);
        (at, leaf.starts[..leaf.count as usize].partition_point(|&first| first < start))
    }

    /// The run at or behind a place.
    fn at_or_after(&self, (at, index): Place) -> Option<Place> {
        match self.count.checked_sub(at + 1)? {
            _ if index < self.leaf(at).count as usize => Some((at, index)),
            0 => None,
            _ => Some((at + 1, 0)),
        }
    }

    /// Adds an empty leaf at a place in the order; `false` where there is none left.
    fn add_leaf(&mut self, at: usize) -> bool {
        let number = match self.free {
            0 if self.used == LEAVES => return false,
            0 => {
                self.used += 1;
                self.used - 1
            }
            next => {
                let number = next as usize - 1;
                self.free = self.leaves[number].count;
                number
            }
        };
        self.leaves[number].count = 0;
        let count = self.count;
        self.firsts.copy_within(at..count, at + 1);
        self.longest.copy_within(at..count, at + 1);
        self.order.copy_within(at..count, at + 1);
        self.order[at] = number as u16;
        self.count += 1;
        true
    }

    /// Makes room in a full leaf by moving its upper half to a new one.
    fn split(&mut self, at: usize) -> bool {
        if !self.add_leaf(at + 1) {
            return false;
        }
        for index in LEAF / 2..LEAF {
            let run = self.run((at, index));
            self.leaf_mut(at + 1).insert(index - LEAF / 2, run);
        }
        self.leaf_mut(at).count = (LEAF / 2) as u32;
        self.refresh(at);
        self.refresh(at + 1);
        true
    }

    fn insert_at(&mut self, (mut at, mut index): Place, run: Run) -> bool {
        if self.count == 0 && !self.add_leaf(0) {
            return false;
        }
        if self.leaf(at).count as usize == LEAF {
            if !self.split(at) {
                return false;
            }
            if index > LEAF / 2 {
                (at, index) = (at + 1, index - LEAF / 2);
            }
        }
        self.leaf_mut(at).insert(index, run);
        self.refresh(at);
        true
    }

    fn remove_at(&mut self, (at, index): Place) {
        self.leaf_mut(at).remove(index);
        if self.leaf(at).count > 0 {
            return self.refresh(at);
        }
        let number = self.order[at];
        self.leaves[number as usize].count = self.free;
        self.free = u32::from(number) + 1;
        let count = self.count;
        self.firsts.copy_within(at + 1..count, at);
        self.longest.copy_within(at + 1..count, at);
        self.order.copy_within(at + 1..count, at);
        self.count -= 1;
    }

    fn set_at(&mut self, (at, index): Place, run: Run) {
        let before = self.leaf(at).pages[index];
        self.leaf_mut(at).set(index, run);
        self.firsts[at] = self.leaf(at).starts[0];
        if run.extent.pages >= self.longest[at] {
            self.longest[at] = run.extent.pages;
        } else if before == self.longest[at] {
            self.longest[at] = self.leaf(at).longest();
        }
    }

    /// Adds a run, joined with its free neighbours; `false` where the table is full, and the run is lost.
    pub(super) fn insert(&mut self, run: Run) -> bool {
        let extent = run.extent;
        let place @ (at, index) = self.locate(extent.start);
        let before = index.checked_sub(1).map(|index| (at, index));
        let before = before.filter(|&place| self.extent(place).end() == extent.start);
        let after = self.at_or_after(place).filter(|&place| self.extent(place).start == extent.end());
        let joined = |before: Run, after: Run| Run {
            extent: Extent::new(before.extent.start, before.extent.pages + after.extent.pages),
            resident: before.resident + after.resident,
        };
        match (before, after) {
            (Some(before), Some(after)) => {
                self.set_at(before, joined(joined(self.run(before), run), self.run(after)));
                self.remove_at(after);
                true
            }
            (Some(before), None) => {
                self.set_at(before, joined(self.run(before), run));
                true
            }
            (None, Some(after)) => {
                self.set_at(after, joined(run, self.run(after)));
                true
            }
            (None, None) => self.insert_at(place, run),
        }
    }

    /// Takes a part out of the run at a place.
    fn cut(&mut self, place: Place, part: Extent, resident: impl Fn(Extent) -> u32) {
        let Run { extent: run, resident: all } = self.run(place);
        // Most runs are resident as a whole, or not at all.
        let of = |part: Extent| match all {
            0 => 0,
            _ if all == run.pages => part.pages,
            _ => resident(part),
        };
        let (head, tail) =
            (Extent::new(run.start, part.start - run.start), Extent::new(part.end(), run.end() - part.end()));
        let (at, index) = place;
        match (head.pages, tail.pages) {
            (0, 0) => self.remove_at(place),
            (0, _) => self.set_at(place, Run { extent: tail, resident: all - of(part) }),
            (_, 0) => self.set_at(place, Run { extent: head, resident: all - of(part) }),
            _ => {
                let before = of(head);
                let tail = Run { extent: tail, resident: all - before - of(part) };
                self.set_at(place, Run { extent: head, resident: before });
                // Where the table is full, the tail is lost.
                self.insert_at((at, index + 1), tail);
            }
        }
    }

    /// Takes `pages` by the rule above; `None` where no run is long enough.
    pub(super) fn take(&mut self, pages: u32, resident: impl Fn(Extent) -> u32) -> Option<u32> {
        let (mut best, mut found, mut scanned) = (UNFIT, 0, 0);
        for at in 0..self.count {
            if self.longest[at] < pages {
                continue;
            }
            let ranks = self.leaf(at).lengths().iter().map(|&length| rank(length, pages));
            let rank = ranks.min().unwrap_or(UNFIT);
            if rank < best {
                (best, found) = (rank, at);
            }
            scanned += 1;
            if scanned == SCANNED || best == 0 {
                break;
            }
        }
        if best == UNFIT {
            return None;
        }
        let index = self.leaf(found).lengths().iter().position(|&length| rank(length, pages) == best)?;
        let place = (found, index);
        let start = self.extent(place).start;
        self.cut(place, Extent::new(start, pages), resident);
        Some(start)
    }

    /// Of the runs that hold `pages`, the one that could give a block most resident pages; of several, the shortest.
    pub(super) fn most_resident(&self, pages: u32) -> Option<Run> {
        let mut best = (0, UNFIT, None);
        for at in (0..self.count).filter(|&at| self.longest[at] >= pages).take(SCANNED_FOR_PAGES) {
            let leaf = self.leaf(at);
            for (index, &length) in leaf.lengths().iter().enumerate() {
                let resident = leaf.resident[index].min(pages);
                if length >= pages && (resident, -(length as i32)) > (best.0, -best.1) {
                    best = (resident, length as i32, Some(leaf.run(index)));
                }
            }
        }
        best.2
    }

    /// Takes `pages` at the lowest page of which `page + base` is a multiple of `align`, a power of two.
    pub(super) fn take_aligned(
        &mut self,
        pages: u32,
        align: u64,
        base: u64,
        resident: impl Fn(Extent) -> u32,
    ) -> Option<u32> {
        for at in 0..self.count {
            if self.longest[at] < pages {
                continue;
            }
            for index in 0..self.leaf(at).count as usize {
                let run = self.extent((at, index));
                let start = (base + u64::from(run.start)).next_multiple_of(align) - base;
                if start + u64::from(pages) <= u64::from(run.end()) {
                    self.cut((at, index), Extent::new(start as u32, pages), resident);
                    return Some(start as u32);
                }
            }
        }
        None
    }

    /// Takes an extent that begins where a run begins; `false` where none does, or one that is shorter.
    pub(super) fn take_at(&mut self, extent: Extent, resident: impl Fn(Extent) -> u32) -> bool {
        let place = self.at_or_after(self.locate(extent.start));
        let found = place.filter(|&place| {
            let run = self.extent(place);
            run.start == extent.start && run.pages >= extent.pages
        });
        found.map(|place| self.cut(place, extent, resident)).is_some()
    }

    /// Takes the part of a free run that is given, which lies in one.
    pub(super) fn take_part(&mut self, part: Extent, resident: impl Fn(Extent) -> u32) {
        let (at, index) = self.locate(part.start + 1);
        if let Some(index) = index.checked_sub(1) {
            let run = self.extent((at, index));
            debug_assert!(run.start <= part.start && part.end() <= run.end());
            self.cut((at, index), part, resident);
        }
    }

    /// Takes the run that ends with `end`, if one does.
    pub(super) fn take_last(&mut self, end: u32) -> Option<Run> {
        let place = (self.count.checked_sub(1)?, self.leaf(self.count - 1).count as usize - 1);
        let run = self.run(place);
        (run.extent.end() == end).then(|| {
            self.remove_at(place);
            run
        })
    }

    /// The last run that begins before a page.
    pub(super) fn last_before(&self, page: u32) -> Option<Extent> {
        let (at, index) = self.locate(page);
        Some(self.extent((at, index.checked_sub(1)?)))
    }

    /// The runs of at least `least` pages, the lowest first.
    pub(super) fn ascending(&self, least: u32) -> impl Iterator<Item = Run> {
        let leaves = (0..self.count).filter(move |&at| self.longest[at] >= least).map(|at| self.leaf(at));
        let runs = leaves.flat_map(|leaf| (0..leaf.count as usize).map(|at| leaf.run(at)));
        runs.filter(move |run| run.extent.pages >= least)
    }

    /// All runs, the highest first.
    pub(super) fn descending(&self) -> impl Iterator<Item = Run> {
        let leaves = (0..self.count).rev().map(|at| self.leaf(at));
        leaves.flat_map(|leaf| (0..leaf.count as usize).rev().map(|at| leaf.run(at)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::alloc::{Layout, alloc_zeroed};

    fn empty() -> Box<Extents> {
        // SAFETY: all zeros are an empty table; the memory is of its layout.
        unsafe { Box::from_raw(alloc_zeroed(Layout::new::<Extents>()).cast()) }
    }

    /// One page in three may be resident.
    fn resident(extent: Extent) -> u32 {
        (extent.start..extent.end()).filter(|page| page % 3 == 0).count() as u32
    }

    fn run(extent: Extent) -> Run {
        Run { extent, resident: resident(extent) }
    }

    fn extents_of(extents: &Extents) -> Vec<Extent> {
        extents.descending().map(|run| run.extent).collect()
    }

    /// Sorted, joined, disjoint, with the right counts and summaries.
    fn check(extents: &Extents) {
        assert!(extents.descending().all(|run| run.resident == resident(run.extent)));
        let mut runs = extents_of(extents);
        runs.reverse();
        assert!(runs.windows(2).all(|pair| pair[0].end() < pair[1].start), "{runs:?}");
        assert!(runs.iter().all(|run| run.pages > 0));
        for at in 0..extents.count {
            assert_eq!(extents.firsts[at], extents.leaf(at).starts[0]);
            assert_eq!(extents.longest[at], extents.leaf(at).longest());
        }
    }

    fn with(runs: &[(u32, u32)]) -> Box<Extents> {
        let mut extents = empty();
        runs.iter().for_each(|&(start, pages)| assert!(extents.insert(run(Extent::new(start, pages)))));
        check(&extents);
        extents
    }

    #[test]
    fn a_close_fit_comes_first_then_the_lowest_address_and_long_runs_last() {
        let runs = [(0, 10_000), (20_000, 300), (30_000, 18), (40_000, 17), (50_000, 40)];
        assert_eq!(
            with(&runs).take(16, resident),
            Some(40_000),
            "the closest of those that exceed it by an eighth"
        );
        assert_eq!(
            with(&runs).take(30, resident),
            Some(20_000),
            "none is close: the lowest that is not long"
        );
        assert_eq!(with(&runs).take(301, resident), Some(0), "a long one where nothing else is left");
        assert_eq!(with(&runs).take(100_000, resident), None);
    }

    #[test]
    fn the_shortest_run_with_most_resident_pages_is_found() {
        let mut extents = empty();
        let runs = [(0, 100, 10), (200, 50, 20), (300, 40, 25), (400, 30, 30), (500, 10, 10)];
        for (start, pages, resident) in runs {
            assert!(extents.insert(Run { extent: Extent::new(start, pages), resident }));
        }
        let found = |extents: &Extents, pages| extents.most_resident(pages).map(|run| run.extent.start);
        let at = |pages| found(&extents, pages);
        assert_eq!([at(10), at(20), at(30), at(35)], [500, 400, 400, 300].map(Some));
        assert_eq!([at(45), at(60), at(101)], [Some(200), Some(0), None]);
        assert!(extents.insert(Run { extent: Extent::new(1000, 200), resident: 0 }));
        assert_eq!(found(&extents, 150), Some(1000), "none is resident");
    }

    #[test]
    fn alignment_leaves_head_and_tail_free() {
        let mut extents = with(&[(5, 3), (10, 20)]);
        assert_eq!(extents.take_aligned(4, 8, 1, resident), Some(15));
        check(&extents);
        assert_eq!(extents_of(&extents), [(19, 11), (10, 5), (5, 3)].map(|(s, p)| Extent::new(s, p)));
        assert_eq!(extents.take_aligned(4, 64, 0, resident), None);
    }

    /// Miri takes a thousand times as long.
    const PAGES: usize = if cfg!(miri) { 400 } else { 4000 };

    proptest! {
        /// Against a bitmap of pages.
        #[test]
        fn the_table_is_the_set_of_free_pages(
            operations in prop::collection::vec((any::<bool>(), 1u32..40, 0usize..4000), 1..PAGES * 3 / 4),
        ) {
            let mut extents = with(&[(0, PAGES as u32)]);
            let mut free = vec![true; PAGES];
            let mut taken: Vec<Extent> = Vec::new();
            for (takes, pages, chosen) in operations {
                if takes || taken.is_empty() {
                    let longest = free.chunk_by(|a, b| a == b).filter(|run| run[0]).map(<[bool]>::len).max();
                    match extents.take(pages, resident) {
                        Some(start) => {
                            let range = start as usize..(start + pages) as usize;
                            prop_assert!(free[range.clone()].iter().all(|&free| free));
                            free[range].fill(false);
                            taken.push(Extent::new(start, pages));
                        }
                        None => prop_assert!(longest.unwrap_or(0) < pages as usize),
                    }
                } else {
                    let extent = taken.swap_remove(chosen % taken.len());
                    free[extent.start as usize..extent.end() as usize].fill(true);
                    prop_assert!(extents.insert(run(extent)));
                }
            }
            check(&extents);
            let mut listed = vec![false; PAGES];
            extents_of(&extents).iter().for_each(|run| listed[run.start as usize..run.end() as usize].fill(true));
            prop_assert_eq!(listed, free);
        }
    }

    #[test]
    fn thousands_of_runs_are_kept_and_joined_again() {
        let mut extents = empty();
        let runs = if cfg!(miri) { 500 } else { 50_000 };
        (0..runs).for_each(|at| assert!(extents.insert(run(Extent::new(at * 2, 1)))));
        check(&extents);
        assert_eq!(extents.descending().count(), runs as usize);
        (0..runs).for_each(|at| assert!(extents.insert(run(Extent::new(at * 2 + 1, 1)))));
        check(&extents);
        assert_eq!(extents_of(&extents), [Extent::new(0, 2 * runs)]);
        assert!(
            extents.take_at(Extent::new(0, 5), resident) && !extents.take_at(Extent::new(6, 5), resident)
        );
        assert_eq!(extents.take_last(2 * runs), Some(run(Extent::new(5, 2 * runs - 5))));
        assert_eq!(extents.take(1, resident), None);
    }
}
