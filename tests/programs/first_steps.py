"""Runs a program that reads time.perf_counter before and after each step, and prints of each step: page faults, and the phase.

    first_steps.py PROGRAM ARGUMENTS...

The last line is a JSON list of pairs; the phase, as stepalloc_phase() says it, is 2 where a plan serves.
"""
import ctypes, json, resource, runpy, sys, time

clock = time.perf_counter
phase = ctypes.CDLL(None).stepalloc_phase
steps, began = [], []


def noted():
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    if began:
        steps.append((faults - began.pop(), phase()))
    else:
        began.append(faults)
    return clock()


time.perf_counter = noted
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
print(json.dumps(steps))
