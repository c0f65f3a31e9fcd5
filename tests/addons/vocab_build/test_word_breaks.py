"""U+200B between the words of Khmer: each kind of vocabulary says what it makes of it."""

import random
import re

import pytest

from limba.addons.vocab_build import command as build_command

_LETTERS = [chr(code) for code in range(0x1780, 0x17A3)]


@pytest.fixture(scope="module")
def lines():
    rng = random.Random(0)
    words = ["".join(rng.choices(_LETTERS, k=rng.randint(2, 4))) for _ in range(150)]
    return [" ".join("\u200b".join(rng.choices(words, k=8)) for _ in range(2)) for _ in range(600)]


def _said(lines, flags, folder, capsys):
    text, out = folder / "km.txt", folder / ("tokenizer.json" if "--kind" in flags else "spiece.model")
    text.write_text("\n".join(lines), encoding="utf-8")
    size = "384" if "bpe" in flags else "256"
    build_command.main(["--data_files", str(text), "--vocab_size", size, "--out", str(out), *flags])
    return [line for line in capsys.readouterr().err.splitlines() if line.startswith("U+200B")]


def test_where_it_is_kept_its_share_of_the_tokens_is_said(lines, tmp_path, capsys):
    """Fourteen of the 30 tokens, or more, of a line of two clauses of eight words."""
    (said,) = _said(lines, ["--normalization", "none"], tmp_path, capsys)
    assert 35 <= int(re.search(r"is in (\d+)% of the tokens of 600 lines", said)[1]) <= 50
    assert said.endswith("--normalization nfkc reads a blank in its place.")


def test_bytes_keep_it_too(lines, tmp_path, capsys):
    (said,) = _said(lines, ["--kind", "bpe"], tmp_path, capsys)
    assert int(re.search(r"is in (\d+)% of the tokens", said)[1]) >= 20 and "--kind sentencepiece" in said


def test_where_it_is_dropped_words_are_joined_and_that_is_said(lines, tmp_path, capsys):
    (said,) = _said(lines, ["--kind", "wordpiece"], tmp_path, capsys)
    assert said.startswith("U+200B stands 8,400 times between words: without it all words up to the next blank are one")


@pytest.mark.parametrize("flags", [[], ["--kind", "wordpiece"], ["--normalization", "none"]])
def test_a_blank_is_not_worth_a_line(flags, lines, tmp_path, capsys):
    given = [line.replace("\u200b", " ") if flags else line for line in lines]
    assert not _said(given, flags, tmp_path, capsys)
