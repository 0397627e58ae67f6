"""PPO for stateful networks, on JAX and PyTorch.

The engine is chosen by the environment variable ``MULTIPPO_BACKEND`` or by ``use_backend``; importing this package
loads neither.
"""

from __future__ import annotations

import importlib
from typing import Any

from multippo import random
from multippo.backends import available_backends, get_backend, precision, register_backend, use_backend
from multippo.networks.adapter import PPOAdapter
from multippo.networks.containers import Concat, Parallel, Sequential, Splitter
from multippo.networks.feedforward import Dense
from multippo.networks.normalizer import Normalizer
from multippo.networks.portable import load_portable, to_portable
from multippo.networks.recurrent import LSTM
from multippo.networks.sampling_layers import CategoricalSampler, NormalTanhSampler
from multippo.networks.types import PPONetworkOutput, StatefulModule, StatefulModuleOutput
from multippo.networks.variables import Param, Variable
from multippo.rngs import Rngs

__version__ = "0.1.0"
