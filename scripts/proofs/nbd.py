"""A logical disk over NBD, used by programs that others have written, and its server killed under them.

  - nbdinfo, nbdcopy, nbdsh, qemu-img and qemu-io see what is offered and find what they wrote.
  - fio (ioengine=nbd) writes at random, many requests in flight on several connections, and verifies.
  - Through nbdfuse and a loop device the kernel's ext4 has a volume: every kind of file is there after a restart of all of it.
  - The server is killed at a random moment while fio writes with a flush after every eight writes; everything before the last
    flush that was answered is there, by fio's own verification.
  - The server is killed while a client of our own, which is libnbd and nbd/versions.py, writes to one disk on several connections:
    every sector has a version that is no older than the last answered flush or write with FUA says. The disk as it was before the last
    flush, and before the last write with FUA, is found to lack it.
  - The same with the kernel's ext4 above nbdfuse, under the loads of crash_kill.py: after ext4 has replayed its journal everything
    that an fsync had promised is there, and e2fsck finds nothing.
After each `fstitch lld check` finds nothing. Kills are made by their number and the seed alone.
"""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time

import common
import crash_kill
import trees

BLOCK_SIZE = 4096
COMMANDS = ("nbdinfo", "nbdcopy", "nbdsh", "nbdfuse", "qemu-img", "qemu-io", "fio", "losetup", "mkfs.ext4", "e2fsck", "git")
PATIENCE = 30
VERSIONS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "nbd", "versions.py")
# fio: writes between flushes; what each of its processes writes, in MiB; how many of them.
FLUSH_EVERY, FIO_MIB, FIO_JOBS = 8, 32, 2
# The disk and the volume that our own client fills many times over, so that the cleaner works.
LIBNBD_DISK, LIBNBD_SIZE = "32M", "8M"
NBDSH = """
assert h.get_size() == {size}, h.get_size()
assert h.can_flush() and h.can_fua() and h.can_trim() and h.can_zero() and h.can_fast_zero() and h.can_cache()
assert h.can_multi_conn() and h.can_meta_context("base:allocation")
data = bytes(range(256)) * 40
h.pwrite(data, 1536, nbd.CMD_FLAG_FUA)
h.zero(4096, 4096)
h.trim(65536, 65536, nbd.CMD_FLAG_FUA)
h.zero(8192, 1 << 20, nbd.CMD_FLAG_FAST_ZERO)
h.cache(1 << 16, 0)
h.flush()
expected = bytearray(data)
expected[4096 - 1536 : 8192 - 1536] = bytes(4096)
assert h.pread(len(data), 1536) == bytes(expected)
assert h.pread(131072, 65536) == bytes(131072)
found = []
h.block_status(131072, 0, lambda context, offset, entries, error: found.extend(entries))
assert found[0] <= 16384 and found[1] == 0, found
assert found[-1] == 3, found
try:
    h.pread(512, h.get_size())
    raise SystemExit("reading beyond the end went well")
except nbd.Error:
    pass
"""


class Server:
    """A logical disk and its server, in a directory."""

    def __init__(self, binary, work, size="512M"):
        self.binary, self.disk, self.socket = binary, f"{work}/disk.lld", f"{work}/socket"
        self.process = None
        common.run(binary, "lld", "format", self.disk, size)

    def create(self, volume, size):
        common.run(self.binary, "lld", "volume", "create", self.disk, volume, size)

    def uri(self, volume):
        return f"nbd+unix:///{volume}?socket={self.socket}"

    def start(self, volume):
        """Serves the disk, until `stop` or `kill`; returns when the volume can be reached."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.socket)
        self.process = subprocess.Popen([self.binary, "lld", "serve", self.disk, "--socket", self.socket])
        deadline = time.monotonic() + PATIENCE
        while common.run("nbdinfo", "--size", self.uri(volume), ok=None).returncode:
            if time.monotonic() > deadline or self.process.poll() is not None:
                raise common.Failure("the server does not answer")
            time.sleep(0.02)

    def stop(self):
        """A clean stop; the disk is whole."""
        self.process.send_signal(signal.SIGTERM)
        if self.process.wait(PATIENCE):
            raise common.Failure(f"the server ended with {self.process.returncode}")
        self.check()

    def kill(self):
        self.process.kill()
        self.process.wait()

    def check(self):
        common.run(self.binary, "lld", "check", self.disk)

    @contextlib.contextmanager
    def serving(self, volume):
        """Serves the disk for a while."""
        self.start(volume)
        try:
            yield
        except BaseException:
            self.kill()
            raise
        self.stop()


class Ext4:
    """The kernel's ext4 on a volume: server → nbdfuse → loop device → mount at `self.at`."""

    def __init__(self, server, work, volume):
        self.server, self.volume, self.fuse, self.at = server, volume, f"{work}/fuse", f"{work}/ext4"
        for path in (self.fuse, self.at):
            os.makedirs(path, exist_ok=True)
        self.loop = self.program = None

    def attach(self):
        self.program = subprocess.Popen(["nbdfuse", f"{self.fuse}/nbd", self.server.uri(self.volume)], stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + PATIENCE
        while not os.path.exists(f"{self.fuse}/nbd"):
            if time.monotonic() > deadline or self.program.poll() is not None:
                raise common.Failure("nbdfuse shows no volume")
            time.sleep(0.02)
        self.loop = common.run("losetup", "-f", "--show", f"{self.fuse}/nbd").stdout.strip()

    def mount(self):
        common.run("mount", "-t", "ext4", self.loop, self.at)

    def detach(self, ok=(0,)):
        """Takes all of it apart. With a dead server below some of it fails, and nothing must stay."""
        if self.loop:
            # Who was killed may take a moment to let go of it.
            for _ in range(50):
                if not os.path.ismount(self.at) or common.run("umount", self.at, ok=None).returncode == 0:
                    break
                time.sleep(0.1)
            common.run("losetup", "-d", self.loop, ok=ok)
        self.loop = None
        common.run("fusermount3", "-u", self.fuse, ok=ok)
        if self.program.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.program.wait(5)
        if self.program.poll() is None:
            self.program.kill()
            self.program.wait()

    @contextlib.contextmanager
    def attached(self):
        self.attach()
        try:
            yield
        except BaseException:
            self.detach(ok=None)
            raise
        self.detach()


def with_libnbd():
    """The environment in which Python has libnbd: that of the distribution has, and another one may come first."""
    return {**os.environ, "PATH": f"/usr/bin:{os.environ['PATH']}"}


def copies(server, work):
    """nbdinfo, nbdcopy and qemu-img: files go there and back, and holes are holes."""
    data = random.Random(1).randbytes(20_000_000 + 512)
    data += bytes(-len(data) % BLOCK_SIZE)
    with open(f"{work}/file", "wb") as file:
        file.write(data + bytes((32 << 20) - len(data)))
    server.create("one", "32M")
    server.create("two", "32M")
    with server.serving("one"):
        one, two = server.uri("one"), server.uri("two")
        listed = json.loads(common.run("nbdinfo", "--list", "--json", server.uri("")).stdout)
        names = sorted(export["export-name"] for export in listed["exports"])
        if names != ["one", "two"]:
            raise common.Failure(f"nbdinfo finds {names}")
        if "hole" not in common.run("nbdinfo", "--map", one).stdout:
            raise common.Failure("nbdinfo sees no hole in a fresh volume")
        common.run("nbdcopy", f"{work}/file", one)
        common.run("nbdcopy", one, two)
        common.run("nbdcopy", two, f"{work}/back")
        common.run("cmp", f"{work}/file", f"{work}/back")
        totals = common.run("nbdinfo", "--map", "--totals", two).stdout
        if "data" not in totals or "hole" not in totals:
            raise common.Failure(f"nbdinfo says: {totals}")
        common.run("qemu-img", "convert", "-n", "-f", "raw", "-O", "raw", f"{work}/file", one)
        said = common.run("qemu-img", "compare", "-f", "raw", "-F", "raw", f"{work}/file", one).stdout
        print(f"     {said.strip()} {' '.join(totals.split())}", flush=True)


def requests(server, work):
    """nbdsh and qemu-io: every kind of request."""
    server.create("small", "8M")
    with server.serving("small"):
        with open(f"{work}/script", "w", encoding="utf-8") as file:
            file.write(NBDSH.format(size=8 << 20))
        run = f"exec(open('{work}/script').read())"
        common.run("nbdsh", "--base-allocation", "-u", server.uri("small"), "-c", run, env=with_libnbd())
        commands = (
            "write -P 7 1M 256k", "write -f -P 8 1100k 3k", "write -z 1M 32k", "discard 1152k 64k", "flush", "read -P 0 1M 32k",
            "read -P 7 1056k 44k", "read -P 8 1100k 3k", "read -P 0 1152k 64k", "read -P 7 1216k 64k",
        )
        words = [word for command in commands for word in ("-c", command)]
        said = common.run("qemu-io", "-f", "raw", *words, server.uri("small"))
        if "failed" in said.stdout or "rror" in said.stdout + said.stderr:
            raise common.Failure(said.stdout + said.stderr)


def fio(server, *words, ok=(0,)):
    """One process of fio's; what it counted."""
    done = common.run(*fio_words(server, *words), ok=ok, cwd=os.path.dirname(server.disk))
    return done, fio_counts(done.stdout)


def fio_words(server, *words):
    return ["fio", "--ioengine=nbd", f"--uri={server.uri('volume')}", "--verify=crc32c", "--output-format=json", *words]


def fio_counts(said):
    """fio says what went wrong before its counts, and after them."""
    return json.JSONDecoder().raw_decode(said[said.index("{\n"):])[0]["jobs"][0]


def verified(server):
    server.create("volume", "256M")
    with server.serving("volume"):
        words = ("--name=all", "--rw=randwrite", "--bsrange=512-128k", "--bs_unaligned=0", "--blockalign=512", "--iodepth=32")
        _, counts = fio(server, *words, "--size=32M", "--numjobs=2", "--offset_increment=32M", "--group_reporting", "--loops=2")
        print(f"     {counts['write']['total_ios']} writes, {counts['read']['total_ios']} verified", flush=True)
        if counts["error"] or counts["read"]["total_ios"] < counts["write"]["total_ios"] // 4:
            raise common.Failure(f"fio ended with {counts['error']}")


def files_of_every_kind(server, work):
    server.create("volume", "256M")
    ext4 = Ext4(server, work, "volume")
    with server.serving("volume"), ext4.attached():
        common.run("mkfs.ext4", "-q", ext4.loop)
        ext4.mount()
        trees.every_kind(ext4.at, 21, BLOCK_SIZE, 256)
        expected = common.manifest(ext4.at)
    with server.serving("volume"), ext4.attached():
        common.e2fsck_clean(ext4.loop)
        ext4.mount()
        common.same_trees(expected, common.manifest(ext4.at), "after a restart")
    print(f"     {len(expected)} files", flush=True)


def killed_under_fio(server, source):
    """Several processes of fio's write, each to a part of its own, until the server dies."""
    server.create("volume", f"{FIO_JOBS * FIO_MIB}M")
    server.start("volume")

    def words(job):
        return (
            f"--name=job{job}", "--rw=randwrite", "--bs=4k", f"--size={FIO_MIB}M", f"--offset={job * FIO_MIB}M",
            f"--fsync={FLUSH_EVERY}", f"--randseed={seeds[job]}", "--verify_fatal=1",
        )

    seeds = [source.randrange(1, 10**6) for _ in range(FIO_JOBS)]
    running = []
    try:
        for job in range(FIO_JOBS):
            command = fio_words(server, *words(job), "--do_verify=0")
            work = os.path.dirname(server.disk)
            running.append(
                subprocess.Popen(command, cwd=work, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            )
        time.sleep(source.uniform(0.4, 1.5))
    finally:
        server.kill()
        said = [process.communicate()[0] for process in running]
    stable = [stable_writes(fio_counts(out)) for out in said]
    server.check()
    with server.serving("volume"):
        for job, count in enumerate(stable):
            if count == 0:
                continue
            done, counts = fio(server, *words(job), "--verify_only", f"--number_ios={count}", ok=None)
            if done.returncode or counts["read"]["total_ios"] != count:
                raise common.Failure(f"{count} writes were stable, {counts['read']['total_ios']} verified: {done.stderr[-300:]}")
        sees_what_is_missing(server, words, stable)
    return sum(stable)


def stable_writes(counts):
    """How many writes were before a flush that was answered. fio counts what is under way when the server dies, too, so the last flush
    of those that it has counted may be one that was not."""
    flushes = counts["sync"]["total_ios"] - 1
    # Of each part all blocks are written once; the last ones may have been before the kill came.
    return min(max(flushes, 0) * FLUSH_EVERY, (FIO_MIB << 20) // BLOCK_SIZE)


def sees_what_is_missing(server, words, stable):
    """fio's verification finds what was never written, or else it would say nothing about what was."""
    for job, count in enumerate(stable):
        if count + 1024 < (FIO_MIB << 20) // BLOCK_SIZE:
            done, _ = fio(server, *words(job), "--verify_only", ok=None)
            if done.returncode == 0:
                raise common.Failure("fio finds what was never written")
            return


def versions(server, *words):
    """The words that start our own client, or its judge."""
    return ["python3", VERSIONS, words[0], server.uri("volume"), *words[1:]]


def killed_under_libnbd(server, work, kills, source):
    """One disk, whose server dies again and again: what one death left must be there after the next one, too."""
    server.create("volume", LIBNBD_SIZE)
    total = [0, 0, 0]
    for number in range(kills):
        server.start("volume")
        command = versions(server, "write", f"{work}/state", str(source.randrange(10**9)))
        client = subprocess.Popen(command, env=with_libnbd(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            time.sleep(source.uniform(0.5, 1.5))
            if server.process.poll() is not None:
                raise common.Failure(f"the server ended by itself, with {server.process.returncode}")
        finally:
            server.kill()
            said, errors = client.communicate()
        if client.returncode:
            raise common.Failure(f"kill {number}: {errors.strip()}")
        judged(server, work, f"kill {number}")
        total = [sum(counts) for counts in zip(total, map(int, said.split()))]
    print(f"     {total[0]} writes, {total[1]} flushes and {total[2]} writes with FUA were answered", flush=True)
    if not all(total):
        raise common.Failure("too little was answered to say anything")


def judged(server, work, what):
    """The disk is whole, and every sector has a version that it must have."""
    server.check()
    with server.serving("volume"):
        done = common.run(*versions(server, "judge", f"{work}/state"), ok=None, env=with_libnbd())
    if done.returncode:
        raise common.Failure(f"{what}: {done.stderr.strip()}")


def misses_the_last(server, work, kind):
    """The judge sees it when all that is lost is what the last answered flush, or the last write with FUA, says is there."""
    server.create("volume", LIBNBD_SIZE)

    def writes_and_dies(seed):
        server.start("volume")
        try:
            common.run(*versions(server, "write", f"{work}/state", seed, "--last", kind), env=with_libnbd())
        finally:
            server.kill()

    writes_and_dies("1")
    judged(server, work, "the first one")
    common.copy_sparse(server.disk, f"{work}/before")
    writes_and_dies("2")
    common.copy_sparse(f"{work}/state", f"{work}/state.2")
    judged(server, work, "the second one")
    common.copy_sparse(f"{work}/state.2", f"{work}/state")
    common.copy_sparse(f"{work}/before", server.disk)
    try:
        judged(server, work, "the disk before")
    except common.Failure as failure:
        if "are not what was answered" not in str(failure):
            raise
        print(f"     before the last one: {str(failure).splitlines()[0]}", flush=True)
    else:
        raise common.Failure("the disk as it was before the last one lacks nothing")


def killed_under_ext4(server, work, kind, source):
    """A load on the kernel's ext4, until the server below it dies; and what is there when all of it is started again."""
    server.create("volume", "256M")
    ext4, journal = Ext4(server, work, "volume"), f"{work}/journal"
    server.start("volume")
    load = None
    try:
        ext4.attach()
        common.run("mkfs.ext4", "-q", "-E", "lazy_itable_init=0,lazy_journal_init=0", ext4.loop)
        ext4.mount()
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "workloads.py")
        command = [sys.executable, script, kind, ext4.at, str(source.randrange(10**9)), journal]
        # With all that it starts it is one group, of which nothing stays on the mount.
        load = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        time.sleep(source.uniform(0.5, 4.0))
    finally:
        server.kill()
        if load:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(load.pid, signal.SIGKILL)
            load.wait()
        ext4.detach(ok=None)
    server.check()
    kept = crash_kill.Promises(journal)
    with server.serving("volume"), ext4.attached():
        # ext4 replays its journal; then the judge.
        ext4.mount()
        crash_kill.holds(ext4.at, kept)
        common.run("umount", ext4.at)
        common.e2fsck_clean(ext4.loop)
    return kept


def main():
    parser = common.arguments(__doc__)
    parser.add_argument("--kills", type=int, default=20, help="kills under fio, and as many under libnbd and under ext4 (default 20)")
    parser.add_argument("--seed", default=None, help="repeats the kills of an earlier invocation")
    options = parser.parse_args()
    common.require(root=True, fuse=True, loop=True, commands=COMMANDS)
    binary = common.program(options)
    seed = options.seed or str(random.SystemRandom().randrange(10**9))
    print(f"seed {seed}", flush=True)
    summary = common.Summary(f"a logical disk over NBD, {options.kills} kills of each kind (seed {seed})")

    @contextlib.contextmanager
    def case(name, size="512M"):
        with summary.case(name), common.workdir(options, "nbd") as work:
            yield Server(binary, work, size), work

    with case("nbdinfo, nbdcopy, qemu-img") as (server, work):
        copies(server, work)
    with case("nbdsh, qemu-io") as (server, work):
        requests(server, work)
    with case("fio verifies") as (server, _):
        verified(server)
    with case("the kernel's ext4 above nbdfuse") as (server, work):
        files_of_every_kind(server, work)
    stable = 0
    for number in range(options.kills):
        with case(f"kill {number} under fio") as (server, _):
            stable += killed_under_fio(server, random.Random(f"{seed}/fio/{number}"))
    if options.kills:
        for kind in ("flush", "fua"):
            with case(f"a lost {kind} is seen", LIBNBD_DISK) as (server, work):
                misses_the_last(server, work, kind)
        with case(f"{options.kills} kills under libnbd", LIBNBD_DISK) as (server, work):
            killed_under_libnbd(server, work, options.kills, random.Random(f"{seed}/libnbd"))
    for number in range(options.kills):
        kind = crash_kill.KINDS[number % len(crash_kill.KINDS)]
        with case(f"kill {number} under ext4: {kind}") as (server, work):
            print(f"     {killed_under_ext4(server, work, kind, random.Random(f'{seed}/ext4/{number}'))}", flush=True)
    print(f"     {stable} writes of fio's were stable, and are there", flush=True)
    if options.kills and not stable:
        summary.failed += 1
    summary.end()


if __name__ == "__main__":
    main()
