#!/usr/bin/env bash
# Installs and runs the tests: bash tests/run.sh [pytest options]
set -euo pipefail

REPOSITORY=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
HF5_VENV=${HF5_VENV:-$REPOSITORY/.venv-hf5} # a second environment: transformers 5, which has no Flax models
# Packages that stand before those of the first environment: the lowest versions that limba[serve] allows.
SERVE_OLDEST=${SERVE_OLDEST:-$REPOSITORY/.venv-serve-oldest}

if [[ ${1:-} == -h || ${1:-} == --help ]]; then
  cat <<HELP
usage: bash tests/run.sh [pytest options, such as -m smoke (a minute), -m "not slow" or -k checkpoints]

Installs exact versions into .venv, $HF5_VENV and $SERVE_OLDEST, then runs ruff, mypy, shellcheck (if installed) and pytest.
LIMBA_TESTS_COMPILED names the folder of compiled programs; empty, none is kept.
HELP
  exit 0
fi

export LIMBA_ACCELERATOR=cpu # The tests run on CPUs.
# Hundreds of processes import what pip and uv leave to be compiled at the first import: that is kept for the next one.
unset PYTHONDONTWRITEBYTECODE
# shellcheck source=launch/environment.sh
source "$REPOSITORY/launch/environment.sh"
cd "$REPOSITORY"
setup_environment "$REPOSITORY/tests/requirements.lock"

# Searching for garbage, after every 700 new objects and once more at its end, is a fifth of what a short process costs.
# As `limba` sets it, for what the tests start besides.
collect_rarely() {
  local packages
  packages=$("$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  echo "import atexit, gc; gc.set_threshold(20_000, 10, 10); atexit.register(gc.freeze)" >"$packages/limba_tests.pth"
}
collect_rarely "$VENV"

# pip installs torch, by exact version: otherwise a CUDA build of several gigabytes may come. Few tests use the second
# environment, and few parts of torch: both compile what is imported.
install_torch() { "$1/bin/python" -m pip install --quiet --no-compile --disable-pip-version-check torch==2.13.0; }
has() { "$1/bin/python" -c "import importlib.util, sys; sys.exit(importlib.util.find_spec('$2') is None)"; }
has "$VENV" torch || install_torch "$VENV"
# They ask for torch, so a lock file would have its CUDA build; all else that they need is in the lock file.
has "$VENV" sentence_transformers || "$VENV/bin/python" -m pip install --quiet --no-compile --no-deps --disable-pip-version-check \
  peft==0.21.2 accelerate==1.15.0 sentence-transformers==5.1.0

hf5_stamp=$HF5_VENV/.limba-$(fingerprint "$REPOSITORY/tests/requirements-hf5.lock")
setup_hf5() {
  [[ -x $HF5_VENV/bin/python ]] || "$PYTHON" -m venv "$HF5_VENV"
  "$VENV/bin/uv" pip install --quiet --python "$HF5_VENV/bin/python" -r "$REPOSITORY/tests/requirements-hf5.lock"
  has "$HF5_VENV" torch || install_torch "$HF5_VENV"
  collect_rarely "$HF5_VENV"
  touch "$hf5_stamp"
}
installing=
if [[ ! -f $hf5_stamp ]]; then
  setup_hf5 &
  installing=$!
fi
export LIMBA_HF5_PYTHON=$HF5_VENV/bin/python

oldest_stamp=$SERVE_OLDEST/.limba-$(fingerprint "$REPOSITORY/tests/requirements-serve-oldest.lock")
if [[ ! -f $oldest_stamp ]]; then
  rm -rf "$SERVE_OLDEST"
  "$VENV/bin/uv" pip install --quiet --python "$VENV/bin/python" --no-deps --target "$SERVE_OLDEST" \
    -r "$REPOSITORY/tests/requirements-serve-oldest.lock"
  touch "$oldest_stamp"
fi
export LIMBA_SERVE_OLDEST=$SERVE_OLDEST

# What XLA compiles for the tests is kept for later runs, of other clones too: it is a third of what training tests cost.
# CPUs of another kind lack instructions that this one has.
kind_of_cpu=$("$VENV/bin/python" -c 'from limba.devices import compilation_cache; print(compilation_cache.kind_of_cpu())')
export LIMBA_TESTS_COMPILED=${LIMBA_TESTS_COMPILED-${XDG_CACHE_HOME:-$HOME/.cache}/limba/tests-compiled/$kind_of_cpu}
if [[ -n $LIMBA_TESTS_COMPILED ]]; then
  (umask 077 && mkdir -p "$LIMBA_TESTS_COMPILED")
  find "$LIMBA_TESTS_COMPILED" -type f -mtime +14 -delete # of networks that have changed since
fi

# In a fresh environment the first import compiles each module: once for all processes, while the rest is installed.
collecting=
if [[ ! -d $REPOSITORY/tests/__pycache__ && $* != "-m smoke" ]]; then
  python -m pytest --collect-only >/dev/null 2>&1 &
  collecting=$!
fi

echo "== ruff, mypy"
ruff check .
ruff format --check .
mypy limba # with tasks and convert, through its links
if command -v shellcheck >/dev/null; then
  shellcheck -x launch/*.sh launch/slurm.sbatch tests/run.sh tests/launch/bin/*
fi
[[ -z $installing ]] || wait "$installing"
[[ -z $collecting ]] || wait "$collecting" || true # The run itself names what cannot be collected.

echo "== pytest"
# Collecting all tests takes longer than these.
# shellcheck disable=SC2046
if [[ $* == "-m smoke" ]]; then
  set -- -m smoke $(grep -rl --include='test_*.py' 'mark\.smoke' tests)
else
  set -- --ignore=tests/smoke "$@" # What they do in a minute, other tests do at length.
fi
# Processes share the test files, each with up to 3 GB. Some tests wait, so there is a process more than cores.
processes=$(($(getconf _NPROCESSORS_ONLN) + 1))
python -m pytest --numprocesses=$((processes < 4 ? processes : 4)) --dist=loadfile --no-loadscope-reorder "$@"
