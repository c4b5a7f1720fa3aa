//! Columns of numbers, small: the differences from one to the next, zigzag (Protocol Buffers, "Encoding", signed integers)
//! and seven bits to a byte (LEB128), as base64.

use base64::{Engine, prelude::BASE64_STANDARD};

/// The text of a column.
pub fn column(numbers: impl IntoIterator<Item = u64>) -> String {
    let mut bytes = Vec::new();
    let mut before = 0u64;
    for number in numbers {
        let (distance, down) = (number.abs_diff(before), number < before);
        // As -2d-1 and 2d; what is so far apart is no size, and cut.
        let zigzag = distance.min(u64::MAX >> 2) * 2 - u64::from(down);
        leb128(zigzag, &mut bytes);
        before = number;
    }
    BASE64_STANDARD.encode(bytes)
}

fn leb128(mut number: u64, bytes: &mut Vec<u8>) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the page reads it.
    fn read(text: &str) -> Vec<u64> {
        let (mut numbers, mut number, mut factor, mut before) = (Vec::new(), 0u64, 1u64, 0i64);
        for byte in BASE64_STANDARD.decode(text).expect("base64") {
            number += u64::from(byte & 0x7f) * factor;
            factor = factor.wrapping_mul(128);
            if byte < 0x80 {
                let half = (number / 2).cast_signed();
                before += if number % 2 == 0 { half } else { -half - 1 };
                numbers.push(before.cast_unsigned());
                (number, factor) = (0, 1);
            }
        }
        numbers
    }

    #[test]
    fn numbers_come_back() {
        let numbers = [0, 1, 5, 3, 3, 1 << 52, 7, 128, 0, 127, 64, 63];
        assert_eq!(read(&column(numbers)), numbers);
        assert_eq!(column([]), "");
        assert!(column((0..1000).map(|n| n * 3)).len() < 1400);
    }
}
