#!/usr/bin/env bash
# T5 1.1 base for Romanian, from scratch; gin/recipes/ro_t5_base.gin says what it needs, and --help too.
set -euo pipefail
exec bash "$(dirname "${BASH_SOURCE[0]}")/worker.sh" ro_t5_base "$@"
