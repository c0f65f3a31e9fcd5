"""The metadata at the top of a model card, which the hub reads: language, license, data sets, tags, results.

https://huggingface.co/docs/hub/model-cards describes the keys, and `model-index` for the results.
"""

import argparse
import dataclasses
import json
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from limba.convert.model_files.hf import hub_models
from limba.files import json_text, untrusted_json
from limba.reports import json_lines

_LANGUAGE = re.compile(r"[a-z]{2,3}(-[A-Za-z0-9]{2,8})*")
_LICENSE = re.compile(r"[a-z0-9][a-z0-9.-]*")


@dataclasses.dataclass(frozen=True)
class Metadata:
    """What a user says of a model for its card; all of it may be unknown.

    Attributes:
      languages: codes, such as "ro".
      license: as the hub calls it, such as "apache-2.0"; "" is unknown.
      datasets: on the hub, such as "org/corpus".
      tags: further ones.
      example: a text that the card's example gives to the model; "" takes one of the run's data.

    Raises:
      ValueError: for a value that the hub would refuse.
    """

    languages: tuple[str, ...] = ()
    license: str = ""
    datasets: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    example: str = ""

    def __post_init__(self) -> None:
        for language in self.languages:
            if not _LANGUAGE.fullmatch(language):
                raise ValueError(f"--language {language}: give a code of ISO 639, such as ro or en.")
        if self.license and not _LICENSE.fullmatch(self.license):
            raise ValueError(
                f"--license {self.license}: give the hub's short name, such as apache-2.0, mit or cc-by-4.0; other for "
                "a license that is not in its list."
            )
        for name in self.datasets:
            if not hub_models.is_name(name):
                raise ValueError(f"--dataset {name}: give the name of a data set on the hub, such as org/corpus.")
        for tag in self.tags:
            if not tag.strip() or not tag.isprintable():
                raise ValueError(f"--tag {tag!r}: a tag is a word or two.")

    def request(self) -> dict[str, Any]:
        """What an export depends on; values that are not given are left out."""
        return {name: value for name, value in json.loads(json_text.dumps(dataclasses.asdict(self))).items() if value}

    @classmethod
    def of_request(cls, request: Mapping[str, Any]) -> "Metadata":
        """The opposite of `request`."""
        values: dict[str, Any] = {name: tuple(x) if isinstance(x, list) else x for name, x in request.items()}
        return cls(**values)


NO_METADATA = Metadata()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options that make `Metadata`."""
    card = parser.add_argument_group("for the model card")
    card.add_argument("--language", action="append", default=[], metavar="CODE", help="such as ro; may be repeated")
    card.add_argument("--license", default="", metavar="NAME", help="the hub's name of it, such as apache-2.0")
    card.add_argument(
        "--dataset",
        action="append",
        default=[],
        metavar="NAME",
        help="a data set on the hub, beside those of the run's task; may be repeated",
    )
    card.add_argument("--tag", action="append", default=[], help="may be repeated")
    card.add_argument(
        "--example", default="", metavar="TEXT", help="the text of the example (a sentence or row of the run's data)"
    )


def of_arguments(args: argparse.Namespace) -> Metadata:
    return Metadata(tuple(args.language), args.license, tuple(args.dataset), tuple(args.tag), args.example)


def front_matter(
    metadata: Metadata, tags: Sequence[str], results: Sequence[Mapping[str, Any]], name: str, pipeline: str
) -> str:
    """YAML between two lines of dashes. Every value is JSON, which is YAML too.

    Args:
      tags: of the converter, which come first.
      results: entries of `model-index`; see `result`.
      name: of the model, for `model-index`.
      pipeline: the hub's name of what the model does, one of its `PIPELINE_DATA`.
    """
    lines = [f"library_name: transformers\npipeline_tag: {pipeline}"]
    given: dict[str, Any] = {
        "language": list(metadata.languages),
        "license": metadata.license,
        "datasets": list(metadata.datasets),
        "tags": list(dict.fromkeys([*tags, *metadata.tags])),
    }
    lines += [f"{key}: {_json(value)}" for key, value in given.items() if value]
    if results:
        index = json_text.dumps([{"name": name, "results": list(results)}], indent=1, ensure_ascii=False)
        lines.append(f"model-index:\n{textwrap.indent(index, ' ')}")
    flags = {"language": "--language", "license": "--license", "datasets": "--dataset"}
    if missing := [flag for key, flag in flags.items() if not given[key]]:
        lines.append(f"# Not known to the converter: `limba convert to-hf` takes {', '.join(missing)}.")
    return "\n".join(["---", *lines, "---"])


def result(task: str, dataset: str, metrics: Sequence[Mapping[str, Any]], kind: str) -> dict[str, Any]:
    """An entry of `model-index`.

    Args:
      task: Limba's name of it.
      dataset: the hub's name of its data, or the task's name again.
      metrics: each `{"type", "value", "name"}`.
      kind: the hub's name of what is measured, a pipeline or a task below one.
    """
    return {"task": {"type": kind}, "dataset": {"name": task, "type": dataset}, "metrics": list(metrics)}


def results_in(card: str) -> list[dict[str, Any]]:
    """The entries of `model-index` in a card that `front_matter` began; [] if there are none.

    Raises:
      ValueError: if they are not as `result` makes them, with a number as each value.
    """
    found = re.search(r"^model-index:\n((?: .*\n)+)", card.partition("\n---")[0] + "\n", re.M)
    try:
        models = untrusted_json.parse(found[1], "its model-index") if found else []
        results = [result for model in models for result in model["results"]]
        are_right = [isinstance(x["dataset"]["name"], str) and all(map(_is_metric, x["metrics"])) for x in results]
    except (KeyError, TypeError):
        raise ValueError("its model-index is not as a conversion writes it") from None
    if not all(are_right):
        raise ValueError("its model-index has a metric that is no number, or a data set without a name")
    return results


def _is_metric(metric: Mapping[str, Any]) -> bool:
    return isinstance(metric["name"], str) and json_lines.is_number(metric["value"])


def _json(value: Any) -> str:
    return json_text.dumps(value, ensure_ascii=False)
