"""`limba convert from-gemma`: an encoder-decoder whose two stacks begin as a decoder of Gemma.

    limba convert from-gemma google/gemma-3-270m runs/adapted

T5Gemma's authors began theirs so (arXiv:2504.06225, section 3). Gemma 2 becomes a T5Gemma, whose attention to the
encoder begins as self-attention; Gemma 3 becomes a T5Gemma 2, which has no further parameters. The encoder has yet to
learn to see what follows, and the decoder to look at the encoder: train on, such as with a prefix LM
(docs/conversion.md).
"""

import argparse
import re
import shlex
from collections.abc import Mapping
from pathlib import Path

from limba.addons.t5gemma import t5gemma, t5gemma2
from limba.addons.t5gemma.t5gemma import T5GemmaFamily
from limba.convert import from_hf
from limba.convert.families import heads
from limba.convert.families.config_files import t5_config
from limba.convert.families.config_keys import keys
from limba.convert.model_files import any_format, t5_vocabularies
from limba.convert.model_files.hf import tokenizer_settings
from limba.convert.model_files.model import ModelHints, T5Model
from limba.convert.t5x import limba_run
from limba.convert.tensors import table, weight_files
from limba.files import untrusted_json
from limba.files.local_paths import local_path
from limba.files.untrusted_files import shown

FAMILIES: Mapping[str, T5GemmaFamily] = {"gemma2": t5gemma.FAMILY, "gemma3_text": t5gemma2.FAMILY}
_REMEDY = {
    "gemma": "Gemma 1 has no norms behind blocks, which T5Gemma has",
    "gemma3": "load its text model in transformers with Gemma3ForCausalLM, and save that",
}
_OUTPUT = "lm_head.weight"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("gemma", help="a folder of Gemma2ForCausalLM or Gemma3ForCausalLM, or ORG/NAME on the hub")
    parser.add_argument("out", help="the run's directory to write checkpoint_0 and model.gin into")
    parser.add_argument("--no-check", action="store_true", help="write without reading back and comparing")
    parser.add_argument("--overwrite", action="store_true", help="replace what another conversion wrote to OUT")
    any_format.add_ignore_argument(parser)


def run(args: argparse.Namespace) -> None:
    from_gemma(
        args.gemma,
        args.out,
        ignore_config_keys=args.ignore_config_keys,
        verify=not args.no_check,
        overwrite=args.overwrite,
    )
    out = local_path(args.out)
    gin_file, initial = shlex.quote(f"--gin_file={out}/{limba_run.MODEL_GIN}"), f"INITIAL_CHECKPOINT_PATH=\"'{out}'\""
    print(f"Train on with:\n  limba train {gin_file} --gin_file=gin/runs/finetune.gin --gin.{initial} …")


def from_gemma(
    gemma: str | Path,
    out: str | Path,
    *,
    ignore_config_keys: tuple[str, ...] = (),
    verify: bool = True,
    overwrite: bool = False,
) -> Path:
    """Writes a run's directory with the adapted model, and returns the checkpoint in it.

    Args:
      gemma: a folder of transformers', or a name on the hub.
      ignore_config_keys, verify, overwrite: as of `from_hf`.

    Raises:
      FileNotFoundError: if there is no such folder, or no vocabulary.
      ValueError: if it is no Gemma 2 or 3, is damaged, or has what T5Gemma has not.
    """
    path = from_hf.find(str(gemma))
    return from_hf.write(adapted(path, ignore_config_keys), local_path(out), verify=verify, overwrite=overwrite)


def adapted(path: Path, ignored: tuple[str, ...] = ()) -> T5Model:
    """The encoder-decoder of a Gemma's folder. See `from_gemma`."""
    file = path / "config.json"
    given = untrusted_json.read_object(file)
    family = FAMILIES.get(str(type_ := given.get("model_type")))
    if family is None:
        why = f": {_REMEDY[type_]}" if isinstance(type_, str) and type_ in _REMEDY else ""
        raise ValueError(f"{file}: model_type is {shown(type_)}{why}; from-gemma takes {' and '.join(FAMILIES)}.")
    if given.get("tie_word_embeddings") is False:
        raise ValueError(
            f"{file}: tie_word_embeddings is False; from-gemma takes a Gemma whose output is its embedding, as in "
            "those of the hub. Name another folder."
        )
    keys.check(file, given, family.stack_keys, ignored)
    stack = {"hidden_size": family.stack_defaults["hidden_size"]} | given
    hints = ModelHints(ignore_config_keys=ignored)
    nested = {"model_type": family.model_type, **family.own_stacks(stack, stack)}
    content = family.with_t5_keys(file, nested, ignored)
    vocabulary, content = t5_vocabularies.of_config(file, content, path, hints)
    config = t5_config.network_config(file, content)
    pad_id = content["pad_token_id"]
    # Where all names begin with it, the reader has taken it off.
    saved = {name.removeprefix("model."): tensor for name, tensor in weight_files.open_tensors(path).items()}
    rows = [row for row in family.table(config, heads.OF_T5, pad_id) if row.parts]
    wanted = {_in_gemma(row.name): row.shape for row in rows}
    # The output is the embedding, which some files have twice.
    found = {name: tensor.shape for name, tensor in saved.items() if name != _OUTPUT}
    table.verify(str(path), found, wanted)
    return T5Model(
        path=path,
        format="Hugging Face",
        family=family,
        config=config,
        head=heads.OF_T5,
        tensors={name: t for row in rows for name, t in row.limbas(saved[_in_gemma(row.name)]).items()},
        vocabulary=vocabulary,
        step=0,
        tokenizer_settings=tokenizer_settings.beside(path, None),
        ignored_config_keys=ignored,
    )


def _in_gemma(name: str) -> str:
    """The name of the tensor of Gemma that a tensor of T5Gemma begins as."""
    name = re.sub(r"^model\.(encoder|decoder)\.", "", name).replace("cross_attn", "self_attn")
    name = name.replace("pre_self_attn_layernorm", "input_layernorm")
    return name.replace("post_self_attn_layernorm", "post_attention_layernorm")
