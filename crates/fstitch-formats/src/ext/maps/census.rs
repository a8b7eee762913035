//! What the blocks of a volume hold.

use std::collections::BTreeSet;

use fstitch_core::num::to_usize;
use fstitch_core::{BlockKind, BlockNo, FileKind, InodeNo, Result};
use fstitch_fs::ext2::journal as jbd;
use fstitch_fs::ext2::layout::inode::{DiskInode, I_MODE};
use fstitch_fs::ext2::layout::superblock::{JOURNAL_INO, RESIZE_INO, ROOT_INO};
use fstitch_shepherd::Stretch;

use super::{MAPS_INO, Raw};

/// Blocks of the inode table that are read at once.
const TABLE_BATCH: u32 = 64;

/// What was found, in any order.
#[derive(Default)]
struct Found(Vec<Stretch>);

impl Found {
    fn add(&mut self, no: u64, count: u32, kind: BlockKind) {
        let (start, count) = (BlockNo(no), u64::from(count));
        match self.0.last_mut() {
            Some(last) if last.kind == kind && last.start.get() + last.count == start.get() => {
                last.count += count;
            }
            _ => self.0.push(Stretch { start, count, kind }),
        }
    }

    /// In order; what several own, as attributes may be, is there once.
    fn sorted(mut self) -> Vec<Stretch> {
        self.0.sort_unstable_by_key(|stretch| stretch.start);
        let mut end = 0;
        let mut sorted: Vec<Stretch> = Vec::with_capacity(self.0.len());
        for Stretch { start, count, kind } in self.0 {
            let from = start.get().max(end);
            let to = start.get() + count;
            if from < to {
                sorted.push(Stretch { start: BlockNo(from), count: to - from, kind });
                end = to;
            }
        }
        sorted
    }
}

/// Goes over a volume.
pub(super) fn take(raw: &Raw<'_>) -> Result<Vec<Stretch>> {
    let mut found = Found::default();
    let journal = journal_ino(raw);
    for group in 0..raw.shape.group_count() {
        let at = raw.group(group)?;
        let start = raw.shape.head_of(group);
        // In the first group a boot block may come before it.
        let before = u32::try_from(start - raw.shape.group_start(group)).unwrap_or(0);
        let head = raw.shape.group_overhead(group).saturating_sub(before);
        if head > 0 {
            found.add(start, 1, BlockKind::Superblock);
            found.add(start + 1, head - 1, BlockKind::GroupDescriptor);
        }
        found.add(at.block_bitmap, 1, BlockKind::BlockBitmap);
        found.add(at.inode_bitmap, 1, BlockKind::InodeBitmap);
        found.add(at.inode_table, raw.shape.inode_table_blocks(), BlockKind::Inode);
        inodes(raw, (group, at.inode_bitmap, at.inode_table), journal, &mut found)?;
    }
    Ok(found.sorted())
}

/// The inode of the volume's journal, if it is in one.
pub(super) fn journal_ino(raw: &Raw<'_>) -> Option<u32> {
    let (bytes, shape) = jbd::read_superblock(&raw.view).ok()?;
    match jbd::locate(&shape, &bytes).ok()?? {
        jbd::Place::Inode(ino) => Some(ino),
        jbd::Place::Device(_) => None,
    }
}

/// The inodes of a group that are in use.
fn inodes(
    raw: &Raw<'_>,
    (group, bitmap, table): (u32, u64, u64),
    journal: Option<u32>,
    found: &mut Found,
) -> Result<()> {
    let bits = raw.block(bitmap, BlockKind::InodeBitmap)?;
    let (size, per_block) = (usize::from(raw.shape.inode_size), raw.shape.inodes_per_block());
    let first = group * raw.shape.inodes_per_group + 1;
    let used: BTreeSet<u32> = (0..raw.shape.inodes_per_group)
        .filter(|bit| bits.get(to_usize(bit / 8)).is_some_and(|byte| byte & (1 << (bit % 8)) != 0))
        .collect();
    let mut bytes = vec![0; to_usize(TABLE_BATCH) * raw.view.block_size()];
    let mut read = 0..0;
    for bit in used {
        let block = bit / per_block;
        if !read.contains(&block) {
            let count = TABLE_BATCH.min(raw.shape.inode_table_blocks() - block);
            read = block..block + count;
            let into = &mut bytes[..to_usize(count) * raw.view.block_size()];
            raw.view.read(BlockNo(table + u64::from(block)), BlockKind::Inode, into)?;
        }
        let at = to_usize(block - read.start) * raw.view.block_size() + to_usize(bit % per_block) * size;
        inode(raw, first + bit, &bytes[at..at + size], journal, found)?;
    }
    Ok(())
}

/// The blocks of one inode.
fn inode(raw: &Raw<'_>, ino: u32, bytes: &[u8], journal: Option<u32>, found: &mut Found) -> Result<()> {
    let is_journal = journal == Some(ino) || ino == JOURNAL_INO;
    let is_reserved = ino < raw.shape.first_ino && ino != ROOT_INO;
    let kind = match ino {
        MAPS_INO => return Ok(()),
        _ if is_journal && I_MODE.get(bytes) != 0 => BlockKind::JournalData,
        RESIZE_INO => BlockKind::GroupDescriptor,
        // Bad blocks among them, which hold nothing.
        _ if is_reserved => return Ok(()),
        _ => match DiskInode::parse(bytes, InodeNo(u64::from(ino)), BlockNo(0), &raw.shape) {
            // Nobody can tell what it has; the checker can.
            Err(_) => return Ok(()),
            Ok(disk) => {
                if raw.is_block(disk.xattr_block) {
                    found.add(disk.xattr_block, 1, BlockKind::Attribute);
                }
                if !disk.has_blocks(raw.shape.block_size) {
                    return Ok(());
                }
                match disk.kind {
                    FileKind::Directory => BlockKind::Directory,
                    FileKind::Symlink => BlockKind::Attribute,
                    _ => BlockKind::Data,
                }
            }
        },
    };
    let mut is_first = is_journal;
    raw.walk(bytes, &mut |no, is_pointers| {
        let kind = match (is_pointers, kind) {
            (true, _) => BlockKind::Indirect,
            (false, BlockKind::JournalData) if std::mem::take(&mut is_first) => BlockKind::JournalSuperblock,
            (false, kind) => kind,
        };
        found.add(no, 1, kind);
    })
}
