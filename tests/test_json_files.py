"""JSON is read strictly and within limits, and checked against one description."""

from pathlib import Path
from typing import Annotated, Any

import pytest

from multippo.json_files import Limit, checked, parse_json, read_json

COUNT = Annotated[int, Limit(range(2**31).__contains__, "an integer in [0, 2**31)")]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "\x00",
        b"\xff\xfe\xfd",
        '{"a": 1, "a": 1}',
        "NaN",
        "-Infinity",
        "1e999",
        str(2**64),
        str(-(2**63) - 1),
        "9" * 5000,
        "[" * 101 + "]" * 101,
        '{"a": ' * 2000 + "1" + "}" * 2000,
        "[" * 500_000,
    ],
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
        (True, int, "an integer"),
        (1.0, int, "an integer"),
        (False, float, "a number"),
        ("1", float | None, "a number or null"),
        (2**31, COUNT, r"an integer in \[0, 2\*\*31\)"),
        (True, COUNT, "an integer in"),
        ([1, "a"], list[int], "a list in which everything is an integer"),
        ({"a": []}, dict[str, str], "an object in which everything is a string"),
        ([], dict[str, Any], "an object"),
        (1, bool | None, "true or false or null"),
    ],
)
def test_a_value_of_another_type_is_refused_with_what_was_expected(value: Any, hint: Any, words: str):
    with pytest.raises(ValueError, match=f"x is .*; expected {words}"):
        checked(value, hint, "x")


def test_a_value_of_the_type_is_returned():
    for value, hint in ((1, float), (None, int | None), (0, COUNT), ({"a": [1]}, dict[str, list[int]]), ([{}], Any)):
        assert checked(value, hint, "x") is value


def test_half_a_million_characters_make_a_short_error():
    for text in (f'{{"{"a" * 500_000}": 1, "{"a" * 500_000}": 1}}', f'"{"b" * 500_000}"'):
        with pytest.raises(ValueError, match="…") as caught:
            checked(parse_json(text), int, "x")
        assert len(str(caught.value)) < 300


def test_a_file_is_named(tmp_path: Path):
    (tmp_path / "a.json").write_text("{")
    with pytest.raises(ValueError, match=r"a\.json is not JSON: Expecting"):
        read_json(tmp_path / "a.json")
    (tmp_path / "a.json").write_text("[1]")
    assert read_json(tmp_path / "a.json") == [1]
    with pytest.raises(ValueError, match="large"):
        read_json(tmp_path / "a.json", limit=2)
