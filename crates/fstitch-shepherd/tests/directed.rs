//! Parity, moved blocks and scrub, case by case.
//!
//! What it prevents: a block computed from a group that is not of one moment; a group of which a write makes no parity; a block that is
//! found at its old home; damage that a scrub passes over, or copies.
#![allow(clippy::unwrap_used, reason = "a test fails where it cannot go on")]

use std::sync::Arc;

use fstitch_core::{BlockDevice, BlockKind, BlockNo, BlockRead, BlockWrite, Error, IoOp, MemDevice};
use fstitch_crashlab::{Defect, Fault, FaultDevice, FaultPlan, Times};
use fstitch_shepherd::engine::{Opened, Rules, Trouble};
use fstitch_shepherd::{Options, Shepherd, Stretch};

const BLOCK: usize = 1024;
const VOLUME: u64 = 400;
const KIND: BlockKind = BlockKind::Data;
const PARITY: &str = "[all]\nread = [\"verify\", \"parity\"]\nwrite = [\"verify\", \"parity 8\"]";
const BARE: &str = "[all]\nread = [\"parity\"]\nwrite = [\"parity 8\"]";
const MOVES: &str = "[all]\nread = [\"verify\"]\nwrite = [\"verify\", \"remap\"]";

type Disk = Arc<FaultDevice<MemDevice>>;

fn area() -> Vec<BlockNo> {
    (250..390).map(BlockNo).collect()
}

/// Blocks of each of the two lists of the area, before the spares and behind them.
const LIST: u64 = 1;

fn first_spare(shepherd: &Shepherd) -> u64 {
    area()[0].get() + area().len() as u64 - LIST - shepherd.holdings().spares
}

fn homes() -> std::ops::Range<u64> {
    32..96
}

fn made(policy: &str) -> Disk {
    let disk = Arc::new(FaultDevice::new(MemDevice::new(1024, VOLUME), FaultPlan::default()));
    let blocks = [Stretch { start: BlockNo(homes().start), count: 64, kind: KIND }];
    let device = Arc::clone(&disk) as Arc<dyn BlockDevice>;
    Shepherd::format(device, &area(), [9; 16], policy, &[2], &blocks, &mut |_, _| {}).unwrap();
    disk
}

fn open(disk: &Disk) -> (Shepherd, Opened) {
    Shepherd::open(Arc::clone(disk) as Arc<dyn BlockDevice>, &area(), Options::default()).unwrap()
}

fn write(device: &dyn BlockDevice, block: u64, fill: u8) -> Result<(), Error> {
    device.write(&[BlockWrite { block: BlockNo(block), kind: KIND, data: &[fill; BLOCK] }])
}

fn read(device: &dyn BlockDevice, block: u64) -> Result<u8, Error> {
    let mut data = vec![0; BLOCK];
    device.read(&mut [BlockRead { block: BlockNo(block), kind: KIND, data: &mut data }])?;
    assert!(data.iter().all(|byte| *byte == data[0]), "block {block} is of one piece");
    Ok(data[0])
}

fn fails(disk: &Disk, blocks: std::ops::Range<u64>, op: Option<IoOp>) {
    let fault = Fault { blocks: Some(blocks), op, times: Times::Sticky, ..Fault::new(Defect::Error) };
    disk.set_plan(FaultPlan::one(fault));
}

fn fill(block: u64) -> u8 {
    u8::try_from(block).unwrap()
}

#[test]
fn any_block_of_a_group_is_computed_from_the_others() {
    for policy in [PARITY, BARE] {
        let disk = made(policy);
        let (shepherd, _) = open(&disk);
        // One by one, some at once, all of a group, and one twice.
        for block in homes() {
            write(&shepherd, block, fill(block)).unwrap();
        }
        let datas: Vec<[u8; BLOCK]> = (40..48).map(|block| [fill(block) ^ 0x80; BLOCK]).collect();
        let writes: Vec<BlockWrite<'_>> = (40..48)
            .zip(&datas)
            .map(|(block, data)| BlockWrite { block: BlockNo(block), kind: KIND, data })
            .collect();
        shepherd.write(&writes).unwrap();
        shepherd.write(&writes[1..3]).unwrap();
        let twice = [writes[0], BlockWrite { data: &[7; BLOCK], ..writes[0] }];
        shepherd.write(&twice).unwrap();
        let wanted = |block: u64| match block {
            40 => 7,
            41..48 => fill(block) ^ 0x80,
            _ => fill(block),
        };
        let check = |shepherd: &Shepherd| {
            for block in homes() {
                fails(&disk, block..block + 1, None);
                assert_eq!(read(shepherd, block).unwrap(), wanted(block), "{policy}: block {block}");
                disk.set_plan(FaultPlan::default());
            }
        };
        check(&shepherd);
        shepherd.close().unwrap();
        check(&open(&disk).0);
        // Two of one group are one too many.
        let (shepherd, _) = open(&disk);
        fails(&disk, 50..52, None);
        assert!(read(&shepherd, 50).is_err());
    }
}

/// A group in doubt is believed where a sum bears it out, and never otherwise.
#[test]
fn after_a_crash_parity_is_believed_with_a_sum_alone() {
    for (policy, is_restored) in [(PARITY, true), (BARE, false)] {
        let disk = made(policy);
        let (shepherd, _) = open(&disk);
        for block in homes() {
            write(&shepherd, block, fill(block)).unwrap();
        }
        shepherd.settle().unwrap();
        // Of another group of the same run of 64 blocks, which is in doubt with it.
        write(&shepherd, 70, 1).unwrap();
        shepherd.flush().unwrap();
        drop(shepherd);
        fails(&disk, 80..81, Some(IoOp::Read));
        let (shepherd, opened) = open(&disk);
        assert!(opened.was_in_use);
        let found = read(&shepherd, 80);
        assert_eq!(found.is_ok(), is_restored, "{policy}: {opened:?}");
        assert!(found.is_err() || found.unwrap() == fill(80));
        disk.set_plan(FaultPlan::default());
        assert_eq!(read(&shepherd, 70).unwrap(), 1);
        fails(&disk, 70..71, None);
        assert_eq!(read(&shepherd, 70).unwrap(), 1, "the group that was written is right again");
    }
}

#[test]
fn a_group_whose_block_cannot_be_written_promises_nothing() {
    let disk = made(PARITY);
    let (shepherd, _) = open(&disk);
    for block in homes() {
        write(&shepherd, block, fill(block)).unwrap();
    }
    fails(&disk, 40..41, Some(IoOp::Write));
    assert!(write(&shepherd, 40, 1).is_err());
    disk.set_plan(FaultPlan::default());
    let holdings = shepherd.holdings();
    assert_eq!(holdings.groups, 7, "{holdings:?}");
    // Written at last, the group has parity again.
    write(&shepherd, 40, 2).unwrap();
    assert_eq!(shepherd.holdings().groups, 8);
    fails(&disk, 41..42, None);
    assert_eq!(read(&shepherd, 41).unwrap(), fill(41));
}

#[test]
fn moved_blocks_are_found_until_they_are_home_again() {
    let disk = made(MOVES);
    let (shepherd, _) = open(&disk);
    for block in homes() {
        write(&shepherd, block, fill(block)).unwrap();
    }
    fails(&disk, 40..48, Some(IoOp::Write));
    for block in 40..48 {
        write(&shepherd, block, 200).unwrap();
        assert_eq!(read(&shepherd, block).unwrap(), 200);
    }
    assert_eq!(shepherd.holdings().moved, 8);
    drop(shepherd);
    let (shepherd, opened) = open(&disk);
    assert_eq!(opened.moved, 8);
    for block in homes() {
        assert_eq!(
            read(&shepherd, block).unwrap(),
            if (40..48).contains(&block) { 200 } else { fill(block) }
        );
    }
    assert_eq!(shepherd.bring_home().unwrap().len(), 8, "they cannot be written at home yet");
    disk.set_plan(FaultPlan::default());
    assert_eq!(shepherd.bring_home().unwrap(), []);
    assert_eq!(shepherd.holdings().moved, 0);
    shepherd.close().unwrap();
    assert_eq!(read(disk.device(), 44).unwrap(), 200, "at home");
}

#[test]
fn a_spare_that_fails_is_left_for_another() {
    let disk = made(MOVES);
    let (shepherd, _) = open(&disk);
    let home = Fault {
        blocks: Some(40..41),
        op: Some(IoOp::Write),
        times: Times::Sticky,
        ..Fault::new(Defect::Error)
    };
    disk.set_plan(FaultPlan::one(home.clone()));
    write(&shepherd, 40, 1).unwrap();
    // All of the area that is not the maps' own, but for what lies behind the first few spares.
    let first = first_spare(&shepherd);
    let spare = Fault { blocks: Some(first..first + 3), ..home.clone() };
    disk.set_plan(FaultPlan { faults: vec![home, spare], ..FaultPlan::default() });
    write(&shepherd, 40, 2).unwrap();
    assert_eq!(read(&shepherd, 40).unwrap(), 2);
    let holdings = shepherd.holdings();
    assert_eq!((holdings.moved, holdings.bad), (1, 3), "{holdings:?}");
    drop(shepherd);
    let (shepherd, _) = open(&disk);
    assert_eq!(read(&shepherd, 40).unwrap(), 2);
    assert_eq!(shepherd.holdings().bad, 3);
}

/// Who does not know of moved blocks writes them at home, or does not.
#[test]
fn what_others_write_at_home_counts() {
    let disk = made(MOVES);
    let (shepherd, _) = open(&disk);
    fails(&disk, 40..42, Some(IoOp::Write));
    write(&shepherd, 40, 200).unwrap();
    write(&shepherd, 41, 201).unwrap();
    disk.set_plan(FaultPlan::default());
    shepherd.close().unwrap();
    write(disk.device(), 41, 77).unwrap();
    // And the superblock, as everybody does.
    write(disk.device(), 1, 1).unwrap();
    let (shepherd, opened) = open(&disk);
    assert!(opened.is_foreign);
    assert_eq!((opened.moved_at_home, opened.moved_kept), (vec![BlockNo(41)], vec![BlockNo(40)]));
    assert_eq!((read(&shepherd, 40).unwrap(), read(&shepherd, 41).unwrap()), (200, 77));
}

#[test]
fn a_scrub_finds_all_damage_and_copies_none_of_it() {
    let policy = "[all]\nread = [\"verify\", \"mirror\"]\nwrite = [\"verify\", \"mirror near\"]";
    let disk = made(policy);
    let (shepherd, _) = open(&disk);
    for block in homes() {
        write(&shepherd, block, fill(block)).unwrap();
    }
    shepherd.close().unwrap();
    let image = disk.device().image();
    let at = |block: u64, image: &[u8]| {
        let wanted = vec![fill(block); BLOCK];
        let all = (0..VOLUME).filter(|no| image[*no as usize * BLOCK..][..BLOCK] == wanted[..]);
        all.collect::<Vec<u64>>()
    };
    let [home, copy] = at(50, &image)[..] else { panic!("a block and its copy") };
    let all = |shepherd: &Shepherd| shepherd.scrub(BlockNo(0), VOLUME, &|_| KIND).unwrap();
    let (shepherd, _) = open(&disk);
    let sound = all(&shepherd);
    assert!(sound.is_sound() && sound.blocks == 64 && sound.read == 128, "{sound:?}");
    for (damaged, is_home) in [(home, true), (copy, false)] {
        write(disk.device(), damaged, 99).unwrap();
        let found = all(&shepherd);
        assert_eq!(found.restored.len(), usize::from(is_home), "{found:?}");
        assert_eq!(found.copies_written, u64::from(!is_home));
        assert_eq!(at(50, &disk.device().image()), [home, copy]);
    }
    write(disk.device(), home, 99).unwrap();
    write(disk.device(), copy, 98).unwrap();
    let found = all(&shepherd);
    assert_eq!((found.lost, found.copies_written), (vec![BlockNo(50)], 0));
    assert_eq!(read(disk.device(), copy).unwrap(), 98, "nothing wrong is copied");
    assert!(shepherd.health().of(fstitch_shepherd::policy::Kind::Block(KIND), Trouble::Sum) > 0);

    // Parity that is not what it should be.
    let disk = made(PARITY);
    let (shepherd, _) = open(&disk);
    for block in homes() {
        write(&shepherd, block, fill(block)).unwrap();
    }
    assert!(all(&shepherd).is_sound());
    write(disk.device(), 60, 99).unwrap();
    let found = all(&shepherd);
    assert_eq!(found.restored, [BlockNo(60)]);
    assert_eq!(all(&shepherd).restored, []);
}

/// A format whose blocks begin with a mark, and whose repair is what the test wants.
struct Canon(u8);

impl Rules for Canon {
    fn judge(&self, _: BlockKind, _: BlockNo, data: &[u8]) -> Option<String> {
        (data[0] == 0).then(|| "it begins with nothing".to_owned())
    }

    fn repair(
        &self,
        _: BlockKind,
        _: BlockNo,
        data: &[u8],
        _: &dyn Fn(BlockNo, BlockKind) -> Option<Vec<u8>>,
    ) -> Option<Vec<u8>> {
        Some(vec![self.0; data.len()])
    }
}

#[test]
fn what_was_repaired_is_what_counts_if_it_keeps_the_rules() {
    let policy = "[metadata]\nread = [\"verify\", \"sanity\", \"mirror\", \"repair\"]\nwrite = [\"verify\", \"mirror far\"]";
    for (repaired, is_believed) in [(5, true), (0, false)] {
        let disk = Arc::new(FaultDevice::new(MemDevice::new(1024, VOLUME), FaultPlan::default()));
        let device = || Arc::clone(&disk) as Arc<dyn BlockDevice>;
        Shepherd::format(device(), &area(), [9; 16], policy, &[2], &[], &mut |_, _| {}).unwrap();
        let options = Options { rules: Some(Arc::new(Canon(repaired))), ..Options::default() };
        let (shepherd, _) = Shepherd::open(device(), &area(), options).unwrap();
        let kind = BlockKind::Inode;
        let read = || {
            let mut data = vec![0; BLOCK];
            shepherd.read(&mut [BlockRead { block: BlockNo(40), kind, data: &mut data }]).map(|()| data[0])
        };
        shepherd.write(&[BlockWrite { block: BlockNo(40), kind, data: &[3; BLOCK] }]).unwrap();
        shepherd.settle().unwrap();
        // Home and copy.
        let image = disk.device().image();
        for block in (0..VOLUME).filter(|no| image[*no as usize * BLOCK..][..BLOCK] == [3; BLOCK]) {
            write(disk.device(), block, 9).unwrap();
        }
        assert_eq!(read().ok(), is_believed.then_some(repaired));
        let (sums, repairs) = (shepherd.health().all(Trouble::Sum), shepherd.health().all(Trouble::Renewed));
        assert_eq!((sums, repairs), (1, u64::from(is_believed)));
        if is_believed {
            assert_eq!(read().unwrap(), repaired);
            assert_eq!(shepherd.health().all(Trouble::Sum), 1, "its sum is that of what was repaired");
            fails(&disk, 40..41, Some(IoOp::Read));
            assert_eq!(read().unwrap(), repaired, "and so is its copy");
        }
    }
}

fn block_write(block: u64, kind: BlockKind, data: &[u8]) -> BlockWrite<'_> {
    BlockWrite { block: BlockNo(block), kind, data }
}

/// Rot at home that was noticed, and could not be written: the copy must outlive the next opening.
#[test]
fn a_copy_that_fits_outlives_a_home_that_does_not() {
    let policy = "[all]\nread = [\"verify\", \"mirror\"]\nwrite = [\"verify\", \"mirror far\"]";
    let disk = made(policy);
    let (shepherd, _) = open(&disk);
    for block in homes() {
        write(&shepherd, block, fill(block)).unwrap();
    }
    shepherd.close().unwrap();
    write(disk.device(), 50, 99).unwrap();
    fails(&disk, 50..51, Some(IoOp::Write));
    let (shepherd, _) = open(&disk);
    assert_eq!(shepherd.scrub(BlockNo(0), VOLUME, &|_| KIND).unwrap().not_restored, [BlockNo(50)]);
    shepherd.close().unwrap();
    let (shepherd, opened) = open(&disk);
    assert_eq!((opened.unverified, read(&shepherd, 50).unwrap()), (0, fill(50)), "{opened:?}");
    // And with a cut, and another block of the run under way.
    write(&shepherd, 51, 1).unwrap();
    shepherd.flush().unwrap();
    drop(shepherd);
    disk.set_plan(FaultPlan::default());
    let (shepherd, opened) = open(&disk);
    assert_eq!(opened.restored, 1, "the home has its contents again");
    assert_eq!((read(&shepherd, 50).unwrap(), read(&shepherd, 51).unwrap()), (fill(50), 1));
    assert_eq!(read(disk.device(), 50).unwrap(), fill(50));
}

/// Two kinds of blocks in one group, of which one asks for parity, in one batch.
#[test]
fn parity_is_of_all_blocks_of_a_batch() {
    let policy = "[data]\nread = [\"parity\"]\nwrite = [\"parity 8\"]";
    let disk = Arc::new(FaultDevice::new(MemDevice::new(1024, VOLUME), FaultPlan::default()));
    let device = Arc::clone(&disk) as Arc<dyn BlockDevice>;
    Shepherd::format(device, &area(), [9; 16], policy, &[2], &[], &mut |_, _| {}).unwrap();
    let (shepherd, _) = open(&disk);
    let (data, inode) = ([5; BLOCK], [6; BLOCK]);
    shepherd.write(&[block_write(41, BlockKind::Inode, &inode), block_write(40, KIND, &data)]).unwrap();
    fails(&disk, 40..41, None);
    assert_eq!(read(&shepherd, 40).unwrap(), 5);
}

/// A half of the maps' block that takes no writes gets another place, and is not believed when it is old.
#[test]
fn an_old_half_of_a_map_is_not_believed() {
    let disk = made(MOVES);
    let own = area()[0].get()..area()[0].get() + area().len() as u64;
    let (shepherd, _) = open(&disk);
    let first_spare = first_spare(&shepherd);
    drop(shepherd);
    // Each block of the parts by itself, but for the heads and the sectors of doubt, which are whole in themselves.
    let mut relocated = 0;
    let behind_the_halves = first_spare - LIST;
    for stuck in own.start..behind_the_halves {
        let disk = made(MOVES);
        let (shepherd, _) = open(&disk);
        for block in homes() {
            write(&shepherd, block, fill(block)).unwrap();
        }
        shepherd.settle().unwrap();
        let sticky = |blocks, op| Fault {
            blocks: Some(blocks),
            op,
            times: Times::Sticky,
            ..Fault::new(Defect::Error)
        };
        let home = sticky(40..41, Some(IoOp::Write));
        let faults = vec![sticky(stuck..stuck + 1, Some(IoOp::Write)), home];
        disk.set_plan(FaultPlan { faults, ..FaultPlan::default() });
        write(&shepherd, 40, 200).unwrap();
        write(&shepherd, 41, 201).unwrap();
        shepherd.settle().unwrap();
        drop(shepherd);
        // The other half is torn: of what there are two, one is left, be it the one that was stuck or another.
        let image = disk.device().image();
        let count = (behind_the_halves - own.start) / 2;
        let twin = if stuck < own.start + count { stuck + count } else { stuck - count };
        let damaged = Arc::new(FaultDevice::new(MemDevice::from_image(1024, image), FaultPlan::default()));
        write(damaged.device(), twin, 0).unwrap();
        let (shepherd, opened) = open(&damaged);
        if opened.is_foreign {
            // The head has no other place; then everything is made anew, and what was moved is kept.
            continue;
        }
        relocated += 1;
        assert_eq!(read(&shepherd, 40).unwrap(), 200, "block {stuck}: {opened:?}");
        assert_eq!(read(&shepherd, 41).unwrap(), 201, "block {stuck}: {opened:?}");
    }
    assert!(relocated > 4, "{relocated}");
}

/// A move that the maps could not be told of at once.
#[test]
fn a_move_that_was_not_told_is_not_half_made() {
    let home = Fault { blocks: Some(40..41), op: Some(IoOp::Write), ..Fault::new(Defect::Error) };
    let flush = |nth| Fault { op: Some(IoOp::Flush), nth, ..Fault::new(Defect::Error) };
    let (mut untold, mut told) = (0, 0);
    for nth in 1..8 {
        let disk = made(MOVES);
        let (shepherd, _) = open(&disk);
        for block in homes() {
            write(&shepherd, block, fill(block)).unwrap();
        }
        disk.set_plan(FaultPlan { faults: vec![home.clone(), flush(nth)], ..FaultPlan::default() });
        untold += u32::from(write(&shepherd, 40, 100).is_err());
        disk.set_plan(FaultPlan::default());
        write(&shepherd, 40, 150).unwrap();
        // Who flushes next is told of it, once.
        told += u32::from(shepherd.flush().is_err());
        shepherd.flush().unwrap();
        drop(shepherd);
        assert_eq!(read(&open(&disk).0, 40).unwrap(), 150, "flush {nth} failed");
    }
    assert!(untold > 0 && told >= untold, "{untold} {told}");
}

/// Two spares are named for one block where a cut was between: the one that lost must not come back.
#[test]
fn of_two_spares_the_other_is_given_back() {
    let disk = made("[all]\nwrite = [\"remap\"]");
    let (shepherd, _) = open(&disk);
    let first = first_spare(&shepherd);
    let sticky = |block: u64| Fault {
        blocks: Some(block..block + 1),
        op: Some(IoOp::Write),
        times: Times::Sticky,
        ..Fault::new(Defect::Error)
    };
    disk.set_plan(FaultPlan::one(sticky(40)));
    write(&shepherd, 40, 1).unwrap();
    let at = |fill: u8, disk: &Disk| {
        (first..first + 8).find(|no| read(disk.device(), *no).is_ok_and(|found| found == fill))
    };
    let one = at(1, &disk).unwrap();
    // The power goes when the second spare is named, and the first one still is.
    let flushes = |nth| Fault { op: Some(IoOp::Flush), nth, ..Fault::new(Defect::Dead) };
    for nth in 2..6 {
        let disk = Arc::new(FaultDevice::new(
            MemDevice::from_image(1024, disk.device().image()),
            FaultPlan::default(),
        ));
        let (shepherd, _) = open(&disk);
        let faults = vec![sticky(40), sticky(one), flushes(nth)];
        disk.set_plan(FaultPlan { faults, ..FaultPlan::default() });
        let _ = write(&shepherd, 40, 2);
        drop(shepherd);
        disk.set_plan(FaultPlan { faults: vec![sticky(40), sticky(one)], ..FaultPlan::default() });
        let (shepherd, _) = open(&disk);
        assert!([1, 2].contains(&read(&shepherd, 40).unwrap()));
        write(&shepherd, 40, 3).unwrap();
        shepherd.flush().unwrap();
        drop(shepherd);
        assert_eq!(read(&open(&disk).0, 40).unwrap(), 3, "flush {nth}");
    }
}

/// An error is not somebody else's write.
#[test]
fn a_superblock_that_cannot_be_read_is_not_foreign() {
    let disk = made("[all]\nread = [\"mirror\"]\nwrite = [\"mirror far\"]");
    let (shepherd, _) = open(&disk);
    write(&shepherd, 40, 7).unwrap();
    shepherd.close().unwrap();
    let fault =
        |times| Fault { blocks: Some(1..2), op: Some(IoOp::Read), times, ..Fault::new(Defect::Error) };
    disk.set_plan(FaultPlan::one(fault(Times::Transient(2))));
    assert!(!open(&disk).1.is_foreign, "it is asked again");
    disk.set_plan(FaultPlan::one(fault(Times::Sticky)));
    let device = || Arc::clone(&disk) as Arc<dyn BlockDevice>;
    let refused = Shepherd::open(device(), &area(), Options::default()).unwrap_err();
    assert!(
        refused.to_string().contains("by which it is told whether another program has written"),
        "{refused}"
    );
    disk.set_plan(FaultPlan::default());
    fails(&disk, 40..41, None);
    assert_eq!(read(&open(&disk).0, 40).unwrap(), 7, "its copy is there still");
}

/// What could not be prepared is not moved: its sum would be that of before.
#[test]
fn a_block_moves_with_its_sum() {
    let disk = made(MOVES);
    let (shepherd, _) = open(&disk);
    write(&shepherd, 40, 1).unwrap();
    shepherd.settle().unwrap();
    let flush = Fault { op: Some(IoOp::Flush), ..Fault::new(Defect::Error) };
    disk.set_plan(FaultPlan::one(flush));
    let is_written = write(&shepherd, 40, 2).is_ok();
    disk.set_plan(FaultPlan::default());
    let found = read(&shepherd, 40).unwrap();
    assert!(found == 2 || (!is_written && found == 1), "{is_written}: {found}");
    shepherd.close().unwrap();
    assert_eq!(read(&open(&disk).0, 40).unwrap(), found);
}

#[test]
fn the_maps_own_blocks_are_nobody_else_s() {
    let disk = made(PARITY);
    let (shepherd, _) = open(&disk);
    let refused = write(&shepherd, 300, 1).unwrap_err();
    assert!(refused.to_string().contains("keeps its maps in"), "{refused}");
}

/// A head has no other place than its own: of two the younger one counts.
#[test]
fn a_head_that_takes_no_writes_is_outvoted() {
    let disk = made(MOVES);
    let head = area()[0].get();
    fails(&disk, head..head + 1, Some(IoOp::Write));
    let (shepherd, _) = open(&disk);
    for fill in 1..4 {
        shepherd.write(&[block_write(1, BlockKind::Superblock, &[fill; BLOCK])]).unwrap();
        shepherd.flush().unwrap();
    }
    write(&shepherd, 40, 7).unwrap();
    shepherd.close().unwrap();
    let (shepherd, opened) = open(&disk);
    assert!(!opened.is_foreign && !opened.was_in_use, "{opened:?}");
    assert_eq!(read(&shepherd, 40).unwrap(), 7);
}

/// Sums of two blocks of the map, with room for one in memory.
#[test]
fn sums_that_are_not_on_the_medium_stay_in_memory() {
    let disk = made(MOVES);
    let device = || Arc::clone(&disk) as Arc<dyn BlockDevice>;
    let options = Options { pages_max: 1, ..Options::default() };
    let (shepherd, _) = Shepherd::open(device(), &area(), options).unwrap();
    for (block, fill) in [(40, 1), (245, 2), (41, 3), (246, 4)] {
        write(&shepherd, block, fill).unwrap();
    }
    shepherd.close().unwrap();
    let (shepherd, _) = open(&disk);
    for (block, fill) in [(40, 1), (245, 2), (41, 3), (246, 4)] {
        assert_eq!(read(&shepherd, block).unwrap(), fill);
        assert_eq!(shepherd.health().all(Trouble::Sum), 0);
    }
}

#[test]
fn what_has_happened_is_known_after_reopening() {
    let disk = made(MOVES);
    let (shepherd, _) = open(&disk);
    fails(&disk, 40..41, Some(IoOp::Write));
    write(&shepherd, 40, 1).unwrap();
    disk.set_plan(FaultPlan::default());
    let all = |shepherd: &Shepherd| shepherd.lifetime().all(Trouble::Write);
    assert_eq!((shepherd.health().all(Trouble::Write), all(&shepherd)), (1, 1));
    shepherd.close().unwrap();
    let (shepherd, _) = open(&disk);
    assert_eq!((shepherd.health().all(Trouble::Write), all(&shepherd)), (0, 1));
    drop(shepherd);
    assert_eq!(all(&open(&disk).0), 1, "and after a crash");
}

/// A spare that takes no writes is never named: a cut before the batch is answered would leave it in the map.
#[test]
fn a_spare_that_takes_no_writes_is_not_called_a_copy() {
    let policy = "[all]\nread = [\"verify\", \"mirror\"]\nwrite = [\"verify\", \"mirror near\"]";
    for nth in 1..12 {
        let disk = Arc::new(FaultDevice::new(MemDevice::new(1024, VOLUME), FaultPlan::default()));
        let device = || Arc::clone(&disk) as Arc<dyn BlockDevice>;
        Shepherd::format(device(), &area(), [9; 16], policy, &[2], &[], &mut |_, _| {}).unwrap();
        let (shepherd, _) = open(&disk);
        let first = first_spare(&shepherd);
        let worn = Fault {
            blocks: Some(first..first + 1),
            op: Some(IoOp::Write),
            times: Times::Sticky,
            ..Fault::new(Defect::Error)
        };
        let dies = Fault { op: Some(IoOp::Flush), nth, ..Fault::new(Defect::Dead) };
        disk.set_plan(FaultPlan { faults: vec![worn, dies], ..FaultPlan::default() });
        let _ = write(&shepherd, 40, 7);
        drop(shepherd);
        fails(&disk, 40..41, None);
        let (shepherd, _) = open(&disk);
        if let Ok(found) = read(&shepherd, 40) {
            assert_eq!(found, 7, "flush {nth}: what no spare holds is nobody's copy");
        }
    }
}
