import json

import pytest
import transformers
from sentencepiece import sentencepiece_model_pb2
from tokenizers import ByteLevelBPETokenizer

from convert.compare import transformers_library
from convert.model_files.hf import hf_tokenizer
from limba.addons.surgery import check as check_vocabulary
from tests.convert import vocabularies


@pytest.fixture(scope="module")
def spiece(tmp_path_factory):
    return vocabularies.train(tmp_path_factory.mktemp("vocabulary") / "spiece.model")


@pytest.fixture(scope="module")
def mt5(spiece):
    """With its 100 sentinels as its last pieces."""
    path = spiece.with_name("mt5.model")
    path.write_bytes(vocabularies.with_sentinels(spiece, 100))
    return path


@pytest.fixture
def folder(spiece, tmp_path):
    """A Hugging Face folder of 512 ids."""
    hf_tokenizer.write(hf_tokenizer.from_vocabulary(hf_tokenizer.describe(spiece)), tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "t5", "vocab_size": 512}))
    return tmp_path


def _check(capsys, *arguments):
    """The exit code, the table as lists of cells, and what disagrees."""
    code = check_vocabulary.main([*map(str, arguments)])
    lines = capsys.readouterr().out.splitlines()
    cells = {line.split("  ")[0]: [c.strip() for c in line.split("  ")[1:] if c.strip()] for line in lines}
    return code, cells, [line.removeprefix("DISAGREES: ") for line in lines if line.startswith("DISAGREES")]


def test_a_new_model_agrees_everywhere(spiece, capsys):
    code, table, problems = _check(capsys, spiece)
    assert (code, problems) == (0, [])
    assert table[""] == ["SentencePiece", "SeqIO, extra_ids=100", "HF fast", "HF slow", "embedding"]
    assert table["<pad>"] == ["0"] * 4 and table["</s>"] == ["1"] * 4 and table["<unk>"] == ["2"] * 4
    assert table["<extra_id_0>"] == ["-", "511", "511", "511"]
    assert table["<extra_id_99>"] == ["-", "412", "412", "412"]
    assert table["ids"] == ["412", "512", "512", "512", "not known"]
    assert "what was compared agrees; T5Config.vocab_size = 512 has a row for each" in table
    beside = {key.split(" in ")[1]: key for key in table if key.startswith("differs: Beside sentinels, ")}
    # "(<extra_id_0>)" is text for SentencePiece, which knows a sentinel only behind a space.
    assert "1 of 5 texts have other tokens" in beside["HF fast than"]
    # And the slow tokenizer drops the line break behind a sentinel, in spite of `legacy: false`.
    assert (
        "2 of 5 texts have other tokens" in beside["HF slow than"]
        and r"'a <extra_id_0>\nb' is" in beside["HF slow than"]
    )


def test_ties_are_named_and_no_disagreement(tmp_path, capsys):
    code, table, _ = _check(capsys, vocabularies.with_ties(tmp_path / "x.model"))
    differs = [line for line in table if line.startswith("differs: ") and "of the same likelihood" in line]
    assert code == 0 and {line.partition("which ")[2][:7] for line in differs} >= {"HF fast"}, table
    assert any(line.startswith("what was compared agrees") for line in table), table


def test_the_first_and_the_last_line_count_unknown_characters(spiece, tmp_path, capsys):
    """A token may stand for many of them."""
    (tmp_path / "a.txt").write_text("a line\nԱԲԱԲԱ ԲԱ\n", "utf-8")
    flags = ("--data_files", tmp_path / "a.txt", "--max_unknown", "1")
    code, table, _ = _check(capsys, spiece, *flags)
    (last,) = (line for line in table if line.startswith("what was compared agrees"))
    (first,) = (line for line in table if line.startswith("2 texts"))
    assert first.startswith("2 texts have 7 unknown characters, and ") and ", 2 of them unknown (" in first
    assert code == 0 and last.endswith("has a row for each; but 7 characters of your text are unknown, see above")


@pytest.mark.parametrize("known, share, code", [(1, "8.3%", 1), (10, "1.0%", 0)])
def test_a_text_that_is_unknown_is_no_agreement(spiece, known, share, code, tmp_path, capsys):
    """A private-use character beside eleven letters; as tokens it is less than one of fifty only in the longer text."""
    (tmp_path / "a.txt").write_text("badulumabad\ue000\n" + "badulumabad\n" * (known - 1), "utf-8")
    found, table, problems = _check(capsys, spiece, "--data_files", tmp_path / "a.txt", "--max_unknown", "0.05")
    assert (found, problems) == (code, [])
    said = [line for line in table if line.startswith("UNKNOWN: ")]
    assert len(said) == code and any("agrees" in line for line in table) is not bool(code)


def test_unknown_control_characters_are_named_with_their_place(spiece, tmp_path, capsys):
    (tmp_path / "a.txt").write_text("a line\nbadu \x80\x80 lu\x85\nma\x80 lu\n", "utf-8")
    code, table, _ = _check(capsys, spiece, "--data_files", tmp_path / "a.txt", "--max_unknown", "1")
    (first,) = (line for line in table if line.startswith("3 texts"))
    assert first.startswith("3 texts have 4 unknown characters, and ") and ", 3 of them unknown (" in first
    (named,) = (line for line in table if line.startswith("other unknown"))
    place = rf"first in {tmp_path / 'a.txt'}, row 1: 'badu \x80\x80 lu'"
    assert named == rf"other unknown characters: '\x80' 3 times, {place}; '\x85' 1 time, {place}"
    assert not any(line.startswith("unknown: ") for line in table)
    (last,) = (line for line in table if line.startswith("what was compared agrees"))
    assert code == 0 and last.endswith("; but 4 characters of your text are unknown, see above")


def test_a_t5_with_a_tokenizer_json_alone_has_no_slow_tokenizer(folder, capsys):
    (folder / "spiece.model").unlink()
    code, table, problems = _check(capsys, folder)
    assert (code, problems) == (0, []) and table[""][-2:] == ["HF fast", "embedding"]
    assert "HF slow: has none, as there is no spiece.model" in table
    assert not any("does not load" in line or line.startswith("not compared") for line in table)


def test_a_model_with_sentinels_of_its_own(mt5, capsys):
    code, table, problems = _check(capsys, mt5)
    assert (code, problems) == (0, [])
    assert table["<extra_id_0>"] == ["511"] * 4 and table["ids"][:4] == ["512"] * 4
    code, table, problems = _check(capsys, mt5, "--extra_ids=100")
    assert code == 1
    (problem,) = problems
    assert problem.startswith("SeqIO does not open it with extra_ids=100: ")
    assert "It has sentinels of its own: open it with extra_ids=0." in problem


def test_an_embedding_too_small_and_no_sentinels(spiece, capsys):
    code, _, problems = _check(capsys, spiece, "--embedding_rows=500")
    assert code == 1
    (problem,) = problems
    assert "The embedding has 500 rows for 512 ids" in problem and "T5Config.vocab_size to 512 or more" in problem
    code, _, problems = _check(capsys, spiece, "--extra_ids=0")
    assert code == 1 and problems == ["There are no sentinels with extra_ids=0. Open it with extra_ids=100."]


def test_other_special_ids(tmp_path, capsys):
    file = vocabularies.train(tmp_path / "x.model", pad_id=3, unk_id=0, bos_id=1, eos_id=2)
    code, table, problems = _check(capsys, file)
    assert code == 1
    assert table["</s>"][0] == "2"
    assert "</s> is 2 in SentencePiece, and 1 in T5. Train a new one with `limba vocab build`." in problems
    assert any(key.startswith("HF fast: cannot be written: ") for key in table)


def test_sentinels_in_another_order(spiece, tmp_path, capsys):
    """Symbols of the user's own, upward from <extra_id_0>, behind which SeqIO adds its own."""
    model = sentencepiece_model_pb2.ModelProto.FromString(spiece.read_bytes())
    for i in range(100):
        kind = sentencepiece_model_pb2.ModelProto.SentencePiece.USER_DEFINED
        model.pieces.add(piece=f"<extra_id_{i}>", score=0.0, type=kind)
    file = tmp_path / "upward.model"
    file.write_bytes(model.SerializeToString())
    code, _, problems = _check(capsys, file, "--extra_ids=100")
    assert code == 1
    assert problems[0] == (
        "<extra_id_0> is 412 in SentencePiece, and 611 in SeqIO with extra_ids=100. It has sentinels of its own: open "
        "it with extra_ids=0."
    )
    code, table, _ = _check(capsys, file)
    assert table[""][:2] == ["SentencePiece", "training"] and table["<extra_id_0>"][:3] == ["412"] * 3


def test_a_hugging_face_folder(folder, capsys):
    code, table, problems = _check(capsys, folder)
    assert (code, problems) == (0, [])
    assert table["ids"] == ["412", "512", "512", "512", "512"]


def test_a_run_of_ours(new_run, tmp_path, capsys):
    new_run(tmp_path / "run")
    code, table, problems = _check(capsys, tmp_path / "run")
    assert (code, problems) == (0, [])
    assert table["ids"] == ["412", "512", "512", "512", "512"]
    new_run(tmp_path / "bytes", vocab_file=None, vocab_size=256)
    code, table, problems = _check(capsys, tmp_path / "bytes")
    assert code == 1 and table["ids"][-1] == "256"
    assert any("The embedding has 256 rows for " in problem for problem in problems)


def test_a_folder_whose_fast_tokenizer_is_another(folder, capsys):
    fast = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    vocab = fast["model"]["vocab"]
    vocab[10][0], vocab[11][0] = vocab[11][0], vocab[10][0]
    for token in fast["added_tokens"]:
        if token["content"] in ("<extra_id_0>", "<extra_id_1>"):
            token["id"] = 511 + 510 - token["id"]
    (folder / "tokenizer.json").write_text(json.dumps(fast), "utf-8")
    code, _, problems = _check(capsys, folder)
    assert code == 1
    assert "holds two vocabularies: id 10 is" in problems[0]
    assert any("in HF fast, and" in problem and "`limba convert to-hf`" in problem for problem in problems[1:])


def test_without_transformers(spiece, capsys, monkeypatch):
    monkeypatch.setattr(transformers_library, "version", lambda: None)
    code, table, _ = _check(capsys, spiece)
    assert code == 0
    assert "HF fast: transformers is not installed" in table and table["ids"] == ["412", "512", "not known"]
    assert "not compared: HF fast (transformers is not installed)" in table
    assert "what was compared agrees; T5Config.vocab_size = 512 has a row for each" in table


def test_bytes_of_a_folder(tmp_path, capsys):
    hf_tokenizer.write(hf_tokenizer.Tokenizer(None, hf_tokenizer.NUM_BYTE_IDS, 125), tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "t5", "vocab_size": 384}))
    code, table, problems = _check(capsys, tmp_path)
    assert (code, problems) == (0, [])
    assert table[""] == ["SeqIO, extra_ids=125", "HF slow", "embedding"]
    assert table["<extra_id_0>"] == ["383", "383"] and table["ids"] == ["384", "384", "384"]


def test_what_is_no_vocabulary(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"Give a SentencePiece model, a tokenizer\.json, a checkpoint, "):
        check_vocabulary.open_vocabulary(str(tmp_path / "gone"))
    (tmp_path / "text.model").write_text("words")
    (tmp_path / "nothing.model").touch()
    for name in ("text.model", "nothing.model"):
        with pytest.raises(ValueError, match="is not a SentencePiece model"):
            check_vocabulary.open_vocabulary(str(tmp_path / name))
    for flag in ("--extra_ids=-5", "--embedding_rows=0"):
        with pytest.raises(SystemExit, match="2"):
            check_vocabulary.main([str(tmp_path / "text.model"), flag])
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="No checkpoint at"):
        check_vocabulary.open_vocabulary(str(tmp_path / "empty"))


def test_a_folder_with_two_tokenizers(folder, capsys):
    """transformers' own class makes such a folder of a spiece.model."""
    fast = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    fast["pre_tokenizer"]["prepend_scheme"] = "never"
    (folder / "tokenizer.json").write_text(json.dumps(fast), "utf-8")
    code, table, problems = _check(capsys, folder)
    assert code == 1 and table[""] == ["training", "HF fast", "HF slow", "embedding"]
    assert "texts have other tokens in tokenizer.json than in spiece.model: '" in problems[0]
    assert problems[0].endswith("transformers reads tokenizer.json.")
    assert not any("HF fast" in problem for problem in problems) and not any("agree" in key for key in table)
    # As a file, it is compared with transformers alone.
    (folder / "spiece.model").unlink()
    code, table, problems = _check(capsys, folder / "tokenizer.json")
    assert table[""][:2] == ["training", "HF fast"] and table["ids"][:2] == ["512", "512"]


def test_tokens_that_were_added_behind_the_pieces_are_no_difference_of_the_files(folder, capsys):
    """The SentencePiece model has no name for them, either."""
    fast = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    fast["added_tokens"].append({**fast["added_tokens"][0], "id": 512, "content": "{", "special": False})
    (folder / "tokenizer.json").write_text(json.dumps(fast), "utf-8")
    (folder / "config.json").write_text(json.dumps({"model_type": "t5", "vocab_size": 513}))
    _, table, problems = _check(capsys, folder)
    assert table["ids"][:2] == ["513", "513"] and table["ids"][-1] == "513"
    assert not any("tokenizer.json than in spiece.model" in problem for problem in problems)
    # Without a tokenizer.json the list of added tokens says the same.
    (folder / "tokenizer.json").unlink()
    (folder / "added_tokens.json").write_text(json.dumps({"{": 512}))
    assert _check(capsys, folder)[1]["ids"][0] == "513"


def test_what_differs_beside_sentinels_and_accents_is_no_disagreement(folder, capsys):
    """As in what transformers 4 saves with `legacy`, without the steps that compose letters."""
    fast = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    fast["pre_tokenizer"]["prepend_scheme"] = "always"
    steps = [step for step in fast["normalizer"]["normalizers"] if step["type"] != "NFC"]
    fast["normalizer"]["normalizers"] = steps
    (folder / "tokenizer.json").write_text(json.dumps(fast), "utf-8")
    code, table, problems = _check(capsys, folder)
    assert (code, problems) == (0, [])
    said = [key for key in table if key.startswith("differs: ")]
    assert any(line.startswith("differs: Of letters apart from their accents, ") for line in said)
    assert any("'<extra_id_0>.' is [511, 3, " in line and "in HF fast, and [511, " in line for line in said)
    assert "what was compared agrees" in table


def test_an_encoder_that_transformers_cannot_load_is_not_compared(tmp_path, capsys):
    file = vocabularies.write_words(tmp_path / "words.json", ["one", "two"])
    code, table, problems = _check(capsys, file)
    assert (code, problems) == (0, [])
    assert "not compared: transformers (looks for tokenizer.json, and the file is words.json)" in table
    assert "what was compared agrees; EncoderConfig.vocab_size = 128 has a row for each" in table


def test_a_t5_with_bpe_is_no_encoder(tmp_path, capsys):
    """It needs no [CLS] and no [MASK]."""
    tokenizer = ByteLevelBPETokenizer()
    special = ["<pad>", "</s>", "<unk>", *(f"<extra_id_{i}>" for i in reversed(range(100)))]
    tokenizer.train_from_iterator(["the house is big"] * 9, vocab_size=400, special_tokens=special)
    names = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer._tokenizer, **names).save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "t5", "vocab_size": 512}))
    code, table, problems = _check(capsys, tmp_path)
    assert (code, problems) == (0, []) and table["<extra_id_0>"] == ["102", "102"]
