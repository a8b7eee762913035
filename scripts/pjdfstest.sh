#!/usr/bin/env bash
# pjdfstest from crates.io; failures beyond docs/pjdfstest-expected fail.
set -euo pipefail
exec python3 "$(dirname "$0")/proofs/pjdfstest.py" "$@"
