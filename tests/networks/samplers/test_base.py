"""What holds for every sampler: replay, noise, evaluation mode, divergences, equal actions on both engines."""

import numpy as np
import pytest
from sampling import SAMPLERS
from support import compiled, to_numpy

import multippo as mp

RNG = np.random.default_rng(0)
samplers = pytest.mark.parametrize(("make", "features"), SAMPLERS.values(), ids=SAMPLERS)


def inputs(rows, features):
    return RNG.normal(size=(rows, features)).astype(np.float32)


@samplers
@pytest.mark.nightly_if("jax")
def test_every_step_and_every_environment_draws_anew(engine, make, features):
    time, batch = 3, 50
    # One distribution everywhere, so that only the noise tells steps and environments apart.
    sampler, xs = make(), np.tile(inputs(1, features), (time, batch, 1))
    done = engine.asarray(RNG.random((time, batch)) < 0.3)
    draw = compiled(sampler, lambda s, xs, done: s.unroll(s.initialize_state(batch), xs, done).rollout_extras)
    drawn = to_numpy(draw(engine.asarray(xs), done)).reshape(time, batch, -1)
    assert (drawn[0] != drawn[1]).any(-1).mean() > 0.4 and (drawn[1] != drawn[2]).any(-1).mean() > 0.4
    assert len(np.unique(drawn[0], axis=0)) > 3


def mode_of(sampler, x):
    """By hand."""
    if isinstance(sampler, mp.MultiCategoricalSampler):
        ends = np.cumsum(sampler.sizes)
        blocks = [x[:, end - size : end].argmax(-1) for size, end in zip(sampler.sizes, ends, strict=True)]
        return np.stack(blocks, -1).reshape(len(x), *sampler.action_shape)
    if isinstance(sampler, mp.CategoricalSampler):
        return x.argmax(-1)
    if isinstance(sampler, mp.BernoulliSampler):
        return (x > 0).astype(int).reshape(len(x), *sampler.action_shape)
    mean = x if x.shape[-1] == 4 else x[:, :3]
    mean = np.tanh(mean) if isinstance(sampler, mp.NormalTanhSampler) else mean
    return mean if sampler.action_shape is None else mean.reshape(len(x), *sampler.action_shape)


@samplers
def test_eval_gives_the_mode_and_train_samples_again(engine, make, features):
    sampler = make()
    net, x = mp.Sequential([sampler]), inputs(40, features)

    def both(net, x):
        net.eval()
        best = net(net.initialize_state(40), x)
        net.train()
        return best, net(net.initialize_state(40), x).output

    best, drawn = to_numpy(compiled(net, both)(engine.asarray(x)))
    out, mode = best.output, mode_of(sampler, x)
    np.testing.assert_allclose(out["action"], mode, rtol=1e-6)
    assert best.next_state[0].count.tolist() == [1] * 40
    assert (drawn["action"] != mode).any()
    if not isinstance(sampler, mp.NormalTanhSampler):  # whose mode is that of the sample before squashing
        # Nothing is more likely than the mode.
        assert (drawn["log_likelihood"] <= out["log_likelihood"] + 1e-6).all()
        assert (drawn["log_likelihood"] < out["log_likelihood"] - 1e-3).any()


@samplers
@pytest.mark.usefixtures("float64")
def test_divergence_and_entropy_are_means_over_samples(engine, make, features):
    sampler, n = make(), 20_000
    old, new = (engine.asarray(np.tile(0.5 * RNG.normal(size=features), (n, 1))) for _ in range(2))

    def measure(sampler, old, new):
        state = sampler.initialize_state(n)
        out = sampler(state, old)
        given, other = sampler.distribution(old), sampler.distribution(new)
        later = sampler(state, new, out.rollout_extras).output["log_likelihood"]
        return out, later, sampler.kl_divergence(given, other), sampler.kl_divergence(given, given)

    out, later, divergence, none = to_numpy(compiled(sampler, measure)(old, new))
    log_ratio = out.output["log_likelihood"] - later
    assert divergence.shape == (n,) and divergence.min() > 0.01
    # The standard error of the mean; four of them.
    assert abs(log_ratio.mean() - divergence[0]) < 4 * log_ratio.std() / n**0.5
    np.testing.assert_allclose(none, 0.0, atol=1e-12)

    entropy, surprise = out.output["entropy"], -out.output["log_likelihood"]
    assert entropy.shape == (n,)
    # The squashed Gaussian's is an estimate too. A constant has no error but its rounding.
    error = ((entropy.var() + surprise.var()) / n) ** 0.5
    assert abs(entropy.mean() - surprise.mean()) < 4 * error + 1e-12
    np.testing.assert_allclose(out.regularization_loss + np.zeros(n), -sampler.entropy_weight * entropy, atol=1e-12)
