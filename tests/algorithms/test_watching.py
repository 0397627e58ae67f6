"""What callbacks see of the network, and what is left of a run that an exception ends."""

from typing import Any

import numpy as np
import pytest
import support
import training
from checkpoints import clock, table_net

import multippo as mp
from multippo.networks.weights.portable import portable_split
from multippo.testing import Clock

# Conformance and the cases have JAX by day.
pytestmark = pytest.mark.nightly_if("jax")

KINDS = ("functional", "host")


def make_env(kind: str) -> Any:
    return clock() if kind == "functional" else Clock(3, "truncated", num_envs=4)


def weights(network: Any) -> np.ndarray:
    return mp.to_portable(network)["values"].copy()


@pytest.mark.parametrize("kind", KINDS)
def test_callbacks_find_the_weights_after_the_iteration_in_the_network(engine: Any, kind: str):
    network = table_net()
    before, at_log = weights(network), []
    config = {"checkpoint_every_steps": 16, "log_every_steps": 16}
    run = training.train(make_env(kind), network, config=config, on_log=lambda _: at_log.append(weights(network)))
    assert len(at_log) == len(run.checkpoints) == 3
    for seen, (state, _) in zip(at_log, run.checkpoints, strict=True):
        np.testing.assert_array_equal(seen, portable_split(network, state.params, state.variables)["values"])
    # They move from one iteration to the next, and the last ones are what is left.
    assert all((a != b).any() for a, b in zip([before, *at_log], at_log, strict=False))
    np.testing.assert_array_equal(weights(network), at_log[-1])


class EnoughError(Exception):
    """Raised by a callback that has seen enough."""


@pytest.mark.parametrize("raised", [EnoughError, KeyboardInterrupt])
@pytest.mark.parametrize("kind", KINDS)
def test_a_callback_that_raises_ends_the_run_and_nothing_is_lost(engine: Any, kind: str, raised: Any):
    whole = table_net()
    expected = training.train(make_env(kind), whole, iterations=4, config={"checkpoint_every_steps": 16})
    network = table_net()

    def stop(metrics: dict[str, float]) -> None:
        if metrics["iteration"] == 2:
            raise raised("enough")

    run = training.train(make_env(kind), network, iterations=4, on_log=stop, catch=(raised,))
    assert str(run.error) == "enough" and not hasattr(run.error, "__notes__")
    ((state, step),) = run.checkpoints
    assert (state.iteration, step) == (2, 32)
    saved, second = (portable_split(network, s.params, s.variables) for s in (state, expected.checkpoints[1][0]))
    support.assert_trees_close(saved, second, 0.0)
    np.testing.assert_array_equal(weights(network), saved["values"])


def test_several_iterations_in_one_call_are_seen_and_ended_as_one_by_one(jax_engine: Any):
    # An iteration is 16 steps. The sixth is the third of a call, after which a fourth is not asked for; the checkpoint
    # after 80 steps ends a call early.
    found = []
    for steps in (16, 64):
        network, seen = table_net(), []

        def watch(metrics: dict[str, float], network: Any = network, seen: Any = seen) -> None:
            seen.append(weights(network))
            if metrics["iteration"] == 7:
                raise EnoughError

        config = {"log_every_steps": steps, "checkpoint_every_steps": 80}
        run = training.train(clock(), network, iterations=12, on_log=watch, catch=(EnoughError,), config=config)
        assert [(state.iteration, step) for state, step in run.checkpoints] == [(5, 80), (7, 112)]
        assert len(run.logs) == 7
        state = run.checkpoints[-1][0]
        saved = portable_split(network, state.params, state.variables)
        found.append((seen, weights(network), run.column("losses/total"), saved, state.env_state, state.episodes))
        np.testing.assert_array_equal(weights(network), saved["values"])
    support.assert_trees_close(found[0], found[1], 0.0)
    assert all((a != b).any() for a, b in zip(found[0][0], found[0][0][1:], strict=False))


class Breaking(Clock):
    """Whose tenth step fails."""

    steps = 0

    def step(self, env_state: Any, action: Any) -> Any:
        self.steps += 1
        if self.steps == 10:
            raise OSError("the simulator is gone")
        return super().step(env_state, action)


def test_a_failing_checkpoint_function_is_asked_once_and_told_of_beside_the_reason_of_the_end(torch_engine: Any):
    calls: list[int] = []

    def full(state: Any, step: int) -> None:
        calls.append(step)
        raise OSError("disk full")

    ppo = mp.PPOConfig(rollout_length=4, num_minibatches=2, total_steps=64)
    with pytest.raises(OSError, match="disk full"):
        mp.train_ppo(clock(), table_net(), mp.TrainConfig(ppo=ppo, checkpoint_every_steps=16), checkpoint_fn=full)
    assert calls == [16]
    with pytest.raises(OSError, match="the simulator is gone") as caught:
        mp.train_ppo(Breaking(3, "truncated", num_envs=4), table_net(), mp.TrainConfig(ppo=ppo), checkpoint_fn=full)
    assert caught.value.__notes__ == ["The state after 32 steps could not be saved: OSError('disk full')."]


def test_what_can_not_be_called_is_refused_before_the_first_step(torch_engine: Any):
    env = Breaking(3, "truncated", num_envs=4)
    with pytest.raises(TypeError, match=r"log_fn takes \(a, b, c, d\); expected log_fn\(metrics, step, env\), or"):
        mp.train_ppo(env, table_net(), log_fn=lambda a, b, c, d: None)
    with pytest.raises(TypeError, match=r"checkpoint_fn='runs/a' is not possible: expected a function, checkpoint_fn"):
        mp.train_ppo(env, table_net(), checkpoint_fn="runs/a")
    assert env.steps == 0


@pytest.mark.parametrize("how", ["False", "StopTraining"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_is_stopped_returns_what_one_of_so_many_iterations_would(torch_engine: Any, kind: str, how: str):
    nets, saved = (table_net(), table_net()), list[int]()
    sizes = {"rollout_length": 4, "num_minibatches": 1, "lr_schedule": "constant", "total_steps": 64}
    config = mp.TrainConfig(ppo=mp.PPOConfig(**sizes))

    def stop(metrics: dict[str, float]) -> bool | None:
        if metrics["iteration"] == 2 and how == "StopTraining":
            raise mp.StopTraining
        return metrics["iteration"] < 2

    stopped = mp.train_ppo(
        make_env(kind), nets[0], config, log_fn=stop, checkpoint_fn=lambda state, step: saved.append(step)
    )
    short = mp.TrainConfig(ppo=mp.PPOConfig(**{**sizes, "total_steps": 32}))
    whole = mp.train_ppo(make_env(kind), nets[1], short)
    assert (stopped.total_iterations, stopped.total_steps, saved) == (2, 32, [32])
    assert stopped.training_state.recent_episodes == whole.training_state.recent_episodes
    np.testing.assert_array_equal(weights(nets[0]), weights(nets[1]))


def test_a_curriculum_changes_the_environments_between_iterations(torch_engine: Any):
    lengths: list[float] = []

    def log(metrics: dict[str, float], step: int, env: Any) -> None:
        lengths.append(metrics["rollout/episode_length/mean"])
        env.set_attr("_max_episode_steps", step // 2)

    env = mp.make_env("Pendulum-v1", num_envs=2, max_episode_steps=4, vectorization="sync")
    net = mp.make_mlp_actor_critic(
        env.observation_space, env.action_space, actor_hidden_sizes=[4], critic_hidden_sizes=[4], rngs=mp.Rngs(0)
    )
    ppo = mp.PPOConfig(rollout_length=8, num_minibatches=1, total_steps=64, num_epochs=1)
    mp.train_ppo(env, net, mp.TrainConfig(ppo=ppo), log_fn=log)
    assert lengths[:2] == [4.0, 8.0]
