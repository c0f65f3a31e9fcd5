"""`limba vocab extend` of encoders: old tokens keep ids, rows and logits, and new ones are used."""

import json

import numpy as np
import pytest
import tokenizers

from limba.addons.surgery import extend as extending
from limba.addons.surgery import extended_tokenizer
from limba.addons.surgery.tokens import Tokens
from tests.addons.surgery import encoders
from tests.addons.surgery.encoders import LATIN, WORDS
from tests.convert.vocabularies import GREEK

torch = pytest.importorskip("torch")

PIECES = 90


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    file = tmp_path_factory.mktemp("corpus") / "corpus.txt"
    file.write_text("\n".join([*GREEK[:60], *LATIN[:440]]), "utf-8")
    return file


@pytest.fixture(scope="module")
def extended(encoder_folder, corpus, tmp_path_factory):
    out = tmp_path_factory.mktemp("extended") / "out"
    assert extending.main([str(encoder_folder), str(out), "--corpus", str(corpus), "--pieces", str(PIECES)]) == 0
    return out


def test_old_tokens_keep_ids_rows_and_logits(encoder_folder, extended):
    (old, before), (new, after) = encoders.load(encoder_folder), encoders.load(extended)
    count = len(old)
    assert len(new) == count + PIECES and after.config.vocab_size == -(-len(new) // 128) * 128
    assert new.convert_ids_to_tokens(range(count)) == old.convert_ids_to_tokens(range(count))
    assert new.special_tokens_map == old.special_tokens_map and after.config.pad_token_id == new.pad_token_id
    ids = torch.tensor(np.random.default_rng(0).integers(5, count, (2, 20)))
    ids[ids == old.pad_token_id] = old.mask_token_id
    with torch.no_grad():
        logits, wanted = after(ids).logits[..., :count].numpy(), before(ids).logits[..., :count].numpy()
    assert np.abs(wanted).max() > 0.5
    np.testing.assert_allclose(logits, wanted, atol=2e-6)
    record = json.loads((extended / "extend.json").read_text())
    assert record["largest_difference_of_logits"] == 0 and record["same_pieces"] == count
    assert record["after"]["unknown"] == 0 and record["after"]["lines"] == 500


def test_new_rows_and_biases_are_means(encoder_folder, extended):
    (old, before), (new, after) = encoders.load(encoder_folder), encoders.load(extended)
    tables = [m.get_input_embeddings().weight.detach().numpy() for m in (before, after)]
    biases = [m.get_output_embeddings().bias.detach().numpy() for m in (before, after)]
    kinds = {"means": 0, "unknown": 0}
    for id_ in range(len(old), len(new)):
        name = new.convert_ids_to_tokens(id_)
        if name.startswith(("Ġ", "▁")):
            parts = old(tokenizers.decoders.ByteLevel().decode([name]) if name[0] == "Ġ" else name[1:])
        elif old.unk_token == "[UNK]" and old.convert_ids_to_tokens(0) == "[PAD]" and not name.startswith("##"):
            parts = old(name)  # a BERT's word
        else:
            continue
        ids = parts.input_ids[1:-1] if parts.input_ids[0] == old.cls_token_id else parts.input_ids
        is_known = ids and old.unk_token_id not in ids
        kinds["means" if is_known else "unknown"] += 1
        chosen = ids if is_known else slice(0, len(old))
        for a, b in (tables, biases):
            np.testing.assert_allclose(b[id_], a[chosen].mean(0), atol=1e-6)
    assert kinds["means"] > 5


def test_new_tokens_are_used_and_other_texts_stay(encoder_folder, extended, corpus):
    (old, _), (new, _) = encoders.load(encoder_folder), encoders.load(extended)
    texts = [*WORDS, *GREEK[300:320]]
    ids, found = (x(texts, add_special_tokens=False).input_ids for x in (old, new))
    has_old = [max(x) < len(old) for x in found]
    assert 100 < sum(has_old) < len(texts) - 20
    assert all(x == y for x, y, same in zip(ids, found, has_old, strict=True) if same)
    both = [(len(x), len(y)) for x, y in zip(ids, found, strict=True) if old.unk_token_id not in x]
    assert sum(y for _, y in both) < sum(x for x, _ in both)
    used = {id_ for of_line in new(corpus.read_text("utf-8").splitlines()).input_ids for id_ in of_line}
    assert len({*range(len(old), len(new))} - used) < 20  # Some are only parts of others.


@pytest.mark.parametrize("name", ["roberta", "modernbert"])
def test_merges_of_bpe_follow_the_old_ones(name):
    """The library joins the old tokens of each word as the new merges say, one merge after the other."""
    content = json.loads(encoders.tokenizer(name).to_str())
    tokens = Tokens(content, {}, name)
    more = extended_tokenizer.extended(tokens, [*GREEK[:300], *LATIN[:200]], PIECES)
    merges = [tuple(pair) for pair in more.model["merges"][len(tokens.model["merges"]) :]]
    assert len(merges) == PIECES and more.model["merges"][: -len(merges)] == tokens.model["merges"]
    for text in [*GREEK[300:], *WORDS]:
        joined = []
        for word in tokens.tokenizer.pre_tokenizer.pre_tokenize_str(text):
            word = tuple(x.value for x in tokens.tokenizer.model.tokenize(word[0]))
            for pair in merges:
                word = extended_tokenizer._with_joined(word, pair, "".join(pair))
            joined += word
        assert more.tokenizer.encode(text, add_special_tokens=False).tokens == joined


def test_the_most_frequent_pair_is_joined_first():
    words = {("a", "b", "c"): 3, ("b", "c"): 2, ("a", "b"): 3, ("x", "x", "x"): 2, ("y", "z"): 1}
    found = extended_tokenizer.joined_tokens(words, {"a", "b", "c", "x", "y", "z"}, lambda a, b: a + b, 9)
    # (x, x) is counted twice a word: 4. "bc" is left 2 times once "ab" is joined.
    assert found[0] == (("a", "b"), "ab") and found[1:3] == [(("x", "x"), "xx"), (("ab", "c"), "abc")]
    assert found[3:] == [(("b", "c"), "bc"), (("xx", "x"), "xxx")]
    assert extended_tokenizer.joined_tokens(words, {"ab", "xx"}, lambda a, b: a + b, 1) == [(("b", "c"), "bc")]


def test_bad_requests_write_nothing(corpus, tmp_path):
    folder, out = encoders.save("bert", tmp_path / "bert"), str(tmp_path / "out")
    (tmp_path / "old.txt").write_text("ba")
    for call, message in (
        ((folder, out, [str(corpus)], 100_000), "--pieces is 100000, and these texts do not give so many new ones: "),
        ((folder, out, [str(tmp_path / "old.txt")], 3), "do not give so many new ones: 0 of their characters"),
        ((folder, out, ["gone.txt"], 3), "gone.txt"),
        ((corpus.parent, out, [str(corpus)], 3), "has no config.json: it is not a model"),
    ):
        with pytest.raises((ValueError, OSError), match=message):
            extending.extend(str(call[0]), *call[1:])
    assert {x.name for x in tmp_path.iterdir()} == {"bert", "old.txt"}


def test_tokens_that_were_added_to_unigram_keep_their_ids():
    """New pieces stand behind an added token, which gets a place in the list."""
    made = encoders.tokenizer("xlm-roberta")
    assert made.add_tokens(["<old>"]) == 1
    tokens = Tokens(json.loads(made.to_str()), {}, "xlm-roberta")
    assert len(tokens.model["vocab"]) == 700 and len(tokens) == 701
    more = extended_tokenizer.with_tokens(tokens, ["▁babababa"], scores=[-1.0])
    assert more.ids["<old>"] == 700 and more.ids["▁babababa"] == 701 and more.unk_id == tokens.unk_id
    assert more.encode(["babababa <old> ж"])[0][:1] == [701] and more.unk_id in more.encode(["ж"])[0]
    assert [x for x in more.encode(["<old>"])[0] if x == 700] == [700]
