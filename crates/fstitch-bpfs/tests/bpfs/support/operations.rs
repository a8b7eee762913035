//! Operations for crash tests.

use crate::driver::{Op, Target};

/// What is at a path.
pub fn target(path: &[u8]) -> Target {
    Target::Path(path.to_vec())
}

/// Operations of every kind, on a tree that has files, a directory with a file in it, and a link.
pub fn operations() -> Vec<Op> {
    let path = |path: &str| path.as_bytes().to_vec();
    let write = |file: &str, offset, len| Op::Write(target(file.as_bytes()), offset, len, 6);
    let long = "n".repeat(200);
    vec![
        Op::Create(path("new"), 0o644),
        Op::Create(path("d/new"), 0o600),
        Op::Create(path(&long), 0o644),
        Op::Mkdir(path("e"), 0o755),
        Op::Mkdir(path("d/e"), 0o700),
        Op::Symlink(path("s"), b"to".to_vec()),
        Op::Symlink(path("d/s"), vec![b't'; 300]),
        Op::Device(path("dev"), 0o600, 0x1234),
        Op::Link(target(b"f"), path("d/l")),
        Op::Link(target(b"big"), path("l")),
        Op::Unlink(path("f")),
        Op::Unlink(path("d/g")),
        Op::Unlink(path("big")),
        Op::Unlink(path("h")),
        Op::Rmdir(path("empty")),
        Op::Rename(path("f"), path("f2"), true),
        Op::Rename(path("f"), path("big"), true),
        Op::Rename(path("f"), path("d/f"), true),
        Op::Rename(path("f"), path("d/g"), true),
        Op::Rename(path("d"), path("empty/d"), true),
        Op::Rename(path("d"), path("d2"), true),
        Op::Rename(path("d/g"), path("g"), false),
        Op::Rename(path("empty"), path("d/empty"), false),
        write("f", 0, 8),
        write("f", 0, 3),
        write("f", 4, 8),
        write("f", 0, 16),
        write("f", 5, 100),
        write("f", 10, 4),
        write("f", 4090, 12),
        write("f", 20_000, 10),
        write("f", 3_000_000, 5),
        write("f", 0, 9000),
        write("big", 0, 8),
        write("big", 4090, 16),
        write("big", 100, 4096),
        write("big", 4096, 4096),
        write("big", 9_000, 30_000),
        write("big", 39_999, 10),
        Op::WriteBack(target(b"big"), 4000, 200, 5),
        Op::Truncate(target(b"f"), 0),
        Op::Truncate(target(b"f"), 3),
        Op::Truncate(target(b"f"), 50_000),
        Op::Truncate(target(b"big"), 5000),
        Op::Truncate(target(b"big"), 0),
        Op::Fallocate(target(b"big"), 100, 9000, 2),
        Op::Fallocate(target(b"big"), 4096, 8192, 2),
        Op::Fallocate(target(b"big"), 0, 50_000, 3),
        Op::Fallocate(target(b"big"), 39_990, 10, 2),
        Op::Fallocate(target(b"f"), 0, 9000, 0),
        Op::Chmod(target(b"f"), 0o400),
        Op::Chown(target(b"f"), 7, 8),
        Op::Utimes(target(b"f"), 77),
        Op::Flags(target(b"f"), 2),
        Op::SetXattr(target(b"f"), 1, 10, 0),
        Op::SetXattr(target(b"d"), 2, 5000, 0),
        Op::RemoveXattr(target(b"big"), 1),
        Op::Tmpfile(path("d")),
        Op::Hold(path("f")),
    ]
}

/// What makes the tree that they are for.
pub fn preparations() -> Vec<Op> {
    let path = |path: &str| path.as_bytes().to_vec();
    vec![
        Op::Create(path("f"), 0o4755),
        Op::Write(target(b"f"), 0, 10, 2),
        Op::Create(path("big"), 0o644),
        Op::Write(target(b"big"), 0, 40_000, 4),
        Op::SetXattr(target(b"big"), 1, 50, 0),
        Op::Mkdir(path("d"), 0o755),
        Op::Create(path("d/g"), 0o644),
        Op::Write(target(b"d/g"), 5000, 10, 2),
        Op::Mkdir(path("empty"), 0o755),
        Op::Create(path("gone"), 0o644),
        Op::Link(target(b"f"), path("h")),
        Op::Unlink(path("gone")),
    ]
}
