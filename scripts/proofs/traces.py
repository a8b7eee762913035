"""Traces of operations out of a seed: most of them succeed, some do not, and the same ones for everybody."""

# What Minix takes at most; MinixLLD takes more.
NAME_MAX = 60
MODES = (0o644, 0o600, 0o755, 0o777, 0o4755, 0o2755, 0o6711, 0o1777, 0o000)
# Where files change the way in which Minix reaches their blocks of 1 KiB: direct, indirect, double and triple indirect.
BORDERS = (7 << 10, (7 + 256) << 10, (7 + 256 + 65536) << 10)
KINDS = (0o010644, 0o020600, 0o060640, 0o140755)
# How often each is done.
WEIGHTS = {
    "create": 10, "mkdir": 5, "write": 14, "append": 5, "truncate": 6, "read": 5, "symlink": 3, "mknod": 2, "link": 5,
    "unlink": 7, "rename": 9, "rename-new": 2, "rmdir": 3, "chmod": 3, "chown": 3, "time": 5, "fsync": 2, "orphan": 2,
}


class Trace:
    """Draws operations. It knows roughly what is there, so that most of them find what they need."""

    def __init__(self, source):
        self.source, self.files, self.others, self.directories = source, [], [], ["."]
        # Paths of files that have, or had, several: renaming one over another of them does nothing.
        self.linked = set()

    def lines(self, count):
        kinds, weights = list(WEIGHTS), list(WEIGHTS.values())
        return [self.operation(kind) for kind in self.source.choices(kinds, weights, k=count)]

    def operation(self, kind):
        return "\t".join(str(word) for word in (kind, *getattr(self, kind.replace("-", "_"))()))

    def name(self):
        """Short names are often taken already; long and odd ones are seldom."""
        draw = self.source.random()
        if draw < 0.8:
            return f"{self.source.choice('abcdefgh')}{self.source.randrange(12)}"
        if draw < 0.9:
            return "n" * self.source.randint(50, NAME_MAX - 2) + f"{self.source.randrange(50):02}"
        return self.source.choice(("ä", "with blank", "%d", "-", "..b", "\u65e5\u672c")) + str(self.source.randrange(30))

    def new(self):
        """A path at which something may be made; now and then below what is no directory, or is not there."""
        draw = self.source.random()
        below = self.source.choice(self.directories)
        if draw < 0.02 and self.files:
            below = self.source.choice(self.files)
        elif draw < 0.04:
            below = f"{below}/missing"
        elif below.count("/") > 4:
            below = "."
        return f"{below}/{self.name()}"

    def any_of(self, *lists):
        """A path of what was made; now and then one that was not."""
        known = [path for paths in lists for path in paths]
        return self.new() if not known or self.source.random() < 0.03 else self.source.choice(known)

    def offset(self):
        draw = self.source.random()
        if draw < 0.02:
            return BORDERS[2] + self.source.randint(-3000, 3000)
        if draw < 0.15:
            return self.source.choice(BORDERS[:2]) + self.source.randint(-3000, 3000)
        return self.source.randrange(1 << self.source.randint(1, 17))

    def length(self):
        return self.source.randrange(1 << self.source.randint(1, 16))

    def known(self, path):
        return any(path in paths for paths in (self.files, self.others, self.directories))

    def made(self, kind, path):
        """Notes what is made, if it can be."""
        if path.rsplit("/", 1)[0] in self.directories and not self.known(path):
            kind.append(path)

    def gone(self, path):
        """Forgets a path and what is below it."""
        for kind in (self.files, self.others, self.directories):
            kind[:] = [known for known in kind if known != path and not known.startswith(f"{path}/")]

    def create(self):
        path = self.new()
        self.made(self.files, path)
        return path, f"{self.source.choice(MODES):o}"

    def mkdir(self):
        path = self.new()
        self.made(self.directories, path)
        return path, f"{self.source.choice(MODES):o}"

    def symlink(self):
        path = self.new()
        self.made(self.others, path)
        return path, self.source.choice(("x", "../there", "y" * 500, "z" * 1023))

    def mknod(self):
        path = self.new()
        self.made(self.others, path)
        return path, f"{self.source.choice(KINDS):o}", self.source.randrange(240, 255), self.source.randrange(256)

    def link(self):
        old, new = self.any_of(self.files, self.others, self.directories[1:2]), self.new()
        if old in self.files or old in self.others:
            self.made(self.files if old in self.files else self.others, new)
            self.linked |= {old, new}
        return old, new

    def unlink(self):
        path = self.any_of(self.files, self.others, self.directories[1:2])
        if path not in self.directories:
            self.gone(path)
        return (path,)

    def rmdir(self):
        path = self.any_of(self.directories[1:], self.files[:1])
        is_empty = not any(known.startswith(f"{path}/") for known in (*self.files, *self.others, *self.directories))
        if path in self.directories and is_empty:
            self.gone(path)
        return (path,)

    def rename(self):
        old = self.any_of(self.files, self.others, self.directories[1:])
        new = self.any_of(self.files, self.others, self.directories[1:]) if self.source.random() < 0.4 else self.new()
        if old in self.linked and new in self.linked:
            new = self.new()
        if old in self.directories and (new == old or new.startswith(f"{old}/")):
            return old, new
        if not self.known(new) or (old not in self.directories and new not in self.directories):
            self.moved(old, new)
        return old, new

    def rename_new(self):
        old, new = self.any_of(self.files, self.others), self.new()
        if not self.known(new):
            self.moved(old, new)
        return old, new

    def moved(self, old, new):
        if new.rsplit("/", 1)[0] not in self.directories or not self.known(old) or old == new:
            return
        self.gone(new)
        lists = (self.files, self.others, self.directories)
        kept = [[path for path in known if path == old or path.startswith(f"{old}/")] for known in lists]
        self.gone(old)
        for known, paths in zip(lists, kept):
            known.extend(new + path[len(old):] for path in paths)
            self.linked |= {new + path[len(old):] for path in paths if path in self.linked}

    def write(self):
        return self.any_of(self.files), self.offset(), self.length(), self.source.randrange(1 << 30)

    def append(self):
        return self.any_of(self.files), self.length(), self.source.randrange(1 << 30)

    def truncate(self):
        return self.any_of(self.files, self.others[:1]), self.source.choice((0, 1, self.offset(), self.offset()))

    def read(self):
        return self.any_of(self.files), self.offset(), self.length()

    def fsync(self):
        return (self.any_of(self.files, self.directories),)

    def orphan(self):
        path = self.any_of(self.files)
        if path in self.files:
            self.gone(path)
        return path, self.length(), self.source.randrange(1 << 30)

    def chmod(self):
        return self.any_of(self.files, self.directories), f"{self.source.choice(MODES):o}"

    def chown(self):
        path = self.any_of(self.files, self.others, self.directories)
        return path, self.source.randrange(60_000), self.source.randrange(60_000)

    def time(self):
        return self.any_of(self.files, self.others, self.directories), self.source.randrange(1, 900_000_000)
