"""The plan that worker 0 makes is that of all workers, and no secret goes with it."""

import dataclasses

from limba.addons.run.keys.request import Request
from limba.addons.run.plan import Counted, Plan
from limba.files import json_text, untrusted_json
from tests.addons.run.plans import plan_of

REQUEST = Request(
    config_name="c.json", train_file="t.txt", output_dir="/nowhere", do_train=True, do_eval=True, hub_token="pl4nted"
)


def test_other_workers_have_the_plan_of_the_first():
    found = {"label_column_name": "label", "labels": {"0": "no", "no": "no"}, "answers": "label", "max_seq_length": 99}
    keys = dataclasses.replace(REQUEST, **found, report_to=("tensorboard", "wandb"))
    head = {"activation": "tanh", "dropout_rate": None}
    more = {"labels": ("no", "yes"), "head": head, "is_encoder": True, "vocab_size": 7}
    plan = plan_of(keys, examples=Counted(333, buffer=333), **more)
    sent = json_text.dumps(plan.as_json(REQUEST))
    assert "pl4nted" not in sent and "train_file" not in sent
    received = Plan.of_json(untrusted_json.parse(sent, "the plan"), REQUEST)
    for name in ("out", "work", "gin_file", "rows", "eval_rows", "steps", "steps_of_epoch", "train_samples"):
        assert getattr(received, name) == getattr(plan, name)
    assert received.of_dataset("eval") == plan.of_dataset("eval")
    assert (received.keys.labels, received.keys.hub_token) == (found["labels"], "pl4nted")
    assert received.keys.trackers == keys.trackers and received.keys.measured == keys.measured


def test_batches_are_counted_once_for_all_devices():
    keys = dataclasses.replace(
        REQUEST, per_device_train_batch_size=2, gradient_accumulation_steps=3, per_device_eval_batch_size=5
    )
    plan = plan_of(keys, devices=32)
    assert (plan.rows, plan.eval_rows) == (192, 160)
    assert plan.of_dataset("infer")["infer/data.DatasetConfig.batch_size"] == 160
