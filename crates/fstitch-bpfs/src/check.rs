//! What a bug would leave: everything that the medium says is looked at once more, and compared with what is in memory.

use std::collections::BTreeSet;

use fstitch_core::{CheckReport, FindingClass, Result};

use crate::dir;
use crate::layout::LINK_MAX;
use crate::scan::scan;
use crate::state::State;

/// Checks a volume that nobody changes meanwhile.
///
/// # Errors
/// None so far: damage is a finding.
pub(crate) fn check(state: &State) -> Result<CheckReport> {
    let mut report = CheckReport::default();
    let mut found = |code: &'static str, text: String| report.push(FindingClass::Corrupt, code, text);
    let (space, inodes) = match scan(&state.gate, state.inode_file()) {
        Ok(scanned) => scanned,
        Err(error) => {
            found("damage", error.to_string());
            return Ok(report);
        }
    };
    for ino in 1..state.inodes.end() {
        let (on_medium, in_memory) = (inodes.names(ino), state.inodes.names(ino));
        if on_medium != in_memory {
            found("names", format!("inode {ino} has {on_medium} names, and {in_memory} in memory"));
        }
        if on_medium == 0 {
            continue;
        }
        if on_medium > LINK_MAX {
            found("names", format!("inode {ino} has {on_medium} names"));
        }
        if inodes.parent(ino) != state.inodes.parent(ino) {
            found("parent", format!("directory {ino} is in another one than in memory"));
        }
        let (on_medium, in_memory) = (inodes.blocks(ino), state.inodes.blocks(ino));
        if on_medium != in_memory {
            found("blocks", format!("inode {ino} has {on_medium} blocks, and {in_memory} in memory"));
        }
        let inode = state.inode(ino)?;
        if inode.is_dir() {
            let mut names = BTreeSet::new();
            dir::entries(&state.gate, &inode, 0, &mut |entry| {
                if entry.ino != 0 && !names.insert(entry.name.to_vec()) {
                    found("twice", format!("directory {ino} has a name twice"));
                }
                if entry.ino != 0 && fstitch_posix::name::check(entry.name, 255).is_err() {
                    found("name", format!("directory {ino} has a name that cannot be one"));
                }
                Ok(true)
            })?;
        }
    }
    // What is used in memory alone belongs to inodes that have no names any more, and are referred to.
    let unnamed = |ino: &u64| state.inodes.is_used(*ino) && inodes.names(*ino) == 0;
    let held: u64 = (1..state.inodes.end()).filter(unnamed).map(|ino| state.inodes.blocks(ino)).sum();
    let (free, in_memory) = (space.free(), state.space.free());
    if free != in_memory + held {
        found(
            "space",
            format!(
                "{free} blocks are free on the medium, and {in_memory} in memory, with {held} of inodes without names"
            ),
        );
    }
    Ok(report)
}
