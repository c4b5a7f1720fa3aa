#!/usr/bin/env bash
# Where the page faults of a planned training are: all of the newest half of its steps, and those of them in the arena, that
# is, caused by planned sizes. Needs perf, python3-torch, and the arena where it is reserved first (1 TiB). Prints CSV.
#   benches/faults.sh [WORKLOAD...]
set -euo pipefail
cd "$(dirname "$0")/.."
cargo build --quiet --release
target=${CARGO_TARGET_DIR:-target}/release
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
steps=40

echo "workload,backend,faults of the process,of these in the arena,pages of the arena,faults in the arena since its plan"
for workload in "${@:-mlp transformer convnet}"; do
  for name in $workload; do
    for backend in glibc jemalloc mimalloc; do
      START_STATISTIC_STEP=4 STABLE_STATISTIC_STEP=3 LD_PRELOAD=$(realpath "$target/libstepalloc.so") \
        STEPALLOC_BACKEND=$backend STEPALLOC_JSON=$folder/json \
        perf record --quiet -e page-faults -c 1 -d -o "$folder/data" \
        /usr/bin/python3 ../shared/workloads/torch_train.py "$name" --mark --steps $steps >"$folder/out" 2>/dev/null
      seconds=$(python3 -c "import json; print(json.load(open('$folder/out'))['step_ms_median'] * $steps / 2000)")
      arena=$(tail -n 1 "$folder/json" | python3 -c "import json; print(json.loads(input())['arena_bytes'])")
      perf script -i "$folder/data" -F time,addr 2>/dev/null | tr -d : |
        awk -v label="$name,$backend" -v seconds="$seconds" -v arena="$arena" '
          # Addresses are hexadecimal: 10000000000 is 1 TiB.
          { time[NR] = $1; inside[NR] = length($2) == 11 && substr($2, 1, 2) == "10" }
          END {
            for (i = 1; i <= NR; i++) {
              since += inside[i]
              # The process ends a moment after its last step.
              if (time[i] > time[NR] - seconds && time[i] < time[NR] - 0.1) { all++; ours += inside[i] }
            }
            printf "%s,%d,%d,%d,%d\n", label, all, ours, arena / 4096, since
          }'
    done
  done
done
