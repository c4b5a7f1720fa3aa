//! Steps that run on several threads at once: what is alive of all of them together.
//!
//! Such steps meet in ever other ways, so a place for each block of each thread's step would take as many times the largest
//! step as there are threads. Blocks in the smallest gap that holds them need little more than what is alive
//! (`benches/crowd.py` compares the two). So there are no slots here; the arena is as large as what was alive at once, and a
//! little larger.

use crate::arena::{GRANULE_MAX_SHIFT, GRANULE_MIN_SHIFT};
use crate::collector::{AddressHasher, Proposal, ROUNDING_SHARE};
use crate::matcher::Class;
use crate::recorder::{Event, Recorder};
use crate::settings::Settings;
use std::collections::{HashMap, HashSet};
use std::hash::BuildHasherDefault;

/// The arena is larger than what was alive at once by one part in this many.
const ROOM: u64 = 20;
/// Boundaries in which no more must have been alive, at least.
const QUIET: u64 = 32;
/// Boundaries that are counted at most, for each that DeepRec's MAX allows: they come from several threads.
const MOST_BOUNDARIES: u64 = 8;
/// Granules that are tried.
const SHIFTS: usize = (GRANULE_MAX_SHIFT - GRANULE_MIN_SHIFT + 1) as usize;

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

/// What is alive of the steps of all threads.
pub(crate) struct Crowd {
    /// Bytes of the block at an address.
    blocks: HashMap<usize, u64, BuildHasherDefault<AddressHasher>>,
    /// Bytes alive, with sizes rounded to each granule.
    alive: [u64; SHIFTS],
    /// The most that were.
    most: [u64; SHIFTS],
    boundaries: u64,
    /// Boundaries since more was alive than ever before.
    quiet: u64,
}

impl Crowd {
    pub(crate) fn new() -> Self {
        Self { blocks: HashMap::default(), alive: [0; SHIFTS], most: [0; SHIFTS], boundaries: 0, quiet: 0 }
    }

    /// Takes in the log up to a boundary, before index `end`; `true` when enough was seen.
    pub(crate) fn boundary(&mut self, recorder: &Recorder, end: u64, settings: &Settings) -> bool {
        let before = self.most[0];
        if !recorder.read(end, |event| self.take(event)) {
            // What was lost may have freed anything.
            self.blocks.clear();
            self.alive = [0; SHIFTS];
        }
        self.boundaries += 1;
        self.quiet = if self.most[0] > before { 0 } else { self.quiet + 1 };
        let stable = settings.stable(true).unwrap_or_default();
        self.quiet > stable.max(QUIET) || self.boundaries > settings.max_steps.saturating_mul(MOST_BOUNDARIES)
    }

    fn take(&mut self, event: Event) {
        let (address, came) = match event {
            Event::Allocate { address, class } | Event::Move { address, class, .. } => {
                (address, Some(class.bytes()))
            }
            Event::Free { address, .. } => (address, None),
        };
        let went = match came {
            Some(bytes) => self.blocks.insert(address, bytes),
            None => self.blocks.remove(&address),
        };
        for ((alive, most), shift) in self.alive.iter_mut().zip(&mut self.most).zip(GRANULE_MIN_SHIFT..) {
            let rounded = |bytes: Option<u64>| bytes.unwrap_or(0).next_multiple_of(1 << shift);
            *alive = *alive + rounded(came) - rounded(went);
            *most = (*alive).max(*most);
        }
    }

    /// An arena for as much. `shift` fixes the granule where the arena is open already.
    pub(crate) fn proposal(&self, shift: Option<u32>) -> Option<Proposal> {
        let most = |shift: u32| self.most[(shift - GRANULE_MIN_SHIFT) as usize];
        let bearable = self.most[0] + self.most[0] / ROUNDING_SHARE;
        let shift = shift.unwrap_or_else(|| {
            let shifts = GRANULE_MIN_SHIFT..=GRANULE_MAX_SHIFT;
            shifts.rev().find(|&shift| most(shift) <= bearable).unwrap_or(GRANULE_MIN_SHIFT)
        });
        let bytes = most(shift) + most(shift) / ROOM;
        Proposal::without_slots(bytes.next_multiple_of(1 << shift), self.most[0], shift)
    }
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
