//! Several disks on one medium of the laboratory, each of which dies or fails as it is told.

#![allow(
    clippy::unwrap_used,
    dead_code,
    reason = "tests fail where they cannot go on, and each uses a part of this"
)]

pub mod said;

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use fstitch_core::{
    BlockDevice, BlockKind, BlockNo, BlockRead, BlockWrite, Error, Geometry, IoOp, MemDevice, Result,
};
use fstitch_shepherd::disks::{Found, Plan, label_of, write_labels};
use fstitch_shepherd::engine::Opened;
use fstitch_shepherd::{Array, Options, Policy, Shepherd};

pub const BLOCK: usize = 1024;
/// Blocks of each disk of an array that is made here.
pub const DISK: u64 = 400;
pub const DISKS: usize = 3;

/// Two of everything, on two disks; directories on all; with sums and without.
pub const POLICIES: [&str; 3] = [
    "[all]\nread = [\"mirror\"]\nwrite = [\"mirror other-disk\", \"remap\"]",
    "[all]\nread = [\"verify\", \"mirror\"]\nwrite = [\"verify\", \"mirror other-disk\"]\n[directory]\nwrite = [\"verify\", \"all-disks\"]",
    "[all]\nread = [\"verify\", \"retry 1\", \"mirror\"]\nwrite = [\"verify\", \"all-disks\", \"remap\"]",
];

/// A medium that is several disks, each of which dies after so many requests. What is flushed on one disk is stable when every disk that lives
/// has been flushed since it was written to: the medium has but one flush, and must not promise more than a disk does.
pub struct Machine<D> {
    pub medium: D,
    /// Blocks of each disk.
    size: u64,
    dirty: Mutex<Vec<bool>>,
    dead: Vec<AtomicBool>,
    /// Writes and flushes until a disk dies.
    pub left: Vec<AtomicU64>,
    /// Writes and flushes until one of a disk fails, once.
    pub hiccup: Vec<AtomicU64>,
    /// Writes and flushes that a disk was asked for.
    pub asked: Vec<AtomicU64>,
    /// Writes and flushes until the power fails, for all at once.
    pub power: AtomicU64,
    /// Blocks of disks of which requests fail.
    bad: Mutex<Vec<(usize, IoOp, Range<u64>)>>,
}

struct Disk<D> {
    machine: Arc<Machine<D>>,
    no: usize,
}

impl<D: BlockDevice> Machine<D> {
    pub fn new(medium: D, disks: usize) -> Arc<Self> {
        Arc::new(Self {
            size: medium.geometry().block_count / u64::try_from(disks).unwrap(),
            medium,
            dirty: Mutex::new(vec![false; disks]),
            dead: (0..disks).map(|_| AtomicBool::new(false)).collect(),
            left: (0..disks).map(|_| AtomicU64::new(u64::MAX)).collect(),
            hiccup: (0..disks).map(|_| AtomicU64::new(u64::MAX)).collect(),
            asked: (0..disks).map(|_| AtomicU64::new(0)).collect(),
            power: AtomicU64::new(u64::MAX),
            bad: Mutex::default(),
        })
    }

    pub fn kill(&self, disk: usize) {
        self.dead[disk].store(true, Ordering::SeqCst);
        self.dirty.lock().unwrap()[disk] = false;
    }
}

impl<D> Machine<D> {
    /// Requests for some blocks of a disk fail from now on.
    pub fn spoil(&self, disk: usize, op: IoOp, blocks: Range<u64>) {
        self.bad.lock().unwrap().push((disk, op, blocks));
    }

    /// All blocks are good again.
    pub fn mend(&self) {
        self.bad.lock().unwrap().clear();
    }

    fn good(&self, disk: usize, op: IoOp, block: BlockNo) -> Result<()> {
        let is_it = |(no, what, blocks): &(usize, IoOp, Range<u64>)| {
            (*no, *what) == (disk, op) && blocks.contains(&block.get())
        };
        match self.bad.lock().unwrap().iter().any(is_it) {
            true => Err(Error::io(op, block, std::io::Error::other("a bad block"))),
            false => Ok(()),
        }
    }
}

impl<D: BlockDevice> Disk<D> {
    /// Only writes and flushes are counted.
    fn ask(&self, op: IoOp) -> Result<()> {
        let counted = u64::from(op != IoOp::Read);
        let is_over = |left: &AtomicU64| {
            let is_over = left.load(Ordering::SeqCst) == 0;
            left.fetch_sub(if is_over { 0 } else { counted }, Ordering::SeqCst);
            is_over
        };
        self.machine.asked[self.no].fetch_add(counted, Ordering::SeqCst);
        if is_over(&self.machine.left[self.no]) {
            self.machine.kill(self.no);
        }
        let no_power = is_over(&self.machine.power);
        if no_power || self.machine.dead[self.no].load(Ordering::SeqCst) {
            return Err(Error::io(op, BlockNo(0), std::io::Error::other("the disk is dead")));
        }
        let hiccup = &self.machine.hiccup[self.no];
        if counted == 1 && is_over(hiccup) {
            hiccup.store(u64::MAX, Ordering::SeqCst);
            // It may be put out for that, and is not flushed any more then: nobody else is to wait for it.
            self.machine.dirty.lock().unwrap()[self.no] = false;
            return Err(Error::io(op, BlockNo(0), std::io::Error::other("this once")));
        }
        Ok(())
    }

    fn at(&self, block: BlockNo) -> BlockNo {
        let size = self.machine.size;
        assert!(block.get() < size, "block {block} of a disk of {size}");
        BlockNo(u64::try_from(self.no).unwrap() * size + block.get())
    }
}

impl<D: BlockDevice> BlockDevice for Disk<D> {
    fn geometry(&self) -> Geometry {
        Geometry { block_count: self.machine.size, ..self.machine.medium.geometry() }
    }

    fn read(&self, reads: &mut [BlockRead<'_>]) -> Result<()> {
        self.ask(IoOp::Read)?;
        for read in reads {
            self.machine.good(self.no, IoOp::Read, read.block)?;
            let block = self.at(read.block);
            self.machine.medium.read(&mut [BlockRead { block, kind: read.kind, data: &mut *read.data }])?;
        }
        Ok(())
    }

    fn write(&self, writes: &[BlockWrite<'_>]) -> Result<()> {
        self.ask(IoOp::Write)?;
        writes.iter().try_for_each(|write| self.machine.good(self.no, IoOp::Write, write.block))?;
        self.machine.dirty.lock().unwrap()[self.no] = true;
        let moved: Vec<_> =
            writes.iter().map(|write| BlockWrite { block: self.at(write.block), ..*write }).collect();
        self.machine.medium.write(&moved)
    }

    fn flush(&self) -> Result<()> {
        self.ask(IoOp::Flush)?;
        let mut dirty = self.machine.dirty.lock().unwrap();
        dirty[self.no] = false;
        if dirty.iter().any(|dirty| *dirty) { Ok(()) } else { self.machine.medium.flush() }
    }

    fn discard(&self, _: BlockNo, _: u64) -> Result<()> {
        self.ask(IoOp::Discard)
    }
}

pub fn disks<D: BlockDevice + 'static>(machine: &Arc<Machine<D>>) -> Vec<Option<Arc<dyn BlockDevice>>> {
    let disk = |no| Arc::new(Disk { machine: Arc::clone(machine), no }) as Arc<dyn BlockDevice>;
    (0..machine.dead.len()).map(|no| Some(disk(no))).collect()
}

pub fn plan(disks: usize) -> Plan {
    let name = |no: usize| [u8::try_from(no + 1).unwrap(); 16];
    Plan {
        uuid: [7; 16],
        block_size: 1024,
        first: 2,
        disks: (0..disks).map(|no| (name(no), DISK)).collect(),
        hot: Vec::new(),
    }
}

/// A new array on a medium of memory.
pub fn made(policy: &str, disks_of: usize) -> Arc<MemDevice> {
    let medium = Arc::new(MemDevice::new(1024, DISK * u64::try_from(disks_of).unwrap()));
    let machine = Machine::new(Arc::clone(&medium), disks_of);
    let given = disks(&machine);
    let label = label_of(&plan(disks_of), &Policy::parse(policy).unwrap()).unwrap();
    let all: Vec<_> = given.iter().flatten().cloned().collect();
    write_labels(&all, &label).unwrap();
    let (array, _) = Array::open(&given, false).unwrap();
    Shepherd::format_array(&Arc::new(array), policy).unwrap();
    medium
}

pub fn open(given: &[Option<Arc<dyn BlockDevice>>]) -> Result<(Shepherd, Opened, Found)> {
    let (array, found) = Array::open(given, false)?;
    let array = Arc::new(array);
    let area = array.area();
    let options = Options {
        doubt_max: 2,
        pages_max: 1,
        scrubbed_at_once: 1,
        disks: Some(Arc::clone(&array)),
        ..Options::default()
    };
    let (shepherd, opened) = Shepherd::open(array, &area, options)?;
    Ok((shepherd, opened, found))
}

pub fn kind(block: u64) -> BlockKind {
    if block.is_multiple_of(12) { BlockKind::Directory } else { BlockKind::Data }
}

pub fn put(shepherd: &Shepherd, block: u64, fill: u8) -> Result<()> {
    shepherd.write(&[BlockWrite { block: BlockNo(block), kind: kind(block), data: &[fill; BLOCK] }])
}

pub fn get(shepherd: &Shepherd, block: u64) -> Result<[u8; 2]> {
    let mut data = vec![0; BLOCK];
    shepherd.read(&mut [BlockRead { block: BlockNo(block), kind: kind(block), data: &mut data }])?;
    let halves = [data[0], data[512]];
    let are_whole = data[..512].iter().all(|byte| *byte == halves[0])
        && data[512..].iter().all(|byte| *byte == halves[1]);
    assert!(are_whole, "block {block} has a torn sector");
    Ok(halves)
}

pub fn rebuild(shepherd: &Shepherd) -> Vec<BlockNo> {
    let mut lost = Vec::new();
    while let Some(step) = shepherd.rebuild(50).unwrap() {
        assert_eq!(step.failed, 0, "the new disk takes everything");
        lost.extend(step.lost);
    }
    lost
}

/// A disk of memory with room for any of the array's.
pub fn fresh() -> Arc<dyn BlockDevice> {
    let device = MemDevice::new(1024, DISK);
    let junk = vec![0xee; BLOCK];
    for block in (0..DISK).map(BlockNo) {
        device.write(&[BlockWrite { block, kind: BlockKind::Data, data: &junk }]).unwrap();
    }
    Arc::new(device)
}
