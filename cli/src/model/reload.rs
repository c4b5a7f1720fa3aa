//! Whether memory grows when the same is done again and again, by the judge of `stepalloc leaks`.

use stepalloc_leaks::{Options, Point, judge};

use crate::os::Resident;

/// Does it so many times; VmRSS after each.
pub(super) fn turns(count: u64, mut turn: impl FnMut() -> Result<(), String>) -> Result<Vec<u64>, String> {
    let mut resident = Vec::new();
    for _ in 0..count {
        turn()?;
        resident.push(Resident::of(std::process::id()).map_or(0, |resident| resident.bytes));
    }
    Ok(resident)
}

/// Whether it grows from turn to turn. Of fewer than thirty turns nothing is known.
pub(super) fn grows(resident: &[u64]) -> bool {
    let points = (0..).zip(resident).map(|(round, &value)| Point { round, value });
    judge(&points.collect::<Vec<_>>(), &Options::for_bytes()).is_ok_and(|verdict| verdict.grows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steady_memory_with_a_step_and_some_spikes_does_not_grow() {
        let level = |turn: u64| {
            (if turn < 300 { 20 << 20 } else { 24 << 20 })
                + if turn.is_multiple_of(97) { 10 << 20 } else { 0 }
        };
        assert!(!grows(&(0..1000).map(level).collect::<Vec<_>>()));
        assert!(!grows(&[]));
    }

    #[test]
    fn memory_that_grows_by_a_part_in_a_thousand_of_each_turn_is_found() {
        assert!(grows(&(0..1000).map(|turn| (20 << 20) + 20_000 * turn).collect::<Vec<_>>()));
    }
}
