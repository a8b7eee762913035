"""A real program to unpack and build: dropbear, an SSH as the paper's, from Debian's sources."""

import glob
import os
import subprocess
from typing import NamedTuple

import common

PACKAGE = "dropbear"
OPTIONS = "--quiet --disable-zlib --disable-harden CFLAGS=-O0"


class Source(NamedTuple):
    """An archive, and the commands that build it."""

    archive: str
    configure: str

    @staticmethod
    def targets(quick):
        return ["dropbearkey"] if quick else ["dropbear"]


def fetched(work, package=PACKAGE):
    """The original archive of a package, from the distribution's sources, without a change to what the machine asks its packages of."""
    place = f"{work}/source"
    os.makedirs(f"{place}/lists/partial")
    with open("/etc/os-release", encoding="utf-8") as file:
        words = dict(line.strip().split("=", 1) for line in file if "=" in line)
    with open(f"{place}/sources.list", "w", encoding="utf-8") as file:
        file.write(f"deb-src http://deb.debian.org/debian {words.get('VERSION_CODENAME', 'stable')} main\n")
    command = ["apt-get", "-o", f"Dir::Etc::SourceList={place}/sources.list", "-o", "Dir::Etc::SourceParts=-", "-o", f"Dir::State::Lists={place}/lists"]
    for words in (["update", "-qq"], ["source", "-qq", "--download-only", package]):
        if subprocess.run([*command, *words], cwd=place, capture_output=True, check=False).returncode:
            return None
    return next(iter(glob.glob(f"{place}/{package}_*.orig.tar.*[z2]")), None)


def prepare(setting, given):
    """The sources, and what their configure found out once, so that a run does not measure how fast the compiler starts three hundred times."""
    try:
        archive = os.path.abspath(given) if given else fetched(setting.work)
    except OSError:
        archive = None
    if not archive:
        return None
    trial = f"{setting.work}/trial"
    os.makedirs(trial)
    common.run("tar", "-C", trial, "--strip-components=1", "-xf", archive)
    cache = f"{setting.work}/config.cache"
    configure = f"./configure --cache-file={cache} {OPTIONS}"
    common.run("sh", "-c", configure, cwd=trial)
    return Source(archive, f"cp {cache} own.cache && ./configure --cache-file=own.cache {OPTIONS}")
