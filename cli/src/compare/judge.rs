//! What figures of several runs say: the middle, the spread, and which differences are more than chance.
//!
//! Runs of one round are compared with each other, so that what a machine is slower at one time than at another all of them
//! feel alike: a round's and an allocator's share of a figure are taken off, and what is left is chance (analysis of variance
//! of a block design). All of it together tells how much chance there is, which few runs of two allocators do not. That any
//! could have been the best, and any beside it, is made up for by asking for more the more pairs there are (Bonferroni).

use statrs::distribution::{ContinuousCDF, StudentsT};
use statrs::statistics::{Data, OrderStatistics};

/// The chance that a column tells any difference where there is none.
const CHANCE: f64 = 0.02;
/// Differences below this share are called none, however sure they are.
const NO_DIFFERENCE: f64 = 0.005;

/// The middle of some figures, and half the distance of their quartiles.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Middle {
    /// The median.
    pub median: f64,
    /// Half of the middle half's width.
    pub spread: f64,
}

impl Middle {
    /// Of at least one figure.
    pub fn of(figures: &[f64]) -> Option<Middle> {
        if figures.is_empty() {
            return None;
        }
        let mut data = Data::new(figures.to_vec());
        let spread = (data.upper_quartile() - data.lower_quartile()) / 2.0;
        Some(Middle { median: data.median(), spread })
    }
}

/// How one allocator's figures are beside the least.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Nobody has less.
    Best,
    /// The difference may be chance, or is next to none.
    Equal,
    /// It has more.
    More,
}

impl Verdict {
    /// As figures for programs spell it.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Best => "best",
            Verdict::Equal => "equal",
            Verdict::More => "more",
        }
    }
}

/// The verdicts on figures of which less is better, by allocator and round; `None` where there is nobody to compare with. Of
/// allocators with fewer rounds than others the rest of these is not looked at.
pub fn verdicts(figures: &[Vec<f64>]) -> Vec<Option<Verdict>> {
    let compared: Vec<usize> = (0..figures.len()).filter(|&index| !figures[index].is_empty()).collect();
    let rounds = compared.iter().map(|&index| figures[index].len()).min().unwrap_or(0);
    if compared.len() < 2 || rounds < 2 {
        return vec![None; figures.len()];
    }
    // Of multiples, where there are any: chance is a share of a time.
    let all = || compared.iter().flat_map(|&index| &figures[index][..rounds]);
    let scale = if all().all(|&figure| figure > 0.0) { f64::ln } else { |figure| figure };
    let rows: Vec<Vec<f64>> = compared
        .iter()
        .map(|&index| figures[index][..rounds].iter().map(|&figure| scale(figure)).collect())
        .collect();
    let mean = |figures: &mut dyn Iterator<Item = f64>, count: usize| figures.sum::<f64>() / count as f64;
    let means: Vec<f64> = rows.iter().map(|row| mean(&mut row.iter().copied(), rounds)).collect();
    let of_rounds: Vec<f64> =
        (0..rounds).map(|round| mean(&mut rows.iter().map(|row| row[round]), rows.len())).collect();
    let whole = mean(&mut means.iter().copied(), means.len());
    let rest = rows.iter().zip(&means).flat_map(|(row, mean)| {
        row.iter().zip(&of_rounds).map(move |(figure, round)| figure - mean - round + whole)
    });
    let freedom = (rows.len() - 1) * (rounds - 1);
    let variance = rest.map(|rest| rest * rest).sum::<f64>() / freedom as f64;
    let Some(best) = (0..means.len()).min_by(|&one, &other| means[one].total_cmp(&means[other])) else {
        return vec![None; figures.len()];
    };
    let pairs = rows.len() * (rows.len() - 1) / 2;
    let most = StudentsT::new(0.0, 1.0, freedom as f64)
        .map_or(f64::INFINITY, |student| student.inverse_cdf(1.0 - CHANCE / pairs as f64 / 2.0));
    let least = if all().all(|&figure| figure > 0.0) {
        NO_DIFFERENCE.ln_1p()
    } else {
        NO_DIFFERENCE * means[best].abs()
    };
    let mut verdicts = vec![None; figures.len()];
    for (row, &index) in compared.iter().enumerate() {
        let difference = means[row] - means[best];
        // Where one differs more from round to round than all do together, its own share of chance counts.
        let own: f64 =
            rows[row].iter().zip(&rows[best]).map(|(one, best)| (one - best - difference).powi(2)).sum();
        let error = (2.0 * variance).max(own / (rounds - 1) as f64) / rounds as f64;
        verdicts[index] = Some(if row == best {
            Verdict::Best
        } else if difference > least && difference > most * error.sqrt() {
            Verdict::More
        } else {
            Verdict::Equal
        });
    }
    verdicts
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Between 0 and 1, evenly.
    fn random(state: &mut u64) -> f64 {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        (*state >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Rounds whose machine is up to 20 % slower, and runs that differ by chance with a deviation of 1.4 %.
    fn sitting(state: &mut u64, rounds: usize, times: &[f64]) -> Vec<Vec<f64>> {
        let mut figures = vec![Vec::new(); times.len()];
        for _ in 0..rounds {
            let machine = 1.0 + 0.2 * random(state);
            for (figures, time) in figures.iter_mut().zip(times) {
                let noise = (0..4).map(|_| random(state) - 0.5).sum::<f64>() * 0.0245;
                figures.push(time * machine * (1.0 + noise));
            }
        }
        figures
    }

    #[test]
    fn alike_ones_are_called_equal_in_nineteen_of_twenty_sittings() {
        let mut state = 88_172_645_463_325_252;
        for (rounds, count) in [(2, 2), (5, 2), (5, 8), (9, 3)] {
            let sittings = (0..2000).map(|_| sitting(&mut state, rounds, &vec![10.0; count]));
            let told = sittings.filter(|sitting| verdicts(sitting).contains(&Some(Verdict::More))).count();
            assert!(told <= 2000 / 20, "{told} of 2000 with {count} allocators and {rounds} rounds");
        }
    }

    #[test]
    fn a_difference_of_five_percent_is_found() {
        let mut state = 362_436_069;
        for times in [&[10.5, 10.0][..], &[10.5, 10.5, 10.0, 10.5, 10.5, 10.5, 10.5, 10.5]] {
            let sittings = (0..500).map(|_| sitting(&mut state, 5, times));
            let found = sittings.filter(|sitting| verdicts(sitting)[0] == Some(Verdict::More)).count();
            println!("{found} of 500 with {} allocators", times.len());
            assert!(found >= 350, "{found} of 500 with {} allocators", times.len());
        }
    }

    #[test]
    fn figures_that_do_not_vary_are_told_apart_and_those_next_to_equal_are_not() {
        let always = |figure: f64| vec![figure; 3];
        let figures = [always(100.0), always(100.4), always(101.0), vec![]];
        let expected = [Some(Verdict::Best), Some(Verdict::Equal), Some(Verdict::More), None];
        assert_eq!(verdicts(&figures), expected);
        assert_eq!(verdicts(&[always(7.0), always(0.0)]), [Some(Verdict::More), Some(Verdict::Best)]);
        assert_eq!(verdicts(&[always(0.0), always(0.0)])[1], Some(Verdict::Equal));
        assert_eq!(verdicts(&[vec![1.0], vec![2.0]]), [None, None], "one run says nothing");
        assert_eq!(verdicts(&[always(1.0), vec![]]), [None, None], "nobody to compare with");
    }

    #[test]
    fn the_middle_is_the_median() {
        assert_eq!(Middle::of(&[]), None);
        assert_eq!(Middle::of(&[3.0]), Some(Middle { median: 3.0, spread: 0.0 }));
        assert_eq!(Middle::of(&[5.0, 1.0, 3.0]).map(|middle| middle.median), Some(3.0));
    }
}
