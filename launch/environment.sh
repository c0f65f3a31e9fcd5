# shellcheck shell=bash
# Sourced by the launchers: makes the virtual environment from a lock file once, and puts it on PATH.
#
#   PYTHON             the interpreter to build on (3.11 to 3.14; to 3.13 with TensorFlow)
#   VENV               the folder of the environment
#   LOCK               exact versions to install; seqio: with SeqIO and TensorFlow; none: VENV as it is
#   LIMBA_ACCELERATOR  tpu, cuda or cpu: which JAX to install (the machine's)

PYTHON=${PYTHON:-python3}
VENV=${VENV:-${REPOSITORY:?is set by the scripts that source this file; run launch/setup.sh}/.venv}
LOCK=${LOCK:-$REPOSITORY/launch/requirements.lock}
[[ $LOCK != seqio ]] || LOCK=$REPOSITORY/launch/requirements-seqio.lock
# An exact version, because the installer interprets the lock file.
UV_VERSION=${UV_VERSION:-0.13.8}

# With PYTHONSAFEPATH=1 Python imports nothing of the working directory, which may hold files of somebody else.
# Prints the SHA-256 of files.
fingerprint() {
  cat "$@" | PYTHONSAFEPATH=1 "$PYTHON" -c 'import hashlib, sys; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())'
}

# Prints tpu, cuda or cpu.
accelerator() {
  if [[ -n ${LIMBA_ACCELERATOR:-} ]]; then
    case $LIMBA_ACCELERATOR in
      tpu | cuda | cpu) echo "$LIMBA_ACCELERATOR" ;;
      *)
        echo "error: LIMBA_ACCELERATOR is $LIMBA_ACCELERATOR; it can be tpu, cuda or cpu." >&2
        return 1
        ;;
    esac
  # TPUs v2 to v4 have /dev/accel, later ones /dev/vfio; a GPU passed through to a guest is also in vfio.
  elif compgen -G '/dev/accel[0-9]*' >/dev/null; then
    echo tpu
  elif [[ -e /dev/nvidiactl ]]; then
    echo cuda
  elif compgen -G '/dev/vfio/[0-9]*' >/dev/null; then
    echo tpu
  else
    echo cpu
  fi
}

# newest_python LOCK: prints the newest Python 3 that has wheels for it. TensorFlow has none for 3.14.
newest_python() {
  if [[ -f $1 && $(<"$1") == *$'\ntensorflow=='* ]]; then echo 13; else echo 14; fi
}

# fits PYTHON LOCK
fits() {
  PYTHONSAFEPATH=1 "$1" -c "import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, $(newest_python "$2")))" 2>/dev/null
}

# setup_environment LOCK: installs the packages of LOCK and this repository; returns at once if that is done. With the LOCK
# "none" it uses the environment at VENV as it is.
setup_environment() {
  local lock=$1 stamp kind drifted jax=()
  if [[ $lock == none ]]; then
    if [[ ! -x $VENV/bin/python ]]; then
      echo "error: LOCK=none uses the environment at VENV as it is, and there is none at $VENV." >&2
      return 1
    fi
    export PATH=$VENV/bin:$PATH
    return
  fi
  if [[ ! -f $lock ]]; then
    echo "error: LOCK is '$lock', and there is no such file. LOCK can be seqio, none, or the path of a lock file; without it" \
      "$REPOSITORY/launch/requirements.lock is installed." >&2
    return 1
  fi
  if ! command -v "$PYTHON" >/dev/null; then
    echo "error: PYTHON is '$PYTHON', and there is no such program; $lock needs" \
      "Python 3.11 to 3.$(newest_python "$lock")." >&2
    return 1
  fi
  if ! fits "$PYTHON" "$lock"; then
    echo "error: $PYTHON is $("$PYTHON" --version 2>&1 | head -n 1); $lock needs Python 3.11 to 3.$(newest_python "$lock"). Set PYTHON=…" >&2
    return 1
  fi
  kind=$(accelerator)
  stamp=$VENV/.limba-$(fingerprint "$lock" "$REPOSITORY/pyproject.toml")
  case $kind in
    # The lock has JAX's version, and JAX chooses the matching driver.
    tpu) stamp+=-tpu jax=("jax[tpu]") ;;
    cuda) stamp+=-cuda jax=("jax[cuda12]") ;;
  esac
  if [[ -f $stamp ]] && ! drifted=$("$VENV/bin/python" "$REPOSITORY/launch/drift.py" "$lock" "$REPOSITORY/tests/requirements.lock"); then
    echo "== $VENV has other versions than the lock file: $drifted"
    rm "$stamp"
  fi
  if [[ ! -f $stamp ]]; then
    echo "== installing into $VENV for $kind (a minute or two)"
    if [[ ! -x $VENV/bin/python ]]; then
      PYTHONSAFEPATH=1 "$PYTHON" -m venv "$VENV"
      # venv of Python 3.11 brings an old setuptools, which drift.py would take for an extra that has drifted. Nothing needs
      # it: uv builds packages in environments of their own.
      if PYTHONSAFEPATH=1 "$VENV/bin/python" -c 'import setuptools' 2>/dev/null; then
        PYTHONSAFEPATH=1 "$VENV/bin/python" -m pip uninstall --quiet --yes --disable-pip-version-check setuptools
      fi
    fi
    PYTHONSAFEPATH=1 "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check "uv==$UV_VERSION"
    # Compiled once, here: else each of many processes that start together would do it, or each start on a machine that
    # does not write bytecode.
    "$VENV/bin/uv" --project "$REPOSITORY" pip install --quiet --compile-bytecode --python "$VENV/bin/python" -r "$lock" ${jax[@]+"${jax[@]}"}
    # Extras of setup.sh that have drifted: those that are there, in the versions of the tests.
    if [[ -n ${drifted:-} ]]; then
      "$VENV/bin/python" "$REPOSITORY/launch/drift.py" --pins "$REPOSITORY/tests/requirements.lock" >"$VENV/.limba-extras"
      "$VENV/bin/uv" --project "$REPOSITORY" pip install --quiet --compile-bytecode --python "$VENV/bin/python" -r "$VENV/.limba-extras"
    fi
    "$VENV/bin/uv" --project "$REPOSITORY" pip install --quiet --python "$VENV/bin/python" --no-deps --editable "$REPOSITORY"
    touch "$stamp"
  fi
  export PATH=$VENV/bin:$PATH
}

# The images of TPUs have Python 3.10 without virtual environments: installs a Python into the repository, once. Sets
# PYTHON.
provide_python() {
  local candidate folder=$REPOSITORY/.python
  # An environment that is there is not made again, which needs ensurepip.
  [[ -x $VENV/bin/python ]] && fits "$PYTHON" "$LOCK" && return
  for candidate in "$PYTHON" python3.12 python3.13 python3.11 python3.14 "$folder/python/bin/python3"; do
    if fits "$candidate" "$LOCK" && PYTHONSAFEPATH=1 "$candidate" -c 'import ensurepip' 2>/dev/null; then
      PYTHON=$candidate
      return
    fi
  done
  echo "== installing Python 3.12 into $folder"
  PYTHONSAFEPATH=1 "$PYTHON" -m pip install --quiet --disable-pip-version-check --target "$folder/uv" "uv==$UV_VERSION"
  "$folder/uv/bin/uv" --project "$REPOSITORY" python install --quiet --no-bin --install-dir "$folder/versions" 3.12
  ln -sfn "$(dirname "$(dirname "$(compgen -G "$folder/versions/cpython-3.12*/bin/python3" | head -n 1)")")" "$folder/python"
  PYTHON=$folder/python/bin/python3
}

# Prints the environment's part of --help, for the scripts that do a whole job.
environment_help() {
  cat <<HELP
  PYTHON                the Python to build on   ($PYTHON)
  VENV                  its environment          ($VENV)
  LOCK                  exact versions to install; seqio: with TensorFlow; none: VENV as it is   ($LOCK)
HELP
}

# text_value TEXT: TEXT as a text of gin, which is one of Python.
text_value() {
  printf "'%s'" "$(awk '{ gsub(/[\\\047]/, "\\\\&"); printf "%s%s", (NR > 1 ? "\\n" : ""), $0 }' <<<"$1")"
}

# build_vocabulary FILE OPTIONS…: builds a vocabulary with the options of `limba vocab build`, unless FILE exists.
build_vocabulary() {
  local file=$1
  shift
  echo "== vocabulary"
  if [[ -f $file ]]; then
    echo "$file is there already"
  else
    limba vocab build "$@" --out "$file"
  fi
}
