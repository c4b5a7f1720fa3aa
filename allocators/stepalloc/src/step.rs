//! Steps: how a program says where one repetition of its work ends and the next begins.

use crate::engine;
use crate::os;
use crate::thread_locals::ThreadLocals;
use core::marker::PhantomData;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering::*};

/// Threads with a scope open now.
static OPEN: AtomicU32 = AtomicU32::new(0);
/// [`after_fork`] is registered.
static KNOWS_FORKS: AtomicBool = AtomicBool::new(false);

/// A step as a scope, made by [`step`]. It ends no step by being dropped: what a program does between two scopes (loading
/// the next batch, say) belongs to the step before.
#[must_use = "the scope lasts as long as this value: write `let _step = stepalloc::step();`"]
#[derive(Debug)]
pub struct Step {
    /// It is its thread's outermost scope, and not part of another's step.
    outermost: bool,
    /// Not to be made elsewhere, nor sent: a scope belongs to the thread that opened it.
    _here: PhantomData<*const ()>,
}

/// A step that other threads can take part in, made by [`Step::share`].
#[derive(Debug, Clone, Copy)]
pub struct SharedStep {
    _made_here: (),
}

/// The guard of a thread that works for another thread's step, made by [`SharedStep::attach`]: as long as it
/// lasts, scopes that this thread opens are no steps.
#[must_use = "the guard lasts as long as this value: write `let _guard = shared.attach();`"]
#[derive(Debug)]
pub struct StepGuard {
    _here: PhantomData<*const ()>,
}

/// Opens a step. A thread's outermost scope is a step boundary; scopes within it do not count.
///
/// A step belongs to the thread that opened it. Where threads have scopes open at once, as in a server, their steps are
/// not planned: the large heap serves them. Workers of one step, which open
/// scopes of their own, are [attached](SharedStep::attach) to it.
///
/// ```
/// let step = stepalloc::step();
/// let shared = step.share();
/// std::thread::scope(|scope| {
///     scope.spawn(move || {
///         let _guard = shared.attach();
///         let _no_step_of_its_own = stepalloc::step();
///     });
/// });
/// ```
pub fn step() -> Step {
    let outermost = enter() == 0;
    if outermost {
        if !KNOWS_FORKS.load(Relaxed) && !KNOWS_FORKS.swap(true, Relaxed) {
            os::at_fork_in_child(after_fork);
        }
        let others = OPEN.fetch_add(1, AcqRel) > 0;
        engine::boundary_among(others);
    }
    Step { outermost, _here: PhantomData }
}

impl Step {
    /// Lets other threads take part in this step.
    pub fn share(&self) -> SharedStep {
        SharedStep { _made_here: () }
    }
}

impl SharedStep {
    /// Makes this thread a worker of the step, for as long as the value lasts.
    pub fn attach(&self) -> StepGuard {
        enter();
        StepGuard { _here: PhantomData }
    }
}

/// Enters a scope of this thread; returns how many there were.
fn enter() -> u32 {
    ThreadLocals::with(|locals| locals.depth.replace(locals.depth.get() + 1))
}

fn leave() {
    ThreadLocals::with(|locals| locals.depth.set(locals.depth.get() - 1));
}

impl Drop for Step {
    fn drop(&mut self) {
        leave();
        if self.outermost {
            OPEN.fetch_sub(1, AcqRel);
        }
    }
}

impl Drop for StepGuard {
    fn drop(&mut self) {
        leave();
    }
}

/// In a forked child, whose other threads are gone.
extern "C" fn after_fork() {
    OPEN.store(u32::from(ThreadLocals::with(|locals| locals.depth.get()) > 0), Release);
}
