"""`T5X_DIR=LIMBA/launch`: a launcher of T5X's runs as it is, from a folder of its own."""

import os
import subprocess
import sys
from pathlib import Path

LAUNCH = Path(__file__).parents[2] / "launch"


def test_a_launcher_of_t5x_runs_unedited(tmp_path):
    (tmp_path / "ro_tiny.gin").write_text(
        "include 'gin/models/t5_1_1/tiny.gin'\ninclude 't5x/configs/runs/pretrain.gin'\n"
    )
    (tmp_path / "ro_tiny.sh").write_text(
        'python3 ${T5X_DIR}/t5x/train.py --gin_search_paths=${PROJECT_DIR} --gin_file="ro_tiny.gin" '
        "--gin.MODEL_DIR=\"'${MODEL_DIR}'\" --dry_run\n"
    )
    environment = {**os.environ, "T5X_DIR": str(LAUNCH), "PROJECT_DIR": str(tmp_path), "MODEL_DIR": "gs://bucket/ro"}
    environment["PYTHONPATH"] = str(tmp_path)
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "ro_tiny.sh"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    # It is Limba's parser that answers: what T5X leaves to the user is named.
    assert done.returncode == 1 and "MIXTURE_OR_TASK_NAME" in done.stderr and "Traceback" not in done.stderr
    again = f"{(tmp_path / 'ro_tiny.sh').read_text().strip()} --gin.MIXTURE_OR_TASK_NAME=\"'ours'\" --gin.TRAIN_STEPS=1"
    again += " --gin.TASK_FEATURE_LENGTHS=\"{'inputs': 8, 'targets': 8}\" --gin.DROPOUT_RATE=0.0"
    (tmp_path / "ro_tiny.gin").write_text(f"{(tmp_path / 'ro_tiny.gin').read_text()}import our_task\n")
    (tmp_path / "our_task.py").write_text(
        "from tasks import pretraining, vocabularies\n"
        "pretraining.register_pretraining_task('ours', data_files={'train': 'gs://bucket/train.jsonl'}, "
        "vocabulary=vocabularies.ByteVocabulary(100))\n"
    )
    done = subprocess.run(
        ["bash", "-c", again], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "MODEL_DIR = 'gs://bucket/ro'" in done.stdout
