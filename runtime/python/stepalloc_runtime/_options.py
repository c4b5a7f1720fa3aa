"""Options of sessions and runs, by ONNX Runtime's names. What is not known, or cannot be had, is refused by name."""

from __future__ import annotations

import enum
import os
from typing import Any

from . import _library
from ._library import Handle, InvalidArgument, encode


class GraphOptimizationLevel(enum.IntEnum):
    """How far the graph is optimized when the first plan is made."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(enum.IntEnum):
    """Nodes run one after the other; work within a node is shared among threads."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class ExecutionOrder(enum.IntEnum):
    """The order of nodes is the plan's, whichever is asked for."""

    DEFAULT = 0
    PRIORITY_BASED = 1
    MEMORY_EFFICIENT = 2


_LEVELS = {
    GraphOptimizationLevel.ORT_DISABLE_ALL: "disable",
    GraphOptimizationLevel.ORT_ENABLE_BASIC: "basic",
    GraphOptimizationLevel.ORT_ENABLE_EXTENDED: "extended",
    GraphOptimizationLevel.ORT_ENABLE_LAYOUT: "extended",
    GraphOptimizationLevel.ORT_ENABLE_ALL: "all",
}

#: Attributes of SessionOptions with their defaults. The second group says nothing here: there is no log, and runs do not differ.
_DEFAULTS: dict[str, Any] = {
    "enable_cpu_mem_arena": True,
    "enable_mem_pattern": True,
    "graph_optimization_level": GraphOptimizationLevel.ORT_ENABLE_ALL,
    "intra_op_num_threads": 0,
    "optimized_model_filepath": "",
    "max_mem": None,
    "arena_extend_strategy": "kSameAsRequested",
    "compilation_num_threads": 0,
    "prepacking": True,
    "huge_pages": False,
    "plans": 16,
    "disabled_optimizers": (),
    "arenas": None,
    "enable_mem_reuse": True,
    "enable_profiling": False,
    "execution_mode": ExecutionMode.ORT_SEQUENTIAL,
    "execution_order": ExecutionOrder.DEFAULT,
    "inter_op_num_threads": 0,
    "use_deterministic_compute": False,
    "log_severity_level": 2,
    "log_verbosity_level": 0,
    "logid": "",
    "profile_file_prefix": "",
}
#: What can be said in one way only, and what to do instead.
_FIXED: dict[str, tuple[tuple[Any, ...], str]] = {
    "enable_mem_reuse": ((True,), "enable_mem_pattern = False gives every value memory of its own"),
    "enable_profiling": ((False,), "InferenceSession.profile() tells the time and memory of each node"),
    "execution_mode": ((ExecutionMode.ORT_SEQUENTIAL,), "nodes run one after the other, on intra_op_num_threads threads"),
    "inter_op_num_threads": ((0, 1), "nodes run one after the other, on intra_op_num_threads threads"),
}
_ENTRIES = {
    "session.use_env_allocators": ("0", "1"),
    "session.disable_prepacking": ("0", "1"),
}


class Arenas:
    """Arenas for several sessions (``SessionOptions.arenas``): those that do not run at the same time use the same one. Together they may
    have ``max_mem`` bytes at one time, outputs until the caller has them and copied weights among them."""

    def __init__(self, max_mem: int | None = None, arena_extend_strategy: str = "kSameAsRequested") -> None:
        _whole("max_mem", max_mem)
        self.max_mem = max_mem
        self.arena_extend_strategy = arena_extend_strategy
        self._handle = Handle("arenas", _library.handle("arenas_new", (1 << 64) - 1 if max_mem is None else max_mem))


#: What ``create_and_register_allocator`` has made, for sessions with ``session.use_env_allocators``.
_registered: Arenas | None = None


def register(arenas: Arenas) -> None:
    """For sessions that are made from now on."""
    global _registered
    _registered = arenas


def _whole(name: str, value: Any) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 64):
        raise InvalidArgument(f"{name} is {value!r}: give a number of 0 or more")


class SessionOptions:
    """Options of a session, as ONNX Runtime's, and of our own:

    - ``max_mem``: bytes that arenas, outputs and copied weights may have at one time; a run that needs more is an error.
    - ``arena_extend_strategy``: ``kSameAsRequested`` or ``kNextPowerOfTwo``. ``arenas``: :class:`Arenas` shared with other sessions.
    - ``compilation_num_threads``: for what is done before the first run. ``prepacking``: constant weights are packed once.
    - ``huge_pages``: asked for behind large arenas. ``plans``: kept for so many sets of input types.
    - ``disabled_optimizers``: names of passes to leave out.
    """

    enable_cpu_mem_arena: bool
    enable_mem_pattern: bool
    graph_optimization_level: GraphOptimizationLevel
    intra_op_num_threads: int
    optimized_model_filepath: str
    max_mem: int | None
    arena_extend_strategy: str
    compilation_num_threads: int
    prepacking: bool
    huge_pages: bool
    plans: int
    disabled_optimizers: tuple[str, ...]
    arenas: Arenas | None
    enable_mem_reuse: bool
    enable_profiling: bool
    execution_mode: ExecutionMode
    execution_order: ExecutionOrder
    inter_op_num_threads: int
    use_deterministic_compute: bool
    log_severity_level: int
    log_verbosity_level: int
    logid: str
    profile_file_prefix: str

    def __init__(self) -> None:
        self.__dict__.update(_DEFAULTS)
        self.__dict__["_entries"] = {}

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in _DEFAULTS:
            raise AttributeError(f"SessionOptions has no option {name} here; there are {', '.join(_DEFAULTS)}")
        allowed = _FIXED.get(name)
        if allowed is not None and value not in allowed[0]:
            raise InvalidArgument(f"{name} cannot be {value!r}: {allowed[1]}")
        default = _DEFAULTS[name]
        if isinstance(default, bool) and not isinstance(value, (bool, int)):
            raise TypeError(f"{name} is {value!r}: give True or False")
        if isinstance(default, int) and not isinstance(default, (bool, enum.Enum)) or name == "max_mem":
            _whole(name, value)
        if name == "graph_optimization_level":
            value = GraphOptimizationLevel(value)
        if name == "arenas" and not isinstance(value, (Arenas, type(None))):
            raise TypeError(f"arenas is {value!r}: give an Arenas")
        if name == "disabled_optimizers":
            value = (value,) if isinstance(value, str) else tuple(value)
        self.__dict__[name] = value

    def add_session_config_entry(self, key: str, value: str) -> None:
        """``session.use_env_allocators`` (1: the arenas of ``create_and_register_allocator``), ``session.disable_prepacking`` (1:
        weights are not packed, as without ``prepacking``)."""
        _entry(_ENTRIES, key, value, "session")
        self.__dict__["_entries"][key] = value
        if key == "session.disable_prepacking":
            self.prepacking = value == "0"

    def get_session_config_entry(self, key: str) -> str:
        """What :meth:`add_session_config_entry` was told."""
        try:
            return self.__dict__["_entries"][key]
        except KeyError:
            raise InvalidArgument(f"there is no session configuration {key}") from None

    def _handle(self, more_disabled: Any = ()) -> Handle:
        """The library's options."""
        made = Handle("options", _library.handle("options_new"))
        arenas = self.arenas
        if arenas is None and self.__dict__["_entries"].get("session.use_env_allocators") == "1":
            arenas = _registered
            if arenas is None:
                raise InvalidArgument("session.use_env_allocators: there is none; call create_and_register_allocator first")
        strategy = self.arena_extend_strategy
        if arenas is not None:
            if strategy == _DEFAULTS["arena_extend_strategy"]:
                strategy = arenas.arena_extend_strategy
            _library.call("options_set_arenas", made.value, arenas._handle.value)
        told = {
            "enable_cpu_mem_arena": int(bool(self.enable_cpu_mem_arena)),
            "enable_mem_pattern": int(bool(self.enable_mem_pattern)),
            "graph_optimization_level": _LEVELS[self.graph_optimization_level],
            "intra_op_num_threads": self.intra_op_num_threads,
            "compilation_num_threads": self.compilation_num_threads,
            "arena_extend_strategy": strategy,
            "prepacking": int(bool(self.prepacking)),
            "huge_pages": int(bool(self.huge_pages)),
            "plans": self.plans,
            "disabled_optimizers": ",".join((*self.disabled_optimizers, *more_disabled)),
            "optimized_model_filepath": os.fspath(self.optimized_model_filepath or ""),
        }
        if self.max_mem is not None:
            told["max_mem"] = self.max_mem
        for name, value in told.items():
            _library.call("options_set", made.value, encode(name), encode(str(value)))
        return made


def _entry(known: dict[str, tuple[str, ...]], key: str, value: str, of: str) -> None:
    if key not in known:
        raise InvalidArgument(f"there is no {of} configuration {key} here; there are {', '.join(known)}")
    if value not in known[key]:
        raise InvalidArgument(f"{key} is {value!r}: give {' or '.join(map(repr, known[key]))}")


_SHRINKAGE = "memory.enable_memory_arena_shrinkage"


class RunOptions:
    """Options of a run. ``terminate = True`` ends the runs that have them, from any thread, before their next node."""

    #: There is no log; outputs that nobody asked for are computed all the same.
    _IGNORED = ("log_severity_level", "log_verbosity_level", "logid", "only_execute_path_to_fetches")

    terminate: bool
    log_severity_level: int
    log_verbosity_level: int
    logid: str
    only_execute_path_to_fetches: bool

    def __init__(self) -> None:
        self.__dict__.update(
            _handle=Handle("run_options", _library.handle("run_options_new")),
            _entries={},
            terminate=False,
            log_severity_level=2,
            log_verbosity_level=0,
            logid="",
            only_execute_path_to_fetches=False,
        )

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "terminate":
            _library.call("run_options_terminate", self.__dict__["_handle"].value, bool(value))
        elif name not in self._IGNORED:
            raise AttributeError(f"RunOptions has no option {name} here; there are terminate, {', '.join(self._IGNORED)}")
        self.__dict__[name] = value

    def add_run_config_entry(self, key: str, value: str) -> None:
        """``memory.enable_memory_arena_shrinkage``: ``cpu:0``, or nothing."""
        _entry({_SHRINKAGE: ("cpu:0", "")}, key, value, "run")
        self.__dict__["_entries"][key] = value
        _library.call("run_options_set_arena_shrinkage", self.__dict__["_handle"].value, value != "")

    def get_run_config_entry(self, key: str) -> str:
        """What :meth:`add_run_config_entry` was told."""
        try:
            return self.__dict__["_entries"][key]
        except KeyError:
            raise InvalidArgument(f"there is no run configuration {key}") from None


class OrtAllocatorType(enum.IntEnum):
    """There are arenas; which of these is asked for makes no difference."""

    ORT_DEVICE_ALLOCATOR = 0
    ORT_ARENA_ALLOCATOR = 1


class OrtMemType(enum.IntEnum):
    """The CPU's memory, whichever is asked for."""

    CPU_INPUT = -2
    CPU_OUTPUT = -1
    DEFAULT = 0


class OrtMemoryInfo:
    """The memory that :func:`create_and_register_allocator` is for: that of the CPU."""

    def __init__(self, name: str, allocator_type: Any, id_: int = 0, mem_type: Any = OrtMemType.DEFAULT) -> None:
        if name.lower() != "cpu":
            raise InvalidArgument(f"memory {name!r}: there is the CPU's only; give 'Cpu'")
        self.name, self.allocator_type, self.id, self.mem_type = name, allocator_type, id_, mem_type


class OrtArenaCfg:
    """Limits and strategy of an arena: ``OrtArenaCfg({"max_mem": 1 << 28, "arena_extend_strategy": 1})``, or the four numbers
    ``max_mem, arena_extend_strategy, initial_chunk_size_bytes, max_dead_bytes_per_chunk``. 0 of ``max_mem`` is no limit; of the strategy 0
    (-1: the default) is kNextPowerOfTwo, 1 kSameAsRequested. The sizes of chunks say nothing here: an arena is as large as its plan."""

    _KNOWN = (
        "max_mem",
        "arena_extend_strategy",
        "initial_chunk_size_bytes",
        "max_dead_bytes_per_chunk",
        "initial_growth_chunk_size_bytes",
        "max_power_of_two_extend_bytes",
    )

    def __init__(self, *told: Any) -> None:
        if len(told) == 1 and isinstance(told[0], dict):
            settings = dict(told[0])
        elif len(told) == 4:
            settings = dict(zip(self._KNOWN, told))
        else:
            raise TypeError("give a dict, or max_mem, arena_extend_strategy, initial_chunk_size_bytes and max_dead_bytes_per_chunk")
        unknown = [name for name in settings if name not in self._KNOWN]
        if unknown:
            raise InvalidArgument(f"there is no arena setting {unknown[0]}; there are {', '.join(self._KNOWN)}")
        self.max_mem: int = settings.get("max_mem", 0)
        _whole("max_mem", self.max_mem)
        strategy = settings.get("arena_extend_strategy", -1)
        if strategy not in (-1, 0, 1):
            raise InvalidArgument(f"arena_extend_strategy is {strategy!r}: give -1, 0 or 1")
        #: The default stays ours, which takes less memory.
        self.arena_extend_strategy = "kNextPowerOfTwo" if strategy == 0 else "kSameAsRequested"


def create_and_register_allocator(mem_info: OrtMemoryInfo, arena_cfg: OrtArenaCfg | None = None) -> None:
    """Arenas that sessions made later share, where their options say ``session.use_env_allocators``."""
    if not isinstance(mem_info, OrtMemoryInfo):
        raise TypeError(f"mem_info is {mem_info!r}: give an OrtMemoryInfo")
    max_mem = arena_cfg.max_mem if arena_cfg is not None else 0
    strategy = arena_cfg.arena_extend_strategy if arena_cfg is not None else "kSameAsRequested"
    register(Arenas(max_mem or None, strategy))
