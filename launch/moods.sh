#!/usr/bin/env bash
# Trains a model that fills a label's blank, from a csv: bash launch/moods.sh
# You can repeat it; finished parts are reused.
set -euo pipefail

REPOSITORY=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=launch/environment.sh
source "$REPOSITORY/launch/environment.sh"
LIMBA_MOODS_DIR=${LIMBA_MOODS_DIR:-$REPOSITORY/runs/moods} # the folder for all output

if [[ ${1:-} == -h || ${1:-} == --help ]]; then
  cat <<HELP
usage: bash launch/moods.sh [limba train options for the fine-tuning, such as --gin.BATCH_SIZE=32]

Installs, writes short stories with moods, builds a vocabulary, pre-trains a very small T5 1.1 on the stories, fine-tunes
it to fill the blank with the mood, and measures it on new stories: by its predictions, and by the likelihood of each
mood. The recipe is gin/recipes/moods.gin. Environment variables:

  LIMBA_MOODS_DIR       folder for all output    ($LIMBA_MOODS_DIR)
$(environment_help)
HELP
  exit 0
fi

cd "$REPOSITORY"
export LIMBA_MOODS_DIR
stories=$LIMBA_MOODS_DIR/stories
vocabulary=$LIMBA_MOODS_DIR/vocab/spiece.model
pretrained=$LIMBA_MOODS_DIR/pretrained
model=$LIMBA_MOODS_DIR/model

setup_environment "$LOCK"

echo "== stories"
python -m limba.addons.examples.moods --out "$stories"

build_vocabulary "$vocabulary" --data_files "$stories/corpus.jsonl" --vocab_size 256

echo "== pre-training"
limba train --gin_file=gin/recipes/moods_pretrain.gin \
  --gin.VOCABULARY_FILE="$(text_value "$vocabulary")" --gin.MODEL_DIR="$(text_value "$pretrained")"

echo "== fine-tuning"
limba train --gin_file=gin/recipes/moods.gin --gin.VOCABULARY_FILE="$(text_value "$vocabulary")" \
  --gin.MODEL_DIR="$(text_value "$model")" --gin.INITIAL_CHECKPOINT_PATH="$(text_value "$pretrained")" "$@"

# Fine-tuning measured predictions; this measures the likeliest label of each story.
echo "== the likeliest mood"
limba eval --gin_file="$model/config.gin" --gin_file=gin/runs/eval.gin \
  --gin.MIXTURE_OR_TASK_NAME="'moods_rank'" --gin.CHECKPOINT_PATH="$(text_value "$model")" \
  --gin.EVAL_OUTPUT_DIR="$(text_value "$model/rank")" --gin.evaluate.inference_evaluator_cls=@task_metrics.Evaluator

echo "== one story"
limba infer "$model" --input "Although Ana missed the train, in the end Ana won a prize. mood: ___"

cat <<DONE

Done. Where everything lies:
  train.csv, validation.csv, stories to pre-train on       $stories
  SentencePiece vocabulary                                 $vocabulary
  checkpoints, metrics.jsonl, answers in inference_eval/   $model

What to do next: docs/finetune.md, your own csv. Once in each shell, so that limba is a command:
  source $(printf %q "$VENV/bin/activate")
DONE
