//! The engine's thresholds, each with its reason.

/// Events merged in the thread of the step: about 2 ms. A step of 10,000 blocks has twice as many events.
pub(crate) const EVENTS_HERE: u64 = 20_000;
/// Comparisons of sizes in looking for a period in the thread of the step: about 2 ms. Recorded programs take a third at most.
pub(crate) const COMPARISONS_HERE: u64 = 1 << 20;
/// Blocks planned in the thread of the step: about 2 ms.
pub(crate) const BLOCKS_HERE: usize = 200;
/// A plan is good enough where its arena exceeds the load by at most one part in this many of the load: less than users notice.
pub(crate) const GOOD_SHARE: u64 = 200;
/// The same in parts of the process's peak of resident memory, which is what users see.
pub(crate) const GOOD_RESIDENT_SHARE: u64 = 1000;
/// And any such plan by less than the memory that looking for a better one takes.
pub(crate) const GOOD_BYTES: u64 = 1 << 20;
/// From this load on, in bytes, a plan nearer its bound is looked for first, which takes little memory and at most 25 ms: of smaller arenas a
/// tenth is less than a MiB.
pub(crate) const NEAR_LEAST: u64 = 8 << 20;

/// Boundaries after a plan at which free pages of its arena are still taken: blocks that live on for some steps
/// (the gradients of one length until the next of that length) are freed by then.
pub(crate) const RETIRING: u8 = 16;

/// A step misses its plan where less than this share of its bytes finds a slot, in percent.
pub(crate) const HIT_PERCENT: u64 = 90;
/// A plan that has rarely served so much of a step is left, and the large heap serves: threads that take turns at random find a third of
/// their slots, batches of random lengths 60 percent, programs that change a little most of them.
pub(crate) const HELPED_PERCENT: u64 = 75;
/// Bound of the account of such steps: eight of them outweigh sixteen others.
pub(crate) const HELP_MOST: i32 = 16;
/// Missed steps in a row after which steps are learned again: one validation step among training steps is no change.
pub(crate) const MISSED_STEPS: u32 = 4;
/// Steps in a row without a miss after which a plan has proved itself, and the next change is answered quickly again.
pub(crate) const HELPED_STEPS: u32 = 8;
/// Steps that a new plan gets at least; doubled with every plan that did not help, so that a program that does not repeat is recorded
/// ever more rarely.
pub(crate) const PATIENCE: u64 = 8;
/// Upper bound of that, in steps.
pub(crate) const PATIENCE_MAX: u64 = 4096;
/// After a rejected plan, marked steps are recorded again when their count has grown so many times. After one that has rarely helped, when
/// so many times the steps have passed that it took.
pub(crate) const REJECTED_GROWTH: u64 = 4;
/// Steps in which the arena gave pages to the heap, to keep the process's peak, after which the plan is left. Each costs some milliseconds, in
/// pages that fault or move; so one in sixteen is too many, and each other step makes up for a sixteenth.
pub(crate) const PRESSED_STEPS: u32 = 3;
pub(crate) const PRESSED_WEIGHT: u32 = 16;
/// Steps that began lately while others ran count as concurrent from here on: then what one needs says nothing.
pub(crate) const CONCURRENT: u32 = 16;

/// Allocations from one detected boundary to the next, at least; shorter periods are taken together. A boundary costs about two
/// microseconds, most of them for the system's figures.
pub(crate) const LEAST_PERIOD: usize = 24;
/// A detected step must have at most so many times MIN_BYTES (1 MiB) live to be worth a plan: less every backend keeps by itself, and
/// recording takes as much. (Of the recorded programs the smallest has 9 MiB.)
pub(crate) const LEAST_STEP: u64 = 32;
/// Layers of a step, at most, where layers are to be told from steps.
pub(crate) const LAYERS: usize = 64;
/// Periods for which the heap spares pages because a plan is about to come: most come after two or three. A program whose steps are followed for
/// longer, and maybe in vain, is not to have pages moved all the while.
pub(crate) const AWAITED_PERIODS: u64 = 4;
/// Upper bound of the events that are kept, while no period holds, for one that does: they take a MiB.
pub(crate) const RECORDED_MOST: u64 = 1 << 14;
/// They take at most one part in this many of the most bytes that the program had alive.
pub(crate) const RECORDED_SHARE: u64 = 64;
/// The code that learning runs is made up for where it is more than one part in this many of the process's peak. Elsewhere it hardly
/// shows in the peak, and what goes back for it would fault again.
pub(crate) const LEARNING_SHARE: u64 = 128;
/// CPU time of a process before which no period is looked for, unless START_STATISTIC_STEP says when to begin: to learn a step and to fill
/// its plan takes some fifteen milliseconds, which one that ends sooner never gets back.
pub(crate) const YOUNG_NANOSECONDS: u64 = 250_000_000;
/// Memory that merging a marked step takes for each event, roughly.
pub(crate) const EVENT_BYTES: u64 = 128;
/// It may be one part in [`STEP_SHARE`] of the process's peak, and [`STEP_BYTES`] at least. Steps in which other threads allocate all the time took
/// 250 MiB in a process that had 15 alive, more than any plan could save.
pub(crate) const STEP_SHARE: u64 = 4;
pub(crate) const STEP_BYTES: u64 = 8 << 20;
/// Events between two looks at a thread that plans beside the program.
pub(crate) const SOON: u64 = 64;

/// Slot misses that a step may have before the period counts as lost: at least as many, or the step's allocations.
pub(crate) const MISSES_LEAST: u32 = 32;
/// Steps' worth of misses after which the period counts as lost, however often looking for another was in vain.
pub(crate) const MISSED_STEPS_MOST: u32 = 8;
/// Bytes of a period that must be of sizes the plan knows for the period to be the plan's, in percent.
pub(crate) const KNOWN_PERCENT: u64 = 90;
/// Detected steps after which it is asked whether another period serves more; doubled whenever the answer was no.
pub(crate) const TRIED_STEPS: u32 = 16;
/// Upper bound of that.
pub(crate) const TRIED_STEPS_MOST: u32 = 1 << 14;
/// Bytes that may miss before another period is looked for, in thousandths.
pub(crate) const MISSES_TOLERATED: u64 = 20;
/// The same before a longer period, logged soon after the first plan, is believed.
pub(crate) const MISSES_TOLERATED_EARLY: u64 = 5;
/// Steps after which a plan that serves all but that is believed, once as much was logged again as before it.
pub(crate) const EARLY_ACCEPT_STEPS: u32 = 4;
/// Two steps are enough where they have at least this many allocations together: each may be several of the program's.
pub(crate) const EARLY_ACCEPT_ALLOCATIONS: usize = 4096;
/// Steps after which those before count half in a miss window.
pub(crate) const FADING_STEPS: u32 = 32;
/// Allocations logged beside a plan after which no better period is looked for; and until it is looked for again, where there was no
/// memory for a plan.
pub(crate) const DETECTION_CUTOFF: u64 = 1 << 16;
/// The same for the first plan of a period, in multiples of what was logged before it: it may be that of a step's layers.
pub(crate) const CUTOFF_GROWTH: u64 = 8;

/// Steps after which a plan file is given up where the program was not recognised, or no step began.
pub(crate) const CACHE_PERIODS: u64 = 16;
/// That counts steps as at least so many allocations.
pub(crate) const CACHE_LEAST: usize = 1024;
/// From one comparison with a plan file to the next, the log grows by one part in this many at least.
pub(crate) const CACHE_GROWTH: u64 = 64;
/// Marked steps before which nothing is recorded where a plan file may still be recognised.
pub(crate) const CACHE_STEPS: u64 = 8;
