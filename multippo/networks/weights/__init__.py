"""Weights of networks: out and in, those of other frameworks, and those that are not trained."""

from multippo.networks.weights.imported import load_flax_state as load_flax_state
from multippo.networks.weights.imported import load_torch_state as load_torch_state
from multippo.networks.weights.portable import freeze as freeze
from multippo.networks.weights.portable import load_matching as load_matching
from multippo.networks.weights.portable import load_portable as load_portable
from multippo.networks.weights.portable import to_portable as to_portable
from multippo.networks.weights.portable import unfreeze as unfreeze
