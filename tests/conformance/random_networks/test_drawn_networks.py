"""Random networks: every module is met, one prints as what makes it again, and a planted fault is found and cut out."""

import pytest
from multippo.conformance import composition as compositions
from multippo.conformance.evidence.module_evidence import ModuleEvidence
from multippo.conformance.plan import Case, Evidence, make_plan
from multippo.conformance.random_networks.composition import _CARRYING, KINDS, Composition, depth, parts
from multippo.conformance.random_networks.drawn_networks import (
    ALONE,
    EVERY_RUN,
    RandomNetwork,
    checks_of,
    examine,
    random_networks,
)

import multippo as mp

WRONG = ("ResetsOneStepLate", "MixesEnvironments")
CHECKS = {check.name: check for check in ALONE}


def kinds_of(*networks: RandomNetwork) -> set[str]:
    return {kind for network in networks for kind, *_ in parts(network.composition.network)}


def test_the_few_of_every_run_have_every_module_and_episodes_that_end_in_its_carry():
    few = list(random_networks())
    assert tuple(network.number for network in few) == EVERY_RUN
    assert len(set(EVERY_RUN)) == len(EVERY_RUN) <= 10
    assert kinds_of(*few) == set(KINDS) - set(WRONG)
    # An end before the last step: what a carry does at it is seen in the steps behind it.
    cut = [network for network in few if any("T" in row[:-1] for row in network.script)]
    assert kinds_of(*cut) >= {*_CARRYING, "Delay", "PopulationGraph"} - set(WRONG)
    # Gradients of few, which take long to compile; modules by themselves and training have those of the others.
    derived = [network for network in few if network.differentiated]
    assert kinds_of(*derived) >= {"GRU", "Conv", "Delay", "PopulationGraph"}
    assert any(checks_of(network, 1, "float32") for network in few)
    assert {depth(network.composition.network) for network in few} == {1, 2, 3, 4}
    # A delay is seen if its rollout is longer.
    seen: list[str] = []
    for network in few:
        for kind, *items in parts(network.composition.network):
            steps = items[1:2] if kind == "Delay" else [c[2] for c in items[1]] if kind == "PopulationGraph" else []
            seen += [kind for step in steps if 0 < step < len(network.script[0])]
    assert seen.count("Delay") >= 1 and seen.count("PopulationGraph") >= 2


@pytest.mark.parametrize(("count", "seed", "numbers"), [(None, None, EVERY_RUN), (3, 40, (40, 41, 42)), (0, None, ())])
def test_networks_that_are_asked_for_are_numbered_one_after_the_other(
    count: int | None, seed: int | None, numbers: tuple[int, ...]
):
    found: dict[tuple[str, ...], set[int]] = {("numpy",): set(), ("torch",): set(), ("torch", "numpy"): set()}
    for case in make_plan(["numpy", "torch"], networks=count, networks_seed=seed):
        if isinstance(case.specimen, RandomNetwork) and case.backends in found:
            found[case.backends].add(case.specimen.number)
    assert all(made == set(numbers) for made in found.values())


@pytest.mark.parametrize("number", range(3))
def test_what_is_printed_is_code_that_makes_the_network_again(number: int):
    (network,) = random_networks(1, number)
    again = eval(repr(network.composition), vars(compositions))
    assert again == network.composition
    with mp.use_backend("numpy"):
        made, remade = (mp.to_portable(one.build()) for one in (network.composition, again))
    assert {name: a.shape for name, a in made.items()} == {name: a.shape for name, a in remade.items()}


@pytest.mark.parametrize(
    ("wrong", "caught_by"), [("ResetsOneStepLate", "unroll/step_by_step"), ("MixesEnvironments", "call/rows_apart")]
)
@pytest.mark.nightly
def test_a_planted_fault_is_found_in_a_large_network_and_cut_out_of_it(wrong: str, caught_by: str):
    evidence, check = Evidence(), CHECKS[caught_by]
    large = (n for n in random_networks(40, wrong=wrong) if len(list(parts(n.composition.network))) >= 7)
    # Where no episode ends, or nothing that comes out depends on it, there is nothing to see.
    found = (Case(1, check, ModuleEvidence, n, ("torch",), "float64").run(evidence) for n in large)
    result = next(result for result in found if not result.passed)
    assert not result.crashed and result.where
    assert f"again: --networks 1 --networks-seed {result.subject.rpartition(' ')[2]}" in result.detail
    simple = eval(result.detail.partition("the simplest network found: ")[2], vars(compositions))
    left = [part[0] for part in parts(simple.network)]
    # What is left is the wrong one, what makes its input, and a container or two.
    assert wrong in left and len(left) <= 5
    # The one that is shown fails by itself, by as much as is reported.
    again = examine(simple, check, ("torch",), "float64")
    assert (again.passed, again.worst, again.where) == (False, result.worst, result.where)


@pytest.mark.parametrize(
    ("script", "where"),
    [
        (("...", "..."), None),
        # An end after step 0: step 1 starts from the old episode, and step 2 from zeros instead of from step 1.
        (("...", "T.."), "env=1"),
        # An end after the last step shows in the carry.
        (("..T", "..."), "env=0"),
    ],
)
def test_a_late_reset_is_seen_where_an_episode_ends_and_nowhere_else(script: tuple[str, ...], where: str | None):
    network = Composition(("ResetsOneStepLate", 2, 3), (2,), script)
    result = examine(network, CHECKS["unroll/step_by_step"], ("torch",), "float64")
    assert result.passed is (where is None)
    assert (where or "") in result.where
