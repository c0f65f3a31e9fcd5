#!/usr/bin/env bash
# Trains a model from a corpus and exports it for others, on this machine: bash launch/quickstart.sh
# You can repeat it; finished parts are reused.
set -euo pipefail

REPOSITORY=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=launch/environment.sh
source "$REPOSITORY/launch/environment.sh"
LIMBA_QUICKSTART_DIR=${LIMBA_QUICKSTART_DIR:-$REPOSITORY/runs/quickstart} # the folder for all output
VOCAB_SIZE=${VOCAB_SIZE:-4096}                                            # a multiple of 128, sentinels included
TRAIN_STEPS=${TRAIN_STEPS:-4500}                                          # more steps, better model

if [[ ${1:-} == -h || ${1:-} == --help ]]; then
  cat <<HELP
usage: bash launch/quickstart.sh [limba train options, such as --gin.BATCH_SIZE=64]

Installs, writes a corpus (Python's own documentation), builds a vocabulary, pre-trains a small T5 1.1, exports it for
Hugging Face and fills blanks with it. Takes ten minutes on two cores. Environment variables:

  LIMBA_QUICKSTART_DIR  folder for all output    ($LIMBA_QUICKSTART_DIR)
  VOCAB_SIZE            size of the vocabulary   ($VOCAB_SIZE)
  TRAIN_STEPS           steps of training        ($TRAIN_STEPS)
$(environment_help)
HELP
  exit 0
fi

cd "$REPOSITORY"
export LIMBA_QUICKSTART_DIR
corpus=$LIMBA_QUICKSTART_DIR/corpus
vocabulary=$LIMBA_QUICKSTART_DIR/vocab/spiece.model
model=$LIMBA_QUICKSTART_DIR/model
export_dir=$LIMBA_QUICKSTART_DIR/huggingface-$TRAIN_STEPS # one export per checkpoint

setup_environment "$LOCK"

echo "== corpus"
python -m limba.addons.examples.python_docs --out "$corpus"

build_vocabulary "$vocabulary" --data_files "$corpus/train-*.jsonl" --vocab_size "$VOCAB_SIZE"

echo "== training"
limba train --gin_file=gin/recipes/quickstart.gin \
  --gin.VOCABULARY_FILE="$(text_value "$vocabulary")" --gin.VOCAB_SIZE="$VOCAB_SIZE" \
  --gin.MODEL_DIR="$(text_value "$model")" --gin.TRAIN_STEPS="$TRAIN_STEPS" "$@"

echo "== export"
limba convert to-hf "$model" "$export_dir"

echo "== filling blanks: the first sentences of the validation split, a word of each left out"
limba infer "$model" --validation 6

cat <<DONE

Done. Where everything lies:
  corpus, as any Hugging Face dataset            $corpus
  SentencePiece vocabulary                       $vocabulary
  checkpoints, metrics.jsonl, TensorBoard's      $model
  for T5ForConditionalGeneration.from_pretrained $export_dir

What to do next:
  source $(printf %q "$VENV/bin/activate")      # once in each shell: it makes limba a command
  limba infer $(printf %q "$model") --input "Raise ___ if …"
  TRAIN_STEPS=9000 bash $(printf %q "$REPOSITORY/launch/quickstart.sh")      # train on from here
  docs/data.md: your own corpus
DONE
