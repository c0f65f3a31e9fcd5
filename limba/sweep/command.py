r"""`limba sweep`: many trials of any gin bindings, as a file says, and the best of them.

    limba sweep SWEEP.yaml                     on this machine, one trial after the other or `parallel` at once
    limba sweep SWEEP.yaml --print             the commands, without running them
    limba sweep SWEEP.yaml --wandb_config      the file for `wandb sweep`, whose agents then make the trials

The same command goes on where a sweep was stopped or killed: with the trials that were not finished, from their own
checkpoints. At the end there are a table, a picture, and the best checkpoint, pinned and exported. The keys of the file
are W&B's and a few more: docs/sweeps.md.
"""

import argparse
import concurrent.futures
import dataclasses
import logging
import os
import queue
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from limba import commands, sweep_commands, sweep_file, sweep_report
from limba.preemption import PREEMPTED_EXIT_CODE
from limba.sweep_file import Sweep
from limba.sweep_proposals import propose
from limba.sweep_trials import Process, SweepFolder, Trial, conclude

logger = logging.getLogger(__name__)

# Between two looks whether to stop.
_SECONDS = 0.5


def main(argv: Sequence[str]) -> int:
    """Runs trials until the sweep is done."""
    parser = argparse.ArgumentParser(
        prog="limba sweep", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sweep", type=Path, help="the sweep's file, YAML or JSON")
    parser.add_argument("--dir", type=Path, help="where everything goes (runs/sweeps/NAME)")
    parser.add_argument("--parallel", type=int, help="trials at once, in place of the file's")
    parser.add_argument("--retry", action="store_true", help="make trials that failed again")
    parser.add_argument("--print", action="store_true", help="print the commands of all trials (grid, random) and stop")
    parser.add_argument("--wandb_config", action="store_true", help="print the file for `wandb sweep` and stop")
    parser.add_argument(
        "--wandb_trial", nargs="*", metavar="NAME=VALUE", help="make one trial with these values: what an agent calls"
    )
    flags = parser.parse_args(argv)
    sweep, said = sweep_file.load(flags.sweep.expanduser().absolute())
    for line in said:
        logger.warning("%s", line)
    if flags.parallel is not None:
        if flags.parallel < 1 or (sweep.devices and flags.parallel > len(sweep.devices)):
            raise ValueError(f"--parallel {flags.parallel}: from 1 to the number of devices, where the file has any.")
        sweep = dataclasses.replace(sweep, parallel=flags.parallel)
    folder = (flags.dir or Path("runs/sweeps") / sweep.name).expanduser().absolute()
    if flags.wandb_config:
        print(_wandb_config(sweep, folder), end="")
        return 0
    if flags.wandb_trial is not None:
        return _wandb_trial(sweep, folder, flags.wandb_trial)
    if flags.print:
        _print_commands(sweep, folder)
        return 0
    held = SweepFolder(folder, sweep.identity)
    try:
        return _work(sweep, held, flags.retry)
    finally:
        held.close()


def _work(sweep: Sweep, held: SweepFolder, retry: bool) -> int:
    trials = held.trials()
    for trial in trials if retry else ():
        if trial.status == "failed":
            (trial.folder / "exit_code").unlink(missing_ok=True)
            trial.status, trial.attempts, trial.error = "new", 0, ""
            trial.save()
    over = sum(trial.is_over for trial in trials)
    logger.info("%s: %d of %d trials are over.", held.folder, over, sweep.trials)
    if not _run_trials(sweep, held, trials):
        logger.warning("Stopped on request; the same command goes on.")
        return PREEMPTED_EXIT_CODE
    print(sweep_report.table(sweep, trials))
    for file in sweep_report.write(sweep, trials, held.folder):
        logger.info("written: %s", file)
    best = sweep_report.best_trial(sweep, trials)
    if best is None:
        raise ValueError(f"No trial of {held.folder} has a result; its trials/*/log.txt say why.")
    checkpoint = sweep_report.keep_best(sweep, trials, held.folder)
    kept = f"{checkpoint} is pinned and exported to {held.folder / 'best'}" if checkpoint else "it has no checkpoint"
    print(f"best: trial {best.number}, {sweep.metric} {best.value:.6g} at step {best.step}; {kept}.")
    return 0


def _run_trials(sweep: Sweep, held: SweepFolder, trials: list[Trial]) -> bool:
    """Runs what is unfinished, then new trials, until there are `sweep.trials`; appends to `trials`.

    Returns:
      False if SIGTERM or Ctrl-C ended it; the trials that ran have saved then.

    Raises:
      ValueError: if the first trial fails: the others would too.
    """
    stop = threading.Event()
    slots: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    for slot in range(sweep.parallel):
        slots.put(sweep.devices[slot] if sweep.devices else None)
    running: dict[concurrent.futures.Future[int | None], tuple[Trial, Process, str | None]] = {}

    signals = (signal.SIGTERM, signal.SIGINT)
    before = {signum: signal.signal(signum, lambda *_: stop.set()) for signum in signals}
    with concurrent.futures.ThreadPoolExecutor(sweep.parallel) as threads:
        try:
            while not stop.is_set():
                while len(running) < sweep.parallel:
                    trial = _next_trial(sweep, held, trials, [trial for trial, *_ in running.values()])
                    if trial is None:
                        break
                    device = slots.get()
                    command = sweep_commands.trial_command(sweep, trial.parameters, trial.folder)
                    process = Process(
                        trial,
                        command,
                        sweep_commands.environment(sweep, device),
                        sweep_commands.working_directory(sweep),
                    )
                    logger.info("trial %d: %s", trial.number, trial.parameters)
                    running[threads.submit(process.run)] = trial, process, device
                if not running:
                    return True
                over, _ = concurrent.futures.wait(running, _SECONDS, concurrent.futures.FIRST_COMPLETED)
                for future in over:
                    trial, _, device = running.pop(future)
                    slots.put(device)
                    conclude(trial, future.result(), sweep.metric, sweep.maximize)
                    _say(sweep, trial, trials)
        finally:
            for _, process, _ in running.values():
                process.stop()
            for future, (trial, _, _) in running.items():
                conclude(trial, future.result(), sweep.metric, sweep.maximize)
            for signum, handler in before.items():
                signal.signal(signum, handler)
    return False


def _next_trial(sweep: Sweep, held: SweepFolder, trials: list[Trial], running: Sequence[Trial]) -> Trial | None:
    """One that was begun and is not over, else a new one, which is written down before it begins."""
    for trial in trials:
        if not trial.is_over and trial not in running:
            return trial
    if len(trials) >= sweep.trials:
        return None
    trials.append(held.new_trial(len(trials), propose(sweep, trials)))
    return trials[-1]


def _say(sweep: Sweep, trial: Trial, trials: Sequence[Trial]) -> None:
    if trial.status == "done":
        logger.info("trial %d: %s %.6g at step %s", trial.number, sweep.metric, trial.value, trial.step)
    elif trial.status == "failed":
        if not any(other.status == "done" for other in trials):
            raise ValueError(
                f"The first trial failed: {trial.error} ({trial.folder / 'log.txt'}). No other is tried; mend it and "
                "give the command again with --retry."
            )
        logger.warning("trial %d failed: %s (%s)", trial.number, trial.error, trial.folder / "log.txt")
    else:
        logger.warning("trial %d was stopped, and goes on.", trial.number)


def _print_commands(sweep: Sweep, folder: Path) -> None:
    import shlex

    if sweep.method == "bayes":
        raise ValueError("The values of method: bayes depend on results; --print is for grid and random.")
    trials: list[Trial] = []
    for number in range(sweep.trials):
        trial = Trial(number, propose(sweep, trials), folder / "trials" / f"{number:04d}")
        trials.append(trial)
        print(shlex.join(sweep_commands.trial_command(sweep, trial.parameters, trial.folder)))


# ------------------------------------------------- W&B's agents ------------------------------------------------------


def _wandb_config(sweep: Sweep, folder: Path) -> str:
    """W&B's file of the same sweep, whose trials are made by `limba sweep --wandb_trial`."""
    import yaml

    content = yaml.safe_load(sweep.where.read_text("utf-8"))
    kept = ("name", "project", "entity", "description", "method", "metric", "parameters", "early_terminate")
    config = {key: content[key] for key in kept if key in content}
    config["run_cap"] = sweep.trials
    config["program"] = "limba"
    config["command"] = [
        *("limba", "sweep", str(sweep.where), "--dir", str(folder), "--wandb_trial", "${args_no_hyphens}"),
    ]
    return yaml.safe_dump(config, sort_keys=False)


def _wandb_trial(sweep: Sweep, folder: Path, words: Sequence[str]) -> int:
    """Becomes the trial that an agent asks for; its folder has the name of W&B's run."""
    import yaml

    names = [parameter.name for parameter in sweep.parameters]
    parameters = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or name not in names:
            raise ValueError(
                f"--wandb_trial {word}: write NAME=VALUE with a parameter of the file: {', '.join(names)}."
            )
        parameters[name] = sweep_file.plain_value(yaml.safe_load(value))
    run_id = os.environ.get("WANDB_RUN_ID")
    if not run_id:
        raise ValueError("--wandb_trial is what W&B's agent calls, and WANDB_RUN_ID is not set; use `wandb agent`.")
    trial_folder = folder / "agents" / run_id
    trial_folder.mkdir(parents=True, exist_ok=True)
    command = sweep_commands.trial_command(
        dataclasses.replace(sweep, slurm=None), parameters, trial_folder, on_wandb=True
    )
    sys.stdout.flush()
    # An agent stops its process by a signal: there must be none in between.
    os.execvpe(command[0], command, os.environ)


if __name__ == "__main__":
    from limba import sweep as _this

    commands.run_command(_this.main)
