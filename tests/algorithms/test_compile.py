"""Nothing is compiled again after the second iteration, and compiling changes no number."""

import gc
import weakref
from typing import Any

import numpy as np
import probing
import pytest
import support
import training

import multippo as mp
from multippo.programmes import clear_programmes
from multippo.testing import FunctionalClock, TableNet

# -- torch


def test_metrics_are_no_part_of_the_compiled_backward_pass(torch_engine, monkeypatch):
    # With gradients of zero it runs through every output that could have one; zero times infinity is NaN.
    import torch

    differentiable: list[int] = []

    def spy(function: Any, **options: Any) -> Any:
        def call(*args: Any) -> Any:
            result = function(*args)
            differentiable.append(
                sum(x.requires_grad for x in torch.utils._pytree.tree_leaves(result) if isinstance(x, torch.Tensor))
            )
            return result

        return call

    clear_programmes()
    monkeypatch.setattr(torch, "compile", spy)
    # With an entropy bonus, for which replay draws noise too.
    network = mp.make_mlp_actor_critic(4, 2, (8,), (8,), mp.Rngs(0), entropy_weight=0.01)
    training.train(probing.Continuous(), network, iterations=1, config={"compile": "on"})
    # The loss is one. In host environments nothing else is compiled, since acting is straight code.
    assert set(differentiable) == {1}


def test_many_networks_in_one_process(torch_engine, without_code_generation):
    # Dynamo counts recompilations by code object, and gives up at the ninth.
    for size in range(1, 11):
        compiled = torch_engine.kernel(Scaled.run, "on")
        x = torch_engine.zeros((2, size)) + 1.0
        np.testing.assert_array_equal(support.to_numpy(compiled(Scaled(size), x)), np.full((2, size), float(size)))


class Scaled:
    """What is compiled is a method; each instance sees another shape."""

    def __init__(self, size: int) -> None:
        self.size = size

    def run(self, x: Any) -> Any:
        return x * self.size


# -- the second run of a process


def run_again(kind: str, number: int, mode: str = "auto") -> tuple[Any, training.Run, list[Any]]:
    """A run of a new network in a new environment, with numbers of its own; and references to what it was made of."""
    env: Any = probing.Continuous() if kind == "host" else mp.make_env(FunctionalClock(3), num_envs=2)
    actions: Any = 2 if kind == "host" else env.action_space
    network = mp.make_mlp_actor_critic(4, actions, (5,), (5,), mp.Rngs(number))
    support.fill_randomly(network, number)
    evaluation = mp.EvalConfig(every_steps=8, num_episodes=2)
    fields: dict[str, Any] = {"learning_rate": 0.01 * (number + 1), "entropy_weight": 0.1 * number + 0.1}
    fields |= {"lr_schedule": ("linear", "cosine")[number], "learning_rate_warmup": number}
    eval_env = probing.Continuous() if kind == "host" else None
    done = training.train(
        env,
        network,
        iterations=2 + number,
        eval_env=eval_env,
        config={"seed": number, "compile": mode, "eval": evaluation},
        **fields,
    )
    return mp.to_portable(network), done, [weakref.ref(part) for part in (env, network)]


@pytest.mark.parametrize("kind", ["functional", "host"])
def test_a_second_run_compiles_nothing_and_is_what_it_is_by_itself(jax_engine, kind):
    clear_programmes()
    alive = run_again(kind, 0)[-1]
    gc.collect()
    assert [reference() for reference in alive] == [None, None]
    with support.compiling_nothing():
        weights, done, _ = run_again(kind, 1)
    assert done.column("time/compile_s")[-1] < 1.0  # the network is traced once more, to be checked
    clear_programmes()
    expected, by_itself, _ = run_again(kind, 1)
    support.assert_trees_close(weights, expected, 0.0)
    for metric in ("losses/total", "learning_rate", "entropy/weight", "eval/episode_reward/mean"):
        assert done.column(metric) == by_itself.column(metric)


@pytest.mark.nightly
def test_a_second_distillation_compiles_nothing(jax_engine):
    def distil(number: int) -> list[dict[str, float]]:
        env = mp.make_env(FunctionalClock(3), num_envs=2)
        teacher, student = (mp.make_mlp_actor_critic(4, env.action_space, (5,), (5,), mp.Rngs(n)) for n in (number, 7))
        fields = {"rollout_length": 4, "num_epochs": 1, "num_minibatches": 1, "learning_rate": 0.01 * number}
        config = mp.DistillationConfig(total_steps=8, **fields)
        logs: list[dict[str, float]] = []
        mp.train_distillation(
            env, teacher, student, mp.DistillationTrainConfig(distillation=config, seed=number), log_fn=logs.append
        )
        return logs

    distil(1)
    with support.compiling_nothing():
        logs = distil(2)
    clear_programmes()
    [expected] = distil(2)
    # Of another teacher, though compiled with the first.
    assert logs[0]["losses/distillation"] == expected["losses/distillation"]


@pytest.mark.usefixtures("without_code_generation")
@pytest.mark.nightly
def test_torch_compiles_a_second_network_no_more_than_the_first(torch_engine):
    import torch

    def graphs() -> int:
        return torch._dynamo.utils.counters["stats"]["unique_graphs"]

    before = graphs()
    alive = run_again("host", 0, "on")[-1]
    first = graphs()
    assert first > before
    gc.collect()
    assert [reference() for reference in alive] == [None, None]
    weights, done, _ = run_again("host", 1, "on")
    assert graphs() == first
    assert done.column("time/compile_s")[-1] == 0.0
    expected, eager, _ = run_again("host", 1, "off")
    support.assert_trees_close(weights, expected, 1e-5)
    np.testing.assert_allclose(done.column("losses/total"), eager.column("losses/total"), rtol=1e-3, atol=1e-5)


def test_an_environment_that_was_changed_is_compiled_anew(jax_engine):
    inner = FunctionalClock(2)
    env, network = mp.make_env(inner, num_envs=2), TableNet([0.0] * 3)
    for end in ("terminated", "truncated"):
        inner.end = end  # type: ignore[assignment]
        state, env_state = network.initialize_state(2), env.reset(0)
        *_, seen = mp.unroll_env(env, env_state, network, state, 2, mp.random.key(0))
        assert bool(seen.truncated.any()) == (end == "truncated")
