#!/usr/bin/env bash
# Seconds from launch to the end of the first training step (a model of 10 million parameters; the aim is 0.5 s),
# and of `megatron train --help`, which lists every flag (50 ms).
#   bench/launch.sh [PROGRAM [RUNS]]     PROGRAM: default build/release/megatron; RUNS: default 5
# A run before those makes the data's index and, on a quiet machine, keeps the matrix-product peak; where it does not, each run
# measures it, which takes 0.6 s and is said.
# Prints each run's wall seconds, from before the process starts until its first step is logged or it has ended, and medians.
set -euo pipefail
export LC_ALL=C.UTF-8

if [[ ${1:-} =~ ^(-h|--help)$ ]]; then sed -n '2,5s/^# \{0,1\}//p' "$0"; exit 0; fi
root=$(cd "$(dirname "$0")/.." && pwd)
program=${1:-$root/build/release/megatron}
runs=${2:-5}
[ -x "$program" ] || { echo "launch: $program does not exist; build it: ninja -C build/release megatron" >&2; exit 1; }
[[ $runs =~ ^[1-9][0-9]*$ ]] || { echo "launch: RUNS is '$runs'; give a number such as 5" >&2; exit 1; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# 2000 documents of 512 token ids.
awk 'BEGIN { for (d = 0; d < 2000; ++d) { printf "{\"text\": \"";
  for (t = 0; t < 512; ++t) printf "%d ", (d * 7919 + t * t * 31) % 8191; print "\"}" } }' >"$work/ids.jsonl"
"$program" preprocess --input "$work/ids.jsonl" --output-prefix "$work/data" --tokenizer-type NullTokenizer \
  --vocab-size 8192 --append-eod >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }

# 8192 x 320 + 256 x 320 + 6 x 12 x 320^2: 10.1 million.
first_step() {
  "$program" train --num-layers 6 --hidden-size 320 --num-attention-heads 5 --seq-length 256 --vocab-size 8192 \
    --micro-batch-size 1 --train-iters 1 --log-interval 1 --lr 1e-3 --data-path "$work/data_text_document" \
    --tokenizer-type NullTokenizer --split 1,0,0 2>&1 |
    while IFS= read -r line; do
      case $line in *"iteration "*"1/1 "*) echo "$EPOCHREALTIME" >"$work/stepped" ;; esac
      echo "$line" >>"$work/log"
    done
}

times=()
for ((run = 0; run <= runs; ++run)); do
  rm -f "$work/stepped"
  begin=$EPOCHREALTIME
  first_step || { cat "$work/log" >&2; exit 1; }
  [ -s "$work/stepped" ] || { cat "$work/log" >&2; echo "launch: no step was logged" >&2; exit 1; }
  [ "$run" -gt 0 ] || continue          # that one made the index and measured the peak
  seconds=$(awk -v a="$begin" -v b="$(<"$work/stepped")" 'BEGIN { printf "%.3f", b - a }')
  times+=("$seconds")
  origin=$(grep -o 'GEMM peak of this machine.*' "$work/log" | tail -1 | grep -o 'measured now.*' || true)
  echo "run $run: $seconds s from launch to the first step${origin:+ (the GEMM peak was $origin)}"
done
median() { printf '%s\n' "$@" | sort -n | awk '{ t[NR] = $1 } END { print t[int((NR + 1) / 2)] }'; }
printf 'median: %.3f s\n' "$(median "${times[@]}")"

times=()
for ((run = 0; run < 2 * runs; ++run)); do
  begin=$EPOCHREALTIME
  "$program" train --help >"$work/help"
  times+=("$(awk -v a="$begin" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f", 1000 * (b - a) }')")
done
printf -- '--help: median %.1f ms of %d runs\n' "$(median "${times[@]}")" "${#times[@]}"
