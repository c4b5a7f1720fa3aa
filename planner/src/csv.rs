//! Buffers as CSV, as google/minimalloc reads and writes them.
//!
//! The first line names the columns: `id,lower,upper,size`, in any order; `alignment` and `offset` may be there, other
//! columns are passed over. Lifetimes are half-open. Ids are any text without a comma and not empty. A solution has
//! the column `offset`.

use std::collections::HashSet;
use std::io::{self, Write};
use std::path::Path;

use crate::lines::{Fault, Lines, ReadError, number};
use crate::plan::Plan;
use crate::problem::{Block, Problem};

/// Buffers read from a file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Buffers {
    /// The file's name, without directories, `.csv` and `.gz`.
    pub name: String,
    /// One block per line and no period. [`Block::id`] is the id where all ids are plain numbers, else the line's index.
    pub problem: Problem,
    /// The ids as they stand in the file.
    pub ids: Vec<String>,
    /// The column `offset`, in bytes, where the file has one.
    pub offsets: Option<Vec<u64>>,
}

impl Buffers {
    /// Writes a solution with the ids as they were read.
    ///
    /// # Errors
    /// What the writer says.
    pub fn write(&self, out: impl Write, plan: &Plan) -> io::Result<()> {
        lay_out(out, &self.problem, &plan.offsets, |index| self.ids[index].as_str())
    }
}

/// Writes a solution: the problem's blocks with the column `offset`, and `alignment` where any block asks for one.
///
/// # Errors
/// What the writer says.
pub fn write(out: impl Write, problem: &Problem, plan: &Plan) -> io::Result<()> {
    lay_out(out, problem, &plan.offsets, |index| problem.blocks[index].id)
}

fn lay_out<Id: std::fmt::Display>(
    out: impl Write,
    problem: &Problem,
    offsets: &[u64],
    id: impl Fn(usize) -> Id,
) -> io::Result<()> {
    let mut out = io::BufWriter::new(out);
    let aligned = problem.blocks.iter().any(|block| block.align > 1);
    writeln!(out, "id,lower,upper,size{},offset", if aligned { ",alignment" } else { "" })?;
    for (index, (block, offset)) in problem.blocks.iter().zip(offsets).enumerate() {
        write!(out, "{},{},{},{},", id(index), block.lower, block.upper, block.size)?;
        if aligned {
            write!(out, "{},", block.align)?;
        }
        writeln!(out, "{offset}")?;
    }
    out.flush()
}

/// Reads buffers.
///
/// # Errors
/// A [`ReadError`] with file and line.
pub fn read(path: impl AsRef<Path>) -> Result<Buffers, ReadError> {
    parse(&mut Lines::open(path.as_ref())?)
}

/// Which column holds what.
struct Columns {
    id: usize,
    lower: usize,
    upper: usize,
    size: usize,
    align: Option<usize>,
    offset: Option<usize>,
    count: usize,
}

const HEADER: &str = "a header like id,lower,upper,size";

impl Columns {
    fn new(header: &str) -> Result<Columns, Fault> {
        let names: Vec<&str> = header.trim_start_matches('\u{feff}').split(',').map(str::trim).collect();
        let find = |name: &str| -> Result<Option<usize>, Fault> {
            let mut found = (0..names.len()).filter(|&i| names[i].eq_ignore_ascii_case(name));
            let first = found.next();
            match found.next() {
                Some(_) => Err(Fault::new(format!("two columns are named {name}"), HEADER)),
                None => Ok(first),
            }
        };
        let must =
            |name: &str| find(name)?.ok_or_else(|| Fault::new(format!("no column is named {name}"), HEADER));
        Ok(Columns {
            id: must("id")?,
            lower: must("lower")?,
            upper: must("upper")?,
            size: must("size")?,
            align: find("alignment")?,
            offset: find("offset")?,
            count: names.len(),
        })
    }
}

/// Reads buffers from the header on.
pub(crate) fn parse(lines: &mut Lines) -> Result<Buffers, ReadError> {
    let mut buffers = Buffers { name: lines.stem(), ..Buffers::default() };
    let columns = match lines.next()? {
        Some(header) => Columns::new(header),
        None => return Err(lines.whole("the file is empty", HEADER)),
    };
    let columns = columns.map_err(|fault| lines.fault(fault))?;
    let mut ids = HashSet::new();
    let mut offsets = columns.offset.map(|_| Vec::new());
    let mut total = 0u64;
    while let Some(line) = lines.next()? {
        let read = row(line, &columns);
        let (id, block, offset) = read.map_err(|fault| lines.fault(fault))?;
        if !ids.insert(id.clone()) {
            let what = format!("the id \"{}\" was there before", id.escape_default());
            return Err(lines.fault(Fault::new(what, "every id once")));
        }
        // The same sum as in `Problem::check`, here so that the error has a line.
        let sum = block.size.checked_add(block.align - 1).and_then(|bytes| total.checked_add(bytes));
        total = sum.ok_or_else(|| {
            lines.fault(Fault::new("the sizes up to this line overflow", "less than 2^64 bytes in all"))
        })?;
        if let (Some(offsets), Some(offset)) = (&mut offsets, offset) {
            offsets.push(offset);
        }
        buffers.problem.blocks.push(block);
        buffers.ids.push(id);
    }
    if buffers.ids.is_empty() {
        return Err(lines.whole("there are no buffers", "at least one line below the header"));
    }
    let plain = |id: &String| id.parse().ok().filter(|number: &u64| number.to_string() == *id);
    let numbers: Option<Vec<u64>> = buffers.ids.iter().map(plain).collect();
    for (index, block) in buffers.problem.blocks.iter_mut().enumerate() {
        block.id = numbers.as_ref().map_or(index as u64, |numbers| numbers[index]);
    }
    buffers.offsets = offsets;
    buffers.problem.check().map_err(|source| lines.problem(source))?;
    Ok(buffers)
}

/// One line below the header.
fn row(line: &str, columns: &Columns) -> Result<(String, Block, Option<u64>), Fault> {
    let fields: Vec<&str> = line.split(',').map(str::trim).collect();
    if fields.len() != columns.count {
        return Err(Fault::new(
            format!("{} fields", fields.len()),
            format!("{} as in the header", columns.count),
        ));
    }
    let id = fields[columns.id];
    if id.is_empty() {
        return Err(Fault::new("the id is empty", "any text without a comma"));
    }
    let lower = number(fields[columns.lower], "lower")?;
    let upper = number(fields[columns.upper], "upper")?;
    let size = number(fields[columns.size], "size")?;
    if upper < lower {
        return Err(Fault::new(format!("upper {upper} is below lower {lower}"), "lower <= upper"));
    }
    let align: u64 = match columns.align.map(|column| fields[column]) {
        None | Some("") => 1,
        Some(text) => number(text, "alignment")?,
    };
    if !align.is_power_of_two() {
        return Err(Fault::new(format!("the alignment {align} is not a power of two"), "1, 2, 4, 8, ..."));
    }
    let offset = columns.offset.map(|column| number(fields[column], "offset")).transpose()?;
    Ok((id.to_owned(), Block { id: 0, lower, upper, size, align }, offset))
}
