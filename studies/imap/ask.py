#!/usr/bin/env python3
"""The question about a Maildir after a crash, and the messages that it is about.

Usage: ask.py COUNT OWNER CONF, in the Maildir. Each of the messages is whole in a mailbox, no file in a
mailbox is anything but a whole message, and Dovecot, run as OWNER with the configuration CONF, finds as many
messages. Its own files do not matter, because it makes them again. It is asked about a sample of the trees
only: where the crash has left a lock of Dovecot's, which is often, it first waits some seconds for the owner.
"""

import os
import re
import subprocess
import sys
import zlib

SIZE = 2048
# Dovecot is asked about one of so many trees.
SAMPLE = 32


def message(number):
    """A message of 2 KiB as it is stored; every line tells which message it belongs to."""
    head = (
        f"From: sender{number}@example.org\nTo: reader@example.org\nSubject: message {number}\n"
        f"Message-ID: <{number}@example.org>\nDate: Mon, 02 Jan 2006 15:04:05 +0000\n\n"
    )
    line = f"This line belongs to message {number:06}.\n"
    return (head + line * (SIZE // len(line) + 1)).encode()[: SIZE - 1] + b"\n"


def mailboxes():
    """The mailboxes of the Maildir: the inbox, and the directories with a dot."""
    return [".", *sorted(name for name in os.listdir(".") if name.startswith(".") and os.path.isdir(name))]


def stored(mailbox):
    """The files of a mailbox that its reader takes for messages; those in tmp/ it does not."""
    for place in ("new", "cur"):
        directory = os.path.join(mailbox, place)
        if os.path.isdir(directory):
            yield from (os.path.join(directory, name) for name in sorted(os.listdir(directory)))


def found_by_server(owner, conf):
    """How many messages Dovecot finds when it opens all mailboxes.

    It goes to another directory before it looks, and the way to this one may be closed to its user: so the shell around
    it stays here and shows the way.
    """
    line = f"doveadm -c '{conf}' -o mail_location=maildir:/proc/$$/cwd search mailbox '*' all; exit $?"
    environment = {**os.environ, "HOME": "/", "USER": "reader"}
    done = subprocess.run(
        ["sh", "-c", line], user=owner, group=owner, extra_groups=[], env=environment, capture_output=True, text=True,
        check=False,
    )
    if done.returncode != 0:
        sys.exit(f"doveadm ended with {done.returncode}: {done.stderr.strip()}")
    return len(done.stdout.splitlines())


def main():
    count, owner, conf = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    numbers = {message(number): number for number in range(1, count + 1)}
    missing = set(numbers.values())
    files = [path for mailbox in mailboxes() for path in stored(mailbox)]
    for path in files:
        with open(path, "rb") as file:
            contents = file.read()
        if contents not in numbers:
            sys.exit(f"{path} has {len(contents)} bytes and is no message")
        missing.discard(numbers[contents])
    if missing:
        sys.exit(f"{len(missing)} messages are in no mailbox: {', '.join(map(str, sorted(missing)[:5]))}")
    if zlib.crc32("\n".join(files).encode()) % SAMPLE == 0:
        found = found_by_server(owner, conf)
        if found != len(files):
            sys.exit(f"Dovecot finds {found} messages, but there are {len(files)} files")


if __name__ == "__main__":
    main()
