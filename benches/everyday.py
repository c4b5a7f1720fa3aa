#!/usr/bin/env python3
"""Everyday programs, which have no period, under the preloaded library: instructions against the backend alone.

    benches/everyday.py [--programs NAME,...] > benches/results/everyday.csv

Counts the instructions of a program and of all processes it starts (valgrind --tool=callgrind), without the library and with it
over glibc; both must write the same and end alike, with at most 2 % more instructions, and no process may get an arena; else
the exit status is 1. What is counted includes the loading of the library. Programs that are not installed are named on
standard error and left out (Debian: valgrind git gcc g++ perl sqlite3 openssl bc xz-utils bzip2).
"""
import argparse, csv, json, os, pathlib, random, re, shutil, subprocess, sys, tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release"
MOST = 1.02
# A shell script each, in a directory with `numbers`, a text of 1.5 MB in no order, `long`, the same
# ten times, `large.c`, and `t.sql`.
PROGRAMS = {
    "sort": "sort -n numbers",
    "gzip": "gzip -nc numbers",
    "xz": "head -c 600000 numbers | xz -1c",
    "bzip2": "head -c 600000 numbers | bzip2 -c",
    "tar": "tar czf - --mtime=@0 numbers large.c t.sql",
    "awk": "awk '{ sum[$2] += $1 } END { for (i = 0; i < 1000; i++) print i, sum[i] }' numbers",
    "sed": "sed 's/1\\(.\\)/<\\1>/g' numbers",
    "grep": "grep -cE '([0-9])7\\1' numbers",
    "cut": "cut -d' ' -f2 long",
    "uniq": "sort numbers | uniq -c",
    "join": "sort -k2 numbers > a; sort -k2 -r numbers | sort -k2 > b; join -j 2 a b | head -n 200000",
    "diff": "head -n 4000 numbers > a; sort a > b; diff a b | tail -n 3",
    "md5sum": "md5sum long long",
    "base64": "base64 long",
    "find": "find /usr/share /usr/lib -xdev -type f -size +100k | sort | wc -l",
    "ls": "ls -lR /usr/lib | cksum",
    "git log": "git -C '{root}' log -p -n 30",
    "git gc": "git clone -q --bare --depth 20 'file://{root}' r.git && git -C r.git repack -adfq && rm -rf r.git",
    "cc": "cc -O1 -c large.c -o large.o && cksum large.o",
    "c++": "echo '#include <map>\n#include <regex>\nint main() { return std::regex(\"a*b\").mark_count(); }' > m.cc; c++ -c m.cc -o m.o && cksum m.o",
    "python json": "/usr/bin/python3 -c 'import json; x = [dict(a=i, b=[i] * 9, c=str(i)) for i in range(20000)]; print(len(json.dumps(json.loads(json.dumps(x)))))'",
    "python compileall": "cp -rp /usr/lib/python3.*/json . && /usr/bin/python3 -m compileall -qf json && cksum json/__pycache__/*",
    "perl": "perl -ne 'my @w = split; push @{$h{$w[1]}}, $w[0]; END { print scalar(@{$h{$_}}), \"\\n\" for sort keys %h }' numbers",
    "sqlite3": "sqlite3 :memory: < t.sql",
    "openssl": "openssl enc -aes-256-ctr -K 00 -iv 00 -in numbers 2> /dev/null | cksum",
    "tr": "tr 0-9 a-j < long | cksum",
    "sh": "i=0; while [ $i -lt 30000 ]; do i=$((i + 1)); done; echo $i",
    "dpkg": "dpkg-query --list | cksum",
    "bc": "echo 'scale=500; 4*a(1)' | bc -l",
}


def workplace(folder):
    dice = random.Random(1)
    folder.joinpath("numbers").write_text("".join(f"{dice.randrange(10**7)} {dice.randrange(1000)}\n" for _ in range(120000)))
    folder.joinpath("long").write_text(10 * folder.joinpath("numbers").read_text())
    functions = (f"int f{i}(int a, int b) {{ int s = 0; for (int j = 0; j < a; j++) s += j % {i % 7 + 2} == b ? j * {i} : s ^ b; "
                 "return s; }\n" for i in range(400))
    folder.joinpath("large.c").write_text("".join(functions))
    rows = "".join(f"insert into t values({i}, {dice.randrange(10**6)}, '{'x' * dice.randrange(200)}');\n" for i in range(8000))
    folder.joinpath("t.sql").write_text(f"create table t(a, b, c); begin;\n{rows}commit; create index i on t(b);\n"
                                        "select b % 100, count(*), sum(length(c)) from t group by 1;\n")


def instructions(script, folder, library):
    """Instructions of the program and its children, its output and status, and the largest arena of its processes."""
    # The same name each time, and nothing in it of the time before.
    folder = folder / "work"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    workplace(folder)
    figures, counts = folder / "figures", folder / "counts"
    counts.mkdir()
    environment = {**os.environ, "LC_ALL": "C", "HOME": str(folder), "PYTHONHASHSEED": "0", "STEPALLOC_JSON": str(figures)}
    if library:
        environment["LD_PRELOAD"] = str(library)
    command = ["valgrind", "-q", "--tool=callgrind", "--trace-children=yes", "--log-file=/dev/null",
               f"--callgrind-out-file={counts}/%p", "sh", "-c", script]
    done = subprocess.run(command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True)
    found = re.findall(r"^totals: (\d+)", "".join(path.read_text() for path in counts.iterdir()), re.M)
    told = [json.loads(line) for line in figures.read_text().splitlines()] if figures.exists() else []
    return sum(map(int, found)), (done.stdout, done.stderr, done.returncode), max((one["arena_bytes"] for one in told), default=0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", default=",".join(PROGRAMS))
    arguments = parser.parse_args()
    names = arguments.programs.split(",")
    if unknown := set(names) - set(PROGRAMS):
        sys.exit(f"unknown programs {sorted(unknown)}; known are {list(PROGRAMS)}")
    if not shutil.which("valgrind"):
        sys.exit("valgrind is not installed (Debian: valgrind)")
    subprocess.run(["cargo", "build", "--quiet", "--release", "-p", "stepalloc-preload"], cwd=ROOT, check=True)
    out = csv.writer(sys.stdout)
    out.writerow(["program", "instructions_alone", "instructions_preloaded", "ratio", "arena_bytes", "same_output"])
    failed = False
    for name in names:
        program = {"python": "/usr/bin/python3", "dpkg": "dpkg-query"}.get(name.split()[0], name.split()[0])
        if not shutil.which(program):
            print(f"{name}: not installed, left out", file=sys.stderr)
            continue
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            script = PROGRAMS[name].replace("{root}", str(ROOT))
            alone, said, _ = instructions(script, folder, None)
            preloaded, said_too, arena = instructions(script, folder, TARGET / "libstepalloc.so")
        ratio, same = preloaded / alone, said == said_too
        out.writerow([name, alone, preloaded, f"{ratio:.4f}", arena, same])
        sys.stdout.flush()
        if ratio > MOST or arena > 0 or not same:
            print(f"{name}: falls short", file=sys.stderr)
            failed = True
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
