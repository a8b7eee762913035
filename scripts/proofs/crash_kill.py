"""Kills the mount at a random moment, over and over, and looks at what is left each time.

Every run is made by its number and the seed alone: the load, the optimisations, the cache, the moment. A failing run
prints the line that repeats it. After each kill
  - our checker finds nothing but what soft updates allow after a crash,
  - `e2fsck -fy` on a copy ends with at most 1, and `-fn` then with 0,
  - the image mounts at once, and every file that an fsync had promised is there, whole, and so is what git and SQLite had
    committed and synced,
  - the mounted volume can be used and repaired online, and is clean for both checkers after unmounting.

With a journal (--consistency ordered, metadata, full) the volume is replayed three ways, by us, by the kernel and by
`e2fsck -p`: the trees are the same, both checkers find nothing at all, and what was promised is there. With `all`, every mechanism
takes its turn. The loads take turns too, and half of the runs have the smallest cache.

With --ufs, volumes of UFS1 and UFS2 in both orders of bytes take turns, judged by our checker alone; with --waffle,
volumes of waffle, of which it finds nothing at all; the files of every second of these are compressed.
"""

import contextlib
import hashlib
import json
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time

import common
import workloads

# More than one step of the clock that the kernel stamps files with.
KERNEL_STEP_NS = 20_000_000

OPTIMIZATIONS = ("hard", "overlap", "ready", "elimination")
# A mount takes milliseconds; this is generous for a loaded machine and still no check of the whole volume.
MOUNT_SECONDS_MAX = 5.0
JOURNALED = ("ordered", "metadata", "full")
MECHANISMS = {"all": ("soft", "sync", *JOURNALED), "journaled": JOURNALED}
KINDS = tuple(workloads.LOADS)


class Run:
    """The choices of one run."""

    def __init__(self, seed, number, options):
        mechanisms = MECHANISMS.get(options.consistency, (options.consistency,))
        source = random.Random(f"{seed}/{number}")
        self.number = number
        # Each load meets each mechanism with each cache before one of the three is met again.
        rest, kind = divmod(number, len(KINDS))
        rest, mechanism = divmod(rest, len(mechanisms))
        self.kind, self.consistency = KINDS[kind], mechanisms[mechanism]
        self.small_cache = rest % 2 == 1
        self.off = [name for name in OPTIMIZATIONS if source.random() < 0.5]
        self.block_size = source.choice([1024, 1024, 2048, 4096])
        self.age = source.choice(["20ms", "100ms", "500ms", "2s"])
        self.load_seed = source.randrange(10**9)
        self.moment = source.uniform(0.05, options.seconds)
        self.journal_mib = source.choice([1, 2, 4, 8]) * self.block_size // 1024
        self.commit = source.choice([1, 1, 5])
        self.also = options.also
        self.format = common.journaled_kind(options) if self.consistency in JOURNALED or options.ext4 else "ext2"
        # Without a journal, the features that order nothing and those that do.
        # What no other program judges.
        self.own = common.UFS[number % len(common.UFS)] if options.ufs else common.WAFFLE if options.waffle else None
        if self.own:
            self.consistency, self.format = "shadow" if options.waffle else "soft", self.own
            self.block_size = 4096 if options.waffle else source.choice([4096, 8192, 16384, 32768])
        # Each load meets each cache with contents that are compressed and with others.
        self.compressed = options.waffle and number // (2 * len(KINDS)) % 2 == 1
        self.features = source.choice(["^has_journal", "^has_journal,^metadata_csum", "^has_journal,^metadata_csum,uninit_bg"])

    def __str__(self):
        off = ",".join(self.off) or "none"
        cache = "1M" if self.small_cache else "default"
        return (
            f"run {self.number}: {self.consistency} on {self.format}{', compressed' if self.compressed else ''}, {self.kind}, {self.block_size}-byte blocks, without {off}, cache {cache}, "
            f"age {self.age}, killed after {self.moment:.2f} s"
        )

    def mount_options(self):
        options = ["--write-back-age", self.age, "-o", f"consistency={self.consistency},commit={self.commit},{self.also}"]
        if self.off:
            options += ["--optimizations", ",".join(self.off)]
        if self.small_cache:
            options += ["--cache-size", "1M"]
        return options


class Promises:
    """What the load had promised when it ended."""

    def __init__(self, journal):
        # path -> (size, hash); (path, commit) -> hash of its archive; path -> rows
        self.files, self.commits, self.rows = {}, {}, {}
        with contextlib.suppress(FileNotFoundError), open(journal, encoding="utf-8") as file:
            for line in file:
                self.note(line.split())

    def note(self, words):
        """Takes a line of the journal; the last one may have been cut off."""
        if words[0] == "keep" and len(words) == 4:
            self.files[words[1]] = (int(words[2]), words[3])
        elif words[0] == "forget":
            self.files.pop(words[1], None)
        elif words[0] == "commit" and len(words) == 4 and len(words[3]) == 64:
            self.commits[words[1], words[2]] = words[3]
        elif words[0] == "rows" and len(words) == 3:
            # A number that was cut off is smaller.
            self.rows[words[1]] = max(int(words[2]), self.rows.get(words[1], 0))

    def __str__(self):
        rows = sum(self.rows.values())
        return f"{len(self.files)} synced files, {len(self.commits)} commits and {rows} rows whole"


def crash(binary, work, run):
    """Makes a volume, loads it, and kills the mount in the middle. Returns image and journal."""
    image, directory, journal = f"{work}/a.img", f"{work}/m", f"{work}/journal"
    if run.own:
        common.make_volume(binary, run.own, run.block_size, image, "256M", compressed=run.compressed)
    elif run.consistency in JOURNALED:
        journal_size = ["-J", f"size={run.journal_mib}"]
        common.run("mke2fs", "-q", "-F", "-t", run.format, "-b", str(run.block_size), *journal_size, image, "256M")
    elif run.format == "ext4":
        common.run("mke2fs", "-q", "-F", "-t", "ext4", "-O", run.features, "-b", str(run.block_size), image, "256M")
    else:
        common.run(binary, "mkfs", "ext2", "-q", "-b", str(run.block_size), image, "256M")
    mount = common.Mount(binary, image, directory, *run.mount_options())
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "workloads.py")
    load = subprocess.Popen(
        [sys.executable, script, run.kind, directory, str(run.load_seed), journal],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        time.sleep(run.moment)
        if load.poll() is not None:
            raise common.Failure(f"the load ended early: {load.stderr.read().strip()}")
    finally:
        mount.kill()
        load.kill()
        load.wait()
        load.stderr.close()
        mount.detach()
    return image, directory, journal


def judge_offline(binary, image, own):
    """Both checkers on what the crash left; of some formats there is ours alone."""
    report = common.fsck(binary, image, "-n")
    lawful = "none" if own == common.WAFFLE else "allowed"
    damage = [finding["text"] for finding in report["findings"] if finding["class"] != lawful]
    if report["corrupt"] or damage:
        raise common.Failure(f"our fsck finds {report['corrupt']} damages: " + "; ".join(damage[:5]))
    copy = image + ".copy"
    if not own:
        common.copy_sparse(image, copy)
        common.run("e2fsck", "-fy", copy, ok=(0, 1))
        common.e2fsck_clean(copy)
        os.unlink(copy)
    ours = image + ".ours"
    common.copy_sparse(image, ours)
    common.run(binary, "fsck", "-f", "-p", ours, ok=(0, 1))
    if not own:
        common.e2fsck_clean(ours)
    elif common.fsck(binary, ours, "-n")["total"]:
        raise common.Failure("our fsck finds something in what it has mended")
    os.unlink(ours)
    return report["total"]


def judge_mounted(binary, image, directory, kept, own=None):
    """The image mounts at once, holds what was promised, and is whole after further use."""
    with common.Mount(binary, image, directory) as mount:
        if mount.mount_seconds > MOUNT_SECONDS_MAX:
            raise common.Failure(f"mounting took {mount.mount_seconds:.1f} s")
        holds(directory, kept)
        for number in range(20):
            with open(f"{directory}/after-{number}", "wb") as file:
                file.write(b"a" * 10_000)
        if not own:
            done = common.run(binary, "fsck", "--online", "-p", "--json", directory, ok=(0, 1, 4))
            report = json.loads(done.stdout)
            if report["left"]:
                raise common.Failure(f"the online check, after reclaiming, finds {report['findings'][:5]}")
    if not own:
        common.e2fsck_clean(image)
    report = common.fsck(binary, image, "-n")
    if report["total"]:
        raise common.Failure(f"after a clean unmount our fsck finds {report['findings'][:5]}")


def judge_replays(binary, image, directory, kept, kind):
    """The three replays agree, leave nothing to find, and hold what was promised."""
    ours, kernels, e2fscks = image + ".ours", image + ".kernel", image + ".e2fsck"
    for copy in (ours, kernels, e2fscks):
        common.copy_sparse(image, copy)
    report = common.fsck(binary, image, "-n")
    if report["total"]:
        raise common.Failure(f"our fsck finds {report['findings'][:5]}")
    common.run(binary, "fsck", "-f", "-p", ours, ok=(0, 1))
    common.run("e2fsck", "-p", e2fscks, ok=(0, 1))
    # The kernel's clock for files goes in steps.
    mounted = time.time_ns() - KERNEL_STEP_NS
    with common.kernel_mount(kernels, directory, kind=kind):
        holds(directory, kept)
    with common.kernel_mount(e2fscks, directory, "ro", kind=kind):
        expected = common.manifest(directory)
    for copy, who in ((ours, "us"), (kernels, "the kernel"), (e2fscks, "e2fsck")):
        common.e2fsck_clean(copy)
        with common.kernel_mount(copy, directory, "ro", kind=kind):
            found = common.manifest(directory)
        if copy == kernels:
            # A file that was growing is cut to its length by all three; the kernel alone calls that a change of now.
            for path in expected.keys() & found.keys():
                if found[path]["mtime"] >= mounted:
                    found[path]["mtime"] = expected[path]["mtime"]
        common.same_trees(expected, found, f"replayed by {who}")
        os.unlink(copy)
    return 0


def holds(directory, kept):
    """Whether all that was promised is there, whole."""
    for path, (size, expected) in kept.files.items():
        with open(f"{directory}/{path}", "rb") as file:
            data = file.read()
        if len(data) != size or hashlib.sha256(data).hexdigest() != expected:
            raise common.Failure(f"{path} was synced with {size} bytes and now differs ({len(data)} bytes)")
    for (path, commit), expected in kept.commits.items():
        command = ["git", "-C", f"{directory}/{path}", "-c", "safe.directory=*", "archive", commit]
        done = subprocess.run(command, capture_output=True, check=False)
        if done.returncode != 0 or hashlib.sha256(done.stdout).hexdigest() != expected:
            raise common.Failure(f"git's commit {commit} was synced and now differs: {done.stderr.decode(errors='replace')}")
    for path, rows in kept.rows.items():
        holds_rows(directory, path, rows)


def holds_rows(directory, path, rows):
    """Whether a data base is sound and has the rows that were committed. A copy is looked at: to open it may change it."""
    with tempfile.TemporaryDirectory(prefix="crash-sqlite") as work:
        for name in os.listdir(directory):
            if name.startswith(path):
                shutil.copy(f"{directory}/{name}", work)
        base = sqlite3.connect(f"{work}/{path}")
        with contextlib.closing(base):
            sound = base.execute("pragma integrity_check").fetchall()
            if sound != [("ok",)]:
                raise common.Failure(f"{path}: {sound[:3]}")
            texts = base.execute("select id, text from t order by id").fetchall()
    wrong = [number for at, (number, text) in enumerate(texts) if number != at or text != workloads.row(at)]
    if len(texts) < rows or wrong:
        raise common.Failure(f"{path}: {rows} rows were committed, {len(texts)} are there, wrong ones: {wrong[:5]}")


def main():
    parser = common.arguments(__doc__)
    parser.add_argument("--runs", type=int, default=200, help="how many runs (default 200)")
    parser.add_argument("--seed", default=None, help="repeats the runs of an earlier invocation")
    parser.add_argument("--only", type=int, default=None, help="this run only")
    parser.add_argument("--seconds", type=float, default=4.0, help="latest moment of a kill (default 4)")
    mechanisms = ("soft", "sync", *JOURNALED, *MECHANISMS)
    parser.add_argument("--consistency", default="soft", choices=mechanisms, help="the mechanism (default soft)")
    common.journaled(parser)
    common.ufs(parser)
    common.waffle(parser)
    common.more_options(parser)
    options = parser.parse_args()
    journals = options.consistency not in ("soft", "sync")
    commands = ("e2fsck", "git", "mke2fs") if journals else ("e2fsck", "git")
    common.require(root=True, fuse=True, loop=journals, commands=commands)
    binary = common.program(options)
    seed = options.seed or str(random.SystemRandom().randrange(10**9))
    print(f"seed {seed}", flush=True)
    summary = common.Summary(f"{options.runs} kills (seed {seed})")
    numbers = range(options.runs) if options.only is None else [options.only]
    for number in numbers:
        run = Run(seed, number, options)
        repeat = f"{sys.argv[0]} --seed {seed} --only {number} --seconds {options.seconds}"
        repeat += f" --consistency {options.consistency}" + (f" --also {options.also}" if options.also else "") + (" --ext4" if options.ext4 else "") + (" --ufs" if options.ufs else "") + (" --waffle" if options.waffle else "")
        with summary.case(str(run)), common.workdir(options, "crash") as work:
            try:
                image, directory, journal = crash(binary, work, run)
                kept = Promises(journal)
                journaled = run.consistency in JOURNALED
                if journaled:
                    found = judge_replays(binary, image, directory, kept, run.format)
                else:
                    found = judge_offline(binary, image, run.own)
                judge_mounted(binary, image, directory, kept, run.own)
            except (common.Failure, OSError, sqlite3.Error) as failure:
                raise common.Failure(f"{failure}\n  repeat with: {repeat}") from failure
            print(f"     {found} allowed findings, {kept}", flush=True)
    summary.end()


if __name__ == "__main__":
    main()
