"""Arrays come back as they were, or are refused by name."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from multippo.algorithms.tensor_files import read_tensors, tensor_shapes, write_tensors

ARRAYS: dict[str, Any] = {
    "a matrix, transposed": np.arange(6, dtype=np.float32).reshape(2, 3).T,
    "a number": np.array(3, np.int64),
    "truth": np.array([True, False]),
    "words": np.array([0, 2**32 - 1], np.uint32),
    "nothing": np.zeros((0, 4), np.float64),
    "half": np.array([1.5], np.float16),
    "every second": np.arange(10)[::2],
}


def test_arrays_come_back_as_they_were(tmp_path: Path):
    write_tensors(tmp_path / "t", ARRAYS)
    found = read_tensors(tmp_path / "t", {name: array.shape for name, array in ARRAYS.items()})
    assert found.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape), name
        np.testing.assert_array_equal(found[name], array, name)


def test_the_byte_order_is_turned(tmp_path: Path):
    write_tensors(tmp_path / "t", {"big": np.array([1.0, 2.0], ">f4")})
    assert read_tensors(tmp_path / "t")["big"].tolist() == [1.0, 2.0]


@pytest.mark.parametrize("kind", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_kinds_that_numpy_does_not_know_are_kept_exactly_as_float32(kind: str, tmp_path: Path):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    exact = np.array([0.0, -1.5, 0.15625, 224.0], np.float32)  # at most three significant bits
    write_tensors(tmp_path / "t", {"x": exact.astype(getattr(ml_dtypes, kind))})
    found = read_tensors(tmp_path / "t")["x"]
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, exact)


@pytest.mark.parametrize(
    "array", [np.array(["a"]), np.array([{}]), np.array(["2020-01-01"], "M8[D]"), np.zeros(2, "V3")]
)
def test_what_is_no_number_is_refused_by_name(array: Any, tmp_path: Path):
    with pytest.raises(TypeError, match="'odd'"):
        write_tensors(tmp_path / "t", {"odd": array})
    assert not (tmp_path / "t").exists()


def test_others_may_read_the_file_as_the_umask_says(tmp_path: Path):
    write_tensors(tmp_path / "t", {"x": np.zeros(1)})
    (tmp_path / "plain").touch()
    assert stat.S_IMODE((tmp_path / "t").stat().st_mode) == stat.S_IMODE((tmp_path / "plain").stat().st_mode)


def test_many_missing_names_make_no_endless_message(tmp_path: Path):
    write_tensors(tmp_path / "t", {"x": np.zeros(1)})
    with pytest.raises(ValueError, match="and 92 more") as caught:
        read_tensors(tmp_path / "t", {f"n{index:03d}": () for index in range(100)})
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "content", [b"", b"\x80\x04.", b"\xff" * 64, b"\x08" + bytes(7) + b'{"a":1}x', (2**60).to_bytes(8, "little")]
)
def test_what_is_no_safetensors_file_is_refused(content: bytes, tmp_path: Path):
    (tmp_path / "t").write_bytes(content)
    for read in (tensor_shapes, read_tensors):
        with pytest.raises(ValueError, match="safetensors"):
            read(tmp_path / "t")


def test_a_head_that_promises_more_than_the_file_holds_is_refused(tmp_path: Path):
    write_tensors(tmp_path / "t", {"x": np.zeros(1000)})
    whole = (tmp_path / "t").read_bytes()
    (tmp_path / "t").write_bytes(whole[:-1])
    with pytest.raises(ValueError, match="safetensors"):
        read_tensors(tmp_path / "t")


def test_links_and_directories_are_refused(tmp_path: Path):
    write_tensors(tmp_path / "t", {"x": np.zeros(1)})
    (tmp_path / "link").symlink_to("t")
    (tmp_path / "folder").mkdir()
    for name in ("link", "folder"):
        with pytest.raises(ValueError, match="plain files"):
            read_tensors(tmp_path / name)
