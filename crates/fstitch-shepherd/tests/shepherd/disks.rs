//! Several disks: one dies at any moment; another takes its place; and nothing that has a copy elsewhere is lost.
//!
//! What it prevents: an answer that only a dead disk knows of, a disk that comes back and is believed, a successor that is read before it has
//! anything, maps that are whole on one disk only.

use std::sync::Arc;

use crate::machine::*;
use fstitch_core::{BlockDevice, BlockKind, BlockNo, BlockRead, BlockWrite, IoOp, MemDevice, Overlay};
use fstitch_crashlab::{Defect, Fault, FaultDevice, FaultPlan};
use fstitch_shepherd::disks::{Array, DiskState, Found, Hot, Plan, label_of};
use fstitch_shepherd::{Policy, Stretch};

#[test]
fn each_disk_may_die_and_be_replaced_while_the_volume_is_in_use() {
    for policy in POLICIES {
        for dying in 0..DISKS {
            let machine = Machine::new(made(policy, DISKS), DISKS);
            let mut given = disks(&machine);
            let (shepherd, ..) = open(&given).unwrap();
            let volume = shepherd.blocks();
            assert!(volume > 100, "{volume}");
            for block in 0..volume {
                put(&shepherd, block, 1).unwrap();
            }
            machine.kill(dying);
            for block in (0..volume).step_by(2) {
                put(&shepherd, block, 2).unwrap();
            }
            shepherd.flush().unwrap();
            let expected = |block: u64| if block.is_multiple_of(2) { [2; 2] } else { [1; 2] };
            for block in 0..volume {
                assert_eq!(get(&shepherd, block).unwrap(), expected(block), "block {block} without its disk");
            }
            assert!(matches!(shepherd.disks().unwrap().state(dying), DiskState::Out { .. }));
            let new = fresh();
            shepherd.replace_disk(dying, &new, [99; 16]).unwrap();
            // While it is rebuilt.
            shepherd.rebuild(40).unwrap().unwrap();
            put(&shepherd, 20, 3).unwrap();
            put(&shepherd, volume - 1, 3).unwrap();
            assert_eq!(get(&shepherd, volume - 2).unwrap(), expected(volume - 2));
            assert_eq!(rebuild(&shepherd), [], "{policy}");
            assert_eq!(shepherd.disks().unwrap().state(dying), DiskState::Whole);
            // Each other one may die now.
            shepherd.close().unwrap();
            drop(shepherd);
            given[dying] = Some(new);
            for other in (0..DISKS).filter(|other| *other != dying) {
                let mut left = given.clone();
                left[other] = None;
                let views: Vec<Option<Arc<dyn BlockDevice>>> = left
                    .iter()
                    .map(|disk| disk.clone().map(|disk| Arc::new(Overlay::new(disk)) as Arc<dyn BlockDevice>))
                    .collect();
                let (shepherd, _, found) = open(&views).unwrap();
                assert_eq!(found.missing, [other]);
                for block in 0..volume {
                    let expected = if block == 20 || block == volume - 1 { [3; 2] } else { expected(block) };
                    assert_eq!(
                        get(&shepherd, block).unwrap(),
                        expected,
                        "block {block} from {dying} for {other}"
                    );
                }
            }
        }
    }
}

#[test]
fn a_disk_that_comes_back_is_not_believed() {
    let machine = Machine::new(made(POLICIES[0], DISKS), DISKS);
    let given = disks(&machine);
    let (shepherd, ..) = open(&given).unwrap();
    let volume = shepherd.blocks();
    (0..volume).for_each(|block| put(&shepherd, block, 1).unwrap());
    shepherd.close().unwrap();
    drop(shepherd);
    let mut without = given.clone();
    without[1] = None;
    let (shepherd, ..) = open(&without).unwrap();
    (0..volume).for_each(|block| put(&shepherd, block, 2).unwrap());
    shepherd.close().unwrap();
    drop(shepherd);
    let (shepherd, _, found) = open(&given).unwrap();
    assert_eq!((found.missing, found.degraded), (vec![], vec![1]));
    for block in 0..volume {
        assert_eq!(get(&shepherd, block).unwrap(), [2; 2], "block {block}");
    }
}

/// What one disk lacks of the maps after a crash it has when the array is opened, although nothing is written there for any other reason.
#[test]
fn maps_are_alike_on_all_disks_after_a_crash() {
    let machine = Machine::new(made(POLICIES[1], DISKS), DISKS);
    let given = disks(&machine);
    let all = |disk: usize| {
        let device = given[disk].as_ref().unwrap();
        let mut image =
            vec![vec![0; device.geometry().block_size as usize]; device.geometry().block_count as usize];
        for (block, data) in (0..).zip(&mut image) {
            device.read(&mut [BlockRead { block: BlockNo(block), kind: BlockKind::Data, data }]).unwrap();
        }
        image
    };
    let (shepherd, ..) = open(&given).unwrap();
    let volume = shepherd.blocks();
    (0..volume).for_each(|block| put(&shepherd, block, (block % 251) as u8).unwrap());
    shepherd.settle().unwrap();
    let zone = {
        let (one, other) = (all(0), all(1));
        (2..one.len()).take_while(|block| one[*block] == other[*block]).collect::<Vec<_>>()
    };
    let before = all(1);
    (0..volume).for_each(|block| put(&shepherd, block, 7).unwrap());
    shepherd.settle().unwrap();
    put(&shepherd, 0, 8).unwrap();
    shepherd.flush().unwrap();
    drop(shepherd);
    let after = all(1);
    let lost: Vec<usize> = zone.iter().copied().filter(|block| before[*block] != after[*block]).collect();
    assert!(lost.len() > 1, "{lost:?} of {}", zone.len());
    for block in &lost {
        let write =
            BlockWrite { block: BlockNo(*block as u64), kind: BlockKind::Data, data: &before[*block] };
        given[1].as_ref().unwrap().write(&[write]).unwrap();
    }
    let (shepherd, ..) = open(&given).unwrap();
    assert_eq!(get(&shepherd, 0).unwrap(), [8; 2]);
    let (one, other) = (all(0), all(1));
    let differing: Vec<&usize> = zone.iter().filter(|block| one[**block] != other[**block]).collect();
    assert!(differing.is_empty(), "{differing:?}");
}

#[test]
fn disks_that_were_used_apart_are_not_joined() {
    let machine = Machine::new(made(POLICIES[0], 2), 2);
    let given = disks(&machine);
    for alone in 0..2 {
        let mut left = given.clone();
        left[1 - alone] = None;
        let (shepherd, ..) = open(&left).unwrap();
        put(&shepherd, 5, 7).unwrap();
        shepherd.close().unwrap();
    }
    let refused = Array::open(&given, false).unwrap_err().to_string();
    assert!(refused.contains("two volumes now"), "{refused}");
}

#[test]
fn what_has_no_copy_is_lost_with_its_disk_and_says_so() {
    let policy = "[metadata]\nread = [\"mirror\"]\nwrite = [\"mirror other-disk\"]";
    let machine = Machine::new(made(policy, 2), 2);
    let given = disks(&machine);
    let (shepherd, ..) = open(&given).unwrap();
    let volume = shepherd.blocks();
    (0..30).for_each(|block| put(&shepherd, block, 1).unwrap());
    shepherd.flush().unwrap();
    let on_the_first = shepherd.disks().unwrap().disk_of(BlockNo(1));
    assert_eq!(on_the_first, Some(0));
    put(&shepherd, 1, 2).unwrap();
    let written = [Stretch { start: BlockNo(0), count: 30, kind: BlockKind::Data }];
    let data: Vec<BlockNo> = (0..30).filter(|block| kind(*block) == BlockKind::Data).map(BlockNo).collect();
    assert_eq!(shepherd.lost_without(&written, None), []);
    assert_eq!(shepherd.lost_without(&written, Some(0)), data, "directories have a copy elsewhere");
    assert_eq!(shepherd.lost_without(&written, Some(1)), []);
    machine.kill(0);
    shepherd.flush().unwrap_err();
    shepherd.flush().unwrap();
    put(&shepherd, 1, 3).unwrap_err();
    get(&shepherd, 1).unwrap_err();
    assert_eq!(get(&shepherd, 12).unwrap(), [1; 2], "a directory has a copy");
    assert_eq!(shepherd.lost_without(&written, None), data);
    shepherd.replace_disk(0, &fresh(), [99; 16]).unwrap();
    let lost = rebuild(&shepherd);
    let data_of_the_first = (0..volume)
        .filter(|block| *block >= 30 || kind(*block) == BlockKind::Data)
        .map(BlockNo)
        .filter(|block| shepherd.disks().unwrap().disk_of(*block) == Some(0));
    assert_eq!(lost, data_of_the_first.collect::<Vec<_>>());
    let error = get(&shepherd, 1).unwrap_err().to_string();
    assert!(error.contains("the only one was on a disk that has failed"), "{error}");
    put(&shepherd, 1, 4).unwrap();
    assert_eq!(get(&shepherd, 1).unwrap(), [4; 2], "it is written again");
    assert_eq!(shepherd.lost_without(&written, None), data[1..], "what the new disk holds there is nothing");
    get(&shepherd, 2).unwrap_err();
}

#[test]
fn a_hot_spare_takes_the_place_of_a_dead_disk() {
    let machine = Machine::new(made(POLICIES[1], DISKS), DISKS);
    let mut given = disks(&machine);
    let hot = fresh();
    {
        let (array, _) = Array::open(&given, false).unwrap();
        let small: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(1024, DISK / 2));
        array.set_hot(Hot::Add(&small, [98; 16])).unwrap_err();
        array.set_hot(Hot::Add(&hot, [99; 16])).unwrap();
    }
    given.push(Some(hot));
    let (shepherd, _, found) = open(&given).unwrap();
    assert_eq!(found, Found { places: vec![Some(0), Some(1), Some(2), Some(3)], ..Found::default() });
    assert_eq!(shepherd.take_hot().unwrap(), None, "nobody is out");
    let volume = shepherd.blocks();
    (0..volume).for_each(|block| put(&shepherd, block, 1).unwrap());
    machine.kill(2);
    put(&shepherd, volume - 1, 2).unwrap();
    assert_eq!(shepherd.take_hot().unwrap(), Some(2));
    assert_eq!(rebuild(&shepherd), []);
    shepherd.close().unwrap();
    drop(shepherd);
    let (shepherd, _, found) = open(&given).unwrap();
    assert_eq!(found.strangers, [2], "the dead one is nobody's any more");
    assert_eq!((found.missing, found.degraded), (vec![], vec![]));
    assert_eq!(get(&shepherd, volume - 1).unwrap(), [2; 2]);
}

/// Killed while a hot spare takes the place of a dead disk: at any moment of that it is the one or the other, and never nobody's.
#[test]
fn a_hot_spare_that_was_about_to_take_a_place_is_still_of_the_array() {
    let mut told = 0;
    for nth in 1..20 {
        let machine = Machine::new(made(POLICIES[1], DISKS), DISKS);
        let mut given = disks(&machine);
        let hot = Arc::new(FaultDevice::new(fresh(), FaultPlan::default()));
        let device = Arc::clone(&hot) as Arc<dyn BlockDevice>;
        Array::open(&given, false).unwrap().0.set_hot(Hot::Add(&device, [99; 16])).unwrap();
        given.push(Some(device));
        let (shepherd, ..) = open(&given).unwrap();
        (0..shepherd.blocks()).for_each(|block| put(&shepherd, block, 1).unwrap());
        shepherd.flush().unwrap();
        machine.kill(2);
        put(&shepherd, shepherd.blocks() - 1, 2).unwrap();
        hot.set_plan(FaultPlan::one(Fault { op: Some(IoOp::Write), nth, ..Fault::new(Defect::Dead) }));
        let is_taken = shepherd.take_hot().is_ok();
        drop(shepherd);
        hot.set_plan(FaultPlan::default());
        let (shepherd, _, found) = open(&given).unwrap();
        assert_eq!(found.strangers, [2], "write {nth}: the dead one alone");
        if !is_taken {
            told += 1;
            assert_eq!(shepherd.take_hot().unwrap(), Some(2), "write {nth}");
        }
        assert_eq!(rebuild(&shepherd), []);
        (0..shepherd.blocks() - 1).for_each(|block| assert_eq!(get(&shepherd, block).unwrap(), [1; 2]));
    }
    assert!(told > 0, "some of them were too early");
}

#[test]
fn the_last_disk_is_not_put_out() {
    let machine = Machine::new(made(POLICIES[0], 2), 2);
    let (shepherd, ..) = open(&disks(&machine)).unwrap();
    put(&shepherd, 3, 1).unwrap();
    machine.kill(0);
    put(&shepherd, 3, 2).unwrap();
    machine.kill(1);
    put(&shepherd, 3, 3).unwrap_err();
    shepherd.flush().unwrap_err();
    assert_eq!(shepherd.disks().unwrap().state(1), DiskState::Whole);
}

/// Copies of little, on as many disks as there are, leave most of the room to the files.
#[test]
fn what_leads_to_files_is_on_ten_disks_and_leaves_room_for_the_files() {
    let text = fstitch_shepherd::policy::shipped("d-graid").unwrap().text;
    let size = 32 << 10;
    let disks = (1..=10).map(|no| ([no; 16], size)).collect();
    let plan = Plan { uuid: [7; 16], block_size: 1024, first: 2, disks, hot: Vec::new() };
    let label = label_of(&plan, &Policy::parse(text).unwrap()).unwrap();
    // Half of it would be the files' without those copies.
    assert!(label.disks.iter().all(|disk| disk.blocks * 10 > (disk.blocks + disk.spares) * 3));
    // Files, tables of inodes as large as mkfs makes them for small files, and of the rest what leads to files.
    assert!(label.disks.iter().all(|disk| disk.spares > disk.blocks * (60 + 8 * 5 + 8 * 2) / 60));
}
