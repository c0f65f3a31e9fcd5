#!/usr/bin/env bash
# gcloud's commands of Compute Engine over folders, for tests; bin/gcloud calls it without the word `compute`. A managed group is
# $FAKE_CLOUD/NAME, a machine is a folder worker-I in it and its home; Google would name it NAME-…. $FAKE_CLOUD/things has
# templates and policies. The group's file `state` has the status of all its machines, or READY (they run), GONE (they were
# deleted) or `waits STATUS…`: one STATUS for each time that somebody asks, then they run. `errors` has what list-errors prints.
set -euo pipefail

# fails COMMAND TEXT: as Compute Engine says it.
fails() {
  printf 'ERROR: (gcloud.compute.%s) Could not fetch resource:\n - %s\n' "$1" "$2" >&2
  exit 1
}

flag() { # NAME: its value among the words
  local word
  for word in "${words[@]}"; do [[ $word != "--$1="* ]] || echo "${word#*=}"; done
}

# allow FLAG…: refuses other flags, as gcloud does.
allow() {
  local word
  for word in "${words[@]}"; do
    [[ $word != --* || " --quiet --project $* " == *" ${word%%=*} "* ]] || {
      echo "ERROR: (gcloud.compute) unrecognized arguments: $word" >&2
      exit 2
    }
  done
}

place=projects/p/zones/z
things=$FAKE_CLOUD/things
mkdir -p "$things"
words=("$@")
case $1:$2:${3:-} in
  instance-groups:managed:*) what=instance-groups.managed.$3 name=$4 ;;
  resource-policies:create:workload-policy) what=resource-policies.create name=$4 ;;
  ssh:*) what=ssh name=$2 ;;
  scp:*) what=scp name=${3%%:*} ;;
  *) what=$1.$2 name=$3 ;;
esac
pod=$FAKE_CLOUD/$name

group_exists() { [[ -f $pod/state ]] || fails "$what" "The resource '$place/instanceGroupManagers/$name' was not found"; }

make_thing() { # KIND
  [[ ! -f $things/$1-$name ]] || fails "$what" "The resource 'projects/p/$1s/$name' already exists"
  printf '%s\n' "${words[@]}" >"$things/$1-$name"
}

delete_thing() { # KIND
  [[ -f $things/$1-$name ]] || fails "$what" "The resource 'projects/p/$1s/$name' was not found"
  rm "$things/$1-$name"
}

grow() { # SIZE
  local i
  for ((i = 0; i < $1; i++)); do mkdir -p "$pod/worker-$i"; done
  echo "$1" >"$pod/size"
}

# home VM: its home, and its place among the machines. A machine's name ends with a letter for its place, backwards: Google's
# order of names is no order of workers.
home() {
  local letter=${1##*-}
  pod=$FAKE_CLOUD/${1%-*}
  [[ $(cat "$pod/state" 2>/dev/null) == READY ]] || fails "$what" "The resource '$place/instances/$1' was not found"
  export LIMBA_COORDINATOR_ADDRESS=127.0.0.1:$FAKE_PORT LIMBA_PROCESS_COUNT
  LIMBA_PROCESS_COUNT=$(cat "$pod/size")
  export LIMBA_PROCESS_INDEX=$(($(printf '%d' "'z") - $(printf '%d' "'${letter:0:1}")))
  export HOME=$pod/worker-$LIMBA_PROCESS_INDEX
  cd "$HOME"
}

list_instances() {
  local state i status
  group_exists
  state=$(<"$pod/state")
  case $state in
    READY) status=RUNNING,NONE ;;
    waits*)
      read -r _ status state <<<"$state "
      echo "${state:+waits }${state:-READY}" >"$pod/state"
      status=${status/NEW/},CREATING
      ;;
    GONE) return ;;
    *) status=$state,NONE ;;
  esac
  for ((i = 0; i < $(cat "$pod/size"); i++)); do
    printf "$name-\\$(printf '%o' $((122 - i)))%s,%s\n" 9x "$status"
  done
}

case $what in
  resource-policies.create)
    allow --region --type --accelerator-topology
    [[ $(flag type) == HIGH_THROUGHPUT && $(flag accelerator-topology) == *x* ]]
    make_thing resourcePolicie
    ;;
  resource-policies.delete) allow --region && delete_thing resourcePolicie ;;
  instance-templates.create)
    allow --machine-type --image-family --image-project --boot-disk-size --boot-disk-type --maintenance-policy --scopes \
      --provisioning-model --instance-termination-action --max-run-duration --subnet --network
    [[ $(flag provisioning-model) != FLEX_START || -n $(flag max-run-duration) ]]
    make_thing instanceTemplate
    ;;
  instance-templates.delete) allow && delete_thing instanceTemplate ;;
  instance-groups.managed.create)
    allow --zone --template --size --default-action-on-vm-failure --workload-policy --target-size-policy-mode
    [[ ! -f $pod/state ]] || fails "$what" "The resource '$place/instanceGroupManagers/$name' already exists"
    template=$things/instanceTemplate-$(flag template)
    [[ -f $template ]] || fails "$what" "The resource 'projects/p/global/instanceTemplates/$(flag template)' was not found"
    policy=$(flag workload-policy)
    if [[ -n $policy ]]; then
      [[ $policy == projects/*/regions/*/resourcePolicies/* ]] ||
        fails "$what" "Invalid value for field 'resource.resourcePolicies.workloadPolicy': '$policy'. The URL is malformed."
      [[ -f $things/resourcePolicie-${policy##*/} ]] || fails "$what" "The resource '$policy' was not found"
      [[ $(flag target-size-policy-mode) == bulk ]] ||
        fails "$what" "MIGs with TPU accelerator topology require BULK mode in target size policy"
    fi
    ! grep -q FLEX_START "$template" || [[ $(flag size) == 0 ]]
    mkdir -p "$pod"
    grow "$(flag size)"
    cp "$FAKE_CLOUD/next-errors" "$pod/errors" 2>/dev/null || true
    cat "$FAKE_CLOUD/next-state" >"$pod/state" 2>/dev/null || echo READY >"$pod/state"
    mv "$FAKE_CLOUD/refuse-describe-after-create" "$FAKE_CLOUD/refuse-describe-once" 2>/dev/null || true
    ;;
  instance-groups.managed.resize) allow --zone --size && group_exists && grow "$(flag size)" ;;
  instance-groups.managed.describe)
    allow --zone --format && group_exists
    if [[ $(<"$pod/state") == GONE ]]; then echo True; else echo False; fi
    ;;
  instance-groups.managed.list-instances)
    allow --zone --format
    case $(flag format) in
      'csv[no-heading](instance.basename(),instanceStatus,currentAction)') list_instances ;;
      'value(instance.basename())') list_instances | cut -d , -f 1 ;;
      *) exit 9 ;;
    esac
    ;;
  instance-groups.managed.list-errors)
    allow --zone --limit --format
    cat "$pod/errors" 2>/dev/null || true
    ;;
  instance-groups.managed.delete)
    allow --zone
    group_exists
    rm -rf "$pod"
    ;;
  ssh)
    allow --zone --command
    echo "Warning: Permanently added 'compute.$name' to the list of known hosts." >&2
    command=$(flag command)
    home "$name"
    exec bash ${command:+-c "$command"}
    ;;
  scp)
    allow --zone
    source=$(realpath "$2")
    target=${3#*:}
    home "$name"
    cp "$source" "$target"
    echo "arrived $target $(stat -c %a "$(dirname "$target")")" >>"$FAKE_CLOUD/calls" # Who may enter its folder now?
    ;;
  *) exit 9 ;;
esac
