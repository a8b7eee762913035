//! Single histories that random programs hardly ever come by, each with the one failure that matters there.

use std::sync::{Arc, Mutex};

use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::{BlockDevice, BlockKind, BlockNo, BlockRead, BlockWrite, Geometry, MemDevice, Result};
use fstitch_crashlab::Subject;
use fstitch_lld::{At, BlockId, Disk, ListId, Options};

use crate::rig::{BLOCK, Opened, formatted, options, shown};

const SEGMENT: usize = 64 << 10;

/// Which writes are late.
type Late = fn(&BlockWrite<'_>) -> bool;

/// A medium on which some writes arrive when it is flushed, and the others at once.
struct Medium {
    now: MemDevice,
    /// What a failure of power leaves.
    left: MemDevice,
    late: Mutex<Late>,
    kept: Mutex<Vec<(BlockNo, Vec<u8>)>>,
    /// What it would have left when each flush began and when it returned.
    flushed: Mutex<Vec<Vec<u8>>>,
}

impl Medium {
    fn on(image: Vec<u8>) -> Arc<Self> {
        Arc::new(Self {
            now: MemDevice::from_image(512, image.clone()),
            left: MemDevice::from_image(512, image),
            late: Mutex::new(|_| false),
            kept: Mutex::default(),
            flushed: Mutex::default(),
        })
    }

    fn set_late(&self, late: Late) {
        *self.late.lock().unwrap() = late;
    }

    fn open(self: &Arc<Self>, options: &Options) -> Disk {
        Disk::open(Arc::clone(self) as Arc<dyn BlockDevice>, options).unwrap().0
    }
}

impl BlockDevice for Medium {
    fn geometry(&self) -> Geometry {
        self.now.geometry()
    }

    fn read(&self, reads: &mut [BlockRead<'_>]) -> Result<()> {
        self.now.read(reads)
    }

    fn write(&self, writes: &[BlockWrite<'_>]) -> Result<()> {
        self.now.write(writes)?;
        let (late, mut kept) = (*self.late.lock().unwrap(), self.kept.lock().unwrap());
        for write in writes {
            // What was late is written over.
            kept.retain(|(block, _)| *block != write.block);
            if late(write) {
                kept.push((write.block, write.data.to_vec()));
            } else {
                self.left.write(&[BlockWrite { ..*write }])?;
            }
        }
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        self.flushed.lock().unwrap().push(self.left.image());
        for (block, data) in self.kept.lock().unwrap().drain(..) {
            self.left.write(&[BlockWrite { block, kind: BlockKind::Data, data: &data }])?;
        }
        self.flushed.lock().unwrap().push(self.left.image());
        Ok(())
    }

    fn discard(&self, start: BlockNo, count: u64) -> Result<()> {
        self.now.discard(start, count)
    }
}

/// Makes a checkpoint only if asked to, as far as the medium allows that.
fn rarely() -> Options {
    Options { checkpoint_interval: 64 << 20, ..options() }
}

/// A medium of so many segments, with an ordered list of so many blocks that nobody has written.
fn with_list(segments: usize, len: usize) -> (Vec<u8>, ListId, Vec<BlockId>) {
    let made = formatted(segments);
    let (disk, _) = Disk::open(Arc::clone(&made) as Arc<dyn BlockDevice>, &rarely()).unwrap();
    let list = disk.new_list(false).unwrap();
    let blocks = (0..len).map(|_| disk.new_block(list, At::Start).unwrap()).collect();
    disk.close().unwrap();
    (made.image(), list, blocks)
}

/// Opens what was left, checks it, and says what each block of a list is filled with, by their numbers.
fn found(image: Vec<u8>, list: ListId) -> Vec<u8> {
    let shown = Opened.show(Arc::new(MemDevice::from_image(512, image))).unwrap();
    let mut blocks = shown.ordered[&list].clone();
    blocks.sort_unstable();
    blocks.into_iter().map(|(_, fill)| fill).collect()
}

#[test]
fn what_a_checkpoint_frees_is_not_written_before_the_checkpoint_is_stable() {
    const BLOCKS: usize = 600;
    let (image, list, blocks) = with_list(100, BLOCKS);
    let medium = Medium::on(image);
    let disk = medium.open(&rarely());
    // Both places where checkpoints are.
    medium.set_late(|write| write.kind == BlockKind::JournalSuperblock);
    let (mut written, mut promised) = (0, 0);
    for round in 1..=8 {
        if round % 2 == 1 {
            disk.checkpoint().unwrap();
            promised = written;
        }
        for block in &blocks {
            disk.write(*block, &[round; BLOCK]).unwrap();
            written += 1;
            if written % 40 > 0 {
                continue;
            }
            // All blocks are written in their order, again and again: their sum says how many writes are there.
            let fills = found(medium.left.image(), list);
            let there: usize = fills.iter().map(|fill| usize::from(*fill)).sum();
            assert!((promised..=written).contains(&there), "{there} of {written}, {promised} were promised");
            let expected = |at: usize| to_u64(there / BLOCKS + usize::from(at < there % BLOCKS));
            assert!((0..BLOCKS).all(|at| u64::from(fills[at]) == expected(at)), "after {written} writes");
        }
    }
    assert!(disk.counters().checkpoints >= 4);
}

#[test]
fn a_unit_whose_spilled_contents_are_not_there_has_not_happened() {
    let (image, list, blocks) = with_list(60, 400);
    let medium = Medium::on(image);
    let disk = medium.open(&rarely());
    for block in &blocks[..40] {
        disk.write(*block, &[1; BLOCK]).unwrap();
    }
    disk.flush().unwrap();
    let before = (shown(&disk).unwrap(), disk.counters().flushes);
    let unit = disk.begin();
    medium.set_late(|_| true);
    for block in &blocks[..30] {
        unit.write(*block, &[2; BLOCK]).unwrap();
    }
    assert!(disk.counters().spilled_bytes > to_u64(10 * BLOCK));
    medium.set_late(|_| false);
    unit.end().unwrap();
    // What fills a segment is written, and nobody says that it is stable.
    for block in &blocks[40..240] {
        disk.write(*block, &[3; BLOCK]).unwrap();
    }
    assert_eq!(disk.counters().flushes, before.1);
    let image = medium.left.image();
    let read_only = Options { read_only: true, ..options() };
    let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::from_image(512, image.clone()));
    let (_, recovered) = Disk::open(device, &read_only).unwrap();
    assert!(recovered.torn && recovered.damaged.is_none(), "{recovered:?}");
    let left = Opened.show(Arc::new(MemDevice::from_image(512, image))).unwrap();
    assert_eq!(left, before.0);
    disk.flush().unwrap();
    assert_eq!(found(medium.left.image(), list)[..30], [2; 30]);
}

#[test]
fn recovery_writes_nothing_over_what_a_unit_has_spilled_although_nobody_needs_it_any_more() {
    const WRITTEN: usize = 520;
    let (image, list, blocks) = with_list(60, 700);
    let medium = Medium::on(image);
    let disk = medium.open(&Options { cache_size: 1 << 20, ..rarely() });
    let before = disk.counters();
    let unit = disk.begin();
    for block in &blocks[..WRITTEN] {
        unit.write(*block, &[1; BLOCK]).unwrap();
    }
    unit.end().unwrap();
    // So many maps change that what recovery writes needs segments that were free at the checkpoint.
    for block in &blocks[..WRITTEN] {
        disk.write(*block, &[2; BLOCK]).unwrap();
    }
    for _ in 0..2000 {
        disk.new_block(list, At::Start).unwrap();
    }
    let after = disk.counters();
    assert!(after.spilled_bytes >= 256 << 10);
    assert_eq!((after.flushes, after.checkpoints), (before.flushes, before.checkpoints));
    disk.flush().unwrap();
    // No chunk says that the unit's end was stable, so what it refers to is looked at: until recovery has said so itself, if it gets as
    // far. Its maps arrive, and not what says that they are there.
    let medium = Medium::on(medium.left.image());
    medium.set_late(|write| write.kind == BlockKind::JournalDescriptor);
    drop(medium.open(&rarely()));
    let flushed = std::mem::take(&mut *medium.flushed.lock().unwrap());
    assert!(flushed.len() >= 4, "one for the maps and one for the checkpoint");
    let expected: Vec<u8> = (0..2700).map(|at| if at < WRITTEN { 2 } else { 0 }).collect();
    for image in flushed {
        assert_eq!(found(image, list), expected);
    }
}

#[test]
fn a_unit_of_many_segments_is_in_no_checkpoint_by_half() {
    const BLOCKS: usize = 700;
    let (image, list, blocks) = with_list(60, BLOCKS);
    let medium = Medium::on(image);
    // All of it is in memory until it ends, and each segment is one behind which a checkpoint is due.
    let disk = medium.open(&Options { cache_size: 8 << 20, ..options() });
    let unit = disk.begin();
    for block in &blocks {
        unit.write(*block, &[1; BLOCK]).unwrap();
    }
    let before = medium.left.image();
    medium.flushed.lock().unwrap().clear();
    unit.end().unwrap();
    assert_eq!(disk.counters().spilled_bytes, 0);
    let flushed = std::mem::take(&mut *medium.flushed.lock().unwrap());
    for image in flushed.into_iter().chain([before, medium.left.image()]) {
        let fills = found(image, list);
        assert!([[0; BLOCKS], [1; BLOCKS]].iter().any(|whole| fills == whole), "half of a unit");
    }
    disk.flush().unwrap();
    assert_eq!(found(medium.left.image(), list), [1; BLOCKS]);
}

/// The places of chunks of the log from a number on, as blocks of the medium.
fn chunks(disk: &Disk, from: u64) -> Vec<usize> {
    let mut chunks = Vec::new();
    let each = &mut |segment: fstitch_lld::DumpedSegment| {
        let those = segment.chunks.iter().filter(|chunk| chunk.number >= from);
        chunks.extend(those.map(|chunk| (chunk.number, to_usize(chunk.place))));
        Ok::<_, fstitch_core::Error>(())
    };
    disk.dump(0..disk.info().segments, each).unwrap();
    chunks.sort_unstable();
    chunks.into_iter().map(|(_, place)| place).collect()
}

/// Puts back what was at some place of an image and behind it, up to the end of its segment.
fn put_back(image: &mut [u8], before: &[u8], place: usize) {
    // The first eight blocks are no segment's.
    let end = (place - 8) / (SEGMENT / BLOCK) * (SEGMENT / BLOCK) + SEGMENT / BLOCK + 8;
    let range = place * BLOCK..end * BLOCK;
    image[range.clone()].copy_from_slice(&before[range]);
}

#[test]
fn a_chunk_that_a_failure_has_cut_off_does_not_come_back_behind_another_one() {
    const BLOCKS: usize = 120;
    let (image, list, blocks) = with_list(60, BLOCKS);
    // The same program in each life: two chunks of the same size, the first one at the end of a segment.
    let life = |image: Vec<u8>, fill: u8| {
        let medium = Medium::on(image);
        let disk = medium.open(&rarely());
        let (begun, next) = (medium.now.image(), disk.info().chunk + 1);
        for block in &blocks {
            disk.write(*block, &[fill; BLOCK]).unwrap();
        }
        disk.flush().unwrap();
        (begun, medium.now.image(), next, chunks(&disk, next))
    };
    // In the first one the second chunk arrives, and the first does not.
    let (begun, mut left, next, places) = life(image, 1);
    assert_eq!(places.len(), 2);
    put_back(&mut left, &begun, places[0]);
    assert_eq!(found(left.clone(), list), [0; BLOCKS]);
    // In the second one it is the other way round.
    let (begun, mut left, next_then, places_then) = life(left, 2);
    assert_eq!((next_then, places_then), (next, places.clone()));
    put_back(&mut left, &begun, places[1]);
    let fills = found(left, list);
    let first = fills.iter().filter(|fill| **fill == 2).count();
    assert!((1..BLOCKS).contains(&first), "the first chunk is there, and no other");
    assert_eq!(fills, [vec![2; first], vec![0; BLOCKS - first]].concat());
}
