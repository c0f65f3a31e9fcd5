"""All command lines of README and docs are parsed by the commands that they call; nothing is run."""

import functools
import json
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = ("README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")))
_BEGIN = re.compile(r"(?:\w+=\S+ )*(?:limba|bash|python3?|sbatch|torchrun) ")
_FILE = re.compile(r"(?<![\w./-])[\w./*-]+\.(?:gin|yaml|jsonl|json|txt|npy|npz|py|model|pth)\b")
# What stands for something of the reader's, or is written.
_OF_READERS = re.compile(
    r"(?:my_|old/|runs/|exports/|corpus/|vocab/|upos/)[\w./*-]+|(?:t5x|flaxformer)/[\w./-]+\.gin|MODEL\.gin|(?:spiece|my)\.model|mylang/recipe\.gin|(?:plan|corpus|answers|pairs|scores|train)\.jsonl"
    r"|(?:run|ro_t5x_base)\.gin|(?:config|bert_4L|t5-small|results)\.json|(?:sweep|wandb|recipe)\.yaml"
    r"|(?:sentences|proteins|questions|texts)\.txt|(?:vectors|tokens)\.np[yz]"
)


def _lines(page: str) -> list[str]:
    """The lines of shell: those in fences, and those that are indented."""
    text = re.sub(r"\\\n\s+", " ", (ROOT / page).read_text("utf-8"))
    found, in_fence = [], False
    for line in text.splitlines():
        in_fence ^= line.lstrip().startswith("```")
        if (in_fence or line.startswith("    ")) and _BEGIN.match(line.strip()):
            found.append(line.strip())
    for variable, first in re.findall(r"for (\w+) in (\S+)", text):
        found = [line.replace(f"${variable}", first) for line in found]
    return found


def _commands(page: str) -> list[list[str]]:
    commands = []
    for line in _lines(page):
        words = shlex.split(
            re.sub(r"(?<=\s)>\s*\S+|(?<==)[NI]\b|…", lambda x: "" if x[0] not in "NI" else "1", line), comments=True
        )
        while words:
            end = next((i for i, word in enumerate(words) if word in ("&&", ";", "|")), len(words))
            command, words = words[:end], words[end + 1 :]
            while command and re.match(r"\w+=", command[0]):
                del command[0]
            if "-m" in command[:4] and command[0] != "bash":
                command = ["python", *command[command.index("-m") :]]
                command = command[2:] if command[2:3] == ["limba"] else command
            if command and command[0] in ("limba", "bash", "python", "sbatch"):
                commands.append(command)
    return commands


ALL = {page: _commands(page) for page in PAGES}


@functools.cache
def _help(script: str) -> str:
    if script == "tests/run.sh":
        return (ROOT / "tests/conftest.py").read_text("utf-8")
    return subprocess.run(["bash", script, "--help"], cwd=ROOT, capture_output=True, text=True).stdout


def _problem_of_script(words: list[str]) -> str:
    """Options are in the script's help; those of `limba train` are bindings."""
    script = re.sub(r"^(\.\./limba/)", "", words[1])
    if not (ROOT / script).is_file():
        return f"there is no {script}"
    unknown = [word for word in words[2:] if word.startswith("--") and not word.startswith("--gin.")]
    unknown = [word for word in unknown if not re.search(rf"{word.partition('=')[0]}\b", _help(script))]
    if script == "launch/pod.sh" and not re.search(rf"^  {words[2]}\b", _help(script), re.M):
        unknown.append(words[2])
    return f"{script} has no {unknown}" if unknown else ""


def _bindings(words: list[str]) -> list[str]:
    """The bindings behind a recipe are those of `limba train`."""
    return ["limba", "train", *(word for word in words if word.startswith("--gin."))]


def _parse(commands: list[list[str]], forks, request: Path) -> list[str]:
    parsed = [words for words in commands if words[0] in ("limba", "python")]
    # Bindings after a recipe are those of `limba train`.
    parsed += [
        ["limba", "train", *(x for x in w if x.startswith("--gin."))] for w in commands if w[0] in ("bash", "sbatch")
    ]
    request.write_text(json.dumps(parsed), "utf-8")
    done = forks.run(["tests.parsed_commands", str(request)], dict(os.environ))
    assert done.returncode == 0, done.stderr[-3000:]
    found = {json.dumps(words): problem for words, problem in zip(parsed, json.loads(done.stdout), strict=True)}
    results = []
    for words in commands:
        if words[0] in ("limba", "python"):
            results.append(found[json.dumps(words)])
        else:
            results.append(
                found[json.dumps(_bindings(words))] or (_problem_of_script(words) if words[0] == "bash" else "")
            )
    return results


def _misspelled(words: list[str]) -> list[str] | None:
    """The command with another first option or binding; None if it has no option."""
    for i, word in enumerate(words):
        if word.startswith("--gin.") and word[6:].partition("=")[0].isupper():
            return [*words[:i], word.replace("--gin.", "--gin.QX"), *words[i + 1 :]]
        if word.startswith("--") and len(word) > 2 and not word.startswith("--gin.") and words[0] != "sbatch":
            return [*words[:i], f"--qx{word[2:]}", *words[i + 1 :]]
    return None


# One of each command with another option: that a wrong line is found.
_WRONG = {
    tuple(wrong[: 3 if wrong[1:2] in (["convert"], ["vocab"]) else 2]): wrong
    for of_page in ALL.values()
    for words in of_page
    if (wrong := _misspelled(words)) is not None
}


@pytest.fixture(scope="module")
def problems(forks, tmp_path_factory) -> dict[str, str]:
    """By command line."""
    commands = [*{shlex.join(words): words for of_page in ALL.values() for words in of_page}.values(), *_WRONG.values()]
    found = _parse(commands, forks, tmp_path_factory.mktemp("commands") / "request.json")
    return {shlex.join(words): x for words, x in zip(commands, found, strict=True)}


@pytest.mark.parametrize("page", [page for page in PAGES if ALL[page]])
def test_command_lines_are_those_of_their_commands(page, problems):
    found = {shlex.join(words): problems[shlex.join(words)] for words in ALL[page]}
    assert not {line: problem for line, problem in found.items() if problem}


def test_another_option_is_found(problems):
    wrong = [shlex.join(words) for words in _WRONG.values()]
    assert len(wrong) > 30 and not [line for line in wrong if not problems[line]]


@pytest.mark.parametrize("page", [page for page in PAGES if ALL[page]])
def test_files_of_command_lines_are_there_or_the_reader_s(page):
    files = {file for words in ALL[page] for word in words for file in _FILE.findall(word)}
    assert not {file for file in files if not (ROOT / file).exists() and not _OF_READERS.fullmatch(file)}
