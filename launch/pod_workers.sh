# shellcheck shell=bash disable=SC2154
# Sourced by launch/pod.sh: reaches all workers of a TPU pod (gcloud) or a list of hosts (ssh) at once.
#
# Reads POD_NAME, POD_HOSTS, POD_DIR, POD_COORDINATOR, DRY_RUN and the verb, and calls the functions of the pod's API, which
# launch/pod_rental.sh lists.
# Also runs in bash 3.2, which macOS has.

# quote TEXT: TEXT as one word for a shell. Not `printf %q`: its $'…' is Bash's, and a worker's login shell may be another.
quote() {
  local end_and_begin="'\\''"
  if [[ $1 =~ ^[A-Za-z0-9_./:=@,-]+$ ]]; then
    printf %s "$1"
  else
    printf "'%s'" "${1//\'/$end_and_begin}"
  fi
}

# Runs a command, or with --dry-run prints it as one line.
call() {
  local word line=
  if [[ -z $DRY_RUN ]]; then
    "$@"
    return
  fi
  for word in "$@"; do
    if [[ $word == *$'\n'* ]]; then
      line+="$(printf %q "$word") "
    elif [[ $word =~ ^\$\{vms\[[0-9]+\]\}(:[A-Za-z0-9_./-]+)?$ ]]; then
      line+="\"$word\" " # A name that name_machines of launch/pod_compute.sh lets the shell find.
    else
      line+="$(quote "$word") "
    fi
  done
  echo "${line% }"
}

# Sets `count`, the number of workers, and where each is: `hosts`, or `worker_nodes`, the API's names, and the places in
# these, `worker_places`.
find_workers() {
  local answer host node machines i
  hosts=() worker_nodes=() worker_places=()
  if [[ -n $POD_HOSTS ]]; then
    if [[ -f $POD_HOSTS ]]; then
      while read -r host _; do
        [[ -z $host || $host == \#* ]] || hosts+=("$host")
      done <"$POD_HOSTS"
    else
      IFS=, read -r -a hosts <<<"$POD_HOSTS"
    fi
    count=${#hosts[@]}
    ((count)) || fail "--hosts $POD_HOSTS names no host."
    for host in "${hosts[@]}"; do
      # ssh would read the dash as an option, and -oProxyCommand=… runs a command on this machine.
      [[ -n $host && $host != -* && $host != *@-* ]] || fail "--hosts $POD_HOSTS has the host '$host'; a host is NAME or" \
        "USER@NAME, and does not begin with a dash."
    done
    [[ -n $POD_COORDINATOR ]] || POD_COORDINATOR=${hosts[0]##*@}:8476
    return
  fi
  if [[ -n $DRY_RUN ]]; then
    name_machines
    count=${#worker_nodes[@]}
    return
  fi
  answer=$(describe_pod)
  if [[ $answer != READY* ]]; then
    echo "error: the pod $POD_NAME is ${answer%%[[:space:]]*}, not READY. \`pod.sh create\` makes it, after" \
      "\`pod.sh delete\` if it was taken away." >&2
    exit 1
  fi
  while read -r node machines; do
    for ((i = 0; i < machines; i++)); do
      worker_nodes+=("$node")
      worker_places+=("$i")
    done
  done < <(tail -n +2 <<<"$answer")
  count=${#worker_nodes[@]}
}

# on_worker INDEX COMMAND: runs a line of shell in the home directory.
on_worker() {
  if [[ -n $POD_HOSTS ]]; then
    call ssh -o BatchMode=yes -o ConnectTimeout=15 -- "${hosts[$1]}" "$2"
  else
    ssh_to "${worker_nodes[$1]}" "${worker_places[$1]}" "$2"
  fi
}

# open_shell INDEX
open_shell() {
  if ! [[ $1 =~ ^[0-9]{1,5}$ ]] || ((10#$1 >= count)); then
    fail "ssh takes the number of a worker, 0 to $((count - 1)), not '$1'."
  fi
  if [[ -n $POD_HOSTS ]]; then
    call ssh -t -o ConnectTimeout=15 -- "${hosts[10#$1]}"
  else
    ssh_to "${worker_nodes[10#$1]}" "${worker_places[10#$1]}"
  fi
}

# copy_to INDEX FILE TARGET: TARGET is relative to the home directory, and a plain name: some versions of scp give it to the
# remote shell, others do not.
copy_to() {
  if [[ -n $POD_HOSTS ]]; then
    call scp -q -o BatchMode=yes -o ConnectTimeout=15 -- "$2" "${hosts[$1]}:$3"
  else
    scp_to "${worker_nodes[$1]}" "${worker_places[$1]}" "$2" "$3"
  fi
}

# in_repository INDEX COMMAND: runs in the worker's clone. TPU machines know their index; hosts get it here.
in_repository() {
  local place=
  [[ -z $POD_HOSTS ]] ||
    place="export LIMBA_COORDINATOR_ADDRESS=$(quote "$POD_COORDINATOR") LIMBA_PROCESS_COUNT=$count LIMBA_PROCESS_INDEX=$1; "
  on_worker "$1" "${place}cd -- $(quote "$POD_DIR") && $2"
}

# each FUNCTION …: calls FUNCTION INDEX … for all workers at once; output lines begin with [INDEX]. Names failed workers, and
# returns 1, or 2 if all ended with 2: then trying again does not help.
each() {
  local i running=() failed=() final=0 code cause
  for ((i = 0; i < count; i++)); do
    if [[ -n $DRY_RUN ]]; then
      "$1" "$i" "${@:2}"
    else
      ("$1" "$i" "${@:2}" 2>&1 </dev/null | while IFS= read -r line; do
        line=${line//[[:cntrl:]]/?} # The terminal would obey them.
        echo "[$i] $line"
        [[ $line != error:* ]] || echo "${line#error: }" >>"$scratch/causes.$i"
      done) &
      running+=($!)
    fi
  done
  for i in ${running[@]+"${!running[@]}"}; do
    code=0
    wait "${running[$i]}" || code=$?
    ((code == 0)) || failed+=("$i")
    ((code != 2)) || ((++final))
  done
  if ((${#failed[@]})); then
    cause=$(head -n 1 "$scratch/causes.${failed[0]}" 2>/dev/null || echo "its lines above begin with [${failed[0]}].")
    echo "error: ${verb:?} failed on worker ${failed[*]} of $count: $cause" >&2
    ((final == count)) && return 2
    return 1
  fi
}
