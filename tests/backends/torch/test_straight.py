import numpy as np
import pytest

torch = pytest.importorskip("torch")

from multippo.backends.torch.straight import StraightCode  # noqa: E402

X = torch.tensor([[1.0, -2.0], [3.0, 4.0]])


def _runs(function, *args, weights=None, results=None):
    """Result of straight code for other arguments than it was recorded with, and of the function."""
    weights = weights or {}
    with torch.inference_mode():
        code = StraightCode(function, args, weights)
        ours = code.prepare(function, weights, results)(*(arg * 2 + 1 for arg in args))
        return code, ours, function(*(arg * 2 + 1 for arg in args))


def _is_recorded(code):
    return code._tape is not None


def test_the_code_does_what_the_function_does_with_present_weights():
    weight = torch.nn.Parameter(torch.eye(2))

    def function(x, y):
        scale = 1.0 / (weight * weight).sum()
        return {"sum": x @ weight * scale + y, "same": x, "twice": (x * 2.0, torch.exp(y) + torch.exp(y))}

    code, ours, _ = _runs(function, X, X + 1, weights={"w": weight})
    assert _is_recorded(code)
    with torch.inference_mode():
        with torch.inference_mode(False), torch.no_grad():
            weight.copy_(torch.tensor([[1.0, 2.0], [0.0, 1.0]]))
        ours = code.prepare(function, {"w": weight})(X, X)
        expected = function(X, X)
    # Leaves are in the order of sorted keys.
    for one, other in zip(ours, (expected["same"], expected["sum"], *expected["twice"]), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    assert code.sources == [0, None, None, None]


def test_parts_of_the_result_need_only_what_they_depend_on():
    code, ours, expected = _runs(lambda x, y: [x + 1, y * 3, x * y], X, X, results=[1])
    assert (code.reads([0]), code.reads([1]), code.reads([2])) == ({0}, {1}, {0, 1})
    assert len(ours) == 1
    torch.testing.assert_close(ours[0], expected[1], rtol=0, atol=0)


def test_writes_into_new_tensors_are_followed():
    def function(x):
        y = x * 2
        y += 1
        y.mul_(x)
        y[0] += 1
        return y.chunk(2, dim=1)

    code, ours, expected = _runs(function, X)
    assert _is_recorded(code)
    for one, other in zip(ours, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def _branching(x):
    return x + 1 if bool((x > 3.5).any()) else x - 1


def _through_numpy(x):
    return x + torch.tensor(x.numpy().max(axis=1, keepdims=True))


def _writing_to_its_argument(x):
    x += 1
    return x * 2


@pytest.mark.parametrize("function", [_branching, _through_numpy, _writing_to_its_argument])
def test_a_function_that_cannot_be_recorded_is_called(function):
    code, ours, expected = _runs(function, X)
    assert not _is_recorded(code)
    torch.testing.assert_close(ours[0], expected, rtol=0, atol=0)
    assert code.reads([0]) == {0}
    np.testing.assert_equal(code.sources, [None])


def test_a_function_that_draws_is_called_and_draws_each_time():
    def function(x):
        return x + torch.rand(2, 2)

    with torch.inference_mode():
        step = StraightCode(function, (X,), {}).prepare(function, {})
        assert not torch.equal(step(X)[0], step(X)[0])
