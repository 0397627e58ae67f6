"""What ends a command: a user's mistake, a failed run, a fault of the library's own.

UsageError     a mistake in what was asked for: one line, exit code 2
RunError      something outside the program failed: one line, exit code 1
"""

from __future__ import annotations

import difflib
import dis
from collections.abc import Iterable
from types import TracebackType

from multippo.errors import MultippoError

__all__ = ["RunError", "UsageError", "did_you_mean", "is_users_mistake", "one_line"]


class UsageError(MultippoError):
    """A mistake in what was asked for. The message says what was received, what was expected, and the remedy."""


class RunError(MultippoError):
    """Something outside the program failed, such as a disk that is full."""


_ELSEWHERE = {
    "lr": "learning_rate",
    "gamma": "discounting_factor",
    "lambda": "gae_lambda",
    "total_timesteps": "total_steps",
    "n_envs": "num_envs",
    "n_steps": "rollout_length",
    "num_steps": "rollout_length",
    "n_epochs": "num_epochs",
    "update_epochs": "num_epochs",
    "clip_coef": "clip_range",
    "ent_coef": "entropy_weight",
    "vf_coef": "critic_loss_weight",
    "max_grad_norm": "gradient_clipping",
}
"""What other libraries call some settings."""


def did_you_mean(wanted: str, known: Iterable[str]) -> str:
    """A sentence that names the nearest of the known names, or nothing if none is near.

    >>> did_you_mean("trian", ["train", "eval"])
    " Did you mean 'train'?"
    >>> did_you_mean("lr", ["learning_rate"])
    " Did you mean 'learning_rate'?"
    """
    names = {name.removeprefix("--").replace("-", "_"): name for name in known}
    plain = wanted.lower().removeprefix("--").replace("-", "_")
    same = _ELSEWHERE.get(plain)
    near = [same] if same in names else difflib.get_close_matches(plain, names, n=1, cutoff=0.6)
    return f" Did you mean {names[near[0]]!r}?" if near else ""


def one_line(error: BaseException) -> str:
    """An error's message without line breaks."""
    return " ".join(str(error).split()) or type(error).__name__


def is_users_mistake(error: BaseException) -> bool:
    """Whether the library refused something on purpose, as opposed to having tripped over it.

    On purpose means: a ValueError, TypeError, ImportError or FileNotFoundError that a ``raise`` statement of the
    library's own threw. The same kinds of error from anywhere else are faults, and keep their traceback.
    """
    if not isinstance(error, ValueError | TypeError | ImportError | FileNotFoundError):
        return False
    innermost = _innermost(error.__traceback__)
    if innermost is None:
        return False
    module = str(innermost.tb_frame.f_globals.get("__name__"))
    raised = innermost.tb_frame.f_code.co_code[innermost.tb_lasti] == dis.opmap["RAISE_VARARGS"]
    return raised and (module == "multippo" or module.startswith("multippo."))


def _innermost(traceback: TracebackType | None) -> TracebackType | None:
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    return traceback
