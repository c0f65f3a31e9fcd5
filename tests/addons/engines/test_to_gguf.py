"""`limba convert to-gguf`: the file, read back and computed as llama.cpp does, is the model."""

import dataclasses
import functools

import numpy as np
import pytest

from convert.__main__ import main
from convert.to_hf import to_hf
from limba.addons.engines.llama_cpp import library, t5_file, t5_reader
from limba.addons.engines.to_gguf import to_gguf
from limba.files import disk
from tests.convert.conftest import FAMILIES, INPUTS_LENGTH

gguf = pytest.importorskip("gguf", reason="pip install 'limba[gguf]'")

SIZES = {"num_encoder_layers": 2, "num_decoder_layers": 1, "head_dim": 32}
MT5 = {"family": "mt5", "vocab_size": 520}  # rows beyond the vocabulary
CASES = {"t5": "float32", "mt5": "q8_0", "umt5": "bfloat16"}


@pytest.fixture(scope="module")
def runs(new_run, spiece_model, spiece_of_few_rules, tmp_path_factory):
    """Saves a run of a family when it is first asked for; one of them has the usual table of normalization."""
    folder = tmp_path_factory.mktemp("runs")

    @functools.cache
    def of(family):
        vocabulary = {"umt5": spiece_model, "byt5": None}.get(family, spiece_of_few_rules)
        more = MT5 if family == "mt5" else {}
        return new_run(folder / family, vocab_file=vocabulary, **(FAMILIES[family] | SIZES | more))

    return of


@pytest.mark.parametrize("family", CASES)
def test_the_file_is_the_model(family, runs, tmp_path):
    report = to_gguf(runs(family), tmp_path / "out", quantization=CASES[family])
    rows = {row["what"]: row for row in report["comparison"]}
    assert all(row["holds"] for row in rows.values())
    assert [rows[f"{what} that differ"]["value"] for what in ("settings", "pieces", "tensors")] == [0, 0, 0]
    if CASES[family] == "float32":
        found, allowed = (rows["log-probabilities, the file"][key] for key in ("value", "allowed"))
        assert found < 2e-4 and allowed < 0.05
    else:
        assert rows[f"loss, {CASES[family]}"]["note"].startswith(("+0.0", "-0.0"))
    assert report["files"] == ["README.md", "conversion_report.json", "model.gguf"]
    file = t5_reader.File(tmp_path / "out" / "model.gguf")
    tokens, types = (file.fields[f"tokenizer.ggml.{name}"] for name in ("tokens", "token_type"))
    # Sentinels are shown, and a prompt may have them: not control tokens, nor padding without a name.
    assert [types[tokens.index(f"<extra_id_{i}>")] for i in (0, 99)] == [4, 4] and types[:3] == [3, 3, 2]
    if family == "mt5":
        assert (tokens[-1], types[-1]) == ("<unused_107>", 5)
    assert ("dec.blk.0.attn_rel_b.weight" in file.tensors) and (
        ("enc.blk.1.attn_rel_b.weight" in file.tensors) == (family == "umt5")
    )
    assert file.fields["tokenizer.ggml.add_eos_token"] is True and file.fields["t5.context_length"] > 0


def test_a_folder_has_the_context_of_its_run(runs, tmp_path):
    to_hf(runs("t5_1_1"), tmp_path / "folder", verify=False)
    contexts = []
    for source in (runs("t5_1_1"), tmp_path / "folder"):
        to_gguf(source, tmp_path / "out", verify=False, overwrite=True)
        contexts.append(t5_reader.File(tmp_path / "out/model.gguf").fields["t5.context_length"])
    assert contexts == [INPUTS_LENGTH, INPUTS_LENGTH]
    assert main(["check", str(runs("t5_1_1")), str(tmp_path / "out")]) == 0  # Another name, and the same model.
    config = tmp_path / "folder/config.json"
    config.write_text(config.read_text().replace(f'"n_positions": {INPUTS_LENGTH}', '"n_positions": -1'))
    with pytest.raises(ValueError, match=r"n_positions of config.json is -1; it is a whole number of at least 1 and"):
        to_gguf(tmp_path / "folder", tmp_path / "other", verify=False)


def test_q8_0_is_a_quarter(runs, tmp_path):
    sizes = {}
    for kind in ("float32", "q8_0"):
        to_gguf(runs("t5_1_1"), tmp_path / kind, quantization=kind, verify=False)
        file = gguf.GGUFReader(str(tmp_path / kind / "model.gguf"))
        sizes[kind] = sum(int(x.n_bytes) for x in file.tensors)
        kinds = {x.name: x.tensor_type.name for x in file.tensors}
        assert kinds["enc.blk.0.attn_rel_b.weight"] == kinds["enc.output_norm.weight"] == "F32"
    assert kinds["token_embd.weight"] == "Q8_0" and kinds["enc.blk.0.ffn_down.weight"] == "F16"  # rows of 48
    assert 3 < sizes["float32"] / sizes["q8_0"] < 4


@pytest.mark.parametrize(
    ("fault", "found"),
    [
        ("scale", "log-probabilities, the file: "),
        ("rows", "tensors that differ: 1"),
        ("sentinels", "pieces that differ: 100"),
        ("epsilon", "settings that differ: 1"),
    ],
)
def test_a_wrong_file_is_found(fault, found, runs, tmp_path, monkeypatch):
    """As llama.cpp's own converter: tied logits without their scale, and sentinels as `[PADi]`; and two more."""
    if fault == "scale":
        monkeypatch.setattr(t5_file, "scale_of", lambda name, model: np.float32(1))
    if fault == "rows":
        add = gguf.GGUFWriter.add_tensor

        def reversed_rows(self, name, values, **others):
            add(self, name, values[::-1].copy() if name == "enc.blk.1.attn_q.weight" else values, **others)

        monkeypatch.setattr(gguf.GGUFWriter, "add_tensor", reversed_rows)
    if fault == "sentinels":
        write = t5_file.write

        def wrong(model, pieces, *others):
            tokens = [f"[PAD{i}]" if x.startswith("<extra_id") else x for i, x in enumerate(pieces.tokens)]
            write(model, dataclasses.replace(pieces, tokens=tokens), *others)

        monkeypatch.setattr(t5_file, "write", wrong)
    if fault == "epsilon":
        settings = t5_file.settings
        monkeypatch.setattr(t5_file, "settings", lambda *x: {**settings(*x), "layer_norm_rms_eps": 1e-5})
    with pytest.raises(ValueError, match=r"What is written for llama\.cpp is not the model, nothing was kept") as error:
        to_gguf(runs("t5"), tmp_path / "out")
    assert found in str(error.value)
    assert not [*tmp_path.iterdir()]


def test_what_llama_cpp_does_not_have(runs, new_run, tmp_path, monkeypatch, capsys):
    for run, words in (
        (runs("byt5"), "The vocabulary is of bytes; llama.cpp's T5s have a unigram model"),
        (new_run(tmp_path / "silu", **SIZES, mlp_activations=("silu", "linear")), "llama.cpp's T5 has ('relu',), and"),
    ):
        assert main(["to-gguf", str(run), str(tmp_path / "out")]) == 1
        assert words in capsys.readouterr().err
    monkeypatch.setattr(disk, "free_bytes", lambda folder: 1000)
    assert main(["to-gguf", str(runs("t5")), str(tmp_path / "out")]) == 1
    assert "GB are free there: make room" in capsys.readouterr().err
    monkeypatch.setattr(library, "package", lambda: (_ for _ in ()).throw(ValueError("gguf is missing: pip install")))
    assert main(["to-gguf", str(runs("t5")), str(tmp_path / "out")]) == 1
    assert "pip install" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
