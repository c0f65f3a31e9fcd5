"""N-grams beside a run's evaluations, where no add-on counts them."""

import logging

from limba.addons import table
from limba.training.baselines import NgramBaselines


def test_without_the_addon_a_run_has_none_and_says_so(monkeypatch, caplog):
    monkeypatch.setattr(table, "ADDONS", {name: row for name, row in table.ADDONS.items() if name != "baselines"})
    with caplog.at_level(logging.INFO):
        assert NgramBaselines().of_run(model=None) is None
    assert caplog.messages == ["Evaluations have no n-grams beside them: this Limba lacks the add-on that counts them."]
