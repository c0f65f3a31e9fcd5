"""Names what a run on a pod needs and its workers would not have: they get one commit of the repository, nothing else.

    python launch/carried_files.py REPOSITORY COMMIT WORKER_ENV ON_WORKERS WITH RECIPE [limba train options]

Prints a line for each recipe, included gin file, task module and file of data that is here and not in the commit, and
for each variable of this shell that names one. `launch/pod.sh run` and `check` stop if there is any, in a dry run too.
ON_WORKERS are paths, separated by commas, that every worker has already. WITH is a folder of which every worker gets a
copy, where it runs; it has what is named relative to it. Needs nothing but Python and git.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

_INCLUDE = re.compile(r"^include\s+['\"](.+?)['\"]", re.MULTILINE)
_IMPORT = re.compile(r"^(?:from ([\w.]+) import (\w+)|import ([\w.]+))", re.MULTILINE)
_TEXT = re.compile(r"['\"]([^'\"\n]+)['\"]")
_VARIABLE = re.compile(r"environ(?:\.get\(|\[)\s*['\"](\w+)")
# What a run writes is no file that it needs.
_WRITTEN = re.compile(r"MODEL_DIR|OUTPUT_DIR|output_dir")
_OWN_PACKAGES = ("limba", "tasks", "convert", "gin", "__gin__")


class Run:
    """A run, and what its commit has.

    Attributes:
      problems: what the workers lack, with the reason, in the order in which it was found.
    """

    def __init__(self, repository: str, commit: str, worker_env: str, on_workers: str, copied: str):
        self._repository, self._commit = Path(repository).resolve(), commit
        lines = Path(worker_env).read_text().splitlines() if worker_env and Path(worker_env).is_file() else []
        self._variables = {line.partition("=")[0].strip() for line in lines}
        self._have = [Path(path).expanduser().resolve() for path in on_workers.split(",") if path]
        self._copied = Path(copied).absolute() if copied else None
        self._folders = list(dict.fromkeys([self._copied or Path.cwd(), self._repository]))
        self._seen: set[Path] = set()
        self.problems: dict[str, None] = {}

    def check(self, recipe: str, words: list[str]) -> None:
        named = recipe if recipe.endswith(".gin") or self._here(recipe) else f"gin/recipes/{recipe}.gin"
        self._gin_file(named, f"the recipe {recipe}")
        for word in words:
            flag, _, value = word.partition("=")
            if flag == "--gin_file":
                self._gin_file(value, word)
            elif word.startswith("--gin"):
                self._texts(word, word)

    def _gin_file(self, name: str, what: str) -> None:
        if "://" in name:
            return
        file = self._here(name)
        if file is None:
            # T5X's names are Limba's own files.
            if not name.startswith("t5x/") and not self._is_carried(self._repository / name):
                self._lacks(f"{what}: there is no {name}, here or in the commit")
            return
        if not self._is_copied(file, name) and not (self._is_carried(file) and self._by_name(name) == file.resolve()):
            self._lacks(f"{what}: {file} is here only")
        if file.resolve() in self._seen:
            return
        self._seen.add(file.resolve())
        text = file.read_text(encoding="utf-8", errors="replace")
        for included in _INCLUDE.findall(text):
            self._gin_file(included, f"{name} includes {included}")
        self._modules(text, name)
        self._texts(_INCLUDE.sub("", text), name)

    def _modules(self, text: str, where: str) -> None:
        for package, member, module in _IMPORT.findall(text):
            for name in (f"{package}.{member}", package) if package else (module,):
                inside = name.replace(".", "/")
                file = self._here(f"{inside}.py") or self._here(f"{inside}/__init__.py")
                if file is not None:
                    self._module(file, name, where)
                    break

    def _module(self, file: Path, name: str, where: str) -> None:
        if file.resolve() in self._seen:
            return
        self._seen.add(file.resolve())
        if not self._is_copied(file) and not self._is_carried(file):
            self._lacks(f"{where} imports {name}: {file} is here only")
        text = file.read_text(encoding="utf-8", errors="replace")
        for variable in dict.fromkeys(_VARIABLE.findall(text)):
            value = os.environ.get(variable, "")
            if "/" in value and variable not in self._variables and self._found(value):
                self._lacks(f"{name} reads {variable}, which is {value} in this shell only: write it into --worker-env")
        if name.partition(".")[0] not in _OWN_PACKAGES:
            self._modules(text, name)
            self._texts(text, name)

    def _texts(self, text: str, where: str) -> None:
        """Files of data: texts that name something that is here and not in the commit."""
        for line in text.splitlines():
            if _WRITTEN.search(line) or "environ" in line or line.lstrip().startswith("#"):
                continue
            for value in _TEXT.findall(line):
                if ("/" in value or "." in value) and "://" not in value:
                    for found in self._found(value):
                        if not self._is_copied(found, value) and not self._is_carried(found):
                            self._lacks(f"{where} names {value}: {found} is here only")
                            break

    def _found(self, value: str) -> list[Path]:
        """The files or the folder of a path or pattern, seen from here and from the repository."""
        path = Path(value).expanduser()
        if path.is_absolute():
            folder, pattern = Path(path.anchor), str(path.relative_to(path.anchor))
            return [found for found in self._glob(folder, pattern) if len(found.parts) > 2]
        return [found for folder in self._folders for found in self._glob(folder, value)]

    @staticmethod
    def _glob(folder: Path, pattern: str) -> Iterator[Path]:
        try:
            yield from folder.glob(pattern)
        except (ValueError, NotImplementedError, OSError, IndexError):
            return  # No path, but another text.

    def _here(self, name: str) -> Path | None:
        return next((folder / name for folder in self._folders if (folder / name).is_file()), None)

    def _by_name(self, name: str) -> Path:
        """The file that a worker opens by this name, in its clone."""
        return (self._repository / name).resolve()

    def _is_copied(self, path: Path, name: str = "") -> bool:
        """Whether a worker finds the file in its copy of WITH, by this name."""
        is_relative = not Path(name).expanduser().is_absolute() and ".." not in Path(name).parts
        return self._copied is not None and self._copied in path.parents and is_relative

    def _is_carried(self, path: Path) -> bool:
        path = path.resolve()
        if any(path == have or have in path.parents for have in self._have):
            return True
        if self._repository not in path.parents:
            return False
        command = ["git", "-C", str(self._repository), "ls-tree", "-r", "--name-only", self._commit, "--"]
        done = subprocess.run(
            [*command, str(path.relative_to(self._repository))], stdout=subprocess.PIPE, text=True, check=True
        )
        return bool(done.stdout)

    def _lacks(self, problem: str) -> None:
        self.problems[problem] = None


def main() -> int:
    repository, commit, worker_env, on_workers, copied, recipe, *words = sys.argv[1:]
    run = Run(repository, commit, worker_env, on_workers, copied)
    run.check(recipe, words)
    print("\n".join(run.problems), end="\n" if run.problems else "")
    return 1 if run.problems else 0


if __name__ == "__main__":
    sys.exit(main())
