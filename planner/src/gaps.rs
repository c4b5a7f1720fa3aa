//! Free ranges of the arena: ascending, disjoint, never touching, the last one without an end.
//!
//! Rows of ranges stay short where the arena is well filled, so they are kept in one piece of memory and searched from
//! both sides of the range that changes.

/// Bytes `[from, to)` of the arena.
pub(crate) type Range = (u64, u64);

/// Free ranges. No block ends at `u64::MAX`, so the room above everything is always there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Gaps {
    ranges: Vec<Range>,
}

impl Gaps {
    /// What the `held` ranges leave free; they ascend by their begin and may overlap.
    pub fn around(held: impl IntoIterator<Item = Range>) -> Gaps {
        let mut ranges = Vec::new();
        let mut floor = 0;
        for (from, to) in held {
            if from > floor {
                ranges.push((floor, from));
            }
            floor = floor.max(to);
        }
        ranges.push((floor, u64::MAX));
        Gaps { ranges }
    }

    /// Where the room above everything begins.
    pub fn top(&self) -> u64 {
        self.ranges.last().map_or(0, |last| last.0)
    }

    /// How many they are.
    pub fn count(&self) -> usize {
        self.ranges.len()
    }

    /// Puts the first `most` gaps that end above `floor` into `out`, those of less than `least` bytes left out, and
    /// returns where the last of them ends if there are more.
    pub fn some(&self, floor: u64, least: u64, most: usize, out: &mut Vec<Range>) -> Option<u64> {
        out.clear();
        let rest = &self.ranges[self.ranges.partition_point(|range| range.1 <= floor)..];
        let mut large = rest.iter().filter(|range| range.1 - range.0 >= least);
        out.extend(large.by_ref().take(most));
        large.next().and(out.last()).map(|last| last.1)
    }

    /// What of the range is free is so no more; whether anything was.
    pub fn take(&mut self, from: u64, to: u64) -> bool {
        let ranges = &mut self.ranges;
        let first = ranges.partition_point(|range| range.1 <= from);
        let mut last = first;
        while last < ranges.len() && ranges[last].0 < to {
            last += 1;
        }
        if first == last {
            return false;
        }
        let (below, above) = ((ranges[first].0, from), (to, ranges[last - 1].1));
        match (below.0 < below.1, above.0 < above.1) {
            (true, true) if last - first == 1 => {
                ranges[first] = below;
                ranges.insert(last, above);
            }
            (true, true) => {
                ranges[first] = below;
                ranges[last - 1] = above;
                ranges.drain(first + 1..last - 1);
            }
            (true, false) => {
                ranges[first] = below;
                ranges.drain(first + 1..last);
            }
            (false, true) => {
                ranges[last - 1] = above;
                ranges.drain(first..last - 1);
            }
            (false, false) => {
                ranges.drain(first..last);
            }
        }
        true
    }

    /// A range of which nothing was free is free now.
    pub fn give(&mut self, from: u64, to: u64) {
        let ranges = &mut self.ranges;
        let at = ranges.partition_point(|range| range.1 < from);
        let below = ranges.get(at).is_some_and(|range| range.1 == from);
        let next = if below { at + 1 } else { at };
        let above = ranges.get(next).is_some_and(|range| range.0 == to);
        match (below, above) {
            (true, true) => {
                ranges[at].1 = ranges[next].1;
                ranges.remove(next);
            }
            (true, false) => ranges[at].1 = to,
            (false, true) => ranges[next].0 = from,
            (false, false) => ranges.insert(at, (from, to)),
        }
    }

    /// What is free here and there.
    pub fn among(&self, other: &Gaps) -> Gaps {
        let mut ranges = Vec::new();
        self.common(&other.ranges, 1, &mut ranges);
        Gaps { ranges }
    }

    /// Puts into `out` what of the ascending ranges `of` is free here, pieces below `least` bytes left out.
    pub fn common(&self, of: &[Range], least: u64, out: &mut Vec<Range>) {
        out.clear();
        let mut rest = &self.ranges[..];
        for &(from, to) in of {
            rest = beyond(rest, from);
            for &(free, end) in rest {
                if free >= to {
                    break;
                }
                let piece = (free.max(from), end.min(to));
                if piece.1 - piece.0 >= least {
                    out.push(piece);
                }
            }
        }
    }
}

/// Those of ascending ranges that end above a byte, looked for in ever larger steps: mostly it is not far to the first.
fn beyond(ranges: &[Range], byte: u64) -> &[Range] {
    let mut step = 1;
    while ranges.get(step - 1).is_some_and(|range| range.1 <= byte) {
        step *= 2;
    }
    let (from, to) = (step / 2, step.min(ranges.len()));
    &ranges[from + ranges[from..to].partition_point(|range| range.1 <= byte)..]
}

/// Puts into `out` what the `held` ranges, which ascend by their begin and may overlap, leave of the ascending ranges
/// `of`, pieces below `least` bytes, at least one, left out. Ranges `(0, 0)`, which hold nothing, may be anywhere.
pub(crate) fn without(of: &[Range], held: impl IntoIterator<Item = Range>, least: u64, out: &mut Vec<Range>) {
    out.clear();
    let mut held = held.into_iter().peekable();
    // Bytes below are held by one that began before.
    let mut floor = 0;
    for &(from, to) in of {
        let mut free = from.max(floor);
        while let Some(&(begin, end)) = held.peek()
            && begin < to
        {
            if begin.saturating_sub(free) >= least {
                out.push((free, begin));
            }
            free = free.max(end);
            floor = floor.max(end);
            held.next();
        }
        if to > free && to - free >= least {
            out.push((free, to));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The arena of the tests in bytes.
    const BYTES: u64 = 40;

    fn model(gaps: &Gaps) -> Vec<bool> {
        (0..BYTES).map(|byte| gaps.ranges.iter().any(|range| range.0 <= byte && byte < range.1)).collect()
    }

    fn sound(gaps: &Gaps) -> bool {
        gaps.ranges.windows(2).all(|pair| pair[0].1 < pair[1].0)
            && gaps.ranges.iter().all(|range| range.0 < range.1)
            && gaps.ranges.last().is_some_and(|last| last.1 == u64::MAX)
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn gaps_are_a_set_of_bytes(ops in prop::collection::vec((any::<bool>(), 0..BYTES - 1, 1..9u64), 0..40)) {
            let mut gaps = Gaps::around([]);
            let mut bytes = vec![true; BYTES as usize];
            for (take, from, length) in ops {
                let to = (from + length).min(BYTES - 1);
                let part = &mut bytes[from as usize..to as usize];
                if take {
                    prop_assert_eq!(gaps.take(from, to), part.contains(&true));
                    part.fill(false);
                } else if !part.contains(&true) {
                    gaps.give(from, to);
                    part.fill(true);
                }
                prop_assert_eq!(model(&gaps), bytes.clone());
                prop_assert!(sound(&gaps), "{:?}", gaps);
            }
        }

        #[test]
        fn what_is_common_is_what_the_held_ranges_leave(
            mut held in prop::collection::vec((0..BYTES - 1, 1..9u64), 0..12),
            taken in prop::collection::vec((0..BYTES - 1, 1..5u64), 0..12),
            least in 1..6u64,
        ) {
            held.sort_unstable();
            let held: Vec<Range> = held.iter().map(|&(from, length)| (from, from + length)).collect();
            let mut of = Gaps::around([]);
            for (from, length) in taken {
                of.take(from, from + length);
            }
            let (mut one, mut other) = (Vec::new(), Vec::new());
            Gaps::around(held.clone()).common(&of.ranges, least, &mut one);
            without(&of.ranges, held.clone(), least, &mut other);
            prop_assert_eq!(&one, &other);
            let mut left = of.clone();
            for (from, to) in held {
                left.take(from, to);
            }
            left.ranges.retain(|range| range.1 - range.0 >= least);
            prop_assert_eq!(one, left.ranges);
        }
    }
}
