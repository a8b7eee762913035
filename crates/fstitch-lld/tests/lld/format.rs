//! Making a disk where another one has been.
//!
//! What it prevents: contents of the disk before that come back, and a medium that is half the old disk and half the new one when the
//! making is cut off.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fstitch_core::{
    BlockDevice, BlockNo, BlockRead, BlockWrite, Error, Geometry, MemDevice, Result, Structure,
};
use fstitch_lld::{Disk, FormatOptions, ListId, Options};

const BLOCK: usize = 512;

fn shape(uuid: u8, segment_size: u32) -> FormatOptions {
    FormatOptions { block_size: 512, segment_size, uuid: [uuid; 16], ..FormatOptions::default() }
}

fn open(medium: &Arc<MemDevice>) -> Disk {
    Disk::open(Arc::clone(medium) as Arc<dyn BlockDevice>, &Options::default()).unwrap().0
}

/// Makes a disk, and changes it by as many flushed chunks. The same program each time.
fn used(medium: &Arc<MemDevice>, format: &FormatOptions, chunks: u8) -> Disk {
    Disk::format(Arc::clone(medium) as Arc<dyn BlockDevice>, format).unwrap();
    let disk = open(medium);
    for fill in 0..chunks {
        let list = disk.new_list(true).unwrap();
        disk.write_at(list, 1, &[fill; BLOCK]).unwrap();
        disk.flush().unwrap();
    }
    disk
}

fn lists(disk: &Disk) -> Vec<ListId> {
    std::iter::successors(disk.next_list(1).unwrap(), |list| disk.next_list(list + 1).unwrap()).collect()
}

#[test]
fn nothing_of_a_disk_that_was_there_before_comes_back() {
    for (before, uuid, segment_size) in
        [(1, 1, 64 << 10), (1, 2, 64 << 10), (1, 1, 128 << 10), (0, 0, 64 << 10)]
    {
        let medium = Arc::new(MemDevice::new(512, 8 << 10));
        drop(used(&medium, &shape(before, 64 << 10), 40));
        // The same program again, cut off before its end: the chunk behind its last one is the old disk's.
        for chunks in [0, 1, 2, 7] {
            drop(used(&medium, &shape(uuid, segment_size), chunks));
            let disk = open(&medium);
            assert_eq!(lists(&disk).len(), usize::from(chunks), "UUID {before} and then {uuid}");
            assert!(disk.check(true, &mut |_| {}).unwrap().is_clean());
        }
    }
}

/// A medium from which the power goes after some writes.
struct Cut {
    medium: Arc<MemDevice>,
    left: AtomicUsize,
}

impl BlockDevice for Cut {
    fn geometry(&self) -> Geometry {
        self.medium.geometry()
    }

    fn read(&self, reads: &mut [BlockRead<'_>]) -> Result<()> {
        self.medium.read(reads)
    }

    fn write(&self, writes: &[BlockWrite<'_>]) -> Result<()> {
        for write in writes {
            let is_on = |left: usize| left.checked_sub(1);
            if self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, is_on).is_ok() {
                self.medium.write(&[BlockWrite { ..*write }])?;
            }
        }
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn discard(&self, start: BlockNo, count: u64) -> Result<()> {
        self.medium.discard(start, count)
    }
}

#[test]
fn a_making_that_is_cut_off_leaves_the_old_disk_or_none_or_the_new_one() {
    let (mut old, mut none, mut new) = (0, 0, 0);
    for writes in 0.. {
        let medium = Arc::new(MemDevice::new(512, 8 << 10));
        used(&medium, &shape(1, 64 << 10), 40).close().unwrap();
        let cut = Arc::new(Cut { medium: Arc::clone(&medium), left: AtomicUsize::new(writes) });
        Disk::format(Arc::clone(&cut) as Arc<dyn BlockDevice>, &shape(2, 64 << 10)).unwrap();
        match Disk::open(Arc::clone(&medium) as Arc<dyn BlockDevice>, &Options::default()) {
            Ok((disk, _)) => match (disk.info().uuid[0], lists(&disk).len()) {
                (1, 40) => old += 1,
                (2, 0) => new += 1,
                other => panic!("after {writes} writes: {other:?}"),
            },
            // A disk that is said to be made has a checkpoint.
            Err(Error::Corrupt(found)) if found.what == Structure::Superblock => none += 1,
            Err(error) => panic!("after {writes} writes: {error}"),
        }
        // Once more, to the end.
        let disk = used(&medium, &shape(3, 64 << 10), 3);
        assert_eq!(lists(&disk).len(), 3, "after {writes} writes");
        if cut.left.load(Ordering::SeqCst) > 0 {
            break;
        }
    }
    assert!(old > 0 && none > 5 && new > 0, "{old} old, {none} none, {new} new");
}
