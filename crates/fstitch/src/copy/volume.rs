//! An image as one side of a copy.

use anyhow::{Result, ensure};
use fstitch_core::{
    Attr, Caller, Errno, FileKind, FileSystem, InodeNo, SeekFrom, SetAttr, SetTime, Timestamp, XattrSetMode,
};

use crate::paths::{self, Held, Last};

use super::tree::{Meta, Reader, Source, Space, Target, Writer, Xattr, Xattrs};

/// The superuser, with a umask that changes nothing: modes come from the source.
const CALLER: Caller = Caller { uid: 0, gid: 0, tid: 0, umask: 0 };

/// A mounted volume.
pub struct VolumeTree<'a> {
    fs: &'a dyn FileSystem,
    /// The image, for messages.
    name: String,
}

impl<'a> VolumeTree<'a> {
    /// The tree of `fs`, which is in `image`.
    pub fn new(fs: &'a dyn FileSystem, image: &std::path::Path) -> Self {
        Self { fs, name: image.display().to_string() }
    }

    /// The node at a path. A symbolic link at its end is taken itself, or followed if it is to receive files.
    pub fn resolve(&self, path: &[u8], last: Last) -> Result<Held<'a>> {
        paths::resolve(self.fs, path, last)
    }

    fn hold(&self, ino: InodeNo) -> Held<'a> {
        Held::new(self.fs, ino)
    }
}

struct Content<'a> {
    fs: &'a dyn FileSystem,
    ino: InodeNo,
    size: u64,
}

impl Reader for Content<'_> {
    fn size(&self) -> u64 {
        self.size
    }

    fn read_at(&mut self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        Ok(self.fs.read(self.ino, offset, buf)?)
    }

    fn next_data(&mut self, offset: u64) -> Result<Option<(u64, u64)>> {
        let start = match self.fs.seek(self.ino, offset, SeekFrom::Data) {
            Ok(start) => start,
            Err(error) if error.errno() == Errno::NXIO => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        Ok(Some((start, self.fs.seek(self.ino, start, SeekFrom::Hole)?)))
    }
}

impl Writer for Content<'_> {
    fn expect(&mut self, size: u64) -> Result<()> {
        Ok(self.fs.expect(self.ino, size)?)
    }

    fn write_at(&mut self, mut offset: u64, mut data: &[u8]) -> Result<()> {
        while !data.is_empty() {
            let written = self.fs.write(&CALLER, self.ino, offset, data)?;
            ensure!(written > 0, "nothing was written");
            data = &data[written..];
            offset += u64::try_from(written)?;
        }
        Ok(())
    }

    fn set_len(&mut self, size: u64) -> Result<()> {
        if self.fs.getattr(self.ino)?.size != size {
            self.fs.setattr(&CALLER, self.ino, &SetAttr { size: Some(size), ..SetAttr::default() })?;
        }
        Ok(())
    }
}

impl<'a> Source for VolumeTree<'a> {
    type Node = Held<'a>;

    fn show(&self, path: &[u8]) -> String {
        let slash = if path.starts_with(b"/") { "" } else { "/" };
        format!("{}:{slash}{}", self.name, crate::location::show(path))
    }

    fn meta(&self, node: &Held<'a>) -> Result<Meta> {
        let attr = self.fs.getattr(node.ino())?;
        Ok(Meta {
            kind: attr.kind,
            perm: attr.perm,
            uid: attr.uid,
            gid: attr.gid,
            rdev: attr.rdev,
            size: attr.size,
            nlink: u64::from(attr.nlink),
            id: (0, attr.ino.get()),
            atime: attr.atime,
            mtime: attr.mtime,
        })
    }

    fn follow(&self, _node: &Held<'a>, path: &[u8]) -> Result<Held<'a>> {
        self.resolve(path, Last::Follow)
    }

    fn names(&self, dir: &Held<'a>) -> Result<Vec<Vec<u8>>> {
        let mut names = Vec::new();
        self.fs.readdir(dir.ino(), 0, &mut |entry| {
            if entry.name != b"." && entry.name != b".." {
                names.push(entry.name.to_vec());
            }
            true
        })?;
        Ok(names)
    }

    fn child(&self, dir: &Held<'a>, name: &[u8]) -> Result<Option<Held<'a>>> {
        match self.fs.lookup(dir.ino(), name) {
            Ok(entry) => Ok(Some(self.hold(entry.attr.ino))),
            Err(error) if error.errno() == Errno::NOENT => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn read_link(&self, node: &Held<'a>) -> Result<Vec<u8>> {
        Ok(self.fs.readlink(node.ino())?)
    }

    fn xattrs(&self, node: &Held<'a>) -> Result<Xattrs> {
        let mut xattrs = Xattrs::default();
        for name in self.fs.listxattr(node.ino())? {
            let value = self.fs.getxattr(node.ino(), &name)?;
            xattrs.found.push((name, value));
        }
        Ok(xattrs)
    }

    fn reader(&self, node: &Held<'a>) -> Result<Box<dyn Reader + '_>> {
        let size = self.fs.getattr(node.ino())?.size;
        Ok(Box::new(Content { fs: self.fs, ino: node.ino(), size }))
    }

    fn stream(&self, _node: &Held<'a>) -> Result<Option<Box<dyn std::io::Read>>> {
        // What is behind a pipe or a device of an image is not there.
        Ok(None)
    }
}

impl<'a> Target for VolumeTree<'a> {
    type Node = Held<'a>;

    fn existing(&self, dir: &Held<'a>, name: &[u8]) -> Result<Option<(Held<'a>, FileKind)>> {
        match self.fs.lookup(dir.ino(), name) {
            Ok(entry) => Ok(Some((self.hold(entry.attr.ino), entry.attr.kind))),
            Err(error) if error.errno() == Errno::NOENT => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn create(&self, parent: &Held<'a>, name: &[u8], meta: &Meta, target: &[u8]) -> Result<Held<'a>> {
        // Nobody else may read it before it has its owner.
        let entry = match meta.kind {
            FileKind::Directory => self.fs.mkdir(&CALLER, parent.ino(), name, 0o700)?,
            FileKind::Symlink => self.fs.symlink(&CALLER, parent.ino(), name, target)?,
            kind => self.fs.mknod(&CALLER, parent.ino(), name, kind.mode_bits() | 0o600, meta.rdev)?,
        };
        Ok(self.hold(entry.attr.ino))
    }

    fn link(&self, node: &Held<'a>, parent: &Held<'a>, name: &[u8]) -> Result<()> {
        let entry = self.fs.link(&CALLER, node.ino(), parent.ino(), name)?;
        drop(self.hold(entry.attr.ino));
        Ok(())
    }

    fn remove(&self, parent: &Held<'a>, name: &[u8]) -> Result<()> {
        Ok(self.fs.unlink(&CALLER, parent.ino(), name)?)
    }

    fn writer(&self, node: &Held<'a>) -> Result<Box<dyn Writer + '_>> {
        Ok(Box::new(Content { fs: self.fs, ino: node.ino(), size: 0 }))
    }

    fn finish(&self, node: &Held<'a>, meta: &Meta, xattrs: &[Xattr]) -> Result<Vec<String>> {
        let mut lost = Vec::new();
        let owner = SetAttr { uid: Some(meta.uid), gid: Some(meta.gid), ..SetAttr::default() };
        self.fs.setattr(&CALLER, node.ino(), &owner)?;
        for (name, value) in xattrs {
            if let Err(error) = self.fs.setxattr(&CALLER, node.ino(), name, value, XattrSetMode::Set) {
                lost.push(lost_xattr(name, value, &error));
            }
        }
        let perm = (meta.kind != FileKind::Symlink).then_some(meta.perm);
        let rest = SetAttr {
            perm,
            atime: Some(SetTime::At(meta.atime)),
            mtime: Some(SetTime::At(meta.mtime)),
            ..SetAttr::default()
        };
        let kept = self.fs.setattr(&CALLER, node.ino(), &rest)?;
        lost.extend(lost_fields(meta, &kept));
        Ok(lost)
    }

    fn space(&self) -> Result<Space> {
        let found = self.fs.statfs()?;
        Ok(Space {
            block_size: u64::from(found.block_size),
            blocks: found.blocks,
            inodes: found.inodes,
            inodes_free: found.inodes_free,
        })
    }
}

/// Why an extended attribute is not there.
fn lost_xattr(name: &[u8], value: &[u8], error: &fstitch_core::Error) -> String {
    let (shown, len) = (String::from_utf8_lossy(name), value.len());
    match error.errno() {
        Errno::NOSPC => format!(
            "attribute {shown} of {len} bytes is lost: the inode and one block must hold all that a file has"
        ),
        _ => format!("attribute {shown} is lost: {error}"),
    }
}

/// What the format could not keep of the attributes that were set.
fn lost_fields(meta: &Meta, kept: &Attr) -> Vec<String> {
    let mut lost = Vec::new();
    let owners = (meta.uid, meta.gid);
    if owners != (kept.uid, kept.gid) {
        lost.push(format!("its owner {}:{} is lost: it is {}:{}", owners.0, owners.1, kept.uid, kept.gid));
    }
    if meta.kind != FileKind::Symlink && meta.perm != kept.perm {
        lost.push(format!("its mode {:04o} is lost: it is {:04o}", meta.perm, kept.perm));
    }
    let show = |time: Timestamp| fstitch_formats::show::time(time);
    for (what, asked, got) in
        [("last change", meta.mtime, kept.mtime), ("last access", meta.atime, kept.atime)]
    {
        if asked.secs != got.secs {
            let (asked, got) = (show(asked), show(got));
            lost.push(format!(
                "the time of its {what}, {asked}, is lost: inodes of this volume's size keep {got}"
            ));
        }
    }
    lost
}
