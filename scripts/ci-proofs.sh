#!/usr/bin/env bash
# The short form of the proofs, for CI.
set -euo pipefail
