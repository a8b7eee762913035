#!/usr/bin/env bash
# Files rewritten, made and removed at once, and hard-link snapshots, beside the flusher; see --help.
set -euo pipefail
exec python3 "$(dirname "$0")/proofs/rewrites.py" "$@"
