//! Arbitrary changes to a small ext4 volume without sums, so that what is damaged is believed: it is checked, recovered, mounted and
//! read, and repaired; a volume of which the repairer says that nothing is left is clean to the checker. `fuzz/README.md` says how to run it.
#![no_main]

#[path = "../../crates/fstitch-fs/tests/check/ext4/used.rs"]
mod used;

use std::sync::{Arc, OnceLock};

use fstitch_core::{
    BlockDevice, Caller, Consistency, FallocateMode, FileSystem, ManualClock, MemDevice, RepairMode,
    RepairOptions, Timestamp, XattrSetMode,
};
use fstitch_fs::arrange::{Arrangement, open};
use fstitch_fs::ext2::Ext2;
use fstitch_fs::ext2::check::{check_ext2, repair_ext2};
use fstitch_fs::ext2::mkfs::{MkfsFeatures, MkfsJournal, MkfsOptions, mkfs};
use libfuzzer_sys::fuzz_target;

static BASE: OnceLock<Vec<u8>> = OnceLock::new();

/// A volume with trees of extents, unwritten blocks, attributes and directories.
fn base() -> Vec<u8> {
    let device = Arc::new(MemDevice::new(1024, 4096));
    let mut options = MkfsOptions::new([7; 16], [9; 16], Timestamp::default());
    options.block_size = Some(1024);
    options.inodes = Some(128);
    options.features = MkfsFeatures::EXT4;
    options.features.metadata_csum = false;
    options.features.resize_inode = false;
    options.journal = MkfsJournal::Blocks(1024);
    mkfs(&*device, &options, &mut |_, _| {}).expect("a volume is made");
    let arrangement = Arrangement { consistency: Some(Consistency::Ordered), ..Arrangement::default() };
    let shared: Arc<dyn BlockDevice> = Arc::<MemDevice>::clone(&device);
    let (fs, _) = open::<Ext2>(shared, &arrangement, Arc::new(ManualClock::new())).expect("it opens");
    fill(&fs).expect("there is room");
    fs.unmount().expect("memory does not fail");
    device.image()
}

fn fill(fs: &dyn FileSystem) -> fstitch_core::Result<()> {
    let (caller, root) = (Caller::default(), fs.root());
    let dir = fs.mkdir(&caller, root, b"dir", 0o755)?.attr.ino;
    for n in 0..30 {
        let name = format!("file-with-a-name-of-some-length-{n}");
        let file = fs.mknod(&caller, dir, name.as_bytes(), 0o100_644, 0)?.attr.ino;
        fs.write(&caller, file, 0, &vec![n; usize::from(n) * 100])?;
    }
    let deep = fs.mknod(&caller, root, b"deep", 0o100_644, 0)?.attr.ino;
    for at in (0..120).rev() {
        fs.write(&caller, deep, 2048 * at, &[1; 1024])?;
    }
    let kept = fs.mknod(&caller, root, b"kept", 0o100_644, 0)?.attr.ino;
    fs.fallocate(&caller, kept, 0, 100_000, FallocateMode::Allocate)?;
    fs.write(&caller, kept, 50_000, &[2; 3000])?;
    fs.setxattr(&caller, kept, b"user.large", &[5; 600], XattrSetMode::Set)?;
    fs.symlink(&caller, root, b"slow", &[b't'; 200])?;
    Ok(())
}

fuzz_target!(|input: &[u8]| {
    let mut image = BASE.get_or_init(base).clone();
    // A list of six-byte records, a 32-bit position and a 16-bit value that replaces what stands there.
    for record in input.chunks_exact(6) {
        let at = u32::from_le_bytes([record[0], record[1], record[2], record[3]]);
        let at = usize::try_from(at).expect("64-bit machine") % (image.len() - 1);
        image[at..at + 2].copy_from_slice(&record[4..6]);
    }
    used::use_for_reading(image.clone());
    let device = MemDevice::from_image(1024, image);
    let options = RepairOptions { mode: RepairMode::Yes, now: Timestamp::default() };
    let Ok(report) = repair_ext2(&device, options) else { return };
    if report.left.is_clean() {
        let found = check_ext2(&device).expect("what was repaired can be read");
        assert!(found.is_clean(), "the repairer saw nothing, the checker sees {:?}", found.findings);
    }
});
