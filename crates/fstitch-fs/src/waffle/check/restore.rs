//! One bit that a medium has changed is found by the sum: of all blocks that differ from what is there in one bit, the one that has it is what
//! was written. It is written again where it was, and everything is as before: contents, snapshots, tables.

use fstitch_core::num::to_usize;
use fstitch_core::{BlockDevice, BlockKind, BlockNo, BlockRead, BlockWrite, Error, Le, Result};

use super::super::layout::pointer::{Fork, Ref};
use super::super::layout::root::{Root, SUM_AT, read_head};
use super::super::layout::{BLOCK, BLOCK_BYTES, FAN, MapShape, ROOT_PLACES, sum};

/// What the tables of a volume are, for the device.
const KIND: BlockKind = BlockKind::GroupDescriptor;
/// Blocks of a level of such a table that are looked at, about: all that the most trees need.
const TABLE_MAX: usize = 1 << 13;

/// Blocks that are not what their references say, and what they hold. Each of which more than one bit is wrong takes some milliseconds.
pub(super) type Suspects = Vec<(Ref, BlockKind)>;

/// Restores those of which one bit is wrong; says how many.
pub(super) fn blocks(device: &dyn BlockDevice, suspects: &Suspects) -> Result<u64> {
    let mut restored = 0;
    let mut bytes = vec![0; BLOCK];
    for &(reference, kind) in suspects {
        let block = BlockNo(reference.block);
        match device.read(&mut [BlockRead { block, kind, data: &mut bytes }]) {
            Ok(()) => {}
            Err(Error::Io { .. }) => continue,
            Err(error) => return Err(error),
        }
        if sum(&bytes) != reference.sum && find(&mut bytes, reference.sum) {
            device.write(&[BlockWrite { block, kind, data: &bytes }])?;
            restored += 1;
        }
    }
    if restored > 0 {
        device.flush()?;
    }
    Ok(restored)
}

/// Restores the blocks of a table from its top down, as far as they lead to each other.
pub(super) fn fork(device: &dyn BlockDevice, fork: Fork, root: &Root) -> Result<u64> {
    let data = (MapShape::of(root.blocks).end, root.blocks);
    let mut suspects: Suspects = vec![(fork.root, KIND)];
    let mut restored = 0;
    for level in (0..=fork.height).rev() {
        suspects.retain(|(reference, _)| {
            !reference.is_none() && reference.problem(data, root.generation).is_none()
        });
        restored += blocks(device, &suspects)?;
        if level == 0 {
            break;
        }
        let mut below = Suspects::new();
        for &(reference, kind) in &suspects {
            let mut bytes = vec![0; BLOCK];
            let block = BlockNo(reference.block);
            let read = device.read(&mut [BlockRead { block, kind, data: &mut bytes }]);
            if read.is_ok() && sum(&bytes) == reference.sum && below.len() < TABLE_MAX {
                below.extend((0..to_usize(FAN)).map(|slot| (Ref::slot(&bytes, slot), KIND)));
            }
        }
        suspects = below;
    }
    Ok(restored)
}

/// The last root, and its bytes as they were written, if one bit of it is wrong on the medium. A root is written in one piece after all that
/// it leads to is stable: one that is so nearly whole was not torn, or is as good as the one before it. Any other is as a cut
/// may leave it, and nobody can say more.
pub(super) fn root(device: &dyn BlockDevice) -> Result<Option<(Root, Vec<u8>)>> {
    let head = read_head(device)?;
    let blocks = device.geometry().bytes() / BLOCK_BYTES;
    // What a valid one says that cannot be, whoever reads it tells.
    let Ok(valid) = Root::find(&head) else { return Ok(None) };
    let mut last: Option<(Root, Vec<u8>)> = None;
    for place in ROOT_PLACES {
        let at = to_usize(place * BLOCK_BYTES);
        let Some(there) = head.get(at..at + BLOCK).filter(|there| !Root::is_there(there)) else { continue };
        let mut bytes = there.to_vec();
        if !find_root(&mut bytes) {
            continue;
        }
        let Ok(root) = Root::decode(&bytes, place) else { continue };
        let is_next = valid.as_ref().is_none_or(|valid| root.generation == valid.generation + 1);
        let is_last = last.as_ref().is_none_or(|(other, _)| other.generation < root.generation);
        if root.blocks <= blocks && is_next && is_last {
            last = Some((root, bytes));
        }
    }
    Ok(last)
}

/// Writes a root's bytes where they were.
pub(super) fn put_root(device: &dyn BlockDevice, root: &Root, bytes: &[u8]) -> Result<()> {
    assert!(Root::is_there(bytes), "a root is written that is one");
    device.write(&[BlockWrite { block: BlockNo(root.place()), kind: BlockKind::Superblock, data: bytes }])?;
    device.flush()
}

/// Changes one bit so that the bytes are a root's, if there is one: in what the sum is of, or in the sum.
fn find_root(bytes: &mut [u8]) -> bool {
    let (said, found) = (Le::u64(bytes, SUM_AT), sum(&bytes[..SUM_AT]));
    if (said ^ found).count_ones() == 1 {
        Le::put_u64(bytes, SUM_AT, found);
    } else if !find(&mut bytes[..SUM_AT], said) {
        return false;
    }
    Root::is_there(bytes)
}

/// Changes one bit so that the bytes have this sum, if there is one.
fn find(bytes: &mut [u8], wanted: u64) -> bool {
    (0..8 * bytes.len()).any(|bit| {
        let (at, mask) = (bit / 8, 1 << (bit % 8));
        bytes[at] ^= mask;
        let is_it = sum(bytes) == wanted;
        if !is_it {
            bytes[at] ^= mask;
        }
        is_it
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_bit_is_found_and_no_two() {
        let written: Vec<u8> = (0..BLOCK).map(|at| u8::try_from(at % 251).unwrap()).collect();
        for bit in [0, 7, 8 * 2000 + 3, 8 * BLOCK - 1] {
            let mut bytes = written.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(find(&mut bytes, sum(&written)));
            assert_eq!(bytes, written);
        }
        let mut bytes = written.clone();
        bytes[7] ^= 3;
        let damaged = bytes.clone();
        assert!(!find(&mut bytes, sum(&written)));
        assert_eq!(bytes, damaged);
    }
}
