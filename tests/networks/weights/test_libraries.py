"""Policies of Stable-Baselines3 and rsl_rl: their files become networks that act as they do."""

import io
import itertools
import os
import zipfile
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

import multippo as mp

OBS, STEPS, BATCH = 3, 5, 2
RNG = np.random.default_rng(0)
OBSERVATIONS = RNG.normal(size=(STEPS, BATCH, OBS)).astype(np.float32)
BOUNDED = spaces.Box(np.asarray([-2.0, 0.0], np.float32), np.asarray([2.0, 10.0], np.float32))
SPACE = spaces.Box(-np.inf, np.inf, (OBS,), np.float32)


def mlp(*sizes: int, activation: type[torch.nn.Module] = torch.nn.Tanh) -> torch.nn.Sequential:
    layers = [(torch.nn.Linear(fan_in, fan_out), activation()) for fan_in, fan_out in itertools.pairwise(sizes)]
    return torch.nn.Sequential(*(module for pair in layers for module in pair))


class Policy(torch.nn.Module):
    """The modules of ``MlpPolicy``, or with ``lstm`` of ``MlpLstmPolicy``, under their names."""

    def __init__(self, outputs: int, lstm: str = "", gaussian: bool = False) -> None:
        super().__init__()
        features = 4 if lstm else OBS
        self.mlp_extractor = torch.nn.ModuleDict({"policy_net": mlp(features, 6, 5), "value_net": mlp(features, 7)})
        self.action_net, self.value_net = torch.nn.Linear(5, outputs), torch.nn.Linear(7, 1)
        if gaussian:
            self.log_std = torch.nn.Parameter(torch.full((outputs,), -1.0))
        if lstm:
            self.lstm_actor = torch.nn.LSTM(OBS, 4, num_layers=2)
        if lstm == "both":
            self.lstm_critic = torch.nn.LSTM(OBS, 4)
        if lstm == "actor":
            self.critic = torch.nn.Linear(OBS, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        latent = self.lstm_actor(x)[0] if hasattr(self, "lstm_actor") else x
        if hasattr(self, "lstm_critic"):
            valued = self.lstm_critic(x)[0]
        else:
            valued = self.critic(x) if hasattr(self, "critic") else latent
        actor, critic = self.mlp_extractor["policy_net"](latent), self.mlp_extractor["value_net"](valued)
        return self.action_net(actor), self.value_net(critic)


def archive(path: Any, state: Any) -> Any:
    """Writes what ``save`` of Stable-Baselines3 does, without the entries that nobody may read."""
    content = io.BytesIO()
    torch.save(state, content)
    with zipfile.ZipFile(path, "w") as held:
        held.writestr("policy.pth", content.getvalue())
        held.writestr("data", "not to be read")
    return path


def played(network: Any, action_space: Any, observations: Any = OBSERVATIONS) -> tuple[np.ndarray, np.ndarray]:
    """Actions in the environment's coordinates, and values."""
    engine, carry, states, actions, values = network.engine, None, network.initialize_state(BATCH), [], []
    policy = mp.load_policy(network, observation_space=SPACE, action_space=action_space)
    for x in observations:
        action, carry = policy(x, carry)
        out = network(states, engine.asarray(x))
        states = out.next_state
        actions.append(action)
        values.append(engine.to_numpy(out.output.value_estimates))
    return np.asarray(actions), np.asarray(values)


@pytest.mark.parametrize("lstm", ["", "both", "actor", "shared"])
@pytest.mark.parametrize("kind", ["gaussian", "choices"])
def test_of_stable_baselines3(torch_engine, tmp_path, lstm, kind):
    gaussian = kind == "gaussian"
    theirs, space = Policy(2, lstm, gaussian), BOUNDED if gaussian else spaces.Discrete(2)
    network = mp.load_sb3(archive(tmp_path / "model.zip", theirs.state_dict()), SPACE, space)
    actions, values = played(network, space)
    with torch.no_grad():
        outputs, expected = (part.numpy() for part in theirs(torch.from_numpy(OBSERVATIONS)))
    np.testing.assert_allclose(values, expected[..., 0], atol=1e-5)
    if gaussian:
        np.testing.assert_allclose(actions, np.clip(outputs, BOUNDED.low, BOUNDED.high), atol=1e-5)
        # A deviation of exp(-1) in bounds that are 2 and 5 times as far apart as those of policies here.
        log_std = next(array for name, array in mp.to_portable(network).items() if name.endswith("log_std"))
        np.testing.assert_allclose(log_std, -1 - np.log([2, 5]), atol=1e-6)
    else:
        np.testing.assert_array_equal(actions, outputs.argmax(-1))


def test_statistics_of_stable_baselines3(torch_engine, tmp_path):
    theirs, held = Policy(2), {"mean": np.full(OBS, 2.0), "var": np.full(OBS, 9.0), "count": 50.0001}
    choices = spaces.Discrete(2)
    network = mp.load_sb3(archive(tmp_path / "m", theirs.state_dict()), SPACE, choices, statistics=held)
    with torch.no_grad():
        expected = theirs(torch.from_numpy((OBSERVATIONS - 2) / 3))[1].numpy()
    np.testing.assert_allclose(played(network, choices)[1], expected[..., 0], atol=1e-5)


class Model(torch.nn.Module):
    """The modules of rsl_rl's ``MLPModel`` or ``RNNModel``, under the names of version 5."""

    def __init__(self, kind: str, outputs: int) -> None:
        super().__init__()
        self.obs_normalizer = torch.nn.Module()
        for name, value in {"_mean": 0.5, "_var": 4.0, "_std": 2.0}.items():
            self.obs_normalizer.register_buffer(name, torch.full((1, OBS), value))
        self.obs_normalizer.register_buffer("count", torch.tensor(30))
        if kind != "mlp":
            self.rnn = torch.nn.Module()
            self.rnn.rnn = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}[kind](OBS, 4)
        self.mlp = mlp(OBS if kind == "mlp" else 4, 6, outputs, activation=torch.nn.ELU)[:-1]
        if outputs > 1:
            self.distribution = torch.nn.Module()
            self.distribution.std_param = torch.nn.Parameter(torch.full((outputs,), 0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = (x - 0.5) / 2.01
        return self.mlp(self.rnn.rnn(x)[0] if hasattr(self, "rnn") else x)


OLDER = {
    "obs_normalizer.": "{0}_obs_normalizer.",
    "rnn.": "memory_{1}.",
    "mlp.": "{0}.",
    "distribution.std_param": "std",
}


def older(actor: Model, critic: Model) -> dict[str, Any]:
    """The same arrays as ``ActorCritic`` and ``ActorCriticRecurrent`` of version 3 had them."""
    states: dict[str, Any] = {}
    for part, model in (("actor", actor), ("critic", critic)):
        for name, value in model.state_dict().items():
            start = next(start for start in OLDER if name.startswith(start))
            states[OLDER[start].format(part, part[0]) + name.removeprefix(start)] = value
    return {"model_state_dict": states, "iter": 1, "infos": None}


@pytest.mark.parametrize("kind", ["mlp", "lstm", "gru"])
@pytest.mark.parametrize("version", [3, 4, 5])
def test_of_rsl_rl(torch_engine, tmp_path, kind, version):
    actor, critic = Model(kind, 2), Model(kind, 1)
    states = {"actor_state_dict": actor.state_dict(), "critic_state_dict": critic.state_dict(), "infos": None}
    if version == 4:
        states["actor_state_dict"]["std"] = states["actor_state_dict"].pop("distribution.std_param")
    torch.save(older(actor, critic) if version == 3 else states, tmp_path / "model_1.pt")
    network = mp.load_rsl_rl(tmp_path / "model_1.pt")
    actions, values = played(network, spaces.Box(-np.inf, np.inf, (2,), np.float32))
    with torch.no_grad():
        x = torch.from_numpy(OBSERVATIONS)
        np.testing.assert_allclose(actions, actor(x).numpy(), atol=1e-5)
        np.testing.assert_allclose(values, critic(x).numpy()[..., 0], atol=1e-5)
    log_std = next(array for name, array in mp.to_portable(network).items() if name.endswith("log_std"))
    np.testing.assert_allclose(log_std, np.log([0.5, 0.5]), atol=1e-6)


def test_a_critic_that_sees_more(torch_engine, tmp_path):
    states = {}
    for part, size, outputs in (("actor", 3, 2), ("critic", 5, 1)):
        held = {f"mlp.{name}": value for name, value in mlp(size, outputs).state_dict().items()}
        states[f"{part}_state_dict"] = held | ({"distribution.std_param": torch.ones(2)} if part == "actor" else {})
    torch.save(states, tmp_path / "model.pt")
    network, ones = mp.load_rsl_rl(tmp_path / "model.pt"), torch_engine.asarray(np.ones((1, 5), np.float32))
    out = network(network.initialize_state(1), {"policy": ones[:, :3], "critic": ones}).output
    expected = sum(float(states["critic_state_dict"][f"mlp.0.{name}"].sum()) for name in ("weight", "bias"))
    assert float(out.value_estimates.detach()) == pytest.approx(expected)


class Evil:
    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (self.path,)


def test_code_in_a_file_is_not_run(torch_engine, tmp_path):
    state = {"actor_state_dict": Evil(str(tmp_path / "made")), "critic_state_dict": {}}
    torch.save(state, tmp_path / "model.pt")
    archive(tmp_path / "model.zip", state)
    with pytest.raises(ValueError, match="reading them would run code from the file"):
        mp.load_rsl_rl(tmp_path / "model.pt")
    with pytest.raises(ValueError, match="reading them would run code from the file"):
        mp.load_sb3(tmp_path / "model.zip", SPACE, BOUNDED)
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    ("change", "space", "words"),
    [
        (
            {"features_extractor.cnn.0.weight": torch.ones(2, 2)},
            spaces.Discrete(2),
            r"not known here: features_extract",
        ),
        ({}, spaces.Discrete(3), r"has 2 outputs for actions, which are not those of Discrete\(3\)"),
        ({}, BOUNDED, r"has 2 outputs for actions, which are not those of Box"),
        ({"log_std": torch.ones(4, 2)}, BOUNDED, r"has 2 outputs for actions"),
    ],
)
def test_other_policies_are_refused(torch_engine, tmp_path, change, space, words):
    path = archive(tmp_path / "model.zip", Policy(2).state_dict() | change)
    with pytest.raises(ValueError, match=words):
        mp.load_sb3(path, SPACE, space)


def test_other_checkpoints_are_refused(torch_engine, tmp_path):
    torch.save({"weights": torch.ones(2)}, tmp_path / "model.pt")
    with pytest.raises(ValueError, match=r"holds weights; expected a checkpoint of rsl_rl's PPO"):
        mp.load_rsl_rl(tmp_path / "model.pt")


@pytest.mark.parametrize("recurrent", [False, True])
def test_with_the_library_itself(torch_engine, tmp_path, recurrent):
    library = pytest.importorskip("sb3_contrib" if recurrent else "stable_baselines3")
    kind, policy = (library.RecurrentPPO, "MlpLstmPolicy") if recurrent else (library.PPO, "MlpPolicy")
    model = kind(policy, "Pendulum-v1", seed=0)
    with torch.no_grad():
        for parameter in model.policy.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    model.save(tmp_path / "model")
    spaces_of = (model.observation_space, model.action_space)
    network = mp.load_sb3(tmp_path / "model.zip", *spaces_of)
    mine = mp.load_policy(network, observation_space=spaces_of[0], action_space=spaces_of[1])
    carry, state, start = None, None, np.ones(1, bool)
    for x in OBSERVATIONS[:, 0]:
        action, carry = mine(x, carry)
        theirs, state = model.predict(x, state, start, deterministic=True)
        start = np.zeros(1, bool)
        np.testing.assert_allclose(action, theirs, atol=1e-5)
