"""Distillation: what the student is taught, that it learns it, and that the teacher stays what it was."""

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from spaces_env import Spaces
from support import on

import multippo as mp
from multippo.algorithms.trainer import Trainer
from multippo.testing import Clock, CountNet, FunctionalClock, Goal, Spy, TableNet

# Logits of the teacher and of the student at the times 0, 1, 2; time 3 is shown by the end of an episode alone.
TAUGHT = np.array([[1.0, -1.0], [0.0, 0.5], [-2.0, 1.0], [9.0, -9.0]])
OWN = np.array([[0.3, 0.1], [0.7, -0.2], [0.4, -0.6], [-9.0, 9.0]])
PAIRS = [("jax", "jax"), ("torch", "torch"), ("jax", "torch"), ("torch", "jax"), ("numpy", "torch")]


def table(name: str, logits: np.ndarray, value: float = 0.5) -> Any:
    with mp.use_backend(name):
        network = TableNet([value] * len(logits))
        mp.load_portable(network, {**mp.to_portable(network), "logits": logits})
        return network


def make_env(kind: str, num_envs: int = 1) -> Any:
    return Clock(3, num_envs=num_envs) if kind == "host" else mp.make_env(FunctionalClock(3), num_envs=num_envs)


def distil(
    env: Any, teacher: Any, student: Any, *, iterations: int = 1, log_every_steps: int = 0, **fields: Any
) -> tuple[list[Any], Any]:
    """The metrics of every iteration, and the result."""
    kept = {k: fields.pop(k) for k in ("target_fn", "initial_state") if k in fields}
    fields = {"rollout_length": 4, "num_epochs": 1, "num_minibatches": 1, "lr_schedule": "constant", **fields}
    fields.setdefault("total_steps", iterations * fields["rollout_length"] * env.num_envs)
    logs: list[Any] = []
    config = mp.DistillationTrainConfig(distillation=mp.DistillationConfig(**fields), log_every_steps=log_every_steps)
    result = mp.train_distillation(env, teacher, student, config, log_fn=logs.append, **kept)
    return logs, result


def log_softmax(x: Any) -> np.ndarray:
    x = np.asarray(x, np.float64)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def kl(taught: Any, own: Any) -> np.ndarray:
    p, q = log_softmax(taught), log_softmax(own)
    return (np.exp(p) * (p - q)).sum(-1)


def assert_unchanged(before: dict[str, np.ndarray], network: Any, but: tuple[str, ...] = ()) -> None:
    after = mp.to_portable(network)
    for name, value in before.items():
        if name not in but:
            np.testing.assert_array_equal(after[name], value, err_msg=name)


# -- what is taught


@pytest.mark.parametrize("kind", ["host", "functional"])
@pytest.mark.parametrize(("teacher_on", "student_on"), PAIRS)
@pytest.mark.nightly_if("jax")
def test_the_first_loss_by_hand(teacher_on, student_on, kind):
    teacher, student = table(teacher_on, TAUGHT), table(student_on, OWN)
    before = mp.to_portable(teacher), mp.to_portable(student)
    # Four steps of one environment, in episodes of three: at the times 0, 1, 2, 0.
    times = [0, 1, 2, 0]
    log_p = log_softmax(OWN)
    # The teacher's mode is the larger logit: action 0, 1, 1.
    expected = -np.mean([log_p[0, 0], log_p[1, 1], log_p[2, 1], log_p[0, 0]])
    divergence = kl(TAUGHT, OWN)[times].mean()
    for loss, total in (("nll", expected), ("kl", divergence)):
        logs, result = distil(make_env(kind), teacher, student, loss=loss, learning_rate=0.0)
        np.testing.assert_allclose(logs[0]["losses/distillation"], total, rtol=1e-5)
        np.testing.assert_allclose(logs[0]["losses/total"], total, rtol=1e-5)
        np.testing.assert_allclose(logs[0]["kl/teacher"], divergence, rtol=1e-5)
        assert logs[0]["losses/regularization"] == 0.0
        assert (result.total_steps, logs[0]["step"]) == (4, 4)
        # One episode of three steps has ended, each of which paid 1.
        assert logs[0]["rollout/episode_reward/mean"] == 3.0
        assert not [name for name in logs[0] if name.startswith("ratio/")]
    # A learning rate of 0 changes nothing; the teacher is never changed.
    assert_unchanged(before[0], teacher)
    assert_unchanged(before[1], student)


@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
@pytest.mark.parametrize(("teacher_on", "student_on"), PAIRS)
@pytest.mark.nightly_if("jax")
def test_carries_go_on_and_reset(teacher_on, student_on, autoreset):
    # Two networks that count the steps of an episode, with logits (g count, 0), and rollouts of 2 steps.
    with mp.use_backend(teacher_on):
        teacher = CountNet(-0.9)
    with mp.use_backend(student_on):
        student = CountNet(0.4)
    # Episodes of 3 and of 2 steps; counts at the valid steps, rollout by rollout and environment by environment.
    counts = {
        "same_step": [[0, 1, 0, 1], [2, 0, 0, 1], [1, 2, 0, 1], [0, 1, 0, 1]],
        # The third step of the first environment, the second of the other end an episode; the next is none.
        "next_step": [[0, 1, 0, 1], [2, 0], [0, 1, 1], [2, 0, 1]],
    }[autoreset]
    env = Clock([3, 2], num_envs=2, autoreset=autoreset)
    logs, _ = distil(env, teacher, student, loss="kl", iterations=4, rollout_length=2, learning_rate=0.0)
    for line, seen in zip(logs, counts, strict=True):
        expected = np.mean([kl([-0.9 * c, 0.0], [0.4 * c, 0.0]) for c in seen])
        np.testing.assert_allclose(line["losses/distillation"], expected, rtol=1e-5, err_msg=str(seen))


def gaussian(seed: int, sampler: Any = mp.NormalTanhSampler, **options: Any) -> tuple[Any, np.ndarray]:
    """A linear policy, and its kernel and bias."""
    rngs = mp.Rngs(seed)
    action = mp.Sequential([mp.Dense(1, 2, rngs), sampler(rngs, **options)])
    network = mp.PPOAdapter(action=action, value=mp.Sequential([mp.Normalizer(1), mp.Dense(1, 1, rngs)]))
    values = mp.to_portable(network)
    drawn = np.random.default_rng(seed).normal(size=(2, 2))
    kernel, bias = (next(n for n in values if n.startswith("action") and n.endswith(e)) for e in ("kernel", "bias"))
    mp.load_portable(network, {**values, kernel: drawn[:1], bias: drawn[1]})
    return network, drawn


def moments(drawn: np.ndarray, obs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    out = obs * drawn[0] + drawn[1]
    return out[..., 0], np.log1p(np.exp(out[..., 1])) + 1e-3


def log_density(u: np.ndarray, m: np.ndarray, std: np.ndarray) -> np.ndarray:
    """Of tanh(u), where u has mean m."""
    return -0.5 * ((u - m) / std) ** 2 - np.log(std) - 0.5 * np.log(2 * np.pi) - np.log(1 - np.tanh(u) ** 2)


@pytest.mark.nightly_if("jax")
def test_a_gaussian_by_hand(engine):
    (teacher, theirs), (student, ours) = gaussian(1), gaussian(2, entropy_weight=0.01)
    env = Spy(Goal(2, length=3))
    before = mp.to_portable(student), mp.to_portable(teacher)
    logs, _ = distil(env, teacher, student, learning_rate=0.0)
    obs = np.stack([state.obs for state in env.states[:4]])
    (u, s), (m, std) = moments(theirs, obs), moments(ours, obs)
    np.testing.assert_allclose(logs[0]["losses/distillation"], -log_density(u, m, std).mean(), rtol=1e-4)
    divergence = np.log(std / s) + (s**2 + (u - m) ** 2) / (2 * std**2) - 0.5
    np.testing.assert_allclose(logs[0]["kl/teacher"], divergence.mean(), rtol=1e-4)
    # The student's own bonus is part of the loss.
    entropy = next(value for name, value in logs[0].items() if name.endswith("entropy"))
    np.testing.assert_allclose(logs[0]["losses/regularization"], -0.01 * entropy, rtol=1e-5)
    # Its statistics move, by 4 steps in 2 environments; nobody else's do.
    counters = [name for name in before[0] if name.endswith("counter")]
    moved = [name for name, value in mp.to_portable(student).items() if not np.array_equal(value, before[0][name])]
    assert counters and set(counters) <= set(moved)
    assert not [name for name in moved if name.endswith(("kernel", "bias"))]
    assert_unchanged(before[1], teacher)
    # The student samples while it learns, and both do so afterwards.
    assert len(np.unique(np.stack(env.actions))) == 8
    assert not teacher.action[1].deterministic and not student.action[1].deterministic


@pytest.mark.nightly_if("jax")
def test_dict_actions_are_taught_key_by_key(engine):
    space = spaces.Dict({"arm": spaces.Box(-9, 9, (1,), np.float32), "hand": spaces.Discrete(3)})
    heads = {"hand": (3, mp.CategoricalSampler), "arm": (2, mp.NormalSampler)}

    def network(seed: int, names: list[str]) -> tuple[Any, dict[str, np.ndarray]]:
        """One that adds its biases to zeros: the logits of a choice, and mean and spread of a number."""
        rngs, biases = mp.Rngs(0), {n: np.random.default_rng(seed).normal(size=heads[n][0]) for n in names}
        parts = {n: mp.Sequential([mp.Scale(0.0), mp.Dense(1, heads[n][0], rngs), heads[n][1](rngs)]) for n in names}
        for name, bias in biases.items():
            layer = parts[name][1]
            mp.load_portable(layer, {**mp.to_portable(layer), "bias": bias})
        return mp.PPOAdapter(action=mp.Parallel(parts), value=mp.Dense(1, 1, rngs)), biases

    made: list[Spaces] = []
    make = lambda: made.append(Spaces(spaces.Box(-1, 1, (1,), np.float32), space)) or made[-1]  # noqa: E731
    env = mp.make_env(make, num_envs=2)
    # The student's samplers lie elsewhere and in another order: they are told by their keys.
    (teacher, taught), (inner, own) = network(1, ["arm", "hand"]), network(2, ["hand", "arm"])
    logs, _ = distil(env, teacher, mp.Sequential([mp.Scale(2.0), inner]), iterations=4, learning_rate=0.01)
    (m, s), (n, t) = ((x["arm"][0], np.log1p(np.exp(x["arm"][1])) + 1e-3) for x in (taught, own))
    # The teacher's mode is its likeliest choice, and the mean.
    log_p = log_softmax(own["hand"])[taught["hand"].argmax()]
    log_p += -0.5 * ((m - n) / t) ** 2 - np.log(t) - 0.5 * np.log(2 * np.pi)
    divergence = kl(taught["hand"], own["hand"]) + np.log(t / s) + (s**2 + (m - n) ** 2) / (2 * t**2) - 0.5
    np.testing.assert_allclose(logs[0]["losses/distillation"], -log_p, rtol=1e-5)
    np.testing.assert_allclose(logs[0]["kl/teacher"], divergence, rtol=1e-5)
    # What the student did in the environment was a choice and a number, each of its own space.
    received = made[-1].received
    assert len({int(action["hand"]) for action in received}) > 1
    assert np.std([float(action["arm"][0]) for action in received]) > 0.1


@pytest.mark.nightly
def test_several_iterations_in_one_call_are_those_one_by_one(monkeypatch):
    # Rollouts of 2 steps in episodes of 3, and a teacher that counts steps: its carry goes on within a call.
    fields = {"loss": "kl", "rollout_length": 2, "learning_rate": 0.05, "iterations": 5}
    calls: list[int] = []
    run = Trainer.run
    monkeypatch.setattr(Trainer, "run", lambda *args: calls.append(len(args[3])) or run(*args))
    found = {}
    # An iteration is 4 steps; on JAX two are in a call, and the last call is not full.
    for name, every in (("torch", 0), ("jax", 8)):
        with on(name, "float64"):
            teacher, student = CountNet(-0.9), CountNet(0.4)
            logs, result = distil(make_env("functional", 2), teacher, student, log_every_steps=every, **fields)
            found[name] = logs, result.training_state.teacher_carry, mp.to_portable(student)["gain"]
    assert calls == [1] * 5 + [2, 2, 1]
    (alone, carry, gain), (together, carry_too, gain_too) = found["torch"], found["jax"]
    # Counts 0 and 1 in the first rollout.
    expected = np.mean([kl([-0.9 * c, 0.0], [0.4 * c, 0.0]) for c in (0, 1)])
    np.testing.assert_allclose(together[0]["losses/distillation"], expected, rtol=1e-10)
    for column in ("losses/distillation", "kl/teacher", "step", "iteration"):
        np.testing.assert_allclose([x[column] for x in together], [x[column] for x in alone], rtol=1e-9, err_msg=column)
    np.testing.assert_allclose(gain_too, gain, rtol=1e-9)
    for a, b in zip(carry, carry_too, strict=True):
        np.testing.assert_array_equal(a, b)


# -- learning


@pytest.mark.parametrize(("teacher_on", "student_on"), [("jax", "torch"), ("torch", "jax")])
@pytest.mark.nightly_if("torch-jax")
def test_the_student_comes_to_the_teachers_probabilities(teacher_on, student_on):
    teacher, student = table(teacher_on, TAUGHT), table(student_on, OWN, value=0.25)
    before = mp.to_portable(teacher)
    fields = {"rollout_length": 8, "num_epochs": 4, "num_minibatches": 2, "learning_rate": 0.05, "iterations": 60}
    logs, _ = distil(make_env("host", 4), teacher, student, loss="kl", lr_schedule="linear", **fields)
    after = mp.to_portable(student)
    # KL(teacher || student) = 0 if and only if they are the same; time 3 is never acted in.
    np.testing.assert_allclose(np.exp(log_softmax(after["logits"][:3])), np.exp(log_softmax(TAUGHT[:3])), atol=5e-3)
    np.testing.assert_array_equal(after["logits"][3], OWN[3].astype(np.float32))
    # The critic is not trained.
    np.testing.assert_array_equal(after["values"], np.full(4, 0.25, np.float32))
    assert logs[-1]["kl/teacher"] < 1e-4 < logs[0]["kl/teacher"]
    assert_unchanged(before, teacher)


@pytest.mark.nightly_if("jax")
def test_stop_save_and_go_on(engine, tmp_path):
    # Rollouts of 2 steps in episodes of 3: each iteration begins in the midst of one. The teacher has a memory.
    def pair() -> tuple[Any, Any]:
        return CountNet(-0.9), CountNet(0.4)

    fields = {"loss": "kl", "rollout_length": 2, "learning_rate": 0.05}
    teacher, whole = pair()
    _, expected = distil(make_env("functional", 2), teacher, whole, iterations=4, **fields)
    teacher, student = pair()
    _, half = distil(make_env("functional", 2), teacher, student, iterations=2, **fields)
    mp.save_checkpoint(tmp_path / "half", half.training_state, student)
    teacher, student = pair()
    state = mp.load_checkpoint(tmp_path / "half", student)
    _, got = distil(make_env("functional", 2), teacher, student, iterations=4, initial_state=state, **fields)
    assert got.total_iterations == expected.total_iterations == 4
    np.testing.assert_array_equal(mp.to_portable(student)["gain"], mp.to_portable(whole)["gain"])
    for a, b in zip(got.training_state.teacher_carry, expected.training_state.teacher_carry, strict=True):
        np.testing.assert_array_equal(a, b)


# -- what does not fit


def test_a_student_is_replayed_piece_by_piece(torch_engine):
    lengths: list[int] = []

    class Student(CountNet):
        def unroll(self, state: Any, xs: Any, done: Any, rollout_extras: Any = None) -> Any:
            lengths.append(done.shape[0])
            return super().unroll(state, xs, done, rollout_extras)

    found = []
    for remat_steps in (None, 3):
        lengths.clear()
        teacher = table("torch", TAUGHT)
        found.append(distil(make_env("host"), teacher, Student(), iterations=2, remat_steps=remat_steps)[0])
    np.testing.assert_allclose(*([line["losses/total"] for line in logs] for logs in found), rtol=1e-5)
    assert lengths[-8:] == [3, 1, 1, 3] * 2


def take_theirs(teacher_extras: Any, student_extras: Any) -> Any:
    return {**student_extras, "action": [None, teacher_extras["action"][1]]}


@pytest.mark.nightly_if("jax")
def test_target_fn_decides(engine):
    (teacher, theirs), (student, ours) = gaussian(1, mp.NormalSampler), gaussian(2)
    env = Spy(Goal(2, length=3))
    with pytest.raises(ValueError, match=r"does not fit .* NormalSampler with .* a NormalTanhSampler with .*target_fn"):
        distil(env, teacher, student)
    assert env.actions == []
    logs, _ = distil(env, teacher, student, learning_rate=0.0, target_fn=take_theirs)
    obs = np.stack([state.obs for state in env.states[-5:-1]])
    (u, _), (m, std) = moments(theirs, obs), moments(ours, obs)
    np.testing.assert_allclose(logs[0]["losses/distillation"], -log_density(u, m, std).mean(), rtol=1e-4)
    assert "kl/teacher" not in logs[0]


def test_what_target_fn_returns_is_checked(torch_engine):
    env = Spy(Goal(2, length=3))
    with pytest.raises(ValueError, match="target_fn returned a tree of structure"):
        distil(env, gaussian(1)[0], gaussian(2)[0], target_fn=lambda theirs, ours: theirs["action"])
    assert env.actions == []


def test_a_student_that_shares_an_array_with_its_teacher_is_refused(engine):
    env, shared = Spy(Clock(3, num_envs=2)), mp.Normalizer(4)
    teacher = mp.Sequential([mp.with_recording(shared), TableNet([0.0] * 4)])
    with pytest.raises(ValueError, match=r"The student and the teacher share the array layers\.0\."):
        distil(env, teacher, mp.Sequential([shared, TableNet([0.0] * 4)]))
    assert env.actions == []


def test_what_is_refused_before_the_first_step(torch_engine):
    env = Spy(Clock(3, num_envs=2))
    student = TableNet([0.0] * 4)
    for teacher, error, message in (
        (TableNet([0.0] * 5), ValueError, r"The teacher failed on .*\(2, 4\).* at TableNet"),
        (TableNet([0.0] * 4, num_actions=3), ValueError, r"parameters \(3,\), the student's .* parameters \(2,\)"),
        (student, ValueError, "share the array"),
        (3, TypeError, "got a int as its teacher"),
    ):
        with pytest.raises(error, match=message):
            distil(env, teacher, student)
    with pytest.raises(TypeError, match=r"needs a DistillationTrainConfig.*; got a TrainConfig"):
        mp.train_distillation(env, TableNet([0.0] * 4), student, mp.TrainConfig())  # type: ignore[arg-type]
    assert env.actions == []
