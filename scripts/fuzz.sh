#!/usr/bin/env bash
# Fuzzes every decoder for FUZZTIME (default 20s) each, one after the other: go test
# takes one fuzz target at a time.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

found=0
while IFS=: read -r file name; do
  found=1
  dir=./$(dirname "$file")
  echo "fuzz $dir $name"
  go test -run '^$' -fuzz "^${name}\$" -fuzztime "${FUZZTIME:-20s}" "$dir"
done < <(git ls-files '*_test.go' | xargs grep -oE '^func Fuzz[A-Za-z0-9_]+' | sed 's/:func /:/' | sort)

if ((found == 0)); then
  echo "no fuzz target found" >&2
  exit 1
fi
