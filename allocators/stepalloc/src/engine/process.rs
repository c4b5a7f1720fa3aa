//! What happens to the process: forks, a signal that asks for figures, its end.

use super::{ENGINE, idle};
use crate::backend;
use crate::heap::HEAP;
use crate::lock;
use crate::os::{self, Text};
use crate::profile::plan_file;
use crate::record::size_log::SIZE_LOG;
use crate::record::tracer;
use crate::reentrant;
use crate::settings;
use crate::statistics::JSON_BYTES;
use crate::switches;
use core::fmt::Write;
use core::sync::atomic::{AtomicBool, AtomicU8, Ordering::*};
use std::io;
use std::sync::Arc;
use stepalloc_planner::period;

/// Locks are tried so often at the end of the process: a signal handler that has interrupted whoever holds one may have come to it.
pub(crate) const EXIT_ATTEMPTS: u32 = 1000;

/// What a fork left in this process: nothing, or one of the two below. The next event sees to it.
static FORKED: AtomicU8 = AtomicU8::new(0);
/// This process was forked.
const CHILD: u8 = 1;
/// It was forked while another thread held the lock: the engine may be half changed.
const POISONED: u8 = 2;

/// The engine's lock was held by a thread that the fork did not copy.
pub(super) fn is_poisoned() {
    FORKED.store(POISONED, Relaxed);
}

/// Whether this process was forked since this was asked last, and its engine may be half changed.
pub(super) fn forked() -> Option<bool> {
    match FORKED.swap(0, Acquire) {
        0 => None,
        found => Some(found == POISONED),
    }
}

/// Whether handlers of exit and of forks may be installed: not before the library's constructor runs, where there is one. An earlier request may come
/// from within `atexit` or `pthread_atfork`, whose locks this thread has then.
static MAY_INSTALL: AtomicBool = AtomicBool::new(false);

/// The constructor runs.
pub(super) fn begin() {
    MAY_INSTALL.store(true, Relaxed);
}

fn may_install() -> bool {
    MAY_INSTALL.load(Relaxed) || backend::attached().is_none_or(|backend| !backend.has_constructor)
}

/// Sees to what the large heap owes a process: its free pages go back at the end, after what the settings ask for there, and its lock is free in the
/// children of forks.
pub(super) fn handle_heap() {
    static HANDLED: AtomicBool = AtomicBool::new(false);
    if !may_install() {
        return;
    }
    HEAP.handle_forks();
    if !HANDLED.swap(true, Relaxed) {
        os::at_exit(idle::release_at_exit);
    }
}

/// Installs what the settings ask for, once.
pub(super) fn install_handlers() {
    static INSTALLED: AtomicBool = AtomicBool::new(false);
    lock::distinguish_children();
    if !may_install() || INSTALLED.swap(true, Relaxed) {
        return;
    }
    handle_forks();
    handle_heap();
    if settings::JSON.path().is_some() {
        os::at_exit(write_json_file);
    }
    if settings::PLAN.path().is_some() {
        os::at_exit(write_cache_by_use);
    }
    if tracer::TRACER.is_wanted() {
        os::at_exit(tracer::flush_at_exit);
    }
    if let Some(signal) = settings::statistics_signal()
        && !os::on_signal(signal, log_statistics)
    {
        os::log_stderr(format_args!(
            "STEPALLOC_STATS_SIGNAL: the system refuses a handler for signal {signal}"
        ));
    }
}

/// Sees to later forks.
pub(super) fn handle_forks() {
    if !may_install() {
        return;
    }
    os::at_fork_in_child(after_fork);
}

extern "C" fn after_fork() {
    lock::own();
    // A child of a child that has not looked at it yet stays poisoned.
    FORKED.fetch_max(CHILD, Relaxed);
    switches::stop_recording();
}

/// Runs what an exit handler does.
fn at_end(body: impl FnOnce()) {
    os::keeping_errno(|| {
        reentrant::guard(|| {
            if let Some(backend) = backend::attached() {
                (backend.begin_exit)();
            }
            body();
        });
    });
}

extern "C" fn write_json_file() {
    // A child that made no step of its own has no figures.
    if FORKED.load(Relaxed) == 0 {
        at_end(write_figures);
    }
}

fn write_figures() {
    let mut text = Text::<JSON_BYTES>::new();
    let snapshot = ENGINE.with(Some(EXIT_ATTEMPTS), |engine| engine.statistics());
    let Some(snapshot) =
        snapshot.filter(|snapshot| snapshot.steps > 0 || SIZE_LOG.logged() >= period::EVIDENCE as u64)
    else {
        return;
    };
    let _ = snapshot.write_json(&mut text);
    let _ = text.write_str("\n");
    let Some(name) = settings::JSON.path() else { return };
    if let Err(error) = os::append(name, text.as_bytes()) {
        // The command has named a file of its own, which a process of another user cannot reach, or one that seccomp confines.
        let is_out_of_reach =
            matches!(error.raw_os_error(), Some(libc::EACCES | libc::EPERM | libc::EROFS | libc::ENOSYS));
        if !(is_out_of_reach && settings::is_started_by_command()) {
            log_unwritten(&settings::JSON, &error, "");
        }
    }
}

/// Complains about a file that cannot be written. Not where its directory has gone with the command that this process was started under, and has
/// outlived.
pub(crate) fn log_unwritten(setting: &settings::PathSetting, error: &io::Error, consequence: &str) {
    let outlived = error.kind() == io::ErrorKind::NotFound && settings::is_started_by_command();
    if let Some(path) = setting.path().filter(|_| !outlived) {
        let (name, path) = (setting.name(), path.to_str().unwrap_or("(not UTF-8)"));
        os::log_stderr(format_args!("{name}={path}: cannot be written: {error}{consequence}"));
    }
}

extern "C" fn log_statistics(_signal: i32) {
    os::keeping_errno(|| {
        let mut text = Text::<JSON_BYTES>::new();
        let snapshot = ENGINE.with(Some(1), |engine| engine.statistics());
        let _ = match snapshot {
            Some(snapshot) => snapshot.write_json(&mut text),
            None => text.write_str("stepalloc: at a step boundary just now; ask again"),
        };
        let _ = text.write_str("\n");
        os::write_all(2, text.as_bytes());
    });
}

/// At the end the step variants that were used last come first in the plan file. What a smaller process has written over it is written
/// again.
extern "C" fn write_cache_by_use() {
    if FORKED.load(Relaxed) != 0 {
        return;
    }
    let write = |engine: &mut super::Engine| {
        let (Some(file), Some(plans)) = (&mut engine.file, &engine.cached) else { return };
        let mut order: Vec<(u64, usize)> = switches::STATE.matcher.unused().zip(0..).collect();
        order.sort_unstable();
        if order.len() != plans.profiles.len() {
            return;
        }
        if order.is_sorted_by_key(|&(_, variant)| variant) {
            if !file.is_as_seen() {
                file.write(plans);
            }
            return;
        }
        let mut sorted = plan_file::Plans::clone(plans);
        sorted.profiles = order.iter().map(|&(_, variant)| Arc::clone(&plans.profiles[variant])).collect();
        sorted.offsets = order.iter().map(|&(_, variant)| plans.offsets[variant].clone()).collect();
        file.write(&sorted);
    };
    at_end(|| _ = ENGINE.with(Some(EXIT_ATTEMPTS), write));
}
