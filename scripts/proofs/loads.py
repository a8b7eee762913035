"""Real programs side by side on volumes of every kind, mounted as users mount them, for as long as is asked.

git that syncs its objects, tar, SQLite, hard-link snapshots by cp and mv, a stream of dd over and over, files made and removed at
once, files rewritten and appended to, a large file removed and written anew on a volume that it nearly fills: two to four of them
at a time, on each kind of volume in turn (ext4 by four mechanisms, of small blocks, and in a file of another ext4, ext3, ext2, UFS1 and UFS2,
waffle, also with compressed files). No option is given but what makes the kind. No program may fail, nor the mount, nor its end;
afterwards both checkers find nothing at all.
"""

import multiprocessing
import os
import random
import time

import common
import rewrites

SIZE = "768M"
# kind -> what makes the volume, and the options of its mount.
KINDS = {
    "ext4": (("ext4",), ()),
    "ext4 without a journal": (("ext4", "-O", "^has_journal"), ()),
    "ext4 metadata": (("ext4",), ("-o", "consistency=metadata")),
    "ext4 full": (("ext4",), ("-o", "consistency=full")),
    "ext4 of 1 KiB blocks": (("ext4", "-b", "1024"), ()),
    "ext4 in a file of ext4": (("ext4",), ()),
    "ext3": (("ext3",), ()),
    "ext2": (("ext2",), ()),
    "ufs1": (("ufs1",), ()),
    "ufs2": (("ufs2",), ()),
    "ufs2 big-endian": (("ufs2", "--order", "big"), ()),
    "waffle": (("waffle",), ()),
    "waffle, compressed": (("waffle", "-E", "compress"), ()),
}
GIT = ("git", "-c", "core.fsync=all", "-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "gc.auto=0")


def sh(at, script, *arguments):
    """A shell's commands in a directory; the first that fails fails all."""
    common.run("bash", "-euc", script, "bash", *arguments, cwd=at)


def git(at, number):
    if number == 0:
        common.run(*GIT, "init", "-q", ".", cwd=at)
    for name in range(10):
        with open(f"{at}/file{(number + name) % 40}", "w", encoding="ascii") as file:
            file.write(f"{number} {name}\n" * 200)
    common.run(*GIT, "add", ".", cwd=at)
    common.run(*GIT, "commit", "-qm", str(number), cwd=at)
    if number % 20 == 19:
        common.run(*GIT, "gc", "-q", cwd=at)
    common.run(*GIT, "fsck", "--full", cwd=at)


def tar(at, number):
    """A part of this machine's tree, there and back."""
    source = ("/usr/lib/python3", "/usr/share/perl5", "/etc")[number % 3]
    sh(at, 'tar -cf a.tar -C / "${1#/}"; mkdir t; tar -xf a.tar -C t; tar -df a.tar -C t; rm -r t a.tar', source)


def sqlite(at, number):
    sql = (
        "pragma journal_mode={};create table if not exists t(a,b);insert into t values(random(),randomblob(3000));"
        "update t set b=randomblob(100) where rowid%7={};delete from t where rowid<(select max(rowid) from t)-200;pragma integrity_check;"
    ).format(("delete", "wal")[number // 50 % 2], number % 7)
    said = common.run("sqlite3", f"{at}/db", sql).stdout
    if said.split()[-1] != "ok":
        raise common.Failure(said)


def snapshots(at, number):
    if number == 0:
        sh(at, 'for d in $(seq 20); do mkdir -p cur/$d; for f in $(seq 15); do echo $d.$f > cur/$d/$f; done; done')
    sh(
        at,
        'cp -al cur s$1; for d in $(seq 20); do echo n$1 > cur/$d/n; mv cur/$d/n cur/$d/$((($1 + d) % 15 + 1)); done; rm -rf s$(($1 - 3))',
        str(number),
    )


def stream(at, _number):
    sh(at, "dd if=/dev/zero of=big bs=16k count=4000 status=none")


def refill(at, number):
    """Most of what is free, all in one file, removed and written anew at once."""
    if number:
        os.unlink(f"{at}/refilled")
    free = os.statvfs(at)
    want = min(free.f_bavail * free.f_frsize * 6 // 10, 400 << 20)
    with open(f"{at}/refilled", "wb", buffering=0) as file:
        for _ in range(want >> 20):
            if file.write(b"x" * (1 << 20)) < 1 << 20:
                raise common.Failure("a short write")


def small(at, number):
    """A thousand small files with an fsync here and there, and their end."""
    os.mkdir(f"{at}/s{number}")
    for name in range(1000):
        with open(f"{at}/s{number}/{name}", "wb", buffering=0) as file:
            file.write(b"contents" * (name % 600))
            if name % 100 == 0:
                os.fsync(file.fileno())
    common.run("rm", "-r", f"{at}/s{number}")


PROGRAMS = (git, tar, sqlite, snapshots, stream, refill, small, rewrites.overwrite, rewrites.append, rewrites.come_and_go)


def repeat(load, at, until, failures):
    """One program again and again; what it says last is what failed."""
    os.makedirs(at)
    number = 0
    try:
        while number == 0 or time.monotonic() < until:
            load(at, number)
            number += 1
    except (OSError, common.Failure, ValueError) as error:
        failures.put(f"{load.__name__}, repetition {number}: {error}")


def work(places, draw, seconds):
    """Some of the programs side by side. Returns their names; fails if one does."""
    chosen = draw.sample(PROGRAMS, draw.randrange(2, 5))
    failures = multiprocessing.Queue()
    until = time.monotonic() + seconds
    running = []
    for number, load in enumerate(chosen):
        at = f"{places[number % len(places)]}/{number}-{load.__name__}"
        running.append(multiprocessing.Process(target=repeat, args=(load, at, until, failures)))
    for program in running:
        program.start()
    for program in running:
        program.join()
    if any(program.exitcode for program in running):
        raise common.Failure(f"a program of the load ended with {[program.exitcode for program in running]}")
    if not failures.empty():
        raise common.Failure("\n".join(failures.get() for _ in range(failures.qsize())))
    return ", ".join(load.__name__ for load in chosen)


def sound(binary, *places):
    for place in places:
        said = common.run(binary, "status", place).stdout
        if "FAILED" in said:
            raise common.Failure(said)


def judge(binary, kind, image):
    common.clean(binary, image, common.WAFFLE if not kind.startswith("ext") else "ordered")


def one(binary, at, kind, draw, seconds):
    """A volume of the kind, its mount, the programs, and the judges."""
    made, options = KINDS[kind]
    image, directory = f"{at}/a.img", f"{at}/m"
    common.run(binary, "mkfs", made[0], "-q", *made[1:], image, SIZE)
    with common.Mount(binary, image, directory, *options) as mount:
        names = work([directory], draw, seconds)
        sound(binary, directory)
        mount.umount()
    judge(binary, kind, image)
    return names


def stacked(binary, at, kind, draw, seconds):
    """The same of a volume in a file of another, with programs on both."""
    disk, outer = f"{at}/disk.img", f"{at}/outer"
    common.run(binary, "mkfs", "ext4", "-q", "-b", "4096", f"{at}/inner.img", "400M")
    common.run(binary, "mkfs", "ext4", "-q", disk, "1200M")
    with common.Mount(binary, disk, outer) as mount:
        common.run("cp", "--sparse=never", f"{at}/inner.img", f"{outer}/inner.img")
        mount.umount()
    with open(f"{at}/stack.toml", "w", encoding="ascii") as file:
        file.write(common.STACK.format(all="", outer="", inner=""))
    places = [f"{at}/outer", f"{at}/inner"]
    os.makedirs(places[1], exist_ok=True)
    common.run(binary, "mount", "--stack", f"{at}/stack.toml", cwd=at)
    try:
        names = work(places, draw, seconds)
        sound(binary, *places)
    finally:
        common.run(binary, "umount", "--stack", f"{at}/stack.toml")
    judge(binary, kind, disk)
    with common.Mount(binary, disk, outer) as mount:
        common.run("cp", f"{outer}/inner.img", f"{at}/inner.img")
        mount.umount()
    judge(binary, kind, f"{at}/inner.img")
    return names


def main():
    parser = common.arguments(__doc__)
    parser.add_argument("--minutes", type=float, default=60, help="no kind begins after so many minutes (default 60)")
    parser.add_argument("--seconds", type=float, default=20, help="seconds of the programs on each volume (default 20)")
    parser.add_argument("--kinds", metavar="TEXT", help="only the kinds whose names begin with this")
    parser.add_argument("--seed", default=None, help="what the programs are drawn from (default: the time)")
    options = parser.parse_args()
    common.require(root=True, fuse=True, commands=("e2fsck", "git", "sqlite3"))
    binary = common.program(options)
    seed = options.seed if options.seed is not None else str(time.time_ns())
    kinds = [kind for kind in KINDS if kind.startswith(options.kinds or "")]
    summary = common.Summary("loads")
    until = time.monotonic() + 60 * options.minutes
    number = 0
    # Each kind once in any case.
    while number < len(kinds) or time.monotonic() < until:
        kind = kinds[number % len(kinds)]
        draw = random.Random(f"{seed}/{number}")
        with summary.case(f"volume {number}, {kind}, seed {seed}"), common.workdir(options, "loads") as at:
            exercise = stacked if "in a file" in kind else one
            print(f"     {exercise(binary, at, kind, draw, options.seconds)}", flush=True)
        number += 1
    summary.end()


if __name__ == "__main__":
    main()
