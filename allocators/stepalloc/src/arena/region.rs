//! The addresses that an arena lies in: reserved once, and usable from the first on, as far as was asked.
//!
//! The allocator's own is there for the whole program. Who plans memory for itself, as a tensor runtime does, makes others:
//!
//! ```
//! use stepalloc::Region;
//!
//! let mut region = Region::new(1 << 20).expect("there are addresses");
//! assert!(region.commit(1 << 20, false), "there is memory");
//! region.memory()[4096] = 1;
//! // A larger plan: in the same place, and what was touched stays so.
//! assert!(region.commit(2 << 20, false));
//! assert_eq!(region.memory()[4096], 1);
//! ```

use crate::os;
use core::sync::atomic::{AtomicUsize, Ordering::*};

/// Addresses reserved for each byte of the first plan, so that a later, larger one finds room in the same place.
const RESERVE_FACTOR: usize = 8;

/// A range of addresses, of which the first are usable memory. It goes back to the system when it is dropped.
#[derive(Debug)]
pub struct Region {
    /// Address of the first byte; 0 while closed.
    base: AtomicUsize,
    /// Bytes reserved from there; 0 while closed, so that no address is within.
    reserved: AtomicUsize,
    /// Bytes made readable and writable so far, in whole pages.
    committed: AtomicUsize,
}

impl Region {
    /// None yet.
    pub(crate) const fn closed() -> Self {
        Self { base: AtomicUsize::new(0), reserved: AtomicUsize::new(0), committed: AtomicUsize::new(0) }
    }

    /// Reserves addresses for a first plan of `bytes`, and more for later ones if there are: a multiple of 2 MiB. None of them is usable
    /// yet.
    /// `None` where the system has none.
    pub fn new(bytes: usize) -> Option<Self> {
        let least = bytes.max(1).checked_next_multiple_of(os::BASE_ALIGN)?;
        let sizes = [Self::room_for(bytes).unwrap_or(least), least];
        let (base, reserved) =
            sizes.into_iter().find_map(|size| Some((os::reserve_anywhere(size)?, size)))?;
        let region = Self::closed();
        region.open(base, reserved);
        Some(region)
    }

    /// Addresses to be reserved for a first plan of `bytes`.
    pub(crate) fn room_for(bytes: usize) -> Option<usize> {
        let factor = if os::address_space_is_limited() { 1 } else { RESERVE_FACTOR };
        bytes.max(1).saturating_mul(factor).checked_next_multiple_of(os::BASE_ALIGN)
    }

    /// Takes what was reserved. Once, and by one thread; others may look meanwhile.
    pub(crate) fn open(&self, base: *mut u8, reserved: usize) {
        debug_assert_eq!(self.reserved(), 0);
        self.base.store(base as usize, Relaxed);
        self.reserved.store(reserved, Release);
    }

    /// Makes the first `bytes` usable, those that were not read as zero; `false`, and nothing changed, where so many are not reserved
    /// or the system has no memory for them. With `huge_pages`, the system is asked for such. One thread at a time.
    pub fn commit(&self, bytes: usize, huge_pages: bool) -> bool {
        let committed = self.committed();
        let Some(wanted) =
            bytes.checked_next_multiple_of(os::PAGE).filter(|&wanted| wanted <= self.reserved())
        else {
            return false;
        };
        if wanted > committed {
            let start = (self.base() + committed) as *mut u8;
            if !os::commit(start, wanted - committed) {
                return false;
            }
            if huge_pages {
                os::advise_huge(start, wanted - committed);
            }
            self.committed.store(wanted, Relaxed);
        }
        true
    }

    /// Bytes that are usable, in whole pages.
    pub fn committed(&self) -> usize {
        self.committed.load(Relaxed)
    }

    /// Bytes reserved.
    #[inline]
    pub fn reserved(&self) -> usize {
        self.reserved.load(Acquire)
    }

    /// Address of the first byte.
    #[inline(always)]
    pub fn base(&self) -> usize {
        self.base.load(Relaxed)
    }

    /// Whether an address is in the range, usable or not.
    #[inline(always)]
    pub fn contains(&self, address: usize) -> bool {
        // In this order: whoever finds bytes reserved finds where.
        let reserved = self.reserved();
        address.wrapping_sub(self.base()) < reserved
    }

    /// All that is usable, for its only user.
    pub fn memory(&mut self) -> &mut [u8] {
        let (base, committed) = (self.base(), self.committed());
        if committed == 0 {
            return &mut [];
        }
        // SAFETY: pages of a mapping of our own, readable, writable, and zero where they were not written; nobody else has the
        // region.
        unsafe { core::slice::from_raw_parts_mut(base as *mut u8, committed) }
    }

    /// Touches the first `bytes`, as far as they are usable; a refusal changes nothing.
    pub(crate) fn populate(&self, bytes: usize) {
        os::populate(self.base() as *mut u8, bytes.min(self.committed()));
    }

    /// Puts huge pages where all of the memory is there anyway.
    pub(crate) fn unite_pages(&self) {
        os::unite_pages(self.base() as *mut u8, self.committed());
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let reserved = self.reserved();
        if reserved > 0 {
            // SAFETY: what was reserved for this region; nobody has it any more.
            unsafe { os::unmap(self.base() as *mut u8, reserved) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_grows_where_it_is_as_far_as_it_was_reserved() {
        let mut region = Region::new(10_000).expect("there are addresses");
        assert_eq!((region.memory().len(), region.base() % os::BASE_ALIGN), (0, 0));
        assert!(region.commit(10_000, false));
        let base = region.base();
        assert_eq!(region.committed(), 10_000usize.next_multiple_of(os::PAGE));
        assert!(region.memory().iter().all(|&byte| byte == 0));
        region.memory().fill(7);
        let reserved = region.reserved();
        assert!(!region.commit(reserved + 1, false) && !region.commit(usize::MAX, false));
        assert!(region.commit(reserved, true));
        assert_eq!((region.base(), region.committed(), region.memory()[9_999]), (base, reserved, 7));
        assert!(region.contains(base + reserved - 1) && !region.contains(base + reserved));
        assert!(region.commit(1, false), "less than there is");
        assert_eq!(region.committed(), reserved);
        assert!(Region::new(usize::MAX).is_none());
    }

    #[test]
    fn memory_that_the_system_cannot_have_is_refused() {
        // Addresses are there, and more than any machine's memory.
        let region = Region::new(1 << 45).expect("there are addresses");
        assert!(region.reserved() >= 1 << 45);
        let promises = std::fs::read("/proc/sys/vm/overcommit_memory").expect("the kernel tells");
        assert_eq!(region.commit(1 << 45, false), promises.starts_with(b"1"));
        assert!(region.commit(1 << 20, false), "less is there");
    }

    #[test]
    fn what_was_dropped_leaves_nothing_behind() {
        let mapped = || std::fs::read_to_string("/proc/self/maps").expect("the kernel tells").lines().count();
        let (mut most, before) = (0, mapped());
        for _ in 0..2000 {
            let region = Region::new(100_000).expect("there are addresses");
            assert!(region.commit(100_000, false));
            most = most.max(mapped());
        }
        // Other tests map as well.
        assert!(most < before + 1000, "{before} mappings before, {most} at most");
    }
}
