//! A journaled volume that is called clean although an operation stopped in the middle.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fstitch_core::Consistency;
use fstitch_core::{
    BlockDevice, BlockKind, BlockNo, BlockRead, BlockWrite, Caller, Error, FileSystem, Geometry, IoOp,
    ManualClock, MemDevice, Result,
};
use fstitch_fs::arrange::{Arrangement, open};
use fstitch_fs::ext2::Ext2;
use fstitch_fs::ext2::journal::{AddOptions, add, read_superblock};
use fstitch_fs::ext2::layout::superblock::{S_STATE, STATE_VALID};
use fstitch_fs::ext2::mkfs::{MkfsOptions, mkfs};

use super::NOW;

/// Fails reads of bitmaps while it is told to.
struct Flaky {
    device: MemDevice,
    fails: AtomicBool,
}

impl BlockDevice for Flaky {
    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }
    fn read(&self, reads: &mut [BlockRead<'_>]) -> Result<()> {
        let bad = reads.iter().find(|read| read.kind == BlockKind::BlockBitmap);
        match bad.filter(|_| self.fails.load(Ordering::SeqCst)) {
            Some(read) => Err(Error::io(IoOp::Read, read.block, std::io::Error::other("unreadable"))),
            None => self.device.read(reads),
        }
    }
    fn write(&self, writes: &[BlockWrite<'_>]) -> Result<()> {
        self.device.write(writes)
    }
    fn flush(&self) -> Result<()> {
        self.device.flush()
    }
    fn discard(&self, start: BlockNo, count: u64) -> Result<()> {
        self.device.discard(start, count)
    }
}

#[test]
fn after_a_failed_read_a_journaled_volume_is_not_called_clean() {
    let device = MemDevice::new(1024, 12 << 10);
    mkfs(&device, &MkfsOptions::new([1; 16], [2; 16], NOW), &mut |_, _| {}).unwrap();
    add(&device, AddOptions { blocks: Some(1024), now: NOW, is_zero: true }).unwrap();
    let device = Arc::new(Flaky { device, fails: AtomicBool::new(false) });
    for (name, fails) in [("first", false), ("second", true)] {
        let asked = Arrangement { consistency: Some(Consistency::Ordered), ..Arrangement::default() };
        let (fs, _) = open::<Ext2>(device.clone(), &asked, Arc::new(ManualClock::new())).unwrap();
        device.fails.store(fails, Ordering::SeqCst);
        let made = fs.mkdir(&Caller::default(), fs.root(), name.as_bytes(), 0o755);
        assert_eq!(made.is_err(), fails);
        device.fails.store(false, Ordering::SeqCst);
        fs.unmount().unwrap();
        let (raw, _) = read_superblock(&device.device).unwrap();
        assert_eq!(S_STATE.get(&raw) & STATE_VALID == 0, fails);
    }
}
