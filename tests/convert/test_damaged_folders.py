"""`convert check` against damage of every kind, in every format that Limba writes: a right folder, one file changed.

Each is found with the file's name, or the file is named as not compared; the exit code is 1 either way.
"""

import dataclasses
import functools
import json
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flax import serialization, traverse_util
from sentencepiece import sentencepiece_model_pb2

from convert import __main__
from convert.compare import encoder_outputs, folder_tokens
from convert.model_files import any_format
from convert.tensors import safetensors_files
from convert.to_hf import to_hf
from convert.to_t5x import to_t5x
from limba.addons.engines.to_ct2 import to_ct2
from limba.addons.engines.to_gguf import to_gguf
from limba.addons.engines.to_onnx import to_onnx
from limba.addons.transformers_check import transformers_process
from limba.addons.vectors.to_sentence_transformers import to_sentence_transformers
from limba.checkpoint_files.saved_tensors import from_array
from limba.files import output_folder
from limba.files.output_folder import CARD, REPORT
from tests.convert.conftest import FAMILIES
from tests.convert.encoders.conftest import SPECIAL_TOKENS, VARIANTS, new_encoder, tokenizer_file  # noqa: F401

torch = pytest.importorskip("torch")
Tensors = dict[str, np.ndarray]
Damage = Callable[[Path], object]
NOISE = np.random.default_rng(5).bytes(4000)
SAFETENSORS, TORCH, FLAX = "model.safetensors", "pytorch_model.bin", "flax_model.msgpack"
WEIGHTS = (".safetensors", ".bin", ".msgpack", ".index.json", ".onnx")


# ------------------------------------------------------- the folders -------------------------------------------------


def _as_torch(folder: Path, out: Path) -> Path:
    """The export with the weights in a pickle."""
    shutil.copytree(folder, out)
    _write(out, _tensors(out), TORCH)
    (out / SAFETENSORS).unlink()
    _seal(out)
    return out


def _seal(folder: Path) -> None:
    """A report with the files of the folder and their hashes."""
    names = [str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()]
    _change_json(folder / REPORT, lambda report: report.update(output_folder.sealed(folder, report, names)))


@pytest.fixture(scope="module")
def t5(new_run, spiece_of_few_rules, tmp_path_factory) -> Path:
    sizes = {"num_heads": 4, "head_dim": 8, "num_encoder_layers": 1, "num_decoder_layers": 1}
    folder = tmp_path_factory.mktemp("t5") / "run"
    return new_run(folder, vocab_file=spiece_of_few_rules, **(FAMILIES["t5"] | sizes))


@pytest.fixture(scope="module")
def bert(new_encoder, tmp_path_factory) -> Path:  # noqa: F811
    return new_encoder(tmp_path_factory.mktemp("bert") / "run", **(VARIANTS["bert"] | {"num_layers": 1}))


WRITERS: dict[str, tuple[str, Callable[[Path, Path], Any]]] = {
    "safetensors": ("t5", lambda run, out: to_hf(run, out, formats=["safetensors"], verify=False)),
    "shards": ("t5", lambda run, out: to_hf(run, out, formats=["safetensors"], verify=False, shard_bytes=30_000)),
    "flax": ("t5", lambda run, out: to_hf(run, out, formats=["flax"], verify=False)),
    "both": ("t5", lambda run, out: to_hf(run, out, verify=False)),
    "torch": ("t5", lambda run, out: _as_torch(_written("safetensors", run, out.with_name("of_torch")), out)),
    "bert": ("bert", lambda run, out: to_hf(run, out, verify=False)),
    "sentence-transformers": ("bert", lambda run, out: to_sentence_transformers(run, out, verify=False)),
    "ctranslate2": ("t5", lambda run, out: to_ct2(run, out, verify=False)),
    "ctranslate2 of bert": ("bert", lambda run, out: to_ct2(run, out, quantization="int8", verify=False)),
    "gguf": ("t5", lambda run, out: to_gguf(run, out, verify=False)),
    "onnx": ("bert", lambda run, out: to_onnx(run, out, verify=False)),
}


@pytest.fixture(scope="module")
def written(request, tmp_path_factory) -> Callable[[str], tuple[Path, Path]]:
    """The run and the right folder of a kind, which is written when it is first asked for; nothing changes them."""
    folders = tmp_path_factory.mktemp("right")

    @functools.cache
    def of(kind: str) -> tuple[Path, Path]:
        if kind in NEEDS:
            pytest.importorskip(NEEDS[kind])
        model, write = WRITERS[kind]
        run, folder = request.getfixturevalue(model), folders / kind
        write(run, folder)
        return run, folder

    return of


NEEDS = {"ctranslate2": "ctranslate2", "ctranslate2 of bert": "ctranslate2", "gguf": "gguf", "onnx": "onnxruntime"}


def _written(kind: str, run: Path, out: Path) -> Path:
    WRITERS[kind][1](run, out)
    return out


# ------------------------------------------------------- the damage --------------------------------------------------


def _change_json(file: Path, change: Callable[[Any], object]) -> None:
    content = json.loads(file.read_text("utf-8"))
    change(content)
    file.write_text(json.dumps(content), "utf-8")


def _set(name: str, **values: Any) -> Damage:
    return lambda folder: _change_json(folder / name, lambda content: content.update(values))


def _tensors(folder: Path) -> Tensors:
    if (folder / SAFETENSORS).is_file():
        return {name: np.asarray(t) for name, t in safetensors_files.open_tensors([folder / SAFETENSORS]).items()}
    if (folder / TORCH).is_file():
        return {name: t.numpy() for name, t in torch.load(folder / TORCH).items()}
    return traverse_util.flatten_dict(serialization.msgpack_restore((folder / FLAX).read_bytes()), sep="/")


def _write(folder: Path, tensors: Tensors, name: str) -> None:
    tensors = {key: np.ascontiguousarray(x) for key, x in tensors.items()}
    (folder / name).unlink(missing_ok=True)
    if name == SAFETENSORS:
        safetensors_files.write(folder, {key: from_array(x) for key, x in tensors.items()}, lambda _: None, 10**9)
    elif name == TORCH:
        torch.save({key: torch.tensor(x) for key, x in tensors.items()}, folder / TORCH)
    else:
        tree = traverse_util.unflatten_dict(tensors, sep="/")
        (folder / FLAX).write_bytes(serialization.msgpack_serialize(tree))


def _of_weights(change: Callable[[Tensors], Tensors]) -> Damage:
    def run(folder: Path) -> None:
        name = next(name for name in (SAFETENSORS, TORCH, FLAX) if (folder / name).is_file())
        _write(folder, change(_tensors(folder)), name)

    return run


def _matrices(tensors: Tensors) -> list[str]:
    """The names of square ones, of one shape."""
    found = [name for name, x in tensors.items() if x.ndim == 2 and x.shape[0] == x.shape[1]]
    return [name for name in found if tensors[name].shape == tensors[found[0]].shape]


def _with_nan(tensors: Tensors) -> Tensors:
    name = _matrices(tensors)[0]
    changed = tensors[name].copy()
    changed[1, 2] = np.nan
    return tensors | {name: changed}


def _exchanged(tensors: Tensors) -> Tensors:
    first, second = _matrices(tensors)[:2]
    return tensors | {first: tensors[second], second: tensors[first]}


def _transposed(tensors: Tensors) -> Tensors:
    name = _matrices(tensors)[0]
    return tensors | {name: tensors[name].T}


def _without_one(tensors: Tensors) -> Tensors:
    return {name: x for name, x in tensors.items() if name != _matrices(tensors)[0]}


def _other_tokens(folder: Path) -> None:
    """Two tokens exchange their ids, both not in the text of the check."""
    (folder / "spiece.model").unlink(missing_ok=True)

    def exchange(content: Any) -> None:
        vocab = content["model"]["vocab"]
        if isinstance(vocab, list):
            vocab[-130], vocab[-131] = vocab[-131], vocab[-130]
        else:
            vocab["w50"], vocab["w51"] = vocab["w51"], vocab["w50"]

    _change_json(folder / "tokenizer.json", exchange)


def _stale_pickle(folder: Path) -> None:
    _write(folder, {name: x * np.float32(1.01) for name, x in _tensors(folder).items()}, TORCH)


def _stale_shards(folder: Path) -> None:
    tensors = {name: from_array(x * np.float32(1.01)) for name, x in _tensors(folder).items()}
    other = folder / "other"
    other.mkdir()
    safetensors_files.write(other, tensors, lambda _: None, 30_000)
    for file in other.iterdir():
        file.rename(folder / file.name)
    other.rmdir()


def _to_other_file(place: str) -> Damage:
    def change(content: Any) -> None:
        first = next(iter(content["weight_map"]))
        content["weight_map"][first] = place

    return lambda folder: _change_json(folder / f"{SAFETENSORS}.index.json", change)


def _other_spiece(folder: Path) -> None:
    """With other scores, beside the right tokenizer.json."""
    model = sentencepiece_model_pb2.ModelProto.FromString((folder / "spiece.model").read_bytes())
    for piece in model.pieces:
        piece.score *= len(piece.piece) > 1 and piece.type == 1
    (folder / "spiece.model").write_bytes(model.SerializeToString())


OF_WEIGHTS: dict[str, Damage] = {
    "a NaN": _of_weights(_with_nan),
    "two tensors exchanged": _of_weights(_exchanged),
    "one transposed": _of_weights(_transposed),
    "one missing": _of_weights(_without_one),
    "one more": _of_weights(lambda tensors: tensors | {"more.weight": np.zeros((3, 3), np.float32)}),
    "float16": _of_weights(lambda tensors: {name: x.astype(np.float16) for name, x in tensors.items()}),
}
_ROLES = ("tokenizer_config.json", "special_tokens_map.json")
OF_FILES: dict[str, Damage] = {
    "tokens exchanged": _other_tokens,
    **{f"a new {name}": lambda folder, name=name: _add(folder / name) for name in ("encoder.bin", "tf_model.h5")},
    **{f"{role} of {file}": _set(file, **{role: "w7"}) for file in _ROLES for role in ("unk_token", "pad_token")},
    "lengths": _set("tokenizer_config.json", model_max_length=4),
    "a folder of modules": lambda folder: _add(folder / "onnx/model.onnx"),
    "code": lambda folder: _add(folder / "modeling_mine.py"),
}
OF_T5: dict[str, Damage] = {
    "epsilon": _set("config.json", layer_norm_epsilon=1e-3),
    "heads": _set("config.json", num_heads=2, d_kv=16),
    "buckets": _set("config.json", relative_attention_num_buckets=16),
    "distance": _set("config.json", relative_attention_max_distance=64),
    "activation": _set("config.json", feed_forward_proj="gelu_new"),
    "rate": _set("config.json", dropout_rate=0.5),
    "start": _set("config.json", decoder_start_token_id=2),
    "penalty in config.json": _set("config.json", repetition_penalty=9.0),
    **{
        f"{name} of generate": _set("generation_config.json", **{name: value})
        for name, value in {
            "suppress_tokens": [5],
            "eos_token_id": 4,
            "decoder_start_token_id": 3,
            "max_length": 3,
        }.items()
    },
    "another spiece.model": _other_spiece,
    "no sentinels": _set("tokenizer_config.json", extra_ids=3),
}
_WORDS = [f"w{i}" for i in (6, 5, *range(7, 60))]
OF_BERT: dict[str, Damage] = {
    "epsilon": _set("config.json", layer_norm_eps=1e-3),
    "heads": _set("config.json", num_attention_heads=6),
    "activation": _set("config.json", hidden_act="gelu_new"),
    "rate": _set("config.json", hidden_dropout_prob=0.5),
    "positions": _set("config.json", max_position_embeddings=20),
    "another vocab.txt": lambda folder: (folder / "vocab.txt").write_text("\n".join([*SPECIAL_TOKENS, *_WORDS])),
}
OF_MODULES: dict[str, Damage] = {
    "another pooling": _set("1_Pooling/config.json", pooling_mode_cls_token=True, pooling_mode_mean_tokens=False),
    "another length": _set("sentence_bert_config.json", max_seq_length=4),
}


def _add(file: Path) -> None:
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(NOISE)


def _lose_a_hash(report: Any) -> None:
    del report["sha256"][next(name for name in report["files"] if name not in (CARD, REPORT))]


def _of_each_file(folder: Path) -> Iterator[tuple[str, Damage]]:
    """Every file lost, cut short, and of noise; further shards aside. The card may be edited."""
    names = [str(file.relative_to(folder)) for file in sorted(folder.rglob("*")) if file.is_file()]
    for name in names:
        if "-of-" in name and "00001" not in name:
            continue
        yield f"noise in {name}", lambda folder, name=name: (folder / name).write_bytes(NOISE)
        if name == REPORT:
            yield "another step in the report", _set(REPORT, step=11)
            yield "a hash lost", lambda folder: _change_json(folder / REPORT, _lose_a_hash)
            continue
        yield f"no {name}", lambda folder, name=name: (folder / name).unlink()
        if name != CARD:
            size = (folder / name).stat().st_size // 2
            yield (
                f"half of {name}",
                lambda folder, name=name, size=size: (folder / name).write_bytes((folder / name).read_bytes()[:size]),
            )


def _damages(kind: str, folder: Path) -> dict[str, Damage]:
    found = dict(_of_each_file(folder))
    if kind in ("flax", "both", "torch", "shards", "onnx"):  # The other files are as elsewhere.
        found = {name: damage for name, damage in found.items() if name.endswith(WEIGHTS)}
    is_for_engine = kind in NEEDS
    if not is_for_engine and kind != "shards":
        found |= OF_WEIGHTS
    if kind in ("safetensors", "bert"):
        found |= {"a stale pickle": _stale_pickle, "stale shards": _stale_shards}
    if kind == "shards":
        places = ("../safetensors/model.safetensors", "/etc/passwd", "model-\n.safetensors", "missing.safetensors")
        found |= {f"an index that names {place!r}": _to_other_file(place) for place in places}
    if kind == "gguf":
        return found | {"more": lambda folder: _add(folder / "other.gguf")}
    if is_for_engine:
        more = ("tokens exchanged", "lengths", *(["a new encoder.bin"] if kind != "onnx" else []))
        return found | {key: OF_FILES[key] for key in more}
    others = {
        "safetensors": OF_FILES | OF_T5,
        "bert": OF_FILES | OF_BERT,
        "sentence-transformers": OF_BERT | OF_MODULES,
    }
    return found | others.get(kind, {})  # The other formats have the same files beside their weights.


def _other_flag(folder: Path) -> None:
    """llama.cpp would not end inputs."""
    from gguf import GGUFReader

    reader = GGUFReader(str(folder / "model.gguf"), "r+")
    field = reader.fields["tokenizer.ggml.add_eos_token"]
    field.parts[field.data[0]][0] = 0
    reader.data.flush()


def _lists_in_lists(folder: Path) -> None:
    """The package gguf calls itself for each."""
    head = struct.pack("<4sIQQQ3sI", b"GGUF", 3, 0, 1, 3, b"x.y", 9)
    (folder / "model.gguf").write_bytes(head + struct.pack("<IQ", 9, 1) * 2000 + struct.pack("<IQ", 4, 0) + bytes(64))


def _more_tensors(folder: Path) -> None:
    with (folder / "model.gguf").open("ab") as file:
        file.write(bytes(32))


def _other_position(folder: Path) -> None:
    """The last one, which no row of the check has."""
    import onnx

    model = onnx.load(folder / "model.onnx")
    tensor = next(x for x in model.graph.initializer if x.name.endswith("position_embeddings.weight"))
    values = onnx.numpy_helper.to_array(tensor).copy()
    values[-1] += 1
    tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))
    onnx.save(model, folder / "model.onnx")


def _strip_spaces(content: Any) -> None:
    content["added_tokens_decoder"]["1"]["lstrip"] = True


# By somebody who writes the report's hashes, too; engines and the rows of a check do not see these.
FORGED: dict[str, dict[str, Damage]] = {
    "safetensors": {
        "dtype": _set("config.json", torch_dtype="float16"),
        "class": _set("config.json", architectures=["T5EncoderModel"]),
        "no cache": _set("config.json", use_cache=False),
        "draws": _set("generation_config.json", prompt_lookup_num_tokens=4),
        "no length": lambda folder: _change_json(folder / "generation_config.json", lambda x: x.pop("max_new_tokens")),
        "flags": lambda folder: _change_json(folder / "tokenizer_config.json", _strip_spaces),
        "side": _set("tokenizer_config.json", padding_side="left"),
        "decoder": lambda folder: _change_json(folder / "tokenizer.json", lambda x: x.update(decoder=None)),
        "another file": lambda folder: (folder / "added_tokens.json").write_text("{}"),
    },
    "bert": {
        "rate": _set("config.json", initializer_range=9.0),
        "names": _set("tokenizer_config.json", model_input_names=["input_ids"]),
        "dtype": _set("config.json", dtype="bfloat16"),
        "no tokenizer": lambda folder: (folder / "tokenizer.json").unlink(),
    },
    "ctranslate2": {
        "unknown": _set("config.json", unk_token="</s>"),
        "another spiece.model": _other_spiece,
        "fewer tokens": lambda folder: _change_json(folder / "shared_vocabulary.json", lambda tokens: tokens.pop()),
        "a map": lambda folder: _add(folder / "vmap.txt"),
    },
    "gguf": {"no end": _other_flag, "lists in lists": _lists_in_lists, "more": _more_tensors},
    "onnx": {"a position": _other_position},
    "sentence-transformers": {
        "side": _set("tokenizer_config.json", truncation_side="left"),
        "a role": _set("special_tokens_map.json", unk_token="w7"),
        "vocab.txt": OF_BERT["another vocab.txt"],
        "dtype": _set(REPORT, dtype="float128"),
    },
}


# --------------------------------------------------------- tests ----------------------------------------------------


@pytest.fixture
def limba_alone(monkeypatch):
    """Whatever finds damage here is there for every user."""
    monkeypatch.setattr(transformers_process, "possible", lambda family: "left out here")
    monkeypatch.setattr(encoder_outputs, "_impossible", lambda model: "left out here")
    monkeypatch.setattr(folder_tokens.transformers_library, "version", lambda: None)


@pytest.mark.parametrize("kind", WRITERS)
def test_all_damage_is_found(kind, written, limba_alone, tmp_path, capsys):
    run, folder = written(kind)
    capsys.readouterr()
    assert __main__.main(["check", str(run), str(folder)]) == 0, capsys.readouterr().err
    assert capsys.readouterr().out.splitlines()[-1].startswith("A and B are the same model")
    missed = []
    for number, (name, damage) in enumerate(_damages(kind, folder).items()):
        wrong = tmp_path / str(number)  # Files of tokenizers are kept by their paths.
        shutil.copytree(folder, wrong)
        damage(wrong)
        code = __main__.main(["check", str(run), str(wrong)])
        out, error = capsys.readouterr()
        if code != 1 or not error.splitlines()[-1].startswith("error: ") or "A and B are the same" in out:
            missed.append((name, code, error[-300:]))
        shutil.rmtree(wrong)
    assert missed == []


@pytest.mark.parametrize("kind", ["safetensors", "ctranslate2"])
def test_the_card_may_be_edited(kind, written, limba_alone, tmp_path, capsys):
    run, folder = written(kind)
    shutil.copytree(folder, tmp_path / "edited")
    (tmp_path / "edited" / CARD).write_text("# Mine\n")
    assert __main__.main(["check", str(run), str(tmp_path / "edited")]) == 0
    assert f"Not compared: the card, B ({CARD} is not as it was written)" in capsys.readouterr().out.splitlines()[-1]


@pytest.mark.parametrize("kind", FORGED)
def test_hashes_of_changed_files_prove_nothing(kind, written, limba_alone, tmp_path, capsys):
    run, folder = written(kind)
    for name, damage in FORGED[kind].items():
        wrong = tmp_path / name
        shutil.copytree(folder, wrong)
        damage(wrong)
        _seal(wrong)
        assert __main__.main(["check", str(run), str(wrong)]) == 1, name
        error = capsys.readouterr().err.splitlines()[-1]
        said = (
            *("files written otherwise, B: 1", "dtype 'float128'", "weights that transformers rounds, B: 1"),
            *("texts with other tokens (B has no vocabulary)", "files that to-hf writes otherwise, B ("),
        )
        assert any(message in error for message in said), (name, error)


def test_what_a_checkpoint_without_a_vocabulary_does_not_say_is_named(t5, limba_alone, tmp_path, capsys, monkeypatch):
    """As those of T5X are."""
    folder = _written("safetensors", t5, tmp_path / "hf")
    opened = {name: any_format.open_model(name) for name in (str(t5), str(folder))}
    opened[str(t5)] = dataclasses.replace(opened[str(t5)], vocabulary=None)
    monkeypatch.setattr(any_format, "open_model", lambda name, hints: opened[name])
    assert __main__.main(["check", str(t5), str(folder)]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith(
        "A and B are the same model in what was compared. Not compared: settings of generate (those of A "
    )
    assert "texts with other tokens (A has no vocabulary)" in last


def test_a_damaged_report_of_a_checkpoint_is_found(t5, limba_alone, tmp_path, capsys):
    to_t5x(t5, tmp_path / "t5x", format_="classic", verify=False)
    (checkpoint,) = (tmp_path / "t5x").glob("checkpoint_*")
    assert __main__.main(["check", str(t5), str(tmp_path / "t5x")]) == 0
    (checkpoint / REPORT).write_bytes(NOISE)
    assert __main__.main(["check", str(t5), str(tmp_path / "t5x")]) == 1
    assert str(checkpoint / REPORT) in capsys.readouterr().err.splitlines()[-1]
