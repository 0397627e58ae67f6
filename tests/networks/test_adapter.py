"""PPOAdapter: what it packs and what it refuses."""

import gymnasium
import numpy as np
import pytest
from multippo.conformance.specimens.scripted_environment import ScriptedEnv
from support import to_numpy
from training import train

import multippo as mp
from multippo.networks.types import PPONetworkOutput


def sample(x):
    return {"action": x, "log_likelihood": x[..., 0]}


def with_entropy(x):
    return {**sample(x), "entropy": 2 * x[..., 0]}


def first(x):
    return x[..., 0]


def run(engine, action, value=first, batch=3):
    net = mp.PPOAdapter(action=mp.Lift(action), value=mp.Lift(value))
    return net(net.initialize_state(batch), engine.zeros((batch, 2)) + 1).output


def test_it_packs_both_ports(torch_engine):
    out = run(torch_engine, sample, lambda x: 5 * x[..., 0])
    assert isinstance(out, PPONetworkOutput)
    assert out.actions.shape == (3, 2) and to_numpy(out.loglikelihoods).tolist() == [1.0] * 3
    assert to_numpy(out.value_estimates).tolist() == [5.0] * 3
    assert out.log_likelihoods is out.loglikelihoods


def test_entropies_are_packed_where_every_sample_has_one(torch_engine):
    assert to_numpy(run(torch_engine, with_entropy).entropies).tolist() == [2.0] * 3
    both = run(torch_engine, lambda x: {"arm": with_entropy(x), "leg": with_entropy(x)})
    assert sorted(both.entropies) == ["arm", "leg"]
    assert run(torch_engine, lambda x: {"arm": with_entropy(x), "leg": sample(x)}).entropies is None


def test_a_trailing_axis_of_one_is_squeezed_from_values(torch_engine):
    for batch in (1, 3):
        tree = run(torch_engine, sample, lambda x: {"near": x[..., :1], "far": x[..., 0]}, batch).value_estimates
        assert {key: tuple(value.shape) for key, value in tree.items()} == {"near": (batch,), "far": (batch,)}


def test_a_tree_of_samples_becomes_two_trees_also_of_keys_like_a_samples(torch_engine):
    out = run(torch_engine, lambda x: {"action": sample(x), "log_likelihood": {"deep": [sample(2 * x)]}})
    assert to_numpy(out.actions["log_likelihood"]["deep"][0]).tolist() == [[2.0, 2.0]] * 3
    assert to_numpy(out.loglikelihoods["action"]).tolist() == [1.0] * 3


SAMPLER, VALUE = "PPOAdapter's action port yielded ", "PPOAdapter's value port yielded "


@pytest.mark.parametrize(
    ("action", "value", "said"),
    [
        (lambda x: x, first, SAMPLER + "an array of shape (3, 2); expected "),
        (lambda x: {"a": sample(x), "b": x}, first, SAMPLER + "a dict with the entries ['a', 'b']; expected "),
        (sample, lambda x: x, VALUE + "shape (3, 2)"),
        (sample, lambda x: x[0, 0], VALUE + "shape ()"),
        (sample, lambda x: x[..., 0] > 0, VALUE + "an array of shape (3,) of bool; expected an array of real"),
    ],
)
def test_what_a_port_may_not_yield(torch_engine, action, value, said):
    with pytest.raises((TypeError, ValueError)) as refused:
        run(torch_engine, action, value)
    assert said in str(refused.value)


def test_ports_come_in_a_dict_too(torch_engine):
    action, value = mp.CategoricalSampler(mp.Rngs(0)), mp.Dense(2, 1, mp.Rngs(0))
    net = mp.PPOAdapter({"value": value, "action": action})
    assert net.keys == ("action", "value") and net.action is action and net.value is value


TWO = gymnasium.spaces.Dict(arm=gymnasium.spaces.Box(-1.0, 1.0, (2,)), gripper=gymnasium.spaces.Discrete(3))


def two_heads(values=("arm", "gripper")):
    """An actor head for each key of ``TWO``, and a value for each of ``values``, nothing shared."""
    rngs = mp.Rngs(0)
    actor = mp.Parallel(
        arm=mp.Sequential([mp.Dense(3, 4, rngs), mp.NormalTanhSampler(rngs)]),
        gripper=mp.Sequential([mp.Dense(3, 3, rngs), mp.CategoricalSampler(rngs)]),
    )
    critic = mp.Parallel({key: mp.Dense(3, 1, rngs) for key in values}) if values else mp.Dense(3, 1, rngs)
    return mp.PPOAdapter(action=actor, value=critic)


class Flipped(ScriptedEnv):
    """The same, but what one key earns has the other sign."""

    def _rewards(self, acted, skip):
        rewards = super()._rewards(acted, skip)
        return {**rewards, "gripper": -rewards["gripper"]}


def heads_after(kind, combine):
    network = two_heads()
    env = kind((3,), TWO, reward_keys=("arm", "gripper"))
    options = {"gradient_clipping": None, "combine_advantages": combine, "num_minibatches": 1, "num_epochs": 2}
    run = train(env, network, iterations=1, rollout_length=6, **options)
    return {name: value for name, value in mp.to_portable(network).items() if name.endswith("kernel")}, run.logs[0]


@pytest.mark.parametrize("combine", ["separate", "sum"])
@pytest.mark.nightly_if("jax")
def test_each_head_learns_from_the_reward_of_its_key(engine, combine):
    if engine.name == "jax" and combine == "sum":
        pytest.skip("the same arithmetic; compiling it takes long")
    (plain, logged), (flipped, of_flipped) = heads_after(ScriptedEnv, combine), heads_after(Flipped, combine)
    assert logged["rollout/reward/arm"] == of_flipped["rollout/reward/arm"] != 0
    assert logged["rollout/reward/gripper"] == -of_flipped["rollout/reward/gripper"] != 0
    moved = {name for name in plain if not np.array_equal(plain[name], flipped[name])}
    # Separate: what the gripper earns is felt by the gripper's head and value alone. Summed: by every head.
    expected = {"action.components.gripper.layers.0.kernel", "value.components.gripper.kernel"}
    if combine == "sum":
        expected.add("action.components.arm.layers.0.kernel")
    assert moved == expected


def test_values_that_do_not_mirror_the_rewards_are_refused(torch_engine):
    keyed, plain = ScriptedEnv((3,), TWO, reward_keys=("arm", "gripper")), ScriptedEnv((3,), TWO)
    for env, values, message in (
        (keyed, (), r"rewards have keys \['arm', 'gripper'\], the network's value estimates \[''\]"),
        (keyed, ("arm", "leg"), r"rewards have keys \['arm', 'gripper'\], .* value estimates \['arm', 'leg'\]"),
        (plain, ("arm", "gripper"), r"rewards have keys \[''\], the network's value estimates \['arm', 'gripper'\]"),
    ):
        with pytest.raises(ValueError, match=message):
            train(env, two_heads(values), iterations=1, num_minibatches=1)
