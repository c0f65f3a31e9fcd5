"""The blocks of code in README and docs are copied from the pages and run, with files of the reader's beside them."""

import csv
import json
import random
import re
import sys
import textwrap
from pathlib import Path

import gin
import pytest

from limba import train
from limba.addons.vocab_build import tokenizer_training
from limba.gin_config import gin_files
from limba.reports import writers
from tasks import preview, registry
from tasks.sources import corpora
from tasks.vocabularies import training_text
from tests.convert import vocabularies

ROOT = Path(__file__).parent.parent
# docs/extending.md has tests/test_extending.py.
PAGES = ("README", "docs/data", "docs/diacritics", "docs/encoders", "docs/finetune", "docs/networks", "docs/pairs")


def _blocks(page: str, language: str) -> list[str]:
    text = (ROOT / f"{page}.md").read_text("utf-8")
    fences = re.findall(r"^ *```(\w*)\n(.*?)^ *```$", text, re.M | re.S)
    return [textwrap.dedent(block) for of, block in fences if of == language]


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """What a reader has: a corpus, tables with the columns of the pages, and vocabularies."""
    root = tmp_path_factory.mktemp("home")
    sentences = vocabularies.sentences(300)
    rng = random.Random(0)
    for folder in ("corpus", "vocab", "runs/small"):
        (root / folder).mkdir(parents=True)
    vocabularies.train(root / "vocab" / "spiece.model")
    (root / "runs" / "small" / "spiece.model").write_bytes((root / "vocab" / "spiece.model").read_bytes())
    for split, part in (("train", sentences[:200]), ("validation", sentences[200:])):
        lines = [json.dumps({"text": text}) + "\n" for text in part]
        (root / "corpus" / f"{split}-0.jsonl").write_text("".join(lines))
        rows = [(x, rng.choice(["glad", "calm", "sad"]), x, x, rng.choice(["no", "yes"])) for x in part]
        with (root / f"{split}.csv").open("w") as file:
            csv.writer(file).writerows([("story", "mood", "premise", "hypothesis", "label"), *rows])
        words = [{"tokens": x.split()[:4], "ner_tags": ["O"] * len(x.split()[:4])} for x in part]
        (root / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in words))
    pairs = [{"sentence_good": f"{x[:9]} a", "sentence_bad": f"{x[:9]} b", "phenomenon": "last"} for x in sentences[:9]]
    (root / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in pairs))
    for split in ("train", "test"):
        file, names = (root / f"natural-instructions/{name}" for name in (f"tasks/{split}.json", "splits/default"))
        for folder in (file.parent, names):
            folder.mkdir(parents=True, exist_ok=True)
        instances = [{"input": text, "output": [text.split()[0]]} for text in sentences[:9]]
        file.write_text(json.dumps({"Definition": ["The first word."], "Instances": instances}))
        (names / f"{split}_tasks.txt").write_text(split)
    source = corpora.HuggingFaceSource({"train": [str(root / "corpus" / "train-0.jsonl")]}, ["text"])
    text = training_text.TrainingText(source, "train", "text")
    tokenizer_training.train_wordpiece(text, root / "vocab" / "tokenizer.json", vocab_size=256)
    return root


@pytest.mark.parametrize("page", PAGES)
def test_python_of_the_docs(page, home, monkeypatch, capsys):
    """One block after another, as a reader pastes them; what they register gives examples."""
    monkeypatch.chdir(home)
    before, names = {*registry.TaskRegistry.names()}, {}
    blocks = _blocks(page, "python")
    assert blocks
    for block in blocks:
        exec(compile(block, f"{page}.md", "exec"), names)
    registered = {*registry.TaskRegistry.names()} - before
    # A task with labels has two beside it.
    assert len(registered) >= len(re.findall(r"register_\w+\(", "".join(blocks)))
    for name in registered:
        needs_targets = any(word in name for word in ("my_task", "diacritics", "agreement", "instructions"))
        lengths = ["--inputs_length=32", *(["--targets_length=32"] if needs_targets else [])]
        assert preview.main([name, "--num=1", "--split=validation", *lengths]) in (None, 0)
        registry.TaskRegistry.remove(name)
    assert capsys.readouterr().out.count("inputs:") >= len(registered)


@pytest.mark.slow
@pytest.mark.usefixtures("one_device")
def test_the_layer_of_ones_own_trains(home, monkeypatch):
    """The class and the binding of docs/networks.md, in the recipe of README."""
    monkeypatch.chdir(home)
    monkeypatch.syspath_prepend(home)
    for module in ("my_layers", "my_tasks"):  # Other tests have some with these names.
        monkeypatch.delitem(sys.modules, module, raising=False)
    layer, task = _blocks("docs/networks", "python")[0], _blocks("README", "python")[0]
    binding, recipe = _blocks("docs/networks", "")[0], _blocks("README", "")[0]
    (home / "my_layers.py").write_text(layer)
    (home / "my_tasks.py").write_text(task)
    (home / "mine.gin").write_text(recipe.replace("8192", "512") + "\nBATCH_SIZE = 8\n" + binding)
    gin.clear_config()
    small = {"TASK_FEATURE_LENGTHS": {"inputs": 32, "targets": 10}, "TRAIN_STEPS": 2, "EVAL_STEPS": 1, "EVAL_PERIOD": 2}
    sizes = {
        "num_encoder_layers": 1,
        "num_decoder_layers": 1,
        "emb_dim": 16,
        "mlp_dim": 16,
        "num_heads": 2,
        "head_dim": 8,
    }
    small |= {f"network.T5Config.{name}": value for name, value in sizes.items()}
    train.main(["mine.gin", *(f"--gin.{name}={value!r}" for name, value in small.items())])
    gin.clear_config()
    losses = [
        line["cross_ent_loss_per_all_target_tokens"]
        for line in writers.read_metrics(home / "runs" / "mine")
        if line["dataset"] == "train"
    ]
    assert losses and all(0 < loss < 20 for loss in losses)
    registry.TaskRegistry.remove("my_corpus")


def _gin_blocks():
    for page in ("README", "docs/encoders", "docs/networks", "docs/pairs"):
        for number, block in enumerate(_blocks(page, "")):
            if re.search(r"^[\w/.]+ = |^include ", block, re.M):
                yield pytest.param(page, block, id=f"{page}-{number}")


@pytest.mark.parametrize(("page", "block"), _gin_blocks())
def test_gin_of_the_docs(page, block, home, tmp_path, monkeypatch):
    """A block is a whole file, or belongs to one with the model and the run that the page speaks of."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "my_tasks.py").touch()
    head = "from __gin__ import dynamic_registration\nfrom tasks import objectives\n"
    if not re.search(r"include 'gin/(models/\w+/|recipes/)", block):
        network = "bert" if page == "docs/encoders" else "t5_1_1"
        head += f"include 'gin/models/{network}/base.gin'\ninclude 'gin/runs/pretrain.gin'\n"
    file = tmp_path / "run.gin"
    file.write_text(block if block.startswith("from __gin__") else head + block)
    gin.clear_config()
    gin_files.parse_gin_flags([str(file)], [])
    gin.clear_config()
