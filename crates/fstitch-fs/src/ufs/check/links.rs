//! Pass 4: names against link counts, and inodes without a name.

use fstitch_core::{FileKind, Result};

use super::connect::{Tops, counted, links_of};
use super::lost::{named_in, reconnect};
use super::state::{Mending, State};
use super::volume::Volume;
use crate::ufs::layout::superblock::ROOT_INO;

/// Judges every inode in use.
pub(super) fn run(volume: &Volume<'_>, state: &mut State, tops: &Tops) -> Result<()> {
    let hidden = volume.hidden();
    // What is in a tree that comes back has a name again in the next run.
    let mut kept = Tops::new();
    if state.mends(fstitch_core::FindingClass::Allowed) {
        for &top in tops {
            if keeps(volume, state, top)? {
                kept.insert(top);
            }
        }
    }
    for ino in ROOT_INO..volume.shape.inodes() {
        if !state.is_used(ino) || hidden.contains(&ino) {
            continue;
        }
        if state.is_named(ino) {
            judge_links(volume, state, ino, &kept)?;
        } else {
            judge_nameless(volume, state, ino, &kept)?;
        }
    }
    Ok(())
}

fn judge_links(volume: &Volume<'_>, state: &mut State, ino: u32, kept: &Tops) -> Result<()> {
    let (counts, names) = (counted(state, ino), links_of(state, ino));
    if counts == names {
        return Ok(());
    }
    let text = format!("inode {ino}: {counts} links, {names} names");
    // A count that is too high is what a removal leaves that was cut off.
    let mend = match counts > names {
        true => state.allowed("inode-links", text),
        false => state.corrupt("inode-links", text),
    };
    if mend && !kept.is_empty() {
        // Names in a tree that comes back count in the next run.
        state.gave_up();
    } else if mend {
        let mut inode = volume.read_inode(ino)?;
        inode.set_links(u16::try_from(names).unwrap_or(u16::MAX));
        volume.write_inode(ino, &inode)?;
    }
    Ok(())
}

/// An inode in use to which no path leads.
fn judge_nameless(volume: &Volume<'_>, state: &mut State, ino: u32, kept: &Tops) -> Result<()> {
    let links = counted(state, ino);
    let (code, text) = match links {
        0 => ("inode-orphan", format!("inode {ino} has no name, and no link")),
        _ => ("inode-unreferenced", format!("inode {ino} has no name, and {links} links")),
    };
    if !state.allowed(code, text) {
        return Ok(());
    }
    if !kept.is_empty() && !kept.contains(&ino) {
        state.gave_up();
        return Ok(());
    }
    if kept.contains(&ino) || keeps(volume, state, ino)? {
        if !reconnect(volume, state, ino)? {
            state.gave_up();
        }
        return Ok(());
    }
    let mut inode = volume.read_inode(ino)?;
    inode.clear();
    volume.write_inode(ino, &inode)
}

/// Whether an inode without a name goes to lost+found: it had a name or was to get one, and holds something. Where there is damage a
/// name may have been lost with no crash, so that all do.
fn keeps(volume: &Volume<'_>, state: &State, ino: u32) -> Result<bool> {
    let inode = volume.read_inode(ino)?;
    let is_dir = state.is_dir(ino);
    // A name of a directory without length would be removed again.
    if is_dir && state.is_empty(ino) {
        return Ok(false);
    }
    if inode.links() > 0 && (state.mending == Mending::Everything || inode.extra_size() > 0) {
        return Ok(true);
    }
    if is_dir {
        // What has a name elsewhere is not lost with this one.
        return Ok(named_in(volume, state, ino)?.into_iter().any(|child| !state.is_named(child)));
    }
    let holds = matches!(inode.kind(), Some(FileKind::Regular | FileKind::Symlink)) && inode.size() > 0;
    Ok(holds && inode.links() > 0)
}
