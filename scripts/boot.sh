#!/usr/bin/env bash
# A Debian root made by `mkfs ext4 -d` is booted under qemu, and its power is cut in mid-boot; see --help.
set -euo pipefail
exec python3 "$(dirname "$0")/proofs/boot.py" "$@"
