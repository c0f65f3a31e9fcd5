"""The stages of `limba corpus`: which of datatrove's blocks do what, in FineWeb-2's order.

Documents are read and identified, near duplicates are found in all of them, and the rest pass the rules. What a block
leaves out is kept in `removed/`, with the rule.
"""

import dataclasses
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from datatrove.data import Document
from datatrove.pipeline.base import PipelineStep
from datatrove.pipeline.decont.n_grams import NGramsDecontConfig, NGramsDecontFilter
from datatrove.pipeline.dedup import MinhashDedupBuckets, MinhashDedupCluster, MinhashDedupFilter, MinhashDedupSignature
from datatrove.pipeline.dedup.minhash import MinhashConfig
from datatrove.pipeline.extractors import Trafilatura
from datatrove.pipeline.filters import (
    FineWebQualityFilter,
    GopherQualityFilter,
    GopherRepetitionFilter,
    LanguageFilter,
)
from datatrove.pipeline.filters.base_filter import BaseFilter, get_filter_result
from datatrove.pipeline.formatters import FTFYFormatter, PIIFormatter, SymbolLinesFormatter
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.writers import JsonlWriter
from datatrove.utils.lid import FastTextLID

from limba.addons.corpus import source_files, word_splitting
from limba.addons.corpus.evaluation_index import N_GRAMS
from limba.addons.corpus.recipe_file import Identification, Recipe
from limba.addons.corpus.source_files import Files
from limba.addons.corpus.thresholds import Thresholds

# FineWeb's: 14 buckets of 8 hashes of 5-grams, which finds three quarters in common in most cases.
MINHASH = MinhashConfig(norm_config=word_splitting.AS_IT_IS)
# Of the characters of lines, those of lines that came before; FineWeb-2's for all languages.
_REPEATED_LINES = 0.1
# datatrove stops after one, which a busy machine may take.
_SECONDS_OF_PAGE = 60
# FineWeb's, of a model that no thresholds go with.
_USUAL_SCORE = 0.65


@dataclasses.dataclass(frozen=True)
class Stage:
    """A pipeline of datatrove, run in so many tasks."""

    name: str
    tasks: int
    steps: Sequence[PipelineStep]


class OwnModel(FastTextLID):
    """A fastText model in a file of the user's; datatrove's own classes download theirs."""

    def __init__(self, file: str, label: str) -> None:
        super().__init__([label])
        self.file = file
        self.loaded: Any = None

    @property
    def model(self) -> Any:
        """The model, loaded once a process."""
        if self.loaded is None:
            from fasttext.FastText import _FastText

            self.loaded = _FastText(self.file)
        return self.loaded


class Count(PipelineStep):
    """Counts what passes: documents, words between blanks and characters by source, and lengths."""

    type, name = "COUNT", "Counts"

    def run(self, data: Iterator[Document], rank: int = 0, world_size: int = 1) -> Iterator[Document]:
        """Yields the documents as they come."""
        for document in data:
            source = document.metadata["source"]
            self.stat_update(f"words/{source}", value=len(document.text.split()), unit="document")
            self.stat_update(f"characters/{source}", value=len(document.text), unit="document")
            self.stat_update(f"length/{len(document.text).bit_length()}")
            yield document


class PersonalData(PIIFormatter):
    """datatrove's block, whose pattern of addresses begins to match at each word."""

    def format(self, text: str) -> str:
        """The text with other addresses."""
        self.remove_emails = "@" in text
        return super().format(text)


class WordBudget(BaseFilter):
    """Keeps documents until a task has its part of all words. Which ones, their texts say, so that none is favoured."""

    name = "Word budget"

    def __init__(self, quotas: Mapping[int, tuple[float, int]], exclusion_writer: Any = None) -> None:
        """quotas: by task, the share of its documents that are kept, and how many words at most."""
        super().__init__(exclusion_writer)
        self.quotas = quotas
        self.words = 0

    def run(self, data: Any, rank: int = 0, world_size: int = 1) -> Iterator[Document]:
        """As every filter's."""
        self.share, self.most = self.quotas.get(rank, (0.0, 0))
        self.words = 0
        yield from super().run(data, rank, world_size)

    def filter(self, doc: Document) -> bool | tuple[bool, str]:
        """Whether it is drawn, and fits."""
        number = int.from_bytes(hashlib.sha256(doc.text.encode("utf-8", "surrogatepass")).digest()[:8])
        words = len(doc.text.split())
        if number >= self.share * 2**64 or self.words + words > self.most:
            return False, "word_budget"
        self.words += words
        return True


def language_filter(identify: Identification, score: float | None, removed: Path | None = None) -> LanguageFilter:
    """datatrove's filter with a model of the user's.

    Args:
      score: the least; None keeps all, and writes the score to the document.
    """
    step = LanguageFilter(
        languages=[identify.label],
        language_threshold=score or 0.0,
        label_only=score is None,
        exclusion_writer=_removed(removed, "language"),
    )
    step.model = OwnModel(identify.model, identify.label)
    return step


def least_score(recipe: Recipe, thresholds: Thresholds | None) -> float:
    """Of the model that identifies languages: the recipe's, the thresholds', or the usual one."""
    assert recipe.identify is not None
    if recipe.identify.score is not None:
        return recipe.identify.score
    known = None if thresholds is None else thresholds.language_score
    return _USUAL_SCORE if known is None else known


def reading(recipe: Recipe, found: Sequence[Files], thresholds: Thresholds | None, tasks: int, work: Path) -> Stage:
    """Reads all sources, makes text of pages, and keeps the language."""
    steps: list[PipelineStep] = []
    for number, files in enumerate(found):
        if steps and files.ending != ".warc" and found[number - 1].ending == ".warc":
            steps.append(_text_of_pages())
        steps.append(source_files.reader(files, work / f"files{number}.txt"))
    if found[-1].ending == ".warc":
        steps.append(_text_of_pages())
    steps.append(_named(Count(), "read"))
    if recipe.identify is not None:
        steps.append(language_filter(recipe.identify, least_score(recipe, thresholds), work))
    return Stage("1_read", tasks, [*steps, JsonlWriter(str(work / "1_read"), compression="zstd")])


def duplicates(recipe: Recipe, tasks: int, work: Path) -> list[Stage]:
    """Finds near duplicates in all of what was read."""
    signatures, buckets, clusters = (str(work / name) for name in ("signatures", "buckets", "clusters"))
    return [
        Stage(
            "2_signatures",
            tasks,
            [
                JsonlReader(str(work / "1_read"), adapter=_as_written),
                MinhashDedupSignature(signatures, MINHASH, word_splitting.of_simplified(recipe.language)),
            ],
        ),
        Stage("3_buckets", MINHASH.num_buckets, [MinhashDedupBuckets(signatures, buckets, config=MINHASH)]),
        Stage("4_clusters", 1, [MinhashDedupCluster(buckets, clusters, config=MINHASH)]),
    ]


def rules(recipe: Recipe, thresholds: Thresholds | None, index: Path | None, tasks: int, work: Path) -> Stage:
    """Leaves out duplicates and what breaks a rule, and changes what must not stay.

    Args:
      index: the folder with the n-grams of evaluation files, a folder for each length.
    """
    steps: list[PipelineStep] = [JsonlReader(str(work / "1_read"), adapter=_as_written)]
    if recipe.deduplicate:
        steps.append(MinhashDedupFilter(str(work / "clusters"), exclusion_writer=_removed(work, "duplicates")))
    if thresholds is not None:
        steps += quality(recipe, thresholds, work)
    if recipe.repair_characters:
        steps.append(FTFYFormatter())
    if recipe.remove_personal_data:
        steps.append(PersonalData())
    steps.append(SymbolLinesFormatter(symbols_to_remove=["|"], replace_char="\n"))
    if index is not None:
        steps += [_leaks(recipe, index / str(n), n, work) for n in N_GRAMS]
    steps.append(_named(Count(), "kept"))
    writer = JsonlWriter(str(work / "5_kept"), compression="zstd") if recipe.words else _shards(work)
    return Stage("5_rules", tasks, [*steps, writer])


def _leaks(recipe: Recipe, folder: Path, n: int, work: Path) -> BaseFilter:
    removed = _removed(work, f"evaluation_{n}_grams")
    settings = NGramsDecontConfig(n_grams=n, norm_config=word_splitting.AS_IT_IS)
    return NGramsDecontFilter(str(folder), settings, removed, word_splitting.of_simplified(recipe.language))


def budget(quotas: Mapping[int, tuple[float, int]], tasks: int, work: Path) -> Stage:
    """Keeps at most so many words."""
    steps = [
        JsonlReader(str(work / "5_kept"), adapter=_as_written),
        WordBudget(quotas, _removed(work, "word_budget")),
        _named(Count(), "kept"),
        _shards(work),
    ]
    return Stage("6_budget", tasks, steps)


def passing(documents: Sequence[Document], recipe: Recipe, thresholds: Thresholds) -> float:
    """The share of documents that pass all rules of quality."""
    filters = quality(recipe, thresholds, None)
    passed = [all(get_filter_result(step.filter(document))[0] for step in filters) for document in documents]
    return sum(passed) / len(passed)


def quality(recipe: Recipe, thresholds: Thresholds, work: Path | None) -> list[BaseFilter]:
    """FineWeb-2's three filters with its settings, those that it leaves out included."""
    words = word_splitting.of_language(recipe.language)
    return [
        GopherRepetitionFilter(
            dup_line_frac=thresholds.dup_line_frac,
            dup_para_frac=0,
            dup_line_char_frac=0,
            dup_para_char_frac=0,
            top_n_grams=thresholds.top_n_grams,
            dup_n_grams=thresholds.dup_n_grams,
            exclusion_writer=_removed(work, "repetition"),
            language=words,
        ),
        FineWebQualityFilter(
            _removed(work, "lines"),
            line_punct_thr=thresholds.line_punct_thr,
            short_line_thr=999,
            char_duplicates_ratio=_REPEATED_LINES,
            new_line_ratio=thresholds.new_line_ratio,
            language=words,
        ),
        GopherQualityFilter(
            min_doc_words=recipe.min_words,
            min_avg_word_length=thresholds.min_avg_word_length,
            max_avg_word_length=thresholds.max_avg_word_length,
            max_non_alpha_words_ratio=thresholds.max_non_alpha_words_ratio,
            min_stop_words=min(2, len(thresholds.stopwords)),
            stop_words=list(thresholds.stopwords),
            exclusion_writer=_removed(work, "words"),
            language=words,
        ),
    ]


def _text_of_pages() -> Trafilatura:
    """FineWeb's extractor. What a page takes must not depend on how busy a machine is."""
    import trafilatura  # noqa: F401 - each page is read in a fork, and the import takes longer than a page

    return Trafilatura(timeout=_SECONDS_OF_PAGE)


def _named(step: PipelineStep, name: str) -> PipelineStep:
    step.name = name
    step.stats.name = name
    return step


def _removed(work: Path | None, rule: str) -> JsonlWriter | None:
    return None if work is None else JsonlWriter(str(work / "removed" / rule), "${rank}.jsonl", compression="zstd")


def _as_written(reader: Any, data: dict[str, Any], path: str, number: int | str) -> dict[str, Any]:
    """A document of a stage before."""
    return {"text": data["text"], "id": data["id"], "metadata": data["metadata"]}


def _shards(work: Path) -> JsonlWriter:
    return JsonlWriter(str(work / "shards"), "${source}/train-${rank}.jsonl", compression="zstd", adapter=_as_row)


def _as_row(writer: Any, document: Document) -> dict[str, Any]:
    """What a reader of the corpus sees: the text, and where it comes from."""
    kept = {key: document.metadata[key] for key in ("url", "date", "language_score") if key in document.metadata}
    return {"text": document.text, "id": document.id, **kept}
