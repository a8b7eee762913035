#!/usr/bin/env bash
# How many files of a tree are whole on one disk under d-graid; see --help.
set -euo pipefail
exec python3 "$(dirname "$0")/proofs/dgraid.py" "$@"
