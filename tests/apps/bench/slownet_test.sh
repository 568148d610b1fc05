#!/usr/bin/env bash
# scripts/slownet.sh makes nodes that reach each other, forwards exit codes, shapes, and cleans up.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
slownet=$1

readonly skip=77
if [ "$(id -u)" -ne 0 ] || ! command -v ip >/dev/null || ! command -v tc >/dev/null; then
  echo "skipped: needs root and iproute2"
  exit $skip
fi
if ! ip netns add "pridetest$$" 2>/dev/null; then
  echo "skipped: no network namespaces can be made here"
  exit $skip
fi
ip netns del "pridetest$$"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0
expect() { # what, wanted, got
  [ "$2" = "$3" ] && return
  echo "FAILED: $1: wanted '$2', got '$3'"
  failures=$((failures + 1))
}
namespaces() { ip netns list | grep -c '^pride[0-9]*-' || true; }

before=$(namespaces)

# four ranks on two nodes: variables as torchrun sets them, and the first node is reached by its
# address
# shellcheck disable=SC2016
"$slownet" -n 4 --hosts 2 -r 100mbit -l env --counters "$work/counters" -- \
  sh -c 'printf "%s %s %s %s\n" "$RANK" "$WORLD_SIZE" "$LOCAL_RANK" "$LOCAL_WORLD_SIZE"
    [ "$RANK" != 3 ] || ip route get "$MASTER_ADDR" | grep -q "dev net0"' >"$work/out"
expect "ranks" "0 4 0 2;1 4 1 2;2 4 0 2;3 4 1 2;" "$(sort "$work/out" | tr '\n' ';')"
expect "hosts in the counters" 2 "$(grep -o '"host"' "$work/counters" | wc -l)"

status=0
# shellcheck disable=SC2016
"$slownet" -n 2 -l env -- sh -c 'exit $((7 * RANK))' || status=$?
expect "exit status" 7 $status

# a rank that fails ends the others, after some seconds
begun=$SECONDS
status=0
# shellcheck disable=SC2016
"$slownet" -n 3 -l env -- sh -c '[ "$RANK" != 1 ] || exit 9; exec sleep 100' || status=$?
expect "exit status with ranks left" 9 $status
expect "ended soon" yes "$([ $((SECONDS - begun)) -lt 30 ] && echo yes)"

# both ends of a link are shaped
# shellcheck disable=SC2016
"$slownet" -n 1 -r 80Mbit/s -l env -- sh -c 'tc qdisc show dev net0
  own=$(ip netns identify $$)  # another network may be there
  hub=${own%-0}-hub
  tc -n "$hub" qdisc show dev port0' >"$work/tc" 2>"$work/error" || true
expect "shaped ends" 2 "$(grep -c 'tbf .* rate 80Mbit' "$work/tc" || true)"
expect "room for a packet of 64 KB" 2 "$(grep -cE 'burst (64Kb|65536b|65536)' "$work/tc" || true)"

if command -v mpirun >/dev/null; then
  "$slownet" -n 2 -r 100mbit -- cat /sys/class/net/net0/address >"$work/out" 2>"$work/error" || true
  expect "hosts under mpirun" 2 "$(sort -u "$work/out" | wc -l)"
fi

# a connection takes a round trip
if [ -w /dev/net/tun ]; then
  cat >"$work/connect.py" <<'TEXT'
import os, socket, time
address = os.environ["MASTER_ADDR"], 29401
if os.environ["RANK"] == "0":
    socket.create_server(address).accept()[0].recv(1)
while os.environ["RANK"] == "1":
    try:
        begun = time.monotonic()
        with socket.create_connection(address):
            print(time.monotonic() - begun >= 0.06)
        break
    except ConnectionRefusedError:  # not yet there
        pass
TEXT
  "$slownet" -n 2 -r none --delay 30 -l env -- python3 "$work/connect.py" >"$work/out" 2>"$work/error" || true
  expect "connections over 60 ms" True "$(cat "$work/out")"
fi

for wrong in '-n 0' '-n 3 --hosts 2' '-r 1parsec' '-r 10' '-r 1GB' '-r 0100bit' '--burst x' '--delay x' '--counters /no/such/folder/file' '-l ssh' '--no-such 1'; do
  status=0
  # shellcheck disable=SC2086
  "$slownet" $wrong -- true 2>"$work/error" || status=$?
  expect "status of $wrong" 2 $status
done

mkdir "$work/with blank"
status=0
TMPDIR="$work/with blank" "$slownet" -n 1 -l env -- true 2>"$work/error" || status=$?
expect "status of a TMPDIR with a blank" 2 $status
expect "folders left in it" '' "$(ls "$work/with blank")"

# a signal while ranks run: their processes end too
# shellcheck disable=SC2016
"$slownet" -n 2 -l env -- sh -c 'echo $$ >"$1/rank$RANK"; exec sleep 1000' - "$work" &
pid=$!
for _ in $(seq 200); do
  [ -s "$work/rank0" ] && [ -s "$work/rank1" ] && break
  sleep 0.1
done
kill -TERM $pid
status=0
wait $pid || status=$?
expect "status after SIGTERM" 143 $status
for rank in 0 1; do
  # a dead process may be a zombie for a while
  expect "rank $rank after SIGTERM" '' \
    "$(grep '^State' "/proc/$(cat "$work/rank$rank")/status" 2>/dev/null | grep -v zombie || true)"
done
expect "namespaces left" "$before" "$(namespaces)"
exit $((failures > 0))
