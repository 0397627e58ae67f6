"""``multippo train``: from a command line to a trained network in a run's directory."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from multippo.algorithms.checkpointing.folder import CheckpointFolder
from multippo.algorithms.checkpointing.manifest import step_entries
from multippo.algorithms.checks import check_trains, finished
from multippo.algorithms.metrics import plot_learning_curve, read_metrics
from multippo.algorithms.profiling import Profile
from multippo.algorithms.progress import make_progress
from multippo.algorithms.schedules import iterations_left, planned_steps
from multippo.algorithms.side_by_side import side_by_side
from multippo.algorithms.types import TrainingState
from multippo.arguments import check_size
from multippo.cli.evaluate import choose_backend, evaluate, evaluation_envs, summary
from multippo.cli.flags import given_flags
from multippo.envs.registry import is_functional_name
from multippo.errors import NonFiniteError, RunError, Terminated, UsageError, one_line
from multippo.policy.playing import check_seen, show_run
from multippo.runs.directory import RunDirectory, default_run_directory, runs_in
from multippo.runs.loading import check_num_envs, mend, restore_last_good
from multippo.runs.notation import fields_of, read_settings, shown
from multippo.runs.record import RunRecord
from multippo.runs.settings import RunSettings, overlaid, run_settings
from multippo.runs.trackers import followed, services
from multippo.signals import Deadline, save_what_is_finished

_LOG = logging.getLogger("multippo")


@dataclasses.dataclass(frozen=True)
class _Flags:
    """Trains a network by PPO."""

    env: str | None = None
    """Environment: CartPole-v1, brax/ant, …; `multippo envs` lists them."""

    _: dataclasses.KW_ONLY

    backend: str | None = None
    """Engine; none for MULTIPPO_BACKEND, else the first installed of jax, torch."""

    run_dir: str | None = None
    """Directory of the run; none for runs/ENV/TIME-BACKEND-seedN."""

    config: str | None = None
    """JSON or YAML file of settings; flags override it."""

    resume: bool = False
    """Go on with the run in --run-dir from its latest whole checkpoint."""

    seeds: int | None = None
    """Runs with the seeds S, S + 1, …, S = --seed, each in a directory seedS of --run-dir: of functional
    environments (brax, …) on JAX side by side, in one compiled programme, of others one after another. With --resume
    they go on, and those that are missing begin."""

    progress: Literal["auto", "bar", "plain", "off"] = "auto"
    """Display of progress."""

    profile: str | None = None
    """Directory for a trace of three iterations, which TensorBoard or Perfetto opens."""


# Flags of `multippo train --help`.
_COMMON = (
    *("env", "config", "run_dir", "resume", "backend", "device", "seed", "seeds", "env_kwargs"),
    *("network", "actor_hidden_sizes", "hidden_features"),
    *("total_steps", "num_envs", "rollout_length", "num_epochs", "num_minibatches"),
    *("learning_rate", "discounting_factor", "gae_lambda", "entropy_weight"),
    *("eval_every_steps", "keep_best", "video_every_steps"),
)

# Settings without which a resumed run would be another run.
_FIXED = ("env", "network", "seed", "num_envs", "rollout_length", "scale_rewards")


def run(argv: Sequence[str]) -> int:
    """Runs the command.

    Raises:
        UsageError: If a flag, the file of settings or the run's directory can't be used.
        ValueError: If a setting, or the engine or device, is not possible.
        RunError: If a disk is full, or the like.
        NonFiniteError: If a number became NaN or infinite; the last good state is saved.
        KeyboardInterrupt: After Ctrl-C, once the last finished iteration is saved.
        Terminated: Likewise after SIGTERM.
    """
    own = {setting.name: setting for setting in fields_of(_Flags, "run")}
    known = {**own, **run_settings()}
    given = given_flags("train", _Flags.__doc__ or "", known.values(), argv, _COMMON)
    if given.get("config"):
        in_files = {name: setting for name, setting in known.items() if name not in ("config", "resume")}
        given = overlaid(read_settings(Path(given["config"]), in_files), given)
    flags = _Flags(**{name: value for name, value in given.items() if name in own})
    directory = RunDirectory(Path(flags.run_dir)) if flags.run_dir else None
    if flags.seeds is not None:
        return _run_seeds(check_size("", "seeds", flags.seeds), flags, RunSettings.of(given), argv)
    if (
        flags.resume
        and directory is not None
        and directory.path not in (runs := [one.path for one in runs_in(directory.path)])
    ):
        for path in runs:
            run([*argv, "--run-dir", str(path)])
        if runs:
            return 0
    if flags.resume and directory is None:
        raise UsageError("--resume needs --run-dir DIR, the directory of the run to go on with.")
    with Deadline() as deadline, contextlib.ExitStack() as stack:
        stored: dict[str, Any] = {}
        if directory is not None and flags.resume:
            stack.enter_context(directory.held())
            stored = directory.read_settings()
            settings = _changed(stored, given)
            check_num_envs(directory, settings)
        else:
            settings = RunSettings.of(given)
            if directory is not None:  # at once, not only after the environment is made
                directory.refuse_used()
        backend = choose_backend(flags.backend, stored.get("backend"))
        engine = stack.enter_context(settings.engine(backend, settings.device))
        check_trains(engine)
        services(settings)
        if settings.video_every_steps:
            check_seen(settings)
        env = settings.make_env()
        stack.callback(env.close)
        settings = settings.with_choices(env)
        network = settings.make_network(env)
        profile = Profile(Path(flags.profile)) if flags.profile else None
        _Training(settings, directory, env, network, flags.progress, flags.resume, profile).go(deadline)
    return 0


def _run_seeds(count: int, flags: _Flags, settings: RunSettings, argv: Sequence[str]) -> int:
    """Runs the command once for each seed: in one compiled programme where the environment is traced."""
    backend = choose_backend(flags.backend)
    parent = Path(flags.run_dir) if flags.run_dir else None
    if parent is None:
        one = default_run_directory(settings, backend).path
        parent = one.with_name(f"{one.name}-{count}seeds")
    jobs: list[Callable[[], int]] = []
    with settings.engine(backend, settings.device) as engine:
        is_traced = is_functional_name(settings.env_id) and "functional" in engine.capabilities
    for seed in range(settings.train.seed, settings.train.seed + count):
        path = parent / f"seed{seed}"
        there = RunDirectory(path).config.is_file()
        if there and not flags.resume:
            RunDirectory(path).refuse_used()
        own = ["--seeds", "none", "--seed", str(seed), "--run-dir", str(path), "--resume" if there else "--no-resume"]
        if is_traced and jobs:  # the first one's stands for all
            own += ["--progress", "off"]
        jobs.append(functools.partial(run, [*argv, *own]))
    if is_traced:
        side_by_side(jobs)
    else:
        for job in jobs:
            job()
    print(f"Draw them with: {command('plot', parent)}")
    return 0


def _changed(stored: Mapping[str, Any], given: Mapping[str, Any]) -> RunSettings:
    """Settings of a stored run with the changes of a resumption.

    Raises:
        UsageError: If the changes make another run.
    """
    began = {name: stored.get(name, given.get(name)) for name in _FIXED}
    _refuse_another(began, {name: given[name] for name in _FIXED if name in given})
    before, settings = RunSettings.of(stored), RunSettings.of(stored, given)
    _refuse_another(*({"precision": of.precision, **of.env_kwargs, **of.network_options} for of in (before, settings)))
    return settings


def _refuse_another(old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    for name, value in new.items():
        if value != old.get(name):
            raise UsageError(
                f"{name} can't become {shown(value)} in a run that began with {shown(old.get(name))}: leave it out, or "
                "start another run."
            )


class _Training:
    """Training with its logs, checkpoints and last evaluation.

    Files are written only after everything is checked, and the run's directory held.
    """

    def __init__(
        self,
        settings: RunSettings,
        directory: RunDirectory | None,
        env: Any,
        network: Any,
        progress: str,
        resume: bool,
        profile: Profile | None,
    ) -> None:
        self._settings, self._env, self._network, self._resume = settings, env, network, resume
        self._profile = profile
        self._named = directory is not None
        ppo = settings.train.ppo
        self._progress = make_progress(progress, ppo.total_steps, ppo.num_iterations, sys.stderr)
        self._goes_on = settings.on_save_error == "continue"
        self._filmed = 0  # step of the last video
        self._saved: Any = None  # mark of the state in the last checkpoint, see _mark
        self._is_finished = False
        self._place(directory or default_run_directory(settings, network.engine.name))

    def _place(self, directory: RunDirectory) -> None:
        settings = self._settings
        self._directory, self._record = directory, RunRecord(directory, self._goes_on)
        self._folder = CheckpointFolder(
            directory.checkpoints,
            self._network,
            keep_last=settings.keep_last,
            keep_best=settings.keep_best,
            on_save_error=settings.on_save_error,
            config=settings.train,
        )

    def go(self, deadline: Deadline) -> None:
        """Trains, evaluates, and prints the paths of the results.

        Args:
            deadline: Clock that ends the process after a signal; its ``last_words`` are set to save the run.

        Raises:
            RunError: If the disk is full, or the like; other errors are those of ``run``.
        """
        deadline.last_words = self._save_and_say
        try:
            with contextlib.ExitStack() as stack:
                stack.callback(lambda: self._record.close())
                self._train(stack)
                if self._folder.error is not None:
                    raise RunError(f"the training is done. {self._how_to_go_on()}")
                self._film()
                found = self._evaluate()
                self._draw()
        except OSError as error:
            if error.errno is None:  # raised by the library or an environment, not by the system
                raise
            raise RunError(f"the run stopped: {one_line(error)}. {self._how_to_go_on()}") from error
        path = self._directory.path
        if found:
            print(f"Final evaluation: {summary(found)}")
        print(f"Run: {path}")
        print(f"Evaluate it with: {command('eval', path)}")
        best = self._folder.best() if self._settings.keep_best else None
        if best is not None:
            print(f"Evaluate the best, {best.name}, with: {command('eval', path, '--checkpoint', 'best')}")

    def _train(self, stack: contextlib.ExitStack) -> None:
        from multippo.algorithms.run import Run

        try:
            initial, damaged = self._last_state()
            settings = self._settings.train
            run = None
            if not self._is_finished:
                callbacks = self._log, self._save
                run = Run(self._env, self._network, settings, *callbacks, None, initial, stack, profile=self._profile)
                run.progress = self._progress
            self._begin(stack, initial, damaged)
            self._record.followers = stack.enter_context(followed(self._settings, self._directory.path))
            stack.enter_context(self._progress)
            self._introduce(initial)
            if run is not None:
                stack.callback(self._end_profile)
                run.go()
            elif initial is not None:  # printed even if progress is off
                print(finished(initial.step, initial.iteration, settings.ppo), file=sys.stderr)
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

    def _end_profile(self) -> None:
        if self._profile is None:
            return
        if self._profile.close():
            print(f"Trace: {self._profile.directory}, for TensorBoard or Perfetto")
        else:
            _LOG.warning("The run had no three iterations after its first two, so there is no profile of it.")

    def _last_state(self) -> tuple[TrainingState | None, dict[Path, str]]:
        """State to go on from, None for a new run; and the later checkpoints that are damaged."""
        # Damaged checkpoints count: such a run must not start again over the rest.
        if not self._resume or not step_entries(self._directory.checkpoints):
            return None, {}
        checkpoint, initial, damaged = restore_last_good(self._directory, self._network)
        self._folder.saved, self._saved = checkpoint.path.absolute(), self._mark(initial)
        self._record.first_step = self._filmed = initial.step
        train = self._settings.train
        is_late = initial.eval_due and train.eval.enabled
        self._is_finished = not is_late and not iterations_left(train.ppo, planned_steps(train.ppo, initial))
        return initial, damaged

    def _begin(self, stack: contextlib.ExitStack, initial: TrainingState | None, damaged: dict[Path, str]) -> None:
        """Makes the run's directory, or prepares an existing one for the run to go on."""
        about = self._settings, self._network.engine.name, self._network.engine.numerics()
        if self._resume:
            for line in mend(self._directory, -1 if initial is None else initial.step, damaged):
                print(line, file=sys.stderr)
            if not self._is_finished:  # a finished run computes nothing with the new settings
                self._directory.write_settings(*about)
            return
        while True:
            try:
                stack.enter_context(self._directory.begun(*about, is_new=not self._named))
                return
            except FileExistsError:  # a run begun in the same second has taken the name meanwhile
                self._place(default_run_directory(*about[:2]))

    def _introduce(self, initial: TrainingState | None) -> None:
        settings, engine = self._settings, self._network.engine
        start = "" if initial is None else f", from step {initial.step:,}"
        precision = "" if settings.precision == "float32" else f" in {settings.precision}"
        self._progress.note(
            f"Training {settings.env_id} on {engine.name} ({engine.numerics()['device']}){precision}: "
            f"{settings.network} network, {self._env.num_envs} environments, seed {settings.train.seed}{start}. Run: "
            f"{self._directory.path}"
        )

    def _log(self, metrics: Mapping[str, float]) -> None:
        self._record.write(metrics)  # of the directory that the run has taken meanwhile, see _begin
        self._film()

    def _film(self) -> None:
        """Makes a video of the last checkpoint, if one is due; never while a run that was interrupted is saved."""
        every, saved = self._settings.video_every_steps, self._folder.saved
        if not every or saved is None:
            return
        step = int(saved.name.removeprefix("step_"))
        if step // every == self._filmed // every:
            return
        self._filmed = step
        self._progress.stage("Making a video")
        try:
            show_run(self._directory, self._directory.path / "videos" / saved.name, checkpoint=step)
        except (UsageError, ImportError, OSError) as error:
            _LOG.warning("There is no video of step %d: %s", step, one_line(error))

    def _save(self, state: TrainingState, step: int) -> None:
        if self._mark(state) != self._saved or self._folder.error is not None:
            self._folder.save(state, step)
            self._saved = self._mark(state)

    @staticmethod
    def _mark(state: TrainingState) -> Any:
        """Numbers by which states of one run differ; an evaluation may follow after its iteration was saved."""
        return state.iteration, state.eval_return, state.eval_due

    def _save_and_say(self) -> str:
        """Saves the finished part, from a thread beside the training, before the process has to end; says where."""
        save_what_is_finished()
        return self._how_to_go_on()

    def _how_to_go_on(self) -> str:
        saved, error = self._folder.saved, self._folder.error
        failed = "" if error is None else f"The last state could not be saved: {one_line(error)}. "
        if saved is None:
            return f"{failed}Nothing was saved yet in {self._directory.path}."
        how = command("train", "--run-dir", self._directory.path, "--resume")
        return f"{failed}Saved: {saved}. Go on with: {how}"

    def _evaluate(self) -> dict[str, float]:
        """Metrics of the last evaluation, which ``multippo eval`` repeats."""
        episodes = self._settings.final_eval_episodes
        saved = self._folder.saved
        if episodes == 0 or saved is None:
            return {}
        self._progress.stage(f"Evaluating over {episodes:,} episodes")
        env = self._settings.make_env(evaluation_envs(self._settings, episodes))
        try:
            found = evaluate(self._settings, env, self._network, episodes, progress=self._progress.part)
        except (KeyboardInterrupt, Terminated) as stop:
            self._draw()
            how = f"Saved: {saved}. Evaluate it with: {command('eval', self._directory.path)}"
            raise type(stop)(how) from None
        finally:
            env.close()
        metrics = {"step": float(saved.name.removeprefix("step_")), **found}
        self._record.write(metrics)
        return metrics

    def _draw(self) -> None:
        title = f"{self._settings.env_id}, {self._settings.network}, {self._network.engine.name}"
        try:
            plot_learning_curve(read_metrics(self._directory.metrics), self._directory.curve, title)
        except OSError as error:
            if not self._goes_on:
                raise
            _LOG.warning("The learning curve was not drawn: %s.", error)


def program() -> str:
    """Command as it was typed to start this process: a path to it, Python with a script, or ``multippo``."""
    script = sys.argv[0]
    if script.endswith(".py"):  # a user's program, or python -m multippo
        return shlex.join(sys.orig_argv[: len(sys.orig_argv) - len(sys.argv) + 1])
    if Path(script).name == "multippo" and shutil.which("multippo") != script:
        return shlex.quote(script)
    return "multippo"


def command(*arguments: object) -> str:
    """Command line to copy into a shell, paths with spaces quoted."""
    return f"{program()} {shlex.join(map(str, arguments))}"
