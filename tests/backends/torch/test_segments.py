"""The fused LSTM and GRU over pieces of episodes: eager, and as the operator that torch.compile sees."""

import pytest
import torch
from zoo import EPISODE_ENDS

from multippo.backends.torch import onednn
from multippo.backends.torch.recording import recorded
from multippo.backends.torch.segments import segmented

HIDDEN, FEATURES = 3, 4


def arguments(done, dtype=torch.float64, seed=0, hidden=HIDDEN):
    torch.manual_seed(seed)
    time, batch = done.shape
    shapes = [(time, batch, FEATURES), *[(batch, hidden)] * 4]
    shapes += [(4 * hidden, FEATURES), (4 * hidden, hidden), (4 * hidden,), (4 * hidden,)]
    xs, h, c, h0, c0, *weights = (torch.randn(shape, dtype=dtype).requires_grad_() for shape in shapes)
    return xs, h, c, done, h0, c0, tuple(weights)


def segmented_lstm(*args):
    return segmented["lstm"](*args[:-1], *args[-1])


def stepwise(xs, h, c, done, h0, c0, weights):
    """The definition."""
    hs = []
    for x, done_t in zip(xs, done, strict=True):
        h, c = torch.lstm_cell(x, (h, c), *weights)
        hs.append(h)
        h, c = torch.where(done_t[:, None], h0, h), torch.where(done_t[:, None], c0, c)
    return torch.stack(hs), h, c


def results(function, args):
    """Outputs, and their gradients by all that has one: trained arrays stand in a tuple at the end."""
    outputs = function(*args)
    leaves = [leaf for leaf in (*args[:-1], *args[-1]) if leaf.requires_grad]
    loss = sum((out * torch.linspace(-1, 2, out.numel(), dtype=out.dtype).reshape(out.shape)).sum() for out in outputs)
    return *outputs, *torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)


def check(function, expected, args, tolerance=1e-11):
    for one, other in zip(results(function, args), results(expected, args), strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("ends", EPISODE_ENDS)
def test_pieces_are_the_step_by_step_loop(ends):
    check(segmented_lstm, stepwise, arguments(torch.tensor(EPISODE_ENDS[ends])))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])  # oneDNN has float32 alone
@pytest.mark.parametrize("share", [0.0, 0.02, 0.2, 0.7])
def test_pieces_of_many_lengths_by_either_kernel(dtype, share):
    done = torch.rand((37, 6), generator=torch.Generator().manual_seed(1)) < share
    args = arguments(done, dtype)
    assert onednn.takes(args[0]) == (dtype == torch.float32)
    check(segmented_lstm, stepwise, args, 1e-11 if dtype == torch.float64 else 2e-5)


def test_a_recorded_call_has_pieces_of_other_lengths_next_time():
    def run(xs, h, c, done, h0, c0, *weights):
        leaf = xs.detach().requires_grad_()
        hs, *_ = segmented_lstm(leaf, h, c, done, h0, c0, weights)
        return hs.detach(), torch.autograd.grad(hs.square().sum(), leaf)[0]

    again = recorded(run)
    for share in (0.0, 0.1, 0.0, 0.7):  # one piece for each row first, then many
        done = torch.rand((64, 16), generator=torch.Generator().manual_seed(1)) < share
        *others, weights = arguments(done, torch.float32, hidden=64)
        args = [tensor.detach() for tensor in (*others, *weights)]
        for one, other in zip(again(*args), run(*args), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_a_number_that_is_not_finite_stays_in_its_episode():
    xs, *rest = arguments(torch.tensor([[False], [True], [False]]), torch.float32)
    outputs = segmented_lstm(torch.where(torch.tensor([True, False, False])[:, None, None], torch.nan, xs), *rest)
    assert [bool(torch.isfinite(hs).all()) for hs in outputs[0]] == [False, False, True]
    assert all(torch.isfinite(carry).all() for carry in outputs[1:])


@pytest.mark.parametrize(("time", "batch"), [(1, 1), (1, 4), (9, 1)])
def test_small_sizes(time, batch):
    for ended in (False, True):
        for dtype, tolerance in ((torch.float32, 2e-5), (torch.float64, 1e-11)):
            check(segmented_lstm, stepwise, arguments(torch.full((time, batch), ended), dtype), tolerance)


@pytest.mark.parametrize("ended", [False, True])
def test_carries_and_gradients_may_be_views(ended):
    xs, h, c, done, *rest = arguments(torch.full((5, 4), ended), torch.float32)
    args = (xs.transpose(0, 1).contiguous().transpose(0, 1), h[:1].detach().expand_as(h), c, done, *rest)
    check(
        lambda *args: [x.mT for x in segmented_lstm(*args)], lambda *args: [x.mT for x in stepwise(*args)], args, 2e-5
    )


def test_compiled_is_eager_forward_and_backward_by_torchs_rules():
    torch._dynamo.reset()
    compiled = torch.compile(segmented_lstm, fullgraph=True, backend="aot_eager")
    graphs = []
    for ends in ("none", "mixed", "short"):
        args = arguments(torch.tensor(EPISODE_ENDS[ends]))
        check(compiled, segmented_lstm, args, 1e-12)
        graphs.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    assert graphs[0] == graphs[-1]  # another pattern of episode ends compiles nothing again
    torch.library.opcheck(torch.ops.multippo.segmented_lstm, (*args[:-1], *args[-1]))


def test_compiled_accepts_a_carry_that_is_a_view():
    # Trained initial states arrive expanded from one row.
    xs, h, c, done, _, c0, weights = arguments(torch.tensor(EPISODE_ENDS["mixed"]))
    row = torch.randn(HIDDEN, dtype=torch.float64).requires_grad_()

    def call(row):
        return segmented_lstm(xs, row.expand_as(h), c, done, row.expand_as(h), c0, weights)[0].sum()

    torch._dynamo.reset()
    expected = torch.autograd.grad(call(row), row)
    got = torch.autograd.grad(torch.compile(call, fullgraph=True, backend="aot_eager")(row), row)
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)


def test_it_runs_under_inference_mode():
    args = arguments(torch.tensor(EPISODE_ENDS["mixed"]))
    with torch.inference_mode():
        out = segmented_lstm(*args)[0]
    torch.testing.assert_close(out, stepwise(*args)[0].detach())
