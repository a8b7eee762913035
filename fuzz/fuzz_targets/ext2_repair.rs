//! Arbitrary changes to a small ext2 volume, which is then repaired. A volume of which the repairer says that nothing is
//! left to mend must be clean to the checker, and then mount and be used without a single sign of damage.
#![no_main]

mod damage;
#[path = "../../crates/fstitch-fs/tests/crash/hostile.rs"]
mod hostile;
#[path = "../../crates/fstitch-fs/tests/crash/populated.rs"]
mod populated;

use fstitch_core::{MemDevice, Timestamp};
use fstitch_core::{RepairMode, RepairOptions};
use fstitch_fs::ext2::check::{check_ext2, repair_ext2};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let device = MemDevice::from_image(damage::BLOCK_SIZE, damage::damaged(input));
    let options = RepairOptions { mode: RepairMode::Yes, now: Timestamp::default() };
    let Ok(report) = repair_ext2(&device, options) else { return };
    if !report.left.is_clean() {
        return;
    }
    let found = check_ext2(&device).expect("what was repaired can be read");
    assert!(found.is_clean(), "the repairer saw nothing, the checker sees {:?}", found.findings);
    let outcome = hostile::survive(device.image(), damage::BLOCK_SIZE);
    assert_eq!(outcome, hostile::Outcome::Mounted(0), "repaired, and yet damaged in use");
});
