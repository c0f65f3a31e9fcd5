"""The model card of an export, as `limba convert to-hf` asks for it: the part "card" of the table of add-ons.

What the user says for it goes through the core as JSON, because an export that is there already is compared with it.
"""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from limba.addons.cards import card_metadata, encoder_card, model_card, t5_card
from limba.addons.cards.card_metadata import Metadata, add_arguments
from limba.addons.cards.model_card import Description, results_of
from limba.convert.exports.encoder_export import EncoderExport
from limba.convert.exports.export import Export
from limba.convert.exports.t5_export import T5Export

__all__ = ["add_arguments", "check", "given", "losses_in", "results_of", "write"]


def given(args: argparse.Namespace) -> dict[str, Any]:
    """What the command line says for the card, as JSON. Raises ValueError for a value that the hub would refuse."""
    return card_metadata.of_arguments(args).request()


def check(export: Export, card: Mapping[str, Any]) -> None:
    """Raises ValueError if the card cannot show what the user says for it."""
    metadata = Metadata.of_request(card)
    if isinstance(export, EncoderExport):
        encoder_card.check_example(export, metadata.example)


def write(folder: Path, name: str, export: Export, report: Mapping[str, Any], card: Mapping[str, Any]) -> None:
    """Writes README.md, and a picture of the losses, into a folder that has everything else.

    Args:
      name: that the folder will have.
      report: the content of `conversion_report.json`.
      card: what the user says for it; see `given`.
    """
    model, metadata = export.model, Metadata.of_request(card)
    gin, metrics = ("", []) if report["without_lora"] else model_card.run_record(model.path)
    facts = model_card.Facts(
        name=name,
        description=_description(folder, export, metadata.example, gin, report),
        num_parameters=model.num_parameters,
        step=model.step,
        run=model.info,
        gin=gin,
        metrics=metrics,
        comparisons=report["comparisons"],
        metadata=metadata,
        average=report["average"] is not None,
    )
    model_card.write(folder, facts)


def _description(folder: Path, export: Export, text: str, gin: str, report: Mapping[str, Any]) -> Description:
    if isinstance(export, EncoderExport):
        return encoder_card.describe(export, text, gin, report["dtype"])
    assert isinstance(export, T5Export)
    return t5_card.of_export(export, folder, text, gin, report["formats"], report["dtype"])


def losses_in(text: str) -> list[tuple[str, dict[str, float]]]:
    """Of a card the tasks that were evaluated, each with its losses by the metrics' names in metrics.jsonl.

    Raises:
      ValueError: if its results are not as a conversion writes them.
    """
    names = {title: name for name, title in model_card.LOSSES.items()}
    return [
        (result["dataset"]["name"], {names[x["name"]]: x["value"] for x in result["metrics"] if x["name"] in names})
        for result in card_metadata.results_in(text)
    ]
