"""`limba branch`: the decay of a stable run, as a run of its own.

    limba branch runs/trunk --at 20000 --decay 10%
    limba train my_recipe.gin --gin.MODEL_DIR="'runs/trunk'"        # the trunk continues

One long run at a constant rate gives models of several ages: each branch takes a checkpoint of it, with optimizer
state, position in the data and seeds, and trains on while the rate falls to 0. The branch is, to the last bit, the run
that would have decayed by itself from that step. docs/averages.md says more.
"""

import argparse
import shlex
import tempfile
from collections.abc import Sequence
from pathlib import Path

import gin

from limba import command_line
from limba import train as train_script
from limba.addons.derived_runs import branch as branches
from limba.addons.derived_runs.branch import Branch
from limba.checkpoint_files import run_folder
from limba.files import named_flags, storage, untrusted_json
from limba.files.output_folder import choose_out, complete_or_absent
from limba.gin_config import gin_files, run_folders

SHAPES = ("linear", "cosine", "1-sqrt")


def prepare(
    run: str,
    at: int,
    decay: str = "10%",
    shape: str = "linear",
    bindings: Sequence[str] = (),
    out: str | None = None,
    only_show: bool = False,
) -> Path:
    """Writes the folder of a branch, unless it is there, and returns its gin file.

    Args:
      decay: a share of the steps until then, "10%", or a number of steps.
      bindings: of gin, behind those of the parent and the branch.
      out: the folder; None is the run's with `_<at>_plus_<steps>` behind its name.
      only_show: print what would be written, and write nothing.

    Raises:
      FileNotFoundError: if there is no such checkpoint.
      ValueError: if the configuration cannot be branched, or `out` is in use.
    """
    parent = branches.find_parent(run, at)
    run_folders.read_run(str(parent))
    branch = Branch(parent, at, branches.steps_of(decay, at), shape, tuple(bindings))
    home = parent.parent
    if (out is None and storage.is_remote(home)) or storage.is_remote(out or ""):
        raise ValueError(f"{out or home} is in a bucket: a branch is written to a folder of this machine; give --out.")
    folder = choose_out(out or str(home.with_name(f"{home.name}_{at}_plus_{branch.decay_steps}")), parent)
    gin_file = run_folder.find_gin(parent)
    if gin_file is None:
        raise FileNotFoundError(f"{parent} has no run/config.gin, and its run neither.")
    text = branches.gin_text(branch, folder, storage.read_bytes(gin_file).decode())
    if bindings:
        _check(text, bindings)
    record = branch.record()
    print(
        f"{folder}: a branch of {home} at step {at:,}; the rate falls ({shape}) to 0 in {branch.decay_steps:,} steps, "
        f"until step {branch.total_steps:,}.\n"
        f"To train or resume it: limba train {shlex.quote(str(folder / branches.GIN))}"
    )
    if only_show:
        print(f"\n{text.partition('the branch -')[2].partition(chr(10))[2]}", end="")
        return folder / branches.GIN
    if folder.exists() and any(folder.iterdir()):
        own = folder / branches.RECORD
        if not own.is_file() or untrusted_json.read_object(own) != record:
            raise ValueError(f"{folder} holds something else; give another --out, or remove it.")
    else:
        with complete_or_absent(folder, record) as unfinished:
            branches.write(branch, unfinished, text, record)
    return folder / branches.GIN


def _check(text: str, bindings: Sequence[str]) -> None:
    """Raises GinError for bindings that `limba train` would refuse, such as a name that nothing reads.

    `text` ends with them: before anything is written they are read as those of a command line, whose messages name no
    file.
    """
    without = "\n".join(text.splitlines()[: -sum(len(binding.splitlines()) for binding in bindings)])
    with tempfile.TemporaryDirectory(prefix="limba-gin-") as folder:
        file = Path(folder) / branches.GIN
        file.write_text(without, "utf-8")
        gin.clear_config()
        gin_files.parse_gin_flags([str(file)], bindings)
    gin.clear_config()


def main(argv: Sequence[str]) -> int:
    """Parses flags, writes the branch, and trains it."""
    parser = named_flags.Parser(
        prog="limba branch", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", metavar="RUN", help="a run's directory, the trunk")
    parser.add_argument("--at", type=int, required=True, metavar="STEP", help="of the checkpoint to begin with")
    parser.add_argument("--decay", default="10%", help="a share of STEP, 10%% (default), or a number of steps, 500")
    parser.add_argument("--shape", choices=SHAPES, default="linear", help="of the decay (linear)")
    parser.add_argument(
        "--set", action="append", default=[], metavar="'NAME = VALUE'", help="a gin binding of the branch; repeatable"
    )
    parser.add_argument("--out", metavar="DIR", help="the folder to write; RUN_<STEP>_plus_<STEPS>, unless given")
    parser.add_argument("--no-train", action="store_true", help="write the folder, and do not train")
    parser.add_argument("--dry-run", "--dry_run", action="store_true", help="print what it would bind; write nothing")
    flags = parser.parse_args(argv)
    file = prepare(flags.run, flags.at, flags.decay, flags.shape, flags.set, flags.out, flags.dry_run)
    return 0 if flags.no_train or flags.dry_run else train_script.main([str(file)])


if __name__ == "__main__":
    command_line.run_command(main)
