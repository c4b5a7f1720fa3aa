//! Plans the memory of a repeated step: an offset for every block, close to the proven minimum.
//!
//! # The problem
//!
//! Blocks of memory have known lifetimes and sizes. Blocks alive at the same time must not share bytes; the arena that
//! holds them all should be as small as can be. This is *dynamic storage allocation*, NP-complete, with a bound that is
//! easy to compute: the **load**, the bytes alive at the worst moment. Steps of training, inference or simulation repeat,
//! so that time is a circle: a gradient freed at the beginning of the next step is alive at both ends of the step, at one
//! offset. Everything here works on the line and on the circle.
//!
//! # The way of the data
//!
//! ```text
//! recorded steps --Steps--> Problem --Planner--> Plan --verify--> certificate
//!                           load, lower_bound
//! ```
//!
//! - [`Steps`] merges recorded steps into one periodic [`Problem`]: lifetimes are the union over the steps, blocks that
//!   were ever alive together overlap in it. [`trace`] reads recorded steps from files, [`mod@csv`] single problems.
//! - [`Constraints`] say what else is asked for: fixed offsets, gaps in lifetimes, views inside other blocks, pairs that
//!   work in place. [`Problem::check`] refuses what cannot be kept.
//! - [`Problem::load`] and [`Problem::lower_bound`] say what no plan can do without.
//! - [`Planner`] makes a plan as low as the effort allows, or one within a capacity, or proves that there is none.
//! - [`Planner::plan_kinds`] plans several [`kinds`] of steps, all in one plan and each alone; [`Planner::plan_arenas`]
//!   deals blocks out to several [`arenas`] with capacities.
//! - [`Plan`] carries its height, the bound, and the proof where the two meet.
//! - [`Replanner`] follows changes of a planned problem in proportion to them and moves nothing else; [`replan()`] finds
//!   the changes itself. [`rotate`] plans several periods as one where the circular load is not attainable in one.
//! - [`verify()`] trusts none of the above and checks a plan against the rules alone, [`verify_arenas()`] one
//!   for several arenas, [`verify_bound()`] a bound.
//!
//! ```
//! use stepalloc_planner::{Block, Planner, Problem, verify};
//!
//! let block = |id, lower, upper, size| Block { id, lower, upper, size, align: 64 };
//! // The third block is still alive when the next step begins.
//! let blocks = vec![block(0, 0, 4, 4096), block(1, 2, 5, 1024), block(2, 5, 9, 2048)];
//! let problem = Problem::new(blocks).with_period(8);
//! let plan = Planner::new().plan(&problem)?;
//! assert_eq!(verify(&problem, &plan.offsets, plan.height), Ok(()));
//! assert_eq!((plan.height, plan.optimal()), (6144, true));
//! # Ok::<(), stepalloc_planner::ProblemError>(())
//! ```
//!
//! # How a plan is found
//!
//! 1. The **bound**: the largest load, with alignments folded in ([`LowerBound`]). A plan of that height is optimal, and
//!    most recorded programs have one.
//! 2. **Skylines** in five orders: blocks are put on a skyline over time, lowest place first, among those that fit there
//!    the first of the order (the skyline of strip packing, as in google/minimalloc's and TelaMalloc's heuristics). Long
//!    lifetimes first is optimal where lifetimes nest.
//! 3. A **walk** from the best skyline: what lies at the top is moved to an earlier place in the order, and the skyline is
//!    built again (iterated greedy: Ruiz, Stuetzle, European J. of Operational Research 177, 2007). **First and best fit** in
//!    the same orders.
//! 4. A **search** within a capacity builds a plan from below, valley by valley, and meets no plan twice, so that it proves
//!    that there is none when it ends without one (the canonical form and the splitting of google/minimalloc: Moffitt, ASPLOS
//!    2023). What a decision leaves to the others is worked out as in scheduling (Baptiste, Le Pape, Nuijten 2001); states
//!    that failed are remembered; searches are given up and begun anew with other orders as Luby, Sinclair and Zuckerman
//!    (1993) say. Minimising tries the bound, capacities between it and the best height, and the height less one step; a
//!    capacity whose possibilities are exhausted raises the bound ([`Proof::Search`]).
//! 5. Beyond 10,000 blocks: **sweeps** along time that put each block into a gap that fits it closely beside a neighbour
//!    that goes away at nearly the same time, the smallest blocks apart from the others under the arena's ceiling, the
//!    largest placed by skylines before. What shares no moment with the rest is planned apart.
//!
//! Walk, search and fits take turns, each turn twice as long as the one before, until the bound is met, the effort is
//! spent or the caller says so ([`Planner::effort`], [`Planner::time_limit`], [`Planner::watch`]). Work is counted, not
//! timed: the same problem, effort and seed give the same plan everywhere, on any number of threads, unless a time limit
//! or the caller ends it.
//!
//! Of plans of that height [`locality::reuse_recent`] makes one whose blocks come where memory was used just before, for caches' sake.
//!
//! With **constraints** the skylines see only the hulls of blocks; first fit among pieces of blocks, O(n log n) for each,
//! and a walk from it do the rest.
//!
//! # Costs and limits
//!
//! A few hundred blocks take well below a millisecond where a skyline meets the bound, as it does on most recorded
//! programs. Where none does, the search takes milliseconds on most instances made to be hard, and up to a second and a
//! half where it finds nothing; a few thousand blocks that nearly all meet take up to five seconds. Up to 10,000 first
//! and best fit, which are quadratic, run when all skylines failed; beyond, nothing is quadratic, and 100,000 as well
//! as a million blocks take a second or two of one core. `benches/planner.py` and the example `scale` measure it.
//!
//! The circular load is not always attainable in one period ([`rotate`] plans several). That a plan above it is optimal
//! is proven only where the search goes through all possibilities, mostly up to some tens of blocks. With constraints
//! the skylines and the search see only the hulls of blocks, and first fit, O(n log n) for each block, does the work at
//! every effort. [`Replanner`] never moves what did not change, and so cannot come back to the bound where the change
//! does not allow it: of a tight plan's blocks, one that grows mostly loses its place.
//!
//! The crate starts threads only where [`Planner::threads`] allows them, calls no operating system except for that and to
//! read files, and reads a clock only under a time limit.
#![forbid(unsafe_code)]

pub mod arenas;
mod bins;
pub mod bound;
mod calendar;
mod capacity;
mod carry;
mod constrained;
pub mod constraints;
mod contradiction;
pub mod csv;
mod dice;
pub mod families;
mod fit;
mod forest;
mod gaps;
pub mod generate;
mod groups;
mod improve;
pub mod kinds;
mod large;
pub mod lifetime;
mod limits;
mod lines;
pub mod load;
pub mod locality;
mod mosaic;
mod needs;
mod online;
pub mod order;
pub mod period;
mod pieces;
pub mod plan;
pub mod planner;
pub mod problem;
mod radix;
pub mod read;
pub mod replan;
pub mod rotation;
mod search;
mod sections;
mod skyline;
pub mod steps;
mod timeline;
mod tower;
pub mod trace;
pub mod verify;

pub use arenas::{Arena, ArenaError, ArenasPlan, Place, Used};
pub use bound::LowerBound;
pub use constraints::{ConstraintError, Constraints, Fixed, Gap, InPlace, Inside};
pub use csv::Buffers;
pub use families::{Families, Family};
pub use kinds::{Kind, KindError, KindsPlan, Smaller};
pub use lifetime::{Counts, Lifetime};
pub use limits::Progress;
pub use lines::ReadError;
pub use load::Load;
pub use order::Order;
pub use period::Period;
pub use plan::{Plan, Proof};
pub use planner::{Effort, Planner, Within};
pub use problem::{Block, Problem, ProblemError};
pub use read::{Input, read_any, read_from};
pub use replan::{Change, ReplanError, Replanned, Replanner, replan};
pub use rotation::{Rotation, RotationError, rotate, verify_rotation};
pub use steps::{Event, Key, StepProblem, Steps};
pub use trace::Trace;
pub use verify::{ArenaViolation, Unproven, Violation, verify, verify_arenas, verify_bound};
