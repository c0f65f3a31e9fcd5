"""`limba report RUN [RUN …] --out PAGE.html`: what runs have done so far, as a page that opens without a network.

    limba report runs/mine --out report.html
    limba report runs/small runs/base --out both.html --axis tokens
    limba report runs/mine --out report.html --price 3.22      # of an hour of its machines: what it costs

Losses beside n-grams, metrics, learning rate, norms, speed, goodput, spikes, predictions, data, configuration and
what differs between runs, cost, and the commands to go on with. What a run does not have is left out. It needs
`pip install 'limba[report]'`.
"""

import argparse
import math
from collections.abc import Sequence
from pathlib import Path, PurePath

from limba.addons.pages import bokeh_charts, page, run_record, run_state, written_pages
from limba.files import named_flags, storage, written_files
from limba.files.storage import AnyPath


def main(argv: Sequence[str]) -> int:
    """Writes the page."""
    parser = named_flags.Parser(
        prog="limba report", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+", metavar="RUN", help="folders of runs, also in buckets")
    parser.add_argument("--out", required=True, metavar="FILE", help="the page, .html; it is replaced")
    parser.add_argument(
        "--axis", choices=run_record.AXES, default="steps", help="below the charts (steps); the page can change it"
    )
    parser.add_argument("--price", type=_price, metavar="P", help="of an hour of a run's machines, for its cost")
    flags = parser.parse_args(argv)
    out = Path(written_files.named_by_flag(flags.out))
    if out.is_dir():
        raise IsADirectoryError(f"--out {out} is a folder: name a file, such as {out / 'report.html'}.")
    if out.suffix not in (".html", ".htm") and not written_files.is_stream(out):
        parser.error(f"--out {out}: its name ends with .html.")
    written_pages.require_folder(out, "--out")
    bokeh_charts.version()  # what is missing is said before anything is read
    folders = list(dict.fromkeys(map(storage.as_path, flags.runs)))
    runs = [run_record.load(folder, name) for folder, name in zip(folders, names(folders), strict=True)]
    known = bokeh_charts.axes_of(runs)
    if flags.axis not in known:
        without = [run.name for run in runs if flags.axis not in bokeh_charts.axes_of([run])]
        raise ValueError(
            f"--axis {flags.axis}: {', '.join(without)} has not recorded it. Choose one of {', '.join(known)}."
        )
    text = page.write(runs, flags.axis, flags.price, run_state.time_of_day())
    written_files.write_text(out, text)
    size = len(text.encode())
    print(
        f"{out}: {size / 1e6:.1f} MB, {len(runs)} {'run' if len(runs) == 1 else 'runs'}",
        file=written_files.messages_beside(out),
    )
    return 0


def names(folders: Sequence[AnyPath]) -> list[str]:
    """The ends of paths, as short as differ."""
    parts = [PurePath(str(folder)).parts for folder in folders]
    for length in range(1, max(map(len, parts)) + 1):
        found = ["/".join(part[-length:]) for part in parts]
        if len(set(found)) == len(found):
            return found
    return list(map(str, folders))


def _price(text: str) -> float:
    try:
        price = float(text)
    except ValueError:
        price = -1.0
    if not (math.isfinite(price) and price >= 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a price of an hour, such as 3.22")
    return price


if __name__ == "__main__":
    from limba import command_line

    command_line.run_command(main)
