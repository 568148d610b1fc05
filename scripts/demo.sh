#!/usr/bin/env bash
# Trains the same small GPT on the same batches with four methods, and prints the loss, the bytes, and the
# time of a step on slow networks of each.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
  cat <<'TEXT'
usage: scripts/demo.sh [FLAG...]

Installs missing packages and builds pride. Then trains a small GPT by adamw, lion, dlion-vote and
dlion-muon, with 4 workers (threads of one process), on the compiler's own headers as text. Prints two
tables:
  - validation loss, and bytes that a worker sends per step
  - time of a step at 100 Mbit/s and 1 Gbit/s, also for gradients in bfloat16. As root, with ip and tc,
    it is measured on ranks in network namespaces; otherwise `pride plan` predicts it (marked)
Takes four to nine minutes on two cores after the build (docs/quick_start.md has the build's time).

Flags are those of `pride sweep` for lab/experiments/demo.toml, except --out: --set steps=50 shortens the
runs. Results are in out/demo; finished runs are not repeated. out/demo/time.svg shows loss against
time at 100 Mbit/s.

Environment: PRIDE_TEST_JOBS (default 2) is the number of compilers at a time.
TEXT
}

if [ "${1:-}" = -h ] || [ "${1:-}" = --help ]; then
  usage
  exit
fi
readonly pride=build/release/apps/pride/pride
readonly rates=(100mbit 1gbit)
readonly rows=(adamw lion lion:dense=bf16 dlion-vote dlion-muon)

# number KEY: prints the first number of "KEY" in the JSON on standard input
number() { sed -n "/\"$1\":/{s/.*\"$1\": *\([0-9.e+-]*\).*/\1/p;q}"; }

can_measure() {
  [ "$(id -u)" -eq 0 ] && command -v ip tc mpirun >/dev/null &&
    scripts/slownet.sh -n 2 -r 100mbit -- "$pride" info --json >/dev/null 2>&1
}

# measured_ms RATE METHOD[:OPTION]: prints the milliseconds of a step of 4 ranks, each on its own host
measured_ms() {
  local option=() method=${2%%:*}
  [ "$method" = "$2" ] || option=(--method-opt "${2#*:}")
  # mpirun's messages matter only if the run fails
  if ! scripts/slownet.sh -n 4 -r "$1" -- "$pride" train --task lm --batch 8 --steps 10 \
    --eval-batches 1 --method "$method" "${option[@]}" --quiet --json \
    >out/demo/network.json 2>out/demo/network.err; then
    cat out/demo/network.err >&2
    return 1
  fi
  number step_ms <out/demo/network.json
}

# predicted_ms RATE METHOD[:OPTION]: the same from the counted bytes and the runs' time of backward
predicted_ms() {
  "$pride" plan --params "$params" --backward "${backward_ms}ms" --bandwidth "$1" --latency 100us \
    --world 4 --methods "$2" --json | number overlapped_s | awk '{ printf "%f", 1000 * $1 }'
}

# Loss against seconds at the first rate, from the runs' own losses: a chart of `pride report`.
draw() {
  local row color=0 longest=0 lowest=99 highest=0 series='' points
  for row in "${rows[@]}"; do
    local metrics=(out/demo/runs/"$row"-seed*/metrics.jsonl)
    [ -e "${metrics[0]}" ] || continue  # lion:dense=bf16 has no run
    points=$(grep '"type":"step"' "${metrics[0]}" | awk -F'[:,]' -v ms="${ms[$row ${rates[0]}]}" '
      { for (i = 1; i < NF; ++i) if ($i == "\"loss\"") sum += $(i + 1) }
      NR % 10 == 0 { x = x (x ? "," : "") NR * ms / 1000; y = y (y ? "," : "") sum / 10; sum = 0 }
      END { print NR * ms / 1000, x, y }')
    read -r seconds x y <<<"$points"
    series+="${series:+,}{\"color\":$color,\"name\":\"$row\",\"spread\":[],\"x\":[$x],\"y\":[$y]}"
    read -r longest lowest highest < <(awk -v a="$longest" -v s="$seconds" -v y="$y" -v l="$lowest" \
      -v h="$highest" 'BEGIN { n = split(y, v, ","); for (i = 1; i <= n; ++i) {
        if (v[i] < l) l = v[i]; if (v[i] > h) h = v[i] } print (s > a ? s : a), l, h }')
    color=$((color + 1))
  done
  printf '{"id":"time","note":"%s","points":false,"title":"Training loss at 100 Mbit/s","x":{"label":"seconds","log2":false,"max":%s,"min":0,"ticks":[]},"y":{"label":"training loss","log2":false,"max":%s,"min":%s,"ticks":[]},"series":[%s]}\n' \
    "Steps of the demo's runs, at the $how time of a step." "$longest" "$highest" "$lowest" \
    "$series" >out/demo/time.json
  "$pride" report --from out/demo/time.json --svg out/demo/time.svg
}

network_table() {
  local rate row slowest=0
  declare -A ms
  local params backward_ms how=predicted
  local summary=(out/demo/runs/adamw-seed*/summary.json)
  params=$(number parameters <"${summary[0]}")
  # backward of one worker with its own core; the demo's threads share cores
  backward_ms=$(awk -v s="$(number backward_s <"${summary[0]}")" -v n="$(number steps_run <"${summary[0]}")" \
    -v cores="$(nproc)" 'BEGIN { share = 4 / cores; print 1000 * s / n / (share > 1 ? share : 1) }')
  ! can_measure || how=measured
  for rate in "${rates[@]}"; do
    for row in "${rows[@]}"; do
      [ -t 2 ] && printf '\r\033[K%s at %s' "$row" "$rate" >&2
      ms[$row $rate]=$("${how}_ms" "$rate" "$row")
      slowest=$(awk -v a="$slowest" -v b="${ms[$row $rate]}" 'BEGIN { print (a > b ? a : b) }')
    done
  done
  [ -t 2 ] && printf '\r\033[K' >&2
  if [ $how = measured ]; then
    printf '\nMilliseconds of a step, 4 ranks on links of their own (measured here, in network namespaces on %s cores):\n\n' "$(nproc)"
  else
    printf '\nMilliseconds of a step, 4 ranks on links of their own (predicted by pride plan: not root, or no ip, tc or mpirun):\n\n'
  fi
  printf '    %-16s %11s %9s\n' method '100 Mbit/s' '1 Gbit/s'
  for row in "${rows[@]}"; do
    printf '    %-16s %11.0f %9.0f  %s\n' "$row" "${ms[$row 100mbit]}" "${ms[$row 1gbit]}" \
      "$(awk -v m="${ms[$row 100mbit]}" -v all="$slowest" \
        'BEGIN { n = int(40 * m / all + 0.5); while (n-- > 0) printf "#" }')"
  done
  draw
  printf '\nThe bars are those at 100 Mbit/s. Loss against time there: out/demo/time.svg\n'
}

scripts/setup.sh
cmake --preset release >/dev/null
cmake --build build/release --parallel "${PRIDE_TEST_JOBS:-2}" --target pride
"$pride" sweep lab/experiments/demo.toml --out out/demo "$@" </dev/null
case " $* " in *" --list "* | *" --json "*) exit ;; esac
network_table
