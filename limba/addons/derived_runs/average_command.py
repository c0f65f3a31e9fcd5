"""`limba average`: the mean of the last checkpoints of a run, as a run of its own.

    limba average runs/mine --last 5
    limba convert to-hf runs/mine_mean_of_5 exports/mine

The mean has no optimizer state and no place in the data. `limba try`, `limba eval`, `limba convert` and
INITIAL_CHECKPOINT_PATH take it as any other run. Tensors are read and written one at a time, so memory holds a few
of the largest tensor. docs/averages.md says when it helps, and has the average that a run keeps while it trains.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from tqdm import tqdm

from limba import command_line
from limba.addons.derived_runs import mean_checkpoint
from limba.files import disk, json_text, named_flags, storage, untrusted_json
from limba.files.output_folder import choose_out, complete_or_absent, fingerprint
from limba.files.version import VERSION

RECORD = "mean.json"


def average(run: str, last: int, out: str | None = None) -> Path:
    """Writes the mean of a run's last checkpoints, and returns its checkpoint.

    Args:
      out: the folder to write; None is the run's with `_mean_of_<last>` behind its name.

    Raises:
      FileNotFoundError: if there is no run.
      ValueError: if it has fewer checkpoints or they do not fit, or `out` is in use or its disk full.
    """
    paths = mean_checkpoint.last_checkpoints(run, last)
    home = paths[-1].parent
    if out is None and storage.is_remote(home):
        raise ValueError(f"{home} is in a bucket: give --out, a folder of this machine.")
    folder = choose_out(out or str(home.with_name(f"{home.name}_mean_of_{last}")), *paths)
    steps = [mean_checkpoint.step_of(path) for path in paths]
    record = {"run": str(home), "steps": steps, "fingerprint": fingerprint(*paths), "limba_version": VERSION}
    written = folder / paths[-1].name
    if folder.exists() and any(folder.iterdir()):
        if not (folder / RECORD).is_file() or untrusted_json.read_object(folder / RECORD) != record:
            raise ValueError(f"{folder} holds something else; give another --out, or remove it.")
        print(f"{written} is there already.")
        return written
    means = mean_checkpoint.open_means(paths)
    size = sum(mean.num_bytes for mean in means.values())
    disk.require(folder, size, "choose another --out")
    with complete_or_absent(folder, record) as unfinished:
        with tqdm(total=size, desc="averaging", unit="B", unit_scale=True, disable=None) as bar:
            mean_checkpoint.write(unfinished, paths, means, bar.update)
        (unfinished / RECORD).write_text(json_text.dumps(record, indent=1) + "\n", "utf-8")
    print(f"{written} is the mean of the steps {', '.join(map(str, steps))} of {home} ({len(means)} parameters).")
    return written


def main(argv: Sequence[str]) -> int:
    """Parses flags, and writes the mean."""
    parser = named_flags.Parser(
        prog="limba average", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", metavar="RUN", help="a run's directory")
    parser.add_argument("--last", type=int, default=5, metavar="K", help="so many checkpoints, the newest ones (5)")
    parser.add_argument("--out", metavar="DIR", help="the folder to write; RUN_mean_of_K, unless given")
    flags = parser.parse_args(argv)
    average(flags.run, flags.last, flags.out)
    return 0


if __name__ == "__main__":
    command_line.run_command(main)
