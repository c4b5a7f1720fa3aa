//! Bytes as a row of numbers.

/// Numbers from bytes, until these end.
pub struct Feed<'a>(&'a [u8]);

impl<'a> Feed<'a> {
    /// From the first byte on.
    pub fn new(data: &'a [u8]) -> Feed<'a> {
        Feed(data)
    }

    /// The next byte.
    pub fn byte(&mut self) -> Option<u8> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }

    /// Those that are left.
    pub fn rest(&self) -> &'a [u8] {
        self.0
    }
}
