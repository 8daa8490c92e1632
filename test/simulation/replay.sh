#!/usr/bin/env bash
# replay.sh PROGRAM SEED: fails unless the program replays this seed and no other.
set -euo pipefail
output=$("$1" --seed "$2")
grep -q "^seed $2: " <<<"$output" && [[ $output != *"seeds from"* ]]
