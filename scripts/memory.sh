#!/usr/bin/env bash
# Resident memory while gigabytes are written.
set -euo pipefail
exec python3 "$(dirname "$0")/proofs/memory.py" "$@"
