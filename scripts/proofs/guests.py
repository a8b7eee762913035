"""Debian's kernel under qemu: where it comes from, its modules, and the archive that it finds its first program in."""

import os
import platform
import shutil
import subprocess

import common


def kernel_options(parser):
    """The options for another kernel than Debian's."""
    parser.add_argument("--kernel", metavar="FILE", help="a kernel to boot instead of Debian's")
    parser.add_argument("--modules", metavar="DIR", help="the directory of its modules")


def check_options(parser, options):
    if bool(options.kernel) != bool(options.modules):
        parser.error("--kernel and --modules go together")
    if platform.machine() != "x86_64":
        common.skip("the kernel that is booted is one for x86_64")


def debian_kernel(options, work):
    """The kernel and the directory of its modules: as given, or Debian's newest, fetched and unpacked."""
    if options.kernel:
        return os.path.abspath(options.kernel), os.path.abspath(options.modules)
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        common.skip("no Debian here to take a kernel from: give --kernel and --modules")
    depends = common.run("apt-cache", "depends", "linux-image-amd64", ok=None).stdout.split()
    packages = [word for word in depends if word.startswith("linux-image-")]
    if len(packages) < 2:
        common.skip("apt-cache knows no linux-image-amd64 (apt-get update may help)")
    os.makedirs(f"{work}/package")
    if subprocess.run(["apt-get", "download", packages[1]], cwd=f"{work}/package", capture_output=True, check=False).returncode:
        common.skip(f"the package {packages[1]} cannot be downloaded here (apt-get update may help)")
    common.run("dpkg-deb", "-x", f"{work}/package/{os.listdir(f'{work}/package')[0]}", f"{work}/kernel")
    shutil.rmtree(f"{work}/package")
    version = os.listdir(f"{work}/kernel/lib/modules")[0]
    return f"{work}/kernel/boot/vmlinuz-{version}", f"{work}/kernel/lib/modules/{version}"


def depends(path):
    """The modules that a module needs, which it says of itself."""
    said = read(path).split(b"\0depends=", 1)
    return said[1].split(b"\0", 1)[0].decode().split(",") if len(said) > 1 else []


def module_files(directory, wanted):
    """The files of modules that are wanted and not built in, those that others need first."""
    found = {}
    for parent, _, names in os.walk(directory):
        for name in names:
            if name.endswith(".ko"):
                found[name.removesuffix(".ko").replace("-", "_")] = os.path.join(parent, name)
    order = []

    def add(module):
        if module not in found or found[module] in order:
            return
        for other in depends(found[module]):
            add(other.replace("-", "_"))
        order.append(found[module])

    for module in wanted:
        add(module)
    return order


def archive(path, entries):
    """An archive as the kernel unpacks it (cpio's newc): name → contents, or None for a directory."""
    with open(path, "wb") as file:
        for no, (name, data) in enumerate([*entries.items(), ("TRAILER!!!", b"")]):
            mode = 0o040755 if data is None else 0o100755
            fields = [no + 1, mode, 0, 0, 1, 0, len(data or b""), 0, 0, 0, 0, len(name.encode()) + 1, 0]
            head = b"070701" + b"".join(b"%08x" % field for field in fields) + name.encode() + b"\0"
            file.write(head + bytes(-len(head) % 4) + (data or b"") + bytes(-len(data or b"") % 4))


def read(path):
    with open(path, "rb") as file:
        return file.read()


def lines_of(text):
    return [line.rstrip("\r") for line in text.split("\n") if line.startswith("> ")]
