//! Volumes that have lost what leads to the maps of their policy, which have a copy of just that.
//!
//! What it prevents: a volume that cannot be opened though everything is there; and maps of another volume, or of an older policy, that are
//! taken for those of this one, whose blocks would be overwritten by theirs.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should fail")]

#[path = "formats/asked.rs"]
mod asked;

use std::collections::BTreeSet;
use std::sync::Arc;

use asked::{NOW, asked};
use fstitch_core::{BlockDevice, BlockKind, BlockNo, BlockRead, BlockWrite, IoOp, MemDevice, Overlay};
use fstitch_crashlab::{Defect, Fault, FaultDevice, FaultPlan, Times};
use fstitch_formats::make::{Asked, Fresh};
use fstitch_formats::search::{Rescued, SEARCHED_IN, Searched, search};
use fstitch_formats::{Format, KeepsMaps, MapsAt};
use fstitch_shepherd::policy::shipped;
use fstitch_shepherd::{Options, Remedy, Room, Rules, Shepherd};

const BLOCK: u32 = SEARCHED_IN;
/// Of three groups, the second of which has a copy of the superblock.
const BLOCKS: u64 = 20_000;
const SUPERBLOCK: u64 = 1;
const DESCRIPTORS: u64 = 2;

struct Nobody;

impl Rules for Nobody {
    fn judge(&self, _: BlockKind, _: BlockNo, _: &[u8]) -> Option<String> {
        None
    }
}

impl Remedy for Nobody {
    fn full_check(&self) -> bool {
        false
    }

    fn remount(&self) -> bool {
        false
    }
}

fn options() -> Options {
    let (rules, remedy) = (Some(Arc::new(Nobody) as _), Some(Arc::new(Nobody) as _));
    Options { pause: Arc::new(|_| {}), rules, remedy, ..Options::default() }
}

fn keeps(kind: &str) -> &'static dyn KeepsMaps {
    fstitch_formats::by_name(kind).unwrap().keeps_maps().unwrap()
}

/// Makes a volume over whatever a disk holds.
fn mkfs(disk: &MemDevice, kind: &'static str, uuid: u8, blocks: u64) {
    let format: &dyn Format = fstitch_formats::by_name(kind).unwrap();
    let asked = Asked { uuid: [uuid; 16], ..asked(format, kind, BLOCK, "lost") };
    let fresh = Fresh { device: disk, is_zero: false, bytes: Some(blocks * u64::from(BLOCK)) };
    format.plan(&asked).unwrap().make(fresh, &mut |_, _| {}).unwrap();
}

/// Has the volume follow a policy, with so many spares.
fn adopt(disk: &Arc<MemDevice>, kind: &str, blocks: u64, policy: &str, spares: u64) -> Vec<BlockNo> {
    let keeps = keeps(kind);
    assert_eq!(disk.geometry().block_count, blocks);
    let area = keeps.make_room(&**disk, Room::new(BLOCK, blocks, spares), NOW).unwrap();
    let census = keeps.census(&**disk).unwrap();
    let device = Arc::clone(disk) as Arc<dyn BlockDevice>;
    let uuid = keeps.uuid(&**disk).unwrap();
    let sealed = keeps.sealed();
    Shepherd::format(Arc::clone(&device), &area, uuid, policy, &sealed, &census, &mut |_, _| {}).unwrap();
    let (shepherd, _) = Shepherd::open(device, &area, options()).unwrap();
    keeps.finish(&shepherd, true).unwrap();
    shepherd.close().unwrap();
    area
}

fn made(kind: &'static str, policy: &str, spares: u64) -> Arc<MemDevice> {
    let disk = Arc::new(MemDevice::new(BLOCK, BLOCKS));
    mkfs(&disk, kind, 7, BLOCKS);
    adopt(&disk, kind, BLOCKS, shipped(policy).unwrap().text, spares);
    disk
}

fn read(device: &dyn BlockDevice, block: u64, kind: BlockKind) -> Vec<u8> {
    let mut data = vec![0; BLOCK as usize];
    device.read(&mut [BlockRead { block: BlockNo(block), kind, data: &mut data }]).unwrap();
    data
}

fn write(device: &dyn BlockDevice, block: u64, data: &[u8]) {
    device.write(&[BlockWrite { block: BlockNo(block), kind: BlockKind::Data, data }]).unwrap();
}

/// The block of the inode table with the inode of the maps.
fn table(disk: &MemDevice) -> u64 {
    let word = |block, at: usize| {
        u32::from_le_bytes(read(disk, block, BlockKind::Data)[at..at + 4].try_into().unwrap())
    };
    let inode_size = u64::from(word(SUPERBLOCK, 88) & 0xffff);
    u64::from(word(DESCRIPTORS, 8)) + 4 * inode_size / u64::from(BLOCK)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Damage {
    Unreadable,
    Zeroed,
    Garbage,
}

/// The disk with some blocks lost.
fn damaged(disk: &MemDevice, blocks: &[u64], damage: Damage) -> Arc<dyn BlockDevice> {
    let copy = MemDevice::from_image(BLOCK, disk.image());
    let mut plan = FaultPlan::default();
    for block in blocks {
        let garbage: Vec<u8> = (0..BLOCK).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        match damage {
            Damage::Unreadable => plan.faults.push(Fault {
                op: Some(IoOp::Read),
                blocks: Some(*block..*block + 1),
                times: Times::Sticky,
                ..Fault::new(Defect::Error)
            }),
            Damage::Zeroed => write(&copy, *block, &vec![0; BLOCK as usize]),
            Damage::Garbage => write(&copy, *block, &garbage),
        }
    }
    Arc::new(FaultDevice::new(copy, plan))
}

fn searched(device: &Arc<dyn BlockDevice>) -> Searched {
    let open = &mut |block_size| {
        assert_eq!(block_size, BLOCK);
        Ok(Arc::clone(device))
    };
    let mut last = None;
    let searched =
        search(open, true, &mut |what, done, all| last = Some((what.to_owned(), done, all))).unwrap();
    assert!(last.is_some_and(|(_, done, all)| done == all), "progress reaches its end");
    searched
}

#[track_caller]
fn assert_refused(device: &Arc<dyn BlockDevice>, why: &str) {
    let Searched { rescued, refused } = searched(device);
    assert!(rescued.is_none(), "they are not this volume's: {:?}", rescued.map(|rescued| rescued.head));
    assert!(refused.iter().any(|(_, told)| told.contains(why)), "{refused:?}");
}

/// Opens by what was found, and compares every block that holds something with what it held.
fn assert_is_all_there(device: &Arc<dyn BlockDevice>, kind: &str, before: &MemDevice, rescued: &Rescued) {
    let view = Overlay::new(Arc::clone(device));
    for (block, data) in &rescued.rescue.blocks {
        write(&view, block.get(), data);
    }
    let MapsAt::Here(area) = keeps(kind).maps(&view).unwrap() else {
        panic!("the maps are found as usual again")
    };
    assert_eq!(area, rescued.found.area);
    let options = Options { is_ours: true, ..options() };
    let (shepherd, opened) = Shepherd::open(Arc::new(view), &area, options).unwrap();
    assert!(!opened.is_foreign, "nobody else has written");
    for stretch in keeps(kind).census(before).unwrap() {
        for block in stretch.start.get()..stretch.start.get() + stretch.count {
            assert_eq!(
                read(&shepherd, block, stretch.kind),
                read(before, block, stretch.kind),
                "block {block}"
            );
        }
    }
    shepherd.close().unwrap();
}

fn subsets(blocks: &[u64]) -> Vec<Vec<u64>> {
    (1_usize..1 << blocks.len())
        .map(|bits| (0..blocks.len()).filter(|no| bits & (1 << no) != 0).map(|no| blocks[no]).collect())
        .collect()
}

/// Each of the blocks that lead to the maps, and all of them together.
fn any_may_be_lost(kind: &'static str, policy: &str, copied: &[u64]) {
    let disk = made(kind, policy, 9000);
    let leading = [SUPERBLOCK, DESCRIPTORS, table(&disk)];
    let copied: Vec<u64> = copied.iter().map(|no| leading[usize::try_from(*no).unwrap()]).collect();
    for lost in subsets(&copied) {
        for damage in [Damage::Unreadable, Damage::Zeroed, Damage::Garbage] {
            let device = damaged(&disk, &lost, damage);
            let usual = keeps(kind).maps(&*device);
            assert!(!matches!(usual, Ok(MapsAt::Here(_))), "{lost:?} {damage:?} matter");
            if matches!(usual, Ok(MapsAt::Nowhere)) {
                assert!(keeps(kind).may_hide(&*device).unwrap(), "{lost:?} {damage:?}: it is noticed");
            }
            let Searched { rescued, refused } = searched(&device);
            let rescued = rescued.unwrap_or_else(|| panic!("{policy} {lost:?} {damage:?}: {refused:?}"));
            let given: BTreeSet<u64> = rescued.rescue.blocks.keys().map(|block| block.get()).collect();
            assert_eq!(
                given,
                lost.iter().copied().collect(),
                "{policy} {damage:?}: what is lost is given back"
            );
            for (block, data) in &rescued.rescue.blocks {
                assert_eq!(*data, read(&*disk, block.get(), BlockKind::Data), "{policy} {damage:?} {block}");
            }
            assert_is_all_there(&device, kind, &disk, &rescued);
        }
    }
}

#[test]
fn what_leads_to_the_maps_may_be_lost_under_copies() {
    for kind in ["ext2", "ext3"] {
        for policy in ["mirror-near", "mirror-far", "remap-mirror"] {
            any_may_be_lost(kind, policy, &[0, 1, 2]);
        }
    }
}

#[test]
fn what_leads_to_the_maps_may_be_lost_under_copies_and_sums() {
    any_may_be_lost("ext3", "laptop", &[0, 1, 2]);
    any_may_be_lost("ext3", "sd-card", &[0, 1, 2]);
    // It has copies of inodes alone.
    any_may_be_lost("ext2", "defence-in-depth", &[2]);
}

/// One block of a group of eight: of two of them parity knows nothing.
#[test]
fn what_leads_to_the_maps_may_be_lost_under_parity() {
    for one in [0, 1, 2] {
        any_may_be_lost("ext2", "parity", &[one]);
    }
}

/// Where there is no copy nothing is made up.
#[test]
fn without_a_copy_it_is_said() {
    let disk = made("ext2", "defence-in-depth", 2000);
    assert_refused(&damaged(&disk, &[SUPERBLOCK], Damage::Unreadable), "does not say that they are its");
    assert_refused(&damaged(&disk, &[SUPERBLOCK], Damage::Zeroed), "does not say that they are its");
}

/// A volume whose policy was taken away, although the heads of its maps are still there, and then one with another policy.
#[test]
fn maps_of_a_policy_that_was_taken_away_are_not_taken() {
    let disk = made("ext2", "mirror-far", 2000);
    let leading = [SUPERBLOCK, DESCRIPTORS, table(&disk)];
    let MapsAt::Here(area) = keeps("ext2").maps(&*disk).unwrap() else { panic!("it follows a policy") };
    let old = disk.image();
    // The heads are not wiped here: somebody else may have taken it away.
    keeps("ext2").finish(&*disk, false).unwrap();
    keeps("ext2").give_back(&*disk).unwrap();
    for lost in subsets(&leading) {
        for damage in [Damage::Unreadable, Damage::Zeroed, Damage::Garbage] {
            assert_refused(&damaged(&disk, &lost, damage), "");
        }
    }
    // The new maps are elsewhere, so the old heads are still there.
    for spares in [100, 4000] {
        let other = Arc::new(MemDevice::from_image(BLOCK, disk.image()));
        let new = adopt(&other, "ext2", BLOCKS, shipped("mirror-near").unwrap().text, spares);
        for block in [area[0], area[area.len() / 2]] {
            if !new.contains(&block) {
                let at = usize::try_from(block.get()).unwrap() * BLOCK as usize;
                write(&*other, block.get(), &old[at..at + BLOCK as usize]);
            }
        }
        for lost in subsets(&leading) {
            let device = damaged(&other, &lost, Damage::Zeroed);
            let Searched { rescued, refused } = searched(&device);
            match rescued {
                Some(rescued) => {
                    assert_eq!(rescued.found.area, new, "{lost:?}");
                    assert_is_all_there(&device, "ext2", &other, &rescued);
                }
                // Copies of all three need room.
                None => assert!(spares == 100, "{lost:?}: {refused:?}"),
            }
        }
    }
}

/// Another volume was made over it, with a policy or without.
#[test]
fn maps_of_a_volume_that_was_made_over_are_not_taken() {
    let old = made("ext3", "mirror-far", 4000);
    for uuid in [7, 8] {
        let disk = Arc::new(MemDevice::from_image(BLOCK, old.image()));
        mkfs(&disk, "ext2", uuid, BLOCKS);
        if uuid == 8 {
            assert_refused(
                &(Arc::clone(&disk) as Arc<dyn BlockDevice>),
                "of another volume than the superblock",
            );
        }
        let leading = [SUPERBLOCK, DESCRIPTORS, table(&disk)];
        for lost in subsets(&leading) {
            for damage in [Damage::Unreadable, Damage::Zeroed, Damage::Garbage] {
                assert_refused(&damaged(&disk, &lost, damage), "");
            }
        }
        let new = adopt(&disk, "ext2", BLOCKS, shipped("mirror-near").unwrap().text, 5000);
        for lost in subsets(&leading) {
            let device = damaged(&disk, &lost, Damage::Garbage);
            let rescued = searched(&device).rescued.unwrap();
            assert_eq!(rescued.found.area, new, "{lost:?}");
        }
    }
}

/// A smaller volume's image was restored over the beginning of a disk, whose end still has the maps of the old one.
#[test]
fn maps_of_a_larger_volume_are_not_taken() {
    let disk = made("ext2", "mirror-far", 9000);
    for (uuid, policy) in [(7, None), (8, None), (7, Some("mirror-far")), (8, Some("mirror-far"))] {
        let small = Arc::new(MemDevice::new(BLOCK, 9000));
        mkfs(&small, "ext2", uuid, 9000);
        let area = policy.map(|policy| adopt(&small, "ext2", 9000, shipped(policy).unwrap().text, 3000));
        let mut image = disk.image();
        let restored = small.image();
        image[..restored.len()].copy_from_slice(&restored);
        let disk = MemDevice::from_image(BLOCK, image);
        for lost in subsets(&[SUPERBLOCK, DESCRIPTORS, table(&disk)]) {
            for damage in [Damage::Unreadable, Damage::Zeroed, Damage::Garbage] {
                let device = damaged(&disk, &lost, damage);
                match &area {
                    None => assert_refused(&device, ""),
                    Some(area) => assert_eq!(searched(&device).rescued.unwrap().found.area, *area),
                }
            }
        }
    }
}

/// A file that holds the image of a volume with a policy.
#[test]
fn maps_of_an_image_in_a_file_are_not_taken() {
    let held = made("ext2", "mirror-far", 2000).image();
    for at in [100, 5000] {
        let disk = Arc::new(MemDevice::new(BLOCK, 2 * BLOCKS));
        for (block, data) in (at..).zip(held.chunks_exact(BLOCK as usize)) {
            write(&*disk, block, data);
        }
        assert_refused(&(disk as Arc<dyn BlockDevice>), "");
    }
}

/// Somebody else has written while the maps knew nothing of it, and then the superblock is lost.
#[test]
fn who_has_written_meanwhile_is_noticed_without_a_superblock() {
    let disk = made("ext2", "mirror-far", 9000);
    let place = table(&disk);
    for (changed, lost) in [
        (vec![SUPERBLOCK, DESCRIPTORS], vec![place]),
        (vec![SUPERBLOCK, DESCRIPTORS], vec![SUPERBLOCK]),
        (vec![DESCRIPTORS, place], vec![SUPERBLOCK]),
        (vec![place + 3], vec![SUPERBLOCK, DESCRIPTORS, place]),
    ] {
        let other = MemDevice::from_image(BLOCK, disk.image());
        for block in &changed {
            // In what no rule judges: the times, the reserved bytes, the last inode.
            let mut data = read(&other, *block, BlockKind::Data);
            data[if *block == SUPERBLOCK { 48 } else { 1000 }] ^= 0x11;
            write(&other, *block, &data);
        }
        for damage in [Damage::Unreadable, Damage::Zeroed, Damage::Garbage] {
            let device = damaged(&other, &lost, damage);
            let Searched { rescued, .. } = searched(&device);
            assert!(rescued.is_none(), "{changed:?} was changed, {lost:?} lost ({damage:?})");
        }
    }
}

/// It was in use when the power went.
#[test]
fn it_may_have_been_in_use() {
    let disk = made("ext2", "mirror-far", 9000);
    let MapsAt::Here(area) = keeps("ext2").maps(&*disk).unwrap() else { panic!("it follows a policy") };
    let (shepherd, _) = Shepherd::open(Arc::clone(&disk) as _, &area, options()).unwrap();
    let place = table(&disk);
    for (block, at, kind) in [(SUPERBLOCK, 48, BlockKind::Superblock), (place, 1000, BlockKind::Inode)] {
        let mut data = read(&shepherd, block, kind);
        data[at] ^= 0x11;
        shepherd.write(&[BlockWrite { block: BlockNo(block), kind, data: &data }]).unwrap();
    }
    drop(shepherd);
    for lost in subsets(&[SUPERBLOCK, DESCRIPTORS, place]) {
        for damage in [Damage::Unreadable, Damage::Zeroed, Damage::Garbage] {
            let device = damaged(&disk, &lost, damage);
            let rescued = searched(&device).rescued.unwrap_or_else(|| panic!("{lost:?} {damage:?}"));
            assert_is_all_there(&device, "ext2", &disk, &rescued);
        }
    }
}
