import gymnasium
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from multippo.testing import TensorPendulum  # noqa: E402


def test_moves_and_pays_as_gymnasiums_pendulum():
    env, reference = TensorPendulum(3), gymnasium.make("Pendulum-v1").unwrapped
    env.reset(seed=0)
    angles, velocities = env.angle.numpy().copy(), env.velocity.numpy().copy()
    actions = np.random.default_rng(0).uniform(-3, 3, (5, 3, 1)).astype(np.float32)
    ours = [env.step(torch.tensor(action))[:2] for action in actions]
    reference.reset(seed=0)
    for i in range(3):
        reference.state = np.array([angles[i], velocities[i]], np.float64)
        for t, action in enumerate(actions):
            obs, reward, *_ = reference.step(action[i])
            np.testing.assert_allclose(ours[t][0][i].numpy(), obs, atol=1e-5)
            np.testing.assert_allclose(float(ours[t][1][i]), reward, rtol=1e-5)


def test_episodes_start_again_in_the_step_in_which_they_end():
    env = TensorPendulum(4, max_episode_steps=4, staggered=True)
    env.reset(seed=1)
    for t in range(8):
        obs, _, terminated, truncated, info = env.step(torch.zeros(4, 1))
        # The i-th environment's first episode has i of its 4 steps behind it.
        over = np.arange(4) == 3 - t % 4
        np.testing.assert_array_equal(truncated.numpy(), over)
        np.testing.assert_array_equal((info["final_obs"] != obs).any(1).numpy(), over)
        assert not terminated.any()


def test_equal_seeds_give_equal_episodes():
    (first, _), (again, _), (other, _) = (TensorPendulum(2).reset(seed=seed) for seed in (3, 3, 4))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert TensorPendulum(2, device="meta").reset(seed=3)[0].is_meta
