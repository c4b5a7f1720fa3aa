#!/usr/bin/env bash
# The preloaded library for aarch64, and the suite's core under qemu-aarch64: operations whose every byte is compared, and what
# a process goes through. Needs: rustup target add aarch64-unknown-linux-gnu; apt-get install qemu-user gcc-aarch64-linux-gnu.
# qemu runs threads of the emulated program as the host does, so orderings are x86-64's: weak ones are for the models.
set -euo pipefail
cd "$(dirname "$0")/.."
target=aarch64-unknown-linux-gnu
for tool in qemu-aarch64 aarch64-linux-gnu-gcc; do
  command -v $tool >/dev/null || { echo "$tool is missing: apt-get install qemu-user gcc-aarch64-linux-gnu" >&2; exit 1; }
done
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc CC_aarch64_unknown_linux_gnu=aarch64-linux-gnu-gcc
cargo build --quiet --release --target $target -p stepalloc-preload
library=$PWD/target/$target/release/libstepalloc.so
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for program in operations life; do
  aarch64-linux-gnu-gcc -O2 -pthread tests/programs/$program.c -o "$folder/$program" -ldl
done
ran=0 failed=0
run() {
  local backend=$1 seconds=240; shift
  if ! timeout $seconds qemu-aarch64 -L /usr/aarch64-linux-gnu -E LD_PRELOAD="$library" -E STEPALLOC_BACKEND="$backend" \
    -E START_STATISTIC_STEP=1 -E STABLE_STATISTIC_STEP=1 "$folder/$@" >"$folder/log" 2>&1; then
    echo "FAILED over $backend: $*"; tail -20 "$folder/log"; failed=1
  fi
  ran=$((ran + 1))
}
for backend in glibc jemalloc mimalloc; do
  for mode in 0 1 2 3 4 5 7; do run $backend operations $mode 3 3 8 $mode; done
  run $backend life steps 60
  run $backend life forks 10
  run $backend life threads 300
  run $backend life destructors 0
  run $backend life handlers 20
done
echo "aarch64: $ran programs, $([ $failed = 0 ] && echo all as they should || echo some FAILED)"
if [ -n "${SUITE_COUNTS:-}" ]; then echo "aarch64,programs,$ran" >>"$SUITE_COUNTS"; fi
exit $failed
