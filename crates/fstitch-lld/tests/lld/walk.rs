//! Sparse lists are walked from one block to the next, whatever lies between, by the disk and by a unit that has changed them.
//!
//! What it prevents: clients that must ask for every position of a gap, or that are shown what a unit has deleted.

use std::sync::Arc;

use fstitch_core::{BlockDevice, Errno, MemDevice};
use fstitch_lld::{At, Disk, FormatOptions, ListId, Options};

fn disk() -> Disk {
    let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(4096, 4096));
    Disk::format(Arc::clone(&device), &FormatOptions::default()).unwrap();
    Disk::open(device, &Options::default()).unwrap().0
}

/// The positions of a list, found by walking.
fn walk(next_at: impl Fn(u64) -> Option<u64>) -> Vec<u64> {
    let mut found = Vec::new();
    let mut from = 0;
    while let Some(position) = next_at(from) {
        found.push(position);
        let Some(next) = position.checked_add(1) else { break };
        from = next;
    }
    found
}

fn committed(disk: &Disk, list: ListId) -> Vec<u64> {
    walk(|from| disk.next_at(list, from).unwrap().map(|(position, _)| position))
}

#[test]
fn a_list_with_gaps_is_walked_block_by_block() {
    let disk = disk();
    let (list, next) = (disk.new_list(true).unwrap(), disk.new_list(true).unwrap());
    let positions = [0, 7, 1 << 40, u64::MAX];
    for position in positions {
        disk.new_block(list, At::Position(position)).unwrap();
    }
    disk.new_block(next, At::Position(3)).unwrap();
    assert_eq!(committed(&disk, list), positions);
    let block = disk.block_at(list, 7).unwrap();
    assert_eq!(disk.next_at(list, 1).unwrap().map(|(_, block)| block), block);
}

#[test]
fn a_unit_walks_its_own_version_and_nobody_else_does() {
    let disk = disk();
    let list = disk.new_list(true).unwrap();
    let [_, gone, _] = [2, 5, 9].map(|position| disk.new_block(list, At::Position(position)).unwrap());
    let unit = disk.begin();
    unit.delete_block(gone).unwrap();
    unit.new_block(list, At::Position(3)).unwrap();
    unit.new_block(list, At::Position(1 << 50)).unwrap();
    let made = unit.new_list(true).unwrap();
    unit.new_block(made, At::Position(4)).unwrap();
    let own = |list| walk(|from| unit.next_at(list, from).unwrap().map(|(position, _)| position));
    assert_eq!(own(list), [2, 3, 9, 1 << 50]);
    assert_eq!(own(made), [4]);
    assert_eq!(committed(&disk, list), [2, 5, 9]);
    unit.end().unwrap();
    assert_eq!(committed(&disk, list), [2, 3, 9, 1 << 50]);
}

#[test]
fn a_unit_walks_what_others_have_removed_as_a_stretch() {
    let disk = disk();
    let list = disk.new_list(true).unwrap();
    for position in [2, 5, 9, 12] {
        disk.new_block(list, At::Position(position)).unwrap();
    }
    let unit = disk.begin();
    unit.new_block(list, At::Position(7)).unwrap();
    let own = |list| walk(|from| unit.next_at(list, from).unwrap().map(|(position, _)| position));
    assert_eq!(disk.delete_range(list, 3, 10).unwrap(), 2);
    assert_eq!(own(list), [2, 5, 7, 9, 12]);
    assert_eq!(unit.list_len(list).unwrap(), 5);
    assert_eq!(committed(&disk, list), [2, 12]);
    unit.end().unwrap();
    assert_eq!(committed(&disk, list), [2, 7, 12]);
}

#[test]
fn ordered_lists_have_no_positions_of_the_client() {
    let disk = disk();
    let list = disk.new_list(false).unwrap();
    assert_eq!(disk.next_at(list, 0).unwrap_err().errno(), Errno::INVAL);
    assert_eq!(disk.next_at(list + 1, 0).unwrap_err().errno(), Errno::NOENT);
}

#[test]
fn all_lists_are_found_in_the_order_of_their_numbers() {
    let disk = disk();
    let lists = [true, false, true, true].map(|sparse| disk.new_list(sparse).unwrap());
    disk.delete_list(lists[1]).unwrap();
    assert_eq!(walk(|from| disk.next_list(from).unwrap()), [lists[0], lists[2], lists[3]]);
}
