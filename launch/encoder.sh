#!/usr/bin/env bash
# Trains a small BERT, exports it, and fine-tunes a classifier from it, on this machine: bash launch/encoder.sh
# You can repeat it; finished parts are reused.
set -euo pipefail

REPOSITORY=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=launch/environment.sh
source "$REPOSITORY/launch/environment.sh"
LIMBA_ENCODER_DIR=${LIMBA_ENCODER_DIR:-$REPOSITORY/runs/encoder} # the folder for all output
TRAIN_STEPS=${TRAIN_STEPS:-1000}                                  # of masked language modelling

if [[ ${1:-} == -h || ${1:-} == --help ]]; then
  cat <<HELP
usage: bash launch/encoder.sh [limba train options for the masked language model, such as --gin.BATCH_SIZE=32]

Installs, writes short stories with moods, builds a WordPiece vocabulary, trains a small BERT to say which words were
masked, exports it for Hugging Face, fine-tunes it to tell the mood of a story, and exports this classifier too. Where
transformers and torch are installed, both fill a mask and tell a mood there. The recipes are gin/recipes/encoder.gin
and encoder_moods.gin. Environment variables:

  LIMBA_ENCODER_DIR     folder for all output    ($LIMBA_ENCODER_DIR)
  TRAIN_STEPS           steps of training, of which the classifier has two fifths ($TRAIN_STEPS)
$(environment_help)
HELP
  exit 0
fi

cd "$REPOSITORY"
export LIMBA_ENCODER_DIR
stories=$LIMBA_ENCODER_DIR/stories
vocabulary=$LIMBA_ENCODER_DIR/vocab/tokenizer.json
model=$LIMBA_ENCODER_DIR/model
moods=$LIMBA_ENCODER_DIR/moods
export_dir=$LIMBA_ENCODER_DIR/huggingface-$TRAIN_STEPS # one export per checkpoint
classifier_export=$LIMBA_ENCODER_DIR/huggingface-moods-$TRAIN_STEPS
story="Although Ana [MASK] the race, in the end Ana won a prize."

setup_environment "$LOCK"

echo "== stories"
python -m limba.addons.examples.moods --out "$stories"

build_vocabulary "$vocabulary" --kind wordpiece --data_files "$stories/corpus.jsonl" --vocab_size 384

echo "== masked language modelling"
limba train --gin_file=gin/recipes/encoder.gin --gin.VOCABULARY_FILE="$(text_value "$vocabulary")" \
  --gin.MODEL_DIR="$(text_value "$model")" --gin.TRAIN_STEPS="$TRAIN_STEPS" "$@"

echo "== export"
limba convert to-hf "$model" "$export_dir"

echo "== a classifier"
limba train --gin_file=gin/recipes/encoder_moods.gin --gin.VOCABULARY_FILE="$(text_value "$vocabulary")" \
  --gin.MODEL_DIR="$(text_value "$moods")" --gin.INITIAL_CHECKPOINT_PATH="$(text_value "$model")" \
  --gin.TRAIN_STEPS_RELATIVE=$((TRAIN_STEPS * 2 / 5 > 0 ? TRAIN_STEPS * 2 / 5 : 1)) \
  --gin.schedules.create_learning_rate_scheduler.warmup_steps=$((TRAIN_STEPS / 10 > 0 ? TRAIN_STEPS / 10 : 1)) # a quarter
limba convert to-hf "$moods" "$classifier_export"

# pipe TASK FOLDER TEXT prints a program that shows the model of a folder at work in transformers.
pipe() {
  printf 'from transformers import pipeline; print(pipeline(%s, %s)(%s)[0])' \
    "$(text_value "$1")" "$(text_value "$2")" "$(text_value "$3")"
}

# as_command PROGRAM prints the command that runs it. In double quotes, because it has single ones.
as_command() {
  printf '%q -c "%s"' "$VENV/bin/python" "$(sed 's/[\\"$`]/\\&/g' <<<"$1")"
}
fill_mask=$(pipe fill-mask "$export_dir" "$story")
tell_mood=$(pipe text-classification "$classifier_export" "${story/\[MASK\]/lost}")
if python -c "import importlib.util as u, sys; sys.exit(not (u.find_spec('torch') and u.find_spec('transformers')))"; then
  echo "== in transformers"
  export USE_TF=0 # Version 4 fails where TensorFlow has brought Keras 3.
  "$VENV/bin/python" -c "$fill_mask"
  "$VENV/bin/python" -c "$tell_mood"
  where="In transformers, as above"
else
  where="In transformers, after $(printf %q "$VENV/bin/pip") install transformers==4.57.6 torch"
fi

cat <<DONE

Done. Where everything lies:
  corpus.jsonl, train.csv, validation.csv                  $stories
  WordPiece vocabulary                                     $vocabulary
  checkpoints of the masked language model, metrics.jsonl  $model
  for BertForMaskedLM.from_pretrained                      $export_dir
  checkpoints of the classifier, inference_eval/           $moods
  for BertForSequenceClassification.from_pretrained        $classifier_export

What to do next: docs/encoders.md, your own corpus. $where:
  $(as_command "$fill_mask")
  $(as_command "$tell_mood")
Once in each shell, so that limba is a command:
  source $(printf %q "$VENV/bin/activate")
DONE
