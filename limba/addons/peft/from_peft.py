"""From an adapter of PEFT, a LoRA, and its base model to a run of Limba that trains on, evaluates and answers.

    limba convert from-peft my_adapter runs/my_lora --base google/t5-v1_1-small
    limba train runs/my_lora/model.gin gin/runs/finetune.gin runs/my_lora/lora.gin \\
      --gin.INITIAL_CHECKPOINT_PATH="'runs/my_lora'" …

Neither torch nor peft is needed.
"""

import argparse
import dataclasses
import shlex
import sys
from pathlib import Path

import numpy as np

from limba.addons.peft import adapter_check, factors, peft_config, peft_folder
from limba.addons.peft.peft_folder import Adapter
from limba.checkpoint_files import saved_tensors
from limba.checkpoint_files.saved_tensors import SavedTensor
from limba.convert import from_hf
from limba.convert.compare import comparison_rows
from limba.convert.families.config_keys import keys
from limba.convert.model_files import any_format, lora_merge
from limba.convert.model_files.hf import hf_folder
from limba.convert.model_files.model import Model, ModelHints
from limba.convert.t5x import limba_run
from limba.files import disk, number_ranges
from limba.files.local_paths import local_path
from limba.files.output_folder import choose_out, read_report


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("adapter", help="a folder that PEFT saved, with adapter_config.json")
    parser.add_argument("out", help="the run's directory to write checkpoint_<step>, model.gin and lora.gin into")
    parser.add_argument(
        "--base",
        metavar="FOLDER_OR_NAME",
        help="the model that it changes: a folder of transformers', ORG/NAME on the hub, or a run (what "
        "adapter_config.json names)",
    )
    parser.add_argument(
        "--step", type=int, metavar="N", help="the step of the checkpoint (that of the adapter, else 0)"
    )
    parser.add_argument("--no-check", action="store_true", help="write without reading back and comparing")
    parser.add_argument("--overwrite", action="store_true", help="replace what another conversion wrote to OUT")
    any_format.add_ignore_argument(parser)
    parser.add_argument("--vocab", metavar="FILE", help="of the base: the SentencePiece model, or tokenizer.json")


def run(args: argparse.Namespace) -> None:
    hints = ModelHints(vocab=args.vocab, ignore_config_keys=getattr(args, keys.FLAG.removeprefix("--")))
    written = from_peft(
        args.adapter,
        args.out,
        args.base,
        hints=hints,
        step=args.step,
        verify=not args.no_check,
        overwrite=args.overwrite,
    )
    out = local_path(args.out)
    recipe = "finetune" if any_format.has_decoder(written) else "pretrain"
    model_gin, lora_gin = (shlex.quote(f"{out}/{name}") for name in (limba_run.MODEL_GIN, limba_run.LORA_GIN))
    initial = f"--gin.INITIAL_CHECKPOINT_PATH=\"'{out}'\""
    print(f"Train on with:\n  limba train {model_gin} gin/runs/{recipe}.gin {lora_gin} {initial} …")


def from_peft(
    adapter: str | Path,
    out: str | Path,
    base: str | None = None,
    *,
    hints: ModelHints,
    step: int | None = None,
    verify: bool = True,
    overwrite: bool = False,
) -> Path:
    """Converts; returns the checkpoint written.

    Args:
      adapter, out: the folder of PEFT, and the run's directory to write.
      base: the model that the adapter changes; None is the one that it names.
      hints: of the base.
      step: of the checkpoint; None takes that of the adapter, or 0.
      verify, overwrite: as of `t5x_checkpoint.write_checkpoint`.

    Raises:
      FileNotFoundError: if there is no adapter, or no base.
      ValueError: if Limba's LoRA cannot be this adapter, it is of another model, or OUT is in use.
    """
    # ---------------------------------------------------- the adapter ------------------------------------------------
    folder, out = local_path(adapter), local_path(out)
    number_ranges.check("--step", step, from_hf.STEP)
    if not (folder / peft_config.FILE).is_file():
        what = (
            f"has no {peft_config.FILE}: it is not an adapter that PEFT saved" if folder.exists() else "does not exist"
        )
        raise FileNotFoundError(f"{folder} {what}.")
    choose_out(out, folder)
    opened = peft_folder.read(folder, hints.ignore_config_keys)
    model = _base(opened, base, hints)
    of_model = factors.of_adapter(opened, model)
    if opened.config.dropout:
        rate = f"lora_dropout is {opened.config.dropout:g} in {folder / peft_config.FILE}"
        print(f"note: {rate}; Limba's factors have no dropout of their own.", file=sys.stderr)
    found, step_from = hf_folder.training_step(folder, read_report(folder))

    # ----------------------------------------------------- the run ---------------------------------------------------
    model = dataclasses.replace(model, step=found if step is None else step)
    tensors: dict[str, SavedTensor] = {f"target/{name}": tensor for name, tensor in model.tensors.items()}
    tensors |= factors.saved(of_model)
    lora = factors.description(of_model, model)
    whole = lora_merge.with_factors(tensors, lora["alpha"], str(folder))
    merged = dataclasses.replace(
        model, tensors={name: whole[f"target/{name}"] for name in model.tensors}, folder=None, head=model.head
    )
    rows = [adapter_check.compare(opened, model, merged)] if verify else []
    comparison_rows.require(rows, "The factors by Limba's names are not those of the adapter, nothing is written")
    disk.require(out, 4 * sum(int(np.prod(t.shape, dtype=np.int64)) for t in tensors.values()))
    tensors["state/step"] = saved_tensors.from_array(np.int32(model.step))
    record = limba_run.LoraRecord(lora, folder)
    checkpoint = limba_run.write_run(merged, tensors, None, out, verify, overwrite, record)
    if rows:
        print(comparison_rows.table(rows))
    said = f"step {model.step}" if step is not None or not step_from else f"step {model.step}, from {step_from}"
    what = f"rank {lora['rank']}, alpha {lora['alpha']:g}, {len(of_model.kernels)} kernels of {model.path}, {said}"
    print(f"{folder} is converted to {checkpoint} ({what}).")
    return checkpoint


def _base(adapter: Adapter, base: str | None, hints: ModelHints) -> Model:
    """The model that an adapter changes. Raises FileNotFoundError or ValueError if it is not known or not there."""
    config = adapter.config
    if base is None and config.base is None:
        raise ValueError(
            f"{adapter.path / peft_config.FILE} does not name the base of the adapter (base_model_name_or_path): give "
            "--base FOLDER_OR_NAME."
        )
    if base is None and config.revision is not None:
        raise ValueError(
            f"{adapter.path / peft_config.FILE} asks for the revision {config.revision} of {config.base}: download it, "
            f"hf download {config.base} --revision {config.revision} --local-dir FOLDER, and give --base FOLDER."
        )
    try:
        path = from_hf.find(base or config.base or "", with_runs=True)
    except FileNotFoundError as error:
        if base is not None:
            raise
        raise FileNotFoundError(
            f"{error} {adapter.path / peft_config.FILE} names it as its base; --base gives another place."
        ) from error
    model = any_format.open_model(path, hints)
    from_hf.say_folder(model)
    return model
