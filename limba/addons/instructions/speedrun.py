"""What the speedrun trains on (docs/speedrun.md), pinned: C4's English, T5 1.1's vocabulary, Super-NaturalInstructions.

    python -m limba.addons.instructions.speedrun

brings the vocabulary (1 MB) and the instructions (a commit of a git repository), and reads the instructions once: a
file that is wrong is found before the hours of pre-training. C4 is streamed from the hub.

    LIMBA_SPEEDRUN_DIR           where to; default runs/speedrun
    LIMBA_SPEEDRUN_INSTRUCTIONS  a folder with `tasks/` and `splits/` that is there already; nothing is brought then
    LIMBA_SPEEDRUN_BUFFER        instances that are shuffled together; default 75,000, nearly all of an epoch
"""

import argparse
import os
import pathlib
import shutil
import subprocess

from limba.addons.instructions.instruction_tasks import register_instruction_task
from limba.convert.model_files.hf import hub_models
from limba.files import written_files
from limba.tasks import pretraining, sources

C4, C4_COMMIT = "allenai/c4", "1588ec454efa1a09f29cd18ddd04fe05fc8653a2"
VOCABULARY, VOCABULARY_COMMIT = "google/t5-v1_1-base", "b5fc947a416ea3cb079532cb3c2bbadeb7f800fc"
INSTRUCTIONS = "https://github.com/allenai/natural-instructions.git"
INSTRUCTIONS_COMMIT = "55a365637381ce7f3748fa2eac7aef1a113bbb82"

DIRECTORY = pathlib.Path(os.environ.get("LIMBA_SPEEDRUN_DIR", "runs/speedrun"))
VOCABULARY_FILE = DIRECTORY / "vocab" / "spiece.model"
GIVEN_INSTRUCTIONS = os.environ.get("LIMBA_SPEEDRUN_INSTRUCTIONS")
INSTRUCTIONS_FOLDER = pathlib.Path(GIVEN_INSTRUCTIONS or DIRECTORY / "natural-instructions")
BUFFER = int(os.environ.get("LIMBA_SPEEDRUN_BUFFER", "75000"))
_HINT = "`bash launch/speedrun.sh` brings it; LIMBA_SPEEDRUN_DIR says where to."

pretraining.register_pretraining_task(
    "speedrun_span_corruption",
    data_files=sources.HuggingFaceSource(
        {split: f"hf://datasets/{C4}@{C4_COMMIT}/en/c4-{split}.*.json.gz" for split in ("train", "validation")}
    ),
    vocabulary=VOCABULARY_FILE,
)
_TASK = register_instruction_task(
    "speedrun_instructions", INSTRUCTIONS_FOLDER, vocabulary=VOCABULARY_FILE, hint=_HINT, shuffle_buffer_size=BUFFER
)


def bring_vocabulary(file: pathlib.Path) -> None:
    """Downloads T5 1.1's vocabulary, unless the file is there."""
    if file.is_file():
        return
    found = hub_models.client().hf_hub_download(VOCABULARY, "spiece.model", revision=VOCABULARY_COMMIT)
    file.parent.mkdir(parents=True, exist_ok=True)
    with written_files.writing(file) as unfinished:
        shutil.copyfile(found, unfinished)


def bring_instructions(folder: pathlib.Path, url: str = INSTRUCTIONS, commit: str = INSTRUCTIONS_COMMIT) -> None:
    """Fetches the files of one commit of a git repository, whose hash proves them, unless the folder is there.

    Raises:
      RuntimeError: if git is missing or cannot; it has git's reason and the remedy.
    """
    if folder.is_dir():
        return
    unfinished = folder.with_name(f"{folder.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    for arguments in (
        ["init", "--quiet"],
        ["fetch", "--quiet", "--depth=1", url, commit],
        ["checkout", "--quiet", commit, "--", "tasks", "splits"],
    ):
        try:
            subprocess.run(["git", "-C", str(unfinished), *arguments], check=True, capture_output=True, text=True)
        except (OSError, subprocess.CalledProcessError) as error:
            reason = " ".join((getattr(error, "stderr", "") or str(error)).split())
            raise RuntimeError(
                f"`git {arguments[0]}` of {url} at {commit} fails ({reason}). Clone that repository elsewhere, and "
                "name the folder with LIMBA_SPEEDRUN_INSTRUCTIONS."
            ) from error
    shutil.rmtree(unfinished / ".git")
    unfinished.rename(folder)


def main(argv: list[str] | None = None) -> None:
    argparse.ArgumentParser(
        prog="python -m limba.addons.instructions.speedrun",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    ).parse_args(argv)
    bring_vocabulary(VOCABULARY_FILE)
    if not GIVEN_INSTRUCTIONS:
        bring_instructions(INSTRUCTIONS_FOLDER)
    for split in ("train", "test"):
        print(
            f"{_TASK.source.count_documents(split):,} instances of {len(_TASK.source.task_names(split))} {split} tasks"
        )


if __name__ == "__main__":
    main()
