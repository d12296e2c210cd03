#!/usr/bin/env bash
# Peak memory of `megatron preprocess` at 50 MB, 200 MB and 1 GB of JSON lines, and its speed there: a text repeated, so
# the speed is that of steady state, not of a first pass.
#
#   bench/preprocess_memory.sh MEGATRON CORPUS.jsonl TOKENIZER_DIRECTORY [WORKERS]
set -euo pipefail
if [[ ${1:-} =~ ^(-h|--help)$ ]]; then sed -n '2,5s/^# \{0,1\}//p' "$0"; exit 0; fi
[ $# -ge 3 ] || { sed -n '5s/^# *//p' "$0" >&2; exit 2; }
megatron=$1 corpus=$2 tokenizer=$3 workers=${4:-2}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for megabytes in 50 200 1000; do
  while cat "$corpus"; do :; done 2> /dev/null | head -c ${megabytes}000000 > "$folder/in.jsonl" || true
  sed -i '$ d' "$folder/in.jsonl" # the last line is cut
  "$megatron" bench preprocess --input "$folder/in.jsonl" --tokenizer-model "$tokenizer" --workers "$workers" \
    --rounds 1 --folder "$folder" 2> /dev/null
done
