#!/usr/bin/env bash
# Volumes that grow while they are mounted and used, and mounts killed in the middle of it; see --help.
set -euo pipefail
exec python3 "$(dirname "$0")/proofs/grow.py" "$@"
