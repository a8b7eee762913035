"""Kills a mount of BPFS at a random moment, over and over: everything that had returned is there, without one sync.

At work meanwhile are two loads of which is known exactly what they leave (returned.py), and one of tar, PostMark, git, SQLite or
snapshots (workloads.py), which syncs nothing: git is told so, and SQLite runs with `synchronous=off`. After each kill
  - `fstitch fsck -n -f` finds nothing,
  - the volume mounts at once,
  - the trees of the two are those of all operations that had returned; the one under way is there or not, or a write that the kernel
    had split by some of its pieces,
  - every file, commit and row that the third has noted as done is there, whole,
  - the volume can be used, and is clean after unmounting.

`durability=power` and `durability=process` take turns, and so do logs of the usual size and the smallest ones. Every run is made by
its number and the seed alone. At the beginning it is looked whether an operation that is missing would be seen.
"""

import contextlib
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time

import common
import crash_kill
import returned
import workloads

KINDS = tuple(workloads.LOADS)
EXACT = ("one", "two")
# A mount takes milliseconds; this is generous for a machine that does much else.
MOUNT_SECONDS_MAX = 20.0


class Run:
    """The choices of one run."""

    def __init__(self, seed, number, options):
        source = random.Random(f"{seed}/{number}")
        self.number, self.kind = number, KINDS[number // 4 % len(KINDS)]
        self.durability = ("power", "process")[number % 2]
        self.log = (None, 65536)[number // 2 % 2]
        self.seeds = {name: source.randrange(10**9) for name in (*EXACT, "program")}
        self.moment = source.uniform(0.3, options.seconds)

    def __str__(self):
        log = self.log or "usual"
        return f"run {self.number}: durability={self.durability}, {self.kind}, log {log}, killed after {self.moment:.2f} s"


def script(name):
    return os.path.join(os.path.dirname(os.path.abspath(__file__)), name)


def start(work, run):
    """The loads, each in a directory of its own and a group with all that it starts."""
    top, commands = f"{work}/m", []
    for name in EXACT:
        os.mkdir(f"{top}/{name}")
        commands.append([script("returned.py"), f"{top}/{name}", str(run.seeds[name]), f"{work}/{name}"])
    # By `lost+found` the load tells a mount that lives from one that was killed.
    os.makedirs(f"{top}/program/lost+found")
    commands.append([script("workloads.py"), run.kind, f"{top}/program", str(run.seeds["program"]), f"{work}/program", "unsynced"])
    return [
        subprocess.Popen([sys.executable, *command], stderr=subprocess.PIPE, text=True, start_new_session=True)
        for command in commands
    ]


def crash(binary, work, run):
    """Makes a volume, loads it, and kills the mount in the middle."""
    image = f"{work}/a.img"
    common.run(binary, "mkfs", "bpfs", "-q", *(["-E", f"log_size={run.log}"] if run.log else []), image, "256M")
    mount = common.Mount(binary, image, f"{work}/m", "-o", f"durability={run.durability}")
    loads = []
    try:
        loads = start(work, run)
        time.sleep(run.moment)
        for load in loads:
            if load.poll() is not None:
                raise common.Failure(f"a load ended early: {load.stderr.read().strip()[-500:]}")
    finally:
        mount.kill()
        for load in loads:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(load.pid, signal.SIGKILL)
            load.wait()
            load.stderr.close()
        mount.detach()
    return image


def judge(binary, work, image, run):
    """What is left is everything that had returned. Returns how many operations, and what the program had promised."""
    report = common.fsck(binary, image, "-n")
    if report["total"]:
        raise common.Failure(f"our fsck finds {report['findings'][:5]}")
    kept = crash_kill.Promises(f"{work}/program")
    with common.Mount(binary, image, f"{work}/m") as mount:
        if mount.mount_seconds > MOUNT_SECONDS_MAX:
            raise common.Failure(f"mounting took {mount.mount_seconds:.1f} s")
        count = sum(returned.judge(f"{work}/m/{name}", run.seeds[name], f"{work}/{name}") for name in EXACT)
        crash_kill.holds(f"{work}/m/program", kept)
        for number in range(20):
            with open(f"{work}/m/after-{number}", "wb") as file:
                file.write(b"a" * 10_000)
    common.clean(binary, image, common.BPFS)
    return count, kept


def sees_what_is_missing(options):
    """An operation that is noted as done and was not done is a failure of the judge's."""
    with common.workdir(options, "bpfs-kill") as work:
        os.mkdir(f"{work}/one")
        begun = 0
        for number, _, operation in returned.operations(1):
            begun = number
            if number == 300:
                break
            returned.carry_out(f"{work}/one", operation)
        for last, fails in ((begun - 1, False), (begun + 1, True)):
            with open(f"{work}/journal", "w", encoding="utf-8") as file:
                file.write(f"begin {last}\ndone {last}\n")
            try:
                returned.judge(f"{work}/one", 1, f"{work}/journal")
                failed = False
            except common.Failure:
                failed = True
            if failed != fails:
                raise common.Failure("the judge does not see what is missing" if fails else "the judge misses what is there")


def main():
    parser = common.arguments(__doc__)
    parser.add_argument("--runs", type=int, default=100, help="how many runs (default 100)")
    parser.add_argument("--seed", default=None, help="repeats the runs of an earlier invocation")
    parser.add_argument("--only", type=int, default=None, help="this run only")
    parser.add_argument("--seconds", type=float, default=4.0, help="latest moment of a kill (default 4)")
    options = parser.parse_args()
    common.require(root=True, fuse=True, commands=("git",))
    os.umask(0)
    binary = common.program(options)
    seed = options.seed or str(random.SystemRandom().randrange(10**9))
    print(f"seed {seed}", flush=True)
    summary = common.Summary(f"{options.runs} kills of BPFS (seed {seed})")
    with summary.case("the judge sees an operation that is missing"):
        sees_what_is_missing(options)
    total = 0
    for number in range(options.runs) if options.only is None else [options.only]:
        run = Run(seed, number, options)
        with summary.case(str(run)), common.workdir(options, "bpfs-kill") as work:
            try:
                count, kept = judge(binary, work, crash(binary, work, run), run)
            except (common.Failure, OSError, sqlite3.Error) as failure:
                repeat = f"{sys.argv[0]} --seed {seed} --only {number} --seconds {options.seconds}"
                raise common.Failure(f"{failure}\n  repeat with: {repeat}") from failure
            total += count
            print(f"     {count} operations that had returned, {kept}", flush=True)
    print(f"{total} operations had returned, all are there", flush=True)
    summary.end()


if __name__ == "__main__":
    main()
