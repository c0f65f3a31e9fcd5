"""Which encoders of Hugging Face there are, and which of them holds a network."""

from typing import Any

from convert.encoders.bert_relatives import BERT, MPNET, ROBERTA_PRELAYERNORM, ROFORMER
from convert.encoders.family import Family
from convert.encoders.modernbert import MODERNBERT
from convert.families import heads
from convert.families.heads import Head
from limba.encoders.config import EncoderConfig

FAMILIES = {family.name: family for family in (BERT, ROBERTA_PRELAYERNORM, MPNET, ROFORMER, MODERNBERT)}


def find_family(config: EncoderConfig, head: Head = heads.OF_MASKED_LM) -> Family:
    """The family with the class that holds a network and its head exactly; see `Family.held`.

    Raises:
      ValueError: if none does, with what would have to be another for the nearest one.
    """
    problems = {family.name: family.problems(config, head) for family in FAMILIES.values()}
    nearest = min(problems, key=lambda name: (not _has_positions_of(FAMILIES[name], config), len(problems[name])))
    if not problems[nearest]:
        return FAMILIES[nearest]
    family = FAMILIES[nearest]
    configured = f"its EncoderConfig or {head.class_name}" if head.labels else "its EncoderConfig"
    raise ValueError(
        f"No class of Hugging Face holds this encoder. For the nearest, {family.class_of(family.held(head).kind)}, "
        f"{configured} would have to be another: {'; '.join(problems[nearest])}. It trains and evaluates in Limba as "
        "it is."
    )


def _has_positions_of(family: Family, config: EncoderConfig) -> bool:
    return config.position_embedding_type in family.required["position_embedding_type"]


def of_model_type(model_type: Any) -> Family | None:
    """The family with the `model_type` of a config.json; None if there is none."""
    return next((family for family in FAMILIES.values() if family.model_type == model_type), None)
