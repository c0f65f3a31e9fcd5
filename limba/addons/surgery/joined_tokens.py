"""New tokens of a corpus: the pairs of old tokens that it has most often, joined, as byte-level BPE is trained."""

import collections
import heapq
import itertools
from collections.abc import Callable, Collection, Mapping

# A token is worth an id if it is seen more than once.
MIN_FREQUENCY = 2
Pair = tuple[str, str]
Word = tuple[str, ...]


def joined(
    words: Mapping[Word, int], known: Collection[str], join: Callable[[str, str], str | None], most: int
) -> list[tuple[Pair, str]]:
    """Up to `most` pairs with the tokens that they make, in the order in which they are joined.

    The most frequent pair becomes a token, in all words from left to right; then the pairs are counted again (Sennrich
    et al., arXiv:1508.07909). Of equally frequent ones the first in the order of their characters is taken.

    Args:
      words: how often the corpus has each sequence of old tokens.
      known: tokens that are there already.
      join: the token that two make, or None if they make none.
    """
    split, counts, taken = [*words], [*words.values()], {*known}
    totals: collections.Counter[Pair] = collections.Counter()
    places: dict[Pair, set[int]] = collections.defaultdict(set)
    for place, word in enumerate(split):
        for pair in itertools.pairwise(word):
            totals[pair] += counts[place]
            places[pair].add(place)
    waiting = [(-total, pair) for pair, total in totals.items()]
    heapq.heapify(waiting)
    found: list[tuple[Pair, str]] = []
    while waiting and len(found) < most:
        total, pair = heapq.heappop(waiting)
        if -total != totals[pair]:  # It was counted again; another entry has the number of now.
            continue
        if -total < MIN_FREQUENCY:
            break
        token = join(*pair)
        if token is None or token in taken:
            continue
        taken.add(token)
        found.append((pair, token))
        changed = set()
        for place in places.pop(pair):
            before, after = split[place], _with(split[place], pair, token)
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


def _with(word: Word, pair: Pair, token: str) -> Word:
    """A word in which the pair is one token."""
    made: list[str] = []
    place = 0
    while place < len(word):
        is_pair = word[place : place + 2] == pair
        made.append(token if is_pair else word[place])
        place += 1 + is_pair
    return tuple(made)
