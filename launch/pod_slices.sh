# shellcheck shell=bash disable=SC2154
# Sourced by launch/pod.sh: rents a pod from gcloud, describes it and gives it back. A pod is one TPU slice, or several.
#
# Reads POD_NAME, POD_TYPE, POD_VERSION, POD_SPOT, POD_SUBNETWORK, POD_QUEUED, POD_HOSTS, DRY_RUN, the verb, `where`, gcloud's
# zone and project, `nodes`, the names of the slices, and `scratch`, a folder. Also runs in bash 3.2, which macOS has.

# gcloud's --version for a type of accelerator.
image_of() {
  case $1 in
    v2-* | v3-* | v4-*) echo tpu-ubuntu2204-base ;;
    v5litepod-*) echo v2-alpha-tpuv5-lite ;;
    v5p-*) echo v2-alpha-tpuv5 ;;
    v6e-*) echo v2-alpha-tpuv6e ;;
    *) fail "--type $1 is not an accelerator type that is known here: v2-8, v3-32, v4-32, v5litepod-16, v5p-16, v6e-16 and" \
      "their like. For another, give its image by --version." ;;
  esac
}

# The number of machines of a type, for --dry-run; otherwise gcloud says it. The types of v2, v3, v4 and v5p count cores, 8
# per machine. Those of v5e and v6e count chips, up to 8 on one machine, else 4 per machine.
machines_of() {
  local size=${1##*-}
  case $1 in
    v5litepod-* | v6e-*) echo $((size <= 8 ? 1 : size / 4)) ;;
    *) echo $((size <= 8 ? 1 : size / 8)) ;;
  esac
}

# ask WHAT NAME FORMAT: what `gcloud compute tpus WHAT describe` prints, or ABSENT.
ask() {
  local answer code=0
  answer=$(gcloud compute tpus "$1" describe "$2" ${where[@]+"${where[@]}"} --format="$3" 2>&1) || code=$?
  if ((code == 0)); then
    echo "$answer"
  elif [[ $answer == *NOT_FOUND*"$2"* ]]; then
    echo ABSENT
  else
    refused "$code" "$answer"
  fi
}

# change COMMAND…: runs gcloud to create or delete something. Its messages come at the end, so that a failure begins with
# its cause.
change() {
  local code=0
  if [[ -n $DRY_RUN ]]; then
    call "$@"
    return
  fi
  echo "== gcloud ${*:4:3} (this can take minutes)"
  "$@" 2>"$scratch/change" || code=$?
  if ((code == 0)); then
    cat "$scratch/change" >&2
  else
    refused "$code" "$(<"$scratch/change")"
  fi
}

# Prints READY if all slices are, else gcloud's state of the first that is not (CREATING, PREEMPTED …), the state of the
# queued resource if it has no slices yet (WAITING_FOR_RESOURCES …), or ABSENT. Then a line per slice: name, machines.
describe_pod() {
  local node answer queue=ABSENT state=READY slices=
  # The queue first: slices that come in between are seen.
  [[ -z ${POD_QUEUED:-} ]] || queue=$(ask queued-resources "$POD_NAME" 'value(state.state)') || return
  for node in "${nodes[@]}"; do
    answer=$(ask tpu-vm "$node" 'value(state,networkEndpoints[].ipAddress)') || return
    [[ $state != READY ]] || state=${answer%%[[:space:]]*}
    slices+="$node $(grep -oE '[0-9]+\.[0-9]+\.[0-9]+\.[0-9]+' <<<"$answer" | wc -l)"$'\n'
  done
  [[ $state != ABSENT || $queue == ACTIVE ]] || state=$queue
  printf '%s\n%s' "$state" "$slices"
}

refuse_hosts() {
  [[ -z $POD_HOSTS ]] || fail "$verb is for pods; the machines of --hosts ($POD_HOSTS) are yours to start and to end."
}

create() {
  local flags version state=ABSENT
  refuse_hosts
  version=${POD_VERSION:-$(image_of "$POD_TYPE")}
  flags=(${where[@]+"${where[@]}"} --accelerator-type="$POD_TYPE")
  [[ -z ${POD_SPOT:-} ]] || flags+=(--spot)
  [[ -z ${POD_SUBNETWORK:-} ]] || flags+=(--subnetwork="$POD_SUBNETWORK")
  if [[ -z $DRY_RUN ]]; then
    state=$(describe_pod)
    state=${state%%[[:space:]]*}
  fi
  case $state in
    ABSENT) ;;
    READY)
      echo "$POD_NAME is there already."
      return
      ;;
    ACCEPTED | WAITING_FOR_RESOURCES | PROVISIONING)
      wait_for_turn
      return
      ;;
    *)
      echo "error: $POD_NAME is there already and $state; \`pod.sh delete\` first." >&2
      exit 1
      ;;
  esac
  if ((${#nodes[@]} > 1)); then
    flags=(--node-count="${#nodes[@]}" --node-prefix="$POD_NAME" "${flags[@]}")
  elif [[ -n ${POD_QUEUED:-} ]]; then
    flags=(--node-id="$POD_NAME" "${flags[@]}")
  fi
  if [[ -n ${POD_QUEUED:-} ]]; then
    change gcloud compute tpus queued-resources create "$POD_NAME" "${flags[@]}" --runtime-version="$version" "$@"
    [[ -n $DRY_RUN ]] || wait_for_turn
  else
    change gcloud compute tpus tpu-vm create "$POD_NAME" "${flags[@]}" --version="$version" "$@"
  fi
}

# Waits until the queued resource is ACTIVE. Ctrl-C leaves it in the queue.
wait_for_turn() {
  local state before=
  while true; do
    state=$(ask queued-resources "$POD_NAME" 'value(state.state)') || {
      (($? == 1)) || exit 2
      sleep "$POD_POLL_SECONDS" # An error that goes away must not end a wait of days.
      continue
    }
    [[ $state == "$before" ]] || echo "$(date +%T) queued resource $POD_NAME is $state"
    case $state in
      ACTIVE) return ;;
      FAILED | SUSPENDED | ABSENT)
        echo "error: the queued resource $POD_NAME is $state; \`pod.sh delete --queued\` removes it." >&2
        exit 1
        ;;
    esac
    before=$state
    sleep "$POD_POLL_SECONDS"
  done
}

delete() {
  local there='' what=tpu-vm flags=(${where[@]+"${where[@]}"})
  refuse_hosts
  if [[ -n ${POD_QUEUED:-} ]]; then
    what=queued-resources
    flags+=(--force) # With its slices.
  fi
  [[ -n $DRY_RUN ]] || there=$(ask "$what" "$POD_NAME" 'value(state)')
  if [[ $there == ABSENT ]]; then
    echo "$POD_NAME is not there."
  else
    change gcloud compute tpus "$what" delete "$POD_NAME" ${flags[@]+"${flags[@]}"} --quiet
  fi
}

state() {
  local answer node
  if [[ -n $POD_HOSTS ]]; then
    echo READY
  elif [[ -n $DRY_RUN ]]; then
    for node in "${nodes[@]}"; do
      call gcloud compute tpus tpu-vm describe "$node" ${where[@]+"${where[@]}"} --format='value(state)'
    done
  else
    answer=$(describe_pod)
    echo "${answer%%[[:space:]]*}"
  fi
}
