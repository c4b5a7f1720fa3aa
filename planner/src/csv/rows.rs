//! From lines to buffers: columns by name, fields, gaps, and references to other lines.

use super::Buffers;
use super::ids::{Ids, Index};
use super::places::Places;
use crate::constraints::{Fixed, Gap, InPlace, Inside};
use crate::lines::{Fault, Lines, ReadError, number};
use crate::problem::{Block, MAX_BLOCKS};

/// What a column holds. The discriminant is its place among a row's fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Column {
    Id,
    Lower,
    Upper,
    /// As `Upper`, but the last event alive.
    End,
    Size,
    Alignment,
    Gaps,
    Offset,
    Inside,
    InPlace,
    Fixed,
}

/// Names of columns. Several may hold the same.
const NAMES: [(&str, Column); 15] = [
    ("id", Column::Id),
    ("buffer", Column::Id),
    ("buffer_id", Column::Id),
    ("lower", Column::Lower),
    ("begin", Column::Lower),
    ("start", Column::Lower),
    ("upper", Column::Upper),
    ("end", Column::End),
    ("size", Column::Size),
    ("alignment", Column::Alignment),
    ("gaps", Column::Gaps),
    ("offset", Column::Offset),
    ("inside", Column::Inside),
    ("in_place", Column::InPlace),
    ("fixed", Column::Fixed),
];

const HEADER: &str = "a header like id,lower,upper,size";

/// Which column holds what.
struct Columns {
    /// By place in a line.
    held: Vec<Option<Column>>,
    /// Whether the ends of lifetimes and gaps are the last event alive.
    inclusive: bool,
}

impl Columns {
    fn new(header: &str) -> Result<Columns, Fault> {
        let names: Vec<&str> = header.trim_start_matches('\u{feff}').split(',').map(str::trim).collect();
        let column =
            |name: &&str| NAMES.iter().find(|known| known.0.eq_ignore_ascii_case(name)).map(|known| known.1);
        let held: Vec<Option<Column>> = names.iter().map(column).collect();
        let holding = |columns: &[Column]| -> Result<Option<usize>, Fault> {
            let mut places =
                (0..held.len()).filter(|&place| held[place].is_some_and(|held| columns.contains(&held)));
            let (first, second) = (places.next(), places.next());
            match (first, second) {
                (Some(a), Some(b)) if names[a].eq_ignore_ascii_case(names[b]) => {
                    let name = names[a].to_ascii_lowercase();
                    Err(Fault::new(format!("two columns are named {name}"), HEADER))
                }
                (Some(a), Some(b)) => {
                    let (a, b) = (names[a].to_ascii_lowercase(), names[b].to_ascii_lowercase());
                    Err(Fault::new(format!("the columns {a} and {b} say the same thing"), HEADER))
                }
                _ => Ok(first),
            }
        };
        let must = |columns: &[Column], name: &str| {
            holding(columns)?
                .map(|_| ())
                .ok_or_else(|| Fault::new(format!("no column is named {name}"), HEADER))
        };
        must(&[Column::Id], "id")?;
        must(&[Column::Lower], "lower")?;
        must(&[Column::Upper, Column::End], "upper")?;
        must(&[Column::Size], "size")?;
        for (_, column) in NAMES {
            holding(&[column])?;
        }
        let inclusive = held.contains(&Some(Column::End));
        Ok(Columns { held, inclusive })
    }

    fn has(&self, column: Column) -> bool {
        self.held.contains(&Some(column))
    }

    /// The fields of a line; empty where there is no such column.
    fn row<'a>(&self, line: &'a str) -> Result<Row<'a>, Fault> {
        let mut row = Row([""; Column::Fixed as usize + 1]);
        let mut count = 0;
        for field in line.split(',') {
            if let Some(Some(column)) = self.held.get(count) {
                row.0[*column as usize] = field.trim();
            }
            count += 1;
        }
        if count == self.held.len() {
            return Ok(row);
        }
        Err(Fault::new(format!("{count} fields"), format!("{} as in the header", self.held.len())))
    }
}

/// The fields of a line.
struct Row<'a>([&'a str; Column::Fixed as usize + 1]);

impl<'a> Row<'a> {
    fn field(&self, column: Column) -> &'a str {
        self.0[column as usize]
    }

    /// The block, still without id.
    fn block(&self, columns: &Columns) -> Result<Block, Fault> {
        let lower = number(self.field(Column::Lower), "lower")?;
        let upper = if columns.inclusive {
            let end: u64 = number(self.field(Column::End), "end")?;
            let upper = past(end, "end")?;
            if upper < lower {
                return Err(Fault::new(format!("end {end} is below lower {lower} - 1"), "lower <= end + 1"));
            }
            upper
        } else {
            number(self.field(Column::Upper), "upper")?
        };
        let size = number(self.field(Column::Size), "size")?;
        if upper < lower {
            return Err(Fault::new(format!("upper {upper} is below lower {lower}"), "lower <= upper"));
        }
        let align: u64 = match self.field(Column::Alignment) {
            "" => 1,
            text => number(text, "alignment")?,
        };
        if !align.is_power_of_two() {
            return Err(Fault::new(
                format!("the alignment {align} is not a power of two"),
                "1, 2, 4, 8, ...",
            ));
        }
        Ok(Block { id: 0, lower, upper, size, align })
    }

    /// Adds the gaps of this row's block, which has this index.
    fn gaps(&self, inclusive: bool, index: usize, block: &Block, gaps: &mut Vec<Gap>) -> Result<(), Fault> {
        let first = gaps.len();
        for text in self.field(Column::Gaps).split_ascii_whitespace() {
            let gap = gap(text, inclusive, index)?;
            let Gap { lower, upper, window, .. } = gap;
            if lower >= upper || lower < block.lower || upper > block.upper {
                let what = format!("the gap \"{text}\" is empty or not within the lifetime");
                return Err(Fault::new(what, "events of the lifetime"));
            }
            if window.is_some_and(|(from, to)| from > to || to > block.size) {
                let what = format!("the window of the gap \"{text}\" is not within the size");
                return Err(Fault::new(what, "bytes of the buffer, from and up to"));
            }
            gaps.push(gap);
        }
        if !gaps[first..].is_sorted_by(|a, b| a.upper <= b.lower) {
            let mut spans: Vec<(u64, u64)> = gaps[first..].iter().map(|gap| (gap.lower, gap.upper)).collect();
            spans.sort_unstable();
            if let Some(pair) = spans.windows(2).find(|pair| pair[0].1 > pair[1].0) {
                let what = format!("the gaps that begin at {} and {} overlap", pair[0].0, pair[1].0);
                return Err(Fault::new(what, "gaps that lie apart"));
            }
        }
        Ok(())
    }
}

/// The event after this one.
fn past(event: u64, what: &str) -> Result<u64, Fault> {
    let fault = || Fault::new(format!("the {what} {event} is too large"), "a whole number below 2^64 - 1");
    event.checked_add(1).ok_or_else(fault)
}

/// `lower-upper` or `lower-upper@from:to`.
fn gap(text: &str, inclusive: bool, block: usize) -> Result<Gap, Fault> {
    let fault = || {
        let shown: String = text.chars().take(40).collect();
        Fault::new(
            format!("\"{}\" is not a gap", shown.escape_default()),
            "gaps separated by spaces, each lower-upper or lower-upper@from:to",
        )
    };
    let (times, window) = text.split_once('@').map_or((text, None), |(times, window)| (times, Some(window)));
    let pair = |text: &str, between| -> Option<(u64, u64)> {
        let (first, second) = text.split_once(between)?;
        Some((digits(first)?, digits(second)?))
    };
    let (lower, end) = pair(times, '-').ok_or_else(fault)?;
    let upper = if inclusive { past(end, "end of a gap")? } else { end };
    let window = window.map(|window| pair(window, ':').ok_or_else(fault)).transpose()?;
    Ok(Gap { block, lower, upper, window })
}

/// A number without a sign.
fn digits(text: &str) -> Option<u64> {
    if text.bytes().all(|byte| byte.is_ascii_digit()) { text.parse().ok() } else { None }
}

/// Ids that lines name, to be looked up when all are read.
#[derive(Default)]
struct References {
    /// The ids, one after the other.
    text: String,
    /// Block that names, where the id ends in the text, and the distance of a view; `None` for a pair.
    named: Vec<(u32, usize, Option<u64>)>,
}

impl References {
    fn push(&mut self, block: usize, id: &str, distance: Option<u64>) {
        self.text.push_str(id);
        self.named.push((block as u32, self.text.len(), distance));
    }

    /// Takes what a row names.
    fn take(&mut self, row: &Row<'_>, block: usize) -> Result<(), Fault> {
        let inside = row.field(Column::Inside);
        if !inside.is_empty() {
            let named = inside.rsplit_once('@').and_then(|(id, distance)| Some((id, digits(distance)?)));
            let (id, distance) = named.ok_or_else(|| {
                let shown: String = inside.chars().take(40).collect();
                let what = format!("inside is \"{}\"", shown.escape_default());
                Fault::new(what, "the id of another line, @ and a distance in bytes")
            })?;
            self.push(block, id, Some(distance));
        }
        for id in row.field(Column::InPlace).split_ascii_whitespace() {
            self.push(block, id, None);
        }
        Ok(())
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
    let mut offsets = columns.has(Column::Offset).then(Vec::new);
    let (mut references, mut places, mut total) = (References::default(), Places::default(), 0u64);
    while let Some(line) = lines.next()? {
        let taken = take(line, &columns, &mut buffers, &mut offsets, &mut references);
        let block = taken.map_err(|fault| lines.fault(fault))?;
        // The same sum as in `Problem::check` without constraints, here so that the error has a line.
        let sum = block.size.checked_add(block.align - 1).and_then(|bytes| total.checked_add(bytes));
        total = sum.ok_or_else(|| {
            lines.fault(Fault::new("the sizes up to this line overflow", "less than 2^64 bytes in all"))
        })?;
        places.push(buffers.problem.blocks.len() - 1, lines.number());
    }
    if buffers.problem.blocks.is_empty() {
        return Err(lines.whole("there are no buffers", "at least one line below the header"));
    }
    let fault = |block: usize, fault| lines.fault_at(places.line(block).unwrap_or(0), fault);
    let index = buffers.ids.index(&buffers.problem.blocks);
    if let Some(later) = index.twice(&buffers.ids, &buffers.problem.blocks) {
        let blocks = &buffers.problem.blocks;
        let id = buffers.ids.get(later).map_or_else(|| blocks[later].id.to_string(), str::to_owned);
        let what = format!("the id \"{}\" was there before", id.escape_default());
        return Err(fault(later, Fault::new(what, "every id once")));
    }
    resolve(&mut buffers, &references, &index)
        .map_err(|(block, what)| fault(block, Fault::new(what, "the id of a line of this file")))?;
    buffers.ids.name(&mut buffers.problem.blocks);
    (buffers.offsets, buffers.places) = (offsets, places);
    match buffers.problem.check() {
        Ok(()) => Ok(buffers),
        Err(source) => Err(buffers.refused(lines.path(), source)),
    }
}

/// Takes one line below the header.
fn take(
    line: &str,
    columns: &Columns,
    buffers: &mut Buffers,
    offsets: &mut Option<Vec<u64>>,
    references: &mut References,
) -> Result<Block, Fault> {
    let row = columns.row(line)?;
    let (index, id) = (buffers.problem.blocks.len(), row.field(Column::Id));
    if id.is_empty() {
        return Err(Fault::new("the id is empty", "any text without a comma"));
    }
    if index == MAX_BLOCKS {
        return Err(Fault::new("there are too many lines", format!("{MAX_BLOCKS} buffers at most")));
    }
    let mut block = row.block(columns)?;
    let constraints = &mut buffers.problem.constraints;
    row.gaps(columns.inclusive, index, &block, &mut constraints.gaps)?;
    if let Some(offsets) = offsets {
        offsets.push(number(row.field(Column::Offset), "offset")?);
    }
    let fixed = row.field(Column::Fixed);
    if !fixed.is_empty() {
        constraints.fixed.push(Fixed { block: index, offset: number(fixed, "fixed")? });
    }
    references.take(&row, index)?;
    block.id = buffers.ids.push(id, &buffers.problem.blocks);
    buffers.problem.blocks.push(block);
    Ok(block)
}

/// Looks up the ids that lines name; where there is none, the block of the line and what is wrong.
fn resolve(buffers: &mut Buffers, references: &References, index: &Index) -> Result<(), (usize, String)> {
    let (ids, blocks): (&Ids, &[Block]) = (&buffers.ids, &buffers.problem.blocks);
    let mut start = 0;
    for &(block, end, distance) in &references.named {
        let (block, id) = (block as usize, &references.text[start..end]);
        start = end;
        let column = if distance.is_some() { "inside" } else { "in_place" };
        let Some(other) = index.find(id, ids, blocks) else {
            let shown: String = id.chars().take(40).collect();
            return Err((
                block,
                format!("{column} names the id \"{}\", which no line has", shown.escape_default()),
            ));
        };
        let constraints = &mut buffers.problem.constraints;
        match distance {
            Some(distance) => constraints.inside.push(Inside { block, of: other, distance }),
            None => constraints.in_place.push(InPlace { first: block, second: other }),
        }
    }
    Ok(())
}
