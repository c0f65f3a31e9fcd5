"""The program of a card: what it shows of a pre-trained and a fine-tuned model, and that it is Python."""

import ast
import unicodedata

import pytest

from limba.addons.cards import card_example
from limba.addons.cards.card_example import Example

VOCABULARY = {"extra_ids": 100}


def program(text):
    """What stands between the fences, and they are of one length."""
    fence = next(line for line in text.splitlines() if line.endswith("python")).removesuffix("python")
    return text.split(f"{fence}python\n")[1].split(f"\n{fence}\n" if f"\n{fence}\n" in text else f"\n{fence}")[0]


def text_in(code):
    assigned = (node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Assign))
    (value,) = (node.value for node in assigned if getattr(node.targets[0], "id", None) == "text")
    return ast.literal_eval(value)


BLANK = Example("blank", "The old cat <extra_id_0> under a tree.", "sleeps")
ROW = Example("row", "mood of: Ana won.", "glad", "mood of: {story}", ("glad", "sad"))


def test_a_blank():
    text = card_example.section(BLANK, ("safetensors",))
    assert "The model fills blanks. This sentence of the validation data has one in the place of a word:" in text
    assert text.endswith("The word that belongs there is `sleeps`.")
    code = program(text)
    assert text_in(code) == BLANK.inputs
    # The blank is answered by a sentinel, which is a special token.
    assert "max_new_tokens=20" in code and code.endswith("print(tokenizer.decode(output[0]))")


def test_a_row():
    text = card_example.section(ROW, ("safetensors", "flax"))
    assert "The model answers inputs of the form `mood of: {story}`." in text
    assert "Its answers are `glad`, `sad`." in text and "A row of the validation data:" in text
    assert text.endswith("The answer in the data is `glad`.")
    code = program(text)
    assert code.endswith("print(tokenizer.decode(output[0], skip_special_tokens=True))")
    assert "model.generate(**inputs)" in code
    many = Example("row", "a", labels=tuple(f"label {i}" for i in range(150)), split="train")
    text = card_example.section(many, ("safetensors",))
    assert "`label 19` and 130 more." in text and "label 20" not in text and "A row of the training data:" in text


def test_a_label_that_is_a_blank_is_shown():
    row = Example(
        "row", "Ana won. mood: <extra_id_0>", "<extra_id_0> glad", "", ("<extra_id_0> glad", "<extra_id_0> sad")
    )
    assert program(card_example.section(row, ("safetensors",))).endswith("print(tokenizer.decode(output[0]))")


def test_without_data_it_is_in_no_language():
    text = card_example.section(card_example.neutral(VOCABULARY), ("safetensors",))
    assert text_in(program(text)) == "1, 2, 3, <extra_id_0>, 5, 6."
    assert "Put a text of your own in the place of this one:" in text
    assert card_example.neutral({"extra_ids": 0}).inputs == "1, 2, 3,"


NFKC = card_example.Texts(lambda text: unicodedata.normalize("NFKC", text).strip())


def test_answers_are_shown_as_the_model_writes_them():
    row = Example("row", "ls 節:", "（８）管理", "{text} 節:", ("（１）コマンド", "管理", "（８）管理"))
    text = card_example.section(row, ("safetensors",), texts=NFKC)
    assert (
        "Its answers are `(1)コマンド`, `管理`, `(8)管理`." in text and "The answer in the data is `(8)管理`." in text
    )
    assert "the model writes `(1)コマンド` for `（１）コマンド`, `(8)管理` for `（８）管理`. Normalize" in text
    # Of a text, which may be long, the characters.
    text = card_example.section(Example("row", "要約: ls", "一覧（ｌｓ）\u3000を"), ("safetensors",), texts=NFKC)
    assert "The answer in the data is `一覧(ls) を`." in text
    assert "writes `(` for `（`, `l` for `ｌ`, `s` for `ｓ`, `)` for `）`. Normalize" in text
    assert "normalizes" not in card_example.section(ROW, ("safetensors",), texts=NFKC)


def test_a_space_that_transformers_reads_behind_a_sentinel():
    spaces, note = card_example.Texts(adds_spaces=True), "transformers 5 reads a space behind `<extra_id_0>`"
    example = Example("blank", "ディレクトリの<extra_id_0>を表示する。", "内容")
    assert note in card_example.section(example, ("safetensors",), texts=spaces)
    assert note not in card_example.section(example, ("safetensors",))  # of bytes, or of a general class
    assert note not in card_example.section(BLANK, ("safetensors",), texts=spaces)


@pytest.mark.parametrize(
    "inputs", ['"quoted" \\ and\n```python\n# a fence', "știi? \t日本語 \u2028 😀", "{braces} %s ''' "]
)
@pytest.mark.parametrize("formats", [("safetensors",), ("flax",)])
@pytest.mark.parametrize("use_cache", [True, False])
def test_any_text_stays_what_it_is(inputs, formats, use_cache):
    code = program(card_example.section(Example("text", inputs), formats, use_cache))
    assert text_in(code) == inputs
    assert ("use_cache=False" in code) != use_cache
    assert ("FlaxAutoModelForSeq2SeqLM" in code) == (formats == ("flax",))
