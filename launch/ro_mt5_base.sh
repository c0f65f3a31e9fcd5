#!/usr/bin/env bash
# mT5 base continued on Romanian; gin/recipes/ro_mt5_base.gin says what it needs, and --help too.
set -euo pipefail
exec bash "$(dirname "${BASH_SOURCE[0]}")/worker.sh" ro_mt5_base "$@"
