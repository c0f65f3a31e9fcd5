"""Each figure of a scoreboard a second time: by transformers' class of an export, a text at a time, and by counts.

    limba scoreboard exports/t5 exports/bert --text texts.txt --pairs pairs.jsonl --retrieval queries.csv \
        --train corpus.jsonl --output_dir board
    python -m benchmarks.scoreboard_check board exports/t5 exports/bert --text texts.txt --pairs pairs.jsonl \
        --retrieval queries.csv --train corpus.jsonl

The models are exports of T5s with a spiece.model, and of encoders, in the order of the scoreboard's rows. N-grams are
in the pieces of the first one, if that is a T5. Pairs have the columns `good` and `bad`, and differ in one place;
queries the columns `query` and `answer`; the files have the names that the scoreboard got. Nothing of Limba is
imported: words, rows, ranks and intervals are made here.
"""

import argparse
import collections
import csv
import difflib
import itertools
import json
import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece
import torch
import transformers

Span = tuple[int, int]
_WORD = re.compile(r"[^\W_]+(?:['’‐-][^\W_]+)*|[^\w\s]|_")


def _words(text: str) -> list[Span]:
    return [match.span() for match in _WORD.finditer(text)]


def _of_words(text: str, offsets: Sequence[Span]) -> list[list[int]]:
    """The tokens of each word; blanks belong to the word behind them, and a token of two words makes them one."""
    words = _words(text)
    found: list[list[int]] = []
    last, blanks = -1, []
    for i, (begin, end) in enumerate(offsets):
        inside = [n for n, (a, b) in enumerate(words) if begin < b and a < end]
        if not inside:
            blanks.append(i)
            continue
        if inside[0] > last:
            found.append([])
        found[-1] += [*blanks, i]
        last, blanks = max(last, inside[-1]), []
    return found


def _difference(good: str, bad: str) -> tuple[Span, Span]:
    """The characters of the words in which two sentences differ; a word more takes the next one with it."""
    spans = _words(good), _words(bad)
    words = [[text[a:b] for a, b in of_text] for text, of_text in zip((good, bad), spans, strict=True)]
    codes = [x for x in difflib.SequenceMatcher(None, *words, autojunk=False).get_opcodes() if x[0] != "equal"]
    if len(codes) != 1:
        raise SystemExit(f"{good!r} and {bad!r} differ in {len(codes)} places; leave such pairs out.")
    _, a1, a2, b1, b2 = codes[0]
    if a1 == a2 or b1 == b2:
        is_last = a2 == len(words[0]) or b2 == len(words[1])
        a1, b1, a2, b2 = (a1 - 1, b1 - 1, a2, b2) if is_last else (a1, b1, a2 + 1, b2 + 1)
    return (spans[0][a1][0], spans[0][a2 - 1][1]), (spans[1][b1][0], spans[1][b2 - 1][1])


class T5:
    """An export of a T5."""

    def __init__(self, folder: str):
        self.pieces = sentencepiece.SentencePieceProcessor(model_file=str(Path(folder) / "spiece.model"))
        self._tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        self._model = transformers.T5ForConditionalGeneration.from_pretrained(folder).eval()
        self._sentinels = self._tokenizer.convert_tokens_to_ids(["<extra_id_0>", "<extra_id_1>"])

    def _encode(self, text: str) -> tuple[list[int], list[Span]]:
        found = self.pieces.encode(text, out_type="immutable_proto").pieces
        return [x.id for x in found], [(x.begin, x.end) for x in found]

    def _filled(self, before: list[int], blank: list[int], behind: list[int], skip: int) -> tuple[float, int]:
        """The log probability of a blank, and the worst rank in it."""
        inputs = [*before, self._sentinels[0], *behind, 1]
        targets = torch.tensor([self._sentinels[0], *blank, self._sentinels[1] if behind else 1])
        logits = self._model(input_ids=torch.tensor([inputs]), labels=targets[None]).logits[0]
        places = torch.arange(len(targets))
        ranks = 1 + (logits > logits[places, targets][:, None]).sum(-1)
        return float(torch.log_softmax(logits.double(), -1)[places, targets][skip:].sum()), int(ranks[skip:].max())

    def words(self, text: str) -> Iterator[tuple[float, int]]:
        ids, offsets = self._encode(text)
        for places in _of_words(text, offsets):
            begin, end = places[0], places[-1] + 1
            yield self._filled(ids[:begin], ids[begin:end], ids[end:], 1)

    def pair(self, sentences: tuple[str, str]) -> list[float]:
        """Tokens beside the words that only one sentence has are in the blank, too."""
        parts = []
        for text, (begin, end) in zip(sentences, _difference(*sentences), strict=True):
            ids, offsets = self._encode(text)
            places = [i for i, (a, b) in enumerate(offsets) if a < end and begin < b]
            parts.append((ids[: places[0]], ids[places[0] : places[-1] + 1], ids[places[-1] + 1 :]))
        same = [sum(1 for _ in itertools.takewhile(lambda x: x[0] == x[1], zip(*both, strict=False)))
                for both in ((x[0] for x in parts), (x[2][::-1] for x in parts))]  # fmt: skip
        found = []
        for before, blank, behind in parts:
            end = len(behind) - same[1]
            blank = [*before[same[0] :], *blank, *behind[:end]]
            found.append(self._filled(before[: same[0]], blank, behind[end:], 0)[0])
        return found

    def vector(self, text: str) -> np.ndarray:
        inputs = torch.tensor([self._tokenizer(text).input_ids])
        return _unit(self._model.encoder(input_ids=inputs).last_hidden_state[0].mean(0))


class Encoder:
    """An export of an encoder with a masked-LM head."""

    def __init__(self, folder: str):
        self._tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        self._model = transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()

    def _encode(self, text: str) -> tuple[list[int], list[Span]]:
        found = self._tokenizer(text, return_offsets_mapping=True)
        return found.input_ids, found.offset_mapping

    def _masked(self, ids: list[int], hidden: set[int], place: int) -> tuple[float, int]:
        """The log probability and the rank of the token at a place, where some are masked."""
        row = torch.tensor([[self._tokenizer.mask_token_id if i in hidden else x for i, x in enumerate(ids)]])
        logits = self._model(input_ids=row).logits[0, place]
        return float(torch.log_softmax(logits.double(), -1)[ids[place]]), 1 + int((logits > logits[ids[place]]).sum())

    def words(self, text: str) -> Iterator[tuple[float, int]]:
        ids, offsets = self._encode(text)
        for places in _of_words(text, offsets[1:-1]):
            inside = [place + 1 for place in places]
            found = [self._masked(ids, {x for x in inside if x >= place}, place) for place in inside]
            yield sum(x for x, _ in found), max(rank for _, rank in found)

    def pair(self, sentences: tuple[str, str]) -> list[float]:
        scores = []
        for text, (begin, end) in zip(sentences, _difference(*sentences), strict=True):
            ids, offsets = self._encode(text)
            hidden = {i for i, (a, b) in enumerate(offsets) if a < b and a < end and begin < b}
            scores.append(sum(self._masked(ids, hidden, place)[0] for place in hidden))
        return scores

    def vector(self, text: str) -> np.ndarray:
        inputs = torch.tensor([self._tokenizer(text).input_ids])
        return _unit(self._model.base_model(input_ids=inputs).last_hidden_state[0].mean(0))


def _unit(vector: torch.Tensor) -> np.ndarray:
    return (vector / vector.norm()).numpy()


class Ngrams:
    """Interpolated absolute discounting, with n1 / (n1 + 2 n2) of each order taken off, over a uniform distribution."""

    def __init__(self, pieces: sentencepiece.SentencePieceProcessor, files: Sequence[str], most_tokens: int):
        self._pieces, self._size, read = pieces, pieces.vocab_size() - 2, 0  # without padding and EOS
        self._counts = [collections.Counter[tuple[int, ...]]() for _ in range(3)]
        for line in itertools.chain.from_iterable(Path(file).read_text("utf-8").splitlines() for file in files):
            if read < most_tokens:
                ids = pieces.encode(json.loads(line)["text"])
                read += len(ids)
                for n, counts in enumerate(self._counts):
                    counts.update(tuple(ids[i - n : i + 1]) for i in range(n, len(ids)))
        self._totals = [collections.Counter[tuple[int, ...]]() for _ in range(3)]
        self._kinds = [collections.Counter[tuple[int, ...]]() for _ in range(3)]
        for counts, totals, kinds in zip(self._counts, self._totals, self._kinds, strict=True):
            for key, count in counts.items():
                totals[key[:-1]] += count
                kinds[key[:-1]] += 1
        seen = [[sum(x == k for x in counts.values()) for k in (1, 2)] for counts in self._counts]
        self._discounts = [once / (once + 2 * twice) if once and twice else 0.5 for once, twice in seen]

    def _probability(self, n: int, before: list[int], token: int) -> float:
        if n < 0:
            return 1 / self._size
        lower = self._probability(n - 1, before, token)
        context = tuple(before[len(before) - n :])
        if n > len(before) or not (total := self._totals[n][context]):
            return lower
        seen = max(self._counts[n][(*context, token)] - self._discounts[n], 0)
        return (seen + self._discounts[n] * self._kinds[n][context] * lower) / total

    def log_probability(self, n: int, text: str) -> float:
        ids = self._pieces.encode(text)
        return sum(math.log(self._probability(n, ids[max(0, i - 2) : i], ids[i])) for i in range(len(ids)))


def _wilson(count: int, of: int) -> tuple[float, float]:
    z, share = 1.959963984540054, count / of
    middle, half = share + z * z / 2 / of, z * math.sqrt(share * (1 - share) / of + z * z / 4 / of / of)
    return 100 * (middle - half) / (1 + z * z / of), 100 * (middle + half) / (1 + z * z / of)


@torch.no_grad()
def _of_model(model: Any, files: argparse.Namespace) -> Iterator[tuple[str, str, str, float]]:
    """The file, the figure, its part, and the value."""
    if files.text:
        texts = Path(files.text).read_text("utf-8").splitlines()
        words = [list(model.words(text)) for text in texts]
        ranks = np.array([rank for of_text in words for _, rank in of_text])
        nats = -sum(score for of_text in words for score, _ in of_text)
        yield files.text, "nats/character", "value", nats / sum(map(len, texts))
        yield files.text, "word found %", "value", 100 * float(np.mean(ranks == 1))
        yield files.text, "median rank", "value", float(np.median(ranks))
    if files.pairs:
        scores = [model.pair((x["good"], x["bad"])) for x in _pairs(files.pairs)]
        won = sum(good > bad for good, bad in scores)
        found = (100 * won / len(scores), *_wilson(won, len(scores)))
        for part, value in zip(("value", "low", "high"), found, strict=True):
            yield files.pairs, "accuracy %", part, value
    if files.retrieval:
        with Path(files.retrieval).open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        queries, answers = (np.stack([model.vector(row[name]) for row in rows]) for name in ("query", "answer"))
        cosines = queries @ answers.T
        ranks = 1 + (cosines > np.diag(cosines)[:, None]).sum(1)
        yield files.retrieval, "answer found %", "value", 100 * float(np.mean(ranks == 1))
        yield files.retrieval, "median rank", "value", float(np.median(ranks))


def _of_ngrams(n: int, ngrams: Ngrams, files: argparse.Namespace) -> Iterator[tuple[str, str, str, float]]:
    if files.text:
        texts = Path(files.text).read_text("utf-8").splitlines()
        nats = -sum(ngrams.log_probability(n, text) for text in texts)
        yield files.text, "nats/character", "value", nats / sum(map(len, texts))
    if files.pairs:
        scores = [[ngrams.log_probability(n, x[side]) for side in ("good", "bad")] for x in _pairs(files.pairs)]
        won = sum(good > bad and not math.isclose(good, bad) for good, bad in scores)
        yield files.pairs, "accuracy %", "value", 100 * won / len(scores)


def _pairs(file: str) -> list[dict[str, str]]:
    return [json.loads(line) for line in Path(file).read_text("utf-8").splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("board", help="the folder of --output_dir")
    parser.add_argument("models", nargs="+", help="exports, in the order of the rows")
    parser.add_argument("--text", metavar="FILE", help="a text a line")
    parser.add_argument("--pairs", metavar="FILE", help="JSON lines with `good` and `bad`")
    parser.add_argument("--retrieval", metavar="FILE")
    parser.add_argument("--train", nargs="+", default=[], metavar="FILE", help="JSON lines with `text`")
    parser.add_argument("--ngram_tokens", type=int, default=5_000_000, metavar="N")
    files = parser.parse_args()
    torch.set_num_threads(1)  # of small models, whose threads wait for each other
    board = json.loads((Path(files.board) / "scoreboard.json").read_text("utf-8"))
    rows = {row["name"]: row for row in board["rows"]}
    names = {of["file"]: of["name"] for of in board["sets"]}
    models = [(T5 if (Path(x) / "spiece.model").is_file() else Encoder)(x) for x in files.models]
    sides = [(name, _of_model(model, files)) for name, model in zip(files.models, models, strict=True)]
    if files.train and isinstance(models[0], T5):
        ngrams = Ngrams(models[0].pieces, files.train, files.ngram_tokens)
        sides += [(name, _of_ngrams(n, ngrams, files)) for n, name in enumerate(("unigram", "bigram", "trigram"))]
    worst = 0.0
    for name, figures in sides:
        for file, figure, part, value in figures:
            ours = rows[name]["figures"][names[file]][figure][part]
            worst = max(worst, abs(ours - value))
            print(f"{name}: {names[file]}, {figure}, {part}: {ours:.6f} and {value:.6f}, {abs(ours - value):.1e} apart")
    print(f"at most {worst:.1e} apart")


if __name__ == "__main__":
    main()
