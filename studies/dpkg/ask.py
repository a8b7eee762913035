"""Asks whether the root in the current directory has a package whole: ask.py CONTENTS fresh|upgrade.

CONTENTS has what the package has, unpacked elsewhere. A file that is there under its name must be whole. All must
be there once the database says that the package is unpacked or installed; in an upgrade, at any time. The database
must be readable.
"""

import os
import subprocess
import sys


def state():
    """What the database says of the package: nothing, or two letters as `dpkg -l` has them."""
    done = subprocess.run(
        ["dpkg-query", "--admindir=var/lib/dpkg", "-W", "-f", "${db:Status-Abbrev}\n"], capture_output=True, text=True,
        check=False,
    )
    # It ends with 1 when it knows no package.
    if done.returncode > 1 or "error" in done.stderr or "warning" in done.stderr:
        print(f"the database: {done.stderr.strip()}")
        sys.exit(1)
    return done.stdout.strip()


def main():
    contents, kind = sys.argv[1:]
    said = state()
    complete = kind == "upgrade" or said in ("iU", "iF", "ii")
    faults = []
    for directory, _, names in os.walk(contents):
        for name in names:
            original = os.path.join(directory, name)
            path = os.path.relpath(original, contents)
            with open(original, "rb") as file:
                expected = file.read()
            try:
                with open(path, "rb") as file:
                    found = file.read()
            except FileNotFoundError:
                if complete:
                    faults.append(f"{path} is missing (state {said})")
                continue
            if found != expected:
                what = f"{len(found)} of {len(expected)} bytes" if len(found) != len(expected) else "wrong contents"
                faults.append(f"{path} has {what} (state {said or 'none'})")
    if faults:
        print(f"{len(faults)} files, as {faults[0]}")
        sys.exit(1)


if __name__ == "__main__":
    main()
