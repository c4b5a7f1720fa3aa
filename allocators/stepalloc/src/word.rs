//! The words that threads share, and what a thread does while it waits for another: one family of types for the allocator, and in tests
//! another for the models, which run the same code in all interleavings ([loom](https://docs.rs/loom)).
//!
//! The structures that argue about orderings are generic over the family, with [`Core`] as the default, so that nobody else sees it. All of
//! [`Core`] is inlined and comes to the processor's instruction, as if there were no family.

use crate::os;
use core::fmt::Debug;
use core::mem::size_of;
use core::sync::atomic::{self, AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// A word that threads share. Each method is that of core's atomics.
pub(crate) trait Word<T: Copy> {
    fn load(&self, order: Ordering) -> T;
    fn store(&self, value: T, order: Ordering);
    fn swap(&self, value: T, order: Ordering) -> T;
    fn compare_exchange(&self, old: T, new: T, success: Ordering, failure: Ordering) -> Result<T, T>;
    fn compare_exchange_weak(&self, old: T, new: T, success: Ordering, failure: Ordering) -> Result<T, T>;
    fn fetch_update(
        &self,
        set: Ordering,
        fetch: Ordering,
        update: impl FnMut(T) -> Option<T>,
    ) -> Result<T, T>;
}

/// One that holds a number.
pub(crate) trait Number<T: Copy>: Word<T> {
    fn fetch_add(&self, value: T, order: Ordering) -> T;
    fn fetch_and(&self, value: T, order: Ordering) -> T;
    fn fetch_or(&self, value: T, order: Ordering) -> T;
}

/// A family of words, and of what threads do besides.
pub(crate) trait Atomics: Copy + Eq + Debug + 'static {
    type Bool: Word<bool>;
    type U32: Number<u32>;
    /// A number that is written before others know of it, and stays until its memory goes back: models need not look for old values.
    type Fixed: Word<u32>;
    type U64: Number<u64>;
    type Usize: Number<usize>;
    type Ptr<T>: Word<*mut T>;

    /// Bytes of a page, of which memory goes back to the system.
    const PAGE: usize;

    /// Keeps what follows behind the exchange that the thread has just made, as a fence of all.
    fn fence_after_exchange();
    /// Between two looks at a word that another thread is about to change.
    fn spin();
    /// Gives the processor to another thread.
    fn yield_now();
    /// Sleeps while the word has this value, or shorter, for so many nanoseconds at most.
    fn wait(word: &Self::U32, value: u32, nanoseconds: i64);
    /// Wakes one that sleeps so.
    fn wake_one(word: &Self::U32);
    fn now_ns() -> u64;
    /// A number of the thread, not 0.
    fn thread() -> usize;

    /// How often a word is looked at, of which another thread may change the value soon, where the allocator looks so often.
    fn looks(looks: u32) -> u32;
    /// Entries of a table that has so many in the allocator: a power of two.
    fn entries(entries: u64) -> u64;
    /// Memory for so many words, all 0; `None` where the system has none.
    fn map(words: usize) -> Option<*mut Self::U64>;
    /// Undoes [`Atomics::map`].
    ///
    /// # Safety
    /// It was mapped with as many words, and nobody else has the address.
    unsafe fn unmap(words: *mut Self::U64, count: usize);
    /// Gives memory back to the system: the words read as 0 from then on, or as before where it refuses.
    ///
    /// # Safety
    /// Words of a mapping, which nobody reads nor writes meanwhile.
    unsafe fn discard(words: *mut Self::U64, count: usize);
    /// Gives memory back to the system that others may read meanwhile. Models leave out what the kernel does then.
    ///
    /// # Safety
    /// A mapping of words, whose readers find their way when all or part of it is zeros.
    unsafe fn discard_shared(start: *mut u8, bytes: usize);
}

/// The allocator's words.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Core;

impl Atomics for Core {
    type Bool = AtomicBool;
    type U32 = AtomicU32;
    type Fixed = AtomicU32;
    type U64 = AtomicU64;
    type Usize = AtomicUsize;
    type Ptr<T> = AtomicPtr<T>;

    const PAGE: usize = os::PAGE;

    #[inline(always)]
    fn fence_after_exchange() {
        // Exchanges of x86-64 are fences themselves; another one would wait for all that was written before, once more.
        if cfg!(all(target_arch = "x86_64", not(miri))) {
            atomic::compiler_fence(Ordering::SeqCst);
        } else {
            atomic::fence(Ordering::SeqCst);
        }
    }

    #[inline(always)]
    fn spin() {
        core::hint::spin_loop();
    }

    #[inline(always)]
    fn yield_now() {
        os::yield_now();
    }

    #[inline(always)]
    fn wait(word: &AtomicU32, value: u32, nanoseconds: i64) {
        os::futex_wait(word, value, nanoseconds);
    }

    #[inline(always)]
    fn wake_one(word: &AtomicU32) {
        os::futex_wake_one(word);
    }

    #[inline(always)]
    fn now_ns() -> u64 {
        os::now_ns()
    }

    #[inline(always)]
    fn thread() -> usize {
        os::thread_pointer()
    }

    #[inline(always)]
    fn looks(looks: u32) -> u32 {
        looks
    }

    #[inline(always)]
    fn entries(entries: u64) -> u64 {
        entries
    }

    #[inline(always)]
    fn map(words: usize) -> Option<*mut AtomicU64> {
        Some(os::map(words * size_of::<AtomicU64>())?.cast())
    }

    #[inline(always)]
    unsafe fn unmap(words: *mut AtomicU64, count: usize) {
        // SAFETY: the caller's promise.
        unsafe { os::unmap(words.cast(), count * size_of::<AtomicU64>()) };
    }

    #[inline(always)]
    unsafe fn discard(words: *mut AtomicU64, count: usize) {
        // SAFETY: the caller's promise.
        unsafe { os::discard(words.cast(), count * size_of::<AtomicU64>()) };
    }

    #[inline(always)]
    unsafe fn discard_shared(start: *mut u8, bytes: usize) {
        // SAFETY: the caller's promise.
        unsafe { os::discard(start, bytes) };
    }
}

/// Says that types have core's methods.
macro_rules! words {
    ($([$($generic:ident)?] $word:ty, $value:ty;)*) => {$(
        impl$(<$generic>)? Word<$value> for $word {
            #[inline(always)]
            fn load(&self, order: Ordering) -> $value {
                self.load(order)
            }

            #[inline(always)]
            fn store(&self, value: $value, order: Ordering) {
                self.store(value, order);
            }

            #[inline(always)]
            fn swap(&self, value: $value, order: Ordering) -> $value {
                self.swap(value, order)
            }

            #[inline(always)]
            fn compare_exchange(
                &self,
                old: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.compare_exchange(old, new, success, failure)
            }

            #[inline(always)]
            fn compare_exchange_weak(
                &self,
                old: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.compare_exchange_weak(old, new, success, failure)
            }

            #[inline(always)]
            fn fetch_update(
                &self,
                set: Ordering,
                fetch: Ordering,
                update: impl FnMut($value) -> Option<$value>,
            ) -> Result<$value, $value> {
                self.fetch_update(set, fetch, update)
            }
        }
    )*};
}

/// Says the same of those that hold numbers.
macro_rules! numbers {
    ($($word:ty, $value:ty;)*) => {$(
        impl Number<$value> for $word {
            #[inline(always)]
            fn fetch_add(&self, value: $value, order: Ordering) -> $value {
                self.fetch_add(value, order)
            }

            #[inline(always)]
            fn fetch_and(&self, value: $value, order: Ordering) -> $value {
                self.fetch_and(value, order)
            }

            #[inline(always)]
            fn fetch_or(&self, value: $value, order: Ordering) -> $value {
                self.fetch_or(value, order)
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
