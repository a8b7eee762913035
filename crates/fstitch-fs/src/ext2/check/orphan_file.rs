//! Pass 0: the orphan file, an inode without a name that ext4 keeps the numbers of unlinked open files in.
//!
//! **Layout.** Whole blocks without holes; each holds inode numbers, then a magic number and a checksum in its last eight
//! bytes. While the volume is clean all numbers are 0: who has some there says so by the feature `orphan_present`, which
//! only allows reading. We leave the file alone and keep our own list (`s_last_orphan`), which its users read as well.

use fstitch_core::{BlockKind, BlockNo, Error, InodeNo, Le, Result, Structure};

use super::kinds::first_block;
use super::state::{State, Volume};
use crate::ext2::journal::whole_file;
use crate::ext2::layout::checksum::{ORPHAN_MAGIC, ORPHAN_TAIL};
use crate::ext2::layout::feature::compat;
use crate::ext2::layout::inode::DiskInode;
use crate::ext2::layout::superblock::{S_FEATURE_COMPAT, S_ORPHAN_FILE_INUM};

/// What is wrong with an orphan file.
enum Problem {
    /// Something that only giving it up mends.
    Hopeless(String),
    /// The end of this block, whose numbers are all 0.
    Tail(u64, String),
}

/// Checks what the superblock says of an orphan file, and the file itself.
pub(super) fn check(volume: &mut Volume<'_>, state: &mut State) -> Result<()> {
    let ino = S_ORPHAN_FILE_INUM.get(&volume.raw_super);
    let features = volume.shape.features.compat;
    let problem = match (features & compat::ORPHAN_FILE != 0, features & compat::HAS_JOURNAL != 0) {
        (false, _) if ino != 0 && volume.shape.is_dynamic() => {
            let text = format!("the superblock names inode {ino} as orphan file, but the volume has none");
            Some(Problem::Hopeless(text))
        }
        (false, _) => None,
        (true, false) => Some(Problem::Hopeless("there is an orphan file, but no journal".into())),
        (true, true) => problem(volume, ino, state.seals())?,
    };
    match problem {
        Some(Problem::Hopeless(text)) if state.corrupt("orphan-file", text.as_str()) => give_up(volume, ino),
        Some(Problem::Tail(block, text)) if state.corrupt("orphan-file", text.as_str()) => {
            write_empty(volume, ino, block)
        }
        _ => Ok(()),
    }
}

/// What is wrong with the orphan file. If it `seals`, sums are written and not wrong.
fn problem(volume: &Volume<'_>, ino: u32, seals: bool) -> Result<Option<Problem>> {
    if ino < volume.shape.first_ino || ino > volume.shape.inodes_count {
        return Ok(Some(Problem::Hopeless(format!("the orphan file is inode {ino}"))));
    }
    match contents(volume, ino, seals) {
        Ok(problem) => Ok(problem),
        Err(Error::Corrupt(problem)) => Ok(Some(Problem::Hopeless(problem.to_string()))),
        Err(error) => Err(error),
    }
}

fn contents(volume: &Volume<'_>, ino: u32, seals: bool) -> Result<Option<Problem>> {
    let raw = volume.read_inode(ino)?;
    let owner = volume.owner(ino, &raw);
    let disk = DiskInode::parse(&raw, InodeNo(u64::from(ino)), BlockNo(0), &volume.shape)?;
    let whole = disk.size.is_multiple_of(u64::from(volume.shape.block_size));
    if disk.size == 0 || !whole {
        return Ok(Some(Problem::Hopeless(format!("the orphan file has {} bytes", disk.size))));
    }
    let (area, _) = whole_file(volume.source, &volume.shape, Structure::Other("orphan file"), &disk)?;
    let mut bytes = vec![0; volume.block_size()];
    for at in 0..area.count() {
        let block = area.map(at)?;
        volume.source.read(block, BlockKind::Data, &mut bytes)?;
        if bytes[..bytes.len() - ORPHAN_TAIL].iter().any(|&byte| byte != 0) {
            let text = format!("block {at} of the orphan file is in use, but orphan_present is off");
            return Ok(Some(Problem::Hopeless(text)));
        }
        let tail = match (is_block(&bytes), volume.orphan_sum_matches(owner, block.get(), &bytes)) {
            (false, _) => "magic number",
            (true, false) if seals => {
                write_empty(volume, ino, block.get())?;
                continue;
            }
            (true, false) => "sum",
            (true, true) => continue,
        };
        let block = block.get();
        return Ok(Some(Problem::Tail(block, format!("block {at} of the orphan file has a wrong {tail}"))));
    }
    Ok(None)
}

/// Writes a block without numbers.
fn write_empty(volume: &Volume<'_>, ino: u32, block: u64) -> Result<()> {
    let mut bytes = vec![0; volume.block_size()];
    let at = bytes.len() - ORPHAN_TAIL;
    Le::put_u32(&mut bytes, at, ORPHAN_MAGIC);
    volume.write_orphans(block, volume.owner(ino, &volume.read_inode(ino)?), &mut bytes)
}

fn is_block(bytes: &[u8]) -> bool {
    Le::u32(bytes, bytes.len() - ORPHAN_TAIL) == ORPHAN_MAGIC
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
    let Some(first) = first_block(volume, &raw) else { return Ok(false) };
    let mut bytes = vec![0; volume.block_size()];
    volume.read(first, BlockKind::Data, &mut bytes)?;
    Ok(is_block(&bytes))
}
