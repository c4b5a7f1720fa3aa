#!/usr/bin/env python3
"""Real models under stepalloc, ONNX Runtime and OpenVINO: memory, time, and whether their outputs agree.

    benches/models.py [--models NAME,...] [--threads N] [--runs N] > benches/results/models.csv

Run it with a Python that has the packages (PyPI): numpy pillow onnx onnxruntime openvino magika silero-vad
rapidocr-onnxruntime==1.4.4 (the last three with --no-deps: only their models are read). Inputs are made here: a page with lines of
text for the OCR models, this file's own bytes for magika, half a second of a voice-like sound for the voice detectors.

One process for each run of a model. Memory is what VmHWM rises above its value right before the model is loaded, so that libraries
and inputs do not count; ONNX Runtime's is its least over arena and memory pattern on and off. Times are medians of --runs runs with
as many threads each, and OpenVINO computes in f32, as we do. `error` is the largest difference to ONNX Runtime, relative to the largest element of an output.
"""
import argparse, csv, importlib.util, json, os, pathlib, subprocess, sys, tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release"


def package(name, *path):
    spec = importlib.util.find_spec(name)
    return str(pathlib.Path(spec.submodule_search_locations[0], *path)) if spec else None


def page(height, width, lines):
    """A white page with black text, as the OCR models want it: 1x3xHxW, from -1 to 1."""
    import numpy
    from PIL import Image, ImageDraw, ImageFont

    image = Image.new("RGB", (width, height), "white")
    draw = ImageDraw.Draw(image)
    size = max(12, height // (2 * len(lines)))
    for number, line in enumerate(lines):
        draw.text((size // 2, height * number // len(lines) + size // 3), line, "black", ImageFont.load_default(size))
    pixels = numpy.asarray(image, dtype=numpy.float32).transpose(2, 0, 1)[None]
    return {"x": numpy.ascontiguousarray((pixels / 255 - 0.5) / 0.5)}


def voice(samples, rows=1):
    """Harmonics of 120 Hz that swell and fall, and a little noise."""
    import numpy

    time = numpy.arange(samples * rows) / 16000
    sound = sum(numpy.sin(2 * numpy.pi * 120 * n * time) / n for n in range(1, 20))
    sound = sound * (0.2 + 0.1 * numpy.sin(2 * numpy.pi * 3 * time))
    sound += numpy.random.default_rng(1).normal(0, 0.005, samples * rows)
    return sound.astype(numpy.float32).reshape(rows, samples)


def own_bytes():
    """As magika cuts a file: the first and the last 1024 bytes, 256 where there are no more."""
    import numpy

    text = pathlib.Path(__file__).read_bytes().strip()
    tokens = numpy.full(2048, 256, dtype=numpy.int32)
    begin, end = text[:1024], text[-1024:]
    tokens[: len(begin)] = list(begin)
    tokens[2048 - len(end) :] = list(end)
    return {"bytes": tokens[None]}


def state(*shape):
    import numpy

    return numpy.zeros(shape, dtype=numpy.float32)


def rate():
    import numpy

    return numpy.array(16000, dtype=numpy.int64)


LINES = ["Memory is planned once,", "and served from one arena.", "0 page faults, 1.00 x the bound"]
SILERO = {
    "silero_vad": lambda: {"input": voice(576), "state": state(2, 1, 128), "sr": rate()},
    "silero_vad_16k_op15": lambda: {"input": voice(576), "state": state(2, 1, 128), "sr": rate()},
    "silero_vad_op18_ifless": lambda: {"input": voice(576), "state": state(2, 1, 128), "sr": rate()},
    "silero_vad_half": lambda: {"input": voice(576), "state": state(2, 1, 128)},
    "silero_vad_openvino_16k": lambda: {"input": voice(576), "state": state(2, 1, 128)},
    "silero_vad_16k_sequence": lambda: {"input": voice(576, 14), "h": state(1, 1, 128), "c": state(1, 1, 128)},
}
OCR = ("rapidocr_onnxruntime", "models")
MODELS = {
    "ocr det": (OCR, "ch_PP-OCRv4_det_infer.onnx", lambda: page(480, 640, LINES)),
    "ocr rec": (OCR, "ch_PP-OCRv4_rec_infer.onnx", lambda: page(48, 320, LINES[:1])),
    "ocr cls": (OCR, "ch_ppocr_mobile_v2.0_cls_infer.onnx", lambda: page(48, 192, LINES[:1])),
    "magika": (("magika", "models", "standard_v3_3"), "model.onnx", own_bytes),
    **{name: (("silero_vad", "data"), f"{name}.onnx", inputs) for name, inputs in SILERO.items()},
}
# What `model infer` says of its plan.
PLANNED = ["arena_bytes", "lower_bound_bytes", "unplanned_nodes", "allocations_per_run", "minor_faults_per_run"]
# ONNX Runtime's settings: arena, memory pattern.
SETTINGS = [(True, True), (True, False), (False, True), (False, False)]


def resident(name="VmRSS"):
    for line in open("/proc/self/status"):
        if line.startswith(name):
            return int(line.split()[1]) << 10


def rival(arguments):
    """In a process of its own: a model under ONNX Runtime or OpenVINO."""
    import time

    import numpy

    engine, model, folder, runs, threads, arena, pattern = arguments
    inputs = {path.stem: numpy.load(path) for path in sorted(pathlib.Path(folder).glob("*.npy"))}
    if engine == "ort":
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = int(threads)
        options.enable_cpu_mem_arena, options.enable_mem_pattern = arena == "True", pattern == "True"
        before = resident("VmHWM")
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        names = [{output.name} for output in session.get_outputs()]
        run = lambda: session.run(None, inputs)
    else:
        import openvino

        before = resident("VmHWM")
        settings = {"INFERENCE_NUM_THREADS": int(threads), "INFERENCE_PRECISION_HINT": "f32"}
        compiled = openvino.Core().compile_model(model, "CPU", settings)
        request = compiled.create_infer_request()
        names = [output.get_names() for output in compiled.outputs]
        run = lambda: list(request.infer(inputs).values())
    times = []
    for _ in range(int(runs)):
        began = time.perf_counter()
        outputs = run()
        times.append((time.perf_counter() - began) * 1e3)
    grown = resident("VmHWM") - before
    for name, output in ((name, output) for all_names, output in zip(names, outputs) for name in all_names):
        numpy.save(pathlib.Path(folder, "outputs", f"{engine} {plain(name)}.npy"), output)
    print(json.dumps({"ms": sorted(times)[len(times) // 2], "bytes": grown}))


def plain(name):
    return "".join(letter if letter.isascii() and letter.isalnum() or letter in "-." else "_" for letter in name)


def ask(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))}: {done.stderr.strip().splitlines()[-1:]}")
    return json.loads(done.stdout)


def difference(told, wanted):
    """The largest one between outputs by name, relative to the largest element of each."""
    worst = 0.0
    for name, of in wanted.items():
        of, mine = of.astype("float64"), told[name].astype("float64")
        assert mine.shape == of.shape, f"{name}: {mine.shape} instead of {of.shape}"
        worst = max(worst, abs(mine - of).max(initial=0) / max(abs(of).max(initial=0), 1e-12))
    return worst


def measure(model, inputs, runs, threads):
    import numpy

    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        for name, value in inputs.items():
            numpy.save(folder / f"{name}.npy", value)
        (folder / "outputs").mkdir()
        one = lambda *words: ask([sys.executable, __file__, "--rival", *map(str, words)])
        ort = [one("ort", model, folder, runs, threads, *setting) for setting in SETTINGS]
        try:
            openvino = one("openvino", model, folder, runs, threads, "", "")
        except RuntimeError as error:
            print(error, file=sys.stderr)
            openvino = {"ms": float("nan"), "bytes": float("nan")}
        given = [word for name in inputs for word in ("--input", f"{name}={folder / name}.npy")]
        command = [TARGET / "stepalloc", "model", "infer", model, *given, "--runs", str(runs), "--threads", str(threads), "--json", "-"]
        ours = ask([*command, "--save-outputs", folder / "ours"])
        told = {path.name: numpy.load(path) for path in (folder / "ours").glob("*.npy")}
        wanted = {name: numpy.load(folder / "outputs" / f"ort {name}") for name in told}
        ort_ms = min(found["ms"] for found in ort)
        return {
            "threads": threads,
            "ms": round(ours["run_ms_median"], 3),
            "ort_ms": round(ort_ms, 3),
            "openvino_ms": round(openvino["ms"], 3),
            "ms_ratio": round(ours["run_ms_median"] / ort_ms, 2),
            "grown_bytes": ours["vm_hwm_bytes"] - ours["vm_hwm_before_bytes"],
            "ort_grown_bytes": min(found["bytes"] for found in ort),
            "openvino_grown_bytes": openvino["bytes"],
            **{key: ours[key] for key in PLANNED},
            "error": f"{difference(told, wanted):.1e}",
        }


def main():
    if sys.argv[1:2] == ["--rival"]:
        return rival(sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--runs", type=int, default=30)
    arguments = parser.parse_args()
    names = arguments.models.split(",")
    if unknown := set(names) - set(MODELS):
        sys.exit(f"unknown models {sorted(unknown)}; known are {list(MODELS)}")
    subprocess.run(["cargo", "build", "--quiet", "--release"], cwd=ROOT, check=True)
    out = None
    for name in names:
        (module, *path), file, inputs = MODELS[name]
        model = package(module, *path, file)
        if model is None or not os.path.exists(model):
            print(f"{name}: {module} is not installed, left out", file=sys.stderr)
            continue
        row = {"model": name, **measure(model, inputs(), arguments.runs, arguments.threads)}
        if out is None:
            out = csv.DictWriter(sys.stdout, row, lineterminator="\n")
            out.writeheader()
        out.writerow(row)
        sys.stdout.flush()


if __name__ == "__main__":
    main()
