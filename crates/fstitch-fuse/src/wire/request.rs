//! Taking requests apart.

use zerocopy::FromBytes;

use crate::transport::TRANSFER_MAX;

use super::layout::{
    BatchForgetIn, CopyFileRangeIn, CreateIn, FallocateIn, ForgetOne, FsyncIn, GetxattrIn, InHeader, IoctlIn,
    LseekIn, MkdirIn, MknodIn, ReadIn, Rename2In, SetattrIn, SetxattrIn, WriteIn, opcode, valid,
};

/// The kernel's number for an inode; the root directory is 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Node(pub u64);

/// Where the contents that a request asks for are put: its transport's own memory.
#[derive(Debug)]
pub(crate) struct Room<'a>(pub &'a mut [u8]);

/// A request of the kernel.
#[derive(Debug)]
pub(crate) struct Request<'a> {
    pub header: InHeader,
    pub op: Op<'a>,
}

/// The changes that a `SETATTR` asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Set(SetattrIn);

/// What a request asks for. What is not named here is not done.
#[derive(Debug)]
pub(crate) enum Op<'a> {
    Lookup { name: &'a [u8] },
    Forget { count: u64 },
    BatchForget { list: Forgets<'a> },
    Getattr,
    Setattr(Set),
    Readlink,
    Symlink { name: &'a [u8], target: &'a [u8] },
    Mknod { name: &'a [u8], mode: u32, rdev: u32, umask: u32 },
    Tmpfile { mode: u32, umask: u32 },
    Mkdir { name: &'a [u8], mode: u32, umask: u32 },
    Unlink { name: &'a [u8] },
    Rmdir { name: &'a [u8] },
    Rename { name: &'a [u8], to: (Node, &'a [u8]), flags: u32 },
    Link { of: Node, name: &'a [u8] },
    Open,
    Release,
    Read { offset: u64, room: Room<'a> },
    Write { offset: u64, data: &'a [u8], write_flags: u32, open_flags: i32 },
    Statfs,
    Fsync { data_only: bool },
    Setxattr { name: &'a [u8], value: &'a [u8], flags: u32 },
    Getxattr { name: &'a [u8], size: u32 },
    Listxattr { size: u32 },
    Removexattr { name: &'a [u8] },
    Opendir,
    Readdir { cookie: u64, size: usize },
    Readdirplus { cookie: u64, size: usize },
    Fsyncdir { data_only: bool },
    Destroy,
    Ioctl { cmd: u32, input: &'a [u8], out_size: usize },
    Fallocate { offset: u64, len: u64, mode: u32 },
    Lseek { offset: u64, whence: u32 },
    CopyRange { offset: u64, to: (Node, u64), len: u64 },
    Unknown,
}

/// Inodes and how many references each loses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Forgets<'a>(&'a [u8]);

impl Iterator for Forgets<'_> {
    type Item = (Node, u64);

    fn next(&mut self) -> Option<Self::Item> {
        let (one, rest) = ForgetOne::read_from_prefix(self.0).ok()?;
        self.0 = rest;
        Some((Node(one.nodeid), one.nlookup))
    }
}

/// Bytes of the structure that the operation starts with.
pub(crate) fn fixed_len(operation: u32) -> usize {
    match operation {
        opcode::FORGET | opcode::RENAME | opcode::LINK => 8,
        // The first words of what these carry do not matter here.
        opcode::GETATTR => 16,
        opcode::SETATTR => size_of::<SetattrIn>(),
        opcode::MKNOD => size_of::<MknodIn>(),
        opcode::MKDIR => size_of::<MkdirIn>(),
        opcode::TMPFILE => size_of::<CreateIn>(),
        opcode::READ | opcode::READDIR | opcode::READDIRPLUS => size_of::<ReadIn>(),
        opcode::WRITE => size_of::<WriteIn>(),
        opcode::FSYNC | opcode::FSYNCDIR => size_of::<FsyncIn>(),
        opcode::SETXATTR => size_of::<SetxattrIn>(),
        opcode::GETXATTR | opcode::LISTXATTR => size_of::<GetxattrIn>(),
        opcode::IOCTL => size_of::<IoctlIn>(),
        opcode::BATCH_FORGET => size_of::<BatchForgetIn>(),
        opcode::FALLOCATE => size_of::<FallocateIn>(),
        opcode::RENAME2 => size_of::<Rename2In>(),
        opcode::LSEEK => size_of::<LseekIn>(),
        opcode::COPY_FILE_RANGE => size_of::<CopyFileRangeIn>(),
        _ => 0,
    }
}

/// Bytes of contents that the answer may have, of a request with `fixed`.
pub(crate) fn room_len(operation: u32, fixed: &[u8]) -> usize {
    let read = if operation == opcode::READ { take::<ReadIn>(fixed) } else { None };
    read.map_or(0, |read| length(read.size).min(TRANSFER_MAX))
}

fn take<T: FromBytes>(bytes: &[u8]) -> Option<T> {
    T::read_from_prefix(bytes).ok().map(|(value, _)| value)
}

/// The name at the start of `bytes` and what follows its NUL. Names are neither empty nor do they contain a slash.
fn name(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (name, rest) = string(bytes)?;
    (!name.is_empty() && !name.contains(&b'/')).then_some((name, rest))
}

fn string(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = bytes.iter().position(|byte| *byte == 0)?;
    Some((&bytes[..end], &bytes[end + 1..]))
}

fn length(bytes: u32) -> usize {
    usize::try_from(bytes).expect("32 bits or more")
}

impl<'a> Request<'a> {
    /// A request of `header`, of the structure in `fixed`, and of what follows, which is the first `filled` bytes of
    /// `rest`; the whole of `rest` is there for an answer with contents. `None` for what the protocol does not allow.
    pub(crate) fn decode(header: InHeader, fixed: &[u8], rest: &'a mut [u8], filled: usize) -> Option<Self> {
        let op = match header.opcode {
            opcode::READ => {
                let read = take::<ReadIn>(fixed)?;
                let room = rest.get_mut(..length(read.size))?;
                Op::Read { offset: read.offset, room: Room(room) }
            }
            operation => Op::decode(operation, fixed, rest.get(..filled)?)?,
        };
        Some(Self { header, op })
    }

    pub(crate) fn node(&self) -> Node {
        Node(self.header.nodeid)
    }
}

impl<'a> Op<'a> {
    /// Whatever has no contents in its answer.
    fn decode(operation: u32, fixed: &[u8], rest: &'a [u8]) -> Option<Self> {
        Some(match operation {
            opcode::FORGET => Op::Forget { count: take(fixed)? },
            opcode::BATCH_FORGET => {
                let count = length(take::<BatchForgetIn>(fixed)?.count);
                Op::BatchForget { list: Forgets(rest.get(..count.checked_mul(size_of::<ForgetOne>())?)?) }
            }
            opcode::GETATTR => Op::Getattr,
            opcode::SETATTR => Op::Setattr(Set(take(fixed)?)),
            opcode::WRITE => {
                let write = take::<WriteIn>(fixed)?;
                let data = rest.get(..length(write.size))?;
                Op::Write {
                    offset: write.offset,
                    data,
                    write_flags: write.write_flags,
                    open_flags: write.flags,
                }
            }
            opcode::READDIR | opcode::READDIRPLUS => {
                let read = take::<ReadIn>(fixed)?;
                let (cookie, size) = (read.offset, length(read.size));
                if operation == opcode::READDIR {
                    Op::Readdir { cookie, size }
                } else {
                    Op::Readdirplus { cookie, size }
                }
            }
            opcode::FSYNC => Op::Fsync { data_only: data_only(fixed)? },
            opcode::FSYNCDIR => Op::Fsyncdir { data_only: data_only(fixed)? },
            opcode::FALLOCATE => {
                let asked = take::<FallocateIn>(fixed)?;
                Op::Fallocate { offset: asked.offset, len: asked.length, mode: asked.mode }
            }
            opcode::LSEEK => {
                let asked = take::<LseekIn>(fixed)?;
                Op::Lseek { offset: asked.offset, whence: asked.whence }
            }
            opcode::COPY_FILE_RANGE => {
                let asked = take::<CopyFileRangeIn>(fixed)?;
                let to = (Node(asked.nodeid_out), asked.off_out);
                Op::CopyRange { offset: asked.off_in, to, len: asked.len }
            }
            opcode::IOCTL => {
                let asked = take::<IoctlIn>(fixed)?;
                let input = rest.get(..length(asked.in_size))?;
                Op::Ioctl { cmd: asked.cmd, input, out_size: length(asked.out_size) }
            }
            // What follows is no name.
            opcode::TMPFILE => {
                let CreateIn { mode, umask, .. } = take(fixed)?;
                Op::Tmpfile { mode, umask }
            }
            opcode::READLINK => Op::Readlink,
            opcode::STATFS => Op::Statfs,
            opcode::OPEN => Op::Open,
            opcode::OPENDIR => Op::Opendir,
            opcode::RELEASE | opcode::RELEASEDIR => Op::Release,
            opcode::DESTROY => Op::Destroy,
            _ => return Op::decode_named(operation, fixed, rest),
        })
    }

    /// What is about names.
    fn decode_named(operation: u32, fixed: &[u8], rest: &'a [u8]) -> Option<Self> {
        Some(match operation {
            opcode::LOOKUP => Op::Lookup { name: name(rest)?.0 },
            opcode::UNLINK => Op::Unlink { name: name(rest)?.0 },
            opcode::RMDIR => Op::Rmdir { name: name(rest)?.0 },
            opcode::SYMLINK => {
                let (name, rest) = name(rest)?;
                Op::Symlink { name, target: string(rest)?.0 }
            }
            opcode::MKNOD => {
                let MknodIn { mode, rdev, umask, .. } = take(fixed)?;
                Op::Mknod { name: name(rest)?.0, mode, rdev, umask }
            }
            opcode::MKDIR => {
                let MkdirIn { mode, umask } = take(fixed)?;
                Op::Mkdir { name: name(rest)?.0, mode, umask }
            }
            opcode::RENAME | opcode::RENAME2 => {
                let Rename2In { newdir, flags, .. } = if operation == opcode::RENAME2 {
                    take(fixed)?
                } else {
                    Rename2In { newdir: take(fixed)?, flags: 0, padding: 0 }
                };
                let (from, rest) = name(rest)?;
                Op::Rename { name: from, to: (Node(newdir), name(rest)?.0), flags }
            }
            opcode::LINK => Op::Link { of: Node(take(fixed)?), name: name(rest)?.0 },
            opcode::SETXATTR => {
                let SetxattrIn { size, flags } = take(fixed)?;
                let (name, rest) = string(rest)?;
                Op::Setxattr { name, value: rest.get(..length(size))?, flags }
            }
            opcode::GETXATTR => Op::Getxattr { name: string(rest)?.0, size: take::<GetxattrIn>(fixed)?.size },
            opcode::LISTXATTR => Op::Listxattr { size: take::<GetxattrIn>(fixed)?.size },
            opcode::REMOVEXATTR => Op::Removexattr { name: string(rest)?.0 },
            _ => Op::Unknown,
        })
    }
}

fn data_only(fixed: &[u8]) -> Option<bool> {
    Some(take::<FsyncIn>(fixed)?.fsync_flags & 1 != 0)
}

impl Set {
    fn has(self, bit: u32) -> bool {
        self.0.valid & bit != 0
    }

    pub(crate) fn mode(self) -> Option<u32> {
        self.has(valid::MODE).then_some(self.0.mode)
    }

    pub(crate) fn uid(self) -> Option<u32> {
        self.has(valid::UID).then_some(self.0.uid)
    }

    pub(crate) fn gid(self) -> Option<u32> {
        self.has(valid::GID).then_some(self.0.gid)
    }

    pub(crate) fn size(self) -> Option<u64> {
        self.has(valid::SIZE).then_some(self.0.size)
    }

    /// Seconds and nanoseconds, or `None` inside for now.
    pub(crate) fn atime(self) -> Option<Option<(i64, u32)>> {
        let at = (!self.has(valid::ATIME_NOW)).then_some((self.0.atime, self.0.atimensec));
        self.has(valid::ATIME).then_some(at)
    }

    /// As [`Self::atime`].
    pub(crate) fn mtime(self) -> Option<Option<(i64, u32)>> {
        let at = (!self.has(valid::MTIME_NOW)).then_some((self.0.mtime, self.0.mtimensec));
        self.has(valid::MTIME).then_some(at)
    }

    /// Seconds and nanoseconds: only a kernel that keeps writes back says when they were made.
    pub(crate) fn ctime(self) -> Option<(i64, u32)> {
        self.has(valid::CTIME).then_some((self.0.ctime, self.0.ctimensec))
    }

    /// Whether a new length takes the set-id bits away.
    pub(crate) fn kills_set_ids(self) -> bool {
        self.has(valid::KILL_SUIDGID)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use zerocopy::IntoBytes;

    use super::*;

    fn header(opcode: u32) -> InHeader {
        InHeader { len: 0, opcode, unique: 7, nodeid: 1, uid: 0, gid: 0, pid: 0, padding: 0 }
    }

    fn decoded(opcode: u32, fixed: &[u8], rest: &[u8]) -> Option<String> {
        let mut memory = rest.to_vec();
        let filled = memory.len();
        Request::decode(header(opcode), fixed, &mut memory, filled).map(|request| format!("{:?}", request.op))
    }

    #[test]
    fn names_are_taken_apart() {
        let moved = Rename2In { newdir: 9, flags: 1, padding: 0 };
        let request = decoded(opcode::RENAME2, moved.as_bytes(), b"from\0to\0").unwrap();
        let expected = Op::Rename { name: b"from", to: (Node(9), b"to"), flags: 1 };
        assert_eq!(request, format!("{expected:?}"));
        for bad in [&b"from\0to"[..], b"from\0", b"\0to\0", b"a/b\0to\0", b""] {
            assert_eq!(decoded(opcode::RENAME2, moved.as_bytes(), bad), None);
        }
    }

    #[test]
    fn lengths_beyond_the_message_are_refused() {
        let mut write = WriteIn::read_from_bytes(&[0; 40]).unwrap();
        write.size = 4;
        assert!(decoded(opcode::WRITE, write.as_bytes(), b"abcd").is_some());
        assert!(decoded(opcode::WRITE, write.as_bytes(), b"abc").is_none());
        let two = BatchForgetIn { count: 2, dummy: 0 };
        assert!(decoded(opcode::BATCH_FORGET, two.as_bytes(), &[0; 32]).is_some());
        assert!(decoded(opcode::BATCH_FORGET, two.as_bytes(), &[0; 31]).is_none());
        let all = BatchForgetIn { count: u32::MAX, dummy: 0 };
        assert!(decoded(opcode::BATCH_FORGET, all.as_bytes(), &[0; 32]).is_none());
    }

    proptest! {
        /// Whatever arrives, taking it apart neither panics nor reaches beyond it.
        #[test]
        fn any_message_is_taken_apart_or_refused(
            opcode in 0_u32..60, message in prop::collection::vec(any::<u8>(), 0..200), room in 0_usize..200,
        ) {
            let at = fixed_len(opcode).min(message.len());
            let (fixed, rest) = message.split_at(at);
            let mut memory = rest.to_vec();
            memory.resize(rest.len() + room, 0);
            let request = Request::decode(header(opcode), fixed, &mut memory, rest.len());
            if let Some(Op::BatchForget { list }) = request.map(|request| request.op) {
                prop_assert!(list.count() <= 200 / 16);
            }
        }
    }
}
