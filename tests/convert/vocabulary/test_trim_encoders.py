"""`limba vocab trim` of encoders: fewer tokens of WordPiece, byte-level BPE and Unigram, the same ids and logits."""

import json
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from tokenizers import models, pre_tokenizers, trainers

from convert.compare import trimmed_logits
from convert.from_hf import from_hf
from convert.model_files import any_format
from convert.to_hf import to_hf
from convert.vocabulary import trim as trimming
from convert.vocabulary import trimmed_tokenizer
from limba.checkpoints import checkpointing
from tests.convert import vocabularies

torch = pytest.importorskip("torch")

BERTS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
ROBERTAS = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
SCRIPT = Path(__file__).parents[1] / "model_files/hf/tokenize_in_transformers5.py"
SIZES = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 48}
MIN_COUNT = 3


def _cyrillic(text):
    return "".join(chr(ord(c) + 0x350) if c.isalpha() and c.isascii() else c for c in text)


LATIN = vocabularies.sentences(2000)
TEXTS = [*LATIN, *map(_cyrillic, LATIN[:1000])]
WORDS = sorted({*" ".join(LATIN).split(), *TEXTS[-10:]})


def _tokenizer(name):
    if name == "bert":
        made = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
        made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        trainer = trainers.WordPieceTrainer(vocab_size=900, special_tokens=BERTS, show_progress=False)
    elif name == "xlm-roberta":
        made = tokenizers.Tokenizer(models.Unigram())
        made.pre_tokenizer = pre_tokenizers.Metaspace()
        special = ["<s>", "<pad>", "</s>", "<unk>"]
        trainer = trainers.UnigramTrainer(
            vocab_size=700, special_tokens=[*special, "<mask>"], unk_token="<unk>", show_progress=False
        )
    else:  # ModernBERT's special tokens are its last ones, padding among them.
        made = tokenizers.Tokenizer(models.BPE())
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        trainer = trainers.BpeTrainer(
            vocab_size=1000,
            special_tokens=ROBERTAS if name == "roberta" else [],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
    made.train_from_iterator(TEXTS, trainer)
    if name == "modernbert":
        made.add_special_tokens(BERTS)
    return made


@pytest.fixture(scope="module", params=["bert", "roberta", "xlm-roberta", "modernbert"])
def folder(request, tmp_path_factory):
    """A random masked language model that transformers saved."""
    import transformers

    name = request.param
    home = tmp_path_factory.mktemp("encoders") / name
    tokenizer = _tokenizer(name)
    names = dict(zip(("pad", "unk", "cls", "sep", "mask"), BERTS, strict=True))
    if "roberta" in name:
        names = {"pad": "<pad>", "unk": "<unk>", "cls": "<s>", "sep": "</s>", "mask": "<mask>"}
    roles = {f"{role}_token": token for role, token in names.items()}
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **roles).save_pretrained(home)
    ids = {f"{role}_token_id": tokenizer.token_to_id(names[role]) for role in ("pad", "cls", "sep")}
    config = transformers.AutoConfig.for_model(
        name, **SIZES, **ids, vocab_size=tokenizer.get_vocab_size() + 3, max_position_embeddings=64
    )
    model = transformers.AutoModelForMaskedLM.from_config(config)
    for key, parameter in model.named_parameters():
        if key.endswith("bias"):
            torch.nn.init.normal_(parameter)
    model.save_pretrained(home)
    return home


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    file = tmp_path_factory.mktemp("corpus") / "corpus.txt"
    file.write_text("\n".join([*LATIN[:60], *map(_cyrillic, LATIN[:3])]), "utf-8")
    return file


@pytest.fixture(scope="module")
def trimmed(folder, corpus, tmp_path_factory):
    out = tmp_path_factory.mktemp("trimmed") / "out"
    trimming.trim(str(folder), str(out), [str(corpus)], min_count=MIN_COUNT)
    return out


def _open(folder):
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    return tokenizer, transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()


def _numbers(old, new):
    """By the new id the old one, by the names of tokens."""
    numbers = np.full(len(new), -1)
    for token, id_ in new.get_vocab().items():
        numbers[id_] = old.get_vocab()[token]
    assert numbers.min() >= 0
    return numbers


def test_tokens_and_logits_are_those_of_before(folder, trimmed):
    (old, before), (new, after) = _open(folder), _open(trimmed)
    numbers = _numbers(old, new)
    assert len(numbers) % 128 == 0 and len(numbers) == after.config.vocab_size < len(old) - 100
    # Texts that were not in the corpus: those whose tokens are all kept have the same ones.
    ids = old(WORDS, add_special_tokens=False).input_ids
    found = new(WORDS, add_special_tokens=False).input_ids
    has_all = [{*x} <= {*numbers} and old.unk_token_id not in x for x in ids]
    assert 100 < sum(has_all) < len(ids)
    assert all(numbers[y].tolist() == x for x, y, kept in zip(ids, found, has_all, strict=True) if kept)
    # Words of the corpus's letters can be written.
    assert new.unk_token_id not in new("ba cefoba dihu").input_ids
    tokens = np.random.default_rng(0).integers(0, len(new), (2, 20))
    tokens[tokens == new.pad_token_id] = new.mask_token_id
    with torch.no_grad():
        logits = after(torch.tensor(tokens)).logits.numpy()
        wanted = before(torch.tensor(numbers[tokens])).logits.numpy()[..., numbers]
    assert np.abs(logits).max() > 0.5
    np.testing.assert_allclose(logits, wanted, atol=2e-6)
    rows = [model.get_input_embeddings().weight.detach().numpy() for model in (before, after)]
    np.testing.assert_array_equal(rows[1], rows[0][numbers])


def test_roles_of_special_tokens_are_kept(folder, trimmed):
    (old, _), (new, model) = _open(folder), _open(trimmed)
    assert new.special_tokens_map == old.special_tokens_map
    assert model.config.pad_token_id == new.pad_token_id == new.convert_tokens_to_ids(old.pad_token)
    record = json.loads((trimmed / "trim.json").read_text())
    assert record["largest_difference_of_logits"] == 0 and record["lines_with_the_same_tokens"] > 0
    assert record["after"]["tokens"] > record["before"]["tokens"]


@pytest.mark.sample(1)
def test_a_run_stays_a_run(folder, trimmed, corpus, tmp_path):
    from_hf(folder, tmp_path / "run", verify=False)
    words = [str(tmp_path / "run"), str(tmp_path / "out"), "--corpus", str(corpus), "--min_count", str(MIN_COUNT)]
    assert trimming.main(words) == 0
    assert {x.name for x in (tmp_path / "out").iterdir()} >= {
        "checkpoint_0",
        "model.gin",
        "tokenizer.json",
        "trim.json",
    }
    params = checkpointing.load_params(tmp_path / "out")
    rows = params["token_embedder"]["embedding"]
    assert (
        len(rows) == len(params["mlm_head"]["bias"]) == json.loads((trimmed / "config.json").read_text())["vocab_size"]
    )
    to_hf(tmp_path / "out", tmp_path / "export")
    files = [x / "tokenizer.json" for x in (tmp_path / "export", trimmed)]
    texts = LATIN[:50]
    ids = [[x.ids for x in tokenizers.Tokenizer.from_file(str(file)).encode_batch(texts)] for file in files]
    assert ids[0] == ids[1]


@pytest.mark.slow
def test_transformers_5_gives_the_same_ids(trimmed, forks5, tmp_path):
    new, _ = _open(trimmed)
    (tmp_path / "request.json").write_text(json.dumps({str(trimmed): LATIN[:50]}))
    done = forks5.run(SCRIPT, tmp_path / "request.json", tmp_path / "out.json")
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads((tmp_path / "out.json").read_text())[str(trimmed)]["ids"] == new(LATIN[:50]).input_ids


@pytest.mark.sample(1)
def test_another_row_is_found(folder, trimmed):
    """The proof can fail."""
    before, after = map(any_format.open_model, (folder, trimmed))
    kept = np.array(json.loads((trimmed / "trim.json").read_text())["kept"])
    assert trimmed_logits.encoder_difference(before, after, kept, [kept[10:30]]) == 0
    wrong = kept.copy()
    wrong[[40, 41]] = kept[[41, 40]]
    assert trimmed_logits.encoder_difference(before, after, wrong, [kept[10:30]]) > 0


def _tokens(name):
    content = json.loads(_tokenizer(name).to_str())
    return trimmed_tokenizer.Tokens(content, [], name)


def test_a_token_is_kept_with_what_its_merges_need():
    tokens = _tokens("roberta")
    longest = max(tokens.names, key=lambda id_: len(tokens.parts(id_)))
    counts = np.zeros(len(tokens), np.int64)
    counts[longest] = 1
    kept = {*trimmed_tokenizer.choose(tokens, counts, 1, None).tolist()}
    assert len(tokens.parts(longest)) > 4 and kept > {longest, *tokens.parts(longest)} and len(kept) % 128 == 0
    after = trimmed_tokenizer.trimmed(tokens, np.array(sorted(kept)))
    text = tokenizers.decoders.ByteLevel().decode([tokens.names[longest]])
    (ids,) = after.encode([text])
    assert [after.names[id_] for id_ in ids] == [tokens.names[longest]]


def test_requests_that_cannot_be_met():
    tokens = _tokens("bert")
    every = np.ones(len(tokens), np.int64)
    with pytest.raises(ValueError, match="Nothing can be trimmed: the corpus uses 895 of 900 tokens"):
        trimmed_tokenizer.choose(tokens, every, 1, None)
    with pytest.raises(ValueError, match=r"--size is 128, and \d+ ids are always kept .* give --size 384 or more"):
        trimmed_tokenizer.choose(_tokens("roberta"), np.ones(1000, np.int64), 1, 128)
    assert len(trimmed_tokenizer.choose(tokens, every, 1, 512)) == 512
    content = json.loads(_tokenizer("modernbert").to_str())
    content["model"]["end_of_word_suffix"] = "</w>"
    with pytest.raises(ValueError, match="is a BPE model with end_of_word_suffix '</w>'"):
        trimmed_tokenizer.Tokens(content, [], "clip")
