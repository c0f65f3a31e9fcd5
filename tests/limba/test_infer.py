import functools
import json
import os
from pathlib import Path

import numpy as np
import pytest

from limba import infer
from limba.checkpoints import checkpointing
from limba.data import contract
from limba.inference import batch_inference
from limba.network.finite_numbers import layers as finite_layers
from tests.limba import small

inferring = pytest.importorskip("tests.limba.inferring", reason="needs SeqIO", exc_type=ImportError)
REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return inferring.save_checkpoint(tmp_path_factory.mktemp("run"), shift=2, step=5)


def _infer(
    checkpoint, output_dir, num_devices=1, mode="predict", batch_size=4, checkpoint_period=2, data_options=(), **options
):
    infer.infer(
        mode=mode,
        model=inferring.FormulaModel(),
        dataset_cfg=contract.DatasetConfig(
            inferring.register_task(),
            **{"task_feature_lengths": inferring.LENGTHS, "seed": 0} | dict(data_options),
            split="validation",
            batch_size=batch_size,
            shuffle=False,
        ),
        restore_checkpoint_cfg=checkpointing.RestoreCheckpointConfig(path=checkpoint, mode="specific"),
        partitioner=small.partitioner(num_devices),
        output_dir=str(output_dir),
        checkpoint_period=checkpoint_period,
        summarize_config_fn=None,
        **options,
    )


def _name(mode="predict", shard="00000-of-00001"):
    return f"inference_letters-{mode}.jsonl-{shard}"


def _lines(path: Path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def predictions(checkpoint, tmp_path_factory):
    """Bytes of an uninterrupted run."""
    directory = tmp_path_factory.mktemp("whole")
    _infer(checkpoint, directory)
    assert sorted(path.name for path in directory.iterdir()) == [_name(), _name() + ".COMPLETED"]
    return (directory / _name()).read_bytes()


def test_every_example_is_answered_in_order(predictions):
    lines = [json.loads(line) for line in predictions.splitlines()]
    assert len(lines) == 23
    for i, line in enumerate(lines):
        text = line["inputs"]["inputs_pretokenized"]
        assert text == f"{chr(97 + i % 26) * 3}{i:02}"
        assert line["inputs"]["targets_pretokenized"] == text[:3]
        moved = [ord(b) - ord(a) for a, b in zip(text[:4], line["prediction"], strict=True)]
        assert set(moved) <= {2, 3, 4}  # the parameter, and noise
    assert len({line["prediction"][0] for line in lines}) > 10


@pytest.mark.parametrize("num_devices", [4])
def test_the_mesh_does_not_change_results(checkpoint, predictions, tmp_path, num_devices):
    _infer(checkpoint, tmp_path, num_devices)
    assert (tmp_path / _name()).read_bytes() == predictions


@pytest.mark.parametrize("written", [False, True])
def test_an_interrupted_run_goes_on_and_ends_with_the_same_bytes(checkpoint, predictions, tmp_path, written):
    calls = []

    def write_fn(path, *arguments, stop_at=None):
        calls.append(Path(path).name[-2:])
        if calls[-1] == stop_at and not written:
            raise KeyboardInterrupt
        inferring.task_inference.write_inferences_to_file(path, *arguments)
        if calls[-1] == stop_at:
            raise KeyboardInterrupt  # written, and not yet known to be whole

    with pytest.raises(KeyboardInterrupt):
        _infer(checkpoint, tmp_path, write_fn=functools.partial(write_fn, stop_at="01"))
    assert calls == ["00", "01"]
    assert not (tmp_path / _name()).exists()

    with pytest.raises(ValueError, match="examples_per_chunk 8 -> 4"):
        _infer(checkpoint, tmp_path, checkpoint_period=1)

    calls.clear()
    _infer(checkpoint, tmp_path, write_fn=write_fn)
    assert calls == ["01", "02"]
    assert (tmp_path / _name()).read_bytes() == predictions
    calls.clear()
    _infer(checkpoint, tmp_path, write_fn=write_fn)
    assert not calls


def _interrupted(path, *arguments):
    if path.endswith("01"):
        raise KeyboardInterrupt
    inferring.task_inference.write_inferences_to_file(path, *arguments)


def test_a_finished_run_of_another_mode_leaves_an_interrupted_one(checkpoint, predictions, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        _infer(checkpoint, tmp_path, write_fn=_interrupted)
    _infer(checkpoint, tmp_path, mode="score")
    chunks = []

    def write_fn(path, *arguments):
        chunks.append(path[-2:])
        inferring.task_inference.write_inferences_to_file(path, *arguments)

    _infer(checkpoint, tmp_path, write_fn=write_fn)
    assert chunks == ["01", "02"]
    assert (tmp_path / _name()).read_bytes() == predictions


def test_chunks_of_other_settings_are_refused(checkpoint, tmp_path, monkeypatch):
    config = "# infer:\ninfer.shard_id = 0\nbeam_search.alpha = 0.6\n"
    monkeypatch.setattr(infer.gin_files, "operative_config", lambda **_: config)
    with pytest.raises(KeyboardInterrupt):
        _infer(checkpoint, tmp_path, write_fn=_interrupted)
    for options, message in (
        ({"batch_size": 8, "checkpoint_period": 1}, "differs: batch_size 4 -> 8. Resume"),
        ({"data_options": {"seed": 1}}, "differs: seed 0 -> 1. Resume"),
        ({"data_options": {"task_feature_lengths": {"inputs": 8, "targets": 5}}}, "differs: task_feature_lengths {"),
    ):
        with pytest.raises(ValueError, match=message):
            _infer(checkpoint, tmp_path, **options)
    with monkeypatch.context() as other:
        other.setattr(infer.gin_files, "operative_config", lambda **_: config.replace("0.6", "0.7"))
        with pytest.raises(ValueError, match="differs: crc32 of the gin configuration"):
            _infer(checkpoint, tmp_path)
    monkeypatch.setattr(infer.gin_files, "operative_config", lambda **_: config.replace("infer.shard_id = 0\n", ""))
    _infer(checkpoint, tmp_path)


# A process of its own: TensorStore reads the address of its bucket once.
_BUCKET_SCRIPT = """
import os, sys
from tests.limba.fake_gcs import FakeGcs

gcs = FakeGcs()
os.environ["TENSORSTORE_GCS_HTTP_URL"] = gcs.url
import pytest
from etils import epath
from limba import infer
from tests.limba import test_infer

run = epath.Path("gs://my-bucket/run/checkpoint_5")
gcs.put("my-bucket", "run/checkpoint_5/run/spiece.model", b"pieces")
gcs.put("my-bucket", "run/checkpoint_5/run/config.gin", b"vocabularies.SentencePieceVocabulary.extra_ids = 100")
parsed = []
with pytest.MonkeyPatch.context() as patch:
    patch.setattr(infer.run_configuration.checkpointing, "find_checkpoint", lambda _: run)
    patch.setattr(infer.gin_files, "parse_gin_flags", lambda files, bindings, *_: parsed.extend(bindings))
    patch.setattr(infer.gin_files, "require_bindings", lambda **_: None)
    patch.setattr(infer.command_line, "goes_on", lambda flags: False)
    infer.main(["--run_dir", str(run), "--input", "x"])
assert f"vocabularies.SentencePieceVocabulary.sentencepiece_model_file = '{run}/run/spiece.model'" in parsed[1], parsed

output = "gs://my-bucket/out"
with pytest.raises(KeyboardInterrupt):
    test_infer._infer(sys.argv[1], output, write_fn=test_infer._interrupted)
assert any(name.endswith("chunk00000.COMPLETED") for _, name in gcs.objects)
test_infer._infer(sys.argv[1], output)
assert sorted(name for _, name in gcs.objects if name.startswith("out/")) == [
    f"out/{test_infer._name()}", f"out/{test_infer._name()}.COMPLETED"
]
with open(sys.argv[2], "rb") as file:
    assert gcs.objects["my-bucket", f"out/{test_infer._name()}"][0] == file.read()
print("in the bucket")
"""


def test_a_bucket(checkpoint, predictions, tmp_path, forks):
    (tmp_path / "expected").write_bytes(predictions)
    done = forks.run(["-c", _BUCKET_SCRIPT, checkpoint, str(tmp_path / "expected")], dict(os.environ))
    assert done.returncode == 0 and "in the bucket" in done.stdout, done.stderr[-3000:]
    assert not (REPOSITORY / "gs:").exists()


def test_shards_make_up_the_whole(checkpoint, tmp_path):
    for shard in range(2):
        _infer(checkpoint, tmp_path, shard_id=shard, num_shards=2, mode="score")
    parts = [_lines(tmp_path / _name("score", f"{shard:05}-of-00002")) for shard in range(2)]
    assert [len(part) for part in parts] == [12, 11]
    texts = [line["inputs"]["inputs_pretokenized"] for part in parts for line in part]
    assert len(set(texts)) == 23
    for line in parts[0] + parts[1]:
        targets = [*inferring.VOCABULARY.encode(line["inputs"]["targets_pretokenized"]), 1]
        assert line["score"] == -2.0 * sum(targets)
        assert set(line) == {"inputs", "score"}


def test_auxiliary_values_and_ids(checkpoint, tmp_path):
    write_fn = functools.partial(
        inferring.task_inference.write_inferences_to_file, output_ids=True, input_fields_to_include=["targets"]
    )
    _infer(checkpoint, tmp_path, mode="predict_with_aux", write_fn=write_fn)
    for line in _lines(tmp_path / _name("predict_with_aux")):
        assert set(line["inputs"]) == {"targets", "targets_pretokenized"}
        assert line["aux"] == {"scores": sum(line["prediction_tokens"]) / 2}
        assert inferring.VOCABULARY.decode(line["prediction_tokens"]) == line["prediction"]


def test_chunks_can_be_left_where_they_are(checkpoint, tmp_path, predictions):
    _infer(checkpoint, tmp_path, merge_chunked_results=False)
    chunks = sorted((tmp_path / f"tmp-{_name()}").glob("*-chunk?????"))
    assert b"".join(chunk.read_bytes() for chunk in chunks) == predictions
    assert len(chunks) == 3 and (tmp_path / (_name() + ".COMPLETED")).exists()


def test_wrong_settings(checkpoint, tmp_path):
    for options, message in (
        ({"mode": "guess"}, "infer.mode is 'guess'"),
        ({"shard_id": 2, "num_shards": 2}, "shard_id is 2"),
        ({"checkpoint_period": 0}, "checkpoint_period is 0"),
        ({"batch_size": 3, "num_devices": 2}, "does not divide"),
        (
            {"output_vocab_feature_name": "answers"},
            r"feature_name is 'answers'; '.*' has the features \['inputs', 'targets'",
        ),
        ({"data_options": {"task_feature_lengths": None}}, "task_feature_lengths is None, which only evaluations take"),
    ):
        with pytest.raises(ValueError, match=message):
            _infer(checkpoint, tmp_path, **options)


def test_a_step_gets_the_rng_only_if_it_takes_one():
    partitioner = small.partitioner(2)
    batches = [(np.arange(3), {"x": np.arange(3.0)}), (np.asarray([3]), {"x": np.asarray([7.0])})]
    plain = batch_inference.make_infer_fn(lambda params, batch: params * batch["x"], 4, partitioner)
    np.testing.assert_array_equal(plain(np.float32(2), batches), [0, 2, 4, 14])
    with pytest.raises(ValueError, match="no examples"):
        plain(np.float32(2), [])


def test_a_task_of_tfexample_files(tmp_path):
    import seqio
    import tensorflow as tf

    from tasks.t5 import tfexample

    with tf.io.TFRecordWriter(str(tmp_path / "examples.tfrecord")) as writer:
        for text in (b"un", b"doi"):
            feature = {"question": tf.train.Feature(bytes_list=tf.train.BytesList(value=[text]))}
            writer.write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())
    feature = seqio.Feature(vocabulary=inferring.VOCABULARY)
    paths = [str(tmp_path / "*.tfrecord")]
    features = {"inputs": feature, "targets": feature}
    name = tfexample.create_task_from_tfexample_file(paths, "tfrecord", "question", None, features)
    assert name == tfexample.create_task_from_tfexample_file(paths, "tfrecord", "question", None, features)
    examples = list(seqio.get_mixture_or_task(name).get_dataset(None, "infer", shuffle=False).as_numpy_iterator())
    assert [example["inputs_pretokenized"] for example in examples] == [b"un", b"doi"]
    assert examples[1]["inputs"].tolist() == [*inferring.VOCABULARY.encode("doi"), 1]
    with pytest.raises(ValueError, match="no such file"):
        tfexample.create_task_from_tfexample_file(str(tmp_path / "none"), "tfrecord", "question", None, features)
    with pytest.raises(ValueError, match="'sstable'"):
        tfexample.create_task_from_tfexample_file(paths, "sstable", "question", None, features)


def test_a_score_that_is_not_finite_is_an_error_and_not_written(tmp_path):
    bad = inferring.save_checkpoint(tmp_path / "run", shift=float("nan"), step=5)
    with pytest.raises(finite_layers.NotFiniteError) as error:
        _infer(bad, tmp_path / "out", mode="score")
    assert str(error.value) == (
        "The output for example 0 of inference_letters, shard 0 is not finite. The parameter shift has NaN or infinite "
        "values. These parameters give no results: take an earlier checkpoint, or copy or convert this one again."
    )
    written = [path.name for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert written == ["chunks.json"]


def test_a_run_without_a_task_says_how_to_ask_it(tmp_path, monkeypatch):
    """Such as one of `limba convert from-hf` and of `limba vocab trim`."""
    monkeypatch.setattr(infer.run_folder, "load_run_info", lambda checkpoint: {})
    monkeypatch.setattr(infer.gin_files, "value_of", lambda name: None)
    with pytest.raises(ValueError, match=r"has no task: .*not trained since\. Ask it with --input TEXT"):
        infer._task_of(str(tmp_path))
