#!/usr/bin/env bash
# The tests of programs where the system promises no more memory than it has: vm.overcommit_memory=2, with room for 2 GiB beyond what is
# promised already. Changes the machine while it runs, and needs root; not a part of tests/suite.py. Usage: tests/overcommit.sh [TEST...]
set -euo pipefail
cd "$(dirname "$0")/.."
settings=/proc/sys/vm
if [ ! -w $settings/overcommit_memory ]; then
  echo "tests/overcommit.sh: cannot write $settings/overcommit_memory; run it as root on a machine of its own" >&2
  exit 2
fi
cargo build --release --workspace
cargo test --release -p stepalloc-tests --test programs --no-run
mode=$(cat $settings/overcommit_memory) ratio=$(cat $settings/overcommit_ratio) kilobytes=$(cat $settings/overcommit_kbytes)
restore() {
  echo "$mode" >$settings/overcommit_memory
  # Writing one of them sets the other to 0.
  if [ "$kilobytes" -ne 0 ]; then echo "$kilobytes" >$settings/overcommit_kbytes; else echo "$ratio" >$settings/overcommit_ratio; fi
}
trap restore EXIT
promised=$(sed -n 's/^Committed_AS: *\([0-9]*\) kB/\1/p' /proc/meminfo)
echo $((promised + 2 * 1024 * 1024)) >$settings/overcommit_kbytes
echo 2 >$settings/overcommit_memory
if [ $# -eq 0 ]; then set -- contract life operations restricted; fi
cargo test --release -p stepalloc-tests --test programs -- "$@"
