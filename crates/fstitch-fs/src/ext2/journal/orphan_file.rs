//! The orphan file: an inode without a name that ext4 keeps the numbers of unlinked open files in, instead of a list.
//!
//! **Layout.** Whole blocks without holes. Each holds inode numbers, 0 for none, then a magic number and its sum in its last
//! eight bytes. While there may be numbers the superblock says so (`orphan_present`).

use fstitch_core::{BlockKind, BlockNo, Error, InodeNo, Le, Result, Structure};
use fstitch_patch::journal::Area;

use super::find::{inode_place, whole_file};
use super::raw::Superblock;
use crate::ext2::layout::checksum::{self, InodeSums, ORPHAN_MAGIC, ORPHAN_TAIL};
use crate::ext2::layout::inode::DiskInode;
use crate::ext2::num::idx;
use crate::view::BlockView;

const WHAT: Structure = Structure::Other("orphan file");

/// The orphan file of a volume.
pub(super) struct OrphanFile {
    blocks: Vec<BlockNo>,
    sums: InodeSums,
    /// Bytes of a block.
    block_size: usize,
}

impl OrphanFile {
    /// Finds and checks it; `None` if the volume has none.
    ///
    /// # Errors
    /// `Io`; `Corrupt` if it cannot be one.
    pub(super) fn find(volume: &BlockView<'_>, shape: &Superblock) -> Result<Option<Self>> {
        let ino = shape.orphan_file;
        if ino == 0 {
            return Ok(None);
        }
        if ino < shape.first_ino || ino > shape.inodes_count {
            return Err(Error::corrupt(WHAT, None, format!("it is inode {ino}")));
        }
        let block_size = idx(shape.block_size);
        let (at, offset) = inode_place(volume, shape, ino)?;
        let mut block = vec![0; block_size];
        volume.read(at, BlockKind::Inode, &mut block)?;
        let raw = &block[offset..offset + usize::from(shape.inode_size)];
        let disk = DiskInode::parse(raw, InodeNo(u64::from(ino)), at, shape)?;
        let (area, _) = whole_file(volume, shape, WHAT, &disk)?;
        let file =
            Self { blocks: blocks(&area)?, sums: shape.sums.of_inode(ino, disk.generation), block_size };
        for &no in &file.blocks {
            volume.read(no, BlockKind::Data, &mut block)?;
            file.check(no, &block)?;
        }
        Ok(Some(file))
    }

    fn check(&self, no: BlockNo, block: &[u8]) -> Result<()> {
        if Le::u32(block, self.block_size - ORPHAN_TAIL) != ORPHAN_MAGIC {
            return Err(Error::corrupt(WHAT, no, "no magic number"));
        }
        match self.sums.orphan_block(no.get(), block) {
            Some(placed) if !checksum::is_placed(block, placed) => {
                Err(Error::corrupt(WHAT, no, "its checksum is wrong"))
            }
            _ => Ok(()),
        }
    }

    /// Where the numbers are: block and byte.
    pub(super) fn slots(&self) -> impl Iterator<Item = (BlockNo, usize)> + '_ {
        let end = self.block_size - ORPHAN_TAIL;
        self.blocks.iter().flat_map(move |&no| (0..end).step_by(4).map(move |at| (no, at)))
    }

    /// Puts the sum of a block that was changed in place.
    pub(super) fn seal(&self, no: BlockNo, block: &mut [u8]) {
        if let Some(placed) = self.sums.orphan_block(no.get(), block) {
            checksum::place(block, placed);
        }
    }
}

fn blocks(area: &Area) -> Result<Vec<BlockNo>> {
    (0..area.count()).map(|at| area.map(at)).collect()
}
