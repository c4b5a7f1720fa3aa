//! A trace in the formats of other programs' viewers.
//!
//! | module | format | viewer |
//! |---|---|---|
//! | `chrome` | Chrome's trace events | ui.perfetto.dev, chrome://tracing |
//! | `dhat` | DHAT's profile | valgrind's dh_view.html |
//! | `folded` | folded stacks | flamegraph.pl, inferno, speedscope |
//!
//! All steps are written, step 0 too, and blocks of any size; those that were alive before the first step are not, as a
//! trace does not say which of them go. Every format is written as it is made, a buffered writer is for the caller.

pub mod chrome;
pub mod dhat;
pub mod folded;

use stepalloc_planner::Trace;

use crate::report::walk::{Change, Walk};
use crate::size;

/// A trace and, where they were recorded, the call stacks of its allocations.
#[derive(Clone, Copy)]
pub struct Recorded<'a> {
    /// The trace.
    pub trace: &'a Trace,
    /// Call stacks, the outermost frame first.
    pub sites: &'a [Vec<String>],
    /// The index in `sites` of an allocation, by its step and its place among the step's events.
    pub site_of: &'a dyn Fn(usize, usize) -> Option<usize>,
}

impl<'a> Recorded<'a> {
    /// A trace without call stacks.
    #[cfg(test)]
    pub fn bare(trace: &'a Trace) -> Recorded<'a> {
        Recorded { trace, sites: &[], site_of: &|_, _| None }
    }

    /// The call stack of an allocation; `None` where there is none, or an empty one.
    fn stack(&self, step: usize, event: usize) -> Option<&'a [String]> {
        let site = self.sites.get((self.site_of)(step, event)?)?;
        (!site.is_empty()).then_some(site)
    }

    /// The moment at which most bytes are alive, as how many changes came before it, and the bytes. The first of several.
    fn peak(&self) -> (usize, u64) {
        let mut sizes = Vec::new();
        let (mut live, mut most) = (0u64, (0, 0));
        for (index, moment) in Walk::whole(self.trace).enumerate() {
            match moment.change {
                Change::Born { size, .. } => {
                    sizes.push(size);
                    live = live.saturating_add(size);
                }
                Change::Died { block } => live = live.saturating_sub(sizes[block]),
            }
            if live > most.1 {
                most = (index + 1, live);
            }
        }
        most
    }
}

/// The one frame of blocks whose call stack is not known.
fn frame_of_size(bytes: u64) -> String {
    format!("size {}", size::show(bytes))
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::report::walk::tests::{allocate, free, trace};

    /// Two steps; most bytes, 1,053,576, are alive after the third event of the first.
    pub fn example() -> Trace {
        trace(vec![
            vec![allocate(1, 1 << 20), allocate(2, 5000), free(9), allocate(3, 5000), free(2)],
            vec![free(1), allocate(4, 5000), allocate(5, 64), free(3)],
        ])
    }

    #[test]
    fn the_peak_is_the_first_of_the_most() {
        let example = example();
        assert_eq!(Recorded::bare(&example).peak(), (3, (1 << 20) + 10_000));
        assert_eq!(Recorded::bare(&Trace::default()).peak(), (0, 0));
    }

    #[test]
    fn sites_that_do_not_exist_and_empty_ones_are_none() {
        let example = example();
        let sites = [vec!["main".to_owned()], vec![]];
        let of = |_: usize, event: usize| [None, Some(0), Some(1), Some(2)][event];
        let recorded = Recorded { trace: &example, sites: &sites, site_of: &of };
        let known: Vec<bool> = (0..4).map(|event| recorded.stack(0, event).is_some()).collect();
        assert_eq!(known, [false, true, false, false]);
    }
}
