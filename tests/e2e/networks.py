"""Hosts that are network namespaces of this machine, with a rate and a delay between them and a cap on the memory of each: a cluster
for tests and measurements. Takes root, `ip` and `tc`; unavailable() says what is missing."""
import os
import pathlib
import shlex
import shutil
import subprocess
import tempfile

from harness import MILLRACE

RELAY = os.environ.get("MILLRACE_RELAY", str(pathlib.Path(MILLRACE).parent / "tools/network-relay"))
CGROUPS = pathlib.Path("/sys/fs/cgroup")
MTU = 9000


def call(*words):
    subprocess.run([str(word) for word in words], check=True, capture_output=True, text=True)


def unavailable():
    """Why there can be no such hosts here; None: there can."""
    if os.geteuid() != 0:
        return "network namespaces take root"
    if shutil.which("ip") is None or shutil.which("tc") is None:
        return "there is no ip or tc (Debian: iproute2)"
    try:
        with Network(2, gbit=1):
            return None
    except subprocess.CalledProcessError as failure:
        return f"this system has no network namespaces, veth or tbf: {failure.stderr.strip()}"


def memory_group(name, limit_bytes):
    """A memory cgroup's folder, in whichever version this system has; None where it has none that can be made."""
    unified = (CGROUPS / "cgroup.controllers").exists()
    folder = (CGROUPS if unified else CGROUPS / "memory") / name
    try:
        folder.mkdir()
        (folder / ("memory.max" if unified else "memory.limit_in_bytes")).write_text(str(limit_bytes))
        return folder
    except OSError:
        if folder.exists():
            folder.rmdir()
        return None


class Network:
    """`gbit`: of each host's way out; None: as fast as this machine. `delay_ms`: one way. `memory`: bytes of each host."""

    def __init__(self, hosts, gbit=None, delay_ms=0, memory=None):
        self.count, self.gbit, self.delay_ms, self.memory = hosts, gbit, delay_ms, memory
        self.prefix = f"mr{os.getpid()}"
        self.addresses = [f"10.77.0.{i + 1}" for i in range(hosts)]
        self.names = [f"host{i}" for i in range(hosts)]
        self.spaces = [f"{self.prefix}-{i}" for i in range(hosts)]
        self.groups, self.relay, self.folder = [], None, None

    def __enter__(self):
        try:
            for space in self.spaces:
                call("ip", "netns", "add", space)
                call("ip", "-n", space, "link", "set", "lo", "up")
            self.connect_by_relay() if self.delay_ms else self.connect_by_veth()
            for space in self.spaces:
                call("ip", "-n", space, "link", "set", "net0", "mtu", MTU, "txqueuelen", 1000)
                if self.gbit:  # a burst of a millisecond, which the timer of tbf needs
                    call("tc", "-n", space, "qdisc", "add", "dev", "net0", "root", "tbf", "rate", f"{self.gbit}gbit", "burst",
                         max(int(self.gbit * 1e9 / 8 / 1000), 128 * 1024), "latency", "50ms")
                call("ip", "-n", space, "link", "set", "net0", "up")
            for space, address in zip(self.spaces, self.addresses):
                call("ip", "-n", space, "addr", "add", f"{address}/24", "dev", "net0")
                self.groups.append(memory_group(space, self.memory) if self.memory else None)
            self.write_agent()
            return self
        except BaseException:
            self.__exit__()
            raise

    def connect_by_veth(self):
        switch = f"{self.prefix}-switch"
        call("ip", "netns", "add", switch)
        call("ip", "-n", switch, "link", "add", "switch", "mtu", MTU, "type", "bridge")
        call("ip", "-n", switch, "link", "set", "switch", "up")
        for i, space in enumerate(self.spaces):
            call("ip", "-n", space, "link", "add", "net0", "mtu", MTU, "type", "veth", "peer", "name", f"port{i}", "mtu", MTU, "netns", switch)
            call("ip", "-n", switch, "link", "set", f"port{i}", "master", "switch", "up")

    def connect_by_relay(self):
        words = [f"{space}={address}" for space, address in zip(self.spaces, self.addresses)]
        self.relay = subprocess.Popen([RELAY, "--delay-ms", str(self.delay_ms), *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        if self.relay.stdout.readline() != b"ready\n":
            raise subprocess.CalledProcessError(1, RELAY, stderr="there is no relay")

    def write_agent(self):
        """What runs a command on a host, in the place of ssh."""
        self.folder = tempfile.TemporaryDirectory()
        self.agent = pathlib.Path(self.folder.name) / "agent"
        joins = "".join(f"  {name}) space={space} group={group or ''};;\n" for name, space, group in zip(self.names, self.spaces, self.groups))
        self.agent.write_text(f"#!/bin/sh\nhost=$1; shift\ncase $host in\n{joins}  *) exit 1;;\nesac\n"
                              '[ -z "$group" ] || echo $$ >"$group/cgroup.procs"\n'
                              "exec nsenter --net=/run/netns/$space unshare --uts sh -c "
                              "'echo \"$0\" >/proc/sys/kernel/hostname; exec sh -c \"$1\"' $host \"$*\"\n")
        self.agent.chmod(0o755)

    def on(self, host, *words):
        """A command on one host."""
        return [str(self.agent), self.names[host], f"exec {shlex.join(map(str, words))}"]

    def mpirun(self, *words):
        """What starts a command on every host, or, of several lists of words, each on one. mpirun runs on the first, and misses hosts
        that are cut off, as docs/guide/clusters.md has it."""
        each = words if isinstance(words[0], list) else [list(words)] * self.count
        command = ["mpirun", "--allow-run-as-root", "--bind-to", "none", "--mca", "plm_rsh_agent", self.agent, "--mca", "btl", "self,tcp"]
        for name, value in (("time", 1), ("intvl", 1), ("probes", 6)):
            command += ["--mca", f"oob_tcp_keepalive_{name}", value]
        for rank, own in enumerate(each):
            command += [*([":"] if rank else []), "-np", "1", "--host", self.names[rank], *own]
        return self.on(0, *command)

    def cut(self, host):
        """Nothing goes to or from this host any more: its cable is pulled, at the far end. REQUIRES: no delay."""
        call("ip", "-n", f"{self.prefix}-switch", "link", "set", f"port{host}", "down")

    def __exit__(self, *_):
        if self.relay:
            self.relay.stdin.close()
            self.relay.wait()
        for space in [*self.spaces, f"{self.prefix}-switch"]:
            subprocess.run(["ip", "netns", "del", space], capture_output=True, check=False)
        for group in self.groups:
            if group:
                group.rmdir()
        if self.folder:
            self.folder.cleanup()
