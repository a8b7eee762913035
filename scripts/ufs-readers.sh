#!/usr/bin/env bash
# UFS volumes that we made, or that makefs made and we changed, are read by others: the kernel under qemu, dissect.ffs, sleuthkit; see --help.
set -euo pipefail
exec python3 "$(dirname "$0")/proofs/ufs_readers.py" "$@"
