"""What functional environments show and take: filtered trees, masks, images as bytes, tuples, dicts of actions."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

import multippo as mp
from multippo.testing.environments import State


class Choosing:
    """Allows one pick in each state; the reward counts picks that were not allowed."""

    observation_space = spaces.Dict(
        image=spaces.Box(0, 255, (6, 6, 1), np.uint8),
        parts=spaces.Tuple([spaces.Box(-np.inf, np.inf, (2,), np.float32)]),
        action_mask=spaces.Dict(pick=spaces.Box(0, 1, (3,), np.int8)),
    )
    action_space = spaces.Dict(
        pick=spaces.Discrete(3, start=-1),
        arm=spaces.Box(0, 5, (2,)),
        switches=spaces.MultiBinary(2),
        choices=spaces.MultiDiscrete(np.asarray([[2], [3]])),
    )

    def show(self, t: Any) -> Any:
        return {
            "parts": (jnp.ones(2) * t,),
            "action_mask": {"pick": jnp.zeros(3, jnp.int8).at[t % 3].set(1)},
            "image": (jnp.ones((6, 6, 1)) * t * 10).astype(jnp.uint8),
        }

    def reset(self, key: Any) -> State:
        del key
        zero, t = jnp.zeros(()), jnp.zeros((), jnp.int32)
        return State(self.show(t), zero, zero, {"t": t, "truncation": zero}, {})

    def step(self, state: State, action: Any) -> State:
        t = state.info["t"]
        forbidden = jnp.where(action["pick"] + 1 == t % 3, 0.0, 1.0)
        outside = jnp.any((action["arm"] < 0) | (action["arm"] > 5)) | (action["choices"].shape != (2, 1))
        over = jnp.where(t + 1 >= 5, 1.0, 0.0)
        info = {"t": t + 1, "truncation": over}
        return state._replace(obs=self.show(t + 1), reward=forbidden + outside, info=info, done=over)


@pytest.mark.parametrize(("name", "kind"), [("torch", "mlp"), ("torch", "lstm"), ("jax", "lstm")])
@pytest.mark.nightly_if("jax")
def test_masks_bytes_tuples_and_dicts_of_actions(name: str, kind: str):
    with mp.use_backend(name) as engine:
        env = mp.make_env(Choosing(), num_envs=3)
        spaces_of = (env.observation_space, env.action_space)
        if kind == "mlp":
            net = mp.make_mlp_actor_critic(*spaces_of, (4,), (4,), mp.Rngs(0))
        else:
            net = mp.make_recurrent_actor_critic(*spaces_of, 4, encoder_sizes=(4,), rngs=mp.Rngs(0))
        state = net.initialize_state(3)
        _, _, transition = mp.unroll_env(env, env.reset(0), net, state, 12, mp.random.key(0))
        image, mask = (engine.to_numpy(x) for x in (transition.obs["image"], transition.obs["action_mask"]["pick"]))
        assert image.dtype == np.uint8 and image[:, 0, 0, 0, 0].tolist() == [10 * (t % 5) for t in range(12)]
        assert mask.dtype == np.int8
        assert not engine.to_numpy(transition.rewards).any()  # every pick was allowed, every number inside
        picks = engine.to_numpy(transition.network_output.actions["pick"])
        np.testing.assert_array_equal(picks, np.argmax(mask, axis=-1))
        replayed = mp.replay(net, state, transition)
        for key, stored in transition.network_output.loglikelihoods.items():
            new = engine.to_numpy(replayed.loglikelihoods[key])
            np.testing.assert_allclose(new, engine.to_numpy(stored), atol=1e-5, err_msg=key)
