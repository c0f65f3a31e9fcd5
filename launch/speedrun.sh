#!/usr/bin/env bash
# nanoT5's speedrun, on this machine: bash launch/speedrun.sh
# You can repeat it; finished parts are reused.
set -euo pipefail

REPOSITORY=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=launch/environment.sh
source "$REPOSITORY/launch/environment.sh"
LIMBA_SPEEDRUN_DIR=${LIMBA_SPEEDRUN_DIR:-$REPOSITORY/runs/speedrun} # the folder for all output

if [[ ${1:-} == -h || ${1:-} == --help ]]; then
  cat <<HELP
usage: bash launch/speedrun.sh [--seeds 0 1 2] [--pretrain_gin FILE …] [--finetune_gin FILE …] [--price P]
       bash launch/speedrun.sh --plan DEVICE=PRICE …
       bash launch/speedrun.sh --print

Installs, brings the data, pre-trains T5 1.1 base on 65,536 x 128 rows of C4 by gin/recipes/speedrun.gin, measures its
held-out loss, fine-tunes it on Super-NaturalInstructions by gin/recipes/speedrun_instructions.gin, and measures ROUGE-L;
for three seeds. Prints a table beside nanoT5's figures and a line for docs/leaderboard.md, and writes reports. After a
kill or a stop the same command resumes. It takes many hours of an accelerator: see --plan, and docs/speedrun.md.

  --seeds N …            the seeds (0 1 2)
  --pretrain_gin FILE …  gin files after the recipe's, such as one with trainer.Trainer.num_microbatches = 4
  --finetune_gin FILE …  the same of the fine-tuning
  --price P              of an hour of this machine, for the reports
  --plan DEVICE=PRICE …  train nothing: hours and price of three seeds on h100-1, a100-1, v5e-4 … at a price of a chip-hour
  --print                train nothing: the table of what is there

  LIMBA_SPEEDRUN_DIR           folder for all output    ($LIMBA_SPEEDRUN_DIR)
  LIMBA_SPEEDRUN_INSTRUCTIONS  a clone of natural-instructions that is there already; else it is brought by git
$(environment_help)
HELP
  exit 0
fi

cd "$REPOSITORY"
export LIMBA_SPEEDRUN_DIR

setup_environment "$LOCK"
if [[ $LOCK != none ]] && ! python -c 'import rouge_score, bokeh' 2>/dev/null; then
  bash launch/setup.sh metrics report
fi
exec python -m benchmarks.speedrun --work "$LIMBA_SPEEDRUN_DIR" "$@"
