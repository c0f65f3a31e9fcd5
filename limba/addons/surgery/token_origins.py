"""From which tokens of an old tokenizer.json each token of a new one comes.

The kinds write the same text in their own ways: `▁able` of Unigram is `Ġable` of byte-level BPE and `able` of
WordPiece; `able` of the first two is `##able` of WordPiece. Here a token stands for the bytes of its text, with a blank
before it if it begins a word.
"""

import functools
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import tokenizers

from limba.addons.surgery.tokens import BLANK, WORDPIECE, Tokens
from limba.files import json_text


def origins(before: Tokens, after: Tokens) -> Any:
    """Where each id of a new file comes from, as `replaced_pieces.Origins`.

    Special tokens are the same by their roles, others that were added by their names. Another token is the same as the
    old one of its text, or is split by the old file.
    """
    from limba.addons.surgery import replaced_pieces

    old, new = _Texts(before), _Texts(after)
    shared = np.full(len(after), -1)
    ids: list[list[int]] = [[] for _ in range(len(after))]
    of_text = {text: id_ for id_, text in reversed([*old.of_tokens()])}
    alike = _notation(before) == _notation(after)
    for id_, text in new.of_tokens():
        name = after.names[id_]
        same = before.ids.get(name) if alike else None
        same = of_text.get(text) if same is None or same in before.special else same
        ids[id_] = old.split(text, name if alike else "") if same is None else [same]
    for id_ in after.special:
        same = before.ids.get(after.names[id_])
        ids[id_] = [] if same is None or same not in before.special else [same]
    if after.unk_id >= 0:
        ids[after.unk_id] = [before.unk_id] if before.unk_id >= 0 else []
    for role, id_ in after.roles.items():
        ids[id_] = [before.roles[role]] if role in before.roles else []
    for id_, found in enumerate(ids):
        if len(found) == 1:
            shared[id_] = found[0]
    return replaced_pieces.Origins(ids, shared)


def _notation(tokens: Tokens) -> tuple[bool, str]:
    """How names are written: files of the same way have the same names for the same texts."""
    return tokens.is_byte_level, tokens.prefix if tokens.kind == WORDPIECE else BLANK


class _Texts:
    """The texts of tokens, and the tokens of texts, as bytes with a blank where a word begins."""

    def __init__(self, tokens: Tokens):
        from limba.tasks.vocabularies import piece_characters

        self.tokens = tokens
        self._bytes = {character: byte for byte, character in piece_characters.byte_level_alphabet().items()}

    def of_tokens(self) -> Iterator[tuple[int, bytes]]:
        """Ids with their texts, of tokens that are not special."""
        in_bytes = {*self.tokens.in_bytes}
        for id_, name in sorted(self.tokens.names.items()):
            if id_ in in_bytes:
                yield id_, bytes([int(name[3:5], 16)])
            elif id_ not in self.tokens.special:
                yield id_, self._text(name)

    def _text(self, name: str) -> bytes:
        tokens = self.tokens
        if tokens.is_byte_level:
            return bytes(self._bytes[character] for character in name if character in self._bytes)
        if tokens.kind != WORDPIECE:
            return name.replace(BLANK, " ").encode()
        if name.startswith(tokens.prefix) and name != tokens.prefix:
            return name.removeprefix(tokens.prefix).encode()
        return name.encode() if self._stands_alone(name) else f" {name}".encode()

    def _stands_alone(self, text: str) -> bool:
        """Whether WordPiece makes a word of it wherever it is, as of a comma."""
        return len(self.tokens.words(f"a{text}")) > 1

    def split(self, text: bytes, name: str) -> list[int]:
        """The ids of a text; none if one of its characters is not known.

        Args:
          name: of a token of the same notation, for bytes that are no text; "" if there is none.
        """
        tokens = self.tokens
        try:
            decoded = text.decode()
        except UnicodeDecodeError:
            return [x.id for x in tokens.tokenizer.model.tokenize(name)] if tokens.is_byte_level and name else []
        if tokens.kind == WORDPIECE:
            found = self._wordpieces(decoded)
        elif tokens.is_byte_level:
            found = self._without_blank.encode(decoded, add_special_tokens=False).ids
        else:
            words = "".join(tokens.words(decoded.strip())).lstrip(BLANK).replace(" ", BLANK)
            begins = BLANK if decoded.startswith(" ") else ""
            found = [x.id for x in tokens.tokenizer.model.tokenize(begins + words)]
        return [] if tokens.unk_id in found else found

    @functools.cached_property
    def _without_blank(self) -> tokenizers.Tokenizer:
        """Byte-level BPE that sets no blank before a text, and knows no added tokens."""
        content = json.loads(json_text.dumps(dict(self.tokens.content)))
        content |= {"added_tokens": [], "post_processor": None}
        steps = [content["pre_tokenizer"] or {}]
        for step in steps:
            steps += step.get("pretokenizers") or []
            if "add_prefix_space" in step:
                step["add_prefix_space"] = False
        return tokenizers.Tokenizer.from_str(json_text.dumps(content, ensure_ascii=False))

    def _wordpieces(self, text: str) -> list[int]:
        """As WordPiece splits, from the longest token that fits; the first word may be the rest of one."""
        tokens, found = self.tokens, []
        begins = text.startswith(" ")
        for word in tokens.words(text):
            place = 0
            while place < len(word):
                prefix = "" if place == 0 and (begins or self._stands_alone(word)) else tokens.prefix
                ends = range(len(word), place, -1)
                end = next((end for end in ends if prefix + word[place:end] in tokens.ids), None)
                if end is None:
                    return []
                found.append(tokens.ids[prefix + word[place:end]])
                place = end
            begins = True
        return found
