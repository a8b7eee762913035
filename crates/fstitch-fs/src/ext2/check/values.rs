//! Inodes that hold values of attributes: they have no name, and count the entries that refer to them.

use fstitch_core::Result;

use super::state::{State, Volume};
use crate::ext2::layout::Field;
use crate::ext2::layout::inode::I_CTIME;
use crate::ext2::num::low32;

/// The low half of the count, where other inodes have a version; the high half is where they have the time of the last
/// change.
const COUNT: Field<u32> = Field::at(0x24);

/// Compares the count of each with the entries that were met. One without any is for pass 4 to free.
pub(super) fn check_counts(volume: &Volume<'_>, state: &mut State) -> Result<()> {
    let inodes = std::mem::take(&mut state.value_inodes);
    for &ino in &inodes {
        let seen = state.value_uses(ino);
        let mut raw = volume.read_inode(ino)?;
        let counted = u64::from(COUNT.get(&raw)) | u64::from(I_CTIME.get(&raw)) << 32;
        if seen == 0 || seen == counted {
            continue;
        }
        let text =
            format!("inode {ino}, a value of attributes, counts {counted} entries, {seen} refer to it");
        if state.corrupt("value-count", text) {
            COUNT.put(&mut raw, low32(seen));
            I_CTIME.put(&mut raw, low32(seen >> 32));
            volume.write_inode(ino, &raw)?;
        }
    }
    state.value_inodes = inodes;
    Ok(())
}
