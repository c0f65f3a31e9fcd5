"""Requests of lm-eval: which score each gets, without the harness itself."""

import argparse
import types

import pytest

from limba.addons.pairs import lm_eval_command
from limba.addons.pairs.lm_eval_requests import BLANK, Requests
from limba.addons.pairs.text_scorer import TextScore


class Scorer:
    """Scores a text by its length, and one behind a context by both."""

    def score(self, texts, kind="whole"):
        assert kind == "whole"
        return [TextScore(-float(len(text)), len(text), True) for text in texts]

    def continuations(self, contexts, texts, ends=True):
        assert not ends
        pairs = zip(contexts, texts, strict=True)
        return [TextScore(-100.0 * len(c) - len(t), 1, t == " b") for c, t in pairs]


def _requests(*arguments):
    return [types.SimpleNamespace(args=x) for x in arguments]


def test_log_likelihoods_keep_their_order():
    found = Requests(Scorer(), None).loglikelihood(_requests(("", "abc"), ("cc", " b"), ("", "a"), ("c", " bb")))
    assert found == [(-3.0, False), (-202.0, True), (-1.0, False), (-103.0, False)]
    assert Requests(Scorer(), None).loglikelihood_rolling(_requests(("abcd",), ("a",))) == [-4.0, -1.0]
    of_decoder = Requests(Scorer(), None, is_decoder=True)  # without the end, as lm-eval's own class
    assert of_decoder.loglikelihood(_requests(("", " b"), ("", "abc"))) == [(-2.0, True), (-3.0, False)]
    assert of_decoder.loglikelihood_rolling(_requests(("abcd",))) == [-4.0]


def test_generated_texts_end_where_the_task_says():
    lines = []

    def answer(asked):
        lines.extend(asked)
        return ["<extra_id_0> two words. More <extra_id_1> x", "<extra_id_0> a\n\nb", "<extra_id_0> c; d"]

    options = [{"until": ["."]}, {}, {"until": ";"}]
    asked = _requests(*((f"q{i} ", one) for i, one in enumerate(options)))
    assert Requests(Scorer(), answer, BLANK).generate_until(asked) == ["two words", "a", "c"]
    assert lines == [f"q{i} {BLANK}" for i in range(3)]
    assert Requests(Scorer(), lambda x: x).generate_until(_requests(("q", {}))) == ["q"]
    with pytest.raises(ValueError, match="asks to sample"):
        Requests(Scorer(), answer).generate_until(_requests(("q", {"do_sample": True})))
    with pytest.raises(ValueError, match="An encoder generates no text"):
        Requests(Scorer(), None).generate_until(_requests(("q", {})))


def test_a_missing_harness_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "lm_eval.api.model", None)
    with pytest.raises(ValueError, match=r"lm-eval is not installed .*pip install 'limba\[lm_eval\]'"):
        lm_eval_command.evaluate(Requests(Scorer(), None), argparse.Namespace())
