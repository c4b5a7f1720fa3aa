//! Chance that is the same everywhere.

/// A small deterministic generator (xorshift64*, Vigna 2016).
#[derive(Debug, Clone)]
pub(crate) struct Dice(u64);

impl Dice {
    /// Begins anew with every seed; equal seeds give equal numbers.
    pub fn new(seed: u64) -> Dice {
        // A state of 0 would stay 0; the constant has no pattern.
        Dice((seed ^ 0x9e37_79b9_7f4a_7c15).max(1))
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `sides`, which is not 0.
    pub fn below(&mut self, sides: usize) -> usize {
        ((self.next() >> 16) % sides as u64) as usize
    }

    /// A number in `[0, 1)`.
    pub fn unit(&mut self) -> f64 {
        // The 53 bits that a double holds.
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}
