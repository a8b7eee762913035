"""What the case studies share: volumes to work on, what the work cost, and every image that a crash may leave of it.

A study is a load and a question. The load is the real program on a mounted volume. `measure` runs it and counts seconds,
write requests, blocks and flushes until everything is stable. `crash` runs it once more while every write and flush is
recorded, makes images that a power cut could have left at any moment, recovers each, and puts the question, a shell command,
to every tree that differs: an exit status other than 0 is a broken promise.
"""

import contextlib
import dataclasses
import json
import os
import shlex
import statistics
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "scripts", "proofs"))

import common  # noqa: E402

# The mechanisms that the studies compare: soft updates, and the two journals that order contents too.
MECHANISMS = ("soft", "ordered", "full")
# Kernel file systems that serve for comparison, with their mount options.
KERNEL = {"ext4": "data=ordered", "ext3": "data=ordered"}
BLOCK_SIZE = 4096
# Servers give up root, so others may use the mounts too; nobody but root may allow that everywhere.
OTHERS = ",allow_other" if os.geteuid() == 0 else ""
# What makes a mount write all the time, without and with a journal: a load of a second is cut at many moments.
OFTEN = (["--write-back-age", "20ms"], ["--write-back-age", "20ms", "-o", "commit=5ms"])
RESULTS = os.path.join(common.REPOSITORY, "target", "studies")


class Volume:
    """A fresh volume of ours, mounted at `self.at`; as a context manager it is unmounted at the end."""

    def __init__(self, binary, work, mechanism, size="512M"):
        self.binary, self.mechanism = binary, mechanism
        self.image, self.at = f"{work}/volume.img", f"{work}/volume"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.image)
        common.make_volume(binary, mechanism, BLOCK_SIZE, self.image, size)
        self.mount = None

    def __enter__(self):
        self.mount = common.Mount(self.binary, self.image, self.at, "-o", f"consistency={self.mechanism}{OTHERS}")
        return self

    def __exit__(self, kind, value, trace):
        self.mount.__exit__(kind, value, trace)

    def counters(self):
        """Write requests, blocks and flushes of the device so far."""
        device = self.mount.stats()["device"]
        return device["write_requests"], device["blocks_written"], device["flushes"]

    def settle(self):
        """Makes everything stable: fsync of the root does, by whoever is not ordered."""
        directory = os.open(self.at, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def order(self, *options):
        """The words that put a program under ordered fsync on this volume."""
        return [self.binary, "order", "--on", self.at, *options, "--"]


class KernelVolume:
    """The same on a loop device with the kernel's own driver; the counters are the loop device's."""

    def __init__(self, work, kind, size="512M"):
        self.mechanism, self.kind = f"kernel {kind}", kind
        self.image, self.at = f"{work}/kernel.img", f"{work}/kernel"
        common.run("truncate", "-s", size, self.image)
        common.run(f"mkfs.{kind}", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0", self.image)
        self.stack = contextlib.ExitStack()

    def __enter__(self):
        os.makedirs(self.at, exist_ok=True)
        common.run("mount", "-o", f"loop,{KERNEL[self.kind]}", self.image, self.at)
        source = common.run("findmnt", "-no", "SOURCE", self.at).stdout.strip()
        self.device = os.path.basename(source)
        return self

    def __exit__(self, kind, value, trace):
        common.run("umount", self.at)

    def settle(self):
        common.run("sync", "-f", self.at)

    def counters(self):
        return loop_counters(self.device)


class LogicalDisk:
    """A logical disk on a loop device; the counters are the loop device's. What works on it opens it itself."""

    mechanism = "logical disk"

    def __init__(self, binary, work, size="512M"):
        self.image, self.binary = f"{work}/disk.img", binary
        common.run("truncate", "-s", size, self.image)

    def __enter__(self):
        self.at = common.run("losetup", "-f", "--show", self.image).stdout.strip()
        common.run(self.binary, "lld", "format", "--force", self.at)
        return self

    def __exit__(self, kind, value, trace):
        common.run("losetup", "-d", self.at)

    def settle(self):
        """It was closed by whoever worked on it, and so everything is stable."""

    def counters(self):
        return loop_counters(os.path.basename(self.at))


def loop_counters(device):
    """Write requests, blocks and flushes of a loop device so far."""
    with open(f"/sys/block/{device}/stat", encoding="ascii") as file:
        fields = [int(word) for word in file.read().split()]
    return fields[4], fields[6] * 512 // BLOCK_SIZE, fields[15]


@dataclasses.dataclass
class Row:
    """What one way to run a load cost: medians over the runs."""

    way: str
    volume: str
    returned: float
    seconds: float
    requests: int
    blocks: int
    flushes: int
    runs: int
    spread: float = 0.0

    def cells(self):
        spread = f" ±{self.spread:.2f}" if self.runs > 1 else ""
        return [
            self.way, self.volume, f"{self.returned:.2f} s", f"{self.seconds:.2f} s{spread}", f"{self.requests:,}",
            f"{self.blocks:,}", f"{self.flushes:,}",
        ]


@dataclasses.dataclass
class Judged:
    """What crashes of one way to run a load can leave."""

    way: str
    volume: str
    states: int
    trees: int
    broken: int
    first: str
    expected: bool = False

    def cells(self):
        found = f"{self.broken:,}" + (f": {self.first}" if self.broken else "")
        return [self.way, self.volume, f"{self.states:,}", f"{self.trees:,}", found]


class Study:
    """Collects the rows of a study and prints them."""

    def __init__(self, name, options):
        self.name, self.options, self.binary = name, options, common.program(options)
        self.rows, self.judged, self.notes = [], [], {}

    def measure(self, way, make, prepare, load, times=None):
        """Runs a load on fresh volumes; `make(work)` makes one, `prepare(volume)` is not counted, `load(volume)` is.

        What takes minutes may be run a number of `times` of its own.
        """
        runs = []
        for _ in range(min(times or self.options.runs, self.options.runs)):
            with common.workdir(self.options, "study") as work, make(work) as volume:
                if prepare:
                    prepare(volume)
                volume.settle()
                before, started = volume.counters(), time.monotonic()
                load(volume)
                returned = time.monotonic() - started
                volume.settle()
                seconds = time.monotonic() - started
                runs.append((returned, seconds, *(now - then for now, then in zip(volume.counters(), before))))
                mechanism = volume.mechanism
        returned, seconds, requests, blocks, flushes = (statistics.median(column) for column in zip(*runs))
        spread = max(run[1] for run in runs) - min(run[1] for run in runs)
        row = Row(way, mechanism, returned, seconds, round(requests), round(blocks), round(flushes), len(runs), spread / 2)
        self.rows.append(row)
        print(f"     {' | '.join(row.cells())}", flush=True)
        return row

    def crash(self, way, mechanism, prepare, load, ask, where="", expect_broken=False, size="64M", mount=(),
              often=True):
        """Records a load and puts `ask` to what power cuts can leave of it, in the directory `where` of the volume.

        With `expect_broken` the way is known to break: then it must be found broken, so that the question is known to find it.
        With `expect_broken=None` it promises nothing, but breaks too seldom to be found every time. Without `often` the mount
        writes when it usually would.
        """
        with common.workdir(self.options, "study") as work:
            volume = Volume(self.binary, work, mechanism, size)
            base, log = f"{work}/base.img", f"{work}/log"
            if prepare:
                with volume:
                    prepare(volume)
            common.copy_sparse(volume.image, base)
            os.makedirs(volume.at, exist_ok=True)
            common.run(
                self.binary, "crash", "mount", "--record", log, "-o", f"consistency={mechanism}{OTHERS}",
                *(OFTEN[mechanism in common.JOURNALED] if often else ()), *mount, volume.image, volume.at,
            )
            try:
                load(volume)
                volume.settle()
            except BaseException:
                common.run(self.binary, "umount", "--lazy", volume.at, ok=None)
                raise
            common.run(self.binary, "umount", volume.at)
            words = [
                self.binary, "crash", "replay-log", "--json", "--consistency", mechanism, "--states",
                str(self.options.states), "--states-per-cut", "24", "--violations", "1000000", "--aftermath", "0",
                "--ask", ask, "--ask-in", where or "/", base, log,
            ]
            found = json.loads(common.run(*words, ok=(0, 1)).stdout)
            others = [violation for violation in found["violations"] if violation["code"] != "asked"]
            if others:
                raise common.Failure(f"{others[0]['code']}: {others[0]['text']}")
            broken = found["violations"]
            first = broken[0]["text"].splitlines()[-1] if broken else ""
            judged = Judged(
                way, mechanism, found["states_generated"], found["asked"], len(broken), first, expect_broken is not False
            )
            self.judged.append(judged)
            print(f"     {' | '.join(judged.cells())}", flush=True)
            if broken and expect_broken is False:
                raise common.Failure(f"{way} on {mechanism}: {broken[0]['text']}\n  replay: {broken[0]['replay']}")
            if expect_broken and not broken:
                raise common.Failure(f"{way} on {mechanism} was never found broken: the question finds nothing")
            return judged

    def save(self):
        os.makedirs(RESULTS, exist_ok=True)
        with open(f"{RESULTS}/{self.name}.json", "w", encoding="utf-8") as file:
            json.dump(
                {
                    "study": self.name,
                    "rows": [dataclasses.asdict(row) for row in self.rows],
                    "judged": [dataclasses.asdict(judged) for judged in self.judged],
                    "notes": self.notes,
                },
                file,
                indent=1,
            )


def ours(binary, mechanism, size="512M"):
    """A maker of our volumes for `Study.measure`."""
    return lambda work: Volume(binary, work, mechanism, size)


def kernels(kind, size="512M"):
    """A maker of the kernel's volumes for `Study.measure`."""
    return lambda work: KernelVolume(work, kind, size)


def logical_disks(binary, size="512M"):
    """A maker of logical disks for `Study.measure`."""
    return lambda work: LogicalDisk(binary, work, size)


def arguments(description):
    parser = common.arguments(description)
    parser.add_argument("--runs", type=int, default=3, help="runs of each way that are timed (default 3)")
    parser.add_argument("--states", type=int, default=2000, help="crash states of each way (default 2000)")
    parser.add_argument("--quick", action="store_true", help="one run and 200 states of each way")
    return parser


def options_of(parser):
    options = parser.parse_args()
    if options.quick:
        options.runs, options.states = 1, 200
    return options


def shell(text, **keywords):
    """Runs a line of shell; fails when it does."""
    return common.run("sh", "-c", text, **keywords)


def quoted(*words):
    return " ".join(shlex.quote(str(word)) for word in words)


