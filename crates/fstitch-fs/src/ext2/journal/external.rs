//! Journals on devices of their own: making one, giving it to a volume, and taking it back. Nobody has either mounted.
//!
//! **Layout.** The device starts like a volume that has nothing but the feature `journal_dev`; the journal's superblock
//! is in the block behind that superblock, the log behind it. The volume knows the device by its UUID, and the journal
//! knows its volume by the volume's: each refuses a stranger.
//!
//! **States and transitions.** *Made*: nobody's. → the volume's mark of being clean is taken away → the journal names the
//! volume and is empty → feature, UUID and mark in one write of the volume's superblock: *in use*. The journal is first,
//! so that no volume ever names one that another volume could take.
//!
//! **Crash cases.** A device that is being made is none before its last write. In between, the volume has no journal and
//! is not clean; the journal belongs to it already, so that trying again succeeds.

use fstitch_core::{BlockBuf, BlockDevice, BlockKind, BlockNo, Error, Result, Structure, Timestamp};
use fstitch_patch::journal::format::{self, INCOMPAT_REVOKE, USERS_MAX, offset};

use super::copies;
use super::create::{BLOCKS_MAX, BLOCKS_MIN, mark, put_backup, ready, write_zeros};
use super::find::{Journal, Place, locate, show_uuid};
use super::raw::{
    MAGIC, REVISION_DYNAMIC, S_BLOCKS_COUNT, S_BLOCKS_PER_GROUP, S_ERRORS, S_FEATURE_COMPAT,
    S_FEATURE_INCOMPAT, S_FIRST_DATA_BLOCK, S_FIRST_INO, S_FRAGS_PER_GROUP, S_INODE_SIZE, S_JOURNAL_DEV,
    S_JOURNAL_INUM, S_JOURNAL_UUID, S_LASTCHECK, S_LOG_BLOCK_SIZE, S_LOG_FRAG_SIZE, S_MAGIC, S_MAX_MNT_COUNT,
    S_MKFS_TIME, S_REV_LEVEL, S_STATE, S_UUID, S_VOLUME_NAME, S_WTIME, STATE_VALID, SUPERBLOCK_SIZE,
};
use crate::ext2::layout::feature::{compat, incompat};
use crate::ext2::num::{idx, low32};
use crate::view::BlockView;

/// Bytes of a volume's name.
const NAME_MAX: usize = 16;

/// How to make a device for a journal.
#[derive(Clone, Debug)]
pub struct DeviceOptions {
    /// Bytes per block, those of the volume that will use it: 1024, 2048 or 4096.
    pub block_size: u32,
    /// The journal's identifier.
    pub uuid: [u8; 16],
    /// Its name, at most 16 bytes.
    pub label: Vec<u8>,
    /// When it is made.
    pub now: Timestamp,
    /// The device is known to hold nothing but zeros.
    pub is_zero: bool,
}

/// What a journal's device says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalDevice {
    /// Bytes per block.
    pub block_size: u32,
    /// Blocks, what is before the log included.
    pub blocks: u64,
    /// The journal's identifier.
    pub uuid: [u8; 16],
}

impl JournalDevice {
    /// Reads what the device starts with; its own blocks may have any size.
    ///
    /// # Errors
    /// `Corrupt` if it holds no journal; `Io`.
    pub fn read(device: &dyn BlockDevice) -> Result<Self> {
        let view = BlockView::new(device, SUPERBLOCK_SIZE);
        if view.block_count() < 2 {
            return Err(damaged("the device is too small to hold one".into()));
        }
        let mut raw = vec![0; SUPERBLOCK_SIZE];
        view.read(BlockNo(1), BlockKind::Superblock, &mut raw)?;
        if S_MAGIC.get(&raw) != MAGIC || S_FEATURE_INCOMPAT.get(&raw) & incompat::JOURNAL_DEV == 0 {
            return Err(damaged("the device holds no external journal (feature journal_dev)".into()));
        }
        let log = S_LOG_BLOCK_SIZE.get(&raw);
        if log > 2 {
            return Err(damaged(format!("blocks of 2^{} bytes", u64::from(log) + 10)));
        }
        let block_size = 1024 << log;
        let on_device = device.geometry().bytes() / u64::from(block_size);
        let mut uuid = [0; 16];
        uuid.copy_from_slice(&raw[S_UUID..S_UUID + 16]);
        Ok(Self { block_size, blocks: u64::from(S_BLOCKS_COUNT.get(&raw)).min(on_device), uuid })
    }

    /// The block of the journal's superblock.
    #[must_use]
    pub const fn superblock(&self) -> BlockNo {
        superblock_of(self.block_size)
    }

    /// The volumes that use the journal on `device`, by their UUIDs.
    ///
    /// # Errors
    /// `Corrupt` if its superblock is none; `Io`.
    pub fn users(&self, device: &dyn BlockDevice) -> Result<Vec<[u8; 16]>> {
        let raw = self.read_log_superblock(device)?;
        let count = format::Superblock::decode(&raw)?.user_count.min(USERS_MAX);
        let users = raw[offset::S_USERS..].chunks_exact(16).take(idx(count));
        Ok(users.map(|uuid| uuid.try_into().expect("chunks of 16 bytes")).collect())
    }

    fn read_log_superblock(&self, device: &dyn BlockDevice) -> Result<BlockBuf> {
        let view = BlockView::new(device, idx(self.block_size));
        let mut raw = BlockBuf::zeroed(view.block_size());
        view.read(self.superblock(), BlockKind::JournalSuperblock, &mut raw)?;
        Ok(raw)
    }

    /// Makes `user` the only volume that uses the journal, or leaves it without any. The log becomes empty.
    fn give(&self, device: &dyn BlockDevice, user: Option<&[u8; 16]>) -> Result<()> {
        let mut raw = self.read_log_superblock(device)?;
        let mut superblock = format::Superblock::decode(&raw)?;
        if superblock.start != 0 {
            // What an earlier user has left there must not look like the next one's.
            superblock.sequence = superblock.sequence.plus(superblock.log_blocks());
        }
        (superblock.start, superblock.errno) = (0, 0);
        superblock.user_count = u32::from(user.is_some());
        raw[offset::S_USERS..SUPERBLOCK_SIZE].fill(0);
        if let Some(user) = user {
            raw[offset::S_USERS..offset::S_USERS + 16].copy_from_slice(user);
        }
        superblock.encode_into(&mut raw[..SUPERBLOCK_SIZE]);
        let view = BlockView::new(device, idx(self.block_size));
        view.write(self.superblock(), BlockKind::JournalSuperblock, &raw)?;
        view.flush()
    }
}

fn damaged(problem: String) -> Error {
    Error::corrupt(Structure::ExternalJournal, None, problem)
}

/// The block behind the one that holds byte 1024.
const fn superblock_of(block_size: u32) -> BlockNo {
    BlockNo(if block_size == 1024 { 2 } else { 1 })
}

/// Makes all of `device` a journal for one volume; returns its blocks.
///
/// # Errors
/// `Unsupported` if there cannot be such a one: nothing was changed.
pub fn make_device(device: &dyn BlockDevice, options: &DeviceOptions) -> Result<u32> {
    let DeviceOptions { block_size, uuid, label, now, is_zero } = options;
    let refuse = |text: String| Err(Error::Unsupported(text));
    if ![1024, 2048, 4096].contains(block_size) {
        return refuse(format!("a journal in blocks of {block_size} bytes"));
    }
    if label.len() > NAME_MAX || *uuid == [0; 16] {
        return refuse(format!("a label of more than {NAME_MAX} bytes, or a UUID that is all zero"));
    }
    let blocks = device.geometry().bytes() / u64::from(*block_size);
    if !(u64::from(BLOCKS_MIN)..=u64::from(BLOCKS_MAX)).contains(&blocks) {
        let text = format!("a journal of {blocks} blocks: {BLOCKS_MIN} to {BLOCKS_MAX} are possible");
        return refuse(text);
    }
    let view = BlockView::new(device, idx(*block_size));
    let at = superblock_of(*block_size);
    write_zeros(&view, BlockNo(0), if *is_zero { at.get() } else { blocks })?;
    let blocks = low32(blocks);
    let first = low32(at.get()) + 1;
    let mut log = format::Superblock::new(*block_size, blocks, first, *uuid);
    log.features.incompat = INCOMPAT_REVOKE;
    log.user_count = 0;
    let mut block = BlockBuf::zeroed(view.block_size());
    log.encode_into(&mut block[..SUPERBLOCK_SIZE]);
    view.write(at, BlockKind::JournalSuperblock, &block)?;
    view.flush()?;
    let mut raw = vec![0; SUPERBLOCK_SIZE];
    put_header(&mut raw, (*block_size, blocks), low32(now.secs.cast_unsigned()));
    raw[S_UUID..S_UUID + 16].copy_from_slice(uuid);
    raw[S_VOLUME_NAME..S_VOLUME_NAME + label.len()].copy_from_slice(label);
    let view = BlockView::new(device, SUPERBLOCK_SIZE);
    view.write(BlockNo(1), BlockKind::Superblock, &raw)?;
    view.flush()?;
    Ok(blocks)
}

/// What other programs want to see of a volume, without inodes and groups.
fn put_header(raw: &mut [u8], (block_size, blocks): (u32, u32), time: u32) {
    S_BLOCKS_COUNT.put(raw, blocks);
    S_FIRST_DATA_BLOCK.put(raw, u32::from(block_size == 1024));
    for field in [S_LOG_BLOCK_SIZE, S_LOG_FRAG_SIZE] {
        field.put(raw, block_size.ilog2() - 10);
    }
    for field in [S_BLOCKS_PER_GROUP, S_FRAGS_PER_GROUP] {
        field.put(raw, block_size * 8);
    }
    for field in [S_WTIME, S_LASTCHECK, S_MKFS_TIME] {
        field.put(raw, time);
    }
    S_MAX_MNT_COUNT.put(raw, 0xffff_u16);
    S_MAGIC.put(raw, MAGIC);
    S_STATE.put(raw, STATE_VALID);
    S_ERRORS.put(raw, 1_u16);
    S_REV_LEVEL.put(raw, REVISION_DYNAMIC);
    S_FIRST_INO.put(raw, 11_u32);
    S_INODE_SIZE.put(raw, 256_u16);
    S_FEATURE_INCOMPAT.put(raw, incompat::JOURNAL_DEV);
}

/// Makes the journal on `external` that of the volume on `device`; returns its blocks. `number` is the device's number
/// in Linux, which finds it so without being told, or 0.
///
/// # Errors
/// `Unsupported` if the volume is not clean or has a journal, or if the journal is another volume's; `Corrupt` if it is
/// none, or one with other blocks: nothing was changed.
pub fn add_device(device: &dyn BlockDevice, external: &dyn BlockDevice, number: u32) -> Result<u32> {
    let (mut raw, shape) = ready(device)?;
    if locate(&shape, &raw)?.is_some() {
        return Err(Error::Unsupported("a second journal".into()));
    }
    let found = JournalDevice::read(external)?;
    let users = found.users(external)?;
    if let Some(other) = users.iter().find(|&user| *user != shape.uuid) {
        let text = format!("a journal that belongs to another volume, UUID {}", show_uuid(other));
        return Err(Error::Unsupported(text));
    }
    let volume = BlockView::new(device, idx(shape.block_size));
    let journal = Journal::find(&volume, &shape, Place::Device(found.uuid), Some(external))?;
    let blocks = {
        let view = BlockView::new(external, idx(shape.block_size));
        journal.open(&view)?.superblock().len
    };
    mark(device, &mut raw, false)?;
    found.give(external, Some(&shape.uuid))?;
    S_FEATURE_COMPAT.put(&mut raw, shape.features.compat | compat::HAS_JOURNAL);
    S_JOURNAL_INUM.put(&mut raw, 0);
    S_JOURNAL_DEV.put(&mut raw, number);
    raw[S_JOURNAL_UUID..S_JOURNAL_UUID + 16].copy_from_slice(&found.uuid);
    put_backup(&mut raw, None);
    copies::update(&volume, &shape, &raw)?;
    mark(device, &mut raw, true)?;
    Ok(blocks)
}

/// Lets another volume have the journal on `external` that the volume with the UUID `user` does not use any more. One
/// that is not its journal stays as it is: false.
///
/// # Errors
/// `Corrupt` if there is no journal on the device; `Io`.
pub fn release_device(external: &dyn BlockDevice, user: &[u8; 16]) -> Result<bool> {
    let found = JournalDevice::read(external)?;
    if found.users(external)? != [*user] {
        return Ok(false);
    }
    found.give(external, None)?;
    Ok(true)
}
