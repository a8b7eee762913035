#!/usr/bin/env bash
# Dirty ext3 journals, written by the kernel and by debugfs: replayed by us, by e2fsck and by the kernel, with one result.
set -euo pipefail
exec python3 "$(dirname "$0")/proofs/journal.py" "$@"
