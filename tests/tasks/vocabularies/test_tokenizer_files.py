"""WordPiece and byte-level BPE against transformers 4 and 5: ids, special tokens, texts; and damaged files."""

import copy
import json
import os
import pickle
import shutil
import subprocess
import sys
import threading

import numpy as np
import pytest
import tokenizers

from limba.addons.vocab_build import tokenizer_training
from limba.files import storage
from tasks import objectives
from tasks.pipeline import fingerprints
from tasks.pretraining import denoising, pretraining_tasks
from tasks.registry import Feature, task_vocabularies
from tasks.sources import corpora
from tasks.vocabularies import ByteVocabulary, T5TokenizerVocabulary, TokenizerVocabulary, sentencepiece_models
from tasks.vocabularies.training_text import TrainingText
from tests import house
from tests.convert import vocabularies
from tests.convert.conftest import forks5, python5  # noqa: F401, fixtures

TEXTS = [
    "",
    " ",
    "a",
    "The cat  sat.",
    "ștîă și-a amintit: „da, mâine”. s\u0326 e\u0301",
    "Мама мыла раму, ёлка",
    "日本語 🦊👩‍🚀 ﬁ",
    "tab\tand\nline \r\n two",
    "it's 1234 words",
    "x" * 300,
    "[CLS] the [MASK] of [SEP] [PAD] <pad> </s>",
]
FIVE = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4}
# Runs in either version of transformers, once for all folders: importing it takes seconds.
ASK_TRANSFORMERS = """
import json, os, sys
os.environ["USE_TF"] = "0"
from transformers import AutoTokenizer
texts = json.loads(sys.argv[1])
answers = {}
for folder in sys.argv[2:]:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = [tokenizer(text, add_special_tokens=False).input_ids for text in texts]
    answers[folder] = {
        "ids": ids,
        "decoded": [tokenizer.decode(of_text) for of_text in ids],
        "pair": dict(tokenizer("a b", "c")),
        "special": {role: getattr(tokenizer, f"{role}_token_id") for role in ("pad", "unk", "cls", "sep", "mask")},
        "special_ids": sorted(tokenizer.all_special_ids),
        "size": len(tokenizer),
    }
print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Sentences of made-up Romanian, some Russian, and much that is rare."""
    file = tmp_path_factory.mktemp("corpus") / "text.txt"
    lines = vocabularies.sentences(600) + ["Мама мыла раму, и ёлка тоже.", "it's 1234 words"] * 20
    file.write_text("\n".join(lines), encoding="utf-8")
    return TrainingText(corpora.HuggingFaceSource({"train": str(file)}))


@pytest.fixture(scope="module")
def files(text, tmp_path_factory):
    folder = tmp_path_factory.mktemp("vocabularies")
    return {
        "wordpiece": tokenizer_training.train_wordpiece(text, folder / "wordpiece/tokenizer.json", vocab_size=640),
        "bpe": tokenizer_training.train_bpe(text, folder / "bpe" / "tokenizer.json", vocab_size=640),
    }


@pytest.fixture(scope="module", params=["wordpiece", "bpe"])
def file(request, files):
    return files[request.param]


@pytest.fixture(scope="module")
def vocabulary(file):
    return TokenizerVocabulary(str(file))


@pytest.fixture(scope="module", params=[4, 5])
def in_transformers(request, files, checks_in_forks, forks5):  # noqa: F811
    """What transformers says about the texts, by folder."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    words = ["-c", ASK_TRANSFORMERS, json.dumps(TEXTS), *(str(file.parent) for file in files.values())]
    if request.param == 4:
        done = checks_in_forks([sys.executable, *words], env=environment)
    else:
        done = forks5.run(*words, env=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.sample(2)
def test_transformers_loads_the_folder_and_gives_the_same_ids(in_transformers, vocabulary, file):
    theirs = in_transformers[str(file.parent)]
    assert theirs["ids"] == [list(vocabulary.encode(text)) for text in TEXTS]
    assert theirs["special"] == {token[1:-1].lower(): id_ for token, id_ in FIVE.items()}
    assert theirs["special_ids"] == list(vocabulary.special_ids) == [0, 1, 2, 3, 4]
    assert theirs["size"] == vocabulary.vocab_size == 640
    a, b = (vocabulary.encode(text) for text in ("a b", "c"))
    assert theirs["pair"]["input_ids"] == [2, *a, 3, *b, 3]
    types = [0] * (len(a) + 2) + [1] * (len(b) + 1)
    assert theirs["pair"].get("token_type_ids") == (types if file.parent.name == "wordpiece" else None)
    for text, ids, decoded in zip(TEXTS, theirs["ids"], theirs["decoded"], strict=True):
        if not {0, 2, 3} & set(ids):
            assert vocabulary.decode(ids) == decoded, text


def test_facts(vocabulary, file):
    ids = [vocabulary.pad_id, vocabulary.unk_id, vocabulary.cls_id, vocabulary.sep_id, vocabulary.mask_id]
    assert ids == [0, 1, 2, 3, 4] == list(FIVE.values())
    assert (vocabulary.bos_id, vocabulary.eos_id, vocabulary.extra_ids) == (2, 3, 0)
    assert vocabulary == TokenizerVocabulary(str(file.parent)) == TokenizerVocabulary(f"{file.parent}/")
    assert vocabulary != TokenizerVocabulary("other/tokenizer.json") and vocabulary != ByteVocabulary()
    assert {vocabulary, TokenizerVocabulary(str(file.parent))} == {vocabulary} and eval(repr(vocabulary)) == vocabulary
    for copied in (copy.deepcopy(vocabulary), pickle.loads(pickle.dumps(vocabulary))):
        assert copied == vocabulary and copied.encode("a b") == vocabulary.encode("a b")
    assert len(pickle.dumps(vocabulary)) < 500


def test_batches(vocabulary):
    ids, lengths = vocabulary.encode_batch([text.encode() for text in TEXTS])
    assert (ids.dtype, lengths.dtype) == (np.int32, np.int64)
    parts = np.split(ids, np.cumsum(lengths)[:-1])
    assert [part.tolist() for part in parts] == [list(vocabulary.encode(text)) for text in TEXTS]
    empty, none = vocabulary.encode_batch([])
    assert empty.shape == none.shape == (0,)
    # What is not UTF-8 does not stop a run.
    assert len(vocabulary.encode_batch([b"a\xff a"])[0]) >= 2


def test_decoding(vocabulary):
    text = "the cat [MASK] sat."
    ids = [2, *vocabulary.encode(text), 3, *vocabulary.encode("more"), 0, 0]
    shown = vocabulary.decode(np.array(ids, np.int32))
    assert shown == vocabulary.decode(ids) and "[MASK]" in shown and shown.startswith("the cat")
    assert "more" not in shown and "[SEP]" not in shown and "[CLS]" not in shown
    assert vocabulary.decode([640, 10**6]) == vocabulary.decode([1, 1]) and vocabulary.decode([]) == ""


def test_the_space_before_a_mask_is_the_mask_s(text, tmp_path):
    """Training replaces a piece with its space, so a text that a user types must give the same ids."""
    file = tokenizer_training.train_bpe(text, tmp_path / "tokenizer.json", vocab_size=384)
    vocabulary = TokenizerVocabulary(str(file))
    assert vocabulary.encode("a [MASK] b") == [*vocabulary.encode("a"), 4, *vocabulary.encode(" b")]


def words(vocabulary, text):
    """The pieces of a text, those of a word together."""
    grouped = []
    for id_ in vocabulary.encode(text):
        if not grouped or not vocabulary.continues_word[id_]:
            grouped.append([])
        grouped[-1].append(id_)
    return [vocabulary.decode(ids).strip() for ids in grouped]


def test_words(vocabulary):
    flags = vocabulary.continues_word
    assert flags.shape == (640,) and flags.dtype == bool and not flags[:5].any() and not flags.flags.writeable
    assert words(vocabulary, "Мама раму тоже") == ["Мама", "раму", "тоже"]
    assert len(vocabulary.encode("rămășițe")) > 1 and words(vocabulary, "rămășițe") == ["rămășițe"]


def write(path, tokenizer):
    path.parent.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(path))
    return TokenizerVocabulary(str(path))


def test_tokenizers_of_others(tmp_path):
    """RoBERTa's names and padding, holes in the ids, Metaspace, whole words; and files set to truncate and pad."""
    roberta = tokenizers.Tokenizer(
        tokenizers.models.BPE({"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "a": 4, "Ġ": 5, "Ġa": 6}, [("Ġ", "a")])
    )
    roberta.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    roberta.decoder = tokenizers.decoders.ByteLevel()
    roberta.add_special_tokens(["<s>", "<pad>", "</s>", "<unk>", "<mask>", "<extra>"])
    roberta.enable_truncation(2)
    roberta.enable_padding(length=9)
    opened = write(tmp_path / "roberta" / "tokenizer.json", roberta)
    assert (opened.pad_id, opened.cls_id, opened.eos_id, opened.unk_id, opened.mask_id) == (1, 0, 2, 3, 7)
    assert opened.special_ids == (0, 1, 2, 3, 7, 8) and opened.vocab_size == 9
    assert opened.encode("aaa a") == [4, 4, 4, 6] == opened.encode_batch([b"aaa a"])[0].tolist()
    assert opened.continues_word.tolist() == [False] * 4 + [True] + [False] * 4

    content = json.loads(roberta.to_str())
    content["model"]["vocab"]["b"] = 20
    (tmp_path / "holes.json").write_text(json.dumps(content))
    holes = TokenizerVocabulary(str(tmp_path / "holes.json"))
    assert holes.vocab_size == 21 and holes.decode([4, 15, 20]) == "ab" and holes.encode("b") == [20]
    assert holes.continues_word.nonzero()[0].tolist() == [4, 20]

    pieces = [("<pad>", 0.0), ("<unk>", 0.0), ("▁a", -1.0), ("b", -2.0), ("▁", -3.0)]
    unigram = tokenizers.Tokenizer(tokenizers.models.Unigram(pieces, unk_id=1))
    unigram.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([tokenizers.pre_tokenizers.Metaspace()])
    opened = write(tmp_path / "unigram.json", unigram)
    assert opened.encode("ab a") == [2, 3, 2] and opened.continues_word.tolist() == [False, False, False, True, False]
    assert (opened.eos_id, opened.bos_id) == (None, None)

    with_words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[PAD]": 0, "[UNK]": 1, "a": 2}, "[UNK]"))
    assert not write(tmp_path / "words.json", with_words).continues_word.any()
    plain = write(tmp_path / "plain.json", tokenizers.Tokenizer(tokenizers.models.BPE(FIVE | {"a": 5}, [])))
    with pytest.raises(ValueError, match=r"plain\.json does not say which tokens begin a word"):
        _ = plain.continues_word
    # Single tokens can be masked with it.
    ids = sentencepiece_models.ids_of(plain)
    assert ids.continues_word is None and ids.mask_id == 4
    objectives.MaskedLM().check_ids(ids)
    features = dict.fromkeys(("inputs", "targets"), Feature(plain))
    with pytest.raises(ValueError, match="whole_words needs a vocabulary that knows which pieces continue a word"):
        denoising.Denoise(objectives.MaskedLM(whole_words=True)).check(features, {"inputs": 16})
    denoising.Denoise(objectives.MaskedLM()).check(features, {"inputs": 16})


def test_special_tokens_have_llama_s_names_in_eurobert(tmp_path):
    names = ("<|pad|>", "<|begin_of_text|>", "<|end_of_text|>", "<|mask|>", "a")
    words = tokenizers.models.WordLevel({name: id_ for id_, name in enumerate(names)}, "a")
    vocabulary = write(tmp_path / "llama.json", tokenizers.Tokenizer(words))
    ids = (vocabulary.pad_id, vocabulary.cls_id, vocabulary.eos_id, vocabulary.mask_id)
    assert ids == (0, 1, 2, 3) and vocabulary.unk_id is None


def test_files_that_cannot_be_opened(tmp_path):
    def message(name, content=None, get=lambda vocabulary: vocabulary.vocab_size):
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises((ValueError, FileNotFoundError)) as error:
            get(TokenizerVocabulary(str(tmp_path / name)))
        assert name in str(error.value)
        return str(error.value)

    gone = message("gone.json")
    out = f"--data_files … --out {tmp_path}/tokenizer.json`"  # `limba vocab build` refuses another name
    assert "There is no tokenizer" in gone and f"`limba vocab build --kind wordpiece {out}" in gone
    assert f"`limba vocab build --kind bpe {out}" in message("bpe.json")
    (tmp_path / "folder").mkdir()
    assert "folder/tokenizer.json" in message("folder")
    (tmp_path / "folder.json").mkdir()
    assert "is a folder, not a file" in message("folder.json")
    assert "is not JSON" in message("half.json", b'{"model": {')
    assert "brackets inside of each other" in message("deep.json", b'{"model": ' + b"[" * 100_000)
    assert "is not UTF-8" in message("bytes.json", b'{"a": "\xff"}')
    assert "it is one object" in message("list.json", b"[1, 2]")
    assert "is not a tokenizer.json" in message("other.json", b'{"model": {"type": "X"}}')
    plain = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, "a")).to_str().encode()
    assert "has no [MASK]: none of its tokens is called [MASK] or <mask> or <|mask|>" in message(
        "plain.json", plain, lambda vocabulary: vocabulary.mask_id
    )
    huge = plain.replace(b'"a":0', b'"a":4294967295').replace(b'"a": 0', b'"a": 4294967295')
    assert "has the id 4,294,967,295" in message("huge.json", huge)
    assert "has no [PAD]" in message("plain.json", None, lambda vocabulary: vocabulary.pad_id)
    none = tokenizers.Tokenizer(tokenizers.models.BPE()).to_str().encode()
    assert "has no tokens" in message("none.json", none)


def test_it_is_read_once_and_late(tmp_path, file, monkeypatch):
    late = TokenizerVocabulary(str(tmp_path / "late" / "tokenizer.json"))
    with pytest.raises(FileNotFoundError):
        late.encode("a")
    shutil.copytree(file.parent, tmp_path / "late")
    reads = []
    original = storage.as_path
    monkeypatch.setattr(storage, "as_path", lambda path: (reads.append(path), original(path))[1])
    threads = [threading.Thread(target=late.encode, args=("a",)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(reads) == 1


def test_importing_does_not_import_the_library():
    code = (
        "import sys, limba.addons.vocab_build.command as b; b._parser(); "
        "from tasks.vocabularies import TokenizerVocabulary; TokenizerVocabulary('x.json'); "
        "print([name for name in ('tokenizers', 'transformers') if name in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=house.ROOT)
    assert out.stdout.strip() == "[]"


def test_forks_print_nothing(file):
    code = (
        "import os, sys; from tasks.vocabularies import TokenizerVocabulary; "
        "v = TokenizerVocabulary(sys.argv[1]); v.encode_batch([b'a b'] * 9); pid = os.fork(); "
        "v.encode_batch([b'a b'] * 9); pid and os.waitpid(pid, 0)"
    )
    environment = {name: value for name, value in os.environ.items() if name != "TOKENIZERS_PARALLELISM"}
    command = [sys.executable, "-c", code, str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=house.ROOT, env=environment)
    assert done.stderr == ""


def test_the_rest_of_the_house(vocabulary, file, tmp_path, text):
    """Paths, fingerprints and equality; span corruption refuses it by name."""
    assert sentencepiece_models.open_vocabulary(str(file)) == vocabulary == sentencepiece_models.open_vocabulary(file)
    of_t5 = file.with_name("of_t5.json")
    content = json.loads(file.read_text())
    content["model"]["vocab"] |= {"<extra_id_0>": len(content["model"]["vocab"])}
    of_t5.write_text(json.dumps(content))
    assert type(sentencepiece_models.open_vocabulary(of_t5)) is T5TokenizerVocabulary
    assert sentencepiece_models.num_sentinels(vocabulary) == 0
    sentencepiece_models.check_file(vocabulary)
    with pytest.raises(ValueError, match=r"is a TokenizerVocabulary, which has no sentinels .* --kind sentencepiece"):
        sentencepiece_models.check_vocabulary(vocabulary)
    task = pretraining_tasks.register_pretraining_task(
        f"masked_{file.parent.name}", data_files=text.source, vocabulary=file
    )
    with pytest.raises(ValueError, match="is a TokenizerVocabulary"):
        task.preprocessors[0].check(task.output_features, {"inputs": 64, "targets": 64})

    # The same tokens in another layout, and with other settings that do not matter for training.
    tokenizer = tokenizers.Tokenizer.from_file(str(file))
    tokenizer.enable_truncation(5)
    (tmp_path / "same.json").write_text(tokenizer.to_str(pretty=False))
    same = TokenizerVocabulary(str(tmp_path / "same.json"))
    tokenizer.normalizer = tokenizers.normalizers.Lowercase()
    (tmp_path / "other.json").write_text(tokenizer.to_str())
    other = TokenizerVocabulary(str(tmp_path / "other.json"))
    assert fingerprints.of_vocabulary(same) == fingerprints.of_vocabulary(vocabulary)
    assert fingerprints.of_vocabulary(other) != fingerprints.of_vocabulary(vocabulary)
    assert task_vocabularies.same_vocabulary(same, vocabulary)
    assert not task_vocabularies.same_vocabulary(other, vocabulary)
    assert not task_vocabularies.same_vocabulary(vocabulary, ByteVocabulary())
    with pytest.raises(NotImplementedError, match="TokenizerVocabulary"):
        vocabulary.to_seqio()


def test_gin_binds_it(file):
    import gin

    with gin.unlock_config():
        gin.parse_config(
            "from __gin__ import dynamic_registration\nfrom tasks import vocabularies\n"
            f"VOCABULARY = @vocabularies.TokenizerVocabulary()\n"
            f"vocabularies.TokenizerVocabulary.tokenizer_file = '{file}'\n"
        )
        made = gin.query_parameter("%VOCABULARY").scoped_configurable_fn()
    gin.clear_config()
    assert made == TokenizerVocabulary(str(file)) and made.mask_id == 4
