"""Rows of random tokenizers equal those of transformers 4 and 5; rows of files without a template."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from limba.data import token_rows
from tasks import objectives
from tasks.pretraining import denoising
from tasks.registry import Feature
from tasks.supervised import row_preprocessor
from tasks.supervised.row_formats import Example
from tasks.vocabularies import SentencePieceVocabulary, T5TokenizerVocabulary, TokenizerVocabulary, sentencepiece_models
from tests import house
from tests.convert import vocabularies
from tests.tasks.vocabularies import random_tokenizers

_COUNT = 75


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizers")
    for seed in range(_COUNT):
        random_tokenizers.write(seed, folder / f"{seed:03}")
    (folder / "t5").mkdir()
    vocabularies.train(folder / "t5" / "spiece.model")
    random_tokenizers.write_t5(folder / "t5")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("version", ["4", "5"])
def test_rows_of_random_tokenizers_are_those_of_transformers(folder, version):
    python = sys.executable
    if version == "5":
        python = os.environ.get("LIMBA_HF5_PYTHON") or str(house.ROOT / ".venv-hf5/bin/python")
    script = random_tokenizers.__file__
    offline = {**os.environ, "HF_HUB_OFFLINE": "1", "USE_TORCH": "0", "USE_TF": "0", "TRANSFORMERS_VERBOSITY": "error"}
    subprocess.run([python, script, "read", str(folder)], check=True, env=offline, capture_output=True)
    num_rows, num_lines, wrong = 0, 0, []
    for one in sorted(folder.iterdir()):
        given, expected = (json.loads((one / name).read_text()) for name in ("texts.json", "rows.json"))
        (one / "rows.json").unlink()
        if one.name == "t5":
            model = SentencePieceVocabulary(str(one / "spiece.model"), 100)
            assert [[row.ids for row in model.rows(given["texts"], most)] for most in (None, given["most"])] == [
                [ids for ids, _ in rows] for rows in expected[:2]
            ]
            continue
        vocabulary = TokenizerVocabulary(str(one))
        cases = [(texts, most) for texts in (given["texts"], given["pairs"]) for most in (None, given["most"])]
        for (texts, most), of_transformers in zip(cases, expected, strict=True):
            rows = [[row.ids, row.types] for row in vocabulary.rows(texts, most)]
            num_rows += len(rows)
            if rows != of_transformers:
                wrong.append((one.name, most))
        lines = _lines_before_they_are_masked(vocabulary, given["texts"], given["most"])
        num_lines += len(lines)
        wrong += [(one.name, i) for i, ids in lines.items() if ids != expected[1][i][0]]
    assert (num_rows, wrong) == (_COUNT * 32, []) and num_lines > _COUNT * 4


def _lines_before_they_are_masked(vocabulary, texts, most) -> dict[int, list[int]]:
    """The rows of run_mlm.py's `line_by_line`, of texts that are not blank and have tokens; their masks are undone."""
    feature = Feature(vocabulary)
    before, behind = sentencepiece_models.ids_of(vocabulary).frame
    step = denoising.Denoise(
        objectives.MaskedLM(frame=(len(before), len(behind))),
        line_by_line=True,
        output_features={"inputs": feature, "targets": feature},
        sequence_length={"inputs": most},
    )
    with pytest.MonkeyPatch.context() as patch:  # Padding is 0 where a run trains; here any tokenizer has its own.
        patch.setattr(TokenizerVocabulary, "pad_id", 0)
        examples, of_text = step.function()([text.encode() for text in texts], seed=1)
    lines = {}
    for i, text in enumerate(of_text.tolist()):
        count, length = examples["targets"][1][i], examples["inputs"][1][i]
        row, places = examples["inputs"][0][i, :length].copy(), examples["target_positions"][0][i, :count]
        row[places] = examples["targets"][0][i, :count]
        lines[text] = row.tolist()
    return lines


def _folder(tmp_path: Path, template, **settings) -> Path:
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdef"]
    tokenizer = Tokenizer(models.WordLevel({token: i for i, token in enumerate(tokens)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(tokens[:5])
    if template is not None:
        tokenizer.post_processor = template
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    if settings:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    return tmp_path


def test_a_file_alone_without_a_template_has_the_usual_one(tmp_path):
    vocabulary = TokenizerVocabulary(str(_folder(tmp_path, None)))
    assert vocabulary.rows(["a b", ("a", "b c")]) == [
        token_rows.Row([2, 5, 6, 3], [0, 0, 0, 0], 4),
        token_rows.Row([2, 5, 3, 6, 7, 3], [0, 0, 0, 1, 1, 1], 6),
    ]
    assert vocabulary.rows(["a b c"], 4) == [token_rows.Row([2, 5, 6, 3], [0] * 4, 5)]
    assert vocabulary.frame == token_rows.Frame([2], [3], (0, 0, 0))
    of_t5 = T5TokenizerVocabulary(str(tmp_path))
    assert of_t5.rows(["a b c"], 3) == [token_rows.Row([5, 6, 3], [0] * 3, 4)]


def test_a_folder_of_transformers_without_a_template_puts_no_special_tokens(tmp_path):
    vocabulary = TokenizerVocabulary(str(_folder(tmp_path, None, tokenizer_class="PreTrainedTokenizerFast")))
    assert vocabulary.rows(["a b", ("a", "b c")]) == [
        token_rows.Row([5, 6], [0, 0], 2),
        token_rows.Row([5, 6, 7], [0, 1, 1], 3),
    ]


def test_three_texts_have_the_separators_of_a_pair(tmp_path):
    vocabulary = TokenizerVocabulary(str(_folder(tmp_path, None)))
    (row,) = vocabulary.rows([("a", "b", "c d")])
    assert row == token_rows.Row([2, 5, 3, 6, 3, 7, 8, 3], [0, 0, 0, 1, 1, 1, 1, 1], 8)
    assert vocabulary.rows([("a", "b", "c d")], 6)[0].length == 8


def test_a_row_shorter_than_its_special_tokens_is_refused(tmp_path):
    vocabulary = TokenizerVocabulary(str(_folder(tmp_path, None)))
    with pytest.raises(ValueError, match="Rows have at most 2 tokens, and the tokenizer puts 3 special ones"):
        vocabulary.rows([("a", "b")], 2)


def test_words_that_are_cut_on_the_left_keep_the_rest_of_the_first(tmp_path):
    """As `word_ids` of transformers: the first piece that is left of a word has its label."""

    class Words:
        frame, cuts_left = token_rows.Frame([2], [3]), True

        def encode_words(self, texts):
            return [([5, 6, 7, 8, 9], [0, 3, -1, 4])]

    (row,) = token_rows.of_words(Words(), [["abc", "d", "", "e"]], 6)
    assert row == token_rows.WordRow([2, 6, 7, 8, 9, 3], [0] * 6, 7, [1, 3, -1, 4], 5)
    (row,) = token_rows.of_words(Words(), [["abc", "d", "", "e"]], 4)
    assert row == token_rows.WordRow([2, 8, 9, 3], [0] * 4, 7, [-1, 1, -1, 2], 3)


@pytest.mark.parametrize(("text", "found"), [("a [PAD] b", 1), ("a b", 0), ("a [SEP] b", 0)])
def test_padding_in_a_text_is_named(tmp_path, text, found):
    feature = Feature(TokenizerVocabulary(str(_folder(tmp_path, None))))
    examples = [Example("a", "yes"), Example(text, "no")]
    findings = row_preprocessor.find_special_tokens("t", "train", examples, {"inputs": feature})
    assert [finding.name for finding in findings] == ["special_tokens"] * found
    if found:
        assert findings[0].what == "t: 1 of the first 2 examples of split 'train' have [PAD] in their text."


def test_special_tokens_in_texts_of_sentencepiece(tmp_path):
    """In rows they are tokens, as in transformers; `encode` reads letters, as SeqIO does."""
    vocabulary = SentencePieceVocabulary(str(vocabularies.train(tmp_path / "spiece.model")), 100)
    row = [*vocabulary.encode("a "), 1, *vocabulary.encode(" b"), 2, 0, *vocabulary.encode("<s>"), 1]
    assert [x.ids for x in vocabulary.rows(["c", "a </s> b<unk><pad><s>"])] == [[*vocabulary.encode("c"), 1], row]
    assert not {0, 1} & {*vocabulary.encode("a </s> b<unk><pad><s>")}
    examples = [Example("a <b>c</s> d", "yes"), Example("a", "<pad> b"), Example("a", "<unk>")]
    (finding,) = row_preprocessor.find_special_tokens("t", "train", examples, {"inputs": Feature(vocabulary)})
    assert "1 of the first 3 examples of split 'train' have <pad> in their text" in finding.what


def test_examples_before_an_input_are_counted_as_rows_are_made(tmp_path):
    """Of few shots as many stay as fit: with the special tokens of the tokenizer's own template."""
    from tokenizers import processors

    template = processors.TemplateProcessing("[CLS] [CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    feature = Feature(TokenizerVocabulary(str(_folder(tmp_path, template))))
    cutter = row_preprocessor._Cutter("t", {"inputs": feature}, None, None)
    assert cutter.count_inputs(["a b", "c"]).tolist() == [5, 4]
