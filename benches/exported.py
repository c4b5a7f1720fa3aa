#!/usr/bin/env python3
"""Models nobody tuned for, as export_models.py writes them: time, memory and agreement beside ONNX Runtime.

    benches/exported.py [FOLDER] [--models NAME,...] [--threads 1,2] [--rounds N] [--seconds S] > benches/results/exported.csv
    benches/exported.py --ir [...] > benches/results/exported_ir.csv

With --ir, the same models as OpenVINO converts and saves them, with weights of 32 bits and, its default, of 16, beside OpenVINO; without those
of 8 bits.
Run it with a Python that has numpy and onnxruntime (PyPI), or openvino. Each round runs either engine once, in a process of its own, one after the
other, as many times as take us S seconds; times are medians of the rounds' medians. Memory is what VmHWM rises above its value right before
the model is loaded; ONNX Runtime's is the least over arena and memory pattern on and off. `error` is the largest difference to the
rival's outputs, relative to the largest element of each.
"""
import argparse, csv, pathlib, statistics, subprocess, sys, tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import export_models, models

# How names of models of 8 bits end.
EIGHT_BITS = (".qdq", ".dynamic")
ROOT = pathlib.Path(__file__).resolve().parent.parent


def measure(model, inputs, rival, arguments, threads):
    """Of a model under us and under a rival, "ort" or "openvino"."""
    import numpy

    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / "outputs").mkdir()
        for path in inputs.glob("*.npy"):
            (folder / path.name).symlink_to(path.resolve())
        given = [word for path in sorted(inputs.glob("*.npy")) for word in ("--input", f"{path.stem}={path}")]
        rows = []
        for number in range(arguments.rounds):
            # Once, to know how many runs fill the time.
            command = [models.TARGET / "stepalloc", "model", "infer", model, *given, "--threads", str(threads), "--json", "-"]
            if number == 0:
                once = models.ask([*command, "--runs", "4"])["run_ms_median"]
                runs = max(4, min(1000, int(arguments.seconds * 1e3 / max(once, 1e-3))))
            ours = models.ask([*command, "--runs", str(runs), "--save-outputs", folder / "ours"])
            words = [rival, model, folder, runs, threads, *models.SETTINGS[number % len(models.SETTINGS)]]
            rows.append((ours, models.ask([sys.executable, models.__file__, "--rival", *map(str, words)])))
        told = {path.name: numpy.load(path) for path in (folder / "ours").glob("*.npy")}
        wanted = {name: numpy.load(folder / "outputs" / f"{rival} {name}") for name in told}
        ours = rows[-1][0]
        ms, rival_ms = (statistics.median(times) for times in zip(*((row[0]["run_ms_median"], row[1]["ms"]) for row in rows)))
        return {
            "threads": threads,
            "ms": round(ms, 3),
            f"{rival}_ms": round(rival_ms, 3),
            "ms_ratio": round(ms / rival_ms, 2),
            "grown_bytes": min(row[0]["vm_hwm_bytes"] - row[0]["vm_hwm_before_bytes"] for row in rows),
            f"{rival}_grown_bytes": min(row[1]["bytes"] for row in rows),
            **{key: ours[key] for key in models.PLANNED},
            "error": f"{models.difference(told, wanted):.1e}",
        }


def converted(model, folder):
    """The model in OpenVINO's format, by the bits of its weights; in a process of its own, for the converter keeps what it has read."""
    script = "import openvino, sys; openvino.save_model(openvino.convert_model(sys.argv[1]), sys.argv[2], compress_to_fp16=sys.argv[3] == '16')"
    for bits in ("32", "16"):
        file = pathlib.Path(folder, f"{model.stem}.{bits}.xml")
        done = subprocess.run([sys.executable, "-c", script, model, file, bits], capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"OpenVINO does not convert it: {done.stderr.strip().splitlines()[-1:]}")
        yield bits, file


def rows(model, inputs, arguments):
    """What is measured of a model, one after the other."""
    numbers = [int(threads) for threads in arguments.threads.split(",")]
    if not arguments.ir:
        for threads in numbers:
            yield {"model": model.stem, **measure(model, inputs, "ort", arguments, threads)}
        return
    with tempfile.TemporaryDirectory() as folder:
        for bits, file in converted(model, folder):
            for threads in numbers:
                yield {"model": model.stem, "bits": bits, **measure(file, inputs, "openvino", arguments, threads)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path, nargs="?", default=export_models.FOLDER, help="(%(default)s)")
    parser.add_argument("--models", help="names, with commas between them; all in the folder without it")
    parser.add_argument("--ir", action="store_true", help="in OpenVINO's format, beside OpenVINO")
    parser.add_argument("--threads", default="1", help="with commas between them (1)")
    parser.add_argument("--rounds", type=int, default=4, help="each has another setting of ONNX Runtime (4)")
    parser.add_argument("--seconds", type=float, default=1, help="of our runs in a round (1)")
    arguments = parser.parse_args()
    there = sorted(path.stem for path in arguments.folder.glob("*.onnx"))
    names = arguments.models.split(",") if arguments.models else [name for name in there if not (arguments.ir and name.endswith(EIGHT_BITS))]
    if unknown := set(names) - set(there):
        sys.exit(f"{arguments.folder} has no {', '.join(sorted(unknown))}: benches/export_models.py writes them")
    subprocess.run(["cargo", "build", "--quiet", "--release"], cwd=ROOT, check=True)
    out = None
    for name in names:
        try:
            for row in rows(arguments.folder / f"{name}.onnx", arguments.folder / name, arguments):
                if out is None:
                    out = csv.DictWriter(sys.stdout, row, lineterminator="\n")
                    out.writeheader()
                out.writerow(row)
                sys.stdout.flush()
        except (RuntimeError, AssertionError, FileNotFoundError) as error:
            print(f"{name}: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()
