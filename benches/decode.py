#!/usr/bin/env python3
"""Decoding with a cache of keys and values, token by token, beside ONNX Runtime: time a token, memory, and agreement.

    benches/decode.py [FOLDER] [--models NAME,...] [--past P,...] [--tokens N] [--rounds R] [--threads T] > benches/results/decode.csv

FOLDER is what export_models.py wrote: plain exported graphs, whose caches are inputs `past.N` and outputs `present.N`. Run it with a Python
that has numpy and onnxruntime (PyPI). Each round runs either engine once, in a process of its own: N tokens behind P, the same tokens and the
same cache, each token's cache being what the one before gave (here --feed-back; there an io_binding whose outputs become inputs). Times are
medians of the rounds' medians. Memory is what VmHWM rises above its value right before the model is loaded. `error` is the largest
difference of the last token's logits, relative to the largest of them.
"""
import argparse, csv, pathlib, statistics, subprocess, sys, tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import export_models, models


def inputs(model, past, folder):
    """Writes a cache of `past` tokens, and the token behind it."""
    import numpy, onnxruntime

    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    random = numpy.random.default_rng(0)
    for given in session.get_inputs():
        if given.name.startswith("past."):
            shape = [past if isinstance(size, str) else size for size in given.shape]
            array = random.normal(0, 1, shape).astype(numpy.float32)
        else:
            array = numpy.full(given.shape, 7, numpy.int64)
        numpy.save(folder / f"{given.name}.npy", array)


def rival(model, folder, tokens, threads):
    """In a process of its own: the same under ONNX Runtime."""
    import json, time

    import numpy, onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = int(threads)
    given = {path.stem: numpy.load(path) for path in pathlib.Path(folder).glob("*.npy")}
    before = models.resident("VmHWM")
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    bound = {name: onnxruntime.OrtValue.ortvalue_from_numpy(array) for name, array in given.items()}
    names = [output.name for output in session.get_outputs()]
    times = []
    for _ in range(int(tokens)):
        began = time.perf_counter()
        binding = session.io_binding()
        for name, value in bound.items():
            binding.bind_ortvalue_input(name, value)
        for name in names:
            binding.bind_output(name)
        session.run_with_iobinding(binding)
        made = dict(zip(names, binding.get_outputs()))
        for name in names:
            if name.startswith("present."):
                bound[name.replace("present", "past")] = made[name]
        times.append((time.perf_counter() - began) * 1e3)
    numpy.save(pathlib.Path(folder) / "ort.npy", made["logits"].numpy())
    print(json.dumps({"ms": statistics.median(times), "bytes": models.resident("VmHWM") - before}))


def measure(model, past, arguments):
    import numpy

    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / "given").mkdir()
        subprocess.run([sys.executable, __file__, "--inputs", str(model), str(past), str(folder / "given")], check=True)
        given = [word for path in sorted((folder / "given").glob("*.npy")) for word in ("--input", f"{path.stem}={path}")]
        command = [models.TARGET / "stepalloc", "model", "infer", model, *given, "--threads", str(arguments.threads), "--feed-back"]
        rows = []
        for _ in range(arguments.rounds):
            ours = models.ask([*command, "--runs", str(arguments.tokens), "--save-outputs", folder / "ours", "--json", "-"])
            words = [str(model), str(folder / "given"), str(arguments.tokens), str(arguments.threads)]
            rows.append((ours, models.ask([sys.executable, __file__, "--rival", *words])))
            wanted = numpy.load(folder / "given" / "ort.npy")
            (folder / "given" / "ort.npy").unlink()
        once = models.ask([*command, "--runs", "1", "--json", "-"])
        ours = rows[-1][0]
        ms, ort = (statistics.median(times) for times in zip(*((row[0]["run_ms_median"], row[1]["ms"]) for row in rows)))
        grown = lambda told: told["vm_hwm_bytes"] - told["vm_hwm_before_bytes"]
        cache = sum(numpy.load(path).nbytes for path in (folder / "given").glob("past.*.npy"))
        final = cache // past * (past + arguments.tokens)
        return {
            "past": past,
            "tokens": arguments.tokens,
            "threads": arguments.threads,
            "ms": round(ms, 3),
            "ort_ms": round(ort, 3),
            "ms_ratio": round(ms / ort, 2),
            "plans_made": ours["plans_made"],
            "copied_bytes": ours["copied_input_bytes"] - cache,
            "grown_bytes": min(grown(row[0]) for row in rows),
            "ort_grown_bytes": min(row[1]["bytes"] for row in rows),
            "first_grown_bytes": grown(once),
            "cache_bytes": final,
            "error": f"{models.difference({'logits': numpy.load(folder / 'ours' / 'logits.npy')}, {'logits': wanted}):.1e}",
        }


def main():
    if sys.argv[1:2] == ["--rival"]:
        return rival(*sys.argv[2:])
    if sys.argv[1:2] == ["--inputs"]:
        return inputs(sys.argv[2], int(sys.argv[3]), pathlib.Path(sys.argv[4]))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path, nargs="?", default=export_models.FOLDER, help="(%(default)s)")
    parser.add_argument("--models", default="gpt2_cache12,llama_cache24", help="names, with commas between them (%(default)s)")
    parser.add_argument("--past", default="16,256,2048", help="tokens before the first one that is timed (%(default)s)")
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    subprocess.run(["cargo", "build", "--quiet", "--release"], cwd=models.ROOT, check=True)
    out = None
    for name in arguments.models.split(","):
        model = arguments.folder / f"{name}.onnx"
        if not model.exists():
            sys.exit(f"{model} is not there: benches/export_models.py writes it")
        for past in map(int, arguments.past.split(",")):
            found = measure(model, past, arguments)
            if out is None:
                out = csv.DictWriter(sys.stdout, ["model", *found], lineterminator="\n")
                out.writeheader()
            out.writerow({"model": name, **found})
            sys.stdout.flush()


if __name__ == "__main__":
    main()
