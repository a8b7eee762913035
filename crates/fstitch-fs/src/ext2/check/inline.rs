//! What has its contents in its inode: in the place of the map, and in the value of an attribute.

use fstitch_core::{FileKind, Result};

use super::inodes::Scan;
use super::{extents, xattrs};
use crate::ext2::layout::extent::Node;
use crate::ext2::layout::feature::incompat;
use crate::ext2::layout::inode::{EXTENTS_FL, FAST_SYMLINK, I_FLAGS, INLINE_DATA_FL};
use crate::ext2::num::wide;

impl Scan<'_, '_> {
    /// What has its contents in the inode: as many bytes as there is room for in the place of the map and the attribute.
    pub(super) fn inline(&mut self, kind: FileKind, attributes: u64) -> Result<()> {
        let (ino, size) = (self.ino, self.size());
        let value = xattrs::inline_value(self.raw);
        let room = wide(FAST_SYMLINK) + value.as_ref().map_or(0, |value| wide(value.len()));
        if value.is_none() {
            let text = format!("inode {ino} has its contents inside, but no attribute for them");
            if self.state.corrupt("inline-attribute", text) {
                if !xattrs::add_inline_value(self.raw) {
                    self.truncate();
                }
                self.changed = true;
                return Ok(());
            }
        }
        let text = format!("inode {ino} has {size} bytes inside, with room for {room}");
        let fits = if kind == FileKind::Directory { size == room } else { size <= room };
        if !fits && self.state.corrupt("inline-size", text) {
            self.set_size(room);
        }
        // A target for which there is room in the place of the map lies there without the flag.
        if kind == FileKind::Symlink && (size < room || !self.inline_target_is_sane(size)) {
            self.bad("symlink-bad");
        }
        if self.get(I_FLAGS) & EXTENTS_FL != 0 {
            let text = format!("inode {ino} has its contents inside and in extents");
            if self.state.corrupt("inode-bad-flags", text) {
                let flags = self.get(I_FLAGS);
                self.put(I_FLAGS, flags & !EXTENTS_FL);
            }
        }
        self.block_count(attributes);
        Ok(())
    }

    /// Makes it one without contents, mapped as new ones are.
    fn truncate(&mut self) {
        let by_extents = self.volume.shape.features.has_incompat(incompat::EXTENTS);
        let flags = self.get(I_FLAGS) & !(INLINE_DATA_FL | EXTENTS_FL);
        self.put(I_FLAGS, flags | if by_extents { EXTENTS_FL } else { 0 });
        self.raw[extents::ROOT].fill(0);
        if by_extents {
            Node::empty_root().encode_into(&mut self.raw[extents::ROOT]);
        }
        self.set_size(0);
    }

    /// Whether the contents are a target of `size` bytes.
    fn inline_target_is_sane(&self, size: u64) -> bool {
        let mut bytes = self.raw[extents::ROOT].to_vec();
        bytes.extend(xattrs::inline_value(self.raw).map_or(&[][..], |value| &self.raw[value]));
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        size > 0 && size <= bytes.len() && !bytes[..size].contains(&0)
    }
}
