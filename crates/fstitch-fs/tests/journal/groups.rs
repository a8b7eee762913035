//! Patchgroups on a volume with a journal.
//!
//! What it prevents: a change that is there after a crash although what it was to come after is in a file that is not, because the
//! transaction that has made it was still running.

use std::sync::Arc;

use fstitch_core::groups::{Engaged, GroupCall, GroupId};
use fstitch_core::{BlockDevice, Caller, Consistency, FileSystem, InodeNo, MemDevice};
use fstitch_fs::uhfs::LowLevelFs;

use super::kept::{SMALLEST, base, contents, make, mounted};
use super::recovered;

fn overwrite(fs: &dyn FileSystem, ino: InodeNo, byte: u8) {
    assert_eq!(fs.write(&Caller::default(), ino, 0, &[byte; 1000]).unwrap(), 1000);
}

/// Writes for a group.
fn overwrite_in(fs: &dyn FileSystem, group: GroupId, ino: InodeNo, byte: u8) {
    fs.group(GroupCall::Engage(group)).unwrap();
    {
        let _engaged = Engaged::enter(&[group]);
        overwrite(fs, ino, byte);
    }
    fs.group(GroupCall::Disengage(group)).unwrap();
}

#[test]
fn contents_of_a_file_that_is_not_there_yet_wait_for_what_makes_it() {
    for mode in [Consistency::Ordered, Consistency::Metadata, Consistency::Full] {
        let device = Arc::new(base(8192, SMALLEST));
        let fs = mounted(Arc::clone(&device) as Arc<dyn BlockDevice>, mode);
        let old = make(&fs, fs.root(), "old").attr.ino;
        overwrite(&fs, old, 1);
        fs.sync().unwrap();
        // Nobody's, and the time does not pass: what the groups write is nothing but contents.
        let new = make(&fs, fs.root(), "new").attr.ino;
        overwrite(&fs, new, 2);
        let [one, two] = [0; 2].map(|_| fs.group(GroupCall::Create).unwrap());
        overwrite_in(&fs, one, new, 3);
        fs.group(GroupCall::Depend { after: two, before: one }).unwrap();
        overwrite_in(&fs, two, old, 4);
        // All that may be written is, and the transaction has not ended.
        while fs.format().cache().step_blocks(&mut |_| true).unwrap() > 0 {}
        let judge = |image: Vec<u8>, is_over: bool| {
            let left = Arc::new(MemDevice::from_image(1024, image));
            recovered(&*left, 1024).unwrap();
            let left = mounted(left as Arc<dyn BlockDevice>, mode);
            let after = contents(&left, "old").unwrap()[0];
            assert!([1, 4].contains(&after) && (!is_over || after == 4), "{mode}: {after}");
            if after == 4 {
                assert_eq!(contents(&left, "new").map(|bytes| bytes[0]), Some(3), "{mode}");
            }
        };
        judge(device.image(), false);
        fs.group(GroupCall::Sync(two)).unwrap();
        judge(device.image(), true);
    }
}
