//! What is asked of the shepherd while a write is on its way to the disk; and how many flushes writes cost.
//!
//! What it prevents: a spare that is called a copy, or read as one, before it has been written, or is never written; copies that are missing
//! though there are spares for them; a flush that fails and never returns; a flush for each run of a stream, or for each batch with a new copy.

use std::sync::{Arc, Mutex, OnceLock, Weak, mpsc};
use std::time::Duration;

use fstitch_core::{
    BlockDevice, BlockKind, BlockNo, BlockRead, BlockWrite, Geometry, IoOp, MemDevice, Result, StatsDevice,
};
use fstitch_crashlab::{Defect, Fault, FaultDevice, FaultPlan, Times};
use fstitch_shepherd::{Options, Shepherd};

const BLOCK: usize = 512;
const VOLUME: u64 = 9000;
const AREA: std::ops::Range<u64> = 5000..9000;
const KIND: BlockKind = BlockKind::Data;
const COPIES: &str = "[all]\nread = [\"mirror\"]\nwrite = [\"mirror far\"]";
const SUMS: &str = "[all]\nread = [\"verify\"]\nwrite = [\"verify\"]";
const HOME: BlockNo = BlockNo(77);

fn area() -> Vec<BlockNo> {
    AREA.map(BlockNo).collect()
}

fn opened(disk: Arc<dyn BlockDevice>, policy: &str) -> Shepherd {
    Shepherd::format(Arc::clone(&disk), &area(), [5; 16], policy, &[], &[], &mut |_, _| {}).unwrap();
    Shepherd::open(disk, &area(), Options::default()).unwrap().0
}

fn write(device: &dyn BlockDevice, block: BlockNo) -> Result<()> {
    device.write(&[BlockWrite { block, kind: KIND, data: &[7; BLOCK] }])
}

fn read(device: &dyn BlockDevice, block: BlockNo) -> Result<Vec<u8>> {
    let mut data = vec![0; BLOCK];
    device.read(&mut [BlockRead { block, kind: KIND, data: &mut data }])?;
    Ok(data)
}

fn without_home() -> FaultPlan {
    let blocks = Some(HOME.get()..HOME.get() + 1);
    FaultPlan::one(Fault { blocks, times: Times::Sticky, ..Fault::new(Defect::Error) })
}

/// A disk on which somebody else uses the volume whenever the home is about to be written.
struct Meanwhile {
    disk: FaultDevice<MemDevice>,
    shepherd: OnceLock<Weak<Shepherd>>,
    /// What a cut then would leave.
    left: Mutex<Option<Vec<u8>>>,
}

impl BlockDevice for Meanwhile {
    fn geometry(&self) -> Geometry {
        self.disk.geometry()
    }

    fn read(&self, reads: &mut [BlockRead<'_>]) -> Result<()> {
        self.disk.read(reads)
    }

    fn write(&self, writes: &[BlockWrite<'_>]) -> Result<()> {
        if let (true, Some(shepherd)) = (writes.iter().any(|write| write.block == HOME), self.shepherd.get())
        {
            let shepherd = shepherd.upgrade().unwrap();
            shepherd.flush().unwrap();
            *self.left.lock().unwrap() = Some(self.disk.device().image());
            self.disk.set_plan(without_home());
            read(&*shepherd, HOME).expect_err("nothing has a copy yet");
            self.disk.set_plan(FaultPlan::default());
        }
        self.disk.write(writes)
    }

    fn flush(&self) -> Result<()> {
        self.disk.flush()
    }

    fn discard(&self, start: BlockNo, count: u64) -> Result<()> {
        self.disk.discard(start, count)
    }
}

#[test]
fn a_spare_is_no_copy_before_it_is_written() {
    let disk = Arc::new(Meanwhile {
        disk: FaultDevice::new(MemDevice::new(512, VOLUME), FaultPlan::default()),
        shepherd: OnceLock::new(),
        left: Mutex::default(),
    });
    let shepherd = Arc::new(opened(Arc::clone(&disk) as Arc<dyn BlockDevice>, COPIES));
    disk.shepherd.set(Arc::downgrade(&shepherd)).unwrap();
    write(&*shepherd, HOME).unwrap();
    let left = disk.left.lock().unwrap().take().unwrap();
    let cut = FaultDevice::new(MemDevice::from_image(512, left), without_home());
    let (after, _) = Shepherd::open(Arc::new(cut), &area(), Options::default()).unwrap();
    read(&after, HOME).expect_err("the spare held something else");
    // From the flush behind the write on it is one.
    shepherd.flush().unwrap();
    let cut = FaultDevice::new(MemDevice::from_image(512, disk.disk.device().image()), without_home());
    let (after, _) = Shepherd::open(Arc::new(cut), &area(), Options::default()).unwrap();
    assert_eq!(read(&after, HOME).unwrap(), [7; BLOCK]);
}

/// Flushes that writing some blocks costs, each by itself.
fn flushes(policy: &str, blocks: impl Iterator<Item = u64>) -> u64 {
    let disk = Arc::new(StatsDevice::new(MemDevice::new(512, VOLUME)));
    let shepherd = opened(Arc::clone(&disk) as Arc<dyn BlockDevice>, policy);
    let before = disk.stats().flushes.get();
    blocks.for_each(|block| write(&shepherd, BlockNo(block)).unwrap());
    disk.stats().flushes.get() - before
}

#[test]
fn a_stream_pays_for_few_flushes() {
    let runs = 64;
    let stream = flushes(SUMS, 0..64 * runs);
    assert!(stream <= 8, "{stream} flushes for {runs} runs in a row");
    // Here and there nothing else is in doubt.
    assert_eq!(flushes(SUMS, (0..64 * runs).step_by(128)), runs / 2);
    // Copies that nobody was promised yet cost none.
    assert_eq!(flushes(COPIES, (0..32).rev()), 1);
}

/// A disk with such a policy, and its shepherd.
fn faulty(policy: &str, sealed: &[u64]) -> (Arc<FaultDevice<MemDevice>>, Arc<Shepherd>) {
    let disk = Arc::new(FaultDevice::new(MemDevice::new(512, VOLUME), FaultPlan::default()));
    let below = || Arc::clone(&disk) as Arc<dyn BlockDevice>;
    Shepherd::format(below(), &area(), [5; 16], policy, sealed, &[], &mut |_, _| {}).unwrap();
    let (shepherd, _) = Shepherd::open(below(), &area(), Options::default()).unwrap();
    (Arc::clone(&disk), Arc::new(shepherd))
}

/// What a cut now would leave, without the home: what its copy holds.
fn copy_after_a_cut(disk: &FaultDevice<MemDevice>) -> Result<Vec<u8>> {
    let cut = FaultDevice::new(MemDevice::from_image(512, disk.device().image()), without_home());
    let (after, _) = Shepherd::open(Arc::new(cut), &area(), Options::default()).unwrap();
    read(&after, HOME)
}

#[test]
fn a_flush_that_fails_over_new_copies_is_answered() {
    // The superblock is written as well, which has to be as new as it was before: that takes the lock of what is to be told.
    let (disk, shepherd) = faulty(COPIES, &[8]);
    write(&*shepherd, HOME).unwrap();
    write(&*shepherd, BlockNo(8)).unwrap();
    disk.set_plan(FaultPlan::one(Fault { op: Some(IoOp::Flush), ..Fault::new(Defect::Error) }));
    let (tell, told) = mpsc::channel();
    let flushing = Arc::clone(&shepherd);
    std::thread::spawn(move || tell.send(flushing.flush()).unwrap());
    told.recv_timeout(Duration::from_secs(60)).expect("it is answered").expect_err("it has failed");
    shepherd.flush().unwrap();
    assert_eq!(copy_after_a_cut(&disk).unwrap(), [7; BLOCK]);
}

#[test]
fn a_copy_that_was_given_while_its_home_was_tried_again_is_written() {
    let retries = "[all]\nread = [\"mirror\"]\nwrite = [\"mirror far\", \"retry 2\"]";
    for failing in 1..6 {
        let (disk, shepherd) = faulty(retries, &[]);
        let fault =
            Fault { op: Some(IoOp::Flush), times: Times::Transient(failing), ..Fault::new(Defect::Error) };
        disk.set_plan(FaultPlan::one(fault));
        let written = write(&*shepherd, HOME);
        disk.set_plan(FaultPlan::default());
        if written.is_err() {
            assert!(failing > 2, "{failing} flushes have failed");
            continue;
        }
        // It is told of the others; the one behind that is good.
        shepherd.flush().expect_err("flushes have failed");
        shepherd.flush().unwrap();
        disk.set_plan(without_home());
        assert_eq!(read(&*shepherd, HOME).unwrap(), [7; BLOCK], "{failing} flushes have failed");
        assert_eq!(copy_after_a_cut(&disk).unwrap(), [7; BLOCK], "{failing} flushes have failed");
    }
}

#[test]
fn spares_that_are_nobody_s_any_more_are_had_before_a_copy_is_missing() {
    let by_kind = "[metadata]\nread = [\"mirror\"]\nwrite = [\"mirror near\"]";
    let (disk, shepherd) = faulty(by_kind, &[]);
    let write =
        |block, kind| shepherd.write(&[BlockWrite { block: BlockNo(block), kind, data: &[7; BLOCK] }]);
    let spares = shepherd.holdings().free;
    for block in 0..spares {
        write(block, BlockKind::Inode).unwrap();
    }
    shepherd.flush().unwrap();
    let taken = 40;
    (0..taken).for_each(|block| write(block, KIND).unwrap());
    // The medium says still whose they are, and nobody has flushed.
    (spares..spares + taken).for_each(|block| write(block, BlockKind::Inode).unwrap());
    assert_eq!(shepherd.holdings().copies, spares);
    shepherd.flush().unwrap();
    drop(shepherd);
    let opened = Shepherd::open(disk, &area(), Options::default()).unwrap();
    assert_eq!(opened.0.holdings().copies, spares);
}

#[test]
fn sums_that_wait_to_be_written_are_bounded() {
    let disk = Arc::new(MemDevice::new(512, VOLUME));
    let below = || Arc::clone(&disk) as Arc<dyn BlockDevice>;
    drop(opened(below(), SUMS));
    let options = Options { pages_max: 1, ..Options::default() };
    let (shepherd, _) = Shepherd::open(below(), &area(), options).unwrap();
    // Each has its sum in another block of the map: the second is one too many, and both are on the medium then, the third is not.
    for block in [0, 512, 1024] {
        write(&shepherd, BlockNo(block)).unwrap();
    }
    let mut image = disk.image();
    image[..1025 * BLOCK].fill(0);
    let (after, _) =
        Shepherd::open(Arc::new(MemDevice::from_image(512, image)), &area(), Options::default()).unwrap();
    let is_known = |block| read(&after, BlockNo(block)).is_err();
    assert_eq!([0, 512, 1024].map(is_known), [true, true, false]);
}

#[test]
fn what_is_ahead_of_a_stream_is_in_doubt_on_the_medium() {
    let disk = Arc::new(MemDevice::new(512, VOLUME));
    let shepherd = opened(Arc::clone(&disk) as Arc<dyn BlockDevice>, SUMS);
    let ahead = BlockNo(130);
    write(&shepherd, ahead).unwrap();
    shepherd.settle().unwrap();
    // Two runs in a row, so that the third one is in doubt with them; then it is written, which no bit is set for any more.
    write(&shepherd, BlockNo(0)).unwrap();
    write(&shepherd, BlockNo(64)).unwrap();
    shepherd.write(&[BlockWrite { block: ahead, kind: KIND, data: &[8; BLOCK] }]).unwrap();
    let cut = MemDevice::from_image(512, disk.image());
    let (after, _) = Shepherd::open(Arc::new(cut), &area(), Options::default()).unwrap();
    assert_eq!(read(&after, ahead).unwrap(), [8; BLOCK]);
}
