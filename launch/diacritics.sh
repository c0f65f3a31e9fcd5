#!/usr/bin/env bash
# Trains a model that restores Romanian diacritics, from scratch, on this machine: bash launch/diacritics.sh
# You can repeat it; finished parts are reused.
set -euo pipefail

REPOSITORY=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=launch/environment.sh
source "$REPOSITORY/launch/environment.sh"
LIMBA_DIACRITICS_DIR=${LIMBA_DIACRITICS_DIR:-$REPOSITORY/runs/diacritics} # the folder for all output
PRETRAIN_STEPS=${PRETRAIN_STEPS:-300}
TRAIN_STEPS=${TRAIN_STEPS:-1000} # of fine-tuning

if [[ ${1:-} == -h || ${1:-} == --help ]]; then
  cat <<HELP
usage: bash launch/diacritics.sh [limba train options of the fine-tuning, such as --gin.BATCH_SIZE=64]

Installs, writes Romanian sentences of a small grammar, builds a vocabulary, pre-trains a small T5 1.1 on them, fine-tunes
it to restore their diacritics, and compares it on held-out sentences with the best that their ambiguity allows. Takes ten
cpu-minutes. Environment variables:

  LIMBA_DIACRITICS_DIR  folder for all output    ($LIMBA_DIACRITICS_DIR)
  PRETRAIN_STEPS        steps of pre-training    ($PRETRAIN_STEPS)
  TRAIN_STEPS           steps of fine-tuning     ($TRAIN_STEPS)
$(environment_help)
HELP
  exit 0
fi

cd "$REPOSITORY"
export LIMBA_DIACRITICS_DIR
corpus=$LIMBA_DIACRITICS_DIR/corpus
vocabulary=$LIMBA_DIACRITICS_DIR/vocab/spiece.model
pretrained=$LIMBA_DIACRITICS_DIR/pretrained
model=$LIMBA_DIACRITICS_DIR/model

setup_environment "$LOCK"

echo "== corpus"
python -m limba.addons.diacritics.romanian_sentences --out "$corpus"

# From text with marks and without. Ă and Â are added because no sentence begins with them.
build_vocabulary "$vocabulary" --data_files "$corpus/train-*.jsonl" "$corpus/plain-*.jsonl" --vocab_size 512 \
  --character_coverage 1.0 --user_symbols Ă Â

echo "== pre-training"
limba train --gin_file=gin/recipes/diacritics_small_pretrain.gin --gin.VOCABULARY_FILE="$(text_value "$vocabulary")" \
  --gin.MODEL_DIR="$(text_value "$pretrained")" --gin.TRAIN_STEPS="$PRETRAIN_STEPS"

echo "== fine-tuning"
limba train --gin_file=gin/recipes/diacritics_small.gin --gin.VOCABULARY_FILE="$(text_value "$vocabulary")" \
  --gin.INITIAL_CHECKPOINT_PATH="$(text_value "$pretrained")" --gin.MODEL_DIR="$(text_value "$model")" \
  --gin.TRAIN_STEPS_RELATIVE="$TRAIN_STEPS" "$@"

echo "== what it reaches"
python -m limba.addons.diacritics.diacritics_table --corpus "$corpus" --run "$model"

echo "== some sentences"
limba infer --run_dir "$model" \
  --input "Taranul vinde casa alba pe malul marii." \
  --input "Copilul mananca peste langa fantana." \
  --input "Odinioara bunicul canta in gradina iar acum bunica canta la scoala."

cat <<DONE

Done. docs/diacritics.md shows how to do this with your own text, and with a checkpoint of mT5.
DONE
