//! Volumes and their catalogue.
//!
//! What it prevents: a volume without its list, or a list without its volume; contents beyond the end that come back; a unit's writes that
//! others see.

use std::sync::{Arc, Mutex};

use fstitch_core::{
    BlockDevice, BlockKind, BlockNo, BlockRead, BlockWrite, Errno, Error, Geometry, MemDevice, Result,
};
use fstitch_lld::{Disk, Extent, FormatOptions, Options, Shared, Volume, Volumes};

const BLOCK: usize = 4096;
const MIB: u64 = 1 << 20;

fn device() -> Arc<MemDevice> {
    let device = Arc::new(MemDevice::from_image(4096, vec![0; 32 << 20]));
    Disk::format(Arc::clone(&device) as Arc<dyn BlockDevice>, &FormatOptions::default()).unwrap();
    device
}

fn open(device: &Arc<MemDevice>) -> Arc<Disk> {
    Arc::new(Disk::open(Arc::clone(device) as Arc<dyn BlockDevice>, &Options::default()).unwrap().0)
}

fn put(volume: &Volume, block: u64, byte: u8) {
    volume
        .write(&[BlockWrite { block: BlockNo(block), kind: BlockKind::Data, data: &[byte; BLOCK] }])
        .unwrap();
}

fn get(volume: &Volume, block: u64) -> u8 {
    let mut data = [0xff; BLOCK];
    volume.read(&mut [BlockRead { block: BlockNo(block), kind: BlockKind::Data, data: &mut data }]).unwrap();
    assert_eq!(data, [data[0]; BLOCK]);
    data[0]
}

#[test]
fn volumes_are_made_kept_resized_and_removed() {
    let device = device();
    let volumes = Volumes::open(open(&device)).unwrap();
    for number in 0..40 {
        volumes.create(&format!("volume {number}"), (number + 1) * MIB).unwrap();
    }
    assert_eq!(volumes.create("volume 7", MIB).unwrap_err().errno(), Errno::EXIST);
    for (name, bytes) in [("", MIB), ("a/b", MIB), ("a?b", MIB), ("\n", MIB), ("fine", 0), ("fine", 1000)] {
        assert_eq!(volumes.create(name, bytes).unwrap_err().errno(), Errno::INVAL, "{name:?}, {bytes} bytes");
    }
    assert_eq!(volumes.create(&"n".repeat(201), MIB).unwrap_err().errno(), Errno::INVAL);
    let volume = volumes.volume("volume 7").unwrap();
    assert_eq!(volume.geometry().bytes(), 8 * MIB);
    put(&volume, 0, 1);
    put(&volume, 2047, 2);
    let beyond = BlockWrite { block: BlockNo(2048), kind: BlockKind::Data, data: &[0; BLOCK] };
    assert_eq!(volume.write(&[beyond]).unwrap_err().errno(), Errno::INVAL);
    assert_eq!(volumes.remove("volume 7").unwrap_err().errno(), Errno::BUSY);
    volumes.resize("volume 7", 4 * MIB).unwrap();
    assert_eq!(volume.geometry().bytes(), 4 * MIB);
    volumes.resize("volume 7", 16 * MIB).unwrap();
    assert_eq!((get(&volume, 0), get(&volume, 2047)), (1, 0), "what was cut off does not come back");
    volume.flush().unwrap();
    // A failure, and the catalogue is as it was.
    let volumes = Volumes::open(open(&Arc::new(MemDevice::from_image(4096, device.image())))).unwrap();
    let all = volumes.list().unwrap();
    assert_eq!(all.len(), 40);
    let seven = all.iter().find(|info| info.name == "volume 7").unwrap();
    assert_eq!((seven.bytes, seven.blocks), (16 * MIB, 1));
    volumes.remove("volume 7").unwrap();
    assert_eq!(volumes.list().unwrap().len(), 39);
    assert_eq!(volumes.volume("volume 7").err().unwrap().errno(), Errno::NOENT);
    // Its place is taken by the next one.
    volumes.create("another", MIB).unwrap();
    assert_eq!(get(&volumes.volume("another").unwrap(), 0), 0);
}

#[test]
fn trimming_is_by_what_is_there() {
    let volumes = Volumes::open(open(&device())).unwrap();
    volumes.create("large", 2 << 40).unwrap();
    let volume = volumes.volume("large").unwrap();
    for block in [0, 1, 2, 1 << 20, (1 << 29) - 1] {
        put(&volume, block, 9);
    }
    let all = volume.extents(0, 1 << 29, 100).unwrap();
    let taken: Vec<_> = all.iter().filter(|extent| extent.allocated).map(|e| (e.start, e.count)).collect();
    assert_eq!(taken, [(0, 3), (1 << 20, 1), ((1 << 29) - 1, 1)]);
    assert_eq!(all.iter().map(|extent| extent.count).sum::<u64>(), 1 << 29);
    assert_eq!(volume.extents(1, 4, 1).unwrap(), [Extent { start: 1, count: 2, allocated: true }]);
    volume.discard(BlockNo(1), (1 << 29) - 2).unwrap();
    assert_eq!((get(&volume, 0), get(&volume, 1), get(&volume, 1 << 20)), (9, 0, 0));
    assert_eq!(get(&volume, (1 << 29) - 1), 9);
    assert_eq!(volumes.list().unwrap()[0].blocks, 2);
}

#[test]
fn a_unit_s_writes_are_seen_when_it_has_ended() {
    let device = device();
    let volumes = Volumes::open(open(&device)).unwrap();
    volumes.create("v", 8 * MIB).unwrap();
    let volume = volumes.volume("v").unwrap();
    put(&volume, 5, 1);
    put(&volume, 6, 1);
    let unit = Shared::begin(volumes.disk());
    let inside = volume.in_unit(&unit);
    put(&inside, 5, 2);
    put(&inside, 7, 2);
    inside.discard(BlockNo(6), 1).unwrap();
    inside.flush().unwrap();
    assert_eq!([get(&inside, 5), get(&inside, 6), get(&inside, 7)], [2, 0, 2]);
    assert_eq!([get(&volume, 5), get(&volume, 6), get(&volume, 7)], [1, 1, 0]);
    let taken: u64 =
        inside.extents(0, 8, 9).unwrap().iter().filter(|extent| extent.allocated).map(|e| e.count).sum();
    assert_eq!(taken, 2);
    unit.take().unwrap().end_durable().unwrap();
    assert_eq!([get(&volume, 5), get(&volume, 6), get(&volume, 7)], [2, 0, 2]);
    let stale =
        inside.read(&mut [BlockRead { block: BlockNo(5), kind: BlockKind::Data, data: &mut [0; BLOCK] }]);
    assert_eq!(stale.unwrap_err().errno(), Errno::STALE);
    let aborted = Shared::begin(volumes.disk());
    put(&volume.in_unit(&aborted), 5, 3);
    drop(aborted.take());
    assert_eq!(get(&volume, 5), 2);
}

#[test]
fn a_disk_that_is_used_for_something_else_has_no_volumes() {
    let device = device();
    let disk = open(&device);
    disk.new_list(false).unwrap();
    assert!(matches!(Volumes::open(disk), Err(Error::Unsupported(_))));
}

/// A device that keeps what a failure of power would leave after each time that it is asked to write.
struct Kept {
    now: MemDevice,
    then: Mutex<Vec<Vec<u8>>>,
}

impl BlockDevice for Kept {
    fn geometry(&self) -> Geometry {
        self.now.geometry()
    }

    fn read(&self, reads: &mut [BlockRead<'_>]) -> Result<()> {
        self.now.read(reads)
    }

    fn write(&self, writes: &[BlockWrite<'_>]) -> Result<()> {
        self.now.write(writes)?;
        self.then.lock().unwrap().push(self.now.image());
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        self.now.flush()
    }

    fn discard(&self, start: BlockNo, count: u64) -> Result<()> {
        self.now.discard(start, count)
    }
}

#[test]
fn a_volume_that_is_cut_off_has_all_of_its_old_size_or_its_new_one() {
    let made = device();
    let volumes = Volumes::open(open(&made)).unwrap();
    volumes.create("v", 4 * MIB).unwrap();
    let volume = volumes.volume("v").unwrap();
    put(&volume, 0, 1);
    put(&volume, 1023, 2);
    volume.flush().unwrap();
    let kept = Arc::new(Kept { now: MemDevice::from_image(4096, made.image()), then: Mutex::default() });
    let (disk, _) = Disk::open(Arc::clone(&kept) as Arc<dyn BlockDevice>, &Options::default()).unwrap();
    let volumes = Volumes::open(Arc::new(disk)).unwrap();
    let opened = volumes.volume("v").unwrap();
    volumes.resize("v", 2 * MIB).unwrap();
    opened.flush().unwrap();
    let (mut old, mut new) = (0, 0);
    for (at, image) in kept.then.lock().unwrap().drain(..).enumerate() {
        let volumes = Volumes::open(open(&Arc::new(MemDevice::from_image(4096, image)))).unwrap();
        let volume = volumes.volume("v").unwrap();
        assert_eq!(get(&volume, 0), 1);
        if volume.geometry().bytes() == 4 * MIB {
            old += 1;
            assert_eq!(get(&volume, 1023), 2, "after write {at} it has its old size");
        } else {
            new += 1;
            assert_eq!(volume.geometry().bytes(), 2 * MIB);
            volumes.resize("v", 4 * MIB).unwrap();
            assert_eq!(get(&volume, 1023), 0, "after write {at} it was cut off");
        }
    }
    assert!(old > 0 && new > 1, "{old} old, {new} new");
}
