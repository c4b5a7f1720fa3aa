//! The verdicts of all quantities, for people and for programs.

use std::io::{self, Write};

use serde_json::{Value, json};
use stepalloc_leaks::{JudgeError, Options, Point, Quantity, Sample, Verdict, judge};

use crate::os;
use crate::size;

/// A verdict for each quantity.
pub struct Table(Vec<(Quantity, Verdict)>);

impl Table {
    /// Judges each quantity of the samples.
    pub fn of(samples: &[Sample], options: impl Fn(Quantity) -> Options) -> Result<Table, JudgeError> {
        let verdict = |quantity: Quantity| {
            let points: Vec<Point> = samples
                .iter()
                .map(|sample| Point { round: sample.round, value: quantity.of(sample) })
                .collect();
            Ok((quantity, judge(&points, &options(quantity))?))
        };
        Quantity::ALL.into_iter().map(verdict).collect::<Result<_, _>>().map(Table)
    }

    /// Whether anything grows.
    pub fn grows(&self) -> bool {
        self.0.iter().any(|(_, verdict)| verdict.grows)
    }

    /// A line for each quantity, on standard error.
    pub fn print(&self, rounds: u64) {
        let judged = self.0.first().map_or(0, |(_, verdict)| verdict.judged);
        os::say(&format!("{rounds} rounds, {judged} samples judged after the warm-up"));
        let mut text = format!("{:12}{:>12}{:>12}{:>24}  verdict\n", "", "first", "last", "a round");
        for (quantity, verdict) in &self.0 {
            text.push_str(&format!(
                "{:12}{:>12}{:>12}{:>24}  {}\n",
                quantity.name(),
                amount(*quantity, verdict.first),
                amount(*quantity, verdict.last),
                growth(*quantity, verdict),
                word(verdict),
            ));
        }
        // A closed standard error is nobody's concern.
        let _ = io::stderr().lock().write_all(text.as_bytes());
    }

    /// What grows, a line each; else that nothing does, unless that is not to be said.
    pub fn conclude(&self, is_quiet: bool) {
        for (quantity, verdict) in self.0.iter().filter(|(_, verdict)| verdict.grows) {
            os::say(&format!("{} grows by {} a round", quantity.name(), growth(*quantity, verdict)));
        }
        if !self.grows() && !is_quiet {
            os::say("nothing grows");
        }
    }

    /// For programs.
    pub fn json(&self) -> Value {
        let one = |(quantity, verdict): &(Quantity, Verdict)| {
            // From nothing there is no share.
            let share = Some(verdict.share_per_round).filter(|share| share.is_finite());
            json!({
                "name": quantity.name(),
                "unit": if quantity.is_bytes() { "bytes" } else { "count" },
                "grows": verdict.grows,
                "judged": verdict.judged,
                "first": verdict.first,
                "last": verdict.last,
                "per_round": verdict.per_round,
                "share_per_round": share,
                "z": verdict.z,
                "is_large": verdict.is_large,
                "is_persistent": verdict.is_persistent,
            })
        };
        self.0.iter().map(one).collect()
    }
}

fn amount(quantity: Quantity, value: f64) -> String {
    if quantity.is_bytes() { size::show(value as u64) } else { format!("{value:.0}") }
}

/// Growth per round with its sign and share.
fn growth(quantity: Quantity, verdict: &Verdict) -> String {
    let sign = if verdict.per_round < 0.0 { "-" } else { "+" };
    let value = verdict.per_round.abs();
    let value = if quantity.is_bytes() { size::show(value as u64) } else { format!("{value:.2}") };
    if verdict.per_round == 0.0 {
        return "0".to_owned();
    }
    format!("{sign}{value} ({sign}{:.2} %)", 100.0 * verdict.share_per_round.abs())
}

/// The verdict in a word or some.
fn word(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict { grows: true, .. } => "grows",
        Verdict { is_large: true, is_persistent: false, .. } => "rose in jumps",
        _ => "steady",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(rounds: u64, leak: u64) -> Vec<Sample> {
        (1..=rounds)
            .map(|round| Sample {
                round,
                resident_bytes: (20 << 20) + leak * round,
                peak_bytes: 40 << 20,
                threads: 3,
                mappings: 50,
                descriptors: 5,
            })
            .collect()
    }

    #[test]
    fn a_leak_is_told_by_its_quantity() {
        let table = Table::of(&samples(90, 200 << 10), Quantity::options).expect("enough");
        assert!(table.grows());
        let json = table.json();
        let grows: Vec<_> =
            json.as_array().into_iter().flatten().filter(|one| one["grows"] == true).collect();
        assert_eq!(grows.len(), 1);
        assert_eq!((&grows[0]["name"], &grows[0]["per_round"]), (&json!("VmRSS"), &json!(204_800.0)));
        let (quantity, verdict) = &table.0[0];
        // Of what the rounds that count have in the middle.
        let told = growth(*quantity, verdict);
        assert!(told.starts_with("+200.0 KiB (+0.7") && told.ends_with(" %)"), "{told}");
    }

    #[test]
    fn what_stays_is_steady() {
        let table = Table::of(&samples(90, 0), Quantity::options).expect("enough");
        assert!(!table.grows());
        assert_eq!(table.0.iter().map(|(_, verdict)| word(verdict)).collect::<Vec<_>>(), ["steady"; 5]);
        assert!(Table::of(&samples(10, 0), Quantity::options).is_err());
    }
}
