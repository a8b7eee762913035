//! Volumes that no workload makes: without a feature that the first use must announce, with an index over a directory,
//! with attributes that two inodes share. Other implementations leave such volumes behind. And volumes that a workload would need long to make:
//! nearly full, with files of many owners.

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
/// What is in `/i` lies in its inodes: files of 30, 50, 100 and 100 bytes, directories with names and without.
pub const INSIDE: u32 = 16;
/// Blocks are taken in clusters of four.
pub const CLUSTERS: u32 = 32;
/// A few blocks and inodes are free ([`crate::crowded`]).
pub const CROWDED: u32 = 64;
/// Usage is counted, of users, groups and projects ([`crate::owners`]).
pub const QUOTAS: u32 = 128;
/// All of them.
pub const ALL: u32 = 255;
/// Those whose volumes are edited by hand.
pub const EDITED: u32 = INDEX | SHARED_ATTRIBUTES | INSIDE;
/// Those of which something is made before any workload.
pub const MADE: u32 = EDITED | CROWDED | QUOTAS;

/// The flag of an indexed directory, and where it and the pointers lie in an inode.
const INDEX_FLAG: u32 = 0x1000;
const I_FLAGS: usize = 32;
const I_BLOCK: usize = 40;
const I_FILE_ACL: usize = 104;
/// What else an inode has that holds its contents: flags, length, storage, the length of its fixed fields.
const INSIDE_FLAG: u32 = 0x1000_0000;
const I_SIZE: usize = 4;
const I_BLOCKS: usize = 28;
const I_EXTRA_ISIZE: usize = 128;
/// Bytes in the place of the map.
const MAP: usize = 60;

/// What was made and is to be edited.
#[derive(Default)]
pub struct Made {
    indexed: Option<InodeNo>,
    sharing: Option<(InodeNo, InodeNo)>,
    /// Inodes, and what comes to lie in them.
    inside: Vec<(InodeNo, Vec<u8>)>,
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
    if peculiar & INSIDE != 0 {
        made.inside = populate_inside(fs)?;
    }
    if peculiar & QUOTAS != 0 {
        crate::owners::populate(fs)?;
    }
    if peculiar & CROWDED != 0 {
        // Nothing has room behind this.
        crate::crowded::populate(fs, peculiar & CLUSTERS != 0)?;
    }
    Ok(made)
}

/// Files and directories for inodes: `/i/f30`, `/i/f50`, `/i/f100`, `/i/g100`, `/i/few` with three names, `/i/more` with seven, of which one is
/// a directory's, `/i/none`.
fn populate_inside(fs: &dyn FileSystem) -> Result<Vec<(InodeNo, Vec<u8>)>> {
    let caller = Caller::default();
    let mut inside = Vec::new();
    let top = directory(fs, fs.root(), b"i")?;
    for (name, len) in [("f30", 30), ("f50", 50), ("f100", 100), ("g100", 100)] {
        let ino = file(fs, top, name.as_bytes())?;
        let bytes: Vec<u8> = (1..=len).collect();
        fs.write(&caller, ino, 0, &bytes)?;
        inside.push((ino, bytes));
        // A block of inodes of which most have wrong sums would be taken for something else.
        (0..2).try_for_each(|n| file(fs, fs.root(), format!("beside-{name}-{n}").as_bytes()).map(drop))?;
    }
    let parent = |ino: InodeNo| u32::try_from(ino.get()).expect("a small volume").to_le_bytes().to_vec();
    for (dir, count) in [("none", 0), ("few", 3), ("more", 6)] {
        let ino = directory(fs, top, dir.as_bytes())?;
        let mut contents = parent(top);
        let mut names = Vec::new();
        for at in 0..count {
            let name = [b'a' + at];
            names.push((file(fs, ino, &name)?, name, 1));
        }
        if dir == "more" {
            let sub = directory(fs, ino, b"z")?;
            inside.push((sub, [parent(ino), free(MAP - 4)].concat()));
            names.push((sub, *b"z", 2));
        }
        // Four entries where the map is, and room behind the last of them; the rest in the attribute.
        for part in names.chunks(4) {
            let start = contents.len();
            part.iter().for_each(|(ino, name, kind)| contents.extend(entry(*ino, 12, name[0], *kind)));
            let len = if start < MAP { MAP - start } else { part.len() * 12 };
            let used = contents.len() - start;
            let last = contents.len() - 12;
            contents[last + 4..last + 6]
                .copy_from_slice(&u16::try_from(len - used + 12).expect("small").to_le_bytes());
            contents.resize(start + len, 0);
        }
        if names.is_empty() {
            contents.extend(free(MAP - 4));
        }
        inside.push((ino, contents));
    }
    Ok(inside)
}

fn entry(ino: InodeNo, len: u16, name: u8, kind: u8) -> Vec<u8> {
    let mut bytes = u32::try_from(ino.get()).expect("a small volume").to_le_bytes().to_vec();
    bytes.extend(len.to_le_bytes());
    bytes.extend([1, kind, name, 0, 0, 0]);
    bytes
}

/// Free space of a directory.
fn free(len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    bytes[4..6].copy_from_slice(&u16::try_from(len).expect("small").to_le_bytes());
    bytes
}

fn directory(fs: &dyn FileSystem, dir: InodeNo, name: &[u8]) -> Result<InodeNo> {
    let ino = fs.mkdir(&Caller::default(), dir, name, 0o755)?.attr.ino;
    fs.forget(ino, 1);
    Ok(ino)
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
    for (ino, contents) in &made.inside {
        put_inside(bytes, &volume, (*ino, contents));
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

/// Puts an inode's contents into it. Its block, and its sum, are left to who mends the volume.
fn put_inside(bytes: &mut [u8], volume: &Raw, (ino, contents): (InodeNo, &[u8])) {
    let inode = volume.inode(ino);
    let raw = &mut bytes[inode..inode + volume.inode_size];
    Le::put_u32(raw, I_FLAGS, INSIDE_FLAG);
    Le::put_u32(raw, I_SIZE, u32::try_from(contents.len()).expect("small"));
    Le::put_u32(raw, I_BLOCKS, 0);
    let (first, rest) = contents.split_at(contents.len().min(MAP));
    raw[I_BLOCK..I_BLOCK + MAP].fill(0);
    raw[I_BLOCK..I_BLOCK + first.len()].copy_from_slice(first);
    let body = I_EXTRA_ISIZE + usize::from(Le::u16(raw, I_EXTRA_ISIZE));
    raw[body..].fill(0);
    Le::put_u32(raw, body, 0xea02_0000);
    let end = raw.len() - rest.len().next_multiple_of(4);
    let (entry, offset) = (body + 4, end - body - 4);
    raw[entry] = 4;
    raw[entry + 1] = 7;
    let offset = if rest.is_empty() { 0 } else { offset };
    Le::put_u16(raw, entry + 2, u16::try_from(offset).expect("small"));
    Le::put_u32(raw, entry + 8, u32::try_from(rest.len()).expect("small"));
    raw[entry + 16..entry + 20].copy_from_slice(b"data");
    raw[end..end + rest.len()].copy_from_slice(rest);
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
