"""Rows as a tokenizer.json makes them: its special tokens, its template of pairs, its token types, its side of the cut.

The library does all of it, as in transformers' `tokenizer(text, pair, truncation=True, max_length=…)`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from limba.data.token_rows import Frame, Row, Texts

_TEMPLATES = ("TemplateProcessing", "BertProcessing", "RobertaProcessing")
# Of a truncation that has a side and no length.
NO_LENGTH = 2**24


def has_template(content: Mapping[str, Any]) -> bool:
    """Whether a tokenizer.json says which special tokens a row has, also if it has none."""
    return any(step.get("type") in _TEMPLATES for step in processors(content))


def processors(content: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The steps of a tokenizer.json's post-processor."""
    step = content.get("post_processor")
    if not isinstance(step, Mapping):
        return []
    inner = step.get("processors") if step.get("type") == "Sequence" else None
    return [step] if inner is None else [x for part in inner for x in processors({"post_processor": part})]


def cuts_left(content: Mapping[str, Any]) -> bool:
    """Whether a row that is too long loses its beginning."""
    return (content.get("truncation") or {}).get("direction") == "Left"


def longest(content: Mapping[str, Any]) -> int | None:
    """The tokens to which the file itself cuts a row; None if it does not."""
    length = (content.get("truncation") or {}).get("max_length")
    return length if isinstance(length, int) and 0 < length < NO_LENGTH else None


def make(tokenizer: Any, texts: Sequence[Texts], most: int | None, cutting: Callable[[int], Any]) -> list[Row]:
    """The rows of texts, and of pairs of texts; of three and more, the second of the pair is all behind the first.

    Args:
      tokenizer: a `tokenizers.Tokenizer` without truncation and padding.
      most: see `limba.data.token_rows.of_vocabulary`.
      cutting: the tokenizer that cuts rows to so many tokens.
    """
    given = [text if isinstance(text, str) else text[0] if len(text) == 1 else tuple(text) for text in texts]
    encoded = _encode(tokenizer, given)
    lengths = [len(x) for x in encoded]
    if most is not None and (too_long := [i for i, length in enumerate(lengths) if length > most]):
        needed = max(tokenizer.num_special_tokens_to_add(not isinstance(given[i], str)) for i in too_long)
        if needed > most:
            raise ValueError(
                f"Rows have at most {most} tokens, and the tokenizer puts {needed} special ones into each: let rows be "
                "longer."
            )
        for i, row in zip(too_long, _encode(cutting(most), [given[i] for i in too_long]), strict=True):
            encoded[i] = row
    return [Row(row.ids, row.type_ids, length) for row, length in zip(encoded, lengths, strict=True)]


def _encode(tokenizer: Any, texts: Sequence[str | tuple[str, ...]]) -> list[Any]:
    several = {i for i, text in enumerate(texts) if not isinstance(text, str) and len(text) > 2}
    usual = iter(tokenizer.encode_batch_fast([text for i, text in enumerate(texts) if i not in several]))
    return [_of_several(tokenizer, text) if i in several else next(usual) for i, text in enumerate(texts)]


def _of_several(tokenizer: Any, texts: Sequence[str]) -> Any:
    """A pair of the first text and all others, between which stands what the template has between two."""
    from tokenizers import Encoding

    first, *others = tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
    between = _between(tokenizer)
    parts = [x for i, part in enumerate(others) for x in ([part] if not i else [*between, part])]
    return tokenizer.post_process(first, Encoding.merge(parts, growing_offsets=True))


def _between(tokenizer: Any) -> list[Any]:
    """The special tokens between two texts, each as an encoding of its own."""
    row = tokenizer.encode("", "")
    alone = frame(tokenizer)
    ids = row.ids[len(alone.before) : len(row.ids) - len(alone.behind)]
    return tokenizer.encode_batch_fast([tokenizer.id_to_token(i) for i in ids], add_special_tokens=False)


def frame(tokenizer: Any) -> Frame:
    """The special tokens around a single text."""
    texts = (tokenizer.id_to_token(i) for i in range(tokenizer.get_vocab_size()))
    for text in filter(None, texts):  # Ids may have gaps.
        row = tokenizer.encode(text)
        begins = [i for i, is_special in enumerate(row.special_tokens_mask) if not is_special]
        if begins:
            first, last = begins[0], begins[-1]
            types = (row.type_ids[0], row.type_ids[first], row.type_ids[-1])
            return Frame(row.ids[:first], row.ids[last + 1 :], types)
    raise ValueError("No text has a token in this tokenizer.")
