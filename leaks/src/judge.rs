//! The judgement of one quantity over the rounds.
//!
//! Invariants: points are judged in the order of their rounds; a verdict of growth has passed all of size, chance and persistence.

use std::error::Error;
use std::fmt;

/// Points that are compared pair by pair; 131,000 pairs take a millisecond.
const MOST_POINTS: usize = 512;
/// Parts in which growth must go on. Fewer take a jump for growth, more need more rounds.
const PARTS: usize = 5;
/// A part must rise by this share of the average rise. Even growth gives 1, growth that halves from part to part 0.27 in the
/// last one, growth by the square root of the rounds 0.7.
const PERSISTENT: f64 = 0.4;
/// What rises within parts must keep this share of it from the first part to the last. Sawtooths of two teeth keep 0.37, leaks beside
/// which a plan of 10 MiB was left kept 0.57.
const KEPT: f64 = 0.45;
/// The slope within the last parts is at least this share of the usual one. What approaches a limit with a time constant of a quarter
/// of the rounds has 0.6.
const TO_THE_END: f64 = 0.6;
/// Judged points below which no growth of 1 % a round within noise of 2 % would be told reliably.
const FEWEST_POINTS: usize = 20;
/// Rounds that warm up where nothing else is said: a third of them. OpenVINO's tests drop 30, however many follow; but what
/// is rare comes late: jemalloc's arenas were seen to settle after some hundred rounds of threads that overlap at random.
const WARM_UP_DIVISOR: u64 = 3;

/// A quantity after a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Point {
    /// The round's number. Numbers may be missing, as where a sample was not taken.
    pub round: u64,
    /// What there was after it, in bytes or things.
    pub value: u64,
}

/// What counts as growth. [`Options::for_bytes`] and [`Options::for_counts`] have the defaults.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Options {
    /// Rounds dropped at the beginning. `None`: a third of the rounds.
    pub warm_up: Option<u64>,
    /// Growth per round that counts, as a share of the level after the warm-up: 0.001 is 0.1 %.
    pub share_per_round: f64,
    /// Growth over all judged rounds that counts however many they are, as a share of that level: 0.1 is 10 %.
    pub share_in_all: f64,
    /// Growth over all judged rounds that is never counted, in the quantity's units, though it may be a large share of a small level.
    pub least: f64,
    /// Standard deviations of Mann–Kendall's statistic that a trend must have.
    pub z: f64,
}

impl Options {
    /// For memory in bytes: 0.1 % a round or 10 % in all, and 512 KiB at least.
    pub fn for_bytes() -> Options {
        Options {
            warm_up: None,
            share_per_round: 0.001,
            share_in_all: 0.1,
            // Linux counts resident pages by processor and sums them up now and then (32 pages and more each), and one thread's
            // stack or heap is some 100 KiB.
            least: 512.0 * 1024.0,
            // One series in two thousand without a trend.
            z: 3.3,
        }
    }

    /// For threads, descriptors and other things that are counted: as for bytes, and three things at least.
    pub fn for_counts() -> Options {
        Options { least: 3.0, ..Options::for_bytes() }
    }

    /// How many of so many rounds warm up.
    pub fn warm_up_of(&self, rounds: u64) -> u64 {
        self.warm_up.unwrap_or(rounds / WARM_UP_DIVISOR)
    }
}

/// What was found.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Verdict {
    /// Whether it grows: by enough, by more than chance, and until the end.
    pub grows: bool,
    /// Points after the warm-up.
    pub judged: usize,
    /// Level at the beginning of the judged rounds, in the quantity's units: the median of their first fifth.
    pub first: f64,
    /// Level at their end: the median of their last fifth.
    pub last: f64,
    /// Growth per round, in the quantity's units; negative where it shrinks.
    pub per_round: f64,
    /// The same as a share of `first`; 0 where that is 0 and nothing grows, infinite where it grows from nothing.
    pub share_per_round: f64,
    /// Mann–Kendall's statistic in standard deviations; 0 where all points are alike.
    pub z: f64,
    /// Whether the growth is large enough to count.
    pub is_large: bool,
    /// Whether it goes on until the end: from part to part, or within the parts.
    pub is_persistent: bool,
}

/// Why nothing can be said.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum JudgeError {
    /// Too few points are left after the warm-up.
    TooFew {
        /// Points given.
        given: usize,
        /// Rounds dropped of them.
        warm_up: u64,
        /// Points left.
        judged: usize,
    },
    /// Rounds must be numbered upwards.
    Unordered {
        /// Index of the first point whose round is not above the one before.
        index: usize,
    },
}

impl fmt::Display for JudgeError {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        match self {
            JudgeError::TooFew { given, warm_up, judged } => write!(
                out,
                "{given} samples, of which {judged} are left after {warm_up} rounds of warm-up: at least {FEWEST_POINTS} are \
                 needed; give the program more rounds"
            ),
            JudgeError::Unordered { index } => {
                write!(out, "sample {index}: its round is not above the one before; number rounds upwards")
            }
        }
    }
}

impl Error for JudgeError {}

/// Says whether a quantity grows from round to round. Rounds that warm up are counted from the first point's round.
///
/// # Errors
/// [`JudgeError`] where fewer than 20 points are left after the warm-up, or rounds are not in order.
pub fn judge(points: &[Point], options: &Options) -> Result<Verdict, JudgeError> {
    if let Some(at) = points.windows(2).position(|pair| pair[1].round <= pair[0].round) {
        return Err(JudgeError::Unordered { index: at + 1 });
    }
    let (begin, end) = match points {
        [first, .., last] => (first.round, last.round),
        _ => (0, 0),
    };
    let warm_up = options.warm_up_of((end - begin).saturating_add(1));
    let judged = &points[points.partition_point(|point| point.round - begin < warm_up)..];
    if judged.len() < FEWEST_POINTS {
        return Err(JudgeError::TooFew { given: points.len(), warm_up, judged: judged.len() });
    }
    let series = reduced(judged);
    let per_round = theil_sen(&series);
    let (balance, variance) = pairs(&series);
    let z = deviations(balance, variance);
    let parts = part_medians(&series, per_round);
    let [first, .., last] = parts;
    let rounds = series[series.len() - 1].0 - series[0].0;
    let in_all = per_round * rounds;
    let is_large = in_all >= options.least
        && (per_round >= options.share_per_round * first || in_all >= options.share_in_all * first);
    let is_persistent =
        rises_by_part(&parts) || rises_within_parts(&series, per_round, last - first, options.z);
    Ok(Verdict {
        grows: is_large && is_persistent && z >= options.z,
        judged: judged.len(),
        first,
        last,
        per_round,
        share_per_round: if per_round == 0.0 { 0.0 } else { per_round / first },
        z,
        is_large,
        is_persistent,
    })
}

/// Medians of blocks of equal length, of which there are few enough to be compared pair by pair.
fn reduced(points: &[Point]) -> Vec<(f64, f64)> {
    let length = points.len().div_ceil(MOST_POINTS);
    let blocks = points.chunks(length);
    blocks
        .map(|block| {
            let mut values: Vec<f64> = block.iter().map(|point| point.value as f64).collect();
            let rounds: f64 = block.iter().map(|point| point.round as f64).sum();
            (rounds / block.len() as f64, median(&mut values))
        })
        .collect()
}

/// The median of the slopes between all pairs.
fn theil_sen(series: &[(f64, f64)]) -> f64 {
    let mut slopes = Vec::with_capacity(series.len() * (series.len() - 1) / 2);
    for (index, &(x, y)) in series.iter().enumerate() {
        slopes.extend(series[index + 1..].iter().map(|&(later, value)| (value - y) / (later - x)));
    }
    median(&mut slopes)
}

/// Rising pairs less falling ones, and the variance that this has by chance.
fn pairs(series: &[(f64, f64)]) -> (f64, f64) {
    let mut balance = 0.0;
    for (index, &(_, y)) in series.iter().enumerate() {
        for &(_, later) in &series[index + 1..] {
            balance += f64::from(later > y) - f64::from(later < y);
        }
    }
    let spread = |n: f64| n * (n - 1.0) * (2.0 * n + 5.0);
    let mut values: Vec<f64> = series.iter().map(|&(_, y)| y).collect();
    values.sort_unstable_by(f64::total_cmp);
    let ties: f64 = values.chunk_by(|a, b| a == b).map(|tied| spread(tied.len() as f64)).sum();
    (balance, (spread(series.len() as f64) - ties) / 18.0)
}

/// A balance of pairs in standard deviations.
fn deviations(balance: f64, variance: f64) -> f64 {
    // One less, towards zero, because the balance moves by whole pairs.
    let corrected = balance - f64::clamp(balance, -1.0, 1.0);
    if variance > 0.0 { corrected / variance.sqrt() } else { 0.0 }
}

/// From the middle part on each is above the one before.
fn rises_by_part(medians: &[f64; PARTS]) -> bool {
    let average = (medians[PARTS - 1] - medians[0]) / (PARTS - 1) as f64;
    average > 0.0 && medians[PARTS / 2 - 1..].windows(2).all(|two| two[1] - two[0] >= PERSISTENT * average)
}

/// Within the parts it rises, to the end, and between them it does not fall by as much again.
fn rises_within_parts(series: &[(f64, f64)], per_round: f64, rise: f64, z: f64) -> bool {
    let slopes: [f64; PARTS] = std::array::from_fn(|index| theil_sen(part(series, index)));
    let usual = median(&mut slopes.clone());
    let (mut balance, mut variance) = (0.0, 0.0);
    for index in 0..PARTS {
        let (of_part, its_variance) = pairs(part(series, index));
        balance += of_part;
        variance += its_variance;
    }
    let between_medians = (series[series.len() - 1].0 - series[0].0) * (PARTS - 1) as f64 / PARTS as f64;
    deviations(balance, variance) >= z
        && usual > 0.0
        && usual >= PERSISTENT * per_round
        // One of the last two: something else may fall in the other.
        && slopes[PARTS - 2].max(slopes[PARTS - 1]) >= TO_THE_END * usual
        && rise >= KEPT * usual * between_medians
}

/// One of the parts.
fn part(series: &[(f64, f64)], index: usize) -> &[(f64, f64)] {
    &series[series.len() * index / PARTS..series.len() * (index + 1) / PARTS]
}

/// The median of each part, in its middle: the growth within the part is taken off, which would be noise of the median.
fn part_medians(series: &[(f64, f64)], per_round: f64) -> [f64; PARTS] {
    std::array::from_fn(|index| {
        let part = part(series, index);
        let middle = part.iter().map(|&(x, _)| x).sum::<f64>() / part.len() as f64;
        median(&mut part.iter().map(|&(x, y)| y - per_round * (x - middle)).collect::<Vec<f64>>())
    })
}

/// Of an even number the mean of the middle two; 0 of none.
fn median(values: &mut [f64]) -> f64 {
    if values.is_empty() {
        return 0.0;
    }
    let middle = values.len() / 2;
    let is_even = values.len().is_multiple_of(2);
    let (below, &mut upper, _) = values.select_nth_unstable_by(middle, f64::total_cmp);
    if is_even { below.iter().copied().fold(f64::MIN, f64::max).midpoint(upper) } else { upper }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEVEL: f64 = 20e6;

    /// Numbers from -1 to 1, always the same of a seed (xorshift).
    fn noise(seed: u64) -> impl FnMut() -> f64 {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 11) as f64 / (1u64 << 52) as f64 - 1.0
        }
    }

    /// The shape by round as multiples of a level.
    fn series(rounds: u64, mut shape: impl FnMut(f64) -> f64) -> Vec<Point> {
        (0..rounds).map(|round| Point { round, value: (LEVEL * shape(round as f64)) as u64 }).collect()
    }

    #[track_caller]
    fn verdict(points: &[Point]) -> Verdict {
        judge(points, &Options::for_bytes()).expect("enough points")
    }

    #[track_caller]
    fn passes(points: &[Point]) {
        let verdict = verdict(points);
        assert!(!verdict.grows, "{verdict:?}");
    }

    #[track_caller]
    fn is_found(points: &[Point]) {
        let verdict = verdict(points);
        assert!(verdict.grows, "{verdict:?}");
    }

    #[test]
    fn what_stays_the_same_passes() {
        let verdict = verdict(&series(100, |_| 1.0));
        assert!(!verdict.grows);
        assert_eq!((verdict.per_round, verdict.share_per_round, verdict.z), (0.0, 0.0, 0.0));
        assert_eq!((verdict.first, verdict.last, verdict.judged), (LEVEL, LEVEL, 67));
    }

    #[test]
    fn what_shrinks_passes() {
        let verdict = verdict(&series(100, |round| 2.0 - 0.01 * round));
        assert!(!verdict.grows && verdict.per_round < 0.0 && verdict.z < -3.0, "{verdict:?}");
    }

    #[test]
    fn noise_of_two_percent_passes() {
        for seed in 0..400 {
            for rounds in [30, 60, 100, 400] {
                let mut noise = noise(seed * 1000 + rounds);
                passes(&series(rounds, |_| 1.0 + 0.02 * noise()));
            }
        }
    }

    #[test]
    fn noise_that_goes_along_with_itself_passes() {
        for seed in 0..200 {
            let (mut noise, mut wave) = (noise(seed), 0.0);
            passes(&series(100, |_| {
                wave = 0.8 * wave + 0.6 * noise();
                1.0 + 0.02 * wave
            }));
        }
    }

    #[test]
    fn a_leak_of_one_percent_a_round_is_found_within_noise() {
        for seed in 0..200 {
            for rounds in [45, 60, 100] {
                let mut noise = noise(seed * 1000 + rounds);
                is_found(&series(rounds, |round| 1.0 + 0.01 * round + 0.02 * noise()));
            }
        }
    }

    #[test]
    fn growth_is_told_in_units_and_as_a_share() {
        let mut noise = noise(7);
        let verdict = verdict(&series(100, |round| 1.0 + 0.01 * round + 0.02 * noise()));
        assert!((verdict.per_round / LEVEL - 0.01).abs() < 0.0005, "{verdict:?}");
        // The level after the warm-up is 1.4 times the one before.
        assert!((0.0065..0.0075).contains(&verdict.share_per_round), "{verdict:?}");
    }

    #[test]
    fn slow_leaks_are_found_in_many_rounds() {
        is_found(&series(170, |round| 1.0 + 0.001 * round));
        is_found(&series(1000, |round| 1.0 + 0.0002 * round));
        let mut noise = noise(3);
        is_found(&series(20_000, |round| 1.0 + 0.00001 * round + 0.02 * noise()));
    }

    #[test]
    fn leaks_that_begin_late_or_grow_in_steps_are_found() {
        is_found(&series(100, |round| 1.0 + 0.01 * (round - 50.0).max(0.0)));
        is_found(&series(100, |round| 1.0 + 0.05 * (round / 5.0).floor()));
    }

    #[test]
    fn a_leak_beside_spikes_is_found_and_spikes_alone_pass() {
        let spike = |round: f64| if (round as u64).is_multiple_of(7) { 3.0 } else { 0.0 };
        is_found(&series(100, |round| 1.0 + 0.01 * round + spike(round)));
        passes(&series(100, |round| 1.0 + spike(round)));
        let late = |round: f64| if round > 90.0 { spike(round) } else { 0.0 };
        passes(&series(100, |round| 1.0 + late(round)));
    }

    #[test]
    fn one_jump_passes_wherever_it_comes() {
        for at in 0..100 {
            let mut noise = noise(at);
            passes(&series(100, |round| 1.0 + if round >= at as f64 { 0.5 } else { 0.0 } + 0.02 * noise()));
        }
    }

    #[test]
    fn a_warm_up_of_any_form_passes() {
        passes(&series(100, |round| 1.0 + round.min(33.0) / 10.0));
        for constant in [5.0, 10.0, 15.0] {
            passes(&series(100, |round| 2.0 - (-round / constant).exp()));
        }
        // Levels that come ever closer: 1, 1.5, 1.75, ...
        passes(&series(100, |round| 2.0 - 0.5f64.powf((round / 15.0).floor())));
    }

    #[test]
    fn sawtooths_pass() {
        for length in 2..45 {
            for phase in 0..length {
                let tooth =
                    |round: f64| 0.5 * ((round + f64::from(phase)) % f64::from(length)) / f64::from(length);
                passes(&series(100, |round| 1.0 + tooth(round)));
            }
        }
    }

    #[test]
    fn a_leak_is_found_though_memory_falls_once() {
        for at in 40..100 {
            let mut noise = noise(at);
            let fall = |round: f64| if round >= at as f64 { 0.2 } else { 0.0 };
            is_found(&series(100, |round| 1.0 + 0.01 * round - fall(round) + 0.01 * noise()));
        }
    }

    #[test]
    fn a_large_share_of_little_passes() {
        let threads: Vec<Point> = (0..100).map(|round| Point { round, value: 1 + round / 50 }).collect();
        assert!(!judge(&threads, &Options::for_counts()).expect("enough").grows);
        let small: Vec<Point> =
            (0..100).map(|round| Point { round, value: 100_000 + 4096 * round }).collect();
        assert!(!judge(&small, &Options::for_bytes()).expect("enough").grows);
    }

    #[test]
    fn a_descriptor_that_stays_open_every_third_round_is_found() {
        let open: Vec<Point> = (0..100).map(|round| Point { round, value: 4 + round / 3 }).collect();
        assert!(judge(&open, &Options::for_counts()).expect("enough").grows);
        let from_nothing: Vec<Point> = (0..100)
            .map(|round| Point { round, value: u64::try_from(round as i64 - 60).unwrap_or(0) })
            .collect();
        assert!(judge(&from_nothing, &Options::for_counts()).expect("enough").last > 0.0);
    }

    #[test]
    fn rounds_may_be_missing_and_may_begin_anywhere() {
        let points: Vec<Point> = (0..100)
            .filter(|round| round % 4 != 1)
            .map(|round| Point { round: 1000 + round, value: 20_000_000 + 200_000 * round })
            .collect();
        let verdict = judge(&points, &Options::for_bytes()).expect("enough");
        assert!(verdict.grows && (verdict.per_round - 200_000.0).abs() < 1.0, "{verdict:?}");
    }

    #[test]
    fn the_users_warm_up_counts() {
        let rising = series(100, |round| 1.0 + round.min(70.0) / 10.0);
        let options = Options { warm_up: Some(70), ..Options::for_bytes() };
        let verdict = judge(&rising, &options).expect("enough");
        assert!(!verdict.grows && verdict.judged == 30, "{verdict:?}");
    }

    #[test]
    fn too_few_or_unordered_points_are_errors_that_say_what_to_do() {
        let error = judge(&series(20, |_| 1.0), &Options::for_bytes()).expect_err("too few");
        assert!(error.to_string().contains("20 samples, of which 14 are left"), "{error}");
        assert!(judge(&[], &Options::for_bytes()).is_err());
        assert!(judge(&series(1, |_| 1.0), &Options::for_bytes()).is_err());
        let mut points = series(40, |_| 1.0);
        points[7].round = 6;
        assert_eq!(judge(&points, &Options::for_bytes()), Err(JudgeError::Unordered { index: 7 }));
    }
}
