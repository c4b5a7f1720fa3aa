#!/usr/bin/env bash
# The allocator's unit tests and in-process tests under the address and the thread sanitizer, and preloaded programs under
# valgrind's memcheck. On the stable toolchain, which ships the sanitizers' runtimes: RUSTC_BOOTSTRAP=1 has it take their
# flags. Usage: tests/sanitizers.sh [address] [thread] [valgrind]; all three without arguments. Ends with 0 where nothing was found.
set -uo pipefail
cd "$(dirname "$0")/.."
# 10^9 operations would take days here.
export RUSTC_BOOTSTRAP=1 SUITE_SETTING=quick
target=$(rustc -vV | sed -n 's/^host: //p')
failed=0

count() { # PART UNIT NUMBER, for the suite's table
  if [ -n "${SUITE_COUNTS:-}" ]; then echo "$1,$2,$3" >>"$SUITE_COUNTS"; fi
}

# Of the unit tests not the models: loom runs their threads one at a time, in memory of its own, and takes many times as long here.
sanitized() {
  local name=$1
  echo "== $name sanitizer"
  local log
  log=$(mktemp)
  # Frame pointers make stacks readable. Neither C code (jemalloc, mimalloc) nor std is instrumented.
  RUSTFLAGS="-Zsanitizer=$name -Cforce-frame-pointers=yes -Cunsafe-allow-abi-mismatch=sanitizer" CARGO_TARGET_DIR="target/sanitizer-$name" \
    cargo test --release --target "$target" -p stepalloc -p stepalloc-tests --lib --test heap -- --skip models:: >"$log" 2>&1
  local status=$?
  grep -E '^test result|SUMMARY: |FAILED|panicked at|^error' "$log"
  if [ $status -ne 0 ]; then failed=1; cp "$log" "target/sanitizer-$name.log"; echo "see target/sanitizer-$name.log"; fi
  local passed
  passed=$(sed -n 's/^test result: .* \([0-9]*\) passed.*/\1/p' "$log" | paste -sd+ | bc)
  count sanitizers "tests under the $name sanitizer" "${passed:-0}"
  rm -f "$log"
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
      # What tests leave behind at their end is the system's; leaks have a part of their own.
      address) ASAN_OPTIONS="${ASAN_OPTIONS:-detect_leaks=0}" sanitized address ;;
      # The sanitizer cannot follow threads that are started within malloc, nor programs that are forked from many threads.
      thread) TSAN_OPTIONS="${TSAN_OPTIONS:-halt_on_error=1}" sanitized thread ;;
      valgrind) valgrind_programs ;;
      *) echo "usage: tests/sanitizers.sh [address] [thread] [valgrind]" >&2; exit 2 ;;
    esac
  done
done
exit $failed
