import jax
import pytest

from limba.data import contract
from limba.inference import tasks_door
from limba.network.t5 import T5Config
from limba.training import configured_trainer, trainer
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
    return contract.DatasetConfig(**(defaults | fields))


def test_batches_have_the_shapes_of_the_converters():
    shapes = configured_trainer.batch_shapes(_config(pack=True), "EncDecFeatureConverter")
    assert {name: shapes[name] for name in small.batch(0)} == dict.fromkeys(small.batch(0)) | {
        name: (8, 16 if name.startswith("encoder") else 8) for name in small.batch(0)
    }
    assert shapes["encoder_segment_ids"] == (8, 16)
    assert shapes["decoder_positions"] == (8, 8)
    prefix = configured_trainer.batch_shapes(_config(), "PrefixLMFeatureConverter")
    assert set(prefix.values()) == {(8, 24)}
    assert "decoder_causal_attention" in prefix
    with pytest.raises(ValueError, match="task_feature_lengths is empty"):
        configured_trainer.batch_shapes(_config(task_feature_lengths=None), "EncDecFeatureConverter")
    with pytest.raises(ValueError, match="EncoderFeatureConverter are not known"):
        configured_trainer.batch_shapes(_config(), "EncoderFeatureConverter")


def test_a_mixture_s_batches_say_the_task_of_each_example(monkeypatch, tmp_path, caplog):
    """So the compiled step is the one that trains; a name that nobody has registered is taken for a task."""
    assert "example_tasks" not in configured_trainer.batch_shapes(_config(), "EncDecFeatureConverter")
    assert "'nobody'. " in caplog.text and "Its step is compiled as that of a single task" in caplog.text
    (tmp_path / "three_tasks.py").write_text(_THREE_TASKS, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    options = {"mixture_or_task_name": "precompile_mixture", "module": "three_tasks"}
    shapes = configured_trainer.batch_shapes(_config(**options), "EncDecFeatureConverter")
    # One of the three has no such split.
    assert shapes["example_tasks"] == (8, 2)
    for more, converter in (({"pack": True}, "EncDecFeatureConverter"), ({}, "PrefixLMFeatureConverter")):
        assert "example_tasks" not in configured_trainer.batch_shapes(_config(**options, **more), converter)
    stream = tasks_door.get_dataset(_config(**options, num_readers=2), 0, 1, "EncDecFeatureConverter")
    assert {name: x.shape for name, x in next(stream).items()} == shapes
    configured_trainer.batch_shapes(_config(mixture_or_task_name="precompile_mixtrue"), "EncDecFeatureConverter")
    assert "no task or mixture 'precompile_mixtrue'. The nearest are 'precompile_mixture'" in caplog.text


class _StepsOnly(trainer.BaseTrainer):
    """A trainer of a user's own: all of T5X's arguments, and neither microbatches nor a learning rate."""

    def __init__(self, model, train_state, partitioner, eval_names, summary_dir, train_state_axes, rng):
        super().__init__(model, partitioner, rng, train_state, train_state_axes, eval_names, summary_dir)

    @property
    def _partitioned_train_step(self):
        raise NotImplementedError

    _partitioned_eval_step = _partitioned_train_step


def test_trainers_get_what_t5x_gives_them_and_answer_for_microbatches():
    model, mesh = small.model(**small.TINY), small.partitioner(2)
    made = configured_trainer.make_trainer(_StepsOnly, model, mesh)
    assert (made.num_microbatches, made.learning_rate_fn) == (1, None)
    with pytest.raises(ValueError, match="DropOnPlateauAction, and _StepsOnly has no learning rate"):
        made.scale_rate(0.5)
    shapes = made.sharded_state_shapes()
    whole = small.make_trainer(model, mesh).initializer.train_state_shapes
    assert jax.tree.map(lambda x: (x.shape, x.dtype), shapes) == jax.tree.map(lambda x: (x.shape, x.dtype), whole)
    assert {x.sharding.mesh for x in jax.tree.leaves(shapes)} == {mesh.mesh}


def test_a_batch_to_compile_divides_by_shards_and_microbatches():
    model, mesh = small.model(**small.TINY), small.partitioner(2)
    batch = configured_trainer.batch_to_compile(small.make_trainer(model, mesh, num_microbatches=4), _config())
    assert {name: x.shape for name, x in batch.items()} == {name: x.shape for name, x in small.batch(0).items()}
    assert batch["encoder_input_tokens"].sharding.shard_shape((8, 16)) == (4, 16)
    with pytest.raises(ValueError, match="2 data shards x 8 microbatches"):
        configured_trainer.batch_to_compile(small.make_trainer(model, mesh, num_microbatches=8), _config())


def test_vocabularies_are_checked_without_data(tmp_path):
    class Vocabulary:
        sentencepiece_model_file = str(tmp_path / "gone.model")
        vocab_size = 300

    with pytest.raises(FileNotFoundError, match=r"gone\.model does not exist.*limba vocab build"):
        configured_trainer.check_vocabulary(Vocabulary(), T5Config(vocab_size=256))
    (tmp_path / "gone.model").write_bytes(b"")
    configured_trainer.check_vocabulary(Vocabulary(), None)
    with pytest.raises(ValueError, match=r"300 tokens and the embedding 256 rows.*T5Config.vocab_size to at least 384"):
        configured_trainer.check_vocabulary(Vocabulary(), T5Config(vocab_size=256))
