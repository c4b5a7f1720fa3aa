//! Which sweeps are tried, and in which order.

use super::care::Care;
use crate::bins::Taste;
use crate::timeline::Timeline;

/// Which part of the bound's bytes makes a block a large one. Blocks of a byte more than that are so few at any moment,
/// and so hard to find room for, that how they lie decides.
const LARGE: [u64; 4] = [256, 512, 128, 1024];

/// Of all bytes and events, the part in large blocks from which on they are placed first.
const HEAVY: u128 = 8;

/// Of how many blocks one is placed with care, each tried in turn.
const SHARES: [usize; 5] = [64, 32, 16, 8, 4];

/// Hundredths of all bytes and events that hang from the ceiling: the smallest blocks.
pub(super) const HUNG: [u64; 3] = [2, 8, 0];

/// One sweep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Try {
    /// What has its offsets before.
    pub care: Option<Care>,
    pub backward: bool,
    pub taste: Taste,
    /// Hundredths of all bytes and events.
    pub hung: u64,
}

impl Try {
    /// What is left of a plan's name where nothing is placed with care.
    pub fn name(self) -> String {
        let taste = if self.taste == Taste::Tight { "tight " } else { "" };
        let way = if self.backward { "backward" } else { "forward" };
        match self.care {
            None => format!("{taste}sweep {way}"),
            Some(care) => format!("{taste}sweep {way} round {care}"),
        }
    }
}

/// The sweeps to try: with nothing placed before, and round what was placed with care, the most promising last of each.
pub(super) fn tries(timeline: &Timeline, bound: u64) -> [Vec<Try>; 2] {
    let both = |care, hung| [true, false].map(|backward| Try { care, backward, taste: Taste::Alike, hung });
    let mut plain: Vec<Try> = HUNG.iter().flat_map(|&hung| both(None, hung)).collect();
    plain.extend([false, true].map(|backward| Try { care: None, backward, taste: Taste::Tight, hung: 0 }));
    let bytes = LARGE.iter().map(|&part| Care::Bytes((bound / part).max(1)));
    let shares = SHARES.iter().flat_map(|&share| [Care::Size(share), Care::Area(share)]);
    let cares: Vec<Care> = bytes.chain(shares).filter(|care| care.any(timeline)).collect();
    let mut round: Vec<Try> = cares.into_iter().flat_map(|care| both(Some(care), HUNG[0])).collect();
    plain.reverse();
    round.reverse();
    [plain, round]
}

/// Whether large blocks make up so much that they are best placed first.
pub(super) fn heavy(timeline: &Timeline, bound: u64) -> bool {
    let area = |at_least: u64| {
        let items = timeline.items.iter().filter(|item| item.size >= at_least);
        items.map(|item| u128::from(item.size) * u128::from(item.upper - item.lower)).sum::<u128>()
    };
    let least = (bound / LARGE[0]).max(1);
    Care::Bytes(least).any(timeline) && area(least) >= area(0) / HEAVY
}

/// The size below which blocks have so many hundredths of all bytes and events.
pub(super) fn smallest(timeline: &Timeline, share: u64) -> u64 {
    // By size, eight to a power of two.
    let class =
        |size: u64| (size.ilog2() as usize) << 3 | (u128::from(size) << 3 >> size.ilog2() & 7) as usize;
    let mut areas = [0u128; 64 << 3];
    for item in &timeline.items {
        areas[class(item.size)] += u128::from(item.size) * u128::from(item.upper - item.lower);
    }
    let most = areas.iter().sum::<u128>() / 100 * u128::from(share);
    let mut sum = 0;
    let fits = |&&area: &&u128| {
        sum += area;
        sum <= most
    };
    let classes = areas.iter().take_while(fits).count() as u64;
    // The least size of the class that does not fit.
    u64::try_from((u128::from(8 | classes & 7) << (classes >> 3)) >> 3).unwrap_or(u64::MAX)
}
