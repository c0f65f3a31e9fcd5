"""Folders as the hub has them, right and broken, through `limba convert check` and `limba convert repair`."""

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from convert import __main__
from convert.compare import numpy_t5
from convert.compare.float64 import Rounding
from convert.tensors import weight_files
from limba.addons.repair import findings, looking, repaired_folder
from limba.checkpoint_files.saved_tensors import from_array
from limba.convert.model_files.model import NO_HINTS
from tests.addons.repair import hub_folders, load_in_transformers
from tests.addons.repair.hub_folders import IDS, KINDS, STARTS, change, rename_tensors, tensors_of, write_tensors

Break = Callable[[Path], object]
_CONFIG, _GENERATION, _TOKENIZER = "config.json", "generation_config.json", "tokenizer_config.json"
# Whose tokens are not compared: pieces of the user's own have other ids in transformers, for some texts.
_NO_TOKENS = ("prostt5",)
# Whose padding is its token for unknown characters, without bytes for them: Limba's readers refuse that.
_NOT_READ = ("pile-t5",)
_EMBEDDING, _OF_ENCODER, _OF_DECODER = "shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"
_OUTPUT = "lm_head.weight"


def _set(file: str, **keys: Any) -> Break:
    return lambda folder: change(folder, file, **keys)


def _named(**names: str) -> Break:
    return lambda folder: rename_tensors(folder, names)


def _with(*copies: str, of: str = _EMBEDDING, times: float = 1, keeps: bool = True) -> Break:
    """Further tensors, which are another one times a number."""

    def run(folder: Path) -> None:
        tensors = tensors_of(folder)
        tensors |= {copy: tensors[of] * np.float32(times) for copy in copies}
        write_tensors(folder, {name: x for name, x in tensors.items() if keeps or name != of})

    return run


def _without(name: str) -> Break:
    return lambda folder: write_tensors(folder, {n: x for n, x in tensors_of(folder).items() if n != name})


def _wrapped(folder: Path) -> None:
    write_tensors(folder, {f"module.{name}": x for name, x in tensors_of(folder).items()})


def _bin_without_shared(folder: Path) -> None:
    file = folder / "pytorch_model.bin"
    state = torch.load(file, weights_only=True)
    torch.save({name: x for name, x in state.items() if name not in (_EMBEDDING, _OF_ENCODER)}, file)


def _bin_beside(times: float) -> Break:
    def run(folder: Path) -> None:
        state = {name: torch.tensor(x) * times for name, x in tensors_of(folder).items()}
        torch.save(state, folder / "pytorch_model.bin")

    return run


def _null(file: str, key: str) -> Break:
    def run(folder: Path) -> None:
        (folder / file).write_text(json.dumps(json.loads((folder / file).read_text()) | {key: None}))

    return run


def _index_without(what: str) -> Break:
    """The index of shards without a tensor, or its `metadata`."""

    def run(folder: Path) -> None:
        file = folder / "model.safetensors.index.json"
        index = json.loads(file.read_text())
        del (index if what in index else index["weight_map"])[what]
        file.write_text(json.dumps(index))

    return run


def _each(*breaks: Break) -> Break:
    def run(folder: Path) -> None:
        for one in breaks:
            one(folder)

    return run


def _new_output(folder: Path) -> None:
    """An encoder whose output is twice the embedding."""
    _with("cls.predictions.decoder.weight", of="bert.embeddings.word_embeddings.weight", times=2)(folder)


_TIED = {"tie_word_embeddings": True}
_OF_5 = {"scale_decoder_outputs": False, "transformers_version": "5.23.0"}
# A right folder, what is done to it, and the findings, each of which a repair mends.
REPAIRED: dict[str, tuple[str, Break, list[str]]] = {
    "embedding under the decoder's name": ("t5 1.1", _named(**{_EMBEDDING: _OF_DECODER}), ["embedding-name"]),
    "under the encoder's, in shards": ("t5 1.1 in shards", _named(**{_EMBEDDING: _OF_ENCODER}), ["embedding-name"]),
    "under both": ("mt5", _with(_OF_ENCODER, _OF_DECODER, keeps=False), ["embedding-name"]),
    "in a .bin": ("umt5 in .bin", _bin_without_shared, ["embedding-name"]),
    "in bfloat16": ("t5 1.1 in bfloat16", _named(**{_EMBEDDING: _OF_DECODER}), ["embedding-name"]),
    "of an encoder alone": ("encoder of a t5", _named(**{_EMBEDDING: _OF_ENCODER}), ["embedding-name"]),
    "MADLAD-400's": ("madlad", _named(**{_EMBEDDING: _OF_DECODER}), ["embedding-name"]),
    "embedding three times": ("t5 1.1", _with(_OF_ENCODER, _OF_DECODER), ["embedding-doubled"]),
    "output once more": ("t5", _with(_OUTPUT), ["embedding-doubled"]),
    "embedding under the output's name": ("t5", _named(**{_EMBEDDING: _OUTPUT}), ["embedding-missing"]),
    "said to be tied": ("t5 1.1", _set(_CONFIG, **_TIED), ["tied-flag"]),
    "says nothing of it": ("mt5", _set(_CONFIG, tie_word_embeddings=None), ["tied-flag"]),
    "said to be tied, in a .bin": ("umt5 in .bin", _set(_CONFIG, **_TIED), ["tied-flag"]),
    "saved by version 5": ("t5 1.1 in shards", _set(_CONFIG, **_TIED, **_OF_5), ["tied-flag"]),
    "a new T5 of version 5": ("t5", _set(_CONFIG, **_TIED, **_OF_5), ["tied-flag"]),
    "an encoder's own output": ("bert", _new_output, ["tied-flag"]),
    "its bias": ("bert", _each(_new_output, _set(_CONFIG, tie_word_embeddings=False)), ["tied-flag"]),
    "fewer rows than said": ("t5 1.1", _set(_CONFIG, vocab_size=520), ["vocab-size"]),
    "an encoder's rows": ("bert in .bin", _set(_CONFIG, vocab_size=61), ["vocab-size"]),
    "rounded": ("t5 1.1", _set(_CONFIG, dtype="bfloat16"), ["weights-rounded"]),
    "a type of no weights": ("t5", _set(_CONFIG, dtype="float33"), ["weights-rounded"]),
    "an index without a tensor": (
        "t5 1.1 in shards",
        _index_without("encoder.block.0.layer.0.SelfAttention.q.weight"),
        ["weights"],
    ),
    "an index without metadata": ("t5 1.1 in shards", _index_without("metadata"), ["weights"]),
    "under the encoder's, of a umT5's": ("encoder of a umt5", _named(**{_EMBEDDING: _OF_ENCODER}), ["embedding-name"]),
    "said to be tied, of Aya": ("aya in .bin", _set(_CONFIG, **_TIED), ["tied-flag"]),
    "T5's rows": ("prott5 in .bin", _set(_CONFIG, vocab_size=32128), ["vocab-size"]),
    "a wrapper of ProstT5": ("prostt5", _wrapped, ["names-wrapped"]),
    "no end": ("codet5+", _set(_CONFIG, eos_token_id=None), ["eos-id"]),
    "another end": ("codet5", _set(_CONFIG, eos_token_id=1), ["eos-id"]),
    "another end in generate": ("t5", _set(_GENERATION, eos_token_id=[2, 3]), ["eos-id"]),
    "no end in generate": ("t5", _set(_GENERATION, eos_token_id=None), ["eos-id"]),
    "true for an end": ("t5", _set(_GENERATION, eos_token_id=True), ["eos-id"]),
    "null for the end": (
        "t5",
        _each(_null(_CONFIG, "eos_token_id"), lambda folder: (folder / _GENERATION).unlink()),
        ["eos-id"],
    ),
    "null for padding": ("t5", _null(_CONFIG, "pad_token_id"), ["pad-id"]),
    "RoBERTa's padding is null": ("roberta", _null(_CONFIG, "pad_token_id"), ["pad-id"]),
    "another padding in generate": ("madlad", _set(_GENERATION, pad_token_id=0), ["pad-id"]),
    "an encoder's padding": ("bert", _set(_CONFIG, pad_token_id=3), ["pad-id"]),
    "another beginning": ("pile-t5", _set(_CONFIG, bos_token_id=5), ["bos-id"]),
    "starts that differ": ("t5", _set(_CONFIG, decoder_start_token_id=3), ["start-id"]),
    "no start": (
        "t5",
        _each(_set(_CONFIG, decoder_start_token_id=None), _set(_GENERATION, decoder_start_token_id=None)),
        ["start-id"],
    ),
    "no start in generate": ("t5", _set(_GENERATION, decoder_start_token_id=None), ["start-id"]),
    "a length in quotes": ("t5", _set(_TOKENIZER, model_max_length="64"), ["length-cuts"]),
    "rows of 4": ("t5", _set(_TOKENIZER, model_max_length=4), ["length-cuts"]),
    "an encoder's rows of 20": ("roberta", _set(_TOKENIZER, model_max_length=20), ["length-cuts"]),
    "endless rows": ("bert", _set(_TOKENIZER, model_max_length=10**30), ["length-too-long"]),
    "no longest row": ("roberta", _set(_TOKENIZER, model_max_length=None), ["length-too-long"]),
    "a wrapper": ("t5 1.1", _wrapped, ["names-wrapped"]),
    "an encoder's wrapper": ("bert", _wrapped, ["names-wrapped"]),
    "a .bin of another step": ("t5", _bin_beside(1.5), ["weights-differ"]),
    "an encoder's .bin": ("roberta", _bin_beside(0.5), ["weights-differ"]),
    "four at once": (
        "t5 1.1",
        _each(
            _named(**{_EMBEDDING: _OF_DECODER}),
            _set(_CONFIG, **_TIED, vocab_size=500, eos_token_id=2),
            _set(_TOKENIZER, model_max_length=5),
        ),
        ["embedding-name", "tied-flag", "vocab-size", "eos-id", "length-cuts"],
    ),
}
# Findings for which somebody has to say what is right.
BY_HAND: dict[str, tuple[str, Break, list[str]]] = {
    "no embedding": ("t5 1.1", _without(_EMBEDDING), ["embedding-missing"]),
    "an embedding in a row": (
        "t5",
        lambda folder: write_tensors(folder, tensors_of(folder) | {_EMBEDDING: np.zeros(8192, np.float32)}),
        ["embedding-missing"],
    ),
    "an encoder's 0 for false": ("bert", _set(_CONFIG, tie_word_embeddings=0), ["tied-flag"]),
    "two embeddings": ("t5 1.1", _with(_OF_ENCODER, times=2), ["embeddings-differ"]),
    "no output": ("mt5", _without(_OUTPUT), ["tied-flag"]),
    "an output that is divided": (
        "t5 1.1",
        _set(_CONFIG, tie_word_embeddings=True, scale_decoder_outputs=True),
        ["tied-flag"],
    ),
    "not a number": (
        "t5",
        lambda folder: write_tensors(folder, tensors_of(folder) | {_EMBEDDING: np.full((512, 16), np.nan, np.float32)}),
        ["not-finite"],
    ),
    "a shard is gone": (
        "t5 1.1 in shards",
        lambda folder: sorted(folder.glob("model-*.safetensors"))[1].unlink(),
        ["weights"],
    ),
    "another number of layers": ("t5", _set(_CONFIG, num_layers=1), ["tensors"]),
    "a tensor of nobody": ("bert", _with("bert.more.weight", of="cls.predictions.bias"), ["tensors"]),
    "another model's tokenizer": (
        "t5",
        lambda folder: (
            write_tensors(folder, tensors_of(folder) | {_EMBEDDING: tensors_of(folder)[_EMBEDDING][:100]}),
            change(folder, _CONFIG, vocab_size=100),
        ),
        ["vocabulary"],
    ),
    "a start of no vocabulary": (
        "t5",
        _each(_set(_CONFIG, decoder_start_token_id=512), _set(_GENERATION, decoder_start_token_id=512)),
        ["start-id"],
    ),
    "RoBERTa's padding, by which it counts": ("roberta", _set(_CONFIG, pad_token_id=3), ["pad-id", "length-too-long"]),
}


@pytest.fixture(scope="module")
def right(spiece_model, tmp_path_factory) -> dict[str, Path]:
    """A folder of each kind; MADLAD's has its embedding under the usual name here."""
    home = tmp_path_factory.mktemp("right")
    return {kind: hub_folders.write(kind, home / kind.replace(" ", "_"), spiece_model) for kind in KINDS}


def _broken(right: dict[str, Path], kind: str, change: Break, out: Path) -> Path:
    shutil.copytree(right[kind], out)
    change(out)
    return out


def _findings(folder: Path) -> list[str]:
    return [line.code for line in looking.look(folder, NO_HINTS)[1] if line.is_right is False]


# ------------------------------------------------------- check -------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_right_folder_has_no_finding(right, kind, capsys):
    code = __main__.main(["check", str(right[kind])])
    out, error = capsys.readouterr()
    assert code == (kind in _NOT_READ) and "WRONG" not in out and "ok    weights" in out
    assert ("  –   tensors" if kind in _NOT_READ else "ok    tensors") in out
    if kind in _NOT_READ:
        assert "ok    tokenizer" in out and "has no finding in what was looked at" in error
    elif kind in _NO_TOKENS:
        assert "not looked at: tokens that differ: " in out and "has no finding in what was looked at" in out
    else:
        # transformers 4 gives the first word of a text other tokens than its spiece.model has.
        has_note = kind == "t5"
        assert ("NOTE  tokenizer          tokenizers that differ: " in out) == has_note
        end = " has no finding; read the note on tokenizer." if has_note else " has no finding."
        assert "ok    tokenizer" in out and out.splitlines()[-1].endswith(end)


@pytest.mark.parametrize(("cases", "name"), [(cases, name) for cases in (REPAIRED, BY_HAND) for name in cases])
def test_each_fault_is_found_and_no_other(right, cases, name, tmp_path, monkeypatch):
    monkeypatch.setattr(looking.transformers_library, "version", lambda: None)  # Limba alone finds it.
    kind, fault, codes = cases[name]
    assert sorted(_findings(_broken(right, kind, fault, tmp_path / "broken"))) == sorted(codes)


def test_a_finding_says_what_where_and_the_remedy(right, tmp_path, capsys):
    folder = _broken(right, *REPAIRED["MADLAD-400's"][:2], tmp_path / "madlad")
    assert __main__.main(["check", str(folder)]) == 1
    out, error = capsys.readouterr()
    (line,) = [line for line in out.splitlines() if line.startswith("WRONG")]
    assert "embedding-name" in line and "model.safetensors: the embedding is decoder.embed_tokens.weight" in line
    assert "It becomes shared.weight." in out
    assert error.splitlines()[-1] == (
        f"error: {folder}: 1 finding: embedding-name. This writes it right: limba convert repair {folder} OUT"
    )
    folder = _broken(right, *BY_HAND["two embeddings"][:2], tmp_path / "two")
    assert __main__.main(["check", str(folder)]) == 1
    assert "Not for a repair: embeddings-differ" in capsys.readouterr().err


# ------------------------------------------------------- repair ------------------------------------------------------


def _truth(folder: Path, scales: float = 1) -> np.ndarray:
    """The logits that a right T5 gives, in NumPy and float64; an encoder's outputs."""
    config = json.loads((folder / _CONFIG).read_text())
    config |= {"layer_norm_epsilon": 1e-6, "tie_word_embeddings": config.get("tie_word_embeddings", True)}
    weights = numpy_t5.TorchWeights(weight_files.open_tensors(folder))
    if config["architectures"][0].endswith("EncoderModel"):
        return numpy_t5.encoder_outputs(weights, config, IDS, Rounding())
    return numpy_t5.logits(weights, config, IDS, STARTS, Rounding()) * scales


@pytest.fixture(scope="module")
def repaired(right, tmp_path_factory) -> dict[str, Path]:
    """Each folder of `REPAIRED`, after its repair."""
    home = tmp_path_factory.mktemp("repaired")
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        # A network for each is most of the time; `test_the_proof` has it, and transformers computes all of them below.
        patch.setattr(repaired_folder.comparison, "compare", lambda a, b: [])
        patch.setattr(looking.transformers_library, "version", lambda: None)
        for number, (name, (kind, fault, _)) in enumerate(REPAIRED.items()):
            folder = _broken(right, kind, fault, home / f"broken-{number}")
            assert __main__.main(["repair", str(folder), str(home / str(number))]) == 0, name
            found[name] = home / str(number)
    return found


@pytest.mark.parametrize("name", ["under both", "an encoder's rows"])
def test_the_proof(right, name, tmp_path, capsys):
    kind, fault, codes = REPAIRED[name]
    folder = _broken(right, kind, fault, tmp_path / "broken")
    assert __main__.main(["repair", str(folder), str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    for what in ("tensors that differ", "findings", "logits, B in NumPy", "logits, B in PyTorch"):
        assert f"ok    {what}" in said, said
    assert said.startswith(f"{codes[0]}: ")
    assert __main__.main(["check", str(tmp_path / "out")]) == 0


def test_a_repaired_folder_has_no_finding_and_says_what_was_changed(repaired):
    looked_at: set[str] = set()
    for name, folder in repaired.items():
        changes = [*json.loads((folder / "repair.json").read_text())["changes"]]
        assert changes == REPAIRED[name][2]
        if not looked_at.issuperset(changes):  # A repair looks itself (`test_the_proof`); here at one of each finding.
            assert _findings(folder) == [], name
            looked_at.update(changes)


@pytest.mark.parametrize("version", [4, 5])
def test_transformers_computes_the_weights_own_numbers(right, repaired, version, checks_in_forks, forks5, tmp_path):
    folders = [*((f"right {kind}", right[kind]) for kind in ("bert", "roberta", "bert in .bin")), *repaired.items()]
    request, out = tmp_path / "request.json", tmp_path / "found.npz"
    asked = [(name, str(folder)) for name, folder in folders]
    request.write_text(json.dumps({"ids": IDS.tolist(), "starts": STARTS.tolist(), "folders": asked}))
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"HF_HUB_OFFLINE": "1", "USE_TF": "0", "CUDA_VISIBLE_DEVICES": ""}
    if version == 4:
        command = [sys.executable, "-m", load_in_transformers.__name__, str(out), str(request)]
        done = checks_in_forks(command, env=environment)
    else:
        done = forks5.run(load_in_transformers.__file__, out, request, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    found = np.load(out)
    for name, (kind, _, _) in REPAIRED.items():
        if kind.startswith(("bert", "roberta")):
            truth = found[f"right {kind}"]
            if name in ("an encoder's own output", "its bias"):
                truth = 2 * truth - tensors_of(right[kind])["cls.predictions.bias"]
        elif name == "a new T5 of version 5":
            truth = _truth(right[kind], 16**0.5)  # The embedding is its output, and the logits are not divided.
        else:
            # Version 5 divides the logits of every umT5 as if it was tied.
            divides = version == 5 and kind in ("umt5 in .bin", "pile-t5")
            truth = _truth(right[kind], 16**-0.5 if divides else 1)
        allowed = 0.05 if "bfloat16" in kind and version == 5 else 1e-4
        np.testing.assert_allclose(found[name], truth, rtol=0, atol=allowed * np.abs(truth).max(), err_msg=name)


@pytest.fixture
def quick(monkeypatch):
    """Without networks and transformers, which other tests have."""
    monkeypatch.setattr(repaired_folder.comparison, "compare", lambda a, b: [])
    monkeypatch.setattr(looking.transformers_library, "version", lambda: None)


def test_a_repair_changes_nothing_else(right, quick, tmp_path):
    folder = _broken(right, *REPAIRED["rows of 4"][:2], tmp_path / "broken")
    (folder / "README.md").write_text("A card.\n")
    (folder / "modeling.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    (folder / ".env").write_text("SECRET=1\n")
    (folder / "onnx").mkdir()
    (folder / "tf_model.h5").write_bytes(b"weights that nothing here reads")
    assert __main__.main(["repair", str(folder), str(tmp_path / "out")]) == 0
    there = {file.name for file in folder.iterdir()}
    assert {file.name for file in (tmp_path / "out").iterdir()} == there - {".env", "onnx", "tf_model.h5"} | {
        "repair.json"
    }
    for name in there - {".env", "onnx", "tf_model.h5", _TOKENIZER}:
        assert (tmp_path / "out" / name).read_bytes() == (folder / name).read_bytes(), name
    settings = json.loads((folder / _TOKENIZER).read_text())
    assert json.loads((tmp_path / "out" / _TOKENIZER).read_text()) == settings | {
        "model_max_length": hub_folders.LENGTH
    }
    assert not (tmp_path / "ran").exists()


def test_a_link_that_leads_out_of_the_folder_is_not_followed(right, quick, tmp_path, capsys):
    folder = _broken(right, *REPAIRED["rows of 4"][:2], tmp_path / "broken")
    (tmp_path / "secret.txt").write_text("secret")
    (folder / "notes.txt").symlink_to(tmp_path / "secret.txt")
    assert __main__.main(["repair", str(folder), str(tmp_path / "out")]) == 1
    assert "outside of its folder" in capsys.readouterr().err and not (tmp_path / "out").exists()


def test_weights_behind_a_link_are_not_copied_under_other_names(right, quick, tmp_path, capsys):
    folder = _broken(right, *REPAIRED["embedding under the decoder's name"][:2], tmp_path / "broken")
    weights = folder / "model.safetensors"
    weights.rename(tmp_path / "weights")
    weights.symlink_to(tmp_path / "weights")
    assert __main__.main(["repair", str(folder), str(tmp_path / "out")]) == 1
    assert "outside of its folder" in capsys.readouterr().err and not (tmp_path / "out").exists()


def test_a_missing_start_is_written_where_generate_looks_for_it(repaired):
    for name in ("no start", "no start in generate"):
        found = [json.loads((repaired[name] / file).read_text()) for file in (_CONFIG, _GENERATION)]
        assert [content["decoder_start_token_id"] for content in found] == [0, 0], name


@pytest.mark.parametrize(
    ("decoder", "said"),
    [([1], "a list of 1"), ({"²": {"content": "a"}}, "a table of 1"), ({"9" * 5000: {"content": "a"}}, "a table of 1")],
)
def test_damaged_ids_of_tokens(right, quick, tmp_path, capsys, decoder, said):
    folder = _broken(right, "t5", _set(_TOKENIZER, added_tokens_decoder=decoder), tmp_path / "broken")
    (folder / "tokenizer.json").unlink()  # Else spiece.model is not read.
    assert __main__.main(["check", str(folder)]) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith(f"error: {folder}/{_TOKENIZER} is damaged: added_tokens_decoder is {said}; ")


@pytest.mark.parametrize("id_", [-1, 2**32, True])
def test_ids_that_no_tokenizer_has(right, quick, tmp_path, capsys, id_):
    folder = _broken(right, "t5", lambda folder: None, tmp_path / "broken")
    content = json.loads((folder / "tokenizer.json").read_text())
    content["added_tokens"].append(content["added_tokens"][0] | {"content": "more", "id": id_})
    (folder / "tokenizer.json").write_text(json.dumps(content))
    assert __main__.main(["check", str(folder)]) == 1
    assert "tokenizer.json is damaged: it does not say the ids" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("file", "key", "value", "said"),
    [
        (_CONFIG, "dtype", "float32\nok    eos-id", "'float32\\nok    eos-id'"),
        (_GENERATION, "eos_token_id", [*range(2, 5000)], "[2, 3, 4, 5, 6, 7, …]"),
        (_CONFIG, "n_positions", 10**500, "512"),
    ],
)
def test_values_of_the_folder_write_no_lines_of_their_own(right, quick, tmp_path, capsys, file, key, value, said):
    folder = _broken(right, "t5", _set(file, **{key: value}), tmp_path / "broken")
    assert __main__.main(["check", str(folder)]) == 1
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("WRONG")]
    assert said in line and len(line) < 250


def test_what_is_not_written(right, quick, tmp_path, capsys):
    out = tmp_path / "out"
    assert __main__.main(["repair", str(right["t5 1.1"]), str(out)]) == 1
    assert "there is nothing to repair" in capsys.readouterr().err
    faults = _each(_with(_OF_ENCODER, times=2), _set(_TOKENIZER, model_max_length=4))
    both = _broken(right, "t5 1.1", faults, tmp_path / "two")
    assert __main__.main(["repair", str(both), str(out)]) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith(f"error: {both}: embeddings-differ: model.safetensors: shared.weight and ")
    assert "nothing is written; --leave embeddings-differ leaves it as it is." in error
    shorter = _broken(right, *REPAIRED["rows of 4"][:2], tmp_path / "shorter")
    assert __main__.main(["repair", str(shorter), str(out), "--leave", "length-cuts"]) == 1
    assert "there is nothing to repair" in capsys.readouterr().err
    out.mkdir()
    (out / "mine.txt").write_text("mine")
    assert __main__.main(["repair", str(shorter), str(out)]) == 1
    assert "is not empty" in capsys.readouterr().err and (out / "mine.txt").read_text() == "mine"
    assert {file.name for file in tmp_path.iterdir()} == {"out", "two", "shorter"}


def test_a_repair_that_came_out_wrong_is_not_kept(right, quick, tmp_path, monkeypatch, capsys):
    folder = _broken(right, *REPAIRED["embedding three times"][:2], tmp_path / "broken")
    written = repaired_folder.safetensors_files.write

    def write_other(place, tensors, *rest):
        name = next(iter(tensors))
        written(place, {**tensors, name: from_array(np.asarray(tensors[name]) * np.float32(1.001))}, *rest)

    monkeypatch.setattr(repaired_folder.safetensors_files, "write", write_other)
    assert __main__.main(["repair", str(folder), str(tmp_path / "out")]) == 1
    assert "nothing was kept: tensors that differ: 1" in capsys.readouterr().err
    assert {file.name for file in tmp_path.iterdir()} == {"broken"}


def test_the_page_has_every_code_and_every_kind():
    page = (Path(__file__).parents[3] / "docs/repair.md").read_text("utf-8")
    rows = {line.split(" | ")[0].strip("| `"): line for line in page.splitlines() if line.startswith("| `")}
    assert [*rows] == [*findings.CODES]
    by_hand = {code for _, _, codes in BY_HAND.values() for code in codes} - {"length-too-long"}
    never = {code for code, row in rows.items() if row.endswith("| – |")}
    mended = {code for _, _, codes in REPAIRED.values() for code in codes}
    assert never <= {*findings.CODES} - mended and by_hand - mended <= never
    for line in hub_table():
        assert line in page, line


def hub_table() -> list[str]:
    """The rows of docs/repair.md about folders: what was broken in each, and the codes."""

    def told(cases: dict[str, tuple[str, Break, list[str]]], kind: str) -> str:
        found = [f"{name} ({', '.join(codes)})" for name, (of, _, codes) in cases.items() if of == kind]
        return "; ".join(found) or "–"

    return [f"| {kind} | {told(REPAIRED, kind)} | {told(BY_HAND, kind)} |" for kind in KINDS]
