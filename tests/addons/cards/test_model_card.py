"""The model card says what is known, escaped, and its metadata are YAML."""

import dataclasses
import json

import pytest
from huggingface_hub import ModelCard
from huggingface_hub.repocard import metadata_load
from huggingface_hub.repocard_data import model_index_to_eval_results

from convert.families import byt5, t5_1_1
from limba.addons.cards import model_card, t5_card
from limba.addons.cards.card_example import Example
from limba.addons.cards.card_metadata import Metadata
from limba.checkpoints import checkpointing
from limba.network.t5 import T5Config
from limba.reports import loss_picture

NETWORK = T5Config(
    vocab_size=512,
    emb_dim=32,
    num_heads=3,
    head_dim=8,
    mlp_dim=48,
    num_encoder_layers=3,
    num_decoder_layers=2,
    mlp_activations=("gelu", "linear"),
)
VOCABULARY = {
    "class": "SentencePieceVocabulary",
    "sentencepiece_model_file": "/home/somebody/x.model",
    "extra_ids": 100,
    "vocab_size": 512,
}
LOSS, NATS, UNIGRAM = "loss_per_nonpadding_target_token", "nats_per_target_token", "unigram_nats_per_target_token"
BOTH = ("safetensors", "flax")
BARE = model_card.Facts(
    name="base",
    description=t5_card.describe(t5_1_1.FAMILY, NETWORK, VOCABULARY, BOTH, "float32"),
    num_parameters=247_577_856,
    step=0,
)
RUN = {
    "limba_version": "0.1.0",
    "network": {"dropout_rate": 0.1},
    "task": "romanian_span_corruption",
    "feature_lengths": {"inputs": 512, "targets": 114},
    "batch_size": 128,
    "seeds": {"random": 7, "dataset": 9},
    "initial_step": 1000,
    "total_steps": 5000,
    "commits": {"limba": "a" * 40, "project": "b" * 40 + "-dirty"},
}
GIN = "\n".join(
    [
        "from limba.optimizers import adafactor",
        "OPTIMIZER = @adafactor.Adafactor()",
        "INITIAL_CHECKPOINT_PATH = '/home/somebody/secret/runs/first'",
        "TASK_FEATURE_LENGTHS = \\",
        "    {'inputs': 1}",
        "BATCH_SIZE = 64",
    ]
)
# A batch of 100 target tokens; the z-loss is a fifth of the loss of training.
METRICS = [
    {"step": 1000, "dataset": "training_eval/news", NATS: 9.0, UNIGRAM: 5.5, "accuracy": 0.01},
    {"step": 2000, "dataset": "train", LOSS: 5.0, "z_loss": 100.0, "cross_ent_loss": 400.0, "accuracy": 0.25}
    | {"non_padding_fraction/overall": 0.9},
    {"step": 3000, "dataset": "train", LOSS: 3.75, "z_loss": 75.0, "cross_ent_loss": 300.0, "accuracy": 0.4}
    | {"non_padding_fraction/overall": 1.0},
    {"step": 3000, "dataset": "training_eval/news", LOSS: 4.5, NATS: 3.25, UNIGRAM: 5.59414, "accuracy": 0.375}
    | {"nats_per_text_token": 4.5, "nats_per_text_token_renormalized": 4.25, "left_bigram/nats_per_text_token": 4.75}
    | {"left_trigram/nats_per_text_token": 4.125},
    {"step": 3000, "dataset": "training_eval/books", NATS: None, "accuracy": 0.375},
    {"step": 3000, "dataset": "inference_eval/news", "eval/bleu": 27.512345678, "timing/evaluate_seconds": 3.0},
    {"step": 4000, "dataset": "train", LOSS: 1.0, "z_loss": 0.0, "cross_ent_loss": 100.0},
]
CHECK = [
    {"what": "parameters that differ", "value": 0.0, "allowed": 0.0, "note": "of 1055 tensors, in float32"},
    {"what": "logits, B in Limba", "value": None, "allowed": 1e-4, "note": "those of A; loss of random tokens 8.2"},
    {"what": "logits, B in PyTorch", "value": 8.8e-6, "allowed": 1e-4, "note": ""},
    {"what": "loss, B in PyTorch", "value": 1e-7, "allowed": 1e-4, "note": "8.211111"},
    {"what": "greedy tokens, B in PyTorch", "value": 0, "allowed": 0, "note": "8 a row"},
    {"what": "logits, B in NumPy", "value": 1.24e-6, "allowed": 1e-4, "note": ""},
]
TRAINED = dataclasses.replace(
    BARE,
    description=t5_card.describe(t5_1_1.FAMILY, NETWORK, VOCABULARY, BOTH, "bfloat16"),
    step=3000,
    run=RUN,
    gin=GIN,
    metrics=METRICS,
    comparisons={"safetensors": CHECK},
)


def described(example: Example) -> model_card.Description:
    """A T5 whose card has this example."""
    return t5_card.describe(t5_1_1.FAMILY, NETWORK, VOCABULARY, BOTH, "bfloat16", example)


def card(folder, facts: model_card.Facts) -> str:
    model_card.write(folder, facts)
    return (folder / "README.md").read_text("utf-8")


def row(text: str, name: str) -> str | None:
    """What a table says of something."""
    rows = [line for line in text.splitlines() if line.startswith(f"| {name} |")]
    return rows[0].split(" | ", 1)[1].removesuffix(" |") if rows else None


@pytest.mark.parametrize(
    ("factor", "line", "nats"),
    [
        # 100 tokens: their summed loss; divided by 200; their mean, which T5X's metric divides once more.
        (None, {"z_loss": 100.0, "cross_ent_loss": 400.0, LOSS: 5.0}, 4.0),
        (200, {"z_loss": 0.5, "cross_ent_loss": 2.0, LOSS: 0.025}, 4.0),
        ("'NUM_REAL_TARGET_TOKENS'", {"z_loss": 1.0, "cross_ent_loss": 4.0, LOSS: 0.05}, 4.0),
        ("'AVERAGE_PER_SEQUENCE'", {"z_loss": 1.0, "cross_ent_loss": 4.0, LOSS: 0.05}, None),
    ],
)
def test_the_loss_of_training_has_no_z_loss(tmp_path, monkeypatch, factor, line, nats):
    drawn = []
    monkeypatch.setattr(loss_picture, "draw", lambda curves, *labels: drawn.append((curves, labels)))
    metrics = [{"step": step, "dataset": "train", **line} for step in (1000, 2000)]
    gin = f"{GIN}\nLOSS_NORMALIZING_FACTOR = {factor}"
    card(tmp_path, dataclasses.replace(TRAINED, gin=gin, metrics=metrics))
    expected = [([("training", [(1000, nats), (2000, nats)])], ("steps", "nats per target token"))]
    assert drawn == ([] if nats is None else expected)


def test_metadata_are_what_the_hub_reads(tmp_path):
    metadata = Metadata(("ro",), "apache-2.0", ("org/more",), ("news",))
    example = Example("blank", "a <extra_id_0> b", datasets=("org/corpus",))
    card(tmp_path, dataclasses.replace(TRAINED, metadata=metadata, description=described(example)))
    head = metadata_load(tmp_path / "README.md")
    results = head.pop("model-index")
    assert head == {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "language": ["ro"],
        "license": "apache-2.0",
        "datasets": ["org/corpus", "org/more"],
        "tags": ["t5_1_1", "limba", "text2text-generation", "news"],
    }
    name, read = model_index_to_eval_results(results)
    assert name == "base"
    assert [(x.dataset_name, x.metric_type, x.metric_name, x.metric_value) for x in read] == [
        ("news", "loss", "loss, nats per token of text", 4.25),
        ("news", "loss", "loss, nats per target token", 3.25),
        ("news", "accuracy", "accuracy of the next token", 0.375),
        ("news", "bleu", "bleu", 27.5123),
        ("books", "accuracy", "accuracy of the next token", 0.375),
    ]
    assert ModelCard.load(tmp_path / "README.md").text.lstrip().startswith("# base\n")


def test_the_results_of_one_data_set_have_its_name(tmp_path):
    example = Example("blank", "a <extra_id_0> b", datasets=("org/corpus",))
    metrics = [line for line in METRICS if not line["dataset"].endswith("books")]
    card(tmp_path, dataclasses.replace(TRAINED, metrics=metrics, description=described(example)))
    (entry,) = metadata_load(tmp_path / "README.md")["model-index"][0]["results"]
    assert entry["dataset"] == {"name": "news", "type": "org/corpus"}


def test_what_is_not_known_is_left_to_flags(tmp_path):
    text = card(tmp_path, BARE)
    assert "# Not known to the converter: `limba convert to-hf` takes --language, --license, --dataset.\n---" in text
    assert metadata_load(tmp_path / "README.md").keys() == {"library_name", "pipeline_tag", "tags"}


def test_a_lora_says_its_rank_and_its_optimizer(tmp_path):
    """PartialOptimizer is only the part that trains the adapters and nothing else."""
    binding = "OPTIMIZER/freezing.PartialOptimizer.optimizer = @optimizers.adamw()"
    gin = f"OPTIMIZER = @freezing.PartialOptimizer()\n{binding}"
    run = RUN | {"lora": {"rank": 8, "alpha": 16.0, "kernels": ["/.*"]}}
    text = card(tmp_path, dataclasses.replace(TRAINED, run=run, gin=gin))
    assert row(text, "LoRA") == "rank 8, alpha 16; merged into the kernels of these weights"
    assert row(text, "optimizer") == "`adamw`"
    assert "PartialOptimizer" not in text and '"lora"' in text
    assert "LoRA" not in card(tmp_path, TRAINED)


def test_a_chain_of_optimizers_is_named_by_its_parts(tmp_path):
    parts = "\\\n    [@optax.clip_by_global_norm(),\n     @optimizers.adamw()]\n\n"
    gin = (
        f"OPTIMIZER = @optimizers.chain()\nOPTIMIZER/optimizers.chain.transformations = {parts}optimizers.adamw.b1 = 1"
    )
    text = card(tmp_path, dataclasses.replace(TRAINED, gin=gin))
    assert row(text, "optimizer") == "`clip_by_global_norm, adamw`"


def test_facts_of_a_run(tmp_path):
    text = card(tmp_path, TRAINED)
    assert "A T5 1.1 encoder-decoder of 247,577,856 parameters, trained and converted with Limba." in text
    expected = {
        "layers": "3 encoder, 2 decoder",
        "width": "32; 3 heads of 8; feed-forward 48",
        "activation": "gelu × linear",
        "output": "a matrix of its own (untied)",
        "stored as": "bfloat16",
        "vocabulary": "SentencePiece, 512 ids, the last 100 of them sentinels; 512 rows of the embedding",
        "step": "3,000 of 5,000, begun at 1,000",
        # 2,000 steps of 128 rows of 626 positions.
        "tokens seen since step 1,000": "160,256,000 positions of inputs and targets, 95.0% of them not padding",
        "task or mixture": "`romanian_span_corruption`",
        "batch": "128 sequences",
        "lengths": "inputs 512, targets 114",
        "optimizer": "`Adafactor`",
        "dropout": "0.1",
        "began from": "`runs/first`",
        "seeds": "random 7, dataset 9",
        "Limba": f"0.1.0, commit `{'a' * 40}`",
        "project": f"commit `{'b' * 40}-dirty`",
    }
    assert {name: row(text, name) for name in expected} == expected
    assert "secret" not in text and "somebody" not in text


def test_results_are_the_last_ones_until_the_step(tmp_path):
    text = card(tmp_path, TRAINED)
    results = text[text.index("## Results") : text.index("## Training")].splitlines()[4:]
    assert [line for line in results if line.startswith("|")] == [
        "| `news` | loss, nats per token of text | 4.2500 (bigram of the token before 4.7500, trigram of two tokens "
        "before 4.1250, among all tokens 4.5000) | 3,000 |",
        "| `news` | loss, nats per target token | 3.2500; the best constant (unigram) predictor has 5.5941 | 3,000 |",
        "| `news` | accuracy of the next token | 0.375 | 3,000 |",
        "| `books` | accuracy of the next token | 0.375 | 3,000 |",
        "| `news` | bleu | 27.51 | 3,000 |",
    ]


def test_the_curves_are_the_metrics(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(loss_picture, "draw", lambda curves, *labels: drawn.append(curves) or b"png")
    text = card(tmp_path, TRAINED)
    assert drawn == [[("training", [(2000, 4.0), (3000, 3.0)]), ("validation", [(1000, 9.0), (3000, 3.25)])]]
    assert "![Nats per target token against steps](loss.png)" in text
    assert (tmp_path / "loss.png").read_bytes() == b"png"


def test_a_card_without_a_picture(tmp_path, monkeypatch):
    monkeypatch.setattr(loss_picture, "draw", lambda curves, *labels: None)
    assert "loss.png" not in card(tmp_path, TRAINED) and not (tmp_path / "loss.png").exists()


def test_several_tasks_are_averaged_where_all_were_measured(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(loss_picture, "draw", lambda curves, *labels: drawn.append(curves) or b"png")
    more = [{"step": step, "dataset": "training_eval/law", NATS: 5.0} for step in (2000, 3000)]
    card(tmp_path, dataclasses.replace(TRAINED, metrics=[*METRICS, *more]))
    assert drawn[0][1] == ("validation, mean of 2 tasks", [(3000, 4.125)])


def test_the_check_is_one_line_without_a_loss_of_random_tokens(tmp_path):
    text = card(tmp_path, TRAINED)
    assert text.endswith(
        "## Check\n\nRead back and compared with the checkpoint: all 1,055 tensors are equal in float32; logits differ "
        "by at most 8.8e-06 in PyTorch and NumPy ([conversion_report.json](conversion_report.json)).\n"
    )
    assert "8.2" not in text
    assert "This export was not checked." in card(tmp_path, BARE)


def test_a_bare_checkpoint_is_told_nothing_of(tmp_path):
    text = card(tmp_path, BARE)
    assert "parameters, converted with Limba." in text
    for word in ("## Training", "## Results", "loss.png", "seeds", "None", "nan"):
        assert word not in text
    assert not (tmp_path / "loss.png").exists()


def test_a_checkpoint_of_t5x_tells_what_its_gin_file_does(tmp_path):
    lengths = {"inputs": 512, "targets": 114}
    gin = f"MIXTURE_OR_TASK_NAME = 'c4_v220_span_corruption'\nBATCH_SIZE = 2048\nTASK_FEATURE_LENGTHS = {lengths}"
    text = card(tmp_path, dataclasses.replace(BARE, step=10, gin=gin))
    assert row(text, "task or mixture") == "`c4_v220_span_corruption`"
    assert row(text, "step") == "10" and row(text, "batch") == "2,048 sequences"
    # It may have begun at another step, with other data.
    assert "tokens seen" not in text
    assert "converted with Limba" in text and "trained and" not in text


def test_bytes_and_flax(tmp_path):
    vocabulary = {"class": "ByteVocabulary", "sentencepiece_model_file": None, "extra_ids": 125, "vocab_size": 384}
    of_bytes = t5_card.describe(byt5.FAMILY, NETWORK, vocabulary, ("flax",), "float32")
    text = card(tmp_path, dataclasses.replace(BARE, description=of_bytes))
    assert row(text, "vocabulary").startswith("bytes, 384 ids, the last 125 of them sentinels")
    assert "model = FlaxAutoModelForSeq2SeqLM.from_pretrained(folder)" in text
    assert "up to version 4.57" in text


def test_what_users_of_version_5_should_know(tmp_path):
    is_tied = dataclasses.replace(NETWORK, logits_via_embedding=True)
    for network, formats, said in ((NETWORK, BOTH, (True, True)), (is_tied, BOTH, (True, False))):
        text = t5_card.describe(t5_1_1.FAMILY, network, VOCABULARY, formats, "float32").use
        assert ("rather than a pipeline" in text, "does not tie `shared.weight`" in text) == said
    assert "transformers 5" not in t5_card.describe(t5_1_1.FAMILY, NETWORK, VOCABULARY, ("flax",), "float32").use


def test_what_users_name_is_escaped(tmp_path):
    run = RUN | {"task": "a|b `c` <script>\n# big", "feature_lengths": {"<i>": 3, "x|y": 4}}
    text = card(tmp_path, dataclasses.replace(TRAINED, name="<b>me_ & *you*\n---\n# x", run=run))
    assert "# &lt;b&gt;me\\_ &amp; \\*you\\* \\-\\-\\- \\# x\n" in text
    assert "| task or mixture | ``a\\|b `c` <script> # big`` |" in text
    assert "| lengths | &lt;i&gt; 3, x\\|y 4 |" in text
    assert metadata_load(tmp_path / "README.md")["library_name"] == "transformers"


def test_the_record_lies_with_the_checkpoint(new_run, tmp_path, capsys):
    checkpoint = checkpointing.find_checkpoint(new_run(tmp_path / "run"))
    assert model_card.run_record(checkpoint) == ("", [])
    (tmp_path / "run/config.gin").write_text("BATCH_SIZE = 4")
    (tmp_path / "run/metrics.jsonl").write_text(json.dumps(METRICS[0]) + '\n{"step": 2')
    assert model_card.run_record(checkpoint) == ("BATCH_SIZE = 4", [METRICS[0]])
    assert capsys.readouterr().err == ""
    (tmp_path / "run/config.gin").write_text("BATCH_SIZE = [4")
    assert model_card.run_record(checkpoint) == ("", [METRICS[0]])
    assert (
        "warning: " in (said := capsys.readouterr().err) and f"{tmp_path}/run/config.gin cannot be read as gin" in said
    )


_STARTED = (
    GIN.replace("'/home/somebody/secret/runs/first'", "()")
    + """
train.initial_values_fn = @start_from_counts.StartFromCounts()
"""
)


@pytest.mark.parametrize(("gin", "said"), [(_STARTED, 1), (GIN, 0), (_STARTED.replace("()\nTASK", "'first'\nTASK"), 0)])
def test_a_start_from_counts_is_said_and_one_from_a_checkpoint_is_not(tmp_path, gin, said):
    model_card.write(tmp_path, dataclasses.replace(BARE, run=RUN, gin=gin, step=2000))
    card = (tmp_path / "README.md").read_text()
    assert card.count("began from counts of pairs of tokens") == card.count("not learned from random values") == said
