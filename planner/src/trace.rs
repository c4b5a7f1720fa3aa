//! Recorded allocation traces: memtrace v1, plain or gzip'ed.
//!
//! Line 1 is `# memtrace v1 name=... min=4096 steps=N threads=T columns=op,thread,id,size,align`; then one event a line:
//!
//! | line | meaning |
//! |---|---|
//! | `L,thread,id,size,align` | a block alive before step 0 starts |
//! | `S,thread,k,calls,usec` | step k starts here; the last `S` closes the last step |
//! | `a,thread,id,size,align` | a new block; align 0 is plain malloc, which promises 16 |
//! | `r,thread,id,size,align` | a block changes its size and may move |
//! | `f,thread,id,,` | a block is freed |
//! | `# site N frame;frame` | the call stack that a sixth column, `site`, names by its number: outermost frame first |
//!
//! The column `site` is there where the first line says `columns=op,thread,id,size,align,site`; 0 or nothing is unknown.
//!
//! Nothing is believed: an id that is allocated twice or freed without being alive is an error with its line.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;

use crate::lines::{Fault, Lines, ReadError, number};
use crate::steps::{Event, Key, StepProblem, Steps};

/// How the first line begins.
pub const MAGIC: &str = "# memtrace v1";

/// What malloc promises on 64-bit systems when no alignment is asked for, in bytes.
pub const MALLOC_ALIGN: u64 = 16;

/// The columns of an event.
pub const COLUMNS: &str = "op,thread,id,size,align";

/// The columns of an event that says who asked.
pub const COLUMNS_WITH_SITES: &str = "op,thread,id,size,align,site";

/// Who asked for something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Caller {
    /// The recorder's number of the thread.
    pub thread: u32,
    /// Index into [`Trace::sites`]; 0 is unknown.
    pub site: u32,
}

/// One step of a trace.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Step {
    /// Calls of the malloc family up to the step's start, of any size.
    pub calls: u64,
    /// Microseconds on the recorder's clock at the step's start; for people, planning never looks at it.
    pub micros: u64,
    /// What happened; a reallocation is a `Free` and the `Allocate` of the same block that moved from it.
    pub events: Vec<Event>,
    /// Who asked for each of these events.
    pub callers: Vec<Caller>,
}

/// A trace.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Trace {
    /// The workload's name: from the first line, else the file's.
    pub name: String,
    /// The recorder left out blocks of fewer bytes.
    pub min_bytes: u64,
    /// Threads the workload ran with, as its first line says.
    pub threads: u32,
    /// Call stacks, frames with semicolons between them, outermost first; the first is empty: unknown. Empty where none
    /// were recorded.
    pub sites: Vec<String>,
    /// Blocks alive before step 0, and the bytes of each.
    pub already: Vec<(u32, u64)>,
    /// The complete steps.
    pub steps: Vec<Step>,
    /// Microseconds on the recorder's clock at the end of the last of them.
    pub end_micros: u64,
    /// Events after the last boundary, which belong to no complete step and are dropped.
    pub unfinished: usize,
}

impl Trace {
    /// The merged needs of the steps, blocks of fewer than `min_bytes` bytes left out.
    ///
    /// Step 0 is left out, too: it is the process's first, and warm-up is in it. What is alive when step 1 starts counts
    /// as there already. Only where step 0 is the only complete one it is planned after all.
    pub fn problem(&self, min_bytes: u64) -> StepProblem {
        let mut steps = Steps::new();
        let warm = usize::from(self.steps.len() > 1);
        for step in &self.steps[warm..] {
            // Frees of blocks never announced are ignored, so only allocations need filtering.
            steps.step(step.events.iter().copied().filter(|event| match event {
                Event::Allocate { size, .. } => *size >= min_bytes,
                Event::Free { .. } => true,
            }));
        }
        steps.problem()
    }

    /// Who asks for the blocks of these keys, as of the newest step that did; `None` where none has.
    ///
    /// `class` says by which size and alignment the keys' blocks are told from each other, of what was asked for.
    pub fn callers(&self, keys: &[Key], class: impl Fn(u64, u64) -> (u64, u64)) -> Vec<Option<Caller>> {
        let mut found: HashMap<Key, Caller> = HashMap::new();
        for step in &self.steps {
            let mut counts: HashMap<(u64, u64), u32> = HashMap::new();
            for (event, &caller) in step.events.iter().zip(&step.callers) {
                if let Event::Allocate { size, align, .. } = *event {
                    let (size, align) = class(size, align);
                    let count = counts.entry((size, align)).or_default();
                    found.insert(Key { size, align, nth: *count }, caller);
                    *count += 1;
                }
            }
        }
        keys.iter().map(|key| found.get(key).copied()).collect()
    }
}

/// Reads a trace.
///
/// # Errors
/// A [`ReadError`] with file and line.
pub fn read(path: impl AsRef<Path>) -> Result<Trace, ReadError> {
    parse(&mut Lines::open(path.as_ref())?)
}

/// Reads a trace from its first line on.
pub(crate) fn parse(lines: &mut Lines) -> Result<Trace, ReadError> {
    let stem = lines.stem();
    let Some(head) = lines.next()? else {
        return Err(lines.whole("the file is empty", format!("a first line \"{MAGIC} name=...\"")));
    };
    let head = header(head, stem);
    let mut reader = Reader { trace: head.map_err(|fault| lines.fault(fault))?, ..Reader::default() };
    while let Some(line) = lines.next()? {
        let read = reader.line(line);
        read.map_err(|fault| lines.fault(fault))?;
    }
    if reader.trace.steps.is_empty() {
        return Err(lines.whole(
            format!("no complete step in {} lines", lines.number()),
            "at least two step boundaries, lines that begin with S",
        ));
    }
    Ok(reader.finish())
}

/// The first line.
fn header(line: &str, stem: String) -> Result<Trace, Fault> {
    let Some(rest) = line.strip_prefix(MAGIC) else {
        return Err(Fault::new("this is no memtrace", format!("a first line \"{MAGIC} name=...\"")));
    };
    let mut trace = Trace { name: stem, ..Trace::default() };
    for field in rest.split_ascii_whitespace() {
        match field.split_once('=') {
            Some(("name", name)) => trace.name = name.to_owned(),
            Some(("min", min)) => trace.min_bytes = number(min, "min")?,
            Some(("threads", threads)) => trace.threads = number(threads, "threads")?,
            Some(("columns", columns)) if columns == COLUMNS_WITH_SITES => {
                trace.sites = vec![String::new()];
            }
            Some(("columns", columns)) if columns != COLUMNS => {
                let shown: String = columns.chars().take(80).collect();
                return Err(Fault::new(
                    format!("the columns are {}", shown.escape_default()),
                    format!("columns={COLUMNS}"),
                ));
            }
            _ => {}
        }
    }
    Ok(trace)
}

/// What is known between two lines.
#[derive(Default)]
struct Reader {
    trace: Trace,
    /// The step that has begun.
    running: Option<Step>,
    /// Blocks alive.
    alive: HashSet<u32>,
    /// Stacks by the numbers that the file gives them: any, so that a table by number might be larger than the file by far.
    sites: BTreeMap<u32, String>,
}

impl Reader {
    /// The trace, its sites numbered without gaps.
    fn finish(mut self) -> Trace {
        let numbers: HashMap<u32, u32> = self.sites.keys().copied().zip(1..).collect();
        for caller in self.trace.steps.iter_mut().flat_map(|step| &mut step.callers) {
            // A site that the file does not name is as good as none.
            caller.site = numbers.get(&caller.site).copied().unwrap_or(0);
        }
        self.trace.sites.extend(self.sites.into_values());
        self.trace
    }

    fn line(&mut self, line: &str) -> Result<(), Fault> {
        if let Some(comment) = line.strip_prefix('#') {
            return match comment.trim_start().strip_prefix("site ") {
                Some(site) if !self.trace.sites.is_empty() => self.site(site),
                _ => Ok(()),
            };
        }
        let mut fields = line.split(',').map(str::trim);
        let mut field = || fields.next().unwrap_or("");
        let (op, thread, id, third, fourth, site) = (field(), field(), field(), field(), field(), field());
        let thread: u32 = number(thread, "thread")?;
        if op == "S" {
            return self.boundary(id, third, fourth);
        }
        let block: u32 = number(id, "id")?;
        if !matches!(op, "L" | "a" | "r" | "f") {
            let shown: String = op.chars().take(10).collect();
            return Err(Fault::new(
                format!("unknown event \"{}\"", shown.escape_default()),
                "L, S, a, r or f in the first column",
            ));
        }
        if op == "L" {
            if self.running.is_some() {
                return Err(Fault::new(
                    "a block alive before step 0 within a step",
                    "all L before the first S",
                ));
            }
            let (size, _) = request(third, fourth)?;
            self.trace.already.push((block, size));
            return self.allocate(block);
        }
        let Some(mut step) = self.running.take() else {
            return Err(Fault::new("an event before the first step", "a line S,0,0,calls,usec before it"));
        };
        let site = if site.is_empty() || self.trace.sites.is_empty() { 0 } else { number(site, "site")? };
        let done = self.event(op, block, third, fourth, &mut step.events);
        step.callers.resize(step.events.len(), Caller { thread, site });
        self.trace.unfinished = step.events.len();
        self.running = Some(step);
        done
    }

    /// The stack of a site's number.
    fn site(&mut self, text: &str) -> Result<(), Fault> {
        let (index, frames) = text.split_once(' ').unwrap_or((text, ""));
        let index: u32 = number(index, "site")?;
        // 0 stands for the unknown, whatever the file says.
        if index > 0 {
            self.sites.insert(index, frames.to_owned());
        }
        Ok(())
    }

    /// Events within a step.
    fn event(
        &mut self,
        op: &str,
        block: u32,
        size: &str,
        align: &str,
        events: &mut Vec<Event>,
    ) -> Result<(), Fault> {
        if op == "a" {
            let (size, align) = request(size, align)?;
            self.allocate(block)?;
            events.push(Event::Allocate { block, size, align, moved_from: None });
            return Ok(());
        }
        if !self.alive.remove(&block) {
            let what = if op == "r" { "reallocated" } else { "freed" };
            return Err(Fault::new(format!("block {block} is {what}, but not alive"), "its a or L before"));
        }
        events.push(Event::Free { block });
        if op == "r" {
            let (size, align) = request(size, if align.is_empty() { "0" } else { align })?;
            self.allocate(block)?;
            events.push(Event::Allocate { block, size, align, moved_from: Some(block) });
        }
        Ok(())
    }

    fn allocate(&mut self, block: u32) -> Result<(), Fault> {
        if !self.alive.insert(block) {
            return Err(Fault::new(
                format!("block {block} is allocated, but still alive"),
                "its f before, or a new id",
            ));
        }
        Ok(())
    }

    fn boundary(&mut self, index: &str, calls: &str, micros: &str) -> Result<(), Fault> {
        let index: u64 = number(index, "step")?;
        let finished = self.running.take();
        self.trace.steps.extend(finished);
        self.trace.unfinished = 0;
        let expected = self.trace.steps.len() as u64;
        if index != expected {
            return Err(Fault::new(format!("step {index} starts here"), format!("step {expected}")));
        }
        let (calls, micros) = (number(calls, "calls")?, number(micros, "usec")?);
        self.trace.end_micros = micros;
        self.running = Some(Step { calls, micros, ..Step::default() });
        Ok(())
    }
}

/// Size and alignment as asked for.
fn request(size: &str, align: &str) -> Result<(u64, u64), Fault> {
    let size = number(size, "size")?;
    let align: u64 = number(align, "align")?;
    match align {
        0 => Ok((size, MALLOC_ALIGN)),
        _ if align.is_power_of_two() => Ok((size, align)),
        _ => Err(Fault::new(format!("the align {align} is not a power of two"), "0, or a power of two")),
    }
}
