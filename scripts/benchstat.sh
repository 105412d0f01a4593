#!/usr/bin/env bash
# Compares outputs of `make bench`: scripts/benchstat.sh OLD NEW
set -euo pipefail
here=$(dirname "${BASH_SOURCE[0]}")
exec go tool -modfile="$here/tools/go.mod" benchstat "$@"
