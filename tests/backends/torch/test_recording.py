"""Functions whose operations are recorded once and repeated."""

import numpy as np
import pytest
import torch
from training import train

import multippo as mp
from multippo.backends.torch.recording import recorded
from multippo.testing.environments import Clock


def counted(function):
    """The function, and a list that grows with each of its calls."""
    calls = []

    def count(*args):
        calls.append(1)
        return function(*args)

    return count, calls


def test_later_calls_compute_the_same_from_new_numbers_without_the_function() -> None:
    # x**3 has the derivative 3 x**2; views turned there and back, constants, and what nobody uses are left out.
    def cube(x, more):
        leaf = x.detach().requires_grad_()
        zeros = torch.zeros_like(x).T.T
        y = torch.sum(leaf.T.T**3 + zeros) + torch.sum(more["a"]) * 1.0
        torch.exp(more["a"])
        return {"value": y.detach(), "slope": torch.autograd.grad(y, leaf)[0]}, more

    function, calls = counted(cube)
    run = recorded(function)
    for start in (1.0, 2.0, 5.0):
        x, more = torch.full((2, 3), start), {"a": torch.tensor([start, 1.0])}
        out, same = run(x, more)
        assert out["value"].item() == 6 * start**3 + start + 1
        assert out["slope"].tolist() == [[3 * start**2] * 3] * 2
        assert same["a"] is more["a"]
    assert len(calls) == 1
    assert run(torch.ones(1, 3), more)[0]["value"].item() == 3 + 6  # another shape is recorded anew
    assert len(calls) == 2


def test_writing_to_an_argument_is_repeated_and_what_was_read_before_and_after_stays_apart() -> None:
    def step(x):
        before, read = x * 2, x.clone()
        x.add_(1)
        view = x[:1]
        view.mul_(3)
        return before, read, x * 2

    run = recorded(step)
    for _ in range(3):
        x = torch.tensor([1.0, 2.0])
        before, read, after = run(x)
        assert (before.tolist(), read.tolist(), after.tolist()) == ([2.0, 4.0], [1.0, 2.0], [12.0, 6.0])
        assert x.tolist() == [6.0, 3.0]


def test_random_numbers_are_drawn_anew() -> None:
    run = recorded(lambda x: (x + torch.rand_like(x), x + torch.rand_like(x)))
    first, second = run(torch.zeros(4)), run(torch.zeros(4))
    assert len({tuple(x.tolist()) for x in (*first, *second)}) == 4


@pytest.mark.parametrize("function", [lambda x: x * 2 if bool(x[0] > 0) else x, lambda x: x[x > 0]])
def test_what_depends_on_numbers_other_than_by_operations_is_called_as_it_is(function) -> None:
    run = recorded(function)
    for values in ([1.0, 2.0], [-1.0, 3.0], [-1.0, -1.0]):
        x = torch.tensor(values)
        assert run(x).tolist() == function(x).tolist()


@pytest.mark.parametrize("kind", ["mlp", "lstm"])
def test_a_run_is_the_same_bit_for_bit_as_without(kind) -> None:
    def run(compile):
        with mp.use_backend("torch"):
            env = Clock([3, 5], num_envs=2)
            make = mp.make_mlp_actor_critic if kind == "mlp" else mp.make_recurrent_actor_critic
            network = make(env.observation_space, env.action_space, rngs=mp.Rngs(0))
            found = train(
                env, network, config={"compile": compile}, rollout_length=8, entropy_weight=0.01, target_kl=0.02
            )
            lines = [
                {k: v for k, v in line.items() if k.split("/")[0] not in ("time", "throughput")} for line in found.logs
            ]
            return mp.to_portable(network), lines

    (plain, logs), (repeated, same_logs) = run("off"), run("auto")
    assert logs == same_logs
    assert plain.keys() == repeated.keys()
    for name, value in plain.items():
        np.testing.assert_array_equal(repeated[name], value, err_msg=name)
