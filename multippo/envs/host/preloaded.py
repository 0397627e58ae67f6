"""Imports for the server that forks worker processes, so that each of them starts within a tenth of a second."""

from __future__ import annotations

import os

import numpy as np

from multippo.envs.host import members

__all__ = ["members"]

# Else all workers would have one global random state. Python gives each its own; NumPy does not.
os.register_at_fork(after_in_child=np.random.seed)
