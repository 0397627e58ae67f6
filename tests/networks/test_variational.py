"""Variational bottlenecks: the code, what it costs, whose noise it is, and where gradients go, by hand."""

import numpy as np
import pytest
from support import compiled, to_numpy

import multippo as mp
from multippo.networks.core.unrolling import step_unroll
from multippo.networks.variational import CodeState

B, T = 3, 6
ENDS = np.zeros((T, B), bool)
ENDS[[0, -1], 0] = ENDS[1:3, 1] = True
XS = np.random.default_rng(0).normal(size=(T, B, 4))


def softplus(x):
    return np.log1p(np.exp(x))


def code_of(xs, min_std):
    mean, raw = np.split(xs, 2, axis=-1)
    return mean, softplus(raw) + min_std


def run(module, xs=XS, done=ENDS, state=None, step_by_step=False):
    engine = module.engine
    state = module.initialize_state(B) if state is None else state
    unroll = (
        (lambda m, s, x, d: step_unroll(m, s, x, d, None)) if step_by_step else (lambda m, s, x, d: m.unroll(s, x, d))
    )
    xs = engine.xp.astype(engine.asarray(xs), engine.float_dtype)
    return mp.StatefulModuleOutput(*compiled(module, lambda *a: tuple(unroll(*a)))(state, xs, engine.asarray(done)))


BOTH = {
    "independent": lambda **options: mp.VariationalBottleneck(2, mp.Rngs(0), 0.5, 0.1),
    "ar1": lambda **options: mp.AR1VariationalBottleneck(2, mp.Rngs(0), 0.5, 0.1, 3.0, **options),
}
both = pytest.mark.parametrize("make", BOTH.values(), ids=BOTH)


@pytest.mark.usefixtures("float64")
def test_the_code_and_its_divergence(engine):
    module = BOTH["independent"]()
    out = to_numpy(run(module)._replace(next_state=None))
    mean, std = code_of(XS, 0.1)
    # The noise of step t is that of (key, t), whatever ended in between.
    fresh = module.initialize_state(B)
    keys = [module.random.fold_in(fresh.key, fresh.count + t) for t in range(T)]
    noise = np.stack([to_numpy(module.random.normal(key, (2,))) for key in keys])
    np.testing.assert_allclose(out.output, mean + std * noise, rtol=1e-12)
    kl = 0.5 * np.sum(mean**2 + std**2 - 2 * np.log(std) - 1, axis=-1)
    np.testing.assert_allclose(out.metrics["kl"], kl, rtol=1e-10)
    np.testing.assert_allclose(out.regularization_loss, 0.5 * kl, rtol=1e-10)
    np.testing.assert_allclose(out.metrics["std"], std.mean(-1), rtol=1e-12)
    # A standard normal code costs nothing: softplus(log(e^0.9 - 1)) + 0.1 = 1.
    free = np.concatenate([np.zeros((T, B, 2)), np.full((T, B, 2), np.log(np.expm1(0.9)))], axis=-1)
    np.testing.assert_allclose(to_numpy(run(module, free).regularization_loss), 0.0, atol=1e-12)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("a", [0.0, 0.6])
def test_the_autoregressive_loss(engine, a):
    module = BOTH["ar1"](prior_correlation=a)
    fresh = module.initialize_state(B)
    last = np.random.default_rng(1).normal(size=(B, 2))
    # Environments 0 and 1 come from a step before; environment 2 starts here, and what stands in its row is not used.
    started = np.asarray([True, True, False])
    state = CodeState(fresh.random, engine.asarray(last), engine.asarray(started))
    mean, std = code_of(XS, 0.1)
    for step_by_step in (False, True):
        out = run(module, state=state, step_by_step=step_by_step)
        z, loss = to_numpy(out.output), np.zeros((T, B))
        for i in range(B):
            before = last[i] if started[i] else None
            for t in range(T):
                m, s = (0.0, 1.0) if before is None else (a * before, np.sqrt(1 - a**2))
                kl = np.sum(np.log(s / std[t, i]) + (std[t, i] ** 2 + (mean[t, i] - m) ** 2) / (2 * s**2) - 0.5)
                change = 0.0 if before is None else np.mean((z[t, i] - before) ** 2)
                loss[t, i] = 0.5 * kl + 3.0 * change
                before = None if ENDS[t, i] else z[t, i]
        np.testing.assert_allclose(to_numpy(out.regularization_loss), loss, rtol=1e-10)
        after = to_numpy(out.next_state)
        assert after.has_previous.tolist() == [False, True, True]
        np.testing.assert_allclose(after.previous, np.where(ENDS[-1][:, None], 0.0, z[-1]))
        assert after.random.count.tolist() == [T] * B


@both
def test_without_noise_the_code_is_its_mean(engine, make):
    module = make()
    noisy = to_numpy(run(module).output)
    module.eval()
    for step_by_step in (False, True):
        out = run(module, step_by_step=step_by_step)
        np.testing.assert_allclose(to_numpy(out.output), XS[..., :2], rtol=1e-6)
    module.train()
    np.testing.assert_allclose(to_numpy(run(module).output), noisy)
    assert np.abs(noisy - XS[..., :2]).min() > 0


def slope(module, loss, xs, done):
    """d loss / d xs, by the engine."""
    engine = module.engine
    xs = engine.xp.astype(engine.asarray(xs), engine.float_dtype)
    if engine.name == "torch":
        xs.requires_grad_(True)
    of = lambda given: (loss(module.unroll(module.initialize_state(xs.shape[1]), given["x"], done)), None)  # noqa: E731
    return to_numpy(engine.jit(engine.value_and_grad(of))({"x": xs})[1]["x"])


@pytest.mark.usefixtures("float64")
@both
def test_the_gradient_goes_through_the_sample(engine, make):
    module = make()
    done = engine.asarray(ENDS)
    found = slope(module, lambda out: engine.xp.sum(out.output), XS, done)
    mean, std = code_of(XS, 0.1)
    noise = (to_numpy(run(module).output) - mean) / std
    np.testing.assert_allclose(found[..., :2], 1.0)
    np.testing.assert_allclose(found[..., 2:], noise / (1 + np.exp(-XS[..., 2:])), rtol=1e-8)


@pytest.mark.usefixtures("float64")
@pytest.mark.nightly_if("jax")
def test_the_step_before_learns_only_if_asked(engine):
    # Two steps of one episode, no divergence: loss_1 = 2 mean((z_1 - z_0)**2), and z_t = mean_t + std_t noise_t, so
    # d loss_1 / d mean_0 = -2 (z_1 - z_0) = -d loss_1 / d mean_1 with two latents.
    xs, done = XS[:2, :1], engine.asarray(np.zeros((2, 1), bool))
    for through in (True, False):
        module = mp.AR1VariationalBottleneck(2, mp.Rngs(0), 0.0, 0.1, 2.0, through)
        z = to_numpy(module.unroll(module.initialize_state(1), engine.asarray(xs), done).output)
        found = slope(module, lambda out: engine.xp.sum(out.regularization_loss), xs, done)
        np.testing.assert_allclose(found[1, 0, :2], 2 * (z[1] - z[0])[0], rtol=1e-10)
        np.testing.assert_allclose(found[0, 0, :2], -2 * (z[1] - z[0])[0] if through else 0.0, rtol=1e-10)


EXTREMES = (0.0, 1e-30, -1e4, 1e4, -1e30, 1e30, -3e38, 3e38)


@both
@pytest.mark.parametrize("min_std", [0.0, 1e-6])
@pytest.mark.nightly_if("jax")
def test_extremes_stay_finite(engine, precision, make, min_std):
    module = make()
    module.min_std = min_std
    values = np.asarray([[a, b] for a in EXTREMES for b in EXTREMES])
    xs = np.repeat(values[:, None], 2, axis=1)[..., [0, 0, 1, 1]]
    done = engine.asarray(np.zeros(xs.shape[:2], bool))
    state = module.initialize_state(2)
    out = module.unroll(state, engine.xp.astype(engine.asarray(xs), engine.float_dtype), done)
    for array in (out.output, out.regularization_loss, out.metrics["kl"]):
        assert np.isfinite(to_numpy(array)).all()
    found = slope(module, lambda out: engine.xp.sum(1e-6 * out.regularization_loss + out.output[..., 0]), xs, done)
    assert np.isfinite(found).all()
    if isinstance(module, mp.VariationalBottleneck):
        # A mean that has left the range is pulled back by the gradient at the bound: 1e-6 * 0.5 * 1e8, and 1 for z.
        far = found[xs[..., 0] == 1e30][:, :2]
        np.testing.assert_allclose(far, [[51.0, 50.0]] * 16, rtol=1e-5)
