//! Pass 0: the journal that a volume has in itself. Whoever mounts the volume needs it, so one that cannot be used is
//! damage even where nothing is in it.
//!
//! What it is made whole from, in this order: the copy of its inode in the superblock; a new superblock in its own blocks, on
//! volumes with sums; nothing, then the volume is one without a journal, and inode 8 is found in use without need by pass 1.

use fstitch_core::{Be, BlockKind, BlockNo, Error, InodeNo, Result, Structure};
use fstitch_patch::journal::format::{
    INCOMPAT_64BIT, INCOMPAT_CSUM_V3, SUPERBLOCK_SIZE, Sequence, Superblock, offset,
};

use super::kinds::first_block;
use super::state::{State, Volume};
use crate::ext2::journal::{
    BLOCKS_MAX, BLOCKS_MIN, Internal, Place, clear_backup, from_backup, locate, whole_file,
};
use crate::ext2::layout::checksum::crc;
use crate::ext2::layout::feature::{compat, incompat};
use crate::ext2::layout::inode::{DiskInode, I_SIZE};
use crate::ext2::layout::superblock::{
    JOURNAL_INO, S_FEATURE_COMPAT, S_JOURNAL_DEV, S_JOURNAL_INUM, S_JOURNAL_UUID,
};
use crate::ext2::num::idx;

/// Where the journal's UUID is in the superblock.
const UUID: std::ops::Range<usize> = S_JOURNAL_UUID..S_JOURNAL_UUID + 16;
/// Bytes of a journal's superblock that mean nothing in version 1.
const BEHIND_V1: std::ops::Range<usize> = offset::S_FEATURE_COMPAT..SUPERBLOCK_SIZE;

/// Checks what the superblock says of a journal, and the journal itself.
pub(super) fn check(volume: &mut Volume<'_>, state: &mut State) -> Result<()> {
    if volume.shape.features.compat & compat::HAS_JOURNAL == 0 {
        return leftovers(volume, state);
    }
    if volume.source.is_in_use() {
        return Ok(());
    }
    let found = match locate(&volume.shape, &volume.raw_super) {
        Ok(Some(Place::Inode(ino))) => Internal::read(volume.source, &volume.shape, ino)
            .and_then(|journal| whole_blocks(volume, ino).map(|()| journal)),
        // A journal on a device of its own is not there to be looked at.
        Ok(_) => return Ok(()),
        Err(error) => Err(error),
    };
    match found {
        Ok(journal) => {
            other_places(volume, state)?;
            stray_fields(volume, state, &journal)
        }
        Err(Error::Corrupt(problem)) => {
            if state.corrupt("journal-bad", problem.to_string()) {
                mend(volume, state)?;
            }
            Ok(())
        }
        Err(Error::Unsupported(problem)) if !own_sum_matches(volume)? => {
            if state.corrupt("journal-bad", format!("the journal's superblock has a wrong sum: {problem}")) {
                renew(volume, state)?;
            }
            Ok(())
        }
        // A feature has a name, and then others know what to do with the journal. It says nothing about the volume.
        Err(Error::Unsupported(text)) if !text.contains("0x") => Ok(()),
        Err(error) => Err(error),
    }
}

/// A journal's length is one of whole blocks: the reference takes no other.
fn whole_blocks(volume: &Volume<'_>, ino: u32) -> Result<()> {
    let size = I_SIZE.get(&volume.read_inode(ino)?);
    if idx(size).is_multiple_of(volume.block_size()) {
        return Ok(());
    }
    let problem = format!("{size} bytes, expected whole blocks");
    Err(Error::corrupt(Structure::JournalInode(u64::from(ino)), None, problem))
}

/// Whether the sum of the journal's superblock is right. On a volume with sums it has one whatever it says, so that a feature
/// which nobody knows is told from a bit that has changed.
fn own_sum_matches(volume: &Volume<'_>) -> Result<bool> {
    let Place::Inode(ino) = locate(&volume.shape, &volume.raw_super)?.unwrap_or(Place::Device([0; 16]))
    else {
        return Ok(true);
    };
    let Some(first) = first_block(volume, &volume.read_inode(ino)?).filter(|_| volume.has_sums()) else {
        return Ok(true);
    };
    let mut raw = vec![0; volume.block_size()];
    volume.read(first, BlockKind::JournalSuperblock, &mut raw)?;
    let found = Be::u32(&raw, offset::S_CHECKSUM);
    Be::put_u32(&mut raw, offset::S_CHECKSUM, 0);
    Ok(found == crc(u32::MAX, &raw[..SUPERBLOCK_SIZE]))
}

/// What the superblock says of a journal that the volume does not have.
fn leftovers(volume: &mut Volume<'_>, state: &mut State) -> Result<()> {
    let raw = &mut volume.raw_super;
    let named = S_JOURNAL_INUM.get(raw) != 0 || S_JOURNAL_DEV.get(raw) != 0 || raw[UUID] != [0; 16];
    let text = "the superblock names a journal, but the volume has none";
    if named && state.corrupt("superblock-journal", text) {
        S_JOURNAL_INUM.put(raw, 0);
        S_JOURNAL_DEV.put(raw, 0);
        raw[UUID].fill(0);
        volume.write_super()?;
    }
    Ok(())
}

/// A journal that is a file of the volume is on no other device: those who look for that first find none.
fn other_places(volume: &mut Volume<'_>, state: &mut State) -> Result<()> {
    let raw = &mut volume.raw_super;
    let named = S_JOURNAL_DEV.get(raw) != 0 || raw[UUID] != [0; 16];
    let text = "the superblock names both an inode and a device for the journal";
    if named && state.corrupt("superblock-journal", text) {
        S_JOURNAL_DEV.put(raw, 0);
        raw[UUID].fill(0);
        volume.write_super()?;
    }
    Ok(())
}

/// What a journal's superblock may not hold, though nobody needs to read it to use the journal: fields of version 2 in one of
/// version 1, which has no features and no users; several users; an error that its last user met, which a check answers.
fn stray_fields(volume: &Volume<'_>, state: &mut State, journal: &Internal) -> Result<()> {
    let mut superblock = journal.superblock.clone();
    let mut raw = journal.raw.clone();
    let mut changed = false;
    let text = "the journal's superblock is one of version 1, but has fields of version 2";
    if !superblock.is_v2
        && raw[BEHIND_V1].iter().any(|&byte| byte != 0)
        && state.corrupt("journal-stray-fields", text)
    {
        raw[BEHIND_V1].fill(0);
        changed = true;
    }
    let text = format!("the journal has {} users, expected 1", superblock.user_count);
    if superblock.user_count > 1 && state.corrupt("journal-stray-fields", text) {
        superblock.user_count = 1;
        changed = true;
    }
    let text = format!("the journal's last user met error {}", superblock.errno);
    if superblock.errno != 0 && state.allowed("journal-error", text) {
        superblock.errno = 0;
        changed = true;
    }
    if changed {
        superblock.encode_into(&mut raw[..SUPERBLOCK_SIZE]);
        volume.source.write(journal.area.superblock()?, BlockKind::JournalSuperblock, &raw)?;
    }
    Ok(())
}

fn mend(volume: &mut Volume<'_>, state: &State) -> Result<()> {
    match from_backup(volume.source, &volume.shape, &volume.raw_super, state.now)? {
        Some(inode) => {
            volume.write_inode(JOURNAL_INO, &inode)?;
            volume.source.flush()?;
            S_JOURNAL_INUM.put(&mut volume.raw_super, JOURNAL_INO);
            volume.write_super()
        }
        None => renew(volume, state),
    }
}

/// Makes the journal an empty one, or the volume one without.
fn renew(volume: &Volume<'_>, state: &State) -> Result<()> {
    if reset(volume, state)? { Ok(()) } else { give_up(volume) }
}

/// Gives a journal whose blocks are all there another superblock, that of an empty log; false if they are not. Only on volumes
/// with sums, whose journals we know to have them: what was in the log is nobody's then.
fn reset(volume: &Volume<'_>, state: &State) -> Result<bool> {
    if !volume.has_sums() || S_JOURNAL_INUM.get(&volume.raw_super) != JOURNAL_INO {
        return Ok(false);
    }
    let what = Structure::JournalInode(u64::from(JOURNAL_INO));
    let raw = volume.read_inode(JOURNAL_INO)?;
    let found = DiskInode::parse(&raw, InodeNo(u64::from(JOURNAL_INO)), BlockNo(0), &volume.shape)
        .and_then(|disk| whole_file(volume.source, &volume.shape, what, &disk));
    let area = match found {
        Ok((area, _)) => area,
        Err(Error::Corrupt(_)) => return Ok(false),
        Err(error) => return Err(error),
    };
    let len = u32::try_from(area.count()).unwrap_or(u32::MAX).min(BLOCKS_MAX);
    if len < BLOCKS_MIN {
        return Ok(false);
    }
    let wide = volume.shape.features.has_incompat(incompat::BIT64);
    let mut fresh = Superblock::new(volume.shape.block_size, len, 1, [0; 16]);
    fresh.features.incompat = INCOMPAT_CSUM_V3 | if wide { INCOMPAT_64BIT } else { 0 };
    // What the log holds must not look like what follows.
    fresh.sequence = Sequence(state.dtime());
    let mut bytes = vec![0; volume.block_size()];
    fresh.encode_into(&mut bytes[..SUPERBLOCK_SIZE]);
    volume.source.write(area.superblock()?, BlockKind::JournalSuperblock, &bytes)?;
    Ok(true)
}

/// Whether the volume has its journal in inode `ino`.
pub(super) fn is_in(volume: &Volume<'_>, ino: u32) -> bool {
    let has = volume.shape.features.compat & compat::HAS_JOURNAL != 0;
    has && S_JOURNAL_INUM.get(&volume.raw_super) == ino
}

/// Makes the volume one without a journal.
pub(super) fn give_up(volume: &Volume<'_>) -> Result<()> {
    let mut raw = volume.raw_super.clone();
    let word = S_FEATURE_COMPAT.get(&raw) & !compat::HAS_JOURNAL;
    S_FEATURE_COMPAT.put(&mut raw, word);
    S_JOURNAL_INUM.put(&mut raw, 0);
    S_JOURNAL_DEV.put(&mut raw, 0);
    raw[UUID].fill(0);
    clear_backup(&mut raw);
    volume.write_super_bytes(&raw)
}
