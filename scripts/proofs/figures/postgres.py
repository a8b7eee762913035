"""A PostgreSQL server whose data is on a mount, and pgbench against it."""

import glob
import os
import shutil
import signal
import subprocess
import threading
import time

import common

USER = "postgres"
SETTINGS = {
    "listen_addresses": "",
    "shared_buffers": "16MB",
    "max_wal_size": "128MB",
    "min_wal_size": "32MB",
    "autovacuum": "off",
    "jit": "off",
    "max_connections": "20",
}


def program(name):
    """One of PostgreSQL's programs: Debian keeps the server out of the path."""
    found = sorted(glob.glob(f"/usr/lib/postgresql/*/bin/{name}")) or [path for path in [shutil.which(name)] if path]
    return found[-1] if found else None


def as_user(*command):
    """A command as the user whom the server accepts: it refuses to be root."""
    if os.geteuid():
        return list(command)
    return ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", *command]


class Server:
    """A server that runs."""

    def __init__(self, data, sockets):
        self.data, self.sockets, self.process = data, sockets, None
        self.log = open(f"{sockets}/log", "ab")

    def start(self, seconds=60):
        options = [word for name, value in SETTINGS.items() for word in ("-c", f"{name}={value}")]
        command = as_user(program("postgres"), "-D", self.data, "-k", self.sockets, *options)
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log, cwd="/", start_new_session=True)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if subprocess.run([program("pg_isready"), "-q", "-h", self.sockets], check=False).returncode == 0:
                return
            if self.process.poll() is not None:
                break
            time.sleep(0.02)
        raise common.Failure(f"the server does not start:\n{self.said()}")

    def said(self):
        """The end of what it has said."""
        with open(f"{self.sockets}/log", encoding="utf-8", errors="replace") as file:
            return file.read()[-3000:]

    def stop(self):
        self.process.send_signal(signal.SIGINT)
        if self.process.wait(60):
            raise common.Failure(f"the server ended with {self.process.returncode}:\n{self.said()}")
        self.process = None

    def kill(self):
        """As if the machine had gone. Those that serve clients are of the same session, and end with it."""
        if self.process and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGQUIT)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                # It may wait for a mount that will be gone only later.
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process = None

    def ask(self, text):
        """The answer to one query, as text."""
        return common.run("psql", "-X", "-A", "-t", "-h", self.sockets, "-U", USER, "-c", text, "postgres").stdout.strip()

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        self.kill()
        self.log.close()


def cluster(work, scale):
    """An archive of a data directory with pgbench's tables, made once on the host's file system."""
    archive, data, sockets = f"{work}/cluster{scale}.tar", f"{work}/cluster", f"{work}/sockets"
    if os.path.exists(archive):
        return archive
    for directory in (data, sockets):
        os.makedirs(directory, exist_ok=True)
        if os.geteuid() == 0:
            shutil.chown(directory, USER, USER)
    os.chmod(data, 0o700)
    initdb = as_user(program("initdb"), "-D", data, "-U", USER, "--no-sync", "--data-checksums", "--wal-segsize=4", "--locale=C", "-A", "trust")
    common.run(*initdb, cwd="/")
    with Server(data, sockets) as server:
        server.start()
        pgbench = [program("pgbench"), "-h", sockets, "-U", USER, "-i", "-q", "-s", str(scale), "postgres"]
        common.run(*pgbench)
        server.ask("checkpoint")
        server.stop()
    common.run("tar", "-C", work, "-cpf", archive, "cluster")
    shutil.rmtree(data)
    return archive


def unpack(archive, mount, work):
    """The data directory on a mount, and where its sockets are."""
    common.run("tar", "-C", mount, "-xpf", archive)
    descriptor = os.open(mount, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)
    return f"{mount}/cluster", f"{work}/sockets"


def agrees(server, transactions=None):
    """Whether the tables of TPC-B agree with each other, and have every transaction that was answered."""
    sums = "select (select sum(abalance) from pgbench_accounts), (select sum(bbalance) from pgbench_branches), " + (
        "(select sum(tbalance) from pgbench_tellers), coalesce((select sum(delta) from pgbench_history), 0), (select count(*) from pgbench_history)"
    )
    *balances, count = server.ask(sums).split("|")
    if len(set(balances)) != 1:
        raise common.Failure(f"the database's sums differ: {balances}")
    if transactions is not None and int(count) < transactions:
        raise common.Failure(f"the database has {count} of {transactions} transactions")


class Client(threading.Thread):
    """One client, begun anew whenever an error has ended it, until the time is over; when each of its transactions ended, and its errors."""

    def __init__(self, server, place, number, until):
        super().__init__(daemon=True)
        self.sockets, self.until, self.number = server.sockets, until, number
        self.directory = f"{place}/client{number}"
        self.errors = []
        os.makedirs(self.directory)

    def run(self):
        for attempt in range(10**6):
            left = self.until - time.time()
            if left < 0.2:
                return
            command = [program("pgbench"), "-n", "-S", "-c", "1", "-T", str(max(1, round(left))), "-l", f"--log-prefix={attempt:05}"]
            command += ["-h", self.sockets, "-U", USER, f"--random-seed={self.number + 1 + 100 * attempt}", "postgres"]
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", cwd=self.directory, check=False)
            if done.returncode:
                self.errors.append((time.time(), done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "no word"))
                time.sleep(0.02)

    def ends(self):
        """When transactions ended."""
        found = []
        for path in glob.glob(f"{self.directory}/*"):
            with open(path, encoding="ascii", errors="replace") as file:
                for line in file:
                    words = line.split()
                    if len(words) >= 6:
                        found.append(int(words[4]) + int(words[5]) / 1e6)
        return found


class Forgetting(threading.Thread):
    """Keeps the kernel from caching a database, which stands for one that is larger than the memory: what is read comes from the mount, and what that has
    not cached from its disk."""

    def __init__(self, data):
        super().__init__(daemon=True)
        self.data, self.pause, self.ended = data, threading.Event(), threading.Event()

    def run(self):
        while not self.ended.wait(0.03):
            if self.pause.is_set():
                continue
            for path in glob.glob(f"{self.data}/base/*/*"):
                try:
                    if os.path.getsize(path) < 1 << 20:
                        continue
                    descriptor = os.open(path, os.O_RDONLY)
                except OSError:
                    continue
                try:
                    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                finally:
                    os.close(descriptor)
