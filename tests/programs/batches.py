"""Train a small network in PyTorch, with another batch size every STEPS steps: batches.py STEPS SIZE,SIZE,...

An ordinary program but for what it notes of a preloaded library: how many plans were made after each step. Prints a
JSON line for each size: the loss (exact, as hex), the step of this size at which a plan came into force last (null where
none did), page faults of the steps from the 30th on (median and maximum), VmRSS in KiB, and the library's figures.
"""
import ctypes, json, os, resource, statistics, sys

os.environ["OMP_NUM_THREADS"] = "1"
import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)
steps, sizes = int(sys.argv[1]), [int(size) for size in sys.argv[2].split(",")]
figures = getattr(ctypes.CDLL(None), "stepalloc_stats_json", None)
text = ctypes.create_string_buffer(8192)


def ours():
    if not figures:
        return {"plans": 0}
    figures(text, len(text))
    return json.loads(text.value)


def resident():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS:"))


def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


layers = [layer for _ in range(3) for layer in (nn.Linear(128, 128), nn.GELU(), nn.LayerNorm(128))]
model = nn.Sequential(*layers)
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
data = torch.randn(max(sizes), 128)
plans = ours()["plans"]
for size in sizes:
    planned, counts = None, []
    for step in range(steps):
        before = faults()
        optimizer.zero_grad(set_to_none=True)
        loss = model(data[:size]).square().mean()
        loss.backward()
        optimizer.step()
        counts.append(faults() - before)
        if (now := ours()["plans"]) != plans:
            planned, plans = step + 1, now
    print(json.dumps({
        "size": size,
        "loss": float(loss.detach()).hex(),
        "planned_after": planned,
        "faults_median": statistics.median(counts[30:]),
        "faults_max": max(counts[30:]),
        "resident": resident(),
        "ours": ours(),
    }), flush=True)
