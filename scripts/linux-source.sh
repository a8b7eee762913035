#!/usr/bin/env bash
# A part of Debian's linux-source package: unpacked, compared, deleted.
set -euo pipefail
exec python3 "$(dirname "$0")/proofs/linux_source.py" "$@"
