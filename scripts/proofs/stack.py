"""Kills the process that serves a stack at a random moment, over and over, and looks at every volume that is left.

The stack is Figure 6 of the Featherstitch paper: a volume and its external journal in two files of an outer volume, both
mounted, both under load. Every run is made by its number and the seed alone. After each kill
  - the outer volume, recovered by itself, is clean for both checkers,
  - the inner image and journal, taken out of it, are what a power cut may leave of the inner mechanism: nothing at
    all to find after a replay by us or by e2fsck, or what soft updates allow,
  - the stack mounts at once, and every file that an fsync had promised is there, whole, in both volumes,
  - the mounted stack can be used, and is clean for both checkers after unmounting.

The canaries are --outer async and --inner async: there the checkers must find damage in many of the runs.
"""

import json
import os
import random
import subprocess
import sys
import time

import common
import crash_kill

OUTER = ("soft", "sync", "ordered", "metadata", "full")
INNER = ("ordered", "metadata", "full", "soft")
JOURNAL = """journal = "journal"

[[device]]
name = "journal"
volume = "outer"
file = "/inner.journal"
"""


def smallest_log(block_size):
    """Mebibytes of the smallest journal, which has 1024 blocks."""
    return block_size // 1024


class Run:
    """The choices of one run."""

    def __init__(self, seed, number, options):
        source = random.Random(f"{seed}/{number}")
        self.number = number
        self.outer = options.outer or OUTER[number % len(OUTER)]
        self.inner = options.inner or INNER[number // len(OUTER) % len(INNER)]
        # An outer journal of contents takes the inner volume as well, which then has no mechanism of its own.
        self.has_journal = self.inner in common.JOURNALED and self.outer != "full"
        if self.outer == "full":
            self.inner = "soft"
        self.block_size = source.choice([1024, 2048, 4096])
        self.cache = source.choice(["1M", "8M", "256M"])
        self.age = source.choice(["20ms", "100ms", "500ms", "2s"])
        self.kinds = [source.choice(["postmark", "untar"]) for _ in range(2)]
        self.seeds = [source.randrange(10**9) for _ in range(2)]
        self.log_mib = source.choice([1, 2, 8]) * smallest_log(self.block_size)
        self.moment = source.uniform(0.1, options.seconds)

    def __str__(self):
        return (
            f"run {self.number}: {self.inner} in {self.outer}, {self.kinds[1]} in {self.kinds[0]}, {self.block_size}-byte "
            f"blocks, cache {self.cache}, age {self.age}, killed after {self.moment:.2f} s"
        )

    def is_exact(self):
        """Whether a replay leaves nothing at all to find in the inner volume: not the mark of a clean one either."""
        return self.has_journal


class Stack:
    """The images in a directory, and the process that serves them."""

    def __init__(self, binary, work, run):
        self.binary, self.work, self.run = binary, work, run
        self.disk, self.file = f"{work}/disk.img", f"{work}/stack.toml"
        self.inner, self.journal = f"{work}/inner.img", f"{work}/inner.journal"
        size = str(run.block_size)
        for directory in ("outer", "inner"):
            os.mkdir(f"{work}/{directory}")
        if run.outer in common.JOURNALED:
            common.run(binary, "mkfs", "ext3", "-q", "-b", size, "-J", f"size={run.log_mib}", self.disk, "512M")
        else:
            common.run(binary, "mkfs", "ext2", "-q", "-b", size, self.disk, "512M")
        common.run(binary, "mkfs", "ext2", "-q", "-b", size, self.inner, "192M")
        files = [self.inner]
        if run.has_journal:
            common.run(binary, "mkfs", "journal", "-q", "-b", size, self.journal, f"{2 * smallest_log(run.block_size)}M")
            common.run(binary, "tune", "--journal-device", self.journal, self.inner)
            files.append(self.journal)
        common.run(binary, "cp", *files, f"{self.disk}:/")
        commit = 'options = "commit=1"'
        text = common.STACK.format(
            all=f'cache_size = "{run.cache}"\nwrite_back_age = "{run.age}"',
            outer=f'consistency = "{run.outer}"\n{commit}',
            inner=f'consistency = "{run.inner}"\n{commit}',
        )
        text += JOURNAL if run.has_journal else ""
        with open(self.file, "w", encoding="utf-8") as file:
            file.write(text)

    def mount(self):
        started = time.monotonic()
        common.run(self.binary, "mount", "--stack", self.file)
        status = json.loads(common.run(self.binary, "status", "--json", f"{self.work}/inner").stdout)[0]
        self.pid = status["pid"]
        return time.monotonic() - started

    def umount(self):
        common.run(self.binary, "umount", "--stack", self.file, timeout=120)

    def kill(self):
        """Pulls the plug. The dead mounts stay for the moment, so that nobody writes to what is below them."""
        common.Mount.kill(self)

    def detach(self):
        for name in ("inner", "outer"):
            subprocess.run(["umount", "-l", f"{self.work}/{name}"], capture_output=True, check=False)

    def extract(self, disk):
        """Takes the inner image, and its journal, out of an outer one; returns both names and the way to name them."""
        common.run(self.binary, "cp", f"{disk}:/inner.img", self.inner)
        if not self.run.has_journal:
            return [], []
        common.run(self.binary, "cp", f"{disk}:/inner.journal", self.journal)
        return ["--journal", self.journal], ["-j", self.journal]


def load(stack):
    """Works in both volumes until the moment of the kill. Returns what was promised, outer volume first."""
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "workloads.py")
    loads = []
    journals = [f"{stack.work}/promises-{name}" for name in ("outer", "inner")]
    for name, journal, kind, seed in zip(("outer", "inner"), journals, stack.run.kinds, stack.run.seeds):
        words = [sys.executable, script, kind, f"{stack.work}/{name}", str(seed), journal]
        loads.append(subprocess.Popen(words, stderr=subprocess.PIPE, text=True))
    try:
        time.sleep(stack.run.moment)
        for running in loads:
            if running.poll() is not None:
                raise common.Failure(f"the load ended early: {running.stderr.read().strip()}")
    finally:
        stack.kill()
        for running in loads:
            running.kill()
            running.wait()
            running.stderr.close()
        stack.detach()
    return [crash_kill.Promises(journal) for journal in journals]


def judge_outer(stack):
    """A recovered copy of the outer image, clean for both checkers; returns its path."""
    copy = stack.disk + ".copy"
    common.copy_sparse(stack.disk, copy)
    report = common.fsck(stack.binary, copy, "-n")
    exact = stack.run.outer in common.JOURNALED
    if report["corrupt"] or (exact and report["total"]):
        raise common.Failure(f"outer: our fsck finds {report['findings'][:5]}")
    common.run(stack.binary, "fsck", "-f", "-p", copy, ok=(0, 1))
    common.e2fsck_clean(copy)
    return copy


def judge_inner(stack, disk):
    """The inner volume as it is in an outer image."""
    ours, judges = stack.extract(disk)
    report = common.fsck(stack.binary, stack.inner, "-n", *ours)
    if report["corrupt"] or (stack.run.is_exact() and report["total"]):
        raise common.Failure(f"inner: our fsck finds {report['corrupt']} damages, {report['findings'][:5]}")
    if stack.run.has_journal:
        common.run("e2fsck", "-p", *judges, stack.inner, ok=(0, 1))
    else:
        common.run("e2fsck", "-fy", stack.inner, ok=(0, 1))
    common.run("e2fsck", "-fn", *judges, stack.inner)
    return report["total"]


def judge_mounted(stack, promises):
    """The stack mounts at once, holds what was promised, can be used, and is clean afterwards."""
    seconds = stack.mount()
    try:
        if seconds > crash_kill.MOUNT_SECONDS_MAX:
            raise common.Failure(f"mounting took {seconds:.1f} s")
        for name, kept in zip(("outer", "inner"), promises):
            crash_kill.holds(f"{stack.work}/{name}", kept)
            for number in range(20):
                with open(f"{stack.work}/{name}/after-{number}", "wb") as file:
                    file.write(b"a" * 10_000)
            done = common.run(
                stack.binary, "fsck", "--online", "-p", "--json", f"{stack.work}/{name}", ok=(0, 1, 4)
            )
            report = json.loads(done.stdout)
            if report["left"]:
                raise common.Failure(f"{name}: the online check, after reclaiming, finds {report['findings'][:5]}")
        stack.umount()
    except BaseException:
        stack.kill()
        stack.detach()
        raise
    common.e2fsck_clean(stack.disk)
    ours, judges = stack.extract(stack.disk)
    common.run("e2fsck", "-fn", *judges, stack.inner)
    for image, extra in ((stack.disk, []), (stack.inner, ours)):
        report = common.fsck(stack.binary, image, "-n", *extra)
        if report["total"]:
            raise common.Failure(f"after a clean unmount our fsck finds {report['findings'][:5]} in {image}")


def one(binary, work, run):
    stack = Stack(binary, work, run)
    stack.mount()
    promises = load(stack)
    copy = judge_outer(stack)
    found = judge_inner(stack, copy)
    os.unlink(copy)
    judge_mounted(stack, promises)
    print(f"     {found} allowed findings, {' and '.join(str(len(kept.files)) for kept in promises)} synced files whole", flush=True)


def main():
    parser = common.arguments(__doc__)
    parser.add_argument("--runs", type=int, default=100, help="how many runs (default 100)")
    parser.add_argument("--seed", default=None, help="repeats the runs of an earlier invocation")
    parser.add_argument("--only", type=int, default=None, help="this run only")
    parser.add_argument("--seconds", type=float, default=4.0, help="latest moment of a kill (default 4)")
    parser.add_argument("--outer", choices=(*OUTER, "async"), help="the outer mechanism (default: each in turn)")
    parser.add_argument("--inner", choices=(*INNER, "async"), help="the inner mechanism (default: each in turn)")
    options = parser.parse_args()
    common.require(root=True, fuse=True, commands=("e2fsck",))
    binary = common.program(options)
    seed = options.seed or str(random.SystemRandom().randrange(10**9))
    print(f"seed {seed}", flush=True)
    summary = common.Summary(f"{options.runs} kills of stacks (seed {seed})")
    chosen = "".join(f" --{name} {getattr(options, name)}" for name in ("outer", "inner") if getattr(options, name))
    for number in range(options.runs) if options.only is None else [options.only]:
        run = Run(seed, number, options)
        repeat = f"{sys.argv[0]} --seed {seed} --only {number} --seconds {options.seconds}{chosen}"
        with summary.case(str(run)), common.workdir(options, "stack") as work:
            try:
                one(binary, work, run)
            except (common.Failure, OSError, subprocess.SubprocessError) as failure:
                raise common.Failure(f"{failure}\n  repeat with: {repeat}") from failure
    summary.end()


if __name__ == "__main__":
    main()
