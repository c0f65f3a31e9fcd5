import gin
import pytest

from limba import data, gin_utils, partitioning, precompile
from tests.limba import small

LENGTHS = {"inputs": 16, "targets": 8}
_THREE_TASKS = """
import pathlib

import seqio

from tasks import pretraining

folder = pathlib.Path(__file__).parent
(folder / "corpus.jsonl").write_text('{"text": "a text of some words"}\\n' * 20)
for name, split in (("a", "train"), ("b", "train"), ("c", "other")):
    pretraining.register_pretraining_task(
        f"precompile_{name}",
        data_files={split: folder / "corpus.jsonl"},
        vocabulary=seqio.ByteVocabulary(extra_ids=100),
    )
seqio.MixtureRegistry.add("precompile_mixture", [f"precompile_{name}" for name in "abc"], default_rate=1.0)
"""


def _config(**fields):
    defaults = {"mixture_or_task_name": "nobody", "task_feature_lengths": LENGTHS, "split": "train", "batch_size": 8}
    return data.DatasetConfig(**(defaults | fields))


def test_batches_have_the_shapes_of_the_converters():
    shapes = precompile.batch_shapes(_config(pack=True), "EncDecFeatureConverter")
    assert {name: shapes[name] for name in small.batch(0)} == dict.fromkeys(small.batch(0)) | {
        name: (8, 16 if name.startswith("encoder") else 8) for name in small.batch(0)
    }
    assert shapes["encoder_segment_ids"] == (8, 16)
    assert shapes["decoder_positions"] == (8, 8)
    prefix = precompile.batch_shapes(_config(), "PrefixLMFeatureConverter")
    assert set(prefix.values()) == {(8, 24)}
    assert "decoder_causal_attention" in prefix
    with pytest.raises(ValueError, match="task_feature_lengths is empty"):
        precompile.batch_shapes(_config(task_feature_lengths=None), "EncDecFeatureConverter")
    with pytest.raises(ValueError, match="EncoderFeatureConverter are not known"):
        precompile.batch_shapes(_config(), "EncoderFeatureConverter")


def test_a_mixture_s_batches_say_the_task_of_each_example(monkeypatch, tmp_path, caplog):
    """So the compiled step is the one that trains; a name that nobody has registered is taken for a task."""
    assert "example_tasks" not in precompile.batch_shapes(_config(), "EncDecFeatureConverter")
    assert "'nobody'. " in caplog.text and "Its step is compiled as that of a single task" in caplog.text
    (tmp_path / "three_tasks.py").write_text(_THREE_TASKS, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    options = {"mixture_or_task_name": "precompile_mixture", "module": "three_tasks"}
    shapes = precompile.batch_shapes(_config(**options), "EncDecFeatureConverter")
    # One of the three has no such split.
    assert shapes["example_tasks"] == (8, 2)
    for more, converter in (({"pack": True}, "EncDecFeatureConverter"), ({}, "PrefixLMFeatureConverter")):
        assert "example_tasks" not in precompile.batch_shapes(_config(**options, **more), converter)
    stream = data.get_dataset(_config(**options, num_readers=2), 0, 1, "EncDecFeatureConverter")
    assert {name: x.shape for name, x in next(stream).items()} == shapes
    precompile.batch_shapes(_config(mixture_or_task_name="precompile_mixtrue"), "EncDecFeatureConverter")
    assert "no task or mixture 'precompile_mixtrue'. The nearest are 'precompile_mixture'" in caplog.text


def test_the_step_is_compiled_without_data(capsys, tmp_path):
    model = small.model(emb_dim=32, num_encoder_layers=1, num_decoder_layers=1)
    report = precompile.precompile(
        model=model,
        train_dataset_cfg=_config(pack=True),
        partitioner=partitioning.PjitPartitioner(num_partitions=2),
        model_dir=str(tmp_path),
    )
    assert report["mesh"] == {"data": 4, "model": 2}
    assert report["compile_seconds"] > 0
    # Parameters alone are more than this; the optimizer's state is factored.
    assert report["state_and_batch_bytes_per_device"] > 4 * 2 * 32 * 128
    assert str(report["flops_per_device"]) in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


def test_t5x_run_file_binds_it():
    gin.clear_config()
    files = ["t5x/examples/t5/t5_1_1/tiny.gin", "t5x/configs/runs/precompile.gin"]
    given = [
        "MIXTURE_OR_TASK_NAME = 'x'",
        f"TASK_FEATURE_LENGTHS = {LENGTHS}",
        "MODEL_DIR = 'runs/x'",
        "DROPOUT_RATE = 0.0",
    ]
    try:
        gin_utils.parse_gin_flags(files, [*given, "BATCH_SIZE = 4"])
        assert str(gin.query_parameter("precompile.model_dir")) == "%MODEL_DIR"
        assert gin.query_parameter("%MODEL_DIR") == "runs/x"
        rows = gin.get_bindings("train/DatasetConfig")
        assert (rows["batch_size"], rows["pack"], rows["task_feature_lengths"]) == (4, True, LENGTHS)
    finally:
        gin.clear_config()
