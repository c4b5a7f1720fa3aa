//! Which line of the file a buffer stands on.

/// The lines of a file's buffers, by index; of buffers made otherwise, none.
///
/// A file of ten million lines needs no memory for them: only what is not simply the next line is kept.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Places(Vec<(usize, u64)>);

impl Places {
    /// Adds the line of a buffer; buffers come in order.
    pub(super) fn push(&mut self, buffer: usize, line: u64) {
        if self.line(buffer) != Some(line) {
            self.0.push((buffer, line));
        }
    }

    /// The line of a buffer of the file, from 1.
    pub fn line(&self, buffer: usize) -> Option<u64> {
        let after = self.0.partition_point(|&(first, _)| first <= buffer);
        let (first, line) = *self.0.get(after.checked_sub(1)?)?;
        Some(line + (buffer - first) as u64)
    }
}
