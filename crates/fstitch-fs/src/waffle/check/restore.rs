//! One bit that a medium has changed is found by the sum: of all blocks that differ from what is there in one bit, the one that has it is what
//! was written. It is written again where it was, and everything is as before: contents, snapshots, tables.

use fstitch_core::num::to_usize;
use fstitch_core::{BlockDevice, BlockKind, BlockNo, BlockRead, BlockWrite, Error, Result};

use super::super::layout::pointer::{Fork, Ref};
use super::super::layout::root::Root;
use super::super::layout::{BLOCK, FAN, MapShape, sum};

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
