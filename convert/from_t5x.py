"""From a T5X checkpoint to one that every command of Limba takes: `run/` has its network, gin file and vocabulary.

    python -m convert from-t5x t5x_runs/base/checkpoint_1000000 runs/base --vocab spiece.model
    python -m convert to-hf runs/base exports/base

Training, evaluation and inference need no conversion: they read T5X's directories, with gin files that say the network.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import sentencepiece

import limba
from convert.t5x_checkpoint import NETWORKS, Source, open_source, write_checkpoint
from limba.checkpoint_files import write_files


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoint", help="a checkpoint of T5X, or a model_dir for its newest one")
    parser.add_argument("out", help="the run's directory to write checkpoint_<step> into")
    parser.add_argument("--vocab", metavar="FILE", required=True, help="the SentencePiece model of the run")
    parser.add_argument("--extra_ids", type=int, default=100, help="sentinels behind its pieces (100)")
    parser.add_argument("--network", choices=NETWORKS, help="whose layout the layers get (as it is)")
    parser.add_argument(
        "--mlp_activations", nargs="+", metavar="NAME", help="tensors do not tell (gated: gelu linear; else relu)"
    )
    parser.add_argument("--no-optimizer", action="store_true", help="leave the optimizer's state out")
    parser.add_argument("--overwrite", action="store_true", help="replace a checkpoint that stands there")


def run(args: argparse.Namespace) -> None:
    from_t5x(
        args.checkpoint,
        args.out,
        vocab=args.vocab,
        extra_ids=args.extra_ids,
        network=args.network,
        mlp_activations=args.mlp_activations,
        with_optimizer=not args.no_optimizer,
        overwrite=args.overwrite,
    )


def from_t5x(
    checkpoint: str | Path,
    out: str | Path,
    *,
    vocab: str | Path,
    extra_ids: int = 100,
    network: str | None = None,
    mlp_activations: Sequence[str] | None = None,
    with_optimizer: bool = True,
    overwrite: bool = False,
) -> Path:
    """Converts and returns the checkpoint written; see `convert.t5x_checkpoint`.

    Raises:
      FileNotFoundError: if there is no checkpoint or no SentencePiece model.
      ValueError: if the checkpoint is damaged, not finite, or not of an encoder and decoder; or OUT has one already.
    """
    vocab = Path(vocab).expanduser().absolute()
    if not vocab.is_file():
        raise FileNotFoundError(f"There is no SentencePiece model {str(vocab)!r}; say where it is with --vocab FILE.")
    source = open_source(checkpoint, network, with_optimizer)
    fields = network_fields(source, mlp_activations)
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(vocab)).vocab_size()
    info = {
        "limba_version": limba.__version__,
        "network": fields,
        "vocabulary": {
            "class": "SentencePieceVocabulary",
            "sentencepiece_model_file": str(vocab),
            "extra_ids": extra_ids,
            "vocab_size": pieces + extra_ids,
        },
        "converted_from": str(source.path),
    }

    def add_files(folder: Path) -> None:
        write_files(folder / "dataset", {})  # T5X's place in the data means nothing to our readers.
        files = {
            "run.json": json.dumps(info, indent=2).encode(),
            "config.gin": _model_gin(fields, vocab, extra_ids).encode(),
            "spiece.model": vocab.read_bytes(),
        }
        write_files(folder / "run", files)

    path = write_checkpoint(source, out, "orbax", "float32", overwrite, add_files)
    print(f"{source.path} is converted to {path}: {fields}.")
    return path


def _model_gin(fields: Mapping[str, Any], vocab: Path, extra_ids: int) -> str:
    """The gin file of the model: what `limba infer --run_dir` reads."""
    bindings = "".join(f"  {name} = {value!r}\n" for name, value in fields.items())
    return (
        "from __gin__ import dynamic_registration\n\nimport seqio\nfrom limba import network\n\n"
        "include 'gin/models/t5_1_1/base.gin'\n\nDROPOUT_RATE = 0.0\n"
        f"VOCABULARY_FILE = {str(vocab)!r}\nseqio.SentencePieceVocabulary.extra_ids = {extra_ids}\n"
        f"network.T5Config:\n{bindings}"
    )


def network_fields(source: Source, mlp_activations: Sequence[str] | None = None) -> dict[str, Any]:
    """Fields of `limba.network.T5Config`, as the shapes of the tensors tell them.

    Raises:
      ValueError: if they are not those of a T5.
    """
    shapes = {name.removeprefix("target/"): t.shape for name, t in source.tensors.items() if name.startswith("target/")}
    scanned = "encoder/encoder/attention/query/kernel" in shapes
    layer = {room: f"{room}/{room if scanned else 'layers_0'}" for room in ("encoder", "decoder")}
    try:
        vocab_size, emb_dim = shapes["token_embedder/embedding"]
        bias = "encoder/relpos_bias/rel_embedding"
        bias_per_layer = bias not in shapes
        num_heads = shapes[f"{layer['encoder']}/relpos_bias/rel_embedding" if bias_per_layer else bias][0]
        query = shapes[f"{layer['encoder']}/attention/query/kernel"]
        wo = shapes[f"{layer['encoder']}/mlp/wo/kernel"]
        counts = {room: _num_layers(shapes, room, scanned) for room in ("encoder", "decoder")}
    except KeyError as error:
        raise ValueError(f"{source.path} is not of a T5 with encoder and decoder: it has no tensor {error}.") from error
    joined = len(query) - scanned == 2
    gated = f"{layer['encoder']}/mlp/wi_0/kernel" in shapes
    if mlp_activations is None:
        mlp_activations = ("gelu", "linear") if gated else ("relu",)
    if len(mlp_activations) != 1 + gated:
        raise ValueError(f"--mlp_activations {list(mlp_activations)}: the network has {1 + gated}.")
    return {
        "vocab_size": vocab_size,
        "emb_dim": emb_dim,
        "num_heads": num_heads,
        "head_dim": query[-1] // num_heads if joined else query[-1],
        "num_encoder_layers": counts["encoder"],
        "num_decoder_layers": counts["decoder"],
        "mlp_dim": wo[0],
        "mlp_activations": list(mlp_activations),
        "logits_via_embedding": "decoder/logits_dense/kernel" not in shapes,
        "scan_layers": scanned,
        "relative_bias_per_layer": bias_per_layer,
        "joined_attention_kernels": joined,
    }


def _num_layers(shapes: dict[str, tuple[int, ...]], room: str, scanned: bool) -> int:
    if scanned:
        return shapes[f"{room}/{room}/mlp/wo/kernel"][1]
    return len({name.split("/")[1] for name in shapes if name.startswith(f"{room}/layers_")})
