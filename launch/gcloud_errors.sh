# shellcheck shell=bash disable=SC2154
# Sourced by launch/pod.sh: says in one sentence why gcloud refuses, and whether trying again can help.
#
# Reads POD_NAME, POD_TYPE, POD_ZONE, POD_PROJECT and `api_…`, the pod's API. Also runs in bash 3.2, which macOS has.

# explain CODE TEXT: for gcloud's exit code and messages, prints the cause and the remedy. Fails if the error may go away by
# itself, such as missing capacity, or is not known here.
explain() {
  local zone=${POD_ZONE:-its configured zone} project=${POD_PROJECT:-its configured project} text=$2
  local zero="[Qq]uota.*[Ll]imit:? ?'?0(\.0)?([^0-9.]|\$)"
  case $text in
    *UNAVAILABLE* | *ABORTED* | *DEADLINE_EXCEEDED* | *INTERNAL* | *apacity* | *"imed out"* | *"onnection"* | *"Max retries"*) return 1 ;;
    *"active account selected"* | *eauthentication* | *invalid_grant* | *UNAUTHENTICATED*)
      echo "gcloud has no account, or its login has expired: run \`gcloud auth login\`." ;;
    *"property [project]"* | *"find attribute [project]"*)
      echo "gcloud has no project: give --project (POD_PROJECT), or run \`gcloud config set project NAME\`." ;;
    *"property [compute/zone]"* | *"find attribute [zone]"*)
      echo "gcloud has no zone: give --zone (POD_ZONE), or run \`gcloud config set compute/zone NAME\`." ;;
    *SERVICE_DISABLED* | *"has not been used in project"*)
      echo "the $api_name is not enabled in $project: run \`gcloud services enable $api_service\`." ;;
    *BILLING_DISABLED* | *illing*disabled*)
      echo "billing is off in $project (--project, POD_PROJECT): switch it on, or name another project." ;;
    *"or it may not exist"* | *"ocation "*"not found"* | *"nknown zone"* | *"nknown location"* | *"nvalid zone"* | \
      *"does not exist in zone"* | *"/zones/$zone' was not found"*)
      echo "the zone $zone (--zone, POD_ZONE) does not exist or has no TPUs for $project:" \
        "\`$api_zones\` shows those that have." ;;
    *PERMISSION_DENIED* | *"does not have permission"* | *"Required '"*"' permission"*)
      echo "gcloud's account may not do this in $project (--project, POD_PROJECT): ask its owner for the role" \
        "$api_role, or name another project." ;;
    *ALREADY_EXISTS* | *"' already exists"*)
      echo "$POD_NAME (--name, POD_NAME) is there already: \`pod.sh state\` shows its state, \`pod.sh delete\` removes it, and" \
        "another --name keeps it." ;;
    *NOT_FOUND* | *"' was not found"*)
      echo "something that the command names does not exist in $project and $zone (--project, --zone): see gcloud's message." ;;
    *INVALID_ARGUMENT* | *"unrecognized arguments"* | *"nvalid choice"* | *"nvalid value"* | *": argument "*)
      echo "gcloud refuses the request as wrong: see its message, and the type $POD_TYPE in the zone $zone (--type, --zone)." ;;
    *"gcloud failed to load"* | *ModuleNotFoundError* | *ImportError*)
      echo "gcloud does not start: install it again, https://cloud.google.com/sdk/docs/install." ;;
    *)
      if [[ $text =~ $zero ]]; then
        echo "the quota of $project for $POD_TYPE in $zone is 0 (--type, --zone): ask for more at" \
          "https://console.cloud.google.com/iam-admin/quotas, or choose another type or zone."
      elif (($1 == 126 || $1 == 127)); then
        echo "$(command -v gcloud) does not start (exit code $1): install it again, https://cloud.google.com/sdk/docs/install."
      else
        return 1
      fi
      ;;
  esac
}

# refused CODE TEXT: prints gcloud's failure, the cause first and tracebacks left out. Returns 2 if it stays as it is, else 1.
refused() {
  local cause code=1 messages
  messages=$(awk '/^Traceback/ { trace = 1; next } trace && /^[ \t]/ { next } NF { trace = 0; print "  gcloud: " $0 }' <<<"$2")
  if cause=$(explain "$1" "$2"); then
    code=2
  else
    cause="gcloud failed (exit code $1); this may go away by itself."
  fi
  printf 'error: %s\n%s\n' "$cause" "$messages" >&2
  return "$code"
}
