"""The export in transformers 5, which lives in an environment of its own."""

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest


@pytest.mark.slow
def test_it_gives_the_same_logits_tokens_and_ids(exported, python5, reference, texts, tmp_path):
    request = {
        "inputs": exported.inputs.tolist(),
        "decoder_inputs": exported.decoder_inputs.tolist(),
        "texts": texts,
    }
    (tmp_path / "request.json").write_text(json.dumps(request))
    script = Path(__file__).with_name("load_in_transformers5.py")
    arguments = [exported.folder, tmp_path / "request.json", tmp_path / "out.npz"]
    # A PYTHONPATH would bring this environment's packages along.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([python5, script, *arguments], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    theirs = np.load(tmp_path / "out.npz")
    assert not any(json.loads(str(theirs["loading"])).values()), theirs["loading"]
    np.testing.assert_allclose(theirs["logits"], exported.logits(), rtol=0, atol=1e-5)
    tokens, ours = theirs["tokens"][:, 1:], exported.greedy_tokens()
    np.testing.assert_array_equal(tokens, ours[:, : tokens.shape[1]])
    assert json.loads(str(theirs["ids"])) == [[*reference.encode(text), 1] for text in texts]
    assert theirs["sentinels"].tolist() == [reference.get_piece_size() - 1, reference.get_piece_size() - 100]
