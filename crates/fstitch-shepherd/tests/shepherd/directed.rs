//! Parity, repair and scrub, case by case.
//!
//! What it prevents: a block computed from a group that is not of one moment; a group of which a write makes no parity; damage that a scrub passes
//! over, or copies.

use std::sync::Arc;

use fstitch_core::{BlockDevice, BlockKind, BlockNo, BlockRead, BlockWrite, IoOp, MemDevice};
use fstitch_crashlab::{Defect, Fault, FaultDevice, FaultPlan, Times};
use fstitch_shepherd::engine::{Rules, Scrubbed, Trouble};
use fstitch_shepherd::{Options, Shepherd, Stretch};

use crate::small::{
    BARE, BLOCK, KIND, LIST, MOVES, PARITY, VOLUME, area, block_write, fails, fill, first_spare, homes, made,
    open, read, write,
};

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

/// Two blocks that change alike leave their parity as it was. It speaks for what one of them held before a version that was flushed.
#[test]
fn parity_says_nothing_of_a_block_that_can_be_read() {
    let disk = made(PARITY);
    let (shepherd, _) = open(&disk);
    homes().for_each(|block| write(&shepherd, block, fill(block)).unwrap());
    shepherd.settle().unwrap();
    write(&shepherd, 40, fill(40) ^ 0x55).unwrap();
    shepherd.flush().unwrap();
    write(&shepherd, 41, fill(41) ^ 0x55).unwrap();
    drop(shepherd);
    // The power goes when parity has reached the disk and the block has not.
    write(disk.device(), 41, fill(41)).unwrap();
    let (shepherd, opened) = open(&disk);
    assert!(opened.was_in_use && opened.unverified > 0, "{opened:?}");
    assert_eq!(read(&shepherd, 40).unwrap(), fill(40) ^ 0x55);
    assert_eq!(read(&shepherd, 41).unwrap(), fill(41));
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

/// Opening gives it where all blocks ask for parity, also to groups of the same run that nobody uses, a scrub where it must be told what a
/// block holds.
#[test]
fn a_group_gets_its_parity_again() {
    let inodes = PARITY.replace("[all]", "[inode]");
    for (policy, kind, by_opening, by_scrub) in [(PARITY, KIND, 12, 0), (&inodes, BlockKind::Inode, 7, 1)] {
        let disk = made(policy);
        let (shepherd, _) = open(&disk);
        let put =
            |block, fill| shepherd.write(&[BlockWrite { block: BlockNo(block), kind, data: &[fill; BLOCK] }]);
        homes().for_each(|block| put(block, fill(block)).unwrap());
        shepherd.settle().unwrap();
        fails(&disk, 40..41, Some(IoOp::Write));
        assert!(put(40, 1).is_err());
        let scrub =
            |shepherd: &Shepherd| shepherd.scrub(BlockNo(0), VOLUME, &|_| kind).unwrap().copies_written;
        assert_eq!(shepherd.holdings().groups, 7);
        assert_eq!(scrub(&shepherd), 0, "nobody knows what block 40 holds");
        shepherd.flush().unwrap();
        drop(shepherd);
        disk.set_plan(FaultPlan::default());
        // It holds what it held, and nobody writes to it again.
        let (shepherd, opened) = open(&disk);
        assert!(opened.was_in_use, "{opened:?}");
        assert_eq!(shepherd.holdings().groups, by_opening);
        assert_eq!([scrub(&shepherd), scrub(&shepherd)], [by_scrub, 0]);
        shepherd.close().unwrap();
        let (shepherd, _) = open(&disk);
        assert_eq!(shepherd.holdings().groups, by_opening + by_scrub);
        for block in 40..42 {
            fails(&disk, block..block + 1, None);
            let mut data = [0; BLOCK];
            shepherd.read(&mut [BlockRead { block: BlockNo(block), kind, data: &mut data }]).unwrap();
            assert_eq!(data, [fill(block); BLOCK]);
        }
    }
}

/// A spare that cannot be written costs a group nothing: its parity goes to another one.
#[test]
fn parity_whose_spare_is_worn_goes_to_another() {
    let disk = made(PARITY);
    let (shepherd, _) = open(&disk);
    let spares = first_spare(&shepherd)..area()[0].get() + area().len() as u64 - LIST;
    let image = |disk: &crate::small::Disk| disk.device().image();
    let before = image(&disk);
    write(&shepherd, 40, 1).unwrap();
    let after = image(&disk);
    let block = |no: u64| no as usize * BLOCK..(no as usize + 1) * BLOCK;
    let spare = spares.clone().find(|no| before[block(*no)] != after[block(*no)]).unwrap();
    fails(&disk, spare..spare + 1, Some(IoOp::Write));
    write(&shepherd, 41, 2).unwrap();
    let (holdings, lost) = (shepherd.holdings(), shepherd.health().all(Trouble::CopyLost));
    assert_eq!((holdings.groups, holdings.bad, lost), (8, 1, 0), "{holdings:?}");
    disk.set_plan(FaultPlan::default());
    fails(&disk, 41..42, None);
    assert_eq!(read(&shepherd, 41).unwrap(), 2);
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
    assert_eq!((found.restored, found.copies_written), (vec![BlockNo(60)], 0), "its parity was right");
    assert_eq!(all(&shepherd).restored, []);
}

/// Three pieces and the beginning of a fourth, of which one is read while another is compared.
#[test]
fn a_scrub_in_pieces_passes_over_none_of_them() {
    const LARGE: u64 = 5000;
    let contents =
        |block: u64| (block + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes().repeat(BLOCK / 8);
    let area: Vec<BlockNo> = (1700..LARGE - 10).map(BlockNo).collect();
    let homes = 8..1600;
    for (policy, read) in [
        ("[all]\nread = [\"verify\", \"mirror\"]\nwrite = [\"verify\", \"mirror near\"]", 2 * 1592),
        (PARITY, 1592 + 199),
    ] {
        let disk = Arc::new(FaultDevice::new(MemDevice::new(1024, LARGE), FaultPlan::default()));
        let device = || Arc::clone(&disk) as Arc<dyn BlockDevice>;
        let held = [Stretch { start: BlockNo(homes.start), count: homes.end - homes.start, kind: KIND }];
        Shepherd::format(device(), &area, [9; 16], policy, &[2], &held, &mut |_, _| {}).unwrap();
        let (shepherd, _) = Shepherd::open(device(), &area, Options::default()).unwrap();
        for block in homes.clone() {
            shepherd.write(&[block_write(block, KIND, &contents(block))]).unwrap();
        }
        shepherd.settle().unwrap();
        let scrub = |from, count| shepherd.scrub(BlockNo(from), count, &|_| KIND).unwrap();
        let sound = scrub(0, LARGE);
        assert!(sound.is_sound() && sound.copies_written == 0, "{policy}: {sound:?}");
        assert_eq!((sound.blocks, sound.read), (1592, read), "{policy}");
        // In calls that begin and end anywhere, too.
        let parts: Vec<Scrubbed> = (0..LARGE).step_by(517).map(|from| scrub(from, 517)).collect();
        assert!(parts.iter().all(Scrubbed::is_sound), "{policy}: {parts:?}");
        assert_eq!(parts.iter().map(|part| (part.blocks, part.read)).fold((0, 0), sums), (1592, read));

        // Where the copy or the parity of a block is.
        let image = disk.device().image();
        let second = |block: u64| {
            let group = block / 8 * 8..block / 8 * 8 + 8;
            let parity = group.map(contents).reduce(|a, b| a.iter().zip(b).map(|(a, b)| a ^ b).collect());
            let wanted = if policy == PARITY { parity.unwrap() } else { contents(block) };
            (1700..LARGE).find(|no| image[*no as usize * BLOCK..][..BLOCK] == wanted).unwrap()
        };
        for block in [600, 1100, 1599] {
            write(disk.device(), block, 99).unwrap();
        }
        for block in [20, 700, 1110] {
            write(disk.device(), second(block), 98).unwrap();
        }
        fails(&disk, second(1500)..second(1500) + 1, Some(IoOp::Read));
        let found = scrub(0, LARGE);
        assert_eq!(found.restored, [BlockNo(600), BlockNo(1100), BlockNo(1599)], "{policy}");
        assert_eq!(found.copies_written, 4, "{policy}: {found:?}");
        disk.set_plan(FaultPlan::default());
        let after = scrub(0, LARGE);
        assert!(after.is_sound() && after.restored.is_empty() && after.copies_written == 0, "{after:?}");
        assert_eq!(after.read, read, "{policy}");
        for block in homes.clone() {
            let mut data = vec![0; BLOCK];
            shepherd.read(&mut [BlockRead { block: BlockNo(block), kind: KIND, data: &mut data }]).unwrap();
            assert_eq!(data, contents(block), "{policy}: block {block}");
        }
    }
}

fn sums(one: (u64, u64), other: (u64, u64)) -> (u64, u64) {
    (one.0 + other.0, one.1 + other.1)
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
    let ours = Options { is_ours: true, ..Options::default() };
    let (shepherd, opened) = Shepherd::open(device(), &area(), ours).unwrap();
    assert!(!opened.is_foreign, "whoever opens it knows that it is ours");
    drop(shepherd);
    disk.set_plan(FaultPlan::default());
    fails(&disk, 40..41, None);
    assert_eq!(read(&open(&disk).0, 40).unwrap(), 7, "its copy is there still");
}

#[test]
fn the_maps_own_blocks_are_nobody_else_s() {
    let disk = made(PARITY);
    let (shepherd, _) = open(&disk);
    let refused = write(&shepherd, 300, 1).unwrap_err();
    assert!(refused.to_string().contains("keeps its maps in"), "{refused}");
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
