# shellcheck shell=bash
# Sourced by the launchers: makes the virtual environment from a lock file, once, and puts it on PATH.
#
#   PYTHON   the interpreter to build on (3.11 to 3.13)
#   VENV     where the environment lies

PYTHON=${PYTHON:-python3}
VENV=${VENV:-${REPOSITORY:?}/.venv}
# Exact: the installer decides what the lock file means.
UV_VERSION=${UV_VERSION:-0.13.8}

# The SHA-256 of files, in one word.
fingerprint() {
  cat "$@" | "$PYTHON" -c 'import hashlib, sys; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())'
}

# setup_environment LOCK: installs what LOCK lists and this repository; returns at once when that is done already.
setup_environment() {
  local lock=$1 stamp
  if ! "$PYTHON" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))'; then
    echo "error: $PYTHON is $("$PYTHON" --version 2>&1); Limba needs Python 3.11, 3.12 or 3.13. Set PYTHON=…" >&2
    return 1
  fi
  stamp=$VENV/.limba-$(fingerprint "$lock" "$REPOSITORY/pyproject.toml")
  if [[ ! -f $stamp ]]; then
    echo "== installing into $VENV (a minute or two)"
    [[ -x $VENV/bin/python ]] || "$PYTHON" -m venv "$VENV"
    "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check "uv==$UV_VERSION"
    "$VENV/bin/uv" pip install --quiet --python "$VENV/bin/python" -r "$lock"
    "$VENV/bin/uv" pip install --quiet --python "$VENV/bin/python" --no-deps --editable "$REPOSITORY"
    touch "$stamp"
  fi
  export PATH=$VENV/bin:$PATH
}
