#!/usr/bin/env python3
"""Case study: an IMAP server moves 1,000 messages of 2 KiB from one mailbox to another.

The load is that of the paper ([D] §2.6.5), with Debian's Dovecot and its Maildir in the place of UW IMAP and
its mbox: over a real connection, a client selects the source, creates the destination, and for each message
says COPY and STORE +FLAGS \\Deleted. Then it says EXPUNGE, CHECK, CLOSE and LOGOUT. The server copies
contents, as the paper's did; Dovecot's way to copy by hard link is timed beside it, and so is one MOVE of all
messages.

The ways:

- **fsync per operation**: Dovecot as it is, with mail_fsync=always. Every reply is durable.
- **ordered fsync**: the same under `fstitch order`. *No reply is durable*: a crash can take back what the
  client was told last. What it cannot do is lose a message, because a message's copy comes before its
  removal.
- **ordered fsync, pg_sync before replies**: with a plugin of a few lines (imap/patchgroup-plugin.c) that
  waits for the disk before the OK of CHECK, EXPUNGE, CLOSE, MOVE, APPEND and LOGOUT. Those replies are
  durable, the others are ordered.
- **no fsync**: mail_fsync=never. Nothing is promised.

Asked of every crash state: each message is whole in one of the mailboxes (`order` keeps order and not
durability, so it may be the source), no file in a mailbox is anything else than a whole message, and in a
sample Dovecot opens the mailboxes and finds the same messages; its own indexes may be old or gone. Durable
replies are cut, too: the power goes right after the OK of EXPUNGE.

The plugin is built with the headers of dovecot-dev and `libpatchgroup.a`, which is looked for in `--client
DIR`, beside the program under test and in target/ of this tree (`make build-client`); else pkg-config is
asked (`make install-client`).
"""

import contextlib
import dataclasses
import imaplib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time

import study
from study import common

HEADERS = "/usr/include/dovecot"
HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "imap")
sys.path.insert(0, HERE)

import ask  # noqa: E402

# The user that the mail belongs to and that the server's mail processes become; it needs no name.
OWNER = 5000
PASSWORD = "not-secret"
DESTINATION = "moved"
# What a static library of Rust needs of the system.
SYSTEM_LIBRARIES = ("-lgcc_s", "-lutil", "-lrt", "-lpthread", "-lm", "-ldl")


@dataclasses.dataclass(frozen=True)
class Way:
    """How the server is run, and how the client asks."""

    name: str
    fsync: str = "always"
    ordered: bool = False
    plugin: bool = False
    hardlinks: bool = False
    at_once: bool = False

    def variant(self, **changes):
        words = {"hardlinks": "hard links", "at_once": "one MOVE"}
        name = ", ".join((self.name, *(words[key] for key in changes)))
        return dataclasses.replace(self, name=name, **changes)


FSYNC = Way("fsync per operation")
ORDER = Way("ordered fsync (replies not durable)", ordered=True)
SYNC = Way("ordered fsync, pg_sync before replies", ordered=True, plugin=True)
NONE = Way("no fsync", fsync="never")
WAYS = (FSYNC, ORDER, SYNC, NONE)


class Server:
    """Dovecot in a directory of its own, on a port of its own, with the Maildir on a volume."""

    def __init__(self, volume, way, plugin):
        self.volume, self.way, self.plugin = volume, way, plugin
        work = os.path.dirname(volume.at)
        # The mail's owner and the login process have to get through.
        os.chmod(work, 0o755)
        self.run = f"{work}/dovecot"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]

    def __enter__(self):
        os.makedirs(f"{self.run}/home", exist_ok=True)
        conf = f"{self.run}/dovecot.conf"
        with open(conf, "w", encoding="utf-8") as file:
            file.write(configuration(self))
        words = [*(self.volume.order() if self.way.ordered else []), shutil.which("dovecot"), "-F", "-c", conf]
        self.process = subprocess.Popen(words, start_new_session=True, stdin=subprocess.DEVNULL)
        try:
            self.wait_until_served()
        except BaseException:
            self.stop()
            raise
        return self

    def wait_until_served(self):
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and self.process.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 5) as probe:
                if probe.recv(100).startswith(b"* OK"):
                    return
            time.sleep(0.02)
        raise common.Failure(f"dovecot does not serve:\n{self.log()}")

    def log(self):
        with contextlib.suppress(FileNotFoundError), open(f"{self.run}/log", encoding="utf-8") as file:
            return file.read()
        return ""

    def stop(self):
        """Ends the server by its master's process id, and waits for all of its processes."""
        with contextlib.suppress(OSError, ValueError), open(f"{self.run}/base/master.pid", encoding="ascii") as file:
            os.kill(int(file.read()), signal.SIGTERM)
        try:
            self.process.wait(20)
            deadline = time.monotonic() + 20
            while time.monotonic() < deadline and processes_of(self.process.pid):
                time.sleep(0.01)
        finally:
            for pid in processes_of(self.process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def __exit__(self, kind, value, trace):
        self.stop()
        if isinstance(value, imaplib.IMAP4.error):
            raise common.Failure(f"{value}:\n{self.log()}") from value
        # What the mail processes complain of; that the others are ended in some order is none of it.
        wrong = re.findall(r".* imap\(.*(?:Error|Fatal|Panic): .*", self.log())
        if kind is None and wrong:
            raise common.Failure(f"dovecot logged: {wrong[0]}")

    def client(self):
        client = imaplib.IMAP4("127.0.0.1", self.port, 300)
        client.login("reader", PASSWORD)
        return client


def configuration(server):
    """The server's configuration file."""
    words = {
        "RUN": server.run,
        "MAIL": f"{server.volume.at}/mail",
        "FSYNC": server.way.fsync,
        "HARDLINKS": "yes" if server.way.hardlinks else "no",
        "PASSWORD": PASSWORD,
        "OWNER": str(OWNER),
        "PORT": str(server.port),
        "PLUGIN": "",
    }
    if server.way.plugin:
        words["PLUGIN"] = (
            f"mail_plugin_dir = {server.plugin}\nprotocol imap {{\n  mail_plugins = patchgroup\n}}\n"
            f"plugin {{\n  patchgroup_volume = {server.volume.at}\n}}"
        )
    with open(f"{HERE}/dovecot.conf.in", encoding="utf-8") as file:
        return re.sub("@([A-Z]+)@", lambda match: words[match[1]], file.read())


def processes_of(session):
    """The live processes of a session."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            state, _, _, of = file.read().rsplit(")", 1)[1].split()[:4]
            if int(of) == session and state != "Z":
                found.append(int(pid))
    return found


class Served:
    """A volume with a full source mailbox and a server that has seen it; what `Study.measure` takes for a volume."""

    def __init__(self, volume, way, plugin, count):
        self.volume, self.way, self.plugin, self.count = volume, way, plugin, count
        self.settle, self.counters, self.mechanism = volume.settle, volume.counters, volume.mechanism

    def __enter__(self):
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.volume)
            fill(self.volume, self.count)
            self.server = stack.enter_context(Server(self.volume, self.way, self.plugin))
            look(self.server, self.count)
            if self.way.ordered:
                is_ordered(self.server)
            self.stack = stack.pop_all()
        return self

    def __exit__(self, kind, value, trace):
        with self.stack:
            if kind is None:
                arrived(self.server, self.count)
        return False


def fill(volume, count):
    """Puts messages into the inbox, as delivery would."""
    top = f"{volume.at}/mail"
    os.mkdir(top)
    for place in ("cur", "new", "tmp"):
        os.mkdir(f"{top}/{place}")
        os.chown(f"{top}/{place}", OWNER, OWNER)
    for number in range(1, count + 1):
        path = f"{top}/cur/{1136214245 + number}.M{number}P1.example,S={ask.SIZE}:2,S"
        with open(path, "wb") as file:
            file.write(ask.message(number))
        os.chown(path, OWNER, OWNER)
    os.chown(top, OWNER, OWNER)


def did(answer):
    """What the server answered, which has to be OK."""
    status, data = answer
    if status != "OK":
        raise common.Failure(f"the server answers {status} {data}")
    return data


def look(server, count):
    """A first visit, after which the server knows the inbox; expects `count` messages there."""
    client = server.client()
    found = int(did(client.select("INBOX"))[0])
    client.logout()
    if found != count:
        raise common.Failure(f"there are {found} messages in the inbox, not {count}:\n{server.log()}")


def copy(client, count):
    """The first part of the load: every message is in both mailboxes and marked in the source, nothing is removed."""
    did(client.select("INBOX"))
    did(client.create(DESTINATION))
    for number in range(1, count + 1):
        did(client.copy(str(number), DESTINATION))
        did(client.store(str(number), "+FLAGS.SILENT", r"(\Deleted)"))


def move(server, count):
    """The load."""
    client = server.client()
    if server.way.at_once:
        did(client.select("INBOX"))
        did(client.create(DESTINATION))
        did(client.xatom("MOVE", f"1:{count}", DESTINATION))
    else:
        copy(client, count)
        did(client.expunge())
    did(client.check())
    did(client.close())
    client.logout()


def arrived(server, count):
    """Fails unless the load did what it should."""
    client = server.client()
    for mailbox, expected in (("INBOX", 0), (DESTINATION, count)):
        found = int(did(client.select(mailbox))[0])
        if found != expected:
            raise common.Failure(f"{mailbox} has {found} messages after the load, not {expected}")
    client.logout()


def is_ordered(server):
    """Fails unless the mail process, which has given up root and was started by others, is under ordered fsync."""
    client = server.client()
    did(client.select("INBOX"))
    status = json.loads(common.run(server.volume.binary, "status", "--json", server.volume.at).stdout)
    known = {process["pid"] for process in status[0]["ordered_fsync"]["processes"]}
    mail = {pid for pid in processes_of(server.process.pid) if os.stat(f"/proc/{pid}").st_uid == OWNER}
    client.logout()
    if not mail or not mail <= known:
        raise common.Failure(f"the mail processes {mail} are not among those under ordered fsync: {known}")


def library(options):
    """How the plugin is linked: words for the compiler. None where there is no library."""
    target = os.environ.get("CARGO_TARGET_DIR", os.path.join(common.REPOSITORY, "target"))
    beside = os.path.dirname(common.program(options))
    for place in filter(None, (options.client, beside, f"{target}/release", f"{target}/debug")):
        if os.path.exists(f"{place}/libpatchgroup.a"):
            include = f"-I{common.REPOSITORY}/crates/fstitch-client-c"
            return [include], [f"{place}/libpatchgroup.a", *SYSTEM_LIBRARIES]
    if shutil.which("pkg-config") and common.run("pkg-config", "--exists", "patchgroup", ok=None).returncode == 0:
        words = [common.run("pkg-config", flags, "patchgroup").stdout.split() for flags in ("--cflags", "--libs")]
        return words[0], words[1]
    return None


def build_plugin(options, directory):
    """Builds the plugin; the mail processes load it, so everybody may read it."""
    flags, libraries = library(options)
    os.chmod(directory, 0o755)
    common.run(
        "cc", "-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror", f"-I{HEADERS}", "-DHAVE_CONFIG_H", *flags,
        "-o", f"{directory}/lib90_patchgroup_plugin.so", f"{HERE}/patchgroup-plugin.c", *libraries,
    )


def measure(all_of_it, options, plugin):
    """The costs; that the messages have arrived is seen each time.

    With soft updates, each ordering point is a flush, and the more of them wait the more each costs: so the ordered
    ways are timed with fewer messages there, and beside them the others with as many.
    """
    def run(way, make, count):
        def load(served):
            move(served.server, count)

        name = way.name if count == options.messages else f"{way.name}, {count} messages"
        all_of_it.measure(name, lambda work: Served(make(work), way, plugin, count), None, load)

    make = study.ours(all_of_it.binary, "soft")
    for way in WAYS:
        run(way, make, min(options.messages, options.soft_messages))
    for way in (FSYNC, NONE):
        run(way, make, options.messages)
    for mechanism in ("ordered", "full"):
        make = study.ours(all_of_it.binary, mechanism)
        for way in (*WAYS, *(way.variant(**{key: True}) for way in (FSYNC, SYNC) for key in ("hardlinks", "at_once"))):
            run(way, make, options.messages)
    for kind in study.KERNEL:
        for way in (FSYNC, NONE):
            run(way, study.kernels(kind), options.messages)


def crash(all_of_it, options, plugin):
    """What power cuts leave of a smaller load."""
    count = options.recorded
    checker = f"{plugin}/doveadm.conf"
    with open(checker, "w", encoding="utf-8") as file:
        file.write("ssl = no\nprotocols = imap\nlog_path = /dev/stderr\n")
        file.write(f"base_dir = {plugin}/base\nstate_dir = {plugin}/state\n")
    question = study.quoted(sys.executable, "-I", f"{HERE}/ask.py", count, OWNER, checker)

    def prepare(volume):
        fill(volume, count)

    for mechanism in study.MECHANISMS:
        for way in WAYS:
            def load(volume, way=way):
                with Server(volume, way, plugin) as server:
                    move(server, count)

            # These journals commit the names of messages after their contents and removals after copies, whoever asks.
            # Soft updates promise nothing here; what is left open for seconds is broken now and then.
            free = way is NONE and mechanism == "soft"
            all_of_it.crash(
                way.name, mechanism, prepare, load, question, where="mail", expect_broken=None if free else False,
                often=not free,
            )


def cut(all_of_it, options, plugin):
    """Takes the power right after the OK of EXPUNGE: a durable reply is true then, and an ordered one need not be."""
    count = options.recorded
    for mechanism in study.MECHANISMS:
        for way in (FSYNC, ORDER, SYNC):
            left, there = after_cut(all_of_it, way, mechanism, plugin, count)
            text = f"{there} of {count} messages in the destination, {left} still in the source"
            print(f"     {way.name} | {mechanism} | {text}", flush=True)
            all_of_it.notes[f"power cut after the OK of EXPUNGE, {way.name}, {mechanism}"] = text
            kept = (left, there) == (0, count)
            if way is ORDER and kept:
                raise common.Failure(f"the cut took nothing on {mechanism}: it tells nothing about durable replies")
            if way is not ORDER and not kept:
                raise common.Failure(f"{way.name} on {mechanism}: a durable reply was no promise: {text}")


def after_cut(all_of_it, way, mechanism, plugin, count):
    """Messages in the source and in the destination after that cut."""
    with common.workdir(all_of_it.options, "study") as work:
        volume = study.Volume(all_of_it.binary, work, mechanism, "64M")
        with volume:
            fill(volume, count)
        crash_mount = f"consistency={mechanism}{study.OTHERS}"
        common.run(volume.binary, "crash", "mount", "-o", crash_mount, volume.image, volume.at)
        server = Server(volume, way, plugin)
        try:
            server.__enter__()
            client = server.client()
            copy(client, count)
            did(client.expunge())
            common.run(volume.binary, "crash", "cut", volume.at)
        finally:
            server.stop()
            # It says that not everything reached the medium.
            common.run(volume.binary, "umount", volume.at, ok=(0, 1))
        with volume:
            tops = (f"{volume.at}/mail/cur", f"{volume.at}/mail/.{DESTINATION}/cur")
            return tuple(len(os.listdir(top)) if os.path.isdir(top) else 0 for top in tops)


def main():
    parser = study.arguments(__doc__)
    parser.add_argument("--messages", type=int, default=1000, help="messages that are timed (default 1000)")
    parser.add_argument(
        "--soft-messages", type=int, default=100, help="messages for ordered fsync with soft updates (default 100)"
    )
    parser.add_argument("--recorded", type=int, default=60, help="messages of the load that is cut (default 60)")
    parser.add_argument("--client", help="the directory of libpatchgroup.a")
    options = study.options_of(parser)
    common.require(root=True, fuse=True, loop=True, commands=("dovecot", "doveadm", "cc"))
    if not os.path.exists(f"{HEADERS}/imap-client.h"):
        common.skip("needs the headers of dovecot-dev")
    if library(options) is None:
        common.skip("needs libpatchgroup: make build-client")
    summary = common.Summary("IMAP")
    all_of_it = study.Study("imap", options)
    with common.workdir(options, "plugin") as plugin:
        build_plugin(options, plugin)
        for name, part in (("what it costs", measure), ("durable replies", cut), ("what a crash leaves", crash)):
            with summary.case(name):
                part(all_of_it, options, plugin)
    all_of_it.notes["load"] = f"COPY and STORE for each of {options.messages:,} messages, EXPUNGE, CHECK, CLOSE, LOGOUT"
    all_of_it.notes["soft updates"] = (
        f"the ordered ways are timed with {options.soft_messages} messages: each ordering point is a flush there"
    )
    all_of_it.save()
    summary.end()


if __name__ == "__main__":
    main()
