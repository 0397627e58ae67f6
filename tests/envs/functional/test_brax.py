"""brax's own environments, the small ones: `fast` has no physics, `inverted_pendulum` is traced but not compiled."""

import importlib
import inspect
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

brax_envs = pytest.importorskip("brax.envs")

from brax.envs.wrappers import training  # noqa: E402

from multippo.envs.functional.brax import deferred, make_brax, without_batching  # noqa: E402
from multippo.envs.functional.declarations import find_truncation_key  # noqa: E402
from multippo.envs.functional.functional_env import FunctionalEnv  # noqa: E402
from multippo.envs.make import make_env  # noqa: E402
from multippo.envs.registry import FAMILIES, list_envs  # noqa: E402


def fast():
    return brax_envs.get_environment("fast")


def test_a_deferred_package_is_imported_when_it_is_called():
    with deferred("this"):  # a module that nothing else imports
        module = importlib.import_module("this")
    assert "this" not in sys.modules
    with pytest.raises(AttributeError, match="'this' has no attribute 'absent'"):
        module.absent()
    assert sys.modules.pop("this") is not module


def test_a_hidden_automatic_reset_is_refused():
    with pytest.raises(ValueError, match=r"EpisodeWrapper wraps a VmapWrapper.*without it"):
        make_env(training.wrap(fast(), episode_length=3), num_envs=2)
    hidden = training.EpisodeWrapper(training.AutoResetWrapper(fast()), 3, 1)
    with pytest.raises(ValueError, match="EpisodeWrapper wraps a AutoResetWrapper"):
        without_batching(hidden)
    assert without_batching(training.AutoResetWrapper(training.VmapWrapper(env := fast()))) is env


def test_brax_action_repeat_counts_the_simulations_steps():
    ours = make_env("brax/fast", num_envs=1, episode_length=4, action_repeat=2)
    theirs = FunctionalEnv(training.EpisodeWrapper(fast(), 4, 2), 1)
    action = jnp.ones((1, 1))
    ours_state, theirs_state = ours.reset(0), theirs.reset(0)
    for _ in range(5):
        ours_state, theirs_state = ours.step(ours_state, action), theirs.step(theirs_state, action)
        np.testing.assert_allclose(ours_state.reward, theirs_state.reward, rtol=1e-6)
        np.testing.assert_array_equal(ours_state.truncated, theirs_state.truncated)
        np.testing.assert_allclose(ours_state.final_obs, theirs_state.final_obs, rtol=1e-6)


def test_a_fallen_pole_is_no_time_limit():
    # inverted_pendulum copies `done` to info["time_out"]; abstract evaluation tells that it is there and not used.
    raw = brax_envs.get_environment("inverted_pendulum")
    assert "time_out" in jax.eval_shape(raw.reset, jax.random.PRNGKey(0)).info
    assert FunctionalEnv(raw, 1, episode_length=10)._truncation_key is None
    assert (
        find_truncation_key(training.EpisodeWrapper(raw, 10, 1), {"time_out", "truncation"}, "auto", None)
        == "truncation"
    )


def test_names_and_backends():
    assert {*(FAMILIES["brax"].names or ()), "swimmer"} == set(brax_envs._envs)
    with pytest.raises(ValueError, match=r"'physx'.*generalized, spring, positional, mjx"):
        make_brax("ant", 1, backend="physx")
    with pytest.raises(ValueError, match=r"'brax/ants' is not known\. Did you mean 'brax/ant'"):
        make_env("brax/ants")


def test_one_that_brax_cannot_compute_says_so():
    # brax calls jax.numpy.clip(a_min=).
    if "a_min" in inspect.signature(jnp.clip).parameters:
        assert make_env("brax/swimmer").action_space.shape == (2,)
    else:
        with pytest.raises(ImportError, match=r"brax/swimmer moves in a fluid.*older jax or a newer brax"):
            make_env("brax/swimmer")
    assert "brax/swimmer" not in list_envs()
