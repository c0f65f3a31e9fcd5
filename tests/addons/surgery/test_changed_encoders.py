"""An encoder with another vocabulary trains on, and both versions of transformers load it."""

import json
from pathlib import Path

import numpy as np
import pytest

from convert.from_hf import from_hf
from convert.to_hf import to_hf
from limba.addons.surgery import extend as extending
from limba.addons.surgery import replace as replacing
from limba.addons.surgery import trim as trimming
from limba.checkpoints import checkpointing
from tests.addons.surgery import encoders
from tests.addons.surgery.encoders import LATIN
from tests.convert import training_on
from tests.convert.vocabularies import GREEK

pytestmark = pytest.mark.slow
torch = pytest.importorskip("torch")

SCRIPT = Path(__file__).parent / "compute_in_transformers5.py"
STAGES = ("begun", "replaced", "extended", "trimmed")
TEXT = " ".join([*GREEK[0].split()[:2], *LATIN[0].split()[:2]])


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A folder with a run for each of the stages, each made of the one before, and what is trained on the last."""
    home = tmp_path_factory.mktemp("runs")
    old, new = "roberta", "bert"
    for name in (old, new):
        encoders.save(name, home / "folders" / name)
    lines = [*GREEK[:200], *LATIN[:100]]
    (home / "corpus.txt").write_text("\n".join(lines), "utf-8")
    begun, replaced, extended, trimmed = (str(home / stage) for stage in STAGES)
    corpus = [str(home / "corpus.txt")]
    from_hf(home / "folders" / old, begun, verify=False)
    replacing.replace(begun, replaced, str(home / "folders" / new), verify=False)
    extending.extend(replaced, extended, corpus, 100, verify=False)
    trimming.trim(extended, trimmed, corpus, min_count=3, verify=False)
    (home / "corpus.jsonl").write_text("\n".join(json.dumps({"text": line}) for line in lines), "utf-8")
    files = dict.fromkeys(("train", "validation"), str(home / "corpus.jsonl"))
    training_on.train_on(home / "trimmed", files, home / "trained", total_steps=2)
    return home


def test_training_moves_the_rows_that_were_made(runs):
    rows = [checkpointing.load_params(runs / x)["token_embedder"]["embedding"] for x in (*STAGES, "trained")]
    begun, replaced, extended, trimmed, trained = map(np.asarray, rows)
    assert len(replaced) % 128 == len(extended) % 128 == len(trimmed) % 128 == 0
    assert len(trimmed) < len(extended) >= len(replaced)
    count = json.loads((runs / "extended/extend.json").read_text())["same_pieces"]
    np.testing.assert_array_equal(extended[:count], replaced[:count])
    np.testing.assert_array_equal(trimmed, extended[json.loads((runs / "trimmed/trim.json").read_text())["kept"]])
    change = np.abs(trained - trimmed).max(1)
    assert trained.shape == trimmed.shape and 0 < change[change > 0].max() < 1 and (change > 0).sum() > 100
    assert np.array_equal(begun[0], replaced[0])  # padding


def test_both_versions_of_transformers_compute_the_same(runs, forks5, tmp_path):
    folders = [tmp_path / stage for stage in (*STAGES, "trained")]
    for folder in folders:
        to_hf(runs / folder.name, folder, verify=False)
    done = forks5.run(SCRIPT, tmp_path / "out.npz", TEXT, *folders)
    assert done.returncode == 0, done.stderr[-3000:]
    in_5, lengths = np.load(tmp_path / "out.npz"), []
    for number, folder in enumerate(folders):
        tokenizer, model = encoders.load(folder)
        batch = tokenizer(TEXT, return_tensors="pt")
        with torch.no_grad():
            logits = model(**batch).logits.numpy()
        np.testing.assert_array_equal(in_5[f"ids{number}"], batch.input_ids.numpy())
        np.testing.assert_allclose(in_5[f"logits{number}"], logits, atol=2e-6)
        lengths.append(batch.input_ids.shape[1])
    assert lengths[2] != lengths[1] and lengths[3] == lengths[4]
