"""Uploads a folder that `to-hf` wrote to the Hugging Face hub.

    python -m convert push exports/base my-name/my-t5

A new repository is private unless `--public` is given. Uploaded are the files that `to-hf` wrote, as its report lists
them, and nothing else that lies in the folder. Files of the same names are replaced, and weights that an earlier upload
left under other names are removed, since transformers might load them instead.
"""

import argparse
import fnmatch
import glob
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from limba.checkpoint_files import directories
from limba.convert.model_files.hf import hub_models, tokenizer_settings
from limba.convert.tensors import weight_files
from limba.files.output_folder import REPORT, read_report
from limba.files.untrusted_files import cut
from limba.files.version import VERSION

# The weights that `to-hf` writes, under all the names that they can have.
_WEIGHTS = [
    pattern
    for file in (Path(weight_files.FILES["safetensors"]), Path(weight_files.FILES["flax"]))
    for pattern in (file.name, weight_files.index_name(file.name), f"{file.stem}-?????-of-?????{file.suffix}")
]
# What `to-hf` may write. A report that comes from somebody else may list any file that lies in the folder.
_NAMES = [
    *("README.md", "loss.png", REPORT, "config.json", "generation_config.json", "spiece.model", "tokenizer.json"),
    *("tokenizer_config.json", "special_tokens_map.json", *tokenizer_settings.FILES, *_WEIGHTS),
]
_OF_SENTENCES = (
    *("1_Pooling/config.json", "modules.json", "config_sentence_transformers.json", "sentence_bert_config.json"),
)
_GB, _MB = 10**9, 10**6

# Folders for engines, by the format of their reports.
_ENGINES = {"ctranslate2": "CTranslate2", "onnx": "ONNX Runtime"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("out", help="the folder that to-hf wrote")
    parser.add_argument("repo", help="on the hub, NAME or ORG/NAME; made if it is not there")
    parser.add_argument("--public", action="store_true", help="a new repository can be seen by everybody (private)")
    parser.add_argument("--no-check", action="store_true", help="upload a folder whose conversion was not checked")
    parser.add_argument("--dry-run", action="store_true", help="check the folder, list its files, and upload nothing")


def run(args: argparse.Namespace) -> None:
    push(args.out, args.repo, public=args.public, check=not args.no_check, dry_run=args.dry_run)


def push(out: str | Path, repo: str, *, public: bool = False, check: bool = True, dry_run: bool = False) -> str:
    """Uploads a folder, prints where it is and returns that URL.

    Args:
      out, repo: what `to-hf` wrote, to "name" (the user's own) or "organization/name".
      public: whether everybody can see the repository. One that is there already must be as this says.
      check: refuse a folder whose conversion was not checked.
      dry_run: only look whether the folder is whole, and list its files; needs neither token nor network.

    Raises:
      FileNotFoundError: if the folder or a file that belongs to it is not there.
      OSError: if the hub cannot be reached or refuses.
      ValueError: if there is no token, or the folder is not checked, not whole, or damaged.
    """
    folder, hf = Path(out).expanduser(), hub_models.client()
    if not folder.is_dir():
        raise FileNotFoundError(f"There is no folder {folder}.")
    report = _verified(folder, check)
    files = _files(folder, report)
    url = f"{hf.constants.ENDPOINT}/{repo}"
    print(f"{len(files)} files of {folder} for {url} ({'public' if public else 'private'}):")
    for name in files:
        print(f"  {_size((folder / name).stat().st_size):>9}  {name}")
    if left_out := _others(folder, files):
        print(f"Left out, because to-hf did not write them: {', '.join(left_out)}.")
    if dry_run:
        print("Nothing is uploaded (--dry-run).")
        return url
    if not hf.get_token():
        raise ValueError(f"There is no token for {hf.constants.ENDPOINT}: {hub_models.TOKEN_REMEDY}.")

    api = hf.HfApi(library_name="limba", library_version=VERSION)
    with hub_models.plain_errors(hf, repo, writes=True):
        repo = api.create_repo(repo, private=not public, exist_ok=True).repo_id
        is_private = bool(api.model_info(repo).private)
    if is_private == public:
        raise ValueError(
            f"{hf.constants.ENDPOINT}/{repo} is there and {'private' if public else 'public'}. Change that in its "
            f"settings, or {'leave out' if public else 'give'} --public."
        )
    with hub_models.plain_errors(hf, repo, writes=True):
        try:
            api.upload_folder(
                repo_id=repo,
                folder_path=folder,
                allow_patterns=[glob.escape(name) for name in files],
                commit_message=f"{report.get('checkpoint', 'A model')}, converted by Limba {VERSION}",
                delete_patterns=_WEIGHTS,
            )
        except RuntimeError as error:  # The library's word for a file that was not taken.
            raise hub_models.explain(hf, repo, error, writes=True) from error
    url = f"{hf.constants.ENDPOINT}/{repo}"
    print(f"{folder} is at {url} ({'public' if public else 'private'}).")
    return url


def _verified(folder: Path, check: bool) -> dict[str, Any]:
    """The folder's report, after looking whether its files are whole."""
    path = folder / REPORT
    if not (folder / "config.json").is_file() and directories.has_checkpoint(folder):
        raise ValueError(
            f"{folder} is a run, not an export: `limba convert to-hf {folder} exports/NAME` makes one; give "
            "that to push."
        )
    if path.is_file():
        report = read_report(folder)
    elif check:
        missing = f"{folder} has no {REPORT}: it is not what to-hf wrote."
        raise FileNotFoundError(f"{missing} --no-check uploads it as it is.")
    else:
        report = {}
    if engine := _ENGINES.get(str(report.get("format"))):
        raise ValueError(
            f"{folder} is for {engine}, and push uploads folders for transformers. This uploads it: "
            f"hf upload ORG/NAME {folder}"
        )
    if check and report.get("checked") is not True:
        raise ValueError(
            f"{folder} was written without a check of the conversion. Give to-hf again without --no-check, or give "
            "--no-check here."
        )
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(f"{folder} has no config.json, without which nobody can load the model.")
    if unfinished := sorted(folder.glob(".*.part")):
        raise ValueError(f"{folder} is not finished: it holds {unfinished[0].name}. Give to-hf again.")
    formats = [*(report.get("formats") or ()), *weight_files.formats([file.name for file in folder.iterdir()])]
    for format_ in dict.fromkeys(formats or [None]):
        weight_files.open_tensors(folder, format_)
    return report


def _files(folder: Path, report: Mapping[str, Any]) -> list[str]:
    """The names of the files to upload: those of the report, of which none may be missing or a link."""
    listed = report.get("files")
    if listed is None:
        there = sorted(file.name for file in folder.iterdir())
        listed = [name for name in there if any(fnmatch.fnmatchcase(name, pattern) for pattern in _NAMES)]
    elif others := [name for name in listed if not _is_ours(name)]:
        raise ValueError(
            f"{folder / REPORT} is damaged: it lists {cut(others[0])}, which no conversion writes. Give to-hf again."
        )
    for name in listed:
        file = folder / name
        for path in (file, *(folder / parent for parent in Path(name).parents if parent.name)):
            if path.is_symlink():
                raise ValueError(f"{path} is a link to {path.readlink()}. Put a copy of the file there to upload it.")
        if not file.is_file():
            raise FileNotFoundError(f"{folder} lacks {name}, which {REPORT} lists. Give to-hf again, with --overwrite.")
    return listed


def _is_ours(name: str) -> bool:
    """Whether it can be the name of a file that a conversion wrote."""
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in (*_NAMES, *_OF_SENTENCES))


def _others(folder: Path, files: list[str]) -> list[str]:
    """What else lies in the folder; folders end with a slash."""
    return [
        f"{entry.name}/" if entry.is_dir() else entry.name
        for entry in sorted(folder.iterdir())
        if entry.name not in {name.partition("/")[0] for name in files}
    ]


def _size(num_bytes: int) -> str:
    for unit, name in ((_GB, "GB"), (_MB, "MB"), (1000, "kB")):
        if num_bytes >= unit:
            return f"{num_bytes / unit:.1f} {name}"
    return f"{num_bytes} B"
