#!/usr/bin/env bash
# Restarts a run until TRAIN_STEPS: bash launch/supervise.sh [--pod] RECIPE [limba train options]
set -euo pipefail

REPOSITORY=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
LIMIT=${LIMIT:-5}
WAIT=${WAIT:-10}
LONGEST_WAIT=${LONGEST_WAIT:-600}
POD_POLL_SECONDS=${POD_POLL_SECONDS:-20}
QUICK=60 # seconds

help() {
  cat <<HELP
usage: bash launch/supervise.sh [options] RECIPE [limba train options]

Trains with launch/worker.sh, or with --pod on all workers of launch/pod.sh. Restarts from the newest checkpoint when the run
was preempted (exit code 75) or crashed. If the pod was taken away, deletes it, creates it and sets it up again with the
deployed commit. \`worker.sh --stop\` and \`pod.sh stop\` also end the supervision.

  bash launch/supervise.sh --detach quickstart --gin.MODEL_DIR="'runs/mine'"
  bash launch/supervise.sh --pod --config pod.env ro_t5_base --gin.MODEL_DIR="'gs://my-bucket/ro_t5_base'"

  --pod            use the pod or hosts of the POD_… variables or pod.env; run \`pod.sh setup\` first, or let it be created
  --config FILE    instead of pod.env
  --limit N        give up after N restarts in a row without a further step ($LIMIT)
  --wait SECONDS   wait before the first of these; doubles each time, up to $LONGEST_WAIT ($WAIT)
  --detach         run in the background, so that a lost ssh session does not end it; messages go to logs/supervise.log

Not restarted, because it would end in the same way again: a run that ends with 1 before its first step, a run that ends with
2 (wrong usage, or gcloud refuses for good), 126 or 127 (a command that cannot be run), and one that ends with an error
within a minute three times in a row, without a further step.

Exit codes: 0 TRAIN_STEPS reached, 75 stopped on request, 1 given up (the last message begins with the cause), 2 wrong usage.
HELP
}

fail() {
  echo "error: $*" >&2
  exit 2
}

# whole_number NAME VALUE: prints VALUE in decimals. 09 would be a wrong octal number in Bash's arithmetic.
whole_number() {
  [[ $2 =~ ^[0-9]{1,9}$ ]] || fail "$1 is '$2'; give a whole number, in decimals."
  echo $((10#$2))
}

say() { echo "supervise $(date -u +%FT%TZ): $*" >&2; }

pod='' detach='' original=("$@")
while [[ ${1:-} == -* ]]; do
  case $1 in
    -h | --help)
      help
      exit 0
      ;;
    --pod) pod=1 ;;
    --detach) detach=1 ;;
    --config | --limit | --wait)
      [[ $# -ge 2 ]] || fail "$1 lacks its value."
      case $1 in
        --config) export POD_CONFIG=$2 ;;
        --limit) LIMIT=$2 ;;
        --wait) WAIT=$2 ;;
      esac
      shift
      ;;
    *) fail "$1 is not an option of supervise.sh; options of limba train come after the recipe. See --help." ;;
  esac
  shift
done
if [[ $# -lt 1 ]]; then
  help >&2
  exit 2
fi
LIMIT=$(whole_number "--limit (LIMIT)" "$LIMIT")
WAIT=$(whole_number "--wait (WAIT)" "$WAIT")
LONGEST_WAIT=$(whole_number LONGEST_WAIT "$LONGEST_WAIT")

if [[ -n $detach ]]; then
  log=${LIMBA_LOGS:-$REPOSITORY/logs}/supervise.log
  mkdir -p "$(dirname "$log")"
  [[ ! -L $log && (! -e $log || -f $log) ]] || fail "$log is a link or no file, and messages are added to it; remove it."
  again=()
  for argument in "${original[@]}"; do
    [[ $argument == --detach ]] || again+=("$argument")
  done
  set -m
  nohup bash "${BASH_SOURCE[0]}" "${again[@]}" </dev/null >>"$log" 2>&1 &
  echo "supervising as process $!; its log is $log"
  exit 0
fi

# shellcheck source=launch/variables.sh
source "$REPOSITORY/launch/variables.sh"
# shellcheck source=launch/supervise_pod.sh
source "$REPOSITORY/launch/supervise_pod.sh"
# The errors of the last command.
errors=$(mktemp)
trap 'rm -f "$errors"' EXIT

# ---------------------------------------------------- on this machine --------------------------------------------------

# run_here and run_on_pod set `code` (0 done, 75 preempted, else a failure), `asked` if a user asked it to stop, `step`, the
# last one, and `cause`, the first message of the failure if there is one.
stop_requested='' child=''
# The terminal's Ctrl-C reaches the worker by itself.
trap 'stop_requested=1; [[ -z $child ]] || kill -TERM "$child" 2>/dev/null || true' TERM
trap 'stop_requested=1' INT

take_status() { # LINE of worker.sh --status
  local at process
  at=${1##*step=}
  at=${at%%[/ ]*}
  ! is_number "$at" || ((at <= step)) || step=$at
  process=${1##*process=}
  process=${process%% *}
  [[ $process != *:on-request ]] || asked=1
}

find_cause() { # TEXT: its first line with an error
  cause=$(grep -m 1 -E '(^|Z )(error|[A-Za-z_.]*Error): ' <<<"$1" | sed -E 's/^[^ ]*Z //; s/^error: //') || true
}

run_here() {
  local status
  bash "$REPOSITORY/launch/worker.sh" "$@" 2>"$errors" &
  child=$!
  [[ -z $stop_requested ]] || kill -TERM "$child" || true # It came before there was a child.
  code=0
  wait "$child" || code=$?
  while kill -0 "$child" 2>/dev/null; do
    code=0
    wait "$child" || code=$?
  done
  child=
  cat "$errors" >&2
  find_cause "$(<"$errors")"
  if status=$(bash "$REPOSITORY/launch/worker.sh" --status 2>/dev/null | tail -n 1); then take_status "$status"; fi
  if [[ -z $cause ]]; then
    # The newest error in the log since this start.
    find_cause "$(bash "$REPOSITORY/launch/worker.sh" --logs 200 2>/dev/null |
      awk '/ == worker / { n = 0 } { lines[n++] = $0 } END { while (n) print lines[--n] }')"
  fi
}

# -------------------------------------------------------- again --------------------------------------------------------

# final CODE STEP SECONDS: whether a run that ended so would end so again. Sets `why`.
final() {
  # 75 and 69 are other machines' ends, 76 a step that hung, above 128 a signal.
  if (($1 == 69 || $1 == 75 || $1 == 76 || $1 > 128 || $2 > furthest || $3 >= QUICK)); then quick=0; else ((++quick)); fi
  case $1 in
    2) why="it ended with code 2, as it would again" ;;
    126 | 127) why="it ended with code $1: a command of it cannot be run" ;;
    1)
      ((furthest + $2 + restarts)) || why="it ended with code 1 before its first step"
      ;;
  esac
  ((quick < 3)) || why="it ended with code $1 within $QUICK seconds of its start, three times in a row"
  [[ -n $why ]]
}

furthest=0 in_vain=0 restarts=0 quick=0
while true; do
  asked='' step=0 cause='' why='' began=$SECONDS
  if [[ -n $pod ]]; then run_on_pod "$@"; else run_here "$@"; fi
  if ((code == 0)); then
    say "done, after $restarts restarts."
    exit 0
  fi
  if [[ -n $stop_requested || -n $asked ]]; then
    say "stopped on request at step $step."
    exit 75
  fi
  if ((step > furthest)); then
    in_vain=0
  else
    ((++in_vain))
  fi
  if final "$code" "$step" $((SECONDS - began)); then
    say "${cause:+"$cause "}Not started again: $why. Its last lines are above, or in its log."
    exit 1
  fi
  ((step <= furthest)) || furthest=$step
  if ((in_vain >= LIMIT)); then
    say "${cause:+"$cause "}Given up: $in_vain times in a row without a step beyond $furthest (code $code)."
    exit 1
  fi
  pause=$((in_vain ? WAIT : 0))
  for ((i = 1; i < in_vain && pause < LONGEST_WAIT; i++)); do pause=$((pause * 2)); done
  ((pause <= LONGEST_WAIT)) || pause=$LONGEST_WAIT
  ((++restarts))
  at="at step $step"
  ((step)) || at="before its first step, after step $furthest of an earlier start"
  ((step + furthest)) || at="before its first step"
  say "ended with code $code $at; restart $restarts in $pause seconds.${cause:+" $cause"}"
  # In seconds: a child that was just forked can lose a signal.
  for ((i = 0; i < pause; i++)); do
    [[ -z $stop_requested ]] || break
    sleep 1 &
    wait "$!" || true # SIGTERM ends it.
  done
  [[ -z $stop_requested ]] || { say "stopped on request at step $step." && exit 75; }
done
