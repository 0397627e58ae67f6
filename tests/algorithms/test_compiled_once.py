"""A run on JAX compiles in its first iteration, a few programmes, and nothing later."""

import collections
import math
from typing import Any

import pytest
import training
from checkpoints import clock, table_net

from multippo.algorithms import iterations
from multippo.programmes import clear_programmes
from multippo.testing import Clock


@pytest.fixture
def compiled(jax_engine: Any) -> Any:
    """Names of the programmes that JAX lowers, and of those that XLA compiles or reads from its cache."""
    import jax

    clear_programmes()
    names: list[str] = []

    def listen(event: str, duration: float, **about: Any) -> None:
        if event.endswith(("/jaxpr_to_mlir_module_duration", "/backend_compile_duration")):
            names.append(about.get("fun_name", "?"))

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield names
    jax.monitoring.unregister_event_duration_listener(listen)


@pytest.mark.parametrize("kind", ["functional", "host"])
def test_nothing_is_compiled_after_the_first_iteration(compiled: list[str], kind: str, monkeypatch: Any):
    # What a long call may lose is kept from then on, by a copy; none is long here, however slow the machine.
    monkeypatch.setattr(iterations, "_LONG_CALL_S", math.inf)
    env: Any = clock() if kind == "functional" else Clock(3, "truncated", num_envs=4)
    network = table_net()
    compiled.clear()  # of the environment and the network
    counts: list[int] = []
    training.train(env, network, iterations=6, on_log=lambda _: counts.append(len(compiled)))
    assert counts == counts[:1] * 6, compiled[counts[0] :]
    names = compiled[: counts[0]]
    if kind == "functional":
        # Copies of the network's weights and of the state; the rest is a name each. They may have been compiled for
        # another test.
        own = collections.Counter(["_copies"] * 2 + ["_draw_apart", "_trace_begin", "_fresh", "_iteration"])
        assert collections.Counter(names) <= collections.Counter({f"jit({name})": n for name, n in (own + own).items()})
        assert "jit(_iteration)" in names
