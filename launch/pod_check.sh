# shellcheck shell=bash disable=SC2154
# Sourced by launch/pod.sh: checks the bucket, its region and the workers' accelerators before a pod is paid for or used.
#
# Reads POD_BUCKET, POD_ZONE, POD_HOSTS, DRY_RUN, `scratch` and the functions of the other files of launch/pod.sh.

# Sets `bucket`, where the run will write: --bucket, else MODEL_DIR of the arguments of `run`, else that of the environment.
find_bucket() {
  local argument source="--bucket (POD_BUCKET)"
  bucket=${POD_BUCKET:-}
  for argument in "$@"; do
    [[ -z $bucket && $argument == --gin.MODEL_DIR=* ]] || continue
    bucket=${argument#*=} source=--gin.MODEL_DIR
    bucket=${bucket//[\"\']/}
  done
  [[ -n $bucket ]] || bucket=${MODEL_DIR:-} source="--gin.MODEL_DIR, the environment's MODEL_DIR or --bucket (POD_BUCKET)"
  # Hosts may share a folder; a pod's machines share nothing.
  [[ $bucket =~ ^gs://[a-z0-9] || (-n $POD_HOSTS && -n $bucket) ]] ||
    fail "$source is '$bucket'; check needs the bucket of the run, such as --bucket gs://my-bucket/run."
  bucket=${bucket%/}
}

# cannot WHAT CODE TEXT: says why a bucket refuses, and ends.
cannot() {
  local name=${bucket#gs://}
  case $3 in
    *403* | *ermission*)
      echo "error: your account may not $1 in $bucket: ask the bucket's owner for the role roles/storage.objectUser." >&2 ;;
    *404* | *"not found"*)
      echo "error: there is no bucket gs://${name%%/*}: check its name (--bucket or MODEL_DIR), or make it with" \
        "\`gcloud storage buckets create gs://${name%%/*} --location=REGION\`." >&2 ;;
    *)
      refused "$2" "$3" || exit # It fails always, with 1 or 2.
      ;;
  esac
  echo "  gcloud: $3" >&2
  exit 2
}

check_bucket() {
  local file said code=0
  file=$bucket/.limba-check-$(hostname)-$$
  if [[ -n $DRY_RUN ]]; then
    call gcloud storage cp "$REPOSITORY/launch/pod_check.sh" "$file"
    call gcloud storage rm "$file"
    return
  fi
  said=$(gcloud storage cp "$REPOSITORY/launch/pod_check.sh" "$file" 2>&1) || code=$?
  ((code == 0)) || cannot "write" "$code" "$said"
  # A run removes its old checkpoints.
  said=$(gcloud storage rm "$file" 2>&1) || code=$?
  ((code == 0)) || cannot "remove $file" "$code" "$said"
  echo "ok: $bucket can be written from here"
}

check_region() {
  local name=${bucket#gs://} zone=${POD_ZONE:-} location
  name=gs://${name%%/*}
  if [[ -n $DRY_RUN ]]; then
    [[ -n $zone ]] || call gcloud config get-value compute/zone
    call gcloud storage buckets describe "$name" --format='value(location)'
    return
  fi
  [[ -n $zone ]] || zone=$(gcloud config get-value compute/zone 2>/dev/null) || zone=
  location=$(gcloud storage buckets describe "$name" --format='value(location)' 2>/dev/null | tr '[:upper:]' '[:lower:]') ||
    location=
  if [[ -z $zone || -z $location ]]; then
    echo "warning: the region of $name ('$location') or the zone of the pod ('$zone', --zone) is not known; they were not" \
      "compared." >&2
  elif [[ ${zone%-*} == "$location" ]]; then
    echo "ok: $name is in the pod's region, $location"
  else
    echo "warning: $name is in $location and the pod in ${zone%-*} (zone $zone): reading and saving are slower, and Google" \
      "charges for the traffic. A bucket in ${zone%-*} is better." >&2
  fi
}

# Prints each worker's accelerator, and names the workers that have none.
check_workers() {
  local i answers wanted code=0 without=()
  wanted="bash launch/worker.sh --check $(quote "$bucket")"
  if [[ -n $DRY_RUN ]]; then
    each in_repository "$wanted"
    return
  fi
  answers=$(each quietly in_repository "$wanted") || code=$?
  echo "$answers"
  for ((i = 0; i < count; i++)); do
    case $(grep -F "[$i] accelerator=" <<<"$answers") in
      *accelerator=cpu*asked=cpu*) [[ -n $POD_HOSTS ]] || without+=("$i") ;;
      *accelerator=cpu*) without+=("$i") ;;
    esac
  done
  if ((${#without[@]})); then
    echo "error: JAX has no accelerator and uses the CPU on worker ${without[*]} of $count. \`pod.sh setup\` installs JAX for" \
      "the machine; docs/pods.md, \"When it hangs\", tells how to find a process that holds a TPU." >&2
    exit 1
  fi
  return "$code"
}

# reaches_workers RECIPE …: fails, in a dry run too, if the run needs files of this machine that a pod's workers would not
# have. Hosts may share them.
reaches_workers() {
  local commit lacking
  [[ -z $POD_HOSTS ]] || return 0
  commit=$(git -C "$REPOSITORY" rev-parse --verify --quiet "refs/limba/deployed^{commit}") || commit=HEAD
  lacking=$("${PYTHON:-python3}" "$REPOSITORY/launch/carried_files.py" "$REPOSITORY" "$commit" "${POD_WORKER_ENV:-}" \
    "${POD_ON_WORKERS:-}" "$POD_WITH" "$@") && return
  [[ -n $lacking ]] || exit 2 # Python has said why.
  fail "the workers would lack: $lacking"$'\n'"They get a commit of $REPOSITORY and nothing else (${commit:0:10}). Copy the" \
    "folder with recipe, modules and data: \`pod.sh setup --with DIR\` and \`pod.sh --with DIR run …\`. Or commit recipes and" \
    "modules, and \`pod.sh deploy\`. Put data into a bucket (gs://…), or on every worker at the same place and name it:" \
    "--on-workers."
}

check() {
  local state=READY
  find_bucket "$@"
  (($# == 0)) || reaches_workers "$@"
  if [[ $bucket == gs://* ]]; then
    check_bucket
    [[ -n $POD_HOSTS ]] || check_region
  fi
  if [[ -z $POD_HOSTS && -z $DRY_RUN ]]; then
    state=$(describe_pod)
    state=${state%%[[:space:]]*}
  fi
  if [[ $state == READY ]]; then
    find_workers
    check_workers
  else
    echo "the pod is $state: check again after \`pod.sh create\` and \`pod.sh setup\`, for the accelerators of its workers."
  fi
}
