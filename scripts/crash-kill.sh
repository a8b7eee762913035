#!/usr/bin/env bash
# 200 kills of the mount in mid-write; see --help.
set -euo pipefail
exec python3 "$(dirname "$0")/proofs/crash_kill.py" "$@"
