//! Damage: what bounded tests do to files that were right.

/// Numbers that only look random (SplitMix64, Steele et al. 2014).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// From a seed.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`; 0 where that is 0.
    pub fn below(&mut self, end: usize) -> usize {
        (self.number() % end.max(1) as u64) as usize
    }
}

/// Larger inputs do not become larger.
const MOST_BYTES: usize = 64 << 10;

/// Numbers near which readers go wrong.
const EDGES: [u64; 20] = [
    0,
    1,
    2,
    7,
    63,
    64,
    255,
    4095,
    4096,
    65_535,
    (1 << 20) - 1,
    1 << 20,
    (1 << 31) - 1,
    1 << 31,
    (1 << 32) - 1,
    1 << 32,
    (1 << 46) - 1,
    1 << 63,
    u64::MAX - 1,
    u64::MAX,
];

/// A copy of one of these files with some damage.
pub fn damaged(files: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    let mut file = files[random.below(files.len())].clone();
    damage(&mut file, files, random);
    // Half of all files are damaged once, a quarter twice: what is damaged often is refused at once.
    while random.below(2) == 0 {
        damage(&mut file, files, random);
    }
    file.truncate(MOST_BYTES.max(files.iter().map(Vec::len).max().unwrap_or(0)));
    file
}

fn damage(file: &mut Vec<u8>, files: &[Vec<u8>], random: &mut Random) {
    let at = random.below(file.len());
    if file.is_empty() {
        file.push(random.number() as u8);
    }
    match random.below(13) {
        0 => file[at] ^= 1 << random.below(8),
        1 => file[at] = random.number() as u8,
        2 => file.truncate(at),
        3 => _ = file.drain(at..(at + 1 + random.below(40)).min(file.len())),
        // A part of another file, or of this one again.
        4 | 5 => {
            let other = &files[random.below(files.len())];
            let from = random.below(other.len());
            let part = other[from..(from + 1 + random.below(200)).min(other.len())].to_vec();
            let end = if random.below(2) == 0 { at } else { (at + part.len()).min(file.len()) };
            file.splice(at..end, part);
        }
        // A line, or several, again, or elsewhere.
        6 => {
            let begin = file[..at].iter().rposition(|&byte| byte == b'\n').map_or(0, |place| place + 1);
            let end =
                file[at..].iter().position(|&byte| byte == b'\n').map_or(file.len(), |place| at + place + 1);
            let line = file[begin..end].repeat(1 + random.below(3));
            let place = if random.below(2) == 0 { begin } else { random.below(file.len()) };
            file.splice(place..place, line);
        }
        7 | 8 => digits(file, at, random),
        // A number of 64 bits at a place for one.
        9 => {
            let word = at / 8 * 8;
            if let Some(place) = file.get_mut(word..word + 8) {
                place.copy_from_slice(&edge(random).to_le_bytes());
            }
        }
        // A number as protobuf writes it.
        10 => {
            let mut number = edge(random);
            let mut bytes = Vec::new();
            while number >= 128 {
                bytes.push(number as u8 | 128);
                number >>= 7;
            }
            bytes.push(number as u8);
            let end = if random.below(2) == 0 { at } else { (at + bytes.len()).min(file.len()) };
            file.splice(at..end, bytes);
        }
        11 => {
            let byte = file[at];
            let run = vec![byte; 1 + random.below(64)];
            file.splice(at..at, run);
        }
        _ => {
            let bytes: Vec<u8> = (0..=random.below(8)).map(|_| random.number() as u8).collect();
            file.splice(at..at, bytes);
        }
    }
}

/// A number near an edge.
fn edge(random: &mut Random) -> u64 {
    let edge = EDGES[random.below(EDGES.len())];
    match random.below(4) {
        0 => edge.wrapping_add(1),
        1 => edge.wrapping_sub(random.below(9) as u64),
        2 => u64::MAX >> random.below(64),
        _ => edge,
    }
}

/// Another number in place of the next one that is written in digits.
fn digits(file: &mut Vec<u8>, at: usize, random: &mut Random) {
    let Some(begin) = file[at..].iter().position(u8::is_ascii_digit).map(|place| at + place) else { return };
    let end = file[begin..]
        .iter()
        .position(|byte| !byte.is_ascii_digit())
        .map_or(file.len(), |place| begin + place);
    let old: u64 =
        std::str::from_utf8(&file[begin..end]).ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    let text = match random.below(8) {
        0 => format!("-{old}"),
        1 => format!("{old}{old}"),
        2 => "18446744073709551616".to_owned(),
        3 => old.wrapping_add(1).to_string(),
        4 => random.below(100).to_string(),
        5 => (1u64 << random.below(64)).to_string(),
        _ => edge(random).to_string(),
    };
    file.splice(begin..end, text.into_bytes());
}
