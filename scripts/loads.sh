#!/usr/bin/env bash
# Real programs side by side on volumes of every kind, mounted with all defaults, for as long as is asked; see --help.
set -euo pipefail
exec python3 "$(dirname "$0")/proofs/loads.py" "$@"
