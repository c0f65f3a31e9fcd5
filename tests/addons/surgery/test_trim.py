"""`limba vocab trim`: fewer pieces, and for those that are kept the same tokens and logits."""

import contextlib
import dataclasses
import json
import shutil

import numpy as np
import pytest
import sentencepiece
from sentencepiece import sentencepiece_model_pb2 as sentencepiece_pb2

from convert.compare import forward
from convert.model_files import any_format, trimmed_model
from convert.model_files.hf import hf_tokenizer
from convert.to_hf import to_hf
from limba.addons.surgery import trim as trimming
from limba.addons.surgery import trimmed_logits
from limba.checkpoint_files import saved_tensors
from limba.checkpoints import checkpointing
from limba.files import disk
from tests.convert import vocabularies
from tests.convert.conftest import FAMILIES

torch = pytest.importorskip("torch")

MIN_COUNT = 20
ONE_LAYER = {"num_encoder_layers": 1, "num_decoder_layers": 1}

ALPHABETS = {
    "latin": "abcdefghijlmnoprstuvzăâîșț",
    "cyrillic": "абвгдежзиклмнопрстухцчшя",
    "greek": "αβγδεζηθικλμνξοπρστυφχψω",
}


def _sentences(alphabet, count, seed=0):
    rng = np.random.default_rng(seed)
    letters = [*ALPHABETS[alphabet]]
    syllables = ["".join(rng.choice(letters, 2)) for _ in range(80)]
    words = ["".join(rng.choice(syllables, rng.integers(1, 5))) for _ in range(300)]
    return [" ".join(rng.choice(words, 6)) for _ in range(count)]


@pytest.fixture(scope="module")
def spiece(tmp_path_factory):
    """412 pieces of three alphabets."""
    text = [line for alphabet in ALPHABETS for line in _sentences(alphabet, 400)]
    return vocabularies.train(tmp_path_factory.mktemp("three") / "spiece.model", text, character_coverage=1.0)


@pytest.fixture(scope="module")
def mt5_spiece(spiece):
    """The same with sentinels as its last pieces, as mT5 has them."""
    file = spiece.with_name("mt5.model")
    file.write_bytes(vocabularies.with_sentinels(spiece, 100))
    return file


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Latin, and a few lines of other alphabets, whose letters are seen less often than 20 times."""
    file = tmp_path_factory.mktemp("corpus") / "corpus.txt"
    file.write_text(
        "\n".join([*_sentences("latin", 300), *_sentences("cyrillic", 3), *_sentences("greek", 3)]), "utf-8"
    )
    return file


@pytest.fixture(scope="module")
def runs(new_run, spiece, tmp_path_factory):
    """A run of each family by name; T5 1.0's output is its embedding."""
    root = tmp_path_factory.mktemp("runs")
    return {
        family: new_run(
            root / family, vocab_file=spiece, **FAMILIES[family], **ONE_LAYER, scan_layers=family == "t5_1_1"
        )
        for family in ("t5", "t5_1_1")
    }


@pytest.fixture(scope="module")
def folders(runs, mt5_spiece, tmp_path_factory):
    """Hugging Face folders; mT5's has sentinels among its pieces."""
    root = tmp_path_factory.mktemp("folders")
    for family, run in runs.items():
        to_hf(run, root / family, formats=["safetensors"], verify=False)
    shutil.copytree(root / "t5_1_1", root / "mt5")
    config = json.loads((root / "mt5/config.json").read_text("utf-8"))
    (root / "mt5/config.json").write_text(json.dumps(config | {"model_type": "mt5"}))
    hf_tokenizer.write(hf_tokenizer.from_vocabulary(hf_tokenizer.describe(mt5_spiece)), root / "mt5", model_type="mt5")
    return {family: root / family for family in ("t5", "t5_1_1", "mt5")}


@pytest.fixture(scope="module")
def trimmed(folders, corpus, tmp_path_factory):
    """The folders, trimmed; mT5's is compared with transformers, and what is said of it is in the file `said`."""
    root = tmp_path_factory.mktemp("trimmed")
    for family in ("t5", "t5_1_1"):
        trimming.trim(str(folders[family]), str(root / family), [str(corpus)], min_count=MIN_COUNT, verify=False)
    words = [str(folders["mt5"]), str(root / "mt5"), "--corpus", str(corpus), "--min_count", str(MIN_COUNT)]
    with (root / "said").open("w") as said, contextlib.redirect_stdout(said):
        assert trimming.main(words) == 0
    return {family: root / family for family in folders}


@pytest.fixture(scope="module")
def trimmed_run(runs, corpus, tmp_path_factory):
    out = tmp_path_factory.mktemp("trimmed_run") / "run"
    words = [str(runs["t5_1_1"]), str(out), "--corpus", str(corpus), "--min_count", str(MIN_COUNT)]
    assert trimming.main(words) == 0
    return out


def _record(folder):
    return json.loads((folder / "trim.json").read_text("utf-8"))


def _kept_rows(folder, is_mt5):
    """The old ids of the new ones."""
    kept = _record(folder)["kept"]
    return np.array(kept if is_mt5 else [*kept, *range(vocabularies.NUM_PIECES, vocabularies.NUM_PIECES + 100)])


@pytest.mark.parametrize("family", ["t5", "t5_1_1", "mt5"])
def test_logits_are_those_of_the_untrimmed_model(folders, trimmed, family):
    from transformers import AutoModelForSeq2SeqLM

    rows = _kept_rows(trimmed[family], family == "mt5")
    assert len(rows) % 128 == 0 and len(rows) < 512
    old, new = (AutoModelForSeq2SeqLM.from_pretrained(x[family]).eval() for x in (folders, trimmed))
    assert new.config.vocab_size == new.get_input_embeddings().num_embeddings == len(rows)
    rng = np.random.default_rng(0)
    tokens = [rng.integers(3, len(rows), (2, length)) for length in (20, 7)]
    with torch.no_grad():
        after, before = (
            model(input_ids=torch.tensor(ids[0]), decoder_input_ids=torch.tensor(ids[1])).logits.numpy()
            for model, ids in ((new, tokens), (old, [rows[ids] for ids in tokens]))
        )
    assert np.abs(after).max() > 0.1
    np.testing.assert_array_equal(after, before[..., rows])
    # And in Limba.
    batch = dict(zip(("encoder_input_tokens", "decoder_input_tokens"), tokens, strict=True))
    batch["decoder_target_tokens"] = tokens[1]
    opened = [any_format.open_model(x[family]) for x in (folders, trimmed)]
    before, after = (
        forward.logits(model.config, model.tensors, ids)
        for model, ids in zip(opened, ({name: rows[ids] for name, ids in batch.items()}, batch), strict=True)
    )
    np.testing.assert_array_equal(after, before[..., rows])


def test_a_folder_is_compared_with_transformers(trimmed):
    out = trimmed["mt5"].with_name("said").read_text().splitlines()
    assert ["rows", "of", "the", "embedding", "512", "256"] in [line.split() for line in out]
    assert "the logits of all pieces that are kept differ by 0 on 3 lines." in out[-1]


@pytest.mark.parametrize("family", ["t5_1_1", "mt5"])
def test_tokenizer_json_equals_sentencepiece(trimmed, family, tmp_path):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(trimmed[family])
    model = sentencepiece.SentencePieceProcessor(model_file=str(trimmed[family] / "spiece.model"))
    texts = [line for alphabet in ALPHABETS for line in _sentences(alphabet, 30, seed=1)]
    assert tokenizer(texts, add_special_tokens=False).input_ids == model.encode(texts)
    # Sentinels are blanks, and their rows are where T5 looks for them.
    ids = tokenizer("<extra_id_0> și <extra_id_99>", add_special_tokens=False).input_ids
    assert (ids[0], ids[-1]) == (len(tokenizer) - 1, len(tokenizer) - 100) and len(tokenizer) % 128 == 0


def test_the_model_keeps_order_scores_and_normalizer(spiece, trimmed):
    old, new = (
        sentencepiece_pb2.ModelProto.FromString(file.read_bytes()) for file in (spiece, trimmed["t5"] / "spiece.model")
    )
    kept = _record(trimmed["t5"])["kept"]
    assert kept == sorted(kept) and kept[:3] == [0, 1, 2] and len(kept) + 100 == 256
    assert [*new.pieces] == [old.pieces[i] for i in kept]
    assert new.normalizer_spec == old.normalizer_spec and new.trainer_spec.vocab_size == len(kept)


def test_characters_that_were_trimmed_are_unknown_and_counted(trimmed, corpus, spiece):
    record = _record(trimmed["t5"])
    assert (record["before"]["unknown"], record["before"]["lines"]) == (0, 306)
    model = sentencepiece.SentencePieceProcessor(model_file=str(trimmed["t5"] / "spiece.model"))
    tokens = model.encode(corpus.read_text("utf-8").splitlines())
    assert record["after"]["unknown"] == sum(ids.count(2) for ids in tokens) > 0
    assert not any(2 in ids for ids in tokens[:300])
    assert record["after"]["tokens"] == sum(map(len, tokens)) > 0
    assert 290 < record["lines_with_the_same_tokens"] <= 300 and record["largest_difference_of_logits"] == 0
    assert {*model.encode(" ".join(ALPHABETS["latin"]))}.isdisjoint({2})


def test_a_run_stays_a_run(runs, trimmed_run, tmp_path, capsys):
    rows = _kept_rows(trimmed_run, False)
    assert sorted(x.name for x in trimmed_run.iterdir()) == ["checkpoint_10", "model.gin", "spiece.model", "trim.json"]
    assert f"VOCAB_SIZE = {len(rows)}\n" in (trimmed_run / "model.gin").read_text()
    old, new = (checkpointing.load_params(run) for run in (runs["t5_1_1"], trimmed_run))
    np.testing.assert_array_equal(new["token_embedder"]["embedding"], old["token_embedder"]["embedding"][rows])
    kernels = [x["decoder"]["logits_dense"]["kernel"] for x in (old, new)]
    np.testing.assert_array_equal(kernels[1], kernels[0][:, rows])
    assert "encoder" in new["encoder"]  # scanned, as it was
    assert not [x for x in (trimmed_run / "checkpoint_10").rglob("*") if "param_states" in x.name]
    # To Hugging Face, with its check in transformers.
    report = to_hf(trimmed_run, tmp_path / "export", formats=["safetensors"])
    assert {row["what"] for row in report["comparisons"]["safetensors"]} >= {"tokenizers not loaded"}
    assert json.loads((tmp_path / "export/config.json").read_text())["vocab_size"] == len(rows)


def test_another_row_is_found(runs, trimmed_run):
    """The proof can fail."""
    before, after = any_format.open_model(runs["t5_1_1"]), any_format.open_model(trimmed_run)
    rows = _kept_rows(trimmed_run, False)
    texts = [rows[10:20], rows[30:33]]
    assert trimmed_logits.difference(before, after, rows, texts) == 0
    for name in (trimmed_model.EMBEDDING, trimmed_model.OUTPUT):
        wrong = np.array(after.tensors[name])
        wrong.flat[15 * wrong.shape[1] + 15] += 1
        changed = dataclasses.replace(after, tensors={**after.tensors, name: saved_tensors.from_array(wrong)})
        assert trimmed_logits.difference(before, changed, rows, texts) > 0


# -------------------------------------------------------- errors ------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"corpus": ["nowhere.txt"]}, "nowhere.txt"),
        ({"corpus": "empty"}, "no document"),
        ({"corpus": "blank"}, "no text in the column 'text': nothing to count"),
        ({"size": 200}, "--size is 200; give a multiple of 128, such as 256"),
        ({"size": 128}, r"--size is 128, and \d+ ids are always kept .*; give --size 256 or more"),
        ({"min_count": 0}, "--min_count is 0; it is at least 1"),
        ({"min_count": 1, "corpus": "all"}, "Nothing can be trimmed: the corpus uses .* of 412 pieces"),
        ({"source": "nowhere"}, "nowhere"),
    ],
)
def test_bad_requests(folders, corpus, tmp_path, words, message):
    texts = {"empty": "", "blank": " \n\n", "all": "\n".join(x for a in ALPHABETS for x in _sentences(a, 400))}
    for name, text in texts.items():
        (tmp_path / f"{name}.txt").write_text(text, "utf-8")
    values = {"source": str(folders["t5"]), "corpus": [str(corpus)]} | words
    if isinstance(values["corpus"], str):
        values["corpus"] = [str(tmp_path / f"{values['corpus']}.txt")]
    with pytest.raises((ValueError, OSError), match=message):
        trimming.trim(out=str(tmp_path / "out"), **values)
    assert sorted(x.name for x in tmp_path.iterdir()) == ["all.txt", "blank.txt", "empty.txt"]


def test_sources_that_cannot_be_trimmed(folders, corpus, new_run, tmp_path):
    bpe = tmp_path / "bpe"
    byt5 = new_run(tmp_path / "byt5", vocab_file=None, **FAMILIES["byt5"], **ONE_LAYER)
    vocabularies.train(tmp_path / "bpe.model", model_type="bpe")
    new_run(bpe, vocab_file=tmp_path / "bpe.model", **ONE_LAYER)
    without, out = tmp_path / "without", tmp_path / "out"
    shutil.copytree(folders["t5_1_1"], without, ignore=shutil.ignore_patterns("spiece.model", "tokenizer*.json"))
    (without / "conversion_report.json").unlink(missing_ok=True)
    for source, message in (
        (without, "without has no SentencePiece model: copy the one .* there, as spiece.model"),
        (byt5, "reads bytes .byT5.: its vocabulary has 384 ids, and none of them is a piece"),
        (bpe, "is of kind BPE, whose pieces are made of each other; only UNIGRAM can get fewer or more"),
    ):
        with pytest.raises((ValueError, FileNotFoundError), match=message):
            trimming.trim(str(source), str(out), [str(corpus)])
    assert not out.exists()


def test_nothing_is_written_where_it_cannot_be(folders, runs, corpus, tmp_path, monkeypatch):
    full = tmp_path / "full"
    full.mkdir()
    (full / "mine.txt").write_text("mine")
    words = {"corpus": [str(corpus)], "min_count": MIN_COUNT}
    with pytest.raises(ValueError, match="full is not empty; choose another OUT, or remove it"):
        trimming.trim(str(folders["t5"]), str(full), **words)
    with monkeypatch.context() as patch:
        patch.setattr(disk, "free_bytes", lambda path: 1000)
        with pytest.raises(ValueError, match=r"out needs 0\.02 GB, and 0\.00 GB are free there"):
            trimming.trim(str(runs["t5"]), str(tmp_path / "out"), **words)
    monkeypatch.setattr(trimmed_logits, "difference", lambda *_: float("nan"))
    with pytest.raises(ValueError, match=r"Logits of pieces that are kept differ by nan .*; nothing is written"):
        trimming.trim(str(folders["t5"]), str(tmp_path / "out"), **words)
    assert [x.name for x in tmp_path.iterdir()] == ["full"] and [x.name for x in full.iterdir()] == ["mine.txt"]
