//! `contract.c` in each phase over each backend; a test is a case of it.
//!
//! The settings make the first steps lead into the phase: collecting begins with step 1, and ends after two stable steps
//! or not before the program does.

use crate::process::{self, Ended};
use crate::{BACKENDS, compiled};

/// A phase of the program and the settings that keep it there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Waiting,
    Collecting,
    Planned,
}

const PHASES: [Phase; 3] = [Phase::Waiting, Phase::Collecting, Phase::Planned];
/// More steps than a case makes, fewer than its child can make to come into the planned phase by itself.
const LONG: &str = "60";

fn run(case: &str, phase: Phase, backend: &str) -> Ended {
    let (start, stable) = match phase {
        Phase::Waiting => (LONG, "1"),
        Phase::Collecting => ("1", LONG),
        Phase::Planned => ("1", "1"),
    };
    let mut command = process::preloaded(compiled::contract(), backend);
    command.args([case, &(phase as u8).to_string()]);
    command.env("START_STATISTIC_STEP", start).env("STABLE_STATISTIC_STEP", stable);
    command.env("MAX_STATISTIC_STEP", "1000");
    if case == "free_keeps_errno" {
        // What is freed returns to the system at once, where it can.
        command
            .env("MIMALLOC_PURGE_DELAY", "0")
            .env("_RJEM_MALLOC_CONF", "dirty_decay_ms:0,muzzy_decay_ms:0");
    }
    process::finish(&mut command)
}

/// Every backend in these phases keeps the case's promises; returns what each run wrote.
#[track_caller]
fn kept_in(phases: &[Phase], case: &str) -> Vec<Ended> {
    let mut all = Vec::new();
    for backend in BACKENDS {
        for &phase in phases {
            let ended = run(case, phase, backend);
            assert_eq!(ended.status, 0, "{case}, {phase:?}, over {backend}:\n{}", ended.err());
            all.push(ended);
        }
    }
    all
}

/// One test for each case that is asked the same way.
macro_rules! kept {
    ($($(#[doc = $doc:literal])* $test:ident: $case:literal;)*) => {$(
        $(#[doc = $doc])*
        #[test]
        fn $test() {
            kept_in(&PHASES, $case);
        }
    )*};
}

kept! {
    malloc_of_zero_gives_unique_pointers: "zero_sizes";
    realloc_to_zero_frees_and_gives_null: "realloc_to_zero";
    realloc_of_null_allocates: "realloc_of_null";
    realloc_keeps_the_content_across_the_planned_size: "realloc_keeps";
    calloc_clears_blocks_that_were_used_before: "calloc_zeroes";
    products_that_overflow_give_enomem: "overflow";
    sizes_no_object_can_have_give_enomem: "too_large";
    bad_alignments_give_einval: "bad_alignments";
    alignments_up_to_two_mib_are_kept: "alignments";
    blocks_are_aligned_to_16_at_least: "natural_alignment";
    every_usable_byte_is_the_callers_own: "usable";
    free_keeps_errno: "free_keeps_errno";
    our_own_functions_keep_errno: "step_keeps_errno";
    without_memory_null_and_the_old_block_as_it_was: "out_of_memory";
    statistics_are_cut_to_the_buffer: "statistics";
    questions_about_the_heap_are_answered: "heap_answers";
    libraries_can_be_loaded_late: "dlopens";
    blocks_can_be_freed_by_another_thread: "free_elsewhere";
    blocks_outlive_the_thread_that_made_them: "thread_leaves_blocks";
    destructors_of_thread_keys_can_allocate: "key_destructors";
    /// The child of a process whose other threads allocate all the while frees, allocates and makes steps.
    a_fork_of_a_process_with_many_threads_goes_on: "forks";
    /// Collecting begins anew in the child; a plan in force serves it, too.
    a_forked_child_is_planned_by_itself: "forked_child_plans";
    vfork_and_exec_leave_the_parents_blocks_alone: "vforks";
}

#[test]
fn exit_handlers_and_destructors_can_allocate() {
    for ended in kept_in(&PHASES, "exit_handlers") {
        assert_eq!(ended.out(), "atexit destructor");
    }
}

#[test]
fn a_signal_handler_is_served_from_the_arena_amid_an_allocation() {
    kept_in(&[Phase::Planned], "signal_handler");
}

#[track_caller]
fn ends_with_the_line(case: &str) {
    for backend in BACKENDS {
        let ended = run(case, Phase::Planned, backend).with_status(128 + libc::SIGABRT);
        let [line] = ended.ours()[..] else { panic!("{backend}: not one line: {}", ended.err()) };
        assert!(line.contains("where no block starts (freed twice?)"), "{backend}: {line}");
    }
}

#[test]
fn children_that_share_the_memory_take_nothing_from_their_parent() {
    for backend in BACKENDS {
        let figures = tempfile::NamedTempFile::new().expect("a file");
        let mut command = process::preloaded(compiled::vfork(), backend);
        // What its steps have is too little for a plan otherwise.
        command.arg("300").env("STEPALLOC_JSON", figures.path()).env("STEPALLOC_MIN_BYTES", "1024");
        command.env("START_STATISTIC_STEP", "0");
        let ended = process::finish(&mut command).with_status(0);
        assert_eq!(ended.out(), "all bytes as they were\n", "over {backend}");
        let told = std::fs::read_to_string(&figures).expect("figures");
        // Whoever took the engine's lock from a thread that goes on with it would have begun it anew.
        assert!(
            told.contains("\"phase\": \"planned\"") && !told.contains("\"period_allocations\": null"),
            "{told}"
        );
    }
}

/// Such a library looks names up in what it needs before it looks in the program, and would find the C library's `free`.
#[test]
fn libraries_bound_deeply_free_our_blocks_and_we_theirs() {
    let name = compiled::deep_module().file_name().expect("a file");
    process::finish(process::command(compiled::deep()).arg(name)).with_status(0);
    for backend in BACKENDS {
        for planned in [false, true] {
            let figures = tempfile::NamedTempFile::new().expect("a file");
            let mut command = process::preloaded(compiled::deep(), backend);
            command.arg(name).env("STEPALLOC_JSON", figures.path());
            if planned {
                command.env("START_STATISTIC_STEP", "2").env("STABLE_STATISTIC_STEP", "1");
                command.env("STEPALLOC_MIN_BYTES", "1024");
            }
            process::finish(&mut command).with_status(0);
            let told = std::fs::read_to_string(&figures).expect("figures");
            assert!(!planned || told.contains("\"phase\": \"planned\""), "{backend}: {told}");
        }
    }
}

#[test]
fn a_second_free_of_a_planned_block_ends_the_process_with_a_line() {
    ends_with_the_line("double_free");
}

#[test]
fn a_free_inside_a_planned_block_ends_the_process_with_a_line() {
    ends_with_the_line("inner_free");
}
