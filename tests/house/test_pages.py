"""What the pages at the root show is true of the code: links lead somewhere, and the README's module runs."""

import re

import numpy as np
import pytest
from pages import ROOT, python_blocks

import multippo as mp

PAGES = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"]


@pytest.mark.parametrize("page", PAGES)
def test_links_to_files_lead_somewhere(page: str):
    targets = re.findall(r"\]\(([^)#:]+)\)", (ROOT / page).read_text("utf-8"))
    assert [target for target in targets if not (ROOT / target).exists()] == []


def test_names_in_the_readme_are_exported():
    names = {name for block in python_blocks("README.md") for name in re.findall(r"\bmp\.(\w+)", block)}
    assert len(names) > 10
    assert sorted(name for name in names if name not in mp.__all__) == []


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_the_readme_module_integrates_and_fits_into_a_network(backend: str):
    module, network = (block for block in python_blocks("README.md") if "LeakyIntegrator" in block)
    namespace: dict[str, object] = {}
    with mp.use_backend(backend):
        exec(module, namespace)
        exec(network, namespace)
        integrator = namespace["LeakyIntegrator"](1)
        engine = integrator.engine
        # The logit is 0, so a = 1/2; from 0, with x = 1 twice: y = 1/2, then 1/4 + 1/2 = 3/4.
        x = engine.asarray(np.ones((2, 1), np.float32))
        first = integrator(integrator.initialize_state(2), x)
        second = integrator(first.next_state, x)
        np.testing.assert_allclose(engine.to_numpy(second.output), [[0.75], [0.75]], rtol=1e-6)
        np.testing.assert_array_equal(engine.to_numpy(integrator.reset_state(second.next_state)), [[0.0], [0.0]])

        net = namespace["net"]
        out = net(net.initialize_state(3), engine.asarray(np.zeros((3, 4), np.float32)))
        assert tuple(out.output.value_estimates.shape) == (3,)
        assert tuple(out.output.loglikelihoods.shape) == (3,)
