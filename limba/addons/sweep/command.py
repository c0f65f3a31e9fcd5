r"""`limba sweep`: tries many values of gin bindings, as a file describes, and finds the best trial.

    limba sweep SWEEP.yaml                     on this machine, one trial after the other or `parallel` at a time
    limba sweep SWEEP.yaml --print             prints the commands without running them
    limba sweep SWEEP.yaml --wandb_config      prints the file for `wandb sweep`, whose agents then run the trials

The same command resumes a sweep that was stopped or killed: unfinished trials resume from their own checkpoints. At the
end it writes a table and a picture, and pins and exports the best checkpoint. The keys of the file are W&B's and a few
more: docs/sweeps.md.
"""

import argparse
import concurrent.futures
import dataclasses
import logging
import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from limba import command_line
from limba.addons.sweep import proposals, sweep_file, sweep_parameters, sweep_report, trial_check, trial_command
from limba.addons.sweep.proposals import propose
from limba.addons.sweep.sweep_file import Sweep
from limba.addons.sweep.trial_folders import Process, SweepFolder, Trial, conclude
from limba.files import named_flags, python_path, shell_words, untrusted_files, written_files
from limba.files.local_paths import local_path
from limba.workers.preemption import PREEMPTED_EXIT_CODE

logger = logging.getLogger(__name__)

# Between two checks for a request to stop.
_SECONDS = 0.5


def main(argv: Sequence[str]) -> int:
    """Runs trials until the sweep is finished. Returns the exit code."""
    parser = named_flags.Parser(
        prog="limba sweep", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sweep", type=Path, help="the sweep's file, YAML or JSON")
    parser.add_argument("--dir", type=Path, help="the sweep's folder (runs/sweeps/NAME)")
    parser.add_argument("--trials", type=int, metavar="N", help="how many trials, instead of the file's number")
    parser.add_argument(
        "--set",
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME=VALUE",
        help="one value of a parameter, instead of the file's or of the agent's",
    )
    parser.add_argument("--parallel", type=int, help="trials at a time, instead of the file's number")
    parser.add_argument("--retry", action="store_true", help="run failed trials again")
    parser.add_argument("--print", action="store_true", help="print the commands of all trials (grid, random) and stop")
    parser.add_argument("--wandb_config", action="store_true", help="print the file for `wandb sweep` and stop")
    parser.add_argument(
        "--wandb_trial", nargs="*", action="extend", metavar="NAME=VALUE",
        help="run one trial with these values, for W&B's agent",
    )  # fmt: skip
    flags = parser.parse_args(argv)
    fixed = _fixed(flags.set)
    sweep, warnings = sweep_file.load(local_path(flags.sweep), fixed)
    if flags.trials is not None:
        if flags.trials < 1:
            raise ValueError(f"--trials {flags.trials}: at least 1.")
        sweep = dataclasses.replace(sweep, trials=min(flags.trials, sweep.trials if sweep.method == "grid" else 2**31))
        warnings = [warning for warning in warnings if not warning.startswith("trials ")]
    for warning in warnings:
        logger.warning("%s", warning)
    if flags.parallel is not None:
        if flags.parallel < 1 or (sweep.devices and flags.parallel > len(sweep.devices)):
            raise ValueError(f"--parallel {flags.parallel}: use 1 to the number of devices, if the file lists any.")
        sweep = dataclasses.replace(sweep, parallel=flags.parallel)
    folder = local_path(flags.dir or Path("runs/sweeps") / sweep.name)
    if flags.wandb_config:
        print(_wandb_config(sweep, folder), end="")
        return 0
    if flags.wandb_trial is not None:
        return _wandb_trial(sweep, folder, flags.wandb_trial, fixed)
    if flags.print:
        _print_commands(sweep, folder)
        return 0
    proposals.check(sweep)
    sweep_folder = SweepFolder(folder, sweep.identity, sweep.recipes)
    try:
        again = " ".join(map(shell_words.quoted, ["limba", "sweep", *argv, *([] if flags.retry else ["--retry"])]))
        return _run_sweep(sweep, sweep_folder, flags.retry, again)
    finally:
        sweep_folder.close()


def _fixed(words: Sequence[str]) -> dict[str, str]:
    """The values of `--set`, as a file has them."""
    from limba.files import untrusted_yaml

    fixed = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise ValueError(f"--set {word}: write NAME=VALUE, such as model_name_or_path=exports/mine.")
        fixed[name] = untrusted_yaml.parse(value, f"--set {name}")
    return fixed


def _run_sweep(sweep: Sweep, folder: SweepFolder, retry: bool, again: str) -> int:
    """Runs the trials, and writes and prints their results; `again` runs failed ones again. Returns the exit code."""
    trials = folder.trials()
    for trial in trials if retry else ():
        if trial.status == "failed":
            (trial.folder / "exit_code").unlink(missing_ok=True)
            trial.status, trial.attempts, trial.error = "new", 0, ""
            trial.save()
    for trial in trials:
        _check_values(sweep, trial)
    finished = sum(trial.is_finished for trial in trials)
    logger.info("%s: %d of %d trials are finished.", folder.path, finished, sweep.trials)
    if not finished:
        trial_check.check(sweep, trials[0].parameters if trials else propose(sweep, []))
    if not _run_trials(sweep, folder, trials):
        logger.warning("Stopped on request; the same command resumes the sweep.")
        return PREEMPTED_EXIT_CODE
    print(sweep_report.table(sweep, trials))
    for file in sweep_report.write(sweep, trials, folder.path):
        logger.info("written: %s", file)
    best = sweep_report.best_trial(sweep, trials)
    if best is None:
        raise ValueError(f"No trial of {folder.path} has a result; see its trials/*/log.txt for the reasons.")
    checkpoint = sweep_report.keep_best(sweep, trials, folder.path)
    kept = f"{checkpoint} is pinned and exported to {folder.path / 'best'}" if checkpoint else "it has no checkpoint"
    print(f"best: trial {best.number}, {sweep.metric} {best.value:.6g} at step {best.step}; {kept}.")
    if remark := sweep_report.remark(sweep, trials):
        print(remark)
    if failed := [str(trial.number) for trial in trials if trial.status == "failed"]:
        print(f"failed: trial {', '.join(failed)}; {folder.path}/trials/*/log.txt has the reasons. Try again with:")
        print(f"  {again}")
    return 0


def _check_values(sweep: Sweep, trial: Trial) -> None:
    """Raises ValueError if a recorded trial is none of this sweep: its folder may come from somebody else."""
    known = {parameter.name: parameter for parameter in sweep.parameters}
    recorded = trial.parameters
    wrong = [name for name, value in recorded.items() if name not in known or not known[name].can_be(value)]
    if wrong or recorded.keys() != known.keys():
        named = untrusted_files.some([*map(untrusted_files.cut, wrong or sorted(known.keys() - recorded.keys()))], 3)
        raise ValueError(
            f"{trial.folder / 'trial.json'} is no trial of {sweep.file}: its value of {named} is none that the sweep "
            "tries. Remove the trial's folder, or choose another --dir."
        )


def _run_trials(sweep: Sweep, folder: SweepFolder, trials: list[Trial]) -> bool:
    """Runs unfinished trials, then new ones, until there are `sweep.trials`; appends new ones to `trials`.

    Returns:
      False if SIGTERM or Ctrl-C stopped the sweep; the running trials have saved and stopped.

    Raises:
      ValueError: if the first trial fails: the others would fail too.
    """
    stop = threading.Event()
    free: list[str | None] = list(sweep.devices[: sweep.parallel]) or [None] * sweep.parallel
    running: dict[concurrent.futures.Future[int | None], tuple[Trial, Process, str | None]] = {}

    signals = (signal.SIGTERM, signal.SIGINT)
    before = {signum: signal.signal(signum, lambda *_: stop.set()) for signum in signals}
    with concurrent.futures.ThreadPoolExecutor(sweep.parallel) as threads:
        try:
            while not stop.is_set():
                while free:
                    trial = _next_trial(sweep, folder, trials, [trial for trial, *_ in running.values()])
                    if trial is None:
                        break
                    device = free.pop(0)
                    command = trial_command.trial_command(sweep, trial.parameters, trial.folder)
                    env, cwd = trial_command.environment(sweep, device), trial_command.working_directory(sweep)
                    process = Process(trial, command, env, cwd)
                    logger.info("trial %d: %s", trial.number, trial.parameters)
                    running[threads.submit(process.run)] = trial, process, device
                if not running:
                    return True
                finished, _ = concurrent.futures.wait(running, _SECONDS, concurrent.futures.FIRST_COMPLETED)
                for future in finished:
                    trial, _, device = running.pop(future)
                    free.append(device)
                    conclude(trial, future.result(), sweep.metric, sweep.maximize)
                    _log_result(sweep, trial, trials)
        finally:
            for _, process, _ in running.values():
                process.stop()
            for future, (trial, _, _) in running.items():
                conclude(trial, future.result(), sweep.metric, sweep.maximize)
            for signum, handler in before.items():
                signal.signal(signum, handler)
    return False


def _next_trial(sweep: Sweep, folder: SweepFolder, trials: list[Trial], running: Sequence[Trial]) -> Trial | None:
    """An unfinished trial, or else a new one, which is recorded before it starts; None if there are enough."""
    for trial in trials:
        if not trial.is_finished and trial not in running:
            return trial
    if len(trials) >= sweep.trials:
        return None
    trials.append(folder.new_trial(len(trials), propose(sweep, trials)))
    return trials[-1]


def _log_result(sweep: Sweep, trial: Trial, trials: Sequence[Trial]) -> None:
    if trial.status == "done":
        logger.info("trial %d: %s %.6g at step %s", trial.number, sweep.metric, trial.value, trial.step)
    elif trial.status == "failed":
        if not any(other.status == "done" for other in trials):
            raise ValueError(
                f"The first trial failed: {trial.error} ({trial.folder / 'log.txt'}). No other trial is started. Mend "
                "the sweep's file and run the command again; if the cause was elsewhere, add --retry."
            )
        logger.warning("trial %d failed: %s (%s)", trial.number, trial.error, trial.folder / "log.txt")
    else:
        logger.warning("trial %d was stopped, and resumes.", trial.number)


def _print_commands(sweep: Sweep, folder: Path) -> None:
    if sweep.method == "bayes":
        raise ValueError("The values of method: bayes depend on results; --print works for grid and random only.")
    trials: list[Trial] = []
    for number in range(sweep.trials):
        trial = Trial(number, propose(sweep, trials), folder / "trials" / f"{number:04d}")
        trials.append(trial)
        command = trial_command.trial_command(sweep, trial.parameters, trial.folder)
        print(" ".join(map(shell_words.quoted, command)))


# ------------------------------------------------- W&B's agents ------------------------------------------------------


def _wandb_config(sweep: Sweep, folder: Path) -> str:
    """W&B's file of the same sweep; its trials are `limba sweep --wandb_trial`."""
    import yaml

    from limba.files import untrusted_yaml

    content = untrusted_yaml.read(sweep.file)
    kept = ("name", "project", "entity", "description", "method", "metric", "parameters", "early_terminate")
    config = {key: content[key] for key in kept if key in content}
    described = {name: x for name, (_, x) in sweep_file.flat_parameters(content["parameters"], sweep.file).items()}
    names = [parameter.name for parameter in sweep.parameters if parameter.name not in described]
    fixed = {parameter.name: parameter.values[0] for parameter in sweep.parameters if parameter.name in names}
    config["parameters"] = described | {name: {"value": value} for name, value in fixed.items()}
    given = ["--set", *(f"{name}={value}" for name, value in fixed.items())] if fixed else []
    command = ["limba", "sweep", str(sweep.file), "--dir", str(folder), *given, "--wandb_trial", "${args_no_hyphens}"]
    config |= {"program": "limba", "command": command}
    if sweep.method == "grid" or {"trials", "run_cap"} & content.keys():
        config["run_cap"] = sweep.trials
    return yaml.safe_dump(config, sort_keys=False)


def _wandb_trial(sweep: Sweep, folder: Path, words: Sequence[str], fixed: Mapping[str, Any]) -> int:
    """Replaces this process by the trial that W&B's agent requests. The trial's folder has the name of W&B's run.

    The values of `--set` hold, whatever the agent draws.
    """
    from limba.files import untrusted_yaml

    names = [parameter.name for parameter in sweep.parameters]
    parameters = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or name not in names:
            raise ValueError(
                f"--wandb_trial {word}: write NAME=VALUE with a parameter of the file: {', '.join(names)}."
            )
        parameters[name] = sweep_parameters.plain_value(untrusted_yaml.parse(value, f"--wandb_trial {name}"))
    parameters |= {name: sweep_parameters.plain_value(value) for name, value in fixed.items()}
    run_id = os.environ.get("WANDB_RUN_ID")
    if not run_id:
        raise ValueError("--wandb_trial needs WANDB_RUN_ID, which W&B's agent sets; start it by `wandb agent`.")
    trial_folder = written_files.make_folder(folder, Path("agents", run_id))
    sweep = dataclasses.replace(sweep, slurm=None)
    command = trial_command.trial_command(sweep, parameters, trial_folder, on_wandb=True)
    sys.stdout.flush()
    # The agent stops its child process by a signal, so the trial must be this process.
    os.execvpe(command[0], command, python_path.environment_of_users() if sweep.command else os.environ)


if __name__ == "__main__":
    from limba.addons.sweep import command as _this

    command_line.run_command(_this.main)
