"""``multippo train``: from a command line to a trained network in a run's directory."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from multippo.algorithms.callbacks import Progress, make_progress
from multippo.algorithms.checkpointing.folder import CheckpointFolder
from multippo.algorithms.checks import check_trains, finished
from multippo.algorithms.interrupts import save_what_is_finished
from multippo.algorithms.metrics import drop_after, plot_learning_curve, read_metrics
from multippo.algorithms.schedules import iterations_left, planned_steps
from multippo.algorithms.types import TrainingState
from multippo.atomic_files import remove_leftovers
from multippo.cli.deadline import Deadline
from multippo.cli.errors import RunError, UsageError, one_line
from multippo.cli.evaluate import choose_backend, evaluate, evaluation_envs, summary
from multippo.cli.files import read_settings
from multippo.cli.flags import parse
from multippo.cli.options import Option, train_options
from multippo.cli.program import program
from multippo.cli.record import RunRecord
from multippo.cli.recovery import restore_last_good, set_aside
from multippo.cli.runs import RunDirectory, default_run_directory
from multippo.cli.settings import RunSettings, asks_for_evaluations, settings_from
from multippo.cli.values import shown
from multippo.errors import NonFiniteError, Terminated

__all__ = ["run"]

_LOG = logging.getLogger("multippo")

_OPTIONS = (
    Option(
        "backend", str | None, None, "Engine; none for MULTIPPO_BACKEND, else the first installed of jax, torch.", "run"
    ),
    Option("run_dir", str | None, None, "Where the run goes; none for runs/ENV/TIME-BACKEND-seedN.", "run"),
    Option("config", str | None, None, "JSON or YAML file of settings; flags override it.", "run"),
    Option("resume", bool, False, "Go on with the run in --run-dir from its latest whole checkpoint.", "run"),
    Option("progress", Literal["auto", "bar", "plain", "off"], "auto", "How progress is shown.", "run"),
)

# A run resumed under other values of these would be another run.
_FIXED = ("env", "network", "seed", "num_envs", "rollout_length", "scale_rewards")


def run(argv: Sequence[str]) -> int:
    """The command.

    Raises:
        UsageError: If something was asked for that can't be.
        RunError: If a disk is full, or the like.
        NonFiniteError: If a number became NaN or infinite; the last good state is saved.
        KeyboardInterrupt: After Ctrl-C, once the last finished iteration is saved.
        Terminated: Likewise after SIGTERM.
    """
    positional = Option(
        "env", str | None, None, "Environment: CartPole-v1, brax/ant, …; `multippo envs` lists them.", "run"
    )
    options = [*_OPTIONS, *train_options()]
    in_files = [positional, *(option for option in options if option.name not in ("config", "resume"))]
    given = parse("train", "Trains a network by PPO.", options, argv, positional)
    if given.get("config"):
        given = read_settings(Path(given["config"]), in_files) | given
    values = {option.name: option.default for option in _OPTIONS} | given
    directory = RunDirectory(Path(values["run_dir"])) if values["run_dir"] else None
    if values["resume"]:
        stored, settings = _settings_to_resume(directory, given)
    else:
        stored, settings = {}, settings_from(given)
        if directory is not None:  # at once, not only after the environment is made
            directory.refuse_used()
    backend = choose_backend(values["backend"], stored.get("backend"))
    with Deadline() as deadline, deadline.terminable(), contextlib.ExitStack() as stack:
        engine = stack.enter_context(settings.engine(backend, settings.device))
        check_trains(engine)
        env = settings.make_env()
        stack.callback(env.close)
        network = settings.make_network(env)
        _Training(settings, directory, env, network, values["progress"], bool(values["resume"])).go(deadline)
    return 0


def _settings_to_resume(directory: RunDirectory | None, given: Mapping[str, Any]) -> tuple[dict[str, Any], RunSettings]:
    """What the run in the directory was given, and what it is with the changes asked for now."""
    if directory is None:
        raise UsageError("--resume needs --run-dir DIR, the directory of the run to go on with.")
    stored = directory.read_settings()
    for name in _FIXED:
        if name in given and given[name] != stored.get(name, given[name]):
            raise UsageError(
                f"{name}={given[name]!r} can't be changed in a run that began with {stored[name]!r}: leave it out, or "
                "start another run."
            )
    changed = stored | dict(given)
    if asks_for_evaluations(given) and "eval_enabled" not in given:
        changed["eval_enabled"] = True
    if given.get("keep_best") is not None and "checkpoint_at_evals" not in given:
        changed["checkpoint_at_evals"] = True
    before, settings = settings_from(stored), settings_from(changed)
    for attribute in ("env_kwargs", "network_options"):
        old, new = getattr(before, attribute), getattr(settings, attribute)
        for name in new:
            if old.get(name) != new[name]:
                raise UsageError(
                    f"{name} can't become {shown(new[name])} in a run that began with {shown(old.get(name))}: leave it "
                    "out, or start another run."
                )
    if settings.precision != before.precision:
        raise UsageError(
            f"precision can't become {settings.precision} in a run that began with {before.precision}: leave it out, "
            "or start another run."
        )
    return stored, settings


class _Training:
    """One run: ``train_ppo`` with its logs, checkpoints and last evaluation."""

    def __init__(
        self, settings: RunSettings, directory: RunDirectory | None, env: Any, network: Any, progress: str, resume: bool
    ) -> None:
        self._settings, self._env, self._network = settings, env, network
        self._named = directory is not None
        self._directory = directory or default_run_directory(settings, network.engine.name)
        self._progress_kind, self._resume = progress, resume
        self._numerics = network.engine.numerics()
        self._made: list[Path] = []
        self._goes_on = settings.on_save_error == "continue"
        self._folder = self._make_folder()
        self._saved: Any = None  # what the last checkpoint is of, see _mark

    def go(self, deadline: Deadline) -> None:
        """Trains, evaluates, and says where everything is.

        Args:
            deadline: Ends the process after a signal; gets something to save.

        Raises:
            RunError: If the disk is full, or the like.
        """
        try:
            self._go(deadline)
        except OSError as error:
            if error.errno is None:  # not the system's: the library's or an environment's own
                raise
            raise RunError(f"the run stopped: {one_line(error)}. {self._how_to_go_on()}") from error

    def _go(self, deadline: Deadline) -> None:
        with contextlib.ExitStack() as stack:
            if self._resume:
                stack.enter_context(self._directory.held())
            initial = self._prepare()
            if not self._resume:
                stack.enter_context(self._directory.held())
            self._go_from(initial, deadline)

    def _go_from(self, initial: TrainingState | None, deadline: Deadline) -> None:
        deadline.last_words = self._save_and_say
        with contextlib.ExitStack() as stack:
            record = RunRecord(self._directory, 0 if initial is None else initial.step, self._goes_on)
            stack.callback(record.close)
            ppo = self._settings.train.ppo
            progress = make_progress(self._progress_kind, ppo.total_steps, ppo.num_iterations, sys.stderr)

            def log(metrics: Mapping[str, float]) -> None:
                record.write(metrics)
                progress.update(metrics)

            with progress:
                self._introduce(progress, initial)
                try:
                    self._train(initial, log)
                except (ValueError, TypeError):
                    if self._made and not record.begun:  # refused before the first iteration
                        self._directory.abandon(self._made)
                    raise
            if self._folder.error is not None:
                raise RunError(f"the training is done. {self._how_to_go_on()}")
            found = self._evaluate(progress)
            if found:
                record.write(found)
        self._draw()
        if found:
            print(f"Final evaluation: {summary(found)}")
        print(f"Run: {self._directory.path}")
        print(f"Evaluate it with: {program()} eval {self._directory.path}")
        best = self._folder.best() if self._settings.keep_best else None
        if best is not None:
            print(f"Evaluate the best, {best.name}, with: {program()} eval {self._directory.path} --checkpoint best")

    def _prepare(self) -> TrainingState | None:
        """Makes the run's directory, or restores the state to go on from."""
        if not self._resume:
            self._create()
            return None
        initial, step = None, -1
        if self._directory.has_checkpoint():
            checkpoint, initial, damaged = restore_last_good(self._directory, self._network)
            step = initial.step
            self._folder.saved, self._saved = checkpoint.path.absolute(), self._mark(initial)
            for skipped in damaged:
                moved = set_aside(skipped)
                print(f"Skipped {skipped.path.name}: {skipped.why} It is {moved.name} now.", file=sys.stderr)
        for directory in (self._directory.path, self._directory.checkpoints):
            remove_leftovers(directory)
        if not self._is_finished(initial):  # else nothing is computed with settings that were given anew
            self._directory.write_settings(self._settings, self._network.engine.name, self._numerics)
        drop_after(self._directory.metrics, step)
        return initial

    def _is_finished(self, initial: TrainingState | None) -> bool:
        ppo = self._settings.train.ppo
        if initial is None or (initial.eval_due and self._settings.train.eval.enabled):
            return False
        return not iterations_left(ppo, planned_steps(ppo, initial))

    def _create(self) -> None:
        backend = self._network.engine.name
        while True:
            try:
                self._made = self._directory.create(self._settings, backend, self._numerics, is_new=not self._named)
                return
            except FileExistsError:  # another run of this second has taken the name meanwhile
                self._directory = default_run_directory(self._settings, backend)
                self._folder = self._make_folder()

    def _make_folder(self) -> CheckpointFolder:
        settings = self._settings
        return CheckpointFolder(
            self._directory.checkpoints,
            self._network,
            keep_last=settings.keep_last,
            keep_best=settings.keep_best,
            on_save_error=settings.on_save_error,
            config=settings.train,
        )

    def _introduce(self, progress: Progress, initial: TrainingState | None) -> None:
        settings = self._settings
        start = "" if initial is None else f", from step {initial.step:,}"
        precision = "" if settings.precision == "float32" else f" in {settings.precision}"
        progress.note(
            f"Training {settings.env_id} on {self._network.engine.name} ({self._numerics['device']}){precision}: "
            f"{settings.network} network, "
            f"{self._env.num_envs} environments, seed {settings.train.seed}{start}. Run: {self._directory.path}"
        )

    def _train(self, initial: TrainingState | None, log: Callable[[Mapping[str, float]], None]) -> None:
        ppo = self._settings.train.ppo
        if initial is not None and self._is_finished(initial):
            # However progress is shown.
            print(finished(initial.step, initial.iteration, ppo), file=sys.stderr)
            return
        try:
            from multippo.algorithms.ppo import train_ppo

            train_ppo(
                self._env,
                self._network,
                self._settings.train,
                log_fn=log,
                checkpoint_fn=self._save,
                initial_state=initial,
            )
        except (KeyboardInterrupt, Terminated) as stop:
            self._draw()
            raise type(stop)(self._how_to_go_on()) from None
        except NonFiniteError as error:
            self._draw()
            saved = f" The state is saved in {self._folder.saved}." if self._folder.saved else ""
            raise NonFiniteError(str(error) + saved, leaf=error.leaf, training_state=error.training_state) from error
        except Exception as error:
            if self._folder.saved is not None:
                error.add_note(self._how_to_go_on())
            raise

    def _save(self, state: TrainingState, step: int) -> None:
        if self._mark(state) != self._saved or self._folder.error is not None:
            self._folder.save(state, step)
            self._saved = self._mark(state)

    @staticmethod
    def _mark(state: TrainingState) -> Any:
        """What tells states of one run apart: an evaluation may be made up after the iteration was saved."""
        return state.iteration, state.eval_return, state.eval_due

    def _save_and_say(self) -> str:
        """What a process that must end at once still does, from a thread beside the training."""
        save_what_is_finished()
        return self._how_to_go_on()

    def _how_to_go_on(self) -> str:
        saved, error = self._folder.saved, self._folder.error
        failed = "" if error is None else f"The last state could not be saved: {one_line(error)}. "
        if saved is None:
            return f"{failed}Nothing was saved yet in {self._directory.path}."
        return f"{failed}Saved: {saved}. Go on with: {program()} train --run-dir {self._directory.path} --resume"

    def _evaluate(self, progress: Progress) -> dict[str, float]:
        """The evaluation that ``multippo eval`` repeats, as metrics."""
        episodes = self._settings.final_eval_episodes
        saved = self._folder.saved
        if episodes == 0 or saved is None:
            return {}
        progress.note(f"Evaluating over {episodes:,} episodes")
        env = self._settings.make_env(evaluation_envs(self._settings, episodes))
        try:
            limit = self._settings.train.eval.max_episode_steps
            found = evaluate(env, self._network, episodes, 0, True, limit)
        except (KeyboardInterrupt, Terminated) as stop:
            self._draw()
            how = f"Saved: {saved}. Evaluate it with: {program()} eval {self._directory.path}"
            raise type(stop)(how) from None
        finally:
            env.close()
        return {"step": float(saved.name.removeprefix("step_")), **found}

    def _draw(self) -> None:
        title = f"{self._settings.env_id}, {self._settings.network}, {self._network.engine.name}"
        try:
            plot_learning_curve(read_metrics(self._directory.metrics), self._directory.curve, title)
        except OSError as error:
            if not self._goes_on:
                raise
            _LOG.warning("The learning curve was not drawn: %s.", error)
