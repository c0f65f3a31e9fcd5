r"""From a T5 or encoder of Hugging Face to a checkpoint that Limba trains on, and a gin file of network and vocabulary.

    python -m convert from-hf google/t5-v1_1-small runs/small
    limba train --gin_file=runs/small/model.gin --gin_file=gin/runs/finetune.gin \
      --gin.INITIAL_CHECKPOINT_PATH="'runs/small'" …

A config.json alone, or a folder without weights, becomes a gin file for training from scratch. A file that a PyTorch
training script saved, such as model_150000.pth of t5-experiments, needs --config and --vocab:

    python -m convert from-hf old/model_150000.pth runs/old --config t5-small.json --vocab spiece.model
"""

import argparse
import dataclasses
import shlex
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from limba.checkpoint_files import directories, run_folder, saved_tensors
from limba.checkpoint_files.saved_tensors import SavedTensor
from limba.convert.families import heads
from limba.convert.families.config_files import encoder_config, new_network, other_models, t5_config
from limba.convert.families.heads import Head
from limba.convert.families.networks import Network
from limba.convert.families.table import find_t5
from limba.convert.model_files import any_format, encoder_files, encoder_vocabularies, t5_vocabularies
from limba.convert.model_files.hf import hf_folder, hf_tokenizer, hub_models, stray_weights, tokenizer_settings
from limba.convert.model_files.hf.hf_tokenizer import read_json
from limba.convert.model_files.model import NO_HINTS, Model, ModelHints
from limba.convert.t5x import limba_run, model_gin
from limba.convert.tensors import weight_files
from limba.files import number_ranges, storage, untrusted_json
from limba.files.local_paths import local_path
from limba.files.number_ranges import AT_LEAST_0
from limba.files.untrusted_files import shown

# What `limba embed` calls the poolings of sentence-transformers.
_POOLINGS = {"cls_token": "first", "mean_tokens": "mean", "max_tokens": "max"}
# Checkpoints keep the step as an int32; None leaves it to the folder.
STEP = AT_LEAST_0._replace(below=2**31, or_none=True)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model",
        help="a folder of transformers', ORG/NAME on the hub, a config.json, or a .pth of a training script",
    )
    parser.add_argument("out", help="the run's directory to write checkpoint_<step> and model.gin into")
    parser.add_argument("--config", metavar="FILE", help="the network of a .pth: a config.json of transformers'")
    parser.add_argument("--step", type=int, metavar="N", help="the step of the checkpoint (that of the source, else 0)")
    any_format.add_ignore_argument(parser)
    limba_run.add_options(parser, "scalable_t5 if each layer has its own table of relative positions, else t5")


def run(args: argparse.Namespace) -> None:
    written = from_hf(args.model, args.out, config=args.config, step=args.step, **limba_run.options(args))
    out = local_path(args.out)
    gin_file = shlex.quote(f"--gin_file={out}/{limba_run.MODEL_GIN}")
    if written.name == limba_run.MODEL_GIN:
        print(f"Train it from scratch with:\n  limba train {gin_file} --gin_file=gin/runs/pretrain.gin …")
    else:
        initial = f"--gin.INITIAL_CHECKPOINT_PATH=\"'{out}'\""
        has_labels = "labels" in run_folder.load_run_info(written)
        recipe = "finetune" if has_labels or any_format.has_decoder(written) else "pretrain"
        rows = "--gin.PACK=False " if has_labels else ""
        print(f"Train on with:\n  limba train {gin_file} --gin_file=gin/runs/{recipe}.gin {rows}{initial} …")


def from_hf(
    model: str | Path,
    out: str | Path,
    *,
    hints: ModelHints = NO_HINTS,
    network: str | None = None,
    verify: bool = True,
    overwrite: bool = False,
    config: str | Path | None = None,
    step: int | None = None,
) -> Path:
    """Converts; returns the checkpoint written, or the gin file if there were no weights.

    Args:
      model, out: what to convert, and the run's directory to write.
      network: whose layout the layers get; None is the one that T5X has for them.
      verify, overwrite: as of `t5x_checkpoint.write_checkpoint`.
      config: the config.json of a file of weights.
      step: of the checkpoint; None takes that of the source.

    Raises:
      FileNotFoundError: if there is no such folder, or no vocabulary.
      ValueError: if it is damaged, not a T5 that Limba has, or contradicts itself; or OUT is in use.
    """
    out = local_path(out)
    number_ranges.check("--step", step, STEP)
    path = find(str(model))
    is_weights = path.is_file() and path.suffix != ".json"
    if config is not None and not is_weights:
        raise ValueError(f"--config {config}: {path} has its own config.json; leave it out.")
    config_file = _config_of(path, config) if is_weights else path if path.is_file() else path / "config.json"
    has_decoder = any_format.has_decoder(config_file)
    if not has_decoder and network is not None:
        raise ValueError(f"--network {network}: T5X has no encoders; leave it out.")
    if not is_weights and not has_weights(path):
        return (_write_t5_gin if has_decoder else _write_encoder_gin)(config_file, out, hints, overwrite)
    opened = any_format.open_weights(path, config_file, hints) if is_weights else any_format.open_model(path, hints)
    say_notes(config_file, hints.ignore_config_keys)
    if step is not None:
        opened = dataclasses.replace(opened, step=step, step_from="--step")
    return write(opened, out, network=network, verify=verify, overwrite=overwrite)


def write(
    opened: Model, out: Path, *, network: str | None = None, verify: bool = True, overwrite: bool = False
) -> Path:
    """Writes a run's directory from a model that is opened; see `from_hf`."""
    say_folder(opened)
    tensors: dict[str, SavedTensor] = {f"target/{name}": t for name, t in opened.tensors.items()}
    tensors["state/step"] = saved_tensors.from_array(np.int32(opened.step))
    layout = network
    if opened.family.has_decoder and not opened.config.is_in_t5x:
        if network is not None:
            raise ValueError(f"--network {network}: {opened.path} is {opened.family.title}, which T5X does not have.")
    elif layout is None and opened.family.has_decoder:
        layout = "scalable_t5" if opened.config.relative_bias_per_layer else "t5"
    checkpoint = limba_run.write_run(opened, tensors, layout, out, verify, overwrite)
    said = f"step {opened.step}, from {opened.step_from}" if opened.step_from else "step 0: the source does not say one"
    what = f"{opened.family.name}, {opened.num_parameters:,} parameters, {said}"
    print(f"{opened.path} is converted to {checkpoint} ({what}).")
    return checkpoint


def say_notes(config_file: Path, ignored: Collection[str]) -> None:
    """Prints what of a config.json that was read does not travel."""
    of_kind = t5_config if any_format.has_decoder(config_file) else encoder_config
    for note in of_kind.notes(config_file, ignored):
        print(f"note: {note}", file=sys.stderr)


def say_folder(opened: Model) -> None:
    """Prints what a folder has and lacks that the checkpoint will not show."""
    folder = opened.folder
    if folder is None:
        return
    if folder.left_out:
        names = ", ".join(folder.left_out)
        of_head = f"a {opened.head.class_name} has no use for them"
        because = opened.family.left_out_because if opened.family.has_decoder else of_head
        print(f"Not converted, because {because}: {names}.")
    if folder.is_headless:
        warning = "has no masked language model's head. It gets a new one: train it."
        if opened.head == heads.OF_PAIRS:
            warning = "has BERT's pooler and not all of the heads of pre-training, which a classifier does without."
        print(f"warning: {opened.path} {warning}", file=sys.stderr)
    if opened.family.has_decoder and t5_config.scales_its_output(folder.content):
        print(
            f"note: version 5 of transformers wrote {opened.path}, and divides the logits of umT5 by sqrt(d_model). "
            "Those of the run are as in version 4 and T5X, undivided. If it was trained in version 5, multiply "
            "lm_head.weight by d_model**-0.5 before, for the same logits.",
            file=sys.stderr,
        )
    is_odd = folder.embedding.startswith(("encoder.", "decoder.")) and "lm_head.weight" in folder.stored
    if is_odd and not other_models.is_encoder_alone(folder.content):
        print(
            f"note: {opened.path} has its embedding as {folder.embedding}, and no shared.weight. Versions of "
            "transformers from 5.0 to 5.15 take lm_head.weight for it without a word, and give other texts; Limba "
            "takes the embedding. An export has shared.weight, which every version reads right.",
            file=sys.stderr,
        )
    if folder.pad_id != encoder_config.PAD_ID:
        exchanged = f"Ids {encoder_config.PAD_ID} and {folder.pad_id} are exchanged"
        print(f"{exchanged}: padding is {encoder_config.PAD_ID} in Limba.")


def _config_of(weights: Path, config: str | Path | None) -> Path:
    """The config.json of a file of weights. Raises ValueError or FileNotFoundError if it is not given or not there."""
    if config is None:
        beside = hf_tokenizer.read_json(weights.parent / "config.json").get("model_cfg")
        hint = f" The settings of its training name {beside}." if beside else ""
        raise ValueError(
            f"{weights} holds weights and no configuration: give that of its network with --config FILE, a config.json "
            f"as transformers has it (--model_cfg of t5-experiments).{hint}"
        )
    path = local_path(config)
    file = path / "config.json" if path.is_dir() else path
    if not file.is_file():
        raise FileNotFoundError(f"--config {config}: there is no {file}.")
    return file


def find(model: str, *, with_runs: bool = False, with_weights: bool = True) -> Path:
    """The folder or file on this machine, or downloaded from the hub; `with_runs` also a run or checkpoint of Limba's.

    `with_weights` downloads the weights too, and not the configuration and the tokenizer alone.

    Raises:
      FileNotFoundError: if it is neither.
    """
    path = local_path(model)
    if path.is_file():
        if what := other_models.of_file(path):
            raise ValueError(f"{path} is {what}.")
        return path
    if (module := _first_module(path)) is not None or hf_folder.is_folder(path):
        return module or path
    runs_or_t5x = directories.checkpoint_steps(directories.run_directory(path)) or (path / "state").is_dir()
    if path.is_dir() and not runs_or_t5x:  # TensorFlow's checkpoints have a file `checkpoint`, too.
        _check_kind(path)
    if path.is_dir() and directories.has_checkpoint(path):
        if with_runs:
            return path
        if run_folder.has_run_info(directories.find_checkpoint(path)):
            raise FileNotFoundError(f"{path} is a run of Limba's; export it with `limba convert to-hf {path} OUT`.")
        raise ValueError(f"{path} is a checkpoint of T5X; convert it with `limba convert from-t5x {path} OUT`.")
    if path.exists():
        raise FileNotFoundError(f"{path} has no config.json: it is not a model that transformers saved.")
    if hub_models.is_name(model):
        try:
            return hub_models.download(model, with_weights)
        except (FileNotFoundError, ConnectionError) as error:
            raise type(error)(f"There is no folder {path}. If you mean a model on the hub: {error}") from error
    raise FileNotFoundError(f"{path} does not exist, and {model!r} is not a name on the Hugging Face hub (ORG/NAME).")


def has_weights(path: Path) -> bool:
    """Whether a path is a folder with weights. Raises ValueError if they are those of another program, or elsewhere."""
    if path.is_file():
        return False
    has_any = bool(weight_files.formats([file.name for file in path.iterdir()]))
    if not has_any:
        _check_kind(path)
        stray_weights.check(path, stray_weights.files_below(path))
    return has_any


def _check_kind(folder: Path) -> None:
    """Raises ValueError if a folder without weights that are read has those of another program."""
    if (kind := other_models.of_folder([file.name for file in folder.iterdir()])) is not None:
        raise ValueError(f"{folder} is {kind.what}. {kind.remedy_in(folder, folder)}")


def _first_module(path: Path) -> Path | None:
    """The folder of the network in one of sentence-transformers."""
    file = path / "modules.json"
    if not file.is_file():
        return None
    modules = untrusted_json.read(file)
    modules = modules if isinstance(modules, list) else []
    names = [str(module["path"]) for module in modules if isinstance(module, dict) and "path" in module]
    if not names or Path(names[0]).name != names[0] or not hf_folder.is_folder(path / names[0]):
        return None
    others = f", without {', '.join(names[1:])}" if names[1:] else ""
    network = names[0] or "its network"
    print(f"{path} is a folder of sentence-transformers: {network} is converted{others}.", file=sys.stderr)
    for note in _notes_on_vectors(path, names[0], names[1:]):
        print(f"note: {note}", file=sys.stderr)
    return path / names[0]


def _notes_on_vectors(folder: Path, network: str, others: list[str]) -> Iterator[str]:
    """Sentences about how `limba embed` gives the folder's vectors: with what flags, or that it does not."""
    flags, missing = [], []
    for other in others:
        content = read_json(folder / other / "config.json")
        poolings = [key.removeprefix("pooling_mode_") for key, x in content.items() if "pooling_mode_" in key and x]
        if other.endswith("_Normalize"):
            flags.append("--normalize")
        elif len(poolings) == 1 and poolings[0] in _POOLINGS:
            flags.append(f"--pooling {_POOLINGS[poolings[0]]}")
        else:
            missing.append(other)
    settings = read_json(folder / network / "sentence_bert_config.json")
    if (length := settings.get("max_seq_length")) is not None:
        flags.append(f"--gin.embedding.Embedder.max_inputs_length={length}")
    if missing:
        yield f"`limba embed` does not have {', '.join(missing)}, so its vectors are others than the folder's."
    elif flags:
        yield f"The folder's vectors are those of `limba embed` with {' '.join(flags)}."
    if settings.get("do_lower_case"):
        yield "The folder reads texts in small letters (do_lower_case of sentence_bert_config.json): write them so."
    prompts = read_json(folder / "config_sentence_transformers.json")
    if prompt := (prompts.get("prompts") or {}).get(prompts.get("default_prompt_name")):
        yield f"The folder puts {shown(prompt)} before each text (config_sentence_transformers.json): write it there."


def _write_t5_gin(config_file: Path, out: Path, hints: ModelHints, overwrite: bool) -> Path:
    given = t5_config.read(config_file, hints.ignore_config_keys)
    vocabulary, given = t5_vocabularies.of_config(config_file, given, config_file.parent, hints)
    config, head = t5_config.network_config(config_file, given), t5_config.head_of(config_file, given)
    say_notes(config_file, hints.ignore_config_keys)
    config = dataclasses.replace(config, family=find_t5(config, vocabulary, hints.family).name)
    if config.relative_bias_per_layer:
        config = dataclasses.replace(config, scan_layers=True, joined_attention_kernels=False)
    file = _write_gin(config, head, vocabulary, str(config_file), out, overwrite)
    _write_settings(config_file.parent, out, hints, given["pad_token_id"])
    return file


def _write_encoder_gin(config_file: Path, out: Path, hints: ModelHints, overwrite: bool) -> Path:
    encoder_files.check_hints(hints)
    network = new_network.read_network(config_file, hints.ignore_config_keys)
    say_notes(config_file, hints.ignore_config_keys)
    tokenizer, pad_id = encoder_vocabularies.of_new_network(config_file, hints) or (None, 0)
    vocabulary = None if tokenizer is None else encoder_vocabularies.record(tokenizer)
    of = f"{config_file} ({network.name})"
    file = _write_gin(network.config, network.head, vocabulary, of, out, overwrite)
    _write_settings(config_file.parent, out, hints, pad_id)
    return file


def _write_settings(folder: Path, out: Path, hints: ModelHints, pad_id: int = 0) -> None:
    """Writes what the folder says of its tokenizer beside the copy of its vocabulary."""
    settings = dataclasses.replace(tokenizer_settings.beside(folder, hints.vocab), pad_id=pad_id)
    if (content := settings.content()) is not None:
        storage.write_bytes(out / run_folder.TOKENIZER_SETTINGS, content)


def _write_gin(
    network: Network, head: Head, vocabulary: Mapping[str, Any] | None, of: str, out: Path, overwrite: bool
) -> Path:
    """Writes OUT/model.gin, and the vocabulary's file beside it."""
    file = out / limba_run.MODEL_GIN
    if file.exists() and not overwrite:
        raise ValueError(f"{file} exists; choose another OUT or give --overwrite.")
    out.mkdir(parents=True, exist_ok=True)
    if vocabulary is not None and (vocabulary_file := run_folder.vocabulary_file(vocabulary)) is not None:
        copied = out / run_folder.vocabulary_name(vocabulary)
        storage.write_bytes(copied, Path(vocabulary_file).read_bytes())
        vocabulary = run_folder.with_vocabulary_file(vocabulary, str(copied))
    storage.replace_text(file, model_gin.write(network, head, vocabulary, of))
    print(f"{of.partition(' (')[0]} has no weights beside it. The network is in {file}.")
    return file
