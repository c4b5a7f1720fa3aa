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
use crate::timeline::align_up;

/// Least number of starts and ends in a leaf, and this part of those alive on average. Fewer make the edges cheaper and
/// long lifetimes dearer: of 100,000 blocks with 16 and with 112 alive leaves of 64 to 192 took the least time, with 1250
/// those of 400 to 800, with 4500 those of 1500.
const MOMENTS: usize = 96;
const ALIVE: usize = 4;

/// Children of a node. Fewer make more levels to ask, more make long lifetimes dearer; 8 and 16 differ by little.
const FAN: usize = 8;

/// Nodes of the level that is not climbed beyond. Without the summit those asked for a short lifetime would be more, and
/// what they hold in pieces; with a lower one long lifetimes would have more nodes: of 1, 64, 256, 1024 and 4096 both
/// 256 and 1024 do well.
const SUMMIT: usize = 256;

/// Visitors up to which all are counted through instead of searched by halves.
const FEW: usize = 256;

/// Moments for each visitor of a leaf up to which a table of all of them is faster than sorting.
const TABLE: u64 = 8;

/// Gaps to choose from.
const CHOICE: usize = 8;

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

/// A stay in a part of a leaf, but for its first byte.
#[derive(Debug, Clone, Copy)]
struct Visitor {
    end: u64,
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
    /// Ascending by their first bytes, which are a list of their own: most of the time is spent waiting for memory.
    visitors: Vec<Visitor>,
    begins: Vec<u64>,
    /// Sum of the visitors' weights.
    weight: u64,
    /// No visitor holds more bytes.
    widest: u64,
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

/// What [`Calendar::gaps`] looks for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wish {
    /// When; the second only where the lifetime wraps.
    pub spans: [Option<Span>; 2],
    /// Bytes, at least one.
    pub size: u64,
    /// A power of two.
    pub align: u64,
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
    covers: [Cover; 2],
    found: Vec<Range>,
    spare: Vec<Range>,
    fitting: Vec<Range>,
    loads: Vec<(u64, u64)>,
    changed: Vec<usize>,
    above: Vec<usize>,
}

impl Calendar {
    /// An index of stays that share no byte while they meet. `horizon`: the end of time, the period on a circle.
    pub fn new(mut stays: Vec<Stay>, horizon: u64) -> Calendar {
        let mut moments: Vec<u64> =
            stays.iter().flat_map(|stay| stay.spans).flatten().flat_map(|span| [span.0, span.1]).collect();
        moments.sort_unstable();
        let lived: u128 =
            stays.iter().flat_map(|stay| stay.spans).flatten().map(|span| u128::from(span.1 - span.0)).sum();
        let time = moments.last().zip(moments.first()).map_or(1, |(last, first)| (last - first).max(1));
        // Below the number of stays, as each lives no longer than all of them.
        let alive = (lived / u128::from(time)) as usize;
        let mut starts = vec![0];
        for &moment in moments.iter().step_by(MOMENTS.max(alive / ALIVE)).skip(1) {
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
            covers: Default::default(),
            found: Vec::new(),
            spare: Vec::new(),
            fitting: Vec::new(),
            loads: Vec::new(),
            changed: Vec::new(),
            above: Vec::new(),
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
                    let leaf = &mut calendar.leaves[leaf];
                    leaf.insert(leaf.begins.len(), stay, span);
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
            let held = Gaps::around(leaf.near(0).map(|(bytes, _)| bytes));
            let free = held.among(&open);
            let peak = weight + leaf.weight;
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
        let mut covers = std::mem::take(&mut self.covers);
        let cover = &mut covers[0];
        for span in stay.spans.into_iter().flatten() {
            self.cover(span, cover);
            for &(level, index) in &cover.nodes {
                let node = &mut self.levels[level][index];
                node.open.take(stay.bytes.0, stay.bytes.1);
                node.weight += stay.weight;
                self.fill(level, index, stay);
            }
            for &index in &cover.edges {
                let leaf = &mut self.leaves[index];
                leaf.insert(leaf.below(stay.bytes.0), stay, span);
                self.crowd = self.crowd.max(leaf.visitors.len());
                self.fill(0, index, stay);
            }
        }
        self.covers = covers;
    }

    /// A stay of [`Calendar::add`] is over.
    pub fn remove(&mut self, stay: &Stay) {
        self.shrink(stay, stay.bytes.0, 0);
    }

    /// A stay of [`Calendar::add`] holds no more than its bytes below `end` and weighs less; without any it is over.
    pub fn shrink(&mut self, stay: &Stay, end: u64, weight: u64) {
        let (given, less) = ((end, stay.bytes.1), stay.weight - weight);
        let mut covers = std::mem::take(&mut self.covers);
        let cover = &mut covers[0];
        for span in stay.spans.into_iter().flatten() {
            self.cover(span, cover);
            for &(level, index) in &cover.nodes {
                let node = &mut self.levels[level][index];
                node.open.give(given.0, given.1);
                node.weight -= less;
                node.peak -= less;
            }
            for &index in &cover.edges {
                let leaf = &mut self.leaves[index];
                let at = leaf.position(stay, span);
                if end == stay.bytes.0 {
                    leaf.begins.remove(at);
                    leaf.visitors.remove(at);
                } else {
                    (leaf.visitors[at].end, leaf.visitors[at].weight) = (end, weight);
                }
                leaf.weight -= less;
                leaf.loose = true;
                // Keeps the bound from growing where stays come and go again and again.
                let node = &mut self.levels[0][index];
                node.peak = node.peak.min(node.weight + leaf.weight);
            }
            self.free(cover, given);
        }
        self.covers = covers;
    }

    /// Whether a stay of [`Calendar::add`] could be given other spans, nobody being in its way. It is not where they
    /// reach into leaves that its own do not reach into.
    pub fn shift(&mut self, stay: &Stay, spans: [Option<Span>; 2]) -> bool {
        let mut covers = std::mem::take(&mut self.covers);
        let pairs = || stay.spans.into_iter().zip(spans);
        let alike = pairs().all(|pair| match pair {
            (Some(old), Some(new)) => {
                let [one, other] = &mut covers;
                self.cover(old, one);
                self.cover(new, other);
                // What holds bytes all through a leaf is in nobody's way who is there already.
                let free = |&index: &usize| {
                    let near = self.leaves[index].near(stay.bytes.0);
                    let meets = |(bytes, span): (Range, Span)| {
                        bytes.0 < stay.bytes.1 && stay.bytes.0 < bytes.1 && span.0 < new.1 && new.0 < span.1
                    };
                    near.take_while(|(bytes, _)| bytes.0 < stay.bytes.1)
                        .all(|other| other == (stay.bytes, old) || !meets(other))
                };
                (&one.nodes, &one.edges) == (&other.nodes, &other.edges) && other.edges.iter().all(free)
            }
            (None, None) => true,
            _ => false,
        });
        if alike {
            for (old, new) in pairs().filter_map(|(old, new)| old.zip(new)) {
                self.cover(old, &mut covers[0]);
                for &index in &covers[0].edges {
                    let leaf = &mut self.leaves[index];
                    let at = leaf.position(stay, old);
                    leaf.visitors[at].span = new;
                    leaf.loose = true;
                    let (node, most) = (&self.levels[0][index], leaf.weight);
                    let peak = (node.peak + stay.weight).min(node.weight + most);
                    self.raise(0, index, peak);
                }
            }
        }
        self.covers = covers;
        alike
    }

    /// Takes bytes from the free ones of a node and of those above, and raises their peaks.
    fn fill(&mut self, level: usize, mut index: usize, stay: &Stay) {
        let peak = self.levels[level][index].peak + stay.weight;
        self.raise(level, index, peak);
        for row in &mut self.levels[level..] {
            if !row[index].free.take(stay.bytes.0, stay.bytes.1) {
                return;
            }
            index /= FAN;
        }
    }

    /// A node's peak may be as high as this, and those above accordingly.
    fn raise(&mut self, level: usize, mut index: usize, mut peak: u64) {
        for (row, nodes) in self.levels.iter_mut().enumerate().skip(level) {
            let node = &mut nodes[index];
            if row > level {
                peak += node.weight;
            }
            if peak <= node.peak {
                return;
            }
            node.peak = peak;
            index /= FAN;
        }
    }

    /// Gives bytes that were held all through a span to the free ones of its nodes and of those above, as far as nobody
    /// else holds them.
    fn free(&mut self, cover: &Cover, bytes: Range) {
        let (mut found, mut spare) = (std::mem::take(&mut self.found), std::mem::take(&mut self.spare));
        let (mut changed, mut above) = (std::mem::take(&mut self.changed), std::mem::take(&mut self.above));
        changed.clear();
        changed.extend(&cover.edges);
        let mut nodes = cover.nodes.iter().peekable();
        let mut level = 0;
        // Level by level, so that a node above several that changed is looked at once.
        while level < self.levels.len() && (!changed.is_empty() || nodes.peek().is_some()) {
            while let Some(&(_, index)) = nodes.next_if(|node| node.0 == level) {
                changed.push(index);
            }
            above.clear();
            for &index in &changed {
                found.clear();
                found.push(bytes);
                self.levels[level][index].open.common(&found, 1, &mut spare);
                std::mem::swap(&mut found, &mut spare);
                if level == 0 {
                    let near = self.leaves[index].near(bytes.0);
                    without(&found, near.map(|(bytes, _)| bytes), 1, &mut spare);
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
                let node = &mut self.levels[level][index];
                for &(from, to) in &found {
                    node.free.give(from, to);
                }
                if !found.is_empty() && !above.contains(&(index / FAN)) {
                    above.push(index / FAN);
                }
            }
            std::mem::swap(&mut changed, &mut above);
            level += 1;
        }
        (self.found, self.spare, self.changed, self.above) = (found, spare, changed, above);
    }

    /// Gaps during the spans of a wish in which it fits, ascending: at least the lowest few, or all that begin below
    /// `ceiling`, and in any case one.
    pub fn gaps(&mut self, wish: &Wish, ceiling: u64) -> &[Range] {
        let mut covers = std::mem::take(&mut self.covers);
        for (cover, span) in covers.iter_mut().zip(wish.spans) {
            span.into_iter().for_each(|span| self.cover(span, cover));
        }
        let (mut found, mut spare) = (std::mem::take(&mut self.found), std::mem::take(&mut self.spare));
        let mut fitting = std::mem::take(&mut self.fitting);
        fitting.clear();
        let narrowest = self.narrowest(&covers[0]);
        let (mut floor, mut pieces) = (0, CHOICE);
        loop {
            let end = narrowest.some(floor, wish.size, pieces, &mut found);
            self.sift(&covers, wish.spans, Some(narrowest), wish.size, &mut found, &mut spare);
            fitting.extend(found.iter().filter(|&&(from, to)| {
                align_up(from, wish.align).checked_add(wish.size).is_some_and(|end| end <= to)
            }));
            match end {
                Some(end) if fitting.is_empty() || fitting.len() < CHOICE && end < ceiling => {
                    (floor, pieces) = (end, 4 * pieces);
                }
                _ => break,
            }
        }
        (self.covers, self.found, self.spare, self.fitting) = (covers, found, spare, fitting);
        &self.fitting
    }

    /// Whether the stay's bytes are free during its spans.
    pub fn fits(&mut self, stay: &Stay) -> bool {
        let mut covers = std::mem::take(&mut self.covers);
        for (cover, span) in covers.iter_mut().zip(stay.spans) {
            span.into_iter().for_each(|span| self.cover(span, cover));
        }
        let (mut found, mut spare) = (std::mem::take(&mut self.found), std::mem::take(&mut self.spare));
        found.clear();
        found.push(stay.bytes);
        self.sift(&covers, stay.spans, None, stay.bytes.1 - stay.bytes.0, &mut found, &mut spare);
        let fits = !found.is_empty();
        (self.covers, self.found, self.spare) = (covers, found, spare);
        fits
    }

    /// Gaps of which everything that is free during a span is a part: those of the longest node inside it, else of the
    /// node round it that leaves the most of them, which are the smallest.
    fn narrowest(&self, cover: &Cover) -> &Gaps {
        if let Some(&(level, index)) = cover.nodes.last() {
            return &self.levels[level][index].free;
        }
        let (mut index, mut most) = (cover.ends.0, &self.levels[0][cover.ends.0].open);
        for row in &self.levels[1..=self.summit] {
            index /= FAN;
            most = if row[index].open.count() > most.count() { &row[index].open } else { most };
        }
        most
    }

    /// Leaves of ascending ranges, which are all of the gaps `known`, what is free during the spans, in pieces of at least
    /// `least` bytes.
    fn sift(
        &self,
        covers: &[Cover; 2],
        spans: [Option<Span>; 2],
        known: Option<&Gaps>,
        least: u64,
        found: &mut Vec<Range>,
        spare: &mut Vec<Range>,
    ) {
        for (cover, span) in covers.iter().zip(spans) {
            let Some(span) = span else { continue };
            // The longest first: they leave little, and only that is looked for among the others.
            let nodes = cover.nodes.iter().rev().map(|&(level, index)| &self.levels[level][index].free);
            let above = (0..=self.summit).rev().flat_map(|level| {
                let (row, width) = (&self.levels[level], FAN.pow(level as u32));
                let (first, last) = (cover.ends.0 / width, cover.ends.1 / width);
                let last = (last != first).then(|| &row[last].open);
                [Some(&row[first].open), last].into_iter().flatten()
            });
            let unknown = |&gaps: &&Gaps| known.is_none_or(|known| !std::ptr::eq(gaps, known));
            for gaps in nodes.chain(above).filter(unknown) {
                gaps.common(found, least, spare);
                std::mem::swap(found, spare);
                if found.is_empty() {
                    return;
                }
            }
            for &index in &cover.edges {
                let Some(&(from, _)) = found.first() else { return };
                let near = self.leaves[index].near(from);
                // Those that do not meet the span hold nothing: about half of them, which no processor foresees, so that
                // a product is faster than a branch.
                let meeting = near.map(|(bytes, other)| {
                    let meets = u64::from((other.0 < span.1) & (span.0 < other.1));
                    (bytes.0 * meets, bytes.1 * meets)
                });
                without(found, meeting, least, spare);
                std::mem::swap(found, spare);
            }
        }
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
                let to = self.starts.get(index + 1).copied().unwrap_or(self.horizon);
                let peak = self.leaves[index].peak((self.starts[index], to), &mut self.loads);
                self.levels[0][index].weight + peak
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
                let last = to - 1;
                // Those far apart have the least in common, so the ends are asked first.
                let indices = (from + 1..last).chain((from < last).then_some(from)).chain([last]);
                cover.nodes.extend(indices.map(|index| (level, index)));
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
    /// Visitors whose first byte is below this one.
    fn below(&self, byte: u64) -> usize {
        if self.begins.len() > FEW {
            return self.begins.partition_point(|&begin| begin < byte);
        }
        // Loads that do not wait for each other.
        self.begins.iter().map(|&begin| usize::from(begin < byte)).sum()
    }

    /// A new visitor, so many being below it.
    fn insert(&mut self, at: usize, stay: &Stay, span: Span) {
        self.begins.insert(at, stay.bytes.0);
        self.visitors.insert(at, Visitor { end: stay.bytes.1, span, weight: stay.weight });
        self.weight += stay.weight;
        self.widest = self.widest.max(stay.bytes.1 - stay.bytes.0);
        self.loose = true;
    }

    /// Where the visitor of a stay is.
    fn position(&self, stay: &Stay, span: Span) -> usize {
        let mut at = self.below(stay.bytes.0);
        // Those that begin at one byte do so at different times.
        while self.visitors[at].span != span {
            at += 1;
        }
        at
    }

    /// Bytes and spans of visitors, those left out that hold only bytes below this one.
    fn near(&self, from: u64) -> impl Iterator<Item = (Range, Span)> {
        let first = self.below(from.saturating_sub(self.widest));
        let visitors = self.begins[first..].iter().zip(&self.visitors[first..]);
        visitors.map(|(&begin, visitor)| ((begin, visitor.end), visitor.span))
    }

    /// The highest load of the visitors of this leaf, which is so long.
    fn peak(&self, leaf: Span, changes: &mut Vec<(u64, u64)>) -> u64 {
        let spans = self.visitors.iter().map(|visitor| {
            (visitor.span.0.max(leaf.0) - leaf.0, visitor.span.1.min(leaf.1) - leaf.0, visitor.weight)
        });
        changes.clear();
        // Changes modulo 2^64, whose sums are bytes alive: by a table where moments are few, else sorted.
        let moments = leaf.1 - leaf.0;
        if moments <= TABLE * self.visitors.len() as u64 {
            changes.extend((0..=moments).map(|at| (at, 0)));
            for (from, to, weight) in spans {
                let from = &mut changes[from as usize].1;
                *from = from.wrapping_add(weight);
                let to = &mut changes[to as usize].1;
                *to = to.wrapping_sub(weight);
            }
        } else {
            changes
                .extend(spans.flat_map(|(from, to, weight)| [(from, weight), (to, weight.wrapping_neg())]));
            changes.sort_unstable_by_key(|change| change.0);
        }
        let mut load = 0u64;
        let loads = changes.chunk_by(|one, other| one.0 == other.0).map(|changes| {
            load = changes.iter().fold(load, |load, change| load.wrapping_add(change.1));
            load
        });
        loads.max().unwrap_or(0)
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
        let mut stays: Vec<Stay> = Vec::new();
        let (mut moved, mut refused) = (0, 0);
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
            let wish = Wish { spans, size, align: 1 << (round % 4) };
            let ceiling = calendar.top() * (round % 3) / 2;
            let found = calendar.gaps(&wish, ceiling).to_vec();
            if round % 10 == 0 {
                let mut expected = gaps(&stays, spans, size);
                expected.retain(|gap| align_up(gap.0, wish.align) <= gap.1 - size);
                let (few, rest) = expected.split_at(found.len());
                assert_eq!(found, few);
                assert!(!few.is_empty());
                assert!(few.len() >= CHOICE || rest.first().is_none_or(|gap| gap.0 >= ceiling));
                let from = round % 7 * calendar.top() / 7;
                let stay = Stay { bytes: (from, from + size), spans, weight: 0 };
                let free = |gap: &Range| gap.0 <= from && from + size <= gap.1;
                assert_eq!(calendar.fits(&stay), gaps(&stays, spans, size).iter().any(free));
                assert_eq!(calendar.top(), stays.iter().map(|stay: &Stay| stay.bytes.1).max().unwrap_or(0));
                assert_eq!(calendar.peak(), peak(&stays));
            }
            let stay = Stay { bytes: (found[0].0, found[0].0 + size), spans, weight: size };
            calendar.add(&stay);
            stays.push(stay);
            let other = (round * 104_729) as usize % stays.len();
            let stay = &mut stays[other];
            let (begin, size) = (stay.bytes.0, stay.bytes.1 - stay.bytes.0);
            if round % 2 == 0 && size > 1 {
                calendar.shrink(stay, begin + size / 2, stay.weight / 2);
                (stay.bytes.1, stay.weight) = (begin + size / 2, stay.weight / 2);
            } else if let [Some((from, to)), None] = stay.spans {
                let spans =
                    [Some((from, (to + round % 81).saturating_sub(40).clamp(from + 1, HORIZON))), None];
                let was = *stay;
                let others = stays.iter().enumerate().filter(|&(index, _)| index != other);
                let others: Vec<Stay> = others.map(|(_, stay)| *stay).collect();
                let clear = gaps(&others, spans, 1);
                let free = clear.iter().any(|gap| gap.0 <= was.bytes.0 && was.bytes.1 <= gap.1);
                let shifted = calendar.shift(&was, spans);
                assert!(free || !shifted);
                if shifted {
                    moved += u32::from(spans != was.spans);
                    stays[other].spans = spans;
                } else {
                    refused += u32::from(!free);
                }
            }
        }
        assert!(moved > 100 && refused > 20, "{moved} shifted, {refused} in somebody's way");
    }
}
