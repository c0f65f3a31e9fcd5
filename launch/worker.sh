#!/usr/bin/env bash
# What one worker runs: bash launch/worker.sh RECIPE.gin [limba train options]
set -euo pipefail

REPOSITORY=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
LOCK=${LOCK:-$REPOSITORY/launch/requirements.lock} # exact versions to install

if [[ $# -lt 1 || $1 == -h || $1 == --help ]]; then
  cat <<HELP
usage: bash launch/worker.sh RECIPE.gin [limba train options]

Installs what is missing and trains RECIPE.gin, going on from the newest checkpoint of its MODEL_DIR:

  bash launch/worker.sh gin/recipes/quickstart.gin --gin.TRAIN_STEPS=2000 --gin.MODEL_DIR="'runs/mine'"

Knobs: PYTHON (the Python to build on), VENV (the environment), LOCK (exact versions).
HELP
  [[ $# -ge 1 ]] && exit 0 || exit 2
fi

# shellcheck source=launch/environment.sh
source "$REPOSITORY/launch/environment.sh"
setup_environment "$LOCK"
recipe=$1
shift
exec limba train --gin_file="$recipe" "$@"
