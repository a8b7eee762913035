//! Moved blocks and spares, case by case, those of the maps among them.
//!
//! What it prevents: a block that is found at its old home, a spare that two have or nobody, an old half of a map that is believed.

use std::sync::Arc;

use fstitch_core::{BlockDevice, BlockKind, BlockNo, IoOp, MemDevice};
use fstitch_crashlab::{Defect, Fault, FaultDevice, FaultPlan, LiveDevice, LiveOptions, Survivors, Times};
use fstitch_shepherd::{Options, Shepherd, Stretch};

use crate::small::{
    BLOCK, Disk, KIND, LIST, MOVES, VOLUME, area, block_write, fails, fill, first_spare, homes, made, open,
    read, write,
};

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

/// The power goes between a home and its copy, whose spare takes no writes any more: recovery makes the copy elsewhere, because nobody would miss it.
#[test]
fn a_copy_that_cannot_be_made_alike_after_a_crash_is_made_elsewhere() {
    let disk = made("[all]\nread = [\"mirror\"]\nwrite = [\"mirror far\"]");
    let (shepherd, _) = open(&disk);
    for fill in [201, 202] {
        shepherd.settle().unwrap();
        write(&shepherd, 40, fill).unwrap();
    }
    drop(shepherd);
    let image = disk.device().image();
    let is_it = |block: &u64| image[*block as usize * BLOCK..][..BLOCK] == [202; BLOCK];
    let copy = area().iter().map(|block| block.get()).find(is_it).unwrap();
    write(disk.device(), copy, 201).unwrap();
    fails(&disk, copy..copy + 1, Some(IoOp::Write));
    let (shepherd, _) = open(&disk);
    assert_eq!(shepherd.short_of_copies(&[Stretch::one(BlockNo(40), KIND)], 1).count, 0);
    drop(shepherd);
    let (shepherd, _) = open(&disk);
    fails(&disk, 40..41, None);
    assert_eq!(read(&shepherd, 40).unwrap(), 202);
}

/// The bit of a run cannot be made stable, so its home is not written, and its copy must not be: nobody would look whether they are alike.
#[test]
fn no_copy_is_written_whose_run_is_not_in_doubt() {
    let disk = made("[all]\nread = [\"mirror\"]\nwrite = [\"mirror far\"]");
    let (shepherd, _) = open(&disk);
    write(&shepherd, 40, 201).unwrap();
    shepherd.settle().unwrap();
    let flush = Fault { op: Some(IoOp::Flush), times: Times::Sticky, ..Fault::new(Defect::Error) };
    disk.set_plan(FaultPlan::one(flush));
    assert!(write(&shepherd, 40, 202).is_err());
    let image = disk.device().image();
    let holds = |fill: u8| image.chunks(BLOCK).filter(|block| **block == [fill; BLOCK]).count();
    assert_eq!((holds(201), holds(202)), (2, 0));
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

/// A copy whose spare takes no writes is made in one that another block of the map speaks of, and the power goes while both are written. Whichever of the
/// two arrives, the map names a copy: the block has been stable since long, and its home is lost as well.
#[test]
fn a_copy_that_moves_between_blocks_of_the_map_is_never_in_neither() {
    const HOMES: std::ops::Range<u64> = 8..208;
    /// More spares than a block of the map speaks of, which is (1024 - 48) / 8.
    const GIVEN: u64 = 130;
    let area: Vec<BlockNo> = (250..700).map(BlockNo).collect();
    let policy = "[all]\nread = [\"mirror\"]\nwrite = [\"mirror near\"]";
    let medium = Arc::new(MemDevice::new(1024, 800));
    let device = Arc::clone(&medium) as Arc<dyn BlockDevice>;
    Shepherd::format(Arc::clone(&device), &area, [9; 16], policy, &[2], &[], &mut |_, _| {}).unwrap();
    let (shepherd, _) = Shepherd::open(device, &area, Options::default()).unwrap();
    HOMES
        .take(usize::try_from(GIVEN).unwrap())
        .for_each(|block| write(&shepherd, block, fill(block)).unwrap());
    shepherd.close().unwrap();
    let home = HOMES.start + 1;
    let image = medium.image();
    let is_copy =
        |block: &u64| image[usize::try_from(*block).unwrap() * BLOCK..][..BLOCK] == [fill(home); BLOCK];
    let copy = area.iter().map(|block| block.get()).find(is_copy).unwrap();
    let sticky = |block: u64, op| Fault {
        blocks: Some(block..block + 1),
        op,
        times: Times::Sticky,
        ..Fault::new(Defect::Error)
    };
    let mut cuts = 0;
    for (flush, seed) in (0..12).flat_map(|flush| (0..32).map(move |seed| (flush, seed))) {
        let medium = Arc::new(MemDevice::from_image(1024, image.clone()));
        let live = Arc::new(LiveDevice::new(Arc::clone(&medium), LiveOptions::default()));
        let disk =
            Arc::new(FaultDevice::new(Arc::clone(&live), FaultPlan::one(sticky(copy, Some(IoOp::Write)))));
        let (shepherd, _) = Shepherd::open(disk as Arc<dyn BlockDevice>, &area, Options::default()).unwrap();
        live.cut_at_flush(flush, Survivors::Seed(seed));
        let _ = write(&shepherd, home, 255);
        if !live.is_dead() {
            break;
        }
        cuts += 1;
        let lost = FaultPlan {
            faults: vec![sticky(home, None), sticky(copy, Some(IoOp::Write))],
            ..FaultPlan::default()
        };
        let disk = Arc::new(FaultDevice::new(Arc::clone(&medium), lost));
        let (shepherd, _) = Shepherd::open(disk as Arc<dyn BlockDevice>, &area, Options::default()).unwrap();
        let found =
            read(&shepherd, home).unwrap_or_else(|error| panic!("flush {flush}, survivors {seed}: {error}"));
        assert!([fill(home), 255].contains(&found), "flush {flush}, survivors {seed}: {found}");
    }
    assert!(cuts >= 5 * 32, "the bit, the copy, each half of the map twice: {cuts}");
}
