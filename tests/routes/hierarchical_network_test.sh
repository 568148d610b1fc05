#!/usr/bin/env bash
# Two nodes of eight ranks in network namespaces: the hierarchical route gives the bits of the sharded one, and
# the interfaces count its cost, at least three times less.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
slownet=$1 program=$2

readonly skip=77
if [ "$(id -u)" -ne 0 ] || ! command -v ip >/dev/null || ! command -v tc >/dev/null || ! command -v mpirun >/dev/null; then
  echo "skipped: needs root, iproute2 and mpirun"
  exit $skip
fi
if ! ip netns add "pridetest$$" 2>/dev/null; then
  echo "skipped: no network namespaces can be made here"
  exit $skip
fi
ip netns del "pridetest$$"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
readonly per_node=8 steps=3 coords=4000000
failures=0

# Bytes sent by the first node's interface in a run; the program's output in $work/NAME.
measure() { # name, steps, sharded|hierarchical
  "$slownet" -n $((2 * per_node)) --hosts 2 -r none --counters "$work/counters" -- \
    "$program" dlion-vote $per_node "$2" $coords "$3" >"$work/$1"
  sed 's/.*"host": 0, "bytes_sent": \([0-9]*\).*/\1/' "$work/counters" >"$work/$1.card"
}
word() { awk -v key="$2" '$1 == key { print $2 }' "$work/$1"; }
claim() { # what, awk condition
  awk "BEGIN { exit !($2) }" && return
  echo "FAILED: $1: $2"
  failures=$((failures + 1))
}

# launcher and start-up use the same interfaces: a run without steps, and one by each route
measure nothing 0 sharded
measure one $steps sharded
measure two $steps hierarchical
start=$(cat "$work/nothing.card")
card_one=$(($(cat "$work/one.card") - start)) card_two=$(($(cat "$work/two.card") - start))
cost_two=$(word two off_node)
# on the sharded route half of the peers and a bit more are on the other node: 8 of a rank's 15
cost_one=$(($(word one cost) * 8 / 15))

echo "bytes that left the first node in $steps steps of $coords coordinates, counted by its card and by the cost:"
echo "sharded:      $card_one  $cost_one"
echo "hierarchical: $card_two  $cost_two"
echo "start-up:     $start"
claim "hashes" "\"$(word one hash)\" == \"$(word two hash)\" && \"$(word one hash)\" != \"\""
claim "counted by the communicator" "$(word two sent) == $(word two cost) && $(word one sent) == $(word one cost)"
claim "three times fewer bytes" "$card_one >= 3 * $card_two"
# headers of TCP/IP and Ethernet are 66 bytes in 1514 at most, acknowledgements come on top
claim "the card counts the cost" "$card_two >= $cost_two && $card_two <= 1.10 * $cost_two"
claim "the same on the sharded route" "$card_one >= $cost_one && $card_one <= 1.10 * $cost_one"
exit $((failures > 0))
