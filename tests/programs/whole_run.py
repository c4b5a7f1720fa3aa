"""Runs a program that starts VmHWM anew on its way, and does not let it: what it prints is of the whole run.

    whole_run.py PROGRAM ARGUMENTS...
"""
import builtins, runpy, sys

opened = builtins.open


def refused(name, *arguments, **named):
    if name == "/proc/self/clear_refs":
        raise PermissionError(name)
    return opened(name, *arguments, **named)


builtins.open = refused
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
