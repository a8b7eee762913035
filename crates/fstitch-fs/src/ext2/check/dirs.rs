//! Pass 2: the entries of every directory.

use fstitch_core::Result;
use rustc_hash::FxHashSet;

use super::entries::{BlockScan, Entry, FirstNames};
use super::grow;
use super::inodes::INDEX;
use super::parts::{Parts, Shape};
use super::state::{BAD, State, Volume};
use super::tree::{self, Tree};
use super::{survey, tails};
use crate::ext2::layout::checksum::{has_directory_tail, put_directory_tail};
use crate::ext2::layout::inode::{EXTENTS_FL, I_FLAGS, I_SIZE};
use crate::ext2::num::{idx, wide};

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
    /// The entries are in the inode, where `.` and `..` have none.
    pub(super) is_inline: bool,
}

/// Scans the directory at `at` in the list of directories.
pub(super) fn scan_dir(volume: &Volume<'_>, state: &mut State, at: usize) -> Result<()> {
    let ino = state.dirs[at].ino;
    if state.inodes[idx(ino)] & BAD != 0 {
        return Ok(());
    }
    if state.seals() {
        tails::seal(volume, state, ino)?;
    }
    survey::dir(volume, state, ino)?;
    let mut parts = Parts::of(volume, state, ino)?;
    let mut dir = DirScan {
        ino,
        names: FxHashSet::default(),
        tree: None,
        drop_tree: false,
        dotdot: 0,
        is_hidden: false,
        is_inline: parts.is_inline(),
    };
    if I_FLAGS.get(&parts.raw) & INDEX != 0 {
        match Tree::read(volume, parts.blocks()) {
            Ok(tree) => dir.tree = Some(tree),
            Err(problem) => report_tree(volume, state, &mut dir, &problem?)?,
        }
    }
    if let Some(parent) = parts.inline_parent() {
        let exists = parent != 0 && parent <= volume.shape.inodes_count;
        let text = format!("inline directory {ino} has parent {parent}");
        if !exists && state.dir_problem(ino, "dir-dotdot-wrong", text) {
            parts.put_inline_parent(volume, crate::ext2::layout::superblock::ROOT_INO)?;
        }
        dir.dotdot = parts.inline_parent().filter(|_| exists).unwrap_or(0);
    }
    if holes(volume, state, &parts)? {
        return Ok(());
    }
    for part in 0..parts.count() {
        scan_part(volume, state, &mut dir, (&mut parts, part))?;
    }
    state.dirs[at].dotdot = dir.dotdot;
    if let Some(tree) = dir.tree.take()
        && let Err(problem) = tree.verify()
    {
        report_tree(volume, state, &mut dir, &problem)?;
    }
    if dir.drop_tree {
        drop_index(volume, state, ino)?;
    }
    Ok(())
}

/// Scans one part of a directory.
fn scan_part(
    volume: &Volume<'_>,
    state: &mut State,
    dir: &mut DirScan,
    (parts, at): (&mut Parts, usize),
) -> Result<()> {
    let mut bytes = Vec::new();
    let block = parts.block(at);
    if !parts.read(volume, at, &mut bytes)? || volume.source.block_moves(block) {
        return Ok(());
    }
    let shape = parts.shape(at, &bytes);
    let mut changed = sum(volume, state, parts, (at, shape), &mut bytes);
    dir.is_hidden =
        !dir.is_inline && wide(at) * wide(volume.block_size()) >= u64::from(I_SIZE.get(&parts.raw));
    let end = parts.entries_len(volume, shape, &bytes);
    let mut scan = BlockScan { volume, state, dir, logical: at, block, bytes: &mut bytes[..end] };
    changed |= scan.run()?;
    if changed {
        parts.write(volume, at, &mut bytes)?;
    }
    Ok(())
}

/// Judges the sum of a part; true when it is to be written with a right one.
fn sum(
    volume: &Volume<'_>,
    state: &mut State,
    parts: &Parts,
    (at, shape): (usize, Shape),
    bytes: &mut [u8],
) -> bool {
    if parts.sum_matches(volume, shape, bytes) {
        return false;
    }
    let (ino, block) = (parts.ino, parts.block(at));
    if shape == Shape::Leaf && !has_directory_tail(bytes) {
        let text = format!("block {at} (at {block}) of directory {ino} does not end with a sum");
        let mend = state.dir_problem(ino, "dir-tail", text);
        if mend {
            put_directory_tail(bytes);
        }
        return mend;
    }
    state.dir_problem(
        ino,
        "dir-sum",
        format!("the sum of block {at} (at {block}) of directory {ino} does not match"),
    )
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

/// Without the flag, an indexed directory is an ordinary one: its index blocks look empty. With sums they get the tails of
/// leaves first.
pub(super) fn drop_index(volume: &Volume<'_>, state: &State, ino: u32) -> Result<()> {
    let mut parts = Parts::of(volume, state, ino)?;
    if volume.has_sums() {
        let mut bytes = Vec::new();
        for at in 0..parts.count() {
            if parts.read(volume, at, &mut bytes)? && parts.shape(at, &bytes) == Shape::Index {
                let first = (at == 0).then(|| (ino, grow::parent_in(&bytes)));
                parts.write(volume, at, &mut Parts::empty_block(volume, first))?;
            }
        }
    }
    let mut raw = volume.read_inode(ino)?;
    let flags = I_FLAGS.get(&raw);
    I_FLAGS.put(&mut raw, flags & !INDEX);
    volume.write_inode(ino, &raw)
}

/// A directory has no holes. True when it is another one now, to be scanned by the next run: by extents, what is behind a
/// hole moves up; by pointers, a hole is filled with an empty block.
fn holes(volume: &Volume<'_>, state: &mut State, parts: &Parts) -> Result<bool> {
    let holes: Vec<usize> = (0..parts.blocks().len()).filter(|&at| parts.block(at) == 0).collect();
    let Some(&first) = holes.first() else { return Ok(false) };
    let ino = parts.ino;
    let text = format!("directory {ino} has no block {first}, and {} in all", holes.len());
    if !state.dir_problem(ino, "dir-hole", text) {
        return Ok(false);
    }
    if I_FLAGS.get(&parts.raw) & EXTENTS_FL != 0 {
        grow::close_holes(volume, state, ino)?;
        return Ok(true);
    }
    for logical in holes {
        if !grow::fill_hole(volume, state, ino, logical)? {
            state.mended -= 1;
            break;
        }
    }
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
