#!/usr/bin/env bash
# Figures of the paper on I/O shepherding; see --help.
set -euo pipefail
exec python3 "$(dirname "$0")/proofs/shepherd_figures.py" "$@"
