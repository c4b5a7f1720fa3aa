//! Folded stacks: a line for each call stack, `outermost;...;innermost bytes`.
//!
//! The input of Brendan Gregg's flamegraph.pl, and of inferno and speedscope after it. A frame has no semicolon and no line
//! break: those become a comma and a space.

use std::collections::BTreeMap;
use std::io::{self, Write};

use super::{Recorded, frame_of_size};
use crate::report::walk::{Change, Walk};

/// What a stack weighs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weight {
    /// Its bytes alive when most bytes are.
    Peak,
    /// All bytes it ever asked for.
    Total,
}

/// Writes a trace's stacks, in alphabetical order; those without weight are left out.
///
/// # Errors
/// Those of `out`.
pub fn write(out: &mut impl Write, recorded: &Recorded, weight: Weight) -> io::Result<()> {
    let count = match weight {
        Weight::Peak => recorded.peak().0,
        Weight::Total => usize::MAX,
    };
    let mut numbers: BTreeMap<String, usize> = BTreeMap::new();
    let mut bytes: Vec<u64> = Vec::new();
    // Stack and size of each block.
    let mut blocks: Vec<(usize, u64)> = Vec::new();
    for moment in Walk::whole(recorded.trace).take(count) {
        match moment.change {
            Change::Born { size, .. } => {
                let stack = match recorded.stack(moment.step, moment.event) {
                    Some(frames) => frames.iter().map(|frame| tidy(frame)).collect::<Vec<_>>().join(";"),
                    None => frame_of_size(size),
                };
                let number = *numbers.entry(stack).or_insert(bytes.len());
                if number == bytes.len() {
                    bytes.push(0);
                }
                bytes[number] = bytes[number].saturating_add(size);
                blocks.push((number, size));
            }
            Change::Died { block } if weight == Weight::Peak => {
                let (number, size) = blocks[block];
                bytes[number] = bytes[number].saturating_sub(size);
            }
            Change::Died { .. } => {}
        }
    }
    for (stack, number) in numbers {
        if bytes[number] > 0 {
            writeln!(out, "{stack} {}", bytes[number])?;
        }
    }
    Ok(())
}

fn tidy(frame: &str) -> String {
    let other = |letter: char| match letter {
        ';' => ',',
        letter if letter.is_control() => ' ',
        letter => letter,
    };
    frame.chars().map(other).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::export::tests::example;

    fn written(recorded: &Recorded, weight: Weight) -> String {
        let mut text = Vec::new();
        write(&mut text, recorded, weight).unwrap();
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn without_stacks_sizes_are_the_frames() {
        let example = example();
        let recorded = Recorded::bare(&example);
        assert_eq!(written(&recorded, Weight::Peak), "size 1.0 MiB 1048576\nsize 4.9 KiB 10000\n");
        let total = "size 1.0 MiB 1048576\nsize 4.9 KiB 15000\nsize 64 bytes 64\n";
        assert_eq!(written(&recorded, Weight::Total), total);
    }

    #[test]
    fn stacks_are_joined_outermost_first_and_cleaned() {
        let example = example();
        let sites = [
            vec!["main".to_owned(), "fn(a; b)\n".to_owned()],
            vec!["main".to_owned(), "fn(a, b) ".to_owned()],
        ];
        let site_of = |step: usize, event: usize| (step == 0).then_some(event % 2);
        let recorded = Recorded { trace: &example, sites: &sites, site_of: &site_of };
        let total = "main;fn(a, b)  1058576\nsize 4.9 KiB 5000\nsize 64 bytes 64\n";
        assert_eq!(written(&recorded, Weight::Total), total);
    }
}
