//! The search for a period, on sizes that repeat nearly.

use crate::feed::Feed;
use stepalloc_planner::period::{self, Change, EXACT_EVIDENCE, FINGERPRINT, TooLong};

/// Allocations looked at, at most.
const MOST: usize = 6000;

/// The period search: what it finds lies within what was seen, a bounded search finds the same or says that it was too
/// short, and boundaries lie where they must. The input: times to repeat, then the sizes of a pattern, some of which are
/// changed or left out each time.
pub fn period(data: &[u8]) {
    let mut feed = Feed::new(data);
    let (Some(times), Some(noise)) = (feed.byte(), feed.byte()) else { return };
    let pattern = feed.rest();
    let mut sizes = Vec::new();
    for turn in 0..usize::from(times) + 1 {
        for (at, &byte) in pattern.iter().enumerate() {
            let drawn = (turn * 31 + at * 7) % 256;
            let size = (u64::from(byte) + 1) << (8 + byte % 13);
            match (drawn < usize::from(noise), byte % 4) {
                (true, 0) => {}
                (true, 1) => sizes.extend([size, size]),
                (true, 2) => sizes.push(size + size * drawn as u64 / 512),
                // Sizes that no machine has: a recording may say anything.
                (true, _) => sizes.push(u64::MAX - size),
                (false, _) => sizes.push(size),
            }
        }
        if sizes.len() > MOST {
            sizes.truncate(MOST);
            break;
        }
    }
    let found = period::find(&sizes);
    assert_eq!(period::find_within(&sizes, u64::MAX), Ok(found));
    let soon = period::find_within(&sizes, u64::from(times) << 8);
    assert!(soon == Err(TooLong) || soon == Ok(found), "{soon:?} where {found:?} is found");
    let Some(found) = found else { return };
    let length = found.allocations;
    // Of long periods not all is compared.
    assert!(length > 0 && length + EXACT_EVIDENCE <= sizes.len(), "{found:?} of {} sizes", sizes.len());
    assert!(found.steps > 0 && found.steps <= length && (0.0..=1.0).contains(&found.share), "{found:?}");
    assert!((length..=sizes.len()).contains(&found.repeating(&sizes)));
    let repeated = found.repeated(FINGERPRINT);
    assert!(repeated.allocations >= FINGERPRINT && repeated.allocations.is_multiple_of(length));
    assert!(found.turns(&sizes, 8).is_none_or(|turns| (2..=8).contains(&turns)));
    // The blocks of a pattern live until as many others have come as its first byte says.
    let lives = usize::from(pattern.first().copied().unwrap_or(0)) % length.max(1) + 1;
    let from = sizes.len() - length;
    let mut changes = Vec::new();
    for at in from..sizes.len() {
        changes.push(Change::Allocate(sizes[at]));
        if let Some(freed) = at.checked_sub(lives) {
            changes.push(Change::Free(sizes[freed]));
        }
    }
    let _ = found.is_balanced(&changes);
    let earlier = &sizes[from.saturating_sub(length)..from];
    let begin = period::boundary(earlier, &changes, &found).expect("a whole period was seen");
    assert!(begin < length, "{begin} of {found:?}");
    let mut at = begin;
    while let Some(next) = period::next_boundary(&sizes, at, length) {
        assert!(next > at && next < sizes.len() && next - at <= 2 * length, "{next} after {at} of {length}");
        at = next;
    }
}
