"""Runs that go back at a spike: the rule, by hand; and what `train()` does with poisoned batches."""

import dataclasses
import json
import math
import shutil

import jax
import numpy as np
import pytest

from limba.addons import table
from limba.addons.spikes import going_back
from limba.addons.spikes.spike_rule import Figures, find
from limba.checkpoint_files.small_files import load_files, write_files
from limba.checkpoints import checkpointing
from limba.data.contract import Document
from limba.reports import writers
from limba.train import train
from limba.training import spike_guard
from limba.training.loop import NanLossError
from limba.training.spike_guard import SpikeGuard
from tests.limba import small

# A tiny model learns one batch by heart: its loss falls from 6.3 to 4.3 in 24 steps, and is 5.9 on other targets.
GUARD = SpikeGuard(window=4, least=4, spread=2.0, gradient_spread=None)


# -------------------------------------------------------- the rule ---------------------------------------------------


def _losses(*losses):
    return [Figures(loss) for loss in losses]


def test_a_loss_is_measured_in_robust_deviations_above_the_median():
    before = _losses(4.0, 4.1, 3.9, 4.2, 3.8)  # median 4.0, distances 0, .1, .1, .2, .2: their median is 0.1
    guard = SpikeGuard(window=5, least=5, spread=10.0)
    limit = 4.0 + 10 * 1.4826 * 0.1
    assert find(guard, before, Figures(limit - 1e-6)) is None
    reason = find(guard, before, Figures(limit + 1e-3))
    assert reason == "its loss is 5.484, 10 deviations above the median of 5 steps, 4"
    assert find(guard, before[:4], Figures(100.0)) is None  # fewer than `least`
    assert find(guard, before, Figures(0.0)) is None  # below


def test_a_window_forgets_and_equal_losses_have_a_least_deviation():
    guard = SpikeGuard(window=4, least=4, spread=5.0)
    before = _losses(100.0, 100.0, 100.0, *[2.0] * 4)
    assert find(guard, before, Figures(2.0 + 5 * 0.02 - 1e-6)) is None
    assert find(guard, before, Figures(2.0 + 5 * 0.02 + 1e-6)) is not None


def test_norms_are_compared_by_their_logarithms():
    guard = SpikeGuard(window=4, least=4, gradient_spread=3.0)
    before = [Figures(2.0, 0.5)] * 4  # the least deviation of a logarithm is 0.2
    assert find(guard, before, Figures(2.0, 0.5 * math.exp(0.6) - 1e-6)) is None
    assert "the norm of its gradient is 0.9112" in find(guard, before, Figures(2.0, 0.5 * math.exp(0.6) + 1e-4))
    assert find(guard, [Figures(2.0)] * 4, Figures(2.0, 1e9)) is None  # norms were not measured


@pytest.mark.parametrize("figures", [Figures(math.nan), Figures(math.inf), Figures(2.0, math.nan)])
def test_what_is_not_finite_is_a_spike_at_once(figures):
    assert find(SpikeGuard(), [], figures) is not None


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"window": 0}, r"SpikeGuard.window is 0; it is a whole number"),
        ({"least": 300}, r"SpikeGuard.least is 300, more than the 256 steps"),
        ({"spread": -1}, r"SpikeGuard.spread is -1; it is a number of standard deviations above 0"),
        ({"remedy": "skip"}, r"SpikeGuard.remedy is 'skip'; use 'pass_over' or 'repeat'"),
    ],
)
def test_values_that_cannot_be_meant_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        SpikeGuard(**fields)


# ------------------------------------------------------ runs ---------------------------------------------------------


class Poisoned(small.Stream):
    """Batches whose targets are always the same, so that a tiny model learns them, and some that are poison."""

    def __init__(self, poison):
        super().__init__()
        self.poison = poison

    def __next__(self):
        number, made = self.next, small.batch(7)
        self.next += 1
        if (kind := self.poison.get(number)) == "nan":
            made["decoder_loss_weights"] = made["decoder_loss_weights"] * np.float32(np.nan)
        elif kind == "shuffled":
            made["decoder_target_tokens"] = np.where(made["decoder_target_tokens"] > 0, 250 - number % 7, 0)
        return made

    def documents(self):
        return [Document("counter", "corpus.txt", self.next - 1)]


def _train(model_dir, poison, total_steps=24, stream=Poisoned, save=None, **options):
    arguments = small.training(model_dir, total_steps) | {
        "train_eval_dataset_cfg": None,
        "checkpoint_cfg": checkpointing.CheckpointConfig(
            save=save or checkpointing.SaveCheckpointConfig(period=6, keep=3)
        ),
        "get_dataset_fn": lambda *_: stream(poison),
        "spikes": GUARD,
    }
    return train(**(arguments | options))


def _records(model_dir):
    return [json.loads(line) for line in (model_dir / "spikes.jsonl").read_text().splitlines()]


def _same(a, b):
    return all(
        np.array_equal(x, y, equal_nan=True)
        for x, y in zip(jax.tree.leaves(jax.device_get(a)), jax.tree.leaves(jax.device_get(b)), strict=True)
    )


def _losses_of(model_dir):
    return {line["step"]: line["loss"] for line in writers.read_metrics(model_dir, "train") if "loss" in line}


def test_a_poisoned_run_equals_one_that_never_had_those_batches(tmp_path):
    """Batches 0 to 5, then, past 6 to 9 with the poison, 10 to 27: those of steps 1 to 24."""
    step, state = _train(tmp_path / "poisoned", {9: "shuffled"})
    assert step == 24
    assert not (tmp_path / "poisoned" / "run_end.json").exists()
    (record,) = _records(tmp_path / "poisoned")
    assert (record["step"], record["back_to"], record["passed"]) == (10, 6, 4)
    assert record["documents"] == [{"task": "counter", "file": "corpus.txt", "rows": [6, 7, 8, 9]}]
    assert "deviations above the median" in record["reason"]
    _, clean = _train(tmp_path / "clean", {})
    assert _same(state, clean)  # all batches that are no poison are alike
    assert checkpointing.load_dataset_state(tmp_path / "poisoned" / "checkpoint_24") == {"reader-0": b"28"}
    lines = [line["step"] for line in writers.read_metrics(tmp_path / "poisoned", "train") if "loss" in line]
    assert lines == list(range(1, 25))  # those of the spike are replaced


def test_a_run_that_is_killed_on_the_way_makes_the_same_steps(tmp_path):
    poison = {9: "nan", 15: "shuffled", 16: "nan", 27: "nan"}
    _, state = _train(tmp_path / "whole", poison)
    records = _records(tmp_path / "whole")

    class Killed(BaseException):  # An Exception would leave a checkpoint of the last step.
        pass

    class Killing(Poisoned):
        """Kills at the n-th batch that is read."""

        budget = 0

        def __next__(self):
            Killing.budget -= 1
            if Killing.budget == 0:
                raise Killed
            return super().__next__()

    kills = 0
    for budget in (8, 11, 6, 9, 13, 7, 1000):
        Killing.budget = budget
        try:
            _, killed_state = _train(tmp_path / "killed", poison, stream=Killing)
        except Killed:
            kills += 1
        else:
            break
    assert kills >= 5
    assert _same(state, killed_state)
    assert _records(tmp_path / "killed") == records
    assert _losses_of(tmp_path / "killed") == _losses_of(tmp_path / "whole")


class Staged(Poisoned):
    """From the 13th batch on other targets, as another stage of the data where `named` says so."""

    named = True
    stages = [small.training("x", 1)["train_dataset_cfg"] for _ in range(2)]

    def __init__(self, poison):
        super().__init__(dict.fromkeys(range(12, 40), "shuffled") | poison)
        self.stages[1] = dataclasses.replace(self.stages[0], split="other")

    @property
    def config(self):
        return self.stages[self.named and max(self.next - 1, 0) >= 12]


def test_a_stage_of_the_data_is_not_compared_with_the_one_before(tmp_path):
    _, whole = _train(tmp_path / "whole", {}, 20, Staged)
    assert not (tmp_path / "whole" / "spikes.jsonl").exists()
    _train(tmp_path / "parts", {}, 12, Staged)
    _, resumed = _train(tmp_path / "parts", {}, 20, Staged)
    assert _same(resumed, whole) and not (tmp_path / "parts" / "spikes.jsonl").exists()
    unnamed = type("Unnamed", (Staged,), {"named": False})
    with pytest.raises(ValueError, match="spike"):
        _train(tmp_path / "unnamed", {}, 20, unnamed, spikes=dataclasses.replace(GUARD, most=1))


def test_a_run_that_is_poisoned_for_ever_ends_with_its_good_checkpoint(tmp_path):
    with pytest.raises(
        NanLossError, match=r"Step 7 is a spike: its loss is nan\. The last good checkpoint is .*_6"
    ) as error:
        _train(tmp_path, dict.fromkeys(range(8, 100), "nan"), spikes=dataclasses.replace(GUARD, most=2))
    (note,) = error.value.__notes__
    assert note.startswith(
        "It is spike number 3 within 10000 steps (SpikeGuard.most = 2); before it came those of steps 9, 7 ("
    )
    assert [record["step"] for record in _records(tmp_path)] == [9, 7]
    assert checkpointing.checkpoint_steps(tmp_path) == [6]


def test_without_a_checkpoint_the_run_ends(tmp_path):
    with pytest.raises(NanLossError, match="No checkpoint was saved before"):
        _train(tmp_path, {2: "nan"})
    assert not (tmp_path / "spikes.jsonl").exists()


def test_repeating_takes_the_same_batches_with_other_dropout(tmp_path):
    class Once(Poisoned):
        """The poison comes once, as a fault of memory would."""

        def __next__(self):
            made = super().__next__()
            self.poison.pop(self.next - 1, None)
            return made

    guard = dataclasses.replace(GUARD, remedy="repeat")
    step, state = _train(tmp_path / "once", {9: "nan"}, stream=Once, spikes=guard)
    assert step == 24
    assert [(r["step"], r["back_to"], r["passed"]) for r in _records(tmp_path / "once")] == [(10, 6, 0)]
    assert checkpointing.load_dataset_state(tmp_path / "once" / "checkpoint_24") == {"reader-0": b"24"}
    _, clean = _train(tmp_path / "clean", {}, spikes=guard)
    assert not _same(state, clean)  # other dropout
    losses = _losses_of(tmp_path / "once"), _losses_of(tmp_path / "clean")
    assert [losses[0][i] == losses[1][i] for i in (5, 6, 7)] == [True, True, False]


def test_a_checkpoint_that_leads_to_spikes_is_left_for_the_one_before(tmp_path):
    """Steps after 12 fail twice at once: the run goes on from 6, past everything that was read since."""
    step, _ = _train(tmp_path, {13: "nan", 15: "nan"})
    assert step == 24
    assert [(r["step"], r["back_to"], r["passed"]) for r in _records(tmp_path)] == [(14, 12, 2), (14, 6, 10)]
    assert checkpointing.load_dataset_state(tmp_path / "checkpoint_24") == {"reader-0": b"34"}


def test_checkpoints_without_positions_are_not_gone_back_to(tmp_path, caplog):
    with pytest.raises(NanLossError, match=r"The loss of step 8 is nan\."):
        _train(tmp_path, {7: "nan"}, save=checkpointing.SaveCheckpointConfig(period=6, save_dataset=False))
    assert "This run looks for no spikes (train.spikes)" in caplog.text
    assert not (tmp_path / "spikes.jsonl").exists()


def test_the_norm_of_a_gradient_is_measured_on_request(tmp_path):
    """Against the gradients themselves, squared and summed up in NumPy."""
    measured = small.trainer.Trainer(
        model=small.tiny_model(),
        partitioner=small.partitioner(),
        learning_rate_fn=small.schedules.create_learning_rate_scheduler("constant", 0.01),
        measures_gradient=True,
    )
    state = measured.new_state(jax.random.key(0))
    rng = measured._get_step_rng(state.step)
    both = jax.jit(lambda state, batch: (measured.gradients(state.params, batch, rng), measured.step(state, batch)))
    (gradients, _), (_, metrics) = both(state, small.batch(0))
    by_hand = sum(float(np.square(np.asarray(x, np.float64)).sum()) for x in jax.tree.leaves(gradients)) ** 0.5
    assert float(metrics["gradient_norm"].compute()) == pytest.approx(by_hand, rel=1e-5)


def test_a_damaged_record_in_a_checkpoint_is_named(tmp_path):
    _train(tmp_path, {}, total_steps=6)
    files = load_files(tmp_path / "checkpoint_6", "run")
    far, long = b"[[1, 1%s]]" % (b"0" * 400), b'[["%s", 1]]' % (b"a" * 100_000)
    for content in (b'{"passed": "x"}', b'{"passed": 0, "before": %s}' % far, b'{"passed": 0, "before": %s}' % long):
        shutil.rmtree(tmp_path / "checkpoint_6" / "run")
        write_files(tmp_path / "checkpoint_6" / "run", files | {"spikes.json": content})
        with pytest.raises(ValueError, match=r"checkpoint_6/run/spikes\.json is damaged") as error:
            _train(tmp_path, {})
        assert len(str(error.value)) < 1000


def test_a_record_of_a_spike_that_no_run_writes_is_set_aside(tmp_path):
    _train(tmp_path / "run", {}, total_steps=6)
    for number, value in enumerate((10**400, True, -1, 2**31)):
        run = shutil.copytree(tmp_path / "run", tmp_path / str(number))
        record = {"step": 7, "back_to": 6, "passed": value, "reason": "x"}
        (run / going_back.FILE_NAME).write_text(json.dumps(record) + "\n")
        _train(run, {}, total_steps=7)
        assert json.loads((run / f"{going_back.FILE_NAME}.damaged").read_text()) == record


def test_files_of_before_name_the_guard_where_it_was():
    from limba.training.spikes import spike_rule

    assert spike_rule.SpikeGuard is SpikeGuard


def test_without_the_addon_a_run_looks_for_none_and_says_so(monkeypatch, caplog):
    monkeypatch.setattr(table, "ADDONS", {name: row for name, row in table.ADDONS.items() if name != "spikes"})
    assert spike_guard.begin(SpikeGuard(), step=0) is None
    assert caplog.messages == ["This run looks for no spikes (train.spikes): this Limba lacks the add-on that does."]
