//! Work shared among cores.
//!
//! rayon's machinery is large, and would be compiled anew for every closure that is given to it. Here it is compiled once, for
//! closures behind a pointer: pieces of work are large enough not to feel that.

#![allow(clippy::type_complexity, reason = "closures of several arguments are no complex types")]

use bytemuck::Pod;
use rayon::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};
use std::sync::{Mutex, OnceLock};
use std::thread::{self, JoinHandle};

/// Threads that work is shared among: those of rayon that the caller is on, or some of its own, made when they are first needed.
#[derive(Default)]
pub struct Threads {
    /// 0 for the caller's.
    count: usize,
    pool: OnceLock<Option<Pool>>,
}

/// Threads that are gone when this is.
struct Pool {
    /// `None` while it is dropped.
    threads: Option<ThreadPool>,
    /// By the numbers of the threads.
    handles: Vec<JoinHandle<()>>,
}

impl Pool {
    /// `None` where the system has none.
    fn new(count: usize) -> Option<Self> {
        let mut handles = Vec::new();
        let spawn = |worker: rayon::ThreadBuilder| {
            let name = format!("stepalloc-{}", worker.index());
            let run = || {
                touch_stack();
                worker.run();
            };
            handles.push(thread::Builder::new().name(name).spawn(run)?);
            Ok(())
        };
        let threads = ThreadPoolBuilder::new().num_threads(count).spawn_handler(spawn).build().ok()?;
        Some(Self { threads: Some(threads), handles })
    }
}

impl Drop for Pool {
    /// What ends with a thread, as thread-locals do, has ended then; but one of its own that drops it cannot wait for itself.
    fn drop(&mut self) {
        let own = self.threads.take().and_then(|threads| threads.current_thread_index());
        for (_, handle) in self.handles.drain(..).enumerate().filter(|(index, _)| Some(*index) != own) {
            // A panic of theirs was the caller's already.
            let _ = handle.join();
        }
    }
}

impl Threads {
    /// So many of its own; 0 for the caller's.
    pub fn new(count: usize) -> Self {
        Self { count, pool: OnceLock::new() }
    }

    /// Does it on these threads, or on the caller's where the system has none for them.
    pub fn run<R: Send>(&self, body: impl FnOnce() -> R + Send) -> R {
        if self.count == 0 {
            return body();
        }
        let pool = self.pool.get_or_init(|| Pool::new(self.count)).as_ref();
        match pool.and_then(|pool| pool.threads.as_ref()) {
            Some(threads) => threads.install(body),
            None => body(),
        }
    }
}

/// Makes the pages of the calling thread's stack that kernels use resident, so that they do not come with its first part of some later run. For threads
/// that begin: those of a session's own have it, and a rayon pool that sessions are run in can (`start_handler`).
#[inline(never)]
pub fn touch_stack() {
    std::hint::black_box([0u8; STACK]);
}

/// Bytes of the stack that kernels use: sums of tiles, above all.
const STACK: usize = 128 << 10;

/// Cores that share work.
pub fn count() -> usize {
    rayon::current_num_threads().max(1)
}

/// Calls `work` for every number below `count`, on all cores; a core takes `least` of them at a time, or more.
pub fn share(count: usize, least: usize, work: &(dyn Fn(usize) + Sync)) {
    (0..count).into_par_iter().with_min_len(least.max(1)).for_each(work);
}

/// Does both, on two cores if there are.
pub fn join(one: &mut (dyn FnMut() + Send), two: &mut (dyn FnMut() + Send)) {
    rayon::join(one, two);
}

/// Calls `work` with each of these, on all cores.
pub fn each<T: Send>(items: impl IntoIterator<Item = T>, work: &(dyn Fn(T) + Sync)) {
    let items: Vec<_> = items.into_iter().map(|item| Mutex::new(Some(item))).collect();
    share(items.len(), 1, &|number| {
        let item = items[number].lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        if let Some(item) = item {
            work(item);
        }
    });
}

/// Calls `make` for every piece of `size` elements, with its number, on all cores; a core takes `least` of them at a time, or more.
/// The last piece may be shorter. Fewer than two times `least` are made here and now.
pub fn pieces<T: Pod>(out: &mut [T], size: usize, least: usize, make: &(dyn Fn(usize, &mut [T]) + Sync)) {
    if out.is_empty() || size == 0 {
        return;
    }
    let bytes = size * size_of::<T>();
    byte_pieces(bytemuck::cast_slice_mut(out), bytes, least, &|number, piece| {
        make(number, bytemuck::cast_slice_mut(piece));
    });
}

/// [`pieces`] of two at once, as many of each.
pub fn pieces_of_two<A: Pod, B: Pod>(
    (one, one_size): (&mut [A], usize),
    (two, two_size): (&mut [B], usize),
    least: usize,
    make: &(dyn Fn(usize, &mut [A], &mut [B]) + Sync),
) {
    if one.is_empty() || one_size == 0 || two_size == 0 {
        return;
    }
    let (one_bytes, two_bytes) = (one_size * size_of::<A>(), two_size * size_of::<B>());
    let (one, two) = (bytemuck::cast_slice_mut(one), bytemuck::cast_slice_mut(two));
    byte_pieces_of_two((one, one_bytes), (two, two_bytes), least, &|number, one, two| {
        make(number, bytemuck::cast_slice_mut(one), bytemuck::cast_slice_mut(two));
    });
}

/// [`pieces`] that may fail: an error of one of them, if there was any.
pub fn try_pieces<T: Pod, E: Send>(
    out: &mut [T],
    size: usize,
    make: &(dyn Fn(usize, &mut [T]) -> Result<(), E> + Sync),
) -> Result<(), E> {
    let failed = Mutex::new(None);
    pieces(out, size, 1, &|number, piece| {
        if let Err(what) = make(number, piece) {
            *failed.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(what);
        }
    });
    failed.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner).map_or(Ok(()), Err)
}

fn byte_pieces(out: &mut [u8], size: usize, least: usize, make: &(dyn Fn(usize, &mut [u8]) + Sync)) {
    if out.len().div_ceil(size) / 2 < least {
        return out.chunks_mut(size).enumerate().for_each(|(number, piece)| make(number, piece));
    }
    let pieces = out.par_chunks_mut(size).with_min_len(least.max(1)).enumerate();
    pieces.for_each(|(number, piece)| make(number, piece));
}

fn byte_pieces_of_two(
    (one, one_size): (&mut [u8], usize),
    (two, two_size): (&mut [u8], usize),
    least: usize,
    make: &(dyn Fn(usize, &mut [u8], &mut [u8]) + Sync),
) {
    if one.len().div_ceil(one_size) / 2 < least {
        let pieces = one.chunks_mut(one_size).zip(two.chunks_mut(two_size)).enumerate();
        return pieces.for_each(|(number, (one, two))| make(number, one, two));
    }
    let pieces = one.par_chunks_mut(one_size).zip(two.par_chunks_mut(two_size));
    let pieces = pieces.with_min_len(least.max(1)).enumerate();
    pieces.for_each(|(number, (one, two))| make(number, one, two));
}
