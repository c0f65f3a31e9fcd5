#!/usr/bin/env bash
# Restarts a run until TRAIN_STEPS: bash launch/supervise.sh [--pod] RECIPE [limba train options]
set -euo pipefail

REPOSITORY=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
LIMIT=${LIMIT:-5}
WAIT=${WAIT:-10}
LONGEST_WAIT=${LONGEST_WAIT:-600}
POD_POLL_SECONDS=${POD_POLL_SECONDS:-20}

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

Exit codes: 0 TRAIN_STEPS reached, 75 stopped on request, 1 given up, 2 wrong usage. A run that ends with an error (exit
code 1) before its first step is not restarted: fix its configuration first.
HELP
}

fail() {
  echo "error: $*" >&2
  exit 2
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
    *) fail "$1 is no option of supervise.sh; options of limba train come after the recipe. See --help." ;;
  esac
  shift
done
if [[ $# -lt 1 ]]; then
  help >&2
  exit 2
fi
[[ $LIMIT =~ ^[0-9]+$ && $WAIT =~ ^[0-9]+$ ]] || fail "--limit and --wait are whole numbers, not '$LIMIT' and '$WAIT'."

if [[ -n $detach ]]; then
  log=${LIMBA_LOGS:-$REPOSITORY/logs}/supervise.log
  mkdir -p "$(dirname "$log")"
  again=()
  for argument in "${original[@]}"; do
    [[ $argument == --detach ]] || again+=("$argument")
  done
  set -m
  nohup bash "${BASH_SOURCE[0]}" "${again[@]}" </dev/null >>"$log" 2>&1 &
  echo "supervising as process $!; its log is $log"
  exit 0
fi

# ---------------------------------------------------- on this machine --------------------------------------------------

# run_here and run_on_pod set `code` (0 done, 75 preempted, else a failure), `asked` if a user asked it to stop, and
# `step`, the last one.
stop_requested=
take_status() { # LINE of worker.sh --status
  local at process
  at=${1##*step=}
  at=${at%%[/ ]*}
  [[ ! $at =~ ^[0-9]+$ ]] || ((at <= step)) || step=$at
  process=${1##*process=}
  process=${process%% *}
  [[ $process != *:on-request ]] || asked=1
}

run_here() {
  local child status
  bash "$REPOSITORY/launch/worker.sh" "$@" &
  child=$!
  # The terminal's Ctrl-C reaches the worker by itself.
  trap 'stop_requested=1; kill -TERM $child 2>/dev/null || true' TERM
  trap 'stop_requested=1' INT
  code=0
  wait $child || code=$?
  while kill -0 $child 2>/dev/null; do
    code=0
    wait $child || code=$?
  done
  if status=$(bash "$REPOSITORY/launch/worker.sh" --status 2>/dev/null | tail -n 1); then take_status "$status"; fi
}

# ------------------------------------------------------- on a pod ------------------------------------------------------

pods() { bash "$REPOSITORY/launch/pod.sh" "$@"; }

# Creates and sets up a pod that does not exist or was taken away.
provide_pod() {
  local state commit
  state=$(pods state) || return
  case $state in
    READY) return ;;
    ABSENT | PREEMPTED | TERMINATED | STOPPED | SUSPENDED) ;;
    *)
      say "the pod is $state; waiting."
      return 1
      ;;
  esac
  say "the pod is $state: creating it."
  pods delete || true # An absent pod may still have its queued resource.
  commit=$(git -C "$REPOSITORY" rev-parse --verify --quiet refs/limba/deployed || true)
  pods create && pods setup ${commit:+"$commit"}
}

run_on_pod() {
  local lines line state process running failed_at=0 answered_at=$SECONDS
  code=255
  provide_pod || return 0
  if [[ $(pods status --plain 2>/dev/null) == *process=running* ]]; then
    say "it runs already: watching it."
  elif ! pods run "$@"; then
    pods kill || true
    return 0
  fi
  while true; do
    sleep "$POD_POLL_SECONDS" &
    wait $! || true
    if [[ -n $stop_requested ]]; then
      say "asked to stop: stopping the workers."
      pods stop || true
    fi
    if ! state=$(pods state) || [[ $state != READY ]]; then
      [[ -n $state ]] || continue # gcloud printed its error
      say "the pod is $state."
      code=75
      return
    fi
    lines=$(pods status --plain || true)
    if [[ $lines != *index=* ]]; then
      ((SECONDS - answered_at < 900)) || { say "no worker has answered for 15 minutes." && code=255 && return; }
      continue
    fi
    answered_at=$SECONDS running='' code=0
    while read -r line; do
      take_status "$line"
      process=${line##*process=}
      process=${process%% *}
      case $process in
        running:* | none:*) running=1 ;;
        exit:*)
          process=${process#exit:}
          process=${process%%:*}
          # A failure outranks a stop.
          ((process == 0 || (process == 75 && code))) || ((code != 75 && code > process)) || code=$process
          ;;
        *) code=255 ;; # The machine restarted.
      esac
    done <<<"$lines"
    [[ -n $running ]] || return 0
    if ((code == 0)); then
      failed_at=0
    elif ((failed_at == 0)); then
      failed_at=$SECONDS
      say "a worker has ended; the others have 90 seconds to."
    elif ((SECONDS - failed_at > 90)); then
      pods stop 60 || pods kill || true
      return 0
    fi
  done
}

# -------------------------------------------------------- again --------------------------------------------------------

trap 'stop_requested=1' INT TERM
furthest=0 in_vain=0 restarts=0
while true; do
  asked='' step=0
  if [[ -n $pod ]]; then run_on_pod "$@"; else run_here "$@"; fi
  if ((code == 0)); then
    say "done, after $restarts restarts."
    exit 0
  fi
  if [[ -n $stop_requested || -n $asked ]]; then
    say "stopped on request at step $step."
    exit 75
  fi
  if ((code == 2 || (code == 1 && step + furthest + restarts == 0))); then
    say "it ended with code $code before its first step; not starting it again. Its last lines say why."
    exit 1
  fi
  if ((step > furthest)); then
    furthest=$step in_vain=0
  else
    ((++in_vain))
  fi
  if ((in_vain >= LIMIT)); then
    say "given up: $in_vain times in a row without a step beyond $furthest (code $code)."
    exit 1
  fi
  pause=0
  if ((in_vain)); then
    pause=$((WAIT << (in_vain - 1)))
    ((pause <= LONGEST_WAIT)) || pause=$LONGEST_WAIT
  fi
  ((++restarts))
  say "ended with code $code at step $step; restart $restarts in $pause seconds."
  sleep "$pause" &
  wait $! || true
  [[ -z $stop_requested ]] || { say "stopped on request at step $step." && exit 75; }
done
