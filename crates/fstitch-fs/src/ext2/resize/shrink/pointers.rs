//! Files whose map is pointers.

use fstitch_core::num::to_usize;
use fstitch_core::{BlockKind, BlockNo, Error, Le, Result, Structure};

use super::Mover;
use crate::ext2::journal::{Loaded, Pass};
use crate::ext2::layout::inode::{DIRECT, POINTERS};
use crate::ext2::num::{pointer32, wide};

/// Where a pointer is.
#[derive(Clone, Copy)]
enum At {
    /// In the inode.
    Inode(usize),
    /// In this block of pointers.
    Block(BlockNo, usize),
}

/// Fails for a pointer that leads out of the volume.
fn check(pass: &Pass<'_, '_>, ino: u32, pointer: u32) -> Result<()> {
    if pass.shape.is_for_files(u64::from(pointer)) {
        return Ok(());
    }
    let problem = format!("it has block {pointer}: check the volume first");
    Err(Error::corrupt(Structure::Inode(u64::from(ino)), None, problem))
}

/// Calls `each` with every block in an inode's map by pointers, in the order of the file, and whether it is one of pointers.
pub(super) fn each_pointer(
    pass: &Pass<'_, '_>,
    inode: &Loaded,
    each: &mut dyn FnMut(u64, u32, bool),
) -> Result<()> {
    // A damaged map leads around: it has no more blocks of pointers than the volume has blocks.
    let mut left = pass.shape.blocks_count;
    for (at, &pointer) in inode.disk.block.iter().enumerate() {
        below(pass, inode.ino, (pointer, at.saturating_sub(DIRECT - 1)), &mut left, each)?;
    }
    Ok(())
}

fn below(
    pass: &Pass<'_, '_>,
    ino: u32,
    (pointer, levels): (u32, usize),
    left: &mut u64,
    each: &mut dyn FnMut(u64, u32, bool),
) -> Result<()> {
    if pointer == 0 {
        return Ok(());
    }
    check(pass, ino, pointer)?;
    each(u64::from(pointer), 1, levels > 0);
    if levels == 0 {
        return Ok(());
    }
    let around = || Error::corrupt(Structure::Inode(u64::from(ino)), None, "its map leads around");
    *left = left.checked_sub(1).ok_or_else(around)?;
    let block = pass.read(BlockNo(u64::from(pointer)), BlockKind::Indirect)?;
    let pointers = to_usize(pass.shape.pointers_per_block());
    (0..pointers).try_for_each(|at| below(pass, ino, (Le::u32(&block, 4 * at), levels - 1), left, each))
}

impl Mover<'_, '_> {
    /// Moves the blocks of a file, from its first on, as far as the batch has room; whether that is all. Blocks of pointers move before
    /// what they point at, so that all that was moved is in the file at any moment.
    pub(super) fn move_pointers(&mut self, inode: &mut Loaded) -> Result<bool> {
        let mut first = 0;
        for at in 0..POINTERS {
            let levels = at.saturating_sub(DIRECT - 1);
            if !self.move_below(inode, At::Inode(at), inode.disk.block[at], (levels, first))? {
                return Ok(false);
            }
            first += self.span(levels);
        }
        Ok(true)
    }

    /// File blocks below a pointer.
    fn span(&self, levels: usize) -> u64 {
        (0..levels).fold(1, |span, _| span * u64::from(self.pass.shape.pointers_per_block()))
    }

    /// Moves the block that a pointer points at, `levels` above the file's of which the first is `first`, and all below.
    fn move_below(
        &mut self,
        inode: &mut Loaded,
        at: At,
        pointer: u32,
        (levels, first): (usize, u64),
    ) -> Result<bool> {
        let span = self.span(levels);
        if pointer == 0 || first + span <= self.resume {
            return Ok(true);
        }
        check(&self.pass, inode.ino, pointer)?;
        let mut here = pointer;
        if u64::from(pointer) >= self.limits.end {
            if !self.has_room(2) {
                return Ok(false);
            }
            // Before the new end, as all that is moved, and so is this pointer: below 2^32.
            here = pointer32(self.next_block()?);
            if levels == 0 {
                self.move_contents(inode, (u64::from(pointer), u64::from(here), 1))?;
            } else {
                let node = self.pass.read(BlockNo(u64::from(pointer)), BlockKind::Indirect)?;
                self.pass.put_new(BlockNo(u64::from(here)), BlockKind::Indirect, node);
                self.pass.forget(BlockNo(u64::from(pointer)));
            }
            match at {
                At::Inode(at) => inode.disk.block[at] = here,
                At::Block(no, slot) => {
                    Le::put_u32(self.pass.change(no, BlockKind::Indirect)?, 4 * slot, here);
                }
            }
            self.moved(u64::from(pointer), u64::from(here), 1);
        }
        if levels > 0 {
            let no = BlockNo(u64::from(here));
            let block = self.pass.read(no, BlockKind::Indirect)?;
            let each = self.span(levels - 1);
            for slot in 0..to_usize(self.pass.shape.pointers_per_block()) {
                if !self.has_room(2) {
                    return Ok(false);
                }
                let first = first + wide(slot) * each;
                let child = Le::u32(&block, 4 * slot);
                if !self.move_below(inode, At::Block(no, slot), child, (levels - 1, first))? {
                    return Ok(false);
                }
            }
        }
        self.resume = self.resume.max(first + span);
        Ok(true)
    }
}
