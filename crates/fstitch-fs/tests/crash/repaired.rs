//! Damage that was found by the fuzz target `ext2_repair`: a volume that the repairer calls mended shows no damage in
//! use.

use fstitch_core::{MemDevice, Timestamp};
use fstitch_core::{RepairMode, RepairOptions};
use fstitch_fs::ext2::check::{check_ext2, repair_ext2};

use crate::{hostile, populated};

/// Changes of two bytes each, by position, that together once left something behind: a volume that lost its revision,
/// and with it the kinds in its directories, kept one in the free space of a directory; a flag that says that sizes are
/// counted in blocks stayed, and the inode could not be read.
const FOUND: [&[(usize, [u8; 2])]; 2] =
    [&[(1099, [0, 0]), (12_416, [0, 0])], &[(58511, [112, 196]), (10018, [148, 194])]];

#[test]
fn what_was_repaired_is_whole() {
    for changes in FOUND {
        let mut image = populated::image(1024, 128);
        for (at, bytes) in changes {
            image[*at..at + 2].copy_from_slice(bytes);
        }
        let device = MemDevice::from_image(1024, image);
        let options = RepairOptions { mode: RepairMode::Yes, now: Timestamp::default() };
        let report = repair_ext2(&device, options).unwrap();
        assert!(report.left.is_clean() && check_ext2(&device).unwrap().is_clean(), "{changes:?}");
        assert_eq!(hostile::survive(device.image(), 1024), hostile::Outcome::Mounted(0), "{changes:?}");
    }
}
