"""Graphs of launches: what a compiled call returned may be overwritten by the next one, and nothing hangs on it."""

from collections.abc import Callable
from typing import Any

import numpy as np
import probing
import pytest
import support
import torch
import training

import multippo as mp
from multippo.backends.torch import compiling, segments
from multippo.trees import tree_leaves


def run(kind: str, mode: str, **fields: Any) -> tuple[dict[str, np.ndarray], training.Run]:
    rngs = mp.Rngs(0)
    if kind == "mlp":
        network = mp.make_mlp_actor_critic(4, 2, (8,), (8,), rngs, entropy_weight=0.01)
    else:
        network = mp.make_recurrent_actor_critic(4, 2, 5, rngs, cell=kind, encoder_sizes=(4,), shared=True)
    support.fill_randomly(network)
    done = training.train(
        probing.Continuous(),
        network,
        iterations=3,
        rollout_length=6,
        learning_rate=1e-3,
        config={"compile": mode},
        **fields,
    )
    return mp.to_portable(network), done


def overwriting(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Stands in for ``torch.compile``: computes as it is, and in each call spoils what the call before returned."""
    assert options["mode"] == "reduce-overhead"
    returned: list[torch.Tensor] = []

    def call(*args: Any) -> Any:
        with torch.inference_mode():
            for tensor in returned:
                tensor.data.fill_(99 if tensor.dtype != torch.bool else True)
        returned.clear()
        held = {leaf.untyped_storage().data_ptr() for leaf in tree_leaves(args) if isinstance(leaf, torch.Tensor)}
        result = function(*args)
        leaves = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        # What is handed on from the arguments is the caller's own.
        returned.extend(leaf for leaf in leaves if leaf.untyped_storage().data_ptr() not in held)
        assert returned
        return result

    return call


WAYS = {"mlp": {}, "lstm": {"recompute_advantages": True}}


@pytest.mark.parametrize("kind", WAYS)
def test_no_result_is_read_after_the_next_call(torch_engine: Any, monkeypatch: pytest.MonkeyPatch, kind: str):
    expected, reference = run(kind, "off", **WAYS[kind])
    monkeypatch.setattr(torch, "compile", overwriting)
    found, done = run(kind, "reduce-overhead", **WAYS[kind])
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)
    for name in ("losses/total", "kl/approx", "gradient/norm", "ratio/first_max_dev"):
        assert done.column(name) == reference.column(name), name


def test_a_new_step_is_announced_before_each_call_and_results_are_copies(monkeypatch: pytest.MonkeyPatch):
    events: list[str] = []
    kept = {"a": torch.ones(2), "b": (torch.zeros(1), None, 3)}

    def function(x: torch.Tensor) -> Any:
        events.append("call")
        return kept

    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    monkeypatch.setattr(torch.compiler, "cudagraph_mark_step_begin", lambda: events.append("step"))
    call = compiling.compiled(function, True, lambda seconds: None)
    result = call(torch.ones(1))
    call(torch.ones(1))
    assert events == ["step", "call"] * 2
    assert result["a"].data_ptr() != kept["a"].data_ptr()
    assert result["b"][1:] == (None, 3)
    # Without graphs nothing is copied.
    assert compiling.compiled(function, False, lambda seconds: None)(torch.ones(1)) is kept


def test_an_early_torch_is_refused(torch_engine: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(compiling, "_KNOWS_UNSAFE", False)
    with pytest.raises(ValueError, match=r"needs torch 2\.9 or later, and this is .*compile='on'"):
        torch_engine.kernel(lambda x: x, "reduce-overhead")


@pytest.mark.skipif(not hasattr(torch.Tag, "cudagraph_unsafe"), reason="this torch has no mark for it")
def test_operators_that_wait_for_the_host_are_marked():
    for cell in segments.segmented:
        for name in (f"segmented_{cell}", f"segmented_{cell}_backward"):
            assert torch.Tag.cudagraph_unsafe in getattr(torch.ops.multippo, name).default.tags
        for name in (f"stepped_{cell}", f"stepped_{cell}_backward", "bfloat16_product"):
            assert torch.Tag.cudagraph_unsafe not in getattr(torch.ops.multippo, name).default.tags


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["mlp", "lstm"])
def test_compiled_without_cuda_it_is_eager(torch_engine: Any, kind: str):
    expected, reference = run(kind, "off")
    found, done = run(kind, "reduce-overhead")
    support.assert_trees_close(found, expected, 1e-5)
    assert max(done.column("ratio/first_max_dev")) <= 1e-5
    np.testing.assert_allclose(done.column("losses/total"), reference.column("losses/total"), rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU with CUDA: only there are graphs of launches")
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", ["mlp", "lstm", "gru"])
def test_with_cuda_graphs_it_is_eager(kind: str, precision: str):
    with mp.use_backend("torch", device="cuda"), mp.precision(precision):
        expected, _ = run(kind, "off")
        found, done = run(kind, "reduce-overhead")
    tolerance = {"float32": 1e-4, "bfloat16": 1e-2}[precision]
    support.assert_trees_close(found, expected, tolerance)
    assert max(done.column("ratio/first_max_dev")) <= 10 * tolerance
