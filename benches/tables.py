#!/usr/bin/env python3
"""Writes the tables of BENCHMARKS.md and README.md from benches/results, between the comments that name them, and the plot
beside these. Where there are no results the command that makes them stands in the table's place.

    /usr/bin/python3 benches/tables.py

benches/all.py makes the results, and calls this. The plot needs Debian's python3-matplotlib.
"""
import csv, pathlib, re, statistics, sys
from pytorch import FLOOR

ROOT = pathlib.Path(__file__).resolve().parent.parent


def read(name):
    with open(ROOT / "benches/results" / name, newline="") as file:
        return list(csv.DictReader(file))


def table(*rows):
    head, *body = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([head, "|---" * len(rows[0]) + "|", *body])


def pytorch():
    """Ours, the rival with the least CPU time and the one with the lowest peak; ratios to these two."""
    rows = [("workload", "allocator", "CPU time per step", "page faults per step", "VmHWM", "arena / lower bound")]
    results = read("pytorch.csv")
    for workload in dict.fromkeys(row["workload"] for row in results):
        here = [row for row in results if row["workload"] == workload]
        rivals = [row for row in here if not row["allocator"].startswith("stepalloc/") and row["allocator"] != FLOOR]
        fastest = min(rivals, key=lambda row: float(row["cpu_ratio"]))
        smallest = min(rivals, key=lambda row: float(row["vm_hwm_whole_mib"]))
        for row in here:
            if row in rivals and row not in (fastest, smallest):
                continue
            peak = float(row["vm_hwm_whole_mib"])
            ratio = f"{float(row['cpu_ratio']) / float(fastest['cpu_ratio']):.3f}"
            if row["cpu_to_best"]:
                ratio = f"{float(row['cpu_to_best']):.3f} ± {float(row['cpu_to_best_error']):.3f}"
            notes = ["least CPU time of the rivals"] * (row is fastest) + ["lowest peak of the rivals"] * (row is smallest)
            notes += ["returns every free page at once"] * (row["allocator"] == FLOOR)
            rows.append((
                workload,
                row["allocator"] + (f" ({', '.join(notes)})" if notes else ""),
                f"{float(row['cpu_ms_per_step']):.0f} ms ({ratio} x)",
                f"{float(row['minor_faults_median']):.0f}",
                f"{peak:.0f} MiB ({peak / float(smallest['vm_hwm_whole_mib']):.3f} x)",
                row["arena_to_bound"] or "-",
            ))
    return table(*rows)


def short():
    """The peak and the faults of ours over glibc beside the floor, the rival with the lowest peak, and glibc."""
    rows = [("model", "", "VmHWM", "page faults of a step", "CPU time of a step")]
    results = read("pytorch.csv")
    for workload in dict.fromkeys(row["workload"] for row in results):
        here = {row["allocator"]: row for row in results if row["workload"] == workload}
        rivals = [row for name, row in here.items() if not name.startswith("stepalloc/") and name != FLOOR]
        smallest = min(rivals, key=lambda row: float(row["vm_hwm_whole_mib"]))
        shown = {"glibc": "glibc", smallest["allocator"]: f"{smallest['allocator']}, the rival with the lowest peak",
                 FLOOR: "all that is free goes back at once", "stepalloc/glibc": "**stepalloc**"}
        for name, said in shown.items():
            row = here[name]
            rows.append((workload, said, f"{float(row['vm_hwm_whole_mib']):.0f} MiB", f"{float(row['minor_faults_median']):,.0f}",
                         f"{float(row['cpu_ms_per_step']):.0f} ms"))
    return table(*rows)


def others():
    """Ours over glibc beside glibc, the rival with the least CPU time and the one with the lowest peak."""
    rows = [("program", "allocator", "CPU time per step", "page faults per step", "VmHWM", "planned after")]
    results = read("others.csv")
    for program in dict.fromkeys(row["program"] for row in results):
        here = {row["allocator"]: row for row in results if row["program"] == program}
        rivals = [row for name, row in here.items() if not name.startswith("stepalloc/") and name != FLOOR]
        fastest = min(rivals, key=lambda row: float(row["cpu_ms_per_step"]))
        smallest = min(rivals, key=lambda row: float(row["vm_hwm_mib"]))
        for name, row in here.items():
            if name not in ("glibc", "stepalloc/glibc") and row not in (fastest, smallest):
                continue
            notes = ["least CPU time"] * (row is fastest) + ["lowest peak"] * (row is smallest)
            planned = row["planned_after_steps"]
            rows.append((
                program,
                name + (f" ({', '.join(notes)} of the rivals)" if notes else ""),
                f"{float(row['cpu_ms_per_step']):.1f} ms",
                f"{float(row['minor_faults_median']):.0f}",
                f"{float(row['vm_hwm_mib']):.0f} MiB",
                f"{planned} steps" if planned.isdecimal() else planned or "-",
            ))
    return table(*rows)


def engines():
    """All of them."""
    rows = [("engine", "allocator", "CPU time of a step", "page faults of a step", "VmHWM")]
    for row in read("engines.csv"):
        rows.append((row["engine"], row["allocator"], f"{float(row['cpu_ms_per_step']):.0f} ms",
                     f"{float(row['minor_faults_median']):,.0f}", f"{float(row['vm_hwm_mib']):.0f} MiB"))
    return table(*rows)


def programs():
    """Each figure with its ratio to the better of glibc and the backend alone."""
    rows = [("program", "allocator", "VmHWM", "CPU time", "page faults")]
    for row in read("programs.csv"):
        rows.append((row["program"], row["allocator"], f"{row['vm_hwm_mib']} MiB ({row['vm_hwm_of_better']} x)",
                     f"{row['cpu_seconds']} s ({row['cpu_of_better']} x)", f"{int(row['minor_faults']):,}"))
    return table(*rows)


def instructions():
    """In all for planned pairs; what is more than the backend's own for small ones, the dearer of the two phases."""
    small = {"64": "64 B", "1024": "1 KiB"}
    planned = {"65536": "64 KiB", "1048576": "1 MiB", "2621440": "2.5 MiB in 40 cells", "5242880": "5 MiB in 80 cells"}
    heads = [f"{size}: backend alone, more" for size in small.values()]
    rows = [("interface", "backend", *heads, *(f"{size} planned, in all" for size in planned.values()))]
    results = [row for row in read("instructions.csv") if row["interface"] != "planner"]
    for interface, backend in dict.fromkeys((row["interface"], row["backend"]) for row in results):
        here = [row for row in results if (row["interface"], row["backend"]) == (interface, backend)]
        dearest = lambda size: max((r for r in here if r["bytes"] == size), key=lambda r: float(r["more"]))
        rows.append((
            {"rust": "Rust", "c": "C (preloaded)"}[interface],
            backend,
            *(f"{dearest(size)['backend alone']}, +{dearest(size)['more']}" for size in small),
            *(dearest(size)["stepalloc"] for size in planned),
        ))
    return table(*rows)


def plans():
    """Instructions of the quick planner by generated problem."""
    rows = [("generated", "of the load", "of the quick plan")]
    counts = {(row["backend"], row["bytes"]): int(row["stepalloc"]) for row in read("instructions.csv") if row["interface"] == "planner"}
    for work, problem in counts:
        if work == "quick_plan":
            of_load = counts.get(("load", problem))
            millions = lambda count: f"{count / 1e6:,.1f} M" if count else "-"
            rows.append((problem.replace("_", " "), millions(of_load), millions(counts[work, problem])))
    return table(*rows)


def instances():
    """Within the capacity of the name, the slowest variant of the same; without one; and the rival."""
    heads = ("instance", "blocks", "within its capacity", "same, slowest variant", "height / bound without one", "in a minute", "omnimalloc")
    rows, results = [heads], read("planner.csv")
    for name in dict.fromkeys(row["instance"] for row in results if row["variant"] == "as it is"):
        here = [row for row in results if row["instance"] == name]
        ours = [row for row in here if row["planner"] == "stepalloc"]
        within = [row for row in ours if row["capacity"]]
        if any(int(row["height"]) > int(row["capacity"]) for row in within):
            raise SystemExit(f"{name}: no plan within the capacity")
        free = [row for row in ours if not row["capacity"] and row["variant"] == "as it is"][0]
        rivals = [row for row in here if row["planner"].startswith("omnimalloc")]
        slowest = max(within, key=lambda row: float(row["cpu_seconds"]), default=None)
        rows.append((
            name,
            free["blocks"],
            f"{float(within[0]['cpu_seconds']):.3f} s" if within else "-",
            f"{float(slowest['cpu_seconds']):.3f} s ({slowest['variant']})" if within else "-",
            f"{float(free['ratio']):.6f}" + (" optimal" if free["proof"] else "") + f", {float(free['cpu_seconds']):.3f} s",
            "; ".join(
                f"{float(row['ratio']):.4f}" for row in ours if row["variant"] == "for a minute"
            ),
            "; ".join(f"{float(row['ratio']):.4f}, {float(row['cpu_seconds']):.1f} s" for row in rivals) or "-",
        ))
    return table(*rows)


def traces():
    """Both thresholds side by side."""
    results = [row for row in read("planner.csv") if row["variant"].startswith("blocks of ")]
    thresholds = list(dict.fromkeys(row["variant"] for row in results))
    rows = [("recorded program", *thresholds)]
    for name in dict.fromkeys(row["instance"] for row in results):
        cell = lambda row: (
            f"{row['blocks']}: {float(row['ratio']):.6f}" + (" optimal" if row["proof"] else "")
            + f", {float(row['cpu_seconds']):.3f} s"
        )
        rows.append((name, *(cell(row) for row in results if row["instance"] == name)))
    return table(*rows)


def scale():
    """Medians of the seeds, and the highest ratio."""
    results = [row for row in read("planner.csv") if row["variant"].startswith("seed ")]
    rows = [("generated", "blocks", "height / lower bound", "CPU time of the plan", "of the bound alone")]
    for name, blocks in dict.fromkeys((row["instance"], row["blocks"]) for row in results):
        here = [row for row in results if (row["instance"], row["blocks"]) == (name, blocks)]
        plans = [row for row in here if row["planner"] == "stepalloc"]
        ratios = sorted(float(row["ratio"]) for row in plans)
        median = lambda rows: statistics.median(float(row["cpu_seconds"]) for row in rows)
        rows.append((
            name,
            f"{int(blocks):,}",
            f"{ratios[0]:.4f} to {ratios[-1]:.4f}",
            f"{median(plans):.2f} s",
            f"{1000 * median([row for row in here if row['planner'] == 'lower bound alone']):.0f} ms",
        ))
    return table(*rows)


def everyday():
    """In millions."""
    rows = [("program", "instructions alone", "with the library", "arena")]
    for row in read("everyday.csv"):
        if row["same_output"] != "True":
            raise SystemExit(f"{row['program']}: its output is not the same")
        alone, arena = int(row["instructions_alone"]) / 1e6, int(row["arena_bytes"])
        rows.append((row["program"], f"{alone:,.1f} M", f"{float(row['ratio']):.3f} x", f"{arena} bytes" if arena else "none"))
    return table(*rows)


def start():
    """All that was measured: it is little."""
    rows = [("program", "allocator", "CPU time", "page faults", "VmHWM")]
    for row in read("start.csv"):
        hwm = f"{int(row['vm_hwm_kib']):,} KiB"
        rows.append((row["program"], row["allocator"], f"{int(row['cpu_microseconds']) / 1000:.2f} ms", f"{int(row['minor_faults']):,}", hwm))
    return table(*rows)


def unmodified():
    """Those that are above a limit, by more than chance, and the medians of all."""
    results = [row for row in read("unmodified.csv") if row["cpu_ratio"]]
    of = lambda row, figure: f"{float(row[figure + '_ratio']):.3f} ± {float(row[figure + '_error']):.3f}" if row[figure + "_ratio"] else "-"
    rows = [("program", "processes", "CPU time of glibc's", "CPU time, over glibc's", "VmHWM of glibc's", "VmHWM, over glibc's")]
    for row in results:
        if row["above"] and any("within chance" not in part for part in row["above"].split("; ")):
            peak = f"{float(row['peak_rival_bytes']) / (1 << 20):.1f} MiB" if float(row["peak_rival_bytes"] or 0) else "-"
            rows.append((row["program"], row["processes"], f"{1000 * float(row['cpu_seconds_rival']):.0f} ms", of(row, "cpu"), peak, of(row, "peak")))
    middle = lambda figure: f"{statistics.median(float(row[figure]) for row in results if row[figure]):.3f}"
    return f"The medians of {len(results)} programs are {middle('cpu_ratio')} and {middle('peak_ratio')}; {len(rows) - 1} are above a limit:\n\n{table(*rows)}"


def workloads():
    """Ours over glibc, and of the rivals the one with the shortest step and the one with the lowest peak."""
    rows = [("workload", "allocator", "time of a step", "page faults of a run", "VmHWM", "bytes in slots", "in slots or gaps")]
    results = read("workloads.csv")
    percent = lambda share: f"{share} %" if share else "-"
    cell = lambda row, figure, digits, unit: f"{float(row[figure]):,.{digits}f} ± {float(row[figure + '_spread']):,.{digits}f}{unit}"
    for workload in dict.fromkeys(row["workload"] for row in results):
        here = [row for row in results if row["workload"] == workload]
        rivals = [row for row in here if not row["allocator"].startswith("stepalloc/")]
        fastest = min(rivals, key=lambda row: float(row["step_milliseconds"]))
        smallest = min(rivals, key=lambda row: float(row["vm_hwm_mib"]))
        for row in here:
            if row["allocator"] not in ("glibc", "stepalloc/glibc") and row not in (fastest, smallest):
                continue
            notes = ["shortest step"] * (row is fastest) + ["lowest peak"] * (row is smallest)
            rows.append((
                workload,
                row["allocator"] + (f" ({', '.join(notes)} of the rivals)" if notes else ""),
                cell(row, "step_milliseconds", 2, " ms"),
                cell(row, "minor_faults", 0, ""),
                cell(row, "vm_hwm_mib", 1, " MiB"),
                percent(row["slots_percent"]),
                percent(row["arena_percent"]),
            ))
    return table(*rows)


def models():
    """Times and the growth of the peak beside both rivals."""
    rows = [("model", "run", "ONNX Runtime", "OpenVINO", "VmHWM grows by", "ONNX Runtime", "OpenVINO", "arena / lower bound", "error")]
    ms = lambda text: "-" if text == "nan" else f"{float(text):.2f} ms"
    mib = lambda text: "-" if text == "nan" else f"{float(text) / (1 << 20):.1f} MiB"
    for row in read("models.csv"):
        arena = int(row["arena_bytes"]) / int(row["lower_bound_bytes"])
        rows.append((
            row["model"],
            *(ms(row[name]) for name in ("ms", "ort_ms", "openvino_ms")),
            *(mib(row[name]) for name in ("grown_bytes", "ort_grown_bytes", "openvino_grown_bytes")),
            f"{arena:.2f}",
            row["error"],
        ))
    return table(*rows)


def exported():
    """Times beside ONNX Runtime's with one thread and with two, and memory."""
    rows = [("model", "run", "ONNX Runtime", "ratio", "ratio, 2 threads", "VmHWM grows by", "ONNX Runtime", "arena / lower bound", "error")]
    results = read("exported.csv")
    mib = lambda text: f"{float(text) / (1 << 20):.1f} MiB"
    two = {row["model"]: row for row in results if row["threads"] == "2"}
    for row in (row for row in results if row["threads"] == "1"):
        bound = int(row["lower_bound_bytes"])
        rows.append((
            row["model"], f"{float(row['ms']):.2f} ms", f"{float(row['ort_ms']):.2f} ms", row["ms_ratio"],
            two[row["model"]]["ms_ratio"] if row["model"] in two else "-",
            mib(row["grown_bytes"]), mib(row["ort_grown_bytes"]), f"{int(row['arena_bytes']) / bound:.2f}" if bound else "-", row["error"],
        ))
    return table(*rows)


def exported_ir():
    """Times beside OpenVINO's with weights of 32 bits and of 16, and memory."""
    rows = [("model", "run", "OpenVINO", "ratio", "ratio, 16 bits", "VmHWM grows by", "OpenVINO", "error", "error, 16 bits")]
    results = read("exported_ir.csv")
    mib = lambda text: f"{float(text) / (1 << 20):.1f} MiB"
    halves = {row["model"]: row for row in results if row["bits"] == "16" and row["threads"] == "1"}
    for row in (row for row in results if row["bits"] == "32" and row["threads"] == "1"):
        half = halves.get(row["model"], {"ms_ratio": "-", "error": "-"})
        rows.append((
            row["model"], f"{float(row['ms']):.2f} ms", f"{float(row['openvino_ms']):.2f} ms", row["ms_ratio"], half["ms_ratio"],
            mib(row["grown_bytes"]), mib(row["openvino_grown_bytes"]), row["error"], half["error"],
        ))
    return table(*rows)


def decode():
    """Time a token, and memory, beside ONNX Runtime."""
    rows = [("model", "tokens before", "a token", "ONNX Runtime", "ratio", "plans", "bytes copied", "VmHWM grows by", "ONNX Runtime", "error")]
    mib = lambda text: f"{float(text) / (1 << 20):.0f} MiB"
    for row in read("decode.csv"):
        rows.append((
            row["model"], row["past"], f"{float(row['ms']):.2f} ms", f"{float(row['ort_ms']):.2f} ms", row["ms_ratio"], row["plans_made"],
            row["copied_bytes"], mib(row["grown_bytes"]), mib(row["ort_grown_bytes"]), row["error"],
        ))
    return table(*rows)


def compare():
    """How often alike allocators were called equal, and a planted difference was found."""
    return table(("compared", "right"), *((row["compared"], f"{row['right']} of {row['sittings']}") for row in read("compare.csv")))


def recording():
    """What is more than the library alone, in percent of the instructions."""
    heads = {"json": "`--json`", "report": "`--report`", "trace": "`--trace`", "call_sites": "`--trace --call-sites`"}
    rows = [("program", "instructions with the library", *heads.values())]
    for row in read("recording.csv"):
        more = (f"{100 * (float(row[f'{way}_ratio']) - 1):+.2f} %" for way in heads)
        rows.append((row["program"], f"{int(row['instructions_preloaded']) / 1e6:,.0f} M", *more))
    return table(*rows)


def machine():
    """The newest of each machine's descriptions: which results are whose."""
    rows = [("results", "processor", "cores", "memory", "Linux", "C library", "Rust", "Python, torch, numpy", "measured on", "commit")]
    for row in read("machine.csv"):
        versions = ", ".join(row[name] or "-" for name in ("python", "torch", "numpy"))
        rows.append((row["results"], row["processor"], row["cores"], f"{int(row['memory_mib']) / 1024:.0f} GiB", row["kernel"],
                     row["libc"], row["rustc"].split()[1], versions, row["measured"], row["commit"]))
    return table(*rows)


def plot():
    """CPU time and peak of the PyTorch workloads, each in multiples of the rivals' least; the lower left is best."""
    import matplotlib
    matplotlib.use("svg")
    from matplotlib import pyplot
    # The same file from the same figures.
    matplotlib.rcParams.update({"svg.hashsalt": "stepalloc", "svg.fonttype": "none", "font.size": 9})
    results = [row for row in read("pytorch.csv") if row["allocator"] != FLOOR]
    workloads = list(dict.fromkeys(row["workload"] for row in results))
    names = list(dict.fromkeys(row["allocator"] for row in results))
    figure, panels = pyplot.subplots(1, len(workloads), figsize=(2.4 * len(workloads), 3.4), sharex=True, sharey=True)
    for workload, panel in zip(workloads, panels):
        here = [row for row in results if row["workload"] == workload]
        rivals = [row for row in here if not row["allocator"].startswith("stepalloc/")]
        cpu, peak = (min(float(row[column]) for row in rivals) for column in ("cpu_ratio", "vm_hwm_whole_mib"))
        for row in here:
            index, ours = names.index(row["allocator"]), row not in rivals
            panel.plot(float(row["cpu_ratio"]) / cpu, float(row["vm_hwm_whole_mib"]) / peak, "*sD"[index % 3] if ours else "ov^<>P"[index % 6],
                       color="#d9480f" if ours else f"C{index}", markersize=9 if ours else 7, alpha=0.8, linestyle="none",
                       label=row["allocator"], zorder=3 if ours else 2)
        panel.set_title(workload)
        panel.grid(color="#dddddd", linewidth=0.5)
        panel.axhline(1, color="#999999", linewidth=0.7)
        panel.axvline(1, color="#999999", linewidth=0.7)
    panels[0].set_ylabel("VmHWM / lowest of the rivals")
    figure.supxlabel("CPU time per step / least of the rivals", fontsize=9, y=0.12)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncol=len(labels), frameon=False, fontsize=8)
    figure.subplots_adjust(left=0.07, right=0.99, top=0.92, bottom=0.26, wspace=0.08)
    figure.savefig(ROOT / "benches/results/pytorch.svg", metadata={"Date": None})


def main():
    plot()
    tables = {
        "README.md": (short,),
        "BENCHMARKS.md": (pytorch, others, engines, programs, workloads, models, exported, exported_ir, decode, instances, traces, scale, plans, instructions, recording, everyday, start, unmodified,
                          compare, machine),
    }
    for name, of_it in tables.items():
        path = ROOT / name
        text = path.read_text()
        for make in of_it:
            pattern = rf"(<!-- {make.__name__}: [^\n]*-->\n).*?(<!-- end of {make.__name__} -->)"
            text, count = re.subn(pattern, lambda match: match[1] + content(make) + match[2], text, flags=re.DOTALL)
            if count != 1:
                raise SystemExit(f"{name}: {count} places for the table {make.__name__}, not one")
        path.write_text(text)


def content(make):
    """A table and its line's end; the command that measures it, where that was not done."""
    try:
        return make() + "\n"
    except FileNotFoundError as missing:
        bench = pathlib.Path(missing.filename).stem
        print(f"{make.__name__}: no {bench}.csv", file=sys.stderr)
        return f"Not measured yet on this version: `benches/all.py --only {bench}`.\n"


if __name__ == "__main__":
    main()
