#!/usr/bin/env bash
# 100 runs of disks that die and are replaced, and of kill -9, under load; see --help.
set -euo pipefail
exec python3 "$(dirname "$0")/proofs/pull.py" "$@"
