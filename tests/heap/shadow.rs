//! The shadow heap: what every live block must contain, byte for byte.
//!
//! A block is filled with a piece of one random template when it is made, and compared with it before it changes or
//! goes. The piece begins at a place of the block's own, so that a byte of another block in it shows.

use std::alloc::{Layout, alloc, alloc_zeroed, dealloc, realloc};
use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Places at which a block's pattern can begin: two random blocks share theirs once in 65,536 pairs.
const PLACES: usize = 1 << 16;
/// The largest block, in bytes.
pub(crate) const LARGEST: usize = 6 << 20;

/// Random bytes; every pattern is a piece of it.
fn template() -> &'static [u8] {
    static TEMPLATE: OnceLock<Vec<u8>> = OnceLock::new();
    TEMPLATE.get_or_init(|| {
        let mut random = Random::new(0x5EED);
        (0..(PLACES + LARGEST) / 8).flat_map(|_| random.next().to_le_bytes()).collect()
    })
}

/// A generator of seeded random numbers (SplitMix64, Steele et al. 2014).
#[derive(Clone)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }
}

/// A live block with its known content. It must be given to [`Block::free`]; dropped, it stays allocated.
#[derive(Debug)]
#[must_use]
pub(crate) struct Block {
    address: usize,
    layout: Layout,
    /// Where its pattern begins in the template.
    place: usize,
}

impl Block {
    /// Allocates and fills; the error says what was wrong with the block.
    pub(crate) fn new(size: usize, align: usize, zeroed: bool) -> Result<Self, String> {
        let layout = Layout::from_size_align(size, align).expect("programs have legal layouts");
        assert!(size > 0 && size <= LARGEST);
        // SAFETY: the size is not 0.
        let address = unsafe { if zeroed { alloc_zeroed(layout) } else { alloc(layout) } };
        let mut block = Self { address: address as usize, layout, place: 0 };
        block.placed()?;
        // Bytes that were never written may not be read, so only zeroed blocks are.
        if zeroed && let Some(at) = block.bytes().iter().position(|&byte| byte != 0) {
            return Err(format!("{block} was asked for zeroed, but byte {at} is {:#x}", block.bytes()[at]));
        }
        block.fill();
        Ok(block)
    }

    fn placed(&self) -> Result<(), String> {
        if self.address == 0 {
            return Err(format!("{self}: no memory"));
        }
        if !self.address.is_multiple_of(self.layout.align()) {
            return Err(format!("{self} is not aligned"));
        }
        if self.is_in_arena() && !stepalloc::route::in_arena(self.end() - 1) {
            return Err(format!("{self} leaves the arena"));
        }
        Ok(())
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: live, of that size, initialised by `alloc_zeroed` or by `fill`.
        unsafe { std::slice::from_raw_parts(self.address as *const u8, self.layout.size()) }
    }

    /// Gives the block a new pattern.
    pub(crate) fn fill(&mut self) {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        self.place = (NEXT.fetch_add(1, Relaxed).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 48) as usize;
        let pattern = &template()[self.place..][..self.layout.size()];
        // SAFETY: live, of that size, and nobody else's; the template is another object.
        unsafe { std::ptr::copy_nonoverlapping(pattern.as_ptr(), self.address as *mut u8, pattern.len()) };
    }

    /// Compares the first `length` bytes with the pattern.
    fn compare(&self, length: usize) -> Result<(), String> {
        let (seen, pattern) = (&self.bytes()[..length], &template()[self.place..][..length]);
        if seen == pattern {
            return Ok(());
        }
        let wrong: Vec<_> = (0..length).filter(|&at| seen[at] != pattern[at]).collect();
        Err(format!(
            "{self}: {} of {length} bytes changed, the first at {}, the last at {}",
            wrong.len(),
            wrong[0],
            wrong[wrong.len() - 1]
        ))
    }

    /// Compares every byte with the pattern.
    pub(crate) fn check(&self) -> Result<(), String> {
        self.compare(self.layout.size())
    }

    /// Checks every byte, and gives the block back.
    pub(crate) fn free(self) -> Result<(), String> {
        self.check()?;
        // SAFETY: live, and this is its layout; the value is gone afterwards.
        unsafe { dealloc(self.address as *mut u8, self.layout) };
        Ok(())
    }

    /// Checks every byte, changes the size, checks that the common part came along, fills anew.
    pub(crate) fn resize(&mut self, size: usize) -> Result<(), String> {
        assert!(size > 0 && size <= LARGEST);
        self.check()?;
        let kept = size.min(self.layout.size());
        // SAFETY: live, this is its layout, the new size is neither 0 nor too large for the alignment.
        let address = unsafe { realloc(self.address as *mut u8, self.layout, size) };
        self.address = address as usize;
        self.layout =
            Layout::from_size_align(size, self.layout.align()).expect("programs have legal layouts");
        self.placed()?;
        self.compare_moved(kept)?;
        self.fill();
        Ok(())
    }

    fn compare_moved(&self, kept: usize) -> Result<(), String> {
        // SAFETY: the first `kept` bytes are initialised: realloc brought them along.
        let seen = unsafe { std::slice::from_raw_parts(self.address as *const u8, kept) };
        let pattern = &template()[self.place..][..kept];
        if seen == pattern {
            return Ok(());
        }
        let lost = (0..kept).filter(|&at| seen[at] != pattern[at]).collect::<Vec<_>>();
        Err(format!("{self}: realloc lost {} of {kept} bytes, the first at {}", lost.len(), lost[0]))
    }

    pub(crate) fn start(&self) -> usize {
        self.address
    }

    pub(crate) fn end(&self) -> usize {
        self.address + self.layout.size()
    }

    pub(crate) fn size(&self) -> usize {
        self.layout.size()
    }

    pub(crate) fn is_in_arena(&self) -> bool {
        stepalloc::route::in_arena(self.address)
    }
}

impl std::fmt::Display for Block {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let place = if self.is_in_arena() { "arena" } else { "backend" };
        let (size, align) = (self.layout.size(), self.layout.align());
        write!(formatter, "block of {size} bytes at {:#x}, aligned to {align} ({place})", self.address)
    }
}

/// Fails where two of the blocks share a byte.
pub(crate) fn disjoint<'a>(blocks: impl Iterator<Item = &'a Block>) -> Result<(), String> {
    let mut blocks: Vec<_> = blocks.collect();
    blocks.sort_unstable_by_key(|block| block.address);
    match blocks.windows(2).find(|pair| pair[0].end() > pair[1].address) {
        Some(pair) => Err(format!("{} overlaps {}", pair[0], pair[1])),
        None => Ok(()),
    }
}

/// The ranges of all live blocks, compared at every change.
#[derive(Default)]
pub(crate) struct Ranges(BTreeMap<usize, usize>);

impl Ranges {
    pub(crate) fn insert(&mut self, block: &Block) -> Result<(), String> {
        let (start, end) = (block.start(), block.end());
        let before = self.0.range(..end).next_back();
        if let Some((other, other_end)) = before.filter(|&(_, &other_end)| other_end > start) {
            return Err(format!("{block} overlaps the live block {other:#x}..{other_end:#x}"));
        }
        self.0.insert(start, end);
        Ok(())
    }

    pub(crate) fn remove(&mut self, block: &Block) {
        assert!(self.0.remove(&block.start()).is_some(), "the shadow heap knows its blocks");
    }
}

/// The test of the test: a byte that changes is found, and so are blocks that overlap.
#[test]
fn the_shadow_heap_notices_a_changed_byte_and_an_overlap() {
    let block = Block::new(5_000, 64, false).expect("memory");
    // SAFETY: inside the live block.
    unsafe { *(block.address as *mut u8).add(4_999) ^= 1 };
    let error = block.check().expect_err("a byte differs");
    assert!(error.contains("1 of 5000 bytes changed, the first at 4999"), "{error}");
    let inner = Block { address: block.address + 4_992, layout: block.layout, place: 0 };
    assert!(disjoint([&inner, &block].into_iter()).is_err());
    let mut ranges = Ranges::default();
    ranges.insert(&block).expect("the first block");
    assert!(ranges.insert(&inner).is_err());
    // SAFETY: as above.
    unsafe { *(block.address as *mut u8).add(4_999) ^= 1 };
    block.free().expect("as it was");
}
