"""`limba convert to-ct2` of encoders: the hidden states of CTranslate2 are the network's."""

import contextlib
import io
import re

import numpy as np
import pytest
from tokenizers import Tokenizer

from convert.families import heads
from convert.families.heads import Head
from convert.model_files import any_format
from convert.to_hf import to_hf
from limba.addons.engines.ct2 import ct2_encoder, ct2_encoder_check, ct2_library
from limba.addons.engines.to_ct2 import to_ct2
from tests.convert.encoders.conftest import VARIANTS, new_encoder, tokenizer_file

pytest.importorskip("ctranslate2", reason="pip install 'limba[ct2]'")

__all__ = ["new_encoder", "tokenizer_file"]  # fixtures

# Of RoBERTa padding has another id in the folder, and positions begin behind it.
CASES = {"bert": "int8", "roberta": "float32", "xlm_roberta": "bfloat16", "distilbert": "float32"}


@pytest.fixture(scope="module")
def runs(new_encoder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("encoders")
    return {family: new_encoder(folder / family, **VARIANTS[family]) for family in CASES}


@pytest.mark.parametrize("family", CASES)
def test_the_engine_computes_what_the_encoder_does(family, runs, tmp_path, monkeypatch, capsys):
    folder = tmp_path / "out"
    report = to_ct2(runs[family], folder, quantization=CASES[family])
    rows = {row["what"]: row for row in report["comparison"]}
    assert report["family"] == family and all(row["holds"] for row in rows.values())
    row = rows["hidden states, CTranslate2"]
    assert row["value"] < 5e-5 and row["allowed"] < 1e-3 and rows["hidden states, Limba and NumPy"]["value"] is not None
    assert rows["tokens with other ids"]["value"] == rows["texts with other ids"]["value"] == 0
    if CASES[family] != "float32":
        cosine = float(re.match(r"cosine (0\.\d+)", rows[f"vectors of rows, {CASES[family]}"]["note"])[1])
        assert 0.99 < cosine < 1
    assert "the head of the masked language model is left out" in capsys.readouterr().err

    # The program of the README: means of the hidden states of the two texts.
    (code,) = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text("utf-8"), re.S)
    code = code.replace("The first text.", "w7 w9").replace("The second one.", "w8")
    monkeypatch.chdir(folder)
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(compile(code, "README.md", "exec"), {})
    printed = np.array(re.sub(r"[\[\]]", "", out.getvalue()).split(), float).reshape(2, -1)
    model = any_format.open_model(runs[family])
    ids = np.array([[2, 7, 9, 3], [2, 8, 3, model.config.pad_id]], np.int32)
    states = ct2_encoder_check.limba_states(model, ids, np.zeros_like(ids))
    expected = [states[0].mean(0), states[1, :3].mean(0)]
    np.testing.assert_allclose(printed, expected, atol=0.1 if CASES[family] == "int8" else 0.02)


def test_positions_that_begin_at_padding_s_row_are_found(runs, tmp_path, monkeypatch):
    """As an engine would have them that knows nothing of RoBERTa."""
    fill = ct2_encoder.fill
    monkeypatch.setattr(ct2_encoder, "fill", lambda spec, weights, modules, first: fill(spec, weights, modules, 0))
    with pytest.raises(ValueError, match="nothing was kept: hidden states, CTranslate2: "):
        to_ct2(runs["roberta"], tmp_path / "out")
    assert not [*tmp_path.iterdir()]


def test_a_folder_of_hugging_face_gives_the_same_file(runs, tmp_path):
    to_hf(runs["roberta"], tmp_path / "hf", verify=False)
    # sentence-transformers saves tokenizers that pad and truncate; that is the program's business, not the model's.
    tokenizer = Tokenizer.from_file(str(tmp_path / "hf/tokenizer.json"))
    tokenizer.enable_padding(length=90)
    tokenizer.enable_truncation(8)
    tokenizer.save(str(tmp_path / "hf/tokenizer.json"))
    for name, source in (("a", runs["roberta"]), ("b", tmp_path / "hf")):
        to_ct2(source, tmp_path / name, verify=name == "b")
        assert ("tokenizer.no_padding()" in (tmp_path / name / "README.md").read_text("utf-8")) == (name == "b")
    for file in ("model.bin", "vocabulary.json", "config.json"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
    assert ct2_library.engine().contains_model(str(tmp_path / "a"))


@pytest.mark.parametrize(
    "variant, head, message",
    [
        ("bert", Head(heads.SEQUENCE, ("glad", "sad"), "tanh"), "is a classifier, and CTranslate2 has no heads"),
        ("modernbert", heads.OF_MASKED_LM, "is ModernBERT; of encoders CTranslate2 has bert, roberta, xlm_roberta"),
        ("eurobert", heads.OF_MASKED_LM, "is EuroBERT; of encoders CTranslate2 has bert"),
        ("nomic_bert", heads.OF_MASKED_LM, "is NomicBERT; of encoders CTranslate2 has bert"),
        ("mpnet", heads.OF_MASKED_LM, "is MPNet; of encoders CTranslate2 has bert"),
        ("relative_key_query", heads.OF_MASKED_LM, "position_embedding_type is 'relative_key_query', and"),
    ],
)
def test_other_encoders_are_refused_by_name(variant, head, message, new_encoder, tmp_path):
    run = new_encoder(tmp_path / "run", head, **VARIANTS[variant])
    with pytest.raises(ValueError, match=message):
        to_ct2(run, tmp_path / "out")
    assert [file.name for file in tmp_path.iterdir()] == ["run"]
