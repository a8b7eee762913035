//! A device that remembers every epoch, and the images that a power cut can leave.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use fstitch_core::{BlockDevice, BlockNo, BlockRead, BlockWrite, Geometry, Result, Seed};

/// Up to this many blocks of an epoch, every subset is tried.
const EXHAUSTIVE_BLOCKS: usize = 6;
/// Beyond that, so many random subsets besides every single omission and survivor.
const SAMPLED_SUBSETS: u64 = 12;

type Contents = Arc<Vec<u8>>;

/// A copy-on-write image.
#[derive(Clone)]
pub struct Image {
    base: Arc<Vec<u8>>,
    block_size: usize,
    changed: Arc<Mutex<BTreeMap<u64, Contents>>>,
}

impl Image {
    pub fn new(base: Vec<u8>, block_size: usize) -> Self {
        Self { base: Arc::new(base), block_size, changed: Arc::default() }
    }

    /// An image of its own with these blocks on top.
    fn with<'a>(&self, writes: impl IntoIterator<Item = &'a (u64, Contents)>) -> Self {
        let mut changed = self.changed.lock().unwrap().clone();
        changed.extend(writes.into_iter().map(|(no, data)| (*no, Arc::clone(data))));
        Self {
            base: Arc::clone(&self.base),
            block_size: self.block_size,
            changed: Arc::new(Mutex::new(changed)),
        }
    }

    /// A copy that later writes do not show in.
    pub fn fork(&self) -> Self {
        self.with(&[])
    }

    /// The bytes, for foreign programs.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.base.to_vec();
        for (no, data) in &*self.changed.lock().unwrap() {
            let at = usize::try_from(*no).unwrap() * self.block_size;
            bytes[at..at + self.block_size].copy_from_slice(data);
        }
        bytes
    }
}

impl BlockDevice for Image {
    fn geometry(&self) -> Geometry {
        let block_size = u32::try_from(self.block_size).unwrap();
        let block_count = u64::try_from(self.base.len() / self.block_size).unwrap();
        Geometry { block_size, block_count, atomic_size: block_size }
    }

    fn read(&self, reads: &mut [BlockRead<'_>]) -> Result<()> {
        let changed = self.changed.lock().unwrap();
        for read in reads {
            match changed.get(&read.block.get()) {
                Some(data) => read.data.copy_from_slice(data),
                None => {
                    let at = read.block.index() * self.block_size;
                    read.data.copy_from_slice(&self.base[at..at + self.block_size]);
                }
            }
        }
        Ok(())
    }

    fn write(&self, writes: &[BlockWrite<'_>]) -> Result<()> {
        let mut changed = self.changed.lock().unwrap();
        for write in writes {
            changed.insert(write.block.get(), Arc::new(write.data.to_vec()));
        }
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn discard(&self, _start: BlockNo, _count: u64) -> Result<()> {
        Ok(())
    }
}

/// Remembers what is written between flushes.
pub struct Recorder {
    image: Image,
    epochs: Mutex<Vec<Vec<(u64, Contents)>>>,
}

impl Recorder {
    pub fn new(image: &Image) -> Arc<Self> {
        Arc::new(Self { image: image.fork(), epochs: Mutex::new(vec![vec![]]) })
    }

    /// Flushes so far.
    pub fn epoch(&self) -> usize {
        self.epochs.lock().unwrap().len() - 1
    }

    pub fn take(&self) -> Vec<Vec<(u64, Contents)>> {
        std::mem::take(&mut *self.epochs.lock().unwrap())
    }
}

impl BlockDevice for Recorder {
    fn geometry(&self) -> Geometry {
        self.image.geometry()
    }

    fn read(&self, reads: &mut [BlockRead<'_>]) -> Result<()> {
        self.image.read(reads)
    }

    fn write(&self, writes: &[BlockWrite<'_>]) -> Result<()> {
        let mut epochs = self.epochs.lock().unwrap();
        let last = epochs.last_mut().unwrap();
        last.extend(writes.iter().map(|w| (w.block.get(), Arc::new(w.data.to_vec()))));
        self.image.write(writes)
    }

    fn flush(&self) -> Result<()> {
        self.epochs.lock().unwrap().push(vec![]);
        Ok(())
    }

    fn discard(&self, _start: BlockNo, _count: u64) -> Result<()> {
        Ok(())
    }
}

/// One image that a power cut can leave.
pub struct CrashState {
    /// Flushes before the cut.
    pub epoch: usize,
    /// Which of the epoch's blocks had reached the medium.
    pub survivors: Vec<u64>,
    pub image: Image,
}

/// Visits the images that a cut can leave: all complete epochs, and any subset of the blocks of the next one
/// (a volatile write cache, blocks atomic).
pub fn for_each_crash_state(
    base: &Image,
    epochs: &[Vec<(u64, Contents)>],
    seed: &mut Seed,
    visit: &mut dyn FnMut(&CrashState),
) {
    let mut durable = base.fork();
    for (epoch, writes) in epochs.iter().enumerate() {
        for keep in subsets(writes.len(), seed) {
            let kept = || writes.iter().zip(&keep).filter(|(_, kept)| **kept).map(|(write, _)| write);
            let survivors = kept().map(|(no, _)| *no).collect();
            visit(&CrashState { epoch, survivors, image: durable.with(kept()) });
        }
        durable = durable.with(writes);
    }
    visit(&CrashState { epoch: epochs.len(), survivors: vec![], image: durable });
}

/// Visits the images that cuts after these numbers of flushes can leave: without any and with a random half of the next
/// epoch's blocks.
pub fn for_each_cut_at(
    flushes: &BTreeSet<usize>,
    (base, epochs): (&Image, &[Vec<(u64, Contents)>]),
    seed: &mut Seed,
    visit: &mut dyn FnMut(&CrashState),
) {
    let mut durable = base.fork();
    for (epoch, writes) in epochs.iter().enumerate() {
        if flushes.contains(&epoch) {
            visit(&CrashState { epoch, survivors: vec![], image: durable.fork() });
            let kept: Vec<_> = writes.iter().filter(|_| seed.chance(1, 2)).cloned().collect();
            let survivors = kept.iter().map(|(no, _)| *no).collect();
            visit(&CrashState { epoch, survivors, image: durable.with(&kept) });
        }
        durable = durable.with(writes);
    }
    visit(&CrashState { epoch: epochs.len(), survivors: vec![], image: durable });
}

/// The subsets to try, the empty one included and the full one left to the next epoch.
fn subsets(n: usize, seed: &mut Seed) -> Vec<Vec<bool>> {
    if n <= EXHAUSTIVE_BLOCKS {
        return (0..(1_usize << n).max(2) - 1)
            .map(|bits| (0..n).map(|at| bits >> at & 1 == 1).collect())
            .collect();
    }
    let mut all = vec![vec![false; n]];
    for at in 0..n {
        all.push((0..n).map(|other| other == at).collect());
        all.push((0..n).map(|other| other != at).collect());
    }
    for _ in 0..SAMPLED_SUBSETS {
        all.push((0..n).map(|_| seed.chance(1, 2)).collect());
    }
    all
}
