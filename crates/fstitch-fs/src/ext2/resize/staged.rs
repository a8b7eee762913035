//! Blocks as they are to be, in memory.

use std::collections::BTreeMap;

use fstitch_core::{BlockBuf, BlockKind, BlockNo, Result};

use crate::view::BlockView;

/// The changes of a volume, by block.
pub(super) struct Staged<'v> {
    volume: BlockView<'v>,
    pub(super) blocks: BTreeMap<BlockNo, (BlockKind, BlockBuf)>,
}

impl<'v> Staged<'v> {
    pub(super) const fn new(volume: BlockView<'v>) -> Self {
        Self { volume, blocks: BTreeMap::new() }
    }

    /// A block to be changed, which is read the first time.
    pub(super) fn change(&mut self, no: u64, kind: BlockKind) -> Result<&mut [u8]> {
        let no = BlockNo(no);
        if !self.blocks.contains_key(&no) {
            let mut block = BlockBuf::zeroed(self.volume.block_size());
            self.volume.read(no, kind, &mut block)?;
            self.blocks.insert(no, (kind, block));
        }
        Ok(&mut self.blocks.get_mut(&no).expect("just inserted").1[..])
    }

    /// A block that begins as zeros, whatever it held. Once it was made it is as it was made.
    pub(super) fn fresh(&mut self, no: u64, kind: BlockKind) -> &mut [u8] {
        let size = self.volume.block_size();
        let (_, block) = self.blocks.entry(BlockNo(no)).or_insert_with(|| (kind, BlockBuf::zeroed(size)));
        &mut block[..]
    }
}
