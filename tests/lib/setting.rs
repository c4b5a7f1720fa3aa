//! How much the suite does, from which seed, and what it has done.

use std::io::Write;
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

/// Whether `SUITE_SETTING` asks for the long setting.
fn long() -> bool {
    match std::env::var("SUITE_SETTING").as_deref() {
        Ok("long") => true,
        Ok("quick") | Err(_) => false,
        Ok(other) => panic!("SUITE_SETTING={other}: quick or long is known"),
    }
}

/// A number of operations, programs or attempts: the first with the quick setting, which is the default, the second with
/// the long one.
pub fn by_setting(quick: u64, long_setting: u64) -> u64 {
    if long() { long_setting } else { quick }
}

/// The seed from which a test draws: `SUITE_SEED`, else always the same one with the quick setting and another one each
/// time with the long one. It is printed, for who wants to see a failure again.
pub fn seed() -> u64 {
    static SEED: OnceLock<u64> = OnceLock::new();
    *SEED.get_or_init(|| {
        let seed = match std::env::var("SUITE_SEED") {
            Ok(seed) => seed.parse().unwrap_or_else(|_| panic!("SUITE_SEED={seed}: not a number")),
            Err(_) if long() => {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock is right");
                now.as_nanos() as u64
            }
            Err(_) => 1,
        };
        eprintln!("SUITE_SEED={seed}");
        seed
    })
}

/// Adds to the suite's table: so many of a unit were done for a part, a line `PART,UNIT,NUMBER` of the file that
/// `SUITE_COUNTS` names. Without that it does nothing.
///
/// # Panics
/// If the file cannot be written: its table would say too little.
pub fn count(part: &str, unit: &str, number: u64) {
    if let Some(path) = std::env::var_os("SUITE_COUNTS") {
        let file = std::fs::OpenOptions::new().append(true).create(true).open(path);
        // One write each: tests run at the same time.
        let line = format!("{part},{unit},{number}\n");
        file.and_then(|mut file| file.write_all(line.as_bytes())).expect("SUITE_COUNTS can be written");
    }
}
