#!/usr/bin/env python3
"""Whether `stepalloc compare` tells differences that are there, and none that are not.

    benches/compare.py [--sittings 20] [--runs N] [--minutes M] [-- PROGRAM ARGS...] > benches/results/compare.csv

In each sitting the program is compared under glibc and under the same glibc by another name, and under glibc and a library
that adds 5 % to its CPU time when it ends; each has as many runs as `stepalloc compare` finds it needs, or N. Prints in how many
sittings alike ones were called equal, in each of the table's figures and in all of them, and in how many the planted 5 % of CPU
time were found. Fails where either was so in fewer than nineteen of twenty sittings.
"""
import argparse, csv, json, os, pathlib, subprocess, sys, tempfile, time

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


def sitting(program, options, other, folder):
    """What is told of the second allocator, how many runs it took, and how long."""
    figures, start = pathlib.Path(folder, "figures"), time.monotonic()
    command = [TARGET / "stepalloc", "compare", "--no-report", "--allocators", "glibc", "--allocator", f"other={other}", *options]
    subprocess.run([*command, "--json", figures, "--", *program], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    told = json.loads(figures.read_text())
    return [result["figures"] for result in told["results"]], told["runs"], time.monotonic() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sittings", type=int, default=20)
    parser.add_argument("--runs")
    parser.add_argument("--minutes")
    parser.add_argument("program", nargs="*", default=PROGRAM)
    arguments = parser.parse_args()
    subprocess.run(["cargo", "build", "--quiet", "--release"], cwd=ROOT, check=True)
    options = [f"--{name}={value}" for name in ("runs", "minutes") if (value := getattr(arguments, name))]
    equal, all_equal, found = {}, 0, 0
    with tempfile.TemporaryDirectory() as folder:
        source, library = pathlib.Path(folder, "waste.c"), pathlib.Path(folder, "waste.so")
        source.write_text(WASTE)
        subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", library, source], check=True)
        for number in range(arguments.sittings):
            alike, runs, seconds = sitting(arguments.program, options, "", folder)
            told = [name for name in alike[0] if "more" in (row[name]["verdict"] for row in alike)]
            for name in alike[0]:
                equal.setdefault(name, []).append(name not in told)
            all_equal += not told
            said = f"alike {'told apart by ' + ', '.join(told) if told else 'equal'} ({runs} runs, {seconds:.0f} s)"
            (_, slow), runs, seconds = sitting(arguments.program, options, library, folder)
            slow = slow["cpu_seconds"]
            found += slow["verdict"] == "more"
            print(f"sitting {number + 1}: {said}, planted {slow['verdict']} ({100 * slow['ratio'] - 100:.1f} %, {runs} runs, "
                  f"{seconds:.0f} s)", file=sys.stderr, flush=True)
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(["compared", "right", "sittings"])
    for name, sittings in equal.items():
        out.writerow([f"alike: {name} called equal", sum(sittings), len(sittings)])
    out.writerow(["alike: all figures called equal", all_equal, arguments.sittings])
    out.writerow(["5 % of CPU time planted: found", found, arguments.sittings])
    sys.exit(20 * min(all_equal, found) < 19 * arguments.sittings)


if __name__ == "__main__":
    main()
