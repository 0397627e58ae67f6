"""What users of PyTorch do with a module."""

import copy
import io

import pytest
import torch
from torch import nn

import multippo as mp


@pytest.fixture
def net(torch_engine):
    parts = {"keys": mp.Dense(1, 1, mp.Rngs(0)), "a.b": mp.Dense(1, 2, mp.Rngs(1))}
    return mp.Sequential(
        [mp.Concat(parts), mp.Normalizer(3), mp.Dense(3, 2, mp.Rngs(2), "tanh"), mp.LSTM(2, 2, mp.Rngs(3))]
    )


X = {"keys": torch.ones(4, 1), "a.b": 2 * torch.ones(4, 1)}


def test_hooks_run_on_the_network_and_its_children(net):
    seen = []
    net.register_forward_hook(lambda module, args, output: seen.append(type(module).__name__))
    net[2].register_forward_hook(lambda module, args, output: seen.append(type(module).__name__))
    net[2].core.register_forward_pre_hook(lambda module, args: seen.append("core"))
    net(net.initialize_state(4), X)
    assert seen == ["core", "Dense", "Sequential"]


def test_a_state_dict_goes_round(net, torch_engine):
    file = io.BytesIO()
    torch.save(net.state_dict(), file)
    other = copy.deepcopy(net)
    for tensor in (*other.parameters(), *other.buffers()):
        tensor.data.zero_()
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    state = net.initialize_state(4)
    assert torch.equal(other(state, X).output, net(state, X).output)
    assert tuple(other[0].components) == ("keys", "a.b")


def test_conversion_to_double_precision(net):
    state = net.initialize_state(4)
    single = net(state, X).output
    net.to(torch.float64)
    double = net(net.initialize_state(4), {key: x.double() for key, x in X.items()})
    assert double.output.dtype == torch.float64 and double.next_state[3]["h"].dtype == torch.float64
    torch.testing.assert_close(double.output, single.double(), rtol=1e-5, atol=1e-6)
    done = torch.zeros(2, 4, dtype=torch.bool)
    xs = {key: torch.stack([x, x]).double() for key, x in X.items()}
    assert net.unroll(net.initialize_state(4), xs, done).output.dtype == torch.float64


def test_eval_and_train_reach_every_sampler(torch_engine):
    sampler = mp.NormalTanhSampler(mp.Rngs(0))
    net = nn.Sequential(mp.Sequential([mp.Dense(1, 2, mp.Rngs(0)), sampler]))
    assert net.eval() is net
    assert sampler.deterministic and not sampler.training
    net.train()
    assert not sampler.deterministic and sampler.training


def test_a_native_module_held_beside_neutral_ones_is_tracked(torch_engine):
    class Mixed(mp.StatefulModule):
        def __init__(self):
            self.own = mp.Dense(1, 2, mp.Rngs(0))
            self.natives = [nn.LayerNorm(2), nn.Linear(2, 2)]

        def __call__(self, state, x, rollout_extras=None):
            y = self.own((), x).output
            for native in self.natives:
                y = native(y)
            return mp.StatefulModuleOutput(state, y)

    net = Mixed()
    net((), torch.ones(3, 1)).output.square().sum().backward()
    assert len(list(net.parameters())) == 6
    assert all(p.grad is not None for p in net.parameters())


def test_the_modules_own_compile_works(torch_engine):
    net = mp.Sequential([mp.Dense(2, 2, mp.Rngs(0), "tanh")])
    expected = net([()], torch.ones(1, 2)).output
    torch._dynamo.reset()
    net.compile(fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(net([()], torch.ones(1, 2)).output, expected)
