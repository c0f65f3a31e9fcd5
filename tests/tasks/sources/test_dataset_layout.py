"""Cards and lists of files of strangers: what `datasets` would do without limits is an error before it sees them."""

import os
import time

import pytest

from tasks.sources import dataset_layout

BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{b}: &{b} [{','.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefg", "bcdefgh", strict=True)
)
CARDS = {
    "configs:\n- config_name: a\n  data_files: /etc/passwd": r"data_files names '/etc/passwd', outside of the data set",
    "configs:\n- config_name: a\n  data_files:\n  - split: train\n    path: [../x.jsonl]": r"names '\.\./x\.jsonl'",
    "configs:\n- config_name: a\n  data_files: {train: 'http://127.0.0.1/x.jsonl'}": "names 'http://127",
    "configs:\n- config_name: a\n  data_dir: ../../..": r"data_dir names '\.\./\.\./\.\.'",
    "configs: !!python/object/apply:os.system ['true']": "a value of the type .*python/object/apply:os.system, line 1",
    f"{BOMB}configs: *h": "its aliases stand for more than 500,000 values",
    "a: " + "[" * 10_000: "more than 200 brackets",
    "a: 1" + "\n" * 3000 + "b: 2": "more than 100 line breaks in a row",
    "a: &a [*a]": "an alias stands for the list or table that it is in",
}


@pytest.mark.parametrize("card", CARDS)
def test_a_card_of_a_stranger(card, tmp_path):
    (tmp_path / "train.jsonl").write_text('{"text": "a"}\n')
    (tmp_path / "README.md").write_text(f"---\n{card}\n---\n# Texts\n")
    with pytest.raises(ValueError, match=rf"README\.md of '{tmp_path}'.*({CARDS[card]})"):
        dataset_layout.of_folder(tmp_path)


@pytest.mark.parametrize(
    ("card", "file"),
    [
        ("\n" * 3000 + "x", "train.jsonl"),  # The expression of `datasets` takes 10 s for it.
        ("\n\nconfigs:\n- data_files: b.jsonl\n  config_name: default\n\n---\n" + "\n" * 3000, "b.jsonl"),
    ],
)
def test_many_blank_lines_of_a_card_take_no_minutes(card, file, tmp_path):
    for name in ("train.jsonl", "b.jsonl"):
        (tmp_path / name).write_text('{"text": "a"}\n')
    (tmp_path / "README.md").write_text(f"---\n{card}")
    begun = time.process_time()
    assert dataset_layout.of_folder(tmp_path).files == {"train": [str(tmp_path / file)]}
    assert time.process_time() - begun < 6


def test_a_card_that_is_no_file(tmp_path):
    (tmp_path / "train.jsonl").write_text('{"text": "a"}\n')
    os.mkfifo(tmp_path / "README.md")
    with pytest.raises(ValueError, match=r"README\.md is a FIFO, not a file"):
        dataset_layout.of_folder(tmp_path)


@pytest.mark.parametrize("path", ["../../written.jsonl", "/tmp/written.jsonl", "a\0b.jsonl", "a" * 500 + ".jsonl"])
def test_a_list_of_files_of_a_stranger(path):
    with pytest.raises(
        ValueError, match=r"Data set 'org/x' (lists the file .*, which is none of it|has names that no)"
    ):
        dataset_layout.of_names("org/x", [path], lambda name: b"")
