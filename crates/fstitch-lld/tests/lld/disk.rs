//! The disk against a model of maps and vectors, closed and opened, and cut off at any moment.
//!
//! What it prevents: an operation that answers something else than the model, contents or lists that differ after a failure from what
//! they were at one moment before it, and a flush that keeps no promise.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::{
    BlockDevice, BlockNo, BlockRead, BlockWrite, Errno, Error, Geometry, MemDevice, Result, Seed,
};
use fstitch_lld::{At, BlockId, Disk, FormatOptions, ListId, Options};

const BLOCK: usize = 4096;

/// What a disk should be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Model {
    lists: BTreeMap<ListId, Vec<BlockId>>,
    contents: BTreeMap<BlockId, u8>,
}

impl Model {
    /// What the disk is, as far as these lists and blocks go.
    fn of(disk: &Disk, lists: u64) -> Self {
        let mut model = Self::default();
        for list in 1..lists {
            let Ok(len) = disk.list_len(list) else { continue };
            let blocks: Vec<BlockId> = (0..len).map(|at| disk.block_at(list, at).unwrap().unwrap()).collect();
            assert_eq!(disk.block_at(list, len).unwrap(), None);
            for &block in &blocks {
                let mut bytes = vec![0xff; BLOCK];
                disk.read(block, &mut bytes).unwrap();
                assert!(bytes.iter().all(|byte| *byte == bytes[0]));
                model.contents.insert(block, bytes[0]);
            }
            model.lists.insert(list, blocks);
        }
        model
    }

    fn pick(&self, seed: &mut Seed) -> Option<(ListId, usize, BlockId)> {
        let lists: Vec<_> = self.lists.iter().filter(|(_, blocks)| !blocks.is_empty()).collect();
        let (list, blocks) = lists.get(to_usize(seed.below(to_u64(lists.len()).max(1))))?;
        let at = to_usize(seed.below(to_u64(blocks.len())));
        Some((**list, at, blocks[at]))
    }
}

struct Rig {
    device: Arc<MemDevice>,
    disk: Disk,
    model: Model,
    /// The model after each operation since the last flush, which is the first.
    since: Vec<Model>,
    lists: u64,
}

fn options() -> Options {
    Options { cache_size: 1 << 20, checkpoint_interval: 256 << 10, ..Options::default() }
}

impl Rig {
    fn new(bytes: usize) -> Self {
        let device = Arc::new(MemDevice::from_image(512, vec![0; bytes]));
        let format = FormatOptions { segment_size: 64 << 10, ..FormatOptions::default() };
        Disk::format(Arc::clone(&device) as Arc<dyn BlockDevice>, &format).unwrap();
        let (disk, recovered) = Disk::open(Arc::clone(&device) as Arc<dyn BlockDevice>, &options()).unwrap();
        assert_eq!(recovered, fstitch_lld::Recovered::default());
        Self { device, disk, model: Model::default(), since: vec![Model::default()], lists: 1 }
    }

    fn step(&mut self, seed: &mut Seed, number: u64) {
        let Self { disk, model, lists, .. } = self;
        let picked = model.pick(seed);
        match (seed.below(20), picked) {
            (0, _) if model.lists.len() < 6 => {
                let list = disk.new_list(false).unwrap();
                assert_eq!(list, *lists);
                *lists += 1;
                model.lists.insert(list, Vec::new());
            }
            (1, Some((list, ..))) if seed.below(4) == 0 => {
                disk.delete_list(list).unwrap();
                for block in model.lists.remove(&list).unwrap() {
                    model.contents.remove(&block);
                }
            }
            (2..6, Some((list, at, block))) => {
                let new = disk.new_block(list, At::After(block)).unwrap();
                model.lists.get_mut(&list).unwrap().insert(at + 1, new);
                model.contents.insert(new, 0);
            }
            (6..8, _) => {
                let Some((&list, blocks)) = model.lists.iter_mut().next_back() else { return };
                let new = disk.new_block(list, At::Start).unwrap();
                blocks.insert(0, new);
                model.contents.insert(new, 0);
            }
            (8..11, Some((list, at, block))) => {
                disk.delete_block(block).unwrap();
                model.lists.get_mut(&list).unwrap().remove(at);
                model.contents.remove(&block);
                assert!(matches!(disk.read(block, &mut [0; BLOCK]), Err(Error::Errno(Errno::NOENT))));
            }
            (11..18, Some((_, _, block))) => {
                let byte = number.to_le_bytes()[0];
                disk.write(block, &[byte; BLOCK]).unwrap();
                model.contents.insert(block, byte);
            }
            (18, _) => {
                disk.flush().unwrap();
                self.since.clear();
            }
            (_, Some((_, _, block))) => {
                let mut bytes = [1; BLOCK];
                disk.read(block, &mut bytes).unwrap();
                assert_eq!(bytes, [model.contents[&block]; BLOCK]);
            }
            _ => {}
        }
        self.since.push(self.model.clone());
    }

    /// A failure at this moment: what was written is there.
    fn cut(&self) -> Model {
        let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::from_image(512, self.device.image()));
        let (disk, _) = Disk::open(Arc::clone(&device), &options()).unwrap();
        let found = Model::of(&disk, self.lists);
        drop(disk);
        // Once more, from the checkpoint that opening it has made.
        let (disk, recovered) = Disk::open(device, &options()).unwrap();
        assert_eq!(recovered.chunks, 0);
        assert_eq!(Model::of(&disk, self.lists), found);
        found
    }
}

#[test]
fn random_programs_answer_as_the_model_and_survive_cuts() {
    for number in 0..30 {
        let (mut rig, mut seed) = (Rig::new(16 << 20), Seed::new(number));
        for step in 0..800 {
            rig.step(&mut seed, step);
            if step % 37 == 0 {
                let found = rig.cut();
                assert!(
                    rig.since.contains(&found),
                    "run {number}, step {step}: no moment since the last flush"
                );
            }
            if step % 211 == 0 {
                assert_eq!(Model::of(&rig.disk, rig.lists), rig.model);
                let Rig { device, disk, model, lists, .. } = rig;
                disk.close().unwrap();
                let opened = Disk::open(Arc::clone(&device) as Arc<dyn BlockDevice>, &options()).unwrap();
                assert_eq!(opened.1.chunks, 0, "it was closed");
                rig = Rig { device, disk: opened.0, since: vec![model.clone()], model, lists };
                assert_eq!(Model::of(&rig.disk, rig.lists), rig.model);
            }
        }
    }
}

#[test]
fn sparse_lists_are_addressed_by_position() {
    let rig = Rig::new(4 << 20);
    let list = rig.disk.new_list(true).unwrap();
    let block = rig.disk.new_block(list, At::Position(1 << 40)).unwrap();
    rig.disk.write(block, &[7; BLOCK]).unwrap();
    assert_eq!(rig.disk.block_at(list, 1 << 40).unwrap(), Some(block));
    assert_eq!(rig.disk.block_at(list, 0).unwrap(), None);
    let refused = |at| rig.disk.new_block(list, at).unwrap_err().errno();
    assert_eq!(refused(At::Position(1 << 40)), Errno::EXIST);
    assert_eq!((refused(At::Start), refused(At::After(block))), (Errno::INVAL, Errno::INVAL));
}

#[test]
fn a_buffer_that_is_not_one_block_is_refused_also_for_a_gap() {
    let rig = Rig::new(4 << 20);
    let list = rig.disk.new_list(true).unwrap();
    rig.disk.write_at(list, 1, &[1; BLOCK]).unwrap();
    for position in [0, 1] {
        for len in [0, 1, BLOCK - 1, BLOCK + 1] {
            let refused = rig.disk.read_at(list, position, &mut vec![0; len]).unwrap_err();
            assert_eq!(refused.errno(), Errno::INVAL, "{len} bytes at {position}");
        }
    }
}

#[test]
fn a_full_disk_refuses_and_deletes() {
    let rig = Rig::new(2 << 20);
    let list = rig.disk.new_list(false).unwrap();
    let mut blocks = Vec::new();
    let refused = loop {
        let block = match rig.disk.new_block(list, At::Start) {
            Ok(block) => block,
            Err(error) => break error,
        };
        blocks.push(block);
        if let Err(error) = rig.disk.write(block, &[9; BLOCK]) {
            break error;
        }
    };
    assert_eq!(refused.errno(), Errno::NOSPC);
    assert!(blocks.len() > 150, "{} blocks in a disk of 2 MiB", blocks.len());
    // What is there can be written again, as often as one likes.
    for round in 0..20 {
        for &block in &blocks[1..] {
            rig.disk.write(block, &[round; BLOCK]).unwrap();
        }
    }
    rig.disk.delete_list(list).unwrap();
    rig.disk.flush().unwrap();
    let list = rig.disk.new_list(false).unwrap();
    let block = rig.disk.new_block(list, At::Start).unwrap();
    rig.disk.write(block, &[3; BLOCK]).unwrap();
    rig.disk.close().unwrap();
}

#[test]
fn a_disk_that_units_have_filled_can_be_opened_and_emptied() {
    let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(512, (16 << 20) / 512));
    Disk::format(Arc::clone(&device), &FormatOptions::default()).unwrap();
    let options = Options { cache_size: 1 << 20, checkpoint_interval: 1 << 20, ..Options::default() };
    let (disk, _) = Disk::open(Arc::clone(&device), &options).unwrap();
    let list = disk.new_list(true).unwrap();
    let (mut blocks, mut most, mut refused) = (0, 256, 0);
    // Units get smaller as room runs out.
    while refused < 20 {
        let unit = disk.begin();
        let written =
            (blocks..blocks + most).try_for_each(|position| unit.write_at(list, position, &[1; BLOCK]));
        if written.is_ok() && unit.end().is_ok() {
            blocks += most;
        } else {
            (refused, most) = (refused + 1, (most / 2).max(1));
        }
    }
    disk.flush().unwrap();
    drop(disk);
    let (disk, _) = Disk::open(Arc::clone(&device), &options).unwrap();
    assert_eq!(disk.list_len(list).unwrap(), blocks);
    let unit = disk.begin();
    unit.delete_range(list, 0, blocks / 2).unwrap();
    unit.end_durable().unwrap();
    disk.close().unwrap();
    let (disk, _) = Disk::open(device, &options).unwrap();
    (0..blocks / 4).for_each(|position| disk.write_at(list, position, &[2; BLOCK]).unwrap());
    assert!(disk.check(true, &mut |_| {}).unwrap().is_clean());
}

#[test]
fn units_of_one_chunk_write_a_block_once() {
    let rig = Rig::new(16 << 20);
    let list = rig.disk.new_list(true).unwrap();
    rig.disk.write_at(list, 0, &[1; BLOCK]).unwrap();
    rig.disk.flush().unwrap();
    let before = rig.disk.counters().bytes;
    for fill in 2..52 {
        let unit = rig.disk.begin();
        unit.write_at(list, 0, &[fill; BLOCK]).unwrap();
        unit.end().unwrap();
    }
    rig.disk.flush().unwrap();
    let written = rig.disk.counters().bytes - before;
    assert!(written <= 3 * to_u64(BLOCK), "{written} bytes for one block");
    let mut bytes = vec![0; BLOCK];
    rig.disk.read_at(list, 0, &mut bytes).unwrap();
    assert_eq!(bytes, [51; BLOCK]);
}

/// A device that counts how often it is asked, and for how many blocks: each time it is waited for.
struct Asked {
    below: MemDevice,
    times: AtomicU64,
}

impl BlockDevice for Asked {
    fn geometry(&self) -> Geometry {
        self.below.geometry()
    }

    fn read(&self, reads: &mut [BlockRead<'_>]) -> Result<()> {
        self.times.fetch_add(1, Ordering::Relaxed);
        self.below.read(reads)
    }

    fn write(&self, writes: &[BlockWrite<'_>]) -> Result<()> {
        self.below.write(writes)
    }

    fn flush(&self) -> Result<()> {
        self.below.flush()
    }

    fn discard(&self, start: BlockNo, count: u64) -> Result<()> {
        self.below.discard(start, count)
    }
}

#[test]
fn recovery_asks_for_many_pages_at_once() {
    const BLOCKS: u64 = 40_000;
    let asked = Arc::new(Asked { below: MemDevice::new(512, (64 << 20) / 512), times: AtomicU64::new(0) });
    let device: Arc<dyn BlockDevice> = Arc::clone(&asked) as _;
    let format = FormatOptions { block_size: 512, ..FormatOptions::default() };
    Disk::format(Arc::clone(&device), &format).unwrap();
    let (disk, _) = Disk::open(Arc::clone(&device), &Options::default()).unwrap();
    let list = disk.new_list(true).unwrap();
    (0..BLOCKS).for_each(|position| disk.write_at(list, position, &[1; 512]).unwrap());
    disk.close().unwrap();
    let (disk, _) = Disk::open(Arc::clone(&device), &Options::default()).unwrap();
    let mut seed = Seed::new(1);
    for round in 0..4 {
        (0..500).for_each(|_| disk.write_at(list, seed.below(BLOCKS), &[2; 512]).unwrap());
        // The last ones are not flushed: recovery looks into them.
        if round < 2 {
            disk.flush().unwrap();
        } else {
            disk.begin().end().unwrap();
        }
    }
    // Everything that is queued is written, and nothing says that it is stable.
    asked.times.store(0, Ordering::Relaxed);
    let pages = BLOCKS * 40 / 4096;
    drop(disk);
    let (disk, recovered) = Disk::open(device, &Options::default()).unwrap();
    let times = asked.times.load(Ordering::Relaxed);
    assert!(recovered.records > 900, "{recovered:?}");
    assert!(times < pages / 4, "asked {times} times, with about {pages} pages");
    assert!(disk.check(true, &mut |_| {}).unwrap().is_clean());
}

#[test]
fn a_chunk_is_looked_at_to_its_end_however_large_it_is() {
    let device = Arc::new(MemDevice::new(4096, (128 << 20) / 4096));
    let format = FormatOptions { segment_size: 4 << 20, ..FormatOptions::default() };
    Disk::format(Arc::clone(&device) as Arc<dyn BlockDevice>, &format).unwrap();
    // Who has filled a segment has written it when he goes on.
    let by_itself = Options { background: false, ..Options::default() };
    let (disk, _) = Disk::open(Arc::clone(&device) as Arc<dyn BlockDevice>, &by_itself).unwrap();
    let list = disk.new_list(true).unwrap();
    disk.flush().unwrap();
    // Two segments, of which nobody says that they are stable.
    (0..2100).for_each(|position| disk.write_at(list, position, &[0xa5; BLOCK]).unwrap());
    drop(disk);
    let whole = device.image();
    let written: Vec<usize> = whole
        .chunks(BLOCK)
        .enumerate()
        .filter(|(_, block)| *block == [0xa5; BLOCK])
        .map(|(at, _)| at)
        .collect();
    assert!(written.len() > 1000, "{} blocks are there", written.len());
    let lens = [0, 100, 300, 600, 900].map(|at| {
        let mut damaged = whole.clone();
        damaged[written[at] * BLOCK + 7] ^= 1;
        let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::from_image(4096, damaged));
        let (disk, recovered) = Disk::open(device, &Options::default()).unwrap();
        assert!(recovered.torn, "block {at}: {recovered:?}");
        disk.list_len(list).unwrap()
    });
    assert!(lens.iter().all(|len| *len < 100), "the log ends before the chunk: {lens:?}");
}
