#!/usr/bin/env bash
# Installs Limba, and extras by name: bash launch/setup.sh [EXTRA…]
set -euo pipefail

REPOSITORY=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=launch/environment.sh
source "$REPOSITORY/launch/environment.sh"

if [[ ${1:-} == -* ]]; then
  cat <<HELP
usage: bash launch/setup.sh [EXTRA…]

Installs what Limba needs into $VENV, in the exact versions of the lock file, and extras in the versions that the tests
use: bash launch/setup.sh web plan. You can repeat it: what is there is kept, and what has drifted from the lock is
installed again. docs/install.md lists the extras. Environment variables:

$(environment_help)
HELP
  [[ $1 == -h || $1 == --help ]] && exit 0
  exit 2
fi

setup_environment "$LOCK"
if (($#)); then
  extras=$(IFS=, && echo "$*")
  known=$(sed -nE '/^\[project.optional-dependencies\]/,/^\[project.scripts\]/s/^([a-z0-9]+) = \[.*/\1/p' "$REPOSITORY/pyproject.toml")
  for extra in "$@"; do
    if ! grep -Fqx -- "$extra" <<<"$known"; then
      echo "error: there is no extra $extra; there are $(tr '\n' ' ' <<<"$known")" >&2
      exit 2
    fi
  done
  echo "== installing $extras"
  "$VENV/bin/uv" --project "$REPOSITORY" pip install --quiet --compile-bytecode --python "$VENV/bin/python" \
    --constraints "$REPOSITORY/tests/requirements.lock" --editable "${REPOSITORY}[$extras]"
fi
echo "Limba is in $VENV. Type this once in each shell:"
echo "  source $VENV/bin/activate"
