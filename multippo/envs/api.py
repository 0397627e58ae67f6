"""The contract between environments and rollouts, free of any engine.

Two families exist, and ``Env.functional`` separates them:

* *host* environments (gymnasium) keep their state to themselves, are stepped in Python, and return NumPy arrays, or
  torch tensors (IsaacLab, ManiSkill), as ``Env.arrays`` says;
* *functional* environments (brax, playground) are pure JAX functions of an explicit state, can be traced, and return
  JAX arrays on every engine.

Axes: ``B`` is the number of environments, stepped side by side.
"""

from __future__ import annotations

import abc
from typing import Any, NamedTuple

import gymnasium


class EnvState(NamedTuple):
    """The result of one reset or step of ``B`` environments.

    Attributes:
        obs: Tree of ``[B, ...]`` arrays in the space's types: the observation that the policy sees next. Where an
            episode has just ended, already the first observation of the following one (except in an environment with
            ``may_skip``, which shows the final observation once more and resets on the following, invalid, step).
        reward: Tree of ``[B]`` floats, the reward of the step just taken.
        terminated: ``[B]`` bool, True where the episode ended in a state of value zero.
        truncated: ``[B]`` bool, True where the episode was cut, so that its final state still has a value. Never True
            together with ``terminated``.
        final_obs: Tree like ``obs``. Where an episode has just ended, its last observation, from which a truncated
            episode is bootstrapped; elsewhere equal to ``obs``. From an environment in tensors, None after a step whose
            last observations are not known: the value of the observation before the step then stands for theirs.
        valid: ``[B]`` bool, False where the step was not one of the task (gymnasium's NEXT_STEP reset step, which
            ignores the action). An invalid step enters no loss, statistic or count.
        metrics: Dict of ``[B]`` floats that the environment reports beside the reward.
        internal: The simulator's own state: a pytree for functional environments, ``()`` for host environments.
        broken: ``[B]`` int32, above 0 where the step gave a value that is not finite. The step's episode has then been
            truncated with a reward of 0, and a new one has started; the number is that of the leaf (see
            ``envs.nonfinite``). Below 0 where the step is sound and the next episode was reset again, since its first
            observation was not finite; in the state from ``reset`` the number is never above 0. None if unknown.
    """

    obs: Any
    reward: Any
    terminated: Any
    truncated: Any
    final_obs: Any
    valid: Any
    metrics: dict[str, Any]
    internal: Any
    broken: Any = None


class Env(abc.ABC):
    """``num_envs`` environments stepped side by side.

    Attributes:
        id: Name that ``make_env`` takes, or the class name of an environment made by the user.
        num_envs: Number of environments, ``B``.
        observation_space: gymnasium space of one environment's observation.
        action_space: gymnasium space of one environment's action. Actions handed to ``step`` are in *policy
            coordinates*: for a Box of floats, each bounded dimension lies in [-1, 1] and is scaled to its bounds by
            the environment adapter; an unbounded dimension is passed through. Actions of a Discrete space count from 0,
            as in each dimension of a MultiDiscrete or a Box of integers.
        functional: True if ``reset`` and ``step`` are pure JAX functions of their arguments.
        arrays: Arrays of a host environment. ``"numpy"``; or ``"torch"`` for tensors of one device, on which a network
            of the torch engine acts without a copy to the host. Nothing then waits for the device in a step, so values
            that are not finite are found after the rollout, and end the run: no episode is restarted. Every step of
            such an environment is valid, and the actions it is given are tensors.
        may_skip: True if ``valid`` can be False after a step.
        max_episode_steps: Time limit in steps, or None where it is unknown or there is none.
        restarts: True if ``restart`` can reset single environments; None if only a call can find out.
        vectorization: Form that a clock has chosen for ``make_env(vectorization="auto")``; None where none had to.
        raw_observation_space: Space of the observations before they are converted, such as a Discrete one; None where
            they are not.
    """

    id: str
    num_envs: int
    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]
    functional: bool
    arrays: str = "numpy"
    may_skip: bool = False
    max_episode_steps: int | None = None
    restarts: bool | None = None
    vectorization: str | None = None
    raw_observation_space: gymnasium.Space[Any] | None = None

    @abc.abstractmethod
    def reset(self, key: Any) -> EnvState:
        """Starts an episode in every environment.

        Args:
            key: Random key (two 32-bit words, of any engine) or an integer seed. Equal keys give equal starts;
                environments of one batch start differently.

        Returns:
            The first state, with rewards of 0, no ended episode and every entry valid.
        """

    @abc.abstractmethod
    def step(self, env_state: EnvState, action: Any) -> EnvState:
        """Takes one step in every environment, and resets those whose episode ends.

        Args:
            env_state: The latest state. A host environment only checks that the state is the latest, and may write
                into arrays it has returned before; a rollout copies what it keeps.
            action: Tree of ``[B, ...]`` arrays in policy coordinates.
        """

    def draw_starts(self, key: Any) -> Any:
        """The pool of fresh starts for one rollout; None where an environment resets itself."""
        del key
        return None

    def lowered(self) -> list[Any]:
        """What ``reset`` has compiled, traced; any thread may call ``compile`` of each, so that ``reset`` need not."""
        return []

    def with_starts(self, env_state: EnvState, starts: Any) -> EnvState:
        """The state with a new pool of starts, from ``draw_starts``; running episodes continue."""
        del starts
        return env_state

    def refresh(self, env_state: EnvState, key: Any) -> EnvState:
        """The state with freshly drawn starts; called once before every rollout."""
        return self.with_starts(env_state, self.draw_starts(key))

    def restart(self, env_state: EnvState, which: Any) -> EnvState | None:
        """Abandons episodes, such as those of a simulator that has blown up, and starts new ones.

        Args:
            env_state: The latest state.
            which: ``[B]`` bool, True for at least one episode to abandon.

        Returns:
            The state with the new episodes' first observations, ``truncated`` and not ``terminated`` where ``which``
            holds; None if single environments can't be restarted.
        """
        del env_state, which
        return None

    def similar(self, num_envs: int) -> Env:
        """A new environment of the same task with another batch size, for evaluation.

        Raises:
            ValueError: If the environment was made by the user from objects that can't be made again.
        """
        raise ValueError(
            f"{type(self).__name__} can't make a copy of itself with {num_envs} environments; pass eval_env= "
            "explicitly."
        )

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Calls a method of the environments, or reads an attribute, as gymnasium's ``VectorEnv.call``.

        Returns:
            The result of each environment; a single one where one object is the whole batch, as a vector form of an
            environment's own, a simulator in tensors or a functional environment is.
        """
        inner = self._inner
        if inner is not self and hasattr(inner, "call"):
            return inner.call(name, *args, **kwargs)
        found = getattr(inner, name)
        return (found(*args, **kwargs) if callable(found) else found,)

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Reads an attribute of the environments; see ``call``."""
        return self.call(name)

    def set_attr(self, name: str, values: Any) -> None:
        """Changes an attribute of the environments, as gymnasium's ``VectorEnv.set_attr``.

        Args:
            name: Name of the attribute.
            values: List or tuple with the value of each environment, or one value for all.

        Raises:
            ValueError: If the environment is functional: its attributes are compiled into the run.
        """
        if self.functional:
            raise ValueError(
                f"{self.id} is compiled with its attributes, so {name!r} can't change within a run: keep it in the "
                "state, or train in stages, each from initial_state=result.training_state."
            )
        inner = self._inner
        if inner is not self and hasattr(inner, "set_attr"):
            inner.set_attr(name, values)
        else:
            setattr(inner, name, values)

    @property
    def _inner(self) -> Any:
        """The object with the environments' methods and attributes, or with gymnasium's ``call`` and ``set_attr``."""
        return self

    def close(self) -> None:
        """Frees the environment's processes and windows; a second call does nothing."""


def spaces_of(env: Env) -> tuple[gymnasium.Space[Any], gymnasium.Space[Any]]:
    """Spaces of an observation and an action as the environment itself gives and takes them."""
    raw = env.raw_observation_space
    return (env.observation_space if raw is None else raw), env.action_space
