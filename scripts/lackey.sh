#!/usr/bin/env bash
# The gate of BPFS counts what valgrind sees stored, within 1 %; see --help.
set -euo pipefail
exec python3 "$(dirname "$0")/proofs/lackey.py" "$@"
