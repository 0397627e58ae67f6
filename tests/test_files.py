"""Files and directories are there whole or not at all; only regular ones are opened, and no link is followed."""

import os
from pathlib import Path
from typing import Annotated, Any

import pytest

from multippo import files
from multippo.errors import UnexpectedFileError
from multippo.files import Limit, checked, parse_json, read_json


def test_what_fails_half_way_is_taken_back(tmp_path: Path):
    with pytest.raises(RuntimeError, match="half way"), files.replace_directory(tmp_path / "a") as directory:
        (directory / "file").write_text("x")
        raise RuntimeError("half way")
    assert os.listdir(tmp_path) == []


def test_directories_are_on_the_disk_when_what_is_in_them_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    synced: list[str] = []
    monkeypatch.setattr(files, "_sync", lambda path: synced.append(path.name))
    with files.replace_directory(tmp_path / "a/b/c") as directory:
        (directory / "file").write_text("x")
    # The entries of b and of a; the file, the directory under its first name, and its entry under the last.
    assert synced == ["a", tmp_path.name, "file", directory.name, "b"]
    synced.clear()
    with files.replace_directory(tmp_path / "a/b/c") as directory:
        (directory / "file").write_text("y")
    assert synced == ["file", directory.name, "b"]


@pytest.mark.parametrize("exchange", [True, False])
def test_the_new_one_takes_the_place_of_the_old(exchange: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    class WithoutExchange:
        def __init__(self, *_: object, **__: object) -> None: ...

    if not exchange:  # as on systems other than Linux
        monkeypatch.setattr(files.ctypes, "CDLL", WithoutExchange)
    for text in ("old", "new"):
        with files.replace_directory(tmp_path / "a") as directory:
            (directory / "file").write_text(text)
    assert (tmp_path / "a/file").read_text() == "new"
    assert os.listdir(tmp_path) == ["a"]


def test_a_text_is_replaced_or_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    files.write_text(tmp_path / "f", "old")
    files.write_text(tmp_path / "f", "new")
    assert (tmp_path / "f").read_text() == "new"

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        files.write_text(tmp_path / "f", "newer")
    assert (tmp_path / "f").read_text() == "new"
    assert os.listdir(tmp_path) == ["f"]


# -- what lies in the place of a file


def put(kind: str, path: Path) -> None:
    """Puts something else than a regular file at ``path``, beside a file of others."""
    path.with_name("outside").write_text("theirs")
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        path.symlink_to(path.with_name("outside" if kind == "link" else "missing"))


@pytest.mark.parametrize("kind", ["link", "dangling link", "pipe", "directory"])
def test_only_regular_files_are_read_or_added_to_and_a_written_file_takes_the_place_of_others(
    kind: str, tmp_path: Path
):
    put(kind, tmp_path / "f")
    for call in (files.read_bytes, files.read_text, files.open_to_append):
        with pytest.raises((UnexpectedFileError, IsADirectoryError), match=str(tmp_path / "f")):
            call(tmp_path / "f")
    with pytest.raises(FileExistsError):
        files.create(tmp_path / "f")
    if kind != "directory":
        files.write_text(tmp_path / "f", "ours")
        assert (tmp_path / "f").read_text() == "ours" and not (tmp_path / "f").is_symlink()
    assert (tmp_path / "outside").read_text() == "theirs"
    assert sorted(os.listdir(tmp_path)) == ["f", "outside"]


def test_a_file_that_a_user_names_may_be_a_link_but_no_device(tmp_path: Path):
    (tmp_path / "file").write_bytes(b"ab")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    assert files.read_bytes(tmp_path / "link", follow=True) == b"ab"
    with pytest.raises(UnexpectedFileError, match="a device"):
        files.read_bytes(Path("/dev/zero"), follow=True)
    with pytest.raises(FileNotFoundError):
        files.read_bytes(tmp_path / "missing")


def test_no_more_is_read_than_the_limit(tmp_path: Path):
    (tmp_path / "f").write_bytes(b"abc")
    assert files.read_bytes(tmp_path / "f", limit=3) == b"abc"
    with pytest.raises(UnexpectedFileError, match="too large: at most 2 bytes"):
        files.read_bytes(tmp_path / "f", limit=2)
    with pytest.raises(UnexpectedFileError, match="at most 1 bytes"):  # its size is said to be 0
        files.read_bytes(Path("/proc/self/status"), limit=1)
    (tmp_path / "f").write_bytes(b"\xff")
    with pytest.raises(UnexpectedFileError, match="not text in UTF-8"):
        files.read_text(tmp_path / "f")
    assert files.read_text(tmp_path / "f", errors="replace") == "\ufffd"


COUNT = Annotated[int, Limit(range(2**31).__contains__, "an integer in [0, 2**31)")]


@pytest.mark.parametrize(
    "text",
    ['{"a": 1, "a": 1}', "NaN", str(2**64), "[" * 101 + "]" * 101, f'{{"{"a" * 500_000}": 1, "{"a" * 500_000}": 1}}'],
)
def test_what_is_not_json_within_the_limits_is_refused_in_one_short_line(text: str | bytes):
    with pytest.raises(ValueError, match=r".") as caught:
        parse_json(text)
    assert len(str(caught.value)) < 300 and "\n" not in str(caught.value)


def test_the_limits_themselves_are_within():
    assert parse_json(f"[{2**64 - 1}, {-(2**63)}]") == [2**64 - 1, -(2**63)]
    assert parse_json("[" * 99 + "]" * 99)


@pytest.mark.parametrize(
    ("value", "hint", "words"),
    [
        (1.0, int, "an integer"),
        (False, float, "a number"),
        (2**31, COUNT, r"an integer in \[0, 2\*\*31\)"),
        ([1, "a"], list[int], "a list in which everything is an integer"),
        ({"a": []}, dict[str, str], "an object in which everything is a string"),
        (1, bool | None, "true or false or null"),
    ],
)
def test_a_value_of_another_type_is_refused_with_what_was_expected(value: Any, hint: Any, words: str):
    with pytest.raises(ValueError, match=f"x is .*; expected {words}"):
        checked(value, hint, "x")


def test_a_value_of_the_type_is_returned():
    for value, hint in ((1, float), (None, int | None), (0, COUNT), ({"a": [1]}, dict[str, list[int]]), ([{}], Any)):
        assert checked(value, hint, "x") is value


def test_a_file_is_named(tmp_path: Path):
    (tmp_path / "a.json").write_text("{")
    with pytest.raises(ValueError, match=r"a\.json is not JSON: Expecting"):
        read_json(tmp_path / "a.json")
    (tmp_path / "a.json").write_text("[1]")
    assert read_json(tmp_path / "a.json") == [1]
