//! A volume for scripts, by paths, and its raw bytes.

use std::sync::Arc;

use fstitch_core::{
    BlockDevice, BlockKind, BlockNo, BlockRead, BlockWrite, Caller, Errno, FallocateMode, FileSystem,
    InodeNo, RenameMode, SetAttr, XattrSetMode,
};
use fstitch_fs::ext2::Ext2;
use fstitch_fs::uhfs::{Uhfs, UhfsOptions};
use fstitch_patch::Cache;

use crate::recorder::Image;
use crate::workload::read_all;
use crate::{mount, mount_with};

/// A mounted volume.
pub struct Rig {
    pub fs: Uhfs<Ext2>,
    pub cache: Arc<Cache>,
    caller: Caller,
}

impl Rig {
    pub fn new(image: &Image, combination: u8, step_bytes: usize) -> Self {
        let device = Arc::new(image.clone());
        let (cache, fs) =
            mount_with(device, combination, 16 << 20, UhfsOptions { step_bytes, ..UhfsOptions::default() });
        Self { fs, cache, caller: Caller::default() }
    }

    /// Runs `work` on the directory of `path` and the name in it.
    fn parent<T>(&self, path: &str, work: impl FnOnce(InodeNo, &[u8]) -> T) -> T {
        let (dir, name) = path.rsplit_once('/').unwrap();
        self.at(dir, |dir| work(dir, name.as_bytes()))
    }

    fn at<T>(&self, path: &str, work: impl FnOnce(InodeNo) -> T) -> T {
        let ino = self.fs.walk(path.as_bytes()).unwrap().attr.ino;
        let result = work(ino);
        self.fs.forget(ino, 1);
        result
    }

    /// A new file that holds `len` times `tag`.
    pub fn create(&self, path: &str, tag: u8, len: usize) {
        let ino = self
            .parent(path, |dir, name| self.fs.mknod(&self.caller, dir, name, 0o100_644, 0).unwrap().attr.ino);
        self.fs.forget(ino, 1);
        if len > 0 {
            self.write(path, 0, tag, len);
        }
    }

    pub fn write(&self, path: &str, offset: u64, tag: u8, len: usize) {
        assert_eq!(self.try_write(path, offset, tag, len), Ok(len));
    }

    fn try_write(&self, path: &str, offset: u64, tag: u8, len: usize) -> Result<usize, Errno> {
        let data = vec![tag; len];
        self.at(path, |ino| self.fs.write(&self.caller, ino, offset, &data).map_err(|error| error.errno()))
    }

    /// Writes a new file until the volume is full.
    pub fn fill_up(&self, path: &str) {
        self.create(path, 99, 0);
        let mut end = 0;
        while let Ok(len) = self.try_write(path, end, 99, 64 << 10) {
            end += u64::try_from(len).unwrap();
        }
        while let Ok(len) = self.try_write(path, end, 99, 100) {
            end += u64::try_from(len).unwrap();
        }
    }

    /// Fills the block of inodes in use, so that the next inode lies in another one.
    pub fn spacer(&self, name: &str) {
        for n in 0..8 {
            self.create(&format!("/{name}{n}"), 1, 0);
        }
    }

    pub fn truncate(&self, path: &str, size: u64) {
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        self.at(path, |ino| self.fs.setattr(&self.caller, ino, &set)).unwrap();
    }

    pub fn punch(&self, path: &str, offset: u64, len: u64) {
        let mode = FallocateMode::PunchHole;
        self.at(path, |ino| self.fs.fallocate(&self.caller, ino, offset, len, mode)).unwrap();
    }

    pub fn mkdir(&self, path: &str) {
        let ino = self.parent(path, |dir, name| self.fs.mkdir(&self.caller, dir, name, 0o755));
        self.fs.forget(ino.unwrap().attr.ino, 1);
    }

    pub fn mkfifo(&self, path: &str) {
        let ino = self.parent(path, |dir, name| self.fs.mknod(&self.caller, dir, name, 0o010_644, 0));
        self.fs.forget(ino.unwrap().attr.ino, 1);
    }

    pub fn symlink(&self, path: &str, len: usize) {
        let target = vec![b't'; len];
        let ino = self.parent(path, |dir, name| self.fs.symlink(&self.caller, dir, name, &target));
        self.fs.forget(ino.unwrap().attr.ino, 1);
    }

    pub fn link(&self, from: &str, to: &str) {
        let entry = self
            .at(from, |ino| self.parent(to, |dir, name| self.fs.link(&self.caller, ino, dir, name)))
            .unwrap();
        self.fs.forget(entry.attr.ino, 1);
    }

    pub fn unlink(&self, path: &str) {
        self.parent(path, |dir, name| self.fs.unlink(&self.caller, dir, name)).unwrap();
    }

    pub fn rmdir(&self, path: &str) {
        self.parent(path, |dir, name| self.fs.rmdir(&self.caller, dir, name)).unwrap();
    }

    pub fn rename(&self, from: &str, to: &str) {
        self.rename_as(from, to, RenameMode::Replace);
    }

    pub fn exchange(&self, from: &str, to: &str) {
        self.rename_as(from, to, RenameMode::Exchange);
    }

    fn rename_as(&self, from: &str, to: &str, mode: RenameMode) {
        let renamed = self.parent(from, |dir, name| {
            self.parent(to, |new_dir, new| self.fs.rename(&self.caller, (dir, name), (new_dir, new), mode))
        });
        renamed.unwrap();
    }

    pub fn set_xattr(&self, path: &str, name: &str, value: &[u8]) {
        let mode = XattrSetMode::Set;
        self.at(path, |ino| self.fs.setxattr(&self.caller, ino, name.as_bytes(), value, mode)).unwrap();
    }

    pub fn remove_xattr(&self, path: &str, name: &str) {
        self.at(path, |ino| self.fs.removexattr(&self.caller, ino, name.as_bytes())).unwrap();
    }

    pub fn fsync(&self, path: &str) {
        self.at(path, |ino| self.fs.fsync(ino, false)).unwrap();
    }

    pub fn sync(&self) {
        self.fs.sync().unwrap();
    }
}

/// A file's contents; `None` if there is no such name.
pub fn contents(fs: &dyn FileSystem, path: &str) -> Option<Vec<u8>> {
    let ino = fs.walk(path.as_bytes()).ok()?.attr.ino;
    let contents = read_all(fs, ino).unwrap();
    fs.forget(ino, 1);
    Some(contents)
}

/// At least one of the paths names a file that holds `len` times `tag`.
pub fn kept(fs: &dyn FileSystem, paths: &[&str], tag: u8, len: usize) -> Result<(), String> {
    let expected = vec![tag; len];
    if paths.iter().any(|path| contents(fs, path).as_ref() == Some(&expected)) {
        return Ok(());
    }
    Err(format!("none of {paths:?} holds what it held"))
}

/// An unmounted volume's bytes.
pub struct Raw<'a>(pub &'a Image);

/// The superblock's fields that scripts look at: place and bit.
pub const EXT_ATTR: (usize, u8) = (92, 0x08);
pub const LARGE_FILE: (usize, u8) = (100, 0x02);
/// `i_flags` and `i_file_acl` in an inode.
pub const I_FLAGS: usize = 32;
pub const I_FILE_ACL: usize = 104;

const SUPERBLOCK: usize = 1024;
const S_INODES_PER_GROUP: usize = 40;
const S_STATE: usize = 58;
const S_INODE_SIZE: usize = 88;

impl Raw<'_> {
    fn block_size(&self) -> usize {
        usize::try_from(self.0.geometry().block_size).unwrap()
    }

    pub fn block(&self, no: u32) -> Vec<u8> {
        let mut data = vec![0; self.block_size()];
        let block = BlockNo(u64::from(no));
        self.0.read(&mut [BlockRead { block, kind: BlockKind::Data, data: &mut data }]).unwrap();
        data
    }

    pub fn put_block(&self, no: u32, data: &[u8]) {
        let block = BlockNo(u64::from(no));
        self.0.write(&[BlockWrite { block, kind: BlockKind::Data, data }]).unwrap();
    }

    fn place(&self, at: usize) -> (u32, usize) {
        (u32::try_from(at / self.block_size()).unwrap(), at % self.block_size())
    }

    pub fn u32(&self, at: usize) -> u32 {
        let (no, at) = self.place(at);
        u32::from_le_bytes(self.block(no)[at..at + 4].try_into().unwrap())
    }

    pub fn put(&self, at: usize, bytes: &[u8]) {
        let (no, at) = self.place(at);
        let mut block = self.block(no);
        block[at..at + bytes.len()].copy_from_slice(bytes);
        self.put_block(no, &block);
    }

    fn byte(&self, at: usize) -> u8 {
        let (no, at) = self.place(at);
        self.block(no)[at]
    }

    pub fn is_clean(&self) -> bool {
        self.byte(SUPERBLOCK + S_STATE) & 1 != 0
    }

    pub fn has(&self, (at, bit): (usize, u8)) -> bool {
        self.byte(SUPERBLOCK + at) & bit != 0
    }

    pub fn clear_feature(&self, (at, bit): (usize, u8)) {
        self.put(SUPERBLOCK + at, &[self.byte(SUPERBLOCK + at) & !bit]);
    }

    /// Where the descriptor of a group starts.
    fn descriptor(&self, group: usize) -> usize {
        let table = if self.block_size() == 1024 { 2 } else { 1 };
        table * self.block_size() + group * 32
    }

    pub fn block_bitmap(&self, group: usize) -> u32 {
        self.u32(self.descriptor(group))
    }

    /// Where an inode starts.
    pub fn inode(&self, ino: InodeNo) -> usize {
        let per_group = u64::from(self.u32(SUPERBLOCK + S_INODES_PER_GROUP));
        let size = usize::from(self.byte(SUPERBLOCK + S_INODE_SIZE))
            + 256 * usize::from(self.byte(SUPERBLOCK + S_INODE_SIZE + 1));
        let group = usize::try_from((ino.get() - 1) / per_group).unwrap();
        let table = usize::try_from(self.u32(self.descriptor(group) + 8)).unwrap();
        table * self.block_size() + usize::try_from((ino.get() - 1) % per_group).unwrap() * size
    }

    /// The inode at `path`.
    pub fn find(&self, path: &str) -> InodeNo {
        let (_cache, fs) = mount(Arc::new(self.0.fork()), 15, 1 << 20);
        fs.walk(path.as_bytes()).unwrap().attr.ino
    }

    /// The number of a direct block of the inode at `path`.
    pub fn direct(&self, path: &str, at: usize) -> u32 {
        self.u32(self.inode(self.find(path)) + 40 + 4 * at)
    }
}
