//! Byte counts as people write and read them: `65536`, `64KiB`, `1 GiB`.

use thiserror::Error;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Why a text is no byte count.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum SizeError {
    /// Not digits with an optional suffix.
    #[error("expected a whole number of bytes, or one with KiB, MiB or GiB: 65536, 64KiB")]
    Format,
    /// More than 64 bits.
    #[error("2^64 bytes or more")]
    TooLarge,
}

/// Reads a byte count.
pub fn parse(text: &str) -> Result<u64, SizeError> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, suffix) = text.split_at(end);
    let unit = match suffix.trim_start().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "kib" => KIB,
        "mib" => MIB,
        "gib" => GIB,
        _ => return Err(SizeError::Format),
    };
    if digits.is_empty() {
        return Err(SizeError::Format);
    }
    digits.parse::<u64>().ok().and_then(|number| number.checked_mul(unit)).ok_or(SizeError::TooLarge)
}

/// A byte count for people: one decimal of the largest unit that gives at least 1.
pub fn show(bytes: u64) -> String {
    let (unit, name) = match bytes {
        GIB.. => (GIB, "GiB"),
        MIB.. => (MIB, "MiB"),
        KIB.. => (KIB, "KiB"),
        _ => return format!("{bytes} bytes"),
    };
    format!("{:.1} {name}", bytes as f64 / unit as f64)
}

/// A byte count to the byte, and for people where that is another text.
pub fn exact(bytes: u64) -> String {
    if bytes < KIB { show(bytes) } else { format!("{bytes} bytes ({})", show(bytes)) }
}

/// Bytes in MiB, for tables.
pub fn mib(bytes: u64) -> f64 {
    bytes as f64 / MIB as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_numbers_and_binary_suffixes_are_read() {
        assert_eq!(parse("0"), Ok(0));
        assert_eq!(parse("65536"), Ok(65536));
        assert_eq!(parse("64KiB"), Ok(65536));
        assert_eq!(parse("3 MiB"), Ok(3 << 20));
        assert_eq!(parse("2gib"), Ok(2 << 30));
    }

    #[test]
    fn anything_else_is_refused() {
        for text in ["", "KiB", "-1", "1.5GiB", "1MB", "1 M", "0x10", "1KiBs"] {
            assert_eq!(parse(text), Err(SizeError::Format), "{text}");
        }
        assert_eq!(parse("18446744073709551616"), Err(SizeError::TooLarge));
        assert_eq!(parse("17179869184GiB"), Err(SizeError::TooLarge));
    }

    #[test]
    fn sizes_are_shown_in_the_largest_fitting_unit() {
        assert_eq!(show(1023), "1023 bytes");
        assert_eq!(show(1536), "1.5 KiB");
        assert_eq!(show(64 << 20), "64.0 MiB");
        assert_eq!(exact(20), "20 bytes");
        assert_eq!(exact(1536), "1536 bytes (1.5 KiB)");
    }
}
