#!/usr/bin/env bash
# Random programs against the models, in numbers that CI's few stand for: file systems, stores, graphs and protocols.
#
# Usage: scripts/models.sh [CASES]      programs for each property (5,000)
set -euo pipefail
cd "$(dirname "$0")/.."
export PROPTEST_CASES=${1:-5000}
cargo test --release --no-fail-fast -p fstitch-fs --test fs
cargo test --release --no-fail-fast -p fstitch-bpfs --test bpfs -- model:: library::
cargo test --release --no-fail-fast -p fstitch-minixlld --test minixlld model::
cargo test --release --no-fail-fast -p fstitch-patch -p fstitch-lld -p fstitch-shepherd --lib
# What CI takes samples of.
FSTITCH_WHOLE=1 FSTITCH_CRASH_SEEDS=0..48 cargo test --release --no-fail-fast -p fstitch-fs --test check --test crash
FSTITCH_CUTS=1 cargo test --release --no-fail-fast -p fstitch-fs --test ext4
echo "PASS models: $PROPTEST_CASES programs for each property"
