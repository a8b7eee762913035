//! Every name, from the root on.

use fstitch_core::num::to_usize;
use fstitch_core::{InodeNo, Result};

use super::State;
use crate::bits::Bits;
use crate::ufs::layout::superblock::ROOT_INO;
use crate::ufs::volume::Ufs;

impl Ufs {
    pub(super) fn check_names(&self, state: &mut State) -> Result<()> {
        let mut seen = Bits::new(u64::from(self.sb.inodes()));
        let mut rest = vec![(ROOT_INO, ROOT_INO)];
        while let Some((ino, parent)) = rest.pop() {
            if !state.inodes[to_usize(ino)].is_directory {
                continue;
            }
            if seen.set(u64::from(ino)) {
                state.damage("dir-names", format!("directory {ino} has a second name"));
                continue;
            }
            self.check_directory(state, (ino, parent), &mut rest)?;
        }
        for ino in ROOT_INO..self.sb.inodes() {
            let found = state.inodes[to_usize(ino)];
            let (links, names) = (u32::from(found.nlink), found.names);
            match (found.is_used, names) {
                (false, _) => {}
                (true, 0) if links == 0 => {
                    state.allowed("inode-orphan", format!("inode {ino} has no name, and no link"))
                }
                (true, 0) => {
                    state.damage("inode-unnamed", format!("inode {ino} has no name, and {links} links"))
                }
                // A count that is too high is what a removal leaves that was cut off.
                (true, _) if links > names => {
                    state.allowed("inode-links", format!("inode {ino}: {links} links, {names} names"));
                }
                (true, _) if links < names => {
                    state.damage("inode-links", format!("inode {ino}: {links} links, {names} names"));
                }
                (true, _) => {}
            }
        }
        Ok(())
    }

    fn check_directory(
        &self,
        state: &mut State,
        (ino, parent): (u32, u32),
        rest: &mut Vec<(u32, u32)>,
    ) -> Result<()> {
        let dir = self.load_inode(InodeNo(u64::from(ino)))?;
        let mut dots = (None, None);
        let mut names: Vec<(u32, Vec<u8>)> = Vec::new();
        let walked = self.walk(&dir, 0, &mut |entry, _, _| {
            match entry.name {
                b"." => dots.0 = Some(entry.ino),
                b".." => dots.1 = Some(entry.ino),
                name if entry.is_used() => names.push((entry.ino, name.to_vec())),
                _ => {}
            }
            true
        });
        state.keep("dir-entry", walked)?;
        if dots != (Some(ino), Some(parent)) {
            state.damage("dir-dots", format!("directory {ino} in {parent}: its dots are {dots:?}"));
        }
        let all = dots.0.into_iter().chain(dots.1).chain(names.iter().map(|(to, _)| *to));
        for to in all {
            match state.inodes.get_mut(to_usize(to)).filter(|found| found.is_used) {
                Some(found) => found.names += 1,
                None => state
                    .damage("dir-entry", format!("directory {ino} names inode {to}, which is not in use")),
            }
        }
        rest.extend(names.into_iter().filter(|(to, _)| *to < self.sb.inodes()).map(|(to, _)| (to, ino)));
        Ok(())
    }
}
