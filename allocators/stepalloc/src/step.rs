//! Steps: how a program says where one repetition of its work ends and the next begins.

use crate::phase;
use core::marker::PhantomData;
use core::sync::atomic::{AtomicU32, Ordering::*};

/// Scopes open now, in all threads.
static OPEN: AtomicU32 = AtomicU32::new(0);

/// A step as a scope, made by [`step`]. It ends no step by being dropped: what a program does between two scopes (loading
/// the next batch, say) belongs to the step before.
#[must_use = "the scope lasts as long as this value: write `let _step = stepalloc::step();`"]
#[derive(Debug)]
pub struct Step {
    /// Not to be made elsewhere, nor sent: a scope belongs to the thread that opened it.
    _here: PhantomData<*const ()>,
}

/// Opens a step. Opening the outermost scope is a step boundary; scopes opened while another is open, in whichever
/// thread, do not count.
pub fn step() -> Step {
    if OPEN.fetch_add(1, AcqRel) == 0 {
        phase::boundary();
    }
    Step { _here: PhantomData }
}

impl Drop for Step {
    fn drop(&mut self) {
        OPEN.fetch_sub(1, AcqRel);
    }
}
