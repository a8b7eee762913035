"""Version control, unmodified: git's repositories and Subversion's working copies, under `fstitch order`.

Both keep files whole by writing them under another name and renaming them; what fsync says about their order
differs.

- git fsyncs as much as `core.fsync` says. Debian's default is packs and what belongs to them, not the loose
  objects, refs and index of every commit; `all` is everything. Asked of every crash state: `git fsck --strict
  --full`, `git status` and `git log` find nothing. (Files of the working tree are not asked about: git fsyncs none,
  and has their contents.)
- Subversion never fsyncs in a working copy; its database, wc.db, is opened with synchronous=OFF. So ordered fsync
  has nothing to hold on to, and --every-change orders it, or a journal of everything. Asked: `svn cleanup` and `svn
  status` succeed, wc.db and the text bases are whole, and no file that svn wrote has contents that it never had.
  The repository is outside of the volume.
"""

import os
import random
import shutil
import sys
import tempfile

import study
from study import common

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "versions")
# Little memory for the cache: what a recording has is written out all the time, not only once a second.
CRAMPED = ("--cache-size", "1M")
# Where Subversion's repository is, so that its own fsyncs cost nothing.
MEMORY = "/dev/shm"


def text(chance, lines):
    return "".join(f"{chance.getrandbits(200):050x}\n" for _ in range(lines))


def write(path, contents):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="ascii") as file:
        file.write(contents)


def trees(directory, count):
    """A tree to start with, and for each round the files that it changes and adds; the same in every run.

    The two halves of the rounds change different files, so that they can be merged.
    """
    chance = random.Random(2)
    for name in [f"old/file{number}" for number in range(8)] + [f"part{n % 6}/file{n}" for n in range(48)]:
        write(f"{directory}/first/{name}", text(chance, chance.randint(1, 300)))
    for number in range(count + 1):
        for _ in range(6):
            changed = 2 * chance.randrange(24) + (number < count // 2)
            write(f"{directory}/{number}/part{changed % 6}/file{changed}", text(chance, chance.randint(1, 300)))
        write(f"{directory}/{number}/part{number % 6}/new{number}/file", text(chance, 20))


def copies(directory, count):
    """What somebody else changes, and files of one's own: in each round one changes, one comes and one goes."""
    trees(directory, count)
    chance = random.Random(3)
    for number in range(count):
        write(f"{directory}/first/mine/old{number}", text(chance, 30))
        write(f"{directory}/first/mine/file{number % 8}", text(chance, 100))
        write(f"{directory}/mine-{number}/mine/file{number % 8}", text(chance, 100))
        write(f"{directory}/mine-{number}/mine/new{number}", text(chance, 50))


class Git:
    """git with settings of its own, none of the machine's, and fixed identities."""

    def __init__(self, binary, work, rounds):
        self.binary, self.rounds, self.trees = binary, rounds, f"{work}/git-trees-{rounds}"
        trees(self.trees, rounds)
        self.environment = {
            "PATH": os.environ["PATH"], "HOME": work, "LC_ALL": "C.UTF-8", "TZ": "UTC",
            "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null",
            "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@example.org", "GIT_AUTHOR_DATE": "4000000000 +0000",
            "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@example.org", "GIT_COMMITTER_DATE": "4000000000 +0000",
        }

    def settings(self, fsync):
        if not fsync:
            return self.environment
        setting = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "core.fsync", "GIT_CONFIG_VALUE_0": fsync}
        return self.environment | setting

    def prepare(self, volume):
        """The repository and its first commit."""
        repository = f"{volume.at}/repository"
        shutil.copytree(f"{self.trees}/first", repository)
        for words in (["init", "-q", "-b", "main"], ["add", "-A"], ["commit", "-q", "-m", "first"]):
            common.run("git", "-C", repository, *words, env=self.settings(None))

    def load(self, fsync, order, tidy):
        def run(volume):
            wrap = [] if order is None else volume.order(*order)
            common.run(
                *wrap, "sh", f"{HERE}/git.sh", f"{volume.at}/repository", self.trees, str(self.rounds), tidy,
                env=self.settings(fsync),
            )

        return run

    def question(self):
        fixed = [f"{name}={value}" for name, value in self.environment.items()]
        return study.quoted("env", "-i", *fixed, "sh", f"{HERE}/git-ask.sh")


# What core.fsync is, whether and how the program is ordered, and how the repository is tidied up.
EVERY = ("--every-change",)
GIT = {
    "git": (None, None, "gc"),
    "git, order": (None, (), "gc"),
    "git, order --every-change": (None, EVERY, "gc"),
    "git core.fsync=all": ("all", None, "gc"),
    "git core.fsync=all, order": ("all", (), "gc"),
    "git core.fsync=none": ("none", None, "gc"),
}
# What is cut, too; and what soft updates leave of each way: False is nothing broken, None is now and then something.
UNTIDIED = {
    "git core.fsync=all, no gc": ("all", None, "no"),
    "git core.fsync=all, no gc, order": ("all", (), "no"),
    "git core.fsync=all, gc apart, order": ("all", (), "apart"),
}
BROKEN_ON_SOFT = {
    "git": True, "git, order": True, "git, order --every-change": False, "git core.fsync=all": True,
    "git core.fsync=all, order": None, "git core.fsync=none": True, "git core.fsync=all, no gc": True,
    "git core.fsync=all, no gc, order": False, "git core.fsync=all, gc apart, order": False,
}


class Subversion:
    """A working copy on the volume; outside, and new for each run, the repository and somebody else's working copy."""

    def __init__(self, work, outside, rounds):
        self.rounds, self.trees, self.config = rounds, f"{work}/svn-trees-{rounds}", f"{work}/svn-config"
        self.repository, self.other = f"{outside}/repository", f"{outside}/other"
        self.environment = {"PATH": os.environ["PATH"], "HOME": work, "LC_ALL": "C.UTF-8", "TZ": "UTC"}
        copies(self.trees, rounds)

    def svn(self, *words):
        common.run("svn", "--config-dir", self.config, "--non-interactive", "-q", *words, env=self.environment)

    def start(self, _volume):
        for place in (self.repository, self.other):
            shutil.rmtree(place, ignore_errors=True)
        common.run("svnadmin", "create", self.repository, env=self.environment)
        self.svn("import", "-m", "first", f"{self.trees}/first", f"file://{self.repository}")
        self.svn("checkout", f"file://{self.repository}", self.other)

    def checked_out(self, volume):
        self.start(volume)
        self.svn("checkout", f"file://{self.repository}", f"{volume.at}/copy")

    def load(self, order):
        def run(volume):
            wrap = [] if order is None else volume.order(*order)
            common.run(
                *wrap, "sh", f"{HERE}/svn.sh", f"{volume.at}/copy", self.repository, self.other, self.trees,
                str(self.rounds), self.config, env=self.environment,
            )

        return run

    def question(self):
        fixed = [f"{name}={value}" for name, value in self.environment.items()]
        return study.quoted(
            "env", "-i", *fixed, sys.executable, "-I", "-S", f"{HERE}/svn-ask.py", self.trees, self.config
        )


# Whether and how the program is ordered.
SVN = {"svn": None, "svn, order": (), "svn, order --every-change": EVERY}


def svn(case, cases, options, work):
    with tempfile.TemporaryDirectory(dir=MEMORY if os.path.isdir(MEMORY) else work) as outside:
        timed = Subversion(work, outside, options.rounds // 3)
        recorded = Subversion(work, outside, options.recorded // 2)
        for mechanism in study.MECHANISMS:
            for way, order in SVN.items():
                with cases.case(f"time of {way} on {mechanism}"):
                    times = 1 if mechanism == "soft" and order == EVERY else None
                    case.measure(way, study.ours(case.binary, mechanism), timed.start, timed.load(order), times)
        with cases.case("time of svn on the kernel's ext4"):
            case.measure("svn", study.kernels("ext4"), timed.start, timed.load(None))
        for mechanism in study.MECHANISMS:
            for way, order in SVN.items():
                with cases.case(f"crashes of {way} on {mechanism}"):
                    case.crash(
                        way, mechanism, recorded.checked_out, recorded.load(order), recorded.question(), "copy",
                        expect_broken=mechanism != "full" and order != EVERY, mount=CRAMPED,
                    )


def git(case, cases, options, work):
    timed, recorded = Git(case.binary, work, options.rounds), Git(case.binary, work, options.recorded)
    for mechanism in study.MECHANISMS:
        for way, how in GIT.items():
            with cases.case(f"time of {way} on {mechanism}"):
                times = 1 if mechanism == "soft" and how[1] == EVERY else None
                case.measure(way, study.ours(case.binary, mechanism), timed.prepare, timed.load(*how), times)
    for way, how in GIT.items():
        if how[1] is None:
            with cases.case(f"time of {way} on the kernel's ext4"):
                case.measure(way, study.kernels("ext4"), timed.prepare, timed.load(*how))
    for mechanism in study.MECHANISMS:
        for way, how in (GIT | UNTIDIED).items():
            with cases.case(f"crashes of {way} on {mechanism}"):
                case.crash(
                    way, mechanism, recorded.prepare, recorded.load(*how), recorded.question(), "repository",
                    expect_broken=BROKEN_ON_SOFT[way] if mechanism == "soft" else False, mount=CRAMPED,
                )


def main():
    parser = study.arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=30, help="changes that are timed (default 30)")
    parser.add_argument("--recorded", type=int, default=8, help="changes that are cut (default 8)")
    parser.add_argument("--only", choices=("git", "svn"), help="this program only")
    options = study.options_of(parser)
    common.require(root=True, fuse=True, loop=True, commands=("git", "svn", "svnadmin", "mkfs.ext4"))
    cases = common.Summary("study: versions")
    case = study.Study("versions", options)
    with common.workdir(options, "versions") as work:
        if options.only != "svn":
            git(case, cases, options, work)
        if options.only != "git":
            svn(case, cases, options, work)
    case.save()
    cases.end()


if __name__ == "__main__":
    main()
