//! The data the demo learns from: 1797 handwritten digits of 8x8 pixels, embedded in the binary (origin, authors and
//! licence: `DATA.md` beside this file).
//!
//! One line of the file is one image: 64 pixels from 0 to 16, row by row, then the digit. [`load`] checks all of it
//! before anything is trained, and [`split`] parts it into the same two sets in every process: the generator is our
//! own, so that no library's version changes which images are held back.

use std::io::Read;

use flate2::read::GzDecoder;
use thiserror::Error;

/// The file as scikit-learn ships it, byte for byte.
const FILE: &[u8] = include_bytes!("digits.csv.gz");

/// Pixels along one edge of an image.
pub const EDGE: usize = 8;
/// Pixels of an image.
pub const PIXELS: usize = EDGE * EDGE;
/// The digits 0 to 9.
pub const CLASSES: usize = 10;
/// Images in the file.
pub const IMAGES: usize = 1797;
/// Images held back to test on: a fifth, as usual for a set of this size.
pub const TEST_IMAGES: usize = 360;
/// The brightest pixel: each counts the set ones among 4x4 scanned pixels.
const BRIGHTEST: u8 = 16;

/// Images with their digits; `pixels` holds [`PIXELS`] values from 0 to 1 for each label.
#[derive(Debug, Default, Clone)]
pub struct Digits {
    /// Row by row, image by image.
    pub pixels: Vec<f32>,
    /// The digit each image shows.
    pub labels: Vec<u32>,
}

/// Why the embedded file is not what it should be: the binary was built from a damaged tree.
#[derive(Debug, Error)]
pub enum DataError {
    /// The gzip stream is damaged.
    #[error(
        "the embedded digits cannot be unpacked ({0}); restore cli/src/demo/digits.csv.gz and build again"
    )]
    Unpack(#[from] std::io::Error),
    /// A line is no image.
    #[error(
        "the embedded digits are wrong in line {line} ({what}); restore cli/src/demo/digits.csv.gz and build again"
    )]
    Line {
        /// Counted from 1.
        line: usize,
        /// What is wrong in it.
        what: &'static str,
    },
    /// Lines are missing or too many.
    #[error(
        "the embedded digits have {found} images instead of {IMAGES}; restore cli/src/demo/digits.csv.gz and build again"
    )]
    Count {
        /// Images found.
        found: usize,
    },
}

/// Unpacks and checks the embedded images, in the file's order.
pub fn load() -> Result<Digits, DataError> {
    let mut text = String::new();
    GzDecoder::new(FILE).read_to_string(&mut text)?;
    let mut digits = Digits::default();
    for (index, line) in text.lines().enumerate() {
        let wrong = |what| DataError::Line { line: index + 1, what };
        let mut fields = line.split(',').map(str::parse::<u8>);
        for _ in 0..PIXELS {
            match fields.next() {
                Some(Ok(pixel)) if pixel <= BRIGHTEST => {
                    digits.pixels.push(f32::from(pixel) / f32::from(BRIGHTEST));
                }
                _ => return Err(wrong("a pixel is not a number from 0 to 16")),
            }
        }
        match (fields.next(), fields.next()) {
            (Some(Ok(label)), None) if usize::from(label) < CLASSES => digits.labels.push(u32::from(label)),
            _ => return Err(wrong("the digit after the pixels is not a number from 0 to 9")),
        }
    }
    if digits.labels.len() != IMAGES {
        return Err(DataError::Count { found: digits.labels.len() });
    }
    Ok(digits)
}

/// Parts the images into those to train on and [`TEST_IMAGES`] to test on, shuffled: the file is ordered by writer.
pub fn split(digits: &Digits, random: &mut Random) -> (Digits, Digits) {
    let mut order: Vec<usize> = (0..digits.labels.len()).collect();
    random.shuffle(&mut order);
    let pick = |indices: &[usize]| Digits {
        pixels: indices.iter().flat_map(|&i| &digits.pixels[i * PIXELS..(i + 1) * PIXELS]).copied().collect(),
        labels: indices.iter().map(|&i| digits.labels[i]).collect(),
    };
    let (test, train) = order.split_at(TEST_IMAGES.min(order.len()));
    (pick(train), pick(test))
}

/// SplitMix64 (Steele, Lea, Flood 2014): small, good enough for weights and shuffling, and the same everywhere. candle
/// cannot be given a seed on the CPU.
#[derive(Debug, Clone)]
pub struct Random(pub u64);

impl Random {
    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number from -1 (included) to 1 (excluded), in steps that f32 holds exactly.
    pub fn signed(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u32 << 23) as f32 - 1.0
    }

    /// Fisher and Yates' shuffle; the bias of the remainder is far below anything a set of this size shows.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, (self.bits() % (last as u64 + 1)) as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_embedded_file_holds_the_published_number_of_each_digit() {
        let digits = load().expect("embedded data");
        let mut counts = [0; CLASSES];
        digits.labels.iter().for_each(|&label| counts[label as usize] += 1);
        assert_eq!(digits.labels.len(), 1797);
        assert_eq!(digits.pixels.len(), 1797 * 64);
        assert_eq!(counts, [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]);
    }

    #[test]
    fn pixels_lie_between_zero_and_one() {
        let digits = load().expect("embedded data");
        assert!(digits.pixels.iter().all(|pixel| (0.0..=1.0).contains(pixel)));
        assert!(digits.pixels.contains(&1.0));
    }

    #[test]
    fn the_split_is_the_same_each_time_and_loses_no_image() {
        let digits = load().expect("embedded data");
        let (train, test) = split(&digits, &mut Random(1));
        let (again, _) = split(&digits, &mut Random(1));
        assert_eq!((train.labels.len(), test.labels.len()), (1437, 360));
        assert_eq!(train.labels, again.labels);
        let sum = |d: &Digits| d.pixels.iter().map(|&p| f64::from(p)).sum::<f64>();
        assert_eq!(sum(&train) + sum(&test), sum(&digits));
    }
}
