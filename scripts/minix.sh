#!/usr/bin/env bash
# MinixLLD against the kernel's Minix: the same operations give the same trees; see --help.
set -euo pipefail
exec python3 "$(dirname "$0")/proofs/minix.py" "$@"
