"""The lines at the end of a training."""

import json
import types

import pytest

from limba.optimizers import schedules
from limba.reports import text_figures
from limba.training import run_report


@pytest.mark.parametrize(("last", "says"), [(1.5, "(25.0% lower)"), (2.236, "(11.8% higher)"), (2.0, "(0.0% lower)")])
def test_a_loss_is_lower_or_higher_than_at_the_start(tmp_path, capsys, last, says):
    lines = [
        {"step": step, "dataset": "training_eval/t", "nats_per_target_token": x, "unigram_nats_per_target_token": 3.0}
        for step, x in ((0, 2.0), (5, last))
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    run_report.print_validation_losses(tmp_path)
    assert says in capsys.readouterr().out


def test_figures_of_text_stand_beside_those_of_ngrams(tmp_path, capsys):
    line = {"step": 7, "dataset": "training_eval/t", "nats_per_target_token": 4.0, "unigram_nats_per_target_token": 5.0}
    line |= {"num_target_tokens": 1000.0, "num_text_tokens": 750.0, "nats_per_text_token": 5.0}
    line |= {"nats_per_text_token_renormalized": 4.5, "text_accuracy": 0.125, "text_top_5_accuracy": 0.25}
    line |= {"nats_per_character": 1.25, "text_accuracy_renormalized": 0.15, "text_top_5_accuracy_renormalized": 0.3}
    bigram = {
        "nats_per_text_token": 4.75,
        "text_accuracy": 0.2,
        "text_top_5_accuracy": 0.4,
        "nats_per_character": 1.1875,
    }
    line |= {f"left_bigram/{name}": x for name, x in bigram.items()}
    start = line | {"step": 0, "nats_per_text_token_renormalized": 4.6}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(start) + "\n" + json.dumps(line) + "\n")
    run_report.print_validation_losses(tmp_path)
    assert capsys.readouterr().out.splitlines() == [
        "validation of t at step 7: the 750 targets that are tokens of text.",
        text_figures.EXPLAINED,
        "                             nats per token  per character  likeliest  among five",
        "before the first step                 4.600          1.150      15.0%       30.0%",
        "the model                             4.500          1.125      15.0%       30.0%",
        "bigram of the token before            4.750          1.188      20.0%       40.0%",
        "the model, among all tokens           5.000          1.250      12.5%       25.0%",
        "All targets, 25.0% of them sentinels and EOS: 4.0000 nats; best constant (unigram) predictor: 5.0000.",
    ]


def test_a_run_that_ends_worse_than_it_began_says_so_and_what_to_do(tmp_path, caplog):
    def end_with(*losses):
        caplog.clear()
        lines = [
            {"step": 10 * i, "dataset": "training_eval/t", "nats_per_target_token": 9 - x, "num_target_tokens": 4.0}
            | {"unigram_nats_per_target_token": 5.0, "num_text_tokens": 4.0, "nats_per_text_token": 9.0 - x}
            | {"nats_per_text_token_renormalized": x, "text_accuracy": 0.5, "text_top_5_accuracy": 0.5}
            for i, x in enumerate(losses)
        ]
        (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        run_report.print_validation_losses(tmp_path)
        return "".join(caplog.messages)

    # By the headline; the other losses fall where it rises.
    assert end_with(4.0) == end_with(4.0, 3.0) == end_with(4.0, 5.0, 4.0) == end_with(4.0, 3.5, 3.519) == ""
    said = end_with(4.0, 3.5, 4.5)
    assert said.startswith(
        "Validation of t is worse than at the beginning: 4.5000 nats at step 20, 4.0000 at step 0; the best was 3.5000 "
        "at step 10. Train for more steps, or lower the rate"
    )
    assert "no evaluation was better than the first" in end_with(4.0, 4.5)
    assert end_with(4.0, 3.5, 3.6, 3.53) == (
        "Validation of t was best at step 10, 3.5000 nats; at step 30 it is 3.5300. If the loss of training fell "
        "on, it learns the texts by heart: try DROPOUT_RATE = 0.1 or fewer steps. `limba convert to-hf RUN OUT --best "
        "min:training_eval/t/nats_per_text_token_renormalized` takes the best checkpoint that is left."
    )


def _run(tmp_path, lowers_rates=False, **schedule):
    factors = "constant * linear_warmup * cosine_decay"
    trainer = types.SimpleNamespace(
        learning_rate_fn=schedules.create_learning_rate_scheduler(factors, 0.06, 20, **schedule)
    )
    actions = types.SimpleNamespace(scale_rate=lowers_rates)
    return types.SimpleNamespace(trainer=trainer, actions=actions, model_dir=tmp_path)


def test_a_run_that_resumes_under_another_schedule_is_warned(tmp_path, caplog):
    old = _run(tmp_path, steps_per_cycle=2400)
    lines = [
        {"step": step, "dataset": "train", "learning_rate/current": float(old.trainer.learning_rate_fn(step - 1))}
        for step in (10, 600, 1200)
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    run_report.warn_of_another_schedule(old, 600)  # as RUN/config.gin still has it
    run_report.warn_of_another_schedule(_run(tmp_path, total_steps=2400), 10)  # the warm-up is the same
    run_report.warn_of_another_schedule(_run(tmp_path, total_steps=2400, lowers_rates=True), 600)
    assert not caplog.messages
    run_report.warn_of_another_schedule(_run(tmp_path, total_steps=2400), 700)
    assert caplog.messages == [
        "The learning rate of step 600 was 0.0517882; this start's schedule has 0.0516565 there, and the run uses it. "
        "The gin files or TRAIN_STEPS have changed since. The bindings of before are in "
        f"{tmp_path}/checkpoint_700/run/config.gin."
    ]
