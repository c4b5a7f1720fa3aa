//! Families: sizes that stand for each other from step to step.
//!
//! Where sizes follow the data (the sparse gradients of a recommender), the n-th allocation of a step asks for a percent
//! more or less than the n-th of the step before, while order and structure repeat. A block is then known by its *family*,
//! a range of sizes, and by how many of that family came before it in the step. Its slot is as large as the family's
//! largest member, with some room beyond what was seen.
//!
//! A size that mostly comes again unchanged is *steady* and founds no family: in steps of fixed shapes two sizes may be
//! alike by chance, or stand for each other once where an allocation more came in between.

use std::collections::HashMap;

use crate::period::alike;

/// A size is steady if at least this share of its allocations had the same size a period before, in percent.
const STEADY_PERCENT: usize = 75;
/// A family's range is widened by one part in this many of it at either end: with some tens of samples, what comes later
/// lies rarely farther out.
const WIDENED: u64 = 2;
/// A family's largest member exceeds its smallest by one part in this many at most; others are of different kinds.
const WIDEST: u64 = 4;
/// Sizes are told apart in steps of so many bytes.
const STEP: u64 = 64;

/// Ranges of sizes, disjoint and ascending.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Families {
    families: Vec<Family>,
}

/// One range of sizes in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Family {
    /// The smallest member.
    pub smallest: u64,
    /// The largest member, which is the size of its slots.
    pub largest: u64,
    /// The smallest and the largest size seen.
    seen: (u64, u64),
}

impl Families {
    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Family> {
        self.families.iter()
    }

    /// The largest member of a size's family; the size itself where it has none.
    pub fn slot(&self, size: u64) -> u64 {
        let after = self.families.partition_point(|family| family.smallest <= size);
        let family = after.checked_sub(1).map(|index| self.families[index]);
        family.filter(|family| size <= family.largest).map_or(size, |family| family.largest)
    }

    /// Learns which of a sequence of allocations' sizes stand for those a period before; returns whether any family changed.
    pub fn learn(&mut self, sizes: &[u64], period: usize) -> bool {
        let pairs = || sizes.iter().skip(period).zip(sizes);
        // How often a size was met, and how often with itself.
        let mut met: HashMap<u64, (usize, usize)> = HashMap::new();
        for (&now, &before) in pairs() {
            for size in [now, before] {
                let (all, same) = met.entry(size).or_default();
                *all += 1;
                *same += usize::from(now == before);
            }
        }
        let steady = |size: u64| {
            let (all, same) = met.get(&size).copied().unwrap_or_default();
            same * 100 >= all * STEADY_PERCENT
        };
        let mut ranges: Vec<(u64, u64)> = pairs()
            .filter(|&(&now, &before)| now != before && alike(now, before))
            .filter(|&(&now, &before)| !steady(now) && !steady(before))
            .map(|(&now, &before)| (now.min(before), now.max(before)))
            .collect();
        if ranges.iter().all(|&(low, high)| self.slot(low) == self.slot(high) && self.slot(low) > low) {
            return false;
        }
        ranges.extend(self.families.iter().map(|family| family.seen));
        let mut steady_sizes: Vec<u64> = met.keys().copied().filter(|&size| steady(size)).collect();
        steady_sizes.sort_unstable();
        let mut families: Vec<Family> = united(ranges)
            .into_iter()
            .filter(|&(low, high)| high - low <= low / WIDEST)
            .map(|seen| widened(seen, &steady_sizes))
            .collect();
        // Room ends where the neighbour's sizes, and then where its room begins.
        for at in 1..families.len() {
            let next = families[at].seen.0;
            let before = &mut families[at - 1];
            before.largest = before.largest.min((next - 1) / STEP * STEP).max(before.seen.1);
            families[at].smallest = families[at].smallest.max(families[at - 1].largest + 1);
        }
        let changed = families != self.families;
        self.families = families;
        changed
    }
}

/// Ranges that overlap, or are no farther apart than the first one is wide, made one.
fn united(mut ranges: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    ranges.sort_unstable();
    let mut united: Vec<(u64, u64)> = Vec::new();
    for (low, high) in ranges {
        match united.last_mut() {
            Some(last) if low <= last.1 + (last.1 - last.0) => last.1 = last.1.max(high),
            _ => united.push((low, high)),
        }
    }
    united
}

/// The end of a range with room beyond it.
fn room_above((low, high): (u64, u64)) -> u64 {
    (high + (high - low) / WIDENED).next_multiple_of(STEP)
}

/// A family with room around what was seen, but without the steady sizes there.
fn widened(seen: (u64, u64), steady: &[u64]) -> Family {
    let (low, high) = seen;
    let below = steady.partition_point(|&size| size < low).checked_sub(1).map_or(0, |at| steady[at] + 1);
    let above = steady.get(steady.partition_point(|&size| size <= high)).map_or(u64::MAX, |&size| size - 1);
    let smallest = (low - (high - low) / WIDENED).max(below);
    let largest = if room_above(seen) > above { above / STEP * STEP } else { room_above(seen) };
    Family { smallest, largest: largest.max(high), seen }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A step with two sizes that follow the data, and two that do not.
    fn step(noise: impl Fn(u64) -> u64) -> Vec<u64> {
        (0..40)
            .flat_map(|at| [65_536, 400_000 + 64 * noise(at), 54_400, 50_000 + 64 * noise(at + 100)])
            .collect()
    }

    fn steps() -> Vec<u64> {
        (0..4).flat_map(|k| step(move |at| (at * 7 + k * 13 + at * k * 5) % 50)).collect()
    }

    #[test]
    fn sizes_that_follow_the_data_are_families_and_steady_ones_are_not() {
        let mut families = Families::default();
        assert!(families.learn(&steps(), 160));
        assert_eq!(families.iter().count(), 2);
        assert_eq!((families.slot(65_536), families.slot(54_400)), (65_536, 54_400));
        let largest = families.slot(401_000);
        assert!((403_136..405_000).contains(&largest), "{largest}");
        assert_eq!(
            (families.slot(400_000), families.slot(largest), families.slot(largest + 1)),
            (largest, largest, largest + 1)
        );
        assert!(families.slot(53_200) < 54_400, "room ends where a steady size begins");
        assert!(!families.learn(&steps(), 160), "the same again changes nothing");
    }

    #[test]
    fn a_size_beyond_the_room_widens_its_family() {
        let mut families = Families::default();
        families.learn(&steps(), 160);
        let before = families.slot(401_000);
        let later: Vec<u64> =
            (4..6).flat_map(|k| step(move |at| if at == 3 { 90 + k } else { (at * k) % 50 })).collect();
        assert!(families.learn(&later, 160));
        assert!(families.slot(401_000) > before);
        assert_eq!(families.iter().count(), 2);
    }

    #[test]
    fn families_are_disjoint_and_ascending() {
        let mut state = 1u64;
        for _ in 0..500 {
            let mut next = |end: u64| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 33) % end
            };
            let middles: Vec<(u64, u64)> = (0..6).map(|_| (500 + next(400), 1 + next(30))).collect();
            let mut sizes = Vec::new();
            for _ in 0..6 {
                sizes.extend(middles.iter().map(|&(middle, width)| 64 * (middle + next(width))));
            }
            let mut families = Families::default();
            families.learn(&sizes, middles.len());
            let ranges: Vec<_> = families.iter().map(|family| (family.smallest, family.largest)).collect();
            assert!(ranges.iter().all(|&(smallest, largest)| smallest <= largest), "{ranges:?}");
            assert!(ranges.windows(2).all(|pair| pair[0].1 < pair[1].0), "{ranges:?}");
            for family in families.iter() {
                assert_eq!(
                    (families.slot(family.seen.0), families.slot(family.seen.1)),
                    (family.largest, family.largest)
                );
            }
        }
    }

    #[test]
    fn fixed_shapes_have_none_even_where_allocations_come_and_go() {
        let shapes = [65_536u64, 65_600, 131_072, 66_560, 65_536, 262_144];
        let mut sizes: Vec<u64> = shapes.repeat(20);
        sizes.insert(50, 65_600);
        let mut families = Families::default();
        assert!(!families.learn(&sizes, shapes.len()));
        assert_eq!(families.iter().count(), 0);
        assert!(!families.learn(&[], 1) && !families.learn(&[1 << 20], 4));
    }
}
