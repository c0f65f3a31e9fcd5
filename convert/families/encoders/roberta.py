"""RoBERTa (arXiv:1907.11692), XLM-R, CamemBERT: BERT with positions that begin after padding."""

import dataclasses

from limba.convert.families.encoders import bert, roberta_prelayernorm

FAMILY = dataclasses.replace(
    roberta_prelayernorm.FAMILY,
    name="roberta",
    title="RoBERTa",
    model_type="roberta",
    model_class="RobertaForMaskedLM",
    prefix="roberta",
    required=bert.REQUIRED | {"position_embedding_type": ("absolute",)},
    rows=bert.rows("roberta"),
    fields=roberta_prelayernorm.fields,
    constants=lambda config, pad_id: bert.no_token_types("roberta", config),
    ignored=r"^roberta\.pooler\.",
)

# The tensors of XLM-R and CamemBERT (arXiv:1911.03894) have RoBERTa's names.
XLM_R = dataclasses.replace(
    FAMILY,
    name="xlm_roberta",
    title="XLM-R",
    model_type="xlm-roberta",
    model_class="XLMRobertaForMaskedLM",
    defaults=bert.FAMILY.defaults,
)
CAMEMBERT = dataclasses.replace(
    XLM_R, name="camembert", title="CamemBERT", model_type="camembert", model_class="CamembertForMaskedLM"
)
FAMILIES = (FAMILY, XLM_R, CAMEMBERT)
