"""The registry of engines, and the active one."""

from __future__ import annotations

import contextlib
import contextvars
import copyreg
import importlib
import importlib.metadata
import importlib.util
import os
import re
from collections.abc import Callable, Generator, Sequence
from typing import Any

from multippo.backends.api import Engine
from multippo.errors import needing

VARIABLE = "MULTIPPO_BACKEND"
DEVICE_VARIABLE = "MULTIPPO_DEVICE"
ENTRY_POINT_GROUP = "multippo.backends"

_BUILT_IN = {  # name: (module of make_engine, packages it needs)
    "jax": ("multippo.backends.jax", ("jax", "flax", "optax")),
    "torch": ("multippo.backends.torch", ("torch",)),
    "numpy": ("multippo.backends.numpy", ("numpy",)),
}
_LAST = "numpy"
"""Engine that can't train, so it is the default only if no other is installed."""

_registered: dict[str, Callable[[], Engine]] = {}
_engines: dict[str, Engine] = {}
_override: contextvars.ContextVar[Engine | None] = contextvars.ContextVar("multippo_backend", default=None)
# Value of the variable, and the engine it led to, at the first use; one process has one default.
_default: tuple[str | None, Engine] | None = None


def register_backend(name: str, factory: Callable[[], Engine]) -> None:
    """Adds an engine.

    Args:
        name: The engine's name for ``MULTIPPO_BACKEND`` and ``use_backend``.
        factory: Function that makes the engine, called at its first use.

    Raises:
        ValueError: If the name is taken or not an identifier.
    """
    if not isinstance(name, str) or not name.isidentifier():
        raise ValueError(f"register_backend({name!r}): expected an identifier such as 'mlx'.")
    if name in known_backends():
        raise ValueError(f"register_backend({name!r}): the name is taken; known backends: {known_backends()}.")
    _registered[name] = factory


def known_backends() -> list[str]:
    """Names of all engines that are built in, registered or an entry point, installed or not, by preference."""
    names = dict.fromkeys([*_BUILT_IN, *_registered, *_entry_points()])
    return [*(name for name in names if name != _LAST), _LAST]


def available_backends() -> list[str]:
    """Names of the engines whose packages are installed, in order of preference."""
    return [name for name in known_backends() if not _missing_packages(name)]


def describe_backends() -> list[dict[str, Any]]:
    """Describes each known engine in a row.

    Returns:
        ``name``, ``available``, ``versions`` of its packages, the command to ``install`` it (None if it is), and a
        ``note`` on its limits, or None. No engine is loaded.
    """
    rows: list[dict[str, Any]] = []
    for name in known_backends():
        packages = _BUILT_IN[name][1] if name in _BUILT_IN else ()
        missing = _missing_packages(name)
        versions = {p: importlib.metadata.version(p) for p in packages if p not in missing}
        install = f"pip install 'multippo[{name}]'" if missing else None
        note = "evaluates, does not train" if name == _LAST else None
        rows.append({"name": name, "available": not missing, "versions": versions, "install": install, "note": note})
    return rows


def get_backend() -> str:
    """Name of the active engine; errors are those of ``active_engine``."""
    return active_engine().name


def active_engine() -> Engine:
    """Engine that classes instantiated now are bound to.

    Raises:
        ValueError: If ``MULTIPPO_BACKEND`` names an unknown engine.
        ImportError: If the engine's package is missing.
        RuntimeError: If ``MULTIPPO_BACKEND`` was changed after the first use.
    """
    global _default
    override = _override.get()
    if override is not None:
        return override
    wanted = os.environ.get(VARIABLE) or None
    if _default is None:
        _default = (wanted, load_engine(wanted or available_backends()[0]))
    elif wanted != _default[0]:
        raise RuntimeError(
            f"{VARIABLE} is now {wanted!r}, but was {_default[0]!r} when the {_default[1].name} engine was first used. "
            "Set it before the first network or key is made, or switch with multippo.use_backend(...)."
        )
    return _default[1]


@contextlib.contextmanager
def use_backend(name: str, device: str | None = None) -> Generator[Engine]:
    """Makes ``name`` the active engine inside a ``with`` block, in this thread or task.

    Modules made before keep their engine and device; those made in the block keep the block's.

    Args:
        name: "jax", "torch", "numpy", or one that was registered.
        device: Device of its arrays and computations: "cpu", "cuda" or "gpu", "tpu", with a number for one of several
            ("cuda:1"), or "auto" for an accelerator if there is one. None for that of ``MULTIPPO_DEVICE``, else "auto".

    Raises:
        ValueError: If the engine is not known, or the device not there; the error lists those that are.
        ImportError: If a package the engine needs is missing.
    """
    engine = load_engine(name, device)
    token = _override.set(engine)
    try:
        with engine.activated():
            yield engine
    finally:
        _override.reset(token)


def precision(name: str) -> contextlib.AbstractContextManager[None]:
    """Sets the numbers that modules made inside a ``with`` block compute in, on the active engine.

    "float32" and "float64" are the type of parameters, carries and everything computed from them. With "bfloat16" all
    of these are float32, and the matrix products of layers take operands rounded to bfloat16, which are summed in
    float32; those of the backward pass, too. A module keeps the precision it was made in.

    Args:
        name: "float32", "float64" or "bfloat16".

    Raises:
        ValueError: If ``name`` is none of these, or the engine lacks that precision.
    """
    return active_engine().precision(name)


def matmul_precision(name: str) -> contextlib.AbstractContextManager[None]:
    """Sets how exact products of float32 matrices are inside a ``with`` block, on the active engine.

    GPUs (and TPUs) are several times faster on operands with fewer digits. Unless set here, products are in full
    float32 on every engine, or as you have set the framework (``jax_default_matmul_precision``,
    ``torch.set_float32_matmul_precision``). Convolutions and recurrent kernels follow.

    Args:
        name: "highest" for full float32; "high" to let the processor round operands to TF32, of 11 significant bits.

    Raises:
        ValueError: If ``name`` is neither.
    """
    return active_engine().matmul_precision(name)


def computes_in_float64() -> bool:
    """True if the active engine has been set to "float64"; loads no engine.

    False for an engine that can't train, whose float64 nobody chose: it evaluates what others do in single precision.
    """
    engine = _override.get() or (None if _default is None else _default[1])
    return engine is not None and "train" in engine.capabilities and "float64" in str(engine.float_dtype)


def load_engine(name: str, device: str | None = None) -> Engine:
    """Engine called ``name``, made at its first use; one for each device.

    Raises:
        ValueError: If the name is unknown, or the device not there.
        ImportError: If a package of the engine is not installed, or the factory registered under the name fails.
        TypeError: If the engine does not keep the contract.
    """
    if device is not None:
        return _on(_itself(name), device)
    if name not in _engines:
        engine, wanted = _itself(name), os.environ.get(DEVICE_VARIABLE)
        # An engine that knows the processor alone stays there, whatever device the variable names.
        if wanted and type(engine).on_device is not Engine.on_device:
            engine = _on(engine, wanted, DEVICE_VARIABLE)
        _engines[name] = engine
    return _engines[name]


def _itself(name: str) -> Engine:
    """Engine on its own default device, whatever the environment variable says; errors as in ``load_engine``."""
    key = f"{name} itself"
    if key in _engines:
        return _engines[key]
    if name not in known_backends():
        raise ValueError(f"Unknown backend {name!r}; known backends: {', '.join(known_backends())}.")
    if missing := _missing_packages(name):
        raise ImportError(
            f"The {name} backend needs {', '.join(missing)}, which is not installed. "
            f"Install it with: pip install 'multippo[{name}]'"
        )
    engine = _make(name)
    if unsupplied := _unsupplied(engine):
        raise TypeError(f"The {name} backend does not supply {', '.join(unsupplied)}; see multippo/backends/api.py.")
    if engine.name != name:
        raise TypeError(f"The {name} backend has an engine with the name {engine.name!r}; expected name = {name!r}.")
    # Engines are pickled, and copied, by name: another process, too, has one engine of a name on a device.
    copyreg.pickle(type(engine), lambda one: (_loaded_again, (one.name, one.device_name())))
    _engines[key] = engine
    return engine


def _loaded_again(name: str, device: str) -> Engine:
    """Engine of this process by name, on a device if that is there; called when an engine is unpickled."""
    try:
        return load_engine(name, device)
    except ValueError:  # no such device here
        return load_engine(name)


def _on(engine: Engine, device: str, asked: str = "device") -> Engine:
    place = choose_device(engine.name, device, engine.devices(), asked=asked)
    if place == engine.device_name():
        return engine
    key = f"{engine.name} on {place}"
    if key not in _engines:
        _engines[key] = engine.on_device(place)
    return _engines[key]


def choose_device(engine: str, wanted: str, there: Sequence[str], asked: str = "device") -> str:
    """Device that a name means.

    Args:
        engine: The engine's name, for errors.
        wanted: "auto" for the first device; a kind ("cpu", "cuda", "gpu", "tpu") for the first of that kind; or one of
            several ("cuda:1").
        there: Names of the form "cuda:0" of the devices that are there, the preferred one first.
        asked: Source of the name, for errors: the argument ``device``, or a variable of the environment.

    Returns:
        One of ``there``.

    Raises:
        ValueError: If ``wanted`` is not there; the error lists the devices that are.
    """
    if wanted == "auto":
        return there[0]
    match = re.fullmatch(r"([a-z]+)(?::(\d+))?", wanted) if isinstance(wanted, str) else None
    kind, number = (match[1], match[2]) if match else ("", None)
    for name in there:
        of_kind, _, of_number = name.partition(":")
        if of_kind in (("cuda", "rocm") if kind == "gpu" else (kind,)) and number in (None, of_number):
            return name
    raise ValueError(
        f"{asked}={wanted!r} is not there: the {engine} engine sees {', '.join(there)}; expected one of these, its "
        "kind alone, or 'auto'."
    )


def array_kind(array: Any) -> str:
    """Library of an array, such as "jax"; for other values, the package of the type."""
    root = type(array).__module__.partition(".")[0]
    return {"jaxlib": "jax"}.get(root, root)


def engine_of_array(array: Any) -> Engine:
    """Engine that made ``array``, by the module of its type."""
    name, active = array_kind(array), _override.get()
    if active is not None and active.name == name:
        return active
    if name in _engines:
        return _engines[name]
    # If every engine in use was put on a named device, the array is from one of these.
    named = next((engine for engine in _engines.values() if engine.name == name), None)
    if named is not None:
        return named
    return load_engine(name) if name in known_backends() else active_engine()


def _make(name: str) -> Any:
    if name in _BUILT_IN:
        with needing(name, f"The {name} backend"):
            return importlib.import_module(_BUILT_IN[name][0]).make_engine()
    source = _registered.get(name) or _entry_points()[name]
    try:
        make = source.load() if isinstance(source, importlib.metadata.EntryPoint) else source
        return make()
    except Exception as error:  # a factory is other people's code, which may raise anything
        raise ImportError(
            f"The {name} backend, from {source!r}, can't be made: {type(error).__name__}: {error}. Expected a "
            "function that takes nothing and returns an engine, such as make_engine."
        ) from error


def _unsupplied(engine: Any) -> list[str]:
    """Members of the contract that an engine, derived from ``Engine`` or not, does not have."""
    attributes = ("name", "xp", "random", "capabilities", "activations")
    missing = [name for name in attributes if not hasattr(engine, name)]
    for name, contract in vars(Engine).items():
        if not name.startswith("_") and (callable(contract) or isinstance(contract, property)):
            supplied = getattr(type(engine), name, contract)
            if not hasattr(type(engine), name) or getattr(supplied, "__isabstractmethod__", False):
                missing.append(name)
    return sorted(missing)


def _missing_packages(name: str) -> list[str]:
    packages = _BUILT_IN[name][1] if name in _BUILT_IN else ()
    return [package for package in packages if importlib.util.find_spec(package) is None]


def _entry_points() -> dict[str, importlib.metadata.EntryPoint]:
    return {point.name: point for point in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP)}
