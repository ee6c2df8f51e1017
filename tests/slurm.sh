#!/usr/bin/env bash
# A Slurm of one node in a folder, for tests: on the loopback, without systemd, cgroups or accounting.
#   slurm.sh start FOLDER [CPUS]    then: eval "$(slurm.sh env FOLDER)"; sinfo
#   slurm.sh stop FOLDER
# Debian: apt-get install --no-install-recommends slurmctld slurmd slurm-client munge
set -euo pipefail
action=${1:?start, stop or env}
root=$(realpath -m "${2:?folder}")
cpus=${3:-2}

environment() { printf 'export SLURM_CONF=%q\n' "$root/slurm.conf"; }

ports() { python3 - <<'PY'
import socket

sockets = [socket.socket() for _ in range(2)]
for probe in sockets:
    probe.bind(("127.0.0.1", 0))
print(*(probe.getsockname()[1] for probe in sockets))
PY
}

start() {
  umask 022
  mkdir -p "$root"/{munge/run,state,spool,log}
  chmod 0711 "$root/munge" "$root/munge/run"  # munged wants its socket to be reachable
  (umask 077; head -c 1024 /dev/urandom > "$root/munge/key")
  # --force: folders above, such as /tmp, may be writable by all
  munged --force --num-threads=1 --key-file="$root/munge/key" --socket="$root/munge/run/socket" \
    --pid-file="$root/munge/pid" --log-file="$root/munge/log" --seed-file="$root/munge/seed"
  local host user memory control node
  host=$(hostname -s)
  user=$(id -un)
  memory=$(awk '/MemTotal/ {print int($2 / 1024 * 0.9)}' /proc/meminfo)
  read -r control node < <(ports)
  # proctrack/linuxproc would leave the processes of a requeued job running. cred_expire: a requeued
  # job starts after seconds, not minutes.
  cat > "$root/slurm.conf" <<CONF
ClusterName=sandbox
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$control
SlurmdPort=$node
SlurmUser=$user
SlurmdUser=$user
AuthType=auth/munge
AuthInfo=socket=$root/munge/run/socket,cred_expire=5
StateSaveLocation=$root/state
SlurmdSpoolDir=$root/spool
SlurmctldPidFile=$root/slurmctld.pid
SlurmdPidFile=$root/slurmd.pid
SlurmctldLogFile=$root/log/slurmctld.log
SlurmdLogFile=$root/log/slurmd.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
MpiDefault=none
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SchedulerParameters=sched_interval=2,bf_interval=2,batch_sched_delay=1
KillWait=30
ReturnToService=2
SlurmdParameters=config_overrides
PropagateResourceLimits=NONE
DefMemPerCPU=256
NodeName=$host NodeAddr=127.0.0.1 CPUs=$cpus RealMemory=$memory State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
CONF
  eval "$(environment)"
  slurmctld -f "$root/slurm.conf"
  slurmd -f "$root/slurm.conf"
  for _ in $(seq 60); do
    [ "$(sinfo --noheader --format=%T 2>/dev/null)" = idle ] && return
    sleep 0.5
  done
  tail -n 20 "$root"/log/*.log >&2
  echo "slurm.sh: the node did not become idle" >&2
  return 1
}

end() {  # the process of a file, if it has the name
  local id
  id=$(cat "$1" 2>/dev/null) || return 0
  [ "$(cat "/proc/$id/comm" 2>/dev/null)" = "$2" ] || return 0
  kill "$id"
  for _ in $(seq 60); do
    kill -0 "$id" 2>/dev/null || return 0
    sleep 0.25
  done
  kill -9 "$id"
}

stop() {
  eval "$(environment)"
  timeout 10 scancel --user="$(id -un)" 2>/dev/null || true
  for _ in $(seq 80); do
    [ -z "$(timeout 5 squeue --noheader 2>/dev/null)" ] && break
    sleep 0.5
  done
  end "$root/slurmd.pid" slurmd
  end "$root/slurmctld.pid" slurmctld
  end "$root/munge/pid" munged
}

case $action in
  start) start ;;
  stop) stop ;;
  env) environment ;;
  *) exit 2 ;;
esac
