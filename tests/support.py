"""What the tests share: comparing trees, filling networks with random numbers, gradients by portable name."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import multippo as mp
from multippo.trees import named_leaves, tree_leaves, tree_map

ENGINES = ("jax", "torch")
TOLERANCE = {"float32": 1e-5, "float64": 1e-10}


@contextlib.contextmanager
def on(name: str, precision: str = "float32") -> Iterator[Any]:
    """One engine at one precision."""
    with mp.use_backend(name) as engine, engine.precision(precision):
        yield engine


@contextlib.contextmanager
def both_at(precision: str) -> Iterator[None]:
    """Both engines at one precision."""
    with contextlib.ExitStack() as stack:
        for name in ENGINES:
            with mp.use_backend(name) as engine:
                stack.enter_context(engine.precision(precision))
        yield


_jax_compiled: list[str] = []


@contextlib.contextmanager
def compiling_nothing() -> Iterator[None]:
    """Fails if JAX compiles anything."""
    import jax

    if not _jax_compiled:
        _jax_compiled.append("")
        jax.monitoring.register_event_duration_secs_listener(
            lambda event, _, fun_name="", **__: _jax_compiled.append(fun_name) if "backend_compile" in event else None
        )
    before = len(_jax_compiled)
    yield
    assert _jax_compiled[before:] == []


def each_engine(make: Callable[[], Any]) -> dict[str, Any]:
    """What ``make`` returns on each engine."""
    made = {}
    for name in ENGINES:
        with mp.use_backend(name):
            made[name] = make()
    return made


def to_numpy(tree: Any) -> Any:
    """A tree of either engine's arrays as NumPy's."""
    detach = lambda x: x.detach() if hasattr(x, "detach") else x  # noqa: E731
    return tree_map(lambda x: np.asarray(detach(x)), tree)


def words(tree: Any) -> Any:
    """A tree in NumPy; words of keys, which are 32-bit on one engine and 64-bit on the other, as 64-bit ones."""
    return tree_map(lambda x: x.astype(np.int64) if x.dtype == np.uint32 else x, to_numpy(tree))


def assert_trees_close(got: Any, expected: Any, tolerance: float, what: str = "") -> None:
    """Same structure; every leaf within ``tolerance``, absolute and relative. Names the leaf that is not."""
    got_leaves, expected_leaves = dict(named_leaves(to_numpy(got))), dict(named_leaves(to_numpy(expected)))
    assert sorted(got_leaves) == sorted(expected_leaves), what
    for name, leaf in expected_leaves.items():
        assert got_leaves[name].shape == leaf.shape, f"{what} {name}: {got_leaves[name].shape} {leaf.shape}"
        np.testing.assert_allclose(
            got_leaves[name].astype(np.float64),
            leaf.astype(np.float64),
            rtol=tolerance,
            atol=tolerance,
            err_msg=f"{what} {name}",
        )


def fill_randomly(module: Any, seed: int = 0, scale: float = 0.5) -> dict[str, np.ndarray]:
    """Writes non-zero random values into every floating-point array of a module, and returns all of them."""
    rng = np.random.default_rng(seed)
    values = {}
    for name, value in mp.to_portable(module).items():
        if value.dtype.kind == "f":
            drawn = scale * rng.normal(size=value.shape)
            # Second moments are not negative.
            value = np.abs(drawn) + 0.1 if "M2" in name else drawn
        elif name.endswith("counter"):
            value = np.asarray([0, 3], value.dtype)
        values[name] = value
    mp.load_portable(module, values)
    return values


def compiled(module: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """``function(module, *arrays)``, on JAX compiled as one: many small eager calls would compile for longer."""
    engine = module.engine
    parts = engine.split(module)
    run = engine.jit(lambda p, v, *args: function(engine.merge(parts.definition, p, v), *args))
    return lambda *args: run(parts.params, parts.variables, *args)


def gradients(module: Any, loss: Callable[[Any], Any]) -> dict[str, np.ndarray]:
    """Gradient of ``loss(module)`` by every parameter, under portable names and in portable layouts."""
    engine = module.engine
    parts = engine.split(module)

    def of_params(params: Any, variables: Any) -> tuple[Any, None]:
        return loss(engine.merge(parts.definition, params, variables)), None

    _, found = engine.jit(engine.value_and_grad(of_params))(parts.params, parts.variables)
    return portable_gradients(module, found)


def portable_gradients(module: Any, grads: Any) -> dict[str, np.ndarray]:
    """Gradients as ``value_and_grad`` returns them, under portable names and in portable layouts."""
    if module.engine.name == "torch":
        by_path = {name: grad.numpy() for name, grad in grads.items()}
    else:
        import jax

        leaves = jax.tree_util.tree_leaves_with_path(grads)
        by_path = {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}
    return {
        name: np.array(leaf.to_portable(by_path[leaf.native_path]))
        for name, leaf in module.engine.leaves(module).items()
        if leaf.trained
    }


def actor_critic(features: int, sampler: str = "CategoricalSampler", parameters: int = 2, seed: int = 0) -> Any:
    """The smallest policy with weights: a layer and a sampler, and a layer for the values."""
    rngs = mp.Rngs(seed)
    action = mp.Sequential([mp.Dense(features, parameters, rngs), getattr(mp, sampler)(rngs)])
    return mp.PPOAdapter(action=action, value=mp.Dense(features, 1, rngs))


def roll(env: Any, network: Any, steps: int) -> Any:
    """The first rollout, in NumPy."""
    return rolled_and_replayed(env, network, steps, replay=False)[0]


def rolled_and_replayed(env: Any, network: Any, steps: int, *, replay: bool = True) -> tuple[Any, Any]:
    """The first rollout and what its replay yields, both in NumPy."""
    state = network.initialize_state(env.num_envs)
    _, _, transition = mp.unroll_env(env, env.reset(0), network, state, steps, mp.random.key(0))
    found = compiled(network, lambda net, s, t: mp.replay(net, s, t))(state, transition) if replay else None
    return to_numpy(transition), to_numpy(found)


def assert_finite(network: Any, state: Any = None) -> None:
    """Every weight and statistic is, and the moments of a state of training."""
    trees = [mp.to_portable(network)] + ([] if state is None else [*state.optimizer_state[:2]])
    for name, value in named_leaves(to_numpy(trees)):
        assert np.isfinite(value).all(), name


def total(xp: Any, tree: Any) -> Any:
    """A scalar that depends on every element of a tree, each with another weight."""
    result: Any = 0.0
    for leaf in tree_leaves(tree):
        if "float" in str(getattr(leaf, "dtype", None)):  # a loss may be the number 0
            flat = xp.reshape(leaf, (-1,))
            weights = xp.cos(xp.astype(xp.arange(flat.shape[0]), flat.dtype))
            result = result + xp.sum(flat * weights)
    return result
