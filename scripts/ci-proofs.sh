#!/usr/bin/env bash
# The short form of the proofs, for CI: each takes seconds. `make proofs` runs the long form.
set -euo pipefail
cd "$(dirname "$0")"
status=0
./interchange.sh --quick || status=1
./journal.sh --quick || status=1
# The same loads and moments every time, so that a change is judged by itself; the long form draws new ones.
./crash-kill.sh --seed ci --runs 16 --seconds 2 || status=1
./rewrites.sh --seed ci --rounds 1 --sample 8 --seconds 2 || status=1
./grow.sh --seed ci --runs 1 || status=1
./stack.sh --seed ci --runs 20 --seconds 2 || status=1
./nbd.sh --seed ci --kills 2 || status=1
./memory.sh --bytes $((256 << 20)) --cache $((16 << 20)) || status=1
exit $status
