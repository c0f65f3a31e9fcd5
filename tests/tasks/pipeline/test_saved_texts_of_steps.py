"""Positions that were saved before go on: texts of preprocessors are as runs of others have them."""

import dataclasses

import pytest

from limba.addons.diacritics.diacritics_tasks import RemoveDiacritics
from limba.addons.pairs.pairs_tasks import ScorePairs
from limba.addons.word_labels.token_labels import LabelTokens
from tasks import objectives
from tasks.pipeline import fingerprints
from tasks.pretraining.denoising import Denoise
from tasks.supervised import row_formats
from tasks.supervised.row_preprocessor import Supervise

_REST = "text_column='text', documents_per_batch=1024, mode='', output_features=None, sequence_length=None"
# What runs have saved. A new field goes into `fingerprints.LATER_FIELDS`; any other change stops all of these runs.
SAVED = {
    objectives.SpanCorruption(): "SpanCorruption(noise_density=0.15, mean_noise_span_length=3.0)",
    objectives.BertStyle(): "BertStyle(noise_density=0.15, random_token_rate=0.1)",
    objectives.Deshuffling(): "Deshuffling()",
    objectives.FullLM(): "FullLM()",
    objectives.IidDenoising(): "IidDenoising(noise_density=0.15)",
    objectives.MaskedLM(): "MaskedLM(noise_density=0.15, mask_rate=0.8, random_token_rate=0.1, whole_words=False, "
    "pairs='')",
    objectives.PrefixLM(): "PrefixLM(noise_density=0.5)",
}
FIELDS = {
    RemoveDiacritics: ["name", "language", "text_column", "max_tokens", "min_marked_words"],
    ScorePairs: ["task", "form", "columns_of_rows", "mode", "longest"],
    Supervise: ["task", "format", "ranks"],
    LabelTokens: ["task", "dataset"],
}


@pytest.mark.parametrize("objective", SAVED, ids=lambda x: type(x).__name__)
def test_texts_of_pretraining_are_those_that_runs_have_saved(objective):
    assert fingerprints.describe(Denoise(objective)) == f"Denoise(objective={SAVED[objective]}, {_REST})"


@pytest.mark.parametrize("step", FIELDS, ids=lambda x: x.__name__)
def test_fields_of_other_steps_are_those_that_runs_have_saved(step):
    fields = [field.name for field in dataclasses.fields(step) if field.name not in fingerprints.LATER_FIELDS]
    assert fields == [*FIELDS[step], "output_features", "sequence_length"]


def test_a_later_field_is_told_where_it_changes_examples():
    step = Denoise(objectives.MaskedLM(), line_by_line=True)
    now = {"preprocessors": [fingerprints.describe(step)]}
    before = {"preprocessors": [fingerprints.describe(dataclasses.replace(step, line_by_line=False))]}
    (difference,) = fingerprints.differences(before, now)
    assert "line_by_line=True" in difference


def test_runs_that_saved_a_later_field_with_its_default_go_on():
    text = fingerprints.describe(Denoise(objectives.SpanCorruption()))
    saved = text.replace("mode='', ", "mode='', line_by_line=False, ")
    assert saved != text
    assert not list(
        fingerprints.differences(
            {"tasks": {"a": {"preprocessors": [saved]}}}, {"tasks": {"a": {"preprocessors": [text]}}}
        )
    )


def test_a_format_whose_examples_changed_has_another_text_and_others_have_theirs():
    now = Supervise("squad", row_formats.Squad())
    saved = fingerprints.describe(now).replace(", examples_version=2", "")
    assert "format=Squad(answers='answers', num_choices=None), ranks" in saved
    (difference,) = fingerprints.differences(
        {"tasks": {"squad": {"preprocessors": [saved]}}},
        {"tasks": {"squad": {"preprocessors": [fingerprints.describe(now)]}}},
    )
    assert difference.startswith("tasks.squad.preprocessors was") and "examples_version=2" in difference
    text = fingerprints.describe(row_formats.Translation("en", "ro"))
    assert text.startswith("Translation(source='en', target='ro', prefix=None, ") and "version" not in text
