"""From a checkpoint of a LoRA to a folder that PEFT loads on its base model: the factors alone.

    limba convert to-peft runs/my_task exports/my_task_lora --base exports/base

Neither torch nor peft is needed. The folder appears when everything in it is written and has been checked: the files
are read back, and base and factors together must be the merged model.
"""

import argparse
from pathlib import Path
from typing import Any

from limba.addons.peft import adapter_check, factors, peft_config, peft_folder
from limba.checkpoint_files import directories
from limba.convert import from_hf
from limba.convert.compare import comparison_rows, encoder_outputs, t5_outputs
from limba.convert.compare.comparison_rows import Comparison
from limba.convert.families import heads
from limba.convert.model_files import any_format
from limba.convert.model_files.hf import hub_models
from limba.convert.model_files.model import Model, ModelHints
from limba.files import disk, json_text
from limba.files.output_folder import REPORT, choose_out, complete_or_absent, fingerprint, previous, sealed
from limba.files.version import VERSION
from limba.reports import markdown

# PEFT's classes for labels would train a copy of the head, which the adapter does not have; they do without a task.
_TASKS = {heads.GENERATION: "SEQ_2_SEQ_LM"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoint", help="a checkpoint of a LoRA, or a run's directory for its newest one")
    parser.add_argument("out", help="the folder to write")
    parser.add_argument(
        "--base",
        metavar="FOLDER_OR_NAME",
        help="the Hugging Face folder, or ORG/NAME on the hub, that the adapter belongs on; compared with the run's "
        "own, and named in the files",
    )
    parser.add_argument("--average", action="store_true", help="the average of the factors that the run kept")
    parser.add_argument("--no-check", action="store_true", help="write without reading back and comparing")
    parser.add_argument("--overwrite", action="store_true", help="replace another conversion at OUT")


def run(args: argparse.Namespace) -> None:
    checked = not args.no_check
    to_peft(args.checkpoint, args.out, args.base, average=args.average, verify=checked, overwrite=args.overwrite)


def to_peft(
    checkpoint: str | Path,
    out: str | Path,
    base: str | None = None,
    *,
    average: bool = False,
    verify: bool = True,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Writes the adapter, prints what came out, and returns the content of `conversion_report.json`.

    Args:
      checkpoint: a checkpoint of a LoRA, or a run's directory for its newest one.
      out: the folder to write. If it holds the same adapter already, nothing is written.
      base: the Hugging Face folder of its base model, or a name on the hub; None leaves it open.
      average: the average of the factors, not the last ones.
      verify: compare the base with the run's, read the files back, and compare base and factors with the merged model.
      overwrite: replace another conversion at `out`.

    Raises:
      FileNotFoundError: if there is no checkpoint or no base.
      ValueError: if it is not of a LoRA, the base is another model, `out` is in use, or the check fails.
    """
    # ----------------------------------------------------- request ---------------------------------------------------
    path = directories.find_checkpoint(checkpoint)
    of_run = factors.of_checkpoint(path, average)
    own_base = any_format.open_checkpoint(path, ModelHints(average=average, without_lora=True))
    out = choose_out(out, path, base if base is not None and Path(base).is_dir() else None)
    modules = factors.to_modules(of_run, own_base)
    request = {
        "checkpoint": path.name,
        "fingerprint": fingerprint(path),
        "adapter_of": base,
        "average": average or None,
        "checked": verify,
    }
    if report := previous(out, request, overwrite):
        print(f"{out} holds this adapter of {path.name} already.")
        return report
    rows = [*_compare_bases(own_base, base)] if verify and base is not None else []
    disk.require(out, sum(module.a.nbytes + module.b.nbytes for module in modules.values()))

    # ------------------------------------------------------ files ----------------------------------------------------
    config = peft_folder.config_of(modules, base)
    with complete_or_absent(out, request) as folder:
        task = _TASKS.get(own_base.head.kind)
        (folder / peft_config.FILE).write_text(json_text.dumps(config.content(task), indent=2) + "\n", "utf-8")
        peft_folder.write_weights(folder, modules)
        _write_card(folder, out.name, own_base, base, config.rank, config.alpha)
        if verify:
            merged = any_format.open_checkpoint(path, ModelHints(average=average))
            rows.append(adapter_check.compare(peft_folder.read(folder), own_base, merged))
            comparison_rows.require(rows, "What was written is not the run's model, nothing was kept")
        report = {
            **request,
            "limba_version": VERSION,
            "step": own_base.step,
            "parameters": sum(module.a.size + module.b.size for module in modules.values()),
            "comparisons": comparison_rows.as_json(rows),
        }
        report = sealed(folder, report, (file.name for file in folder.iterdir() if not file.name.startswith(".")))
        (folder / REPORT).write_text(json_text.dumps(report, indent=2) + "\n", "utf-8")
    what = f"The average of the factors at {path.name}" if average else path.name
    print(f"{what} is exported to {out} ({report['parameters']:,} parameters, {len(modules)} modules).")
    if base is None:
        print(
            "It does not name its base: give --base FOLDER_OR_NAME, the model that the run began with. "
            f"`limba convert to-hf {checkpoint} BASE --no-lora` writes it."
        )
    print(comparison_rows.table(rows) if verify else "The adapter was not checked (--no-check).")
    return report


def _compare_bases(own: Model, base: str) -> list[Comparison]:
    """Compares the model that a LoRA began with and the one that the user names.

    Raises:
      FileNotFoundError: if there is none.
      ValueError: if it is another.
    """
    given = any_format.open_model(from_hf.find(base))
    remedy = "Give the model that the run began with; `limba convert to-hf RUN BASE --no-lora` writes it."
    if own.family.has_decoder != given.family.has_decoder:
        raise ValueError(f"--base {base} is not the base of {own.path}: it is of {given.family.title}. {remedy}")
    outputs: Any = t5_outputs if own.family.has_decoder else encoder_outputs
    try:
        rows = [outputs.compare_networks(own, given), outputs.compare_parameters(own, given)]
    except ValueError as error:
        raise ValueError(f"--base {base} is not the base of {own.path}: {error} {remedy}") from error
    if wrong := [row for row in rows if not row.holds]:
        raise ValueError(
            f"--base {base} is not the base of {own.path}: {wrong[0].what}: {wrong[0].value} {wrong[0].note}. {remedy}"
        )
    return rows


_AUTO_CLASSES = {
    heads.GENERATION: "AutoModelForSeq2SeqLM",
    heads.MASKED_LM: "AutoModelForMaskedLM",
    heads.PAIRS: "AutoModelForPreTraining",
    heads.SEQUENCE: "AutoModelForSequenceClassification",
    heads.TOKENS: "AutoModelForTokenClassification",
}


def _write_card(folder: Path, name: str, base: Model, named: str | None, rank: int, alpha: float) -> None:
    """Writes README.md into the folder of an adapter.

    Args:
      folder, name: to write into, and the name of the folder to be.
      base, named: the model that it changes, and what the user calls it.
      rank, alpha: of the adapter.
    """
    # A folder of somebody's machine means nothing to others.
    known = named if named is not None and _is_of_hub(named) else None
    metadata = {"library_name": "peft", "tags": [base.family.name, "limba", "lora"]}
    if known is not None:
        metadata = {"base_model": known, **metadata}
    auto_class = _AUTO_CLASSES[base.head.kind]
    program = (
        f"from peft import PeftModel\nfrom transformers import {auto_class}\n\n"
        f"base = {auto_class}.from_pretrained({known or 'BASE'!r})\n"
        'model = PeftModel.from_pretrained(base, ".")  # the folder of this file, or the name of its repository'
    )
    where = "" if known else " `BASE` is the folder of that model."
    lines = [f"{key}: {json_text.dumps(value, ensure_ascii=False)}" for key, value in metadata.items()]
    parts = [
        "---\n" + "\n".join(lines) + "\n---",
        f"# {markdown.plain(name)}",
        f"LoRA factors of rank {rank} and alpha {alpha:g} for a {base.family.title} of "
        f"{base.num_parameters:,} parameters, trained at step {base.step:,} by Limba. Load them on the model that they "
        f"were trained beside, and no other.{where}",
        markdown.python_block(program),
    ]
    (folder / "README.md").write_text("\n\n".join(parts) + "\n", "utf-8")


def _is_of_hub(base: str) -> bool:
    return hub_models.is_name(base) and not Path(base).exists()
