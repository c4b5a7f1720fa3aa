//! Steps that run on several threads at once: what is alive of all of them together.
//!
//! Such steps meet in ever other ways, so a place for each block of each thread's step would take as many times the largest
//! step as there are threads. Blocks in the smallest gap that holds them need little more than what is alive
//! (`benches/crowd.py` compares the two). So there are no slots here; the arena is as large as what was alive at once, and a
//! little larger.

use crate::arena::{GRANULE_MAX_SHIFT, GRANULE_MIN_SHIFT};
use crate::collector::{AddressHasher, Proposal, ROUNDING_SHARE};
use crate::recorder::{Event, Recorder};
use crate::settings::Settings;
use std::collections::HashMap;
use std::hash::BuildHasherDefault;

/// The arena is larger than what was alive at once by one part in this many.
const ROOM: u64 = 20;
/// Boundaries in which no more must have been alive, at least.
const QUIET: u64 = 32;
/// Boundaries that are counted at most, for each that DeepRec's MAX allows: they come from several threads.
const MOST_BOUNDARIES: u64 = 8;
/// Granules that are tried.
const SHIFTS: usize = (GRANULE_MAX_SHIFT - GRANULE_MIN_SHIFT + 1) as usize;

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
