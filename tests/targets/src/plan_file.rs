//! Plan files: what `STEPALLOC_PLAN` names.

use crate::memory::within;
use crate::plans;
use crate::scratch::Scratch;
use stepalloc::{PLAN_MAGIC, read_plans, rewrite_plans};

/// A word of the file becomes a word of the plan; tables that find them are up to some times as large.
const TIMES: usize = 64;
/// Tables of a plan that is nearly empty.
const BASE: usize = 1 << 20;
/// Bytes before those that the checksum is of: the file's beginning, its version, and the checksum.
const HEAD: usize = 24;

/// Plan files: what was read is written and read the same, and the plans keep the rules. Each input is read as it is, and with
/// a beginning and a checksum that are right.
pub fn plan_file(data: &[u8]) {
    file(data);
    if data.len() >= HEAD {
        let mut whole = data[..data.len() / 8 * 8].to_vec();
        whole[..8].copy_from_slice(PLAN_MAGIC);
        whole[8..16].copy_from_slice(&2u64.to_le_bytes());
        let (words, _) = whole[HEAD..].as_chunks::<8>();
        let sum = words.iter().fold(0xCBF2_9CE4_8422_2325u64, |sum, word| {
            (sum ^ u64::from_le_bytes(*word)).wrapping_mul(0x100_0000_01B3).rotate_left(29)
        });
        whole[16..HEAD].copy_from_slice(&sum.to_le_bytes());
        file(&whole);
    }
}

fn file(data: &[u8]) {
    let written = within(data.len(), TIMES, BASE, || rewrite_plans(data));
    let on_disk = Scratch::new("plan", data);
    let read = read_plans(on_disk.path());
    if let Err(error) = &read {
        let text = error.to_string();
        assert!(text.len() < 500 && !text.chars().any(char::is_control), "{text:?}");
        assert!(written.is_none(), "{text}, but it can be written");
        return;
    }
    let Ok(read) = read else { return };
    for (step, offsets) in read.steps.iter().zip(&read.offsets) {
        if step.problem.blocks.len() <= 1000 {
            plans::holds(&step.problem, offsets, read.height);
        }
        plans::plan(&step.problem);
    }
    // Plans of no block at all are none that is kept.
    if let Some(written) = written {
        assert_eq!(rewrite_plans(&written).as_ref(), Some(&written), "what was written is not what is read");
    }
}
