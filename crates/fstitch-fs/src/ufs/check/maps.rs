//! What the groups say that is free, and the totals.

use fstitch_core::num::to_usize;

use super::State;
use crate::ufs::layout::superblock::{ROOT_INO, Totals};
use crate::ufs::volume::Ufs;

impl Ufs {
    pub(super) fn check_maps(&self, state: &mut State) {
        let mut all = Totals::default();
        for no in 0..self.sb.groups {
            let Some(group) = state.groups[to_usize(no)].take() else { continue };
            let start = u64::from(no) * u64::from(self.sb.group_fragments);
            let per_block = self.sb.fragments_per_block();
            let (mut wrongly_free, mut leaked) = (0_u64, 0_u64);
            let mut found = Totals::default();
            for at in 0..group.fragments {
                match (group.is_fragment_free(at), state.claimed.get(start + u64::from(at))) {
                    (true, true) => wrongly_free += 1,
                    (false, false) => leaked += 1,
                    _ => {}
                }
                if at % per_block == 0 {
                    let free =
                        (at..(at + per_block).min(group.fragments)).filter(|&at| group.is_fragment_free(at));
                    match u64::try_from(free.count()).unwrap_or(0) {
                        free if free == u64::from(per_block) => found.blocks += 1,
                        free => found.fragments += free,
                    }
                }
            }
            if wrongly_free > 0 {
                state.damage(
                    "block-free",
                    format!("group {no}: {wrongly_free} fragments that are somebody's are called free"),
                );
            }
            if leaked > 0 {
                state.allowed("block-leaked", format!("group {no}: {leaked} fragments in use are nobody's"));
            }
            for at in 0..self.sb.group_inodes {
                let ino = no * self.sb.group_inodes + at;
                let used = state.inodes[to_usize(ino)].is_used || ino < ROOT_INO;
                found.inodes += u64::from(!group.is_inode_used(at));
                match (group.is_inode_used(at), used) {
                    (false, true) => {
                        state.damage("inode-free", format!("inode {ino} is in use, and called free"))
                    }
                    (true, false) => {
                        state.allowed("inode-leaked", format!("inode {ino} is called used, and is not"))
                    }
                    _ => {}
                }
            }
            found.directories = group.totals.directories;
            if found != group.totals {
                state.allowed("group-totals", format!("group {no}: {:?}, {found:?} found", group.totals));
            }
            all.blocks += found.blocks;
            all.fragments += found.fragments;
            all.inodes += found.inodes;
        }
        all.directories = state.totals.directories;
        if all != self.sb.totals && state.report.corrupt == 0 {
            state.allowed("totals", format!("{:?}, {all:?} found", self.sb.totals));
        }
    }
}
