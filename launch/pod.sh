#!/usr/bin/env bash
# All workers of a TPU pod, or of a list of hosts, from one command: bash launch/pod.sh VERB [options]
set -euo pipefail

REPOSITORY=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

help() {
  cat <<'HELP'
usage: bash launch/pod.sh [options] VERB [options] [arguments of the verb]

  check [RECIPE limba train options]   write to the bucket of MODEL_DIR and remove it, compare its region with the pod's,
                             and ask all workers for their accelerator, if the pod exists
  create [-- gcloud flags]   rent the pod
  setup [COMMIT]             deploy, and install on all workers; can be repeated
  deploy [COMMIT]            put one commit (HEAD) on all workers; refuses uncommitted changes
  run RECIPE [limba train options]   start training on all workers, detached; refuses a recipe, a task module and data that
                             are not in the commit of the workers
  status [--plain]           each worker's commit, process, last step and age of its last line
  logs [LINES]               the last lines (100) of all workers, ordered by time
  attach                     follow all logs; Ctrl-C stops following, not the run
  stop [SECONDS]             save a checkpoint, stop all workers, and wait for it (600 seconds)
  kill                       end all workers at once, without a checkpoint
  exec COMMAND               run a line of shell on all workers
  ssh [N]                    open a shell on worker N (0)
  state                      print one word: READY, CREATING, PREEMPTED, TERMINATED …, or ABSENT
  delete                     give the pod back

In order, with a file pod.env that holds POD_NAME=ro, POD_ZONE=us-central2-b, POD_TYPE=v4-32, POD_SUBNETWORK=tpusubnet:

  bash launch/pod.sh check --bucket gs://my-bucket/quickstart
  bash launch/pod.sh create
  bash launch/pod.sh setup
  bash launch/pod.sh run quickstart --gin.MODEL_DIR="'gs://my-bucket/quickstart'"
  bash launch/pod.sh status
  bash launch/pod.sh attach
  git commit -am "Learn slower" && bash launch/pod.sh stop && bash launch/pod.sh deploy && bash launch/pod.sh run …
  bash launch/pod.sh delete

Options, also as variables of the environment or of pod.env. The command line wins over the environment, that over pod.env:
  --name NAME          POD_NAME         of the pod; needed
  --zone ZONE          POD_ZONE         (gcloud's configured zone)
  --project PROJECT    POD_PROJECT      (gcloud's configured project)
  --type TYPE          POD_TYPE         accelerator: v2-8, v3-32, v4-32, v5litepod-16, v5p-16, v6e-16 …; needed
  --api API            POD_API          tpus: the Cloud TPU API, v2 to v6e; compute: Compute Engine, v5p, v6e, tpu7x-16 … (tpus)
  --version IMAGE      POD_VERSION      of the machines (the image for the type)
  --subnetwork NAME    POD_SUBNETWORK
  --spot               POD_SPOT=1       cheaper; Google may take it away at any time
  --queued             POD_QUEUED=1     wait for capacity instead of failing: a queued resource; delete needs it too
  --flex DURATION      POD_FLEX         flex-start of Compute Engine: wait for capacity, keep it for DURATION (7d at most)
  --slices N           POD_SLICES       several slices of this type as one pod, by a queued resource; all verbs need it (1)
  --hosts A,B,C        POD_HOSTS        hosts to reach by ssh instead of a pod, or a file with one per line; the first is
                                        process 0. create and delete do not work with hosts.
  --coordinator H:P    POD_COORDINATOR  for hosts: where process 0 listens (the first host, port 8476)
  --dir DIR            POD_DIR          the repository on the workers, relative to the home directory (limba)
  --bucket gs://…      POD_BUCKET       for check: where the run will write (MODEL_DIR of the arguments or environment)
  --worker-env FILE    POD_WORKER_ENV   NAME=VALUE lines for the workers, such as HF_TOKEN=… or RO_CORPUS=…; setup copies it
  --with DIR           POD_WITH         your folder with recipe, task module and corpus: setup copies it to every worker, as
                                        ~/limba-with, and run works there; names are relative to it
  --on-workers A,B     POD_ON_WORKERS   files and folders here that every worker has at the same place, for run and check
  --config FILE        POD_CONFIG       the file with these variables (pod.env, if it exists). Values are literal; quotes
                                        around one are taken off.
  --dry-run            DRY_RUN=1        print the commands, one a line, to paste into a shell; run none. Counts behind the
                                        arguments too.

Exit codes: 0 done, 1 a worker or gcloud failed (it is named), 2 trying again does not help: wrong usage, gcloud is not
installed or not configured or refuses for good, or all workers end so.
launch/supervise.sh --pod restarts a run until its end. docs/pods.md describes all steps.
HELP
}

fail() {
  echo "error: $*" >&2
  exit 2
}

# ------------------------------------------------------- options -------------------------------------------------------

# shellcheck source=launch/variables.sh
source "$REPOSITORY/launch/variables.sh"

read_config() {
  local names='NAME|ZONE|PROJECT|TYPE|VERSION|SUBNETWORK|SPOT|QUEUED|SLICES|HOSTS|COORDINATOR|DIR|BUCKET|WORKER_ENV|WITH'
  names+='|ON_WORKERS|API|FLEX|POLL_SECONDS'
  read_variables "$1" "POD_${names//|/|POD_}" keep
}

verb='' plain=''
while (($#)); do
  case $1 in
    --name | --zone | --project | --type | --version | --subnetwork | --slices | --hosts | --coordinator | --dir | \
      --bucket | --worker-env | --on-workers | --with | --config | --api | --flex)
      [[ $# -ge 2 ]] || fail "$1 lacks its value."
      name=$(tr a-z- A-Z_ <<<"${1#--}")
      printf -v "POD_$name" '%s' "$2"
      shift
      ;;
    --spot) POD_SPOT=1 ;;
    --queued) POD_QUEUED=1 ;;
    --dry-run) DRY_RUN=1 ;;
    --plain) plain=1 ;;
    -h | --help)
      help
      exit 0
      ;;
    --)
      shift
      break
      ;;
    -*) fail "$1 is not an option of pod.sh; options of limba train come after the recipe. See --help." ;;
    *)
      [[ -z $verb ]] || break
      case $1 in
        check | create | setup | deploy | run | status | logs | attach | stop | kill | exec | ssh | state | delete) verb=$1 ;;
        *) fail "$1 is not a verb; the verbs are check, create, setup, deploy, run, status, logs, attach, stop, kill, exec, ssh," \
          "state and delete." ;;
      esac
      ;;
  esac
  shift
done

# Options of pod.sh behind the arguments: --dry-run counts, so that nothing starts that was meant dry. The others would go to
# limba train on the workers, of a pod that they were to name.
words=()
for word in "$@"; do
  case $verb:$word in
    exec:--dry-run) fail "exec has --dry-run in its command. Put it before exec if pod.sh is to print only; else give the" \
      "command in quotes, as one word." ;;
    *:--dry-run) DRY_RUN=1 ;;
    run:--api | run:--name | run:--zone | run:--project | run:--type | run:--slices | run:--hosts | run:--coordinator | run:--dir | \
      run:--worker-env | run:--on-workers | run:--with | run:--config) fail "$word is an option of pod.sh; put it before the recipe." ;;
    *) words+=("$word") ;;
  esac
done
set -- ${words[@]+"${words[@]}"}
case $verb in
  "")
    help >&2
    exit 2
    ;;
  check | create | run | exec) ;;
  setup | deploy | logs | stop | ssh) (($# <= 1)) || fail "$verb takes one argument; '$2' is a second. Options come before it." ;;
  *) (($# == 0)) || fail "$verb takes no argument, and here is '$1'." ;;
esac

if [[ -n ${POD_CONFIG:-} ]]; then
  [[ -f $POD_CONFIG ]] || fail "--config $POD_CONFIG is not there."
  read_config "$POD_CONFIG"
elif [[ -f pod.env ]]; then
  read_config pod.env
fi
POD_NAME=${POD_NAME:-} POD_TYPE=${POD_TYPE:-} POD_DIR=${POD_DIR:-limba} POD_HOSTS=${POD_HOSTS:-}
POD_COORDINATOR=${POD_COORDINATOR:-} POD_POLL_SECONDS=${POD_POLL_SECONDS:-20} DRY_RUN=${DRY_RUN:-}
POD_SLICES=${POD_SLICES:-1} POD_WITH=${POD_WITH:-} POD_API=${POD_API:-tpus} POD_FLEX=${POD_FLEX:-}
[[ -z $POD_WITH || -d $POD_WITH ]] || fail "--with (POD_WITH) is '$POD_WITH', which is no folder here."
if [[ -z $POD_HOSTS && (-z $POD_NAME || -z $POD_TYPE) ]]; then
  missing=()
  [[ -n $POD_NAME ]] || missing+=("POD_NAME (--name)")
  [[ -n $POD_TYPE ]] || missing+=("POD_TYPE (--type)")
  [[ -n ${POD_ZONE:-} ]] || missing+=("POD_ZONE (--zone), unless gcloud's configured zone is meant")
  file=${POD_CONFIG:-$PWD/pod.env}
  [[ -f $file ]] || file+=", which does not exist"
  fail "no pod is named; missing: $(IFS=';' && echo "${missing[*]}" | sed 's/;/; /g'). Put them as NAME=VALUE lines into pod.env" \
    "(read here: $file), or give the flags; or give --hosts for machines that you reach by ssh. See --help."
fi
[[ -z $POD_TYPE || $POD_TYPE =~ ^[a-z][a-z0-9]*-[1-9][0-9]{0,4}$ ]] ||
  fail "--type (POD_TYPE) is '$POD_TYPE'; an accelerator type ends with a dash and a number, such as v4-32 or v5litepod-16."
[[ $POD_SLICES =~ ^0*[1-9][0-9]{0,2}$ ]] || fail "--slices (POD_SLICES) is '$POD_SLICES'; give a whole number from 1."
nodes=("$POD_NAME")
if ((10#$POD_SLICES > 1)); then
  POD_QUEUED=1 # gcloud makes several slices as one only this way.
  for ((i = 1; i < 10#$POD_SLICES; i++)); do nodes+=("$POD_NAME-$i"); done
  nodes[0]=$POD_NAME-0
fi
POD_DIR=${POD_DIR#\~/} # The worker's shell gets it quoted, and does not expand it.
[[ -z $POD_NAME || $POD_NAME =~ ^[a-z][a-z0-9-]*$ ]] ||
  fail "--name (POD_NAME) is '$POD_NAME'; a pod's name has lower-case letters, digits and dashes, and begins with a letter."
[[ $POD_API == tpus || $POD_API == compute ]] || fail "--api (POD_API) is '$POD_API'; it is tpus or compute."
if [[ $POD_API == compute && -z $POD_HOSTS ]]; then
  [[ -n ${POD_ZONE:-} && -n ${POD_PROJECT:-} ]] ||
    fail "--api compute (POD_API) also needs --project (POD_PROJECT) and --zone (POD_ZONE)."
  ((${#nodes[@]} == 1)) || fail "--api compute (POD_API) rents one slice, and --slices (POD_SLICES) is $POD_SLICES."
fi
if [[ -n $POD_FLEX ]]; then
  [[ $POD_FLEX =~ ^[1-9][0-9]*[mhd]$ ]] || fail "--flex (POD_FLEX) is '$POD_FLEX'; give a duration, such as 7d or 12h."
  [[ $POD_API == compute && -z ${POD_SPOT:-} ]] || fail "--flex (POD_FLEX) is for --api compute (POD_API), without --spot."
fi
where=()
[[ -z ${POD_ZONE:-} ]] || where+=(--zone="$POD_ZONE")
[[ -z ${POD_PROJECT:-} ]] || where+=(--project="$POD_PROJECT")

# shellcheck source=launch/gcloud_errors.sh
source "$REPOSITORY/launch/gcloud_errors.sh"
# shellcheck source=launch/pod_rental.sh
source "$REPOSITORY/launch/pod_rental.sh"
# shellcheck source=launch/pod_tpus.sh source=launch/pod_compute.sh
source "$REPOSITORY/launch/pod_$POD_API.sh"
# shellcheck source=launch/pod_workers.sh
source "$REPOSITORY/launch/pod_workers.sh"
# shellcheck source=launch/pod_check.sh
source "$REPOSITORY/launch/pod_check.sh"
[[ -n $POD_HOSTS || -n $DRY_RUN ]] || command -v gcloud >/dev/null ||
  fail "gcloud is not installed here: https://cloud.google.com/sdk/docs/install. For machines without it give --hosts."
if [[ -n $DRY_RUN ]]; then
  scratch=${TMPDIR:-/tmp} # The printed commands use it later.
else
  scratch=$(mktemp -d)
  trap 'rm -rf "$scratch"' EXIT
fi

# -------------------------------------------------------- verbs --------------------------------------------------------

# The workers get commits only: uncommitted changes would reach none of them, or only some.
deploy() {
  local commit changes
  commit=$(git -C "$REPOSITORY" rev-parse --verify --quiet "${1:-HEAD}^{commit}") || fail "$1 is not a commit of $REPOSITORY."
  changes=$(git -C "$REPOSITORY" status --porcelain)
  if [[ -z ${1:-} && -n $changes ]]; then
    fail "$REPOSITORY has changes that are not committed, and the workers get commits only. Commit them, or name the" \
      "commit to deploy:"$'\n'"$(head -n 10 <<<"$changes")"
  fi
  call git -C "$REPOSITORY" update-ref refs/limba/deployed "$commit" # A bundle needs a ref; it takes no bare commits.
  call git -C "$REPOSITORY" bundle create --quiet "$scratch/limba-deploy.bundle" refs/limba/deployed
  [[ -n $DRY_RUN ]] || echo "== commit ${commit:0:10}"
  each quietly deploy_to "$commit"
}

# Shows gcloud's and ssh's messages about connections only after a failure; if it was gcloud's, the cause first.
quietly() { # INDEX FUNCTION …
  local code=0 errors=$scratch/errors.$1
  if [[ -n $DRY_RUN ]]; then
    "$2" "$1" "${@:3}"
    return
  fi
  "$2" "$1" "${@:3}" 2>"$errors" || code=$?
  ((code)) || return 0
  if grep -q '^ERROR: (gcloud' "$errors" && explain "$code" "$(<"$errors")" >/dev/null; then
    code=0
    refused 1 "$(<"$errors")" || code=$?
  else
    cat "$errors"
  fi
  return "$code"
}

deploy_to() {
  copy_to "$1" "$scratch/limba-deploy.bundle" limba-deploy.bundle && on_worker "$1" "dir=$(quote "$POD_DIR")
mkdir -p -- \"\$dir\" && cd -- \"\$dir\" && git init --quiet . &&
if [ -f launch/worker.sh ] && bash launch/worker.sh --status 2>/dev/null | grep -q process=running; then
  echo 'error: training runs here from these files; \`pod.sh stop\` first.'; exit 1
fi
changes=\$(git status --porcelain --untracked-files=no)
if [ -n \"\$changes\" ]; then
  echo \"error: \$dir has changes of its own: \$changes; undo them with: cd \$dir && git checkout .\"; exit 1
fi
git fetch --quiet \$HOME/limba-deploy.bundle refs/limba/deployed &&
git -c advice.detachedHead=false checkout --quiet --detach $2 && git log -1 --format='now at %h %s'"
}

setup() {
  if [[ -n ${POD_WORKER_ENV:-} ]]; then
    [[ -f $POD_WORKER_ENV ]] || fail "--worker-env $POD_WORKER_ENV is not there."
    (read_variables "$POD_WORKER_ENV" "$ANY_NAME" '') || exit # In a subshell: here the variables are not set.
  fi
  # One worker alone first: the first connection makes ssh keys, which must not happen several times at once.
  quietly 0 on_worker true
  each quietly on_worker 'command -v git >/dev/null || { sudo -n apt-get update -q && sudo -n apt-get install -q -y git; }'
  deploy "${1:-}"
  if [[ -n ${POD_WORKER_ENV:-} ]]; then
    each quietly send_secrets "$POD_WORKER_ENV"
  fi
  [[ -z $POD_WITH ]] || send_folder
  each quietly in_repository 'bash launch/worker.sh --setup'
}

# Copies POD_WITH to the workers; what links lead to is copied too.
send_folder() {
  call tar -chzf "$scratch/limba-with.tgz" --exclude=.git --exclude=.venv --exclude=__pycache__ -C "$POD_WITH" .
  [[ -n $DRY_RUN ]] || echo "== $POD_WITH, $(du -h "$scratch/limba-with.tgz" | cut -f 1) packed"
  each quietly send_folder_to
}

send_folder_to() {
  copy_to "$1" "$scratch/limba-with.tgz" limba-with.tgz && on_worker "$1" 'rm -rf limba-with.new && mkdir limba-with.new &&
tar -xzf limba-with.tgz -C limba-with.new && rm -rf limba-with limba-with.tgz && mv limba-with.new limba-with'
}

# send_secrets INDEX FILE: at no moment can others on the worker read the file. scp may choose its mode, so it arrives in a
# folder that is closed to others.
send_secrets() {
  local file=$2
  [[ $file == /* ]] || file=./$file # Else scp takes a colon in it for the end of a host's name.
  on_worker "$1" 'umask 077 && mkdir -p .limba-private && chmod 700 .limba-private' &&
    copy_to "$1" "$file" .limba-private/worker-env &&
    in_repository "$1" "chmod 600 ~/.limba-private/worker-env && mv -f ~/.limba-private/worker-env .limba-env"
}

run() {
  [[ $# -ge 1 ]] || fail "run what? A gin file of the repository, or the name of a recipe."
  local word words='' code=0 worker='bash launch/worker.sh'
  reaches_workers "$@"
  # Words for the worker's shell.
  # shellcheck disable=SC2016
  [[ -z $POD_WITH ]] || worker='dir=$PWD && { cd ~/limba-with || { echo "error: pod.sh setup --with copies it first"; exit 1; }; } &&
bash "$dir/launch/worker.sh"'
  for word in "$@"; do words+=" $(quote "$word")"; done
  each quietly in_repository "$worker --detach$words" || code=$?
  ((code != 1)) || echo "The others wait for it and end with an error; \`pod.sh stop\` ends them at once." >&2
  return "$code"
}

status() {
  local i line answers index commit process step age quiet=() commits=() code=0
  if [[ -n $DRY_RUN ]]; then
    each in_repository 'bash launch/worker.sh --status'
    return
  fi
  answers=$(each quietly in_repository 'bash launch/worker.sh --status' 2>/dev/null) || code=1
  [[ -n $plain ]] || printf '%-7s %-19s %-22s %-13s %s\n' worker commit process "last step" "last line"
  for ((i = 0; i < count; i++)); do
    line=$(grep -F "[$i] " <<<"$answers" | tail -n 1 | cut -d ' ' -f 2-)
    [[ $line == index=* ]] || line="process=none: $line"
    if [[ -n $plain ]]; then
      echo "worker=$i $line"
    elif [[ $line == process=none* ]]; then
      echo "$i       ${line#process=}"
    else
      read -r index commit process step age _ <<<"$line"
      # Machines may be listed in another order than the run counts them.
      index=${index#*=} age=${age#*=}
      [[ $index == "$i" ]] || index="$i ($index)"
      printf '%-7s %-19s %-22s %-13s %s\n' "$index" "${commit#*=}" "${process#*=}" "${step#*=}" "$age s ago"
      commits+=("${commit#*=}")
      # Bash would run the commands in a text that it takes for a number, and the worker's answer is data.
      is_number "$age" || age=300
      [[ $process != process=running* ]] || ((age < 300)) || quiet+=("$i")
    fi
  done
  if [[ -z $plain ]]; then
    [[ $(printf '%s\n' ${commits[@]+"${commits[@]}"} | sort -u | wc -l) -le 1 ]] ||
      echo "The workers have different commits: \`pod.sh stop\` and \`pod.sh deploy\`."
    [[ ${#quiet[@]} == 0 ]] || echo "Quiet for more than five minutes: worker ${quiet[*]}."
  fi
  return "$code"
}

logs() {
  local by_time=(sort -s -k "2,2")
  [[ -z $DRY_RUN ]] || by_time=(cat)
  each quietly in_repository "bash launch/worker.sh --logs $(quote "${1:-100}")" | "${by_time[@]}"
}

attach() { each in_repository 'bash launch/worker.sh --attach'; }

stop() { each quietly in_repository "bash launch/worker.sh --stop $(quote "${1:-600}")"; }

case $verb in
  check | create | delete | state) ;;
  *) find_workers ;;
esac
case $verb in
  exec)
    [[ $# -ge 1 ]] || fail "exec what? A line of shell."
    each on_worker "$*"
    ;;
  ssh) open_shell "${1:-0}" ;;
  kill) each quietly in_repository 'bash launch/worker.sh --kill' ;;
  *) "$verb" "$@" ;;
esac
