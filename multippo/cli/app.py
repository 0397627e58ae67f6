"""The command ``multippo``: chooses the subcommand and turns its errors into exit codes.

0    done
1    the run failed: a number that is not finite, a full disk, a conformance check
2    a mistake in what was asked for; one line on stderr names it
130  Ctrl-C; the last finished iteration is saved
143  SIGTERM; likewise
"""

from __future__ import annotations

import errno
import importlib
import io
import os
import sys
import traceback
from collections.abc import Sequence

from multippo.arguments import did_you_mean
from multippo.cli.compilation_cache import keep_compiled_programmes
from multippo.errors import NonFiniteError, RunError, Terminated, UsageError, one_line
from multippo.networks.core.error_paths import thrower
from multippo.version import __version__

_COMMANDS = {  # name: (module, function, description)
    "train": ("multippo.cli.train", "run", "train a network in an environment"),
    "eval": ("multippo.cli.evaluate", "run", "evaluate a trained network over whole episodes"),
    "play": ("multippo.cli.play", "run", "show a trained policy at work, in a window or as a video"),
    "plot": ("multippo.cli.plot", "run", "draw a metric of runs, several seeds as a band"),
    "report": ("multippo.cli.report", "run", "write runs to one page of HTML: curves, network, settings, video"),
    "export": ("multippo.cli.export", "run", "write a trained policy as files that run without multippo"),
    "compare": ("multippo.cli.compare", "run", "find where two runs part first"),
    "bench": ("multippo.cli.bench", "run", "measure speed beside other libraries and hand-written limits"),
    "conformance": ("multippo.cli.installation", "run", "check that replay repeats rollouts, and that engines agree"),
    "backends": ("multippo.cli.installation", "list_backends", "list the engines"),
    "envs": ("multippo.cli.installation", "list_environments", "list the environments"),
}
_TRACEBACK = "--traceback"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command.

    Args:
        argv: The command line after the program's name; by default this process's.

    Returns:
        The exit code.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    with_traceback = _TRACEBACK in arguments or bool(os.environ.get("MULTIPPO_TRACEBACK"))
    arguments = [argument for argument in arguments if argument != _TRACEBACK]
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal that knows no ± shows a question mark; Python's own default is to fail.
        sys.stdout.reconfigure(errors="replace")
    try:
        if argv is None:  # the process is the command's alone
            keep_compiled_programmes()
        return _run(arguments)
    except Terminated as stop:
        _complain(f"terminated. {stop.message}".rstrip())
        return 143
    except SystemExit as stop:  # after --help
        return stop.code if isinstance(stop.code, int) else 0
    except KeyboardInterrupt as interrupt:
        _complain("interrupted. " + one_line(interrupt) if interrupt.args else "interrupted.")
        return 130
    except BrokenPipeError:
        # `multippo envs | head` closes the output early, and Python would complain again at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        failed = isinstance(error, RunError | NonFiniteError)
        if not failed and not isinstance(error, UsageError) and not is_users_mistake(error):
            raise
        if with_traceback:
            traceback.print_exc()
        _complain(one_line(error))
        return 1 if failed else 2


def _run(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_usage())
        return 0 if arguments else 2
    if arguments[0] == "--version":
        print(f"multippo {__version__}")
        return 0
    command = arguments[0]
    if command not in _COMMANDS:
        what = "flag" if command.startswith("-") else "command"
        raise UsageError(
            f"unknown {what} {command!r}.{did_you_mean(command, _COMMANDS)} The commands are {', '.join(_COMMANDS)}; "
            "`multippo --help` says what each does."
        )
    module, function, _ = _COMMANDS[command]
    return getattr(importlib.import_module(module), function)(arguments[1:])


def _usage() -> str:
    commands = "\n".join(f"  {name:12} {text}" for name, (_, _, text) in _COMMANDS.items())
    return f"""usage: multippo COMMAND [...]

PPO for networks with state, on JAX and PyTorch.

{commands}

`multippo COMMAND --help` lists a command's flags, train's --help-all every one. --traceback shows where an error came
from. --version prints the version. The engine is chosen by --backend or the environment variable MULTIPPO_BACKEND."""


def is_users_mistake(error: BaseException) -> bool:
    """True for an error that reports a user's mistake, False for a fault, which keeps its traceback.

    Users' mistakes are a ValueError, TypeError, ImportError or FileNotFoundError from a ``raise`` statement of the
    library's own, a name that no file system takes, and a file that may not be read.
    """
    if isinstance(error, OSError) and error.errno in (errno.ENAMETOOLONG, errno.EACCES):
        return True
    if not isinstance(error, ValueError | TypeError | ImportError | FileNotFoundError):
        return False
    return (thrower(error) or "").partition(".")[0] == "multippo"


def _complain(message: str) -> None:
    print(f"multippo: {message}", file=sys.stderr)
