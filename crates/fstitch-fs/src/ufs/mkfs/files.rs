//! The directories of a new volume: the root, and what was asked for below it.

use fstitch_core::Timestamp;
use fstitch_core::num::to_usize;

use super::options::MkfsOptions;
use super::plan::Plan;
use super::seconds;
use crate::ufs::layout::dirent::{CHUNK, HEADER};
use crate::ufs::layout::superblock::{ROOT_INO, Version};

/// Modes of directories.
const ROOT_MODE: u16 = 0o040_755;
const SNAP_MODE: u16 = 0o040_775;
const LOST_FOUND_MODE: u16 = 0o041_700;
/// The kind of a directory, as entries have it.
const DIRECTORY: u8 = 4;

/// A directory.
pub(super) struct NewDirectory {
    mode: u16,
    links: u16,
    /// Inodes, and their names.
    entries: Vec<(u32, &'static [u8])>,
}

/// The directories that were asked for, by their inodes: the root comes first.
pub(super) fn directories(options: &MkfsOptions) -> Vec<NewDirectory> {
    let below: [(bool, &'static [u8], u16); 2] =
        [(options.snap, b".snap", SNAP_MODE), (options.lost_found, b"lost+found", LOST_FOUND_MODE)];
    let below: Vec<_> = below.into_iter().filter(|(is_asked, ..)| *is_asked).zip(ROOT_INO + 1..).collect();
    let mut entries: Vec<(u32, &'static [u8])> = vec![(ROOT_INO, b"."), (ROOT_INO, b"..")];
    entries.extend(below.iter().map(|&((_, name, _), ino)| (ino, name)));
    let links = u16::try_from(entries.len()).expect("a few");
    let root = NewDirectory { mode: ROOT_MODE, links, entries };
    let others = below.into_iter().map(|((_, _, mode), ino)| NewDirectory {
        mode,
        links: 2,
        entries: vec![(ino, b"."), (ROOT_INO, b"..")],
    });
    std::iter::once(root).chain(others).collect()
}

impl NewDirectory {
    /// Its contents: one chunk, in a fragment.
    pub(super) fn contents(&self, plan: &Plan) -> Vec<u8> {
        let order = plan.order;
        let mut bytes = vec![0; to_usize(plan.fragment_size)];
        let mut at = 0;
        for (index, (ino, name)) in self.entries.iter().enumerate() {
            let is_last = index + 1 == self.entries.len();
            // A name ends with a zero.
            let len = if is_last { CHUNK - at } else { HEADER + (name.len() + 1).next_multiple_of(4) };
            order.put_u32(&mut bytes, at, *ino);
            order.put_u16(&mut bytes, at + 4, u16::try_from(len).expect("within a chunk"));
            bytes[at + 6] = DIRECTORY;
            bytes[at + 7] = u8::try_from(name.len()).expect("a short name");
            bytes[at + HEADER..at + HEADER + name.len()].copy_from_slice(name);
            at += len;
        }
        bytes
    }

    /// Its inode; the contents lie in fragment `block`.
    pub(super) fn inode(&self, plan: &Plan, options: &MkfsOptions, block: u32) -> Vec<u8> {
        let mut raw = vec![0; to_usize(plan.version.inode_size())];
        let order = plan.order;
        order.put_u16(&mut raw, 0, self.mode);
        order.put_u16(&mut raw, 2, self.links);
        let (uid, gid) = options.owner;
        let size = u64::try_from(CHUNK).expect("a small number");
        let sectors = plan.fragment_size / 512;
        let Timestamp { secs, nanos } = options.now;
        match plan.version {
            Version::One => {
                order.put_u64(&mut raw, 8, size);
                for at in [16, 24, 32] {
                    order.put_u32(&mut raw, at, seconds(secs));
                    order.put_u32(&mut raw, at + 4, nanos);
                }
                order.put_u32(&mut raw, 40, block);
                order.put_u32(&mut raw, 104, sectors);
                order.put_u32(&mut raw, 112, uid);
                order.put_u32(&mut raw, 116, gid);
            }
            Version::Two => {
                order.put_u32(&mut raw, 4, uid);
                order.put_u32(&mut raw, 8, gid);
                order.put_u64(&mut raw, 16, size);
                order.put_u64(&mut raw, 24, sectors.into());
                for (seconds, parts) in [(32, 68), (40, 64), (48, 72), (56, 76)] {
                    order.put_u64(&mut raw, seconds, secs.cast_unsigned());
                    order.put_u32(&mut raw, parts, nanos);
                }
                order.put_u64(&mut raw, 112, block.into());
            }
        }
        raw
    }
}
