//! Steps that seldom happen, and that ordering makes hard: directories that change places, names that are taken over,
//! objects that come and go at once, open files without names, inodes and blocks that are used again.

use super::seq::Core;

/// The steps, on the same files as the usual ones.
pub(super) const RARE: [Core; 34] = [
    ("exchange /A /B", "/A"),
    ("exchange /A/C /B", "/A/C"),
    ("exchange /A/C /foo", "/foo"),
    ("exchange /foo /A/foo", "/A/foo"),
    ("mkdir /A/C/D;rename /A/C /D", "/D"),
    ("mkdir /D;rename /D /A/C", "/A/C"),
    ("mkdir /B/D;rename /B/D /D;rmdir /B", "/D"),
    ("rename /A/foo /B/foo;rename /A/bar /A/foo", "/A/foo"),
    ("link /foo /B/l;rename /B/l /A/foo", "/A/foo"),
    ("link /foo /l;rename /l /foo", "/foo"),
    ("link /A/foo /B/l;unlink /A/foo;rename /B/l /A/foo", "/A/foo"),
    ("create /t;append /t 3000;rename /t /foo", "/foo"),
    ("create /t;append /t 3000;fsync /t;rename /t /foo", "/foo"),
    ("create /A/t;append /A/t 300;rename /A/t /B/t;rename /B/t /t", "/t"),
    ("hold /foo;unlink /foo;append /foo 20000;truncate /foo 100;release /foo", "/"),
    ("hold /A/foo;unlink /A/foo;append /A/foo 20000", "/A"),
    ("hold /A/foo;rename /foo /A/foo;release /A/foo", "/A/foo"),
    ("mknod /A/sock socket;unlink /A/sock", "/A"),
    ("mknod /A/blk block-device;rename /A/blk /B/blk", "/B/blk"),
    ("symlink /s 100;rename /s /A/s;unlink /A/s", "/A"),
    ("symlink /s 59;symlink /A/s 60;symlink /A/C/s 61", "/A/C"),
    ("rmdir /B;mkdir /B;create /B/x", "/B/x"),
    ("rmdir /B;create /B;append /B 100", "/B"),
    ("unlink /foo;mkdir /foo;create /foo/x", "/foo/x"),
    ("mkdir /D;mkdir /D/E;rmdir /D/E;rmdir /D", "/"),
    ("truncate /A/foo 0;append /A/foo 15000", "/A/foo"),
    ("write /foo 1048576 4096;truncate /foo 5000", "/foo"),
    ("punch /A/foo 0 16384;write /A/foo 0 100", "/A/foo"),
    ("truncate /foo 30000;allocate-keep-size /foo 6000 20000;truncate /foo 5000", "/foo"),
    ("setxattr /A/bar user.oldbig 300;unlink /A/bar", "/A"),
    ("setxattr /A/foo user.a 900;setxattr /A/foo user.b 20;removexattr /A/foo user.a", "/A/foo"),
    ("chown /A/foo 70000;chmod /A/foo 4755", "/A/foo"),
    ("tmpfile /A /A/t 3000;unlink /A/t", "/A"),
    (
        "create /B/LONG0;create /B/LONG1;create /B/LONG2;create /B/LONG3;create /B/LONG4;unlink /B/LONG0;\
         unlink /B/LONG1;unlink /B/LONG2;unlink /B/LONG3;unlink /B/LONG4;rmdir /B",
        "/",
    ),
];
