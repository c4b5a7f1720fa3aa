//! Does a program's memory grow from round to round?
//!
//! A *round* is what the program repeats: an inference, a request, a training step. [`Sample::of`] reads what a process has
//! after a round (resident memory, threads, mappings, descriptors), and [`judge`] says of one quantity over the rounds whether
//! it grows, and by how much a round:
//!
//! ```
//! use stepalloc_leaks::{Options, Point, judge};
//!
//! // 20 MB, and 1 % of that more after each round.
//! let leak: Vec<Point> = (0..100).map(|round| Point { round, value: 20_000_000 + 200_000 * round }).collect();
//! let verdict = judge(&leak, &Options::for_bytes()).expect("enough rounds");
//! assert!(verdict.grows);
//! assert!((verdict.per_round - 200_000.0).abs() < 1.0);
//! ```
//!
//! # How it judges
//!
//! The frame is that of OpenVINO's memory leak tests (`tests/stress_tests/memleaks_tests` in openvinotoolkit/openvino): sample
//! after each round, drop the rounds that warm up, smooth by medians of blocks, and let outliers and one new level pass. OpenVINO
//! compares with a reference level plus 10 %. Here the growth itself is estimated, so that slow leaks are found in fewer rounds:
//!
//! 1. The rounds that warm up are dropped, and long series are reduced to 512 medians of blocks.
//! 2. *Size*: the Theil–Sen slope (the median of the slopes between all pairs of points; Sen 1968) is the growth per round. A
//!    third of the points may be outliers without any effect. It counts from [`Options::share_per_round`] of the level on, or
//!    where it adds up to [`Options::share_in_all`] of the level over the judged rounds, and from [`Options::least`] units on in all.
//! 3. *Chance*: Mann–Kendall's statistic (Mann 1945, Kendall 1975, with its correction for ties) must exceed [`Options::z`]
//!    standard deviations.
//! 4. *Persistence*: the judged rounds are cut into five parts. Either each part's median, from the middle part on, is above the one
//!    before it by at least two fifths of the average increase; or there is a trend within the parts (Mann–Kendall's statistic
//!    summed over them, as Hirsch et al. 1982 do over seasons), until the end, of which 45 % are kept from the first part to the
//!    last. So a new level that is reached once does not grow, nor does what approaches a limit, nor a sawtooth; and a leak is
//!    found though the memory of something else falls beside it.
//!
//! Mann–Kendall's test takes the points for independent, which resident memory is not; by itself it would find a trend in any
//! slow wave. Size and persistence are what such series fail by.
//!
//! # When not to use it
//!
//! A rise that has not ended when the rounds end is growth for this judge, be it a cache that fills slowly or a sawtooth longer than the
//! run: give it more rounds. Leaks below both shares are not found; neither are leaks in steps that come less than once in a fifth of
//! the rounds.
#![forbid(unsafe_code)]

mod judge;
mod sample;

pub use judge::{JudgeError, Options, Point, Verdict, judge};
pub use sample::{Quantity, Sample, SampleError};
