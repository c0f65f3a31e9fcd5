"""More tokens for a tokenizer.json: characters that it does not know, and joined tokens that a corpus has often."""

import collections
import copy
import functools
import heapq
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from limba.addons.surgery.tokens import BLANK, WORDPIECE, Tokens


def extended(tokens: Tokens, lines: Sequence[str], most: int) -> Tokens:
    """A WordPiece or BPE file with `most` more tokens, learned from these lines.

    First come characters that the lines have and the file does not know, the most frequent first; then pairs of tokens
    that follow each other in words, joined one after the other. Merges of BPE are behind the old ones, so a text is
    split as before, and then its tokens are joined.

    Raises:
      ValueError: if the lines give fewer.
    """
    characters = _unknown_characters(tokens, lines)[:most]
    known = with_tokens(tokens, characters)
    pairs = joined_tokens(_words(known, lines), known.ids, functools.partial(_join, tokens), most - len(characters))
    names = [*characters, *(name for _, name in pairs)]
    if len(names) < most:
        raise ValueError(
            f"--pieces is {most}, and these texts do not give so many new ones: {len(names):,} of their characters and "
            f"joined tokens are seen {_MIN_FREQUENCY} times or more and are not in the vocabulary."
        )
    return with_tokens(tokens, names, merges=[pair for pair, _ in pairs])


# A token is worth an id if it is seen more than once.
_MIN_FREQUENCY = 2
# Old tokens: two of them, and those of a word.
_Pair = tuple[str, str]
_Word = tuple[str, ...]


def joined_tokens(
    words: Mapping[_Word, int], known: Collection[str], join: Callable[[str, str], str | None], most: int
) -> list[tuple[_Pair, str]]:
    """Up to `most` pairs with the tokens that they make, in the order in which they are joined.

    The most frequent pair becomes a token, in all words from left to right; then the pairs are counted again (Sennrich
    et al., arXiv:1508.07909). Of equally frequent ones the first in the order of their characters is taken.

    Args:
      words: how often the corpus has each sequence of old tokens.
      known: tokens that are there already.
      join: the token that two make, or None if they make none.
    """
    split, counts, taken = [*words], [*words.values()], {*known}
    totals: collections.Counter[_Pair] = collections.Counter()
    places: dict[_Pair, set[int]] = collections.defaultdict(set)
    for place, word in enumerate(split):
        for pair in itertools.pairwise(word):
            totals[pair] += counts[place]
            places[pair].add(place)
    waiting = [(-total, pair) for pair, total in totals.items()]
    heapq.heapify(waiting)
    found: list[tuple[_Pair, str]] = []
    while waiting and len(found) < most:
        total, pair = heapq.heappop(waiting)
        if -total != totals[pair]:  # It was counted again; another entry has the number of now.
            continue
        if -total < _MIN_FREQUENCY:
            break
        token = join(*pair)
        if token is None or token in taken:
            continue
        taken.add(token)
        found.append((pair, token))
        changed = set()
        for place in places.pop(pair):
            before, after = split[place], _with_joined(split[place], pair, token)
            split[place] = after
            for old in itertools.pairwise(before):
                totals[old] -= counts[place]
                changed.add(old)
            for new in itertools.pairwise(after):
                totals[new] += counts[place]
                places[new].add(place)
                changed.add(new)
        for one in changed:
            heapq.heappush(waiting, (-totals[one], one))
    return found


def _with_joined(word: _Word, pair: _Pair, token: str) -> _Word:
    """A word in which the pair is one token."""
    made: list[str] = []
    place = 0
    while place < len(word):
        is_pair = word[place : place + 2] == pair
        made.append(token if is_pair else word[place])
        place += 1 + is_pair
    return tuple(made)


def is_usable(tokens: Tokens, piece: str) -> bool:
    """Whether texts can have a piece of Unigram, after the normalizer of the file."""
    text = piece.replace(BLANK, " ").strip()
    return "".join(tokens.words(text)).replace(BLANK, "") == text.replace(" ", "")


def with_tokens(
    tokens: Tokens, names: Sequence[str], *, merges: Sequence[tuple[str, str]] = (), scores: Sequence[float] = ()
) -> Tokens:
    """The file with these tokens behind its own, whose ids stay.

    Args:
      merges: of BPE, for the last of them.
      scores: of Unigram, for each.

    Raises:
      ValueError: if the library reads other ids than that.
    """
    content = copy.deepcopy(dict(tokens.content))
    model = content["model"]
    added = dict(zip(names, itertools.count(len(tokens))))
    # Tokens that were added to the vocabulary get a place in it, so that none depends on the number of the others.
    if isinstance(model["vocab"], list):
        least = min(score for _, score in model["vocab"])
        behind = range(len(model["vocab"]), len(tokens))
        model["vocab"] += [[tokens.names[id_], least] for id_ in behind]
        model["vocab"] += [[name, score] for name, score in zip(names, scores, strict=True)]
    else:
        by_id = sorted((id_, name) for name, id_ in {**tokens.ids, **added}.items())
        model["vocab"] = {name: id_ for id_, name in by_id}
    if "merges" in model:
        in_one = model["merges"] and isinstance(model["merges"][0], str)
        model["merges"] += [" ".join(pair) if in_one else list(pair) for pair in merges]
    new = Tokens(content, tokens.roles, tokens.where, tokens.settings)
    if new.ids != {**tokens.ids, **added}:
        raise ValueError(f"The ids of {tokens.where} depend on how many tokens there are; it cannot get more.")
    return new


def _join(tokens: Tokens, left: str, right: str) -> str | None:
    if tokens.kind == WORDPIECE:
        return left + right.removeprefix(tokens.prefix) if right.startswith(tokens.prefix) else None
    begins_word = not tokens.is_byte_level and right.startswith(BLANK)
    return None if begins_word else left + right


def _words(tokens: Tokens, lines: Sequence[str]) -> Mapping[_Word, int]:
    """How often each word is there, as its tokens; special and unknown ones and bytes are left out."""
    left_out = {*tokens.special, *tokens.in_bytes}
    found: collections.Counter[_Word] = collections.Counter()
    for batch in _batches(lines):
        for x in tokens.tokenizer.encode_batch(batch, add_special_tokens=False):
            of_words = zip(x.ids, x.word_ids, strict=True)
            for (_, is_known), group in itertools.groupby(of_words, lambda pair: (pair[1], pair[0] not in left_out)):
                if is_known:
                    found[tuple(tokens.names[id_] for id_, _ in group)] += 1
    return found


def _unknown_characters(tokens: Tokens, lines: Sequence[str]) -> list[str]:
    """The characters that lines have and the file does not, at the beginning of words or inside, the most frequent
    first."""
    if tokens.is_byte_level:
        return []
    found: collections.Counter[str] = collections.Counter()
    unknown = {tokens.unk_id, *tokens.in_bytes}
    for batch in _batches(lines):
        for line, ids in zip(batch, tokens.encode(batch), strict=True):
            if unknown.isdisjoint(ids):
                continue
            for word in tokens.words(line):
                found.update(x for x in (word[0], *(tokens.prefix + c for c in word[1:])) if x not in tokens.ids)
    ordered = sorted(found.items(), key=lambda item: (-item[1], item[0]))
    return [character for character, count in ordered if count >= _MIN_FREQUENCY]


def _batches(lines: Sequence[str]) -> Iterator[list[str]]:
    from limba.addons.surgery import trimmed_pieces

    return trimmed_pieces.batches(iter(lines))
