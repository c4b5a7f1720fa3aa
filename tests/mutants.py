#!/usr/bin/env python3
"""Mutation check: would the tests notice if the allocator were wrong?

Each mutant below changes one place of the arena, the large heap, the matcher, the engine or the preloaded library as a
mistake would. All of them are compiled into one copy of the sources, where each is dormant until SUITE_MUTANT names
its number; so there is one build, and the quick tests run once for each mutant. A mutant is caught where a test fails,
or does not end. One that every test passes is a survivor, to be explained in docs/testing.md.

    python3 tests/mutants.py                    all of them: half an hour where benches/results/mutants.csv says what caught them
    python3 tests/mutants.py --only 3,17        some of them
    python3 tests/mutants.py --list             what they change, without running anything

The test that caught a mutant in the earlier run of benches/results/mutants.csv is run first, and all of them where it passes. What was
stopped goes on with the mutants that were not run of the same sources, unless --anew is given.
"""

import argparse
import csv
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / "target" / "mutants"
SOURCES = WORK / "source"
FAILED = WORK / "failed.log"
RESULTS = ROOT / "benches/results/mutants.csv"

CORE = "allocators/stepalloc/src/"
PRELOAD = "allocators/preload/src/"

# What is wrong, the file, the place (@ stands for what changes, and all of it occurs once), what stands there, and what a
# mistake would put there. "s:" before the title: statements, not an expression.
MUTANTS = [
    # The arena: cells.
    ("a slot is taken without looking whether its cells are free", CORE + "arena/cells.rs",
     "    @ && word.compare_exchange(seen, seen + lower, Acquire, Relaxed).is_ok()", "!seen & lower == 0", "true"),
    ("a slot is taken without looking, in as many attempts as it needs", CORE + "arena/cells.rs",
     "(@).then(|| seen + lower)", "!seen & lower == 0", "true"),
    ("cells that were closed are freed as if they were not", CORE + "arena/cells.rs",
     "    @ && word.compare_exchange(seen, seen - lower, Release, Relaxed).is_ok()", "seen != 0", "true"),
    ("half a slot that was taken is lost", CORE + "arena/cells.rs",
     "return @;", "Taken::Half(Half { word, lower: first, run })", "Taken::Nothing"),
    ("s:the words of a slot that was not to be had as a whole stay taken", CORE + "arena/cells.rs",
     "                @\n                return false;", "self.undo(granules, at);", ""),
    ("s:cells are closed, and the blocks in them forgotten", CORE + "arena/cells.rs",
     "@\n            if word.compare_exchange(seen, 0", "whole().for_each(|run| granules.take(run));", ""),
    ("split cells are united though something is taken of them", CORE + "arena/cells.rs",
     "State::Split if @ => {", "granules.are_free(self.run(cell))", "true"),
    ("a gap is taken though its cells are whole", CORE + "arena/cells.rs",
     "@\n        })\n    }\n\n    /// Calls `found` with each longest run of free granules",
     "word.fetch_update(Acquire, Acquire, split).is_ok() || self.state(cell) == State::Split", "true"),
    ("cells of a new plan are free where blocks of the old one live", CORE + "arena/cells.rs",
     "let free = |&cell: &u32| @;", "granules.are_free(self.run(cell))", "true"),
    ("memory goes back under blocks in split cells", CORE + "arena/cells.rs",
     "|| @\n        };", "self.state(cell) == State::Split && granules.are_free(run)",
     "self.state(cell) == State::Split"),
    ("a slot has a cell less than it should", CORE + "arena/cells.rs",
     "            end: @,\n        };\n        self.run.store", "end - word * CELLS_A_WORD", "end - word * CELLS_A_WORD - 1"),
    ("cells that are whole are not counted as occupied", CORE + "arena/cells.rs",
     "State::Whole => @,\n            State::Split => granules.count(run)", "u64::from(run.length())", "0"),
    # The arena: granules.
    ("bits of granules are not set", CORE + "arena/granules.rs",
     "word.fetch_or(@, Relaxed)", "bits", "0"),
    ("bits of granules are not cleared", CORE + "arena/granules.rs",
     "word.fetch_and(@, Release)", "!bits", "u64::MAX"),
    ("the last word of a run of granules is left out", CORE + "arena/granules.rs",
     "let words = run.start() / WORD..@;", "run.end().div_ceil(WORD)", "run.end() / WORD"),
    ("a free piece is a granule too long", CORE + "arena/granules.rs",
     "end.min(@)", "at + taken.trailing_zeros()", "at + taken.trailing_zeros() + 1"),
    # The arena itself.
    ("a block is found by an address within it", CORE + "arena/mod.rs",
     "let starts = run != 0 && @;", "offset == self.offset(Run::from_bits(run), slot.addr() % LINE)", "true"),
    ("a block has a granule less than its bytes need", CORE + "arena/mod.rs",
     "let granules = @;", "bytes.div_ceil(granule)", "bytes / granule"),
    ("a start is moved so far that the block's end is beyond its run", CORE + "arena/mod.rs",
     "(free + 1).saturating_sub(granule).div_ceil(step), @ / step)", "free.min(granule - LINE)", "(granule - LINE)"),
    ("a gap begins where no alignment was asked for", CORE + "arena/mod.rs",
     "let aligned = @;", "(free.start() + step - 1) & !(step - 1)", "free.start()"),
    ("two blocks start in one window", CORE + "arena/mod.rs",
     "if @ {\n            return None;\n        }\n        let step = u32", "(length as usize) << shift < self.least_bytes()",
     "false"),
    ("s:memory above a smaller plan goes back under blocks", CORE + "arena/mod.rs",
     "let above = Run::between(cells.limit(), committed);\n                @",
     "self.granules.free_pieces(above, least, |from, to| take(Run::between(from, to)));", "take(above);"),
    ("memory goes back under blocks beside free pieces of a cell", CORE + "arena/cells.rs",
     "if to - from >= least {\n                        found(@);", "Run::between(from, to)", "self.run(cell)"),
    ("s:the cells of the old plan stay open", CORE + "arena/mod.rs",
     "@\n            }\n            cells.open", "old.close(&self.granules);", ""),
    ("a freed block's entry stays", CORE + "arena/mod.rs",
     "block.run.store(@, Relaxed);\n        // SAFETY: where there is a run", "0", "run.to_bits()"),
    # The matcher.
    ("a request beyond the last slot of its class reads one", CORE + "lookup/mod.rs",
     "if @ {\n            return Quick::Counted(nth);", "nth >= entry.count.load(Relaxed)", "nth > entry.count.load(Relaxed)"),
    ("counters go on over the boundary", CORE + "lookup/mod.rs",
     "let count = u64::from(@);\n            seen.allocations", "entry.counter.swap(0, Relaxed)", "entry.counter.load(Relaxed)"),
    ("s:another variant's table begins with old counts", CORE + "lookup/mod.rs",
     "@\n        self.current.compare_exchange", "to.forget_counts();", ""),
    ("s:a request is counted in two variants", CORE + "lookup/mod.rs",
     "@\n                if let Some(found)", "entry.uncount();", ""),
    ("sizes are rounded down to cache lines", CORE + "lookup/class.rs",
     "@ & !(SIZE_STEP - 1)", "bytes.wrapping_add(SIZE_STEP - 1)", "bytes"),
    ("blocks that the plan leaves to the backend get slots of others", CORE + "lookup/table.rs",
     "if nth < count && @ {", "slot(nth).is_none()", "false"),
    ("s:a busy slot ends the search for another", CORE + "lookup/table.rs",
     "Err(Refused::Busy) => @", "{}", "{ break; }"),
    # The large heap: extents.
    ("s:a run that was joined with the one before it is free a second time", CORE + "heap/extents.rs",
     "                @\n                true", "self.remove_at(after);", ""),
    ("what is left of a run begins a page too early", CORE + "heap/extents.rs",
     "part.start - run.start), @);", "Extent::new(part.end(), run.end() - part.end())",
     "Extent::new(part.end() - 1, run.end() - part.end() + 1)"),
    ("a run that is a page too short is taken", CORE + "heap/extents.rs",
     "if @ { UNFIT }", "excess < 0", "excess < -1"),
    ("extents are not aligned", CORE + "heap/extents.rs",
     "let start = @;\n                if start + u64", "(base + u64::from(run.start)).next_multiple_of(align) - base",
     "u64::from(run.start)"),
    ("the longest run of a leaf is remembered though it was cut", CORE + "heap/extents.rs",
     "} else if @ {", "before == self.longest[at]", "false"),
    ("a run at a place is found wherever it begins", CORE + "heap/extents.rs",
     "            @ && run.pages >= extent.pages\n", "run.start == extent.start", "true"),
    # The large heap: pages.
    ("pages that were handed out read as untouched", CORE + "heap/pages.rs",
     "word.fetch_or(@, Relaxed)", "bits", "0"),
    ("pages that went back count as resident", CORE + "heap/pages.rs",
     "word.fetch_and(@, Relaxed)", "!bits", "u64::MAX"),
    ("s:a zeroed extent is not cleared", CORE + "heap/mod.rs",
     "// SAFETY: pages of the block, which is the caller's alone.\n                @",
     "unsafe { os::zero(self.address(stretch.start), stretch.pages as usize * PAGE) };", ""),
    ("deferred frees are never done", CORE + "heap/deferred.rs",
     "if @ {\n                free();", "self.is_some()", "false"),
    ("who defers a free leaves it to nobody", CORE + "heap/deferred.rs",
     "        A::fence_after_exchange();\n        @\n    }\n}", "mutex.try_lock()", "false"),
    ("who gives up the lock does not look for frees again", CORE + "heap/deferred.rs",
     "if @ {\n                return;", "!self.is_some() || !mutex.try_lock()", "true"),
    ("a block that shrinks gives a page too many", CORE + "heap/mod.rs",
     "let tail = @;", "Extent::new(block.start + pages, block.pages - pages)",
     "Extent::new(block.start + pages - 1, block.pages - pages + 1)"),
    ("s:a freed block of the heap can be freed again", CORE + "heap/mod.rs",
     "let Some(block) = self.block_at(offset) else { return false };\n        @",
     "self.blocks.at(block.start).store(0, Relaxed);", ""),
    ("s:the heap's lock is held on after a fork", CORE + "heap/mod.rs",
     "extern \"C\" fn after_fork_in_parent() {\n    if ends_fork() {\n        @", "HEAP.locked(|_| ());", ""),
    ("s:a child cannot use the large heap", CORE + "heap/mod.rs",
     "        @\n    } else if HEAP.line.mutex.is_held()", "HEAP.line.mutex.reset();", ""),
    ("s:pages that moved keep their content as zeros", CORE + "heap/moves.rs",
     "// They are counted; where they did not move, there are less.\n        @", "self.touched.set(extent);", ""),
    ("s:pages that did not go back read as zeros", CORE + "heap/moves.rs",
     "// SAFETY: pages of a free extent that nobody can be given meanwhile.\n                    @",
     "unsafe { os::discard(self.address(stretch.start), stretch.pages as usize * PAGE) };", ""),
    ("s:freed blocks are counted as alive", CORE + "heap/table.rs",
     "@\n        self.counters.blocks += 1;\n        self.insert", "self.retention.alive -= u64::from(block.pages);", ""),
    ("a block grows into the last free extent wherever that is", CORE + "heap/table.rs",
     "if @ && self.reach(heap, u64::from(more.end()))\n        {", "last.is_some_and(|last| last.extent.start == more.start)", "last.is_some()"),
    ("s:the end of the heap stays where it was", CORE + "heap/table.rs",
     "        @\n        true\n    }\n\n    /// Counts a new block", "self.end = self.end.max(end);", ""),
    ("free pages are kept without limit", CORE + "heap/retention.rs",
     "let excess = @;\n        self.held", "self.resident.saturating_sub(self.allowed())", "0"),
    ("a block is placed in a run that is too short", CORE + "heap/extents.rs", "if @ && (resident, ", "length >= pages", "true"),
    ("what is resident of a run that is cut stays", CORE + "heap/extents.rs",
     "(0, _) => self.set_at(place, Run { extent: tail, resident: @ }),", "all - of(part)", "all"),
    ("free pages are kept though the process rises", CORE + "heap/retention.rs",
     "@.min(self.free().saturating_sub(LEAST))", "(rise.saturating_sub(untouched) * counts)", "0"),
    ("the peak of long ago is never forgotten", CORE + "heap/retention.rs",
     "self.peak = @;\n        self.resident.saturating_sub(self.allowed())\n    }\n}",
     "self.seconds.iter().fold(asked, |most, &alive| most.max(alive))", "self.peak"),
    # The dispatch.
    ("s:a slot that was used before is not cleared for calloc", CORE + "route.rs",
     "                    @\n", "os::zero(block, size);", ""),
    ("a block that moves loses its last byte", CORE + "route.rs",
     "ptr::copy_nonoverlapping(block, new, @);", "old_size.min(new_size)", "(old_size.min(new_size) - 1)"),
    ("s:a block that moved is never freed", CORE + "route.rs",
     "            @\n        }\n        record(mode, new, new_size", "free_moved::<B>(mode, block, old_size, align);", ""),
    ("s:frees are not recorded", CORE + "route.rs",
     "if size >= threshold() {\n        @\n    }\n    match STATE.arena.release", "record_free(mode, block, size);", ""),
    ("a slot is found whatever alignment was asked for", CORE + "route.rs",
     "if STATE.mode.load(Acquire) == PLANNED && @ {", "align <= 1 << GRANULE_MIN_SHIFT", "true"),
    ("s:a second free in the heap passes", CORE + "route.rs",
     "if !HEAP.release(block as usize) {\n                @", "invalid_free(block);", ""),
    ("the allocator's own requests are served from plans", CORE + "route.rs",
     "if reentrant::may_be(mode) && @ { 0 }", "reentrant::is_reentrant()", "false"),
    # The engine, its lock, and what it records.
    ("a child waits for a lock that its parent held", CORE + "lock.rs",
     "if @ && self.holder.compare_exchange(holder, process", "holder != process", "false"),
    ("s:the engine's lock is never free again", CORE + "lock.rs",
     "            fn drop(&mut self) {\n                @", "self.0.store(0, Release);", ""),
    ("the event log is written beyond its end", CORE + "record/recorder.rs",
     "if @ {\n            return;\n        }\n        // SAFETY: the mapping holds", "index + count - self.tail.load(Acquire).min(index) > capacity - Self::PAGE_ENTRIES",
     "false"),
    ("events of the lap before are read again", CORE + "record/recorder.rs",
     "        if @ {\n            return Some(place);", "place >> ADDRESS_BITS == lap", "true"),
    ("the newest sizes are lost", CORE + "record/size_log.rs",
     "self.head().saturating_sub(@)", "most as u64", "(most as u64 / 2)"),
    ("a plan that is left goes on serving", CORE + "engine/machine.rs",
     "self.mode = Mode::Idle;\n        self.plan = @;\n        self.drop_events", "None", "self.plan.take()"),
    ("a program that has left its plan is never looked at again", CORE + "engine/machine.rs",
     "@ && running >= self.patience.until\n", "plan.missed_steps >= MISSED_STEPS", "false"),
    ("a plan presses on the peak for ever", CORE + "engine/machine.rs",
     "is_some_and(|plan| @)\n    }\n\n    /// Begins to record marked", "plan.pressed >= PRESSED_WEIGHT * PRESSED_STEPS", "false"),
    ("START is not waited for", CORE + "engine/machine.rs",
     "&& @\n            && !self.is_concurrent()\n            && !self.waits", "self.running() >= self.settings.start(true).max(self.patience.until)", "true"),
    ("slots take over no pages of the heap", CORE + "engine/machine.rs",
     "plan.filling = @;", "1 + plan.profiles.len()", "0"),
    ("handlers are installed before the constructor runs", CORE + "engine/process.rs",
     "    @ || backend::attached()", "MAY_INSTALL.load(Relaxed)", "true"),
    ("a child writes the figures of its parent", CORE + "engine/process.rs",
     "if @ {\n        at_end(write_figures)", "FORKED.load(Relaxed) == 0", "true"),
    # Orderings, and what else only a schedule shows: for the models.
    ("a slot that was taken is not acquired", CORE + "arena/cells.rs",
     "word.compare_exchange(seen, seen + lower, @, Relaxed).is_ok()", "Acquire", "Relaxed"),
    ("a slot's release does not say what was written", CORE + "arena/cells.rs",
     "word.compare_exchange(seen, seen - lower, @, Relaxed).is_ok()", "Release", "Relaxed"),
    ("a slot's release does not say what was written, in as many attempts as it needs", CORE + "arena/cells.rs",
     "word.fetch_update(@, Acquire, free)", "Release", "Relaxed"),
    ("s:bits stay set where a word changed while it was closed", CORE + "arena/cells.rs",
     "// Bits of a whole cell are this thread's alone.\n            @", "whole().for_each(|run| granules.clear(run));", ""),
    ("granules are found free without an acquire", CORE + "arena/granules.rs",
     "word.load(@) & bits == 0", "Acquire", "Relaxed"),
    ("united cells are free without a release", CORE + "arena/cells.rs",
     "% CELLS_A_WORD)), @)", "Release", "Relaxed"),
    ("s:half a slot that was taken is not given back", CORE + "arena/mod.rs",
     "        @\n    }\n\n    /// Claims a slot if all of it is free.\n",
     "cells::give_back_surely::<A>(unsafe { &*word }, lower, run, &self.granules);", ""),
    ("cells of a new plan are seen before they are open", CORE + "arena/mod.rs",
     "store(ptr::from_ref(cells).cast_mut(), @)", "Release", "Relaxed"),
    ("the engine's lock does not acquire", CORE + "lock.rs",
     "compare_exchange(0, process, @, Relaxed)", "Acquire", "Relaxed"),
    ("the engine's lock does not release", CORE + "lock.rs", "self.0.store(0, @)", "Release", "Relaxed"),
    ("the heap's lock does not acquire", CORE + "heap/mutex.rs", "compare_exchange(FREE, this_thread::<A>(), @, Relaxed)", "Acquire", "Relaxed"),
    ("the heap's lock does not release", CORE + "heap/mutex.rs", "swap(FREE, @)", "Release", "Relaxed"),
    ("a thread waits for a lock of the heap that it has itself", CORE + "heap/mutex.rs",
     "if @ {\n            return false;", "self.word.load(Relaxed) & !AWAITED == this", "false"),
    ("s:nobody is woken for the heap's lock", CORE + "heap/mutex.rs", "@", "A::wake_one(&self.word);", ""),
    ("a deferred free does not say what it is", CORE + "heap/deferred.rs",
     "block.start + 1, @, Relaxed", "Release", "Relaxed"),
    ("deferred frees are taken without an acquire", CORE + "heap/deferred.rs",
     "self.newest.swap(0, @)", "Acquire", "Relaxed"),
    ("what the arena gives replaces other free pages", CORE + "heap/moves.rs",
     "let extent = @?;\n            table.retention.resident += u64::from(pages);", "table.place_untouched(self, pages)", "table.place_at_end(self, pages, 1)"),
    ("an event is seen before it is written", CORE + "record/recorder.rs", "| address, @)", "Release", "Relaxed"),
    ("an event is read without an acquire", CORE + "record/recorder.rs", "let place = place.load(@);", "Acquire", "Relaxed"),
    ("two events have one place", CORE + "record/recorder.rs", "let index = @;", "self.head.fetch_add(count, Relaxed)",
     "{ let head = self.head.load(Relaxed); self.head.store(head + count, Relaxed); head }"),
    ("two sizes have one place", CORE + "record/size_log.rs", "let index = @;", "self.head.fetch_add(1, Relaxed)",
     "{ let head = self.head.load(Relaxed); self.head.store(head + 1, Relaxed); head }"),
    ("a counter that is read is not set to zero", CORE + "lookup/counter.rs", "@", "self.allocations.swap(0, Relaxed)",
     "self.allocations.load(Relaxed)"),
    ("a plan serves before the arena is watched", CORE + "switches.rs",
     ".fetch_update(@, Relaxed, |mode| Some(mode & !(SERVING", "Release", "Relaxed"),
    ("frees pass unrecorded where a block starts", CORE + "switches.rs", "@",
     "base.wrapping_neg().wrapping_add(1)", "base.wrapping_neg().wrapping_add(4096)"),
    # The preloaded library.
    ("a product that overflows is a small block", PRELOAD + "malloc.rs",
     "unsafe extern \"C\" fn allocate_zeroed(count: usize, size: usize) -> *mut c_void {\n    let Some(bytes) = @ else", "count.checked_mul(size)",
     "Some(count.wrapping_mul(size))"),
    ("the same in reallocarray", PRELOAD + "malloc.rs",
     "match @ {", "count.checked_mul(size)", "Some(count.wrapping_mul(size))"),
    ("realloc of 0 bytes frees nothing", PRELOAD + "malloc.rs",
     "if @ {\n            free(block);", "size == 0", "false"),
    ("s:posix_memalign changes errno", PRELOAD + "malloc.rs",
     "        @\n        if block.is_null() {\n            return libc::ENOMEM;", "*place = before;", ""),
    ("memalign takes an alignment that is no power of two as it is", PRELOAD + "malloc.rs",
     "let align = @;\n    // SAFETY: a power of two.", "align.max(NATURAL_ALIGN)", "NATURAL_ALIGN"),
    ("posix_memalign takes any alignment", PRELOAD + "malloc.rs",
     "if @ {\n        return libc::EINVAL;", "!align.is_power_of_two() || !align.is_multiple_of(size_of::<*mut c_void>())", "false"),
    ("a block of the arena has the bytes that the backend says", PRELOAD + "malloc.rs",
     "    if @ {\n        route::usable_bytes", "route::owns(block as usize)", "false"),
    ("free changes errno", PRELOAD + "backends.rs",
     "let result = @;\n    if functions().kind == Kind::Mimalloc", "os::keeping_errno(call)", "call()"),
    ("a refused block leaves errno as it was", PRELOAD + "backends.rs",
     "    if @ {\n        // SAFETY: this thread's errno.", "block.is_null()", "false"),
    ("blocks of the reserve go to glibc", PRELOAD + "internal.rs",
     "if @ {\n            return RESERVE.dealloc", "RESERVE.has(block)", "false"),
]

# The tests that look for mutants, in this order; the first that fails has caught one.
# But for the test of where code lies, which is elsewhere without link-time optimization (QUICK_BUILD).
CHECKS = [
    ("unit", "unit", ["--skip", "models"]),
    ("models", "unit", ["models"]),
    ("heap", "heap", []),
    ("programs", "programs",
     ["contract", "operations", "life", "process", "restricted", "unchanged", "run::", "--skip", "what_every_process_runs"]),
]

# Nobody measures these programs, and linking takes long otherwise.
QUICK_BUILD = {"RUSTFLAGS": "-Awarnings", "CARGO_PROFILE_RELEASE_LTO": "off", "CARGO_PROFILE_RELEASE_DEBUG": "none"}

SWITCH = '''
/// Whether a mutant is awake: see tests/mutants.py.
#[doc(hidden)]
#[inline(never)]
pub fn mutant(number: u32) -> bool {
    use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
    static AWAKE: AtomicU32 = AtomicU32::new(u32::MAX);
    let mut awake = AWAKE.load(Relaxed);
    if awake == u32::MAX {
        let digits = os::environment(c"SUITE_MUTANT").unwrap_or(b"0");
        awake = digits.iter().fold(0, |number, digit| number * 10 + u32::from(digit - b'0'));
        AWAKE.store(awake, Relaxed);
    }
    awake == number
}
'''


def titles():
    """The title and the file of each mutant."""
    return [(title.removeprefix("s:"), file) for title, file, *_ in MUTANTS]


def place(entry):
    """The text that is changed, with what surrounds it."""
    _, _, template, old, _ = entry
    return template.replace("@", old)


def changed(number, entry):
    """The same with the mutant in it."""
    title, file, template, old, new = entry
    crate = "crate" if file.startswith(CORE) else "statistic"
    awake = f"{crate}::mutant({number})"
    if title.startswith("s:"):
        text = f"if {awake} {{ {new} }} else {{ {old} }}"
    else:
        text = f"(if {awake} {{ {new} }} else {{ {old} }})"
    return template.replace("@", text)


def mismatches():
    """Mutants whose place is not in the sources, or is there more than once."""
    found = []
    for number, entry in enumerate(MUTANTS, 1):
        count = (ROOT / entry[1]).read_text().count(place(entry))
        if count != 1:
            found.append(f"mutant {number} ({entry[0]}): its place occurs {count} times in {entry[1]}")
    return found


def copy_sources():
    """A copy of what git knows, with all mutants in it."""
    listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True)
    if SOURCES.exists():
        shutil.rmtree(SOURCES)
    for name in listed.stdout.decode().split("\0"):
        if name and (ROOT / name).is_file():
            target = SOURCES / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target)
    # Tests look for traces beside the checkout.
    shared = WORK / "shared"
    if (ROOT.parent / "shared").exists() and not shared.exists():
        shared.symlink_to(ROOT.parent / "shared")
    for number, entry in enumerate(MUTANTS, 1):
        path = SOURCES / entry[1]
        text = path.read_text()
        if text.count(place(entry)) != 1:
            sys.exit(f"mutant {number} ({entry[0]}): another mutant has changed its place in {entry[1]}")
        path.write_text(text.replace(place(entry), changed(number, entry)))
    library = SOURCES / CORE / "lib.rs"
    library.write_text(library.read_text() + SWITCH)


def digest():
    """What the mutated sources, and the tests that are run, are known by."""
    paths = sorted(path for folder in ("allocators", "planner", "tests") for path in (SOURCES / folder).rglob("*") if path.suffix in (".rs", ".c"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()[:12]


def build():
    """The test programs, by the names of CHECKS."""
    copy_sources()
    environment = dict(os.environ, CARGO_TARGET_DIR=str(WORK / "target"), **QUICK_BUILD)
    base = ["cargo", "test", "--release", "--no-run"]
    wanted = [["-p", "stepalloc", "--lib"], ["-p", "stepalloc-tests", "--test", "heap", "--test", "programs"]]
    programs = {}
    subprocess.run(["cargo", "build", "--release", "-p", "stepalloc-cli", "-p", "stepalloc-preload", "-p", "stepalloc-marks"],
                   cwd=SOURCES, env=environment, check=True)
    for arguments in wanted:
        run = subprocess.run(base + arguments, cwd=SOURCES, env=environment, text=True, stderr=subprocess.PIPE)
        if run.returncode:
            sys.exit(run.stderr + "the mutants do not compile")
        for kind, path in re.findall(r"Executable (.*?) \((.*?)\)", run.stderr):
            name = "unit" if "src/lib.rs" in kind else re.search(r"tests?/?(\w+)/main.rs|(\w+)/main.rs", kind)
            if name != "unit":
                name = name.group(1) or name.group(2)
            programs[name] = (SOURCES / path) if not Path(path).is_absolute() else Path(path)
    return programs


def run_check(program, filters, number, seconds):
    """Whether a test program passes with a mutant awake; and the first test that fails, or does not end. Without one (0) it runs to its end,
    and FAILED keeps what it said."""
    where = SOURCES / ("allocators/stepalloc" if "stepalloc-" in program.name else "tests")
    environment = dict(os.environ, SUITE_MUTANT=str(number), CARGO_TARGET_DIR=str(WORK / "target"), **QUICK_BUILD,
                       RUST_BACKTRACE="0", CARGO_MANIFEST_DIR=str(where))
    process = subprocess.Popen([program, *filters], cwd=where, env=environment, text=True, errors="replace", start_new_session=True,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    hung = threading.Event()

    def kill():
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def expire():
        hung.set()
        kill()

    timer = threading.Timer(seconds, expire)
    timer.start()
    # The test that is run alone, or the last that is said to be slow.
    slow = filters[-1] if "--exact" in filters else "a test"
    said, first = [], ""
    try:
        for line in process.stdout:
            failed = re.match(r"test (\S+) .*FAILED$", line)
            if failed and number:
                return False, failed.group(1)
            if failed and not first:
                first = failed.group(1)
            said.append(line)
            running = re.match(r"test (\S+) has been running for over", line)
            slow = running.group(1) if running else slow
        process.wait()
        if process.returncode and not number:
            FAILED.write_text("".join(said))
        if hung.is_set():
            return False, f"{slow} does not end"
        return process.returncode == 0, first or f"ended with {process.returncode}"
    finally:
        timer.cancel()
        kill()
        process.wait()


class Checks:
    """The test programs, and how long they take without a mutant."""

    def __init__(self, programs):
        self.programs = programs
        self.limits = {}
        for name, _, filters in CHECKS:
            seconds = self.passes_without(name, filters, 60)
            if seconds is None:
                sys.exit(f"{name}: fails without any mutant")
            print(f"{name}: {seconds:.0f} s without a mutant", flush=True)

    def program(self, name):
        return self.programs[next(program for check, program, _ in CHECKS if check == name)]

    def passes_without(self, name, filters, slack):
        """How long these tests take without a mutant, which sets their limit, with `slack` seconds; None where they fail."""
        begun = time.monotonic()
        passes, why = run_check(self.program(name), filters, 0, 1800)
        seconds = time.monotonic() - begun
        if not passes:
            print(f"{name} {' '.join(filters)}: {why}; see {FAILED}", file=sys.stderr, flush=True)
            return None
        self.limits[name, *filters] = slack + 3 * seconds
        return seconds

    def caught_by(self, number, name, filters):
        """The test that fails with the mutant, or None."""
        passes, by = run_check(self.program(name), filters, number, self.limits[name, *filters])
        return None if passes else by

    def run(self, number, file, earlier):
        """Which check caught the mutant, and which test of it; (None, None) for a survivor. `earlier`: the row of an earlier run."""
        test = earlier.get("by", "").removesuffix(" does not end")
        if earlier.get("caught") in [check[0] for check in CHECKS] and " " not in test:
            name, filters = earlier["caught"], ["--exact", test]
            if (name, *filters) in self.limits or self.passes_without(name, filters, 20) is not None:
                by = self.caught_by(number, name, filters)
                if by:
                    return name, by
        for name, _, filters in CHECKS:
            # The others have nothing of the preloaded library.
            if file.startswith(PRELOAD) and name != "programs":
                continue
            by = self.caught_by(number, name, filters)
            if by:
                return name, by
        return None, None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="show the mutants, and check that each has its place")
    parser.add_argument("--only", help="numbers of mutants, with commas")
    parser.add_argument("--anew", action="store_true", help="forget earlier results")
    options = parser.parse_args()
    wrong = mismatches()
    if options.list:
        for number, (title, file, *_) in enumerate(MUTANTS, 1):
            print(f"{number:3} {file}: {title.removeprefix('s:')}")
    if wrong:
        sys.exit("\n".join(wrong))
    if options.list:
        return
    os.environ["SUITE_SETTING"] = "quick"
    counts = os.environ.pop("SUITE_COUNTS", None)
    checks = Checks(build())
    sources = digest()
    earlier = {}
    if RESULTS.exists():
        earlier = {row["title"]: row for row in csv.DictReader(RESULTS.open())}
    # Of other sources they say nothing but what to run first.
    results = {} if options.anew else {title: row for title, row in earlier.items() if row["sources"] == sources}
    wanted = [int(number) for number in options.only.split(",")] if options.only else range(1, len(MUTANTS) + 1)
    for number in wanted:
        title, file = MUTANTS[number - 1][0].removeprefix("s:"), MUTANTS[number - 1][1]
        if title in results and not options.only:
            continue
        begun = time.monotonic()
        caught, by = checks.run(number, file, earlier.get(title, {}))
        seconds = f"{time.monotonic() - begun:.0f}"
        results[title] = {"file": file, "title": title, "caught": caught or "", "by": by or "", "seconds": seconds, "sources": sources}
        print(f"{number:3} {f'caught by {caught}: {by}' if caught else 'SURVIVES'} ({seconds} s): {title}", flush=True)
        # What was not run yet stays as it was of other sources.
        rows = {**earlier, **results}
        with RESULTS.open("w", newline="") as out:
            writer = csv.DictWriter(out, fieldnames=["file", "title", "caught", "by", "seconds", "sources"], lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows[title] for title, _ in titles() if title in rows)
    results = {title: row for title, row in results.items() if title in dict(titles())}
    caught = sum(1 for row in results.values() if row["caught"])
    survivors = [row for row in results.values() if not row["caught"]]
    for row in survivors:
        print(f"survivor: {row['file']}: {row['title']}")
    if counts:
        with open(counts, "a") as file:
            file.write(f"mutants,mutants,{len(results)}\nmutants,caught,{caught}\n")
    print(f"{len(results)} of {len(MUTANTS)} mutants run, {caught} caught ({100 * caught / max(1, len(results)):.1f} %)")
    if len(results) < len(MUTANTS) and not options.only:
        sys.exit(1)
    sys.exit(0 if 100 * caught >= 95 * len(results) else 1)


if __name__ == "__main__":
    main()
