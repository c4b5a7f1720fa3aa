//! Options of sessions and runs, by the names that ONNX Runtime has for them; and arenas.

use crate::status::{Failure, StepallocStatus, given, given_mut, hand_out, status, take_back, text, wrong};
use runtime::{ArenaExtendStrategy, Arenas, Cancel, Level, Optimization, Options};
use std::ffi::c_char;
use std::path::PathBuf;

/// Options of a session.
pub struct StepallocOptions {
    pub(crate) options: Options,
    level: Level,
    /// Passes that are left out.
    without: Vec<String>,
    /// Where the optimized model is written.
    pub(crate) optimized_model: Option<PathBuf>,
}

/// Options of a run.
pub struct StepallocRunOptions {
    pub(crate) shrinks: bool,
    pub(crate) cancel: Cancel,
}

/// Arenas that several sessions share: those that do not run at the same time use the same one.
pub struct StepallocArenas {
    pub(crate) arenas: Arenas,
}

/// Names of options of a session, for errors.
const OPTIONS: &str = "enable_cpu_mem_arena, enable_mem_pattern, graph_optimization_level, disabled_optimizers, \
     optimized_model_filepath, intra_op_num_threads, compilation_num_threads, arena_extend_strategy, max_mem, prepacking, \
     huge_pages, plans";

impl StepallocOptions {
    pub(crate) fn new() -> Self {
        Self { options: Options::new(), level: Level::default(), without: Vec::new(), optimized_model: None }
    }

    /// How a graph is optimized.
    pub(crate) fn optimization(&self) -> Result<Optimization, Failure> {
        let mut optimization = Optimization::new(self.level);
        for pass in &self.without {
            optimization = optimization.without(pass)?;
        }
        Ok(optimization)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), Failure> {
        let options = self.options.clone();
        self.options = match name {
            "enable_cpu_mem_arena" => options.memory_arena(truth(name, value)?),
            "enable_mem_pattern" => options.memory_pattern(truth(name, value)?),
            "intra_op_num_threads" => options.intra_op_num_threads(number(name, value)?),
            "compilation_num_threads" => options.compilation_num_threads(number(name, value)?),
            "max_mem" => options.max_mem(number(name, value)?),
            "prepacking" => options.prepacking(truth(name, value)?),
            "huge_pages" => options.huge_pages(truth(name, value)?),
            "plans" => options.plans(number(name, value)?),
            "arena_extend_strategy" => options.arena_extend_strategy(match value {
                "kSameAsRequested" => ArenaExtendStrategy::SameAsRequested,
                "kNextPowerOfTwo" => ArenaExtendStrategy::NextPowerOfTwo,
                _ => return Err(unknown(name, value, "kSameAsRequested or kNextPowerOfTwo")),
            }),
            "graph_optimization_level" => {
                self.level = match value {
                    "disable" => Level::Disable,
                    "basic" => Level::Basic,
                    "extended" => Level::Extended,
                    "all" => Level::All,
                    _ => return Err(unknown(name, value, "disable, basic, extended or all")),
                };
                options
            }
            "disabled_optimizers" => {
                self.without = value.split(',').filter(|name| !name.is_empty()).map(Into::into).collect();
                options
            }
            "optimized_model_filepath" => {
                self.optimized_model = (!value.is_empty()).then(|| value.into());
                options
            }
            _ => return Err(wrong(format!("there is no option {name} of sessions; there are {OPTIONS}"))),
        };
        Ok(())
    }
}

fn unknown(name: &str, value: &str, wanted: &str) -> Failure {
    wrong(format!("{name} is {value}: give {wanted}"))
}

fn truth(name: &str, value: &str) -> Result<bool, Failure> {
    match value {
        "0" => Ok(false),
        "1" => Ok(true),
        _ => Err(unknown(name, value, "0 or 1")),
    }
}

fn number<N: std::str::FromStr>(name: &str, value: &str) -> Result<N, Failure> {
    value.parse().map_err(|_| unknown(name, value, "a decimal number"))
}

/// Options with their defaults.
///
/// # Safety
/// `options` is null, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stepalloc_options_new(options: *mut *mut StepallocOptions) -> *mut StepallocStatus {
    status(|| {
        // SAFETY: the caller's promise.
        let options = unsafe { given_mut(options, "options")? };
        hand_out(options, StepallocOptions::new());
        Ok(())
    })
}

/// Sets an option by its name; numbers in decimals, truth values as 0 or 1.
///
/// | name | default | meaning |
/// |---|---|---|
/// | enable_cpu_mem_arena | 1 | the arena is kept for the next run |
/// | enable_mem_pattern | 1 | values that are not alive at the same time share memory |
/// | graph_optimization_level | all | disable, basic, extended or all |
/// | disabled_optimizers | none | passes to leave out, with commas between them |
/// | optimized_model_filepath | none | where the optimized model is written when the session is made |
/// | intra_op_num_threads | 0 | threads of the session's own that a run uses; 0: those that all sessions share |
/// | compilation_num_threads | 0 | threads for what is done before the first run; 0: those of runs |
/// | arena_extend_strategy | kSameAsRequested | or kNextPowerOfTwo |
/// | max_mem | no limit | bytes for arenas, outputs and copied weights; a run that needs more is an error |
/// | prepacking | 1 | constant weights are packed once |
/// | huge_pages | 0 | the system is asked for huge pages behind large arenas |
/// | plans | 16 | plans that are kept for sets of input types |
///
/// # Safety
/// `options` is null or a handle that no other thread uses meanwhile; texts are null or end with a nul byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stepalloc_options_set(
    options: *mut StepallocOptions,
    name: *const c_char,
    value: *const c_char,
) -> *mut StepallocStatus {
    status(|| {
        // SAFETY: the caller's promise.
        let (options, name) = unsafe { (given_mut(options, "options")?, text(name, "name")?) };
        // SAFETY: the same.
        options.set(name, unsafe { text(value, name)? })
    })
}

/// Sessions that are made by these options use these arenas, in turns with others that have them.
///
/// # Safety
/// Both are null or handles; no other thread uses `options` meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stepalloc_options_set_arenas(
    options: *mut StepallocOptions,
    arenas: *const StepallocArenas,
) -> *mut StepallocStatus {
    status(|| {
        // SAFETY: the caller's promise.
        let (options, arenas) = unsafe { (given_mut(options, "options")?, given(arenas, "arenas")?) };
        options.options = options.options.clone().arenas(&arenas.arenas);
        Ok(())
    })
}

/// Releases options; null is none. Sessions keep what they need.
///
/// # Safety
/// `options` is null or a handle that was not released.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stepalloc_options_release(options: *mut StepallocOptions) {
    // SAFETY: the caller's promise.
    unsafe { take_back(options) };
}

/// Arenas for several sessions, which together may have `max_mem` bytes at one time; UINT64_MAX is no limit.
///
/// # Safety
/// `arenas` is null, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stepalloc_arenas_new(
    max_mem: u64,
    arenas: *mut *mut StepallocArenas,
) -> *mut StepallocStatus {
    status(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { given_mut(arenas, "arenas")? };
        hand_out(out, StepallocArenas { arenas: Arenas::with_max_mem(max_mem) });
        Ok(())
    })
}

/// Releases arenas; null is none. Sessions that use them keep them.
///
/// # Safety
/// `arenas` is null or a handle that was not released.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stepalloc_arenas_release(arenas: *mut StepallocArenas) {
    // SAFETY: the caller's promise.
    unsafe { take_back(arenas) };
}

/// Options of runs with their defaults. They may be used for many runs.
///
/// # Safety
/// `options` is null, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stepalloc_run_options_new(
    options: *mut *mut StepallocRunOptions,
) -> *mut StepallocStatus {
    status(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { given_mut(options, "options")? };
        hand_out(out, StepallocRunOptions { shrinks: false, cancel: Cancel::new() });
        Ok(())
    })
}

/// When a run is done, arenas that no run has go back to the system (`memory.enable_memory_arena_shrinkage`); off by default.
///
/// # Safety
/// `options` is null or a handle that no other thread uses meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stepalloc_run_options_set_arena_shrinkage(
    options: *mut StepallocRunOptions,
    on: bool,
) -> *mut StepallocStatus {
    status(|| {
        // SAFETY: the caller's promise.
        unsafe { given_mut(options, "options")? }.shrinks = on;
        Ok(())
    })
}

/// Ends the runs that have these options, from any thread, before their next node; or lets runs go on again.
///
/// # Safety
/// `options` is null or a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stepalloc_run_options_terminate(
    options: *const StepallocRunOptions,
    on: bool,
) -> *mut StepallocStatus {
    status(|| {
        // SAFETY: the caller's promise.
        let cancel = &unsafe { given(options, "options")? }.cancel;
        if on {
            cancel.cancel()
        } else {
            cancel.reset()
        }
        Ok(())
    })
}

/// Releases options of runs; null is none.
///
/// # Safety
/// `options` is null or a handle that was not released, and that no run has.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stepalloc_run_options_release(options: *mut StepallocRunOptions) {
    // SAFETY: the caller's promise.
    unsafe { take_back(options) };
}
