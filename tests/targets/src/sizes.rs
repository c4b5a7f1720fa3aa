//! Sizes as the command's arguments say them.

#[path = "../../../cli/src/size.rs"]
#[allow(dead_code, reason = "the command needs the rest")]
mod size;

/// Sizes: what is shown to the byte is read as that, whatever else is an error.
pub fn sizes(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(bytes) = size::parse(text) else { return };
    assert_eq!(size::parse(&bytes.to_string()), Ok(bytes));
    assert_eq!(size::parse(&format!(" {bytes} b ")), Ok(bytes));
    let digits: String = text.trim().chars().take_while(char::is_ascii_digit).collect();
    let number: u64 = digits.parse().expect("a size begins with a number");
    assert!(bytes == number || (number > 0 && bytes.is_multiple_of(number) && bytes / number >= 1024));
    assert!(!size::exact(bytes).is_empty());
}
