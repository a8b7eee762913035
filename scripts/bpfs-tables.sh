#!/usr/bin/env bash
# The tables of docs/bpfs-results.md, measured anew; see --help.
set -euo pipefail
exec python3 "$(dirname "$0")/proofs/bpfs_tables.py" "$@"
