"""Measures the tables of BPFS (`fstitch bench --tables bpfs`) and puts them into docs/bpfs-results.md, in the place of those that are there.

The program that is built for one of them is Debian's Apache (the paper built Apache 2.0.63), fetched from the distribution's sources unless --program
names an archive. All of it takes an hour, 24 GiB on the disk of /var/tmp and 7 GiB of memory; --words says which tables are measured.
"""

import os
import subprocess
import sys
import tempfile

import common
from figures import sources

PAGE = "docs/bpfs-results.md"
PACKAGE = "apache2"


def main():
    parser = common.arguments(__doc__)
    parser.add_argument("--words", default="bpfs", help="words of tables' names, separated by commas (default bpfs: all of them)")
    parser.add_argument("--program", metavar="FILE", help="an archive of a program's sources, instead of Apache's")
    parser.add_argument("--page", default=f"{common.REPOSITORY}/{PAGE}", help=f"the page (default {PAGE})")
    options = parser.parse_args()
    binary = common.program(options)
    common.require(root=True, fuse=True, loop=True)
    subprocess.run([f"{common.REPOSITORY}/scripts/setup.sh", "bpfs"], check=True)
    with tempfile.TemporaryDirectory(prefix="bpfs-tables-") as work:
        archive = options.program or sources.fetched(work, PACKAGE)
        if not archive:
            sys.exit(f"the sources of {PACKAGE} could not be fetched: name an archive by --program")
        words = ["--tables", options.words, "--program", os.path.abspath(archive), "--update", options.page]
        return subprocess.run([binary, "bench", *words], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
