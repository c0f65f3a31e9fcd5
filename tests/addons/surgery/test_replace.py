"""`limba vocab replace` and `limba vocab extend`: rows of shared pieces are kept, the others are means."""

import json
import shutil

import numpy as np
import pytest
import sentencepiece
from sentencepiece import sentencepiece_model_pb2 as sentencepiece_pb2

from convert.model_files import any_format, trimmed_model
from convert.model_files.hf import hf_tokenizer
from convert.to_hf import to_hf
from limba.addons.surgery import extend as extending
from limba.addons.surgery import replace as replacing
from limba.addons.surgery import trimmed_logits
from limba.checkpoint_files import saved_tensors
from limba.checkpoints import checkpointing
from limba.files import disk
from tests.convert import vocabularies
from tests.convert.conftest import FAMILIES
from tests.convert.vocabularies import GREEK

ONE_LAYER = {"num_encoder_layers": 1, "num_decoder_layers": 1}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The old vocabulary, a new one of Greek and the old letters, and a corpus of Greek."""
    root = tmp_path_factory.mktemp("files")
    vocabularies.train(root / "old.model")
    (root / "greek.txt").write_text("\n".join(GREEK), "utf-8")
    text = [*GREEK, *vocabularies.sentences(400)]
    vocabularies.train(root / "new.model", text, vocab_size=156, character_coverage=1.0)
    return root


@pytest.fixture(scope="module")
def sources(new_run, files, tmp_path_factory):
    """A run with an output of its own, its folder, and a folder of mT5's layout, whose sentinels are pieces."""
    root = tmp_path_factory.mktemp("sources")
    run = new_run(root / "run", vocab_file=files / "old.model", **FAMILIES["t5_1_1"], **ONE_LAYER)
    to_hf(run, root / "folder", formats=["safetensors"], verify=False)
    shutil.copytree(root / "folder", root / "mt5")
    config = json.loads((root / "mt5/config.json").read_text("utf-8"))
    (root / "mt5/config.json").write_text(json.dumps(config | {"model_type": "mt5"}))
    with_own = vocabularies.with_sentinels(files / "old.model", 100)
    (root / "mt5.model").write_bytes(with_own)
    described = hf_tokenizer.describe(root / "mt5.model")
    hf_tokenizer.write(hf_tokenizer.from_vocabulary(described), root / "mt5", model_type="mt5")
    return root


@pytest.fixture(scope="module")
def replaced(sources, files, tmp_path_factory):
    out = tmp_path_factory.mktemp("replaced") / "run"
    words = [str(sources / "run"), str(out), "--vocab", str(files / "new.model"), "--corpus", str(files / "greek.txt")]
    assert replacing.main(words) == 0
    return out


def _as_it_is(file):
    """A vocabulary that sets no blank before a text."""
    model = sentencepiece_pb2.ModelProto.FromString(file.read_bytes())
    model.normalizer_spec.add_dummy_prefix = model.normalizer_spec.remove_extra_whitespaces = False
    return sentencepiece.SentencePieceProcessor(model_proto=model.SerializeToString())


def test_rows_are_those_of_the_same_piece_or_the_mean_of_its_parts(sources, files, replaced):
    old, new = (sentencepiece.SentencePieceProcessor(model_file=str(files / f"{x}.model")) for x in ("old", "new"))
    split = _as_it_is(files / "old.model")
    before, after = (checkpointing.load_params(x) for x in (sources / "run", replaced))
    for table in (lambda x: x["token_embedder"]["embedding"], lambda x: x["decoder"]["logits_dense"]["kernel"].T):
        a, b = np.array(table(before)), np.array(table(after))
        assert b.shape == (256, a.shape[1])  # 156 pieces and 100 sentinels
        kinds = {"same": 0, "means": 0, "unknown": 0}
        for i in range(3, 156):
            piece = new.id_to_piece(i)
            at = old.piece_to_id(piece)
            if at != 2:
                kinds["same"] += 1
                np.testing.assert_array_equal(b[i], a[at])
            elif 2 not in (parts := split.encode(piece)):
                kinds["means"] += 1
                np.testing.assert_allclose(b[i], a[parts].mean(0), atol=1e-6)
            else:
                kinds["unknown"] += 1
                np.testing.assert_allclose(b[i], a[:512].mean(0), atol=1e-6)
        assert kinds["same"] > 5 and kinds["unknown"] > 15
        for number in range(100):  # sentinels
            np.testing.assert_array_equal(b[255 - number], a[511 - number])
        np.testing.assert_array_equal(b[:3], a[:3])
    record = json.loads((replaced / "replace.json").read_text())
    assert record["largest_difference_of_logits"] == 0 and record["means_of_all"] == kinds["unknown"]
    assert record["same_pieces"] == 103 + kinds["same"]
    assert record["before"]["unknown"] > 0 and record["after"]["lines"] == len(GREEK)
    assert record["after"]["unknown"] == 0
    assert f"VOCAB_SIZE = {len(b)}\n" in (replaced / "model.gin").read_text()


def test_another_row_is_found(sources, files, replaced):
    """The proof can fail."""
    before, after = any_format.open_model(sources / "run"), any_format.open_model(replaced)
    rows = np.full(256, -1)
    rows[:3], rows[156:256] = range(3), np.arange(412, 512)
    texts = [np.arange(420, 440), np.arange(450, 470)]
    assert trimmed_logits.difference(before, after, rows, texts) == 0
    wrong = np.array(after.tensors[trimmed_model.OUTPUT])
    wrong[0, 170] += 1
    after.tensors[trimmed_model.OUTPUT] = saved_tensors.from_array(wrong)
    assert trimmed_logits.difference(before, after, rows, texts) > 0


def test_a_folder_with_more_pieces_loads_and_reads_greek(sources, files, tmp_path):
    from transformers import AutoTokenizer

    out = tmp_path / "out"
    words = [str(sources / "mt5"), str(out), "--corpus", str(files / "greek.txt"), "--pieces", "20", "--no-check"]
    assert extending.main(words) == 0
    tokenizer = AutoTokenizer.from_pretrained(out)
    model = sentencepiece.SentencePieceProcessor(model_file=str(out / "spiece.model"))
    assert tokenizer(GREEK[:2], add_special_tokens=False).input_ids == model.encode(GREEK[:2])
    assert len(model) == 412 + 20 + 100 and json.loads((out / "config.json").read_text())["vocab_size"] == 640
    assert tokenizer.convert_tokens_to_ids("<extra_id_0>") == 531
    record = json.loads((out / "extend.json").read_text())
    assert record["same_pieces"] == 512 and record["after"]["unknown"] < record["before"]["unknown"]


def test_bad_requests_write_nothing(sources, files, tmp_path, monkeypatch):
    run, greek, out = str(sources / "run"), [str(files / "greek.txt")], str(tmp_path / "out")
    vocabularies.train(tmp_path / "bpe.model", model_type="bpe")
    extend = extending.extend
    for call, message in (
        (lambda: replacing.replace(run, out, str(files / "old.model")), "there is nothing to replace"),
        (lambda: replacing.replace(run, out, "gone.model"), "gone.model"),
        (lambda: replacing.replace(run, out, str(files / "greek.txt")), "is not a SentencePiece model"),
        (lambda: extend(run, out, greek, 0), "--pieces is 0; it is at least 1"),
        (lambda: extend(run, out, greek, 100_000), "--pieces is 100000, and these texts do not give so many new"),
        (lambda: extend(run, out, ["gone.txt"], 10), "gone.txt"),
    ):
        with pytest.raises((ValueError, OSError), match=message):
            call()
    monkeypatch.setattr(trimmed_logits, "difference", lambda *_: float("nan"))
    with pytest.raises(ValueError, match=r"both vocabularies differ by nan .*; nothing is written"):
        replacing.replace(run, out, str(files / "new.model"))
    monkeypatch.setattr(disk, "free_bytes", lambda path: 1000)
    with pytest.raises(ValueError, match="GB are free there"):
        replacing.replace(run, out, str(files / "new.model"))
    assert [x.name for x in tmp_path.iterdir()] == ["bpe.model"]
