//! The symbols, thread-locals and mapped code of libstepalloc.so, and the one symbol of libstepalloc_marks.so.
//!
//! A cargo feature of mimalloc or jemalloc that any crate of the graph switches on can make the library export more than
//! it means to; private symbols of glibc can vanish; and thread-locals of the initial-exec model make a library that cannot
//! be loaded late.

use crate::process;
use std::path::Path;

/// The symbols that `nm -D` lists with these options, without versions.
fn symbols(library: &Path, option: &str) -> Vec<String> {
    let mut nm = process::command("nm");
    nm.args(["-D", option]).arg(library);
    let ended = process::finish(&mut nm).with_status(0);
    ended.out().lines().filter_map(|line| line.split_whitespace().last()).map(str::to_owned).collect()
}

/// Fails unless the library exports what is in `exports.txt`.
#[track_caller]
pub fn are_the_golden_list(library: &Path) {
    let mut exported = symbols(library, "--defined-only");
    exported.sort_unstable();
    let golden: Vec<&str> = include_str!("exports.txt").lines().collect();
    assert_eq!(exported, golden);
}

#[test]
fn the_library_exports_exactly_the_golden_list() {
    are_the_golden_list(&process::library());
}

/// It is in front of every allocator that is compared, and may stand for none of theirs.
#[test]
fn what_times_marks_exports_nothing_else() {
    let marks = process::library().with_file_name("libstepalloc_marks.so");
    assert_eq!(symbols(&marks, "--defined-only"), ["stepalloc_step"]);
}

#[test]
fn the_library_needs_no_private_symbol_of_glibc() {
    let needed = symbols(&process::library(), "--undefined-only");
    assert!(needed.iter().any(|symbol| symbol.starts_with("mmap")), "{needed:?}");
    for symbol in needed {
        let (name, version) = symbol.split_once('@').unwrap_or((&symbol, ""));
        assert!(!["__libc_fork", "__libc_reallocarray"].contains(&name), "{symbol}");
        assert!(!version.contains("GLIBC_PRIVATE"), "{symbol}");
    }
}

/// A library whose thread-locals need room in every thread's static block cannot be loaded late, and one that asks
/// `__tls_get_addr` for them may allocate within malloc.
#[test]
fn thread_locals_are_reached_by_descriptors() {
    let mut readelf = process::command("readelf");
    readelf.arg("-drW").arg(process::library());
    let ended = process::finish(&mut readelf).with_status(0);
    let has = |what: &str| ended.out().lines().any(|line| line.contains(what));
    assert!(!has("STATIC_TLS") && !has("TPOFF64"), "they are in the static block");
    // Rust's standard library has the others.
    let descriptors = ended.out().lines().filter(|line| line.contains("TLSDESC")).count();
    assert!(descriptors >= 4, "{descriptors} of ours, mimalloc's two, and jemalloc's");
}

#[test]
fn backends_that_were_not_chosen_do_not_start() {
    for (backend, threads) in [("glibc", "1"), ("jemalloc", "2"), ("mimalloc", "1")] {
        let mut count = process::command("sh");
        count.args(["-c", "echo /proc/$$/task/*"]).env("LD_PRELOAD", process::library());
        count.env("STEPALLOC_BACKEND", backend).env("MIMALLOC_VERBOSE", "1");
        count.env("_RJEM_MALLOC_CONF", "background_thread:true");
        let ended = process::finish(&mut count).with_status(0);
        // jemalloc's background thread, and what mimalloc says of itself when it starts.
        assert_eq!(ended.out().split_whitespace().count().to_string(), threads, "{backend}");
        assert_eq!(ended.err().contains("mimalloc: "), backend == "mimalloc", "{backend}: {}", ended.err());
    }
}

/// KiB of the library's code that a process with a large block maps, at most. The kernel maps the 64 KiB around each page that is
/// touched: the first are for every process, the next for what goes on with large blocks. Of functions in no order it would be 500 and more.
const MOST_CODE_KIB: u64 = 128;

#[test]
fn what_every_process_runs_lies_together() {
    // It reads by a buffer of 128 KiB.
    let mut cat = process::preloaded("cat", "glibc");
    let ended = process::finish(cat.arg("/proc/self/smaps")).with_status(0);
    let mut lines = ended.out().lines();
    assert!(
        lines.any(|line| line.contains(" r-xp ") && line.ends_with("/libstepalloc.so")),
        "{}",
        ended.out()
    );
    let resident = lines.find_map(|line| line.strip_prefix("Rss:")).expect("resident memory");
    let kib: u64 = resident.trim().trim_end_matches(" kB").parse().expect("a number");
    assert!((1..=MOST_CODE_KIB).contains(&kib), "{kib} KiB");
}

/// The large heap's tables are the largest mapping of a small process, and each one costs a fork.
#[test]
fn the_heap_is_opened_for_the_first_large_block() {
    let largest_mib = |command: &str| {
        let mut shell = process::preloaded("sh", "glibc");
        let ended = process::finish(shell.args(["-c", command])).with_status(0);
        let bytes = ended.out().lines().filter_map(|line| {
            let (begin, end) = line.split_whitespace().next()?.split_once('-')?;
            let address = |text| u64::from_str_radix(text, 16).ok();
            Some(address(end)? - address(begin)?)
        });
        bytes.max().expect("mappings") >> 20
    };
    // The shell's own blocks are small; cat's buffer is of 128 KiB.
    let small = largest_mib("while read -r line; do echo \"$line\"; done < /proc/self/maps");
    let large = largest_mib("exec cat /proc/self/maps");
    assert!(small < 32 && large >= 64, "{small} and {large} MiB");
}
