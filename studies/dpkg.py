"""dpkg: a package of several hundred files, installed and installed again over itself.

dpkg writes each file under another name, fsyncs it, and renames it. Because that takes long, `--force-unsafe-io`
leaves the fsyncs of files out (those of the database stay), at the risk of files without contents after a crash.
Asked of every crash state: no file has wrong contents under its name; the database can be read; and when it says
that the package is unpacked, all files are there. Compared: both, waiting and under `fstitch order`; on our mounts
and on the kernel's ext4.
"""

import os
import shutil
import sys

import study
from study import common

ASK = os.path.join(os.path.dirname(os.path.abspath(__file__)), "dpkg", "ask.py")
PACKAGE = "linux-libc-dev"
# How many of its files the package has that is cut, so that a question is answered quickly.
CRASHED = 240
# Options of dpkg, and of `fstitch order` where it is ordered. Images of containers have the unsafe way as default.
SAFE, UNSAFE = "--no-force-unsafe-io", "--force-unsafe-io"
EVERY = ("--every-change",)
WAYS = {
    "dpkg": (SAFE, None),
    "dpkg, order": (SAFE, ()),
    "dpkg --force-unsafe-io": (UNSAFE, None),
    "dpkg --force-unsafe-io, order": (UNSAFE, ()),
    "dpkg --force-unsafe-io, order --every-change": (UNSAFE, EVERY),
}


def fetch(work):
    """The package."""
    done = common.run("apt-get", "-q", "-o", "APT::Sandbox::User=root", "download", PACKAGE, cwd=work, ok=None)
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["no reason given"]
        common.skip(f"cannot get the package {PACKAGE}: {said[-1]}")
    return next(entry.path for entry in os.scandir(work) if entry.name.endswith(".deb"))


def part(package, work):
    """The same package with some of its files, and these unpacked beside it."""
    contents = f"{work}/contents"
    common.run("dpkg-deb", "-R", package, contents)
    files = sorted(os.path.join(at, name) for at, _, names in os.walk(f"{contents}/usr") for name in names)
    for number, path in enumerate(files):
        if number * CRASHED // len(files) == (number + 1) * CRASHED // len(files):
            os.unlink(path)
    os.unlink(f"{contents}/DEBIAN/md5sums")
    common.run("dpkg-deb", "--root-owner-group", "-b", contents, f"{work}/part.deb")
    shutil.rmtree(f"{contents}/DEBIAN")
    return f"{work}/part.deb", contents


def new_root(volume):
    """An empty system with an empty database."""
    for directory in ("info", "updates", "triggers"):
        os.makedirs(f"{volume.at}/root/var/lib/dpkg/{directory}")
    for name in ("status", "available"):
        with open(f"{volume.at}/root/var/lib/dpkg/{name}", "w", encoding="ascii"):
            pass


def install(package, safety, order):
    def load(volume):
        wrap = [] if order is None else volume.order(*order)
        common.run(
            *wrap, "dpkg", f"--root={volume.at}/root", "--log=/dev/null", "--force-depends", safety, "-i", package,
            env={"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"},
        )

    return load


def installed(package):
    """What an upgrade starts from."""

    def prepare(volume):
        new_root(volume)
        install(package, UNSAFE, None)(volume)

    return prepare


def expectation(kind, mechanism, safety, order):
    """Whether crashes leave something broken; None where nothing is promised and little found.

    Soft updates order names by fsync of their directories only, which dpkg does for its database alone. So it says
    that files are there whose names are not, unless all that it did before comes before that.
    """
    if mechanism != "soft" or order == EVERY or (safety, order) == (SAFE, ()):
        return False
    return True if kind == "fresh" and order is None else None


def main():
    options = study.options_of(study.arguments(__doc__))
    common.require(root=True, fuse=True, loop=True, commands=("apt-get", "dpkg", "dpkg-deb", "mkfs.ext4"))
    cases = common.Summary("study: dpkg")
    case = study.Study("dpkg", options)
    with common.workdir(options, "dpkg") as work:
        package = fetch(work)
        for mechanism in study.MECHANISMS:
            for way, how in WAYS.items():
                with cases.case(f"time of {way} on {mechanism}"):
                    case.measure(way, study.ours(case.binary, mechanism), new_root, install(package, *how))
        for way, how in WAYS.items():
            if how[1] is None:
                with cases.case(f"time of {way} on the kernel's ext4"):
                    case.measure(way, study.kernels("ext4"), new_root, install(package, *how))
        cut, contents = part(package, work)
        for kind, prepare in (("fresh", new_root), ("upgrade", installed(cut))):
            ask = study.quoted(sys.executable, "-I", "-S", ASK, contents, kind)
            for mechanism in study.MECHANISMS:
                for way, how in WAYS.items():
                    with cases.case(f"crashes of {way} ({kind}) on {mechanism}"):
                        case.crash(
                            f"{way} ({kind})", mechanism, prepare, install(cut, *how), ask, "root",
                            expect_broken=expectation(kind, mechanism, *how), often=mechanism != "soft",
                        )
    case.save()
    cases.end()


if __name__ == "__main__":
    main()
