"""Whether a database that a crash left is whole, and its transactions a prefix: ask.py BASE."""

import sqlite3
import sys


def main():
    base = sqlite3.connect(f"file:{sys.argv[1]}?mode=rw", uri=True)
    said = base.execute("pragma integrity_check").fetchone()[0]
    if said != "ok":
        sys.exit(f"integrity_check: {said.splitlines()[0]}")
    last = base.execute("select number from last").fetchall()
    rows = base.execute("select number, text from row order by number").fetchall()
    if len(last) != 1 or last[0][0] != len(rows):
        sys.exit(f"{len(rows)} rows, but the last transaction is said to be {last}")
    for number, (found, text) in enumerate(rows, 1):
        if found != number or text != f"{number:06}" * 30:
            sys.exit(f"row {number} is missing or has the wrong text")


if __name__ == "__main__":
    main()
