//! The maps of a policy in an ext2 or ext3 volume.
//!
//! **Layout.** They are the contents of inode 5, which the format reserves for a boot loader: a regular file of mode 0600 without a name,
//! so that nobody can open, move or delete it, while e2fsck and the kernel count its blocks. [`MARK`] in its `osd1` says that the maps are
//! to be used.
//!
//! **States and transitions.** Those of [`KeepsMaps`]. *Taking room*: the mark of a clean volume is taken away → bitmaps and counts → the
//! file's map, then its inode → counts and mark in one write of the superblock. *Giving back*: the same way back, the inode first.
//!
//! **Crash cases.** In between the volume is not clean. What inode 5 does not have yet, or has no more, is a leak, which a check or the
//! reclaimer gives back; it never has blocks that somebody else could be given, because the bitmaps are stable while it has them.

mod census;
mod rules;
mod space;
mod tree;
mod whose;

use std::cell::Cell;
use std::sync::Arc;

use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::{BlockBuf, BlockDevice, BlockKind, BlockNo, Error, Le, Result, Structure, Timestamp};
use fstitch_fs::ext2::check::find_backup;
use fstitch_fs::ext2::journal as jbd;
use fstitch_fs::ext2::layout::feature::{Features, PLAIN};
use fstitch_fs::ext2::layout::group::GroupDescriptor;
use fstitch_fs::ext2::layout::inode::{self, DIRECT, I_MODE, I_SIZE, I_SIZE_HIGH, POINTERS, pointer_field};
use fstitch_fs::ext2::layout::superblock::{ROOT_INO, S_UUID, Superblock};
use fstitch_fs::view::BlockView;
use fstitch_shepherd::{Room, Rules, Stretch};

use super::Ext;
use crate::{KeepsMaps, MapsAt};

/// The inode of the maps: the boot loader's.
const MAPS_INO: u32 = 5;
/// Where an inode keeps what its system likes.
const I_OSD1: usize = 0x24;
/// What stands there when the maps are to be used.
const MARK: u32 = u32::from_le_bytes(*b"FSHP");
/// A regular file that root may read and write.
const MODE: u16 = 0o100_600;
/// The bits of `i_mode` that say what an inode is, and what they are of a directory.
const FORMAT_MASK: u16 = 0o170_000;
const DIRECTORY: u16 = 0o040_000;
/// The sector of the superblock with the times, counts and states that every program writes.
const SEALED: u64 = 2;

/// A volume that is looked at as it is on the medium.
struct Raw<'d> {
    view: BlockView<'d>,
    shape: Superblock,
    /// Blocks that may be visited yet: of maps that are damaged there is no end.
    left: Cell<u64>,
    /// Blocks of pointers that cannot be read are passed over, and counted.
    passes_over: bool,
    unread: Cell<u64>,
}

impl<'d> Raw<'d> {
    fn read(device: &'d dyn BlockDevice) -> Result<Self> {
        let raw = Self::read_any(device)?;
        match raw.foreign() {
            None => Ok(raw),
            Some(names) => {
                let problem = format!(
                    "a policy on an ext4 volume, or whose its blocks are: only ext2 and ext3 can follow one yet (feature {names})"
                );
                Err(Error::Unsupported(problem))
            }
        }
    }

    /// The same of a volume that may have features with which nothing of ours takes room for maps.
    fn read_any(device: &'d dyn BlockDevice) -> Result<Self> {
        let (_, shape) = jbd::read_superblock(device)?;
        let left = Cell::new(shape.blocks_count.saturating_mul(2));
        let view = BlockView::new(device, to_usize(shape.block_size));
        Ok(Self { view, shape, left, passes_over: false, unread: Cell::new(0) })
    }

    /// The features for which there are no maps: blocks are found by other means than pointers.
    fn foreign(&self) -> Option<String> {
        let beyond = Features { compat: 0, ro_compat: 0, ..self.shape.features.beyond(&PLAIN) }.all_names();
        (!beyond.is_empty()).then(|| beyond.join(", "))
    }

    /// The same for who goes on where something cannot be read.
    fn read_what_can_be(device: &'d dyn BlockDevice) -> Result<Self> {
        Ok(Self { passes_over: true, ..Self::read(device)? })
    }

    /// Counts what could not be read, for who goes on; else it is the end.
    fn pass_over<T>(&self, found: Result<T>) -> Result<Option<T>> {
        match found {
            Err(_) if self.passes_over => {
                self.unread.set(self.unread.get() + 1);
                Ok(None)
            }
            found => found.map(Some),
        }
    }

    fn block(&self, no: u64, kind: BlockKind) -> Result<BlockBuf> {
        let mut bytes = BlockBuf::zeroed(self.view.block_size());
        self.view.read(BlockNo(no), kind, &mut bytes)?;
        Ok(bytes)
    }

    fn group(&self, group: u32) -> Result<GroupDescriptor> {
        let (no, offset) = self.shape.descriptor_place(group);
        let bytes = self.block(no, BlockKind::GroupDescriptor)?;
        let raw = bytes.get(offset..offset + self.shape.descriptor_size()).unwrap_or_default();
        GroupDescriptor::parse(raw, group, &self.shape, BlockNo(no))
    }

    /// The block of the maps' inode, with its contents, and where in it the inode is.
    fn maps_inode(&self) -> Result<(BlockNo, BlockBuf, usize)> {
        let (at, offset) = inode::place(&self.shape, self.group(0)?.inode_table, MAPS_INO);
        let mut bytes = BlockBuf::zeroed(self.view.block_size());
        self.view.read(at, BlockKind::Inode, &mut bytes)?;
        Ok((at, bytes, offset))
    }

    /// Whether a pointer leads to a block; 0 is none.
    fn is_block(&self, no: u64) -> bool {
        no != 0 && (self.shape.first_data_block()..self.shape.blocks_count).contains(&no)
    }

    /// Calls `visit` with every block that the pointers of an inode lead to, and whether it is one of pointers; those of one array in a
    /// call of their own each, those of pointers before what they lead to. What cannot be a block's number is passed over.
    fn walk(&self, inode: &[u8], visit: &mut dyn FnMut(u64, bool)) -> Result<()> {
        for at in 0..POINTERS {
            let levels = at.saturating_sub(DIRECT - 1);
            self.walk_tree((u64::from(pointer_field(at).get(inode)), levels), visit)?;
        }
        Ok(())
    }

    fn walk_tree(&self, (no, levels): (u64, usize), visit: &mut dyn FnMut(u64, bool)) -> Result<()> {
        let Some(left) = self.left.get().checked_sub(1).filter(|_| self.is_block(no)) else { return Ok(()) };
        self.left.set(left);
        visit(no, levels > 0);
        if levels == 0 {
            return Ok(());
        }
        let Some(pointers) = self.pass_over(self.block(no, BlockKind::Indirect))? else { return Ok(()) };
        for word in pointers.chunks_exact(4) {
            self.walk_tree((u64::from(Le::u32(word, 0)), levels - 1), visit)?;
        }
        Ok(())
    }

    /// Where the maps are. Their inode is believed only as a whole.
    fn maps(&self) -> Result<MapsAt> {
        if !self.shape.is_dynamic() {
            return Ok(MapsAt::Nowhere);
        }
        let (at, table, offset) = self.maps_inode()?;
        let inode = &table[offset..offset + usize::from(self.shape.inode_size)];
        let size = u64::from(I_SIZE.get(inode)) | u64::from(I_SIZE_HIGH.get(inode)) << 32;
        let is_marked = Le::u32(inode, I_OSD1) == MARK;
        if I_MODE.get(inode) != MODE || size == 0 {
            return Ok(MapsAt::Nowhere);
        }
        if let Some(names) = self.foreign() {
            // Whoever gave a volume that followed a policy such a feature did not know of it.
            return match is_marked {
                true => Err(Error::Unsupported(format!("a policy on a volume with feature {names}"))),
                false => Ok(MapsAt::Nowhere),
            };
        }
        let mut blocks = Vec::new();
        self.walk(inode, &mut |no, is_pointers| {
            if !is_pointers {
                blocks.push(BlockNo(no));
            }
        })?;
        if is_marked && to_u64(blocks.len()) * u64::from(self.shape.block_size) != size {
            let problem = format!("the maps of a policy have {} blocks and {size} bytes", blocks.len());
            return Err(Error::corrupt(Structure::Inode(u64::from(MAPS_INO)), at, problem));
        }
        Ok(if is_marked { MapsAt::Here(blocks) } else { MapsAt::Unfinished(blocks) })
    }
}

impl Raw<'_> {
    /// Whether the maps' inode says that they are used and where these blocks are, as far as it says so itself.
    fn follows(&self, area: &[BlockNo]) -> Result<bool> {
        let (_, table, offset) = self.maps_inode()?;
        let inode = &table[offset..offset + usize::from(self.shape.inode_size)];
        let size = u64::from(I_SIZE.get(inode)) | u64::from(I_SIZE_HIGH.get(inode)) << 32;
        let is_them =
            (0..DIRECT).zip(area).all(|(at, block)| u64::from(pointer_field(at).get(inode)) == block.get());
        Ok(self.shape.is_dynamic()
            && I_MODE.get(inode) == MODE
            && Le::u32(inode, I_OSD1) == MARK
            && size == to_u64(area.len()) * u64::from(self.shape.block_size)
            && is_them)
    }

    /// Whether the block of the maps' inode looks wiped or overwritten: nothing is in it at all, there is something in that inode that is not
    /// ours, or the root, which is before it, is no directory.
    fn may_hide(&self) -> Result<bool> {
        if !self.shape.is_dynamic() || self.foreign().is_some() {
            return Ok(false);
        }
        let (at, table, offset) = self.maps_inode()?;
        let size = usize::from(self.shape.inode_size);
        let (root_at, root) = inode::place(&self.shape, self.group(0)?.inode_table, ROOT_INO);
        let is_no_directory = |inode: &[u8]| I_MODE.get(inode) & FORMAT_MASK != DIRECTORY;
        Ok(table.iter().all(|byte| *byte == 0)
            || table[offset..offset + size].iter().any(|byte| *byte != 0)
            || root_at == at && is_no_directory(&table[root..root + size]))
    }
}

impl KeepsMaps for Ext {
    fn maps(&self, device: &dyn BlockDevice) -> Result<MapsAt> {
        Raw::read_any(device)?.maps()
    }

    fn follows(&self, device: &dyn BlockDevice, area: &[BlockNo]) -> Result<bool> {
        Raw::read(device)?.follows(area)
    }

    fn may_hide(&self, device: &dyn BlockDevice) -> Result<bool> {
        let raw = Raw::read_any(device)?;
        Ok(raw.maps()? == MapsAt::Nowhere && raw.may_hide()?)
    }

    fn make_room(&self, device: &dyn BlockDevice, room: Room, now: Timestamp) -> Result<Vec<BlockNo>> {
        space::take(device, room, now)
    }

    fn finish(&self, device: &dyn BlockDevice, are_used: bool) -> Result<()> {
        let raw = Raw::read(device)?;
        let (at, mut table, offset) = raw.maps_inode()?;
        Le::put_u32(&mut table, offset + I_OSD1, if are_used { MARK } else { 0 });
        raw.view.flush()?;
        raw.view.write(at, BlockKind::Inode, &table)?;
        raw.view.flush()
    }

    fn give_back(&self, device: &dyn BlockDevice) -> Result<()> {
        space::give_back(device)
    }

    fn census(&self, device: &dyn BlockDevice) -> Result<Vec<Stretch>> {
        census::take(&Raw::read(device)?)
    }

    fn free(&self, device: &dyn BlockDevice) -> Result<u64> {
        let raw = Raw::read(device)?;
        (0..raw.shape.group_count()).map(|group| Ok(u64::from(raw.group(group)?.free_blocks))).sum()
    }

    fn sealed(&self) -> Vec<u64> {
        vec![SEALED]
    }

    fn uuid(&self, device: &dyn BlockDevice) -> Result<[u8; 16]> {
        Ok(Raw::read_any(device)?.shape.uuid)
    }

    fn uuid_of_backup(&self, device: &dyn BlockDevice) -> Option<[u8; 16]> {
        let backup = find_backup(device).ok()??;
        backup.get(S_UUID..S_UUID + 16)?.try_into().ok()
    }

    fn rules(&self, device: &dyn BlockDevice) -> Result<Arc<dyn Rules>> {
        Ok(Arc::new(rules::ExtRules { shape: Raw::read(device)?.shape }))
    }
}
