"""A training in stages: other blanks, lengths, rates and batches at given steps, and the documents go on."""

import dataclasses
import json

import numpy as np
import pytest

from limba.data.contract import DatasetConfig, Stage
from tasks import objectives
from tasks.pipeline import task_batches
from tasks.pretraining import denoising, register_pretraining_task
from tasks.registry import Feature, MixtureRegistry, TaskRegistry
from tasks.sources import corpora
from tasks.vocabularies import ByteVocabulary

BYTES = ByteVocabulary(100)
LONG, SHORT = {"inputs": 64, "targets": 40}, {"inputs": 32, "targets": 24}
# A document fills a window of 64 inputs, and a bit more: each is some rows.
NUM_DOCUMENTS = 400


@pytest.fixture(autouse=True)
def tasks(tmp_path):
    """`many`, `few`: blanks in the same corpus; `other` in another; `both`, `mostly_few`: mixtures."""
    for folder, count in (("corpus", NUM_DOCUMENTS), ("other", 60)):
        (tmp_path / folder).mkdir()
        rows = [json.dumps({"text": f"{folder} {number:04d} " + "of words and words " * 6}) for number in range(count)]
        (tmp_path / folder / "a.jsonl").write_text("\n".join(rows[::2]) + "\n")
        (tmp_path / folder / "b.jsonl").write_text("\n".join(rows[1::2]) + "\n")

    def register(name, folder, density):
        register_pretraining_task(
            name,
            data_files=corpora.HuggingFaceSource({"train": str(tmp_path / folder / "*.jsonl")}, chunk_documents=8),
            vocabulary=BYTES,
            objective=objectives.SpanCorruption(noise_density=density),
            shuffle_buffer_size=16,
        )

    register("many", "corpus", 0.3)
    register("few", "corpus", 0.15)
    register("other", "other", 0.15)
    feature = Feature(BYTES, add_eos=True)
    for name, density in (("in_order", 0.3), ("in_order_too", 0.15)):
        TaskRegistry.add(
            name,
            source=corpora.HuggingFaceSource({"train": str(tmp_path / "corpus" / "*.jsonl")}, chunk_documents=8),
            preprocessors=[denoising.Denoise(objectives.SpanCorruption(density), documents_per_batch=32)],
            output_features={"inputs": feature, "targets": feature},
            shuffle_buffer_size=None,
        )
    MixtureRegistry.add("both", [("many", 3), ("other", 1)])
    MixtureRegistry.add("mostly_other", [("many", 1), ("other", 3)])


def _config(*stages, name="many", lengths=LONG, batch_size=8, **options):
    return DatasetConfig(name, lengths, "train", batch_size, seed=5, stages=stages, **options)


def _open(config, index=0, count=1):
    return task_batches.get_train_batches(config, "EncDecFeatureConverter", index, count)


def _read(batches, count):
    return [{name: x.copy() for name, x in next(batches).items()} for _ in range(count)]


def _assert_same(found, expected):
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.keys() == theirs.keys()
        for name, array in theirs.items():
            np.testing.assert_array_equal(ours[name], array)


def _blanks(batch):
    """The share of the batch's text tokens that are in blanks."""
    targets, inputs = batch["decoder_target_tokens"], batch["encoder_input_tokens"]
    hidden, seen = (int(((x > 2) & (x < 259)).sum()) for x in (targets, inputs))
    return hidden / (hidden + seen)


def test_blanks_lengths_and_rows_change_at_their_batches():
    staged = _config(Stage(3, "few"), Stage(5, task_feature_lengths=SHORT), Stage(7, batch_size=4), num_readers=4)
    batches = _open(staged)
    assert batches.config.name == "many"
    read = _read(batches, 9)
    _assert_same(read[:3], _read(_open(_config(num_readers=4)), 3))
    assert [batch["encoder_input_tokens"].shape for batch in read] == [(8, 64)] * 5 + [(8, 32)] * 2 + [(4, 32)] * 2
    shares = [_blanks(batch) for batch in read]
    assert shares[:3] == pytest.approx([0.3] * 3, abs=0.02) and shares[3:] == pytest.approx([0.15] * 6, abs=0.02)
    now = batches.config
    assert (now.name, now.task_feature_lengths, now.batch_size, now.stages) == ("few", SHORT, 4, ())


def test_documents_go_on_where_the_stage_before_has_ended():
    batches = _open(_config(Stage(60, "in_order_too"), name="in_order", num_readers=2))
    seen = []
    for _ in range(64):
        next(batches)
        seen.append({(x.file, x.row) for x in batches.documents()})
    first = set.union(*seen[:60])
    assert 256 < len(first) < NUM_DOCUMENTS
    # Documents are preprocessed in groups, here of 32, and the stage begins with the group that was being read.
    assert not set.union(*seen[60:]) & set.union(*seen[:46])
    assert set.union(*seen[60:]) & first


def test_another_number_of_rows_goes_on_to_the_row():
    config = _config(Stage(3, batch_size=16), num_readers=2)
    rows = {name: [] for name in ("encoder_input_tokens", "decoder_target_tokens")}
    for of_all, every in ((_config(num_readers=2), 7), (config, 5)):
        read = _read(_open(of_all), every)
        for name, found in rows.items():
            # The rows of each of the two readers, in order.
            halves = [np.split(batch[name], 2) for batch in read]
            found.append([np.concatenate([half[reader] for half in halves]) for reader in (0, 1)])
    for alone, staged in rows.values():
        for reader in (0, 1):
            np.testing.assert_array_equal(staged[reader], alone[reader])  # 7 x 4 rows, and 3 x 4 and 2 x 8


def test_rates_change_and_each_task_goes_on_to_the_row():
    batches = _open(_config(Stage(20, "mostly_other"), name="both", num_readers=1))
    read, alone = _read(batches, 40), _read(_open(_config(name="both", num_readers=1)), 40)
    for stage, rates in ((read[:20], [0.75, 0.25]), (read[20:], [0.25, 0.75])):
        assert sum(batch["example_tasks"].sum(0) for batch in stage) / 160 == pytest.approx(rates, abs=0.1)
    rows = _rows_of_the_first_task(read)
    assert rows == _rows_of_the_first_task(alone)[: len(rows)]


def _rows_of_the_first_task(batches):
    chosen = [batch["encoder_input_tokens"][batch["example_tasks"][:, 0] == 1] for batch in batches]
    return np.concatenate(chosen).tolist()


def test_a_run_goes_on_from_every_batch_on_one_host_and_on_two():
    config = _config(Stage(2, "few", SHORT), Stage(4, "both"), Stage(5, batch_size=16), num_readers=2)
    whole, batches = [], _open(config)
    positions = [batches.save_state()]
    for _ in range(7):
        whole += _read(batches, 1)
        positions.append(batches.save_state())
    batches.close()
    assert {*map(frozenset, positions)} == {frozenset(positions[0])}  # the same files
    for number in (0, 2, 3, 5, 7):  # before, at and behind a border of stages
        position = positions[number]
        resumed = _open(config)
        resumed.restore_state(position)
        assert resumed.save_state() == position
        _assert_same(_read(resumed, 7 - number), whole[number:])
        resumed.close()
    hosts = [_open(config, index, 2) for index in (0, 1)]
    for host in hosts:
        host.restore_state(positions[3])
    for expected in whole[3:]:
        parts = [next(host) for host in hosts]
        _assert_same([{name: np.concatenate([part[name] for part in parts]) for name in expected}], [expected])
    assert {**hosts[0].save_state(), **hosts[1].save_state()} == positions[7]
    for host in hosts:
        host.close()


def test_processes_that_read_make_the_same_batches():
    config = _config(Stage(1, "few"), Stage(2, batch_size=16))
    batches = _open(dataclasses.replace(config, num_workers=1))
    _assert_same(_read(batches, 4), _read(_open(config), 4))
    batches.close()


def test_later_stages_may_change_when_a_run_resumes():
    batches = _open(_config(Stage(2, "few"), Stage(6, task_feature_lengths=SHORT)))
    _read(batches, 3)
    position = batches.save_state()
    other = _open(_config(Stage(2, "few"), Stage(4, "other")))
    other.restore_state(position)
    assert [(_read(other, 1), other.config.name)[1] for _ in range(2)] == ["few", "other"]
    moved = _open(_config(Stage(5, "few")))
    with pytest.raises(ValueError, match="This run is of task 'few', and MIXTURE_OR_TASK_NAME is 'many'"):
        moved.restore_state(position)


def test_a_task_of_another_corpus_begins_at_its_beginning():
    batches = _open(_config(Stage(3, "other"), num_readers=2))
    read = _read(batches, 5)[3:]
    # The number of a batch is no part of a row.
    _assert_same(read, _read(_open(_config(name="other", num_readers=2)), 2))


@pytest.mark.parametrize(
    ("stages", "says"),
    [
        ([{"begins": 0, "batch_size": 4}], "Stage.begins is 0; it is a whole number of at least 1, in batches"),
        ([{"begins": 5}], "The Stage that begins after 5 batches changes nothing"),
        ([{"begins": 5, "batch_size": 4}, {"begins": 5, "batch_size": 8}], r"stages begin after \[5, 5\] batches"),
        ([{"begins": 5, "batch_size": 0}], r"DatasetConfig.batch_size \(BATCH_SIZE\) is 0"),
        ([{"begins": 5, "mixture_or_task_name": "absent"}], "absent"),
        ([{"begins": 5, "task_feature_lengths": {"inputs": 64, "targets": 20}}], "20 would cut them; set targets to"),
    ],
)
def test_what_cannot_be_is_said_before_a_batch_is_read(stages, says):
    with pytest.raises(ValueError, match=says):
        _open(_config(*(Stage(**stage) for stage in stages)))


def test_readers_divide_the_batches_of_all_stages():
    assert _open(_config(Stage(3, batch_size=12))).config.num_readers is None
    assert [*_open(_config(Stage(3, batch_size=12))).save_state()] == [f"reader-{i:04d}-of-0004.json" for i in range(4)]
    with pytest.raises(ValueError, match="num_readers is 8, which does not divide batch_size 12"):
        _config(Stage(3, batch_size=12), num_readers=8)


def test_hosts_compare_the_facts_of_each_stage():
    facts = task_batches.data_facts(_config(Stage(3, "other")))
    assert facts["task"] == "many" and facts["task (stage 2)"] == "other"
    assert facts["data order"] != facts["data order (stage 2)"]
    assert task_batches.data_facts(dataclasses.replace(_config(Stage(3, "other")), stages=())) == {
        name: value for name, value in facts.items() if not name.endswith("(stage 2)")
    }
