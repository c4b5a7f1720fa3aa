//! The plan file, which `STEPALLOC_PLAN` names: a process that has planned writes it, and the next one begins
//! with it.
//!
//! A file fits a process that asks for what it was planned for, whatever the program is called: the sizes of the newest
//! allocations must come one after the other in the sequence of one of its steps ([`StepProfile::place`]).
//!
//! # Layout
//!
//! Little-endian numbers of 64 bits: [`MAGIC`], [`VERSION`], a checksum of all that follows (FNV-1a), log2 of
//! the granule's bytes, the height in bytes, the least planned size, the period (allocations, steps, share; 0
//! where steps were marked), the number of step variants. For each variant: the period; class and allocations
//! by which its beginning is recognised (0 where steps were marked); the numbers of planned blocks, of held
//! ones, of families and of a step's allocations; then the planned blocks (size, alignment, lower, upper,
//! number among its equals, offset), the held ones (size, alignment, number), the families (smallest,
//! largest), and the classes of the allocations in their order.
//!
//! Nothing in a file is believed before it was checked: what is read is a valid plan, or refused. Files are read, not
//! mapped: a mapped one that somebody cuts off would end the program.

use super::proposal::Proposal;
use super::step_profile::{Lane, Start, StepProfile};
use crate::arena::{GRANULE_MAX_SHIFT, GRANULE_MIN_SHIFT, granules_for};
use crate::checksum::checksum;
use crate::lookup::{Begin, Class, VARIANTS};
use crate::os::{self, Stamp};
use crate::settings;
use core::fmt;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use stepalloc_planner::Period;
use stepalloc_planner::{Block, Key, Problem, StepProblem, verify};

const MAGIC: u64 = u64::from_le_bytes(*PLAN_MAGIC);
const VERSION: u64 = 2;
/// Larger files are not read.
const MOST_BYTES: u64 = 64 << 20;
/// Longer steps are not found, either.
const MOST_ALLOCATIONS: usize = 1 << 16;
/// More families are not learned from a step.
const MOST_FAMILIES: usize = 1 << 12;
/// An arena that no machine has.
const MOST_HEIGHT: u64 = 1 << 46;

/// Plans as they stand in a file.
#[derive(Clone, Debug)]
pub(crate) struct Plans {
    pub(crate) profiles: Vec<Arc<StepProfile>>,
    /// Offset in bytes of each variant's blocks.
    pub(crate) offsets: Vec<Vec<u64>>,
    /// log2 of the granule's bytes.
    pub(crate) shift: u32,
    /// Bytes of the arena.
    pub(crate) height: u64,
    pub(crate) min_bytes: usize,
    /// `None` where steps were marked.
    pub(crate) period: Option<Period>,
}

/// Where in a step a program is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct StepPlace {
    /// The step variant.
    pub(crate) variant: usize,
    /// Allocations of the step that came before.
    pub(crate) at: usize,
    /// All of a step was seen.
    pub(crate) whole: bool,
    /// Allocations in such a step.
    pub(crate) length: usize,
}

/// Why a file is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RefusedFile {
    /// It is something else.
    NoPlan,
    /// Another version of this library has written it.
    Version(u64),
    /// It was cut off or changed.
    Damaged,
    /// It is whole, but says what cannot be.
    Invalid(&'static str),
}

impl fmt::Display for RefusedFile {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoPlan => out.write_str("not a file of plans, and left as it is; name another"),
            Self::Version(version) => {
                write!(out, "plans of version {version}, where {VERSION} is read; new ones will be made")
            }
            Self::Damaged => out.write_str("damaged (its checksum is another); new plans will be made"),
            Self::Invalid(what) => write!(out, "no valid plans ({what}); new ones will be made"),
        }
    }
}

impl Proposal {
    /// The plans as a plan file holds them, before they are limited; `None` where threads have lanes, for which it has no place, and where no
    /// step has a block.
    pub(crate) fn to_cache(&self, min_bytes: usize) -> Option<Plans> {
        let is_kept = self.bytes() > 0 && self.profiles.iter().all(|profile| profile.only().is_some());
        is_kept.then(|| Plans {
            profiles: self.profiles.clone(),
            offsets: self.offsets.clone(),
            shift: self.shift,
            height: self.bytes(),
            min_bytes,
            period: self.start.map(|start| start.period),
        })
    }
}

impl Plans {
    /// What a file of these holds.
    fn to_bytes(&self) -> Vec<u8> {
        let (allocations, steps, share) = self.period.map_or((0, 0, 0), |period| {
            (period.allocations as u64, period.steps as u64, period.share.to_bits())
        });
        let mut words = vec![MAGIC, VERSION, 0];
        words.extend([u64::from(self.shift), self.height, self.min_bytes as u64]);
        words.extend([allocations, steps, share, self.profiles.len() as u64]);
        for (profile, offsets) in self.profiles.iter().zip(&self.offsets) {
            let Some(step) = profile.only() else { continue };
            let begin =
                profile.begin.map_or((0, 0), |begin| (begin.class.to_bits(), u64::from(begin.allocations)));
            words.extend([step.problem.period.unwrap_or(0), begin.0, begin.1]);
            let counts =
                [step.problem.blocks.len(), step.held.len(), profile.families.len(), profile.sequence.len()];
            words.extend(counts.map(|count| count as u64));
            for ((block, key), &offset) in step.problem.blocks.iter().zip(&step.keys).zip(offsets) {
                words.extend([block.size, block.align, block.lower, block.upper, u64::from(key.nth), offset]);
            }
            for key in &step.held {
                words.extend([key.size, key.align, u64::from(key.nth)]);
            }
            words.extend(profile.families.iter().flat_map(|&(smallest, largest)| [smallest, largest]));
            words.extend(profile.sequence.iter().map(|class| class.to_bits()));
        }
        words[2] = checksum(words[3..].iter().copied());
        words.into_iter().flat_map(u64::to_le_bytes).collect()
    }

    /// Reads what a file holds.
    fn from_bytes(bytes: &[u8]) -> Result<Self, RefusedFile> {
        let (words, rest) = bytes.as_chunks::<8>();
        let mut words = words.iter().map(|word| u64::from_le_bytes(*word));
        if words.next() != Some(MAGIC) {
            return Err(RefusedFile::NoPlan);
        }
        match words.next() {
            Some(VERSION) => {}
            Some(version) => return Err(RefusedFile::Version(version)),
            None => return Err(RefusedFile::Damaged),
        }
        let sum = words.next();
        if !rest.is_empty() || sum != Some(checksum(words.clone())) {
            return Err(RefusedFile::Damaged);
        }
        let mut reader = Reader { words };
        let plans = reader.plans()?;
        if reader.words.next().is_some() {
            return Err(RefusedFile::Invalid("something follows the last one"));
        }
        Ok(plans)
    }

    /// Where in a step a program is, if its newest classes come one after the other in one of the steps.
    pub(crate) fn find(&self, newest: &[Class]) -> Option<StepPlace> {
        let places = self.profiles.iter().enumerate().filter_map(|(variant, profile)| {
            let (alike, at) = profile.place(newest)?;
            let length = profile.sequence.len();
            Some((alike, StepPlace { variant, at, whole: alike >= length, length }))
        });
        // Where several variants begin alike, the one that was in use last.
        let places = places.min_by_key(|&(alike, place)| (core::cmp::Reverse(alike), place.variant));
        places.map(|(_, place)| place)
    }

    /// Allocations of the longest step.
    pub(crate) fn longest(&self) -> usize {
        self.profiles.iter().map(|profile| profile.sequence.len()).max().unwrap_or(0)
    }

    /// The same as new plans.
    pub(crate) fn into_proposal(self) -> Option<Proposal> {
        let start = self.period.map(|period| Start { period, boundary: 0 });
        let mut proposal =
            Proposal::with_offsets(self.profiles, self.offsets, self.height, self.shift, false)?;
        proposal.start = start;
        Some(proposal)
    }
}

/// How a file of plans begins.
pub const PLAN_MAGIC: &[u8; 8] = b"stepplan";

/// The plans that a plan file holds, for tools that show them.
#[derive(Clone, Debug)]
pub struct StoredPlans {
    /// The problem of each step variant. Sizes are those of classes, see [`plan_class`].
    pub steps: Vec<StepProblem>,
    /// The offset in bytes of each variant's blocks.
    pub offsets: Vec<Vec<u64>>,
    /// Bytes of the arena, which all variants share.
    pub height: u64,
}

/// Why plans cannot be shown.
#[derive(Debug)]
pub struct PlanFileError {
    path: PathBuf,
    reason: String,
}

impl fmt::Display for PlanFileError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}: {}", self.path.display(), self.reason)
    }
}

impl std::error::Error for PlanFileError {}

/// Reads the plans from a plan file.
///
/// # Errors
/// With the file, and what is wrong with it.
pub fn read_plans(path: &Path) -> Result<StoredPlans, PlanFileError> {
    let failed = |reason: String| PlanFileError { path: path.to_owned(), reason };
    let found =
        os::read_whole(path, MOST_BYTES).map_err(|error| failed(format!("cannot be read: {error}")))?;
    let (bytes, _) = found.ok_or_else(|| failed("there is no such file".to_owned()))?;
    let plans = Plans::from_bytes(&bytes).map_err(|refused| failed(refused.to_string()))?;
    Ok(StoredPlans {
        steps: plans.profiles.iter().map(|profile| profile.lanes[0].step.clone()).collect(),
        offsets: plans.offsets,
        height: plans.height,
    })
}

/// What is written of a file that was read and of whose plans tables were made; `None` where it is refused, or has no block.
/// For tests of this.
#[doc(hidden)]
pub fn rewrite_plans(bytes: &[u8]) -> Option<Vec<u8>> {
    let plans = Plans::from_bytes(bytes).ok()?;
    let min_bytes = plans.min_bytes;
    let proposal = plans.into_proposal()?;
    let tables = proposal.tables();
    assert_eq!(tables.len(), proposal.profiles.len(), "a table for each variant");
    Some(proposal.to_cache(min_bytes)?.to_bytes())
}

/// The size and alignment under which plans know a request of so many bytes.
pub fn plan_class(bytes: u64, align: u64) -> (u64, u64) {
    let class = Class::of(usize::try_from(bytes).unwrap_or(usize::MAX), align as usize);
    class.map_or((bytes, align), |class| (class.bytes(), class.align()))
}

/// Reads numbers and checks them.
struct Reader<I> {
    words: I,
}

/// Bytes of the slot of a block.
fn slot_bytes(bytes: u64, align: u64, shift: u32) -> u64 {
    (granules_for(bytes as usize, align as usize, shift) as u64) << shift
}

/// Refuses what does not hold.
fn check(holds: bool, what: &'static str) -> Result<(), RefusedFile> {
    if holds { Ok(()) } else { Err(RefusedFile::Invalid(what)) }
}

impl<I: ExactSizeIterator<Item = u64>> Reader<I> {
    fn number(&mut self) -> Result<u64, RefusedFile> {
        self.words.next().ok_or(RefusedFile::Invalid("the end is missing"))
    }

    fn usize(&mut self) -> Result<usize, RefusedFile> {
        usize::try_from(self.number()?).map_err(|_| RefusedFile::Invalid("a number out of range"))
    }

    fn u32(&mut self) -> Result<u32, RefusedFile> {
        u32::try_from(self.number()?).map_err(|_| RefusedFile::Invalid("a number out of range"))
    }

    /// A number of things that follow, of so many numbers each.
    fn count(&mut self, width: usize) -> Result<usize, RefusedFile> {
        let count = self.usize()?;
        check(count <= self.words.len() / width, "the end is missing")?;
        Ok(count)
    }

    fn class(&mut self) -> Result<Option<Class>, RefusedFile> {
        let class = Class::from_bits(self.number()?);
        check(class.is_none_or(Class::is_possible), "a size out of range")?;
        Ok(class)
    }

    fn plans(&mut self) -> Result<Plans, RefusedFile> {
        let shift = self.u32()?;
        check((GRANULE_MIN_SHIFT..=GRANULE_MAX_SHIFT).contains(&shift), "a granule out of range")?;
        let height = self.number()?;
        check(height <= MOST_HEIGHT && height.is_multiple_of(1 << shift), "a height out of range")?;
        let min_bytes = self.usize()?;
        let (allocations, steps, share) = (self.usize()?, self.usize()?, f64::from_bits(self.number()?));
        check((allocations == 0) == (steps == 0) && (0.0..=1.0).contains(&share), "a period out of range")?;
        check(allocations <= 1 << 20 && steps <= 1 << 20, "a period out of range")?;
        let period = (allocations != 0).then_some(Period { allocations, steps, share });
        let variants = self.count(1)?;
        check((1..=VARIANTS).contains(&variants), "a number of step variants out of range")?;
        let (mut profiles, mut offsets) = (Vec::new(), Vec::new());
        for _ in 0..variants {
            let (profile, places) = self.variant(shift, height, period.is_some())?;
            profiles.push(Arc::new(profile));
            offsets.push(places);
        }
        let blocks = profiles
            .iter()
            .zip(&offsets)
            .flat_map(|(profile, offsets)| profile.lanes[0].step.keys.iter().zip(offsets));
        let highest = blocks.map(|(key, offset)| offset + slot_bytes(key.size, key.align, shift)).max();
        check(highest == Some(height), "a height that is not the plans'")?;
        Ok(Plans { profiles, offsets, shift, height, min_bytes, period })
    }

    fn variant(
        &mut self,
        shift: u32,
        height: u64,
        detected: bool,
    ) -> Result<(StepProfile, Vec<u64>), RefusedFile> {
        let period = Some(self.number()?).filter(|&period| period > 0);
        check(period.is_none_or(|period| period <= u64::from(u32::MAX)), "a period out of range")?;
        let (class, allocations) = (self.class()?, self.u32()?);
        let begin = class.map(|class| Begin { class, allocations });
        check(begin.is_some() == detected, "a beginning without a period")?;
        let counts = [self.count(6)?, self.count(3)?, self.count(2)?, self.count(1)?];
        let [blocks, held, families, sequence] = counts;
        check(sequence <= MOST_ALLOCATIONS && families <= MOST_FAMILIES, "a step too long")?;
        let mut problem = Problem { period, ..Problem::default() };
        let (mut keys, mut offsets) = (Vec::new(), Vec::new());
        for id in 0..blocks as u64 {
            let key_size = self.number()?;
            let (align, lower, upper) = (self.number()?, self.number()?, self.number()?);
            let (nth, offset) = (self.u32()?, self.number()?);
            let class =
                Class::of(key_size as usize, align as usize).filter(|class| class.bytes() == key_size);
            check(class.is_some_and(Class::is_possible), "a size out of range")?;
            check(align.is_power_of_two() && align <= os::BASE_ALIGN as u64, "an alignment out of range")?;
            check(lower <= u64::from(u32::MAX) && upper <= u64::from(u32::MAX), "a time out of range")?;
            check(offset.is_multiple_of(1 << shift), "an offset between granules")?;
            let end = slot_bytes(key_size, align, shift).checked_add(offset);
            check(end.is_some_and(|end| end <= height), "a block beyond the end")?;
            problem.blocks.push(Block { id, lower, upper, size: key_size, align });
            keys.push(Key { size: key_size, align, nth });
            offsets.push(offset);
        }
        let mut held_keys = Vec::new();
        for _ in 0..held {
            let (size, align, nth) = (self.number()?, self.number()?, self.u32()?);
            let class = Class::of(size as usize, align as usize).filter(|class| class.bytes() == size);
            check(class.is_some_and(Class::is_possible), "a size out of range")?;
            check(align.is_power_of_two() && align <= os::BASE_ALIGN as u64, "an alignment out of range")?;
            held_keys.push(Key { size, align, nth });
        }
        check(numbers_are_dense(keys.iter().chain(&held_keys)), "a number among equals out of range")?;
        // The granules' own check is that of the arena; this one, that the plan is one.
        check(verify(&problem, &offsets, height).is_ok(), "two blocks in one place")?;
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        for _ in 0..families {
            let (smallest, largest) = (self.number()?, self.number()?);
            let after = ranges.last().is_none_or(|&(_, before)| before < smallest);
            check(after && smallest <= largest && largest <= MOST_HEIGHT, "families out of order")?;
            ranges.push((smallest, largest));
        }
        let mut classes = Vec::new();
        for _ in 0..sequence {
            classes.push(self.class()?.ok_or(RefusedFile::Invalid("a size out of range"))?);
        }
        let begins = |begin: Begin| {
            classes.first() == Some(&begin.class) && begin.allocations as usize == classes.len()
        };
        check(begin.is_none_or(begins), "a beginning that is not the step's")?;
        let lanes = vec![Lane::of_all(StepProblem { problem, keys, held: held_keys })];
        Ok((StepProfile { lanes, families: ranges, begin, sequence: classes }, offsets))
    }
}

/// Whether the numbers among equals are such that tables with a place for each are not much larger than the keys.
fn numbers_are_dense<'a>(keys: impl Iterator<Item = &'a Key>) -> bool {
    let mut most: HashMap<(u64, u64), u64> = HashMap::new();
    let mut count = 0;
    for key in keys {
        let most = most.entry((key.size, key.align)).or_default();
        *most = (u64::from(key.nth) + 1).max(*most);
        count += 1;
    }
    most.values().sum::<u64>() <= 2 * count
}

/// The file that is to be read and written.
pub(crate) struct PlanFile {
    path: PathBuf,
    /// What it was when it was read or written last; `None` where there was none.
    seen: Option<Stamp>,
    /// It is not ours to write, or cannot be.
    given_up: bool,
}

impl PlanFile {
    /// The file of the environment, if it names one, and what it holds. Says what is wrong with it.
    pub(crate) fn open() -> Option<(Self, Option<Plans>)> {
        let path = path_of_rank(settings::PLAN.path()?.to_bytes());
        // The program may change its directory before plans are written.
        let path = std::path::absolute(&path).unwrap_or(path);
        let mut file = Self { path, seen: None, given_up: false };
        let plans = match file.read() {
            Ok(found) => found.map(|(plans, stamp)| {
                file.seen = Some(stamp);
                plans
            }),
            Err(reason) => {
                file.log_error(&reason);
                None
            }
        };
        Some((file, plans))
    }

    /// `None` where there is no file.
    fn read(&mut self) -> Result<Option<(Plans, Stamp)>, String> {
        let found = os::read_whole(&self.path, MOST_BYTES).map_err(|error| {
            self.given_up = true;
            format!("cannot be read: {error}")
        })?;
        let Some((bytes, stamp)) = found else { return Ok(None) };
        match Plans::from_bytes(&bytes) {
            Ok(plans) => Ok(Some((plans, stamp))),
            Err(refused) => {
                // A system that failed leaves zeros.
                self.given_up |= refused == RefusedFile::NoPlan && bytes.iter().any(|&byte| byte != 0);
                self.seen = Some(stamp);
                Err(refused.to_string())
            }
        }
    }

    /// Whether the file is as this process has read or written it.
    pub(crate) fn is_as_seen(&self) -> bool {
        self.seen.is_some() && os::stamp(&self.path) == self.seen
    }

    /// Writes plans, all at once or not at all; not over larger ones that another process has written meanwhile.
    pub(crate) fn write(&mut self, plans: &Plans) {
        if self.given_up {
            return;
        }
        let found = self.read();
        if self.given_up {
            return;
        }
        if let Ok(Some((others, stamp))) = found
            && Some(stamp) != self.seen
            && others.height > plans.height
        {
            return;
        }
        match os::replace(&self.path, &plans.to_bytes()) {
            Ok(stamp) => self.seen = Some(stamp),
            Err(error) => {
                self.given_up = true;
                self.log_error(&format!("cannot be written: {error}"));
            }
        }
    }

    fn log_error(&self, what: &str) {
        os::log_stderr(format_args!("STEPALLOC_PLAN={}: {what}", self.path.display()));
    }
}

/// The path, with `%r` for this process's rank; 0 where it has none.
fn path_of_rank(name: &[u8]) -> PathBuf {
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    let Some(at) = name.windows(2).position(|pair| pair == b"%r") else {
        return Path::new(std::ffi::OsStr::from_bytes(name)).to_owned();
    };
    let rank = os::rank().unwrap_or(0).to_string();
    PathBuf::from(std::ffi::OsString::from_vec([&name[..at], rank.as_bytes(), &name[at + 2..]].concat()))
}

#[cfg(test)]
mod tests {
    use super::super::proposal::rounded;
    use super::*;
    use stepalloc_planner::{Event, Planner, Steps};

    /// Plans of two step variants: `blocks` blocks of growing sizes that overlap their neighbours.
    fn plans() -> Plans {
        let variant = |blocks: u32, unit: u64| {
            let size = |block: u32| unit * u64::from(block * block % 31 + 1);
            let events = (0..blocks).flat_map(|block| {
                let allocate = Event::Allocate { block, size: size(block), align: 1, moved_from: None };
                let free = block.checked_sub(2).map(|block| Event::Free { block });
                [Some(allocate), free].into_iter().flatten()
            });
            let mut steps = Steps::new();
            steps.step(events.clone().chain([blocks - 2, blocks - 1].map(|block| Event::Free { block })));
            let step = steps.problem();
            let plan = Planner::new().plan(&rounded(&step.problem, 6)).expect("a plan");
            let sequence =
                (0..blocks).map(|block| Class::of(size(block) as usize, 1).expect("a size")).collect();
            let begin =
                Some(Begin { class: Class::of(unit as usize, 1).expect("a size"), allocations: blocks });
            let families = vec![(unit * 40, unit * 41)];
            (
                Arc::new(StepProfile { lanes: vec![Lane::of_all(step)], families, begin, sequence }),
                plan.offsets,
                plan.height,
            )
        };
        let variants = [variant(40, 64 * 640), variant(23, 64 * 1024)];
        let height = variants.iter().map(|variant| variant.2).max().unwrap_or(0);
        let period = Some(Period { allocations: 40, steps: 1, share: 1.0 });
        let (profiles, offsets) =
            variants.into_iter().map(|(profile, offsets, _)| (profile, offsets)).unzip();
        Plans { profiles, offsets, shift: 6, height, min_bytes: 32 << 10, period }
    }

    fn is_sound(plans: &Plans) -> bool {
        let mut variants = plans.profiles.iter().zip(&plans.offsets);
        variants
            .all(|(profile, offsets)| verify(&profile.lanes[0].step.problem, offsets, plans.height).is_ok())
            && plans.profiles.len() <= VARIANTS
    }

    #[test]
    fn plans_are_read_as_they_were_written() {
        let plans = plans();
        let bytes = plans.to_bytes();
        let read = Plans::from_bytes(&bytes).expect("its own file");
        assert_eq!(read.to_bytes(), bytes);
        assert!(read.into_proposal().is_some());
    }

    #[test]
    fn damaged_files_are_refused() {
        let bytes = plans().to_bytes();
        for end in 0..bytes.len() {
            assert!(Plans::from_bytes(&bytes[..end]).is_err(), "cut off at {end}");
        }
        for at in 0..bytes.len() {
            let mut bytes = bytes.clone();
            bytes[at] ^= 1 << (at % 8);
            assert!(Plans::from_bytes(&bytes).is_err(), "changed at {at}");
        }
        assert_eq!(Plans::from_bytes(b"print('a program')\n").unwrap_err(), RefusedFile::NoPlan);
        assert_eq!(Plans::from_bytes(&[]).unwrap_err(), RefusedFile::NoPlan);
    }

    /// Files whose checksum is right whatever they say: refused, or valid plans that can be put in force.
    #[test]
    fn hostile_files_are_refused_or_harmless() {
        let good = plans().to_bytes();
        let mut state = 88_172_645_463_325_252u64;
        let mut random = |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % below
        };
        let rounds = match (cfg!(miri), cfg!(debug_assertions)) {
            (true, _) => 50,
            (_, true) => 2_000,
            _ => 40_000,
        };
        let (mut taken, mut refused) = (0, 0);
        for _ in 0..rounds {
            let mut words: Vec<u64> =
                good.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
            for _ in 0..1 + random(3) {
                let at = 3 + random(words.len() as u64 - 3) as usize;
                match random(6) {
                    0 => words[at] = random(u64::MAX),
                    1 => words[at] = u64::MAX >> random(64),
                    2 => words[at] = words[at].wrapping_add(random(256)).wrapping_sub(128),
                    3 => words[at] = words[3 + random(words.len() as u64 - 3) as usize],
                    4 => _ = words.remove(at),
                    _ => words.insert(at, random(1 << 20)),
                }
            }
            words[2] = checksum(words[3..].iter().copied());
            let bytes: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
            match Plans::from_bytes(&bytes) {
                Err(_) => refused += 1,
                Ok(plans) => {
                    assert!(is_sound(&plans));
                    let classes = plans.profiles[0].sequence.clone();
                    let _ = plans.find(&classes);
                    let _ = plans.into_proposal();
                    taken += 1;
                }
            }
        }
        assert!(taken > rounds / 100 && refused > rounds / 10, "{taken} taken, {refused} refused");
    }

    #[test]
    fn plans_fit_what_is_asked_for() {
        let plans = plans();
        let step = |variant: usize| plans.profiles[variant].sequence.clone();
        let place = |variant, at, whole, length| Some(StepPlace { variant, at, whole, length });
        assert_eq!(plans.find(&step(0)[5..35]), place(0, 35, false, 40));
        // A step that begins again, with two allocations changed.
        let mut classes = [step(1), step(1)].concat();
        classes.truncate(30);
        classes[12] = Class::of(1 << 20, 1).expect("a size");
        classes[25] = classes[12];
        assert_eq!(plans.find(&classes), place(1, 7, true, 23));
        classes[27] = classes[12];
        assert_eq!(plans.find(&classes), None, "too much else");
        assert_eq!(plans.find(&step(0)[..10]), None, "too little");
        let other: Vec<Class> = (0..60).filter_map(|size| Class::of(50_000 + 700 * size, 1)).collect();
        assert_eq!(plans.find(&other), None);
    }
}
