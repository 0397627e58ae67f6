"""A value means the same on a command line and in a file."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import pytest

from multippo.errors import UsageError
from multippo.runs.fields import convert, shown

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
        *((text, int | None, None) for text in ("none", "None", "null", "", None)),
        ("large", Size, "large"),
        *((text, Sequence[int], (64, 32)) for text in ("64,32", "64 32", "[64, 32]", "(64,32)", [64, 32], ["64", 32])),
        (64, Sequence[int], (64,)),
        *((text, tuple[int, ...], ()) for text in ("", "none", [])),
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
        ("maybe", bool, "not true or false"),
        (None, bool, "not true or false"),
        ("1.5", int, "not a whole number"),
        ("1e400", int, "not a whole number"),
        (True, int, "not a whole number"),
        (None, int, "not a whole number"),
        ("nan", float, "not a finite number"),
        (True, float, "not a finite number"),
        ("larg", Size, "small, large. Did you mean 'large'"),
        (["x"], str, "not text"),
        ("1e19", int, "at most 64 bits"),
    ],
)
def test_what_is_no_such_value_is_refused_by_name(value: Any, hint: Any, message: str):
    with pytest.raises(UsageError, match=message) as caught:
        convert(value, hint, "some_option")
    assert "some_option=" in str(caught.value)


@pytest.mark.parametrize(
    ("value", "hint"), [((64, 32), Sequence[int]), (True, bool), (None, int | None), (1e-5, float), ((), Sequence[int])]
)
def test_what_is_shown_can_be_written_back(value: Any, hint: Any):
    assert convert(shown(value), hint, "x") == value
