# shellcheck shell=bash disable=SC2034,SC2154
# Sourced by launch/pod.sh: a pod of the Cloud TPU API, which is one TPU slice (a node), or several; v2 to v6e.
#
# launch/pod_rental.sh lists its functions. Reads POD_NAME, POD_TYPE, POD_SPOT, POD_FLEX, POD_SUBNETWORK, POD_QUEUED,
# `where`, gcloud's zone and project, and `nodes`, the names of the slices. Also runs in bash 3.2, which macOS has.

api_name="Cloud TPU API" api_service=tpu.googleapis.com api_role=roles/tpu.admin
api_zones='gcloud compute tpus locations list'

# gcloud's --version for a type of accelerator.
image_of() {
  case $1 in
    v2-* | v3-* | v4-*) echo tpu-ubuntu2204-base ;;
    v5litepod-*) echo v2-alpha-tpuv5-lite ;;
    v5p-*) echo v2-alpha-tpuv5 ;;
    v6e-*) echo v2-alpha-tpuv6e ;;
    tpu7x-*) fail "--type $1 is not in the Cloud TPU API; Compute Engine has it: give --api compute (POD_API)." ;;
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
  answer "*NOT_FOUND*$2*" gcloud compute tpus "$1" describe "$2" ${where[@]+"${where[@]}"} --format="$3"
}

# The state of the first slice that is not READY, or of the queued resource if it has no slices yet.
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

create_pod() {
  local flags=(${where[@]+"${where[@]}"} --accelerator-type="$POD_TYPE")
  [[ -z ${POD_SPOT:-} ]] || flags+=(--spot)
  [[ -z ${POD_SUBNETWORK:-} ]] || flags+=(--subnetwork="$POD_SUBNETWORK")
  if ((${#nodes[@]} > 1)); then
    flags=(--node-count="${#nodes[@]}" --node-prefix="$POD_NAME" "${flags[@]}")
  elif [[ -n ${POD_QUEUED:-} ]]; then
    flags=(--node-id="$POD_NAME" "${flags[@]}")
  fi
  if [[ -n ${POD_QUEUED:-} ]]; then
    change gcloud compute tpus queued-resources create "$POD_NAME" "${flags[@]}" --runtime-version="$1" "${@:2}"
    [[ -n $DRY_RUN ]] || wait_for_turn
  else
    change gcloud compute tpus tpu-vm create "$POD_NAME" "${flags[@]}" --version="$1" "${@:2}"
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

delete_pod() {
  local there='' what=tpu-vm flags=(${where[@]+"${where[@]}"})
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

print_state() {
  local node
  for node in "${nodes[@]}"; do
    call gcloud compute tpus tpu-vm describe "$node" ${where[@]+"${where[@]}"} --format='value(state)'
  done
}

name_machines() {
  local node machines i
  machines=$(machines_of "$POD_TYPE")
  for node in "${nodes[@]}"; do
    for ((i = 0; i < machines; i++)); do
      worker_nodes+=("$node")
      worker_places+=("$i")
    done
  done
}

ssh_to() {
  local flags=(${where[@]+"${where[@]}"})
  (($# < 3)) || flags+=(--quiet)
  flags+=(--worker="$2")
  (($# < 3)) || flags+=(--command="$3")
  call gcloud compute tpus tpu-vm ssh "$1" "${flags[@]}"
}

scp_to() {
  call gcloud compute tpus tpu-vm scp "$3" "$1:$4" ${where[@]+"${where[@]}"} --quiet --worker="$2"
}
