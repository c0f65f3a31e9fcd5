# shellcheck shell=bash disable=SC2154
# Sourced by launch/supervise.sh: creates a pod, starts a run on all of its workers and watches it to its end.
#
# Reads POD_POLL_SECONDS, `stop_requested` and `errors`, a file; sets what run_here of launch/supervise.sh sets.

pods() {
  local code=0
  bash "$REPOSITORY/launch/pod.sh" "$@" 2>"$errors" || code=$?
  cat "$errors" >&2
  return "$code"
}

bare='' # A pod that this supervisor rents and has not set up yet.

# Creates and sets up a pod that does not exist or was taken away. A setup that failed is done again.
provide_pod() {
  local state commit
  state=$(pods state) || return
  case $state in
    READY) [[ -n $bare ]] || return 0 ;;
    ABSENT | PREEMPTED | TERMINATED | STOPPED | SUSPENDED | FAILED)
      say "the pod is $state: creating it."
      pods delete || true # It may be gone already.
      ;;
    ACCEPTED | WAITING_FOR_RESOURCES | PROVISIONING) say "the pod is $state: waiting for its turn." ;;
    *)
      say "the pod is $state; waiting."
      return 1
      ;;
  esac
  commit=$(git -C "$REPOSITORY" rev-parse --verify --quiet refs/limba/deployed || true)
  bare=1
  [[ $state == READY ]] || pods create || return
  pods setup ${commit:+"$commit"} || return
  bare=
}

run_on_pod() {
  local lines line state process running failed_at=0 answered_at=$SECONDS
  code=0
  provide_pod || code=$?
  if ((code == 0)) && [[ $(pods status --plain 2>/dev/null) == *process=running* ]]; then
    say "it runs already: watching it."
  elif ((code == 0)); then
    pods run "$@" || code=$?
    ((code == 0)) || find_cause "$(<"$errors")"
    # Processes of an earlier run are ended, and then it can start.
    [[ $cause != *"runs already"* ]] || code=255
    ((code == 0)) || pods kill || true
  else
    find_cause "$(<"$errors")"
  fi
  if ((code)); then
    ((code == 2)) || code=255
    return 0
  fi
  while true; do
    sleep "$POD_POLL_SECONDS" &
    wait $! || true
    if [[ -n $stop_requested ]]; then
      say "asked to stop: stopping the workers."
      pods stop || true
    fi
    code=0
    state=$(pods state) || code=$?
    if ((code == 2)); then
      find_cause "$(<"$errors")"
      say "$cause The workers are not stopped; the supervisor watches them when you start it again."
      exit 1
    fi
    ((code == 0)) || continue # gcloud printed its error
    if [[ $state != READY ]]; then
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
          is_number "$process" || process=255 # No worker writes such a code.
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
