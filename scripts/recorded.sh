#!/usr/bin/env bash
# Real programs on a recorded mount, and what power cuts could have left of it; see --help.
set -euo pipefail
exec python3 "$(dirname "$0")/proofs/recorded.py" "$@"
