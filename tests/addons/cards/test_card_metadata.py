"""The metadata of a card are YAML that huggingface_hub reads, results included."""

import argparse
import json

import pytest
import yaml
from huggingface_hub.repocard_data import model_index_to_eval_results

from limba.addons.cards import card_metadata
from limba.addons.cards.card_metadata import Metadata


def parse(*argv):
    parser = argparse.ArgumentParser()
    card_metadata.add_arguments(parser)
    return card_metadata.of_arguments(parser.parse_args(argv))


def test_the_flags():
    given = ["--language", "ro", "--language", "pt-BR", "--license", "cc-by-4.0", "--dataset", "org/a", "--tag", "news"]
    expected = Metadata(("ro", "pt-BR"), "cc-by-4.0", ("org/a",), ("news",), "Un <extra_id_0>.")
    assert parse(*given, "--example", "Un <extra_id_0>.") == expected
    assert parse() == card_metadata.NO_METADATA and parse().request() == {}
    assert json.loads(json.dumps(expected.request())) == expected.request()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--language", "Romanian"], "--language Romanian: give a code of ISO 639"),
        (["--license", "Apache 2"], "--license Apache 2: give the hub's short name, such as apache-2.0"),
        (["--dataset", "https://huggingface.co/datasets/a/b"], "give the name of a data set on the hub"),
        (["--tag", "a\nb"], r"--tag 'a\\nb': a tag is a word or two"),
    ],
)
def test_values_that_the_hub_would_refuse(given, message):
    with pytest.raises(ValueError, match=message):
        parse(*given)


def test_front_matter_is_yaml_with_results():
    metrics = [{"type": "loss", "value": 0.0006, "name": "loss"}, {"type": "bleu", "value": 27.5, "name": "bleu"}]
    results = [card_metadata.result("news: ro", "org/news", metrics, "text2text-generation")]
    metadata = Metadata(languages=("no",), datasets=("org/news",), tags=("t5_1_1", "știri: azi"))
    text = card_metadata.front_matter(metadata, ["t5_1_1", "limba"], results, 'a "name": #1', "text2text-generation")
    head = yaml.safe_load(text.removeprefix("---").removesuffix("---"))
    assert head["language"] == ["no"] and head["datasets"] == ["org/news"]  # not YAML's false
    assert head["tags"] == ["t5_1_1", "limba", "știri: azi"] and "license" not in head
    assert "takes --license." in text
    name, read = model_index_to_eval_results(head["model-index"])
    assert name == 'a "name": #1'
    assert [(x.task_type, x.dataset_name, x.dataset_type, x.metric_type, x.metric_value) for x in read] == [
        ("text2text-generation", "news: ro", "org/news", "loss", 0.0006),
        ("text2text-generation", "news: ro", "org/news", "bleu", 27.5),
    ]
