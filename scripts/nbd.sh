#!/usr/bin/env bash
# Programs that others have written, and the kernel's ext4, on a volume of a logical disk over NBD; see --help.
set -euo pipefail
exec python3 "$(dirname "$0")/proofs/nbd.py" "$@"
