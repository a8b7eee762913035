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
//! **Crash cases.** Between the two nobody has hashes but inodes, whose images are written as they were sealed. The last write of an orderly end is
//! one of 12 bytes in one sector: the superblock's hash, who has hashes, and the flags.

use std::collections::BTreeSet;

use fstitch_core::lock::Mutex;
use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::order::rank;
use fstitch_core::{BlockDevice, BlockKind, BlockNo, Result};
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

/// Makes all hashes of groups and inodes of a volume that nobody uses, which has none in force. Where a crash ends it, it still has none.
///
/// # Errors
/// `Corrupt` if a group makes no sense, `Io`.
pub(super) fn make_all(device: &dyn BlockDevice, sb: &Superblock) -> Result<()> {
    let view = BlockView::new(device, sb.fragment_len());
    let fragment = sb.fragment_len();
    for no in 0..sb.groups {
        let first = sb.group_start(no) + u64::from(sb.parts[1]);
        let mut bytes = vec![0; to_usize(sb.group_size).next_multiple_of(fragment)];
        for (at, part) in (first..).zip(bytes.chunks_mut(fragment)) {
            view.read(BlockNo(at), BlockKind::GroupDescriptor, part)?;
        }
        let len = to_usize(sb.group_size);
        let group = Group::parse(bytes[..len].to_vec(), no, BlockNo(first), sb)?;
        let sum = hash(&bytes[..len], GROUP_AT);
        sb.order.put_u32(&mut bytes, GROUP_AT, sum);
        for (at, part) in (first..).zip(bytes.chunks(fragment)) {
            view.write(BlockNo(at), BlockKind::GroupDescriptor, part)?;
        }
        if sb.all_hashes() & hashed::INODE != 0 {
            make_inodes(&view, sb, no, group.initialised)?;
        }
    }
    device.flush()
}

/// The same of the inodes of a group, of which so many were ever written.
fn make_inodes(view: &BlockView<'_>, sb: &Superblock, group: u32, initialised: u32) -> Result<()> {
    let table = sb.inode_place(group * sb.group_inodes).0.get();
    let count = (u64::from(initialised) * to_u64(INODE_LEN)).div_ceil(u64::from(sb.fragment_size));
    let mut bytes = vec![0; sb.fragment_len()];
    for at in table..table + count {
        view.read(BlockNo(at), BlockKind::Inode, &mut bytes)?;
        let before = bytes.clone();
        bytes.chunks_exact_mut(INODE_LEN).for_each(|raw| seal_inode(sb.order, raw));
        if bytes != before {
            view.write(BlockNo(at), BlockKind::Inode, &bytes)?;
        }
    }
    Ok(())
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
