"""gzip: the input is removed after the output is written, so that no crash can lose both.

gzip writes FILE.gz and then removes FILE. Nothing says that the one must reach the disk before the other, unless it
is called with --synchronous, which waits for the disk. The paper's change ([D] §2.3.2) says just that:
gzip/patchgroup.patch has it for the gzip of Debian 12. `fstitch depend 'gzip -k FILE' 'rm FILE'` promises the same
of the unmodified program.

In every crash state each file must be there whole, or its .gz must be and decompress to it. Plain gzip is the
control: on soft updates the question must find it broken.
"""

import os
import random
import shutil
import sys

import study
from study import common

HERE = os.path.dirname(os.path.abspath(__file__))
# Where the sources of packages are listed; the machine's own lists are left alone.
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
SOURCES = f"deb-src [signed-by={KEYRING}] http://deb.debian.org/debian bookworm main\n"
# The files that are compressed: in a recording, and where time is taken.
CRASHED, TIMED = 20, 100
# Least memory for the cache: what a recording has is written out all the time, also in the middle of a file.
CRAMPED = ("--cache-size", "256K")


def originals(directory, count):
    """Files of 1 to 200 KiB that compress to about a half, the same in every run."""
    chance = random.Random(1)
    words = [bytes(chance.choices(b"abcdefghijklmnopqrstuvwxyz", k=chance.randint(2, 9))) for _ in range(4096)]
    os.makedirs(directory)
    for number in range(count):
        size = chance.randint(1 << 10, 200 << 10)
        text = b" ".join(chance.choices(words, k=size // 4))
        with open(f"{directory}/file{number:03}", "wb") as file:
            file.write(text[:size])


def fetch(work):
    """Debian's source of gzip, unpacked. Its own patches change a manual, tests and a warning: they are left out."""
    place = f"{work}/source"
    os.makedirs(f"{place}/lists/partial")
    with open(f"{place}/sources.list", "w", encoding="ascii") as file:
        file.write(SOURCES)
    apt = [
        "apt-get", "-q", "-o", f"Dir::Etc::sourcelist={place}/sources.list", "-o", "Dir::Etc::sourceparts=/dev/null",
        "-o", f"Dir::State::lists={place}/lists", "-o", "APT::Sandbox::User=root",
    ]
    for words in (["update"], ["source", "--download-only", "gzip"]):
        done = common.run(*apt, *words, cwd=place, ok=None)
        if done.returncode:
            said = done.stderr.strip().splitlines() or ["no reason given"]
            common.skip(f"cannot get the source of gzip: {said[-1]}")
    archives = [name for name in os.listdir(place) if ".orig.tar" in name and not name.endswith(".asc")]
    common.run("tar", "-C", place, "-xf", f"{place}/{archives[0]}")
    return next(entry.path for entry in os.scandir(place) if entry.is_dir() and entry.name.startswith("gzip-"))


def client(options, work):
    """Where libpatchgroup is installed, as its pkg-config file says: as told, or from this tree."""
    if options.client:
        return os.path.abspath(options.client)
    prefix = f"{work}/client"
    common.run("make", "-C", common.REPOSITORY, "install-client", f"PREFIX={prefix}", f"PROFILE={options.profile}")
    return prefix


def build(options, work):
    """The patched gzip."""
    source, prefix = fetch(work), client(options, work)
    with open(f"{HERE}/gzip/patchgroup.patch", encoding="utf-8") as patch:
        common.run("patch", "-p1", cwd=source, stdin=patch)
    pkg_config = dict(os.environ, PKG_CONFIG_PATH=f"{prefix}/lib/pkgconfig")

    def flags(kind):
        return common.run("pkg-config", kind, "patchgroup", env=pkg_config).stdout.strip()

    common.run(
        "./configure", "-q", f"CFLAGS=-O2 {flags('--cflags')}", f"LDFLAGS=-Wl,-rpath,{prefix}/lib",
        f"LIBS={flags('--libs')}", cwd=source,
    )
    for words in (("-C", "lib"), ("version.c", "version.h"), ("gzip",)):
        common.run("make", "-s", *words, cwd=source)
    return f"{source}/gzip"


def unmodified(*words):
    return lambda at, name: common.run("gzip", *words, name, cwd=at)


def depending(binary):
    return lambda at, name: common.run(binary, "depend", "--on", at, f"gzip -k {name}", f"rm {name}", cwd=at)


def copy_in(source):
    """Puts the originals on the volume."""
    return lambda volume: [shutil.copy(entry.path, volume.at) for entry in os.scandir(source)]


def compress_all(source, compress):
    """Compresses one file after the other, by one process each."""

    def load(volume):
        for name in sorted(os.listdir(source)):
            compress(volume.at, name)
        left = [name for name in os.listdir(volume.at) if name.startswith("file") and not name.endswith(".gz")]
        if left:
            raise common.Failure(f"{left[0]} was not removed")

    return load


def main():
    parser = study.arguments(__doc__)
    parser.add_argument("--client", help="where libpatchgroup is installed (default: it is built from this tree)")
    parser.add_argument("--profile", default="release", help="the cargo profile to build it with (default release)")
    options = study.options_of(parser)
    common.require(
        root=True, fuse=True, loop=True,
        commands=("gzip", "apt-get", "tar", "xz", "patch", "make", "cc", "pkg-config", "mkfs.ext4"),
    )
    cases = common.Summary("study: gzip")
    case = study.Study("gzip", options)
    with common.workdir(options, "gzip") as work:
        with cases.case("the patched gzip is built"):
            patched = build(options, work)
        if cases.failed:
            cases.end()
        originals(f"{work}/crashed", CRASHED)
        originals(f"{work}/timed", TIMED)
        ask = study.quoted(sys.executable, "-I", "-S", f"{HERE}/gzip/ask.py", f"{work}/crashed")
        depend = depending(case.binary)
        ways = {
            "plain": unmodified(),
            "patchgroup.patch": lambda at, name: common.run(patched, name, cwd=at),
            "fstitch depend": depend,
            "--synchronous": unmodified("--synchronous"),
        }
        for mechanism in study.MECHANISMS:
            for way, compress in ways.items():
                with cases.case(f"time of {way} on {mechanism}"):
                    case.measure(
                        way, study.ours(case.binary, mechanism), copy_in(f"{work}/timed"),
                        compress_all(f"{work}/timed", compress),
                    )
        for way in ("plain", "patchgroup.patch", "--synchronous"):
            with cases.case(f"time of {way} on the kernel's ext4"):
                case.measure(
                    way, study.kernels("ext4"), copy_in(f"{work}/timed"), compress_all(f"{work}/timed", ways[way])
                )
        for mechanism in study.MECHANISMS:
            for way, compress in ways.items():
                with cases.case(f"crashes of {way} on {mechanism}"):
                    case.crash(
                        way, mechanism, copy_in(f"{work}/crashed"), compress_all(f"{work}/crashed", compress), ask,
                        expect_broken=way == "plain" and mechanism == "soft", mount=CRAMPED,
                    )
    case.save()
    cases.end()


if __name__ == "__main__":
    main()
