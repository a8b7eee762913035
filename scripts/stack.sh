#!/usr/bin/env bash
# 100 kills of a stack of volumes in mid-write; see --help.
set -euo pipefail
exec python3 "$(dirname "$0")/proofs/stack.py" "$@"
