//! Pass 0: the orphan file, an inode without a name that ext4 keeps the numbers of unlinked open files in.
//!
//! **Layout.** Whole blocks without holes; each holds inode numbers, then a magic number and a checksum in its last eight
//! bytes. While the volume is clean all numbers are 0: who has some there says so by the feature `orphan_present`, which
//! only allows reading. We leave the file alone and keep our own list (`s_last_orphan`), which its users read as well.

use fstitch_core::{BlockKind, BlockNo, Error, InodeNo, Le, Result, Structure};

use super::state::{State, Volume};
use crate::ext2::journal::whole_file;
use crate::ext2::layout::feature::compat;
use crate::ext2::layout::inode::DiskInode;
use crate::ext2::layout::superblock::{S_FEATURE_COMPAT, S_ORPHAN_FILE_INUM};

/// What the last eight bytes of each block start with.
const MAGIC: u32 = 0x0b10_ca04;
/// Bytes of the magic number and the checksum.
const TAIL: usize = 8;

/// Checks what the superblock says of an orphan file, and the file itself.
pub(super) fn check(volume: &mut Volume<'_>, state: &mut State) -> Result<()> {
    let ino = S_ORPHAN_FILE_INUM.get(&volume.raw_super);
    let features = volume.shape.features.compat;
    let problem = match (features & compat::ORPHAN_FILE != 0, features & compat::HAS_JOURNAL != 0) {
        (false, _) if ino != 0 && volume.shape.is_dynamic() => {
            Some(format!("the superblock names inode {ino} as orphan file, but the volume has none"))
        }
        (false, _) => None,
        (true, false) => Some("there is an orphan file, but no journal".into()),
        (true, true) => problem(volume, ino)?,
    };
    if let Some(problem) = problem
        && state.corrupt("orphan-file", problem)
    {
        give_up(volume, ino)?;
    }
    Ok(())
}

/// What is wrong with the orphan file.
fn problem(volume: &Volume<'_>, ino: u32) -> Result<Option<String>> {
    if ino < volume.shape.first_ino || ino > volume.shape.inodes_count {
        return Ok(Some(format!("the orphan file is inode {ino}")));
    }
    match contents(volume, ino) {
        Ok(problem) => Ok(problem),
        Err(Error::Corrupt(problem)) => Ok(Some(problem.to_string())),
        Err(error) => Err(error),
    }
}

fn contents(volume: &Volume<'_>, ino: u32) -> Result<Option<String>> {
    let disk =
        DiskInode::parse(&volume.read_inode(ino)?, InodeNo(u64::from(ino)), BlockNo(0), &volume.shape)?;
    let whole = disk.size.is_multiple_of(u64::from(volume.shape.block_size));
    if disk.size == 0 || !whole {
        return Ok(Some(format!("the orphan file has {} bytes", disk.size)));
    }
    let (area, _) = whole_file(volume.source, &volume.shape, Structure::Other("orphan file"), &disk)?;
    let mut bytes = vec![0; volume.block_size()];
    for at in 0..area.count() {
        volume.source.read(area.map(at)?, BlockKind::Data, &mut bytes)?;
        if !is_block(&bytes) {
            return Ok(Some(format!("block {at} of the orphan file has no magic number")));
        }
        if bytes[..bytes.len() - TAIL].iter().any(|&byte| byte != 0) {
            return Ok(Some(format!("block {at} of the orphan file is in use, but orphan_present is off")));
        }
    }
    Ok(None)
}

fn is_block(bytes: &[u8]) -> bool {
    Le::u32(bytes, bytes.len() - TAIL) == MAGIC
}

/// Makes the volume one without an orphan file. Its inode is freed if that is what it is; any other is found without a
/// name by pass 4, or has one.
fn give_up(volume: &Volume<'_>, ino: u32) -> Result<()> {
    let mut raw = volume.raw_super.clone();
    let word = S_FEATURE_COMPAT.get(&raw) & !compat::ORPHAN_FILE;
    S_FEATURE_COMPAT.put(&mut raw, word);
    S_ORPHAN_FILE_INUM.put(&mut raw, 0);
    volume.write_super_bytes(&raw)?;
    let exists = (volume.shape.first_ino..=volume.shape.inodes_count).contains(&ino);
    if exists && starts_like_one(volume, ino)? {
        volume.source.flush()?;
        volume.write_inode(ino, &vec![0; usize::from(volume.shape.inode_size)])?;
    }
    Ok(())
}

/// Whether the first block of an inode is an orphan file's, which no other file's is.
fn starts_like_one(volume: &Volume<'_>, ino: u32) -> Result<bool> {
    let raw = volume.read_inode(ino)?;
    let first = crate::ext2::layout::inode::pointer_field(0).get(&raw);
    if !volume.is_valid(first) {
        return Ok(false);
    }
    let mut bytes = vec![0; volume.block_size()];
    volume.read(first, BlockKind::Data, &mut bytes)?;
    Ok(is_block(&bytes))
}
