"""`limba vocab trim` of encoders: fewer tokens of WordPiece, byte-level BPE and Unigram, the same ids and logits."""

import json
from pathlib import Path

import numpy as np
import pytest
import tokenizers

from convert.from_hf import from_hf
from convert.model_files import any_format
from convert.to_hf import to_hf
from limba.addons.surgery import trim as trimming
from limba.addons.surgery import trimmed_logits, trimmed_tokenizer
from limba.addons.surgery.tokens import Tokens
from limba.checkpoints import checkpointing
from tests.addons.surgery import encoders
from tests.addons.surgery.encoders import LATIN, WORDS, greek

torch = pytest.importorskip("torch")

SCRIPT = Path(__file__).parents[2] / "convert/model_files/hf/tokenize_in_transformers5.py"
MIN_COUNT = 3


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    file = tmp_path_factory.mktemp("corpus") / "corpus.txt"
    file.write_text("\n".join([*LATIN[:60], *map(greek, LATIN[:3])]), "utf-8")
    return file


@pytest.fixture(scope="module")
def trimmed(encoder_folder, corpus, tmp_path_factory):
    out = tmp_path_factory.mktemp("trimmed") / "out"
    trimming.trim(str(encoder_folder), str(out), [str(corpus)], min_count=MIN_COUNT)
    return out


def _numbers(old, new):
    """By the new id the old one, by the names of tokens."""
    numbers = np.full(len(new), -1)
    for token, id_ in new.get_vocab().items():
        numbers[id_] = old.get_vocab()[token]
    assert numbers.min() >= 0
    return numbers


def test_tokens_and_logits_are_those_of_before(encoder_folder, trimmed):
    (old, before), (new, after) = encoders.load(encoder_folder), encoders.load(trimmed)
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


def test_roles_of_special_tokens_are_kept(encoder_folder, trimmed):
    (old, _), (new, model) = encoders.load(encoder_folder), encoders.load(trimmed)
    assert new.special_tokens_map == old.special_tokens_map
    assert model.config.pad_token_id == new.pad_token_id == new.convert_tokens_to_ids(old.pad_token)
    record = json.loads((trimmed / "trim.json").read_text())
    assert record["largest_difference_of_logits"] == 0 and record["lines_with_the_same_tokens"] > 0
    assert record["after"]["tokens"] > record["before"]["tokens"]


@pytest.mark.sample(1)
def test_a_run_stays_a_run(encoder_folder, trimmed, corpus, tmp_path):
    from_hf(encoder_folder, tmp_path / "run", verify=False)
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
    new, _ = encoders.load(trimmed)
    (tmp_path / "request.json").write_text(json.dumps({str(trimmed): LATIN[:50]}))
    done = forks5.run(SCRIPT, tmp_path / "request.json", tmp_path / "out.json")
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads((tmp_path / "out.json").read_text())[str(trimmed)]["ids"] == new(LATIN[:50]).input_ids


@pytest.mark.sample(1)
def test_another_row_is_found(encoder_folder, trimmed):
    """The proof can fail."""
    before, after = map(any_format.open_model, (encoder_folder, trimmed))
    kept = np.array(json.loads((trimmed / "trim.json").read_text())["kept"])
    assert trimmed_logits.encoder_difference(before, after, kept, [kept[10:30]]) == 0
    wrong = kept.copy()
    wrong[[40, 41]] = kept[[41, 40]]
    assert trimmed_logits.encoder_difference(before, after, wrong, [kept[10:30]]) > 0


def _tokens(name):
    content = json.loads(encoders.tokenizer(name).to_str())
    return Tokens(content, {}, name)


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
    content = json.loads(encoders.tokenizer("modernbert").to_str())
    content["model"]["end_of_word_suffix"] = "</w>"
    with pytest.raises(ValueError, match="is a BPE model with end_of_word_suffix '</w>'"):
        Tokens(content, {}, "clip")
