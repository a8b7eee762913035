//! Check hashes of metadata, as FreeBSD 12 and later keep them: CRC-32C, begun with all bits set and not complemented at the end, of
//! the structure with zeros in the hash's place.
//!
//! **Inodes** of UFS2 get theirs when the image of their fragment is frozen ([`Seal`]), and are verified when one was read. One with a wrong hash
//! is refused, and keeps it when its neighbours are written: what is wrong must not look right. Who makes it anew takes it off the list.
//!
//! **Groups and the superblock** lie in several blocks of the cache, and no order makes these agree at every moment. So the
//! superblock says before the first change that groups and itself have none ([`in_use`]), and says that they have when the volume is left clean: groups
//! that were changed get theirs, the others have what they had.
//!
//! **Crash cases.** Between the two nobody has hashes but inodes, whose images are written as they were sealed. What says so are 12 bytes in one
//! sector: the superblock's hash, who has hashes, and the flags. They are made stable alone, the first time before anything else changes and the
//! last time after everything else, so that neither a torn block nor a mechanism that keeps no orders comes between.

use std::collections::BTreeSet;

use fstitch_core::lock::Mutex;
use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::order::rank;
use fstitch_core::{BlockDevice, BlockKind, BlockNo, Error, Result, Structure};
use fstitch_patch::Seal;

use super::layout::group::{Group, at::CKHASH as GROUP_AT};
use super::layout::superblock::{SUPERBLOCK_MAX, SUPERBLOCK_SIZE, Superblock, at, hashed};
use super::order::Order;
use crate::view::BlockView;

/// Where the hash of an inode of UFS2 is.
pub(super) const INODE_AT: usize = 244;
/// Bytes of such an inode.
const INODE_LEN: usize = 256;

/// The hash of a structure whose own hash is at `at`.
pub(super) fn hash(bytes: &[u8], at: usize) -> u32 {
    let crc = crc32c::crc32c(&bytes[..at]);
    let crc = crc32c::crc32c_append(crc, &[0; 4]);
    !crc32c::crc32c_append(crc, &bytes[at + 4..])
}

/// Whether a structure has the hash that it says.
pub(super) fn is_right(order: Order, bytes: &[u8], at: usize) -> bool {
    order.u32(bytes, at) == hash(bytes, at)
}

/// Puts the hash of an inode of UFS2 into it, unless it is free: those have none.
pub(super) fn seal_inode(order: Order, raw: &mut [u8]) {
    if order.u16(raw, 0) != 0 {
        let sum = hash(raw, INODE_AT);
        order.put_u32(raw, INODE_AT, sum);
    }
}

/// Whether an inode of UFS2 is free or has its hash.
pub(super) fn is_inode_right(order: Order, raw: &[u8]) -> bool {
    order.u16(raw, 0) == 0 || is_right(order, raw, INODE_AT)
}

/// Whether a group has its hash; `bytes` begins with it.
pub(super) fn is_group_right(sb: &Superblock, bytes: &[u8]) -> bool {
    let len = to_usize(sb.group_size);
    bytes.len() >= len && is_right(sb.order, &bytes[..len], GROUP_AT)
}

/// Bytes of a superblock that its hash is of, if they are as many as there may be.
pub(super) fn super_len(order: Order, raw: &[u8]) -> Option<usize> {
    let len = to_usize(order.u32(raw, at::SBSIZE));
    (SUPERBLOCK_SIZE..=SUPERBLOCK_MAX.min(raw.len())).contains(&len).then_some(len)
}

/// Whether the superblock in `raw` has its hash.
pub(super) fn is_super_right(order: Order, raw: &[u8]) -> bool {
    super_len(order, raw).is_some_and(|len| is_right(order, &raw[..len], at::CKHASH))
}

/// Who has hashes while a volume is in use where `kept` have otherwise.
pub(super) const fn in_use(kept: u32) -> u32 {
    kept & hashed::INODE
}

/// The seal of a volume whose inodes have hashes.
pub(super) struct Hasher {
    order: Order,
    /// Inodes with wrong hashes, by block and place.
    bad: Mutex<BTreeSet<(BlockNo, usize)>, rank::Leaf>,
}

impl Hasher {
    /// That of a volume, if its inodes have hashes.
    pub(super) fn of(sb: &Superblock) -> Option<Self> {
        let has = sb.kept_hashes() & hashed::INODE != 0;
        has.then(|| Self { order: sb.order, bad: Mutex::default() })
    }

    /// Whether the hash of the inode at byte `at` of a block that was read was wrong.
    pub(super) fn is_bad(&self, (block, at): (BlockNo, usize)) -> bool {
        self.bad.lock().contains(&(block, at))
    }

    /// The inode is made anew.
    pub(super) fn forget(&self, place: (BlockNo, usize)) {
        self.bad.lock().remove(&place);
    }
}

impl Seal for Hasher {
    fn covers(&self, kind: BlockKind) -> bool {
        kind == BlockKind::Inode
    }

    fn seal(&self, block: BlockNo, _kind: BlockKind, _owner: u64, image: &mut [u8]) {
        let bad = self.bad.lock();
        for (no, raw) in image.chunks_exact_mut(INODE_LEN).enumerate() {
            if bad.is_empty() || !bad.contains(&(block, no * INODE_LEN)) {
                seal_inode(self.order, raw);
            }
        }
    }

    fn verify(&self, block: BlockNo, _kind: BlockKind, _owner: u64, image: &[u8]) -> Result<()> {
        let mut bad = self.bad.lock();
        for (no, raw) in image.chunks_exact(INODE_LEN).enumerate() {
            let place = (block, no * INODE_LEN);
            match is_inode_right(self.order, raw) {
                true => bad.remove(&place),
                false => bad.insert(place),
            };
        }
        Ok(())
    }
}

/// What is done with all hashes of a volume that nobody uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// To see that those that there are match.
    Verify,
    /// To make them. Where a crash ends it, the volume has none.
    Make,
}

/// Goes through groups and inodes.
///
/// # Errors
/// `Corrupt` if a group makes no sense, or a hash that there is does not match; `Io`.
pub(super) fn all(device: &dyn BlockDevice, sb: &Superblock, purpose: Purpose) -> Result<()> {
    if purpose == Purpose::Verify && sb.kept_hashes() == 0 {
        return Ok(());
    }
    let view = BlockView::new(device, sb.fragment_len());
    let (fragment, len) = (sb.fragment_len(), to_usize(sb.group_size));
    let mut bytes = vec![0; len.next_multiple_of(fragment)];
    for no in 0..sb.groups {
        let first = sb.group_start(no) + u64::from(sb.parts[1]);
        for (at, part) in (first..).zip(bytes.chunks_mut(fragment)) {
            view.read(BlockNo(at), BlockKind::GroupDescriptor, part)?;
        }
        let group = Group::parse(bytes[..len].to_vec(), no, BlockNo(first), sb)?;
        if purpose == Purpose::Make {
            let sum = hash(&bytes[..len], GROUP_AT);
            sb.order.put_u32(&mut bytes, GROUP_AT, sum);
            for (at, part) in (first..).zip(bytes.chunks(fragment)) {
                view.write(BlockNo(at), BlockKind::GroupDescriptor, part)?;
            }
        } else if sb.kept_hashes() & hashed::GROUP != 0 && !is_group_right(sb, &bytes) {
            return Err(wrong_group(no, first));
        }
        if purpose == Purpose::Make || sb.kept_hashes() & hashed::INODE != 0 {
            all_inodes(&view, sb, (no, group.initialised), purpose)?;
        }
    }
    device.flush()
}

/// The same of the inodes of a group, of which so many were ever written.
fn all_inodes(
    view: &BlockView<'_>,
    sb: &Superblock,
    (group, initialised): (u32, u32),
    purpose: Purpose,
) -> Result<()> {
    let base = group * sb.group_inodes;
    let table = sb.inode_place(base).0.get();
    let count = (u64::from(initialised) * to_u64(INODE_LEN)).div_ceil(u64::from(sb.fragment_size));
    let mut bytes = vec![0; sb.fragment_len()];
    let mut ino = base;
    for at in table..table + count {
        view.read(BlockNo(at), BlockKind::Inode, &mut bytes)?;
        let mut is_changed = false;
        for raw in bytes.chunks_exact_mut(INODE_LEN) {
            let is_wrong = !is_inode_right(sb.order, raw);
            if is_wrong && purpose == Purpose::Verify {
                return Err(super::damaged_inode(ino, "its check hash does not match".into()));
            }
            if is_wrong {
                seal_inode(sb.order, raw);
                is_changed = true;
            }
            ino += 1;
        }
        if is_changed {
            view.write(BlockNo(at), BlockKind::Inode, &bytes)?;
        }
    }
    Ok(())
}

/// The error of a group whose hash is wrong.
pub(super) fn wrong_group(no: u32, at: u64) -> Error {
    let problem = "its check hash does not match: `fstitch fsck` mends it";
    Error::corrupt(Structure::Descriptor(u64::from(no)), BlockNo(at), problem)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The same bit by bit: 0x82f63b78 is Castagnoli's polynomial, reversed.
    fn slow(bytes: &[u8]) -> u32 {
        bytes.iter().fold(u32::MAX, |crc, &byte| {
            (0..8).fold(
                crc ^ u32::from(byte),
                |crc, _| {
                    if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 }
                },
            )
        })
    }

    #[test]
    fn the_hash_is_not_complemented_and_its_own_place_is_zero() {
        let mut bytes: Vec<u8> = (0..=255).collect();
        let sum = hash(&bytes, INODE_AT);
        bytes[INODE_AT..INODE_AT + 4].fill(0);
        assert_eq!(sum, slow(&bytes));
        // RFC 3720 has 0x8a9136aa for 32 zeros, complemented.
        assert_eq!(hash(&[0; 32], 4), !0x8a91_36aa);
    }

    #[test]
    fn free_inodes_have_none() {
        let mut raw = [7; INODE_LEN];
        raw[..2].fill(0);
        let before = raw;
        seal_inode(Order::Little, &mut raw);
        assert_eq!(raw, before);
        assert!(is_inode_right(Order::Little, &raw));
        raw[0] = 1;
        assert!(!is_inode_right(Order::Big, &raw));
        seal_inode(Order::Big, &mut raw);
        assert!(is_inode_right(Order::Big, &raw) && !is_inode_right(Order::Little, &raw));
    }
}
