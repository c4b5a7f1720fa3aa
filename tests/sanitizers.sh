#!/usr/bin/env bash
# The allocator's unit tests and in-process tests under the address and the thread sanitizer, and preloaded programs under
# valgrind's memcheck. The address sanitizer on the stable toolchain, which ships its runtime: RUSTC_BOOTSTRAP=1 has it take the flags. The thread
# sanitizer on a nightly with rust-src: what std's locks and channels order it sees only where std is built with it.
# Usage: tests/sanitizers.sh [address] [thread] [valgrind]; all three without arguments. Ends with 0 where nothing was found.
set -uo pipefail
cd "$(dirname "$0")/.."
# 10^9 operations would take days here.
export SUITE_SETTING=quick
target=$(rustc -vV | sed -n 's/^host: //p')
failed=0

count() { # PART UNIT NUMBER, for the suite's table
  if [ -n "${SUITE_COUNTS:-}" ]; then echo "$1,$2,$3" >>"$SUITE_COUNTS"; fi
}

# NAME, RUSTFLAGS, then cargo's arguments up to the first package. Of the unit tests not the models: loom runs their threads one at a time, in memory of
# its own, and takes many times as long here.
sanitized() {
  local name=$1 flags=$2; shift 2
  echo "== $name sanitizer"
  local log passed
  log=$(mktemp)
  # Frame pointers make stacks readable. C code (jemalloc, mimalloc) is not instrumented.
  export SUITE_SANITIZED=$name CARGO_TARGET_DIR="target/sanitizer-$name" RUSTFLAGS="-Zsanitizer=$name -Cforce-frame-pointers=yes $flags"
  if ! { "$@" --release --target "$target" -p stepalloc --lib -- --skip models:: "${not_unit[@]}" &&
    "$@" --release --target "$target" -p stepalloc-tests --test heap -- "${in_process[@]}"; } >"$log" 2>&1; then
    failed=1; cp "$log" "target/sanitizer-$name.log"; echo "see target/sanitizer-$name.log"
  fi
  unset SUITE_SANITIZED CARGO_TARGET_DIR RUSTFLAGS
  grep -E '^test result|SUMMARY: |FAILED|panicked at|^error' "$log"
  passed=$(sed -n 's/^test result: .* \([0-9]*\) passed.*/\1/p' "$log" | paste -sd+ | bc)
  count sanitizers "tests under the $name sanitizer" "${passed:-0}"
  rm -f "$log"
}

# What tests leave behind at their end is the system's: leaks have a part of their own. Memory that cannot be had is refused here too, in place of a
# report. Not those that measure faults, memory or time, of which the sanitizer takes more itself, that say by which step a plan comes or how many
# lengths of steps are told apart (planning beside the program takes longer), or that have the system refuse what the sanitizer asks for.
address() {
  local not_unit=() test in_process=()
  for test in a_loop_of_one_size_is_served_from_warm_pages random_replacement_takes_little_more what_the_backend_keeps_free \
    slots_of_a_new_plan_take_over where_no_arena_can_be_reserved a_long_collection_of_short_steps a_program_that_changes_is_planned_anew \
    step_variants_that_come_again steps_of_several_lengths_at_random memory_is_kept_again no_boundary_stalls threads_that_meet_at_boundaries; do
    in_process+=(--skip "$test")
  done
  export ASAN_OPTIONS="${ASAN_OPTIONS:-detect_leaks=0:allocator_may_return_null=1}"
  RUSTC_BOOTSTRAP=1 sanitized address -Cunsafe-allow-abi-mismatch=sanitizer cargo test
}

# Not those that measure memory, of which the sanitizer takes several times as much, that have the system refuse it, or fork from many threads.
thread() {
  local not_unit=(--skip memory_that_the_system_cannot_have --skip where_the_kernel_fails)
  local in_process=(concurrent:: lifetimes:: model:: operations:: panics:: phases:: settings:: shadow:: threads::)
  export TSAN_OPTIONS="${TSAN_OPTIONS:-halt_on_error=1}"
  # core is built once where a panic is one thing for tests and for what they need.
  CARGO_PROFILE_RELEASE_PANIC=unwind sanitized thread "" cargo +nightly test -Zbuild-std
}

# What valgrind has nothing to say of where all is right: it replaces no function of malloc's family here, so what it sees
# is this library at work.
valgrind_programs() {
  echo "== valgrind"
  command -v valgrind >/dev/null || { echo "valgrind is not installed: not run"; failed=1; return; }
  cargo build --quiet --release -p stepalloc-preload || { failed=1; return; }
  local library=$PWD/target/release/libstepalloc.so folder ran=0
  folder=$(mktemp -d)
  cc -O1 -g -pthread tests/programs/operations.c -o "$folder/operations" -ldl
  cc -O1 -g -pthread tests/programs/life.c -o "$folder/life" -ldl
  # The library's debug information is of a newer kind than valgrind 3.19 reads.
  cp "$library" "$folder/libstepalloc.so"; strip --strip-debug "$folder/libstepalloc.so"
  for backend in glibc jemalloc mimalloc; do
    for arguments in "operations 1 2 2 6 0" "operations 2 2 2 6 3" "life steps 30" "life handlers 5" "life destructors 0"; do
      local program=${arguments%% *}
      # shellcheck disable=SC2086
      if ! LD_PRELOAD="$folder/libstepalloc.so" STEPALLOC_BACKEND=$backend START_STATISTIC_STEP=1 STABLE_STATISTIC_STEP=1 \
        valgrind --quiet --error-exitcode=99 --run-libc-freeres=no --soname-synonyms=somalloc=nouserintercepts \
        "$folder/$program" ${arguments#* } >"$folder/log" 2>&1; then
        echo "FAILED: $backend: $arguments"; head -60 "$folder/log"; failed=1
      fi
      ran=$((ran + 1))
    done
  done
  for program in "ls -l /usr/bin" "sort /usr/share/dict/words /etc/services" "python3 -c 'print(sum(range(10**5)))'"; do
    if ! LD_PRELOAD="$folder/libstepalloc.so" valgrind --quiet --error-exitcode=99 --run-libc-freeres=no \
      --soname-synonyms=somalloc=nouserintercepts --undef-value-errors=no sh -c "$program" >"$folder/log" 2>&1; then
      grep -q 'No such file' "$folder/log" || { echo "FAILED: $program"; tail -40 "$folder/log"; failed=1; }
    fi
    ran=$((ran + 1))
  done
  echo "$ran programs under valgrind"
  count sanitizers "programs under valgrind" "$ran"
  rm -rf "$folder"
}

for part in "${@:-address thread valgrind}"; do
  for one in $part; do
    case $one in
      address | thread) $one ;;
      valgrind) valgrind_programs ;;
      *) echo "usage: tests/sanitizers.sh [address] [thread] [valgrind]" >&2; exit 2 ;;
    esac
  done
done
exit $failed
