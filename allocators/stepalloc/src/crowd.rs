//! Whether steps run on several threads at once, where nobody marks them.

use crate::matcher::Class;
use std::collections::HashSet;

/// Allocations of a thread that were heard, at least, if its steps are to be told from chance.
const TELLING: usize = 384;
/// So many sizes in a row must have come before, in the same order,
const ROW: usize = 8;
/// in so many of a thread's newer allocations, in percent.
const KNOWN_PERCENT: usize = 90;
/// Bytes that must be such threads', in percent.
const REPEATED_PERCENT: u64 = 90;

/// Whether several threads repeat steps, each its own, by what each of them asked for.
///
/// A thread repeats steps when what it asks for comes again, in the order in which it came before, but for the places where
/// one kind of step follows another. (Not where it is one size all the time, as of buffers for one file after another.)
pub(crate) fn is_heard(threads: &[Vec<Class>]) -> bool {
    if threads.iter().filter(|heard| heard.len() >= TELLING).count() < 2 {
        return false;
    }
    let bytes = |heard: &Vec<Class>| heard.iter().map(|class| class.bytes()).sum::<u64>();
    let repeating = || threads.iter().filter(|heard| repeats(heard));
    repeating().count() >= 2
        && repeating().map(bytes).sum::<u64>() * 100
            >= threads.iter().map(bytes).sum::<u64>() * REPEATED_PERCENT
}

/// Whether a thread's newer allocations come in rows that came before.
fn repeats(heard: &[Class]) -> bool {
    if heard.len() < TELLING {
        return false;
    }
    let rows = heard.windows(ROW);
    let newer = rows.len() / 2;
    let mut seen = HashSet::new();
    let known = rows.enumerate().filter(|(at, row)| {
        let is_known = !seen.insert(*row);
        *at >= newer && is_known && row.iter().any(|class| *class != row[0])
    });
    known.count() * 100 >= (heard.len() - ROW + 1 - newer) * KNOWN_PERCENT
}

#[cfg(test)]
mod tests {
    use super::*;

    fn classes(sizes: impl Iterator<Item = usize>) -> Vec<Class> {
        sizes.map(|size| Class::of(size, 16).expect("possible size")).collect()
    }

    /// Steps of three kinds in an order of no period.
    fn server(seed: usize) -> Vec<Class> {
        let kinds = (0..100).map(move |step: usize| (step * step + seed * step / 3 + step / 7) % 3);
        classes(kinds.flat_map(|kind| (0..12 + kind).map(move |at| 40_000 + 7000 * ((at * at + kind) % 9))))
    }

    #[test]
    fn threads_that_repeat_steps_are_told_from_others() {
        let mut random = 1u64;
        let mut chance = || {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            classes(core::iter::once(40_000 + (random >> 44) as usize))[0]
        };
        let noise: Vec<_> = (0..1200).map(|_| chance()).collect();
        let same = classes((0..1200).map(|_| 65_536));
        assert!(is_heard(&[server(1), server(2), server(5)]));
        assert!(!is_heard(&[server(1)]), "one thread is no crowd");
        assert!(!is_heard(&[server(1), noise.clone()]), "half of the bytes are of no step");
        assert!(!is_heard(&[noise.clone(), noise]));
        assert!(!is_heard(&[same.clone(), same]), "one size is no step");
        assert!(!is_heard(&[server(1)[..200].to_vec(), server(2)[..200].to_vec()]), "too little to tell");
    }
}
