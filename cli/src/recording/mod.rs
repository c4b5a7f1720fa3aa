//! What the library's tracer has left of a process, and its way into a trace of steps (memtrace v1).
//!
//! `raw` (the tracer's files) -> `symbols` (addresses become names) -> `steps` (where steps begin) -> text, which the planner
//! reads as any other trace.

mod raw;
mod steps;
mod symbols;

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use flate2::{Compression, read::GzEncoder};
use stepalloc_planner::trace::{COLUMNS, COLUMNS_WITH_SITES, MAGIC};

pub use raw::Recording;
use raw::{Event, What};
use symbols::Symbols;

/// Events of a trace, where it has to fit into a report: those of some hundreds of steps of a model.
pub const EVENTS_OF_A_REPORT: u64 = 400_000;

/// Of the recordings that processes left under this name the one that is shown: that with the most events.
pub fn busiest(prefix: &Path) -> Option<Recording> {
    let (directory, name) = prefix.parent().zip(prefix.file_name())?;
    let name = format!("{}.", name.to_string_lossy());
    let files = fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
    let pid = |path: &PathBuf| -> Option<u32> {
        path.file_name()?.to_string_lossy().strip_prefix(&name)?.parse().ok()
    };
    let recordings =
        files.filter(|path| pid(path).is_some()).filter_map(|path| Recording::read(&path).ok().flatten());
    recordings.max_by_key(|recording| recording.events.len())
}

impl Recording {
    /// As memtrace v1 of this name.
    pub fn to_memtrace(&self, name: &str) -> String {
        let sites = Sites::of(self);
        let boundaries = steps::boundaries(&self.events);
        let mut writer = Writer::new(&sites);
        let (mut step, mut start) = (0, None);
        for (index, event) in self.events.iter().enumerate() {
            if boundaries.get(step) == Some(&index) {
                if step == 0 {
                    writer.begin();
                }
                writer.boundary(step, event, &mut start);
                step += 1;
            }
            writer.event(event);
        }
        while step < boundaries.len().max(2) {
            if step == 0 {
                writer.begin();
            }
            writer.boundary(step, self.events.last().unwrap_or(&Event::NONE), &mut start);
            step += 1;
        }
        let tidy: String = name.chars().map(|c| if c.is_whitespace() { '_' } else { c }).collect();
        let columns = if sites.names.len() > 1 { COLUMNS_WITH_SITES } else { COLUMNS };
        let mut text = format!(
            "{MAGIC} name={tidy} min={} steps={} threads={} columns={columns}\n",
            self.min_bytes,
            step - 1,
            self.threads
        );
        for (number, site) in sites.names.iter().enumerate().skip(1) {
            let _ = writeln!(text, "# site {number} {site}");
        }
        for line in writer.lines.into_iter().flatten() {
            text.push_str(&line);
            text.push('\n');
        }
        text
    }
}

/// The bytes of a trace's file: gzip'ed where its name says so.
pub fn file_bytes(text: &str, path: &Path) -> Vec<u8> {
    if path.extension().is_none_or(|extension| extension != "gz") {
        return text.as_bytes().to_vec();
    }
    let mut zipped = Vec::new();
    GzEncoder::new(text.as_bytes(), Compression::default())
        .read_to_end(&mut zipped)
        .expect("memory takes every write");
    zipped
}

/// The call sites of a recording by their stacks.
#[derive(Default)]
struct Sites {
    numbers: HashMap<(u16, u16), u32>,
    /// The first is unknown.
    names: Vec<String>,
}

impl Sites {
    fn of(recording: &Recording) -> Sites {
        let mut sites = Sites { numbers: HashMap::from([((0, 0), 0)]), names: vec![String::new()] };
        let mut symbols = Symbols::new(&recording.maps);
        let mut known: HashMap<String, u32> = HashMap::new();
        for event in &recording.events {
            if sites.numbers.contains_key(&(event.stack, event.outer)) {
                continue;
            }
            let none = Vec::new();
            let stack = recording.stacks.get(&event.stack).unwrap_or(&none);
            let folded = symbols.folded(stack, recording.names.get(&event.outer).map(String::as_str));
            let names = &mut sites.names;
            let number = *known.entry(folded.clone()).or_insert_with(|| {
                names.push(folded);
                names.len() as u32 - 1
            });
            sites.numbers.insert((event.stack, event.outer), number);
        }
        sites
    }

    fn number(&self, event: &Event) -> u32 {
        self.numbers.get(&(event.stack, event.outer)).copied().unwrap_or(0)
    }
}

/// Lines in the making.
struct Writer<'a> {
    sites: &'a Sites,
    /// The first boundary has come.
    begun: bool,
    lines: Vec<Option<String>>,
    /// By address: id, size, alignment, and who asked.
    alive: HashMap<u64, Living>,
    /// By address, the line of the newest free there, and of what.
    freed: HashMap<u64, (usize, Living)>,
    next_id: u32,
    calls: u64,
}

#[derive(Clone, Copy)]
struct Living {
    id: u32,
    size: u64,
    align: u64,
    thread: u32,
    site: u32,
}

impl<'a> Writer<'a> {
    fn new(sites: &'a Sites) -> Writer<'a> {
        Writer {
            sites,
            begun: false,
            lines: Vec::new(),
            alive: HashMap::new(),
            freed: HashMap::new(),
            next_id: 0,
            calls: 0,
        }
    }

    /// What is alive when the first step begins.
    fn begin(&mut self) {
        self.begun = true;
        self.freed.clear();
        let mut alive: Vec<&mut Living> = self.alive.values_mut().collect();
        alive.sort_by_key(|block| block.id);
        for (id, block) in alive.into_iter().enumerate() {
            block.id = id as u32;
            self.next_id = id as u32 + 1;
            let Living { id, size, align, thread, site } = *block;
            self.lines.push(Some(line('L', thread, id, size, align, site)));
        }
    }

    fn boundary(&mut self, step: usize, event: &Event, start: &mut Option<u64>) {
        let now = match event.what {
            What::Boundary { nanoseconds } => nanoseconds / 1000,
            _ => 0,
        };
        let micros = now.saturating_sub(*start.get_or_insert(now));
        self.lines.push(Some(format!("S,{},{step},{},{micros}", event.thread, self.calls)));
    }

    fn event(&mut self, event: &Event) {
        let thread = event.thread;
        match event.what {
            What::Boundary { .. } => {}
            What::Allocate { address, size, align, from } => {
                self.calls += 1;
                let site = self.sites.number(event);
                // malloc's own alignment is what nobody has asked for.
                let align = if align <= stepalloc_planner::trace::MALLOC_ALIGN { 0 } else { align };
                let moved = self.freed.remove(&from).filter(|_| from != 0);
                let id = moved.map_or(self.next_id, |(_, block)| block.id);
                let op = if moved.is_some() { 'r' } else { 'a' };
                match moved {
                    Some((at, _)) => {
                        if let Some(line) = self.lines.get_mut(at) {
                            *line = None;
                        }
                    }
                    None => self.next_id += 1,
                }
                self.alive.insert(address, Living { id, size, align, thread, site });
                if self.begun {
                    self.lines.push(Some(line(op, thread, id, size, align, site)));
                }
            }
            What::Free { address } => {
                let Some(block) = self.alive.remove(&address) else { return };
                self.calls += 1;
                self.freed.insert(address, (self.lines.len(), block));
                if self.begun {
                    self.lines.push(Some(format!("f,{thread},{},,", block.id)));
                }
            }
        }
    }
}

fn line(op: char, thread: u32, id: u32, size: u64, align: u64, site: u32) -> String {
    match site {
        0 => format!("{op},{thread},{id},{size},{align}"),
        _ => format!("{op},{thread},{id},{size},{align},{site}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stepalloc_planner::{Input, read_from};

    fn event(what: What) -> Event {
        Event { thread: 0, stack: 0, outer: 0, what }
    }

    fn allocate(address: u64, size: u64, from: u64) -> Event {
        event(What::Allocate { address, size, align: 16, from })
    }

    fn free(address: u64) -> Event {
        event(What::Free { address })
    }

    fn boundary(nanoseconds: u64) -> Event {
        event(What::Boundary { nanoseconds })
    }

    fn read(events: Vec<Event>) -> (String, stepalloc_planner::Trace) {
        let recording = Recording { events, threads: 1, min_bytes: 4096, ..Recording::default() };
        let text = recording.to_memtrace("a b");
        let input = read_from(std::io::Cursor::new(text.clone().into_bytes()), "test", 0).expect("a trace");
        let Input::Trace { trace, .. } = input else { panic!("{text}") };
        (text, trace)
    }

    #[test]
    fn boundaries_moves_and_what_was_alive_before_are_kept() {
        let (text, trace) = read(vec![
            allocate(0x1000, 5000, 0),
            allocate(0x9000, 7000, 0),
            free(0x9000),
            boundary(1_000_000),
            allocate(0x2000, 6000, 0),
            free(0x2000),
            allocate(0x3000, 9000, 0x2000),
            free(0x3000),
            boundary(3_000_000),
            free(0x1000),
            boundary(4_000_000),
        ]);
        assert_eq!(
            text.lines().skip(1).collect::<Vec<_>>(),
            [
                "L,0,0,5000,0",
                "S,0,0,3,0",
                "a,0,1,6000,0",
                "r,0,1,9000,0",
                "f,0,1,,",
                "S,0,1,7,2000",
                "f,0,0,,",
                "S,0,2,8,3000"
            ]
        );
        assert_eq!(
            (trace.name.as_str(), trace.steps.len(), trace.already.as_slice()),
            ("a_b", 2, &[(0, 5000)][..])
        );
    }

    #[test]
    fn a_program_without_boundaries_is_cut_by_its_period() {
        let mut events = Vec::new();
        for _ in 0..20 {
            for block in 0..30u64 {
                events.push(allocate(0x10000 * (block + 1), 40_000 + 6400 * (block * 7 % 30), 0));
            }
            events.extend((0..30u64).map(|block| free(0x10000 * (block + 1))));
        }
        let (_, trace) = read(events);
        assert!(trace.steps.len() >= 3, "{} steps", trace.steps.len());
        assert!(trace.steps[1].events.len() == 60, "{}", trace.steps[1].events.len());
    }

    #[test]
    fn a_program_without_a_period_is_one_step() {
        let (_, trace) = read(vec![allocate(0x1000, 5000, 0), free(0x1000)]);
        assert_eq!((trace.steps.len(), trace.steps[0].events.len()), (1, 2));
        let (_, nothing) = read(vec![]);
        assert_eq!(nothing.steps.len(), 1);
    }

    #[test]
    fn frees_of_what_nobody_saw_allocated_mean_nothing() {
        let (text, trace) = read(vec![boundary(0), free(0x7000), allocate(0x1000, 1, 0x7000), boundary(1)]);
        assert!(text.contains("a,0,0,1,0"), "{text}");
        assert_eq!(trace.steps.len(), 1);
    }
}
