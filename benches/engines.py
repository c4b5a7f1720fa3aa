#!/usr/bin/env python3
"""Trainings in JAX and TensorFlow under stepalloc and its rivals: memory, page faults, CPU time per step, loss.

    python3 -m venv JAX && JAX/bin/pip install 'jax[cpu]'
    python3 -m venv TF && TF/bin/pip install tensorflow-cpu
    benches/engines.py --jax JAX/bin/python --tensorflow TF/bin/python [--runs 3] [--steps 40] > benches/results/engines.csv
    benches/engines.py --jax JAX/bin/python --engines jax --allocators glibc,tcmalloc,stepalloc/glibc
    JAX/bin/python benches/engines.py --step-loop jax --steps 20

Nothing is marked: the programs run as they are under `stepalloc run`. As in benches/pytorch.py, whose rivals these are, the
processes of all allocators take turns, a step each, and CPU time is compared with that of the same turn; the CPU time of a
step is the median of the newest half. Faults are those of the steps from the fourth on.

- jax: a jitted training step of a small transformer. Its weights are donated, the optimizer's momentum is not: XLA's
  temporary buffer and the new momentum are allocated in every step.
- tensorflow: a tf.function that trains three independent towers of convolutions, whose operations the executor's threads run
  in an order that varies from step to step. Tensors have up to 24 MiB. oneDNN is off (TF_ENABLE_ONEDNN_OPTS=0), as with it
  TensorFlow takes large blocks from an allocator of its own.

--step-loop runs one training in this process and prints a JSON line of it. What must hold is checked at the end, on standard
error: at most 100 faults a step; VmHWM at most 1.02 x that of the leanest rival with fewer than 1000 faults a step; CPU time
at most 1.02 x the best rival's; the loss of every allocator the same. Where that does not hold, the exit status is 1.
"""
import argparse, csv, json, os, pathlib, resource, statistics, subprocess, sys, time

STEPS = 40
# Steps before those whose faults count: compilation and the first allocations.
WARM_UP = 3
MOST_FAULTS, MOST_HWM, MOST_CPU, FAULTS_OF_LEAN_RIVALS = 100, 1.02, 1.02, 1000


def jax_step():
    """A function that makes a step of a transformer's training, and returns its loss."""
    import functools
    import jax
    from jax import numpy as np

    vocabulary, width, layers, heads, batch, length = 4096, 256, 4, 4, 8, 128
    keys = iter(jax.random.split(jax.random.key(0), 99))
    normal = lambda *shape: jax.random.normal(next(keys), shape) * 0.02
    weights = {
        "embed": normal(vocabulary, width),
        "place": normal(length, width),
        "layers": [
            {"qkv": normal(width, 3 * width), "out": normal(width, width), "up": normal(width, 4 * width),
             "down": normal(4 * width, width)}
            for _ in range(layers)
        ],
    }
    momentum = jax.tree.map(np.zeros_like, weights)
    tokens = jax.random.randint(next(keys), (batch, length + 1), 0, vocabulary)
    causal = np.tril(np.ones((length, length), bool))

    def normed(x):
        x = x - x.mean(-1, keepdims=True)
        return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5)

    def attend(x, layer):
        q, k, v = np.split((normed(x) @ layer["qkv"]).reshape(batch, length, heads, -1), 3, axis=-1)
        scores = np.einsum("bqhc,bkhc->bhqk", q, k) / q.shape[-1] ** 0.5
        scores = jax.nn.softmax(np.where(causal, scores, -1e9), axis=-1)
        return np.einsum("bhqk,bkhc->bqhc", scores, v).reshape(batch, length, width) @ layer["out"]

    def loss_of(weights, tokens):
        x = weights["embed"][tokens[:, :-1]] + weights["place"]
        for layer in weights["layers"]:
            x = x + attend(x, layer)
            x = x + jax.nn.gelu(normed(x) @ layer["up"]) @ layer["down"]
        likelihood = jax.nn.log_softmax(normed(x) @ weights["embed"].T)
        return -np.take_along_axis(likelihood, tokens[:, 1:, None], axis=-1).mean()

    @functools.partial(jax.jit, donate_argnums=0)
    def train(weights, momentum, tokens):
        loss, gradients = jax.value_and_grad(loss_of)(weights, tokens)
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, gradients)
        return jax.tree.map(lambda w, m: w - 0.01 * m, weights, momentum), momentum, loss

    def step():
        nonlocal weights, momentum
        weights, momentum, loss = train(weights, momentum, tokens)
        jax.block_until_ready((weights, momentum))
        return float(loss)

    return step


def tensorflow_step():
    """A function that makes a step of a convolutional network's training, and returns its loss."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
    import tensorflow as tf

    tf.config.threading.set_inter_op_parallelism_threads(2)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    towers, batch, side, channels, classes = 3, 32, 64, (3, 32, 48), 10
    random = tf.random.Generator.from_seed(1)
    variable = lambda *shape: tf.Variable(random.normal(shape, stddev=(2 / (9 * shape[-2])) ** 0.5))
    filters = [[variable(3, 3, *pair) for pair in zip(channels, channels[1:])] for _ in range(towers)]
    heads = [variable(channels[-1], classes) for _ in range(towers)]
    images = random.normal((batch, side, side, channels[0]))
    labels = tf.range(batch) % classes
    variables = [filter for tower in filters for filter in tower] + heads

    @tf.function
    def train():
        with tf.GradientTape() as tape:
            logits = []
            for tower, head in zip(filters, heads):
                x = images
                for filter in tower:
                    x = tf.nn.relu(tf.nn.conv2d(x, filter, strides=1, padding="SAME"))
                logits.append(tf.reduce_mean(x, axis=(1, 2)) @ head)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, tf.add_n(logits)))
        for variable, gradient in zip(variables, tape.gradient(loss, variables)):
            variable.assign_sub(0.01 * gradient)
        return loss

    return lambda: float(train())


ENGINES = {"jax": jax_step, "tensorflow": tensorflow_step}


def step_loop(engine, steps, turns):
    """Makes the steps and prints what they took. With `turns`, two pipes, each waits for its turn."""
    step, faults, cpu_ms = ENGINES[engine](), [], []
    for _ in range(steps):
        if turns:
            os.read(turns[0], 1)
        faults_before, before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt, time.process_time_ns()
        loss = step()
        cpu = time.process_time_ns() - before
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults_before)
        cpu_ms.append(cpu / 1e6)
        if turns:
            os.write(turns[1], b"%d\n" % cpu)
    status = dict(line.split(":", 1) for line in pathlib.Path("/proc/self/status").read_text().splitlines())
    mib = lambda field: round(int(status[field].split()[0]) / 1024, 1)
    print(json.dumps({
        "loss": repr(loss), "minor_faults_median": statistics.median(faults[WARM_UP:]), "minor_faults_max": max(faults[WARM_UP:]),
        "cpu_ms_median": round(statistics.median(cpu_ms[WARM_UP:]), 1), "vm_rss_mib": mib("VmRSS"), "vm_hwm_mib": mib("VmHWM"),
    }))


def compare(arguments):
    """Prints the table, and returns whether all that must hold does."""
    from pytorch import FLOOR, OURS, RIVALS, ROOT, Runs, Training, train

    class Loop(Training):
        def command(self, workload, steps, marked, waits, told):
            loop = [pathlib.Path(__file__).resolve(), "--step-loop", workload, "--steps", str(steps)]
            return [vars(arguments)[workload], *loop, "--turns", f"{waits},{told}"]

    names = arguments.allocators.split(",") if arguments.allocators else [*RIVALS, *OURS]
    engines = arguments.engines.split(",")
    for given, known in (names, [*RIVALS, *OURS]), (engines, ENGINES):
        if unknown := set(given) - set(known):
            sys.exit(f"unknown: {', '.join(sorted(unknown))}; known are {', '.join(known)}")
    missing = [v["LD_PRELOAD"] for n in names if (v := RIVALS.get(n)) and not os.path.exists(v.get("LD_PRELOAD", "/"))]
    if missing:
        sys.exit(f"not installed: {missing} (Debian: libjemalloc2 libmimalloc2.0 libtcmalloc-minimal4)")
    if any(name in OURS for name in names):
        subprocess.run(["cargo", "build", "--quiet", "--release"], cwd=ROOT, check=True)
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(["engine", "allocator", "runs", "cpu_ms_per_step", "minor_faults_median", "minor_faults_max", "vm_hwm_mib", "loss"])
    held = True
    for engine in engines:
        runs = [train(engine, arguments.steps, names, False, Loop) for _ in range(arguments.runs)]
        results = [Runs(of_one) for of_one in zip(*runs)]
        out.writerows([engine, t.name, arguments.runs, f"{t.cpu_ms:.1f}", t.faults, t.faults_max, t.hwm, " ".join(sorted(t.losses))]
                      for t in results)
        sys.stdout.flush()
        rivals = [t for t in results if t.name in RIVALS and t.name != FLOOR]
        lean = [t.hwm for t in rivals if t.faults < FAULTS_OF_LEAN_RIVALS]
        losses = set().union(*(t.losses for t in results))
        for t in (t for t in results if t.name in OURS):
            figures = {
                f"faults median {t.faults:.0f} (at most {MOST_FAULTS})": t.faults <= MOST_FAULTS,
                "losses equal": len(losses) == 1,
            }
            if lean:
                hwm = t.hwm / min(lean)
                figures[f"VmHWM {hwm:.3f} x the leanest rival's of few faults (at most {MOST_HWM})"] = hwm <= MOST_HWM
            if rivals:
                cpu, error = t.to_best(rivals)
                figures[f"CPU time {cpu:.3f} x the best rival's (standard error {error:.3f})"] = cpu <= MOST_CPU
            held &= all(figures.values())
            said = ", ".join(figure if holds else f"{figure} (DOES NOT HOLD)" for figure, holds in figures.items())
            print(f"{engine}, {t.name}: {said}", file=sys.stderr, flush=True)
    return held


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jax", metavar="PYTHON", default=sys.executable, help="one that has jax")
    parser.add_argument("--tensorflow", metavar="PYTHON", default=sys.executable, help="one that has tensorflow")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--engines", default=",".join(ENGINES))
    parser.add_argument("--allocators", help="separated by commas; all of benches/pytorch.py by default")
    parser.add_argument("--step-loop", choices=ENGINES)
    parser.add_argument("--turns", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.runs < 1 or arguments.steps <= WARM_UP:
        sys.exit(f"--runs: 1 at least; --steps: {WARM_UP + 1} at least")
    if arguments.step_loop:
        turns = arguments.turns and [int(pipe) for pipe in arguments.turns.split(",")]
        return step_loop(arguments.step_loop, arguments.steps, turns)
    sys.exit(0 if compare(arguments) else 1)


if __name__ == "__main__":
    main()
