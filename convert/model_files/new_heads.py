"""The tensors of a head that a Hugging Face folder of an encoder lacks."""

from collections.abc import Collection

import numpy as np

from limba.checkpoint_files.saved_tensors import SavedTensor, from_array
from limba.convert.families import heads, networks
from limba.convert.families.encoder_family import EncoderFamily
from limba.convert.families.heads import Head
from limba.network.encoders.config import EncoderConfig

_HEAD_SEED = 0


def has_pooler(weights: Collection[str], family: EncoderFamily) -> bool:
    """Whether tensors, by Hugging Face's names, have the pooler that a class of the family has."""
    rows = family.heads[heads.PAIRS].rows if heads.PAIRS in family.heads else ()
    names = [f"{row.theirs}.weight" for row in rows if row.limba == "classifier_head/dense"]
    return any(name in weights or name.removeprefix(f"{family.prefix}.") in weights for name in names)


def new_head(config: EncoderConfig, family: EncoderFamily, pad_id: int, head: Head) -> dict[str, SavedTensor]:
    """The tensors of a head as a new network has them, without the pooler, which is there."""
    rng = np.random.default_rng(_HEAD_SEED)
    ours = {}
    for name, shape in networks.shapes(config, head).items():
        if name.endswith("/kernel"):
            new = rng.normal(0, config.initializer_range, shape)
        else:
            new = np.ones(shape) if name.endswith("/scale") else np.zeros(shape)
        if name.startswith(("mlm_head/", "pair_head/")):
            ours[name] = from_array(new.astype(np.float32))
    rows = family.table(config, head, pad_id)
    return {t.name: t.stored(ours) for t in rows if t.parts and all(part.limba in ours for part in t.parts)}
