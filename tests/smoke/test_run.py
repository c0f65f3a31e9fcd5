"""A BERT from a config.json, trained and exported by `limba run`, as users run it: `bash tests/run.sh -m smoke`."""

import json

import numpy as np
import pytest

from tests import line
from tests.convert import vocabularies
from tests.smoke.test_t5 import AS_USERS

pytestmark = pytest.mark.smoke

CONFIG = {
    "model_type": "bert",
    "vocab_size": 256,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 64,
}


def test_masked_training_and_export(tmp_path):
    def run(*arguments):
        done = line.command(tmp_path, "limba", *map(str, arguments), **AS_USERS)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    line.write_corpus(tmp_path / "corpus")
    vocabularies.write_words(tmp_path / "vocab/tokenizer.json", sorted({*line.WORDS.split()}))
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    run(
        *("run", "run_mlm.py", f"--config_name={tmp_path}/config.json", f"--tokenizer_name={tmp_path}/vocab"),
        *(f"--train_file={tmp_path}/corpus/train-0.jsonl", "--do_train", "--max_steps=30", "--learning_rate=0.01"),
        *("--per_device_train_batch_size=8", "--max_seq_length=32", f"--output_dir={tmp_path}/out"),
    )
    results = json.loads((tmp_path / "out/all_results.json").read_text())
    assert 0 < results["train_loss"] < np.log(256)
    assert json.loads((tmp_path / "out/config.json").read_text())["architectures"] == ["BertForMaskedLM"]
    report = json.loads((tmp_path / "out/conversion_report.json").read_text())
    assert all(row["holds"] for rows in report["comparisons"].values() for row in rows)
