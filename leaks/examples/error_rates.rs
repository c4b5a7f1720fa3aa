//! How often the judge errs: series drawn at random, with a leak and without, judged as bytes.
//!
//! ```text
//! cargo run --release -p stepalloc-leaks --example error_rates [SERIES]
//! ```
//!
//! Prints the share of SERIES series (20,000) of each kind and length of which the verdict is wrong. Seeds are fixed, so it prints the
//! same each time.

use std::process::ExitCode;
use stepalloc_leaks::{Options, Point, judge};

const LEVEL: f64 = 20e6;
const ROUNDS: [u64; 4] = [30, 45, 60, 100];

/// A draw from -1 to 1.
type Noise<'a> = &'a mut dyn FnMut() -> f64;

/// A kind of series: its name, whether it grows, and a series of a number of rounds as multiples of [`LEVEL`].
struct Kind(&'static str, bool, fn(u64, Noise) -> Vec<f64>);

const KINDS: [Kind; 4] = [
    Kind("1 % a round within noise of 2 %", true, |rounds, noise| {
        (0..rounds).map(|round| 1.0 + 0.01 * round as f64 + 0.02 * noise()).collect()
    }),
    Kind("noise of 2 %", false, |rounds, noise| (0..rounds).map(|_| 1.0 + 0.02 * noise()).collect()),
    Kind("one jump of 5 to 50 % within noise of 2 %", false, |rounds, noise| {
        let at = (noise() + 1.0) / 2.0 * rounds as f64;
        let height = 0.275 + 0.225 * noise();
        (0..rounds)
            .map(|round| 1.0 + if round as f64 >= at { height } else { 0.0 } + 0.02 * noise())
            .collect()
    }),
    Kind("random walk of 0.5 % a round", false, |rounds, noise| {
        let mut level = 1.0;
        (0..rounds)
            .map(|_| {
                level += 0.005 * noise().signum();
                level
            })
            .collect()
    }),
];

/// Draws that are always the same of a seed (xorshift).
fn noise_of(seed: u64) -> impl FnMut() -> f64 {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    }
}

/// Series of which the verdict is wrong.
fn errors(Kind(_, grows, draw): &Kind, rounds: u64, series: u64) -> u64 {
    let is_wrong = |seed: &u64| {
        let values = draw(rounds, &mut noise_of(seed * 1000 + rounds));
        let points = (0..).zip(values).map(|(round, value)| Point { round, value: (LEVEL * value) as u64 });
        let verdict = judge(&points.collect::<Vec<_>>(), &Options::for_bytes()).expect("enough points");
        verdict.grows != *grows
    };
    (1..=series).filter(is_wrong).count() as u64
}

fn main() -> ExitCode {
    let series = match std::env::args().nth(1).map(|text| text.parse::<u64>()) {
        None => 20_000,
        Some(Ok(series)) if series > 0 => series,
        Some(_) => {
            eprintln!(
                "usage: error_rates [SERIES]: the number of series of each kind and length, 20000 by default"
            );
            return ExitCode::from(2);
        }
    };
    println!("verdicts that are wrong, of {series} series each");
    print!("{:<42}", "rounds");
    ROUNDS.iter().for_each(|rounds| print!("{rounds:>9}"));
    println!();
    for kind in &KINDS {
        print!("{:<42}", kind.0);
        for rounds in ROUNDS {
            print!("{:>7.2} %", 100.0 * errors(kind, rounds, series) as f64 / series as f64);
        }
        println!();
    }
    ExitCode::SUCCESS
}
