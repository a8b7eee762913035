"""What the proof scripts share: the program, mounts, comparisons, and a summary of PASS and FAIL."""

import argparse
import contextlib
import hashlib
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time

REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
os.environ["PATH"] += ":/usr/sbin:/sbin"


class Failure(Exception):
    """A promise that was not kept."""


def arguments(description):
    """A parser with what every script understands."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--fstitch", default=os.environ.get("FSTITCH"), help="the program under test")
    parser.add_argument("--keep", action="store_true", help="keep the working directory of a failure")
    return parser


def more_options(parser):
    """The option for further mount options."""
    parser.add_argument("--also", default="", metavar="OPTIONS", help="more mount options, such as writeback_cache")


# The mechanisms, and those that keep a journal.
MECHANISMS = ("soft", "sync", "async", "ordered", "metadata", "full")
MINIXLLD = "minixlld"
BPFS = "bpfs"
WAFFLE = "waffle"
# Formats of their own, each with one mechanism.
OWN = (MINIXLLD, BPFS, WAFFLE)
UFS = ("ufs1", "ufs1be", "ufs2", "ufs2be")
JOURNALED = ("ordered", "metadata", "full")


def mechanism(parser):
    """The option that names a consistency mechanism, or all of them."""
    parser.add_argument(
        "--consistency", default="soft", choices=(*MECHANISMS, "all"), help="the mechanism (default soft), or all"
    )


def formats(parser):
    """The options for volumes of formats that have one mechanism of their own."""
    parser.add_argument("--minixlld", action="store_true", help="a volume of MinixLLD instead of ext2 or ext3")
    parser.add_argument("--bpfs", action="store_true", help="a volume of BPFS instead of ext2 or ext3")
    waffle(parser)
    ufs(parser)
    journaled(parser)


def journaled(parser):
    """The option for which format the mechanisms are tried on."""
    text = "ext4 instead of ext3 with a journal, and instead of ext2 without one, with the usual features"
    parser.add_argument("--ext4", action="store_true", help=text)


def waffle(parser):
    """The option for volumes of waffle."""
    parser.add_argument("--waffle", action="store_true", help="a volume of waffle, with shadow paging")


def ufs(parser):
    """The option for volumes of UFS, in both versions and orders of bytes."""
    parser.add_argument("--ufs", action="store_true", help="volumes of UFS1 and UFS2, little- and big-endian")


def journaled_kind(options):
    return "ext4" if getattr(options, "ext4", False) else "ext3"


def mechanisms(options):
    if getattr(options, "ufs", False):
        return UFS
    own = tuple(name for name in OWN if getattr(options, name, False))
    if own:
        return own
    return MECHANISMS if options.consistency == "all" else (options.consistency,)


def block_sizes(mechanism):
    """Sizes of blocks to be tried: BPFS and waffle have one alone."""
    if mechanism in UFS:
        return (4096, 32768)
    return (4096,) if mechanism in (BPFS, WAFFLE) else (1024, 4096)


def make_volume(binary, mechanism, block_size, image, size, journaled="ext3", compressed=False):
    """A volume that the mechanism can be used on; the files of one of waffle may be compressed."""
    if mechanism in UFS:
        order = ["--order", "big"] if mechanism.endswith("be") else []
        run(binary, "mkfs", mechanism.removesuffix("be"), "-q", "-b", str(block_size), *order, image, size)
        return
    in_place = "ext4" if journaled == "ext4" else "ext2"
    kind = mechanism if mechanism in OWN else journaled if mechanism in JOURNALED else in_place
    features = ["-O", "^has_journal"] if kind == "ext4" and mechanism not in JOURNALED else []
    extended = ["-E", "compress"] if compressed else []
    run(binary, "mkfs", kind, "-q", "-b", str(block_size), *features, *extended, image, size)


# A volume in the file `inner.img` of another one, with more lines for all, for the outer and for the inner one.
STACK = """
{all}

[[device]]
name = "disk"
path = "disk.img"

[[volume]]
name = "outer"
device = "disk"
mount = "outer"
{outer}

[[device]]
name = "image"
volume = "outer"
file = "/inner.img"

[[volume]]
name = "inner"
device = "image"
mount = "inner"
{inner}
"""


def program(options):
    """The program under test: as told, or the newest that was built here."""
    if options.fstitch:
        return os.path.abspath(options.fstitch)
    target = os.environ.get("CARGO_TARGET_DIR", os.path.join(REPOSITORY, "target"))
    found = [path for path in (f"{target}/release/fstitch", f"{target}/debug/fstitch") if os.path.exists(path)]
    if not found:
        sys.exit("fstitch is not built: cargo build --release -p fstitch, or give --fstitch PATH")
    return max(found, key=os.path.getmtime)


def example(package, name):
    """An example of a package, built here."""
    run("cargo", "build", "-q", "-p", package, "--example", name, cwd=REPOSITORY)
    target = os.environ.get("CARGO_TARGET_DIR", os.path.join(REPOSITORY, "target"))
    return os.path.join(target, "debug", "examples", name)


def skip(reason):
    """Ends the script because the machine cannot do what it needs."""
    print(f"skipped: {os.path.basename(sys.argv[0])}: {reason}")
    sys.exit(0)


def require(root=False, fuse=False, loop=False, commands=()):
    """Skips the script where the machine lacks something."""
    if root and os.geteuid() != 0:
        skip("needs root")
    if fuse and not os.access("/dev/fuse", os.R_OK | os.W_OK):
        skip("needs /dev/fuse")
    if loop and not os.path.exists("/dev/loop-control"):
        skip("needs loop devices")
    for command in commands:
        if not shutil.which(command):
            skip(f"needs {command}")


def run(*command, ok=(0,), **keywords):
    """Runs a command; fails unless its exit code is among `ok`. Returns the finished process."""
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", **keywords)
    if ok is not None and done.returncode not in ok:
        said = (done.stdout + done.stderr).strip()
        raise Failure(f"`{' '.join(map(str, command))}` ended with {done.returncode}:\n{said}")
    return done


@contextlib.contextmanager
def workdir(options, prefix):
    """A directory that vanishes, unless a failure is to be kept."""
    path = tempfile.mkdtemp(prefix=f"fstitch-{prefix}-", dir=os.environ.get("FSTITCH_TMP"))
    failed = True
    try:
        yield path
        failed = False
    finally:
        if failed and options.keep:
            print(f"kept: {path}", flush=True)
        else:
            shutil.rmtree(path, ignore_errors=True)


class Mount:
    """A mount of the program under test."""

    def __init__(self, binary, image, directory, *extra):
        self.binary, self.image, self.directory = binary, image, directory
        os.makedirs(directory, exist_ok=True)
        started = time.monotonic()
        run(binary, "mount", *extra, image, directory)
        self.mount_seconds = time.monotonic() - started
        self.live = True
        try:
            status = json.loads(run(binary, "status", "--json", directory).stdout)[0]
        except BaseException:
            self.detach()
            raise
        self.pid = status["pid"]

    def stats(self):
        return json.loads(run(self.binary, "stats", "--json", self.directory).stdout)

    def umount(self):
        """Unmounts and waits for the daemon."""
        run(self.binary, "umount", self.directory)
        self.live = False

    def kill(self):
        """Pulls the plug: the daemon dies at once. The dead mount stays, so that nobody writes to what is below it."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        deadline = time.monotonic() + 30
        while process_runs(self.pid) and time.monotonic() < deadline:
            time.sleep(0.005)

    def detach(self):
        subprocess.run(["umount", "-l", self.directory], capture_output=True, check=False)
        self.live = False

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        if self.live and kind is None:
            self.umount()
        elif self.live:
            self.kill()
            self.detach()


def process_runs(pid):
    """Whether a process is alive (a zombie is not)."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def kernel_mount(image, directory, options="rw", kind="ext2"):
    """The kernel's own driver, on a loop device."""
    os.makedirs(directory, exist_ok=True)
    # A loop device that mount(8) has found free may be somebody else's by the time it is taken.
    for attempt in range(10):
        try:
            run("mount", "-t", kind, "-o", f"loop,{options}", image, directory)
            break
        except Failure as failure:
            if "already mounted or mount point busy" not in str(failure) or attempt == 9:
                raise
            time.sleep(0.2)
    try:
        yield directory
    finally:
        run("umount", directory)


def asked(mechanism, *others):
    """Mount options for a mechanism and others."""
    words = [] if mechanism in OWN + UFS else [f"consistency={mechanism}"]
    words += [word for word in others if word]
    return ["-o", ",".join(words)] if words else []


def clean(binary, image, mechanism):
    """The judges find nothing at all."""
    if mechanism not in OWN + UFS:
        e2fsck_clean(image)
    if fsck(binary, image, "-n")["total"]:
        raise Failure("our fsck finds something")


def e2fsck_clean(image):
    """The judge finds nothing at all."""
    run("e2fsck", "-fn", image)


def copy_sparse(source, target):
    run("cp", "--sparse=always", "--reflink=auto", source, target)


def fsck(binary, image, *extra):
    """Our own checker's report."""
    done = run(binary, "fsck", "-f", "--json", *extra, image, ok=(0, 1, 4))
    return json.loads(done.stdout)


# From this size on, only what has storage is read, and a little of each hole.
SPARSE_FROM = 256 << 20


def digest(path, size):
    """A hash of a file's contents."""
    found = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        ranges = [(0, size)] if size < SPARSE_FROM else data_ranges(path, size)
        for start, end in ranges:
            for at in range(start, end, 1 << 20):
                found.update(os.pread(file.fileno(), min(1 << 20, end - at), at))
            found.update(os.pread(file.fileno(), 4096, end))
    return found.hexdigest()


def data_ranges(path, size):
    """Where a file has storage, as far as SEEK_DATA tells."""
    ranges, at = [], 0
    file = os.open(path, os.O_RDONLY)
    try:
        while at < size:
            try:
                start = os.lseek(file, at, os.SEEK_DATA)
            except OSError:
                break
            at = os.lseek(file, start, os.SEEK_HOLE)
            ranges.append((start, at))
    finally:
        os.close(file)
    return ranges


def manifest(top, holes=True, atime=False):
    """Everything that can be seen of a tree: path -> description. Inode numbers only as hard-link groups."""
    found, first_names = {}, {}
    pending = [b""]
    top = os.fsencode(top)
    while pending:
        relative = pending.pop()
        path = os.path.join(top, relative) if relative else top
        status = os.lstat(path)
        entry = {
            "mode": oct(status.st_mode),
            "owner": (status.st_uid, status.st_gid),
            "mtime": status.st_mtime_ns,
            "nlink": status.st_nlink,
        }
        if atime:
            entry["atime"] = status.st_atime_ns
        kind = stat.S_IFMT(status.st_mode)
        if kind == stat.S_IFREG:
            entry["size"] = status.st_size
            entry["content"] = digest(path, status.st_size)
            if holes:
                entry["data"] = data_ranges(path, status.st_size)
        elif kind == stat.S_IFLNK:
            entry["target"] = os.readlink(path)
        elif kind in (stat.S_IFCHR, stat.S_IFBLK):
            entry["device"] = (os.major(status.st_rdev), os.minor(status.st_rdev))
        elif kind == stat.S_IFDIR:
            names = sorted(os.listdir(path), reverse=True)
            pending.extend(os.path.join(relative, name) if relative else name for name in names)
        if kind != stat.S_IFDIR and status.st_nlink > 1:
            entry["same-as"] = first_names.setdefault(status.st_ino, relative)
        entry["xattrs"] = xattrs(path)
        if relative not in (b"", b"lost+found"):
            found[relative] = entry
    return found


def xattrs(path):
    found = {}
    for name in os.listxattr(path, follow_symlinks=False):
        if not name.startswith("security.selinux"):
            found[name] = os.getxattr(path, name, follow_symlinks=False)
    return found


def same_trees(expected, found, what):
    """Fails with the first differences between two manifests."""
    differences = []
    for path in sorted(set(expected) | set(found)):
        if path not in found:
            differences.append(f"{path!r} is missing")
        elif path not in expected:
            differences.append(f"{path!r} is too much")
        elif expected[path] != found[path]:
            for key in sorted(set(expected[path]) | set(found[path])):
                if expected[path].get(key) != found[path].get(key):
                    differences.append(f"{path!r} {key}: {expected[path].get(key)!r} became {found[path].get(key)!r}")
    if differences:
        raise Failure(f"{what}: {len(differences)} differences:\n  " + "\n  ".join(differences[:20]))


class Summary:
    """Counts and prints what passed and failed."""

    def __init__(self, title):
        self.title, self.passed, self.failed = title, 0, 0
        self.started = time.monotonic()

    @contextlib.contextmanager
    def case(self, name):
        """Runs one case; a failure is printed and counted, and the next one goes on."""
        started = time.monotonic()
        try:
            yield
        except (Failure, OSError, subprocess.SubprocessError, json.JSONDecodeError) as failure:
            self.failed += 1
            print(f"FAIL {name}: {failure}", flush=True)
        else:
            self.passed += 1
            print(f"PASS {name} ({time.monotonic() - started:.1f} s)", flush=True)

    def end(self):
        """Prints the summary and ends the script."""
        verdict = "FAIL" if self.failed or not self.passed else "PASS"
        seconds = time.monotonic() - self.started
        print(f"{verdict} {self.title}: {self.passed} passed, {self.failed} failed, {seconds:.0f} s", flush=True)
        sys.exit(0 if verdict == "PASS" else 1)
