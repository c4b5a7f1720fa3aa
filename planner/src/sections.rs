//! Sections: the moments at which most blocks meet, and who is alive in each.
//!
//! A section is a moment with a start before it and an end after it: a maximal clique of the conflict graph. Blocks that
//! meet share a section, and the blocks of a section all meet, so that offsets, load and conflicts are decided on the
//! sections alone; there are at most as many as blocks, mostly far fewer than moments (google/minimalloc, ASPLOS 2023,
//! section 4). On a circle the sections form a ring.

use std::ops::Range;

use crate::timeline::Timeline;

/// Pairs of a section and a member that are worth a search: above, a step of it takes too long to get anywhere.
const MOST_MEMBERS: usize = 1 << 21;
/// Pairs of blocks that meet; 16 MiB.
const MOST_MEETINGS: usize = 1 << 22;

/// Lists of indices, one behind the other.
#[derive(Debug, Default)]
pub(crate) struct Lists {
    /// Where each list begins, and the end of the last.
    from: Vec<u32>,
    all: Vec<u32>,
}

impl Lists {
    fn new() -> Lists {
        Lists { from: vec![0], all: Vec::new() }
    }

    /// Ends the list that was being added to.
    fn close(&mut self) {
        self.from.push(self.all.len() as u32);
    }

    #[inline]
    pub fn of(&self, index: u32) -> &[u32] {
        &self.all[self.range(index)]
    }

    /// Where a list is in [`Lists::all`].
    #[inline]
    pub fn range(&self, index: u32) -> Range<usize> {
        self.from[index as usize] as usize..self.from[index as usize + 1] as usize
    }

    pub fn all(&self) -> &[u32] {
        &self.all
    }
}

/// What a search needs to know of an item.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Member {
    pub size: u64,
    pub align: u64,
    /// Length of the lifetime in events of the problem.
    pub length: u64,
    /// The first section of its lifetime, and how many there are, round the ring.
    pub first: u32,
    pub width: u32,
    /// The same number for items that can stand for each other.
    pub kind: u32,
}

/// The items of a timeline by sections.
#[derive(Debug)]
pub(crate) struct Sections {
    pub items: Vec<Member>,
    /// By item: its sections.
    pub covers: Lists,
    /// By section: its items.
    pub members: Lists,
    /// By section: the items of which it is the first.
    pub begins: Lists,
    /// By item: the items it meets.
    pub meets: Lists,
    /// How many sections.
    pub count: u32,
}

impl Sections {
    /// The sections of a timeline; `None` where they are too many to search.
    pub fn new(timeline: &Timeline) -> Option<Sections> {
        let ranks = moments(timeline);
        let count = ranks.len() as u32;
        let mut items = Vec::with_capacity(timeline.items.len());
        let mut covers = Lists::new();
        let mut kinds = std::collections::HashMap::new();
        for item in &timeline.items {
            let before = |rank: u32| ranks.partition_point(|&moment| moment < rank) as u32;
            let first = before(item.lower);
            let behind = if item.upper > timeline.turn {
                count + before(item.upper - timeline.turn)
            } else {
                before(item.upper)
            };
            covers.all.extend((first..behind).map(|section| section % count));
            covers.close();
            let width = behind - first;
            let first = first % count;
            let next = kinds.len() as u32;
            let kind = *kinds.entry((first, width, item.size, item.align)).or_insert(next);
            items.push(Member {
                size: item.size,
                align: item.align,
                length: item.length,
                first,
                width,
                kind,
            });
            if covers.all.len() > MOST_MEMBERS {
                return None;
            }
        }
        let members = inverse(&covers, count);
        let begins = begins(&items, &members, count);
        let meets = meetings(&covers, &members, &begins, items.len() as u32)?;
        Some(Sections { items, covers, members, begins, meets, count })
    }
}

/// The last rank with a start before each end.
fn moments(timeline: &Timeline) -> Vec<u32> {
    let ranks = timeline.ranks as usize;
    let (mut starts, mut ends) = (vec![false; ranks], vec![false; ranks]);
    for item in &timeline.items {
        starts[item.lower as usize] = true;
        let end = if item.upper >= timeline.turn { item.upper - timeline.turn } else { item.upper };
        if let Some(end) = ends.get_mut(end as usize) {
            *end = true;
        }
    }
    let mut moments = Vec::new();
    let mut last = None;
    for rank in 0..ranks {
        if ends[rank] {
            moments.extend(last.take());
        }
        if starts[rank] {
            last = Some(rank as u32);
        }
    }
    // On a circle its end comes in the next round, or the section is one too many, which does no harm.
    moments.extend(last);
    moments
}

/// By section: the items whose list has it.
fn inverse(covers: &Lists, count: u32) -> Lists {
    let mut from = vec![0u32; count as usize + 1];
    for &section in &covers.all {
        from[section as usize + 1] += 1;
    }
    for index in 0..count as usize {
        from[index + 1] += from[index];
    }
    let (mut next, mut all) = (from.clone(), vec![0; covers.all.len()]);
    for item in 0..covers.from.len() as u32 - 1 {
        for &section in covers.of(item) {
            let at = &mut next[section as usize];
            all[*at as usize] = item;
            *at += 1;
        }
    }
    Lists { from, all }
}

/// By section: those of its items of which it is the first.
fn begins(items: &[Member], members: &Lists, count: u32) -> Lists {
    let mut begins = Lists::new();
    for section in 0..count {
        let here = |item: &&u32| items[**item as usize].first == section;
        begins.all.extend(members.of(section).iter().filter(here));
        begins.close();
    }
    begins
}

/// By item: the others it shares a section with; `None` where they are too many.
fn meetings(covers: &Lists, members: &Lists, begins: &Lists, count: u32) -> Option<Lists> {
    let mut meets = Lists::new();
    let mut seen = vec![u32::MAX; count as usize];
    for item in 0..count {
        seen[item as usize] = item;
        // In later sections only those are new that begin there: long lifetimes share thousands of sections.
        let first = covers.of(item).iter().take(1).flat_map(|&section| members.of(section));
        let later = covers.of(item).iter().skip(1).flat_map(|&section| begins.of(section));
        for &other in first.chain(later) {
            if seen[other as usize] != item {
                seen[other as usize] = item;
                meets.all.push(other);
            }
        }
        meets.close();
        if meets.all.len() > MOST_MEETINGS {
            return None;
        }
    }
    Some(meets)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::problem::{Block, Problem};

    fn sections(rows: &[(u64, u64)], period: Option<u64>) -> Sections {
        let block = |&(lower, upper)| Block { id: 0, lower, upper, size: 1, align: 1 };
        let problem = Problem::new(rows.iter().map(block).collect()).with_period(period);
        Sections::new(&Timeline::new(&problem)).expect("a small problem")
    }

    #[test]
    fn a_section_stands_between_a_start_and_an_end() {
        let sections = sections(&[(0, 4), (1, 3), (2, 6), (5, 7)], None);
        assert_eq!(sections.count, 2);
        assert_eq!(sections.members.of(0), [0, 1, 2]);
        assert_eq!(sections.members.of(1), [2, 3]);
        assert_eq!(sections.meets.of(2), [0, 1, 3]);
    }

    #[test]
    fn a_block_that_wraps_is_a_member_on_both_sides_of_the_end() {
        let sections = sections(&[(8, 12), (1, 3), (4, 6), (9, 10)], Some(10));
        let of = |item: u32| sections.covers.of(item).len();
        assert_eq!((of(0), of(1), of(2)), (2, 1, 1));
        assert_eq!(sections.meets.of(0).len(), 2);
        assert_eq!(sections.items[0].width, 2);
    }

    #[test]
    fn blocks_that_only_touch_do_not_meet() {
        let sections = sections(&[(0, 2), (2, 4)], None);
        assert_eq!((sections.count, sections.meets.of(0).len()), (2, 0));
    }

    #[test]
    fn only_items_alike_in_everything_are_of_one_kind() {
        let sections = sections(&[(0, 2), (0, 2), (0, 3), (2, 4)], None);
        let kinds: Vec<u32> = sections.items.iter().map(|item| item.kind).collect();
        assert_eq!(kinds[0], kinds[1]);
        assert_ne!(kinds[0], kinds[2]);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn items_meet_exactly_those_they_share_a_section_with(
            rows in prop::collection::vec((0u64..20, 1u64..21), 1..30),
            period in prop::option::of(Just(20u64)),
        ) {
            let rows: Vec<(u64, u64)> = rows.iter().map(|&(lower, length)| (lower, lower + length)).collect();
            let sections = sections(&rows, period);
            for item in 0..rows.len() as u32 {
                let shared = |other: &u32| {
                    sections.covers.of(item).iter().any(|section| sections.covers.of(*other).contains(section))
                };
                let others: Vec<u32> = (0..rows.len() as u32).filter(|&other| other != item).filter(shared).collect();
                let mut meets = sections.meets.of(item).to_vec();
                meets.sort_unstable();
                prop_assert_eq!(meets, others);
            }
        }
    }
}
