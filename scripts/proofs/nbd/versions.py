"""A client of NBD that knows which version of each sector must be there after its server has died; with libnbd, for nbd.py.

    versions.py write URI STATE SEED [--last flush|fua]    writes until the server is gone
    versions.py judge URI STATE                            reads all of it, once a server is there again

Several connections write, each to sectors of its own, and every write has a number, the version, which its sectors contain. A flush
covers what had been answered, on any connection, when it was sent; a write with FUA covers itself. Only an answer counts, and what was
answered is noted in this process, which outlives the server, and in STATE when the server is gone. Of each sector the version that is
found is none before the last one that was covered, none that was never sent, and of one piece. With `--last` there is one group of
writes and the flush behind it, or one write with FUA, and nothing else.
"""

import argparse
import itertools
import json
import os
import random
import struct
import sys
import threading

import nbd

SECTOR = 512
# Sectors of a block: of a trim nobody promises that what is less than a block is zeros.
BLOCK = 8
CONNECTIONS = 4
# Sectors in a row that belong to one connection: no whole number of blocks, so that two connections write to one block.
RUN = 60
# How often a connection does what; zeroes and trims are versions that read as zeros.
KINDS = {"write": 8, "fua": 2, "zeroes": 1, "zeroes fua": 1, "trim": 1, "flush": 2}
# Writes before a last flush.
GROUP = 8


class Sector:
    """The versions of a sector that may be found: from the last one that is covered to the last one that was sent."""

    def __init__(self, stable=0, sent=0, zeroes=(0,)):
        self.stable, self.sent, self.zeroes = stable, sent, list(zeroes)

    def cover(self, version):
        if version > self.stable:
            self.stable = version
            self.zeroes = [zero for zero in self.zeroes if zero >= version]

    def admits(self, version):
        return self.stable <= version <= self.sent


class State:
    """What was sent, answered and covered. [lock: everything]"""

    def __init__(self, size, path):
        self.lock, self.path = threading.Lock(), path
        known = {"seed": random.SystemRandom().randrange(1 << 60), "next": 1, "sectors": {}}
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                known = json.load(file)
        self.seed, self.versions = known["seed"], itertools.count(known["next"])
        self.sectors = [Sector() for _ in range(size // SECTOR)]
        for no, fields in known["sectors"].items():
            self.sectors[int(no)] = Sector(*fields)
        # Writes in the order of their answers, and how many of them a flush has covered.
        self.answered, self.covered = [], 0
        self.flushes = self.fuas = 0

    def pattern(self, sector, version):
        return struct.pack("<QQQQ", self.seed, sector, version, ~version & (1 << 64) - 1) * (SECTOR // 32)

    def send(self, sectors, is_zero):
        """A new version of these sectors is on its way."""
        with self.lock:
            version = next(self.versions)
            for no in sectors:
                self.sectors[no].sent = version
                if is_zero:
                    self.sectors[no].zeroes.append(version)
            return version

    def answer(self, sectors, version, is_stable):
        with self.lock:
            self.answered.append((sectors, version))
            if is_stable:
                self.fuas += 1
                for no in sectors:
                    self.sectors[no].cover(version)

    def flush(self):
        """A flush is sent: how many answers it covers."""
        with self.lock:
            return len(self.answered)

    def flushed(self, count):
        with self.lock:
            self.flushes += 1
            for sectors, version in self.answered[self.covered:count]:
                for no in sectors:
                    self.sectors[no].cover(version)
            self.covered = max(self.covered, count)

    def save(self):
        sectors = {no: (one.stable, one.sent, one.zeroes) for no, one in enumerate(self.sectors) if one.sent}
        with open(self.path, "w", encoding="utf-8") as file:
            json.dump({"seed": self.seed, "next": next(self.versions), "sectors": sectors}, file)


class Connection:
    """One connection and the sectors that are its own."""

    def __init__(self, uri, state, number, source):
        self.state, self.number, self.source = state, number, source
        self.handle = nbd.NBD()
        self.handle.connect_uri(uri)
        self.failure = None

    def place(self):
        """A few of its sectors in a row; half of the time of the first ones, which are written again and again."""
        runs = len(self.state.sectors) // (RUN * CONNECTIONS)
        runs = max(1, runs // 16) if self.source.random() < 0.5 else runs
        first = (self.source.randrange(runs) * CONNECTIONS + self.number) * RUN
        start = self.source.randrange(RUN)
        return range(first + start, first + self.source.randint(start, RUN - 1) + 1)

    def write(self, kind):
        sectors, flags = self.place(), nbd.CMD_FLAG_FUA if kind.endswith("fua") else 0
        if kind == "trim":
            sectors = range(-(-sectors.start // BLOCK) * BLOCK, sectors.stop // BLOCK * BLOCK)
            if not sectors:
                return
        is_zero = kind.startswith(("zeroes", "trim"))
        version = self.state.send(sectors, is_zero)
        at, length = sectors[0] * SECTOR, len(sectors) * SECTOR
        if kind == "trim":
            self.handle.trim(length, at, flags)
        elif is_zero:
            self.handle.zero(length, at, flags)
        else:
            self.handle.pwrite(b"".join(self.state.pattern(no, version) for no in sectors), at, flags)
        self.state.answer(sectors, version, flags != 0)

    def flush(self):
        count = self.state.flush()
        self.handle.flush()
        self.state.flushed(count)

    def work(self):
        """Until the server is gone; another error is a failure."""
        try:
            while True:
                kind = self.source.choices(list(KINDS), list(KINDS.values()))[0]
                if kind == "flush":
                    self.flush()
                else:
                    self.write(kind)
        except nbd.Error as error:
            if not (self.handle.aio_is_dead() or self.handle.aio_is_closed()):
                self.failure = f"the server answers with an error: {error}"

    def last(self, kind):
        if kind == "fua":
            return self.write("fua")
        for _ in range(GROUP):
            self.write("write")
        return self.flush()


def size_of(uri):
    handle = nbd.NBD()
    handle.connect_uri(uri)
    size = handle.get_size()
    handle.shutdown()
    return size


def write(options):
    state = State(size_of(options.uri), options.state)
    connections = [
        Connection(options.uri, state, number, random.Random(f"{options.seed}/{number}")) for number in range(CONNECTIONS)
    ]
    if options.last:
        connections[0].last(options.last)
    else:
        threads = [threading.Thread(target=connection.work) for connection in connections]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    state.save()
    for connection in connections:
        if connection.failure:
            sys.exit(connection.failure)
    print(f"{len(state.answered)} {state.flushes} {state.fuas}")


def judge(options):
    """What is found is what the sectors contain from now on: nothing of it may be lost later, and nothing older may come back."""
    handle = nbd.NBD()
    handle.connect_uri(options.uri)
    size = handle.get_size()
    state = State(size, options.state)
    lost, ahead = [], 0
    for start in range(0, size, 1 << 20):
        data = handle.pread(min(1 << 20, size - start), start)
        for at in range(0, len(data), SECTOR):
            no, contents = (start + at) // SECTOR, data[at : at + SECTOR]
            sector = state.sectors[no]
            version = found_in(state, no, contents)
            if version is None:
                lost.append(f"sector {no} has {contents[:32].hex()}, and must have version {sector.stable} to {sector.sent}")
                continue
            ahead += version > sector.stable
            state.sectors[no] = Sector(version, version, [version] if version in sector.zeroes else [])
    handle.shutdown()
    if lost:
        sys.exit(f"{len(lost)} sectors are not what was answered:\n  " + "\n  ".join(lost[:5]))
    state.save()
    print(ahead)


def found_in(state, no, contents):
    """The version that a sector contains, if it may; of those that read as zeros the oldest that may be there."""
    sector = state.sectors[no]
    if not any(contents):
        return min(filter(sector.admits, sector.zeroes), default=None)
    version = struct.unpack_from("<QQQ", contents)[2]
    return version if sector.admits(version) and contents == state.pattern(no, version) else None


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("write", "judge"))
    parser.add_argument("uri")
    parser.add_argument("state")
    parser.add_argument("seed", nargs="?")
    parser.add_argument("--last", choices=("flush", "fua"))
    options = parser.parse_args()
    write(options) if options.what == "write" else judge(options)


if __name__ == "__main__":
    main()
