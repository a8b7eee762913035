"""Makes the database if it is not there, and does so many small transactions: writer.py BASE JOURNAL SYNCHRONOUS COUNT [EXTENSION].

With an extension, which is loaded first, BASE is a URI.
"""

import sqlite3
import sys


def main():
    path, journal, synchronous, count = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
    if len(sys.argv) > 5:
        loader = sqlite3.connect(":memory:")
        loader.enable_load_extension(True)
        loader.load_extension(sys.argv[5])
    base = sqlite3.connect(path, isolation_level=None, uri=len(sys.argv) > 5)
    base.execute(f"pragma journal_mode={journal}")
    base.execute(f"pragma synchronous={synchronous}")
    # Checkpoints of the log belong to what is tried, so they come often.
    base.execute("pragma wal_autocheckpoint=50")
    if count == 0:
        base.execute("create table row(number integer primary key, text text)")
        base.execute("create table last(number integer)")
        base.execute("insert into last values(0)")
    for number in range(1, count + 1):
        base.execute("begin immediate")
        base.execute("insert into row values(?, ?)", (number, f"{number:06}" * 30))
        base.execute("update last set number = ?", (number,))
        base.execute("commit")
    base.close()


if __name__ == "__main__":
    main()
