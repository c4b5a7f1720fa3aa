#!/usr/bin/env python3
"""Exports models with random weights to ONNX: nets of torchvision, and nets written out here.

    benches/export_models.py [FOLDER] [--models NAME,...] [--list]

For each model NAME it writes FOLDER/NAME.onnx and its inputs as FOLDER/NAME/INPUT.npy. What is there already stays. Run it with a
Python that has the packages (PyPI): numpy onnx onnxscript onnxruntime torch==2.9.1 torchvision==0.24.1.

Weights are random (seed 0), as times and memory do not follow from them; batch normalizations have the statistics they were made with. NAME is
that of the net, followed by a word where it is not as exported:

    .f16      weights and activations of 16 bits (torch's half())
    .qdq      static 8 bits as onnxruntime.quantization's quantize_static writes it: QDQ, per channel, u8 activations, i8 weights
    .dynamic  dynamic 8 bits as onnxruntime.quantization's quantize_dynamic writes it
    .saved    as ONNX Runtime saves it after its own optimization (level extended)
"""
import argparse, pathlib, sys

IMAGE = (1, 3, 224, 224)
FOLDER = pathlib.Path(__file__).resolve().parent.parent / "target/nets"


def image(*shape):
    import torch

    return {"x": torch.rand(*(shape or IMAGE), generator=torch.Generator().manual_seed(1))}


def tokens(length, rows=1, words=1000):
    import torch

    return {"ids": torch.randint(0, words, (rows, length), generator=torch.Generator().manual_seed(1))}


def vision(name, **settings):
    def make():
        import torchvision

        return torchvision.models.get_model(name, weights=None, **settings)

    return make


def first_of(make):
    """A net whose outputs have names, as one that gives the first of them."""

    def made():
        import torch

        class First(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.net = make()

            def forward(self, x):
                return next(iter(self.net(x).values()))

        return First()

    return made


def detector(name, **settings):
    """A detection net: boxes, labels and scores of one image."""

    def made():
        import torch, torchvision

        class Detector(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.net = torchvision.models.get_model(name, weights=None, weights_backbone=None, **settings)

            def forward(self, x):
                found = self.net([x])[0]
                return found["boxes"], found["labels"], found["scores"]

        return Detector()

    return made


def nets():
    """Those written out here."""
    import math

    import torch
    from torch import nn
    from torch.nn import functional as F

    class Attention(nn.Module):
        def __init__(self, width, heads, causal=False, groups=None, rotary=False):
            super().__init__()
            self.heads, self.causal, self.rotary = heads, causal, rotary
            self.groups = groups or heads
            self.head = width // heads
            self.q = nn.Linear(width, width)
            self.k = nn.Linear(width, self.groups * self.head)
            self.v = nn.Linear(width, self.groups * self.head)
            self.out = nn.Linear(width, width)

        def forward(self, x, past=None):
            rows, length, width = x.shape
            split = lambda y, heads: y.view(rows, length, heads, self.head).transpose(1, 2)
            q, k, v = split(self.q(x), self.heads), split(self.k(x), self.groups), split(self.v(x), self.groups)
            before = past[0].shape[2] if past is not None else 0
            if self.rotary:
                q, k = turn(q, before), turn(k, before)
            if past is not None:
                k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
            present = (k, v)
            if self.groups != self.heads:
                k, v = (y.repeat_interleave(self.heads // self.groups, 1) for y in (k, v))
            scores = q @ k.transpose(-1, -2) / math.sqrt(self.head)
            if self.causal:
                mask = torch.ones(length, k.shape[2], dtype=torch.bool).tril(k.shape[2] - length)
                scores = scores.masked_fill(~mask, float("-inf"))
            y = (scores.softmax(-1) @ v).transpose(1, 2).reshape(rows, length, width)
            return self.out(y), present

    def turn(x, before):
        """Rotary embedding: places from `before` on."""
        half = x.shape[-1] // 2
        speed = 10000 ** (-torch.arange(half, dtype=torch.float32) / half)
        angle = (torch.arange(x.shape[2], dtype=torch.float32) + before)[:, None] * speed
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        a, b = x[..., :half], x[..., half:]
        return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)

    class Rms(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(width))

        def forward(self, x):
            return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))

    class Gated(nn.Module):
        def __init__(self, width, inner):
            super().__init__()
            self.gate, self.up, self.down = nn.Linear(width, inner, False), nn.Linear(width, inner, False), nn.Linear(inner, width, False)

        def forward(self, x):
            return self.down(F.silu(self.gate(x)) * self.up(x))

    class Layer(nn.Module):
        """Of a decoder or encoder; normalized before (GPT-2, llama, whisper) or after (BERT)."""

        def __init__(self, width, heads, causal, llama=False, after=False):
            super().__init__()
            self.after = after
            self.attention = Attention(width, heads, causal, heads // 4 if llama else None, llama)
            norm = Rms if llama else nn.LayerNorm
            self.first, self.second = norm(width), norm(width)
            self.inner = Gated(width, width * 8 // 3) if llama else nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

        def forward(self, x, past=None):
            if self.after:
                y, present = self.attention(x, past)
                x = self.first(x + y)
                return self.second(x + self.inner(x)), present
            y, present = self.attention(self.first(x), past)
            x = x + y
            return x + self.inner(self.second(x)), present

    class Language(nn.Module):
        def __init__(self, layers, width, heads, causal=True, llama=False, after=False, words=1000, cache=False):
            super().__init__()
            self.cache, self.llama = cache, llama
            self.words = nn.Embedding(words, width)
            self.places = None if llama else nn.Embedding(4096, width)
            self.layers = nn.ModuleList(Layer(width, heads, causal, llama, after) for _ in range(layers))
            self.norm = Rms(width) if llama else nn.LayerNorm(width)
            self.head = nn.Linear(width, words, False)

        def forward(self, ids, *past):
            x = self.words(ids)
            before = past[0].shape[2] if past else 0
            if self.places is not None:
                x = x + self.places(torch.arange(ids.shape[1]) + before)
            presents = []
            for number, layer in enumerate(self.layers):
                x, present = layer(x, past[2 * number : 2 * number + 2] if past else None)
                presents += present
            x = self.head(self.norm(x))
            return (x, *presents) if self.cache else x

    class Whisper(nn.Module):
        def __init__(self, width=384, layers=4):
            super().__init__()
            self.first, self.second = nn.Conv1d(80, width, 3, padding=1), nn.Conv1d(width, width, 3, 2, padding=1)
            self.places = nn.Parameter(torch.randn(1500, width))
            self.layers = nn.ModuleList(Layer(width, width // 64, False) for _ in range(layers))
            self.norm = nn.LayerNorm(width)

        def forward(self, x):
            x = F.gelu(self.second(F.gelu(self.first(x)))).transpose(1, 2) + self.places
            for layer in self.layers:
                x, _ = layer(x)
            return self.norm(x)

    class Twice(nn.Sequential):
        def __init__(self, come, go):
            super().__init__(nn.Conv2d(come, go, 3, padding=1), nn.BatchNorm2d(go), nn.ReLU(), nn.Conv2d(go, go, 3, padding=1), nn.BatchNorm2d(go), nn.ReLU())

    class UNet(nn.Module):
        def __init__(self, widths=(32, 64, 128, 256)):
            super().__init__()
            self.down = nn.ModuleList(Twice(come, go) for come, go in zip((3, *widths), widths))
            self.up = nn.ModuleList(nn.ConvTranspose2d(come, go, 2, 2) for come, go in zip(widths[:0:-1], widths[-2::-1]))
            self.join = nn.ModuleList(Twice(2 * go, go) for go in widths[-2::-1])
            self.last = nn.Conv2d(widths[0], 2, 1)

        def forward(self, x):
            kept = []
            for number, down in enumerate(self.down):
                x = down(x if number == 0 else F.max_pool2d(x, 2))
                kept.append(x)
            for up, join, beside in zip(self.up, self.join, kept[-2::-1]):
                x = join(torch.cat([beside, up(x)], 1))
            return self.last(x)

    class Crnn(nn.Module):
        def __init__(self):
            super().__init__()
            widths = (1, 64, 128, 256, 256)
            self.layers = nn.ModuleList(nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU()) for a, b in zip(widths, widths[1:]))
            self.lstm = nn.LSTM(1024, 256, 2, bidirectional=True, batch_first=True)
            self.last = nn.Linear(512, 100)

        def forward(self, x):
            for number, layer in enumerate(self.layers):
                x = F.max_pool2d(layer(x), (2, 2) if number < 2 else (2, 1)) if number != 2 else layer(x)
            rows, channels, height, width = x.shape
            x = x.permute(0, 3, 1, 2).reshape(rows, width, channels * height)
            return self.last(self.lstm(x)[0])

    class Recurrent(nn.Module):
        def __init__(self, kind, width=256):
            super().__init__()
            self.net = kind(width, width, 2, batch_first=True)

        def forward(self, x):
            return self.net(x)[0]

    class Spectrum(nn.Module):
        """A spectrogram, as speech models begin."""

        def __init__(self):
            super().__init__()
            self.register_buffer("window", torch.hann_window(400))
            self.mel = nn.Linear(201, 80, False)

        def forward(self, x):
            y = torch.stft(x, 400, 160, window=self.window, return_complex=False, center=False)
            return self.mel((y.pow(2).sum(-1)).transpose(1, 2)).clamp(min=1e-6).log()

    return {name: made for name, made in locals().items() if name in ("Language", "Whisper", "UNet", "Crnn", "Recurrent", "Spectrum")}


def written(name, *arguments, **settings):
    return lambda: nets()[name](*arguments, **settings)


def recurrent(kind):
    def made():
        import torch

        return nets()["Recurrent"](getattr(torch.nn, kind))

    return made


def sequence(rows):
    def inputs():
        import torch

        return {"x": torch.rand(rows, 50, 256, generator=torch.Generator().manual_seed(1))}

    return inputs


def cached(layers, heads, width, length=16):
    def inputs():
        import torch

        past = {f"past.{number}": torch.rand(1, heads, length, width) for number in range(2 * layers)}
        return {**tokens(1), **past}

    return inputs


# Name: the net, its inputs, and how it is exported: "trace" (torch.onnx.export by tracing), "dynamo" (by torch.export, the default of
# today's torch); axes that may have any size.
VISION = ["resnet18", "resnet50", "mobilenet_v2", "mobilenet_v3_small", "mobilenet_v3_large", "convnext_tiny", "densenet121", "vit_b_32", "vit_b_16",
    "swin_t", "efficientnet_b0", "squeezenet1_1", "shufflenet_v2_x1_0", "mnasnet1_0", "regnet_y_400mf", "alexnet", "vgg11"]
MODELS = {
    **{name: (vision(name), image, "dynamo") for name in VISION},
    "inception_v3": (vision("inception_v3", aux_logits=False, init_weights=False), lambda: image(1, 3, 299, 299), "dynamo"),
    "googlenet": (vision("googlenet", aux_logits=False, init_weights=False), image, "dynamo"),
    "deeplabv3_mobilenet": (first_of(vision("deeplabv3_mobilenet_v3_large", weights_backbone=None)), image, "dynamo"),
    "lraspp_mobilenet": (first_of(vision("lraspp_mobilenet_v3_large", weights_backbone=None)), image, "dynamo"),
    "ssdlite320": (detector("ssdlite320_mobilenet_v3_large"), lambda: {"x": image(3, 320, 320)["x"]}, "trace"),
    "fasterrcnn_mobilenet": (detector("fasterrcnn_mobilenet_v3_large_320_fpn"), lambda: {"x": image(3, 320, 320)["x"]}, "trace"),
    "unet": (written("UNet"), image, "dynamo"),
    "crnn": (written("Crnn"), lambda: {"x": image(1, 1, 32, 128)["x"]}, "trace"),
    "bert": (written("Language", 6, 384, 6, causal=False, after=True), lambda: tokens(128), "dynamo"),
    "gpt2": (written("Language", 6, 384, 6), lambda: tokens(64), "dynamo"),
    "llama": (written("Language", 24, 256, 8, llama=True), lambda: tokens(64), "dynamo"),
    "whisper": (written("Whisper"), lambda: {"x": sequence_of(1, 80, 3000)}, "dynamo"),
    "spectrum": (written("Spectrum"), lambda: {"x": sequence_of(1, 16000)}, "dynamo"),
    "gpt2_cache12": (written("Language", 12, 384, 6, cache=True), cached(12, 6, 64), "trace"),
    "llama_cache24": (written("Language", 24, 256, 8, llama=True, cache=True), cached(24, 2, 32), "trace"),
    **{f"{kind.lower()}_b{rows}": (recurrent(kind), sequence(rows), "trace") for kind in ("LSTM", "GRU") for rows in (1, 2, 4, 8, 16)},
}
VARIANTS = {
    "f16": ["resnet18", "mobilenet_v2", "gpt2", "bert", "vit_b_32"],
    "qdq": ["resnet18", "mobilenet_v2", "bert", "squeezenet1_1"],
    "dynamic": ["gpt2", "bert"],
    "saved": ["resnet18", "gpt2", "bert"],
}


def sequence_of(*shape):
    import torch

    return torch.rand(*shape, generator=torch.Generator().manual_seed(1))


def names():
    return [*MODELS, *(f"{name}.{variant}" for variant, of in VARIANTS.items() for name in of)]


def export(name, folder):
    import numpy, torch

    base, _, variant = name.partition(".")
    file = folder / f"{name}.onnx"
    if file.exists():
        return
    made, inputs, way = MODELS[base]
    torch.manual_seed(0)
    given = inputs()
    if variant in ("", "f16"):
        net = made().eval()
        if variant == "f16":
            net = net.half()
            given = {key: value.half() if value.is_floating_point() else value for key, value in given.items()}
        axes = {}
        for key in given:
            if key.startswith("past."):
                axes[key] = {2: "past"}
        outputs = None
        if axes:
            outputs = ["logits", *(f"present.{number}" for number in range(len(axes)))]
            axes |= {output: {2: "all"} for output in outputs[1:]}
        temporary = file.with_suffix(".part")
        with torch.no_grad():
            torch.onnx.export(net, tuple(given.values()), str(temporary), input_names=list(given), output_names=outputs, dynamic_axes=axes or None,
                dynamo=way == "dynamo", external_data=False, opset_version=18, **({"verbose": False} if way == "dynamo" else {}))
        temporary.rename(file)
    else:
        export(base, folder)
        source = folder / f"{base}.onnx"
        if variant == "saved":
            import onnxruntime

            options = onnxruntime.SessionOptions()
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
            options.optimized_model_filepath = str(file)
            onnxruntime.InferenceSession(str(source), options, providers=["CPUExecutionProvider"])
        else:
            from onnxruntime import quantization
            from onnxruntime.quantization import shape_inference

            prepared = folder / f"{name}.prepared"
            shape_inference.quant_pre_process(str(source), str(prepared), skip_symbolic_shape=True)
            if variant == "dynamic":
                quantization.quantize_dynamic(str(prepared), str(file))
            else:
                class Reader(quantization.CalibrationDataReader):
                    def __init__(self):
                        self.left = [{key: value.numpy() for key, value in given.items()}]

                    def get_next(self):
                        return self.left.pop() if self.left else None

                quantization.quantize_static(str(prepared), str(file), Reader(), per_channel=True)
            prepared.unlink()
    at = folder / name
    at.mkdir(exist_ok=True)
    for key, value in given.items():
        numpy.save(at / f"{key}.npy", value.numpy())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path, nargs="?", default=FOLDER, help="(%(default)s)")
    parser.add_argument("--models", help="names, with commas between them; all without it")
    parser.add_argument("--list", action="store_true", help="only says the names")
    arguments = parser.parse_args()
    if arguments.list:
        print("\n".join(names()))
        return
    wanted = arguments.models.split(",") if arguments.models else names()
    if unknown := [name for name in wanted if name not in names()]:
        parser.error(f"unknown models {', '.join(unknown)}; --list says those there are")
    arguments.folder.mkdir(parents=True, exist_ok=True)
    failed = []
    for name in wanted:
        print(name, file=sys.stderr, flush=True)
        try:
            export(name, arguments.folder)
        except Exception as error:
            failed.append(name)
            print(f"{name}: {type(error).__name__}: {str(error).strip().splitlines()[0][:300]}", file=sys.stderr)
    if failed:
        sys.exit(f"not exported: {', '.join(failed)}")


if __name__ == "__main__":
    main()
