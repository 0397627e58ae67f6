"""Functions whose operations are recorded once and repeated."""

import dataclasses

import numpy as np
import pytest
import torch
from multippo.conformance.specimens.network_specimens import NETWORKS, ppo_config

import multippo as mp
from multippo.backends.torch import recording
from multippo.backends.torch.recording import recorded


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


def test_a_tensor_in_two_places_is_one_argument_and_two_tensors_are_recorded_anew() -> None:
    function, calls = counted(lambda a, b, c: (a - b + c).detach())
    run = recorded(function)
    x, y, z = (torch.tensor([number]) for number in (1.0, 2.0, 4.0))
    assert [run(x, x, y).item(), run(z, z, x).item()] == [2.0, 1.0]
    assert len(calls) == 1
    assert [run(x, y, z).item(), run(y, x, x).item()] == [3.0, 2.0]
    assert len(calls) == 3


def test_narrow_products_and_choices_between_equals_take_another_way_to_the_same_numbers() -> None:
    def layer(x, weight, bias):
        x, weight, bias = (leaf.detach().requires_grad_() for leaf in (x, weight, bias))
        y = torch.nn.functional.linear(torch.tanh(torch.nn.functional.linear(x, weight, bias)), weight.T[:2])
        held = torch.clamp(y.detach(), -0.5, 0.5)
        near = torch.where(held == y, y, held)
        return torch.isfinite(y.detach()), near.detach(), *torch.autograd.grad(near.sum(), (weight, bias))

    run, generator = recorded(layer), torch.Generator().manual_seed(0)
    for scale in (1.0, 0.3, float("inf"), float("nan")):
        args = [torch.randn(shape, generator=generator) for shape in ((512, 3), (64, 3), (64,))]
        args[0][7] *= scale
        for found, expected in zip(run(*args), layer(*args), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4, equal_nan=True)


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


def test_tensors_that_are_the_same_or_share_memory_in_the_first_call_alone_stay_apart() -> None:
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    others = torch.ones(2, 2), torch.tensor([[5.0, 6.0], [7.0, 8.0]])
    for first in ((x, x), (x, x[:])):
        run = recorded(lambda x, y, z: (x.T.T + 1, y.T.T * 2, x[0] + z, y.detach()[0] + z))
        for z, (a, b) in ((torch.zeros(2), first), (torch.ones(2), others), (torch.ones(2), first)):
            found = run(a, b, z)
            for one, other in zip(found, (a + 1, b * 2, a[0] + z, b[0] + z), strict=True):
                assert torch.equal(one, other)


def test_a_function_that_writes_to_other_tensors_is_called_as_it_is_and_once_each_time() -> None:
    total = torch.zeros(2)

    def add(x):
        total.add_(x)
        x.add_(1)
        return x + total

    run, x = recorded(add), torch.ones(2)
    assert [run(x).tolist() for _ in range(3)] == [[3.0] * 2, [6.0] * 2, [10.0] * 2]
    assert (x.tolist(), total.tolist()) == ([4.0] * 2, [6.0] * 2)


@pytest.mark.parametrize("bias_shape", [(64,), (256, 64)])
def test_a_large_layer_and_its_tanh_in_one_kernel_have_the_values_and_gradients_of_both(bias_shape) -> None:
    def layer(x, weight, bias):
        leaves = [tensor.detach().requires_grad_() for tensor in (x, weight, bias)]
        before = torch.addmm(leaves[2], leaves[0], leaves[1].T)
        y = torch.tanh(before)
        return y.detach(), torch.relu(before.detach()), *torch.autograd.grad(torch.sum(y**2), leaves)

    run, generator = recorded(layer), torch.Generator().manual_seed(0)
    for _ in range(2):
        args = [torch.randn(shape, generator=generator) for shape in ((256, 5), (64, 5), bias_shape)]
        for ours, expected in zip(run(*args), layer(*args), strict=True):
            torch.testing.assert_close(ours, expected, rtol=1e-5, atol=2e-5)


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


def test_a_function_whose_shapes_keep_changing_is_called_as_it_is() -> None:
    function, calls = counted(lambda x: x * 2)
    run = recorded(function)
    for size in range(1, 9):
        for _ in range(2):
            assert run(torch.ones(size)).tolist() == [2.0] * size
    assert len(calls) == 4 + 2 * 4  # four recordings, each repeated once


def test_numbers_are_no_tensors_and_are_not_recorded() -> None:
    run = recorded(lambda x, factor: x * factor)
    assert [run(torch.ones(1), factor).item() for factor in (2.0, 3.0)] == [2.0, 3.0]


_QUICK = {"MLP, discrete, large observations, skipped steps, options", "LSTM, shared trunk, trainable initial state"}


@pytest.mark.parametrize(
    "specimen",
    [
        pytest.param(network, id=network.name, marks=[] if network.name in _QUICK else pytest.mark.nightly)
        for network in NETWORKS
        if not network.requires
    ],
)
def test_a_run_is_the_same_bit_for_bit_as_without(specimen, monkeypatch) -> None:
    compiled, recordings = recording._compiled, []
    monkeypatch.setattr(recording, "_compiled", lambda *args: recordings.append(1) or compiled(*args))

    def run(compile):
        with mp.use_backend("torch"):
            network, ppo, logs = specimen.build(), specimen.ppo or ppo_config(), []
            changes = {"total_steps": 3 * ppo.steps_per_iteration, "sequence_length": specimen.sequence_length}
            config = mp.TrainConfig(
                ppo=dataclasses.replace(ppo, **changes), compile=compile, eval=mp.EvalConfig(enabled=False)
            )
            mp.train_ppo(specimen.env(), network, config, log_fn=lambda metrics, _: logs.append(metrics))
            timed = ("time", "throughput", "memory")
            return mp.to_portable(network), [{k: v for k, v in m.items() if k.split("/")[0] not in timed} for m in logs]

    plain, logs = run("off")
    assert not recordings
    repeated, same_logs = run("auto")
    assert len(recordings) >= 5  # parts of an iteration; again where the first rollout shares tensors and others do not
    np.testing.assert_equal(same_logs, logs)
    assert plain.keys() == repeated.keys()
    for name, value in plain.items():
        np.testing.assert_array_equal(repeated[name], value, err_msg=name)
