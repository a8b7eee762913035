#!/usr/bin/env bash
# BPFS on persistent memory of a machine under qemu that is killed: what had returned is there; see --help.
set -euo pipefail
exec python3 "$(dirname "$0")/proofs/dax.py" "$@"
