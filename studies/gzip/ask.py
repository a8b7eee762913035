"""Asks whether every file of the directory of originals is in the current directory whole, or its .gz is."""

import os
import sys
import zlib


def fault(path, original, decompress):
    """What is wrong with a file; nothing if it is whole."""
    try:
        with open(path, "rb") as file:
            found = file.read()
    except FileNotFoundError:
        return "missing"
    if not decompress:
        return "" if found == original else f"{len(found)} bytes, not the {len(original)} that it had"
    stream = zlib.decompressobj(31)
    try:
        out = stream.decompress(found)
    except zlib.error as error:
        return f"{len(found)} bytes: {error}"
    if not stream.eof or stream.unused_data:
        return f"{len(found)} bytes, incomplete"
    return "" if out == original else "something else"


def main():
    originals, lost = sys.argv[1], 0
    for name in sorted(os.listdir(originals)):
        with open(os.path.join(originals, name), "rb") as file:
            original = file.read()
        plain, packed = fault(name, original, False), fault(name + ".gz", original, True)
        if plain and packed:
            lost += 1
            print(f"lost: {name} ({plain}), {name}.gz ({packed})")
    sys.exit(1 if lost else 0)


if __name__ == "__main__":
    main()
