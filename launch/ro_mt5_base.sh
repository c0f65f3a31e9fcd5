#!/usr/bin/env bash
# mT5 base continued on Romanian; gin/recipes/ro_mt5_base.gin and --help list what it needs.
set -euo pipefail
exec bash "$(dirname "${BASH_SOURCE[0]}")/worker.sh" ro_mt5_base "$@"
