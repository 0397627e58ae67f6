"""Arrays come back as they were, or are refused by name."""

import hashlib
import json
import stat
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from multippo.algorithms.checkpointing.tensor_files import ArrayType, read_tensors, write_tensors
from multippo.errors import DamagedCheckpointError

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
    found = read_tensors(tmp_path / "t", ARRAYS)
    assert found.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape), name
        np.testing.assert_array_equal(found[name], array, name)


def test_the_byte_order_is_turned(tmp_path: Path):
    write_tensors(tmp_path / "t", {"big": np.array([1.0, 2.0], ">f4")})
    assert read_tensors(tmp_path / "t")["big"].tolist() == [1.0, 2.0]


def test_kinds_that_numpy_does_not_know_are_kept_exactly_as_float32(tmp_path: Path):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    exact = np.array([0.0, -1.5, 0.15625, 224.0], np.float32)  # at most three significant bits
    kinds = {kind: exact.astype(getattr(ml_dtypes, kind)) for kind in ("bfloat16", "float8_e4m3fn", "float8_e5m2")}
    write_tensors(tmp_path / "t", kinds)
    for found in read_tensors(tmp_path / "t").values():
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, exact)


@pytest.mark.parametrize("array", [np.array(["a"]), np.array([{}]), np.zeros(2, "V3")])
def test_what_is_no_number_is_refused_by_name(array: Any, tmp_path: Path):
    with pytest.raises(TypeError, match="'odd'"):
        write_tensors(tmp_path / "t", {"odd": array})
    assert not (tmp_path / "t").exists()


def test_others_may_read_the_file_as_the_umask_says(tmp_path: Path):
    write_tensors(tmp_path / "t", {"x": np.zeros(1)})
    (tmp_path / "plain").touch()
    assert stat.S_IMODE((tmp_path / "t").stat().st_mode) == stat.S_IMODE((tmp_path / "plain").stat().st_mode)


def test_any_bit_that_flips_is_noticed_by_its_sum(tmp_path: Path):
    path = tmp_path / "t"
    digits = write_tensors(path, {"x": np.arange(3.0), "y": np.array(True)})
    content = path.read_bytes()
    assert digits == hashlib.sha256(content).hexdigest()
    shapes = {"x": np.zeros(3), "y": np.array(True)}
    read_tensors(path, shapes, sha256=digits)
    for place in range(len(content)):  # in the length of the head, the head, and the arrays
        damaged = bytearray(content)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        with pytest.raises(DamagedCheckpointError, match=str(path)) as caught:
            read_tensors(path, shapes, sha256=digits)
        assert "\n" not in str(caught.value)
    # Without a sum it is the arrays that tell nothing.
    assert read_tensors(path, shapes)["y"].shape == ()


def test_a_file_of_other_arrays_is_told_by_name_or_by_its_sum(tmp_path: Path):
    digits = write_tensors(tmp_path / "t", {"x": np.zeros(2)})
    with pytest.raises(ValueError, match="missing in it: y; left over in it: x") as caught:
        read_tensors(tmp_path / "t", {"y": None}, sha256=digits)
    assert not isinstance(caught.value, DamagedCheckpointError)  # it is what was saved, only of another network
    with pytest.raises(DamagedCheckpointError, match="SHA-256"):
        read_tensors(tmp_path / "t", {"y": None}, sha256="0" * 64)


def entry(shape: list[int], end: int, dtype: str = "F32") -> str:
    return json.dumps({"dtype": dtype, "shape": shape, "data_offsets": [0, end]})


NO_TENSORS = "not a safetensors file"


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (f'{{"x": {entry([2**40], 2**42)}}}', NO_TENSORS),  # 4 TiB that the file does not hold
        (f'{{"x": {entry([2**62, 4], 8)}}}', NO_TENSORS),  # a product that is 0 in 64 bits
        (f'{{"x": {entry([1], 8)}}}', NO_TENSORS),  # half of the data unnamed
        (f'{{"x": {entry([2], 8)}, "y": {entry([2], 8)}}}', NO_TENSORS),  # two arrays in one place
        (f'{{"x": {entry([2], 8)}, "x": {entry([2], 8)}}}', "'x' twice"),
        (f'{{"x": {entry([8], 8, "F8_E5M2")}}}', "array 'x' .*is of F8_E5M2, which no checkpoint has"),
    ],
)
def test_what_does_not_describe_the_arrays_of_the_file_is_refused_and_nothing_allocated(
    head: str, message: str, tmp_path: Path
):
    (tmp_path / "t").write_bytes(len(head).to_bytes(8, "little") + head.encode() + b"\1" * 8)
    tracemalloc.start()
    with pytest.raises(DamagedCheckpointError, match=message):
        read_tensors(tmp_path / "t")
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 2**20


@pytest.mark.parametrize("content", [b"", b"\x80\x04.", b"\xff" * 64, (2**60).to_bytes(8, "little")])
def test_what_is_no_safetensors_file_is_refused(content: bytes, tmp_path: Path):
    (tmp_path / "t").write_bytes(content)
    with pytest.raises(DamagedCheckpointError, match=NO_TENSORS):
        read_tensors(tmp_path / "t")


@pytest.mark.parametrize(
    ("array", "like", "words"),
    [
        (np.zeros(2, bool), np.float32, "is of bool; expected float32"),
        (np.zeros(2, np.float32), np.uint32, "is of float32; expected uint32"),
        (np.array([1, 2**32]), np.uint32, "holds integers from 1 to 4294967296; expected 0 to 4294967295"),
    ],
)
def test_numbers_of_another_kind_or_range_are_refused(array: Any, like: Any, words: str, tmp_path: Path):
    write_tensors(tmp_path / "t", {"x": array})
    with pytest.raises(DamagedCheckpointError, match=f"array 'x' .*{words}"):
        read_tensors(tmp_path / "t", {"x": ArrayType((2,), like)})


def test_numbers_of_one_kind_are_cast(tmp_path: Path):
    write_tensors(tmp_path / "t", {"x": np.array([1.5, 1e300]), "n": np.array([2**32 - 1])})
    found = read_tensors(tmp_path / "t", {"x": ArrayType((2,), np.float32), "n": ArrayType((1,), np.uint32)})
    assert (found["x"].dtype, found["x"].tolist()) == (np.float32, [1.5, np.inf])
    assert (found["n"].dtype, found["n"].tolist()) == (np.uint32, [2**32 - 1])
