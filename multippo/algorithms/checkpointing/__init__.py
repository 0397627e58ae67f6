"""Checkpoints: the whole state of a run, in a directory of plain arrays and JSON that every engine reads.

Format 1 is a directory with these files and no others; a reader follows no link, takes no file name from a file, and
executes nothing:

* ``checkpoint.json``: an object with ``format`` ("multippo.checkpoint"), ``format_version`` (1), ``multippo_version``
  and the fields of ``manifest.Manifest``.
* ``weights.safetensors``: parameters and statistics under portable names and in portable layouts, as ``to_portable``
  returns them.
* ``optimizer.safetensors``: ``first/NAME`` and ``second/NAME`` for every parameter, the moments in its portable layout.
* ``carry.safetensors``: ``network_state…`` (a leaf's path, such as ``network_state[1]['action'][0].key``),
  ``episodes…`` and ``key``; in a distillation ``teacher/0``, … in the order of the teacher's carry. Words of random
  keys are 64-bit integers.
* ``environment.safetensors``: the state of a functional environment, by path in its tree. A host environment, such as
  gymnasium's, can't be saved: a resumed run starts new episodes and a new carry, from a seed derived from the run's key
  and the iteration.

The structure of a carry is the network's, that of a state the environment's; neither is stored. The directory is
written under a temporary name, flushed to the disk and renamed, so a directory under its final name is complete.
"""

from multippo.algorithms.checkpointing.checkpoint import load_checkpoint, save_checkpoint

__all__ = ["load_checkpoint", "save_checkpoint"]
