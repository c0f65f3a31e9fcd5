"""mBART's family: BART's with norms before the blocks and behind the stacks."""

import dataclasses

from limba.addons.bart import bart_family, bart_keys

FAMILY = dataclasses.replace(
    bart_family.FAMILY,
    name="mbart",
    title="mBART",
    model_type="mbart",
    model_class="MBartForConditionalGeneration",
    network={"norms_before": True},
    recognized_by="its network is a BartConfig with norms_before",
    keys=bart_keys.keys(norms_before=True),
    rows=tuple(bart_family.rows(norms_before=True)),
)
