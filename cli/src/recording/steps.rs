//! Where the steps of a recording begin: where the engine has recorded a boundary, else by the period of its
//! sizes, else nowhere.

use stepalloc_planner::period::{self, Change};

use super::raw::{Event, What};

/// The newest periods, which are cut into steps.
const PERIODS: usize = 9;

/// The events before which a step begins, ascending; the last one ends the last step. Fewer than two: there are no steps.
pub fn boundaries(events: &[Event]) -> Vec<usize> {
    let recorded: Vec<usize> =
        (0..events.len()).filter(|&index| matches!(events[index].what, What::Boundary { .. })).collect();
    if recorded.len() >= 2 {
        return recorded;
    }
    let found = by_period(events).unwrap_or_default();
    if found.len() >= 2 { found } else { vec![0] }
}

fn by_period(events: &[Event]) -> Option<Vec<usize>> {
    let allocations: Vec<(usize, u64)> = events
        .iter()
        .enumerate()
        .filter_map(|(index, event)| match event.what {
            What::Allocate { size, .. } => Some((index, size)),
            _ => None,
        })
        .collect();
    let sizes: Vec<u64> = allocations.iter().map(|&(_, size)| size).collect();
    let period = period::find(&sizes)?;
    let periods = (sizes.len() / period.allocations).min(PERIODS);
    let from = sizes.len().checked_sub(periods.checked_sub(1)? * period.allocations)?;
    let earlier = &sizes[from.checked_sub(period.allocations)?..from];
    let mut alive = std::collections::HashMap::new();
    let mut changes = Vec::new();
    let logged = allocations.get(from).map_or(events.len(), |&(index, _)| index);
    for (index, event) in events.iter().enumerate() {
        let change = match event.what {
            What::Allocate { address, size, .. } => {
                alive.insert(address, size);
                Some(Change::Allocate(size))
            }
            What::Free { address } => alive.remove(&address).map(Change::Free),
            What::Boundary { .. } => None,
        };
        changes.extend(change.filter(|_| index >= logged));
    }
    let mut at = from + period::boundary(earlier, &changes, &period)?;
    let mut found = Vec::new();
    while let Some(&(index, _)) = allocations.get(at) {
        found.push(index);
        let Some(next) = period::next_boundary(&sizes, at, period.allocations) else { break };
        at = next;
    }
    Some(found)
}
