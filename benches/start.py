#!/usr/bin/env python3
"""What a process pays for an allocator in front of its malloc before it asks for much: time, page faults, VmHWM.

    benches/start.py [--runs 400] [--programs NAME,...] > benches/results/start.csv

Runs each program under each allocator in turn, RUNS times, and prints the medians: CPU time of the process and of those that it
has waited for, its minor page faults, and its VmHWM. A shell script is a hundred such processes; the limits that a small process is held
to (1.05 of its CPU time, 1.03 of its VmHWM) are of the size of these figures.
"""
import argparse, csv, os, re, statistics, subprocess, sys
from pytorch import OURS, RIVALS, ROOT, TARGET

# Each ends by printing its own /proc/self/status.
PROGRAMS = {
    # It asks for small blocks only.
    "head": ["head", "-n", "100", "/proc/self/status"],
    # It reads by a buffer of 128 KiB.
    "cat": ["cat", "/proc/self/status"],
    "100 subshells": ["sh", "-c", "i=0; while [ $i -lt 100 ]; do (:); i=$((i + 1)); done; while read -r line; do echo \"$line\"; done < /proc/self/status"],
}
NAMES = ("glibc", "jemalloc", "mimalloc", "tcmalloc")
ALLOCATORS = {name: RIVALS[name] for name in NAMES} | {
    name: {"LD_PRELOAD": str(TARGET / "libstepalloc.so"), **setting} for name, setting in OURS.items()}
FIGURES = ("cpu_microseconds", "minor_faults", "vm_hwm_kib")


def run(program, setting):
    """Its figures."""
    reader, writer = os.pipe()
    actions = [(os.POSIX_SPAWN_DUP2, writer, 1), (os.POSIX_SPAWN_CLOSE, reader)]
    pid = os.posix_spawnp(program[0], program, {"PATH": os.environ["PATH"], **setting}, file_actions=actions)
    os.close(writer)
    with open(reader, encoding="utf-8") as pipe:
        status = pipe.read()
    _, ended, usage = os.wait4(pid, 0)
    if ended:
        sys.exit(f"{program[0]} with {setting}: status {os.waitstatus_to_exitcode(ended)}")
    return 1e6 * (usage.ru_utime + usage.ru_stime), usage.ru_minflt, int(re.search(r"VmHWM:\s*(\d+) kB", status)[1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=400)
    parser.add_argument("--programs", default=",".join(PROGRAMS), help="separated by commas")
    arguments = parser.parse_args()
    if arguments.runs < 1:
        sys.exit("--runs: 1 at least")
    if unknown := set(arguments.programs.split(",")) - PROGRAMS.keys():
        sys.exit(f"--programs: {', '.join(sorted(unknown))} unknown; there are {', '.join(PROGRAMS)}")
    if missing := [path for setting in ALLOCATORS.values() if (path := setting.get("LD_PRELOAD", "")).startswith("/usr") and not os.path.exists(path)]:
        sys.exit(f"not installed: {missing} (Debian: libjemalloc2 libmimalloc2.0 libtcmalloc-minimal4)")
    subprocess.run(["cargo", "build", "--quiet", "--release", "-p", "stepalloc-preload"], cwd=ROOT, check=True)
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(["program", "allocator", "runs", *FIGURES])
    for name in arguments.programs.split(","):
        figures = {allocator: [] for allocator in ALLOCATORS}
        for _ in range(arguments.runs):
            for allocator, setting in ALLOCATORS.items():
                figures[allocator].append(run(PROGRAMS[name], setting))
        for allocator, rows in figures.items():
            out.writerow([name, allocator, arguments.runs, *(f"{statistics.median(column):.0f}" for column in zip(*rows))])
            sys.stdout.flush()


if __name__ == "__main__":
    main()
