//! Chance that is the same everywhere.

/// A small generator of random numbers (xorshift64*, Vigna 2016).
#[derive(Debug, Clone)]
pub struct Dice(u64);

impl Dice {
    /// From a seed; near seeds give unlike numbers.
    pub fn new(seed: u64) -> Dice {
        // One step of splitmix64 (Steele, Lea, Flood 2014); xorshift must not start from 0.
        let mut state = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Dice((state ^ (state >> 31)).max(1))
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `sides`, or 0 where that is 0.
    pub fn below(&mut self, sides: u64) -> u64 {
        // The high half of a product: as even as a remainder, without a division.
        ((u128::from(self.bits()) * u128::from(sides)) >> 64) as u64
    }

    /// A number from `2^low` up to `2^high`, every power of two as likely as the next.
    pub(crate) fn scaled(&mut self, low: u64, high: u64) -> u64 {
        let base = 1 << (low + self.below(high - low));
        base + self.below(base)
    }

    /// A number from 1 up to `2^most`, of which one in `x` exceeds `x`: Pareto's law with exponent 1.
    pub(crate) fn heavy(&mut self, most: u64) -> u64 {
        let base = 1 << u64::from(self.bits().trailing_zeros()).min(most.saturating_sub(1));
        base + self.below(base)
    }

    /// A number in `[0, 1)`.
    pub(crate) fn unit(&mut self) -> f64 {
        // The 53 bits that a double holds.
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }
}
