//! Pass 3: which directories a path from the root leads to, and which directory each belongs to.
//!
//! A directory may have several names after a crash: a rename writes the new name before it removes the old
//! one, and renames in quick succession can leave more than two. The name in the directory that `..` names is
//! the valid one. Names inside directories that no path leads to do not count.

use std::collections::BTreeSet;

use fstitch_core::Result;

use super::entries::entry_len;
use super::parts::Parts;
use super::state::{BAD, REACHED, State, Volume};
use crate::ext2::layout::dirent::{D_INODE, D_NAME_LEN, ENTRY_MIN, HEADER};
use crate::ext2::layout::superblock::ROOT_INO;
use crate::ext2::num::idx;

/// Directories without a path whose `..` chain starts at them: what lost+found would take.
pub(super) type Orphans = BTreeSet<u32>;

/// Finds every directory's place in the tree; the tops of trees that no path leads to.
pub(super) fn run(volume: &Volume<'_>, state: &mut State) -> Result<Orphans> {
    if !state.is_dir(ROOT_INO) || state.inodes[idx(ROOT_INO)] & BAD != 0 {
        let text = "there is no root directory";
        if state.corrupt("root-missing", text) {
            super::links::make_root(volume, state)?;
        }
        return Ok(Orphans::new());
    }
    state.edges.sort_unstable();
    reach(state);
    state.settle_dir_problems(volume);
    choose_parents(volume, state)?;
    let orphans = unreached(volume, state)?;
    for at in 0..state.dirs.len() {
        let dir = state.dirs[at];
        if dir.ino != ROOT_INO
            && dir.parent != 0
            && let Some(parent) = state.dir_index(dir.parent)
        {
            state.dirs[parent].children += 1;
        }
    }
    Ok(orphans)
}

/// The children of `parent`, from the sorted list of names.
fn children(edges: &[(u32, u32)], parent: u32) -> &[(u32, u32)] {
    let start = edges.partition_point(|edge| edge.0 < parent);
    let end = edges.partition_point(|edge| edge.0 <= parent);
    &edges[start..end]
}

/// Marks all directories that names lead to from the root; each gets the parent through which it was found.
fn reach(state: &mut State) {
    let edges = std::mem::take(&mut state.edges);
    let mut queue = vec![ROOT_INO];
    state.inodes[idx(ROOT_INO)] |= REACHED;
    while let Some(parent) = queue.pop() {
        for &(_, child) in children(&edges, parent) {
            if state.inodes[idx(child)] & REACHED == 0 {
                state.inodes[idx(child)] |= REACHED;
                if let Some(at) = state.dir_index(child) {
                    state.dirs[at].parent = parent;
                }
                queue.push(child);
            }
        }
    }
    state.edges = edges;
}

/// Settles the parent of each directory that has a path.
fn choose_parents(volume: &Volume<'_>, state: &mut State) -> Result<()> {
    let mut names: Vec<(u32, u32)> = state.edges.iter().map(|&(parent, child)| (child, parent)).collect();
    names.sort_unstable();
    let found: Vec<u32> = state.dirs.iter().map(|dir| dir.parent).collect();
    for at in 0..state.dirs.len() {
        let dir = state.dirs[at];
        let has = |parent: u32| names.binary_search(&(dir.ino, parent)).is_ok();
        let valid = dir.dotdot != 0 && state.inodes[idx(dir.dotdot)] & REACHED != 0 && has(dir.dotdot);
        if valid && dir.ino != ROOT_INO && state.inodes[idx(dir.ino)] & REACHED != 0 {
            state.dirs[at].parent = dir.dotdot;
        }
    }
    break_cycles(volume, state, &found);
    for at in 0..state.dirs.len() {
        let ino = state.dirs[at].ino;
        if state.inodes[idx(ino)] & REACHED != 0 && !volume.source.inode_moves(ino) {
            let start = names.partition_point(|name| name.0 < ino);
            let end = names.partition_point(|name| name.0 <= ino);
            judge_names(volume, state, at, &names[start..end])?;
        }
    }
    Ok(())
}

/// Where the `..` entries lead in circles, the path by which a directory was found decides.
fn break_cycles(volume: &Volume<'_>, state: &mut State, found: &[u32]) {
    let mut settled = BTreeSet::from([ROOT_INO]);
    for at in 0..state.dirs.len() {
        let mut path = Vec::new();
        let mut here = state.dirs[at].ino;
        if state.inodes[idx(here)] & REACHED == 0 {
            continue;
        }
        let mut on_path = BTreeSet::new();
        while !settled.contains(&here) {
            let Some(place) = state.dir_index(here) else {
                break;
            };
            if !on_path.insert(here) {
                let text = format!("directory {here} is inside itself");
                // Pass 3 goes on with a path that does lead to the root; `..` is put right with it.
                if !on_path.iter().any(|&ino| volume.source.inode_moves(ino)) {
                    state.hopeless("dir-cycle", text);
                }
                for &ino in &on_path {
                    if let Some(place) = state.dir_index(ino) {
                        state.dirs[place].parent = found[place];
                    }
                }
                break;
            }
            path.push(here);
            here = state.dirs[place].parent;
        }
        settled.extend(path);
    }
}

/// Judges the names of the directory at `at`: (child, parent) pairs.
fn judge_names(volume: &Volume<'_>, state: &mut State, at: usize, names: &[(u32, u32)]) -> Result<()> {
    let dir = state.dirs[at];
    let reached: Vec<u32> =
        names.iter().map(|name| name.1).filter(|&p| state.inodes[idx(p)] & REACHED != 0).collect();
    let parent = if dir.ino == ROOT_INO { ROOT_INO } else { dir.parent };
    let named_by_dotdot = names.iter().any(|name| name.1 == dir.dotdot);
    if reached.len() > 1 {
        let text =
            format!("directory {} has names in directories {reached:?}, .. is {}", dir.ino, dir.dotdot);
        let mend = if named_by_dotdot {
            state.allowed("dir-two-names", text)
        } else {
            state.corrupt("dir-many-names", text)
        };
        if mend {
            let others: BTreeSet<u32> = reached.iter().copied().collect();
            for other in others {
                remove_names(volume, state, other, dir.ino, other == parent)?;
            }
        }
    }
    // A directory without blocks has no `..`; pass 4 deals with it.
    if dir.dotdot == parent || state.inodes[idx(dir.ino)] & BAD != 0 {
        return Ok(());
    }
    let text = format!("\"..\" of directory {} names {}, expected {parent}", dir.ino, dir.dotdot);
    // A rename into a directory which itself was not yet named: the old name still holds.
    let mend = if named_by_dotdot && reached.len() == 1 {
        state.allowed("dir-two-names", text)
    } else {
        state.corrupt("dir-dotdot-wrong", text)
    };
    if mend {
        set_dotdot(volume, state, dir.ino, parent)?;
    }
    Ok(())
}

/// Removes the names of `child` from directory `parent`, all but the first if `keep_first`.
fn remove_names(volume: &Volume<'_>, state: &State, parent: u32, child: u32, keep_first: bool) -> Result<()> {
    let mut parts = Parts::of(volume, state, parent)?;
    let mut keep = keep_first;
    let mut bytes = Vec::new();
    for part in 0..parts.count() {
        if !parts.read(volume, part, &mut bytes)? {
            continue;
        }
        let end = parts.entries_end(volume, part, &bytes);
        let mut changed = false;
        let mut at = 0;
        while let Ok(len) = entry_len(&bytes[..end], at) {
            let name_len = usize::from(D_NAME_LEN.get(&bytes[at..]));
            let name = &bytes[at + HEADER..at + HEADER + name_len];
            let special = part == 0 && matches!(name, b"." | b"..");
            if D_INODE.get(&bytes[at..]) == child && !special {
                if keep {
                    keep = false;
                } else {
                    D_INODE.put(&mut bytes[at..], 0);
                    changed = true;
                }
            }
            at += len;
        }
        if changed {
            parts.write(volume, part, &mut bytes)?;
        }
    }
    Ok(())
}

/// Makes `..` of directory `ino` name `parent`.
pub(super) fn set_dotdot(volume: &Volume<'_>, state: &State, ino: u32, parent: u32) -> Result<()> {
    let mut parts = Parts::of(volume, state, ino)?;
    if parts.is_inline() {
        return parts.put_inline_parent(volume, parent);
    }
    let mut bytes = Vec::new();
    if parts.count() == 0 || !parts.read(volume, 0, &mut bytes)? {
        return Ok(());
    }
    if let Ok(len) = entry_len(&bytes, 0)
        && len + ENTRY_MIN <= bytes.len()
    {
        D_INODE.put(&mut bytes[len..], parent);
        parts.write(volume, 0, &mut bytes)?;
    }
    Ok(())
}

/// Takes back the names in directories that no path leads to; the tops of their trees.
fn unreached(volume: &Volume<'_>, state: &mut State) -> Result<Orphans> {
    let lost: Vec<u32> =
        state.dirs.iter().map(|dir| dir.ino).filter(|&ino| state.inodes[idx(ino)] & REACHED == 0).collect();
    if lost.is_empty() {
        return Ok(Orphans::new());
    }
    for &ino in &lost {
        if state.inodes[idx(ino)] & BAD == 0 {
            uncount(volume, state, ino)?;
        }
    }
    let named: BTreeSet<u32> = state.edges.iter().map(|edge| edge.1).collect();
    let mut orphans: Orphans = lost.iter().copied().filter(|ino| !named.contains(ino)).collect();
    let mut seen: BTreeSet<u32> = BTreeSet::new();
    for &top in &orphans {
        follow(state, top, &mut seen);
    }
    for &ino in &lost {
        if seen.contains(&ino) {
            continue;
        }
        if !lost.iter().any(|&ino| volume.source.inode_moves(ino)) {
            state.hopeless("dir-cycle", format!("directory {ino} is only reached through itself"));
        }
        orphans.insert(ino);
        follow(state, ino, &mut seen);
    }
    Ok(orphans)
}

/// Adds everything below `top` to `seen`.
fn follow(state: &State, top: u32, seen: &mut BTreeSet<u32>) {
    let mut queue = vec![top];
    while let Some(ino) = queue.pop() {
        if seen.insert(ino) {
            queue.extend(children(&state.edges, ino).iter().map(|edge| edge.1));
        }
    }
}

/// Takes back what pass 2 counted for the names in directory `ino`.
fn uncount(volume: &Volume<'_>, state: &mut State, ino: u32) -> Result<()> {
    for child in named_in(volume, state, ino)? {
        if !state.is_dir(child) {
            let count = &mut state.names[idx(child)];
            *count = count.saturating_sub(1);
        }
    }
    Ok(())
}

/// The inodes in use that directory `ino` names, itself and its parent aside.
pub(super) fn named_in(volume: &Volume<'_>, state: &State, ino: u32) -> Result<Vec<u32>> {
    let parts = Parts::of(volume, state, ino)?;
    let mut found = Vec::new();
    let mut bytes = Vec::new();
    for part in 0..parts.count() {
        if !parts.read(volume, part, &mut bytes)? {
            continue;
        }
        let end = parts.entries_end(volume, part, &bytes);
        let has_first = part == 0 && !parts.is_inline();
        let (mut at, mut index) = (0, 0);
        while at < end
            && let Ok(len) = entry_len(&bytes[..end], at)
        {
            let child = D_INODE.get(&bytes[at..]);
            let ordinary = (volume.shape.first_ino..=volume.shape.inodes_count).contains(&child);
            if !(has_first && index < 2) && ordinary && state.is_used(child) {
                found.push(child);
            }
            at += len;
            index += 1;
        }
    }
    Ok(found)
}
