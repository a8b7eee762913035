"""Test suites from crates.io, built once."""

import os
import shutil
import subprocess

import common


def crate(name, version):
    """The program `name` of a crate: from the path, or installed below the build directory."""
    found = shutil.which(name)
    if found:
        return found
    target = os.environ.get("CARGO_TARGET_DIR", os.path.join(common.REPOSITORY, "target"))
    root = os.path.join(target, "suites")
    path = os.path.join(root, "bin", name)
    if not os.path.exists(path):
        print(f"building {name} from crates.io", flush=True)
        done = subprocess.run(
            ["cargo", "install", "--quiet", "--root", root, "--version", f"^{version}", name], check=False
        )
        if done.returncode:
            common.skip(f"could not build {name}")
    return path
