"""`limba vocab replace` of encoders: tokens of the same text keep rows and logits, also between kinds."""

import json
import shutil

import numpy as np
import pytest
import tokenizers

from limba.addons.surgery import replace as replacing
from limba.addons.surgery import token_origins
from limba.addons.surgery.tokens import Tokens
from tests.addons.surgery import encoders
from tests.addons.surgery.encoders import LATIN
from tests.convert import vocabularies

torch = pytest.importorskip("torch")

# How each kind writes the beginning of a word, and the rest of one.
MARKS = {"bert": ("", "##"), "roberta": ("Ġ", ""), "modernbert": ("Ġ", ""), "xlm-roberta": ("▁", "")}
ROLES = ("pad", "unk", "cls", "sep", "mask")
# Each kind, and each notation before and after.
PAIRS = [("bert", "roberta"), ("xlm-roberta", "bert"), ("modernbert", "xlm-roberta")]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    home = tmp_path_factory.mktemp("encoders")
    return {name: encoders.save(name, home / name) for name in encoders.NAMES}


@pytest.fixture(scope="module", params=PAIRS, ids=lambda pair: f"{pair[0]} of {pair[1]}")
def replaced(request, folders, tmp_path_factory):
    """The names of the kinds before and after, and OUT."""
    old, new = request.param
    home = tmp_path_factory.mktemp("replaced")
    (home / "corpus.txt").write_text("\n".join(LATIN[:50]), "utf-8")
    words = [str(folders[old]), str(home / "out"), "--vocab", str(folders[new]), "--corpus", str(home / "corpus.txt")]
    assert replacing.main(words) == 0
    return old, new, home / "out"


def _same(old, new, names):
    """Ids before and after of special tokens and of tokens that are the same letters in their notations."""
    (begin, rest), (new_begin, new_rest) = (MARKS[name] for name in names)
    ids, found = old.get_vocab(), {}
    for token, id_ in new.get_vocab().items():
        begins = token.startswith(new_begin) if new_begin else not token.startswith(new_rest)
        letters = token.removeprefix(new_begin if begins else new_rest)
        other = (begin if begins else rest) + letters
        if letters.isalpha() and letters.isascii() and other in ids:
            found[id_] = ids[other]
    both = zip(old.special_tokens_map.items(), new.special_tokens_map.items(), strict=True)
    specials = {new.get_vocab()[b]: ids[a] for (role, a), (role_after, b) in both if role == role_after}
    assert len(specials) == len(ROLES) and len(found) > 50
    return found | specials


def test_the_same_text_has_the_same_row_and_logits(folders, replaced):
    *names, out = replaced
    (old, before), (new, after) = encoders.load(folders[names[0]]), encoders.load(out)
    same = _same(old, new, names)
    a, b = np.array([*same.values()]), np.array([*same])
    rows = [m.get_input_embeddings().weight.detach().numpy() for m in (before, after)]
    np.testing.assert_array_equal(rows[1][b], rows[0][a])
    places = np.random.default_rng(0).integers(0, len(a), (2, 20))
    places[0, 15:] = [*b].index(new.pad_token_id)  # padding, which positions do not count
    with torch.no_grad():
        masks = torch.tensor(b[places] != new.pad_token_id).long()
        logits = after(torch.tensor(b[places]), attention_mask=masks).logits.numpy()[..., b]
        wanted = before(torch.tensor(a[places]), attention_mask=masks).logits.numpy()[..., a]
    assert np.abs(wanted).max() > 0.5
    np.testing.assert_allclose(logits[masks == 1], wanted[masks == 1], atol=2e-6)
    assert json.loads((out / "replace.json").read_text())["largest_difference_of_logits"] == 0


def test_other_rows_are_means_of_their_parts(folders, replaced):
    *names, out = replaced
    (old, before), (new, after) = encoders.load(folders[names[0]]), encoders.load(out)
    rows = [m.get_input_embeddings().weight.detach().numpy() for m in (before, after)]
    begin, checked = MARKS[names[1]][0], 0
    blank = " " if MARKS[names[0]][0] == "Ġ" else ""
    for token, id_ in new.get_vocab().items():
        letters = token.removeprefix(begin)
        is_word = token.startswith(begin) if begin else not token.startswith("##")
        if is_word and letters.isalpha() and letters.isascii():
            parts = old(blank + letters, add_special_tokens=False).input_ids
            assert old.unk_token_id not in parts
            np.testing.assert_allclose(rows[1][id_], rows[0][parts].mean(0), atol=1e-6)
            checked += len(parts) > 1
    # That BERT has all of these words.
    assert checked > 20 or names == ["bert", "roberta"]


def test_the_tokens_are_those_of_the_given_file(folders, replaced):
    *names, out = replaced
    (old, before), (given, _), (new, model) = (encoders.load(x) for x in (folders[names[0]], folders[names[1]], out))
    texts = [x.tokenize(" ".join(LATIN[:9])) for x in (given, new)]
    assert texts[0] == texts[1] and new(LATIN[0]).input_ids[0] == new.cls_token_id
    # Positions of RoBERTa begin behind padding: there it has the id that it had. Elsewhere ids are the file's.
    has_offset = names[0] in ("roberta", "xlm-roberta")
    assert new.pad_token_id == (old if has_offset else given).pad_token_id == model.config.pad_token_id
    moved = {token for token, id_ in new.get_vocab().items() if given.get_vocab()[token] != id_}
    exchanged = {given.pad_token, given.convert_ids_to_tokens(old.pad_token_id)} if has_offset else set()
    assert moved <= exchanged | ({given.convert_ids_to_tokens(0)} if has_offset else set())
    assert model.config.max_position_embeddings == before.config.max_position_embeddings
    assert model.config.vocab_size % 128 == 0


def _tokens(name):
    content = json.loads(encoders.tokenizer(name).to_str())
    ids = tokenizers.Tokenizer.from_str(json.dumps(content)).get_vocab()
    names = encoders.BERTS if "[PAD]" in ids else ["<pad>", "<unk>", "<s>", "</s>", "<mask>"]
    return Tokens(content, {role: ids[name] for role, name in zip(ROLES, names, strict=True)}, name)


def test_punctuation_and_bytes():
    """A comma of WordPiece stands for one with and without a blank before it; bytes of a letter are no text."""
    bert, roberta = _tokens("bert"), _tokens("roberta")
    found = token_origins.origins(roberta, bert)
    assert found.ids[bert.ids[","]] == [roberta.ids[","]]
    back = token_origins.origins(bert, roberta)
    assert back.ids[roberta.ids[","]] == [bert.ids[","]] and back.ids[roberta.ids["Ð"]] == []
    assert back.num_unknown > 100
    same = token_origins.origins(roberta, _tokens("modernbert"))
    assert (same.shared[:995] >= 0).all() and (same.shared[1000:] >= 0).all() and same.ids[0] == [roberta.ids["!"]]


def test_bad_requests_write_nothing(folders, tmp_path):
    bert, out = str(folders["bert"]), str(tmp_path / "out")
    home = tmp_path / "files"
    home.mkdir()
    vocabularies.train(home / "spiece.model")
    made = tokenizers.Tokenizer(tokenizers.models.BPE({"<pad>": 0, "</s>": 1, "a": 2}, []))
    made.save(str(home / "t5.json"))
    (home / "t5").mkdir()
    (home / "t5/tokenizer.json").write_bytes((home / "t5.json").read_bytes())
    (home / "t5/tokenizer_config.json").write_text('{"extra_ids": 100}')
    words = vocabularies.write_words(home / "words/tokenizer.json", ["ba", "ce"])
    for vocab, message in (
        (words, "words/tokenizer.json is of kind WordLevel, whose tokens are whole words"),
        (home / "spiece.model", "is no tokenizer.json, and .*bert is an encoder"),
        (home / "t5.json", r"has no \[CLS\]"),
        (home / "t5", r"has no \[CLS\]"),
        (home, "has no tokenizer.json"),
        (home / "gone", "There is no --vocab .*gone"),
        (bert, "there is nothing to replace"),
        (f"{bert}/tokenizer.json", "there is nothing to replace"),
    ):
        with pytest.raises((ValueError, OSError), match=message):
            replacing.replace(bert, out, str(vocab))
    shutil.copytree(folders["roberta"], home / "odd")
    settings = json.loads((home / "odd/tokenizer_config.json").read_text())
    (home / "odd/tokenizer_config.json").write_text(json.dumps(settings | {"odd_key": 1}))
    with pytest.raises(ValueError, match=r"odd_key is 1\. Limba does not know this key"):
        replacing.replace(bert, out, str(home / "odd"))
    assert {x.name for x in tmp_path.iterdir()} == {"files"}
    replacing.replace(bert, out, str(home / "odd"), ignore_config_keys=["odd_key"], verify=False)
    assert json.loads((tmp_path / "out/config.json").read_text())["pad_token_id"] == 1
