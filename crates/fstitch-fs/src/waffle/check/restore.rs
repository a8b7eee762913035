//! One bit that a medium has changed is found by the sum: of all blocks that differ from what is there in one bit, the one that has it is what
//! was written. It is written again where it was, and everything is as before: contents, snapshots, tables.

use fstitch_core::{BlockDevice, BlockKind, BlockNo, BlockRead, BlockWrite, Error, Result};

use super::super::layout::pointer::Ref;
use super::super::layout::{BLOCK, sum};

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
