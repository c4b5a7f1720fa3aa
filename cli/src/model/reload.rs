//! Whether memory grows when the same is done again and again.
//!
//! The judge is that of OpenVINO's memory leak tests, with a stricter bound: after some turns to warm up, VmRSS is smoothed in blocks;
//! blocks above a reference are outliers, and when there are too many, the first of them is the new reference, some times.

use crate::os::Resident;

/// Turns before memory counts.
const WARM: usize = 30;
/// Turns in a block.
const BLOCK: usize = 5;
/// A block is an outlier if it is above the reference by this factor.
const OUTLIER: f64 = 1.1;
/// Outliers that are let pass.
const OUTLIERS: usize = 5;
/// New references.
const RETRIES: usize = 3;

/// Does it so many times; VmRSS after each.
pub(super) fn turns(count: u64, mut turn: impl FnMut() -> Result<(), String>) -> Result<Vec<u64>, String> {
    let mut resident = Vec::new();
    for _ in 0..count {
        turn()?;
        resident.push(Resident::of(std::process::id()).map_or(0, |resident| resident.bytes));
    }
    Ok(resident)
}

/// Whether it grows from turn to turn.
pub(super) fn grows(resident: &[u64]) -> bool {
    let after = resident.get(WARM..).unwrap_or_default();
    let blocks = after.chunks_exact(BLOCK).map(|block| block.iter().sum::<u64>() as f64 / BLOCK as f64);
    let blocks: Vec<_> = blocks.collect();
    let mut from = 0;
    for _ in 0..=RETRIES {
        let Some(&reference) = blocks.get(from) else { return false };
        let outlier = |&index: &usize| blocks[index] > reference * OUTLIER;
        match (from..blocks.len()).filter(outlier).nth(OUTLIERS) {
            Some(index) => from = index,
            None => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steady_memory_with_a_step_and_some_spikes_does_not_grow() {
        let level =
            |turn: u64| if turn < 300 { 1000 } else { 1200 } + if turn.is_multiple_of(97) { 500 } else { 0 };
        assert!(!grows(&(0..1000).map(level).collect::<Vec<_>>()));
        assert!(!grows(&[]));
    }

    #[test]
    fn memory_that_grows_by_a_part_in_a_thousand_of_each_turn_is_found() {
        assert!(grows(&(0..1000).map(|turn| 1000 + turn).collect::<Vec<_>>()));
    }
}
