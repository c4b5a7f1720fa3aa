"""Call sites: names for the preloaded library the line of Python in which its blocks were asked for.

Begun by ``stepalloc.pth`` when the interpreter starts under ``stepalloc run --call-sites``, and never otherwise. Lines are
followed by :func:`sys.settrace`, because only it knows of operators; a program that uses it itself (a debugger, coverage)
takes it over, and has no frames from then on. It slows Python's own work down several times; what is done in libraries is as
fast as ever. The library is asked at each line whether something was traced since the one before, and only then given where
that was.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from types import FrameType
from typing import Any, Callable

__all__ = ["begin"]

#: Frames of a stack, at most; of deeper stacks the innermost are recorded.
_DEPTH = 24


def begin() -> bool:
    """Follows this process's lines from now on; False where nobody wants to know."""
    try:
        # Other than CDLL this keeps the interpreter's lock.
        library = ctypes.PyDLL(None)
        traced, name = library.stepalloc_traced, library.stepalloc_name_site
    except (AttributeError, OSError, TypeError):
        return False
    traced.argtypes, traced.restype = (), ctypes.c_int
    name.argtypes, name.restype = (ctypes.c_char_p,), None
    if traced() < 0 or sys.gettrace() is not None:
        return False
    follow = _follower(traced, name)
    threading.settrace(follow)
    sys.settrace(follow)
    return True


def _frame(frame: FrameType, line: int) -> str:
    code = frame.f_code
    return f"{code.co_name} ({os.path.basename(code.co_filename)}:{line})".replace(";", ":")


def _stack(frame: FrameType | None, line: int) -> bytes:
    """A line and those that led to it, outermost first."""
    frames: list[str] = []
    while frame is not None and len(frames) < _DEPTH:
        frames.append(_frame(frame, line))
        frame = frame.f_back
        line = frame.f_lineno if frame is not None else 0
    return ";".join(reversed(frames)).encode(errors="replace")


def _follower(traced: Callable[[], int], name: Callable[[bytes], None]) -> Callable[..., Any]:
    """What is called at each call of a function; it returns what is called at each of its lines."""

    def record(frame: FrameType | None, line: int) -> bool:
        """Records where the thread was until now, if that is wanted; False where nothing more is."""
        answer = traced()
        if answer > 0:
            name(_stack(frame, line))
        elif answer < 0:
            sys.settrace(None)
        return answer >= 0

    def called(frame: FrameType, event: str, argument: Any) -> Callable[..., Any] | None:
        caller = frame.f_back
        if not record(caller, caller.f_lineno if caller is not None else 0):
            return None
        before = frame.f_lineno

        def follow(frame: FrameType, event: str, argument: Any) -> Callable[..., Any] | None:
            nonlocal before
            wanted = record(frame, before)
            before = frame.f_lineno
            return follow if wanted else None

        return follow

    return called
