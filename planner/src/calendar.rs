//! Who holds which bytes when: an index of a plan by time that is changed and asked in proportion to a lifetime.
//!
//! Time is cut into *leaves* of a few starts and ends each; [`FAN`] neighbours form a node of the next level, up to one
//! root. A lifetime is the few largest nodes that lie wholly within it, and the leaves at its two *edges*, where it
//! lives in a part only. A node knows two sets of bytes:
//!
//! - `open`: not held by a lifetime that this very node is one of the largest nodes of. Such lifetimes all meet, so
//!   their bytes are disjoint, and the set follows exactly when one comes or goes.
//! - `free`: held at no moment of the node by lifetimes of this node and those below it, that is, `open` and `free` of
//!   all children. High up hardly a byte is free, so changes die out after a level or two.
//!
//! What is free during a lifetime is `free` of its largest nodes, `open` of everything above its edges, and what the
//! visitors of its edge leaves leave. The load is kept alongside, as upper bounds made exact only where the peak is
//! looked for. (After the segment tree: J. L. Bentley, "Solutions to Klee's rectangle problems", 1977.)

use crate::gaps::{Gaps, Range, without};

/// Starts and ends in a leaf. Fewer make the edges cheaper and long lifetimes dearer; of 12 to 192, 96 to 128 took the
/// least time for 100,000 blocks.
const MOMENTS: usize = 96;

/// Children of a node. Fewer make more levels to ask, more make long lifetimes dearer; 8 and 16 differ by little.
const FAN: usize = 8;

/// Nodes of the level that is not climbed beyond. Without the summit those asked for a short lifetime would be more, and
/// what they hold in pieces; with a lower one long lifetimes would have more nodes: of 1, 64, 256, 1024 and 4096 both
/// 256 and 1024 do well.
const SUMMIT: usize = 256;

/// Events `[from, to)`, not empty, on the line; on a circle a lifetime that wraps is two of them.
pub(crate) type Span = (u64, u64);

/// Bytes held for a time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stay {
    /// The bytes; never empty.
    pub bytes: Range,
    /// When; the second only where the lifetime wraps.
    pub spans: [Option<Span>; 2],
    /// What it adds to the load.
    pub weight: u64,
}

/// A stay in a part of a leaf.
#[derive(Debug, Clone, Copy)]
struct Visitor {
    bytes: Range,
    span: Span,
    weight: u64,
}

#[derive(Debug)]
struct Node {
    open: Gaps,
    free: Gaps,
    /// Load of those that hold `open`'s bytes.
    weight: u64,
    /// At least the highest load of this node and those below it.
    peak: u64,
}

#[derive(Debug, Default)]
struct Leaf {
    /// By their first byte.
    visitors: Vec<Visitor>,
    /// Whether the node's `peak` is just an upper bound.
    loose: bool,
}

/// The nodes of a span.
#[derive(Debug, Default)]
struct Cover {
    /// (level, index) of the largest nodes wholly inside.
    nodes: Vec<(usize, usize)>,
    /// Leaves of which a part is inside.
    edges: Vec<usize>,
    /// First and last leaf.
    ends: (usize, usize),
}

/// The index.
#[derive(Debug)]
pub(crate) struct Calendar {
    /// First event of each leaf; the first is 0.
    starts: Vec<u64>,
    /// The end of time.
    horizon: u64,
    leaves: Vec<Leaf>,
    /// From the leaves' to the root's.
    levels: Vec<Vec<Node>>,
    /// The highest level that holds lifetimes of its own.
    summit: usize,
    /// The most visitors a leaf had.
    crowd: usize,
    // Room for work, kept from call to call.
    cover: Cover,
    found: Vec<Range>,
    spare: Vec<Range>,
}

impl Calendar {
    /// An index of stays that share no byte while they meet. `horizon`: the end of time, the period on a circle.
    pub fn new(mut stays: Vec<Stay>, horizon: u64) -> Calendar {
        let mut moments: Vec<u64> =
            stays.iter().flat_map(|stay| stay.spans).flatten().flat_map(|span| [span.0, span.1]).collect();
        moments.sort_unstable();
        let mut starts = vec![0];
        for &moment in moments.iter().step_by(MOMENTS).skip(1) {
            if moment > starts[starts.len() - 1] && moment < horizon {
                starts.push(moment);
            }
        }
        let mut sizes = vec![starts.len()];
        while let Some(&size) = sizes.last()
            && size > 1
        {
            sizes.push(size.div_ceil(FAN));
        }
        let mut calendar = Calendar {
            leaves: starts.iter().map(|_| Leaf::default()).collect(),
            starts,
            horizon,
            levels: Vec::new(),
            summit: sizes.iter().position(|&size| size <= SUMMIT).unwrap_or(0),
            crowd: 0,
            cover: Cover::default(),
            found: Vec::new(),
            spare: Vec::new(),
        };
        stays.sort_unstable_by_key(|stay| stay.bytes);
        let mut held: Vec<Vec<(Vec<Range>, u64)>> =
            sizes.iter().map(|&size| vec![(Vec::new(), 0); size]).collect();
        let mut cover = Cover::default();
        for stay in &stays {
            for span in stay.spans.into_iter().flatten() {
                calendar.cover(span, &mut cover);
                for &(level, index) in &cover.nodes {
                    let (ranges, weight) = &mut held[level][index];
                    ranges.push(stay.bytes);
                    *weight += stay.weight;
                }
                for &leaf in &cover.edges {
                    let visitor = Visitor { bytes: stay.bytes, span, weight: stay.weight };
                    calendar.leaves[leaf].visitors.push(visitor);
                }
            }
        }
        for (level, row) in held.into_iter().enumerate() {
            let nodes = row.into_iter().enumerate();
            let nodes = nodes.map(|(index, held)| calendar.node(level, index, held)).collect();
            calendar.levels.push(nodes);
        }
        calendar.crowd = calendar.leaves.iter().map(|leaf| leaf.visitors.len()).max().unwrap_or(0);
        calendar
    }

    /// A node over those of the level below, which are there already.
    fn node(&mut self, level: usize, index: usize, (ranges, weight): (Vec<Range>, u64)) -> Node {
        let open = Gaps::around(ranges);
        if level == 0 {
            let leaf = &mut self.leaves[index];
            leaf.loose = true;
            let visitors = leaf.visitors.iter().map(|visitor| visitor.bytes);
            let held = Gaps::around(visitors);
            let free = held.among(&open);
            let peak = weight + leaf.visitors.iter().map(|visitor| visitor.weight).sum::<u64>();
            return Node { open, free, weight, peak };
        }
        let below = &self.levels[level - 1];
        let children = &below[index * FAN..((index + 1) * FAN).min(below.len())];
        let free = children.iter().fold(open.clone(), |free, child| child.free.among(&free));
        let peak = weight + children.iter().map(|child| child.peak).max().unwrap_or(0);
        Node { open, free, weight, peak }
    }

    /// The most visitors a leaf had: each makes changes in it, and questions to it, take longer.
    pub fn crowd(&self) -> usize {
        self.crowd
    }

    /// First byte that is free at all times, with all above it.
    pub fn top(&self) -> u64 {
        self.levels.last().map_or(0, |root| root[0].free.top())
    }

    /// The stay's bytes, free during its spans, are held.
    pub fn add(&mut self, stay: &Stay) {
        let mut cover = std::mem::take(&mut self.cover);
        for span in stay.spans.into_iter().flatten() {
            self.cover(span, &mut cover);
            for &(level, index) in &cover.nodes {
                let node = &mut self.levels[level][index];
                node.open.take(stay.bytes.0, stay.bytes.1);
                node.weight += stay.weight;
                self.fill(level, index, stay);
            }
            for &index in &cover.edges {
                let leaf = &mut self.leaves[index];
                let at = leaf.visitors.partition_point(|other| other.bytes.0 < stay.bytes.0);
                leaf.visitors.insert(at, Visitor { bytes: stay.bytes, span, weight: stay.weight });
                leaf.loose = true;
                self.crowd = self.crowd.max(leaf.visitors.len());
                self.fill(0, index, stay);
            }
        }
        self.cover = cover;
    }

    /// A stay of [`Calendar::add`] is over.
    pub fn remove(&mut self, stay: &Stay) {
        let mut cover = std::mem::take(&mut self.cover);
        for span in stay.spans.into_iter().flatten() {
            self.cover(span, &mut cover);
            for &(level, index) in &cover.nodes {
                let node = &mut self.levels[level][index];
                node.open.give(stay.bytes.0, stay.bytes.1);
                node.weight -= stay.weight;
                node.peak -= stay.weight;
                self.free(level, index, stay.bytes);
            }
            for &index in &cover.edges {
                let leaf = &mut self.leaves[index];
                let mut at = leaf.visitors.partition_point(|other| other.bytes.0 < stay.bytes.0);
                while (leaf.visitors[at].bytes, leaf.visitors[at].span) != (stay.bytes, span) {
                    at += 1;
                }
                leaf.visitors.remove(at);
                leaf.loose = true;
                // Keeps the bound from growing where stays come and go again and again.
                let most = leaf.visitors.iter().map(|visitor| visitor.weight).sum::<u64>();
                let node = &mut self.levels[0][index];
                node.peak = node.peak.min(node.weight + most);
                self.free(0, index, stay.bytes);
            }
        }
        self.cover = cover;
    }

    /// Takes bytes from the free ones of a node and of those above, and raises their peaks.
    fn fill(&mut self, level: usize, mut index: usize, stay: &Stay) {
        let mut taken = true;
        let mut peak = self.levels[level][index].peak + stay.weight;
        for row in level..self.levels.len() {
            let node = &mut self.levels[row][index];
            if row > level {
                peak += node.weight;
            }
            taken = taken && node.free.take(stay.bytes.0, stay.bytes.1);
            if !taken && peak <= node.peak {
                return;
            }
            node.peak = node.peak.max(peak);
            index /= FAN;
        }
    }

    /// Gives bytes to the free ones of a node and of those above, as far as nobody else holds them.
    fn free(&mut self, mut level: usize, mut index: usize, bytes: Range) {
        let (mut found, mut spare) = (std::mem::take(&mut self.found), std::mem::take(&mut self.spare));
        found.clear();
        found.push(bytes);
        while level < self.levels.len() {
            self.levels[level][index].open.common(&found, 1, &mut spare);
            std::mem::swap(&mut found, &mut spare);
            if level == 0 {
                let visitors = self.leaves[index].visitors.iter();
                without(&found, visitors.map(|visitor| visitor.bytes), 1, &mut spare);
                std::mem::swap(&mut found, &mut spare);
            } else {
                let below = &self.levels[level - 1];
                for child in &below[index * FAN..((index + 1) * FAN).min(below.len())] {
                    if found.is_empty() {
                        break;
                    }
                    child.free.common(&found, 1, &mut spare);
                    std::mem::swap(&mut found, &mut spare);
                }
            }
            if found.is_empty() {
                break;
            }
            let node = &mut self.levels[level][index];
            for &(from, to) in &found {
                node.free.give(from, to);
            }
            (level, index) = (level + 1, index / FAN);
        }
        (self.found, self.spare) = (found, spare);
    }

    /// The gaps of at least `least` bytes that stay free during the spans, ascending; the last has no end.
    pub fn gaps(&mut self, spans: [Option<Span>; 2], least: u64) -> &[Range] {
        let mut cover = std::mem::take(&mut self.cover);
        let (mut found, mut spare) = (std::mem::take(&mut self.found), std::mem::take(&mut self.spare));
        found.clear();
        found.push((0, u64::MAX));
        for span in spans.into_iter().flatten() {
            self.cover(span, &mut cover);
            let mut ask = |gaps: &Gaps| {
                gaps.common(&found, least, &mut spare);
                std::mem::swap(&mut found, &mut spare);
            };
            // The longest first: they leave little, and only that is looked for among the others.
            for &(level, index) in cover.nodes.iter().rev() {
                ask(&self.levels[level][index].free);
            }
            for level in (0..=self.summit).rev() {
                let row = &self.levels[level];
                let width = FAN.pow(level as u32);
                let (first, last) = (cover.ends.0 / width, cover.ends.1 / width);
                ask(&row[first].open);
                if last != first {
                    ask(&row[last].open);
                }
            }
            for &index in &cover.edges {
                let visitors = self.leaves[index].visitors.iter();
                let meeting = visitors.filter(|visitor| visitor.span.0 < span.1 && span.0 < visitor.span.1);
                without(&found, meeting.map(|visitor| visitor.bytes), least, &mut spare);
                std::mem::swap(&mut found, &mut spare);
            }
        }
        (self.cover, self.found, self.spare) = (cover, found, spare);
        &self.found
    }

    /// The highest load. Work is in proportion to the leaves that changed since the last call and may hold the peak.
    pub fn peak(&mut self) -> u64 {
        let Some(root) = self.levels.len().checked_sub(1) else { return 0 };
        // Down to where the peak should be; up again where a bound turns out lower than its parent believed.
        let (mut level, mut index) = (root, 0);
        loop {
            let tight = if level == 0 {
                if !self.leaves[index].loose {
                    return self.levels[root][0].peak;
                }
                self.leaves[index].loose = false;
                self.levels[0][index].weight + self.leaves[index].peak()
            } else {
                let (weight, child) = (self.levels[level][index].weight, self.highest_child(level, index));
                weight + self.levels[level - 1][child].peak
            };
            let node = &mut self.levels[level][index];
            let lower = tight < node.peak;
            node.peak = tight;
            if lower && level < root {
                (level, index) = (level + 1, index / FAN);
            } else if level > 0 {
                (level, index) = (level - 1, self.highest_child(level, index));
            }
        }
    }

    fn highest_child(&self, level: usize, index: usize) -> usize {
        let below = &self.levels[level - 1];
        let children = index * FAN..((index + 1) * FAN).min(below.len());
        children.rev().max_by_key(|&child| below[child].peak).unwrap_or(index * FAN)
    }

    /// Finds the nodes of a span.
    fn cover(&self, span: Span, cover: &mut Cover) {
        cover.nodes.clear();
        cover.edges.clear();
        let leaf = |event: u64| self.starts.partition_point(|&start| start <= event) - 1;
        let (first, last) = (leaf(span.0), leaf(span.1 - 1));
        cover.ends = (first, last);
        let whole_first = span.0 == self.starts[first];
        let whole_last = span.1 == self.starts.get(last + 1).copied().unwrap_or(self.horizon);
        if first == last && !(whole_first && whole_last) {
            cover.edges.push(first);
            return;
        }
        let (mut from, mut to) = (first, last + 1);
        if !whole_first {
            cover.edges.push(first);
            from += 1;
        }
        if !whole_last {
            cover.edges.push(last);
            to -= 1;
        }
        let mut level = 0;
        while from < to {
            if level == self.summit {
                cover.nodes.extend((from..to).map(|index| (level, index)));
                return;
            }
            while from < to && from % FAN != 0 {
                cover.nodes.push((level, from));
                from += 1;
            }
            while from < to && to % FAN != 0 {
                to -= 1;
                cover.nodes.push((level, to));
            }
            (level, from, to) = (level + 1, from / FAN, to / FAN);
        }
    }
}

impl Leaf {
    /// The highest load of the visitors.
    fn peak(&self) -> u64 {
        // Ends sort before starts at the same event.
        let edges = |visitor: &Visitor| {
            [(visitor.span.0, true), (visitor.span.1, false)].map(|edge| (edge, visitor.weight))
        };
        let mut edges: Vec<_> = self.visitors.iter().flat_map(edges).collect();
        edges.sort_unstable();
        let (mut load, mut peak) = (0, 0);
        for ((_, starts), weight) in edges {
            load = if starts { load + weight } else { load - weight };
            peak = peak.max(load);
        }
        peak
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So many that lifetimes climb to the summit and the root is above it.
    const STAYS: u64 = 30_000;
    const HORIZON: u64 = 2 * STAYS;

    fn gaps(stays: &[Stay], spans: [Option<Span>; 2], least: u64) -> Vec<Range> {
        let meets = |span: &Span| spans.iter().flatten().any(|own| own.0 < span.1 && span.0 < own.1);
        let meeting = stays.iter().filter(|stay| stay.spans.iter().flatten().any(meets));
        let mut held: Vec<Range> = meeting.map(|stay| stay.bytes).collect();
        held.sort_unstable();
        let mut free = Vec::new();
        without(&[(0, u64::MAX)], held, least, &mut free);
        free
    }

    fn peak(stays: &[Stay]) -> u64 {
        let spans = |stay: &Stay| stay.spans.map(|span| span.map(|span| (span, stay.weight)));
        let spans = stays.iter().flat_map(spans).flatten();
        let mut edges: Vec<(u64, i64)> = Vec::new();
        for ((from, to), weight) in spans {
            edges.extend([(from, weight as i64), (to, -(weight as i64))]);
        }
        edges.sort_unstable();
        let mut load = 0;
        let loads = edges.iter().map(|edge| {
            load += edge.1;
            load
        });
        loads.max().unwrap_or(0) as u64
    }

    #[test]
    fn a_large_calendar_knows_gaps_top_and_peak_as_counting_does() {
        let mut state = 7u64;
        let mut dice = |sides: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % sides
        };
        let mut lifetime = || {
            let scale = dice(15);
            let (from, length) = (dice(HORIZON), 1 + dice(4 << scale).min(HORIZON - 1));
            let to = from + length;
            let wraps = to > HORIZON;
            let spans = if wraps {
                [Some((from, HORIZON)), Some((0, to - HORIZON))]
            } else {
                [Some((from, to)), None]
            };
            (spans, 1 + dice(100))
        };
        // First an index of stays put by an empty one, which has but one leaf; then one made of all at once.
        let mut calendar = Calendar::new(Vec::new(), HORIZON);
        let mut stays = Vec::new();
        for round in 0..STAYS {
            let (spans, size) = lifetime();
            if round == 1000 {
                calendar = Calendar::new(stays.clone(), HORIZON);
            }
            if round == 3000 {
                // Cut the leaves as if all stays were there, at bytes that nobody asks for.
                let more = (0..STAYS).map(|i| Stay {
                    bytes: (1 << 40, (1 << 40) + 1),
                    spans: [Some((2 * i, 2 * i + 1)), None],
                    weight: 0,
                });
                let more: Vec<Stay> = more.collect();
                calendar = Calendar::new(stays.iter().chain(&more).copied().collect(), HORIZON);
                assert!(calendar.levels[0].len() > SUMMIT && calendar.summit + 1 < calendar.levels.len());
                more.iter().for_each(|stay| calendar.remove(stay));
            }
            if round > 500 && round % 3 != 0 {
                let gone = stays.swap_remove((round * 7919) as usize % stays.len());
                calendar.remove(&gone);
            }
            if round > 5000 {
                break;
            }
            let found = calendar.gaps(spans, size).to_vec();
            if round % 10 == 0 {
                assert_eq!(found, gaps(&stays, spans, size));
                assert_eq!(calendar.top(), stays.iter().map(|stay: &Stay| stay.bytes.1).max().unwrap_or(0));
                assert_eq!(calendar.peak(), peak(&stays));
            }
            let stay = Stay { bytes: (found[0].0, found[0].0 + size), spans, weight: size };
            calendar.add(&stay);
            stays.push(stay);
        }
    }
}
