"""What the benchmarks of families print and how they end; tests/convert/encoders has the comparison itself."""

import sys

import pytest

from benchmarks import families_beside_transformers as beside
from benchmarks import families_in_engines as engines


@pytest.mark.parametrize(
    ("found", "code", "said"),
    [
        (beside.Found(1e-5, 1e-4, 0, 4.5, 4.25), 0, "bert | 1.0e-05, 1.0e-05 | 1.0e-04, 1.0e-04"),
        (beside.Found(2e-5, 0.0, 0, 4.5, 4.25), 1, "4.50 to 4.25, 4.50 to 4.25 | NO"),
        (beside.Found(0.0, 2e-4, 0, 4.5, 4.25), 1, " | NO"),
        (beside.Found(0.0, 0.0, 3, 4.5, 4.25), 1, "NO: 6 parameters of the exports differ"),
    ],
)
def test_a_bar_that_is_missed_ends_with_1(found, code, said, monkeypatch, capsys):
    monkeypatch.setattr(beside, "run", lambda cases, run_script: [found] * len(cases))
    assert beside.main(["--families", "bert", "--seed", "4"]) == code
    head, line = capsys.readouterr().out.splitlines()
    assert head.startswith("family | outputs") and said in line


def test_seeds_draw_sizes_and_grouped_keys_divide_the_heads():
    drawn = [beside.encoder_settings(beside.ENCODERS["eurobert"], seed) for seed in range(20)]
    assert len({tuple(sorted((k, str(x)) for k, x in settings.items())) for settings in drawn}) > 15
    for settings in drawn:
        heads = settings["num_attention_heads"]
        assert settings["hidden_size"] % heads == 0 and heads % settings["num_key_value_heads"] == 0


def test_a_refusal_is_told_without_the_folders_of_the_benchmark(tmp_path, monkeypatch):
    case = beside.Case("bert", 0, tmp_path)

    def refuse(words):
        print(f"a note\nerror: {case.home}/run/checkpoint_0 is BERT.", file=sys.stderr)
        return 1

    monkeypatch.setattr(engines.convert_main, "main", refuse)
    assert engines.tried("to-gguf", case) == "RUN is BERT."
    monkeypatch.setattr(engines.convert_main, "main", lambda words: 0)
    assert engines.tried("to-gguf", case) == "yes"
