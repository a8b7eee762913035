//! Names of inodes: the directories are gone through, one below the other, until all that are wanted are found.

use std::collections::BTreeMap;

use fstitch_core::{BlockKind, BlockNo, FileKind, InodeNo, Result};
use fstitch_fs::ext2::layout::dirent::entries;
use fstitch_fs::ext2::layout::inode::{self, DiskInode};
use fstitch_fs::ext2::layout::superblock::ROOT_INO;

use super::Raw;

/// Names of one inode that are kept: a file may have thousands.
const NAMES_MAX: usize = 8;
/// Directories below each other, at most: of a damaged tree there is no end.
const DEPTH_MAX: usize = 4096;

/// The names of an inode.
#[derive(Default)]
pub(super) struct Names {
    /// How many there are, if that is known.
    pub(super) expected: Option<usize>,
    /// Those that were found.
    pub(super) paths: Vec<Vec<u8>>,
}

impl Names {
    fn are_found(&self) -> bool {
        self.paths.len() >= self.expected.map_or(NAMES_MAX, |expected| expected.min(NAMES_MAX))
    }
}

/// A directory that is being gone through.
struct Open {
    ino: u32,
    /// Bytes of the path that lead to it, with a slash at the end.
    path: usize,
    blocks: Vec<u64>,
    next: usize,
    /// Directories of the block before `next` that are still to be gone through.
    below: Vec<(u32, Vec<u8>)>,
}

/// Finds the names of inodes.
pub(super) fn name(raw: &Raw<'_>, wanted: &mut BTreeMap<u32, Names>) -> Result<()> {
    if let Some(names) = wanted.get_mut(&ROOT_INO) {
        *names = Names { expected: Some(1), paths: vec![b"/".to_vec()] };
    }
    let mut path = b"/".to_vec();
    let mut open: Vec<Open> = directory(raw, ROOT_INO, path.len())?.into_iter().collect();
    let mut visits = raw.shape.inodes_count;
    let mut missing = wanted.values().filter(|names| !names.are_found()).count();
    while let Some(last) = open.last_mut().filter(|_| missing > 0 && visits > 0) {
        path.truncate(last.path);
        if let Some((ino, name)) = last.below.pop() {
            let is_loop = open.len() >= DEPTH_MAX || open.iter().any(|above| above.ino == ino);
            path.extend(name);
            path.push(b'/');
            visits -= 1;
            if !is_loop {
                open.extend(directory(raw, ino, path.len())?);
            }
        } else if let Some(no) = last.blocks.get(last.next).copied() {
            last.next += 1;
            last.below = look(raw, no, &path, wanted, &mut missing)?;
        } else {
            open.pop();
        }
    }
    Ok(())
}

fn inode(raw: &Raw<'_>, ino: u32) -> Result<Option<(DiskInode, Vec<u8>)>> {
    let Some(group) = raw.pass_over(raw.group(raw.shape.group_of_inode(ino)))? else { return Ok(None) };
    let (at, offset) = inode::place(&raw.shape, group.inode_table, ino);
    let Some(table) = raw.pass_over(raw.block(at.get(), BlockKind::Inode))? else { return Ok(None) };
    let bytes = table[offset..offset + usize::from(raw.shape.inode_size)].to_vec();
    let parsed = DiskInode::parse(&bytes, InodeNo(u64::from(ino)), at, &raw.shape);
    Ok(parsed.ok().map(|disk| (disk, bytes)))
}

/// The directory that is inode `ino`; `None` if there is none that can be read.
fn directory(raw: &Raw<'_>, ino: u32, path: usize) -> Result<Option<Open>> {
    let Some((_, bytes)) = inode(raw, ino)?.filter(|(disk, _)| disk.kind == FileKind::Directory) else {
        return Ok(None);
    };
    let mut blocks = Vec::new();
    raw.walk(&bytes, &mut |no, is_pointers| {
        if !is_pointers {
            blocks.push(no);
        }
    })?;
    Ok(Some(Open { ino, path, blocks, next: 0, below: Vec::new() }))
}

/// Goes through the entries of a block; the directories among them, last ones first.
fn look(
    raw: &Raw<'_>,
    no: u64,
    path: &[u8],
    wanted: &mut BTreeMap<u32, Names>,
    missing: &mut usize,
) -> Result<Vec<(u32, Vec<u8>)>> {
    let mut below = Vec::new();
    let Some(bytes) = raw.pass_over(raw.block(no, BlockKind::Directory))? else { return Ok(below) };
    let names = entries(&bytes, BlockNo(no), &raw.shape).map_while(Result::ok);
    for entry in names.filter(|entry| entry.ino != 0 && !matches!(entry.name, b"." | b"..")) {
        if let Some(names) = wanted.get_mut(&entry.ino).filter(|names| !names.are_found()) {
            names.paths.push([path, entry.name].concat());
            *missing -= usize::from(names.are_found());
        }
        let is_directory = match entry.kind() {
            Some(kind) => kind == FileKind::Directory,
            None => inode(raw, entry.ino)?.is_some_and(|(disk, _)| disk.kind == FileKind::Directory),
        };
        if is_directory {
            below.push((entry.ino, entry.name.to_vec()));
        }
    }
    below.reverse();
    Ok(below)
}
