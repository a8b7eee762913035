//! Several disks, one of which is out or has a successor that is being rebuilt: what was answered is kept, and what is not kept is not answered.
//!
//! What it prevents: a write that no disk has, a flush that promises what went with a disk, a successor that is read where it has nothing,
//! labels that run ahead of what they say, a good disk that is put out for the fault of another.

use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock};

use crate::machine::*;
use fstitch_core::{
    BlockDevice, BlockKind, BlockNo, BlockRead, BlockWrite, Geometry, IoOp, MemDevice, Overlay, Result,
};
use fstitch_shepherd::disks::{Array, DiskState, Label, write_labels};
use fstitch_shepherd::{Options, Shepherd};

/// Copies of directories alone.
const SOME: &str = "[metadata]\nread = [\"mirror\"]\nwrite = [\"mirror other-disk\"]";
const MIRRORED: &str = "[all]\nread = [\"mirror\"]\nwrite = [\"mirror other-disk\"]";

/// An array, and a disk more that is none of its disks yet.
struct Rig {
    machine: Arc<Machine<Arc<MemDevice>>>,
    given: Vec<Option<Arc<dyn BlockDevice>>>,
    successor: Arc<dyn BlockDevice>,
    shepherd: Shepherd,
}

fn rig(policy: &str, count: usize) -> Rig {
    let made = made(policy, count);
    let mut image = made.image();
    image.resize((count + 1) * usize::try_from(DISK).unwrap() * BLOCK, 0xee);
    let medium = Arc::new(MemDevice::from_image(1024, image));
    let machine = Machine::new(medium, count + 1);
    let mut given = disks(&machine);
    let successor = given.pop().flatten().unwrap();
    let (shepherd, ..) = open(&given).unwrap();
    Rig { machine, given, successor, shepherd }
}

impl Rig {
    fn label(&self) -> Label {
        self.shepherd.disks().unwrap().label()
    }

    fn state(&self, disk: usize) -> DiskState {
        self.shepherd.disks().unwrap().state(disk)
    }

    fn homes(&self, disk: usize) -> Range<u64> {
        let label = self.label();
        let first = label.first + label.zone;
        first..first + label.disks[disk].blocks
    }

    fn spares(&self, disk: usize) -> Range<u64> {
        self.homes(disk).end..DISK
    }

    /// A block of the volume whose home is on a disk.
    fn block_of(&self, disk: usize) -> u64 {
        let array = self.shepherd.disks().unwrap();
        (1..self.shepherd.blocks()).find(|block| array.disk_of(BlockNo(*block)) == Some(disk)).unwrap()
    }

    /// The disk dies, somebody notices, and it has a successor.
    fn replace(&self, disk: usize) {
        self.machine.kill(disk);
        let _ = get(&self.shepherd, self.block_of(disk));
        assert!(matches!(self.state(disk), DiskState::Out { .. }));
        self.shepherd.replace_disk(disk, &self.successor, [99; 16]).unwrap();
    }

    /// As after a power cut with everything written: all disks but some, the successor in the place of one.
    fn reopened(&self, replaced: usize, away: &[usize]) -> Shepherd {
        open(&self.left(replaced, away)).unwrap().0
    }

    fn left(&self, replaced: usize, away: &[usize]) -> Vec<Option<Arc<dyn BlockDevice>>> {
        let mut given = self.given.clone();
        given[replaced] = Some(Arc::clone(&self.successor));
        away.iter().for_each(|away| given[*away] = None);
        let view = |disk: Arc<dyn BlockDevice>| Arc::new(Overlay::new(disk)) as Arc<dyn BlockDevice>;
        given.into_iter().map(|disk| disk.map(view)).collect()
    }
}

#[test]
fn a_write_that_no_disk_takes_fails() {
    let rig = rig(MIRRORED, 2);
    put(&rig.shepherd, 1, 1).unwrap();
    rig.machine.kill(0);
    put(&rig.shepherd, 1, 2).unwrap();
    rig.machine.spoil(1, IoOp::Write, rig.spares(1));
    put(&rig.shepherd, 1, 3).unwrap_err();
}

#[test]
fn the_second_of_two_disks_takes_what_only_it_had() {
    let rig = rig(MIRRORED, 3);
    put(&rig.shepherd, 1, 1).unwrap();
    rig.machine.kill(0);
    put(&rig.shepherd, 1, 2).unwrap();
    rig.machine.kill(1);
    rig.shepherd.flush().unwrap_err();
    rig.shepherd.flush().unwrap();
}

#[test]
fn a_successor_does_not_make_up_for_what_was_never_flushed() {
    let rig = rig(SOME, 2);
    put(&rig.shepherd, 1, 1).unwrap();
    rig.replace(0);
    rig.shepherd.flush().unwrap_err();
    rig.shepherd.flush().unwrap();
}

#[test]
fn a_lost_block_that_cannot_be_written_stays_lost() {
    let rig = rig(SOME, 2);
    rig.replace(0);
    rebuild(&rig.shepherd);
    get(&rig.shepherd, 1).unwrap_err();
    rig.machine.spoil(2, IoOp::Write, rig.homes(0));
    put(&rig.shepherd, 1, 1).unwrap_err();
    rig.machine.mend();
    get(&rig.shepherd, 1).unwrap_err();
    put(&rig.shepherd, 1, 2).unwrap();
    assert_eq!(get(&rig.shepherd, 1).unwrap(), [2; 2]);
    rig.shepherd.flush().unwrap();
    assert_eq!(get(&rig.reopened(0, &[]), 1).unwrap(), [2; 2]);
}

/// What was lost and holds something again, or nobody wants any more, is not counted: not now, and not after the next opening.
#[test]
fn what_was_lost_leaves_the_count() {
    let rig = rig(SOME, 2);
    rig.replace(0);
    let lost = rebuild(&rig.shepherd);
    let count = u64::try_from(lost.len()).unwrap();
    assert!(count > 20, "the data of a disk");
    assert_eq!(rig.shepherd.holdings().lost, count);
    for (no, block) in (1..).zip(&lost[..5]) {
        put(&rig.shepherd, block.get(), 3).unwrap();
        assert_eq!(rig.shepherd.holdings().lost, count - no);
    }
    lost[5..].iter().for_each(|block| rig.shepherd.discard(*block, 1).unwrap());
    assert_eq!(rig.shepherd.holdings().lost, count - 5, "the medium still has their marks");
    rig.shepherd.settle().unwrap();
    assert_eq!(rig.shepherd.holdings().lost, 0);
    assert_eq!(rig.shepherd.lost_with_a_disk(9).first, []);
    rig.shepherd.close().unwrap();
    let again = rig.reopened(0, &[]);
    assert_eq!(again.holdings().lost, 0);
    lost[..5].iter().for_each(|block| assert_eq!(get(&again, block.get()).unwrap(), [3; 2]));
}

#[test]
fn a_lost_block_that_moves_is_found() {
    let rig = rig(
        "[metadata]\nread = [\"mirror\"]\nwrite = [\"mirror other-disk\"]\n[data]\nwrite = [\"remap\"]",
        2,
    );
    rig.replace(0);
    rebuild(&rig.shepherd);
    rig.machine.spoil(2, IoOp::Write, rig.homes(0));
    put(&rig.shepherd, 1, 1).unwrap();
    assert_eq!(get(&rig.shepherd, 1).unwrap(), [1; 2]);
    assert_eq!(get(&rig.reopened(0, &[]), 1).unwrap(), [1; 2]);
}

#[test]
fn labels_say_no_more_than_is_stable() {
    let rig = rig(MIRRORED, 3);
    (0..rig.shepherd.blocks()).for_each(|block| put(&rig.shepherd, block, 1).unwrap());
    rig.replace(2);
    rig.shepherd.rebuild(40).unwrap().unwrap();
    assert_eq!(rig.state(2), DiskState::Rebuilding { next: 40 });
    rig.machine.kill(1);
    put(&rig.shepherd, rig.block_of(1), 2).unwrap();
    assert_eq!(rig.state(2), DiskState::Rebuilding { next: 40 }, "it goes on from there");
    let (array, _) = Array::open(&rig.left(2, &[1]), false).unwrap();
    assert_eq!(array.state(2), DiskState::Rebuilding { next: 0 }, "nothing of it was flushed");
}

#[test]
fn an_older_life_of_a_successor_is_over() {
    let rig = rig(MIRRORED, 2);
    let older = Label { generation: 50, ..rig.label() };
    write_labels(&[Arc::clone(&rig.successor), fresh()], &older).unwrap();
    rig.replace(1);
    let shepherd = rig.reopened(1, &[]);
    assert_eq!(shepherd.disks().unwrap().state(1), DiskState::Rebuilding { next: 0 });
}

#[test]
fn a_block_of_the_maps_that_cannot_be_read_puts_no_other_disk_out() {
    for at in 0..56 {
        let rig = rig(MIRRORED, 3);
        let label = rig.label();
        assert_eq!(label.zone, 56);
        (1..9).for_each(|block| put(&rig.shepherd, block, 1).unwrap());
        rig.shepherd.flush().unwrap();
        let zone = label.first + at;
        rig.machine.spoil(0, IoOp::Read, zone..zone + 1);
        let (shepherd, _, found) = open(&rig.given).unwrap();
        assert_eq!((found.missing, found.degraded), (vec![], vec![]));
        assert!((0..3).all(|disk| shepherd.disks().unwrap().state(disk) == DiskState::Whole), "block {at}");
        assert_eq!(get(&shepherd, 5).unwrap(), [1; 2]);
        // Nor does it stop a successor.
        rig.machine.kill(2);
        let last = shepherd.blocks() - 1;
        put(&shepherd, last, 2).unwrap();
        shepherd.replace_disk(2, &rig.successor, [99; 16]).unwrap();
        rebuild(&shepherd);
    }
}

/// Each disk has one that it cannot read, another one each: nowhere is all there, and everything is.
#[test]
fn maps_of_which_no_disk_can_read_all_are_whole_in_their_halves() {
    for at in 0..56 {
        let rig = rig(MIRRORED, 3);
        (1..9).for_each(|block| put(&rig.shepherd, block, 1).unwrap());
        rig.shepherd.flush().unwrap();
        for disk in 0..3 {
            let zone = rig.label().first + (at + 9 * u64::try_from(disk).unwrap()) % 56;
            rig.machine.spoil(disk, IoOp::Read, zone..zone + 1);
        }
        let (shepherd, opened, _) = open(&rig.given).unwrap();
        assert_eq!(opened.maps_lost, 0, "block {at}");
        assert!((0..3).all(|disk| shepherd.disks().unwrap().state(disk) == DiskState::Whole), "block {at}");
        assert_eq!(get(&shepherd, 5).unwrap(), [1; 2]);
        rig.machine.kill(2);
        put(&shepherd, shepherd.blocks() - 1, 2).unwrap();
        shepherd.replace_disk(2, &rig.successor, [99; 16]).unwrap();
        rebuild(&shepherd);
        assert_eq!(get(&shepherd, 5).unwrap(), [1; 2]);
    }
}

#[test]
fn a_successor_that_does_not_take_a_home_is_none() {
    let rig = rig(MIRRORED, 2);
    (0..rig.shepherd.blocks()).for_each(|block| put(&rig.shepherd, block, 1).unwrap());
    let bad = rig.homes(0).start + 5;
    rig.machine.spoil(2, IoOp::Write, bad..bad + 1);
    rig.replace(0);
    while let Some(step) = rig.shepherd.rebuild(50).unwrap() {
        assert!(step.next < rig.shepherd.blocks(), "it is never whole");
    }
    assert!(matches!(rig.state(0), DiskState::Out { .. }));
    for block in 0..rig.shepherd.blocks() {
        assert_eq!(get(&rig.shepherd, block).unwrap(), [1; 2], "block {block}");
    }
}

#[test]
fn a_successor_that_does_not_take_a_copy_has_it_elsewhere() {
    let rig = rig(MIRRORED, 2);
    (0..rig.shepherd.blocks()).for_each(|block| put(&rig.shepherd, block, 1).unwrap());
    let bad = rig.spares(0).start + 5;
    rig.machine.spoil(2, IoOp::Write, bad..bad + 1);
    rig.replace(0);
    while rig.shepherd.rebuild(50).unwrap().is_some() {}
    rig.shepherd.close().unwrap();
    let shepherd = rig.reopened(0, &[1]);
    for block in 0..shepherd.blocks() {
        assert_eq!(get(&shepherd, block).unwrap(), [1; 2], "block {block}");
    }
}

#[test]
fn what_is_written_to_a_successor_before_it_is_rebuilt_there_is_kept() {
    let rig = rig(SOME, 3);
    rig.replace(0);
    put(&rig.shepherd, 1, 7).unwrap();
    assert_eq!(get(&rig.shepherd, 1).unwrap(), [7; 2]);
    rig.shepherd.flush().unwrap();
    assert_eq!(get(&rig.reopened(0, &[]), 1).unwrap(), [7; 2], "after a crash");
    let lost = rebuild(&rig.shepherd);
    assert!(!lost.contains(&BlockNo(1)));
    assert_eq!(get(&rig.shepherd, 1).unwrap(), [7; 2]);
    put(&rig.shepherd, 1, 8).unwrap();
    rig.shepherd.close().unwrap();
    assert_eq!(rig.shepherd.holdings().copies, 0, "its policy asks for none");
    assert_eq!(get(&rig.reopened(0, &[]), 1).unwrap(), [8; 2]);
}

#[test]
fn a_copy_that_is_there_is_kept_rather_than_one_that_is_out() {
    let rig = rig(POLICIES[1], 3);
    put(&rig.shepherd, 12, 1).unwrap();
    assert_eq!(rig.shepherd.disks().unwrap().disk_of(BlockNo(12)), Some(0));
    rig.machine.kill(1);
    put(&rig.shepherd, rig.block_of(1), 1).unwrap();
    let data = &[2; BLOCK];
    rig.shepherd.write(&[BlockWrite { block: BlockNo(12), kind: BlockKind::Data, data }]).unwrap();
    rig.shepherd.flush().unwrap();
    rig.machine.kill(0);
    assert_eq!(get(&rig.shepherd, 12).unwrap(), [2; 2]);
}

#[test]
fn a_discard_on_a_dead_disk_is_none() {
    let rig = rig(MIRRORED, 2);
    rig.machine.kill(0);
    rig.shepherd.discard(BlockNo(1), rig.shepherd.blocks() - 1).unwrap();
    assert!(matches!(rig.state(0), DiskState::Out { .. }));
}

type Hook = Box<dyn Fn() + Send>;

/// A disk that does something else once, at the end of a flush.
struct Busy {
    disk: Arc<dyn BlockDevice>,
    hook: Arc<Mutex<Option<Hook>>>,
}

impl BlockDevice for Busy {
    fn geometry(&self) -> Geometry {
        self.disk.geometry()
    }

    fn read(&self, reads: &mut [BlockRead<'_>]) -> Result<()> {
        self.disk.read(reads)
    }

    fn write(&self, writes: &[BlockWrite<'_>]) -> Result<()> {
        self.disk.write(writes)
    }

    fn flush(&self) -> Result<()> {
        self.disk.flush()?;
        let hook = self.hook.lock().unwrap().take();
        hook.into_iter().for_each(|hook| hook());
        Ok(())
    }

    fn discard(&self, start: BlockNo, count: u64) -> Result<()> {
        self.disk.discard(start, count)
    }
}

#[test]
fn what_is_written_while_a_flush_is_under_way_is_of_the_next_one() {
    let machine = Machine::new(made(SOME, 2), 2);
    let mut given = disks(&machine);
    let hook: Arc<Mutex<Option<Hook>>> = Arc::default();
    let disk = given[0].take().unwrap();
    given[0] = Some(Arc::new(Busy { disk, hook: Arc::clone(&hook) }));
    let (array, _) = Array::open(&given, false).unwrap();
    let array = Arc::new(array);
    let area = array.area();
    let options = Options { disks: Some(Arc::clone(&array)), ..Options::default() };
    let (shepherd, _) = Shepherd::open(array, &area, options).unwrap();
    let shepherd = Arc::new(shepherd);
    put(&shepherd, 2, 1).unwrap();
    let volume: Arc<OnceLock<Arc<Shepherd>>> = Arc::new(OnceLock::from(Arc::clone(&shepherd)));
    *hook.lock().unwrap() = Some(Box::new(move || put(volume.get().unwrap(), 1, 7).unwrap()));
    shepherd.flush().unwrap();
    assert_eq!(get(&shepherd, 1).unwrap(), [7; 2]);
    machine.kill(0);
    shepherd.flush().unwrap_err();
}

#[test]
fn a_copy_that_a_successor_does_not_have_yet_is_not_read() {
    let rig = rig(MIRRORED, 2);
    put(&rig.shepherd, 1, 1).unwrap();
    rig.shepherd.flush().unwrap();
    rig.replace(1);
    let home = rig.homes(0).start + 1;
    rig.machine.spoil(0, IoOp::Read, home..home + 1);
    get(&rig.shepherd, 1).unwrap_err();
    rig.machine.mend();
    rebuild(&rig.shepherd);
    rig.machine.spoil(0, IoOp::Read, home..home + 1);
    assert_eq!(get(&rig.shepherd, 1).unwrap(), [1; 2]);
}
