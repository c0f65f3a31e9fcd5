"""Every family of T5s and encoders beside transformers' own class: outputs both ways, and twenty steps of training.

    LIMBA_HF5_PYTHON=.venv-hf5/bin/python python -m benchmarks.families_beside_transformers

Of each family transformers makes two models of sizes that --seed draws, with random numbers. `from-hf` and `to-hf`
convert each; then transformers and Limba compute a batch, and train on the same 20 with AdamW, in float32 and without
dropout. The line of a family has the largest differences of outputs, of the folder and of the export, and of losses.
The exit code is 1 if outputs differ by more than 1e-5, losses by more than 1e-4, or a parameter of the export at all
from that of the folder. Classes that version 4 of transformers does not have run in LIMBA_HF5_PYTHON.
"""

import argparse
import contextlib
import dataclasses
import io
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import traverse_util

from benchmarks import families_in_transformers
from convert.families import heads, networks
from convert.from_hf import from_hf
from convert.model_files import any_format
from convert.to_hf import to_hf
from limba import models
from tasks.pretraining import masked_text
from tests.addons.bart import bart_folder
from tests.addons.experts import switch_folder
from tests.addons.t5gemma import hub_gemmas

STEPS, ROWS, LENGTH, MASKED, TARGETS, RATE = 20, 4, 12, 3, 7, 1e-3
MOST_OUTPUTS, MOST_LOSSES = 1e-5, 1e-4
_SPECIAL_TOKENS, _NUM_WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"), 54
_MASK_ID = 4

# ------------------------------------------------------- families ---------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Encoder:
    """A family of encoders.

    Attributes:
      class_name: of transformers.
      settings: of its configuration, beside the usual sizes.
      pad_id: of padding, in most of its folders.
      names: of the sizes, where they are not the usual ones.
      is_new: whether version 5 of transformers alone has the class.
    """

    class_name: str
    settings: Mapping[str, Any]
    pad_id: int = 0
    names: Mapping[str, str] = dataclasses.field(default_factory=dict)
    is_new: bool = False


_POSITIONS = {"max_position_embeddings": 20, "layer_norm_eps": 0.01}
_BEHIND_PADDING = {"max_position_embeddings": 22, "layer_norm_eps": 0.01}
_DISTIL = {"hidden_size": "dim", "num_attention_heads": "n_heads", "num_hidden_layers": "n_layers"}
_MODERN = {"local_attention": 8, "norm_eps": 0.01, "cls_token_id": 2, "sep_token_id": 3}
_MODERN |= {"bos_token_id": 2, "eos_token_id": 3}
_DEBERTA = {"position_buckets": 8, "max_relative_positions": -1, "relative_attention": True, "share_att_key": True}
_DEBERTA |= {"norm_rel_ebd": "layer_norm", "position_biased_input": False, "pos_att_type": "p2c|c2p"}
_EURO = {"rope_theta": 250_000.0, "bos_token_id": 2, "eos_token_id": 3, "mask_token_id": _MASK_ID}
ENCODERS = {
    "distilbert": Encoder(
        "DistilBertForMaskedLM",
        {"max_position_embeddings": 20},
        names=_DISTIL | {"intermediate_size": "hidden_dim"},
    ),
    "eurobert": Encoder("EuroBertForMaskedLM", _EURO, 5, is_new=True),
    "nomic_bert": Encoder("NomicBertForMaskedLM", {}, is_new=True),
    "mmbert": Encoder(
        "ModernBertForMaskedLM", _MODERN | {"global_rope_theta": 160_000.0, "local_rope_theta": 160_000.0}
    ),
    "electra generator": Encoder("ElectraForMaskedLM", _POSITIONS | {"embedding_size": 10}),
    "electra detector": Encoder("ElectraForPreTraining", _POSITIONS | {"embedding_size": 10}),
    "deberta_v3": Encoder("DebertaV2ForMaskedLM", _POSITIONS | _DEBERTA),
    "bert": Encoder("BertForMaskedLM", _POSITIONS),
    "roberta": Encoder("RobertaForMaskedLM", _BEHIND_PADDING | {"type_vocab_size": 1}, 1),
    "xlm_roberta": Encoder("XLMRobertaForMaskedLM", _BEHIND_PADDING | {"type_vocab_size": 1}, 1),
    "camembert": Encoder("CamembertForMaskedLM", _BEHIND_PADDING | {"type_vocab_size": 1}, 1),
    "roberta_prelayernorm": Encoder("RobertaPreLayerNormForMaskedLM", _BEHIND_PADDING, 1),
    "mpnet": Encoder("MPNetForMaskedLM", _BEHIND_PADDING, 1),
    "roformer": Encoder("RoFormerForMaskedLM", _POSITIONS | {"embedding_size": 10}),
    "modernbert": Encoder("ModernBertForMaskedLM", _MODERN, 5),
}
T5S = (
    *("madlad", "codet5", "codet5p", "pile_t5", "prott5", "prostt5", "flan", "aya"),
    *("long_t5_local", "long_t5_tglobal", "t5_encoder", "umt5_encoder"),
)
GEMMAS = hub_gemmas.CLASSES
BARTS = bart_folder.CLASSES
SWITCH = "switch"


def encoder_settings(family: Encoder, seed: int) -> dict[str, Any]:
    """The configuration of a model, of sizes that the seed draws."""
    rng = random.Random(seed)
    num_heads = rng.choice((2, 4, 6))
    sizes = {
        "vocab_size": rng.choice((60, 64, 83)),
        "hidden_size": num_heads * rng.choice((4, 6, 10)),
        "num_attention_heads": num_heads,
        "intermediate_size": rng.choice((18, 28, 44)),
        "num_hidden_layers": rng.choice((1, 2, 4)),
    }
    if family.class_name.startswith("EuroBert"):
        sizes["num_key_value_heads"] = num_heads // rng.choice((1, 2))
    return (
        {family.names.get(key, key): x for key, x in sizes.items()} | family.settings | {"pad_token_id": family.pad_id}
    )


# ------------------------------------------------------- one model --------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Case:
    """A family in one size; its folders are `hf`, `run` and `export` in `home`."""

    family: str
    seed: int
    home: Path

    @property
    def folder(self) -> Path:
        return self.home / "hf"

    @property
    def is_new(self) -> bool:
        """Whether version 5 of transformers alone has the class."""
        if self.family in GEMMAS:
            return GEMMAS[self.family][1]
        return self.family in ENCODERS and ENCODERS[self.family].is_new


def new_models(cases: Sequence[Case]) -> list[list[Any]]:
    """What transformers is to make, as `families_in_transformers` takes it; T5s are made at once."""
    from tests.convert import hub_t5s

    wanted = []
    for case in cases:
        if case.family in T5S:
            hub_t5s.write(case.family, case.folder, case.seed)
        elif case.family in BARTS:
            bart_folder.write(case.family, case.folder, case.seed)
        elif case.family in GEMMAS:
            settings = hub_gemmas.settings(case.family, case.seed)
            wanted.append([GEMMAS[case.family][0], settings, str(case.folder)])
        elif case.family == SWITCH:
            # One sparse layer a stack, as transformers balances all of them together; and nothing is dropped, which
            # version 4 counts for expert 0.
            one = switch_folder.settings(case.seed)["num_layers"]
            keys = {"num_sparse_encoder_layers": 1, "encoder_sparse_step": one, "expert_capacity": LENGTH}
            switch_folder.write(case.folder, case.seed, **keys)
        else:
            family = ENCODERS[case.family]
            wanted.append([family.class_name, encoder_settings(family, case.seed), str(case.folder)])
    return wanted


def convert(case: Case) -> None:
    """There and back, and the batches in the ids of the folder."""
    if case.family in GEMMAS:
        hub_gemmas.write_tokenizer(case.folder)
    if case.family in ENCODERS:
        _write_words(case.folder, ENCODERS[case.family].pad_id)
    checkpoint = from_hf(case.folder, case.home / "run", verify=False)
    to_hf(case.home / "run", case.home / "export", formats=("safetensors",), verify=False)
    opened = any_format.open_model(checkpoint)
    np.savez(case.folder / "batches.npz", **_batches(case, opened))


def _write_words(folder: Path, pad_id: int) -> None:
    """A tokenizer of words; the token with the id 0 and padding are exchanged."""
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

    special = [*_SPECIAL_TOKENS, "[X]"]
    special[0], special[pad_id] = special[pad_id], special[0]
    words = {word: i for i, word in enumerate([*special, *(f"w{i}" for i in range(_NUM_WORDS))])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in special])
    tokenizer.save(str(folder / "tokenizer.json"))


def _batches(case: Case, opened: Any) -> dict[str, np.ndarray]:
    """`[STEPS, ROWS, …]` in the ids of the folder: rows with padding, and labels, which are -100 where none counts."""
    rng = np.random.default_rng(case.seed)
    order = _exchanged(opened)
    rows = rng.integers(6, _num_ids(case, opened), (STEPS, ROWS, LENGTH))
    # Padding sees nothing in Limba, and tokens in transformers: losses of routers, which count it, differ.
    if has_padding := case.family != SWITCH:
        rows[:, 1, LENGTH - 4 :], rows[:, 2, LENGTH - 1 :] = 0, 0
    batches = {"attention_mask": (rows != 0).astype(np.int64)}
    if case.family == "electra detector":
        batches["labels"] = (rng.random(rows.shape) < 0.2).astype(np.int64)
    elif case.family in ENCODERS:
        places = np.tile(np.arange(1, LENGTH - 4), (STEPS, ROWS, 1))
        places = np.sort(rng.permuted(places, axis=-1)[..., :MASKED], axis=-1)
        labels = np.full_like(rows, -100)
        np.put_along_axis(labels, places, order[np.take_along_axis(rows, places, -1)], -1)
        np.put_along_axis(rows, places, _MASK_ID, -1)
        batches["labels"] = labels
    elif case.family.endswith("_encoder"):
        batches["states"] = rng.normal(size=(*rows.shape, opened.config.emb_dim)).astype(np.float32)
    else:
        labels = order[rng.integers(6, _num_ids(case, opened), (STEPS, ROWS, TARGETS))]
        if has_padding:
            labels[:, 0, TARGETS - 2 :] = -100
        batches["labels"] = labels
        if case.family == "mbart":  # Its class begins with the last label, the language's token; these have none.
            start = np.full_like(labels[..., :1], opened.config.decoder_start_token_id)
            before = np.where(labels == -100, opened.tokenizer_settings.pad_id, labels)[..., :-1]
            batches["decoder_input_ids"] = np.concatenate([start, before], -1)
    return batches | {"input_ids": order[rows]}


def _num_ids(case: Case, opened: Any) -> int:
    """How many ids texts have; rows of the embedding behind them have no tokens."""
    if case.family in ENCODERS:
        return len(_SPECIAL_TOKENS) + 1 + _NUM_WORDS
    return masked_text.open_vocabulary(opened.vocabulary).vocab_size


def _exchanged(opened: Any) -> np.ndarray:
    """The folder's ids by Limba's, and Limba's by those: padding has the id 0 in Limba."""
    order = np.arange(opened.config.vocab_size)
    order[[0, opened.tokenizer_settings.pad_id]] = opened.tokenizer_settings.pad_id, 0
    return order


# ------------------------------------------------------- comparison -------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Found:
    """The largest differences of one model, how many parameters of the export are not the folder's, and losses."""

    outputs: float
    losses: float
    wrong_tensors: int
    first_loss: float
    last_loss: float

    @property
    def holds(self) -> bool:
        return self.outputs <= MOST_OUTPUTS and self.losses <= MOST_LOSSES and not self.wrong_tensors


def compare(case: Case) -> Found:
    """Limba's numbers beside what `families_in_transformers` found."""
    opened = any_format.open_model(case.home / "run")
    with np.load(case.folder / "batches.npz") as content:
        batches = dict(content)
    with np.load(case.folder / "found.npz") as content:
        theirs = dict(content)
    outputs, losses = in_limba(opened, batches)
    real = batches["attention_mask"][0] > 0
    if case.family not in ENCODERS and "labels" in batches:
        real = batches["labels"][0] != -100
    if outputs.shape[-1] == len(order := _exchanged(opened)):
        outputs = outputs[..., order]
    distances = [np.abs(outputs - theirs[key]) for key in ("outputs", "export_outputs")]
    return Found(
        max(float(distance[real].max()) for distance in distances),
        float(np.abs(losses - theirs["losses"]).max()),
        _wrong_tensors(case),
        losses[0],
        losses[-1],
    )


def _wrong_tensors(case: Case) -> int:
    """Of the parameters; rows that no token reaches, such as RoBERTa's before its first position, are none."""
    before, after = (any_format.open_model(path).tensors for path in (case.folder, case.home / "export"))
    same = [
        name
        for name in before.keys() & after.keys()
        if np.array_equal(np.asarray(before[name], np.float32), np.asarray(after[name], np.float32))
    ]
    return len(before.keys() | after.keys()) - len(same)


# What computes the outputs of a step's batch, its mean loss, and the batches `[STEPS, …]`.
Side = tuple[Callable[[Any, Any], jax.Array], Callable[[Any, Any], jax.Array], dict[str, np.ndarray]]


def in_limba(opened: Any, batches: Mapping[str, np.ndarray]) -> tuple[np.ndarray, list[float]]:
    """Outputs of the first batch, and the losses of the steps."""
    module = opened.head.network(networks.plain(opened.config))
    params = traverse_util.unflatten_dict({n: jnp.asarray(np.asarray(x)) for n, x in opened.tensors.items()}, sep="/")
    order = _exchanged(opened)
    tokens = {"encoder_input_tokens": order[batches["input_ids"]].astype(np.int32)}
    kind = _encoder_alone if "states" in batches else _SIDES[opened.head.kind]
    apply, loss_of, steps = kind(module, tokens, batches, order)
    first = np.asarray(jax.jit(apply)(params, {key: x[0] for key, x in steps.items()}))
    optimizer = optax.adamw(
        RATE, eps=families_in_transformers.EPSILON, weight_decay=families_in_transformers.WEIGHT_DECAY
    )

    @jax.jit
    def train(params):
        def one(carry, step):
            params, state = carry
            loss, gradients = jax.value_and_grad(loss_of)(params, step)
            updates, state = optimizer.update(gradients, state, params)
            return (optax.apply_updates(params, updates), state), loss

        return jax.lax.scan(one, (params, optimizer.init(params)), steps)[1]

    return first, [*map(float, train(params))]


def _t5(module: Any, tokens: dict[str, Any], batches: Mapping[str, np.ndarray], order: np.ndarray) -> Side:
    targets = np.where(batches["labels"] == -100, 0, order[batches["labels"]]).astype(np.int32)
    steps = tokens | {
        "decoder_target_tokens": targets,
        "decoder_input_tokens": np.pad(targets[..., :-1], ((0, 0), (0, 0), (1, 0))),
        "decoder_loss_weights": (targets != 0).astype(np.int32),
    }
    model = models.EncoderDecoderModel(
        module, _VOCABULARY, _VOCABULARY, None, z_loss=0.0, loss_normalizing_factor=_MEAN
    )
    return model._compute_logits, lambda params, step: model.loss_fn(params, step, None)[0], steps


def _encoder_alone(module: Any, tokens: dict[str, Any], batches: Mapping[str, np.ndarray], order: np.ndarray) -> Side:
    def apply(params, step):
        return module.apply({"params": params}, step["encoder_input_tokens"], enable_dropout=False, method="encode")

    def loss_of(params, step):
        distances = jnp.square(apply(params, step) - step["states"]) * step["real"][..., None]
        return jnp.sum(distances) / (jnp.sum(step["real"]) * distances.shape[-1])

    return apply, loss_of, tokens | {"states": batches["states"], "real": batches["attention_mask"]}


def _masked_lm(module: Any, tokens: dict[str, Any], batches: Mapping[str, np.ndarray], order: np.ndarray) -> Side:
    places = np.argwhere(batches["labels"] != -100)[:, -1].reshape(STEPS, ROWS, MASKED)
    targets = order[np.take_along_axis(batches["labels"], places, -1)].astype(np.int32)
    steps = tokens | {"masked_lm_positions": places.astype(np.int32), "decoder_target_tokens": targets}
    steps["decoder_loss_weights"] = np.ones_like(targets)
    model = models.EncoderOnlyModel(module, _VOCABULARY, None, loss_normalizing_factor=_MEAN)

    def apply(params, step):
        return module.apply({"params": params}, step["encoder_input_tokens"], enable_dropout=False)

    return apply, lambda params, step: model.loss_fn(params, step, None)[0], steps


def _detector(module: Any, tokens: dict[str, Any], batches: Mapping[str, np.ndarray], order: np.ndarray) -> Side:
    """What was replaced are the tokens that differ from the originals, which are no padding."""
    ids, real = tokens["encoder_input_tokens"], batches["attention_mask"] > 0
    others = np.where(ids == _MASK_ID, _MASK_ID + 1, _MASK_ID)
    steps = tokens | {"originals": np.where(real & (batches["labels"] > 0), others, ids)}
    model = models.ElectraModel(module, _VOCABULARY, None)

    def apply(params, step):
        return module.apply({"params": params}, step["encoder_input_tokens"], enable_dropout=False)[..., 0]

    def loss_of(params, step):
        inputs = {"encoder_input_tokens": step["encoder_input_tokens"], "masked_lm_positions": None}
        return model.detection(params, inputs, step["originals"]).loss / jnp.sum(step["originals"] != 0)

    return apply, loss_of, steps


class _Vocabulary:
    """What the losses ask of one: they go by the weights of a batch."""

    pad_id, eos_id, extra_ids, vocab_size = 0, 1, 0, 2


_VOCABULARY: Any = _Vocabulary()
_MEAN: Any = "NUM_REAL_TARGET_TOKENS"
_SIDES = {heads.GENERATION: _t5, heads.MASKED_LM: _masked_lm, heads.DETECTOR: _detector}


# ------------------------------------------------------- command ----------------------------------------------------


RunScript = Callable[[str, Path], None]


def run(cases: Sequence[Case], run_script: RunScript) -> list[Found]:
    """Makes, converts and compares models.

    Args:
      run_script: runs `families_in_transformers.py` on a request, in version "4" or "5" of transformers.
    """
    make(cases, run_script)
    for version, of_version in _by_version(cases):
        _ask(version, {"compared": [str(case.folder) for case in of_version], "rate": RATE}, of_version, run_script)
    return [compare(case) for case in cases]


def make(cases: Sequence[Case], run_script: RunScript) -> None:
    """Makes models, and converts them; see `run`."""
    for version, of_version in _by_version(cases):
        if new := new_models(of_version):
            _ask(version, {"new": new}, of_version, run_script)
        for case in of_version:
            convert(case)


def _by_version(cases: Sequence[Case]) -> list[tuple[str, list[Case]]]:
    groups = ((version, [case for case in cases if case.is_new == (version == "5")]) for version in ("4", "5"))
    return [(version, group) for version, group in groups if group]


def _ask(version: str, request: dict[str, Any], cases: Sequence[Case], run_script: RunScript) -> None:
    file = cases[0].home.parent / f"request_{version}.json"
    file.write_text(json.dumps(request))
    run_script(version, file)


def run_script(version: str, request: Path) -> None:
    """In a process of its own. Raises ValueError if there is no interpreter with version 5, or the script fails."""
    python = sys.executable if version == "4" else os.environ.get("LIMBA_HF5_PYTHON", "")
    if not python:
        raise ValueError(
            "LIMBA_HF5_PYTHON is not set; EuroBERT, NomicBERT and T5Gemma 2 need transformers 5: set it to such an "
            "interpreter (tests/run.sh makes .venv-hf5/bin/python), or leave these out with --families."
        )
    # A PYTHONPATH would bring this environment's packages along.
    environment = {key: x for key, x in os.environ.items() if key != "PYTHONPATH"}
    command = [python, families_in_transformers.__file__, str(request)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise ValueError(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.families_beside_transformers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    known = [*T5S, SWITCH, *GEMMAS, *BARTS, *ENCODERS]
    parser.add_argument("--families", nargs="+", choices=known, default=known, metavar="NAME", help=", ".join(known))
    parser.add_argument("--seed", type=int, default=0, help="draws the sizes, the numbers and the batches")
    flags = parser.parse_args(argv)
    jax.config.update("jax_platforms", "cpu")
    seeds = (2 * flags.seed, 2 * flags.seed + 1)
    with tempfile.TemporaryDirectory() as home:
        cases = [
            Case(name, seed, Path(home, f"{name.replace(' ', '_')}-{seed}"))
            for name in flags.families
            for seed in seeds
        ]
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            found = run(cases, run_script)
    print("family | outputs, of two sizes | losses of 20 steps, of two sizes | loss, first to last | holds")
    for i, name in enumerate(flags.families):
        print(_line(name, found[2 * i : 2 * i + 2]))
    return 0 if all(x.holds for x in found) else 1


def _line(family: str, found: Sequence[Found]) -> str:
    wrong = sum(x.wrong_tensors for x in found)
    columns = [
        family,
        ", ".join(f"{x.outputs:.1e}" for x in found),
        ", ".join(f"{x.losses:.1e}" for x in found),
        ", ".join(f"{x.first_loss:.2f} to {x.last_loss:.2f}" for x in found),
        ("yes" if all(x.holds for x in found) else "NO")
        + (f": {wrong} parameters of the exports differ" if wrong else ""),
    ]
    return " | ".join(columns)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
