#!/usr/bin/env bash
# The planner, the tables and the readers of files under Miri, which looks at every access: in bounds, initialised, aligned,
# by a pointer that may. Needs a nightly toolchain with miri and rust-src. The planner's tests take a minute; tables of extents take long.
# Not under it: what maps memory at chosen addresses, asks for limits or starts C code, which Miri cannot run, and the planning of recorded steps, which
# would take days.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo +nightly miri --version >/dev/null 2>&1 || {
  echo "no Miri: rustup component add --toolchain nightly miri rust-src" >&2
  exit 1
}
# Random tests draw few cases here, and one that draws by itself is left out: each access costs a thousand times what it does otherwise.
export MIRIFLAGS="-Zmiri-disable-isolation -Zmiri-permissive-provenance" PROPTEST_CASES=4 SUITE_SETTING=quick
export CARGO_TARGET_DIR=target/miri
log=$(mktemp)
trap 'rm -f "$log"' EXIT
passed() { sed -n 's/^test result: .* \([0-9]*\) passed.*/\1/p' "$log" | paste -sd+ | bc; }

# PACKAGE, then what its tests' names begin with, and what leaves one out.
run() {
  local names
  names=$(cargo +nightly miri test -p "$1" --lib -- --list 2>/dev/null | sed -n 's/: test$//p' | grep -E "^($2)" | grep -vE "$3")
  # shellcheck disable=SC2086
  cargo +nightly miri test -p "$1" --lib -- --exact $names 2>&1 | tee -a "$log" | grep --line-buffered -E '^test |^error' || true
}
echo "== planner"
run stepalloc-planner 'csv|problem|timeline|forest|load|bound|gaps|steps|families' families_are_disjoint_and_ascending
echo "== allocator: tables and readers"
run stepalloc 'heap::(extents|pages|retention|table)|lookup::(class|counter|misses|lanes)|profile|arena::granules|settings' 'models|slots_of_recorded_steps'
grep -E '^test result|Undefined Behavior' "$log"
if grep -qE 'FAILED|Undefined Behavior|^error' "$log"; then exit 1; fi
if [ -n "${SUITE_COUNTS:-}" ]; then echo "miri,tests,$(passed)" >>"$SUITE_COUNTS"; fi
