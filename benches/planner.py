#!/usr/bin/env python3
"""Plans the instances and traces beside the repository, and prints CSV: height, lower bound, proof and CPU seconds (of one
core, planning alone, without reading the file), medians of three runs of `stepalloc plan`.

    cargo build --release --workspace --examples --bins
    benches/planner.py --long > benches/results/planner.csv
    benches/tables.py

Instances of google/minimalloc are planned within the capacity in their name and without one, and so are the same with ids
shuffled, sizes times 7 and time reversed: a planner that knows them by heart would show. Where omnimalloc is installed (pip
install omnimalloc), its supermalloc plans them in the same sitting. Generated problems of 100,000 and a million blocks are
planned by the example scale, one run each. --long adds one run with a time limit of a minute for what is not proven optimal at
once.
"""
import argparse, csv, json, pathlib, random, statistics, subprocess, sys, tempfile, time

ROOT = pathlib.Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared"
RUNS = 3
FIELDS = ("instance", "variant", "planner", "blocks", "capacity", "height", "lower_bound", "ratio", "proof", "cpu_seconds")


def stepalloc(command, path, *options):
    """The figures of the median run."""
    runs = []
    for _ in range(1 if "--time-limit" in options else RUNS):
        ended = subprocess.run([command, "plan", path, "--json", "-", *options], capture_output=True, text=True)
        if ended.returncode not in (0, 3):
            raise SystemExit(f"{path}: {ended.stderr.strip()}")
        runs.append(json.loads(ended.stdout))
    middle = statistics.median_low([run["cpu_seconds"] for run in runs])
    return next(run for run in runs if run["cpu_seconds"] == middle)


def row(instance, variant, figures, capacity=""):
    """A row of ours."""
    keys = ("height", "lower_bound", "ratio", "proof", "cpu_seconds")
    cells = {key: figures[key] if figures[key] is not None else "" for key in keys}
    cells.update(ratio=f"{figures['ratio']:.6f}", cpu_seconds=f"{figures['cpu_seconds']:.4f}")
    return dict(instance=instance, variant=variant, planner="stepalloc", blocks=figures["buffers"], capacity=capacity, **cells)


def buffers(path):
    with open(path, newline="") as file:
        return [tuple(int(line[key]) for key in ("lower", "upper", "size")) for line in csv.DictReader(file)]


def write(path, rows):
    lines = [f"{number},{lower},{upper},{size}\n" for number, (lower, upper, size) in enumerate(rows)]
    path.write_text("id,lower,upper,size\n" + "".join(lines))


def variants(path):
    """Name, buffers, and what a capacity is to be multiplied by."""
    rows = buffers(path)
    end = max(upper for _, upper, _ in rows)
    shuffled = rows[:]
    random.Random(1).shuffle(shuffled)
    yield "as it is", rows, 1
    yield "ids shuffled", shuffled, 1
    yield "sizes times 7", [(lower, upper, 7 * size) for lower, upper, size in rows], 7
    yield "time reversed", [(end - upper, end - lower, size) for lower, upper, size in rows], 1


def rival(path, instance):
    """omnimalloc's best allocator, with its own time limits."""
    import omnimalloc

    rows = buffers(path)
    blocks = tuple(
        omnimalloc.Allocation(id=number, size=size, start=lower, end=upper) for number, (lower, upper, size) in enumerate(rows)
    )
    before = time.process_time()
    pool = omnimalloc.allocate(omnimalloc.Pool(id="pool", allocations=blocks), allocator="supermalloc", validate=True)
    seconds = time.process_time() - before
    moments = sorted({lower for lower, _, _ in rows})
    load = max(sum(size for lower, upper, size in rows if lower <= at < upper) for at in moments)
    return dict(
        instance=instance, variant="as it is", planner="omnimalloc supermalloc", blocks=len(rows), capacity="",
        height=pool.size, lower_bound=load, ratio=f"{pool.size / load:.6f}", proof="", cpu_seconds=f"{seconds:.4f}",
    )


def measure(command, long):
    with tempfile.TemporaryDirectory() as directory:
        for path in sorted(SHARED.glob("instances/*.csv*")):
            name, capacity = (path.name.split(".")[0], path.name.split(".")[1])
            if not capacity.isdigit():
                yield row(name, "as it is", stepalloc(command, path))
                continue
            for variant, rows, factor in variants(path):
                file = pathlib.Path(directory) / "buffers.csv"
                write(file, rows)
                within = int(capacity) * factor
                yield row(name, variant, stepalloc(command, file, "--capacity", str(within)), within)
                if variant == "as it is":
                    found = stepalloc(command, file)
                    yield row(name, variant, found)
                    if long and not found["optimal"]:
                        yield row(name, "for a minute", stepalloc(command, file, "--time-limit", "60"))
            try:
                yield rival(path, name)
            except ImportError:
                print("omnimalloc is not installed, and left out", file=sys.stderr)
        for path in sorted(SHARED.glob("traces/*.csv.gz")):
            for least in (32768, 4096):
                figures = stepalloc(command, path, "--min-bytes", str(least))
                yield row(path.name.split(".")[0], f"blocks of {least} bytes and more", figures)
    scale = pathlib.Path(command).parent / "examples/scale"
    for count in (100_000, 1_000_000):
        ended = subprocess.run([scale, "--csv", str(count), "3", str(count)], capture_output=True, text=True, check=True)
        yield from csv.DictReader(ended.stdout.splitlines(), FIELDS)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stepalloc", default=ROOT / "target/release/stepalloc", help="the command [default: %(default)s]")
    parser.add_argument("--long", action="store_true", help="a minute more for what is not proven optimal")
    arguments = parser.parse_args()
    if not SHARED.is_dir():
        raise SystemExit(f"{SHARED}: not there; the instances and traces belong beside the repository")
    for program in (pathlib.Path(arguments.stepalloc), pathlib.Path(arguments.stepalloc).parent / "examples/scale"):
        if not program.exists():
            raise SystemExit(f"{program}: not there; build it as this file's head says, or name the command with --stepalloc")
    out = csv.DictWriter(sys.stdout, FIELDS, lineterminator="\n")
    out.writeheader()
    for cells in measure(arguments.stepalloc, arguments.long):
        out.writerow(cells)
        sys.stdout.flush()


if __name__ == "__main__":
    main()
