#!/usr/bin/env bash
# Trees of every kind of file between our ext2 and the kernel's, both ways, for all block and inode sizes.
set -euo pipefail
exec python3 "$(dirname "$0")/proofs/interchange.py" "$@"
