"""A new classifier begins with the tensors that transformers' class takes from the files of a masked language model."""

import numpy as np
import pytest
import transformers

from convert.families import heads
from convert.families.heads import Head
from convert.to_hf import to_hf
from limba.addons.run import starting_model
from limba.checkpoint_files import assignment_maps
from tests.convert.encoders.conftest import LABELS, PAIRS, VARIANTS

CLASSES = {
    "SequenceClassifier": transformers.AutoModelForSequenceClassification,
    "TokenClassifier": transformers.AutoModelForTokenClassification,
}
FAMILIES = ("bert", "roberta", "mpnet", "roformer", "modernbert")
# The parts of a head that are not new, of families that have such.
TAKEN = {
    ("bert pairs", "SequenceClassifier"): {"bert.pooler.dense.weight", "bert.pooler.dense.bias"},
    **{
        ("modernbert", network): {f"head.{x}.{y}" for x in ("dense", "norm") for y in ("weight", "bias")}
        for network in CLASSES
    },
}


@pytest.fixture(scope="module", params=[*FAMILIES, *PAIRS])
def saved(request, new_encoder, tmp_path_factory):
    home = tmp_path_factory.mktemp("saved")
    variant, head = PAIRS.get(request.param, (request.param, heads.OF_MASKED_LM))
    run = new_encoder(home / "run", head, **(VARIANTS[variant] | {"num_layers": 2, "scan_layers": False}))
    to_hf(run, home / "out", verify=False)
    return request.param, home


@pytest.mark.parametrize("network", CLASSES)
def test_the_same_tensors_are_new_as_in_transformers(saved, network):
    name, home = saved
    theirs, found = CLASSES[network].from_pretrained(home / "out", num_labels=len(LABELS), output_loading_info=True)
    model = starting_model.open_model(str(home / "out"), None, None).for_rows_with(network)
    head = Head(heads.kind_of(network), LABELS, **model.head_fields(network))
    rows = model.opened.family.table(model.opened.config, head, model.opened.pad_id)
    wanted = {part.limba: None for row in rows for part in row.parts}
    pairs = [(f"{ours}/(.*)", rf"{of}/\1") for ours, of in model.shared_modules(network).items()]
    nested = [assignment_maps.unflatten_state_dict(x) for x in (model.opened.tensors, wanted)]
    begun = assignment_maps.flatten_state_dict(assignment_maps.apply_assignment_map(*nested, pairs))
    is_new = {row.name: not all(part.limba in begun for part in row.parts) for row in rows if row.parts}
    missing = {tensor for tensor in found["missing_keys"] if "embed_positions" not in tensor}  # computed, of a RoFormer
    assert {tensor for tensor, new in is_new.items() if new} == missing
    of_head = [row for row in rows if row.parts and row.parts[0].limba.startswith("classifier_head/")]
    taken = {row.name: np.asarray(row.stored(begun)) for row in of_head if not is_new[row.name]}
    assert taken.keys() == TAKEN.get((name, network), set())
    for tensor, value in taken.items():
        np.testing.assert_array_equal(value, theirs.state_dict()[tensor].numpy(), err_msg=tensor)
    # A run of Limba's begins alike.
    assert starting_model.open_model(str(home / "run"), None, None).shared_modules(network) == (
        model.shared_modules(network)
    )
