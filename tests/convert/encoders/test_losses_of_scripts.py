"""`limba run SCRIPT --do_eval` has the eval_loss of transformers 4 and 5, with unusual tokenizers and texts."""

import json

import gin
import pytest

from limba.addons.run import command
from tasks.registry import TaskRegistry
from tests.convert.encoders import losses_in_transformers


@pytest.fixture(scope="module")
def home(request, tmp_path_factory):
    """The folders of the cases that are run."""
    home = tmp_path_factory.mktemp("losses")
    for name in {x.callspec.params["name"] for x in request.session.items if x.path == request.path}:
        losses_in_transformers.write(name, home / name)
    return home


@pytest.fixture(scope="module")
def of_5(home, forks5):
    done = forks5.run(losses_in_transformers.__file__, str(home))
    assert done.returncode == 0, done.stderr[-3000:]
    return {folder.name: json.loads((folder / "loss.json").read_text()) for folder in home.iterdir()}


@pytest.mark.sample(1)
@pytest.mark.slow
@pytest.mark.parametrize("name", losses_in_transformers.CASES)
def test_the_loss_of_an_evaluation_is_that_of_the_script(name, home, of_5, tmp_path):
    rows = home / name / "rows.json"
    keys = {"model_name_or_path": home / name, "train_file": rows, "validation_file": rows, "output_dir": tmp_path}
    keys |= losses_in_transformers.CASES[name][0] | {"per_device_eval_batch_size": 1}
    known = set(TaskRegistry.names())
    try:
        assert command.main([f"--{key}={value}" for key, value in keys.items()] + ["--do_eval"]) == 0
    finally:
        gin.clear_config()
        for task in set(TaskRegistry.names()) - known:
            TaskRegistry.remove(task)
    found = json.loads((tmp_path / "all_results.json").read_text())["eval_loss"]
    assert found == pytest.approx(losses_in_transformers.loss(name, home / name), abs=1e-5)
    assert found == pytest.approx(of_5[name], abs=1e-5)
