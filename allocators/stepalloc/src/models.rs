//! Models of the structures that threads share: the allocator's own code over loom's words, run in all interleavings of some threads, with
//! all values that a load may return by the orderings that the code names. (But loom has a word's stores become visible in the order in which
//! they were run, and looks at schedules with as few interruptions as each model says.)
//!
//! Each model stands beside its structure, in a module `models`; here are loom's family of words and what all models use. What threads
//! hand to each other is a [`Place`], in which loom finds two that use it at once, or one after the other without an ordering.
//! A model's memory is leaked: some hundred bytes a schedule.

use crate::word::{Atomics, Number, Word};
use core::hash::{BuildHasher, BuildHasherDefault};
use core::sync::atomic::{
    AtomicU32 as Plain, AtomicUsize as Count,
    Ordering::{self, *},
};
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize};
use loom::sync::{Condvar, Mutex};
use std::hash::DefaultHasher;
use std::io::Write;

/// Loom's words.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Loom;

/// Looks at a word that another thread is about to change: after the first one it has had its turn.
const LOOKS: u32 = 4;
/// Entries of all tables.
pub(crate) const ENTRIES: u64 = 4;
/// Pairs of words of a page.
pub(crate) const PAGE_PAIRS: usize = 2;

/// A word of loom's, in memory that may go back to the system.
pub(crate) struct Modelled<W> {
    word: W,
    /// Written before each access. Of a word's accesses loom remembers the newest only, when it looks for those that are to be tried in the other
    /// order; so a thread's own load, before it changes the word, would hide another thread's load from it. Writes are not hidden by loads.
    accesses: AtomicU32,
    memory: UnsafeCell<()>,
}

pub(crate) type U64 = Modelled<AtomicU64>;
pub(crate) type U32 = Modelled<AtomicU32>;
pub(crate) type Usize = Modelled<AtomicUsize>;
pub(crate) type Bool = Modelled<AtomicBool>;
pub(crate) type Ptr<T> = Modelled<AtomicPtr<T>>;

impl<W> Modelled<W> {
    fn over(word: W) -> Self {
        Self { word, accesses: AtomicU32::new(0), memory: UnsafeCell::new(()) }
    }

    /// The word, of which the memory does not go back meanwhile.
    fn access(&self) -> &W {
        self.memory.with(|_| ());
        self.accesses.store(0, Relaxed);
        &self.word
    }
}

// SAFETY: loom looks for uses of the memory at once.
unsafe impl<W: Sync> Sync for Modelled<W> {}
// SAFETY: as above.
unsafe impl<W: Send> Send for Modelled<W> {}

/// Makes loom's types words.
macro_rules! words {
    ($([$($generic:ident)?] $word:ty, $value:ty;)*) => {$(
        impl$(<$generic>)? Modelled<$word> {
            pub(crate) fn new(value: $value) -> Self {
                Self::over(<$word>::new(value))
            }
        }

        impl$(<$generic>)? Word<$value> for Modelled<$word> {
            fn load(&self, order: Ordering) -> $value {
                self.access().load(order)
            }

            fn store(&self, value: $value, order: Ordering) {
                self.access().store(value, order);
            }

            fn swap(&self, value: $value, order: Ordering) -> $value {
                self.access().swap(value, order)
            }

            fn compare_exchange(
                &self,
                old: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.access().compare_exchange(old, new, success, failure)
            }

            fn compare_exchange_weak(
                &self,
                old: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.access().compare_exchange_weak(old, new, success, failure)
            }

            fn fetch_update(
                &self,
                set: Ordering,
                fetch: Ordering,
                mut update: impl FnMut($value) -> Option<$value>,
            ) -> Result<$value, $value> {
                let mut seen = self.load(fetch);
                while let Some(new) = update(seen) {
                    match self.compare_exchange_weak(seen, new, set, fetch) {
                        Ok(seen) => return Ok(seen),
                        Err(other) => seen = other,
                    }
                }
                Err(seen)
            }
        }
    )*};
}

/// The same of those that hold numbers.
macro_rules! numbers {
    ($($word:ty, $value:ty;)*) => {$(
        impl Number<$value> for Modelled<$word> {
            fn fetch_add(&self, value: $value, order: Ordering) -> $value {
                self.access().fetch_add(value, order)
            }

            fn fetch_and(&self, value: $value, order: Ordering) -> $value {
                self.access().fetch_and(value, order)
            }

            fn fetch_or(&self, value: $value, order: Ordering) -> $value {
                self.access().fetch_or(value, order)
            }
        }
    )*};
}

words! {
    [] AtomicBool, bool;
    [] AtomicU32, u32;
    [] AtomicU64, u64;
    [] AtomicUsize, usize;
    [T] AtomicPtr<T>, *mut T;
}

numbers! {
    AtomicU32, u32;
    AtomicU64, u64;
    AtomicUsize, usize;
}

loom::lazy_static! {
    /// The kernel's queue of those that sleep; models have one word that is slept on.
    static ref SLEEPERS: (Mutex<()>, Condvar) = (Mutex::new(()), Condvar::new());
}

impl Atomics for Loom {
    type Bool = Bool;
    type U32 = U32;
    type Fixed = Plain;
    type U64 = U64;
    type Usize = Usize;
    type Ptr<T> = Ptr<T>;

    const PAGE: usize = PAGE_PAIRS * 2 * size_of::<U64>();

    fn fence_after_exchange() {
        loom::sync::atomic::fence(SeqCst);
    }

    fn spin() {
        loom::thread::yield_now();
    }

    fn yield_now() {
        loom::thread::yield_now();
    }

    /// Without an end by the clock: who is not woken sleeps for good, and loom says so.
    fn wait(word: &U32, value: u32, _: i64) {
        let sleepers = SLEEPERS.0.lock().expect("no thread panics");
        // The kernel finds the newest value.
        if word.fetch_add(0, AcqRel) == value {
            drop(SLEEPERS.1.wait(sleepers).expect("no thread panics"));
        }
    }

    fn wake_one(_: &U32) {
        let _sleepers = SLEEPERS.0.lock().expect("no thread panics");
        SLEEPERS.1.notify_one();
    }

    fn now_ns() -> u64 {
        0
    }

    fn thread() -> usize {
        BuildHasherDefault::<DefaultHasher>::default().hash_one(loom::thread::current().id()) as usize | 1
    }

    fn looks(looks: u32) -> u32 {
        looks.min(LOOKS)
    }

    fn entries(_: u64) -> u64 {
        ENTRIES
    }

    fn map(words: usize) -> Option<*mut U64> {
        let words: Box<[U64]> = (0..words).map(|_| U64::new(0)).collect();
        Some(Box::leak(words).as_mut_ptr())
    }

    unsafe fn unmap(words: *mut U64, count: usize) {
        // SAFETY: the caller's promise.
        unsafe { Self::discard(words, count) };
    }

    /// The memory stays as it was, as where the system refuses (it is locked, say): zeros would say less.
    unsafe fn discard(words: *mut U64, count: usize) {
        for at in 0..count {
            // SAFETY: the caller's promise; the words are never dropped.
            unsafe { &*words.add(at) }.memory.with_mut(|_| ());
        }
    }

    unsafe fn discard_shared(_: *mut u8, _: usize) {}
}

/// Memory that one thread after the other has for itself.
pub(crate) struct Place(UnsafeCell<()>);

// SAFETY: loom looks for uses at once.
unsafe impl Sync for Place {}
// SAFETY: as above.
unsafe impl Send for Place {}

impl Place {
    pub(crate) fn new() -> Self {
        Self(UnsafeCell::new(()))
    }

    /// Writes to it, which nobody else may do at once, nor without being ordered before or after.
    pub(crate) fn own(&self) {
        self.0.with_mut(|_| ());
    }
}

/// Gives a model something for good.
pub(crate) fn leak<T>(value: T) -> &'static T {
    Box::leak(Box::new(value))
}

/// Runs a model in all interleavings in which a running thread is interrupted at most `preemptions` times, or in all. Their number is added
/// to the file that `SUITE_COUNTS` names.
pub(crate) fn explore(preemptions: impl Into<Option<usize>>, model: impl Fn() + Sync + Send + 'static) {
    let schedules = leak(Count::new(0));
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions.into();
    builder.max_branches = 20_000;
    builder.check(move || {
        schedules.fetch_add(1, Relaxed);
        model();
    });
    let schedules = schedules.load(Relaxed);
    assert!(schedules > 1, "there is nothing to interleave");
    if let Some(path) = std::env::var_os("SUITE_COUNTS") {
        let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
        let line = format!("models,schedules,{schedules}\n");
        file.and_then(|mut file| file.write_all(line.as_bytes())).expect("a file that can be written");
    }
}

/// The arena's lock and that of the engine, by its one word.
mod lock {
    use super::{Place, U32, explore, leak};
    use crate::lock::{Lock, NUMBER_BITS, identify};
    use crate::models::Loom;
    use loom::thread;

    #[test]
    fn one_thread_has_the_lock_after_the_other() {
        explore(2, || {
            let lock = leak(Lock::<Loom>::over(U32::new(0)));
            let place = leak(Place::new());
            let others = [Some(1), None].map(|attempts| {
                thread::spawn(move || {
                    let had = lock.with(attempts, |is_poisoned| {
                        assert!(!is_poisoned);
                        place.own();
                    });
                    assert!(had.is_some() || attempts.is_some());
                })
            });
            assert!(lock.with(None, |_| place.own()).is_some());
            others.into_iter().for_each(|other| other.join().expect("no panic"));
        });
    }

    #[test]
    fn all_threads_of_a_child_have_one_id_which_no_ancestor_had() {
        explore(None, || {
            // The fork has cleared the first.
            let (owner, generation) = (leak(U32::new(0)), leak(U32::new(1)));
            let ask = |process| identify(owner, generation, process);
            let other = thread::spawn(move || identify(owner, generation, 77));
            let mine = ask(77).expect("the memory is its own");
            assert_eq!(other.join().expect("no panic"), Some(mine));
            assert_eq!(mine >> NUMBER_BITS, 2);
            assert_eq!(ask(78), None, "a child of vfork");
        });
    }

    #[test]
    fn of_a_child_s_threads_one_takes_the_lock_of_a_parent_that_is_gone() {
        explore(3, || {
            // Another process's.
            let lock = leak(Lock::<Loom>::over(U32::new(crate::os::pid() ^ 1)));
            let place = leak(Place::new());
            let takes = || {
                let poisoned = lock.with(None, |is_poisoned| {
                    place.own();
                    is_poisoned
                });
                poisoned.expect("it waits")
            };
            let other = thread::spawn(takes);
            let mine = takes();
            assert_eq!(u32::from(mine) + u32::from(other.join().expect("no panic")), 1);
        });
    }
}
