#!/usr/bin/env bash
# The smallest journal under four writers at once: no deadlock, bounded memory, a clean volume.
set -euo pipefail
exec python3 "$(dirname "$0")/proofs/journal_stress.py" "$@"
