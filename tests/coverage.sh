#!/usr/bin/env bash
# The targets of tests/targets under libFuzzer, which keeps the inputs that reach new code: each for SECONDS from tests/corpus, whose files stay as they are.
# What it finds lies in fuzz/artifacts. Needs a nightly toolchain and cargo-fuzz. Usage: tests/coverage.sh [SECONDS [TARGET...]]; 60 seconds each, all targets.
set -uo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-60}
case $seconds in *[!0-9]*) echo "usage: tests/coverage.sh [SECONDS [TARGET...]]" >&2; exit 2 ;; esac
shift || true
cargo +nightly fuzz --version >/dev/null 2>&1 || {
  echo "no cargo-fuzz: rustup toolchain install nightly; cargo install cargo-fuzz" >&2
  exit 1
}
targets=("$@")
if [ ${#targets[@]} -eq 0 ]; then mapfile -t targets < <(cargo +nightly fuzz list); fi
# Nobody reads a line of these builds' backtraces before something is found.
export CARGO_PROFILE_RELEASE_DEBUG=none
cargo +nightly fuzz build || exit 1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
total=0
failed=0
for target in "${targets[@]}"; do
  mkdir -p "$work/$target"
  # The first folder takes what is new.
  if cargo +nightly fuzz run "$target" "$work/$target" "tests/corpus/$target" -- -max_total_time="$seconds" -print_final_stats=1 >"$work/log" 2>&1; then
    result="nothing found"
  else
    result="FOUND: see below"
    failed=1
  fi
  runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$work/log")
  echo "$target: ${runs:-0} runs, $result"
  [ "$result" = "nothing found" ] || tail -40 "$work/log"
  total=$((total + ${runs:-0}))
done
echo "${#targets[@]} targets, $total runs"
if [ -n "${SUITE_COUNTS:-}" ]; then
  echo "coverage,targets,${#targets[@]}" >>"$SUITE_COUNTS"
  echo "coverage,runs,$total" >>"$SUITE_COUNTS"
fi
exit $failed
