# shellcheck shell=bash
# Sourced by the launchers: makes the virtual environment from a lock file, once, and puts it on PATH.
#
#   PYTHON             the interpreter to build on (3.11 to 3.13)
#   VENV               where the environment lies
#   LOCK               exact versions to install, or none: VENV as it is
#   LIMBA_ACCELERATOR  tpu, cuda or cpu: which JAX to install; what the machine has, unless given

PYTHON=${PYTHON:-python3}
VENV=${VENV:-${REPOSITORY:?}/.venv}
LOCK=${LOCK:-$REPOSITORY/launch/requirements.lock}
# Exact: the installer decides what the lock file means.
UV_VERSION=${UV_VERSION:-0.13.8}

# The SHA-256 of files, in one word.
fingerprint() {
  cat "$@" | "$PYTHON" -c 'import hashlib, sys; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())'
}

# tpu, cuda or cpu.
accelerator() {
  if [[ -n ${LIMBA_ACCELERATOR:-} ]]; then
    case $LIMBA_ACCELERATOR in
      tpu | cuda | cpu) echo "$LIMBA_ACCELERATOR" ;;
      *)
        echo "error: LIMBA_ACCELERATOR is $LIMBA_ACCELERATOR; it can be tpu, cuda or cpu." >&2
        return 1
        ;;
    esac
  # The first is what v2 to v4 have, the second what came after; a GPU that is passed through to a guest is in vfio too.
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

fits_limba() { "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; }

# setup_environment LOCK: installs what LOCK lists and this repository; returns at once when that is done already. With
# the LOCK "none" the environment at VENV is taken as it is.
setup_environment() {
  local lock=$1 stamp kind jax=()
  if [[ $lock == none ]]; then
    if [[ ! -x $VENV/bin/python ]]; then
      echo "error: LOCK=none uses the environment at VENV as it is, and there is none at $VENV." >&2
      return 1
    fi
    export PATH=$VENV/bin:$PATH
    return
  fi
  if ! fits_limba "$PYTHON"; then
    echo "error: $PYTHON is $("$PYTHON" --version 2>&1); Limba needs Python 3.11, 3.12 or 3.13. Set PYTHON=…" >&2
    return 1
  fi
  kind=$(accelerator)
  stamp=$VENV/.limba-$(fingerprint "$lock" "$REPOSITORY/pyproject.toml")
  case $kind in
    # The lock has JAX's version, and JAX says which driver goes with it.
    tpu) stamp+=-tpu jax=("jax[tpu]") ;;
    cuda) stamp+=-cuda jax=("jax[cuda12]") ;;
  esac
  if [[ ! -f $stamp ]]; then
    echo "== installing into $VENV for $kind (a minute or two)"
    [[ -x $VENV/bin/python ]] || "$PYTHON" -m venv "$VENV"
    "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check "uv==$UV_VERSION"
    # Compiled once, here: else each of many processes that start together would do it, or each start where bytecode is
    # not written.
    "$VENV/bin/uv" pip install --quiet --compile-bytecode --python "$VENV/bin/python" -r "$lock" ${jax[@]+"${jax[@]}"}
    "$VENV/bin/uv" pip install --quiet --python "$VENV/bin/python" --no-deps --editable "$REPOSITORY"
    touch "$stamp"
  fi
  export PATH=$VENV/bin:$PATH
}

# The images of TPUs have Python 3.10, and no virtual environments: brings a Python of our own, once, into the repository.
# Sets PYTHON.
provide_python() {
  local candidate folder=$REPOSITORY/.python
  for candidate in "$PYTHON" python3.12 python3.13 python3.11 "$folder/python/bin/python3"; do
    if fits_limba "$candidate" && "$candidate" -c 'import ensurepip' 2>/dev/null; then
      PYTHON=$candidate
      return
    fi
  done
  echo "== installing Python 3.12 into $folder"
  "$PYTHON" -m pip install --quiet --disable-pip-version-check --target "$folder/uv" "uv==$UV_VERSION"
  "$folder/uv/bin/uv" python install --quiet --no-bin --install-dir "$folder/versions" 3.12
  ln -sfn "$(dirname "$(dirname "$(compgen -G "$folder/versions/cpython-3.12*/bin/python3" | head -n 1)")")" "$folder/python"
  PYTHON=$folder/python/bin/python3
}

# What --help of the scripts that do a whole job says of the environment.
environment_help() {
  cat <<HELP
  PYTHON                the Python to build on   ($PYTHON)
  VENV                  where it is installed    ($VENV)
  LOCK                  exact versions to install, or none: VENV as it is   ($LOCK)
HELP
}

# build_vocabulary FILE OPTIONS…: a vocabulary with the options of `limba vocab build`, unless FILE is there already.
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
