"""Encoders of transformers' making, there and back, and twenty steps: outputs and losses are those of its classes.

One size of each family; `python -m benchmarks.families_beside_transformers` has all families in two.
"""

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from benchmarks import families_beside_transformers as beside
from benchmarks import families_in_transformers

FAMILIES = (
    *("distilbert", "eurobert", "nomic_bert", "mmbert"),
    *("electra generator", "electra detector", "deberta_v3"),
)


@pytest.fixture(scope="module")
def found(tmp_path_factory, forks5):
    """What was found of each family, and where its folders are."""
    home = tmp_path_factory.mktemp("steps")
    cases = [beside.Case(name, 1, home / name.replace(" ", "_")) for name in FAMILIES]

    def run_script(version, request):
        done = forks5.run(families_in_transformers.__file__, request)
        assert done.returncode == 0, done.stderr[-3000:]

    return dict(zip(FAMILIES, zip(cases, beside.run(cases, run_script), strict=True), strict=True))


@pytest.mark.parametrize("name", FAMILIES)
def test_outputs_and_losses_are_those_of_transformers(name, found):
    case, of_family = found[name]
    print(name, of_family)
    assert of_family.outputs < 1e-5 and of_family.losses < 1e-4 and of_family.wrong_tensors == 0
    with np.load(case.folder / "found.npz") as theirs:
        assert np.abs(theirs["outputs"]).max() > 0.3
        # Twenty steps change more than the batches do.
        assert np.ptp(theirs["losses"]) > 0.02


def test_a_parameter_that_is_not_the_folder_s_is_counted(found):
    case, of_family = found["distilbert"]
    assert of_family.holds
    file = case.home / "export/model.safetensors"
    tensors = load_file(file)
    tensors["distilbert.transformer.layer.0.ffn.lin1.weight"][3, 2] += 1e-6
    save_file(tensors, file, {"format": "pt"})
    again = beside.compare(case)
    assert again.wrong_tensors == 1 and not again.holds
