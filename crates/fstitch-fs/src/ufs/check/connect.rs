//! Pass 3: where each directory belongs, and which ones no path leads to.
//!
//! A directory has one name. A rename writes the new one before it removes the old one, so after a crash there may be two: the name in
//! the directory that `..` names is the one that holds.

use std::collections::{BTreeMap, BTreeSet};

use fstitch_core::Result;
use fstitch_core::num::to_usize;

use super::chunk;
use super::lost::{change_entries, named_in, set_dotdot};
use super::state::State;
use super::volume::Volume;
use crate::ufs::layout::superblock::ROOT_INO;

/// The tops of trees that no path leads to.
pub(super) type Tops = BTreeSet<u32>;

/// Settles where directories belong.
pub(super) fn run(volume: &Volume<'_>, state: &mut State) -> Result<Tops> {
    let mut others: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for (ino, parent) in std::mem::take(&mut state.other_names) {
        others.entry(ino).or_default().push(parent);
    }
    for (ino, parents) in &others {
        settle_names(volume, state, *ino, parents)?;
    }
    for at in 0..state.dirs.len() {
        if state.is_reached(state.dirs[at].ino) {
            settle_dotdot(volume, state, at)?;
        }
    }
    for at in 0..state.dirs.len() {
        let (ino, parent) = (state.dirs[at].ino, state.dirs[at].parent);
        if ino != ROOT_INO
            && state.is_reached(ino)
            && let Some(parent) = state.dir_mut(parent)
        {
            parent.children += 1;
        }
    }
    tops(volume, state)
}

/// Decides between the names of directory `ino`, of which all but the first are in `others`.
fn settle_names(volume: &Volume<'_>, state: &mut State, ino: u32, others: &[u32]) -> Result<()> {
    let Some(dir) = state.dir_index(ino).map(|at| state.dirs[at]) else { return Ok(()) };
    let is_named = dir.dotdot == dir.parent || others.contains(&dir.dotdot);
    // One inside the directory itself would cut it off.
    let holder = if is_named && !is_inside(state, dir.dotdot, ino) { dir.dotdot } else { dir.parent };
    let text =
        format!("directory {ino} has names in {} and {others:?}, its .. is {}", dir.parent, dir.dotdot);
    let mend = match is_named {
        true => state.allowed("dir-two-names", text),
        false => state.corrupt("dir-two-names", text),
    };
    if let Some(dir) = state.dir_mut(ino) {
        dir.parent = holder;
    }
    if mend {
        let parents: BTreeSet<u32> = others.iter().copied().chain([dir.parent]).collect();
        for parent in parents {
            let mut keeps = parent == holder;
            change_entries(volume, parent, &mut |bytes, entry| {
                let is_other = entry.ino == ino && !std::mem::take(&mut keeps);
                if is_other {
                    chunk::put_ino(bytes, entry.at, 0, volume.manner());
                }
                keeps &= entry.ino != ino;
                is_other
            })?;
        }
    }
    Ok(())
}

/// Whether directory `ino` is `top`, or in it.
fn is_inside(state: &State, mut ino: u32, top: u32) -> bool {
    // Parents form a tree, so this ends; the limit is for one that does not.
    for _ in 0..state.dirs.len() {
        if ino == top {
            return true;
        }
        match state.dir_index(ino) {
            Some(at) if ino != ROOT_INO && state.dirs[at].parent != 0 => ino = state.dirs[at].parent,
            _ => return false,
        }
    }
    true
}

/// Compares `..` with where a directory belongs.
fn settle_dotdot(volume: &Volume<'_>, state: &mut State, at: usize) -> Result<()> {
    let dir = state.dirs[at];
    if dir.dotdot == dir.parent || dir.dotdot == 0 {
        return Ok(());
    }
    let text = format!("directory {}: .. is {}, expected {}", dir.ino, dir.dotdot, dir.parent);
    // A rename into a directory that had no name itself: the old name still holds.
    let is_renamed = state.is_dir(dir.dotdot)
        && !state.is_reached(dir.dotdot)
        && named_in(volume, state, dir.dotdot)?.contains(&dir.ino);
    let mend = match is_renamed {
        true => state.allowed("dir-two-names", text),
        false => state.corrupt("dir-dots", text),
    };
    if mend {
        set_dotdot(volume, dir.ino, dir.parent)?;
    }
    Ok(())
}

/// Directories that no path leads to, and none of those names; of rings one.
fn tops(volume: &Volume<'_>, state: &State) -> Result<Tops> {
    let lost: Vec<u32> = state.dirs.iter().map(|dir| dir.ino).filter(|&ino| !state.is_reached(ino)).collect();
    let mut below: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    let mut named = BTreeSet::new();
    for &ino in &lost {
        let inside: Vec<u32> = named_in(volume, state, ino)?
            .into_iter()
            .filter(|&child| child != ino && state.is_dir(child) && !state.is_reached(child))
            .collect();
        named.extend(inside.iter().copied());
        below.insert(ino, inside);
    }
    let mut tops: Tops = lost.iter().copied().filter(|ino| !named.contains(ino)).collect();
    let mut seen = BTreeSet::new();
    let follow = |top: u32, seen: &mut BTreeSet<u32>| {
        let mut rest = vec![top];
        while let Some(ino) = rest.pop() {
            if seen.insert(ino) {
                rest.extend(below.get(&ino).into_iter().flatten());
            }
        }
    };
    tops.iter().for_each(|&top| follow(top, &mut seen));
    for &ino in &lost {
        if !seen.contains(&ino) {
            tops.insert(ino);
            follow(ino, &mut seen);
        }
    }
    Ok(tops)
}

/// Links that inode `ino` should count.
pub(super) fn links_of(state: &State, ino: u32) -> u32 {
    match state.dir_index(ino) {
        // Its name, its own `.`, and the `..` of each subdirectory.
        Some(at) => 2 + state.dirs[at].children,
        None => state.names(ino).into(),
    }
}

/// Links that inode `ino` counts.
pub(super) fn counted(state: &State, ino: u32) -> u32 {
    state.links[to_usize(ino)].into()
}
