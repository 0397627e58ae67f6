"""Arrays of users: what is read as numbers, and what is refused before anything is written."""

from __future__ import annotations

import warnings
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import multippo as mp
from multippo.networks.weights.given_arrays import fitted, numbers

VALUES = [0.5, -3.0]  # which every kind of four bits and more of fraction holds


@pytest.mark.parametrize(
    "value",
    [
        VALUES,
        np.array(VALUES, np.float16),
        np.array(VALUES, ">f8"),
        np.array(VALUES, np.longdouble),
        np.array(VALUES, ml_dtypes.bfloat16),
        np.array(VALUES, ml_dtypes.float8_e4m3fn),
        torch.tensor(VALUES, requires_grad=True),
        torch.tensor(VALUES).bfloat16(),
        torch.tensor(VALUES).half(),
        torch.tensor(VALUES).to(torch.float8_e4m3fn),
    ],
    ids=lambda value: f"{type(value).__module__}-{getattr(value, 'dtype', 'list')}",
)
@pytest.mark.parametrize("name", ["jax", "torch", "numpy"])
def test_every_kind_of_float_is_written(name: str, value: Any):
    with mp.use_backend(name):
        layer = mp.Dense(1, 2, mp.Rngs(0))
        mp.load_portable(layer, {"bias": value, "kernel": np.zeros((1, 2))})
        bias = mp.to_portable(layer)["bias"]
    assert bias.dtype == (np.float64 if name == "numpy" else np.float32)
    np.testing.assert_array_equal(bias, VALUES)


def quantised() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch is about to drop them
        return torch.quantize_per_tensor(torch.zeros(2), 0.1, 0, torch.qint8)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "bias holds NoneType; expected an array of numbers"),
        ({"bias": 1}, "bias holds dict; expected"),
        (["a", "b"], "bias holds <U1; expected"),
        (np.array([None, 1]), "bias holds object; expected"),
        (np.zeros(2, "M8[s]"), r"bias holds datetime64\[s\]; expected"),
        (np.zeros(2, "V4"), r"bias holds \|V4; expected"),
        ([1, [2]], r"bias is a list that can't be read as an array of numbers \(setting an array element"),
        (torch.zeros(2).to_sparse(), r"bias is a tensor of layout torch.sparse_coo; .* Pass tensor.to_dense\(\)"),
        (torch.zeros(2, device="meta"), "bias is a tensor on the device meta, without data; expected"),
        (quantised(), r"bias is a tensor quantised; .* Pass tensor.dequantize\(\)"),
    ],
)
def test_what_is_no_array_of_numbers(value: Any, message: str):
    with pytest.raises(TypeError, match=message):
        numbers("bias", value)


@pytest.mark.parametrize(
    ("value", "own", "error", "message"),
    [
        (np.ones(2), np.zeros(2, np.int32), TypeError, "n holds float64 .* expects int32: give it integers"),
        (np.ones(2, bool), np.zeros(2, np.uint32), TypeError, "n holds bool .* expects uint32: give it integers"),
        (np.ones(2, int), np.zeros(2, bool), TypeError, "n holds int64 .* expects bool: give it truth values"),
        (np.ones(2) * 1j, np.zeros(2), TypeError, "n holds complex128 .* expects float64: give it real numbers"),
        (
            np.array([-1, 0]),
            np.zeros(2, np.uint32),
            ValueError,
            "n holds integers from -1 to 0 .* from 0 to 4294967295",
        ),
        (np.array([0, 2**31]), np.zeros(2, np.int32), ValueError, "from 0 to 2147483648 .* -2147483648 to 2147483647"),
        (np.ones(3), np.zeros(2), ValueError, r"n has shape \(3,\) in the weights; the network expects \(2,\)"),
    ],
)
def test_what_does_not_fit(value: np.ndarray, own: np.ndarray, error: type[Exception], message: str):
    with pytest.raises(error, match=message):
        fitted("n", value, own)


def test_what_fits_has_the_type_of_the_network():
    own = np.zeros(2, ml_dtypes.bfloat16)
    assert fitted("n", np.array([1, 2]), own).dtype == own.dtype
    assert fitted("n", np.array([1, 2**32 - 1]), np.zeros(2, np.uint32)).tolist() == [1, 2**32 - 1]
    assert fitted("n", np.array([]), np.zeros(0, np.int32)).dtype == np.int32
    assert fitted("n", np.array([1.0, np.nan]), np.zeros(2, np.float32)).dtype == np.float32
    assert fitted("n", np.array([1e300]), np.zeros(1, np.float32)).tolist() == [np.inf]
