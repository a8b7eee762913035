//! Pass 2: the entries of every directory.

use fstitch_core::{BlockKind, Result};
use rustc_hash::FxHashSet;

use super::entries::{BlockScan, Entry, FirstNames};
use super::inodes::INDEX;
use super::state::{BAD, State, Volume};
use super::tree::{self, Tree};
use super::walk::{Pointer, Verdict, Visit, walk};
use crate::ext2::layout::inode::{I_FLAGS, I_SIZE};
use crate::ext2::num::{idx, low32, wide};

/// The directory being scanned.
pub(super) struct DirScan {
    pub(super) ino: u32,
    /// Hashes of the names seen, to find names that come twice.
    pub(super) names: FxHashSet<u64>,
    /// The index, where there is one.
    pub(super) tree: Option<Tree>,
    /// The index no longer fits and must go.
    pub(super) drop_tree: bool,
    /// The inode that `..` names.
    pub(super) dotdot: u32,
    /// The block being scanned is behind the directory's end.
    pub(super) is_hidden: bool,
}

/// The blocks of a directory by file block number; 0 where there is none.
struct Blocks<'a> {
    state: &'a State,
    list: Vec<u32>,
}

impl Visit for Blocks<'_> {
    fn visit(&mut self, volume: &Volume<'_>, pointer: Pointer) -> Result<Verdict> {
        if !volume.is_valid(pointer.block) {
            return Ok(Verdict::Skip);
        }
        if pointer.level > 0 {
            // A shared indirect block is damage that pass 1 reported; following it each time would let a
            // hostile volume make us walk for ever.
            let shared = self.state.shared.get(u64::from(pointer.block));
            return Ok(if shared { Verdict::Skip } else { Verdict::Follow });
        }
        let at = crate::ext2::num::idx64(pointer.logical);
        // Directories end at 2 GiB; the list stays small.
        if pointer.logical < (1 << 31) / wide(volume.block_size()) {
            self.list.resize(self.list.len().max(at + 1), 0);
            self.list[at] = pointer.block;
        }
        Ok(Verdict::Skip)
    }
}

/// The blocks of directory `ino`, and its inode.
pub(super) fn blocks_of(volume: &Volume<'_>, state: &State, ino: u32) -> Result<(Vec<u32>, Vec<u8>)> {
    let mut raw = volume.read_inode(ino)?;
    let mut visitor = Blocks { state, list: Vec::new() };
    walk(volume, &mut raw, &mut visitor)?;
    Ok((visitor.list, raw))
}

/// Scans the directory at `at` in the list of directories.
pub(super) fn scan_dir(volume: &Volume<'_>, state: &mut State, at: usize) -> Result<()> {
    let ino = state.dirs[at].ino;
    if state.inodes[idx(ino)] & BAD != 0 {
        return Ok(());
    }
    let (blocks, raw) = blocks_of(volume, state, ino)?;
    let indexed = I_FLAGS.get(&raw) & INDEX != 0;
    let mut dir = DirScan {
        ino,
        names: FxHashSet::default(),
        tree: None,
        drop_tree: false,
        dotdot: 0,
        is_hidden: false,
    };
    if indexed {
        match Tree::read(volume, &blocks) {
            Ok(tree) => dir.tree = Some(tree),
            Err(problem) => report_tree(volume, state, &mut dir, &problem?)?,
        }
    }
    let mut bytes = vec![0; volume.block_size()];
    for (logical, &block) in blocks.iter().enumerate() {
        if block == 0 {
            hole(volume, state, ino, logical)?;
            continue;
        }
        if volume.source.block_moves(block) {
            continue;
        }
        volume.read(block, BlockKind::Directory, &mut bytes)?;
        dir.is_hidden = wide(logical) * wide(volume.block_size()) >= u64::from(I_SIZE.get(&raw));
        let mut scan = BlockScan { volume, state, dir: &mut dir, logical, block, bytes: &mut bytes };
        if scan.run()? {
            volume.write(block, BlockKind::Directory, &bytes)?;
        }
    }
    state.dirs[at].dotdot = dir.dotdot;
    if let Some(tree) = dir.tree.take()
        && let Err(problem) = tree.verify()
    {
        report_tree(volume, state, &mut dir, &problem)?;
    }
    if dir.drop_tree {
        drop_index(volume, ino)?;
    }
    Ok(())
}

fn report_tree(volume: &Volume<'_>, state: &mut State, dir: &mut DirScan, problem: &str) -> Result<()> {
    // While the volume is in use, the first change of a directory gives its index up.
    if state.judging && I_FLAGS.get(&volume.read_inode(dir.ino)?) & INDEX == 0 {
        return Ok(());
    }
    let text = format!("index of directory {}: {problem}", dir.ino);
    dir.drop_tree |= state.dir_problem(dir.ino, "index-bad", text);
    Ok(())
}

/// Without the flag, an indexed directory is an ordinary one: its index blocks look empty.
pub(super) fn drop_index(volume: &Volume<'_>, ino: u32) -> Result<()> {
    let mut raw = volume.read_inode(ino)?;
    let flags = I_FLAGS.get(&raw);
    I_FLAGS.put(&mut raw, flags & !INDEX);
    volume.write_inode(ino, &raw)
}

/// A directory has no holes: one is filled with an empty block.
fn hole(volume: &Volume<'_>, state: &mut State, ino: u32, logical: usize) -> Result<()> {
    let text = format!("directory {ino} has no block {logical}");
    if state.dir_problem(ino, "dir-hole", text) && !fill_hole(volume, state, ino, logical)? {
        state.mended -= 1;
    }
    Ok(())
}

/// Puts an empty block where directory `ino` has none; false when there is no room, or the hole is below an
/// indirect block.
fn fill_hole(volume: &Volume<'_>, state: &mut State, ino: u32, logical: usize) -> Result<bool> {
    let mut raw = volume.read_inode(ino)?;
    if logical >= crate::ext2::layout::inode::DIRECT {
        return super::salvage::compact(volume, state, ino);
    }
    let Some(block) = super::claims::allocate(volume, state)? else {
        return Ok(false);
    };
    let mut bytes = vec![0; volume.block_size()];
    if logical == 0 {
        let filetype = volume.shape.has_filetype();
        crate::ext2::layout::dirent::put_first_block(&mut bytes, ino, ino, filetype);
    } else {
        crate::ext2::layout::dirent::put_empty_block(&mut bytes);
    }
    volume.write(block, BlockKind::Directory, &bytes)?;
    volume.source.flush()?;
    crate::ext2::layout::inode::pointer_field(logical).put(&mut raw, block);
    let sectors = crate::ext2::layout::inode::I_BLOCKS.get(&raw);
    let more = low32(wide(volume.block_size() / 512));
    crate::ext2::layout::inode::I_BLOCKS.put(&mut raw, sectors.saturating_add(more));
    volume.write_inode(ino, &raw)?;
    Ok(true)
}

/// Notes what an entry means for the rest of the check.
pub(super) fn note(volume: &Volume<'_>, state: &mut State, dir: &mut DirScan, entry: &Entry<'_>) {
    match entry.first {
        FirstNames::Dot => {}
        FirstNames::DotDot => {
            let valid = entry.ino != 0 && entry.ino <= volume.shape.inodes_count;
            dir.dotdot = if valid { entry.ino } else { 0 };
        }
        FirstNames::Other if state.is_dir(entry.ino) => state.edges.push((dir.ino, entry.ino)),
        FirstNames::Other => state.add_name(entry.ino),
    }
}

/// The index's view of a name in block `logical`.
pub(super) fn note_hash(dir: &mut DirScan, logical: usize, name: &[u8]) {
    if let Some(tree) = &mut dir.tree {
        tree::note(tree, logical, name);
    }
}
