#!/usr/bin/env bash
# Instructions per allocate/free pair, counted by callgrind: what the statistic allocator adds to its backend for small
# blocks, and what a planned pair costs in all (the loop itself is subtracted). A planned block costs more the more words
# the states of its cells lie in: 1 where nothing else of the plan cuts its slot, 2 for 40 cells, 3 for 80. Needs valgrind.
# Prints CSV.
#   benches/instructions.sh
set -euo pipefail
cd "$(dirname "$0")/.."
cargo build --quiet --release -p stepalloc-benches -p stepalloc-preload
target=${CARGO_TARGET_DIR:-target}/release
export STABLE_STATISTIC_STEP=1

# Small blocks are counted over more pairs, because the backends' own housekeeping comes every few hundred of them.
count() { # way backend size phase
  local preload="" pairs=50000
  [ "$1" = c ] && preload=$(realpath "$target/libstepalloc.so")
  [ "$3" -ge 32768 ] && pairs=5000
  LD_PRELOAD=$preload STEPALLOC_BACKEND=$2 valgrind --tool=callgrind --callgrind-out-file=/dev/null \
    --toggle-collect=measured_pairs "$target/pairs" "$1" "$2" "$3" "$4" $pairs 2>&1 |
    awk -v loop="${5:-0}" -v pairs=$pairs '/Collected/ { printf "%.1f", $NF / pairs - loop }'
}

cases=("64 waiting" "64 planned" "1024 waiting" "1024 planned"
  "65536 planned 1" "1048576 planned 1" "2621440 planned 40" "5242880 planned 80")
echo "interface,backend,bytes,phase,cells,backend alone,stepalloc,more"
for backend in glibc jemalloc mimalloc; do
  for way in rust c; do
    loop=$(count nothing $way 64 waiting)
    bare=bare; [ $way = c ] && bare=bare-c
    for case in "${cases[@]}"; do
      read -r size phase cells <<<"$case"
      alone=$(count $bare $backend "$size" waiting "$loop")
      start=1; [ "$phase" = waiting ] && start=1000000
      ours=$(CELLS=${cells:-0} START_STATISTIC_STEP=$start count $way $backend "$size" "$phase" "$loop")
      echo "$way,$backend,$size,$phase,$cells,$alone,$ours,$(awk -v a="$alone" -v b="$ours" 'BEGIN { printf "%.1f", b - a }')"
    done
  done
done
