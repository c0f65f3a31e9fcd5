# shellcheck shell=bash disable=SC2034,SC2154
# Sourced by launch/pod.sh: a pod of Compute Engine, which is one TPU slice of v5p, v6e or TPU7x.
#
# A pod has three things of its name: a managed instance group, its instance template, and for several machines a workload
# policy, which joins their chips. launch/pod_rental.sh lists the functions. Reads POD_NAME, POD_TYPE, POD_ZONE, POD_PROJECT,
# POD_SPOT, POD_FLEX, POD_SUBNETWORK, POD_QUEUED and `where`, gcloud's zone and project. Also runs in bash 3.2, which macOS has.

zone=${POD_ZONE:-} # Not set for --hosts.
region=${zone%-*} group=(gcloud compute instance-groups managed)
api_name="Compute Engine API" api_service=compute.googleapis.com api_role=roles/compute.instanceAdmin.v1
api_zones="gcloud compute machine-types list --filter='name~^(ct|tpu)'"

# machine_of TYPE: sets `machine`, Compute Engine's name of a machine, `machines`, their number, and `shape`, the chips of the
# slice by axis. The types of v5p and TPU7x count cores, two a chip; those of v6e count chips.
machine_of() {
  case $1 in
    v5p-*) machine=ct5p-hightpu-4t ;;
    v6e-1 | v6e-8) machine=ct6e-standard-${1#*-}t ;;
    v6e-*) machine=ct6e-standard-4t ;;
    tpu7x-*) machine=tpu7x-standard-4t ;;
    *) fail "--type $1 is not on Compute Engine, which has v5p-8, v6e-16, tpu7x-16 and their like. The Cloud TPU API has v2 to" \
      "v6e: --api tpus (POD_API)." ;;
  esac
  case $1 in
    v6e-1) shape=1x1 ;;
    v6e-4) shape=2x2 ;;
    v6e-8) shape=2x4 ;;
    v6e-16) shape=4x4 ;;
    v6e-32) shape=4x8 ;;
    v6e-64) shape=8x8 ;;
    v6e-128) shape=8x16 ;;
    v6e-256) shape=16x16 ;;
    v5p-8 | tpu7x-8) shape=2x2x1 ;;
    v5p-16 | tpu7x-16) shape=2x2x2 ;;
    v5p-32 | tpu7x-32) shape=2x2x4 ;;
    v5p-64 | tpu7x-64) shape=2x4x4 ;;
    v5p-128 | tpu7x-128) shape=4x4x4 ;;
    v5p-256 | tpu7x-256) shape=4x4x8 ;;
    v5p-512 | tpu7x-512) shape=4x8x8 ;;
    v5p-1024 | tpu7x-1024) shape=8x8x8 ;;
    v5p-2048 | tpu7x-2048) shape=8x8x16 ;;
    *) fail "--type $1 has a size that is not known here: v5p and tpu7x have 8, 16, 32 … 2048 cores, v6e 1, 4, 8, 16 … 256" \
      "chips." ;;
  esac
  machines=$((${shape//x/*} / 4))
  [[ $1 != v6e-1 && $1 != v6e-8 ]] || machines=1
}

# The family of images of Google's project of images for accelerators.
image_of() {
  machine_of "$1"
  case $1 in
    tpu7x-*) echo ubuntu-accel-2404-amd64-tpu-tpu7x ;;
    *) echo ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e ;;
  esac
}

# A node is a machine. Those that Google has not made yet have no status, or PENDING while it waits for all of them.
describe_pod() {
  local absent="*instanceGroupManagers/$POD_NAME' was not found*"
  local text line name status action lost='' waits='' made='' lines='' found=0 state=READY
  machine_of "$POD_TYPE"
  text=$(answer "$absent" "${group[@]}" list-instances "$POD_NAME" "${where[@]}" \
    --format='csv[no-heading](instance.basename(),instanceStatus,currentAction)') || return
  if [[ $text == ABSENT ]]; then
    echo ABSENT
    return
  fi
  while IFS= read -r line; do
    [[ $line =~ ^[a-z][a-z0-9-]*,[A-Z_]*,[A-Z_]*$ ]] || continue # gcloud's warnings are there too.
    IFS=, read -r name status action <<<"$line"
    ((++found))
    lines+="$name 1"$'\n'
    case $status:$action in
      RUNNING: | RUNNING:NONE | RUNNING:VERIFYING | RUNNING:REFRESHING) ;;
      PENDING:*) waits=WAITING_FOR_RESOURCES ;;
      :* | PROVISIONING:* | STAGING:* | RUNNING:CREATING*) made=PROVISIONING ;;
      RUNNING:*) lost=$action ;;
      *) lost=$status ;;
    esac
  done < <(sort <<<"$text")
  if [[ -n $lost$waits$made ]]; then
    state=${lost:-${waits:-$made}}
  elif ((found < machines)); then
    # Machines are missing: they have ended and were deleted, unless the group still changes.
    text=$(answer "$absent" "${group[@]}" describe "$POD_NAME" "${where[@]}" --format='value(status.isStable)') || return
    state=TERMINATED
    [[ $text != *False* ]] || state=PROVISIONING
  fi
  printf '%s\n%s' "$state" "$lines"
}

create_pod() {
  local code=0 discarded made=()
  machine_of "$POD_TYPE"
  rent "$@" || code=$?
  if ((code)); then
    discard ${made[@]+"${made[@]}"} || true # What this call made; another pod's things keep their names.
    exit "$code"
  fi
  [[ -n $DRY_RUN ]] || wait_for_turn
}

# rent IMAGE FLAGS…: makes the policy, the template and the group, and adds each to `made`, the last first.
rent() {
  local flags size=$machines policy=() disk=hyperdisk-balanced
  [[ $machine != ct5p-* ]] || disk=pd-balanced # The machines have no other kind for a boot disk.
  flags=(--project="$POD_PROJECT" --machine-type="$machine" --image-family="$1" --image-project=ubuntu-os-accelerator-images
    --boot-disk-size=200GB --boot-disk-type="$disk" --maintenance-policy=TERMINATE --scopes=cloud-platform)
  [[ -z ${POD_SPOT:-} ]] || flags+=(--provisioning-model=SPOT --instance-termination-action=STOP)
  [[ -z $POD_FLEX ]] || flags+=(--provisioning-model=FLEX_START --max-run-duration="$POD_FLEX"
    --instance-termination-action=DELETE)
  # A template belongs to no region, so its network's part is named in full.
  [[ -z ${POD_SUBNETWORK:-} ]] || flags+=(--subnet="projects/$POD_PROJECT/regions/$region/subnetworks/$POD_SUBNETWORK")
  if ((machines > 1)); then
    change gcloud compute resource-policies create workload-policy "$POD_NAME" --project="$POD_PROJECT" --region="$region" \
      --type=HIGH_THROUGHPUT --accelerator-topology="$shape" || return
    made=(policy)
    policy=(--workload-policy="projects/$POD_PROJECT/regions/$region/resourcePolicies/$POD_NAME")
  fi
  change gcloud compute instance-templates create "$POD_NAME" "${flags[@]}" "${@:2}" || return
  made=(template ${made[@]+"${made[@]}"})
  # All machines at once or none; Compute Engine asks for this where it joins chips, and for flex-start.
  ((machines == 1)) && [[ -z $POD_FLEX ]] || policy+=(--target-size-policy-mode=bulk)
  # A flex-start template makes an empty group, which then grows: Compute Engine refuses resize requests where there are TPUs.
  [[ -z $POD_FLEX ]] || size=0
  change "${group[@]}" create "$POD_NAME" "${where[@]}" --template="$POD_NAME" --size="$size" \
    --default-action-on-vm-failure=do-nothing ${policy[@]+"${policy[@]}"} || return
  made=(group "${made[@]}")
  [[ -z $POD_FLEX ]] || change "${group[@]}" resize "$POD_NAME" "${where[@]}" --size="$machines"
}

# Waits until all machines run and can be reached. Without --queued, capacity that is missing ends the wait, and the pod is
# given back. Ctrl-C leaves it.
wait_for_turn() {
  local answer state before='' trouble known='' code
  while true; do
    answer=$(describe_pod) || {
      (($? == 1)) || exit 2
      sleep "$POD_POLL_SECONDS" # An error that goes away must not end a wait of days.
      continue
    }
    state=${answer%%[[:space:]]*}
    [[ $state == "$before" ]] || echo "$(date +%T) pod $POD_NAME is $state"
    before=$state
    case $state in
      READY) break ;;
      WAITING_FOR_RESOURCES | PROVISIONING) ;;
      *)
        echo "error: the pod $POD_NAME is $state; \`pod.sh delete\` removes it." >&2
        exit 1
        ;;
    esac
    trouble=$("${group[@]}" list-errors "$POD_NAME" "${where[@]}" --limit=1 --format='value(error.code,error.message)' \
      2>/dev/null) || trouble=
    if [[ -n $trouble && $trouble != "$known" ]]; then
      code=0
      refused 1 "$trouble" || code=$?
      if ((code == 2)) || [[ -z ${POD_QUEUED:-}$POD_FLEX ]]; then
        delete_pod || true
        exit "$code"
      fi
      known=$trouble
    fi
    sleep "$POD_POLL_SECONDS"
  done
  await_ssh "$answer"
}

# await_ssh ANSWER: waits until ssh reaches the machines of describe_pod's answer, which may just have started.
await_ssh() {
  local node tries=0
  while read -r node _; do
    until ssh_to "$node" 0 true </dev/null >/dev/null 2>"$scratch/await"; do
      if ((++tries > 30)); then
        echo "error: $node runs, and ssh does not reach it: $(tail -n 1 "$scratch/await"). If its network lets ssh in," \
          "repeat \`pod.sh create\`; \`pod.sh delete\` gives the pod back." >&2
        exit 1
      fi
      sleep "$POD_POLL_SECONDS"
    done
  done < <(tail -n +2 <<<"$1")
}

# discard THING…: deletes `group`, `template` or `policy` of the pod; sets `discarded` if one was there.
discard() {
  local thing command text code
  for thing in "$@"; do
    case $thing in
      group) command=("${group[@]}" delete "$POD_NAME" "${where[@]}") ;;
      template) command=(gcloud compute instance-templates delete "$POD_NAME" --project="$POD_PROJECT") ;;
      policy) command=(gcloud compute resource-policies delete "$POD_NAME" --project="$POD_PROJECT" --region="$region") ;;
    esac
    if [[ -n $DRY_RUN ]]; then
      call "${command[@]}" --quiet
      continue
    fi
    echo "== deleting the $thing $POD_NAME (this can take minutes)"
    code=0
    text=$("${command[@]}" --quiet 2>&1) || code=$?
    if ((code == 0)); then
      discarded=1
    elif [[ $text != *"/$POD_NAME' was not found"* ]]; then
      code=0
      refused 1 "$text" || code=$?
      return "$code"
    fi
  done
}

delete_pod() {
  local discarded=$DRY_RUN things=(group template policy)
  machine_of "$POD_TYPE"
  ((machines > 1)) || things=(group template)
  discard "${things[@]}" || return
  [[ -n $discarded ]] || echo "$POD_NAME is not there."
}

print_state() {
  call "${group[@]}" list-instances "$POD_NAME" "${where[@]}" --format='value(instance.basename(),instanceStatus)'
}

# Google chooses the machines' names, so the printed commands ask for them first.
name_machines() {
  local i
  machine_of "$POD_TYPE"
  echo "vms=(\$($(call "${group[@]}" list-instances "$POD_NAME" "${where[@]}" --format='value(instance.basename())') | sort))"
  for ((i = 0; i < machines; i++)); do
    worker_nodes+=("\${vms[$i]}")
    worker_places+=(0)
  done
}

ssh_to() {
  local flags=()
  (($# < 3)) || flags=(--quiet --command="$3")
  call gcloud compute ssh "$1" "${where[@]}" ${flags[@]+"${flags[@]}"}
}

scp_to() { call gcloud compute scp "$3" "$1:$4" "${where[@]}" --quiet; }
