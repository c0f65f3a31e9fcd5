#!/usr/bin/env bash
# Resolves the lock files, and checks that they install everywhere: bash launch/lock.sh [--upgrade] or --check
set -euo pipefail

REPOSITORY=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=launch/environment.sh
source "$REPOSITORY/launch/environment.sh"
UV=${UV:-uv}
PLATFORMS=(x86_64-manylinux_2_31 aarch64-manylinux_2_31 aarch64-apple-darwin)
PYTHONS=(3.11 3.12 3.13 3.14)

if [[ ${1:-} == -h || ${1:-} == --help ]]; then
  cat <<HELP
usage: bash launch/lock.sh [--upgrade]    write the lock files; versions stay unless pyproject.toml or --upgrade changes them
       bash launch/lock.sh --check        for each lock file, platform and Python: does it install, and what has no wheel

  launch/requirements.lock        what Limba's own tasks need, without TensorFlow
  launch/requirements-seqio.lock  the same and limba[seqio]
  tests/requirements.lock         all that the tests need
  tests/requirements-hf5.lock     the tests' second environment: what needs other versions than the first has
  tests/requirements-serve-oldest.lock   the lowest versions of limba[serve], with which the tests of the server run, too

Each holds for Linux (x86-64, aarch64) and macOS (arm64) and for Python ${PYTHONS[0]} to ${PYTHONS[${#PYTHONS[@]} - 1]}: where these differ, a line
has a marker, such as TensorFlow's, which has no wheels for Python 3.14. Both need the package index and uv $UV_VERSION (UV=$UV).
HELP
  exit 0
fi

if [[ $# -gt 1 || ( $# == 1 && $1 != --upgrade && $1 != --check ) ]]; then
  echo "error: lock.sh takes --upgrade or --check, and not $*; see --help." >&2
  exit 2
fi
cd "$REPOSITORY"
if [[ $("$UV" --version 2>/dev/null) != "uv $UV_VERSION"* ]]; then
  echo "error: $UV is not uv $UV_VERSION: pip install uv==$UV_VERSION" >&2
  exit 2
fi

# resolve LOCK OPTIONS…: keeps the versions that LOCK has. One version of a package for all machines, where there is one.
resolve() {
  local lock=$1
  shift
  "$UV" pip compile --quiet --universal --python-version "${PYTHONS[0]}" --fork-strategy fewest --no-annotate \
    --custom-compile-command "bash launch/lock.sh" --output-file "$lock" "$@" pyproject.toml
}

# check LOCK PLATFORM PYTHON: prints one line. Fails if LOCK cannot be installed, or if the one for everybody has packages
# without a wheel.
check() {
  local said name built=()
  until said=$(UV_PYTHON_DOWNLOADS=never "$UV" pip compile --no-deps --only-binary :all: --python-platform "$2" \
    --python-version "$3" ${built[@]+"${built[@]/#/--no-binary=}"} "$1" 2>&1 >/dev/null); do
    said=$(tr -s '\n ' ' ' <<<"$said")
    name=$(sed -nE 's/.*Wheels are required for .([A-Za-z0-9._-]+). because.*/\1/p' <<<"$said")
    if [[ -z $name || " ${built[*]-} " == *" $name "* ]]; then
      printf 'FAIL  %-31s %-22s Python %s: %s\n' "$@" "$said"
      return 1
    fi
    built+=("$name")
  done
  printf 'ok    %-31s %-22s Python %s%s\n' "$@" "${built[*]:+, from source: ${built[*]}}"
  [[ $1 != launch/requirements.lock || ${#built[@]} == 0 ]]
}

LOCKS=(launch/requirements.lock launch/requirements-seqio.lock tests/requirements.lock)
if [[ ${1:-} == --check ]]; then
  failed=0
  for lock in "${LOCKS[@]}"; do
    for platform in "${PLATFORMS[@]}"; do
      for python in "${PYTHONS[@]}"; do
        check "$lock" "$platform" "$python" || failed=1
      done
    done
  done
  exit "$failed"
fi

# The largest first: the smaller ones take its versions, so that the tests run what users install.
resolve "${LOCKS[2]}" --extra test "$@"
resolve "${LOCKS[1]}" --extra seqio --constraints "${LOCKS[2]}"
resolve "${LOCKS[0]}" --constraints "${LOCKS[2]}"

# Transformers 5, and the trackers and datatrove, which need its huggingface_hub; what Limba's writers import, and no JAX.
SECOND=(transformers sentencepiece protobuf safetensors trackio mlflow-skinny tensorstore "etils[epath]" gin-config "datatrove[io,processing]" "spacy>=3.8" pyyaml)
printf '%s\n' "${SECOND[@]}" | "$UV" pip compile --quiet --universal --python-version "${PYTHONS[0]}" --fork-strategy fewest \
  --no-annotate --custom-compile-command "bash launch/lock.sh" --output-file tests/requirements-hf5.lock "$@" -

# The lowest versions that limba[serve] allows; what they need besides is in the first environment.
"$PYTHON" -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["serve"], sep="\n")' |
  "$UV" pip compile --quiet --universal --python-version "${PYTHONS[0]}" --resolution lowest-direct --no-deps --no-annotate \
    --custom-compile-command "bash launch/lock.sh" --output-file tests/requirements-serve-oldest.lock -
