//! Nodes of extents that several files claim.
//!
//! What it prevents: contents that a file of nonsense takes away from their owner; copies that nothing leads to; a check that never ends.

use std::collections::BTreeSet;

use fstitch_core::{Le, MemDevice};
use fstitch_fs::ext2::file_map;
use fstitch_fs::ext2::layout::extent::{EH_ENTRIES, EH_MAX};

use super::corpus::{filled, shape};
use super::damage::{FIRST, claim_node};
use super::image::Image;
use super::used::use_for_reading;
use crate::support::{Scratch, e2fsck_image};

/// Nobody knows which of two has a node: each gets what it maps, and of all other names nothing is lost.
#[test]
fn a_node_of_two_files_is_both_of_theirs() {
    let scratch = Scratch::new("ext4-shared-nodes");
    for shape_name in ["1k", "no-sums"] {
        let Some(healthy) = filled(&scratch, shape(shape_name)) else { return };
        let before = use_for_reading(healthy.clone());
        let deep = Image::new(&scratch, healthy.clone()).inode("deep").0;
        for name in ["small1", "small20", "holes", "indirect", "unwritten"] {
            let mut image = Image::new(&scratch, healthy.clone());
            let node = u32::try_from(image.node("deep", 1)).expect("small");
            let is_first = image.inode(name).0 < deep;
            claim_node(&mut image, name, 2, node);
            let device = MemDevice::from_image(1024, image.bytes);
            let report = crate::repair::repair(&device, fstitch_core::RepairMode::Yes).expect("readable");
            let what = format!("{shape_name}, {name} (before the owner: {is_first})");
            assert!(report.left.is_clean(), "{what}: {:#?}", report.left.findings);
            let mended = device.image();
            let now = use_for_reading(mended.clone());
            // It may have several names.
            let lost: BTreeSet<_> = before
                .iter()
                .filter(|(name, word)| now.get(*name) != Some(word))
                .map(|(_, word)| word)
                .collect();
            assert!(lost.len() == 1, "{what}: all but the one that was damaged: {lost:?}");
            let (code, text) = e2fsck_image(&scratch, "shared", &mended);
            assert_eq!(code, 0, "{what}: {text}");
        }
    }
}

/// Where little is free the nodes come first: copies that nothing leads to are of no use.
#[test]
fn the_last_free_blocks_are_for_nodes_before_they_are_for_copies() {
    const FREE: usize = 24;
    let scratch = Scratch::new("ext4-shared-little-room");
    let Some(healthy) = filled(&scratch, shape("no-sums")) else { return };
    let mut image = Image::new(&scratch, healthy.clone());
    let (owner, node) = (image.inode("deep").0, image.node("deep", 1));
    let other = image.inode("indirect").0;
    assert!(other < owner);
    let blocks = |device: &MemDevice, ino: u32| -> u64 {
        file_map::read(device, u64::from(ino)).expect("a map").runs.iter().map(|run| run.blocks).sum()
    };
    let before = blocks(&MemDevice::from_image(1024, image.bytes.clone()), owner);
    claim_node(&mut image, "indirect", 2, u32::try_from(node).expect("small"));
    // All else is in use, says who does not know by whom: nothing becomes free in this run.
    let mut left = FREE;
    for group in 0..image.shape.group_count() {
        let bitmap = u64::from(Le::u32(image.descriptor(group), 0));
        for byte in image.block(bitmap) {
            for bit in (0..8).filter(|bit| *byte & 1 << bit == 0).collect::<Vec<u8>>() {
                *byte |= if left > 0 { 0 } else { 1 << bit };
                left = left.saturating_sub(1);
            }
        }
    }
    let device = MemDevice::from_image(1024, image.bytes);
    let report = crate::repair::repair(&device, fstitch_core::RepairMode::Yes).expect("readable");
    assert!(report.left.is_clean(), "{:#?}", report.left.findings);
    let kept = blocks(&device, owner);
    assert!(kept > 8, "{kept} blocks");
    // Who was met first has what the node maps, and nobody wrote over it.
    assert!(blocks(&device, other) + 8 > before, "{} of {before} blocks", blocks(&device, other));
    let before = use_for_reading(healthy);
    let now = use_for_reading(device.image());
    let lost = before.iter().filter(|(name, word)| now.get(*name) != Some(word)).count();
    assert!(lost <= 4, "{lost} names have other contents: three of the one, and the other one");
}

/// A tree of one node that is everywhere in it: whoever follows it would never end.
#[test]
fn a_tree_of_one_node_is_followed_a_few_times_only() {
    let scratch = Scratch::new("ext4-one-node");
    let Some(healthy) = filled(&scratch, shape("1k")) else { return };
    let mut image = Image::new(&scratch, healthy);
    let (upper, lower) = (image.node("deep", 1), image.node("deep", 2));
    let bytes = image.block(upper);
    EH_ENTRIES.put(bytes, EH_MAX.get(bytes));
    let entries = usize::from(EH_MAX.get(bytes));
    for entry in bytes[FIRST..][..entries * 12].chunks_exact_mut(12) {
        Le::put_u32(entry, 4, u32::try_from(lower).expect("small"));
    }
    image.seal_node("deep", upper);
    for other in ["small1", "small20", "holes", "indirect", "unwritten"] {
        claim_node(&mut image, other, 2, u32::try_from(upper).expect("small"));
    }
    let device = MemDevice::from_image(1024, image.bytes);
    let report = crate::repair::repair(&device, fstitch_core::RepairMode::Yes).expect("readable");
    assert!(report.left.is_clean(), "{:#?}", report.left.findings);
    assert!(report.found.corrupt > 256, "{} findings: more nodes than are followed", report.found.corrupt);
}
