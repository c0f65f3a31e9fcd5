import pytest

from limba.addons.sweep import sweep_file
from limba.files import untrusted_yaml

BOMB = "a: &a [1, 2]\n" + "".join(
    f"{b}: &{b} [*{a}, *{a}, *{a}]\n" for a, b in zip("abcdefghijk", "bcdefghijkl", strict=True)
)


# Each table has all keys of the six before it.
MERGES = "".join(
    f"m{i}: &m{i} {{k{i}: 1, <<: [{', '.join(f'*m{j}' for j in range(max(0, i - 6), i))}]}}\n" for i in range(40)
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: 1\nb:\n  c: 1\n  c: 2\n", "the key 'c' comes twice, line 4"),
        ('{"a": 1,\n "a": 2}', "the key 'a' comes twice, line 2"),
        (f"a: 1\nb: {'9' * 5000}", "a number of too many digits, line 2"),
        ("a: 2020-99-99", "month must be in 1..12, line 1"),
        (BOMB, "its aliases stand for more than 100,000 values"),
        ("a: &a\n  b: *a", "an alias stands for the list or table that it is in"),
        (MERGES, "<< merges more than 10,000 keys"),
        ("a: &a [*a]", "an alias stands for the list"),
        ("a: 1\nb: " + "[" * 50_000, "line 2 has more than 200 brackets inside of each other"),
        ("- " * 30_000, "brackets are too deep inside of each other"),
        ('a: "\\ud800"', "has a null byte or half of a character"),
        ('a: "\\0"', "has a null byte or half of a character"),
        ("a: \0", "null byte|special characters are not allowed"),
        ("a: [1", "expected ',' or ']'"),
        ("a: caf\udce9", "UTF-8: byte 0xe9 at line 1, byte 7"),
        ("[? a : 1]: 2", "unhashable key"),
    ],
)  # fmt: skip
def test_what_is_no_yaml_for_limba_is_named_with_the_place(tmp_path, text, words):
    file = tmp_path / "sweep.yaml"
    file.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ValueError, match=rf"sweep\.yaml is not .*({words})") as error:
        untrusted_yaml.read(file)
    assert len(str(error.value)) < 400


def test_anchors_and_merges_are_read():
    text = "base: &base {a: 1, b: 2}\nmine: {<<: *base, b: 3}\nlist: [*base, *base]\n"
    assert untrusted_yaml.parse(text, "x") == {
        "base": {"a": 1, "b": 2},
        "mine": {"a": 1, "b": 3},
        "list": [{"a": 1, "b": 2}] * 2,
    }
    assert untrusted_yaml.parse("\ufeffa: 1e-5\n".encode().decode("utf-8-sig"), "x") == {"a": "1e-5"}


@pytest.mark.parametrize("digits", [310, 400, 4000])
def test_a_bound_beyond_all_numbers(tmp_path, digits):
    file = tmp_path / "sweep.yaml"
    file.write_text(
        "method: random\nmetric: {name: a/b, goal: minimize}\ngin_files: [x.gin]\n"
        f"parameters: {{train.steps: {{min: 1, max: {'9' * digits}}}}}\n"
    )
    with pytest.raises(ValueError, match=rf"steps\.max is a whole number of about {digits + 1:,} digits; numbers end"):
        sweep_file.load(file)
