//! Buffers as CSV, as google/minimalloc reads and writes them, with columns of our own for what it cannot say.
//!
//! The first line names the columns, in any order and in small letters or capitals; columns of other names (`hint`) are
//! passed over.
//!
//! | column | holds |
//! |---|---|
//! | `id`, `buffer` or `buffer_id` | any text without a comma, not empty; every id once |
//! | `lower`, `begin` or `start` | the first event alive |
//! | `upper` | the first event after the lifetime; on the unrolled circle, so that it may exceed a period |
//! | `end` | in place of `upper`: the last event alive; the ends of gaps in such a file are inclusive, too |
//! | `size` | bytes |
//! | `alignment` | a power of two; empty: 1 |
//! | `gaps` | separated by spaces: `lower-upper`, or `lower-upper@from:to` with the bytes in use all the same |
//! | `offset` | the buffer's place in a plan: see below |
//! | `inside` | `ID@distance`: lies inside that buffer, so many bytes from its beginning |
//! | `in_place` | ids separated by spaces: may share bytes with those buffers |
//! | `fixed` | the offset the buffer must have; empty: any |
//!
//! What differs from minimalloc: there `offset` in an input fixes the buffer; here it is kept in [`Buffers::offsets`],
//! and only [`Buffers::fix_offsets`] makes it a constraint, so that a solution can be planned again. Numbers have 64
//! bits without a sign there and here, but offsets have 32 there. Alignments must be powers of two, gaps must lie in
//! the lifetime and apart from each other, ids must differ, blank lines are skipped instead of ending the file, and
//! white space round fields is ignored. No line may be longer than 64 KiB. minimalloc's validator ignores windows; ours
//! does not. The columns `inside`, `in_place` and `fixed` are passed over by minimalloc. An id with white space in it
//! cannot be named in `in_place`.

mod ids;
mod places;
mod rows;

use std::fmt::Display;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::constraints::{Constraints, Fixed, Gap, InPlace, Inside};
use crate::lines::{Lines, ReadError};
use crate::plan::Plan;
use crate::problem::{Problem, ProblemError};

pub use ids::Ids;
pub use places::Places;
pub(crate) use rows::parse;

/// Buffers read from a file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Buffers {
    /// The file's name, without directories, `.csv` and `.gz`.
    pub name: String,
    /// One block per line and no period. [`crate::Block::id`] is the id where all ids are plain numbers, else the
    /// block's index.
    pub problem: Problem,
    /// The ids as they stand in the file, where they are not all plain numbers.
    pub ids: Ids,
    /// The column `offset`, in bytes, where the file has one.
    pub offsets: Option<Vec<u64>>,
    /// The lines they stand on.
    pub places: Places,
}

impl Buffers {
    /// Makes the offsets of the file constraints, as minimalloc does; nothing without a column `offset`.
    ///
    /// # Errors
    /// What [`Problem::check`] says about the offsets; the buffers are as before then.
    pub fn fix_offsets(&mut self) -> Result<(), ProblemError> {
        let offsets = self.offsets.iter().flatten().enumerate();
        let before = self.problem.constraints.fixed.len();
        self.problem.constraints.fixed.extend(offsets.map(|(block, &offset)| Fixed { block, offset }));
        let checked = self.problem.check();
        if checked.is_err() {
            self.problem.constraints.fixed.truncate(before);
        }
        checked
    }

    /// The error with the lines of the blocks it names and, where ids are texts, with their ids.
    pub fn refused(&self, path: impl Into<PathBuf>, source: ProblemError) -> ReadError {
        let named = source.blocks();
        let place = |id: &u64| {
            let index = if self.ids.are_numbers() {
                self.problem.blocks.iter().position(|block| block.id == *id)?
            } else {
                usize::try_from(*id).ok()?
            };
            Some((index, self.places.line(index)?))
        };
        let line = named.first().and_then(place).map(|(_, line)| line);
        let name = |id: &u64| {
            let (index, line) = place(id)?;
            let text = self.ids.get(index).map(|text| format!("\"{}\" ", text.escape_default()));
            Some(format!("block {id} is {}on line {line}", text.unwrap_or_default()))
        };
        let names: Vec<String> = named.iter().filter_map(name).collect();
        let clear = names.is_empty() || (names.len() == 1 && self.ids.are_numbers());
        let names = if clear { String::new() } else { format!(" ({})", names.join(", ")) };
        ReadError::Problem { path: path.into(), line, source, names }
    }

    /// The id of a block as it stands in the file.
    pub fn id(&self, index: usize) -> String {
        let number = || self.problem.blocks[index].id.to_string();
        self.ids.get(index).map_or_else(number, str::to_owned)
    }

    /// Writes a solution with the ids as they were read.
    ///
    /// # Errors
    /// What the writer says; a plan of another problem; an id that cannot be named in the column `in_place`.
    pub fn write(&self, out: impl Write, plan: &Plan) -> io::Result<()> {
        lay_out(out, &self.problem, Some(&plan.offsets), |index| self.id(index))
    }

    /// Writes the buffers without any offsets, so that reading them gives the same problem; the period is not written.
    ///
    /// # Errors
    /// As [`Buffers::write`].
    pub fn write_problem(&self, out: impl Write) -> io::Result<()> {
        lay_out(out, &self.problem, None, |index| self.id(index))
    }
}

/// Writes a solution: the problem's blocks with the column `offset`, and columns for alignments and constraints where
/// there are any. [`crate::Block::id`] is the id; ids should differ.
///
/// # Errors
/// What the writer says.
pub fn write(out: impl Write, problem: &Problem, plan: &Plan) -> io::Result<()> {
    lay_out(out, problem, Some(&plan.offsets), |index| problem.blocks[index].id)
}

/// Writes a problem as [`write()`] does, without offsets: reading it gives the same blocks, and the same constraints in the
/// order of their blocks. The period is not written.
///
/// # Errors
/// What the writer says.
pub fn write_problem(out: impl Write, problem: &Problem) -> io::Result<()> {
    lay_out(out, problem, None, |index| problem.blocks[index].id)
}

/// Reads buffers.
///
/// # Errors
/// A [`ReadError`] with file and line.
pub fn read(path: impl AsRef<Path>) -> Result<Buffers, ReadError> {
    parse(&mut Lines::open(path.as_ref())?)
}

/// What the constraints say, in the order of the blocks that say it.
struct Wishes<'a> {
    fixed: Vec<&'a Fixed>,
    gaps: Vec<&'a Gap>,
    inside: Vec<&'a Inside>,
    in_place: Vec<&'a InPlace>,
}

impl Wishes<'_> {
    fn new(constraints: &Constraints) -> Wishes<'_> {
        let mut wishes = Wishes {
            fixed: constraints.fixed.iter().collect(),
            gaps: constraints.gaps.iter().collect(),
            inside: constraints.inside.iter().collect(),
            in_place: constraints.in_place.iter().collect(),
        };
        wishes.fixed.sort_by_key(|fixed| fixed.block);
        wishes.gaps.sort_by_key(|gap| (gap.block, gap.lower));
        wishes.inside.sort_by_key(|view| view.block);
        wishes.in_place.sort_by_key(|pair| pair.first);
        wishes
    }

    /// The names of the columns needed.
    fn columns(&self) -> impl Iterator<Item = &'static str> {
        let columns = [
            (!self.gaps.is_empty(), "gaps"),
            (!self.inside.is_empty(), "inside"),
            (!self.in_place.is_empty(), "in_place"),
            (!self.fixed.is_empty(), "fixed"),
        ];
        columns.into_iter().filter(|column| column.0).map(|column| column.1)
    }
}

/// Those at the front of a sorted list that are about this block, off the list.
fn of_block<'a, T>(list: &mut &'a [T], block: usize, named: impl Fn(&T) -> usize) -> &'a [T] {
    let (front, rest) = list.split_at(list.partition_point(|item| named(item) <= block));
    *list = rest;
    front
}

fn lay_out<Id: Display>(
    out: impl Write,
    problem: &Problem,
    offsets: Option<&[u64]>,
    id: impl Fn(usize) -> Id,
) -> io::Result<()> {
    if let Some(offsets) = offsets.filter(|offsets| offsets.len() != problem.blocks.len()) {
        let what = format!("a plan of {} offsets for {} blocks", offsets.len(), problem.blocks.len());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    }
    let mut out = io::BufWriter::new(out);
    let aligned = problem.blocks.iter().any(|block| block.align > 1);
    let wishes = Wishes::new(&problem.constraints);
    write!(out, "id,lower,upper,size{}", if aligned { ",alignment" } else { "" })?;
    for column in wishes.columns() {
        write!(out, ",{column}")?;
    }
    writeln!(out, "{}", if offsets.is_some() { ",offset" } else { "" })?;
    let (mut gaps, mut inside) = (&wishes.gaps[..], &wishes.inside[..]);
    let (mut in_place, mut fixed) = (&wishes.in_place[..], &wishes.fixed[..]);
    for (index, block) in problem.blocks.iter().enumerate() {
        write!(out, "{},{},{},{}", id(index), block.lower, block.upper, block.size)?;
        if aligned {
            write!(out, ",{}", block.align)?;
        }
        for column in wishes.columns() {
            out.write_all(b",")?;
            match column {
                "gaps" => {
                    for (place, gap) in of_block(&mut gaps, index, |gap| gap.block).iter().enumerate() {
                        write!(out, "{}{}-{}", if place > 0 { " " } else { "" }, gap.lower, gap.upper)?;
                        if let Some((from, to)) = gap.window {
                            write!(out, "@{from}:{to}")?;
                        }
                    }
                }
                "inside" => {
                    if let Some(view) = of_block(&mut inside, index, |view| view.block).first() {
                        write!(out, "{}@{}", id(view.of), view.distance)?;
                    }
                }
                "in_place" => {
                    let pairs = of_block(&mut in_place, index, |pair| pair.first);
                    for (place, pair) in pairs.iter().enumerate() {
                        let id = id(pair.second).to_string();
                        if id.contains(|letter: char| letter.is_ascii_whitespace()) {
                            let what = format!(
                                "the id \"{id}\" has white space in it and cannot be named in in_place"
                            );
                            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
                        }
                        write!(out, "{}{id}", if place > 0 { " " } else { "" })?;
                    }
                }
                _ => {
                    if let Some(given) = of_block(&mut fixed, index, |fixed| fixed.block).first() {
                        write!(out, "{}", given.offset)?;
                    }
                }
            }
        }
        match offsets {
            Some(offsets) => writeln!(out, ",{}", offsets[index])?,
            None => writeln!(out)?,
        }
    }
    out.flush()
}
