//! Operations as values, carried out on a file system and on the model side by side.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use fstitch_core::{
    Attr, Caller, Errno, FallocateMode, FileKind, FileSystem, InodeFlags, InodeNo, ManualClock, RenameMode,
    Result, SeekFrom, SetAttr, SetTime, Timestamp, XattrSetMode,
};
use fstitch_fs::model::{Model, ModelOptions};

/// A path of small components; short so that operations meet often.
pub type Path = Vec<u8>;

/// What an operation that works on an inode addresses.
#[derive(Clone, Debug)]
pub enum Target {
    Path(Path),
    /// One of the inodes that are held although they may have no name any more.
    Held(usize),
}

#[derive(Clone, Debug)]
pub enum Op {
    Create(Path, u16),
    Mkdir(Path, u16),
    Symlink(Path, Vec<u8>),
    Device(Path, u16, u32),
    Link(Target, Path),
    Unlink(Path),
    Rmdir(Path),
    Rename(Path, Path, bool),
    Write(Target, u64, usize, u8),
    /// What a cache took earlier: of an append-only file it may repeat bytes.
    WriteBack(Target, u64, usize, u8),
    Read(Target, u64, usize),
    Seek(Target, u64, bool),
    Truncate(Target, u64),
    Fallocate(Target, u64, u64, u8),
    Chmod(Target, u16),
    Flags(Target, u8),
    Chown(Target, u32, u32),
    Utimes(Target, i64),
    SetXattr(Target, u8, usize, u8),
    RemoveXattr(Target, u8),
    Tmpfile(Path),
    Hold(Path),
    Release(usize),
    Fsync(Target, bool),
    Sync,
    Remount,
}

/// A volume that can be mounted again and again.
pub trait Medium {
    fn mount(&self) -> Arc<dyn FileSystem>;
    /// Most names of an inode.
    fn link_max(&self) -> u32;
    /// A directory that a new volume holds, with its permissions.
    fn born_with(&self) -> Option<(&'static [u8], u16)>;
    /// Whether blocks can be there and not written.
    fn has_unwritten(&self) -> bool {
        false
    }
    /// Whether ranges can be taken out of files and put in.
    fn shifts(&self) -> bool {
        false
    }

    /// Bytes of which ranges that come and go are multiples, if that is not a block.
    fn shift_unit(&self) -> Option<u32> {
        None
    }
}

/// A file system with the inodes that are held on it.
pub struct Side {
    pub fs: Arc<dyn FileSystem>,
    held: Vec<InodeNo>,
    /// Trees leave out blocks of zeros, and holes unread.
    is_brief: bool,
}

const CALLER: Caller = Caller { uid: 0, gid: 0, tid: 1, umask: 0o022 };

/// Sets the flags of a file: an ioctl reaches neither symbolic links nor devices.
fn set_flags(fs: &dyn FileSystem, ino: InodeNo, which: u8) -> Result<Answer> {
    const FLAGS: [u32; 4] = [0, 0, InodeFlags::APPEND, InodeFlags::IMMUTABLE];
    if fs.getattr(ino)?.kind == FileKind::Regular {
        fs.set_flags(&CALLER, ino, InodeFlags(FLAGS[usize::from(which) % FLAGS.len()]))?;
    }
    Ok(Answer::Done)
}

/// Carries operations out on `medium` and on the model and compares every answer, and the trees at each
/// remount and at the end. Returns the number of inodes that are left.
pub fn compare(medium: &dyn Medium, block_size: u32, clock: &Arc<ManualClock>, ops: &[Op]) -> u64 {
    let link_max = medium.link_max();
    let unwritten = medium.has_unwritten();
    let shifts = medium.shifts();
    let shift_unit = medium.shift_unit();
    let options = ModelOptions {
        block_size,
        shift_unit,
        link_max,
        atime: false,
        unwritten,
        shifts,
        ..ModelOptions::default()
    };
    let model = Model::with(options, Arc::<ManualClock>::clone(clock));
    if let Some((name, perm)) = medium.born_with() {
        model.mkdir(&CALLER, model.root(), name, perm).unwrap();
    }
    let mut model = Side::new(Arc::new(model));
    let mut real = Side::new(medium.mount());
    for (i, op) in ops.iter().enumerate() {
        clock.advance(Duration::from_secs(1));
        if matches!(op, Op::Remount) {
            model.release_all();
            real.release_all();
            real.fs.unmount().unwrap();
            real.fs = medium.mount();
            assert_eq!(real.tree(), model.tree(), "after the remount at {i}");
            continue;
        }
        let (expected, found) = (model.run(op), real.run(op));
        assert_eq!(found, expected, "operation {i}: {op:?}");
    }
    assert_eq!(real.tree(), model.tree(), "at the end");
    real.release_all();
    real.fs.unmount().unwrap();
    model.release_all();
    let real = Side::new(medium.mount());
    assert_eq!(real.tree(), model.tree(), "after the last remount");
    assert!(model.fs.check().unwrap().is_clean(), "the model itself is in order");
    let left = model.fs.statfs().unwrap();
    left.inodes - left.inodes_free
}

/// What an operation answers, in a form that can be compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Done,
    Failed(Errno),
    Attr(Box<Seen>),
    Bytes(Vec<u8>),
    Count(usize),
    Offset(u64),
}

/// The attributes that both sides must agree on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    kind: FileKind,
    perm: u16,
    nlink: u32,
    owner: (u32, u32),
    rdev: u32,
    size: Option<u64>,
    times: [Timestamp; 3],
}

impl From<Attr> for Seen {
    fn from(attr: Attr) -> Self {
        // A directory's size is the format's business.
        let size = (attr.kind != FileKind::Directory).then_some(attr.size);
        Self {
            kind: attr.kind,
            perm: attr.perm,
            nlink: attr.nlink,
            owner: (attr.uid, attr.gid),
            rdev: attr.rdev,
            size,
            times: [attr.atime, attr.mtime, attr.ctime],
        }
    }
}

/// Everything that can be seen of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leaf {
    seen: Seen,
    contents: Vec<u8>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl Leaf {
    /// Kind, length and contents.
    pub fn contents(&self) -> (FileKind, Option<u64>, &[u8]) {
        (self.seen.kind, self.seen.size, &self.contents)
    }
}

fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|&byte| byte == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (b"", path),
    }
}

impl Side {
    pub fn new(fs: Arc<dyn FileSystem>) -> Self {
        Self { fs, held: Vec::new(), is_brief: false }
    }

    /// For who looks at large files with holes very often: contents in its trees are the blocks that are not zeros, each behind its
    /// offset. They differ exactly where the files do.
    #[allow(dead_code, reason = "the crash tests of another crate alone look that often")]
    pub fn brief(fs: Arc<dyn FileSystem>) -> Self {
        Self { is_brief: true, ..Self::new(fs) }
    }

    fn brief_contents(&self, ino: InodeNo) -> Vec<u8> {
        let (mut contents, mut at) = (Vec::new(), 0);
        while let Ok(start) = self.fs.seek(ino, at, SeekFrom::Data) {
            let end = self.fs.seek(ino, start, SeekFrom::Hole).unwrap();
            let mut piece = vec![0xff; usize::try_from(end - start).unwrap()];
            let n = self.fs.read(ino, start, &mut piece).unwrap();
            for (offset, block) in (start..).step_by(4096).zip(piece[..n].chunks(4096)) {
                if block.iter().any(|byte| *byte != 0) {
                    contents.extend_from_slice(&offset.to_le_bytes());
                    contents.extend_from_slice(block);
                }
            }
            at = end;
        }
        contents
    }

    pub fn release_all(&mut self) {
        for ino in std::mem::take(&mut self.held) {
            self.fs.forget(ino, 1);
        }
    }

    /// Runs `f` with the directory of `path` and the name in it, holding a reference on the directory.
    fn with_parent(&self, path: &[u8], f: impl FnOnce(InodeNo, &[u8]) -> Result<Answer>) -> Result<Answer> {
        let (dir, name) = split(path);
        let dir = self.fs.walk(dir)?.attr.ino;
        let answer = f(dir, name);
        self.fs.forget(dir, 1);
        answer
    }

    fn with_target(&self, target: &Target, f: impl FnOnce(InodeNo) -> Result<Answer>) -> Result<Answer> {
        match target {
            Target::Path(path) => {
                let ino = self.fs.walk(path)?.attr.ino;
                let answer = f(ino);
                self.fs.forget(ino, 1);
                answer
            }
            Target::Held(_) if self.held.is_empty() => Err(Errno::BADF.into()),
            Target::Held(index) => f(self.held[index % self.held.len()]),
        }
    }

    fn made(&self, entry: Result<fstitch_core::Entry>) -> Result<Answer> {
        let attr = entry?.attr;
        self.fs.forget(attr.ino, 1);
        Ok(Answer::Attr(Box::new(attr.into())))
    }

    fn set(&self, target: &Target, set: SetAttr) -> Result<Answer> {
        self.with_target(target, |ino| {
            self.fs.setattr(&CALLER, ino, &set).map(|attr| Answer::Attr(Box::new(attr.into())))
        })
    }

    pub fn run(&mut self, op: &Op) -> Answer {
        match self.try_run(op) {
            Ok(answer) => answer,
            Err(error) => Answer::Failed(error.errno()),
        }
    }

    fn try_run(&mut self, op: &Op) -> Result<Answer> {
        let fs = &self.fs;
        match op {
            Op::Create(path, perm) => self.with_parent(path, |dir, name| {
                self.made(fs.mknod(&CALLER, dir, name, FileKind::Regular.mode_bits() | perm, 0))
            }),
            Op::Device(path, perm, rdev) => self.with_parent(path, |dir, name| {
                self.made(fs.mknod(&CALLER, dir, name, FileKind::CharDevice.mode_bits() | perm, *rdev))
            }),
            Op::Mkdir(path, perm) => {
                self.with_parent(path, |dir, name| self.made(fs.mkdir(&CALLER, dir, name, *perm)))
            }
            Op::Symlink(path, to) => {
                self.with_parent(path, |dir, name| self.made(fs.symlink(&CALLER, dir, name, to)))
            }
            Op::Link(target, path) => self.with_target(target, |ino| {
                self.with_parent(path, |dir, name| self.made(fs.link(&CALLER, ino, dir, name)))
            }),
            Op::Unlink(path) => {
                self.with_parent(path, |dir, name| fs.unlink(&CALLER, dir, name).map(|()| Answer::Done))
            }
            Op::Rmdir(path) => {
                self.with_parent(path, |dir, name| fs.rmdir(&CALLER, dir, name).map(|()| Answer::Done))
            }
            Op::Rename(from, to, replace) => self.with_parent(from, |from_dir, from_name| {
                self.with_parent(to, |to_dir, to_name| {
                    let mode = if *replace { RenameMode::Replace } else { RenameMode::NoReplace };
                    let (from, to) = ((from_dir, from_name), (to_dir, to_name));
                    fs.rename(&CALLER, from, to, mode).map(|()| Answer::Done)
                })
            }),
            _ => self.run_on_inode(op),
        }
    }

    fn run_on_inode(&mut self, op: &Op) -> Result<Answer> {
        let fs = &self.fs;
        match op {
            Op::Write(target, offset, len, byte) => self.with_target(target, |ino| {
                let data: Vec<u8> = (0..*len).map(|i| byte.wrapping_add((i % 251) as u8)).collect();
                let uid = u32::from(byte % 2);
                fs.write(&Caller { uid, ..CALLER }, ino, *offset, &data).map(Answer::Count)
            }),
            Op::WriteBack(target, offset, len, byte) => self.with_target(target, |ino| {
                // As from a cache: bytes that are there come again, others follow.
                let mut data = vec![*byte; *len];
                let _ = fs.read(ino, *offset, &mut data[..len.div_ceil(2)]);
                fs.write_back(ino, *offset, &data, byte % 2 == 0).map(Answer::Count)
            }),
            Op::Flags(target, which) => self.with_target(target, |ino| set_flags(&**fs, ino, *which)),
            Op::Read(target, offset, len) => self.with_target(target, |ino| {
                let mut buf = vec![0; *len];
                let n = fs.read(ino, *offset, &mut buf)?;
                buf.truncate(n);
                Ok(Answer::Bytes(buf))
            }),
            Op::Fallocate(target, offset, len, mode) => self.with_target(target, |ino| {
                let modes = [
                    FallocateMode::Allocate,
                    FallocateMode::AllocateKeepSize,
                    FallocateMode::PunchHole,
                    FallocateMode::ZeroRange,
                    FallocateMode::ZeroRangeKeepSize,
                    FallocateMode::CollapseRange,
                    FallocateMode::InsertRange,
                ];
                let mode = modes[usize::from(*mode) % modes.len()];
                fs.fallocate(&CALLER, ino, *offset, *len, mode).map(|()| Answer::Done)
            }),
            Op::Seek(target, offset, data) => self.with_target(target, |ino| {
                let whence = if *data { SeekFrom::Data } else { SeekFrom::Hole };
                fs.seek(ino, *offset, whence).map(Answer::Offset)
            }),
            Op::Truncate(target, size) => {
                self.set(target, SetAttr { size: Some(*size), ..SetAttr::default() })
            }
            Op::Chmod(target, perm) => self.set(target, SetAttr { perm: Some(*perm), ..SetAttr::default() }),
            Op::Chown(target, uid, gid) => {
                let (uid, gid) = (Some(*uid), Some(*gid));
                self.set(target, SetAttr { uid, gid, ..SetAttr::default() })
            }
            Op::Utimes(target, secs) => {
                let at = SetTime::At(Timestamp { secs: *secs, nanos: 0 });
                let (atime, mtime) = (Some(at), Some(SetTime::Now));
                self.set(target, SetAttr { atime, mtime, ..SetAttr::default() })
            }
            Op::SetXattr(target, name, len, mode) => self.with_target(target, |ino| {
                let modes = [XattrSetMode::Set, XattrSetMode::Create, XattrSetMode::Replace];
                let value = vec![*name; *len];
                let mode = modes[usize::from(*mode) % modes.len()];
                fs.setxattr(&CALLER, ino, &xattr_name(*name), &value, mode).map(|()| Answer::Done)
            }),
            Op::RemoveXattr(target, name) => self.with_target(target, |ino| {
                fs.removexattr(&CALLER, ino, &xattr_name(*name)).map(|()| Answer::Done)
            }),
            Op::Fsync(target, data_only) => {
                self.with_target(target, |ino| fs.fsync(ino, *data_only).map(|()| Answer::Done))
            }
            Op::Sync => fs.sync().map(|()| Answer::Done),
            _ => self.run_on_held(op),
        }
    }

    fn run_on_held(&mut self, op: &Op) -> Result<Answer> {
        match op {
            Op::Tmpfile(dir) => {
                let dir = self.fs.walk(dir)?.attr.ino;
                let made = self.fs.tmpfile(&CALLER, dir, 0o600);
                self.fs.forget(dir, 1);
                self.held.push(made?.attr.ino);
            }
            Op::Hold(path) => {
                let ino = self.fs.walk(path)?.attr.ino;
                self.held.push(ino);
            }
            Op::Release(index) if !self.held.is_empty() => {
                let ino = self.held.remove(index % self.held.len());
                self.fs.forget(ino, 1);
            }
            _ => {}
        }
        Ok(Answer::Done)
    }

    /// Everything that can be seen from the root.
    pub fn tree(&self) -> BTreeMap<Path, Leaf> {
        let mut tree = BTreeMap::new();
        self.visit(self.fs.root(), Vec::new(), &mut tree);
        tree
    }

    /// What can be seen of one path that is no directory.
    pub fn leaf(&self, path: &[u8]) -> Result<Leaf> {
        let ino = self.fs.walk(path)?.attr.ino;
        let mut tree = BTreeMap::new();
        self.visit(ino, Vec::new(), &mut tree);
        self.fs.forget(ino, 1);
        Ok(tree.remove(&b""[..]).unwrap())
    }

    fn visit(&self, ino: InodeNo, path: Path, tree: &mut BTreeMap<Path, Leaf>) {
        let attr = self.fs.getattr(ino).unwrap();
        let contents = match attr.kind {
            FileKind::Regular if self.is_brief => self.brief_contents(ino),
            FileKind::Regular => {
                let mut buf = vec![0xff; usize::try_from(attr.size).unwrap() + 1];
                let n = self.fs.read(ino, 0, &mut buf).unwrap();
                buf.truncate(n);
                buf
            }
            FileKind::Symlink => self.fs.readlink(ino).unwrap(),
            _ => Vec::new(),
        };
        let xattrs = self.fs.listxattr(ino).unwrap().into_iter();
        let xattrs = xattrs.map(|name| (name.clone(), self.fs.getxattr(ino, &name).unwrap())).collect();
        if attr.kind == FileKind::Directory {
            for name in self.names(ino) {
                let entry = self.fs.lookup(ino, &name).unwrap();
                self.visit(entry.attr.ino, [path.clone(), name].join(&b'/'), tree);
                self.fs.forget(entry.attr.ino, 1);
            }
        }
        tree.insert(path, Leaf { seen: attr.into(), contents, xattrs });
    }

    /// Names but `.` and `..`, read in small portions, as the kernel does.
    fn names(&self, dir: InodeNo) -> Vec<Path> {
        let mut names = Vec::new();
        let mut cookie = 0;
        loop {
            let (before, start) = (names.len(), cookie);
            let mut room = 3;
            let mut sink = |entry: fstitch_core::DirEntry<'_>| {
                if room == 0 {
                    return false;
                }
                room -= 1;
                cookie = entry.next;
                names.push(entry.name.to_vec());
                true
            };
            self.fs.readdir(dir, start, &mut sink).unwrap();
            if names.len() == before {
                names.retain(|name| name != b"." && name != b"..");
                return names;
            }
        }
    }
}

fn xattr_name(name: u8) -> Vec<u8> {
    let namespace = ["user", "trusted", "security"][usize::from(name) % 3];
    format!("{namespace}.attr{}", name / 3).into_bytes()
}
