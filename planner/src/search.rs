//! Search within a capacity: finds a plan of at most so many bytes, or proves that there is none.
//!
//! The plan is built from below, section by section ([`crate::sections`]). Every item has a `low`, the least offset that
//! what was decided so far leaves it. A *valley* is a section whose lowest items no item from elsewhere can still get
//! under. What lies lowest in a valley is decided completely: one of the items whose `low` is the valley's floor, there,
//! or none of them, and then all of the valley's items lie higher, on something outside it. Items that could stand for
//! each other are tried once. So no plan is met twice, and an unsuccessful search is a proof.
//!
//! What a decision means for the others is worked out before the next one (unary resources of scheduling, Baptiste, Le
//! Pape, Nuijten 2001, chapter 2, with offsets for times):
//!
//! - The items of a section that lie at or above some offset must fit between it and the capacity.
//! - An item that would leave too little room above it for all others cannot be the lowest, and lies on one that can.
//!
//! Then time falls apart where nothing left crosses, and the parts are searched one by one: a part without a plan ends
//! everything since the decision that made it. States that failed are remembered, by the items left and their `low`s.
//! The canonical form of plans and the falling apart are google/minimalloc's (Moffitt, ASPLOS 2023, sections 4 and 5);
//! that valleys are chosen where sections failed most is Boussemart et al. 2004.

use crate::sections::Sections;
use crate::timeline::align_up;

/// Not placed.
const NOWHERE: u64 = u64::MAX;
/// The option that none of a valley's lowest items lies on its floor.
const NONE_OF_THEM: u32 = u32::MAX;
/// No decision: the parts that the problem falls into by itself.
const ROOT: u32 = u32::MAX;
/// Later failures count more, by this factor each.
const GROWTH: f64 = 1.002;
/// Weights are brought down when the growth is beyond this.
const HEAVY: f64 = 1e100;
/// Steps between two questions to `over`: about a millisecond.
const ASK: u64 = 1 << 19;

/// What became of a search.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The offsets are a plan.
    Found,
    /// There is no plan.
    Impossible,
    /// It was not decided.
    Unknown,
}

/// When a search gives up.
#[derive(Clone, Copy)]
pub(crate) struct Limits<'a> {
    pub decisions: u64,
    pub steps: u64,
    /// Whether the caller has had enough.
    pub over: &'a dyn Fn() -> bool,
}

/// How a search decides.
#[derive(Debug, Clone)]
pub(crate) struct Strategy {
    /// By item: its place in the order in which a valley's items are tried.
    pub places: Vec<u32>,
    /// Only valleys on the lowest floor of all, else any.
    pub lowest: bool,
}

/// States that have no plan, by their keys. An entry gives way to a later one.
#[derive(Debug)]
pub(crate) struct Failures(Vec<u128>);

impl Failures {
    /// For a problem of `items` items, in at most `bytes` bytes.
    pub fn new(items: usize, bytes: usize) -> Failures {
        // A search forgets little where there is room for a thousand states an item.
        let most = (bytes / size_of::<u128>()).max(1);
        Failures(vec![0; (items * 1024).next_power_of_two().min(1 << most.ilog2())])
    }

    fn seat(&self, key: u128) -> usize {
        key as usize & (self.0.len() - 1)
    }

    fn has(&self, key: u128) -> bool {
        self.0[self.seat(key)] == key
    }

    fn insert(&mut self, key: u128) {
        let seat = self.seat(key);
        self.0[seat] = key;
    }
}

/// What is known of a section.
#[derive(Debug, Clone, Copy)]
struct Ground {
    /// The least `low` of its items left.
    floor: u64,
    /// The least end of an item left, were it at its `low`.
    end: u64,
    /// How many items have the floor for their `low`.
    lowest: u32,
    /// How many sections they reach to the left of this one, and to the right of it, itself included.
    left: u32,
    right: u32,
}

/// Something to take back.
#[derive(Debug, Clone, Copy)]
enum Change {
    Low { item: u32, was: u64 },
    Ground { section: u32, was: Ground },
    Placed { item: u32 },
}

/// A part of time to be searched: sections `from..to` round the ring.
#[derive(Debug, Clone, Copy)]
struct Part {
    from: u32,
    to: u32,
    /// The decision it came from.
    parent: u32,
    /// The part to be searched after it; 0: none.
    next: u32,
}

/// A decision about a valley.
#[derive(Debug, Clone, Copy)]
struct Decision {
    part: Part,
    valley: u32,
    /// Range of `options`, and the next to be tried.
    options: (u32, u32),
    next: u32,
    /// Changes made before it, parts pending before it.
    changes: u32,
    parts: u32,
    key: u128,
}

/// One search.
pub(crate) struct Search<'a> {
    sections: &'a Sections,
    strategy: &'a Strategy,
    capacity: u64,
    /// Decisions made.
    decisions_made: u64,
    /// Items of sections looked at: what the time goes by.
    pub looks: u64,
    /// Items and sections looked at for whatever reason: what the time goes by where very many blocks meet.
    pub steps: u64,
    /// When `over` is asked next, and whether there were too many steps or it said yes.
    ask: u64,
    stopped: bool,
    /// By item.
    low: Vec<u64>,
    offsets: Vec<u64>,
    keys: &'a [u128],
    /// By section: what is known, the bytes of its items left, and their number.
    ground: Vec<Ground>,
    rest: Vec<u64>,
    left: Vec<u32>,
    /// By section: items left that are alive in it and in the one before it.
    crossing: Vec<u32>,
    /// By section: how often it was where the search failed, later failures weighing more.
    weight: Vec<f64>,
    growth: f64,
    changes: Vec<Change>,
    dirty: Vec<u32>,
    is_dirty: Vec<bool>,
    decisions: Vec<Decision>,
    options: Vec<u32>,
    /// By kind of items: the number of the decision that has one of it among its options, and the last decision's.
    marks: Vec<u64>,
    marked: u64,
    /// Parts made so far; the first is none. `pending` is the one to be searched next.
    parts: Vec<Part>,
    pending: u32,
    /// By section: its items left, as they were sorted last, then those placed, the last one first. Room for lows.
    order: Vec<u32>,
    lows: Vec<u64>,
    impossible: bool,
}

/// A key for each item, to tell states apart.
pub(crate) fn keys(items: usize) -> Vec<u128> {
    (1..=items as u128).map(mix).collect()
}

/// A bijection whose bits depend on all bits (two rounds of xor, multiply; the constant is odd and has no pattern).
fn mix(mut x: u128) -> u128 {
    for _ in 0..2 {
        x ^= x >> 61;
        x = x.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
    }
    x ^ (x >> 64)
}

impl<'a> Search<'a> {
    pub fn new(
        sections: &'a Sections,
        strategy: &'a Strategy,
        keys: &'a [u128],
        capacity: u64,
    ) -> Search<'a> {
        let (items, count) = (sections.items.len(), sections.count as usize);
        let all = 0..sections.count;
        let bytes =
            |section| sections.members.of(section).iter().map(|&i| sections.items[i as usize].size).sum();
        let mut crossing = vec![0; count];
        for item in &sections.items {
            for section in item.first + 1..item.first + item.width {
                crossing[section as usize % count] += 1;
            }
        }
        let unknown = Ground { floor: 0, end: 0, lowest: 0, left: 0, right: 0 };
        let none = Part { from: 0, to: 0, parent: ROOT, next: 0 };
        Search {
            sections,
            strategy,
            capacity,
            decisions_made: 0,
            looks: 0,
            steps: 0,
            ask: ASK,
            stopped: false,
            low: vec![0; items],
            offsets: vec![NOWHERE; items],
            keys,
            ground: vec![unknown; count],
            rest: all.clone().map(bytes).collect(),
            left: all.clone().map(|section| sections.members.of(section).len() as u32).collect(),
            crossing,
            weight: vec![1.0; count],
            growth: 1.0,
            changes: Vec::new(),
            dirty: all.collect(),
            is_dirty: vec![true; count],
            decisions: Vec::new(),
            options: Vec::new(),
            marks: vec![0; items],
            marked: 0,
            parts: vec![none],
            pending: 0,
            order: sections.members.all().to_vec(),
            lows: Vec::new(),
            impossible: false,
        }
    }

    /// The offsets by item, after [`Outcome::Found`].
    pub fn offsets(&self) -> &[u64] {
        &self.offsets
    }

    /// Searches, once, until so many decisions were made or steps taken, or `over` says so.
    pub fn run(&mut self, limits: Limits, failures: &mut Failures) -> Outcome {
        self.impossible = !self.propagate(&limits);
        if self.stopped {
            return Outcome::Unknown;
        }
        self.split(0, self.sections.count, ROOT);
        while self.pending != 0 && !self.impossible {
            // The decision of which an option is to be taken: the part's own, or the one that made a hopeless part.
            let mut decision = self.decide(failures);
            loop {
                if decision == ROOT {
                    self.impossible = true;
                    break;
                }
                self.back_to(decision);
                let Decision { part, options, next, key, .. } = self.decisions[decision as usize];
                if next == options.1 {
                    failures.insert(key);
                    self.growth *= GROWTH;
                    decision = part.parent;
                    continue;
                }
                if self.decisions_made >= limits.decisions || self.is_over(&limits) {
                    return Outcome::Unknown;
                }
                if self.take_option(&limits) {
                    break;
                }
                if self.stopped {
                    return Outcome::Unknown;
                }
            }
        }
        if self.impossible { Outcome::Impossible } else { Outcome::Found }
    }

    /// Whether it is time to stop.
    fn is_over(&mut self, limits: &Limits) -> bool {
        if self.steps >= self.ask {
            self.ask = self.steps + ASK;
            self.stopped |= (limits.over)();
        }
        self.stopped |= self.steps >= limits.steps;
        self.stopped
    }

    /// Takes the next option of the last decision; `false` where it is wrong, or it is time to stop.
    fn take_option(&mut self, limits: &Limits) -> bool {
        let decision = self.decisions.len() as u32 - 1;
        let last = &mut self.decisions[decision as usize];
        let option = self.options[last.next as usize];
        last.next += 1;
        let (Part { from, to, .. }, valley) = (last.part, last.valley);
        self.decisions_made += 1;
        let taken = if option == NONE_OF_THEM { self.lift(valley) } else { self.place(option) };
        let right = taken && self.propagate(limits);
        if right {
            self.split(from, to, decision);
        }
        right
    }

    /// Makes a decision the last one, and takes its option back.
    fn back_to(&mut self, decision: u32) {
        self.decisions.truncate(decision as usize + 1);
        let last = self.decisions[decision as usize];
        self.options.truncate(last.options.1 as usize);
        self.pending = last.part.next;
        self.parts.truncate(last.parts as usize);
        while self.changes.len() > last.changes as usize {
            match self.changes.pop() {
                Some(Change::Low { item, was }) => self.low[item as usize] = was,
                Some(Change::Ground { section, was }) => self.ground[section as usize] = was,
                Some(Change::Placed { item }) => self.unplace(item),
                None => break,
            }
        }
        for section in self.dirty.drain(..) {
            self.is_dirty[section as usize] = false;
        }
    }

    /// Puts an item at its `low`; `false` where another has no room then.
    fn place(&mut self, item: u32) -> bool {
        let sections = self.sections;
        let it = &sections.items[item as usize];
        let offset = self.low[item as usize];
        self.offsets[item as usize] = offset;
        self.changes.push(Change::Placed { item });
        for &section in sections.covers.of(item) {
            self.rest[section as usize] -= it.size;
            let left = &mut self.left[section as usize];
            let from = sections.members.range(section).start;
            let order = &mut self.order[from..from + *left as usize];
            self.steps += u64::from(*left);
            // Behind those left, where it is found again when it is taken back.
            let at = order.iter().position(|&other| other == item).unwrap_or(0);
            order[at..].rotate_left(1);
            *left -= 1;
            self.soil(section);
        }
        for section in it.first + 1..it.first + it.width {
            let section = self.round(section);
            self.crossing[section] -= 1;
        }
        let top = offset + it.size;
        self.steps += sections.meets.of(item).len() as u64;
        sections.meets.of(item).iter().all(|&other| self.raise(other, top))
    }

    fn unplace(&mut self, item: u32) {
        let it = &self.sections.items[item as usize];
        self.offsets[item as usize] = NOWHERE;
        for &section in self.sections.covers.of(item) {
            self.rest[section as usize] += it.size;
            self.left[section as usize] += 1;
        }
        for section in it.first + 1..it.first + it.width {
            let section = self.round(section);
            self.crossing[section] += 1;
        }
    }

    #[inline]
    fn round(&self, section: u32) -> usize {
        (if section >= self.sections.count { section - self.sections.count } else { section }) as usize
    }

    fn soil(&mut self, section: u32) {
        if !std::mem::replace(&mut self.is_dirty[section as usize], true) {
            self.dirty.push(section);
        }
    }

    /// An item lies at `offset` or above; `false` where it has no room there.
    fn raise(&mut self, item: u32, offset: u64) -> bool {
        let was = self.low[item as usize];
        if self.offsets[item as usize] != NOWHERE || was >= offset {
            return true;
        }
        let it = &self.sections.items[item as usize];
        let low = align_up(offset, it.align);
        if low + it.size > self.capacity {
            return false;
        }
        self.changes.push(Change::Low { item, was });
        self.low[item as usize] = low;
        let sections = self.sections;
        self.steps += u64::from(it.width);
        for &section in sections.covers.of(item) {
            self.soil(section);
        }
        true
    }

    /// Works out what the changes mean; `false` where there is no plan any more, or it is time to stop.
    fn propagate(&mut self, limits: &Limits) -> bool {
        while let Some(section) = self.dirty.pop() {
            if self.is_over(limits) {
                return false;
            }
            self.is_dirty[section as usize] = false;
            if self.left[section as usize] > 0 && !self.survey(section) {
                self.weight[section as usize] += self.growth;
                if self.growth > HEAVY {
                    self.growth /= HEAVY;
                    self.weight.iter_mut().for_each(|weight| *weight = (*weight / HEAVY).max(1.0));
                }
                return false;
            }
        }
        true
    }

    /// Looks at one section; `false` where its items do not fit.
    fn survey(&mut self, section: u32) -> bool {
        let sections = self.sections;
        // An item whose low is above this cannot be the lowest.
        let Some(limit) = self.capacity.checked_sub(self.rest[section as usize]) else { return false };
        let from = sections.members.range(section).start;
        let left = self.left[section as usize] as usize;
        self.looks += left as u64;
        self.steps += left as u64;
        let mut ground = Ground { floor: u64::MAX, end: u64::MAX, lowest: 0, left: 0, right: 0 };
        let mut highest = 0;
        for &item in &self.order[from..from + left] {
            let it = &sections.items[item as usize];
            let low = self.low[item as usize];
            highest = low.max(highest);
            if low > limit {
                continue;
            }
            ground.end = ground.end.min(low + it.size);
            if low < ground.floor {
                ground = Ground { floor: low, lowest: 0, left: 0, right: 0, ..ground };
            }
            if low == ground.floor {
                let behind = if section < it.first { sections.count } else { 0 };
                let left = section + behind - it.first;
                ground.lowest += 1;
                ground.left = ground.left.max(left);
                ground.right = ground.right.max(it.width - left);
            }
        }
        if ground.floor > limit {
            return false;
        }
        let was = self.ground[section as usize];
        self.changes.push(Change::Ground { section, was });
        self.ground[section as usize] = ground;
        if highest <= limit {
            return true;
        }
        self.sort(from, left);
        // From the highest down: what lies at or above each must fit.
        let (mut at, mut above) = (left, 0);
        while at > 0 && self.lows[at - 1] > limit {
            at -= 1;
            above += sections.items[self.order[from + at] as usize].size;
            if self.lows[at] + above > self.capacity {
                return false;
            }
        }
        (from + at..from + left).all(|at| self.raise(self.order[at], ground.end))
    }

    /// Sorts the items left of a section, which begin at `from` of `order`, by their lows, and keeps these. They were
    /// sorted when the section was looked at last, and few have moved since.
    fn sort(&mut self, from: usize, left: usize) {
        let order = &mut self.order[from..from + left];
        let lows = &mut self.lows;
        lows.clear();
        self.looks += left as u64;
        for at in 0..left {
            let item = order[at];
            let low = self.low[item as usize];
            lows.push(low);
            let mut to = at;
            while to > 0 && lows[to - 1] > low {
                lows[to] = lows[to - 1];
                order[to] = order[to - 1];
                to -= 1;
            }
            lows[to] = low;
            order[to] = item;
            self.steps += (at - to + 1) as u64;
        }
    }

    /// The items of the valley that are left all lie above its floor; `false` where they do not fit then.
    fn lift(&mut self, valley: u32) -> bool {
        let sections = self.sections;
        match self.next_floor(valley) {
            Some(floor) => sections.members.of(valley).iter().all(|&item| self.raise(item, floor)),
            None => false,
        }
    }

    /// Where the lowest item of the valley can lie if not on its floor: on one that is not in the valley.
    fn next_floor(&mut self, valley: u32) -> Option<u64> {
        let sections = self.sections;
        let floor = self.ground[valley as usize].floor;
        let count = sections.count;
        let mut next = u64::MAX;
        for &item in sections.members.of(valley) {
            let low = self.low[item as usize];
            if self.offsets[item as usize] != NOWHERE || low >= next {
                continue;
            }
            if low > floor {
                next = low;
                continue;
            }
            let meets = sections.meets.of(item);
            if meets.len() + 1 == sections.members.of(valley).len() {
                continue; // All of them are in the valley.
            }
            self.steps += meets.len() as u64;
            for &other in meets {
                if self.offsets[other as usize] != NOWHERE {
                    continue;
                }
                let it = &sections.items[other as usize];
                let end = self.low[other as usize] + it.size;
                let from = if valley >= it.first { valley - it.first } else { valley + count - it.first };
                if end < next && from >= it.width {
                    next = end;
                }
            }
        }
        let top = next.checked_add(self.rest[valley as usize]).filter(|_| next != u64::MAX)?;
        (top <= self.capacity).then_some(next)
    }

    /// Appends the parts that sections `from..to` fall into to those pending.
    fn split(&mut self, from: u32, to: u32, parent: u32) {
        let (mut from, mut to) = (from, to);
        self.steps += u64::from(to - from);
        if to - from == self.sections.count {
            // A ring is cut open where nothing crosses, if there is such a place.
            if let Some(cut) = (from..to).find(|&section| self.crossing[self.round(section)] == 0) {
                (from, to) = (cut, cut + self.sections.count);
            }
        }
        let mut section = from;
        while section < to {
            if self.left[self.wrap(section)] == 0 {
                section += 1;
                continue;
            }
            let start = section;
            section += 1;
            while section < to && self.crossing[self.wrap(section)] > 0 {
                section += 1;
            }
            self.parts.push(Part { from: start, to: section, parent, next: self.pending });
            self.pending = self.parts.len() as u32 - 1;
        }
    }

    /// A section of a part that was cut open more than once.
    #[inline]
    fn wrap(&self, section: u32) -> usize {
        (section % self.sections.count) as usize
    }

    /// Makes a decision about a valley of the pending part, and names it; where the part is known to have no plan, the
    /// decision that made the part.
    fn decide(&mut self, failures: &Failures) -> u32 {
        let (part, sections) = (self.parts[self.pending as usize], self.sections);
        let key = self.key(part);
        if failures.has(key) {
            return part.parent;
        }
        let valley = self.choose(part);
        let from = self.options.len();
        let floor = self.ground[valley as usize].floor;
        self.marked += 1;
        self.steps += sections.members.of(valley).len() as u64;
        for &item in sections.members.of(valley) {
            if self.offsets[item as usize] == NOWHERE && self.low[item as usize] == floor {
                let kind = sections.items[item as usize].kind;
                // Items alike are tried once.
                let mark = &mut self.marks[kind as usize];
                if std::mem::replace(mark, self.marked) != self.marked {
                    self.options.push(item);
                }
            }
        }
        let places = &self.strategy.places;
        self.options[from..].sort_unstable_by_key(|&item| places[item as usize]);
        if self.next_floor(valley).is_some() {
            self.options.push(NONE_OF_THEM);
        }
        let options = (from as u32, self.options.len() as u32);
        self.decisions.push(Decision {
            part,
            valley,
            options,
            next: options.0,
            changes: self.changes.len() as u32,
            parts: self.parts.len() as u32,
            key,
        });
        self.decisions.len() as u32 - 1
    }

    /// What tells a part's state from all others: the items left and their lows.
    fn key(&mut self, part: Part) -> u128 {
        let sections = self.sections;
        let mut key = 0u128;
        for section in part.from..part.to {
            // Each item once: in its first section, of a ring that is one part and of all others.
            let items = sections.begins.of(self.wrap(section) as u32);
            self.steps += 1 + items.len() as u64;
            for &item in items {
                if self.offsets[item as usize] == NOWHERE {
                    let low = u128::from(self.low[item as usize]);
                    key = key.wrapping_add(mix(self.keys[item as usize] ^ low));
                }
            }
        }
        key
    }

    /// The valley of a part with the fewest options, sections that failed often counting as narrower.
    fn choose(&mut self, part: Part) -> u32 {
        let (mut best, mut choice) = ((f64::INFINITY, u64::MAX), 0);
        let mut steps = 2 * u64::from(part.to - part.from);
        let all = || (part.from..part.to).map(|section| self.wrap(section)).filter(|&s| self.left[s] > 0);
        let lowest = all().map(|section| self.ground[section].floor).min().unwrap_or(0);
        for section in all() {
            let ground = &self.ground[section];
            if self.strategy.lowest && ground.floor > lowest {
                continue;
            }
            let spare = ground.floor + self.rest[section] < self.capacity;
            let score = f64::from(ground.lowest + u32::from(spare)) / self.weight[section];
            if (score, ground.floor) < best
                && (ground.floor == lowest || self.is_valley(section as u32, &mut steps))
            {
                best = (score, ground.floor);
                choice = section;
            }
        }
        self.steps += steps;
        choice as u32
    }

    /// Whether nothing can get below the lowest items of a section.
    fn is_valley(&self, section: u32, steps: &mut u64) -> bool {
        let Ground { floor, left, right, .. } = self.ground[section as usize];
        let from = section + self.sections.count - left;
        (from..from + left + right).all(|section| {
            *steps += 1;
            let section = self.wrap(section);
            self.left[section] == 0 || self.ground[section].end > floor
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use crate::plan::Proof;
    use crate::planner::{Effort, Planner, Within};
    use crate::problem::{Block, Problem};
    use crate::verify::verify;

    /// The least height, by putting the blocks down in every order, each as low as those before it allow. Some order is
    /// that of a lowest plan's offsets, and then nothing lies higher than there.
    fn least(problem: &Problem) -> u64 {
        fn go(problem: &Problem, placed: &mut Vec<(usize, u64)>, height: u64, best: &mut u64) {
            if height >= *best {
                return;
            }
            if placed.len() == problem.blocks.len() {
                *best = height;
                return;
            }
            for index in 0..problem.blocks.len() {
                if placed.iter().any(|&(other, _)| other == index) {
                    continue;
                }
                let block = &problem.blocks[index];
                let under = placed.iter().filter(|&&(other, _)| meet(problem, index, other));
                let top =
                    under.map(|&(other, offset)| offset + problem.blocks[other].size).max().unwrap_or(0);
                let offset = top.next_multiple_of(block.align);
                placed.push((index, offset));
                go(problem, placed, height.max(offset + block.size), best);
                placed.pop();
            }
        }
        let mut best = u64::MAX;
        go(problem, &mut Vec::new(), 0, &mut best);
        best
    }

    /// Whether two blocks are alive at one event, event by event.
    fn meet(problem: &Problem, a: usize, b: usize) -> bool {
        let alive = |index: usize, event: u64| {
            let block = &problem.blocks[index];
            let again = problem.period.map_or(event, |period| event + period);
            (block.lower..block.upper).contains(&event) || (block.lower..block.upper).contains(&again)
        };
        (0..problem.period.unwrap_or(40)).any(|event| alive(a, event) && alive(b, event))
    }

    fn problems() -> impl Strategy<Value = Problem> {
        let size = prop_oneof![1u64..9, 1u64..100, Just(64u64)];
        let align = prop_oneof![4 => Just(0u32), 1 => 1u32..7];
        let block = (0u64..12, 1u64..12, size, align);
        (prop::collection::vec(block, 1..8), any::<bool>()).prop_map(|(rows, periodic)| {
            let block = |(id, (lower, length, size, log)): (usize, (u64, u64, u64, u32))| Block {
                id: id as u64,
                lower,
                upper: lower + length,
                size,
                align: 1 << log,
            };
            Problem::new(rows.into_iter().enumerate().map(block).collect())
                .with_period(periodic.then_some(12))
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn small_problems_are_planned_to_their_optimum_and_it_is_proven(problem in problems()) {
            let least = least(&problem);
            let plan = Planner::new().effort(Effort::Thorough).plan(&problem).expect("a sound problem");
            prop_assert_eq!(verify(&problem, &plan.offsets, plan.height), Ok(()));
            prop_assert_eq!(plan.height, least);
            prop_assert!(plan.optimal());
            let bound = problem.lower_bound().bytes;
            prop_assert_eq!(plan.proof, Some(if least == bound { Proof::LoadBound } else { Proof::Search }));
        }

        #[test]
        fn a_capacity_is_enough_or_proven_not_to_be(problem in problems(), part in 50u64..150) {
            let least = least(&problem);
            let capacity = least * part / 100;
            match Planner::new().plan_within(&problem, capacity).expect("a sound problem") {
                Within::Found(plan) => {
                    prop_assert!(least <= capacity);
                    prop_assert_eq!(verify(&problem, &plan.offsets, capacity), Ok(()));
                }
                Within::Impossible(plan) => {
                    prop_assert!(least > capacity);
                    prop_assert!(plan.lower_bound > capacity && plan.lower_bound <= least);
                    prop_assert_eq!(verify(&problem, &plan.offsets, plan.height), Ok(()));
                }
                Within::Unknown(_) => prop_assert!(false, "seven blocks were not decided"),
            }
        }

        #[test]
        fn more_threads_give_the_same_plan(problem in problems(), seed in 0u64..4) {
            let planner = Planner::new().seed(seed);
            let alone = planner.plan(&problem).expect("a sound problem");
            prop_assert_eq!(planner.threads(3).plan(&problem).expect("a sound problem"), alone);
        }
    }
}
