#!/usr/bin/env python3
"""Programs with some large blocks and no step of their own, unchanged, under the preloaded library over each backend.

    benches/programs.py [--python PYTHON] [--runs 7] [--programs NAME,...] > benches/results/programs.csv

Each is compared by `stepalloc compare` with glibc, jemalloc and mimalloc alone. With the library, its VmHWM and its CPU time may be
at most 1.03 times those of the better of glibc and the backend alone, which is checked at the end; the exit status is 1 where one is
not and the difference is no chance. Those in Python need numpy, scikit-learn, LightGBM and XGBoost (PyPI) in the interpreter that
--python names; the others are Debian's git gcc sqlite3 xz-utils imagemagick ffmpeg. What is missing is named on standard error and
left out.
"""
import argparse, csv, json, os, pathlib, shutil, subprocess, sys, tempfile

import everyday

MOST = 1.03
BACKENDS = ("glibc", "jemalloc", "mimalloc")
# Threads that wait sleep: how long others spin would be counted as the program's CPU time.
THREADS = {"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "passive", "OPENBLAS_THREAD_TIMEOUT": "4"}
# A shell script each, in the directory of everyday.py's programs.
SHELL = {
    "git gc": ("git", "rm -rf r.git && git clone -q --bare --depth 60 'file://{root}' r.git && git -C r.git repack -adfq"),
    "gcc": ("gcc", "gcc -O2 -c large.c -o large.o"),
    "sqlite3": ("sqlite3", "for i in 1 2 3 4 5; do sqlite3 :memory: < t.sql; done"),
    "xz -T2": ("xz", "cat long long long | xz -3 -T2 -c | cksum"),
    "imagemagick": ("convert", "convert -limit thread 2 -size 1600x1200 plasma:fractal -blur 0x3 -resize 50% -rotate 7 out.png"),
    "ffmpeg": ("ffmpeg", "ffmpeg -v error -y -threads 2 -f lavfi -i testsrc2=size=1280x720:rate=25:duration=6 -c:v mpeg4 -threads 2 out.avi"),
}
# A script of Python each, and the packages it imports.
PYTHON = {
    "lightgbm": (("lightgbm", "numpy"), """
import lightgbm, numpy
dice = numpy.random.default_rng(1); x = dice.normal(size=(40000, 40)); y = (x[:, 0] * x[:, 1] > 0).astype(int)
lightgbm.train(dict(objective="binary", num_threads=2, verbose=-1, seed=1), lightgbm.Dataset(x, y), 60)
"""),
    "xgboost": (("xgboost", "numpy"), """
import xgboost, numpy
dice = numpy.random.default_rng(1); x = dice.normal(size=(40000, 40)); y = (x[:, 0] * x[:, 1] > 0).astype(int)
xgboost.train(dict(objective="binary:logistic", nthread=2, seed=1), xgboost.DMatrix(x, y), 40)
"""),
    "forest": (("sklearn", "numpy"), """
import numpy; from sklearn.ensemble import RandomForestClassifier
dice = numpy.random.default_rng(1); x = dice.normal(size=(8000, 20)); y = (x[:, 0] * x[:, 1] > 0).astype(int)
RandomForestClassifier(40, n_jobs=2, random_state=1).fit(x, y).predict(x)
"""),
    "k-means": (("sklearn", "numpy"), """
import numpy; from sklearn.cluster import KMeans
KMeans(12, n_init=4, random_state=1).fit(numpy.random.default_rng(1).normal(size=(60000, 16)))
"""),
    "numpy loops": (("numpy",), """
import numpy
dice = numpy.random.default_rng(1); a = dice.normal(size=(1200, 800))
for turn in range(120):
    b = a @ a.T[:, : 100 + turn]
    c = numpy.exp(-numpy.abs(b)) + b * 2
    d = numpy.sort(c, axis=0)[::2].copy()
"""),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default="/usr/bin/python3")
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--programs", default=",".join([*SHELL, *PYTHON]), help="separated by commas")
    arguments = parser.parse_args()
    names = arguments.programs.split(",")
    if unknown := set(names) - {*SHELL, *PYTHON}:
        sys.exit(f"unknown {sorted(unknown)}; known are {[*SHELL, *PYTHON]}")
    subprocess.run(["cargo", "build", "--quiet", "--release"], cwd=everyday.ROOT, check=True)
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(["program", "allocator", "runs", "vm_hwm_mib", "vm_hwm_of_better", "cpu_seconds", "cpu_of_better", "minor_faults"])
    above = []
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        everyday.workplace(folder)
        for name in names:
            if name in SHELL:
                needed, script = SHELL[name]
                command = ["sh", "-c", script.format(root=everyday.ROOT)]
                missing = None if shutil.which(needed) else needed
            else:
                packages, script = PYTHON[name]
                command = [arguments.python, "-c", script]
                missing = next((package for package in packages if not has(arguments.python, package)), None)
            if missing:
                print(f"{name}: {missing} is not installed, left out", file=sys.stderr)
                continue
            above += compare(name, command, folder, arguments.runs, out)
            sys.stdout.flush()
    for line in above:
        print(line, file=sys.stderr)
    sys.exit(1 if above else 0)


def has(python, package):
    return subprocess.run([python, "-c", f"import {package}"], capture_output=True).returncode == 0


def compare(name, command, folder, runs, out):
    """Writes the rows of a program; returns what is above its limit."""
    file = folder / "figures.json"
    ours = [f"stepalloc/{backend}" for backend in BACKENDS]
    subprocess.run([everyday.TARGET / "stepalloc", "compare", "--no-report", "--runs", str(runs), "--json", file,
                    "--allocators", ",".join([*BACKENDS, *ours]), "--", *command],
                   cwd=folder, check=True, stdout=sys.stderr, env={**os.environ, **THREADS})
    results = {result["allocator"]: result["figures"] for result in json.loads(file.read_text())["results"]}
    above = []
    for allocator, figures in results.items():
        ratios = {}
        for figure in ("vm_hwm_mib", "cpu_seconds"):
            better = min((results[rival][figure] for rival in {"glibc", allocator.removeprefix("stepalloc/")}),
                         key=lambda cell: cell["median"])
            mine = figures[figure]
            ratios[figure] = mine["median"] / better["median"]
            # Both medians may lie off by what their runs scatter.
            chance = 2 * (mine["spread"] ** 2 + better["spread"] ** 2) ** 0.5 / better["median"] / runs**0.5
            if allocator in ours and ratios[figure] > MOST + chance:
                above.append(f"{name}, {allocator}: {figure} is {ratios[figure]:.3f} times the better's")
        out.writerow([name, allocator, runs, f"{figures['vm_hwm_mib']['median']:.1f}", f"{ratios['vm_hwm_mib']:.3f}",
                      f"{figures['cpu_seconds']['median']:.3f}", f"{ratios['cpu_seconds']:.3f}",
                      f"{figures['minor_faults']['median']:.0f}"])
    return above


if __name__ == "__main__":
    main()
