//! The ids of buffers: as numbers where they are, and one long text where they are not.
//!
//! A file of ten million lines with numbers for ids needs no memory for them beyond [`Block::id`]. From the first id on
//! that is no plain number, all are kept as text, one after the other.

use crate::problem::Block;

/// The ids of a file's buffers, by index.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Ids {
    /// All ids without anything between them; empty where they are numbers.
    text: String,
    /// Where each one ends in the text; none where they are numbers.
    ends: Vec<usize>,
}

impl Ids {
    /// The id of a buffer as it stands in the file; `None` where all ids are plain numbers, and [`Block::id`] is the id.
    pub fn get(&self, index: usize) -> Option<&str> {
        let end = *self.ends.get(index)?;
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        Some(&self.text[start..end])
    }

    /// Whether all ids are plain numbers.
    pub fn are_numbers(&self) -> bool {
        self.ends.is_empty()
    }

    /// Adds the id of the block that follows `blocks`; returns what its [`Block::id`] is to be for now.
    pub(super) fn push(&mut self, id: &str, blocks: &[Block]) -> u64 {
        if self.are_numbers() {
            if let Some(number) = plain(id) {
                return number;
            }
            for block in blocks {
                self.text.push_str(&block.id.to_string());
                self.ends.push(self.text.len());
            }
        }
        self.text.push_str(id);
        self.ends.push(self.text.len());
        blocks.len() as u64
    }

    /// When all are read: blocks whose ids are texts are named by their index.
    pub(super) fn name(&self, blocks: &mut [Block]) {
        if !self.are_numbers() {
            for (index, block) in blocks.iter_mut().enumerate() {
                block.id = index as u64;
            }
        }
    }

    /// All blocks by id.
    pub(super) fn index(&self, blocks: &[Block]) -> Index {
        // Indices are below `MAX_BLOCKS`.
        let mut sorted: Vec<u32> = (0..blocks.len() as u32).collect();
        if self.are_numbers() {
            if !blocks.is_sorted_by(|a, b| a.id < b.id) {
                sorted.sort_unstable_by_key(|&index| (blocks[index as usize].id, index));
            }
        } else {
            sorted.sort_unstable_by_key(|&index| (self.get(index as usize), index));
        }
        Index { sorted }
    }
}

/// Blocks by their ids.
pub(super) struct Index {
    sorted: Vec<u32>,
}

impl Index {
    /// The first block whose id another one before it has.
    pub fn twice(&self, ids: &Ids, blocks: &[Block]) -> Option<usize> {
        let same = |a: usize, b: usize| {
            if ids.are_numbers() { blocks[a].id == blocks[b].id } else { ids.get(a) == ids.get(b) }
        };
        let pairs = self.sorted.windows(2).map(|pair| (pair[0] as usize, pair[1] as usize));
        pairs.filter(|&(a, b)| same(a, b)).map(|(_, later)| later).min()
    }

    /// The block of this id.
    pub fn find(&self, id: &str, ids: &Ids, blocks: &[Block]) -> Option<usize> {
        let found = if ids.are_numbers() {
            let number = plain(id)?;
            self.sorted.binary_search_by_key(&number, |&index| blocks[index as usize].id)
        } else {
            self.sorted.binary_search_by_key(&Some(id), |&index| ids.get(index as usize))
        };
        found.ok().map(|place| self.sorted[place] as usize)
    }
}

/// The number that is written like this, and only like this.
fn plain(id: &str) -> Option<u64> {
    let digits = id.bytes().all(|byte| byte.is_ascii_digit()) && (id == "0" || !id.starts_with('0'));
    if digits { id.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_numbers_that_are_written_back_the_same_are_plain() {
        assert_eq!(plain("18446744073709551615"), Some(u64::MAX));
        assert_eq!(plain("0"), Some(0));
        for text in ["", "00", "01", "+1", "-1", "1e3", "0x1", "18446744073709551616", "1 "] {
            assert_eq!(plain(text), None, "{text}");
        }
    }
}
