#!/usr/bin/env bash
# Runs the demo and fails unless its summary says that nothing was lost, refused,
# doubled or let through too fast: scripts/check-demo.sh [BINARY]
set -euo pipefail

binary=${1:-bin/penstock}
out=$(mktemp)
trap 'rm -f "$out"' EXIT

status=0
timeout 180 "$binary" demo --json >"$out" || status=$?
line=$(tail -n 1 "$out")
echo "$line"
if ((status != 0)); then
  exit "$status"
fi

# number KEY prints the value of a number in the summary; a missing key fails.
number() {
  local value
  value=$(grep -oE "\"$1\": *-?[0-9.eE+-]+" <<<"$line" | sed 's/.*: *//') || {
    echo "demo: the summary has no $1" >&2
    return 1
  }
  echo "$value"
}

# want KEY CONDITION fails unless the awk condition over v holds.
want() {
  local v
  v=$(number "$1")
  awk -v v="$v" -v sent="$sent" "BEGIN { exit !($2) }" || {
    echo "demo: $1 is $v, want $2" >&2
    return 1
  }
}

sent=$(number sent)
want sent 'v > 0'
want answered 'v == sent'
want rejected 'v == 0'
want lost 'v == 0'
want duplicated 'v == 0'
want pace_error_pct 'v <= 5'
