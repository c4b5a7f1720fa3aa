//! What is alive at once: for an arena without slots.
//!
//! Steps that run on several threads at once meet in ever other ways, so a place for each block of each thread's step would
//! take as many times the largest step as there are threads. Blocks in the smallest gap that holds them need little more than
//! what is alive (`benches/crowd.py` compares the two). A loop that asks for one size only says nothing of where its steps
//! begin, and any gap is as good as a place. So there are no slots for either; the arena is as large as what was alive at
//! once, and a little larger.

use crate::arena::{GRANULE_MAX_SHIFT, GRANULE_MIN_SHIFT};
use crate::collector::{AddressHasher, Proposal, ROUNDING_SHARE};
use crate::matcher::Class;
use crate::recorder::{Event, Recorder};
use crate::settings::Settings;
use std::collections::HashMap;
use std::hash::BuildHasherDefault;

/// The arena is larger than what was alive at once by one part in this many.
const ROOM: u64 = 20;
/// Rounds in which no more must have been alive, at least.
const QUIET: u64 = 32;
/// Rounds that are counted at most, for each that DeepRec's MAX allows: they come from several threads.
const MOST_ROUNDS: u64 = 8;
/// The same two where all ask for one size.
const QUIET_OF_ONE_SIZE: u64 = 8;
const MOST_ROUNDS_OF_ONE_SIZE: u64 = 4 * QUIET_OF_ONE_SIZE;
/// Bytes that may be of other sizes, in percent.
const OTHERS_PERCENT: u64 = 25;
/// Granules that are tried.
const SHIFTS: usize = (GRANULE_MAX_SHIFT - GRANULE_MIN_SHIFT + 1) as usize;

/// Bytes alive, of all threads together.
pub(crate) struct Alive {
    /// Bytes of the block at an address.
    blocks: HashMap<usize, u64, BuildHasherDefault<AddressHasher>>,
    /// Bytes alive, with sizes rounded to each granule.
    alive: [u64; SHIFTS],
    /// The most that were.
    most: [u64; SHIFTS],
    /// The size of a loop that asks for one.
    only: Option<Class>,
    /// Bytes that the arena is to have at least.
    least: u64,
    /// Bytes asked for, and those of them of other sizes.
    asked: u64,
    others: u64,
    /// The largest of these.
    largest_other: u64,
    rounds: u64,
    /// Rounds since more was alive than ever before.
    quiet: u64,
}

/// What a round showed.
pub(crate) enum Counted {
    /// More rounds are wanted.
    More,
    /// Enough were seen.
    Enough,
    /// What is alive grows for ever, or other sizes are asked for: no loop of one size.
    NoLoop,
}

impl Alive {
    /// Of steps that run at once.
    pub(crate) fn of_steps() -> Self {
        Self::counting(None)
    }

    /// The same where an arena of fewer bytes was too small.
    pub(crate) fn of_steps_beyond(least: u64) -> Self {
        Self { least, ..Self::of_steps() }
    }

    /// Of a loop that asks for one size.
    pub(crate) fn of_one_size(size: Class) -> Self {
        Self::counting(Some(size))
    }

    fn counting(only: Option<Class>) -> Self {
        Self {
            blocks: HashMap::default(),
            alive: [0; SHIFTS],
            most: [0; SHIFTS],
            only,
            least: 0,
            asked: 0,
            others: 0,
            largest_other: 0,
            rounds: 0,
            quiet: 0,
        }
    }

    /// Takes in the log up to the end of a round, before index `end`.
    pub(crate) fn round(&mut self, recorder: &Recorder, end: u64, settings: &Settings) -> Counted {
        let before = self.most[0];
        if !recorder.read(end, |event| self.take(event)) {
            // What was lost may have freed anything.
            self.blocks.clear();
            self.alive = [0; SHIFTS];
        }
        self.rounds += 1;
        self.quiet = if self.most[0] > before { 0 } else { self.quiet + 1 };
        let stable = settings.stable(true).unwrap_or_default();
        if self.only.is_none() {
            let most = settings.max_steps.saturating_mul(MOST_ROUNDS);
            let enough = self.quiet > stable.max(QUIET) || self.rounds > most;
            return if enough { Counted::Enough } else { Counted::More };
        }
        if self.others * 100 > self.asked * OTHERS_PERCENT || self.rounds > MOST_ROUNDS_OF_ONE_SIZE {
            Counted::NoLoop
        } else if self.quiet >= QUIET_OF_ONE_SIZE {
            Counted::Enough
        } else {
            Counted::More
        }
    }

    /// Counts for a loop that asks for one size.
    pub(crate) fn is_of_one_size(&self) -> bool {
        self.only.is_some()
    }

    fn take(&mut self, event: Event) {
        let (address, came) = match event {
            Event::Allocate { address, class } | Event::Move { address, class, .. } => {
                self.asked += class.bytes();
                if self.only.is_some_and(|only| only != class) {
                    self.others += class.bytes();
                    self.largest_other = self.largest_other.max(class.bytes());
                }
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
        // A larger block must find as much in one piece between those of the one size.
        let bytes = most(shift) + most(shift) / ROOM + self.largest_other;
        let bytes = bytes.max(self.least);
        Proposal::without_slots(bytes.next_multiple_of(1 << shift), self.most[0], shift)
    }
}
