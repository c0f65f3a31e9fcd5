# shellcheck shell=bash disable=SC2053,SC2154
# Sourced by launch/pod.sh: rents a pod, tells its state and gives it back, by one of two APIs of Google's.
#
# launch/pod_tpus.sh (the Cloud TPU API) and launch/pod_compute.sh (Compute Engine) have the same functions, and nothing else
# knows gcloud's flags for machines:
#
#   image_of TYPE                  the image of the machines; fails for a type that the API does not have
#   describe_pod                   a state, then a line per node: name, machines. READY: all machines run. ABSENT: there is no
#                                  pod. ACCEPTED, WAITING_FOR_RESOURCES, PROVISIONING: it waits for its turn. Other words are
#                                  gcloud's: the pod was taken away, has ended, or changes.
#   create_pod IMAGE FLAGS…        rents it, with flags of the user's
#   wait_for_turn                  returns when the pod has its machines
#   delete_pod                     gives it back
#   print_state                    with --dry-run: the commands of `state`
#   name_machines                  with --dry-run: sets `worker_nodes` and `worker_places` as describe_pod's lines would
#   ssh_to NODE PLACE [COMMAND]    runs a line of shell, or opens a shell, on the machine at a place of a node
#   scp_to NODE PLACE FILE TARGET  copies a file to its home directory
#
# They set `api_name`, `api_service`, `api_role` and `api_zones` for launch/gcloud_errors.sh: the API, the service to enable,
# the role that may use it, and the command that lists zones.
#
# Reads POD_NAME, POD_TYPE, POD_VERSION, POD_HOSTS, DRY_RUN, the verb, and `scratch`, a folder. Also runs in bash 3.2, which
# macOS has.

# answer ABSENT COMMAND…: what a command of gcloud prints, or ABSENT if its error has the words of the pattern ABSENT.
answer() {
  local text code=0
  text=$("${@:2}" 2>&1) || code=$?
  if ((code == 0)); then
    echo "$text"
  elif [[ $text == $1 ]]; then
    echo ABSENT
  else
    refused "$code" "$text"
  fi
}

# change COMMAND…: runs gcloud to create or delete something. Its messages come at the end, so that a failure begins with
# its cause.
change() {
  local code=0 shown
  if [[ -n $DRY_RUN ]]; then
    call "$@"
    return
  fi
  shown=${*:3}
  shown=${shown%% --*}
  echo "== gcloud ${shown#tpus } (this can take minutes)"
  "$@" 2>"$scratch/change" || code=$?
  if ((code == 0)); then
    cat "$scratch/change" >&2
  else
    refused "$code" "$(<"$scratch/change")"
  fi
}

refuse_hosts() {
  [[ -z $POD_HOSTS ]] || fail "$verb is for pods; the machines of --hosts ($POD_HOSTS) are yours to start and to end."
}

create() {
  local image state=ABSENT
  refuse_hosts
  image=${POD_VERSION:-$(image_of "$POD_TYPE")}
  if [[ -z $DRY_RUN ]]; then
    state=$(describe_pod)
    state=${state%%[[:space:]]*}
  fi
  case $state in
    ABSENT) create_pod "$image" "$@" ;;
    READY) echo "$POD_NAME is there already." ;;
    ACCEPTED | WAITING_FOR_RESOURCES | PROVISIONING) wait_for_turn ;;
    *)
      echo "error: $POD_NAME is there already and $state; \`pod.sh delete\` first." >&2
      exit 1
      ;;
  esac
}

delete() {
  refuse_hosts
  delete_pod
}

state() {
  local answer
  if [[ -n $POD_HOSTS ]]; then
    echo READY
  elif [[ -n $DRY_RUN ]]; then
    print_state
  else
    answer=$(describe_pod)
    echo "${answer%%[[:space:]]*}"
  fi
}
