#!/usr/bin/env bash
# Runs a command on N ranks over links of a given rate, on one Linux machine.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: scripts/slownet.sh [options] -- COMMAND [ARGUMENTS]

Runs COMMAND on N ranks. Their hosts are network namespaces of this machine, joined by a switch, each with a
link of the given rate. Removes namespaces and processes afterwards, unless killed by SIGKILL. Needs root and
iproute2; does not touch the machine's own network.

  -n, --ranks N       ranks (4)
      --hosts H       hosts that share the ranks evenly, in order (as many as ranks)
  -r, --rate RATE     of each link, in each direction: 100mbit, 1Gbit/s, 1Gbps (bits), ...; none: unshaped (1gbit)
      --delay MS      each packet takes this much longer, in each direction (0). The rate then limits what hosts send
      --burst BYTES   the shaper's bucket. A large one lets short exchanges exceed the rate; one below 64 KB delays
                      every packet of 64 KB. Default: the link's bytes in 1 ms, at least 64 KB
      --congestion C  TCP's congestion control in the hosts (reno; bbr shares links badly among streams that start at once)
  -l, --launcher L    mpi: mpirun over TCP (default)
                      env: COMMAND once per rank with MASTER_ADDR, MASTER_PORT, RANK, WORLD_SIZE, LOCAL_RANK and
                      LOCAL_WORLD_SIZE set as by torchrun, and GLOO_SOCKET_IFNAME: pride then uses c10d.
                      If a rank fails, the others have 5 s to end
      --mpi-arg ARG   one more argument for mpirun; may be repeated
      --counters FILE bytes and packets that each host's interface sent and received, as JSON
  -h, --help          this text

Exit status: COMMAND's (env: the first non-zero one); 2 for a wrong argument; 3 if the network cannot be created.

  scripts/slownet.sh -n 4 -r 1gbit -- build/release/apps/pride/pride bench network
TEXT
}

die() {
  local code=$1
  shift
  printf 'slownet: %s\n' "$*" >&2
  exit "$code"
}

ranks=4 hosts='' rate=1gbit delay=0 burst='' congestion=reno launcher=mpi counters=''
mpi_args=()
while [ $# -gt 0 ]; do
  case $1 in
    -h | --help)
      usage
      exit 0
      ;;
    --)
      shift
      break
      ;;
    -*)
      [ $# -ge 2 ] || die 2 "$1 needs a value, or is unknown; --help lists the options"
      case $1 in
        -n | --ranks) ranks=$2 ;;
        --hosts) hosts=$2 ;;
        -r | --rate) rate=$2 ;;
        --delay) delay=$2 ;;
        --burst) burst=$2 ;;
        --congestion) congestion=$2 ;;
        -l | --launcher) launcher=$2 ;;
        --mpi-arg) mpi_args+=("$2") ;;
        --counters) counters=$2 ;;
        *) die 2 "unknown option $1; --help lists the options" ;;
      esac
      shift 2
      ;;
    *) break ;;
  esac
done
[ $# -gt 0 ] || die 2 "no command given; --help says how"
: "${hosts:=$ranks}"

[[ $congestion =~ ^[a-z0-9_]{1,15}$ ]] || die 2 "--congestion $congestion: not a name"

whole() { [[ $1 =~ ^[1-9][0-9]{0,3}$ ]]; }
whole "$ranks" || die 2 "--ranks $ranks: not a number from 1 to 9999"
whole "$hosts" || die 2 "--hosts $hosts: not a number from 1 to 9999"
[ "$hosts" -le 200 ] || die 2 "--hosts $hosts: 200 at most"
[ $((ranks % hosts)) -eq 0 ] || die 2 "--hosts $hosts: does not divide $ranks ranks"
[[ $launcher =~ ^(mpi|env)$ ]] || die 2 "--launcher $launcher: mpi or env"
[[ $delay =~ ^[0-9]{1,4}$ ]] || die 2 "--delay $delay: not a number of milliseconds"
[[ $burst =~ ^([1-9][0-9]{0,9})?$ ]] || die 2 "--burst $burst: not a number of bytes"

# "1gbit" -> 1000000000
bits_per_second() {
  local number unit
  [[ $1 =~ ^([0-9]{1,6})([kmgKMG]?)(bits?|bits?/s|bps|b/s)$ ]] ||
    die 2 "--rate $1: none, or as 100mbit, 1Gbit/s, 1Gbps"
  number=${BASH_REMATCH[1]} unit=${BASH_REMATCH[2],,}
  case $unit in
    k) number=${number}000 ;;
    m) number=${number}000000 ;;
    g) number=${number}000000000 ;;
  esac
  number=$((10#$number))
  [ "$number" -ge 8000 ] || die 2 "--rate $1: 8kbit at least"
  printf '%s' "$number"
}
if [ "$rate" != none ]; then
  bps=$(bits_per_second "$rate")
  if [ -z "$burst" ]; then
    burst=$((bps / 8 / 1000))
    # tbf cuts a packet that is larger than its bucket, and TCP hands over 64 KB at a time
    [ "$burst" -ge 65536 ] || burst=65536
  fi
fi

[ -z "$counters" ] || : >"$counters" || die 2 "--counters $counters: cannot be written"
[ "$(id -u)" -eq 0 ] || die 3 "not root: namespaces cannot be made"
for tool in ip tc; do
  command -v "$tool" >/dev/null || die 3 "no $tool; it comes with iproute2"
done

# mpirun cuts the path of its remote shell at blanks, and shells read it again
[[ ${TMPDIR:-/tmp} =~ ^[A-Za-z0-9_./+:@%,=-]+$ ]] ||
  die 2 "TMPDIR=$TMPDIR: letters, digits and _./+:@%,=- only, no blanks; set another"

readonly id=pride$$
readonly hub=$id-hub
readonly subnet=10.213.7
work=$(mktemp -d)
made=()
launched='' delayer=''

# Ends the launcher and every process in the namespaces, then removes the namespaces with their veth pairs.
# shellcheck disable=SC2317  # reached through the trap
clean_up() {
  local status=$? ns pids signal
  trap - EXIT
  trap '' INT TERM HUP
  if [ -n "$launched" ]; then
    kill -TERM "$launched" 2>/dev/null || true
    wait "$launched" 2>/dev/null || true
  fi
  for signal in TERM KILL KILL; do
    pids=''
    for ns in "${made[@]}"; do pids+=" $(ip netns pids "$ns" 2>/dev/null | tr '\n' ' ')"; done
    [ -n "${pids// /}" ] || break
    # shellcheck disable=SC2086  # a list
    kill "-$signal" $pids 2>/dev/null || true
    sleep 0.3
  done
  [ -z "$delayer" ] || kill "$delayer" 2>/dev/null || true
  for ns in "${made[@]}"; do ip netns del "$ns" 2>/dev/null || true; done
  rm -rf "$work"
  exit "$status"
}
trap clean_up EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

make() { "$@" 2>"$work/error" || die 3 "$*: $(tr '\n' ' ' <"$work/error")"; }

add_namespace() {
  made+=("$1")  # first, because a signal may arrive as soon as it exists
  make ip netns add "$1"
  make ip -n "$1" link set lo up
}

shape() { # namespace, interface
  [ "$rate" = none ] || make tc -n "$1" qdisc add dev "$2" root tbf rate "${bps}bit" \
    burst "$burst" latency 200ms
}

add_namespace "$hub"
if [ "$delay" != 0 ]; then
  mkfifo "$work/ready"
  names=()
  for ((h = 0; h < hosts; ++h)); do names+=("tun$h"); done
  ip netns exec "$hub" "$(dirname "$0")/delayed_network.py" "$delay" "${names[@]}" >"$work/ready" 2>"$work/error" &
  delayer=$!
  disown  # bash says nothing of its end
  read -r _ <"$work/ready" || die 3 "--delay: $(tr '\n' ' ' <"$work/error")"
fi
make ip -n "$hub" link add switch type bridge
make ip -n "$hub" addr add "$subnet.254/24" dev switch
make ip -n "$hub" link set switch up
for ((h = 0; h < hosts; ++h)); do
  ns=$id-$h
  add_namespace "$ns"
  if [ "$delay" != 0 ]; then
    make ip -n "$hub" link set "tun$h" name net0 mtu 65000 txqueuelen 1000 netns "$ns"
  else
    make ip -n "$hub" link add "port$h" type veth peer name net0 netns "$ns"
    make ip -n "$hub" link set "port$h" master switch up
  fi
  make ip -n "$ns" addr add "$subnet.$((h + 1))/24" dev net0
  make ip -n "$ns" link set net0 up
  make ip netns exec "$ns" sysctl -q -w net.ipv4.tcp_congestion_control="$congestion"
  shape "$ns" net0
  [ "$delay" != 0 ] || shape "$hub" "port$h"
done

counter() { ip netns exec "$id-$1" cat "/sys/class/net/net0/statistics/$2"; }

write_counters() {
  local h separator=''
  {
    printf '['
    for ((h = 0; h < hosts; ++h)); do
      printf '%s{"host": %d, "bytes_sent": %d, "bytes_received": %d, "packets_sent": %d, "packets_received": %d}' \
        "$separator" "$h" "$(counter "$h" tx_bytes)" "$(counter "$h" rx_bytes)" \
        "$(counter "$h" tx_packets)" "$(counter "$h" rx_packets)"
      separator=', '
    done
    printf ']\n'
  } >"$counters"
}

per_host=$((ranks / hosts))
readonly grace=5

run_mpi() {
  local h list=''
  for ((h = 0; h < hosts; ++h)); do list+=",$subnet.$((h + 1)):$per_host"; done
  # mpirun's remote shell: HOST COMMAND... Each host has its own /dev/shm: Open MPI names files there by
  # machine and local rank, which are equal on two of our hosts.
  cat >"$work/agent" <<TEXT
#!/bin/sh
host=\$1
shift
h=\$((\${host##*.} - 1))
# the daemons would otherwise make the same folders at the same time
mkdir -p "$work/\$h"
exec ip netns exec "$id-\$h" env TMPDIR="$work/\$h" sh -c "mount -t tmpfs none /dev/shm && \$*"
TEXT
  chmod +x "$work/agent"
  ip netns exec "$hub" env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
    mpirun --mca plm_rsh_agent "$work/agent" --host "${list#,}" -n "$ranks" \
    --bind-to none --mca mpi_yield_when_idle 1 --mca btl_vader_single_copy_mechanism none \
    --mca pml ob1 --mca btl tcp,self,vader --mca btl_tcp_if_include net0 \
    --mca oob_tcp_if_include "$subnet.0/24" "${mpi_args[@]}" "$@"
}

# Returns some seconds after a rank has failed even if others still run: clean_up ends those.
run_env() {
  local r host left enough=0 code status=0
  mkfifo "$work/ended"
  exec 3<>"$work/ended"
  for ((r = 0; r < ranks; ++r)); do
    host=$((r / per_host))
    {
      code=0
      ip netns exec "$id-$host" env MASTER_ADDR="$subnet.1" MASTER_PORT=29400 RANK="$r" \
        WORLD_SIZE="$ranks" LOCAL_RANK=$((r % per_host)) LOCAL_WORLD_SIZE="$per_host" \
        GLOO_SOCKET_IFNAME=net0 "$@" 3>&- || code=$?
      printf '%d\n' "$code" >&3
    } &
  done
  for ((left = ranks; left > 0; --left)); do
    if [ "$status" -eq 0 ]; then
      read -r code <&3
      [ "$code" -eq 0 ] || enough=$((SECONDS + grace))
      status=$code
    elif [ "$enough" -le "$SECONDS" ] || ! read -r -t $((enough - SECONDS)) code <&3; then
      break
    fi
  done
  return "$status"
}

status=0
# in the background, so that a signal is handled at once
case $launcher in
  mpi) run_mpi "$@" <&0 & ;;
  env) run_env "$@" <&0 & ;;
esac
launched=$!
wait "$launched" || status=$?
launched=''
[ -z "$counters" ] || write_counters
exit "$status"
