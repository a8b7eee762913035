#!/usr/bin/env bash
# All case studies, one after the other, and their numbers into docs/studies.md: run.sh [--quick] [--runs N] [--states N].
set -uo pipefail
cd "$(dirname "$0")"
rm -rf ../target/studies
status=0
for study in gzip versions imap sqlite dpkg; do
    echo "== $study"
    python3 "$study.py" "$@" || status=1
done
python3 report.py || status=1
exit $status
