"""Unknown keywords, answered with the nearest known one."""

import inspect
import re

import pytest

import multippo as mp
from multippo.arguments import known_keywords


@known_keywords
def scaled(x, *, factor=2):
    """Its documentation."""
    return factor * x


def test_a_function_stays_what_it_is():
    assert (scaled(3), scaled(3, factor=4), scaled(x=3)) == (6, 12, 6)
    assert (scaled.__name__, scaled.__doc__) == ("scaled", "Its documentation.")
    assert list(inspect.signature(scaled).parameters) == ["x", "factor"]
    with pytest.raises(TypeError, match="missing 1 required positional"):
        scaled()


def test_an_unknown_keyword_is_answered_with_the_nearest_or_with_all():
    with pytest.raises(TypeError, match=re.escape("scaled() got an unexpected keyword argument 'facto'. Did you mean")):
        scaled(3, facto=1)
    with pytest.raises(TypeError, match=re.escape("'zzz'. It takes x, factor.")):
        scaled(3, zzz=1)


def test_the_factories_know_their_keywords():
    with pytest.raises(TypeError, match=r"'activations'\. Did you mean 'activation'\?"):
        mp.make_mlp(4, 2, activations="tanh")
