"""Hugging Face's tokenizers give SentencePiece's ids on what is exported, and folders are read as what they are."""

import dataclasses
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import sentencepiece
from sentencepiece import sentencepiece_model_pb2 as sentencepiece_pb2

from convert.model_files.hf import folder_tokenizer, hf_tokenizer
from tasks.vocabularies import SentencePieceVocabulary
from tests.convert import vocabularies
from tests.convert.vocabularies import NUM_PIECES

SENTINELS_AND_PUNCTUATION = [
    "ba <extra_id_0>. Ce",
    "<extra_id_0>, ba <extra_id_1>; ce <extra_id_2>",
    "a <extra_id_3>ba",
]
# With 256 bytes.
NUM_PIECES_AND_BYTES = 640
KINDS = ["t5", "mt5", "umt5", "one", "none", "identity", "byt5", "byt5_125", "byt5_0"]
INPUTS_LENGTH = 96
BYTE_KINDS = ["byt5", "byt5_125", "byt5_0"]


def vocabulary(file: Path, extra_ids: int = 100, **fields) -> dict:
    return {
        "class": "SentencePieceVocabulary",
        "sentencepiece_model_file": str(file),
        "extra_ids": extra_ids,
        "vocab_size": sentencepiece.SentencePieceProcessor(model_file=str(file)).vocab_size() + extra_ids,
    } | fields


def byte_vocabulary(extra_ids: int, **fields) -> dict:
    return {
        "class": "ByteVocabulary",
        "sentencepiece_model_file": None,
        "extra_ids": extra_ids,
        "vocab_size": 259 + extra_ids,
    } | fields


@dataclasses.dataclass
class Kind:
    """An exported tokenizer, and what SeqIO's vocabulary makes of a text."""

    name: str
    folder: Path
    vocabulary: dict
    encode: Callable[[str], list[int]]
    sentinels: int


def byte_ids(text: str, extra_ids: int) -> list[int]:
    """UTF-8, and sentinels where `<extra_id_0>` stands, counted down from the last id."""
    ids = []
    for part in re.split(r"(<extra_id_\d+>)", text):
        sentinel = re.fullmatch(r"<extra_id_(\d+)>", part)
        if sentinel and int(sentinel[1]) < extra_ids:
            ids.append(259 + extra_ids - 1 - int(sentinel[1]))
        else:
            ids += [byte + 3 for byte in part.encode()]
    return ids


@pytest.fixture(scope="module")
def models(spiece_model, tmp_path_factory) -> dict[str, Path]:
    """Like T5's, mT5's (bytes, and sentinels as pieces) and umT5's, and one that normalizes nothing."""
    folder = tmp_path_factory.mktemp("models")
    umt5 = vocabularies.train(folder / "umt5.model", vocab_size=NUM_PIECES_AND_BYTES, byte_fallback=True)
    (folder / "mt5.model").write_bytes(vocabularies.with_sentinels(umt5, 100))
    identity = vocabularies.train(folder / "identity.model", normalization_rule_name="identity")
    return {"t5": spiece_model, "mt5": folder / "mt5.model", "umt5": umt5, "identity": identity}


@pytest.fixture(scope="module")
def kinds(models, tmp_path_factory) -> dict[str, Kind]:
    result = {}
    for name, model, extra_ids in (
        *[("t5", "t5", 100), ("mt5", "mt5", 0), ("umt5", "umt5", 300)],
        *[("one", "t5", 1), ("none", "t5", 0), ("identity", "identity", 100)],
        *[("byt5", None, 100), ("byt5_125", None, 125), ("byt5_0", None, 0)],
    ):
        folder = tmp_path_factory.mktemp(name)
        described = vocabulary(models[model], extra_ids) if model else byte_vocabulary(extra_ids)
        family = name if name in ("mt5", "umt5") else "t5"
        tokenizer = hf_tokenizer.from_vocabulary(described)
        hf_tokenizer.write(tokenizer, folder, model_type=family, inputs_length=INPUTS_LENGTH)
        (folder / "config.json").write_text(json.dumps({"model_type": family}))
        if model:
            proto = vocabularies.with_sentinels(models[model], extra_ids)
            encode = sentencepiece.SentencePieceProcessor(model_proto=proto).encode
            described["sentencepiece_model_file"] = str(folder / "spiece.model")
        else:
            encode = lambda text, extra_ids=extra_ids: byte_ids(text, extra_ids)  # noqa: E731
        result[name] = Kind(name, folder, described, encode, 100 if name == "mt5" else extra_ids)
    return result


@pytest.fixture(params=KINDS)
def kind(request, kinds) -> Kind:
    return kinds[request.param]


@pytest.fixture(scope="module")
def all_texts(texts) -> list[str]:
    return [*texts, *SENTINELS_AND_PUNCTUATION, "<extra_id_0><extra_id_1>bytes \x00\x7fé"]


def texts_for(kind: Kind, all_texts: list[str]) -> list[str]:
    """SentencePiece knows a sentinel only behind a space, and a line break is one only after normalization."""
    if kind.name in BYTE_KINDS:
        return all_texts
    return [text for text in all_texts if "\x00" not in text and not (kind.name == "identity" and ">\n<" in text)]


# ------------------------------------------------------- export ------------------------------------------------------


def test_ids_are_those_of_seqio_and_eos(kind, all_texts):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(kind.folder)
    size = kind.vocabulary["vocab_size"]
    assert tokenizer.is_fast == (kind.name not in BYTE_KINDS)
    assert len(tokenizer) == size
    for i in range(kind.sentinels):
        assert tokenizer.convert_tokens_to_ids(f"<extra_id_{i}>") == size - 1 - i
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id) == (0, 1, 2)
    for text in texts_for(kind, all_texts):
        assert tokenizer(text).input_ids == [*kind.encode(text), 1], text
    assert set(tokenizer("a")) == {"input_ids", "attention_mask"}  # what T5 is called with


@pytest.mark.parametrize("name", ["t5", "mt5", "umt5", "none"])
@pytest.mark.parametrize("tokenizer_class", ["T5Tokenizer", "MT5Tokenizer", "T5TokenizerFast"])
def test_classes_asked_for_by_name_give_the_same_ids(kinds, name, tokenizer_class, all_texts):
    import transformers

    kind = kinds[name]
    tokenizer = getattr(transformers, tokenizer_class).from_pretrained(kind.folder)
    assert tokenizer.is_fast == tokenizer_class.endswith("Fast")
    assert len(tokenizer) == kind.vocabulary["vocab_size"]
    for text in texts_for(kind, all_texts):
        assert tokenizer(text).input_ids == [*kind.encode(text), 1], text


def test_a_decoded_text_is_the_text(kind, sentences):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(kind.folder)
    emoji = ["emoji 😀 日本語"] if kind.name in ("mt5", "umt5", *BYTE_KINDS) else []
    for text in [*sentences, *emoji]:
        assert tokenizer.decode(tokenizer(text).input_ids, skip_special_tokens=True) == text


@pytest.fixture(scope="module")
def in_transformers5(kinds, all_texts, forks5, tmp_path_factory) -> dict:
    """What transformers 5 makes of every kind; it saves them as `saved_by_5` in their folders."""
    directory = tmp_path_factory.mktemp("transformers5")
    request = {str(kind.folder): texts_for(kind, all_texts) for kind in kinds.values()}
    (directory / "request.json").write_text(json.dumps(request))
    script = Path(__file__).with_name("tokenize_in_transformers5.py")
    done = forks5.run(script, directory / "request.json", directory / "out.json")
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads((directory / "out.json").read_text())


@pytest.mark.slow
def test_transformers_5_gives_the_same_ids(kind, all_texts, in_transformers5):
    result = in_transformers5[str(kind.folder)]
    size = kind.vocabulary["vocab_size"]
    assert result["size"] == size
    if kind.sentinels:
        assert result["sentinel"] == size - 1
    assert result["class"] == CLASSES.get(kind.name, ("", "ByT5Tokenizer"))[1]
    for text, ids in zip(texts_for(kind, all_texts), result["ids"], strict=True):
        if result["class"] == "T5Tokenizer":  # It sets a space behind a sentinel, as for every T5 in version 5.
            known = "|".join(f"<extra_id_{i}>" for i in range(kind.sentinels)) or "$."
            text = re.sub(rf"({known})(?=\S)(?!<)", r"\1 ", text)
        assert ids == [*kind.encode(text), 1], text


# Of versions 4 and 5: T5's own where it gives a text the tokens of tokenizer.json, else the general ones.
CLASSES = {
    **dict.fromkeys(("t5", "one", "none"), ("T5TokenizerFast", "T5Tokenizer")),
    "umt5": ("T5TokenizerFast", "TokenizersBackend"),
    **dict.fromkeys(("mt5", "identity"), ("PreTrainedTokenizerFast", "TokenizersBackend")),
}


@pytest.mark.slow
def test_transformers_5_knows_the_special_tokens(kind, in_transformers5):
    result = in_transformers5[str(kind.folder)]
    assert {"<pad>", "</s>", "<unk>"} | {f"<extra_id_{i}>" for i in range(kind.sentinels)} == {*result["special"]}
    if kind.sentinels:
        assert result["decoded"].split() == ["ba", "ce"] or kind.name in BYTE_KINDS
    assert result["most"] == INPUTS_LENGTH


def test_transformers_4_knows_the_special_tokens(kind):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(kind.folder)
    assert type(tokenizer).__name__ == CLASSES.get(kind.name, ("ByT5Tokenizer",))[0]
    assert tokenizer.model_max_length == INPUTS_LENGTH
    sentinels = [f"<extra_id_{i}>" for i in range(kind.sentinels)]
    assert tokenizer.additional_special_tokens == sentinels
    config = json.loads((kind.folder / "tokenizer_config.json").read_text())
    assert config["extra_ids"] == kind.vocabulary["extra_ids"]
    for sentinel in sentinels[:2]:
        ids = tokenizer(f"ba {sentinel} ce").input_ids
        assert sentinel in tokenizer.decode(ids)
        assert tokenizer.decode(ids, skip_special_tokens=True).split() == ["ba", "ce"]


def test_an_unusual_model_gets_a_warning(tmp_path):
    file = vocabularies.train(
        tmp_path / "x.model", model_type="bpe", remove_extra_whitespaces=False, user_defined_symbols=["<sep>"]
    )
    tokenizer = hf_tokenizer.from_vocabulary(vocabulary(file))
    (warning,) = tokenizer.warnings
    assert "is not a unigram model and keeps repeated spaces and has symbols defined by its user ('<sep>')" in warning
    hf_tokenizer.write(tokenizer, tmp_path)
    assert json.loads((tmp_path / "tokenizer_config.json").read_text())["tokenizer_class"] == "T5Tokenizer"
    assert not (tmp_path / "tokenizer.json").exists()


def test_usual_models_get_none(models):
    for name, model in models.items():
        assert not hf_tokenizer.from_vocabulary(hf_tokenizer.describe(model)).warnings, name


# ------------------------------------------------------- import ------------------------------------------------------


def test_what_was_written_is_read(kind, capsys):
    assert folder_tokenizer.read(kind.folder) == kind.vocabulary
    assert not capsys.readouterr().err


@pytest.mark.slow
def test_what_transformers_5_saved_is_read(kind, in_transformers5, all_texts):
    """It saves tokenizer.json and no SentencePiece model."""
    read = folder_tokenizer.read(kind.folder / "saved_by_5")
    if kind.name in BYTE_KINDS:
        assert read == kind.vocabulary
    else:
        assert_same_ids(read, kind, all_texts)


@pytest.mark.parametrize("name", ["t5", "mt5", "umt5"])
@pytest.mark.parametrize("legacy", [False, True])
def test_what_transformers_4_saved_is_read(kinds, name, legacy, all_texts, tmp_path):
    """Its own conversion of the SentencePiece model; of mT5's as google/mt5-small has it."""
    from transformers import T5TokenizerFast

    kind = kinds[name]
    (tmp_path / "in").mkdir()
    shutil.copy(kind.folder / "spiece.model", tmp_path / "in")
    config = {"extra_ids": kind.vocabulary["extra_ids"], "additional_special_tokens": None, "legacy": legacy}
    (tmp_path / "in/tokenizer_config.json").write_text(json.dumps(config))
    T5TokenizerFast.from_pretrained(tmp_path / "in").save_pretrained(tmp_path / "out")
    assert folder_tokenizer.read(tmp_path / "in")["vocab_size"] == kind.vocabulary["vocab_size"]
    read = folder_tokenizer.read(tmp_path / "out")
    assert read["extra_ids"] == kind.vocabulary["extra_ids"]
    (tmp_path / "out/spiece.model").unlink()
    assert_same_ids(folder_tokenizer.read(tmp_path / "out"), kind, all_texts)


def assert_same_ids(read: dict, kind: Kind, all_texts: list[str]) -> None:
    """The vocabulary gives the kind's ids, whether its sentinels are pieces or behind them."""
    assert read["vocab_size"] == kind.vocabulary["vocab_size"]
    file = Path(read["sentencepiece_model_file"])
    model = sentencepiece.SentencePieceProcessor(model_proto=vocabularies.with_sentinels(file, read["extra_ids"]))
    for text in texts_for(kind, all_texts):
        assert model.encode(text) == kind.encode(text), text
        assert model.decode(model.encode(text)) == sentencepiece_of(kind).decode(kind.encode(text)), text


def sentencepiece_of(kind: Kind) -> sentencepiece.SentencePieceProcessor:
    proto = vocabularies.with_sentinels(kind.folder / "spiece.model", kind.vocabulary["extra_ids"])
    return sentencepiece.SentencePieceProcessor(model_proto=proto)


@pytest.fixture
def folder(spiece_model, tmp_path) -> Path:
    """A folder like those of the first T5s on the hub: no word of the sentinels."""
    shutil.copy(spiece_model, tmp_path / "spiece.model")
    (tmp_path / "tokenizer_config.json").write_text('{"model_max_length": 512}')
    return tmp_path


def edit(file: Path, **fields) -> None:
    content = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps(content | fields))


def test_sentinels_that_nobody_names_are_100(folder):
    assert folder_tokenizer.read(folder)["extra_ids"] == 100
    edit(folder / "tokenizer_config.json", extra_ids=7)
    assert folder_tokenizer.read(folder)["extra_ids"] == 7


def test_google_s_byt5_counts_upward_and_has_no_sentinels(tmp_path, capsys):
    sentinels = [f"<extra_id_{i}>" for i in range(125)]
    edit(
        tmp_path / "tokenizer_config.json",
        tokenizer_class="ByT5Tokenizer",
        extra_ids=125,
        additional_special_tokens=sentinels,
    )
    assert folder_tokenizer.read(tmp_path) == byte_vocabulary(0)
    error = capsys.readouterr().err
    assert "numbers its 125 sentinels upward from 259" in error
    assert "--family byt5 --extra_ids 125" in error


def added(**ids) -> dict:
    flags = {"lstrip": False, "rstrip": False, "normalized": False, "single_word": False, "special": True}
    return {str(id_): {"content": token, **flags} for token, id_ in ids.items()}


def test_byt5_sentinels_in_disorder_are_refused(tmp_path):
    tokens = added(**{"<extra_id_0>": 260, "<extra_id_1>": 259, "<extra_id_2>": 261})
    edit(tmp_path / "tokenizer_config.json", tokenizer_class="ByT5Tokenizer", added_tokens_decoder=tokens)
    message = r"<extra_id_0> 260, <extra_id_1> 259, <extra_id_2> 261; .* <extra_id_0> 261, <extra_id_1> 260"
    with pytest.raises(ValueError, match=message):
        folder_tokenizer.read(tmp_path)


def test_sentinels_in_another_order_become_a_tokenizer_json(folder):
    tokens = added(**{f"<extra_id_{i}>": NUM_PIECES + i for i in range(100)})
    edit(folder / "tokenizer_config.json", added_tokens_decoder=tokens)
    record = folder_tokenizer.read(folder)
    assert (record["class"], record["vocab_size"]) == ("T5TokenizerVocabulary", 512)


def test_tokens_that_somebody_added_are_named(folder):
    (folder / "added_tokens.json").write_text(json.dumps({"<sep>": 512, "<extra_id_0>": 412}))
    with pytest.raises(
        ValueError, match=r"gives 1 tokens ids .* with 1 sentinels does not give them: <sep> 512; there they have none"
    ):
        folder_tokenizer.read(folder)


def test_files_that_contradict_each_other_are_named(folder):
    (folder / "added_tokens.json").write_text(json.dumps({"<extra_id_0>": 512}))
    edit(folder / "tokenizer_config.json", added_tokens_decoder=added(**{"<extra_id_0>": 511}))
    with pytest.raises(
        ValueError, match=r"tokenizer_config.json gives '<extra_id_0>' the id 511, and added_tokens.json gives it 512"
    ):
        folder_tokenizer.read(folder)


def test_two_vocabularies_in_one_folder_are_named(kinds, tmp_path):
    shutil.copytree(kinds["t5"].folder, tmp_path / "x")
    shutil.copy(kinds["umt5"].folder / "spiece.model", tmp_path / "x")
    with pytest.raises(ValueError, match=r"holds two vocabularies: id \d+ is .* in spiece.model and .*--vocab FILE"):
        folder_tokenizer.read(tmp_path / "x")


def test_a_folder_without_tokenizer_says_what_is_missing(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"has no spiece.model and no tokenizer.json; .* --vocab FILE"):
        folder_tokenizer.read(tmp_path)


def test_damaged_json_is_named(folder):
    (folder / "tokenizer_config.json").write_text("{")
    with pytest.raises(ValueError, match=r"tokenizer_config.json is not JSON"):
        folder_tokenizer.read(folder)


# ------------------------------------------------------- a run's -----------------------------------------------------


def test_more_ids_than_rows(spiece_model):
    described = vocabulary(spiece_model)
    hf_tokenizer.check_sizes(described, 512, "the model")
    with pytest.raises(
        ValueError, match=r"any_name.model' has 512 ids, .* the embedding of the model has only 511 rows"
    ):
        hf_tokenizer.check_sizes(described, 511, "the model")
    with pytest.raises(ValueError, match=r"'ByteVocabulary' has 384 ids"):
        hf_tokenizer.check_sizes(byte_vocabulary(125), 256, "the model")


def test_a_model_says_its_own_sentinels(models):
    assert hf_tokenizer.describe(models["mt5"]) == vocabulary(models["mt5"], 0)
    assert hf_tokenizer.describe(models["umt5"], 300) == vocabulary(models["umt5"], 300)
    assert hf_tokenizer.describe(models["t5"]) == vocabulary(models["t5"], 100)


def test_missing_model_says_where_to_give_it(spiece_model, tmp_path):
    gone = vocabulary(spiece_model, sentencepiece_model_file=str(tmp_path / "gone.model"))
    with pytest.raises(FileNotFoundError, match=r"gone\.model.*--vocab FILE"):
        hf_tokenizer.from_vocabulary(gone)


def test_another_vocabulary_than_in_training_is_noticed(spiece_model):
    with pytest.raises(ValueError, match=r"412 pieces and 100 sentinels, 512 ids; the run had 600"):
        hf_tokenizer.from_vocabulary(vocabulary(spiece_model, vocab_size=600))
    with pytest.raises(ValueError, match=r"A ByteVocabulary has 259 ids and 125 sentinels, 384 ids; the run had 256"):
        hf_tokenizer.from_vocabulary(byte_vocabulary(125, vocab_size=256))


def test_other_vocabularies_are_refused():
    with pytest.raises(ValueError, match="PassThroughVocabulary; only a SentencePieceVocabulary, a "):
        hf_tokenizer.from_vocabulary({"class": "PassThroughVocabulary", "sentencepiece_model_file": None})


def test_a_file_that_is_no_model_is_refused(tmp_path):
    (tmp_path / "text.model").write_text("not a model")
    with pytest.raises(ValueError, match="not a SentencePiece model"):
        hf_tokenizer.describe(tmp_path / "text.model")
    os.truncate(tmp_path / "text.model", 20 * 2**30)  # Without a byte on the disk.
    for read in (hf_tokenizer.describe, lambda file: SentencePieceVocabulary(str(file)).vocab_size):
        with pytest.raises(ValueError, match=r"text\.model has 21,474,836,480 bytes; a file of this kind has at most"):
            read(tmp_path / "text.model")


def test_other_special_ids_are_refused(tmp_path, sentences):
    with (tmp_path / "llama.model").open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(sentences), model_writer=file, vocab_size=80, minloglevel=2
        )
    with pytest.raises(ValueError, match=r"'pad': -1, 'eos': 2, 'unk': 0.*a T5 needs the padding 0"):
        hf_tokenizer.describe(tmp_path / "llama.model")


def test_other_special_names_are_kept(tmp_path, spiece_model):
    proto = sentencepiece_pb2.ModelProto.FromString(spiece_model.read_bytes())
    proto.pieces[1].piece = proto.trainer_spec.eos_piece = "<eos>"
    (tmp_path / "eos.model").write_bytes(proto.SerializeToString())
    tokenizer = hf_tokenizer.from_file(tmp_path / "eos.model", None)
    assert tokenizer.special.by_id == {0: "<pad>", 1: "<eos>", 2: "<unk>"}
    hf_tokenizer.write(tokenizer, tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert (config["eos_token"], config["tokenizer_class"]) == ("<eos>", "PreTrainedTokenizerFast")


def test_a_mask_token_is_the_first_sentinel(tmp_path):
    config = {"pad_token": "<pad>", "additional_special_tokens": ["<extra_id_0>", "<extra_id_1>"]}
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        (tmp_path / name).write_text(json.dumps(config))
    hf_tokenizer.name_mask(tmp_path)
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        named = json.loads((tmp_path / name).read_text())
        assert named == config | {"mask_token": "<extra_id_0>", "bos_token": "<pad>"}
    with pytest.raises(ValueError, match="this tokenizer has the mask token '<extra_id_0>': leave it out"):
        hf_tokenizer.name_mask(tmp_path)
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        (tmp_path / name).write_text('{"pad_token": "<pad>"}')
    with pytest.raises(ValueError, match="the tokenizer has no <extra_id_0>"):
        hf_tokenizer.name_mask(tmp_path)
