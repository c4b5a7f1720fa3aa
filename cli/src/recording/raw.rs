//! The tracer's files, as [`stepalloc::tracer`] lays them out.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

use stepalloc::tracer::{ALLOCATE, BEGIN, BOUNDARY, END, FREE, MAGIC, NAME, RECORD, STACK};

use super::symbols::Maps;

/// Bytes of a record.
const RECORD_BYTES: usize = 8 * RECORD;

/// Letters of a name that are kept: those that the tracer writes at most. A trace has a place for lines of 64 KiB only.
const NAME_LETTERS: usize = 2048;
/// The same of a stack's frames.
const FRAMES: usize = 64;

/// All of one process.
#[derive(Debug, Default)]
pub struct Recording {
    /// The process.
    pub pid: u32,
    /// Smaller blocks were left out.
    pub min_bytes: u64,
    /// In their order.
    pub events: Vec<Event>,
    /// Threads that made them.
    pub threads: u32,
    /// Return addresses by number, innermost first.
    pub stacks: HashMap<u16, Vec<u64>>,
    /// Frames of an interpreter by number, outermost first.
    pub names: HashMap<u16, String>,
    /// The tracer has stopped before the process did: there were more events than it wanted.
    pub cut_off: bool,
    /// Where images lie.
    pub maps: Maps,
}

/// An event and who made it.
#[derive(Debug, Clone, Copy)]
pub struct Event {
    /// From 0, in the order in which they were first seen.
    pub thread: u32,
    /// 0: unknown.
    pub stack: u16,
    /// Where an interpreter was; 0: unknown.
    pub outer: u16,
    /// What happened.
    pub what: What,
}

impl Event {
    /// Nothing.
    pub const NONE: Event = Event { thread: 0, stack: 0, outer: 0, what: What::Boundary { nanoseconds: 0 } };
}

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// A block came alive; moved from an address that was freed before, or from 0.
    Allocate { address: u64, size: u64, align: u64, from: u64 },
    /// A block is about to be freed.
    Free { address: u64 },
    /// A step ended.
    Boundary { nanoseconds: u64 },
}

impl Recording {
    /// Reads a file and the one of images beside it; `None` where there is no event in it.
    pub fn read(path: &Path) -> io::Result<Option<Recording>> {
        let mut reader = BufReader::with_capacity(1 << 20, File::open(path)?);
        let mut longest: Option<Recording> = None;
        let mut current = Recording::default();
        let mut threads: HashMap<u16, u32> = HashMap::new();
        // Of each thread, the events since it was last said where it is.
        let mut unnamed: HashMap<u16, Vec<usize>> = HashMap::new();
        while let Some([first, second, third, fourth]) = record(&mut reader)? {
            let (kind, align) = (first as u8, 1u64.checked_shl((first >> 8) as u8 as u32).unwrap_or(1));
            let (tag, site) = ((first >> 16) as u16, (first >> 32) as u16);
            let what = match kind {
                // Another program that the process became (exec).
                BEGIN if second == MAGIC => {
                    let next = Recording { pid: fourth as u32, min_bytes: third, ..Recording::default() };
                    threads.clear();
                    unnamed.clear();
                    keep_longer(&mut longest, std::mem::replace(&mut current, next));
                    continue;
                }
                STACK => {
                    let mut frames = numbers(&mut reader, second)?;
                    frames.truncate(FRAMES);
                    current.stacks.insert(site, frames);
                    continue;
                }
                NAME => {
                    let words = numbers(&mut reader, second.div_ceil(8))?;
                    let bytes: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
                    if second > 0 {
                        let name = &bytes[..bytes.len().min(second as usize)];
                        current.names.insert(site, tidy(name));
                    }
                    for index in unnamed.remove(&tag).unwrap_or_default() {
                        current.events[index].outer = site;
                    }
                    continue;
                }
                END => {
                    current.cut_off = true;
                    continue;
                }
                ALLOCATE => What::Allocate { address: second, size: third, align, from: fourth },
                FREE => What::Free { address: second },
                BOUNDARY => What::Boundary { nanoseconds: second },
                _ => return Err(io::Error::new(io::ErrorKind::InvalidData, "no record of a trace")),
            };
            let count = threads.len() as u32;
            let thread = *threads.entry(tag).or_insert(count);
            current.threads = threads.len() as u32;
            if matches!(what, What::Allocate { .. }) && site != 0 {
                unnamed.entry(tag).or_default().push(current.events.len());
            }
            current.events.push(Event { thread, stack: site, outer: 0, what });
        }
        keep_longer(&mut longest, current);
        if let Some(recording) = &mut longest {
            let mut maps = path.as_os_str().to_owned();
            maps.push(".maps");
            recording.maps = Maps::read(Path::new(&maps));
        }
        Ok(longest)
    }
}

/// A name that can stand in a line: files may be called anything, and a damaged recording says anything.
fn tidy(name: &[u8]) -> String {
    let letters = String::from_utf8_lossy(name);
    letters.chars().map(|letter| if letter.is_control() { ':' } else { letter }).take(NAME_LETTERS).collect()
}

fn keep_longer(longest: &mut Option<Recording>, other: Recording) {
    let most = longest.as_ref().map_or(0, |longest| longest.events.len());
    if other.events.len() > most {
        *longest = Some(other);
    }
}

/// The next record; `None` at the end, also where the last one was cut off.
fn record(reader: &mut impl Read) -> io::Result<Option<[u64; RECORD]>> {
    let mut bytes = [0; RECORD_BYTES];
    match reader.read_exact(&mut bytes) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    }
    let mut words = [0; RECORD];
    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
        *word = u64::from_le_bytes(*bytes);
    }
    Ok(Some(words))
}

/// So many numbers, which follow in whole records.
fn numbers(reader: &mut impl Read, count: u64) -> io::Result<Vec<u64>> {
    let mut numbers = Vec::new();
    for _ in 0..count.div_ceil(RECORD as u64) {
        let Some(record) = record(reader)? else { break };
        numbers.extend(record);
    }
    numbers.truncate(count as usize);
    Ok(numbers)
}
