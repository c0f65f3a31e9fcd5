#!/usr/bin/env bash
# What one worker runs: bash launch/worker.sh RECIPE.gin [limba train options]
set -euo pipefail

REPOSITORY=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
LOCK=${LOCK:-$REPOSITORY/launch/requirements.lock} # exact versions to install
PYTHON=${PYTHON:-python3}

if [[ $# -lt 1 || $1 == -h || $1 == --help ]]; then
  cat <<HELP
usage: bash launch/worker.sh RECIPE.gin [limba train options]

Installs what is missing and trains RECIPE.gin, going on from the newest checkpoint of its MODEL_DIR:

  bash launch/worker.sh gin/recipes/quickstart.gin --gin.TRAIN_STEPS=2000 --gin.MODEL_DIR="'runs/mine'"

Knobs: PYTHON (the Python to build on), VENV (the environment), LOCK (exact versions).

With T5X_DIR set to a checkout of T5X, and T5X_PYTHON to a Python that has what T5X needs, T5X trains the recipe instead:
for recipes in T5X's vocabulary, such as gin/recipes/ro_t5_base.gin. Give T5X an absolute MODEL_DIR.
HELP
  [[ $# -ge 1 ]] && exit 0 || exit 2
fi

recipe=$1
shift

if [[ -n ${T5X_DIR:-} ]]; then
  if [[ ! -f $T5X_DIR/t5x/train.py ]]; then
    echo "error: T5X_DIR is $T5X_DIR, which has no t5x/train.py; give the root of a checkout, or unset it." >&2
    exit 1
  fi
  echo "== T5X of $T5X_DIR trains $recipe"
  export PYTHONPATH=$REPOSITORY:$T5X_DIR${PYTHONPATH:+:$PYTHONPATH}
  # As a script it would put its own folder first on the path, whose tasks.py hides ours.
  exec "${T5X_PYTHON:-$PYTHON}" -m t5x.train --gin_search_paths="$PWD,$REPOSITORY" --gin_file="$recipe" "$@"
fi

# shellcheck source=launch/environment.sh
source "$REPOSITORY/launch/environment.sh"
setup_environment "$LOCK"
exec limba train --gin_file="$recipe" "$@"
