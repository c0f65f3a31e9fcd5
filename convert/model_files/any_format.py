"""A model as any of the formats keeps it: a checkpoint of Limba, one of T5X, or a Hugging Face folder.

Tensors get Limba's names, unrolled and with joined kernels, and are read when they are asked for. The user gives hints
about what the files do not say; hints that contradict the files are errors.
"""

import argparse
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from limba.checkpoint_files import directories, run_folder
from limba.convert.families import heads
from limba.convert.families.config_keys import keys
from limba.convert.families.table import of_file, t5_config_class, t5_families
from limba.convert.model_files import encoder_files, encoder_vocabularies, t5_files, t5_vocabularies
from limba.convert.model_files.hf import hf_folder
from limba.convert.model_files.model import NO_HINTS, Model, ModelHints
from limba.files import storage
from limba.files.storage import AnyPath
from limba.gin_config import run_folders


def open_model(
    path: str | AnyPath, hints: ModelHints = NO_HINTS, format_: str | None = None, takes_vectors: bool = False
) -> Model:
    """Opens a checkpoint, a run's directory for its newest one, or a Hugging Face folder.

    From now on no module in the folder is imported: `run.json` may name an attention layer.

    `format_` is that of a folder's weights, where there are several: "safetensors", "torch" or "flax".
    `takes_vectors` opens a checkpoint that was trained to give vectors, too.

    Raises:
      FileNotFoundError: if there is none, or a file of it is missing.
      ValueError: if it is damaged, Limba or Hugging Face does not have its network, or it contradicts itself or the
        hints.
    """
    path = storage.as_path(path)
    if not hf_folder.is_folder(path):
        return open_checkpoint(path, hints, takes_vectors)
    hf_folder.check_entries(Path(path))
    run_folders.read_data(path)
    return _files(has_decoder(path)).open_folder(Path(path), hints, format_)


def open_checkpoint(path: str | AnyPath, hints: ModelHints = NO_HINTS, takes_vectors: bool = False) -> Model:
    """Opens a checkpoint of Limba or T5X; see `open_model`."""
    path = directories.find_checkpoint(path)
    run_folders.read_run(path)
    model: Model = _files(has_decoder(path)).open_checkpoint(path, hints)
    if model.head.kind == heads.VECTORS and not takes_vectors:
        raise ValueError(
            f"{path} was trained to give vectors of texts, and has neither a head nor a decoder: `limba convert "
            "to-sentence-transformers` exports it. Other commands take the model that it began with."
        )
    return model


def open_weights(file: Path, config_file: Path, hints: ModelHints = NO_HINTS) -> Model:
    """Opens a file that a PyTorch training script saved, with the configuration of its network.

    The vocabulary is that of the hints, whose `vocab` may be a folder with a tokenizer here; else one beside the files.
    The step is the one in the file, else the number at the end of its name.

    Raises:
      FileNotFoundError: if a file is missing.
      ValueError: as `open_model`.
    """
    return _files(has_decoder(config_file)).open_weights(file, config_file, hints)


def has_decoder(path: str | AnyPath) -> bool:
    """Whether a config.json, a Hugging Face folder, a checkpoint or a run is of a T5, or of an encoder alone.

    What nobody knows is taken for a T5, whose reader says what is wrong with it.
    """
    path = storage.as_path(path)
    file = Path(path) / "config.json" if hf_folder.is_folder(path) else Path(path)
    if "://" not in str(path) and file.suffix == ".json" and file.is_file():
        family = of_file(file)
        return family is None or family.has_decoder
    if not directories.has_checkpoint(path):
        return True
    path = directories.find_checkpoint(path)
    if not run_folder.has_run_info(path):
        return True
    found = run_folder.network_class(run_folder.load_run_info(path))
    return t5_config_class(found).__name__ == found


def known_vocabulary(model: Model) -> Mapping[str, Any]:
    """What `run.json` says of a model's vocabulary.

    Raises:
      FileNotFoundError: if nothing tells it.
      ValueError: if it is not the model's.
    """
    return (t5_vocabularies if model.family.has_decoder else encoder_vocabularies).known(model)


def _files(has_decoder: bool) -> ModuleType:
    return t5_files if has_decoder else encoder_files


# --------------------------------------------------- command line ---------------------------------------------------


def add_hint_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options that make `ModelHints`."""
    hints = parser.add_argument_group("what the files do not say (a contradiction is an error)")
    hints.add_argument("--vocab", metavar="FILE", help="the SentencePiece model, or a T5's tokenizer.json")
    hints.add_argument("--extra_ids", type=int, metavar="N", help="sentinels behind its pieces")
    hints.add_argument("--family", choices=t5_families(), help="t5 is T5 1.0; Flan and LM-adapted are t5_1_1")
    hints.add_argument("--mlp_activations", nargs="+", action="extend", metavar="NAME", help="gelu linear, relu …")


def add_ignore_argument(parser: argparse.ArgumentParser) -> None:
    """Adds the option of what reads a Hugging Face folder."""
    parser.add_argument(
        keys.FLAG,
        metavar="A,B",
        type=lambda keys: tuple(key for key in keys.split(",") if key),
        default=(),
        help="keys of its JSON files that have no effect on the model, as you know; else unknown ones are an error",
    )


def hints_of(args: argparse.Namespace) -> ModelHints:
    ignored = getattr(args, keys.FLAG.removeprefix("--"), ())
    return ModelHints(args.family, args.mlp_activations, args.vocab, args.extra_ids, ignored)
