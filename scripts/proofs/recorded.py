"""Records real programs at work on a live mount, and judges what power cuts could have left of each recording.

Every load starts on a volume of its own, with blocks of 1 KiB, written at an age of 50 ms, and of 4 KiB with a cache so
small that contents are written early: untar (this repository and /usr/include),
rm -r, git (init, add, commit, gc, clone --local), sqlite (journal modes delete and wal), and postmark. `fstitch crash
mount --record` logs its writes and flushes; `fstitch crash replay-log` visits states of the log, recovers and checks each,
asks e2fsck about a sample, and must find nothing. To be sure that it can find something, the first recording is
replayed as if the device had ignored every flush: then violations must be found, and be found again by their line.

sqlite itself is asked about every different tree that is left of its loads: `pragma integrity_check` must be content, because
sqlite fsyncs what it relies on. (git relies on the order of renames in different directories, which soft updates do not promise.)
"""

import json
import os
import shutil
import subprocess

import common

SQLITE = """
pragma journal_mode={mode};
pragma synchronous=full;
create table t(a integer primary key, b text);
"""


def prepare(options, work):
    """Archives outside the volume, so that only the load's own work is recorded."""
    own = f"{work}/own.tar"
    done = subprocess.run(["git", "-C", common.REPOSITORY, "archive", "-o", own, "HEAD"], check=False)
    if done.returncode:
        common.run("tar", "-C", common.REPOSITORY, "--exclude=./target", "--exclude=./.git", "-cf", own, ".")
    headers = f"{work}/headers.tar"
    if os.path.isdir("/usr/include/linux"):
        common.run("tar", "-C", "/usr/include", "--ignore-failed-read", "-chf", headers, "linux", ok=(0, 1, 2))
    return own, headers


def untar(at, work):
    for number, archive in enumerate((f"{work}/own.tar", f"{work}/headers.tar")):
        if os.path.exists(archive):
            os.mkdir(f"{at}/{number}")
            common.run("tar", "-C", f"{at}/{number}", "-xf", archive)
    common.run("sync", "-f", at)


def remove(at, _work):
    for name in os.listdir(at):
        if name != "lost+found":
            common.run("rm", "-r", f"{at}/{name}")


def git(at, work):
    """Identity and dates are fixed, configuration of the machine does not count."""
    environment = dict(
        os.environ,
        HOME=work,
        GIT_CONFIG_NOSYSTEM="1",
        GIT_AUTHOR_NAME="a",
        GIT_AUTHOR_EMAIL="a@example.org",
        GIT_COMMITTER_NAME="a",
        GIT_COMMITTER_EMAIL="a@example.org",
    )

    def run(*words, at=f"{at}/repo"):
        common.run("git", "-C", at, "-c", "core.fsync=all", *words, env=environment)

    os.mkdir(f"{at}/repo")
    run("init", "-q")
    common.run("tar", "-C", f"{at}/repo", "-xf", f"{work}/own.tar", "docs", "crates/fstitch-core")
    run("add", ".")
    run("commit", "-q", "-m", "first")
    for number in range(5):
        with open(f"{at}/repo/change", "w", encoding="utf-8") as file:
            file.write(f"change {number}\n" * 1000)
        run("add", ".")
        run("commit", "-q", "-m", f"change {number}")
    run("gc", "-q")
    run("clone", "-q", "--local", "repo", "copy", at=at)


def sqlite(mode):
    def load(at, _work):
        lines = [SQLITE.format(mode=mode)]
        for number in range(40):
            lines.append("begin;")
            lines += [f"insert into t(b) values('{number:04}' || hex(randomblob(200)));" for _ in range(20)]
            lines.append(f"delete from t where a % 7 = {number % 7} and a < {number * 10};")
            lines.append("commit;")
        common.run("sqlite3", f"{at}/base.db", input="\n".join(lines))

    return load


def postmark(at, _work):
    commands = f"set location {at}\nset number 400\nset transactions 1500\nset size 500 20000\nset seed 7\nrun\nquit\n"
    common.run("postmark", input=commands)


# By block size: what is old soon; and a small cache, of which much is dirty, so that contents are written early.
PRESSURE = {1024: ("--write-back-age", "50ms"), 4096: ("--cache-size", "8M")}


class Recording:
    """A base image and the log of what was done to it."""

    def __init__(self, binary, work, place, block_size):
        os.mkdir(place)
        self.pressure = PRESSURE[block_size]
        self.early = 0
        self.binary, self.work, self.place = binary, work, place
        self.image, self.log, self.base = f"{place}/a.img", f"{place}/log", f"{place}/base.img"
        common.run(binary, "mkfs", "ext2", "-q", "-b", str(block_size), self.image, "64M")

    def record(self, load, before):
        directory = f"{self.place}/m"
        if before:
            with common.Mount(self.binary, self.image, directory):
                before(directory, self.work)
        common.copy_sparse(self.image, self.base)
        os.makedirs(directory, exist_ok=True)
        common.run(self.binary, "crash", "mount", "--record", self.log, *self.pressure, self.image, directory)
        try:
            load(directory, self.work)
            stats = json.loads(common.run(self.binary, "stats", "--json", directory).stdout)
            self.early = stats["cache"]["blocks_written_early"]
        except BaseException:
            common.run(self.binary, "umount", "--lazy", directory, ok=None)
            raise
        common.run(self.binary, "umount", directory)
        common.e2fsck_clean(self.image)

    def replay(self, *extra, ok=(0,)):
        done = common.run(
            self.binary, "crash", "replay-log", "--json", *extra, self.base, self.log, ok=ok
        )
        return json.loads(done.stdout)


def says(report):
    return (
        f"{report['operations']} writes, {report['cuts']} of {report['moments']} moments, "
        f"{report['states_generated']} states ({report['states_checked']} checked), {report['aftermaths']} aftermaths, "
        f"{report['reference_checks']} by e2fsck, {report['seconds']:.0f} s"
    )


def judge(recording, options, question):
    words = ["--ask", question] if question else []
    found = recording.replay(
        "--states", str(options.states), "--states-per-cut", str(options.states_per_cut), "--seed", str(options.seed),
        "--e2fsck", str(options.e2fsck), *words, ok=(0, 1),
    )
    for violation in found["violations"]:
        raise common.Failure(f"{violation['code']}: {violation['text']}\n  replay: {violation['replay']}")
    asked = f", {found['asked']} trees asked about" if question else ""
    print(f"     {says(found)}{asked}", flush=True)


def judge_without_flushes(recording):
    """The check can fail: without flushes it must, and the line of the failure gives it again."""
    found = recording.replay("--consistency", "async", "--states", "500", ok=(0, 1))
    if not found["violations"]:
        raise common.Failure("a device that ignores flushes was found lawful")
    first = found["violations"][0]
    again = recording.replay("--consistency", "async", "--cut", first["id"], ok=(0, 1))
    if again["lawful"] or again["code"] != first["code"]:
        raise common.Failure(f"{first['replay']} gives {again}")
    print(f"     as it must: {first['code']} after {found['states_generated']} states", flush=True)


# The database, once it is there, is whole after sqlite's own recovery.
SQLITE_ASKS = "test ! -e base.db || sqlite3 base.db 'pragma integrity_check' | grep -qx ok"
# Name, program that it needs, load, the load that comes before (not recorded), and what is asked of a state.
LOADS = (
    ("untar", "tar", untar, None, None),
    ("rm -r", "rm", remove, untar, None),
    ("git", "git", git, None, None),
    ("sqlite delete", "sqlite3", sqlite("delete"), None, SQLITE_ASKS),
    ("sqlite wal", "sqlite3", sqlite("wal"), None, SQLITE_ASKS),
    ("postmark", "postmark", postmark, None, None),
)


def main():
    parser = common.arguments(__doc__)
    parser.add_argument("--states", type=int, default=8000, help="states of each recording (default 8000)")
    parser.add_argument("--states-per-cut", type=int, default=64, help="of these at each moment (default 64)")
    parser.add_argument("--e2fsck", type=int, default=60, help="one state in so many is judged by e2fsck (default 60)")
    parser.add_argument("--seed", type=int, default=0, help="chooses the states (default 0)")
    parser.add_argument("--only", default=None, help="this load only")
    options = parser.parse_args()
    common.require(root=True, fuse=True, commands=("e2fsck", "git", "tar"))
    binary = common.program(options)
    summary = common.Summary("recorded programs")
    with common.workdir(options, "recorded") as work:
        prepare(options, work)
        doubted = False
        for block_size in (1024, 4096):
            for name, program, load, before, question in LOADS:
                if options.only not in (None, name):
                    continue
                if not shutil.which(program):
                    print(f"skipped: {name}: {program} is not installed", flush=True)
                    continue
                recording = Recording(binary, work, f"{work}/{name.replace(' ', '-')}-{block_size}", block_size)
                with summary.case(f"{name}, {block_size}-byte blocks"):
                    recording.record(load, before)
                    print(f"     {recording.early} blocks were written early", flush=True)
                    if (name, block_size) == ("untar", 4096) and recording.early == 0:
                        raise common.Failure("nothing was written early, which this recording is for")
                    judge(recording, options, question)
                    if not doubted:
                        judge_without_flushes(recording)
                        doubted = True
                if not options.keep:
                    shutil.rmtree(recording.place, ignore_errors=True)
    summary.end()


if __name__ == "__main__":
    main()
