"""One configuration is one computation: no default of a framework decides anything (see also ``test_parity``).

Seen in araffin/sbx#55, DLR-RM/stable-baselines3#1028.
"""

from typing import Any

import numpy as np
import support

import multippo as mp


def test_initial_weights_have_the_same_statistics(engine: Any):
    network = mp.make_mlp_actor_critic(12, 3, (64, 64), (64, 64), mp.Rngs(0), normalize_obs=False)
    values = mp.to_portable(network)
    kernels = {name: value for name, value in values.items() if name.endswith("kernel")}
    assert len(kernels) == 6
    for name, kernel in kernels.items():
        last = min(kernel.shape) <= 6 and kernel.shape[1] != 64
        gain = (0.01 if name.startswith("action") else 1.0) if last else np.sqrt(2)
        # Orthogonal along the shorter side: kernel times its transpose is gain**2 times the identity.
        short = kernel if kernel.shape[0] <= kernel.shape[1] else kernel.T
        np.testing.assert_allclose(short @ short.T, gain**2 * np.eye(len(short)), atol=1e-4, err_msg=name)
        assert abs(kernel.mean()) < 4 * gain / np.sqrt(kernel.size), name
    for name, value in values.items():
        if name.endswith("bias"):
            assert not value.any(), name
    with mp.use_backend("numpy"):
        others = mp.to_portable(mp.make_mlp_actor_critic(12, 3, (64, 64), (64, 64), mp.Rngs(0), normalize_obs=False))
    support.assert_trees_close(values, others, 1e-6)
