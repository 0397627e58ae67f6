"""The library's own errors arrive from another process with their message and small fields.

Seen in python/cpython#103061, #79492.
"""

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pytest

from multippo import errors

CLASSES = [name for name, it in vars(errors).items() if isinstance(it, type) and it.__module__ == errors.__name__]
# A state may hold what can't be pickled.
FIELDS = {"NonFiniteError": ", leaf='loss', training_state=lambda: None"}
RAISE = "from multippo import errors\nerror = errors.{name}('said'{fields})\nerror.add_note('noted')\nraise error"


@pytest.fixture(scope="module", params=["executor", "pool"])
def call(request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    context = multiprocessing.get_context("spawn")
    if request.param == "executor":
        with ProcessPoolExecutor(1, context) as executor:
            yield lambda *args: executor.submit(*args).result(60)
    else:
        with context.Pool(1) as pool:
            yield lambda function, *args: pool.apply_async(function, args).get(60)


@pytest.mark.parametrize("name", [name for name in CLASSES if name != "Terminated"])
def test_an_error_arrives(call: Any, name: str):
    with pytest.raises(getattr(errors, name)) as caught:
        call(exec, RAISE.format(name=name, fields=FIELDS.get(name, "")))
    assert type(caught.value) is getattr(errors, name)
    assert (str(caught.value), caught.value.__notes__) == ("said", ["noted"])
    if isinstance(caught.value, errors.NonFiniteError):
        assert (caught.value.leaf, caught.value.training_state) == ("loss", None)


def test_the_end_of_a_process_arrives():
    # Not from a Pool, whose workers take a SystemExit as their own end.
    with (
        ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as executor,
        pytest.raises(errors.Terminated) as caught,
    ):
        executor.submit(exec, RAISE.format(name="Terminated", fields="")).result(60)
    assert (caught.value.code, caught.value.message) == (143, "said")
