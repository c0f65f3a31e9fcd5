# shellcheck shell=bash
# Sourced by launch/pod.sh, worker.sh and supervise.sh: reads numbers, and files of NAME=VALUE lines. Also runs in bash 3.2,
# which macOS has.

# The PATTERN of a file that may set anything: names of the environment, so none of the scripts' own in small letters.
# shellcheck disable=SC2034 # The scripts that source this use it.
ANY_NAME='[A-Z_][A-Z0-9_]*|https?_proxy|no_proxy|all_proxy'

# Whether a text is a number in decimals, which Bash's arithmetic takes as one: 09 would be a wrong octal number, and of a
# text such as i[$(command)] it would run the command.
is_number() { [[ $1 =~ ^(0|[1-9][0-9]{0,17})$ ]]; }

# read_variables FILE PATTERN KEEP: sets each NAME that matches PATTERN to its VALUE; with a KEEP that is not empty, only a NAME
# that is not set. The file is data and no script: spaces, `$` and backslashes in a VALUE are literal, and a pair of quotes
# around it is taken off. Ends by `fail` for a line that can be misread. Messages have the line's number and a name, never a
# value, which may be a token.
read_variables() {
  local file=$1 pattern=$2 keep=$3 line name value seen=' ' number=0 where
  while IFS= read -r line || [[ -n $line ]]; do
    ((++number))
    ((number > 1)) || line=${line#$'\xef\xbb\xbf'} # Editors of Windows begin a file with a byte order mark,
    line=${line%$'\r'}                             # and end its lines with a carriage return.
    line=${line#"${line%%[![:space:]]*}"}
    line=${line%"${line##*[![:space:]]}"}
    [[ -n $line && $line != \#* ]] || continue
    name=${line%%=*} where="$file, line $number"
    [[ $line == *=* && $name =~ ^[A-Za-z_][A-Za-z0-9_]*$ ]] ||
      fail "$where is not NAME=VALUE. There is no space around =, and no 'export' before the name."
    [[ $name =~ ^($pattern)$ ]] || fail "$where sets $name, which is not a name of this file. Its names match ${pattern//|/, }."
    [[ $seen != *" $name "* ]] || fail "$where sets $name for the second time; keep one of the lines."
    seen+="$name "
    value=${line#*=}
    case $value in
      \"*\" | \'*\') value=${value:1:$((${#value} - 2))} ;;
      [\"\']* | *[[:space:]]\#*) fail "$where: the value of $name has a quote that is not closed, or a comment behind it. Close" \
        "the quote, and put comments on lines of their own." ;;
      # What the shell would have expanded, and this does not.
      \~/* | *\$HOME* | *\$\{* | *\$\(* | *\`*) fail "$where: the value of $name has ~/, \$HOME, \${…}, \$(…) or a backtick, and" \
        "values are literal. Write out what it stands for; or put it in quotes if it is meant so." ;;
    esac
    [[ -z $keep || -z ${!name+set} ]] || continue
    [[ $(declare -p "$name" 2>/dev/null) != declare\ -*r*\ * ]] || fail "$where: $name cannot be set; bash keeps it for itself."
    printf -v "$name" '%s' "$value"
  done <"$file"
}
