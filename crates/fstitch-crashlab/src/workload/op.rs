//! One operation on paths, and the language in which workloads are written down: one line for each.

use std::fmt;
use std::str::FromStr;

use fstitch_core::{FallocateMode, FileKind, RenameMode};

/// One operation. Paths are absolute; lengths and offsets are bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the fields are the arguments of the system calls of the same names")]
pub enum Op {
    /// A new empty file.
    Create { path: String },
    /// A new directory.
    Mkdir { path: String },
    /// A new fifo or device.
    Mknod { path: String, kind: FileKind },
    /// A new symbolic link with a target of so many bytes.
    Symlink { path: String, len: usize },
    /// A new name for a file.
    Link { old: String, new: String },
    /// Removes a name.
    Unlink { path: String },
    /// Removes a directory.
    Rmdir { path: String },
    /// Moves a name.
    Rename { old: String, new: String, mode: RenameMode },
    /// Writes a pattern.
    Write { path: String, offset: u64, len: usize },
    /// Writes a pattern at the end.
    Append { path: String, len: usize },
    /// Changes the length.
    Truncate { path: String, size: u64 },
    /// Allocates, zeroes or frees a range.
    Fallocate { path: String, offset: u64, len: u64, mode: FallocateMode },
    /// Lets a file have another one's contents without copying them.
    Share { from: String, to: String },
    /// Sets an extended attribute to a pattern.
    SetXattr { path: String, name: String, len: usize },
    /// Removes an extended attribute.
    RemoveXattr { path: String, name: String },
    /// Changes the mode.
    Chmod { path: String, perm: u16 },
    /// Changes the owner, and the group if one is given.
    Chown { path: String, uid: u32, gid: Option<u32> },
    /// Gives an inode to a project.
    Project { path: String, project: u32 },
    /// Who does what follows; the superuser until then.
    As { uid: u32, gid: u32 },
    /// A file without a name, written to, that gets its name at last.
    Tmpfile { dir: String, link_as: String, len: usize },
    /// Holds an inode, as an open file does.
    Hold { path: String },
    /// Lets go of an inode that was held under this path.
    Release { path: String },
    /// Makes an object stable.
    Fsync { path: String },
    /// Makes an object's contents stable.
    Fdatasync { path: String },
    /// Makes everything stable.
    Sync,
    /// Lets the cache write a random part of what it could write now: `share` of 16 blocks.
    WriteOut { share: u8, seed: u64 },
    /// Writes everything that can be written while the `nth` block that it meets stays back.
    AllBut { nth: u64 },
}

const KINDS: [(FileKind, &str); 4] = [
    (FileKind::Fifo, "fifo"),
    (FileKind::CharDevice, "char-device"),
    (FileKind::BlockDevice, "block-device"),
    (FileKind::Socket, "socket"),
];
const RENAMES: [(RenameMode, &str); 3] = [
    (RenameMode::Replace, "rename"),
    (RenameMode::NoReplace, "rename-noreplace"),
    (RenameMode::Exchange, "exchange"),
];
const FALLOCATES: [(FallocateMode, &str); 7] = [
    (FallocateMode::Allocate, "allocate"),
    (FallocateMode::AllocateKeepSize, "allocate-keep-size"),
    (FallocateMode::PunchHole, "punch"),
    (FallocateMode::ZeroRange, "zero"),
    (FallocateMode::ZeroRangeKeepSize, "zero-keep-size"),
    (FallocateMode::CollapseRange, "collapse"),
    (FallocateMode::InsertRange, "insert"),
];

fn word<T: PartialEq>(table: &[(T, &'static str)], value: &T) -> &'static str {
    table.iter().find(|(other, _)| other == value).map_or("other", |(_, word)| word)
}

fn value<T: Copy>(table: &[(T, &'static str)], word: &str) -> Option<T> {
    table.iter().find(|(_, other)| *other == word).map(|(value, _)| *value)
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Create { path } => write!(f, "create {path}"),
            Self::Mkdir { path } => write!(f, "mkdir {path}"),
            Self::Mknod { path, kind } => write!(f, "mknod {path} {}", word(&KINDS, kind)),
            Self::Symlink { path, len } => write!(f, "symlink {path} {len}"),
            Self::Link { old, new } => write!(f, "link {old} {new}"),
            Self::Unlink { path } => write!(f, "unlink {path}"),
            Self::Rmdir { path } => write!(f, "rmdir {path}"),
            Self::Rename { old, new, mode } => write!(f, "{} {old} {new}", word(&RENAMES, mode)),
            Self::Write { path, offset, len } => write!(f, "write {path} {offset} {len}"),
            Self::Append { path, len } => write!(f, "append {path} {len}"),
            Self::Truncate { path, size } => write!(f, "truncate {path} {size}"),
            Self::Fallocate { path, offset, len, mode } => {
                write!(f, "{} {path} {offset} {len}", word(&FALLOCATES, mode))
            }
            Self::Share { from, to } => write!(f, "share {from} {to}"),
            Self::SetXattr { path, name, len } => write!(f, "setxattr {path} {name} {len}"),
            Self::RemoveXattr { path, name } => write!(f, "removexattr {path} {name}"),
            Self::Chmod { path, perm } => write!(f, "chmod {path} {perm:o}"),
            Self::Chown { path, uid, gid: None } => write!(f, "chown {path} {uid}"),
            Self::Chown { path, uid, gid: Some(gid) } => write!(f, "chown {path} {uid} {gid}"),
            Self::Project { path, project } => write!(f, "project {path} {project}"),
            Self::As { uid, gid } => write!(f, "as {uid} {gid}"),
            Self::Tmpfile { dir, link_as, len } => write!(f, "tmpfile {dir} {link_as} {len}"),
            Self::Hold { path } => write!(f, "hold {path}"),
            Self::Release { path } => write!(f, "release {path}"),
            Self::Fsync { path } => write!(f, "fsync {path}"),
            Self::Fdatasync { path } => write!(f, "fdatasync {path}"),
            Self::Sync => write!(f, "sync"),
            Self::WriteOut { share, seed } => write!(f, "write-out {share} {seed}"),
            Self::AllBut { nth } => write!(f, "all-but {nth}"),
        }
    }
}

/// A line that names no operation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no operation: expected one like `create /a`, `write /a 0 5000`, `rename /a /b`, `fsync /a` or `sync`"
)]
pub struct UnknownOp(String);

impl FromStr for Op {
    type Err = UnknownOp;

    fn from_str(line: &str) -> Result<Self, UnknownOp> {
        let words: Vec<&str> = line.split_whitespace().collect();
        parse(&words).ok_or_else(|| UnknownOp(line.to_owned()))
    }
}

/// A path that is absolute.
fn path(word: &str) -> Option<String> {
    word.starts_with('/').then(|| word.to_owned())
}

fn parse(words: &[&str]) -> Option<Op> {
    Some(match *words {
        ["sync"] => Op::Sync,
        ["write-out", share, seed] => Op::WriteOut { share: share.parse().ok()?, seed: seed.parse().ok()? },
        ["all-but", nth] => Op::AllBut { nth: nth.parse().ok()? },
        ["create", at] => Op::Create { path: path(at)? },
        ["mkdir", at] => Op::Mkdir { path: path(at)? },
        ["unlink", at] => Op::Unlink { path: path(at)? },
        ["rmdir", at] => Op::Rmdir { path: path(at)? },
        ["hold", at] => Op::Hold { path: path(at)? },
        ["release", at] => Op::Release { path: path(at)? },
        ["fsync", at] => Op::Fsync { path: path(at)? },
        ["fdatasync", at] => Op::Fdatasync { path: path(at)? },
        ["mknod", at, kind] => Op::Mknod { path: path(at)?, kind: value(&KINDS, kind)? },
        ["symlink", at, len] => Op::Symlink { path: path(at)?, len: len.parse().ok()? },
        ["link", old, new] => Op::Link { old: path(old)?, new: path(new)? },
        ["append", at, len] => Op::Append { path: path(at)?, len: len.parse().ok()? },
        ["truncate", at, size] => Op::Truncate { path: path(at)?, size: size.parse().ok()? },
        ["removexattr", at, name] => Op::RemoveXattr { path: path(at)?, name: name.to_owned() },
        ["chmod", at, perm] => Op::Chmod { path: path(at)?, perm: u16::from_str_radix(perm, 8).ok()? },
        ["chown", at, uid] => Op::Chown { path: path(at)?, uid: uid.parse().ok()?, gid: None },
        ["chown", at, uid, gid] => {
            Op::Chown { path: path(at)?, uid: uid.parse().ok()?, gid: Some(gid.parse().ok()?) }
        }
        ["project", at, project] => Op::Project { path: path(at)?, project: project.parse().ok()? },
        ["as", uid, gid] => Op::As { uid: uid.parse().ok()?, gid: gid.parse().ok()? },
        ["write", at, offset, len] => {
            Op::Write { path: path(at)?, offset: offset.parse().ok()?, len: len.parse().ok()? }
        }
        ["setxattr", at, name, len] => {
            Op::SetXattr { path: path(at)?, name: name.to_owned(), len: len.parse().ok()? }
        }
        ["tmpfile", dir, link_as, len] => {
            Op::Tmpfile { dir: path(dir)?, link_as: path(link_as)?, len: len.parse().ok()? }
        }
        ["share", from, to] => Op::Share { from: path(from)?, to: path(to)? },
        [verb, old, new] => Op::Rename { old: path(old)?, new: path(new)?, mode: value(&RENAMES, verb)? },
        [verb, at, offset, len] => Op::Fallocate {
            path: path(at)?,
            offset: offset.parse().ok()?,
            len: len.parse().ok()?,
            mode: value(&FALLOCATES, verb)?,
        },
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_verb_is_read_as_it_is_written() {
        let lines = "create /a\nmkdir /a\nmknod /a fifo\nsymlink /a 70\nlink /a /b\nunlink /a\nrmdir /a\nrename /a /b\n\
                     rename-noreplace /a /b\nexchange /a /b\nwrite /a 0 5000\nappend /a 9\ntruncate /a 3\n\
                     allocate /a 1 2\nallocate-keep-size /a 1 2\npunch /a 1 2\nzero /a 1 2\nzero-keep-size /a 1 2\nshare /a /b\n\
                     collapse /a 1 2\ninsert /a 1 2\n\
                     setxattr /a user.x 20\nremovexattr /a user.x\nchmod /a 644\nchown /a 5\nchown /a 5 6\nproject /a 7\nas 1 2\ntmpfile /d /d/a 100\n\
                     hold /a\nrelease /a\nfsync /a\nfdatasync /a\nsync\nwrite-out 8 77\nall-but 3";
        for line in lines.lines() {
            assert_eq!(line.parse::<Op>().unwrap().to_string(), line);
        }
        for line in ["", "create", "create a", "write /a x 1", "jump /a", "rename /a b"] {
            assert!(line.parse::<Op>().is_err(), "{line}");
        }
    }
}
