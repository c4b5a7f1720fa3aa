//! A sum of numbers that says whether they are the same again.

/// FNV-1a over numbers of 64 bits.
pub(crate) fn checksum(words: impl Iterator<Item = u64>) -> u64 {
    words.fold(0xCBF2_9CE4_8422_2325, |sum, word| (sum ^ word).wrapping_mul(0x100_0000_01B3).rotate_left(29))
}
