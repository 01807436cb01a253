#!/bin/sh
# What a pod of a LeaderWorkerSet does (leaderworkerset.yaml). `millrace-pod worker` lets the leader in by ssh; `millrace-pod leader WORDS` waits
# until all workers do, and starts `millrace WORDS` on itself and on them by mpirun. The key lies in $MILLRACE_SSH (id_ed25519 and its .pub).
set -eu
keys=${MILLRACE_SSH:-/etc/millrace/ssh}
port=2222
own=${TMPDIR:-/tmp}/millrace-ssh
mkdir -p "$own"
chmod 700 "$own"
install -m 600 "$keys/id_ed25519" "$own/id"
into="ssh -p $port -i $own/id -o BatchMode=yes -o ConnectTimeout=5 -o LogLevel=ERROR -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null"

worker() {
  install -m 600 "$keys/id_ed25519.pub" "$own/authorized_keys"
  rm -f "$own/host"
  ssh-keygen -q -t ed25519 -N '' -f "$own/host"
  # Nothing of the system's configuration counts: whoever has the key gets in, nobody else, and all in the same environment.
  exec /usr/sbin/sshd -D -e -f /dev/null -p "$port" -h "$own/host" -o AuthorizedKeysFile="$own/authorized_keys" -o PidFile=none \
    -o StrictModes=no -o UsePAM=no -o PasswordAuthentication=no -o KbdInteractiveAuthentication=no \
    -o SetEnv="PATH=$PATH XDG_CACHE_HOME=${XDG_CACHE_HOME:-} MILLRACE_MODELS=${MILLRACE_MODELS:-}"
}

# LWS_LEADER_ADDRESS is NAME.SERVICE.NAMESPACE of this pod; the workers are NAME-1, NAME-2 and so on.
leader() {
  name=${LWS_LEADER_ADDRESS%%.*}
  domain=${LWS_LEADER_ADDRESS#*.}
  hosts=$(hostname)
  number=1
  while [ "$number" -lt "$LWS_GROUP_SIZE" ]; do
    host=$name-$number.$domain
    until $into "$host" true; do sleep 1; done
    hosts=$hosts,$host
    number=$((number + 1))
  done
  # A pod that hangs or is cut off is missed within seconds; then the job ends, and the group begins anew.
  exec mpirun --bind-to none --host "$hosts" -np "$LWS_GROUP_SIZE" --mca plm_rsh_agent "$into" --mca oob_tcp_keepalive_time 1 \
    --mca oob_tcp_keepalive_intvl 1 --mca oob_tcp_keepalive_probes 6 millrace "$@"
}

role=${1:-}
case $role in
  leader | worker) ;;
  *)
    echo "usage: millrace-pod worker | millrace-pod leader serve MODEL ..." >&2
    exit 2
    ;;
esac
shift
"$role" "$@"
