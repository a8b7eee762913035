#!/usr/bin/env bash
# fsx from crates.io on 1 KiB and 4 KiB blocks.
set -euo pipefail
exec python3 "$(dirname "$0")/proofs/fsx.py" "$@"
