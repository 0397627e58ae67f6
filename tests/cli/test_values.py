"""A value means the same on a command line and in a file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import pytest

from multippo.cli.errors import UsageError
from multippo.cli.values import convert, metavar, shown

Size = Literal["small", "large"]
Activation = str | Callable[[Any], Any] | None


@pytest.mark.parametrize(
    ("value", "hint", "expected"),
    [
        *((text, bool, True) for text in ("true", "True", "yes", "on", "1", True, 1)),
        *((text, bool, False) for text in ("false", "FALSE", "no", "off", "0", False, 0)),
        *((text, int, 1_000_000) for text in ("1000000", "1e6", "1_000_000", " 1E6 ", 1e6, 10**6)),
        ("9007199254740993", int, 2**53 + 1),  # which no floating-point number holds
        ("-5", int, -5),
        *((text, float, 1e-4) for text in ("1e-4", "0.0001", 1e-4)),
        (1, float, 1.0),
        *((text, int | None, None) for text in ("none", "None", "null", "", None)),
        ("3", int | None, 3),
        ("1e-3", float | None, 1e-3),
        ("large", Size, "large"),
        *((text, Sequence[int], (64, 32)) for text in ("64,32", "64 32", "[64, 32]", "(64,32)", [64, 32], ["64", 32])),
        (64, Sequence[int], (64,)),
        *((text, tuple[int, ...], ()) for text in ("", "none", [])),
        ("relu", Activation, "relu"),
        (None, Activation, None),
        (False, Literal["auto", "on", "off"], "off"),  # what YAML makes of a bare off
    ],
)
def test_values(value: Any, hint: Any, expected: Any):
    found = convert(value, hint, "x")
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("value", "hint", "message"),
    [
        ("maybe", bool, "neither true nor false"),
        ("2", bool, "neither"),
        (None, bool, "neither"),
        ("1.5", int, "no whole number"),
        ("1e400", int, "no whole number"),
        ("nan", int, "no whole number"),
        (True, int, "no whole number"),
        ("x", int, "no whole number"),
        (None, int, "no whole number"),
        ([1], int, "no whole number"),
        ("nan", float, "no finite number"),
        ("inf", float, "no finite number"),
        (True, float, "no finite number"),
        ("x", float, "no finite number"),
        ("larg", Size, "small, large. Did you mean 'large'"),
        ("1,x", Sequence[int], "no whole number"),
        (3, str, "no text"),
    ],
)
def test_what_is_no_such_value_is_refused_by_name(value: Any, hint: Any, message: str):
    with pytest.raises(UsageError, match=message) as caught:
        convert(value, hint, "some_option")
    assert "some_option=" in str(caught.value)


def test_a_type_that_text_can_not_have_is_the_programmers_mistake():
    with pytest.raises(TypeError, match="can't be read"):
        convert("x", dict, "x")


@pytest.mark.parametrize(
    ("hint", "expected"),
    [
        (bool, "true|false"),
        (int | None, "INT|none"),
        (Size, "small|large"),
        (Sequence[int], "INT ..."),
        (float, "FLOAT"),
        (Activation, "TEXT|none"),
    ],
)
def test_what_help_shows_for_a_type(hint: Any, expected: str):
    assert metavar(hint) == expected


@pytest.mark.parametrize(
    ("value", "hint"), [((64, 32), Sequence[int]), (True, bool), (None, int | None), (1e-5, float), ((), Sequence[int])]
)
def test_what_is_shown_can_be_written_back(value: Any, hint: Any):
    assert convert(shown(value), hint, "x") == value
