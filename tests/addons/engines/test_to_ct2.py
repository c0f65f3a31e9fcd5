"""`limba convert to-ct2`: what CTranslate2 computes with the folder is what the model computes."""

import contextlib
import importlib
import io
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from convert.__main__ import main
from convert.to_hf import to_hf
from limba.addons.engines import t5_check
from limba.addons.engines.ct2 import ct2_library, ct2_t5, ct2_tokens
from limba.addons.engines.to_ct2 import to_ct2
from limba.files import disk
from tests.convert import hub_t5s

pytest.importorskip("ctranslate2", reason="pip install 'limba[ct2]'")

ROOT = Path(__file__).parents[3]
# Heads whose width together is not emb_dim, as in small T5s 1.1; two layers a stack show umT5's tables.
SIZES = {"num_encoder_layers": 2, "num_decoder_layers": 2}
MT5 = {"family": "mt5", "vocab_size": 520}  # rows beyond the vocabulary
CASES = {"t5": "float32", "t5_1_1": "int8", "mt5": "bfloat16", "umt5": "float32", "byt5": "float32"}


def fields_of(family):
    """mT5 has T5 1.1's tensors."""
    return SIZES | (MT5 if family == "mt5" else {})


@pytest.fixture(scope="module")
def written(runs, tmp_path_factory):
    """The folder and the report of a family."""
    folder, found = tmp_path_factory.mktemp("written"), {}

    def of(family):
        if family not in found:
            report = to_ct2(runs(family), folder / family, quantization=CASES[family])
            found[family] = folder / family, report
        return found[family]

    return of


@pytest.mark.parametrize("family", CASES)
def test_the_engine_computes_what_the_model_does(family, written):
    folder, report = written(family)
    rows = {row["what"]: row for row in report["comparison"]}
    assert report["family"] == family and all(row["holds"] for row in rows.values())
    scores, allowed = (rows["log-probabilities, CTranslate2"][key] for key in ("value", "allowed"))
    assert scores < 2e-4 and allowed < 0.05
    assert rows["other greedy tokens, CTranslate2"]["value"] == 0
    assert family == "byt5" or rows["tokens with other ids"]["value"] == rows["texts with other ids"]["value"] == 0
    is_exact = CASES[family] == "float32"
    assert ("loss, int8" in rows) == (CASES[family] == "int8")
    assert any(row["value"] is None for row in rows.values()) != is_exact
    assert report["files"] == sorted(file.name for file in folder.iterdir())


def test_int8_says_what_it_changes_and_is_smaller(written, runs, tmp_path, capsys):
    folder, report = written("t5_1_1")
    to_ct2(runs("t5_1_1"), tmp_path / "out", verify=False)
    assert 3 < (tmp_path / "out/model.bin").stat().st_size / (folder / "model.bin").stat().st_size < 4
    assert "not checked (--no-check)" in capsys.readouterr().out
    notes = {row["what"]: row["note"] for row in report["comparison"]}
    change, after, before = map(float, re.findall(r"[-+]?\d+\.\d+", notes["loss, int8"])[:3])
    assert 0 < abs(change) < 0.2 and change == pytest.approx(after - before, abs=2e-6)
    same, count = map(int, re.match(r"(\d+) of (\d+) are", notes["greedy tokens, int8"]).groups())
    assert count / 2 < same <= count
    assert 'compute_type="int8"' in (folder / "README.md").read_text("utf-8")


@pytest.mark.parametrize(("family", "factor", "quantization"), [("t5_1_1", 32**-0.5, "float32"), ("t5", 1.0, "int8")])
def test_logits_that_are_scaled_and_should_not_be_are_found(family, factor, quantization, runs, tmp_path, monkeypatch):
    """As CTranslate2's own converter writes untied models with transformers 5; and a tied one without its scale."""

    def wrong(decoder, config, kernel):
        decoder.projection.weight = kernel
        decoder.scale_outputs = np.float32(factor)

    monkeypatch.setattr(ct2_t5, "set_output", wrong)
    with pytest.raises(ValueError, match="What is written for CTranslate2 is not the model, nothing was kept") as error:
        to_ct2(runs(family), tmp_path / "out", quantization=quantization)
    # Greedy tokens are the same.
    assert "log-probabilities, CTranslate2: " in str(error.value) and "greedy" not in str(error.value)
    assert not [*tmp_path.iterdir()]


def test_a_table_of_another_layer_is_found(runs, tmp_path, monkeypatch):
    """As a loader of mT5 writes umT5."""
    fill = ct2_t5.fill_stack

    def wrong(spec, weights, stack):
        fill(spec, weights, stack)
        spec.layer[1].self_attention.relative_attention_bias = spec.layer[0].self_attention.relative_attention_bias

    monkeypatch.setattr(ct2_t5, "fill_stack", wrong)
    with pytest.raises(ValueError, match="log-probabilities, CTranslate2: "):
        to_ct2(runs("umt5"), tmp_path / "out")


def test_a_folder_of_hugging_face_gives_the_same_file(runs, written, tmp_path):
    folder, _ = written("t5")
    to_hf(runs("t5"), tmp_path / "hf", formats=["safetensors"], verify=False)
    assert to_ct2(tmp_path / "hf", tmp_path / "out", verify=False)["family"] == "t5"
    for name in ("model.bin", "shared_vocabulary.json", "config.json", "tokenizer.json"):
        assert (tmp_path / "out" / name).read_bytes() == (folder / name).read_bytes()


def test_rows_beyond_the_vocabulary_have_tokens_of_their_own(written):
    tokens = json.loads((written("mt5")[0] / "shared_vocabulary.json").read_text("utf-8"))
    assert tokens[:3] == ["<pad>", "</s>", "<unk>"] and len(tokens) == len({*tokens}) == 520
    assert tokens[510:] == ["<extra_id_1>", "<extra_id_0>", *(f"<unused_{i}>" for i in range(8))]
    with pytest.raises(ValueError, match=r"several ids for \['a'\]\. CTranslate2 knows tokens by their text"):
        ct2_tokens.unique(["a", "b", "a"], "spiece.model")


def _printed(code, folder, monkeypatch):
    monkeypatch.chdir(folder)
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(compile(code, "README.md", "exec"), names := {})
    return out.getvalue().rstrip("\n"), names["tokens"]


@pytest.mark.parametrize("family", ["umt5", "byt5"])
def test_the_program_of_the_readme_runs(family, written, monkeypatch):
    folder, _ = written(family)
    (code,) = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text("utf-8"), re.S)
    assert 'compute_type="float32"' in code
    printed, _ = _printed(code, folder, monkeypatch)
    engine = ct2_library.engine().Translator(str(folder), compute_type="float32")
    text = re.search(r'^text = "(.*?)"', code, re.M)[1]
    if family == "byt5":
        tokens = [*map(chr, text.encode()), "</s>"]
    else:
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        tokens = tokenizer.encode(text).tokens
        assert tokens[-1] == "</s>" and "<extra_id_1>" in tokens
    (answer,) = engine.translate_batch([tokens], beam_size=1, max_decoding_length=64)
    said = [token for token in answer.hypotheses[0] if not token.startswith(("<unused", "<extra"))]
    if family == "byt5":
        assert printed == bytes(ord(x) for x in said if len(x) == 1).decode(errors="ignore")
    else:
        assert re.sub(r"<.*?>|\s", "", printed) == re.sub(r"<.*?>|[▁\s]", "", "".join(said)) != ""
    assert printed


def test_the_example_of_the_page_runs(runs, tmp_path, monkeypatch):
    page = (ROOT / "docs/serving.md").read_text("utf-8")
    (code,) = [block for block in re.findall(r"```python\n(.*?)```", page, re.S) if "ctranslate2" in block]
    assert "limba convert to-ct2 runs/mine exports/mine_ct2" in page
    assert main(["to-ct2", str(runs("t5")), str(tmp_path / "exports/mine_ct2"), "--no-check"]) == 0
    printed, _ = _printed(code, tmp_path, monkeypatch)
    assert re.fullmatch(r"-?\d+\.\d+", printed.splitlines()[-1])


@pytest.mark.parametrize("of_page", [True, False])
def test_sentinels_that_take_in_blanks_are_tokens_of_the_engine(of_page, written, tmp_path, monkeypatch):
    """As in a tokenizer.json to which somebody added them with `lstrip` and `rstrip`."""
    folder = tmp_path / "exports/mine_ct2"
    shutil.copytree(written("t5")[0], folder)
    file = folder / "tokenizer.json"
    content = json.loads(file.read_text("utf-8"))
    for token in content["added_tokens"]:
        token |= {"lstrip": True, "rstrip": True}
    file.write_text(json.dumps(content), "utf-8")
    text = (ROOT / "docs/serving.md" if of_page else folder / "README.md").read_text("utf-8")
    (code,) = [block for block in re.findall(r"```python\n(.*?)```", text, re.S) if "import ctranslate2" in block]
    _, tokens = _printed(code, tmp_path if of_page else folder, monkeypatch)
    assert "<extra_id_0>" in tokens and {*tokens} <= {
        *json.loads((folder / "shared_vocabulary.json").read_text("utf-8"))
    }


def _error(arguments, capsys):
    assert main(["to-ct2", *map(str, arguments)]) == 1
    return capsys.readouterr().err.strip().splitlines()[-1]


def test_what_cannot_be_written_leaves_nothing(new_run, runs, written, tmp_path, capsys, monkeypatch):
    run, out = runs("t5"), tmp_path / "out"
    folder, _ = written("t5")
    assert "a model of CTranslate2" in _error([folder, out], capsys)
    assert "does not exist, and" in _error([tmp_path / "nowhere", out], capsys)
    half = tmp_path / "half"
    to_hf(run, half, formats=["safetensors"], verify=False)
    assert "main__.py' is not a SentencePiece model." in _error(
        [run, out, "--vocab", ROOT / "convert/__main__.py"], capsys
    )
    assert "--average" in _error([half, out, "--average"], capsys)
    weights = (half / "model.safetensors").read_bytes()
    (half / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    assert "model.safetensors" in _error([half, out], capsys)
    (half / "model.safetensors").unlink()
    assert f"{half} has no weights, such as model.safetensors" in _error([half, out], capsys)
    poisoned = new_run(half / "run", poison="decoder_norm", **SIZES)
    assert "decoder.final_layer_norm.weight holds NaN or infinite values" in _error([poisoned, out], capsys)
    assert "other quantization, checked" in _error([run, folder, "--quantization", "int8", "--no-check"], capsys)
    (tmp_path / "full").mkdir()
    (tmp_path / "full/mine.txt").write_text("mine")
    assert "is not empty, and not a conversion of Limba's" in _error([run, tmp_path / "full"], capsys)
    monkeypatch.setattr(disk, "free_bytes", lambda path: 10**6)
    assert "needs 0.02 GB, and 0.00 GB are free" in _error([run, out], capsys)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["full", "half"]


def test_push_names_what_uploads_the_folder(written, capsys):
    folder, _ = written("t5")
    assert main(["push", str(folder), "org/name"]) == 1
    error = capsys.readouterr().err
    assert f"{folder} is for CTranslate2" in error and f"This uploads it: hf upload ORG/NAME {folder}" in error


def test_a_missing_or_old_package_has_one_message(runs, tmp_path, capsys, monkeypatch):
    importing = importlib.import_module
    monkeypatch.setattr(ct2_library.engine(), "__version__", "4.7.2")
    assert "ctranslate2 4.7.2 is installed, and 4.8 or newer is needed" in _error([runs("t5"), tmp_path / "o"], capsys)

    def missing(name, *others):
        if name.startswith("ctranslate2"):
            raise ModuleNotFoundError(f"No module named {name!r}")
        return importing(name, *others)

    monkeypatch.setattr(importlib, "import_module", missing)
    assert "pip install 'limba[ct2]'" in _error([runs("t5"), tmp_path / "o"], capsys)
    assert not [*tmp_path.iterdir()]


def test_rows_of_the_check_have_several_lengths_and_the_text():
    inputs, targets = t5_check.check_rows(1000, [5, 6, 7])
    assert [np.count_nonzero(row) for row in inputs] == [48, 24, 7, 2]
    assert len({np.count_nonzero(row) for row in targets}) == 4
    np.testing.assert_array_equal(inputs[1, :4], [5, 6, 7, 5])
    assert inputs[1, 23] == 1 and inputs[0].max() > 900


def test_madlad_goes_in_with_limbas_ids(tmp_path):
    """Its padding is 1 in the folder of Hugging Face; CTranslate2 knows tokens by their texts."""
    hub_t5s.write("madlad", tmp_path / "hf")
    report = to_ct2(tmp_path / "hf", tmp_path / "ct2")
    rows = {row["what"]: row for row in report["comparison"]}
    assert all(row["holds"] for row in rows.values()), rows
    assert rows["log-probabilities, CTranslate2"]["value"] < 1e-4
    tokens = json.loads((tmp_path / "ct2" / ct2_t5.VOCABULARY).read_text())
    assert tokens[:3] == ["<s>", "<unk>", "</s>"]
    config = json.loads((tmp_path / "ct2/config.json").read_text())
    assert [config[key] for key in ("decoder_start_token", "eos_token", "unk_token")] == ["<unk>", "</s>", "<unk>"]


def test_the_tokenizer_of_another_family_is_refused(tmp_path):
    hub_t5s.write("pile_t5", tmp_path / "hf")
    with pytest.raises(
        ValueError, match=r"other special tokens than T5's <pad> 0, </s> 1 and <unk> 2: padding 0, end 2"
    ):
        to_ct2(tmp_path / "hf", tmp_path / "ct2")
    assert not (tmp_path / "ct2").exists()
