//! The heap's lock, and frees that are left to its holder. What a lock guards stands for the table of extents, which knows of no other
//! thread, and is too large for a model.

use super::UNCOUNTED;
use super::deferred::Deferred;
use super::extents::Extent;
use super::mutex::Mutex;
use super::pages::Blocks;
use crate::models::{Loom, Place, Ptr, U32, explore, leak};
use crate::word::{Atomics, Word};
use core::sync::atomic::Ordering::*;
use loom::cell::UnsafeCell;
use loom::thread;

struct Locked {
    mutex: Mutex<Loom>,
    place: Place,
}

fn locked() -> &'static Locked {
    leak(Locked { mutex: Mutex::over(U32::new(0)), place: Place::new() })
}

impl Locked {
    fn with(&self) {
        assert!(self.mutex.try_lock() || self.mutex.lock_contended(), "nobody waits for long here");
        self.place.own();
        self.mutex.unlock();
    }
}

#[test]
fn one_thread_has_the_lock_and_who_sleeps_is_woken() {
    explore(2, || {
        let locked = locked();
        let others = [(), ()].map(|()| thread::spawn(|| locked.with()));
        locked.with();
        others.into_iter().for_each(|other| other.join().expect("no panic"));
        assert!(!locked.mutex.is_held());
    });
}

#[test]
fn who_gets_the_lock_at_once_finds_what_its_holder_has_done() {
    explore(None, || {
        let locked = locked();
        let tries = || {
            if locked.mutex.try_lock() {
                locked.place.own();
                assert!(!locked.mutex.lock_contended(), "who has it already does not wait for himself");
                locked.mutex.unlock();
            }
        };
        let other = thread::spawn(tries);
        tries();
        other.join().expect("no panic");
    });
}

/// Pages of the heap.
const PAGES: usize = 3;

/// A heap of which the table is a list of what was freed.
struct Heap {
    mutex: Mutex<Loom>,
    deferred: Deferred<Loom>,
    blocks: Blocks<Loom>,
    freed: UnsafeCell<Vec<(Extent, bool)>>,
    /// What blocks have in their pages.
    contents: [Place; PAGES],
}

// SAFETY: loom looks for uses of the table at once.
unsafe impl Sync for Heap {}
// SAFETY: as above.
unsafe impl Send for Heap {}

impl Heap {
    fn new() -> &'static Self {
        let entries = Loom::map(PAGES).expect("memory");
        leak(Self {
            mutex: Mutex::over(U32::new(0)),
            deferred: Deferred::over(U32::new(0)),
            blocks: Blocks::over(Ptr::new(entries)),
            freed: UnsafeCell::new(Vec::new()),
            contents: [(); PAGES].map(|()| Place::new()),
        })
    }

    fn insert(&self, extent: Extent, is_counted: bool) {
        self.contents[extent.start as usize].own();
        // SAFETY: loom looks whether another thread has it.
        self.freed.with_mut(|freed| unsafe { (*freed).push((extent, is_counted)) });
    }

    /// As the heap's: `body` with the lock held, and then what is deferred.
    fn locked(&self, body: impl FnOnce()) {
        body();
        self.deferred.unlock(&self.mutex, || {
            self.deferred.take(&self.blocks, |extent, counts| self.insert(extent, counts))
        });
    }

    /// Frees a block that the thread has written to, by one attempt for the lock.
    fn free(&self, page: u32, uncounted: u64) {
        self.contents[page as usize].own();
        let block = Extent::new(page, 1);
        if self.mutex.try_lock() {
            self.locked(|| self.insert(block, uncounted == 0));
        } else if self.deferred.push(&self.mutex, &self.blocks, block, uncounted) {
            self.locked(|| ());
        }
    }
}

#[test]
fn frees_that_did_not_get_the_lock_are_done_by_its_holder_or_their_own_thread() {
    explore(3, || {
        let heap = Heap::new();
        let others = [(1, UNCOUNTED), (2, 0)]
            .map(|(page, uncounted)| thread::spawn(move || heap.free(page, uncounted)));
        heap.free(0, 0);
        others.into_iter().for_each(|other| other.join().expect("no panic"));
        assert!(!heap.mutex.is_held());
        // SAFETY: no other thread is left.
        let mut freed = heap.freed.with_mut(|freed| unsafe { core::mem::take(&mut *freed) });
        freed.sort_unstable_by_key(|(extent, _)| extent.start);
        assert_eq!(freed, [0, 1, 2].map(|page| (Extent::new(page, 1), page != 1)));
        assert!((0..3).all(|page| heap.blocks.at(page).load(Relaxed) == 0));
    });
}

#[test]
fn who_defers_a_free_and_who_gives_up_the_lock_see_each_other() {
    explore(4, || {
        let heap = Heap::new();
        let other = thread::spawn(move || heap.free(1, UNCOUNTED));
        heap.free(0, 0);
        other.join().expect("no panic");
        // SAFETY: no other thread is left.
        assert_eq!(heap.freed.with_mut(|freed| unsafe { (*freed).len() }), 2);
    });
}
