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
//! - [`Planner`] fills skylines in several orders, tries first and best fit, goes on from the best skyline with changed
//!   orders and searches at capacities, until it meets the bound or has done its work. The same problem gives the same
//!   plan, everywhere.
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
//! # Costs and limits
//!
//! A few hundred blocks take well below a millisecond where a skyline meets the bound, as it does on most recorded
//! programs. Where none does, the search takes milliseconds on most instances made to be hard, and up to a second and a
//! half where it finds nothing; a few thousand blocks that nearly all meet take up to five seconds. What is too much to
//! search, 10,000 blocks that live long, takes tens of milliseconds to a second. Up to 10,000 first and best fit, which are
//! quadratic, run when all skylines failed; beyond, nothing is quadratic, and 100,000 as well as a million blocks take up
//! to a second or one and a half of one core. The circular load is not always attainable; that a plan above it is optimal
//! is proven only where the search goes through all possibilities, mostly up to some tens of blocks. With constraints the
//! skylines and the search see only the hulls of blocks, and first fit, O(n log n) for each block, does the work at every
//! effort. The crate starts threads only where [`Planner::threads`] allows them, calls no operating system except for that
//! and to read files, and reads a clock only under a time limit.
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
mod mosaic;
mod needs;
mod online;
pub mod order;
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
pub use kinds::{Kind, KindError, KindsPlan, Smaller};
pub use lifetime::{Counts, Lifetime};
pub use limits::Progress;
pub use lines::ReadError;
pub use load::Load;
pub use order::Order;
pub use plan::{Plan, Proof};
pub use planner::{Effort, Planner, Within};
pub use problem::{Block, Problem, ProblemError};
pub use read::{Input, read_any, read_from};
pub use replan::{Change, ReplanError, Replanned, Replanner, replan};
pub use rotation::{Rotation, RotationError, rotate, verify_rotation};
pub use steps::{Event, Key, StepProblem, Steps};
pub use trace::Trace;
pub use verify::{ArenaViolation, Unproven, Violation, verify, verify_arenas, verify_bound};
