"""Asks whether the working copy in the current directory is intact: svn-ask.py ROUNDS CONFIG.

`svn cleanup` and `svn status` must succeed. The database must be whole, and every text base that it has must be
there with the contents that its checksum says. Files outside of `mine` are written by svn only: each must have
contents that it had in some revision, and none may look changed, because the next commit would commit that.
"""

import hashlib
import os
import sqlite3
import subprocess
import sys


def broken(what):
    print(what)
    sys.exit(1)


def svn(config, *words):
    done = subprocess.run(
        ["svn", "--config-dir", config, "--non-interactive", *words], capture_output=True, text=True, check=False
    )
    if done.returncode:
        broken(f"svn {words[0]}: {' '.join(done.stderr.replace(os.getcwd(), '.').split())}")
    return done.stdout


def database():
    connection = sqlite3.connect(".svn/wc.db")
    said = connection.execute("pragma integrity_check").fetchone()[0]
    if said != "ok":
        broken(f"wc.db: {said}")
    for checksum, size in connection.execute("select checksum, size from pristine"):
        name = checksum.removeprefix("$sha1$")
        path = f".svn/pristine/{name[:2]}/{name}.svn-base"
        if not os.path.exists(path):
            broken(f"text base {name} is missing")
        with open(path, "rb") as file:
            found = file.read()
        if len(found) != size or hashlib.sha1(found).hexdigest() != name:
            broken(f"text base {name} has {len(found)} of {size} bytes, or others")


def contents(rounds):
    """Every file of the others has contents that some revision had."""
    for at, directories, names in os.walk("."):
        directories[:] = [name for name in directories if name not in (".svn", "mine")]
        for name in names:
            path = os.path.relpath(os.path.join(at, name))
            with open(path, "rb") as file:
                found = file.read()
            if not any(found == version for version in versions(rounds, path)):
                broken(f"{path} has {len(found)} bytes that it never had")


def versions(rounds, path):
    for revision in os.listdir(rounds):
        try:
            with open(os.path.join(rounds, revision, path), "rb") as file:
                yield file.read()
        except FileNotFoundError:
            pass


def main():
    rounds, config = sys.argv[1:]
    svn(config, "cleanup")
    status = svn(config, "status")
    changed = [line for line in status.splitlines() if line.startswith(("M", "~")) and not line[8:].startswith("mine")]
    if changed:
        broken(f"{changed[0][8:]} looks changed")
    database()
    contents(rounds)


if __name__ == "__main__":
    main()
