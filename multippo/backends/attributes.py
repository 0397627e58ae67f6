"""Names in modules, alike on every engine: keys of children, lists and dicts of them, and names that are taken."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, MutableMapping
from typing import Any, NoReturn

from multippo.networks.core.binding import Param, Variable
from multippo.networks.core.error_paths import located_call
from multippo.networks.types import StatefulModule

NATIVE_CORE = "core"
"""Attribute under which a neutral layer holds the framework's own layer; left out of portable names."""

_MARK = "·"  # a letter that no attribute of nnx.Dict or nn.Module has, so a marked key collides with none

BOUND = ("engine", "xp", "random")
"""Class attributes that binding sets."""

_OF_TORCH = (
    "T_destination add_module apply bfloat16 buffers call_super_init children compile cpu cuda double dump_patches "
    "eval float forward get_buffer get_extra_state get_parameter get_submodule half ipu load_state_dict modules mtia "
    "named_buffers named_children named_modules named_parameters parameters register_backward_hook register_buffer "
    "register_forward_hook register_forward_pre_hook register_full_backward_hook register_full_backward_pre_hook "
    "register_load_state_dict_post_hook register_load_state_dict_pre_hook register_module register_parameter "
    "register_state_dict_post_hook register_state_dict_pre_hook requires_grad_ set_extra_state set_submodule "
    "share_memory state_dict to to_empty train type xpu zero_grad"
)
_OF_NNX = "eval iter_children iter_modules perturb set_attributes sow train"


RESERVED: dict[str, str] = {**dict.fromkeys(_OF_NNX.split(), "flax"), **dict.fromkeys(_OF_TORCH.split(), "torch")}
"""Names that modules of some framework need, with the framework: an error on every engine, so that code for one runs
on all. The list is written out since neither framework need be installed."""


def escape(key: Any) -> str:
    """Attribute name for a dict key (``keys``, ``a.b``, ``0``) that both frameworks allow and neither uses."""
    return _MARK + str(key).replace(".", _MARK)


def unescape(name: str) -> str:
    """Dict key of a name that ``escape`` made."""
    return name[1:].replace(_MARK, ".") if name.startswith(_MARK) else name


def in_order(attributes: Iterable[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Attributes in the order in which NNX walks them: positions of a list by number, all else by name."""
    return sorted(attributes, key=lambda item: (int(item[0]) if item[0].isdigit() else -1, item[0]))


class KeyedChildren(MutableMapping[Any, Any]):
    """Base of dicts of children, for either framework's module class: any key, in the order given.

    A key becomes an escaped attribute, so that a child called ``keys`` hides no method. The keys are held in a tuple
    too, since NNX sorts attributes when it splits and merges a module.
    """

    def __init__(self, items: dict[Any, Any]) -> None:
        super().__init__()
        self.order: tuple[Any, ...] = ()
        for key, value in items.items():
            self[key] = value

    def __getitem__(self, key: Any) -> Any:
        if key not in self.order:
            raise KeyError(key)
        return getattr(self, escape(key))

    def __setitem__(self, key: Any, value: Any) -> None:
        if key not in self.order:
            if escape(key) in map(escape, self.order):
                raise ValueError(f"The key {key!r} would be the same as another one, written as a name; rename it.")
            self.order = (*self.order, key)
        setattr(self, escape(key), value)

    def __delitem__(self, key: Any) -> None:
        if key not in self.order:
            raise KeyError(key)
        self.order = tuple(other for other in self.order if other != key)
        delattr(self, escape(key))

    def __iter__(self) -> Iterator[Any]:
        return iter(self.order)

    def __len__(self) -> int:
        return len(self.order)

    # A module equals itself alone; a mapping would compare contents and have no hash.
    __eq__ = object.__eq__
    __hash__ = object.__hash__  # pyright: ignore[reportAssignmentType]


class Named(dict[str, Any]):
    """Contents of a module by portable name, the parts of a path joined by dots; a key may hold a dot itself."""

    def __init__(self) -> None:
        super().__init__()
        self._paths: dict[str, tuple[str, ...]] = {}

    def add(self, path: tuple[str, ...], value: Any) -> None:
        """Puts ``value`` under the name of its path.

        Raises:
            ValueError: If another path has the same name; the error names both.
        """
        name = ".".join(path)
        if name in self:
            raise ValueError(
                f"Two arrays of the network have the portable name {name!r}: the ones at "
                f"{' / '.join(self._paths[name])} and {' / '.join(path)}. Rename a key that holds a dot."
            )
        self._paths[name] = path
        self[name] = value

    def rename(self, old: tuple[str, ...], new: tuple[str, ...]) -> None:
        """Moves the value at one path, if there is any, to another."""
        if ".".join(old) in self:
            self.add(new, self.pop(".".join(old)))


class ReadFirst:
    """Base of variables: arithmetic on one raises a TypeError that says how to read the value."""

    __array_ufunc__ = None  # makes NumPy's arrays leave the operation to the methods below

    @classmethod
    def refuse(cls, name: str) -> NoReturn:
        """Raises the TypeError for the operation ``name``."""
        kind = cls.__name__.removeprefix("Torch").removeprefix("Numpy")
        raise TypeError(f"{name} got a {kind} itself; read its value first: self.weight[...] in place of self.weight.")


def _refused(name: str) -> Callable[..., NoReturn]:
    return lambda self, *others: self.refuse(name)


_BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul")
for _name in (*_BINARY, *(f"r{name}" for name in _BINARY), "neg", "abs", "lt", "le", "gt", "ge"):
    setattr(ReadFirst, f"__{_name}__", _refused(f"__{_name}__"))


def contains_tracked(value: Any, tracked: tuple[type, ...]) -> bool:
    """True if a (nested) list, tuple or dict holds an instance of one of the types."""
    return any(isinstance(item, tracked) for _, item in _held("", value))


def track(value: Any, tracked: tuple[type, ...], make_list: Callable[..., Any], make_dict: Callable[..., Any]) -> Any:
    """Turns lists, tuples and dicts that hold modules or variables into the framework's own; returns all else as it is.

    Raises:
        TypeError: If modules or variables are mixed with other things.
    """

    def convert(item: Any) -> Any:
        if isinstance(item, tracked):
            return item
        if isinstance(item, dict):
            return make_dict({key: convert(child) for key, child in item.items()})
        if isinstance(item, list | tuple):
            return make_list([convert(child) for child in item])
        raise TypeError(
            f"A list or dict of modules holds a {type(item).__name__}, {item!r}; expected modules, Params and "
            "Variables only. Keep other values in an attribute of their own."
        )

    return convert(value) if isinstance(value, dict | list | tuple) and contains_tracked(value, tracked) else value


def track_late(module: Any, tracked: tuple[type, ...], skip: Callable[[str], bool]) -> None:
    """Assigns lists and dicts again that got their modules only after they were assigned; errors of ``track_below``."""
    for name, value in list(vars(module).items()):
        if isinstance(value, dict | list) and not skip(name):
            check_held(module, name, value, tracked)
            if contains_tracked(value, tracked):
                setattr(module, name, value)


def track_below(module: Any, bound: type, tracked: tuple[type, ...], skip: Callable[[str], bool]) -> None:
    """Runs ``track_late`` for a module and all below: a list that was empty in ``__init__`` may have got modules since.

    Args:
        module: A bound module; other modules are left alone.
        bound: Base of the engine's bound classes; a framework's own modules keep their books themselves.
        tracked: The framework's own classes of modules and variables.
        skip: True for names of attributes to leave out.

    Raises:
        TypeError: If a list or dict holds modules beside other things, or another engine's.
    """
    if not isinstance(module, bound):
        return
    # Every module is visited once: modules may be shared, or hold the one they are in.
    seen, ahead = {id(module)}, [module]
    while ahead:
        part = ahead.pop()
        if isinstance(part, bound):
            track_late(part, tracked, skip)
        for _, child in module.engine.children(part):
            if id(child) not in seen:
                seen.add(id(child))
                ahead.append(child)


def check_class(neutral: type, native: type, taken: Iterable[str] = ()) -> None:
    """Raises for a neutral class that defines a name which some framework's module class needs for itself.

    Args:
        neutral: The class to bind.
        native: The framework's module class.
        taken: Names of attributes of its instances.

    Raises:
        TypeError: If there is such a name; the error names the class that defines it.
    """
    for cls in neutral.__mro__:
        if issubclass(native, cls):
            continue
        for name in vars(cls):
            own = hasattr(native, name) or name in taken
            if (own or name in RESERVED) and name != "extra_repr" and not name.startswith(("__", "_abc_")):
                framework = native.__module__.partition(".")[0] if own else RESERVED[name]
                raise TypeError(
                    f"{cls.__qualname__}.{name} is not possible: every {framework} module has something of that name, "
                    "which it needs. Rename yours."
                )


def check_attribute(module: Any, name: str, native: type, is_tracked: bool) -> None:
    """Raises a TypeError for a name that a framework or the binding needs, or a module that the class would hide."""
    if name in RESERVED or name in BOUND or (is_tracked and hasattr(native, name)):
        owner = f"every {RESERVED[name]} module" if name in RESERVED else "the class"
        raise TypeError(
            f"{type(module).__qualname__}.{name} can't be set: {owner} has something of that name, which it needs. "
            "Rename yours."
        )


def check_held(module: Any, name: str, value: Any, tracked: tuple[type, ...]) -> None:
    """Raises for an attribute that is, or holds, a module or variable of another engine: it would go untracked.

    Args:
        module: A bound module; a framework's own list of modules, which has no engine, may hold anything.
        name: Name of the attribute.
        value: New value.
        tracked: The framework's own classes of modules and variables.

    Raises:
        TypeError: If there is such a module or variable; the error names its place.
    """
    engine = getattr(module, "engine", None)
    if engine is None:
        return
    for where, item in _held(f"{type(module).__name__}.{name}", value):
        theirs = item.engine if isinstance(item, StatefulModule) else None
        if theirs is engine or not (theirs or (not isinstance(item, tracked) and _is_native(item))):
            continue
        whose = f"engine {theirs.name} ({theirs.device_name()})" if theirs else type(item).__module__
        raise TypeError(
            f"{where} is a {type(item).__name__} of {whose}; expected one of engine {engine.name} "
            f"({engine.device_name()}), on which this module is: one of another engine is neither trained nor saved. "
            "Make both under one multippo.use_backend(...)."
        )


_PLAIN = (int, float, bool, str, type(None))


def _held(where: str, value: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(value, dict | list | tuple):
        yield where, value
        return
    for key, item in value.items() if isinstance(value, dict) else enumerate(value):
        if type(item) not in _PLAIN:
            yield from _held(f"{where}[{key!r}]", item)


def _is_native(item: Any) -> bool:
    """True for a framework's module, or the variable of an engine."""
    return isinstance(item, Param | Variable) or any(
        base.__name__ == "Module" and base.__module__.partition(".")[0] in ("flax", "torch")
        for base in type(item).__mro__
    )


def refuse_written(kind: str, name: str) -> None:
    """Raises a TypeError for an update of statistics that wrote a parameter.

    Args:
        kind: The network's class.
        name: Portable name of the parameter.

    Raises:
        TypeError: Always.
    """
    raise TypeError(
        f"An update_statistics in {kind} wrote the Param {name!r}; it may write Variables alone, since Params are the "
        "optimiser's. Make it a Variable: multippo.Variable(...)."
    )


def bound_attributes(engine: Any, neutral: type) -> dict[str, Any]:
    """Attributes of the class that an engine derives from a neutral one; its ``__call__`` notes an error's place."""
    pickled = {"__reduce__": _reduce} if neutral.__reduce__ is object.__reduce__ else {}
    return {
        **pickled,
        "engine": engine,
        "xp": engine.xp,
        "random": engine.random,
        "__call__": located_call(neutral),
        **{name: getattr(neutral, name) for name in ("__module__", "__doc__", "__qualname__")},
    }


def _reduce(module: Any) -> tuple[Any, ...]:
    """Parts of which pickle and its kin rebuild a module, since a class made at run time is found by no name."""
    return _unbuilt, (type(module).__bases__[0], module.engine), module.__getstate__()


def _unbuilt(neutral: type, engine: Any) -> Any:
    return object.__new__(engine.bind(neutral))
