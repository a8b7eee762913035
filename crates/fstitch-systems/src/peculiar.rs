//! Volumes that no workload makes: without a feature that the first use must announce, with an index over a directory,
//! with attributes that two inodes share. Other implementations leave such volumes behind.

use fstitch_core::num::to_usize;
use fstitch_core::{Caller, FileSystem, InodeNo, Le, Result, XattrSetMode};

/// Without the feature of extended attributes.
pub const NO_ATTRIBUTES: u32 = 1;
/// Without the feature of files of 2 GiB and more.
pub const NO_LARGE_FILES: u32 = 2;
/// `/d` has an index over its second and third block; the four names `/d/LONG4` to `/d/LONG7` are in the second.
pub const INDEX: u32 = 4;
/// `/f` and `/g` share a block of attributes.
pub const SHARED_ATTRIBUTES: u32 = 8;
/// All of them.
pub const ALL: u32 = 15;

/// The flag of an indexed directory, and where it and the pointers lie in an inode.
const INDEX_FLAG: u32 = 0x1000;
const I_FLAGS: usize = 32;
const I_BLOCK: usize = 40;
const I_FILE_ACL: usize = 104;

/// What was made and is to be edited.
#[derive(Default)]
pub struct Made {
    indexed: Option<InodeNo>,
    sharing: Option<(InodeNo, InodeNo)>,
}

/// Makes what is edited later.
///
/// # Errors
/// Those of the file system.
pub fn populate(fs: &dyn FileSystem, peculiar: u32) -> Result<Made> {
    let mut made = Made::default();
    if peculiar & INDEX != 0 {
        made.indexed = Some(populate_index(fs)?);
    }
    if peculiar & SHARED_ATTRIBUTES != 0 {
        let first = shared_file(fs, b"f")?;
        // The other inode lies in a block of its own.
        (0..8).try_for_each(|n| file(fs, fs.root(), format!("between-{n}").as_bytes()).map(drop))?;
        made.sharing = Some((first, shared_file(fs, b"g")?));
    }
    Ok(made)
}

fn file(fs: &dyn FileSystem, dir: InodeNo, name: &[u8]) -> Result<InodeNo> {
    let ino = fs.mknod(&Caller::default(), dir, name, 0o100_644, 0)?.attr.ino;
    fs.forget(ino, 1);
    Ok(ino)
}

fn shared_file(fs: &dyn FileSystem, name: &[u8]) -> Result<InodeNo> {
    let ino = file(fs, fs.root(), name)?;
    fs.setxattr(&Caller::default(), ino, b"user.a", &[1; 300], XattrSetMode::Set)?;
    Ok(ino)
}

/// A directory of three blocks, of which only the second has names.
fn populate_index(fs: &dyn FileSystem) -> Result<InodeNo> {
    let caller = Caller::default();
    let dir = fs.mkdir(&caller, fs.root(), b"d", 0o755)?.attr.ino;
    let name = |n: usize| format!("{}{n:x}", "n".repeat(200)).into_bytes();
    (0..12).try_for_each(|n| file(fs, dir, &name(n)).map(drop))?;
    for n in (0..12).filter(|n| !(4..8).contains(n)) {
        fs.unlink(&caller, dir, &name(n))?;
    }
    fs.forget(dir, 1);
    Ok(dir)
}

/// Edits what was made, in the bytes of the unmounted volume of one group.
pub fn edit(bytes: &mut [u8], made: &Made) {
    let volume = Raw::new(bytes);
    if let Some(dir) = made.indexed {
        make_index(bytes, &volume, dir);
    }
    if let Some((first, second)) = made.sharing {
        let shared = Le::u32(bytes, volume.inode(first) + I_FILE_ACL);
        let unused = Le::u32(bytes, volume.inode(second) + I_FILE_ACL);
        Le::put_u32(bytes, volume.inode(second) + I_FILE_ACL, shared);
        let count = volume.block(shared) + 4;
        Le::put_u32(bytes, count, 2);
        volume.free_block(bytes, unused);
    }
}

/// Makes the first block the root of an index over the two others, of which the first holds all names but those with the
/// very highest hash.
fn make_index(bytes: &mut [u8], volume: &Raw, dir: InodeNo) {
    let inode = volume.inode(dir);
    let flags = Le::u32(bytes, inode + I_FLAGS);
    Le::put_u32(bytes, inode + I_FLAGS, flags | INDEX_FLAG);
    let root = volume.block(Le::u32(bytes, inode + I_BLOCK));
    let size = volume.block_size;
    let block = &mut bytes[root..root + size];
    let small = |n: usize| u16::try_from(n).expect("blocks have at most 4 KiB");
    // `..` reaches to the end of the block; behind it the header: hash version, its own length, no inner levels.
    Le::put_u16(block, 16, small(size - 12));
    block[24..].fill(0);
    (block[28], block[29]) = (1, 8);
    Le::put_u16(block, 32, small((size - 32) / 8));
    Le::put_u16(block, 34, 2);
    Le::put_u32(block, 36, 1);
    Le::put_u32(block, 40, 0xffff_fff0);
    Le::put_u32(block, 44, 2);
}

/// Where things lie in a volume of one group.
struct Raw {
    block_size: usize,
    inode_size: usize,
    descriptor: usize,
    inode_table: usize,
    bitmap: usize,
    first_block: usize,
}

fn wide(n: u32) -> usize {
    to_usize(n)
}

impl Raw {
    fn new(bytes: &[u8]) -> Self {
        const SUPERBLOCK: usize = 1024;
        let block_size = 1024_usize << Le::u32(bytes, SUPERBLOCK + 24);
        let first_block = wide(Le::u32(bytes, SUPERBLOCK + 20));
        let descriptor = (first_block + 1) * block_size;
        Self {
            block_size,
            inode_size: usize::from(Le::u16(bytes, SUPERBLOCK + 88)),
            descriptor,
            inode_table: wide(Le::u32(bytes, descriptor + 8)) * block_size,
            bitmap: wide(Le::u32(bytes, descriptor)) * block_size,
            first_block,
        }
    }

    fn block(&self, no: u32) -> usize {
        wide(no) * self.block_size
    }

    fn inode(&self, ino: InodeNo) -> usize {
        let at = to_usize(ino.get() - 1);
        self.inode_table + at * self.inode_size
    }

    /// Marks a block as free and counts it.
    fn free_block(&self, bytes: &mut [u8], no: u32) {
        const FREE_BLOCKS: usize = 1024 + 12;
        let bit = wide(no) - self.first_block;
        bytes[self.bitmap + bit / 8] &= !(1 << (bit % 8));
        let free = Le::u32(bytes, FREE_BLOCKS);
        Le::put_u32(bytes, FREE_BLOCKS, free + 1);
        let free = Le::u16(bytes, self.descriptor + 12);
        Le::put_u16(bytes, self.descriptor + 12, free + 1);
    }
}
