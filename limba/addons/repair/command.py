"""`limba convert repair`: a folder as it was, but for what is wrong with it.

limba convert check org/model
limba convert repair org/model exports/model
"""

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path

from limba.addons.repair import looking, repaired_folder
from limba.addons.repair.findings import CODES
from limba.convert import from_hf, written_model
from limba.convert.compare import comparison_rows
from limba.convert.model_files import any_format
from limba.convert.model_files.hf import hf_folder
from limba.convert.model_files.model import NO_HINTS, ModelHints


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="FOLDER", help="a folder of transformers', or ORG/NAME on the hub")
    parser.add_argument("out", metavar="OUT", help="the folder to write")
    parser.add_argument(
        "--leave", metavar="CODE", action="append", default=[], choices=CODES, help="a finding to leave as it is"
    )
    any_format.add_ignore_argument(parser)


def run(args: argparse.Namespace) -> None:
    repair(args.model, args.out, leave=args.leave, hints=ModelHints(ignore_config_keys=args.ignore_config_keys))


def repair(model: str, out: str, *, leave: Sequence[str] = (), hints: ModelHints = NO_HINTS) -> Path:
    """Writes a folder without what is wrong with another one, and returns it.

    Args:
      model: the folder, or its name on the hub.
      out: the folder to write, which is empty or not there.
      leave: codes of findings that stay.

    Raises:
      FileNotFoundError: if there is no such folder.
      ValueError: if there is nothing to repair, a finding cannot be repaired, or what was written is not right.
    """
    path = from_hf.find(model)
    if not hf_folder.is_folder(path):
        raise ValueError(f"{path} is no folder of transformers', with a config.json and weights.")
    target = written_model.choose_empty(out, path)
    folder, lines = looking.look(path, hints)
    wrong = [line for line in lines if line.is_right is False and line.code not in leave]
    if by_hand := [line for line in wrong if line.change is None]:
        raise ValueError(
            f"{path}: {'; '.join(f'{line.code}: {line.found} {line.remedy}' for line in by_hand)} A repair cannot do "
            f"that, and nothing is written; {' '.join(f'--leave {line.code}' for line in by_hand)} leaves it as it is."
        )
    if not wrong or folder is None:
        raise ValueError(f"{path}: there is nothing to repair.")
    proof = repaired_folder.write(folder, wrong, target, leave, hints)
    for line in wrong:
        print(f"{line.code}: {line.found}")
        assert line.change is not None
        for what in line.change.described(folder.files):
            print(f"  {what}")
    print(comparison_rows.table(proof))
    print(f"{target} is written. Look at it: limba convert check {shlex.quote(str(target))}")
    return target
