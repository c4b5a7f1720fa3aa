"""Stepalloc for Python: serves the memory of a program's repeated step from one planned arena.

Start the program with the library in front of its malloc::

    python -m stepalloc train.py --epochs 3

Steps are found by the period of the program's large allocations. A program that knows better where its steps begin
says so, in either of two ways::

    import stepalloc

    for batch in batches:
        stepalloc.step()            # a boundary: the step before ends here, and the next begins
        train(batch)

    for batch in batches:
        with stepalloc.step():      # the same, as a scope
            train(batch)

From the first mark on only marks count. :func:`stats` and :func:`phase` report what was learned and planned.

The functions are those of whichever libstepalloc.so is preloaded, by ``python -m stepalloc``, by ``stepalloc run`` or by
hand. Where none is, they do nothing, say so once on standard error, and the program runs as it would without them; so
a script that marks its steps needs no other version of itself. None of them raises.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import threading
from typing import Any, Callable

__all__ = ["Step", "phase", "stats", "step"]

#: The phases, as ``stepalloc_phase`` numbers them.
_PHASES = ("waiting", "collecting", "planned")
#: Bytes for the statistics at first, which are some 900; below the least size that is ever planned by default.
_STATISTICS_BYTES = 8192

#: Held for good by the first caller who finds that the library is not there, and reports it.
_told = threading.Lock()
#: One item for each scope open now, in all threads. A list, because its methods are atomic and a sum's are not.
_open: list[None] = []


def _tell() -> None:
    """Says once in the process, on standard error, that there is no library."""
    if not _told.acquire(blocking=False):
        return
    try:
        sys.stderr.write(
            "stepalloc: libstepalloc.so is not preloaded, so step(), stats() and phase() do nothing; "
            "start the program with `python -m stepalloc`\n"
        )
    except Exception:  # Standard error may be closed, or None, or anything that the program put in its place.
        pass


_boundary: Callable[[], None] = _tell
_preloaded = False
try:
    # Other than CDLL this keeps the interpreter's lock, without which threads that open scopes at once all mark a boundary.
    _process = ctypes.PyDLL(None)
    _step = _process.stepalloc_step
    _step.argtypes, _step.restype = (), None
    _boundary = _step
    # A forked child has its steps to itself; scopes that its parent had open would hide them.
    os.register_at_fork(after_in_child=_open.clear)
    # `stepalloc compare` times steps under other allocators, too, which know nothing more of them.
    _phase, _stats_json = _process.stepalloc_phase, _process.stepalloc_stats_json
    _phase.argtypes, _phase.restype = (), ctypes.c_int
    _stats_json.argtypes, _stats_json.restype = (ctypes.c_char_p, ctypes.c_size_t), ctypes.c_size_t
    _preloaded = True
except (AttributeError, OSError, TypeError):  # No such symbol; no such handle, outside of Linux.
    pass


class Step:
    """A step as a scope: what :func:`step` returns, for ``with``. It ends no step by being left: what a program does
    between two scopes (loading the next batch, say) belongs to the step before."""

    __slots__ = ()

    def __enter__(self) -> Step:
        _open.append(None)
        return self

    def __exit__(self, *exception: object) -> None:
        if _open:  # A child forked within the scope has it open no more.
            _open.pop()


_STEP = Step()


def step() -> Step:
    """Marks a step boundary: the running step ends, and the next begins.

    Called alone it is that and no more. With ``with`` it opens a scope, too: while one is open, in whichever thread,
    calls do not count. So a library may mark its own steps, and an outer loop's marks stand above them.

    A boundary takes some microseconds, mostly of three system calls, and asks for no memory of planned size; after a step
    that was collected it can take some milliseconds.
    """
    if not _open:
        _boundary()
    return _STEP


def phase() -> str:
    """What the library is doing: ``"waiting"`` (counting steps, or sampling sizes for a period), ``"collecting"`` (recording),
    ``"planned"`` (serving from the plan), or ``"none"`` where it is not preloaded."""
    if not _preloaded:
        _tell()
        return "none"
    return _PHASES[_phase()]


def stats() -> dict[str, Any]:
    """The statistics of this process, as ``stepalloc run --json`` gives them at its end.

    Among them are ``"phase"``, ``"steps"``, whether they were ``"marked"``, ``"planned_at_step"`` (None: not yet),
    ``"arena_bytes"`` beside ``"lower_bound_bytes"``, and in ``"last_steps"``, a dict, figures of the newest planned steps:
    page faults, milliseconds (``"step_ms_median"``), and allocations and bytes ``planned``, from a ``gap``, and
    ``fallback``. Names that end in ``_bytes`` are in bytes.

    Where the library is not preloaded this is ``{"phase": "none"}``.
    """
    if not _preloaded:
        _tell()
        return {"phase": "none"}
    size = _STATISTICS_BYTES
    while True:
        text = ctypes.create_string_buffer(size)
        length = _stats_json(text, size)
        if length < size:
            # The program's name may be in any encoding.
            statistics: dict[str, Any] = json.loads(text.value.decode(errors="replace"))
            return statistics
        size = length + 1
