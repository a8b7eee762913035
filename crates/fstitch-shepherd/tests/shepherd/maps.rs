//! Maps that are damaged, of another volume, or out of date.
//!
//! What it prevents: right contents that are called wrong because a map was lost, a copy that is made over something that was not
//! looked at, and damage of the maps that nobody hears of.

use std::sync::Arc;

use fstitch_core::{BlockDevice, BlockKind, BlockNo, BlockRead, BlockWrite, Error, IoOp, MemDevice, Seed};
use fstitch_crashlab::{Defect, Fault, FaultDevice, FaultPlan, Times};
use fstitch_shepherd::engine::{Opened, Trouble};
use fstitch_shepherd::{Options, Shepherd, Stretch};

const BLOCK: usize = 512;
const VOLUME: u64 = 1000;
const AREA: (u64, u64) = (700, 850);
/// Blocks of each of the two lists of the area.
const LIST: u64 = 1;
const KIND: BlockKind = BlockKind::Inode;
const POLICY: &str = "[metadata]\nread = [\"verify\", \"mirror\"]\nwrite = [\"verify\", \"mirror far\"]";

fn area() -> Vec<BlockNo> {
    (AREA.0..AREA.1).map(BlockNo).collect()
}

fn homes() -> impl Iterator<Item = u64> {
    (0..30).map(|no| 3 + no * 20)
}

fn read(device: &dyn BlockDevice, block: u64) -> Result<Vec<u8>, Error> {
    let mut data = vec![0; BLOCK];
    device.read(&mut [BlockRead { block: BlockNo(block), kind: KIND, data: &mut data }]).map(|()| data)
}

fn write(device: &dyn BlockDevice, block: u64, fill: u8) -> Result<(), Error> {
    device.write(&[BlockWrite { block: BlockNo(block), kind: KIND, data: &[fill; BLOCK] }])
}

fn open(disk: &Arc<MemDevice>) -> Result<(Shepherd, Opened), Error> {
    Shepherd::open(Arc::clone(disk) as Arc<dyn BlockDevice>, &area(), Options::default())
}

/// A volume whose homes hold their own numbers, closed.
fn made() -> Arc<MemDevice> {
    let disk = Arc::new(MemDevice::new(512, VOLUME));
    let device = || Arc::clone(&disk) as Arc<dyn BlockDevice>;
    let blocks: Vec<_> = homes().map(|block| Stretch::one(BlockNo(block), KIND)).collect();
    let mut seen = Vec::new();
    Shepherd::format(device(), &area(), [5; 16], POLICY, &[2], &blocks, &mut |done, all| {
        seen.push((done, all))
    })
    .unwrap();
    assert_eq!(seen.last(), Some(&(30, 30)), "progress reaches its end");
    let (shepherd, opened) = open(&disk).unwrap();
    assert_eq!(opened, Opened::default());
    for block in homes() {
        write(&shepherd, block, fill(block)).unwrap();
    }
    shepherd.close().unwrap();
    disk
}

fn fill(block: u64) -> u8 {
    u8::try_from(block % 251).unwrap() + 1
}

fn zero(disk: &MemDevice, block: u64) {
    disk.write(&[BlockWrite { block: BlockNo(block), kind: KIND, data: &[0; BLOCK] }]).unwrap();
}

#[track_caller]
fn assert_all_right(shepherd: &Shepherd) {
    for block in homes() {
        assert_eq!(read(shepherd, block).unwrap(), vec![fill(block); BLOCK], "block {block}");
    }
}

/// Each block of the area by itself: whatever it was, nothing is lost, and every home still has a copy or is itself whole.
#[test]
fn any_block_of_the_maps_may_be_lost() {
    let image = made().image();
    for lost in AREA.0..AREA.1 {
        let disk = Arc::new(MemDevice::from_image(512, image.clone()));
        zero(&disk, lost);
        let (shepherd, opened) = open(&disk).unwrap();
        assert!(!opened.is_foreign && opened.maps_lost == 0, "block {lost}: {opened:?}");
        assert_all_right(&shepherd);
        assert_eq!(shepherd.health().all(Trouble::Sum), 0, "block {lost}");
        shepherd.close().unwrap();
    }
}

/// A home and a block of the maps: only if the copy itself is lost as well there is nothing to read.
#[test]
fn a_home_and_a_block_of_the_maps_may_be_lost() {
    let image = made().image();
    let mut unreadable = 0;
    for lost in AREA.0..AREA.1 {
        let disk = Arc::new(MemDevice::from_image(512, image.clone()));
        zero(&disk, lost);
        zero(&disk, 43);
        let (shepherd, _) = open(&disk).unwrap();
        match read(&shepherd, 43) {
            Ok(data) => assert_eq!(data, vec![fill(43); BLOCK], "block {lost}"),
            Err(error) => {
                assert!(error.to_string().contains("do not fit their sum"), "{error}");
                unreadable += 1;
            }
        }
    }
    assert_eq!(unreadable, 1, "its copy is one block");
}

/// Both halves: what they said is not known any more. Nothing right is called wrong, and it is said.
#[test]
fn what_both_halves_have_lost_is_said() {
    let image = made().image();
    let (first, end) = (AREA.0, AREA.0 + half());
    let mut said = 0;
    for lost in first..end {
        let disk = Arc::new(MemDevice::from_image(512, image.clone()));
        zero(&disk, lost);
        zero(&disk, lost + half());
        match open(&disk) {
            Ok((shepherd, opened)) => {
                assert_all_right(&shepherd);
                said += u64::from(opened.maps_lost > 0 || opened.examined > 0);
            }
            Err(error) => {
                assert!(error.to_string().contains("maps of the shepherd"), "block {lost}: {error}");
                said += 1;
            }
        }
    }
    assert!(said >= 4, "head, policy, doubt and owners: {said}");
}

/// Blocks of one half of the maps of this test, found by where the second head is.
fn half() -> u64 {
    let disk = made();
    let is_head = |block: &u64| {
        let data = read(&*disk, *block).unwrap();
        data.starts_with(b"FSHP") && data[6] == 1
    };
    (AREA.0 + 1..AREA.1).find(is_head).unwrap() - AREA.0
}

#[test]
fn who_else_has_written_is_noticed_and_copies_are_made_anew() {
    let disk = made();
    // The kernel writes a home, and the superblock's times.
    write(&*disk, 63, 0xee).unwrap();
    write(&*disk, 2, 0x11).unwrap();
    let (shepherd, opened) = open(&disk).unwrap();
    assert!(opened.is_foreign);
    assert_eq!(read(&shepherd, 63).unwrap(), vec![0xee; BLOCK], "what was written since is believed");
    shepherd.close().unwrap();
    assert!(open(&disk).unwrap().1.is_foreign, "it is foreign until the maps are made anew");
    let (shepherd, _) = open(&disk).unwrap();
    let blocks: Vec<_> = homes().map(|block| Stretch::one(BlockNo(block), KIND)).collect();
    shepherd.renew(&blocks, &mut |_, _| {}).unwrap();
    shepherd.close().unwrap();
    let (shepherd, opened) = open(&disk).unwrap();
    assert!(!opened.is_foreign);
    zero(&disk, 63);
    assert_eq!(read(&shepherd, 63).unwrap(), vec![0xee; BLOCK], "the new copy is of the new contents");
    assert_eq!(read(&*disk, 63).unwrap(), vec![0xee; BLOCK], "and the home has it again");
}

#[test]
fn maps_of_something_else_are_refused() {
    let disk = made();
    let shifted: Vec<BlockNo> = (AREA.0 + 1..AREA.1).map(BlockNo).collect();
    let device = || Arc::clone(&disk) as Arc<dyn BlockDevice>;
    let refused = Shepherd::open(device(), &shifted, Options::default()).unwrap_err();
    assert!(matches!(&refused, Error::Corrupt(_)), "{refused}");
    let mut image = disk.image();
    image.resize(image.len() + 100 * BLOCK, 0);
    let larger = Arc::new(MemDevice::from_image(512, image));
    // A disk that is copied to a larger one is what it was.
    let (shepherd, opened) = open(&larger).unwrap();
    assert!(!opened.is_foreign && opened.maps_lost == 0, "{opened:?}");
    assert_all_right(&shepherd);
    write(&shepherd, VOLUME + 50, 9).unwrap();
    assert_eq!(read(&shepherd, VOLUME + 50).unwrap(), vec![9; BLOCK], "behind the volume nothing is kept");
    let mut image = disk.image();
    image.truncate(image.len() - 2 * BLOCK);
    let refused = open(&Arc::new(MemDevice::from_image(512, image))).unwrap_err();
    assert!(refused.to_string().contains("larger than this medium"), "{refused}");
    let few: Vec<BlockNo> = (AREA.0..AREA.0 + 5).map(BlockNo).collect();
    let refused = Shepherd::format(device(), &few, [5; 16], POLICY, &[2], &[], &mut |_, _| {}).unwrap_err();
    assert!(refused.to_string().contains("in an area of 5"), "{refused}");
    let refused = Shepherd::format(device(), &area(), [5; 16], "[x]", &[2], &[], &mut |_, _| {}).unwrap_err();
    assert!(refused.to_string().contains("line 1: there is no kind of block `x`"), "{refused}");
    let refused =
        Shepherd::format(device(), &area(), [5; 16], POLICY, &[VOLUME], &[], &mut |_, _| {}).unwrap_err();
    assert!(refused.to_string().contains("sealing the sectors"), "{refused}");
    let long = format!("# {}\n{POLICY}", "x".repeat(20_000));
    let refused = Shepherd::format(device(), &area(), [5; 16], &long, &[2], &[], &mut |_, _| {}).unwrap_err();
    assert!(refused.to_string().contains("which is more than"), "{refused}");
}

/// Bits of the area are flipped: refused, or opened with everything right; never a panic.
#[test]
fn damaged_maps_never_make_right_contents_wrong() {
    let image = made().image();
    let mut seed = Seed::new(11);
    for _ in 0..400 {
        let mut damaged = image.clone();
        for _ in 0..=seed.below(6) {
            let first = AREA.0 * 512;
            let at = usize::try_from(first + seed.below((AREA.1 - AREA.0) * 512)).unwrap();
            damaged[at] ^= 1 << seed.below(8);
        }
        if let Ok((shepherd, _)) = open(&Arc::new(MemDevice::from_image(512, damaged))) {
            assert_all_right(&shepherd);
        }
    }
}

/// More copies than spares: the homes are written, and `health` says how many copies there are fewer.
#[test]
fn copies_that_have_no_room_are_counted() {
    let disk = made();
    let (shepherd, _) = open(&disk).unwrap();
    let mut written = 0;
    for block in (0..AREA.0).filter(|block| *block != 2) {
        write(&shepherd, block, 9).unwrap();
        written += 1;
    }
    let lost = shepherd.health().of(fstitch_shepherd::policy::Kind::Block(KIND), Trouble::CopyLost);
    assert!(lost > 0 && lost < written, "{lost} of {written}");
    shepherd.close().unwrap();
    let (shepherd, _) = open(&disk).unwrap();
    assert_eq!(read(&shepherd, 600).unwrap(), vec![9; BLOCK]);
}

/// A spare that cannot be written is given up for another; the block still has a copy.
#[test]
fn a_bad_spare_is_replaced() {
    bad_spares(POLICY);
    bad_spares("[metadata]\nread = [\"mirror\"]\nwrite = [\"mirror far\"]");
}

fn bad_spares(policy: &str) {
    let disk = Arc::new(FaultDevice::new(MemDevice::new(512, VOLUME), FaultPlan::default()));
    let device = || Arc::clone(&disk) as Arc<dyn BlockDevice>;
    let blocks: Vec<_> = homes().map(|block| Stretch::one(BlockNo(block), KIND)).collect();
    Shepherd::format(device(), &area(), [5; 16], policy, &[2], &blocks, &mut |_, _| {}).unwrap();
    let (shepherd, _) = Shepherd::open(device(), &area(), Options::default()).unwrap();
    // All spares of the first twenty fail.
    let spares = AREA.0 + 2 * half() + LIST;
    let bad = Fault {
        op: Some(IoOp::Write),
        blocks: Some(spares..spares + 8),
        times: Times::Sticky,
        ..Fault::new(Defect::Error)
    };
    disk.set_plan(FaultPlan::one(bad));
    for block in homes() {
        write(&shepherd, block, fill(block) ^ 0x80).unwrap();
    }
    shepherd.settle().unwrap();
    for block in homes() {
        let lost =
            Fault { blocks: Some(block..block + 1), times: Times::Sticky, ..Fault::new(Defect::Error) };
        disk.set_plan(FaultPlan::one(lost));
        assert_eq!(read(&shepherd, block).unwrap(), vec![fill(block) ^ 0x80; BLOCK], "block {block}");
    }
}

/// What was discarded has neither a sum nor a copy.
#[test]
fn what_is_discarded_is_forgotten() {
    let disk = made();
    let (shepherd, _) = open(&disk).unwrap();
    shepherd.discard(BlockNo(40), 30).unwrap();
    zero(&disk, 43);
    assert_eq!(read(&shepherd, 43).unwrap(), vec![0; BLOCK]);
    shepherd.close().unwrap();
    assert_eq!(read(&open(&disk).unwrap().0, 43).unwrap(), vec![0; BLOCK]);
}

/// The bit of doubt of a run cannot be made stable at first: the write fails, and the next one does not take the bit for stable.
#[test]
fn a_bit_that_could_not_be_written_is_written_the_next_time() {
    let disk = Arc::new(FaultDevice::new(MemDevice::from_image(512, made().image()), FaultPlan::default()));
    let under = Arc::clone(&disk) as Arc<dyn BlockDevice>;
    let (shepherd, _) = Shepherd::open(under, &area(), Options::default()).unwrap();
    let is_doubt = |block: &u64| read(disk.device(), *block).unwrap().starts_with(b"FSDB");
    let fault = |block: u64| Fault {
        op: Some(IoOp::Write),
        blocks: Some(block..block + 1),
        times: Times::Sticky,
        ..Fault::new(Defect::Error)
    };
    let faults: Vec<Fault> = (AREA.0..AREA.1).filter(is_doubt).map(fault).collect();
    assert_eq!(faults.len(), 2, "there is one block, in both halves");
    disk.set_plan(FaultPlan { faults, ..FaultPlan::default() });
    write(&shepherd, 43, 0x77).unwrap_err();
    assert_eq!(read(&shepherd, 43).unwrap(), vec![fill(43); BLOCK], "nothing was written");
    disk.set_plan(FaultPlan::default());
    write(&shepherd, 43, 0x78).unwrap();
    let cut = Arc::new(MemDevice::from_image(512, disk.device().image()));
    let (shepherd, opened) = open(&cut).unwrap();
    assert!(opened.examined > 0 && opened.unverified == 1, "{opened:?}");
    assert_eq!(read(&shepherd, 43).unwrap(), vec![0x78; BLOCK]);
}

/// A home that could not be written keeps its old contents, of which there is no sum any more: they are not called wrong for ever.
#[test]
fn a_home_that_was_not_written_is_looked_at_again() {
    let disk = Arc::new(FaultDevice::new(MemDevice::new(512, VOLUME), FaultPlan::default()));
    let under = || Arc::clone(&disk) as Arc<dyn BlockDevice>;
    let policy = "[all]\nread = [\"verify\"]\nwrite = [\"verify\"]";
    let blocks = [Stretch::one(BlockNo(43), KIND)];
    Shepherd::format(under(), &area(), [5; 16], policy, &[2], &blocks, &mut |_, _| {}).unwrap();
    let (shepherd, _) = Shepherd::open(under(), &area(), Options::default()).unwrap();
    write(&shepherd, 43, 1).unwrap();
    let bad = Fault {
        blocks: Some(43..44),
        op: Some(IoOp::Write),
        times: Times::Sticky,
        ..Fault::new(Defect::Error)
    };
    disk.set_plan(FaultPlan::one(bad));
    write(&shepherd, 43, 2).unwrap_err();
    shepherd.close().unwrap();
    disk.set_plan(FaultPlan::default());
    let (shepherd, opened) = Shepherd::open(under(), &area(), Options::default()).unwrap();
    assert_eq!(opened.unverified, 1, "{opened:?}");
    assert_eq!(read(&shepherd, 43).unwrap(), vec![1; BLOCK]);
}

/// Each block of either half in turn takes no writes any more: the other one is newer, and counts.
#[test]
fn a_block_of_the_maps_that_takes_no_writes_is_outvoted_by_its_younger_twin() {
    let image = made().image();
    for stuck in AREA.0..AREA.0 + 2 * half() {
        let disk =
            Arc::new(FaultDevice::new(MemDevice::from_image(512, image.clone()), FaultPlan::default()));
        let under = || Arc::clone(&disk) as Arc<dyn BlockDevice>;
        let fault =
            Fault { blocks: Some(stuck..stuck + 1), op: Some(IoOp::Write), ..Fault::new(Defect::Error) };
        disk.set_plan(FaultPlan::one(Fault { times: Times::Sticky, ..fault }));
        let (shepherd, _) = Shepherd::open(under(), &area(), Options::default()).unwrap();
        for block in homes() {
            write(&shepherd, block, fill(block) ^ 0x40).unwrap();
        }
        shepherd.close().unwrap();
        disk.set_plan(FaultPlan::default());
        let (shepherd, opened) = Shepherd::open(under(), &area(), Options::default()).unwrap();
        assert_eq!(opened, Opened::default(), "block {stuck}");
        for block in homes() {
            assert_eq!(read(&shepherd, block).unwrap(), vec![fill(block) ^ 0x40; BLOCK], "block {stuck}");
        }
        assert_eq!(shepherd.health().all(Trouble::Sum), 0, "block {stuck}");
    }
}

/// `stop` and `read-only` are of the whole volume, from the first fault on.
#[test]
fn the_end_of_a_chain_is_the_volume_s() {
    for (end, reads) in [("stop", false), ("read-only", true), ("propagate", true)] {
        let disk = Arc::new(FaultDevice::new(MemDevice::new(512, VOLUME), FaultPlan::default()));
        let under = || Arc::clone(&disk) as Arc<dyn BlockDevice>;
        let policy = format!("[metadata]\nwrite = [\"{end}\"]");
        Shepherd::format(under(), &area(), [5; 16], &policy, &[2], &[], &mut |_, _| {}).unwrap();
        let (shepherd, _) = Shepherd::open(under(), &area(), Options::default()).unwrap();
        write(&shepherd, 50, 1).unwrap();
        disk.set_plan(FaultPlan::one(Fault { blocks: Some(43..44), ..Fault::new(Defect::Error) }));
        write(&shepherd, 43, 2).unwrap_err();
        assert_eq!(read(&shepherd, 50).is_ok(), reads, "{end}");
        assert_eq!(shepherd.flush().is_ok(), reads, "{end}");
        let written = write(&shepherd, 50, 3);
        assert_eq!(written.is_ok(), end == "propagate", "{end}");
        if let Err(error) = written {
            assert!(error.to_string().contains("its policy has"), "{error}");
        }
    }
}

/// A copy could not be written and was given up: it does not come back, older than what was flushed, when the home is lost with the power.
#[test]
fn a_copy_that_was_given_up_does_not_come_back() {
    let disk = Arc::new(FaultDevice::new(MemDevice::from_image(512, made().image()), FaultPlan::default()));
    let under = Arc::clone(&disk) as Arc<dyn BlockDevice>;
    let (shepherd, _) = Shepherd::open(under, &area(), Options::default()).unwrap();
    let spares = AREA.0 + 2 * half() + LIST;
    let fault = Fault { blocks: Some(spares..AREA.1), op: Some(IoOp::Write), ..Fault::new(Defect::Error) };
    disk.set_plan(FaultPlan::one(Fault { times: Times::Sticky, ..fault }));
    write(&shepherd, 43, 0x77).unwrap();
    shepherd.flush().unwrap();
    let cut = FaultDevice::new(MemDevice::from_image(512, disk.device().image()), FaultPlan::default());
    let lost = Fault { blocks: Some(43..44), times: Times::Sticky, ..Fault::new(Defect::Error) };
    cut.set_plan(FaultPlan::one(lost));
    let (shepherd, _) = Shepherd::open(Arc::new(cut), &area(), Options::default()).unwrap();
    read(&shepherd, 43).unwrap_err();
}

/// There is one spare, and in one batch a block ceases to have a copy and another one is to get one: the spare is still the first one's
/// as far as the medium knows, so it is not given away where that cannot be told.
#[test]
fn a_spare_is_given_away_when_the_medium_knows_that_it_is_free() {
    let disk = Arc::new(FaultDevice::new(MemDevice::new(512, VOLUME), FaultPlan::default()));
    let under = || Arc::clone(&disk) as Arc<dyn BlockDevice>;
    let blocks = [Stretch::one(BlockNo(43), KIND)];
    let format = |count: u64| {
        let area: Vec<BlockNo> = (AREA.0..AREA.0 + count).map(BlockNo).collect();
        Shepherd::format(under(), &area, [5; 16], POLICY, &[2], &blocks, &mut |_, _| {}).map(|()| area)
    };
    let without_spares = (1..200).find(|count| format(*count).is_ok()).unwrap();
    // A spare, and a block of owners in each half.
    let area = format(without_spares + 3).unwrap();
    let (shepherd, _) = Shepherd::open(under(), &area, Options::default()).unwrap();
    let kind = fstitch_shepherd::policy::Kind::Block(KIND);
    let lost = || shepherd.health().of(kind, Trouble::CopyLost);
    write(&shepherd, 43, 1).unwrap();
    assert_eq!(lost(), 0, "it has its copy");
    let data = [2; BLOCK];
    let no_more = BlockWrite { block: BlockNo(43), kind: BlockKind::Data, data: &data };
    let new = BlockWrite { block: BlockNo(63), kind: KIND, data: &data };
    disk.set_plan(FaultPlan::one(Fault { op: Some(IoOp::Flush), ..Fault::new(Defect::Error) }));
    shepherd.write(&[no_more, new]).unwrap();
    assert_eq!(lost(), 1, "there is no spare that the medium calls free");
    shepherd.flush().expect_err("one has failed");
    write(&shepherd, 63, 3).unwrap();
    assert_eq!(lost(), 1, "now there is");
    let back = BlockWrite { block: BlockNo(63), kind: BlockKind::Data, data: &data };
    shepherd.write(&[back, BlockWrite { block: BlockNo(43), kind: KIND, data: &data }]).unwrap();
    assert_eq!(lost(), 1, "the medium is told in the midst of the batch");
}
