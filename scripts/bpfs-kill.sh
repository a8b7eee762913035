#!/usr/bin/env bash
# 100 kills of a mount of BPFS: everything that had returned is there; see --help.
set -euo pipefail
exec python3 "$(dirname "$0")/proofs/bpfs_kill.py" "$@"
