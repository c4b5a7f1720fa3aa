#!/usr/bin/env python3
"""Ordinary loops that know nothing of allocators, for benches/others.py: one thread each, one JSON line at the end.

    benches/loops.py models FOLDER                                 writes convnet.onnx and transformer.onnx (needs PyTorch)
    benches/loops.py onnx MODEL.onnx MEMORY --steps N              inference with ONNX Runtime; MEMORY: "default",
                                                                   "arena off", or "arena and pattern off"
    benches/loops.py mlp|stencil --steps N                         numpy: a training by hand, and a simulation

The line has: a checksum over the results of all steps; of the newest half of the steps minor page faults (median and
maximum), CPU milliseconds (median) and VmHWM; VmRSS at the end; and the step after which a preloaded stepalloc first said
that a plan serves.
"""
import ctypes, json, os, pathlib, resource, statistics, sys, time, zlib

os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"
import numpy as np


def models(folder):
    """A convolutional network as vision models are, and an encoder as language models are; weights random."""
    import torch
    from torch import nn

    class Attention(nn.Module):
        def __init__(self, width=256, heads=4):
            super().__init__()
            self.heads, self.into, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

        def forward(self, x):
            rows, length, width = x.shape
            q, k, v = self.into(x).view(rows, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
            weights = (q @ k.transpose(2, 3) / (width // self.heads) ** 0.5).softmax(3)
            return self.out((weights @ v).transpose(1, 2).reshape(rows, length, width))

    class Layer(nn.Module):
        def __init__(self, width=256):
            super().__init__()
            self.attention, self.first, self.second = Attention(width), nn.LayerNorm(width), nn.LayerNorm(width)
            self.wide = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

        def forward(self, x):
            x = x + self.attention(self.first(x))
            return x + self.wide(self.second(x))

    torch.manual_seed(0)
    blocks, channels = [], 3
    for width in (16, 32, 64):
        for source in (channels, width):
            blocks += [nn.Conv2d(source, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
        blocks.append(nn.MaxPool2d(2))
        channels = width
    convnet = nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))
    transformer = nn.Sequential(nn.Embedding(1000, 256), Layer(), Layer(), Layer(), nn.Linear(256, 1000))
    for name, model, example in (
        ("convnet", convnet, torch.randn(8, 3, 64, 64)),
        ("transformer", transformer, torch.randint(0, 1000, (2, 64))),
    ):
        torch.onnx.export(model.eval(), example, str(pathlib.Path(folder, name + ".onnx")), opset_version=13)


def onnx(path, memory):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.enable_cpu_mem_arena, options.enable_mem_pattern = memory == "default", "pattern" not in memory
    session = onnxruntime.InferenceSession(path, options, ["CPUExecutionProvider"])
    given, dice = session.get_inputs()[0], np.random.default_rng(0)
    whole = "int64" in given.type
    inputs = [dice.integers(0, 1000, given.shape) if whole else dice.standard_normal(given.shape, "float32") for _ in range(4)]
    return lambda step: session.run(None, {given.name: inputs[step % len(inputs)]})[0]


def mlp():
    """Two hidden layers and AdamW on softmax cross-entropy, batches of 1024 of 784 values, as in a course on networks."""
    dice = np.random.default_rng(0)
    widths = [784, 512, 256, 10]
    weights = [dice.standard_normal(shape, "float32") * np.float32(shape[0] ** -0.5) for shape in zip(widths, widths[1:])]
    first, second = [np.zeros_like(w) for w in weights], [np.zeros_like(w) for w in weights]
    images, labels = dice.standard_normal((8192, 784), "float32"), dice.integers(0, 10, 8192)

    def step(number):
        chosen = dice.integers(0, len(images), 1024)
        layers = [images[chosen]]
        for w in weights[:-1]:
            layers.append(np.maximum(layers[-1] @ w, 0))
        scores = layers[-1] @ weights[-1]
        odds = np.exp(scores - scores.max(1, keepdims=True))
        odds /= odds.sum(1, keepdims=True)
        loss = -np.log(odds[np.arange(1024), labels[chosen]]).mean()
        error = (odds - np.eye(10, dtype="float32")[labels[chosen]]) / np.float32(1024)
        for i in reversed(range(len(weights))):
            gradient = layers[i].T @ error
            error = (error @ weights[i].T) * (layers[i] > 0)
            first[i] = np.float32(0.9) * first[i] + np.float32(0.1) * gradient
            second[i] = np.float32(0.999) * second[i] + np.float32(0.001) * gradient**2
            weights[i] = weights[i] * np.float32(1 - 1e-4) - np.float32(1e-3) * first[i] / (np.sqrt(second[i]) + np.float32(1e-6))
        return loss

    return step


def stencil():
    """Reaction and diffusion (Gray and Scott) on 384 x 512 cells: temporaries all of one size."""
    u, v = np.ones((384, 512)), np.zeros((384, 512))
    u[180:200, 240:270], v[180:200, 240:270] = 0.5, 0.25
    around = lambda a: np.roll(a, 1, 0) + np.roll(a, -1, 0) + np.roll(a, 1, 1) + np.roll(a, -1, 1) - 4 * a

    def step(number):
        nonlocal u, v
        reaction = u * v * v
        u, v = u + 0.16 * around(u) - reaction + 0.035 * (1 - u), v + 0.08 * around(v) + reaction - 0.1 * v
        return v[::16, ::16].copy()

    return step


def kibibytes(key):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(key + ":"))


def main():
    if sys.argv[1] == "models":
        return models(sys.argv[2])
    program, *arguments, _, steps = sys.argv[1:]
    step, steps = globals()[program](*arguments), int(steps)
    phase = getattr(ctypes.CDLL(None), "stepalloc_phase", lambda: 0)
    checksum, planned_after, times, faults = 0, None, [], []
    for number in range(steps):
        if number == steps // 2:
            try:
                with open("/proc/self/clear_refs", "w") as file:
                    file.write("5")  # VmHWM starts anew
            except OSError:
                pass
        before, start = resource.getrusage(resource.RUSAGE_SELF).ru_minflt, time.process_time()
        result = step(number)
        times.append(time.process_time() - start)
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
        checksum = zlib.crc32(np.ascontiguousarray(result), checksum)
        if planned_after is None and phase() == 2:
            planned_after = number + 1
    half = steps // 2
    print(json.dumps({
        "checksum": f"{checksum:08x}",
        "planned_after": planned_after,
        "minor_faults_median": statistics.median(faults[half:]),
        "minor_faults_max": max(faults[half:]),
        "cpu_ms": 1e3 * statistics.median(times[half:]),
        "vm_rss_mib": kibibytes("VmRSS") / 1024,
        "vm_hwm_mib": kibibytes("VmHWM") / 1024,
    }))


if __name__ == "__main__":
    main()
