"""Volumes that follow a policy, on one disk or on several, made and mounted for one measurement."""

import contextlib
import os
import shutil
import subprocess
import time
from typing import NamedTuple

import common

BLOCK = 4096
# What a mount that cannot carry out a step says of it.
REFUSED = "not supported: the step"
COPIES = """description = "D-GRAID with {copies} of what leads to files."
[all]
read = ["retry 2", "mirror"]
write = ["mirror other-disk", "remap"]
{tables}[journal]
read = ["retry 2", "mirror"]
write = ["mirror other-disk"]
"""
LEADING = ("superblock", "group-descriptor", "directory")


class Contender(NamedTuple):
    """A mount that is measured: the name it is shown with, a policy by name or as text, and its disks."""

    name: str
    policy: str | None
    disks: int = 1


def dgraid(copies, inodes=False):
    """The policy `d-graid`, with so many of superblocks, descriptors and directories instead of one on each disk; and of inodes, if those are meant."""
    others = f'write = ["mirror other-disk {copies - 1}", "remap"]' if copies > 1 else 'read = ["retry 2"]\nwrite = ["remap"]'
    return COPIES.format(copies=copies, tables="".join(f"[{kind}]\n{others}\n" for kind in (*LEADING, *(["inode"] if inodes else []))))


def transient():
    """`retry` for a disk that is away for a second: the one that is shipped gives up after 30 ms."""
    return '[all]\nread = ["retry 400 10ms within 10s"]\nwrite = ["retry 400 10ms within 10s"]\n' + (
        '[journal]\nread = ["retry 400 10ms within 10s"]\nwrite = ["retry 400 10ms within 10s"]\n'
    )


class Refused(Exception):
    """A policy with a step that this program does not carry out in mounts."""


def policy_file(binary, work, contender):
    """What `mkfs --policy` is given, a name or a file."""
    if "\n" not in contender.policy:
        return contender.policy
    path = f"{work}/{contender.name.replace(' ', '-').replace(',', '')}.toml"
    with open(path, "w", encoding="utf-8") as file:
        file.write(contender.policy)
    common.run(binary, "policy", "check", *(["--disks", str(contender.disks)] if contender.disks > 1 else []), path)
    return path


def make(binary, work, contender, mib, block=BLOCK, tree=None):
    """Makes a volume of `mib` in all, of which the text is returned that commands take. Fails with `Refused` for a policy that mounts cannot follow."""
    images = [f"{work}/disk{number}" for number in range(contender.disks)]
    for image in images:
        with contextlib.suppress(FileNotFoundError):
            os.remove(image)
    listed = ",".join(images)
    command = [binary, "mkfs", "ext3", "-q", "-b", str(block)]
    if tree:
        command += ["-d", tree]
    if contender.policy:
        command += ["--policy", policy_file(binary, work, contender)]
    done = common.run(*command, listed, f"{mib // contender.disks}M", ok=None)
    if REFUSED in done.stderr:
        raise Refused(done.stderr.strip())
    if done.returncode:
        raise common.Failure(f"{contender.name}: {done.stderr.strip()}")
    return listed


def defence(binary):
    """`defence-in-depth`; without its last step where mounts do not carry that out, which its name says then."""
    text = common.run(binary, "policy", "show", "defence-in-depth").stdout
    if follows(binary, "defence-in-depth"):
        return Contender("defence-in-depth", "defence-in-depth")
    print("NOTE: mounts of this program refuse `full-check`: defence-in-depth is measured without it", flush=True)
    return Contender("defence-in-depth without full-check", text.replace(', "full-check"', ""))


def follows(binary, policy):
    """Whether mounts of this program can follow a policy that is shipped."""
    work = f"{os.environ.get('FSTITCH_TMP', '/tmp')}/fstitch-figures-try-{os.getpid()}"
    os.makedirs(f"{work}/at")
    try:
        image = make(binary, work, Contender(policy, policy), 64)
        done = common.run(binary, "mount", image, f"{work}/at", ok=None)
        if done.returncode:
            return False
        common.run(binary, "umount", "-q", f"{work}/at")
        return True
    except Refused:
        return False
    finally:
        shutil.rmtree(work, ignore_errors=True)


@contextlib.contextmanager
def mounted(binary, image, directory, *options):
    """A mount, and how to unmount it early: what is timed ends when everything is stable."""
    extra = ["-o", ",".join(options)] if options else []
    mount = common.Mount(binary, image, directory, *extra)
    with mount:
        yield mount


class Faulty:
    """An image shown on a disk that fails as it is told."""

    def __init__(self, binary, image, directory, plan=""):
        os.makedirs(directory, exist_ok=True)
        self.directory, self.image = directory, f"{directory}/image"
        common.run(binary, "faults", "serve", image, plan, directory)

    def plan(self, text):
        with open(f"{self.directory}/plan", "w", encoding="ascii") as file:
            # Nothing written would be nothing told.
            file.write(text + "\n")

    def struck(self):
        """How many requests have failed, by defect."""
        with open(f"{self.directory}/struck", encoding="ascii") as file:
            return {line.split()[0]: int(line.split()[1]) for line in file if line.strip()}

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        for _ in range(100):
            subprocess.run(["umount", self.directory], capture_output=True, check=False)
            if not os.path.ismount(self.directory):
                return
            time.sleep(0.1)
        subprocess.run(["umount", "-l", self.directory], capture_output=True, check=False)


def blocks_of(image, name):
    """The blocks of a file in an image that nobody uses, in their order in the file, pointers left out."""
    said = common.run("debugfs", "-R", f"stat {name}", image).stdout
    found, listing = [], said.split("BLOCKS:", 1)[1].split("TOTAL:", 1)[0]
    for part in listing.replace("\n", " ").split(","):
        part = part.strip()
        if not part.startswith("("):
            continue
        where, at = part[1:].split("):")
        if not where[0].isdigit():
            continue
        ends = [int(end) for end in at.split("-")]
        found.extend(range(ends[0], ends[-1] + 1))
    return found
