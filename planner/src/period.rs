//! The period of a program that does not mark its steps, found in the sequence of its allocations' sizes
//! alone.
//!
//! A program that repeats a step asks for the same sizes in the same order, so every size equals the one a *period* of
//! allocations before. Two things blur this: sizes that follow the data differ by a few percent from step to step, and
//! an allocation more or less comes and goes. Where whole steps differ in size (sequences of other lengths), what remains
//! is the *contour*: which allocation is larger than the one before it, which smaller, which alike.
//!
//! 1. **Candidates**: the contours of the newest [`WORD`] allocations and of some stretches before are looked
//!    for in all that was seen, 32 of them in one machine word. A stretch that comes again says how long ago
//!    it was.
//! 2. **Proof**: a candidate is compared allocation by allocation over a whole period, at least [`EVIDENCE`]
//!    (half as many where all sizes are exactly the same, twice as many of a short period) and at most
//!    [`LONG`] allocations. Most of the bytes must be asked for as a period before, and far more often than
//!    at other distances: a program that asks for one size all the time agrees with itself at any distance,
//!    and has no period.
//! 3. **Choice**: the shortest period that is nearly as good as the best. Layers of a model, micro-batches of
//!    a step agree with each other in part; the step they stand in agrees in all.
//!
//! Where a step begins within the period is for [`boundary`] to say, and [`next_boundary`] follows it through a sequence
//! in which allocations come and go.
//!
//! A period that only the contour shows must be seen nearly three times, because steps of two lengths may just have
//! followed each other. What repeats may still be the layers of a model, each of which leaves blocks for the
//! way back: [`Period::is_balanced`] separates them from steps once allocations and frees were recorded. One
//! search costs O(n) for n allocations and a few comparisons for each candidate.

use std::cell::Cell;
use std::cmp::Ordering;
use std::collections::HashMap;

/// Contours in a machine word.
const WORD: usize = 32;
/// Stretches of [`WORD`] contours that are looked for. One of them may hold what came out of the order.
const STRETCHES: usize = 8;
/// A stretch must have as many contours other than "alike": a constant stretch is found everywhere.
const MIN_CHANGES: u32 = 4;
/// Allocations compared at least: fewer agree by chance.
pub const EVIDENCE: usize = 96;
/// The same where every size is exactly that of a period before: half as many are enough, as chance rarely
/// agrees in all.
pub const EXACT_EVIDENCE: usize = EVIDENCE / 2;
/// The same where only the contour repeats, which has three values.
const CONTOUR_EVIDENCE: usize = 2 * EVIDENCE;
/// Of shorter periods twice as many: what repeats so soon is most often a loop within a step, over tables or parameters. (That
/// of sixteen sparse tables asks for 14 blocks a turn.)
pub const SHORT: usize = 24;
/// Upper bound of the allocations compared, however long the period.
const LONG: usize = 1024;
/// Candidates proved at most, the shortest first.
const CANDIDATES: usize = 256;
/// Sizes within one part in this many of each other are alike: sparse gradients vary by one in a hundred, the shapes of
/// one model by far more.
const ALIKE: u64 = 16;
/// A period over which live bytes do not return to the same level must have lasted for one part in this many
/// of all allocations seen. What repeats within the first step, layers of a model, has not.
const RECENT: usize = 4;
/// The same where only the contour repeats.
const CONTOUR_RECENT: usize = 2;
/// What is alive may differ from one period to the next by one part in this many of what comes and goes within it. A layer
/// leaves far more for the way back than a step leaves to the next one.
const BALANCE: u64 = 8;
/// Share of the bytes that must be asked for as a period before.
const SHARE: f64 = 0.9;
/// Share of the allocations whose contour must be that of a period before.
const CONTOUR_SHARE: f64 = 0.85;
/// What must remain of it when agreement by chance is taken off, as Cohen's kappa does.
const KAPPA: f64 = 0.6;
/// A longer period must agree so much more to be preferred.
const BETTER: f64 = 0.02;
/// The same of contours: of steps of other sizes some always differ.
const CONTOUR_BETTER: f64 = 0.06;
/// What came again fewer times may be a part of a longer period that has come again.
const FEW_TURNS: usize = 4;
/// Beyond this share a period leaves nothing over: a shorter one must do so, too, or it is that of layers
/// between which little else comes.
const WHOLE: f64 = 0.995;
/// Periods whose sizes must have come again where steps of several sizes take turns.
const TURNED_PERIODS: usize = 2;
/// Distances, in parts of the period, at which agreement is by chance.
const ELSEWHERE: [f64; 5] = [0.21, 0.37, 0.5, 0.63, 0.79];

/// Length of a boundary's fingerprint: the boundary is found again by as many allocations after it, at most.
pub const FINGERPRINT: usize = 16;
/// So many of them may differ.
const FINGERPRINT_DIFFERS: usize = 2;
/// A boundary is looked for within one part in this many of a period around the place where it should be.
const DRIFT: usize = 8;
/// What is alive at a boundary may exceed the least by one part in this many of the difference to the most.
const LITTLE: u64 = 64;
/// The same where a whole step was seen after it.
const NEARLY_LITTLE: u64 = 4;
/// A size is rare enough for a boundary when it comes at most this many times as often as the rarest.
const RARE: usize = 2;

/// What happened to a block of some bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// It came alive.
    Allocate(u64),
    /// It was freed.
    Free(u64),
}

/// A period of a program.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Period {
    /// Allocations in a period.
    pub allocations: usize,
    /// Steps in a period: 1, or more where steps of different sizes take turns. All have the same number of allocations.
    pub steps: usize,
    /// The share of the bytes that are asked for as a period before.
    pub share: f64,
}

impl Period {
    /// The same with as many periods taken together as make at least so many allocations.
    pub fn repeated(self, allocations: usize) -> Period {
        let times = allocations.div_ceil(self.allocations).max(1);
        Period { allocations: times * self.allocations, steps: times * self.steps, ..self }
    }

    /// Whether sizes come again, and not their contour only.
    pub fn repeats(&self) -> bool {
        self.share >= SHARE
    }

    /// Whether a sequence of allocations repeats with this period; the first period has nothing to compare
    /// with.
    pub fn holds(&self, sizes: &[u64]) -> bool {
        let Some(window) = sizes.len().checked_sub(self.allocations + 1).filter(|&window| window > 0) else {
            return false;
        };
        let (effort, distance) = (Effort::any(), self.allocations);
        let view = View { sizes, effort: &effort };
        if self.repeats() { view.is_period(distance, window) } else { view.is_contour(distance, window) }
    }

    /// The newest sizes that say whether a program keeps to this period.
    pub fn recent(&self) -> usize {
        1 + self.allocations + self.allocations.max(EVIDENCE)
    }

    /// Whether it has lasted for a good part of so many allocations, of which these are the newest.
    pub fn lasts(&self, sizes: &[u64], logged: usize) -> bool {
        let part = logged / if self.repeats() { RECENT } else { CONTOUR_RECENT };
        sizes.len().checked_sub(part + self.allocations + 1).is_some_and(|from| self.holds(&sizes[from..]))
    }

    /// How many of the newest sizes repeat, those of the first period included; a few that come out of the order do not count.
    pub fn repeating(&self, sizes: &[u64]) -> usize {
        if !self.repeats() {
            let two = 2 * self.allocations + 1;
            let holds = |begin: usize| self.holds(&sizes[begin..begin + two]);
            let Some(mut begin) = sizes.len().checked_sub(two).filter(|&begin| holds(begin)) else {
                return self.allocations.min(sizes.len());
            };
            while begin > 0 && holds(begin.saturating_sub(self.allocations)) {
                begin = begin.saturating_sub(self.allocations);
            }
            return sizes.len() - begin;
        }
        let differs = |at: usize| !alike(sizes[at], sizes[at - self.allocations]);
        let mut begin = sizes.len();
        let mut differing = 0;
        for at in (self.allocations..sizes.len()).rev() {
            differing += usize::from(differs(at));
            differing -= usize::from(at + FINGERPRINT < sizes.len() && differs(at + FINGERPRINT));
            if differing > FINGERPRINT_DIFFERS {
                break;
            }
            begin = if differing == 0 { at } else { begin };
        }
        (sizes.len() - begin + self.allocations).min(sizes.len())
    }

    /// After how many of its periods the newest sizes come again, all of which are among these: steps of as many sizes take
    /// turns. `None` where none do so within so many.
    pub fn turns(&self, sizes: &[u64], most: usize) -> Option<usize> {
        let window = TURNED_PERIODS * self.allocations;
        let seen = |turns: usize| turns * self.allocations + window <= sizes.len();
        let effort = Effort::any();
        let view = View { sizes, effort: &effort };
        (2..=most)
            .take_while(|&turns| seen(turns))
            .find(|turns| view.is_period(turns * self.allocations, window))
    }

    /// Whether as much is alive after a period as before it, by the newest changes; `false` where these are
    /// too few.
    ///
    /// Steps of several sizes are compared where least is alive in each.
    pub fn is_balanced(&self, changes: &[Change]) -> bool {
        let (mut alive, mut before) = (0i64, Vec::new());
        for change in changes {
            match *change {
                Change::Allocate(bytes) => {
                    before.push(alive);
                    alive = alive.saturating_add(signed(bytes));
                }
                Change::Free(bytes) => alive = alive.saturating_sub(signed(bytes)),
            }
        }
        let range = |part: &[i64]| part.iter().copied().min().zip(part.iter().copied().max());
        let Some(from) = before.len().checked_sub(self.allocations) else { return false };
        let (earlier, newest) = before.split_at(from);
        let Some((least, most)) = range(newest) else { return false };
        let left = if self.repeats() {
            earlier.last().zip(newest.last()).map(|(earlier, newest)| newest.saturating_sub(*earlier))
        } else {
            let earlier = from.checked_sub(self.allocations).map(|from| &earlier[from..]);
            earlier.and_then(range).map(|(earlier, _)| least.saturating_sub(earlier))
        };
        left.is_some_and(|left| left.unsigned_abs() <= most.abs_diff(least) / BALANCE)
    }
}

/// Finds the period at the end of a sequence of allocations, by their sizes in bytes; `None` where there is none, or too
/// little was seen.
pub fn find(sizes: &[u64]) -> Option<Period> {
    let effort = Effort::any();
    View { sizes, effort: &effort }.find()
}

/// [`find`] in so many comparisons of two sizes, of which each takes about two nanoseconds.
///
/// # Errors
/// [`TooLong`] where they are not enough: sequences that nearly repeat, in many ways and for long, take a hundred
/// times as many as others.
pub fn find_within(sizes: &[u64], comparisons: u64) -> Result<Option<Period>, TooLong> {
    let effort = Effort { left: Cell::new(comparisons), is_spent: Cell::new(false) };
    let found = View { sizes, effort: &effort }.find();
    if effort.is_spent.get() { Err(TooLong) } else { Ok(found) }
}

/// Looking for a period takes more comparisons than were allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooLong;

impl std::fmt::Display for TooLong {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("looking for a period takes more comparisons than were allowed")
    }
}

impl std::error::Error for TooLong {}

/// Comparisons that may still be made.
struct Effort {
    left: Cell<u64>,
    /// More were wanted: what was found since then says nothing.
    is_spent: Cell<bool>,
}

impl Effort {
    /// As many as it takes.
    fn any() -> Self {
        Self { left: Cell::new(u64::MAX), is_spent: Cell::new(false) }
    }

    /// Takes so many; `false` where there are fewer.
    fn spend(&self, comparisons: usize) -> bool {
        let left = self.left.get().checked_sub(comparisons as u64).filter(|_| !self.is_spent.get());
        match left {
            Some(left) => self.left.set(left),
            None => self.is_spent.set(true),
        }
        left.is_some()
    }
}

/// Sizes, and the effort that comparing them may take.
#[derive(Clone, Copy)]
struct View<'a> {
    sizes: &'a [u64],
    effort: &'a Effort,
}

impl View<'_> {
    fn find(self) -> Option<Period> {
        let sizes = self.sizes;
        let distances = candidates(&contours(sizes));
        let period = self.find_sizes(&distances);
        if period.is_some_and(|period| period.lasts(sizes, sizes.len())) {
            return period;
        }
        // What has not repeated for long may be a loop within a step, whose contour has repeated for longer.
        let step = self.find_contour(&distances).filter(|step| match period {
            Some(Period { allocations, .. }) => {
                step.allocations > allocations
                    && !self.is_period(allocations, contour_window(step.allocations))
            }
            None => true,
        });
        step.or(period)
    }

    /// [`find`] by sizes.
    fn find_sizes(self, distances: &[usize]) -> Option<Period> {
        let sizes = self.sizes;
        let seen = sizes.len();
        let window = |period: usize| {
            let times = if period < SHORT { 2 } else { 1 };
            let exact = period.clamp(times * EXACT_EVIDENCE, LONG);
            if is_exact(sizes, period, exact) { exact } else { period.clamp(times * EVIDENCE, LONG) }
        };
        let candidates = distances.iter().copied().filter(|&period| period + window(period) <= seen);
        let proved = |period: usize| {
            let window = window(period);
            // Before a loop there may be a row of one size, which agrees with itself at any distance.
            let older = self.without_newest(window / 2);
            self.is_period(period, window) && (period >= SHORT || older.is_period(period, window / 2))
        };
        let mut periods: Vec<usize> = Vec::new();
        // Several turns of a loop are no period where the loop has not lasted for long enough to be one.
        let turns = |period: usize, periods: &[usize]| {
            let shorter = distances.iter().filter(|&&short| short < SHORT.min(period));
            let mut loops =
                shorter.filter(|&short| period.is_multiple_of(*short) && !periods.contains(short));
            loops.any(|&short| self.is_period(short, window(period)))
        };
        // A multiple of a period that leaves nothing over is no other period.
        let mut whole: Option<usize> = None;
        for period in candidates.clone() {
            let known = whole.is_some_and(|whole| period.is_multiple_of(whole));
            if known || !proved(period) || turns(period, &periods) {
                continue;
            }
            if whole.is_none() && self.bytes_alike(period, window(period)) >= WHOLE {
                whole = Some(period);
            }
            periods.push(period);
        }
        let &longest = periods.last()?;
        // All of them over the same allocations: what repeats within a step agrees only as long as that lasts.
        let window = window(longest);
        let share = |period: usize| self.newest(window + period).served(period);
        let best = periods.iter().map(|&period| share(period)).fold(0.0, f64::max);
        let enough = if best >= WHOLE { WHOLE } else { best - BETTER };
        let periods: Vec<usize> = periods.into_iter().filter(|&period| share(period) >= enough).collect();
        let period = self.whole_turn(&periods)?;
        let step =
            candidates.filter(|&step| step <= period && period.is_multiple_of(step)).find(|&step| {
                step == period || (period + step < seen && self.is_contour(step, period.min(seen - step)))
            })?;
        Some(Period { allocations: period, steps: period / step, share: share(period) })
    }

    /// The shortest of these periods that is no part of another: what came again a few times only, within a turn of what has come again as a
    /// whole, and for twice as long.
    fn whole_turn(self, periods: &[usize]) -> Option<usize> {
        if let [only] = periods {
            return Some(*only);
        }
        let repeating = |&allocations: &usize| {
            let period = Period { allocations, steps: 1, share: 1.0 };
            let lasted = if self.effort.spend(self.sizes.len()) { period.repeating(self.sizes) } else { 0 };
            (allocations, lasted)
        };
        let periods: Vec<(usize, usize)> = periods.iter().map(repeating).collect();
        let is_part = |period: usize, lasted: usize| {
            let is_whole = |&(longer, lasts)| longer > period && lasts >= 2 * lasted.max(longer);
            lasted < FEW_TURNS * period && periods.iter().any(is_whole)
        };
        periods.iter().find(|&&(period, lasted)| !is_part(period, lasted)).map(|&(period, _)| period)
    }

    /// [`find`] by contours alone.
    fn find_contour(self, distances: &[usize]) -> Option<Period> {
        let periods: Vec<usize> = distances
            .iter()
            .copied()
            .filter(|&period| period + contour_window(period) < self.sizes.len())
            .filter(|&period| {
                // As in `find_sizes`: a row of one size agrees with itself.
                let older = self.without_newest(contour_window(period) / 2);
                self.is_contour(period, contour_window(period))
                    && (period >= SHORT || older.is_contour(period, contour_window(period) / 2))
            })
            .collect();
        let window = contour_window(*periods.last()?);
        let share = |period: usize| self.contours_alike(period, window);
        let best = periods.iter().map(|&period| share(period)).fold(0.0, f64::max);
        let period = periods.iter().copied().find(|&period| share(period) >= best - CONTOUR_BETTER)?;
        Some(Period { allocations: period, steps: 1, share: self.bytes_alike(period, period) })
    }
}

/// Allocations compared where only the contour repeats: of nearly two periods, so that a step that is found at the end of its third
/// repetition can be recorded from the fourth on. One would not do: steps of two lengths may just have followed each other.
fn contour_window(period: usize) -> usize {
    (2 * period - period / 4).max(CONTOUR_EVIDENCE)
}

/// Where a step is best said to begin: the number of allocations, less than a period, after which little is
/// alive and the next allocation is of a size that is rare in the period and the same in all that was seen.
/// `earlier` are the sizes allocated just before the changes. `None` where these are less than a period.
///
/// Where only the contour repeats, every step variant begins with a size of its own. Of a period of more than a thousand allocations a place
/// after which a whole one was seen is taken, if there is one where nearly as little is alive: it may be that of several steps, of which any may
/// come first.
pub fn boundary(earlier: &[u64], changes: &[Change], period: &Period) -> Option<usize> {
    let length = period.allocations;
    let first = earlier.len();
    let mut alive = 0i64;
    let mut before = vec![0; first];
    let mut sizes = earlier.to_vec();
    for change in changes {
        match *change {
            Change::Allocate(bytes) => {
                before.push(alive);
                sizes.push(bytes);
                alive = alive.saturating_add(signed(bytes));
            }
            // What was alive before the first change comes out as less than nothing, which is no matter.
            Change::Free(bytes) => alive = alive.saturating_sub(signed(bytes)),
        }
    }
    let newest = sizes.len().checked_sub(length).filter(|&newest| newest >= first && length > 0)?;
    let mut count: HashMap<u64, usize> = HashMap::new();
    for &size in &sizes[newest..] {
        *count.entry(size).or_default() += 1;
    }
    let least = before[newest..].iter().min()?;
    let most = before[newest..].iter().max()?;
    let range = most.saturating_sub(*least);
    let little = least + range / LITTLE as i64;
    let steady = |at: usize| (at % length..at).step_by(length).all(|earlier| sizes[earlier] == sizes[at]);
    let low = |at: usize| before[at] <= little;
    let whole = sizes.len().checked_sub(first + length + FINGERPRINT).filter(|_| length > LONG);
    let nearly = least + range / NEARLY_LITTLE as i64;
    let seen: Vec<usize> = (newest..sizes.len())
        .filter(|&at| whole.is_some_and(|whole| (at - first) % length <= whole))
        .filter(|&at| steady(at) && before[at] <= nearly)
        .collect();
    let least_seen =
        seen.iter().map(|&at| before[at]).min().unwrap_or(0).saturating_add(range / LITTLE as i64);
    // Those, then steady sizes at a low, then steady ones anywhere, then whatever there is.
    let places = [
        seen.into_iter().filter(|&at| before[at] <= least_seen).collect(),
        (newest..sizes.len()).filter(|&at| steady(at) && low(at)).collect::<Vec<_>>(),
        (newest..sizes.len()).filter(|&at| if period.repeats() { steady(at) } else { low(at) }).collect(),
        (newest..sizes.len()).collect(),
    ];
    let places = places.into_iter().find(|places| !places.is_empty())?;
    let rarest = places.iter().map(|&at| count[&sizes[at]]).min()?;
    // The first of them, so that the first whole step is complete soon.
    let rare = places.into_iter().filter(|&at| count[&sizes[at]] <= RARE * rarest);
    rare.map(|at| (at - first) % length).min()
}

/// Bytes as what is alive is counted in. A recording may say anything; what a machine has fits by far.
fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// The boundary after the one at `at`: where the sizes that follow are alike, a period later or nearly; exactly a period
/// later where there is no such place. `None` where too little was seen.
pub fn next_boundary(sizes: &[u64], at: usize, period: usize) -> Option<usize> {
    let fingerprint = &sizes[at..sizes.len().min(at + FINGERPRINT.min(period))];
    let differs = |next: usize| {
        let other = sizes.get(next..next + fingerprint.len())?;
        Some(fingerprint.iter().zip(other).filter(|&(&a, &b)| !alike(a, b)).count())
    };
    let nominal = at + period;
    differs(nominal)?;
    let near = (0..=period / DRIFT).flat_map(|drift| [nominal + drift, nominal - drift]);
    let found = near.clone().find(|&next| {
        differs(next).is_some_and(|count| count <= FINGERPRINT_DIFFERS.min(fingerprint.len() / 4))
    });
    Some(found.unwrap_or(nominal))
}

/// How a size compares with the one before it.
fn contour(before: u64, size: u64) -> Ordering {
    if alike(before, size) { Ordering::Equal } else { size.cmp(&before) }
}

/// Whether two sizes differ by so little that they may stand for each other.
pub fn alike(a: u64, b: u64) -> bool {
    a.abs_diff(b) <= a.max(b) / ALIKE
}

/// The contour of each allocation but the first, in two bits of a byte.
fn contours(sizes: &[u64]) -> Vec<u8> {
    let steps = sizes.windows(2).map(|pair| match contour(pair[0], pair[1]) {
        Ordering::Equal => 0,
        Ordering::Less => 1,
        Ordering::Greater => 2,
    });
    steps.collect()
}

/// The [`WORD`] contours that end with each, as one number, the newest first.
fn words(contours: &[u8]) -> impl Iterator<Item = u64> {
    let first = contours.len().saturating_sub(WORD);
    let mut next = contours[first..].iter().fold(0, |word, &contour| word << 2 | u64::from(contour));
    (WORD..=contours.len()).rev().map(move |end| {
        let word = next;
        if end > WORD {
            next = word >> 2 | u64::from(contours[end - WORD - 1]) << (2 * WORD - 2);
        }
        word
    })
}

/// Distances at which a stretch at the end comes again, ascending.
fn candidates(contours: &[u8]) -> Vec<usize> {
    // Where each stretch ends, its word, and how often that came again.
    let mut stretches: Vec<(usize, u64, usize)> = Vec::with_capacity(STRETCHES);
    let mut end = contours.len();
    while stretches.len() < STRETCHES {
        let changes = |&(_, word): &(usize, u64)| word.count_ones() >= MIN_CHANGES;
        let Some((constant, word)) = words(&contours[..end]).enumerate().find(changes) else { break };
        end -= constant;
        stretches.push((end, word, 0));
        end -= WORD;
    }
    // Of 64 bits, those of the words that are looked for: nearly all others are told by one look.
    let bit = |word: u64| 1u64 << (word.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58);
    let wanted = stretches.iter().fold(0, |bits, &(_, word, _)| bits | bit(word));
    let mut found = Vec::new();
    for (at, word) in (WORD..=contours.len()).rev().zip(words(contours)) {
        if wanted & bit(word) == 0 {
            continue;
        }
        for (end, other, times) in &mut stretches {
            if *other == word && at < *end && *times < CANDIDATES {
                *times += 1;
                found.push(*end - at);
            }
        }
    }
    found.sort_unstable();
    found.dedup();
    found.truncate(CANDIDATES);
    found
}

impl<'a> View<'a> {
    fn newest(self, sizes: usize) -> View<'a> {
        View { sizes: &self.sizes[self.sizes.len() - sizes..], ..self }
    }

    fn without_newest(self, sizes: usize) -> View<'a> {
        View { sizes: &self.sizes[..self.sizes.len() - sizes], ..self }
    }

    /// The share of the bytes in the newest `window` allocations that were asked for `distance` allocations before as well.
    fn bytes_alike(self, distance: usize, window: usize) -> f64 {
        if !self.effort.spend(window) {
            return 0.0;
        }
        let now = &self.sizes[self.sizes.len() - window..];
        let before = &self.sizes[self.sizes.len() - window - distance..];
        // A recording may say anything: sizes that no machine has must not overflow.
        let (mut all, mut same) = (0u128, 0u128);
        for (&size, &earlier) in now.iter().zip(before) {
            all += u128::from(size);
            same += if alike(size, earlier) { u128::from(size) } else { 0 };
        }
        same as f64 / all.max(1) as f64
    }

    /// The share of the bytes for which the step before had a block of the same size, in whatever order, where steps begin
    /// every `period` allocations or nearly so.
    fn served(self, period: usize) -> f64 {
        let sizes = self.sizes;
        // They are sorted.
        if !self.effort.spend(sizes.len() * (usize::BITS - sizes.len().leading_zeros()) as usize) {
            return 0.0;
        }
        let (mut at, mut before): (usize, Vec<u64>) = (0, Vec::new());
        let (mut all, mut same) = (0u128, 0u128);
        while let Some(next) = next_boundary(sizes, at, period) {
            let mut step = sizes[at..next].to_vec();
            step.sort_unstable();
            if at > 0 {
                let mut left = before.iter().copied().peekable();
                for &size in &step {
                    all += u128::from(size);
                    while left.next_if(|&other| other < size && !alike(other, size)).is_some() {}
                    same += left.next_if(|&other| alike(other, size)).map_or(0, |_| u128::from(size));
                }
            }
            (at, before) = (next, step);
        }
        if all == 0 { self.bytes_alike(period, sizes.len() - period) } else { same as f64 / all as f64 }
    }

    /// Whether the sizes of a window are those of a period before.
    fn is_period(self, period: usize, window: usize) -> bool {
        let sizes = self.sizes;
        let agrees = |distance, window| {
            self.agreement(distance, window, |now, before| alike(sizes[now], sizes[before]))
        };
        // Most candidates fail at once.
        agrees(period, window.min(EVIDENCE / 2)) >= SHARE / 2.0
            && agrees(period, window) >= SHARE
            && self.bytes_alike(period, window) >= SHARE
            && beyond_chance(period, window, agrees)
    }

    /// Whether the contour of a window is that of a period before.
    fn is_contour(self, period: usize, window: usize) -> bool {
        let agrees = |distance, window| self.contours_alike(distance, window);
        agrees(period, window) >= CONTOUR_SHARE && beyond_chance(period, window, agrees)
    }

    /// The share of the newest `window` allocations whose contour is that of `distance` allocations before.
    fn contours_alike(self, distance: usize, window: usize) -> f64 {
        let sizes = self.sizes;
        self.agreement(distance, window, |now, before| {
            contour(sizes[now - 1], sizes[now]) == contour(sizes[before - 1], sizes[before])
        })
    }

    /// The share of the newest `window` allocations that are `same` as those `distance` before.
    fn agreement(self, distance: usize, window: usize, same: impl Fn(usize, usize) -> bool) -> f64 {
        if !self.effort.spend(window) {
            return 0.0;
        }
        let newest = self.sizes.len() - window..self.sizes.len();
        newest.filter(|&now| same(now, now - distance)).count() as f64 / window as f64
    }
}

/// Whether the newest sizes are exactly those of a period before.
fn is_exact(sizes: &[u64], period: usize, window: usize) -> bool {
    let before = sizes.len().checked_sub(window + period);
    before.is_some_and(|before| sizes[before..before + window] == sizes[before + period..])
}

/// Whether a period agrees far more than distances within it do.
fn beyond_chance(period: usize, window: usize, agrees: impl Fn(usize, usize) -> f64) -> bool {
    // Shorter distances than the period, so that they lie within what was seen.
    let within = ELSEWHERE.map(|part| ((part * period as f64) as usize).max(1));
    let elsewhere = within.iter().filter(|&&distance| distance < period);
    let (count, sum) =
        elsewhere.fold((0, 0.0), |(count, sum), &distance| (count + 1, sum + agrees(distance, window)));
    if count == 0 {
        return false;
    }
    let chance = sum / f64::from(count);
    agrees(period, window) - chance >= KAPPA * (1.0 - chance) && chance < 1.0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers that repeat after a long time only.
    fn noise(seed: u64) -> impl FnMut() -> u64 {
        let mut state = seed;
        move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state >> 33
        }
    }

    /// A step: layers that are alike, between a beginning and an end of their own.
    fn step(layers: usize, unit: u64) -> Vec<u64> {
        let layer = [3, 9, 4, 4, 16, 16, 5, 9, 3].map(|size| size * unit);
        let mut sizes = vec![64 * unit, 7 * unit];
        sizes.extend(layer.repeat(layers));
        sizes.extend([31 * unit, 80 * unit, 31 * unit]);
        sizes
    }

    fn warm_up(sizes: usize) -> Vec<u64> {
        let mut next = noise(1);
        (0..sizes).map(|_| 32_768 + next() % 200_000).collect()
    }

    /// A sequence whose contour nearly repeats at many distances, each of which has to be compared for long.
    fn unfriendly() -> Vec<u64> {
        let (mut next, mut other) = (noise(3), noise(5));
        let one: Vec<u64> = (0..64).map(|_| 32_768 << (next() % 5)).collect();
        (0..60_000).map(|at| if other() % 16 == 0 { 32_768 << (other() % 5) } else { one[at % 64] }).collect()
    }

    #[test]
    fn looking_stops_where_it_takes_too_long() {
        let friendly = step(20, 10_000).repeat(8);
        assert_eq!(find_within(&friendly, 1 << 20), Ok(find(&friendly)));
        assert_eq!(find_within(&friendly, 10), Err(TooLong));
        assert_eq!(find_within(&unfriendly(), 1 << 20), Err(TooLong));
    }

    #[test]
    fn a_turn_is_found_also_where_parts_of_it_come_again() {
        let mut next = noise(7);
        let lengths: Vec<Vec<u64>> =
            (0..3).map(|_| (0..70).map(|_| 32_768 + next() % 200_000).collect()).collect();
        // Two lengths take turns four times, and then comes another.
        let turn = [0, 1, 0, 1, 0, 1, 0, 1, 2].map(|length: usize| lengths[length].as_slice()).concat();
        let sizes = turn.repeat(4);
        for seen in 2 * turn.len() + 2 * EVIDENCE..sizes.len() {
            let found = find(&sizes[..seen]).map(|period| period.allocations);
            assert_eq!(found, Some(turn.len()), "of {seen}");
        }
        // Where that has lasted for long, it is the step, and what comes between is another program.
        let other = [lengths[..2].concat().repeat(20), lengths[2].clone()].concat().repeat(3);
        let seen = other.len() - lengths[2].len();
        assert_eq!(find(&other[..seen]).map(|period| period.allocations), Some(140));
    }

    #[test]
    fn the_step_is_found_after_a_warm_up_and_not_its_layers() {
        for layers in [2, 6, 20] {
            let mut sizes = warm_up(100);
            let one = step(layers, 10_000);
            for _ in 0..8 {
                sizes.extend(&one);
            }
            let found = find(&sizes).expect("a period");
            assert_eq!((found.allocations, found.steps), (one.len(), 1), "{layers} layers");
            assert!(found.share > 0.99 && found.holds(&sizes[100..]));
        }
    }

    #[test]
    fn sizes_a_percent_off_and_an_odd_allocation_do_not_hide_it() {
        let (mut sizes, mut next) = (warm_up(50), noise(2));
        let one = step(5, 10_000);
        for turn in 0..10 {
            sizes.extend(one.iter().map(|size| size + size * (next() % 20) / 1000));
            if turn == 3 {
                sizes.insert(sizes.len() - 20, 123_456);
            }
        }
        assert_eq!(find(&sizes).expect("a period").allocations, one.len());
    }

    #[test]
    fn steps_of_several_sizes_in_turn_are_one_period_of_several_steps() {
        let sizes: Vec<u64> = (0..6)
            .flat_map(|_| [10_000, 14_000, 20_000].into_iter().flat_map(|unit| step(6, unit)))
            .collect();
        let found = find(&sizes).expect("a period");
        assert_eq!((found.allocations, found.steps), (3 * step(6, 1).len(), 3));
        // Before they come again, their contour shows a step.
        let all_different: Vec<u64> = (0..9).flat_map(|turn| step(6, 10_000 + 3_000 * turn)).collect();
        let found = find(&all_different).expect("a contour");
        assert_eq!((found.allocations, found.steps), (step(6, 1).len(), 1));
        assert!(found.share < 0.9 && found.holds(&all_different));
    }

    #[test]
    fn a_loop_within_a_step_of_other_sizes_each_time_is_not_taken_for_the_step() {
        let mut next = noise(3);
        let mut shape = |count: usize| -> Vec<u64> { (0..count).map(|_| 4 + next() % 40).collect() };
        let (begin, layer, end) = (shape(12), shape(29), shape(12));
        let one = [begin, layer.repeat(5), end].concat();
        let units = [10_000, 14_000, 20_000, 27_000];
        let mut sizes: Vec<u64> =
            units.iter().flat_map(|unit| one.iter().map(move |size| size * unit)).collect();
        // In the midst of the last step's loop.
        sizes.truncate(sizes.len() - 12 - 20);
        let view = View { sizes: &sizes, effort: &Effort::any() };
        let loops = view.find_sizes(&candidates(&contours(&sizes))).expect("the loop repeats exactly");
        assert_eq!(loops.allocations, layer.len());
        let found = find(&sizes).expect("a contour");
        assert_eq!((found.allocations, found.repeats()), (one.len(), false));
        // Steps of the same sizes are found as before.
        let mut alike = one.repeat(4);
        alike.truncate(alike.len() - 12 - 20);
        assert_eq!(
            find(&alike).map(|period| (period.allocations, period.repeats())),
            Some((one.len(), true))
        );
    }

    #[test]
    fn no_period_is_found_where_there_is_none() {
        let mostly_one: Vec<u64> =
            warm_up(4000).iter().map(|&size| if size % 10 == 0 { size } else { 65_536 }).collect();
        for sizes in [vec![], vec![65_536; 5000], warm_up(5000), mostly_one, step(3, 9_000)] {
            for seen in (0..sizes.len()).step_by(97) {
                assert_eq!(find(&sizes[..seen]), None, "{seen} of {}", sizes.len());
            }
        }
    }

    #[test]
    fn a_loop_within_a_step_is_no_period_after_a_row_of_one_size() {
        // Twelve turns, as of an optimizer over tables whose gradients follow the data.
        let mut next = noise(3);
        let turn = [65, 524, 65, 66, 65, 430, 53, 431, 430, 430, 53, 432, 430, 430];
        let mut sizes = [warm_up(200), vec![1_280_000; 32]].concat();
        sizes.extend(turn.repeat(12).iter().map(|size| size * (1000 + next() % 10)));
        for seen in 200..sizes.len() {
            assert_eq!(find(&sizes[..seen]), None, "{seen}");
        }
    }

    #[test]
    fn layers_leave_more_than_they_found_and_steps_do_not() {
        let layer = |retained: bool| {
            let mut changes = vec![Change::Allocate(90), Change::Allocate(50), Change::Free(90)];
            changes.extend((!retained).then_some(Change::Free(50)));
            changes
        };
        let period = Period { allocations: 4, steps: 1, share: 1.0 };
        let changes = |layers: usize, retained| (0..layers).flat_map(|_| layer(retained)).collect::<Vec<_>>();
        assert!(period.is_balanced(&changes(8, false)) && !period.is_balanced(&changes(8, true)));
        assert!(!period.is_balanced(&changes(2, false)), "less than a period and its end");
        // Steps of all sizes are compared where least is alive.
        let contour = Period { share: 0.1, ..period };
        let step = |unit: u64| {
            [Change::Allocate(unit), Change::Allocate(unit), Change::Free(unit), Change::Free(unit)].repeat(2)
        };
        let steps: Vec<Change> = [3, 9, 5, 7].into_iter().flat_map(step).collect();
        assert!(contour.is_balanced(&steps) && !contour.is_balanced(&changes(8, true)));
    }

    #[test]
    fn steps_that_take_turns_are_seen_when_two_of_them_come_again() {
        let lengths =
            |count: u64| (0..count).flat_map(|turn| step(6, 10_000 + 3_000 * (turn % 5))).collect::<Vec<_>>();
        let period = Period { allocations: step(6, 1).len(), steps: 1, share: 0.1 };
        assert_eq!((period.turns(&lengths(6), 8), period.turns(&lengths(7), 8)), (None, Some(5)));
        assert_eq!(period.turns(&lengths(20), 4), None);
    }

    #[test]
    fn a_step_begins_where_little_is_alive() {
        let one = step(3, 10_000);
        let sizes: Vec<u64> = one.repeat(3);
        let mut changes = Vec::new();
        // All blocks of a step live until the allocation after next of the following step.
        for (at, &size) in sizes.iter().enumerate() {
            if at % one.len() == 2 {
                changes.extend(one.iter().map(|&size| Change::Free(size)));
            }
            changes.push(Change::Allocate(size));
        }
        let period = Period { allocations: one.len(), steps: 1, share: 1.0 };
        let begins = boundary(&[], &changes, &period).expect("two periods");
        // The first rare size after the frees.
        assert!((2..=4).contains(&begins), "{begins}");
        assert_eq!(boundary(&[], &changes[..10], &period), None);
    }

    #[test]
    fn what_came_before_a_period_is_told_from_it() {
        let (one, period) = (step(9, 10_000), |allocations| Period { allocations, steps: 1, share: 1.0 });
        let mut sizes = [warm_up(70), one.repeat(3)].concat();
        let begins = 70..=70 + FINGERPRINT_DIFFERS;
        assert!(begins.contains(&(sizes.len() - period(one.len()).repeating(&sizes))));
        // An odd one in between.
        sizes[70 + 2 * one.len() + 40] = 7;
        assert!(begins.contains(&(sizes.len() - period(one.len()).repeating(&sizes))));
        assert_eq!(period(one.len()).repeating(&warm_up(500)), one.len());
        assert_eq!(period(600).repeating(&one), one.len(), "all there are");
        // Steps of several lengths, of which only the contour comes again.
        let lengths: Vec<u64> = (0..4).flat_map(|turn| step(9, 10_000 + 3_000 * turn)).collect();
        let contour = Period { share: 0.1, ..period(one.len()) };
        let begin = |before: usize| {
            let sizes = [warm_up(before), lengths.clone()].concat();
            sizes.len() - contour.repeating(&sizes)
        };
        assert_eq!(begin(0), 0);
        assert!((400..=500 + one.len() / 8).contains(&begin(500)), "{}", begin(500));
        assert_eq!(contour.repeating(&warm_up(500)), one.len());
    }

    #[test]
    fn a_long_step_begins_where_a_whole_one_was_seen() {
        // Two lengths in turn: a block that the first leaves lives on into the second, so that least is alive where the first begins.
        let lengths = [[step(70, 10_000), vec![3_000_000]].concat(), step(80, 14_000)];
        let turn: usize = lengths.iter().map(Vec::len).sum();
        let period = Period { allocations: turn, steps: 1, share: 1.0 };
        let mut changes = Vec::new();
        for at in 0..3 {
            let sizes = &lengths[(at + 1) % 2];
            changes.extend(sizes.iter().map(|&size| Change::Allocate(size)));
            changes.extend(sizes.iter().filter(|&&size| size != 3_000_000).map(|&size| Change::Free(size)));
            changes.extend((at % 2 == 0).then_some(Change::Free(3_000_000)));
        }
        assert!(turn > LONG);
        // All of a turn, and a third of the next: of the turn that begins with the first length less was seen.
        let mut left = turn + lengths[1].len() / 3;
        let end = changes.iter().position(|change| {
            left -= usize::from(matches!(change, Change::Allocate(_)));
            left == 0
        });
        let recorded = &changes[..=end.expect("as many")];
        assert_eq!(boundary(&[], recorded, &period), Some(0));
    }

    #[test]
    fn a_boundary_is_followed_past_allocations_that_come_and_go() {
        let one = step(8, 10_000);
        let mut sizes = one.repeat(3);
        sizes.insert(one.len() / 2, 123_456);
        sizes.remove(one.len() + 40);
        assert_eq!(next_boundary(&sizes, 0, one.len()), Some(one.len() + 1));
        assert_eq!(next_boundary(&sizes, one.len() + 1, one.len()), Some(2 * one.len()));
        assert_eq!(next_boundary(&sizes, 2 * one.len(), one.len()), None, "its fingerprint was not seen");
    }
}
