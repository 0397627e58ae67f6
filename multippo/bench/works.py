"""The works of the benchmark, who does each, and the ratios to reach. Nothing here runs."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

NUM_EPOCHS, NUM_MINIBATCHES = 4, 4
"""Passes over a rollout and minibatches of each pass, in every work of measure "rate" or "start"."""

OURS = ("jax", "torch")
LIMITS = {"limit-jax": "limit_jax", "limit-torch": "limit_torch", "environment": "limit_environment"}
"""Files of the limits, by contestant."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Work:
    """One piece of work, the same for all who do it.

    Attributes:
        name: Name on the command line and in reports.
        env: Environment: ``brax/NAME``, a gymnasium id, or ``pendulum``, ``multippo.testing.TensorPendulum``.
        num_envs: Number of environments, B.
        rollout_length: Steps of a rollout, T.
        hidden: Units of the hidden layers, of actor and critic each; behind the recurrent layer if there is one.
        lstm: Units of a recurrent layer in actor and critic each; 0 for none.
        measure: "rate": steps a second after compilation; "start": seconds from the start of the process to the end of
            the first iteration; "return": seconds to a return, without those of evaluations.
        who: Those who do it: engines of multippo, peers, and limits.
        chunk: Iterations of one dispatch, where the contestant can make several.
        cache: State of JAX's compilation cache: "empty" or "full"; None: none is used.
        default: False for a work that is done only if it is asked for by name.
    """

    name: str
    env: str
    num_envs: int
    rollout_length: int
    hidden: tuple[int, ...] = (64, 64)
    lstm: int = 0
    measure: Literal["rate", "start", "return"] = "rate"
    who: tuple[str, ...]
    chunk: int = 1
    cache: Literal["empty", "full"] | None = None
    default: bool = True

    @property
    def steps(self) -> int:
        """Environment steps of one iteration."""
        return self.num_envs * self.rollout_length


@dataclasses.dataclass(frozen=True)
class Goal:
    """A ratio to reach, ours to theirs: of rates at least, of seconds at most.

    Attributes:
        work: Name of the work.
        ours: Engine; several if the better one counts.
        against: Those compared with; the best of them counts.
        ratio: The goal.
        theirs: Name of another work whose numbers of ``against`` count; by default the same.
        number: What is compared; by default the main number of the work.
        their_number: What it is compared with, if not the same of theirs.
    """

    work: str
    ours: tuple[str, ...]
    against: tuple[str, ...]
    ratio: float
    theirs: str = ""
    number: str = ""
    their_number: str = ""


_ALONE = ("limit-jax", "environment")
_TRACED = ("jax", "brax", "nnx-ppo", *_ALONE)
_FAST: dict[str, Any] = {"env": "brax/fast", "num_envs": 256, "rollout_length": 20, "chunk": 20}
_PENDULUM: dict[str, Any] = {"env": "brax/inverted_pendulum", "num_envs": 256, "rollout_length": 20}
_MANY: dict[str, Any] = dict(_PENDULUM, num_envs=4096)
_TENSORS: dict[str, Any] = {"env": "pendulum", "num_envs": 256, "rollout_length": 20}
_CARTPOLE: dict[str, Any] = {"env": "CartPole-v1", "num_envs": 8, "rollout_length": 128}
_SHORT: dict[str, Any] = dict(_CARTPOLE, rollout_length=32)
_LSTM: dict[str, Any] = {"hidden": (), "lstm": 64}
_ON_TENSORS = ("torch", "rsl-rl", "limit-torch", "environment")
_SB = ("jax", "torch", "sb3", "sbx", "limit-jax", "limit-torch", "environment")

WORKS: dict[str, Work] = {
    work.name: work
    for work in (
        Work(name="fast-mlp", **_FAST, who=(*_TRACED, "rejax")),
        Work(name="fast-lstm", **_FAST, **_LSTM, who=("jax", "nnx-ppo", *_ALONE)),
        Work(name="invpend-mlp", **_PENDULUM, chunk=8, who=("torch", *_TRACED, "rejax")),
        Work(name="invpend-wide", **_PENDULUM, chunk=2, hidden=(256, 256, 256), who=_TRACED),
        Work(
            name="start-empty", **_PENDULUM, measure="start", cache="empty", who=("jax", "brax", "nnx-ppo", "limit-jax")
        ),
        Work(
            name="start-full", **_PENDULUM, measure="start", cache="full", who=("jax", "brax", "nnx-ppo", "limit-jax")
        ),
        Work(name="cartpole-8", **_CARTPOLE, who=(*_SB, "skrl")),
        Work(name="cartpole-64", **dict(_CARTPOLE, num_envs=64), who=(*_SB, "skrl")),
        Work(name="cartpole-lstm", **_CARTPOLE, **_LSTM, who=("jax", "torch", "recurrent-ppo", *_ALONE)),
        Work(name="cheetah-8", **dict(_CARTPOLE, env="HalfCheetah-v5"), who=_SB),
        Work(name="pendulum-mlp", **_TENSORS, who=_ON_TENSORS),
        # rsl_rl has a dense layer behind the recurrent one, always.
        Work(name="pendulum-lstm", **_TENSORS, hidden=(64,), lstm=64, who=_ON_TENSORS),
        Work(name="cartpole-475", **_SHORT, measure="return", who=("jax", "torch", "sb3")),
        Work(name="quick", **_SHORT, who=_SB, default=False),
        Work(name="invpend-4096", **_MANY, chunk=8, who=("jax", "brax", "nnx-ppo"), default=False),
        Work(name="pendulum-4096", **dict(_TENSORS, num_envs=4096), who=_ON_TENSORS, default=False),
    )
}

_OVERHEAD: dict[str, Any] = {"number": "rollout_overhead_s", "their_number": "needed_s"}

GOALS: tuple[Goal, ...] = (
    *(
        Goal(work, (ours,), tuple(against.split("|")), ratio)
        for work, by_ours in {
            "fast-mlp": {"jax": {"brax": 1.1, "nnx-ppo": 1.6, "limit-jax": 0.9}},
            "fast-lstm": {"jax": {"nnx-ppo": 1.15, "limit-jax": 0.9}},
            "invpend-mlp": {"jax": {"brax": 1.02, "nnx-ppo": 1.4, "limit-jax": 0.95}, "torch": {"jax": 0.6}},
            "invpend-wide": {"jax": {"brax": 1.05, "nnx-ppo": 1.5}},
            "start-empty": {"jax": {"brax|nnx-ppo": 0.5}},
            "cartpole-8": {"jax": {"sb3": 2.5}, "torch": {"sb3": 2.0}},
            "cartpole-64": {"jax": {"sb3|sbx": 3.0}, "torch": {"sb3|sbx": 2.0}},
            "cartpole-lstm": {"jax": {"recurrent-ppo": 10.0}, "torch": {"recurrent-ppo": 6.0}},
            "cheetah-8": {"jax": {"sb3": 1.8}, "torch": {"sb3": 1.5}},
            "pendulum-mlp": {"torch": {"rsl-rl": 1.3, "limit-torch": 0.85}},
            "pendulum-lstm": {"torch": {"rsl-rl": 1.8}},
            "invpend-4096": {"jax": {"brax": 1.0}},
            "pendulum-4096": {"torch": {"rsl-rl": 1.0}},
        }.items()
        for ours, goals in by_ours.items()
        for against, ratio in goals.items()
    ),
    # A user of the peers has no cache unless they set one up.
    Goal("start-full", ("jax",), ("brax", "nnx-ppo"), 0.25, theirs="start-empty"),
    # What a rollout takes beside the environment and the arithmetic in plain NumPy.
    *(Goal(work, (name,), (name,), 0.5, **_OVERHEAD) for work in ("cartpole-8", "cartpole-64") for name in OURS),
    # 16 gradient steps of 256 rows.
    Goal("cartpole-8", ("torch",), ("limit-torch",), 1.5, number="update_s"),
    Goal("cartpole-475", ("jax", "torch"), ("sb3",), 0.7),
)
