#!/usr/bin/env bash
# Trains on this machine, as one worker: bash launch/worker.sh RECIPE [limba train options]
set -euo pipefail

REPOSITORY=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
LIMBA_LOGS=${LIMBA_LOGS:-$REPOSITORY/logs}

help() {
  cat <<HELP
usage: bash launch/worker.sh [--detach] RECIPE [limba train options]
       bash launch/worker.sh --check [FOLDER | RECIPE [limba train options]]
       bash launch/worker.sh --setup | --status | --logs [LINES] | --attach | --stop [SECONDS] | --kill

Installs what is missing and trains RECIPE, a gin file or the name of one in gin/recipes. Resumes from the newest checkpoint
of its MODEL_DIR:

  bash launch/worker.sh quickstart --gin.TRAIN_STEPS=2000 --gin.MODEL_DIR="'runs/mine'"

The run survives a lost ssh session, and logs/worker-INDEX.log has its output. Ctrl-C saves a checkpoint and stops; a second
one interrupts. The exit code is that of limba train: 0 TRAIN_STEPS reached, 75 stopped on request, else a failure.

  --detach           return when the run has started
  --setup            install only, also Python if the machine's is too old
  --check [FOLDER]   print the accelerator that JAX has here, and whether FOLDER (gs://… too) can be written
  --check RECIPE …   the same without FOLDER, and what limba train would refuse at its start: \`limba train --dry_run\`
  --status           one line per worker of this machine: commit, process, last step, age of its last line
  --logs [LINES]     print the end of the log (100 lines)
  --attach           follow the log; Ctrl-C stops following, not the run
  --stop [SECONDS]   save a checkpoint, stop, and wait for it (600 seconds)
  --kill             end it at once, without a checkpoint

Its place among several workers, from the first that applies:
  LIMBA_COORDINATOR_ADDRESS, LIMBA_PROCESS_COUNT, LIMBA_PROCESS_INDEX   all three: HOST:PORT of process 0, count, index
  SLURM        a task of srun; see launch/slurm.sbatch
  TPU          the machine's metadata, or GKE's variables
  otherwise one worker uses all devices of the machine

Environment variables (also in the file .limba-env, as NAME=VALUE; values are literal, quotes around one are taken off):
  PYTHON             the Python to build on       ($PYTHON)
  VENV               the environment              ($VENV)
  LOCK               exact versions to install; seqio: with TensorFlow, for SeqIO tasks of your own; none: VENV as it is
  LIMBA_ACCELERATOR  tpu, cuda or cpu: which JAX to install (the machine's)
  LIMBA_LOGS         the folder of the logs       ($LIMBA_LOGS)
  T5X_DIR            a checkout of T5X, which then trains the recipe with T5X_PYTHON, a Python with T5X's dependencies; only
                     for recipes with T5X's names, such as gin/recipes/ro_t5_base.gin. Give T5X an absolute MODEL_DIR.
HELP
}

fail() {
  echo "error: $*" >&2
  exit 2
}

# whole_number OPTION VALUE: prints VALUE in decimals. 09 would be a wrong octal number in Bash's arithmetic.
whole_number() {
  [[ $2 =~ ^[0-9]{1,9}$ ]] || fail "$1 takes a whole number, not '$2'."
  echo $((10#$2))
}

# shellcheck source=launch/variables.sh
source "$REPOSITORY/launch/variables.sh"
if [[ -f $REPOSITORY/.limba-env ]]; then
  set -a
  read_variables "$REPOSITORY/.limba-env" "$ANY_NAME" ''
  set +a
fi
# shellcheck source=launch/environment.sh
source "$REPOSITORY/launch/environment.sh"

# ---------------------------------------------------- one of many ------------------------------------------------------

# Prints an attribute of a TPU machine from Google's metadata server.
tpu_attribute() {
  curl --silent --fail --max-time 5 --header 'Metadata-Flavor: Google' \
    "http://${GCE_METADATA_IP:-metadata.google.internal}/computeMetadata/v1/instance/attributes/$1"
}

# tpu_slices NAME DEFAULT: a number that only the machines of several slices have, in a variable of GKE's or in a line of the
# metadata such as MEGASCALE_NUM_SLICES: '2'.
tpu_slices() {
  local value=${!1:-}
  [[ -n $value ]] || value=$(tpu_attribute tpu-env | sed -nE "s/^ *$1: *'?([0-9]+)'?.*/\1/p") || true
  echo "${value:-$2}"
}

# Sets `index`, `count`, and `join`, T5X's flags for them. `limba train` finds its place in the same way.
find_place() {
  local given=${LIMBA_COORDINATOR_ADDRESS:+a}${LIMBA_PROCESS_COUNT:+b}${LIMBA_PROCESS_INDEX:+c} kind endpoints
  index=0 count=1 join=()
  kind=$(accelerator)
  if [[ -n $given ]]; then
    [[ $given == abc ]] || fail "LIMBA_COORDINATOR_ADDRESS, LIMBA_PROCESS_COUNT and LIMBA_PROCESS_INDEX say together which" \
      "of many this worker is; they are '${LIMBA_COORDINATOR_ADDRESS:-}', '${LIMBA_PROCESS_COUNT:-}' and" \
      "'${LIMBA_PROCESS_INDEX:-}'. Give all three, or none."
    index=$LIMBA_PROCESS_INDEX count=$LIMBA_PROCESS_COUNT
    if ! [[ $index =~ ^[0-9]+$ && $count =~ ^[0-9]+$ && 10#$index -lt 10#$count ]]; then
      fail "LIMBA_PROCESS_INDEX is $index and LIMBA_PROCESS_COUNT $count; the index is a number from 0 to the count less one."
    fi
    export LIMBA_COORDINATOR_ADDRESS LIMBA_PROCESS_COUNT LIMBA_PROCESS_INDEX
    join=(--multiprocess_gpu "--coordinator_address=$LIMBA_COORDINATOR_ADDRESS" "--process_count=$count"
      "--process_index=$index")
  elif [[ -n ${SLURM_STEP_NODELIST:-} ]]; then
    index=${SLURM_PROCID:-} count=${SLURM_NTASKS:-}
    [[ $index =~ ^[0-9]+$ && $count =~ ^[0-9]+$ && 10#$index -lt 10#$count ]] || fail "SLURM_STEP_NODELIST is set, and SLURM_PROCID" \
      "is '$index' and SLURM_NTASKS '$count': this is a part of a SLURM step's environment. Start by srun, or unset" \
      "SLURM_STEP_NODELIST for one worker alone."
  elif [[ $kind == tpu ]] && endpoints=${TPU_WORKER_HOSTNAMES:-$(tpu_attribute worker-network-endpoints)}; then
    endpoints=${endpoints//[^,]/} # On GKE the place is in variables.
    index=${TPU_WORKER_ID:-$(tpu_attribute agent-worker-number)} || index=
    count=$((${#endpoints} + 1))
    is_number "$index" || fail "TPU_WORKER_ID or the machine's metadata has the number '$index' of this worker; it must be a" \
      "whole number. Set LIMBA_COORDINATOR_ADDRESS, LIMBA_PROCESS_COUNT and LIMBA_PROCESS_INDEX instead."
    index=$((index + count * $(tpu_slices MEGASCALE_SLICE_ID 0))) count=$((count * $(tpu_slices MEGASCALE_NUM_SLICES 1)))
  fi
  if ((count > 1)) && [[ -z $given ]]; then
    join=(--multiprocess_gpu)
  fi
}

# ------------------------------------------------------ processes ------------------------------------------------------

# The worker's process id, if it runs on this machine.
running() {
  local pid host
  [[ -f $1.pid ]] && read -r pid host _ <"$1.pid" && [[ $host == "$(hostname)" ]] && kill -0 "$pid" 2>/dev/null || return 1
  # After a reboot another process may have the number.
  [[ $(ps -ww -o args= -p "$pid") == *train* ]] && echo "$pid"
}

# Whether the process that waits for the worker's end still runs.
kept() {
  local host keeper
  read -r _ host keeper <"$1.pid" && [[ $host == "$(hostname)" ]] && kill -0 "$keeper" 2>/dev/null
}

# Sets `workers` to the files of this machine's workers, without their endings: all of them, unless the index is given.
find_workers() {
  local log
  workers=()
  if [[ -n ${LIMBA_PROCESS_INDEX:-} ]]; then
    workers=("$LIMBA_LOGS/worker-$LIMBA_PROCESS_INDEX")
  fi
  for log in "$LIMBA_LOGS"/worker-*.log; do
    [[ -n ${LIMBA_PROCESS_INDEX:-} || ! -f $log ]] || workers+=("${log%.log}")
  done
  [[ -f ${workers[0]:-}.log ]] || fail "no worker has begun in $LIMBA_LOGS on $(hostname)."
}

status() {
  local worker process step commit age pid tries
  # An installed package has no commit.
  commit=$(git -C "$REPOSITORY" rev-parse --short=10 HEAD 2>/dev/null) || commit=-
  [[ -z $(git -C "$REPOSITORY" status --porcelain --untracked-files=no 2>/dev/null) ]] || commit+=+changes
  for worker in "${workers[@]}"; do
    process=lost tries=0
    # The exit code is written a moment after the process ends: wait while its keeper lives.
    until pid=$(running "$worker") || [[ -s $worker.exit ]] || ((++tries > 100)) || ! kept "$worker"; do sleep 0.1; done
    if [[ -n $pid ]]; then
      process=running:$pid
    elif [[ -s $worker.exit ]]; then
      process=exit:$(<"$worker.exit")
      [[ ! -f $worker.stopped ]] || process+=:on-request
    fi
    # The last step since the run began.
    step=$(tail -n 5000 "$worker.log" | awk '/ == worker / { step = "" }
      match($0, /step [0-9]+\/[0-9]+/) { step = substr($0, RSTART + 5, RLENGTH - 5) } END { print step }')
    age=$(($(date +%s) - $(date -r "$worker.log" +%s)))
    echo "index=${worker##*-} commit=$commit process=$process step=${step:--} age=$age"
  done
}

stop() { # SIGNAL SECONDS
  local worker pid began=$SECONDS code=0
  for worker in "${workers[@]}"; do
    # Also for a failed worker: a supervisor reads this before it restarts.
    [[ $(cat "$worker.exit" 2>/dev/null) == 0 ]] || touch "$worker.stopped"
    if pid=$(running "$worker"); then kill -"$1" "$pid" || true; fi
  done
  for worker in "${workers[@]}"; do
    while pid=$(running "$worker"); do
      if ((SECONDS - began > $2)); then
        echo "worker ${worker##*-} still runs as process $pid after $2 seconds; --kill ends it without a checkpoint." >&2
        code=1
        break
      fi
      sleep 0.5
    done
  done
  status
  return "$code"
}

# Returns a child's exit code, also if signals interrupt the wait.
wait_to_end() {
  wait "$1" || true
  while kill -0 "$1" 2>/dev/null; do wait "$1" || true; done
  # The wait that a signal interrupted says 128 + its number, also if the child has ended meanwhile. Bash keeps its code.
  wait "$1"
}

# Runs a command to its end, ignoring hang-ups; its output goes to the log and to standard output.
keep() {
  local worker=$1 code=0 keeper=${BASHPID:-$$}
  shift
  trap '' HUP
  trap : TERM INT # The worker gets the signal; this waits for its end.
  {
    trap : TERM INT # A part of a pipeline begins without traps, and SLURM signals every process of a step.
    "$@" &
    echo "$! $(hostname) $keeper" >"$worker.pid"
    code=0
    wait_to_end $! || code=$?
    exit "$code"
  } 2>&1 </dev/null | "$PYTHON" "$REPOSITORY/launch/stamp_lines.py" "$worker.log" || code=${PIPESTATUS[0]}
  echo "$code" >"$worker.exit"
  return "$code"
}

# ------------------------------------------------------- commands ------------------------------------------------------

# find_recipe NAME: the gin file of a name; also found from outside the repository.
find_recipe() {
  if [[ ! -f $1 && -f $REPOSITORY/gin/recipes/$1.gin ]]; then
    echo "gin/recipes/$1.gin"
  else
    echo "$1"
  fi
}

detach=
case ${1:-} in
  -h | --help)
    help
    exit 0
    ;;
  --setup)
    provide_python
    setup_environment "$LOCK"
    exit 0
    ;;
  --check)
    if bash "${BASH_SOURCE[0]}" --status 2>/dev/null | grep -q process=running; then
      fail "a training runs here and has the accelerator; --check is for before it, or after \`--stop\`."
    fi
    [[ $LOCK == none ]] || provide_python
    setup_environment "$LOCK"
    export PYTHONPATH=$REPOSITORY${PYTHONPATH:+:$PYTHONPATH}
    recipe=$(find_recipe "${2:-}")
    if [[ -d ${2:-} || $recipe != *.gin ]]; then
      exec "$VENV/bin/python" "$REPOSITORY/launch/check_worker.py" "${@:2}"
    fi
    "$VENV/bin/python" "$REPOSITORY/launch/check_worker.py"
    limba train --dry_run "--gin_file=$recipe" "${@:3}" >/dev/null # the configuration
    echo "ok: limba train would start $recipe here"
    exit 0
    ;;
  --status)
    find_workers
    status
    exit 0
    ;;
  --logs)
    lines=$(whole_number --logs "${2:-100}")
    find_workers
    for worker in "${workers[@]}"; do tail -n "$lines" "$worker.log"; done
    exit 0
    ;;
  --attach)
    find_workers
    exec tail -n 20 -F "${workers[@]/%/.log}"
    ;;
  --stop)
    seconds=$(whole_number --stop "${2:-600}")
    find_workers
    stop TERM "$seconds"
    exit
    ;;
  --kill)
    find_workers
    stop KILL 10
    exit
    ;;
  --detach)
    detach=1
    shift
    ;;
esac
if [[ $# -lt 1 ]]; then
  help >&2
  exit 2
fi
[[ $1 != -* ]] || fail "$1 stands where the recipe belongs; options of limba train come after it. See --help."

recipe=$(find_recipe "$1")
shift
if [[ ! -f $recipe && $recipe != *.gin ]]; then
  fail "there is no recipe $recipe; gin/recipes has$(cd "$REPOSITORY/gin/recipes" && printf ' %s' *.gin | sed 's/\.gin//g')."
fi

if [[ ${1:-} == -h || ${1:-} == --help ]]; then
  echo "usage: bash launch/worker.sh $recipe [limba train options]"
  [[ -f $recipe ]] || cd "$REPOSITORY"
  sed -n '/^[^#]/q; s/^# \{0,1\}//p' "$recipe" # the recipe's header comment
  exit 0
fi

find_place
worker=$LIMBA_LOGS/worker-$index
if pid=$(running "$worker"); then
  fail "worker $index runs already, as process $pid, and writes $worker.log." \
    "\`bash launch/worker.sh --attach\` follows it, --stop ends it; LIMBA_LOGS=… for another run beside it."
fi

# A worker that was never set up may have an older Python only.
[[ $LOCK == none ]] || provide_python

if [[ -n ${T5X_DIR:-} ]]; then
  if [[ ! -f $T5X_DIR/t5x/train.py ]]; then
    echo "error: T5X_DIR is $T5X_DIR, which has no t5x/train.py; give the root of a checkout, or unset it." >&2
    exit 1
  fi
  echo "== T5X of $T5X_DIR trains $recipe"
  export PYTHONPATH=$REPOSITORY:$T5X_DIR${PYTHONPATH:+:$PYTHONPATH}
  # As a script T5X would put its folder first on the path, whose tasks.py hides ours.
  command=("${T5X_PYTHON:-$PYTHON}" -m t5x.train "--gin_search_paths=$PWD,$REPOSITORY" ${join[@]+"${join[@]}"})
else
  setup_environment "$LOCK"
  # A given environment may contain another checkout.
  export PYTHONPATH=$REPOSITORY${PYTHONPATH:+:$PYTHONPATH}
  command=(limba train)
fi
command+=("--gin_file=$recipe" "$@")

mkdir -p "$LIMBA_LOGS"
[[ ! -L $worker.log && (! -e $worker.log || -f $worker.log) ]] ||
  fail "$worker.log is a link or no file, and the output is added to it; remove it."
rm -f "$worker.pid" "$worker.exit" "$worker.stopped"
commit=$(git -C "$REPOSITORY" rev-parse --short=10 HEAD 2>/dev/null || echo "without git")
echo "== worker $index of $count on $(hostname), commit $commit: ${command[*]}" |
  "$PYTHON" "$REPOSITORY/launch/stamp_lines.py" "$worker.log"

set -m # A process group of its own: Ctrl-C and a lost terminal reach this script only.
if [[ -n $detach ]]; then
  keep "$worker" "${command[@]}" </dev/null >/dev/null 2>&1 &
  until [[ -s $worker.pid ]]; do sleep 0.05; done
  echo "worker $index of $count started; its log is $worker.log"
  exit 0
fi

# The first signal lets the worker save a checkpoint; the next Ctrl-C interrupts it.
# shellcheck disable=SC2317,SC2329 # Traps call it.
pass_on() {
  local pid tries=0
  touch "$worker.stopped"
  until [[ -s $worker.pid ]] || ((++tries > 20)); do sleep 0.1; done
  if pid=$(running "$worker"); then kill -"$1" "$pid" 2>/dev/null || true; fi # It may have ended since.
  trap 'pass_on INT' INT
}
trap 'pass_on TERM' INT TERM
keep "$worker" "${command[@]}" &
set +m
code=0
wait_to_end $! || code=$?
exit "$code"
