#!/usr/bin/env python3
"""Whether `stepalloc compare` tells differences that are there, and none that are not.

    benches/compare.py [--sittings 20] [--runs 5] [-- PROGRAM ARGS...]

In each sitting the program is compared under glibc and under the same glibc by another name, and under glibc and a library
that adds 5 % to its CPU time when it ends. Prints in how many sittings CPU time, time and peak memory were called equal, and in
how many the planted 5 % of CPU time were found. Fails where alike ones were told apart by any of the three in more than one of
twenty sittings, or the planted ones were not found in half of them.
"""
import argparse, json, os, pathlib, subprocess, sys, tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release"
PROGRAM = ["/usr/bin/python3", "-c", "held = [str(i) * 20 for i in range(400_000)]; print(sum(map(len, held)))"]
WASTE = r"""
#include <time.h>
static double spent(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return now.tv_sec + 1e-9 * now.tv_nsec;
}
__attribute__((destructor)) static void waste(void) {
    double until = 1.05 * spent();
    while (spent() < until) {}
}
"""


def sitting(program, runs, other, folder):
    """The figures of the second allocator."""
    figures = pathlib.Path(folder, "figures")
    command = [TARGET / "stepalloc", "compare", "--allocators", "glibc", "--allocator", f"other={other}", "--runs", str(runs)]
    subprocess.run([*command, "--json", figures, "--", *program], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return [result["figures"] for result in json.loads(figures.read_text())["results"]]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sittings", type=int, default=20)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("program", nargs="*", default=PROGRAM)
    arguments = parser.parse_args()
    subprocess.run(["cargo", "build", "--quiet", "--release"], cwd=ROOT, check=True)
    compared = ("seconds", "cpu_seconds", "vm_hwm_mib")
    equal, found, added = dict.fromkeys(compared, 0), 0, []
    with tempfile.TemporaryDirectory() as folder:
        source, library = pathlib.Path(folder, "waste.c"), pathlib.Path(folder, "waste.so")
        source.write_text(WASTE)
        subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", library, source], check=True)
        for number in range(arguments.sittings):
            alike = sitting(arguments.program, arguments.runs, "", folder)
            for name in compared:
                equal[name] += "more" not in (row[name]["verdict"] for row in alike)
            plain, slow = (row["cpu_seconds"] for row in sitting(arguments.program, arguments.runs, library, folder))
            found += slow["verdict"] == "more"
            added.append(slow["median"] / plain["median"] - 1)
            print(f"sitting {number + 1}: alike {[row['cpu_seconds']['verdict'] for row in alike]}, "
                  f"planted {slow['verdict']} ({100 * added[-1]:.1f} %)", file=sys.stderr, flush=True)
    for name in compared:
        print(f"alike, {name}: called equal in {equal[name]} of {arguments.sittings} sittings")
    print(f"5 % planted: found in {found} of {arguments.sittings} sittings")
    least = arguments.sittings - max(1, arguments.sittings // 20)
    sys.exit(min(equal.values()) < least or 2 * found < arguments.sittings)


if __name__ == "__main__":
    main()
