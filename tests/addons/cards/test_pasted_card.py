"""The code of a card, pasted into Python beside the export, in transformers 4.57 and 5."""

import json
import os
import sys

import pytest

from convert import __main__
from tests.convert import pasted_code, vocabularies

TASKS = """
from tasks import pretraining, supervised
data_files = {{"train": "{folder}/rows.jsonl", "validation": "{folder}/rows.jsonl"}}
pretraining.register_pretraining_task("small", data_files=data_files, vocabulary="{spiece}")
supervised.register_supervised_task(
    "labels",
    supervised.SupervisedDataset("mood of: {{text}}", "mood", labels=["glad", "sad"]),
    data_files=data_files,
    vocabulary="{spiece}",
)
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory, spiece_model):
    """A folder with rows and the module of their tasks."""
    folder = tmp_path_factory.mktemp("data")
    rows = ({"text": f"{text}.", "mood": "glad"} for text in vocabularies.sentences(30))
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    (folder / "pasted_tasks.py").write_text(TASKS.format(folder=folder, spiece=spiece_model), "utf-8")
    return folder


def export(run, out, *options, weights="safetensors"):
    assert __main__.main(["to-hf", str(run), str(out), "--format", weights, "--no-check", *options]) == 0
    return (out / "README.md").read_text("utf-8")


@pytest.fixture
def paste(checks_in_forks, forks5, tmp_path):
    """A function: what each code prints, in the folder of its card, in a version of transformers."""

    def run(version, *codes_and_folders):
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        environment |= {"HF_HUB_OFFLINE": "1", "USE_TF": "0", "CUDA_VISIBLE_DEVICES": ""}
        request = tmp_path / "request.json"
        request.write_text(json.dumps([(code, str(folder)) for code, folder in codes_and_folders]), "utf-8")
        if version == 4:
            done = checks_in_forks([sys.executable, "-m", pasted_code.__name__, str(request)], env=environment)
        else:
            done = forks5.run(pasted_code.__file__, request, env=environment)
        assert done.returncode == 0, done.stderr
        return json.loads((tmp_path / "printed.json").read_text("utf-8"))

    return run


def test_the_code_runs_as_pasted(new_run, data, tmp_path, monkeypatch, paste):
    monkeypatch.syspath_prepend(str(data))
    # More decoder than encoder layers: transformers 4.57.6 fails with its cache.
    run = new_run(tmp_path / "run", num_encoder_layers=1, num_decoder_layers=2, logits_via_embedding=False)
    cards = {}
    for task in ("small", "labels", "elsewhere"):
        gin = "import pasted_tasks" if task != "elsewhere" else "from limba.network import t5"
        (run / "config.gin").write_text(f"{gin}\n")
        rename_task(run / "checkpoint_10/run/run.json", task)
        cards[task] = export(run, tmp_path / task)
    codes = {task: card.split("```python\n")[1].split("\n```")[0] for task, card in cards.items()}
    for task, inputs in {
        "small": "<extra_id_0>", "labels": "mood of: ", "elsewhere": "1, 2, 3, <extra_id_0>"
    }.items():  # fmt: skip
        (line,) = [line for line in codes[task].splitlines() if line.startswith("text = ")]
        assert inputs in line
    assert "The word that belongs there is `" in cards["small"]
    assert "`mood of: {text}`" in cards["labels"] and "Its answers are `glad`, `sad`." in cards["labels"]
    pasted = [(code, tmp_path / task) for task, code in codes.items()]
    printed = [paste(version, *pasted) for version in (4, 5)]
    assert all(text.strip() for texts in printed for text in texts) and len(printed[0]) == len(printed[1]) == 3
    assert printed[0][:2] == printed[1][:2]
    # Other tokens, and other answers: the text of the third has no space behind a sentinel.
    assert "transformers 5 reads a space behind `<extra_id_0>`, which this text does not have" in cards["elsewhere"]


def test_the_code_for_flax_runs_as_pasted_too(new_run, tmp_path, paste):
    """In transformers 4.57, which is the last with Flax, on a current JAX."""
    run = new_run(tmp_path / "run", num_encoder_layers=1, num_decoder_layers=1, logits_via_embedding=False)
    pasted = []
    for weights in ("flax", "safetensors"):
        card = export(run, tmp_path / weights, weights=weights)
        code = card.split("```python\n")[1].split("\n```")[0]
        assert ("FlaxAutoModelForSeq2SeqLM" in code) == (weights == "flax")
        pasted.append((code, tmp_path / weights))
    printed = [text.replace("<pad>", "").strip() for text in paste(4, *pasted)]
    # The same words; Flax makes one token more of the same length, and fills rows with padding.
    assert printed[0].startswith(printed[1]) and len(printed[1]) > 100


def rename_task(record, task):
    """Another task in `run.json`, with the checksum that belongs to it."""
    from limba.checkpoint_files import small_files

    folder = record.parent
    files = small_files.load_files(folder.parent, folder.name)
    files[record.name] = json.dumps(json.loads(files[record.name]) | {"task": task}).encode()
    small_files.write_files(folder, files)


def test_data_that_cannot_be_read_are_said_and_the_user_s_text_is_taken(new_run, tmp_path, capsys):
    run = new_run(tmp_path / "run", num_encoder_layers=1, num_decoder_layers=1)
    (run / "config.gin").write_text("import of_another_machine\n")
    card = export(run, tmp_path / "neutral")
    warning = "warning: the data of the run cannot be read: there is no module 'of_another_machine'."
    error = capsys.readouterr().err
    assert warning in error and "--example TEXT gives another" in error
    assert 'text = "1, 2, 3, <extra_id_0>, 5, 6."' in card
    given = ["--example", 'Cel mai <extra_id_0> "oraș".', "--language", "ro", "--license", "mit", "--dataset", "org/a"]
    card = export(run, tmp_path / "given", *given)
    assert "--example TEXT" not in capsys.readouterr().err
    assert 'text = "Cel mai <extra_id_0> \\"oraș\\"."' in card
    assert 'language: ["ro"]\nlicense: "mit"\ndatasets: ["org/a"]\n' in card
    # Another card is another export.
    assert __main__.main(["to-hf", str(run), str(tmp_path / "given"), "--format", "safetensors", "--no-check"]) == 1
    assert "holds another conversion (other card)" in capsys.readouterr().err
    report = json.loads((tmp_path / "given/conversion_report.json").read_text())
    assert report["files"] == sorted(file.name for file in (tmp_path / "given").iterdir())
