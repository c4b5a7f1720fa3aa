"""``python -m stepalloc``: a Python program with libstepalloc.so in front of its malloc.

LD_PRELOAD is read when a process starts, so the interpreter executes itself anew, with the same options, with the
program in the place of ours, and with the library of this package before what LD_PRELOAD held. The process stays the
same one: streams, signals and the exit status are the program's. Where a library is preloaded already (``stepalloc run``,
or a ``python -m stepalloc`` further up), that one is used.
"""

from __future__ import annotations

import hashlib
import os
import sys
from typing import NoReturn

import stepalloc

USAGE = """\
usage: python -m stepalloc [OPTIONS] SCRIPT [ARGS]
       python -m stepalloc [OPTIONS] -m MODULE [ARGS]
       python -m stepalloc [OPTIONS] -c CODE [ARGS]

Runs a Python program with the memory of its steps planned. Steps are found by the period of its allocations, or marked
by it with stepalloc.step(). Options of the interpreter (-O, -u, -W, -X) stand before -m stepalloc, and are kept.

options:
  --backend B    the backend: glibc, jemalloc or mimalloc [default: STEPALLOC_BACKEND, else glibc]
  --json F       append one JSON object to this file for each process that made steps, when it ends
  --plan F       begin with the plans of this file, and keep new ones in it
  --min-bytes N  plan blocks of N bytes and more, 1024 at least [default: STEPALLOC_MIN_BYTES, else 32768]
  -h, --help     show this
  --version      show the version

All other settings are taken from the environment: START_STATISTIC_STEP, STABLE_STATISTIC_STEP, MAX_STATISTIC_STEP,
ENABLE_MEMORY_OPTIMIZATION, STEPALLOC_*.

Exit status: the program's own; 2 wrong arguments, and nothing was run; 126 the interpreter cannot be executed again.

examples:
  python -m stepalloc train.py --epochs 3
  python -m stepalloc --backend jemalloc --json figures.json train.py
  python -O -m stepalloc -m package.train --epochs 3
  python -m stepalloc -c 'import stepalloc; print(stepalloc.stats())'"""

BACKENDS = ("glibc", "jemalloc", "mimalloc")
#: Below it a slot's bookkeeping costs more than the block; the library refuses less.
LEAST_MIN_BYTES = 1024
#: Options and the settings they stand for.
SETTINGS = {
    "--backend": "STEPALLOC_BACKEND",
    "--json": "STEPALLOC_JSON",
    "--plan": "STEPALLOC_PLAN",
    "--min-bytes": "STEPALLOC_MIN_BYTES",
}
#: Beside this file; where the wheel's build puts it.
LIBRARY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "stepalloc", "libstepalloc.so")


class Refused(Exception):
    """Nothing is run: what is wrong, where, and what to do."""


def setting(option: str, value: str) -> str:
    """The value of an option as its setting takes it."""
    if option == "--backend" and value not in BACKENDS:
        raise Refused(f"--backend {value}: no such backend; give one of {', '.join(BACKENDS)}")
    if option == "--min-bytes" and not (value.isascii() and value.isdigit() and int(value) >= LEAST_MIN_BYTES):
        raise Refused(f"--min-bytes {value}: give a decimal number of bytes, {LEAST_MIN_BYTES} at least")
    if option in ("--json", "--plan"):
        if value in ("", "-"):
            raise Refused(f"{option} {value}: give the path of a file; standard output is the program's own")
        # The program may change its directory before the file is written.
        value = os.path.abspath(value)
    if option == "--json":
        try:
            open(value, "a").close()
        except OSError as error:
            raise Refused(f"--json {value}: cannot be written: {error.strerror}; give another path") from None
    return value


def parse(arguments: list[str]) -> tuple[dict[str, str], list[str]]:
    """Our options as settings, and the program with its arguments, as the interpreter takes them."""
    settings: dict[str, str] = {}
    rest = list(arguments)
    while rest:
        option, equals, value = rest[0].partition("=")
        if option in ("-h", "--help"):
            print(USAGE)
            sys.exit(0)
        if option == "--version":
            from importlib.metadata import version

            print("stepalloc", version("stepalloc"))
            sys.exit(0)
        if option not in SETTINGS:
            break
        del rest[0]
        if not equals:
            if not rest:
                raise Refused(f"{option}: a value is missing; python -m stepalloc --help shows the options")
            value = rest.pop(0)
        settings[SETTINGS[option]] = setting(option, value)
    if rest[:1] == ["--"]:
        del rest[0]
    check(rest)
    return settings, rest


def check(program: list[str]) -> None:
    """Refuses what the interpreter would not run, or would take for something else."""
    if not program:
        raise Refused("no program; give a script, -m MODULE or -c CODE (python -m stepalloc --help shows examples)")
    first = program[0]
    if first in ("-m", "-c"):
        if len(program) == 1:
            raise Refused(f"{first}: {'a module' if first == '-m' else 'code'} is missing after it")
    elif first.startswith("-") and first != "-" and not first.startswith(("-m", "-c")):
        raise Refused(
            f"{first}: no such option; the interpreter's stand before -m stepalloc, "
            "and python -m stepalloc --help shows ours"
        )
    elif not first.startswith("-") and not os.path.exists(first):
        where = "" if os.path.isabs(first) else f" in {os.getcwd()}"
        raise Refused(f"{first}: no such file{where}; give the path of a script, or -m and a module's name")


def interpreter_options() -> list[str]:
    """The options that stood before ``-m stepalloc``."""
    if sys.version_info >= (3, 10):
        line = sys.orig_argv
    else:
        with open("/proc/self/cmdline", "rb") as file:
            line = [os.fsdecode(argument) for argument in file.read().split(b"\0")[:-1]]
    options = line[1 : len(line) - len(sys.argv[1:])]
    # What names us comes last: -m stepalloc, -mstepalloc, -Om stepalloc, or the path of the package.
    module = options.pop() if options else ""
    if module.startswith("-"):
        options.append(module[: module.index("m")])
    elif options and options[-1].startswith("-") and options[-1].endswith("m"):
        options.append(options.pop()[:-1])
    return [option for option in options if option != "-"]


def understood(path: str) -> bool:
    """Whether LD_PRELOAD can hold the path: spaces and colons separate, ``$`` has a meaning, and none can be escaped."""
    return not any(character in path for character in " :$")


def reachable(library: str) -> str:
    """The library's path, or that of a link to it, in a form that LD_PRELOAD can hold."""
    if not os.path.isfile(library):
        raise Refused(f"{library}: not found; install the wheel of stepalloc again (pip install --force-reinstall)")
    if understood(library):
        return library
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    # The link has to outlive this process, as the program may start others at any time; one for each library.
    name = hashlib.sha256(os.fsencode(library)).hexdigest()[:16]
    link = os.path.join(cache, "stepalloc", name, "libstepalloc.so")
    why = "its path has one, too"
    if understood(link):
        try:
            os.makedirs(os.path.dirname(link), exist_ok=True)
            if not os.path.lexists(link):
                os.symlink(library, link)
        except FileExistsError:  # Another process was first.
            pass
        except OSError as error:
            why = str(error.strerror)
        if os.path.exists(link) and os.path.samefile(link, library):
            return link
    raise Refused(
        f"{library}: LD_PRELOAD cannot hold a path with a space, a colon or a dollar sign, and {link} "
        f"cannot be a link to it: {why}; install the wheel elsewhere, or set XDG_CACHE_HOME"
    )


def main() -> NoReturn:
    """Executes the interpreter anew, with the library preloaded; exits with a line where it cannot."""
    try:
        settings, program = parse(sys.argv[1:])
        environment = {**os.environ, **settings}
        if not stepalloc._preloaded:
            before = os.environ.get("LD_PRELOAD")
            environment["LD_PRELOAD"] = reachable(LIBRARY) + (f":{before}" if before else "")
    except Refused as refused:
        print(f"stepalloc: {refused}", file=sys.stderr)
        sys.exit(2)
    try:
        os.execve(sys.executable, [sys.executable, *interpreter_options(), *program], environment)
    except OSError as error:
        print(f"stepalloc: {sys.executable!r}: cannot be executed again: {error.strerror}", file=sys.stderr)
        sys.exit(126)


if __name__ == "__main__":
    main()
