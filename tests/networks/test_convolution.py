"""Conv: the sum, stride and padding, layouts, sizes; and that engines agree."""

import numpy as np
import pytest
from support import fill_randomly, to_numpy

import multippo as mp
from multippo.networks.convolution import output_size

PADDINGS = ("valid", "same", 1, (2, 0))


def direct(x, kernel, bias, stride, pads):
    """The docstring's sum, position by position."""
    x = np.pad(x, ((0, 0), *pads, (0, 0)))
    height, width = kernel.shape[:2]
    rows, columns = ((x.shape[1] - height) // stride[0] + 1, (x.shape[2] - width) // stride[1] + 1)
    y = np.empty((x.shape[0], rows, columns, kernel.shape[3]))
    for i in range(rows):
        for j in range(columns):
            patch = x[:, i * stride[0] : i * stride[0] + height, j * stride[1] : j * stride[1] + width]
            y[:, i, j] = np.einsum("nabc,abcd->nd", patch, kernel) + bias
    return y


def pads_of(padding, size, kernel, stride):
    """Zeros around, by the rule written out: "same" makes ceil(size / stride), the larger half at the end."""
    if padding == "same":
        found = []
        for n, k, s in zip(size, kernel, stride, strict=True):
            missing = max((int(np.ceil(n / s)) - 1) * s + k - n, 0)
            found.append((missing // 2, missing - missing // 2))
        return tuple(found)
    rows, columns = {"valid": (0, 0), 1: (1, 1), (2, 0): (2, 0)}[padding]
    return (rows, rows), (columns, columns)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize(("kernel_size", "stride"), [(3, 1), ((2, 3), (2, 1)), ((3, 2), (1, 3)), (1, 2)])
def test_it_is_the_sum(engine, padding, kernel_size, stride):
    conv = mp.Conv(2, 3, kernel_size, mp.Rngs(0), stride=stride, padding=padding)
    weights, x = fill_randomly(conv), np.random.default_rng(1).normal(size=(2, 5, 6, 2))
    pads = pads_of(padding, (5, 6), conv.kernel_size, conv.stride)
    expected = direct(x, weights["kernel"], weights["bias"], conv.stride, pads)
    out = conv((), engine.asarray(x))
    np.testing.assert_allclose(to_numpy(out.output), expected, rtol=1e-10, atol=1e-12)
    assert conv.output_shape((5, 6, 2)) == expected.shape[1:]
    assert out.next_state == () and out.rollout_extras is None


def test_by_hand(engine):
    conv = mp.Conv(1, 1, (1, 2), mp.Rngs(0), activation="relu")
    mp.load_portable(conv, {"kernel": np.asarray([1.0, -2.0]).reshape(1, 2, 1, 1), "bias": np.asarray([0.5])})
    image = engine.asarray(np.asarray([[5, 1, 4]], np.uint8).reshape(1, 1, 3, 1))
    # 5 - 2 * 1 + 0.5 = 3.5; 1 - 2 * 4 + 0.5 = -6.5, which relu makes 0. Bytes are numbers from 0 to 255.
    assert to_numpy(conv((), image).output).ravel().tolist() == [3.5, 0.0]


def test_sizes_by_hand():
    # Mnih et al. (2015): 84 -> (84 - 8) / 4 + 1 = 20 -> (20 - 4) / 2 + 1 = 9 -> 7.
    assert [output_size(84, 8, 4, "valid"), output_size(20, 4, 2, "valid"), output_size(9, 3, 1, "valid")] == [20, 9, 7]
    assert output_size(7, 3, 2, "same") == 4 and output_size(7, 3, 2, 1) == 4 and output_size(2, 3, 1, "valid") == 0


def test_the_initial_kernel_has_variance_one_over_its_inputs(engine):
    kernel = mp.to_portable(mp.Conv(4, 100, 5, mp.Rngs(0)))["kernel"]
    # 10,000 draws of variance 1 / (25 * 4), within 4 sqrt(2 / 10000) = 6 %.
    assert abs(kernel.var() * 100 - 1) < 0.06
    assert list(mp.to_portable(mp.Conv(1, 1, 1, mp.Rngs(0), use_bias=False))) == ["kernel"]
