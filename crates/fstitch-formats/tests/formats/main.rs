//! What every format must do that stands in the list, asked of all that do and of a toy that does not: one whose volumes live in
//! no cache, have neither patches nor directories, and are stable when a call returns. What fails here would fail in `mount`,
//! `mkfs`, `fsck` or `info` with the newcomer alone.

#![allow(clippy::unwrap_used)]

mod asked;
mod contract;
mod tray;

use std::sync::Arc;

use contract::keeps_contract;
use fstitch_core::{BlockDevice, BlockNo, Caller, MemDevice};
use fstitch_formats::{FORMATS, Format, by_name_among, probe_among, probe_device};

use tray::Tray;

/// The list as it would be with the toy's line in it.
const WITH_TOY: &[&dyn Format] = &[FORMATS[0], &Tray];

#[test]
fn every_format_of_the_list_keeps_the_contract() {
    for format in FORMATS {
        for kind in format.makes() {
            keeps_contract(*format, kind);
        }
    }
}

#[test]
fn a_format_without_cache_and_patches_keeps_the_contract() {
    keeps_contract(&Tray, "tray");
}

/// The first byte of the block of the inode `ino`: 0 if it is free.
fn first_byte(medium: &MemDevice, ino: fstitch_core::InodeNo) -> u8 {
    medium.image()[1024 * usize::try_from(ino.get() - 1).unwrap()]
}

#[test]
fn the_table_of_inodes_serves_who_has_no_cache() {
    let medium = Arc::new(contract::made(&Tray, "tray"));
    let volume = contract::open(&Tray, Arc::clone(&medium), false).unwrap();
    let caller = Caller::default();
    let make = |number: u32| {
        let name = number.to_string().into_bytes();
        let ino = volume.mknod(&caller, volume.root(), &name, 0o100_644, 0).unwrap().attr.ino;
        assert_eq!(volume.write(&caller, ino, 0, &name).unwrap(), name.len());
        (name, ino)
    };
    let files: Vec<_> = (0..100).map(make).collect();
    assert_eq!(volume.references().len(), files.len(), "far more than stay in memory");
    for (name, ino) in &files {
        assert_eq!(volume.lookup(volume.root(), name).unwrap().attr.ino, *ino);
        volume.unlink(&caller, volume.root(), name).unwrap();
        volume.forget(*ino, 1);
        let mut buf = [0; 3];
        let len = volume.read(*ino, 0, &mut buf).unwrap();
        assert_eq!(&buf[..len], name, "one reference is left");
        assert_ne!(first_byte(&medium, *ino), 0);
        volume.forget(*ino, 1);
        assert!(volume.getattr(*ino).is_err() && first_byte(&medium, *ino) == 0);
    }
    assert!(volume.references().is_empty());
}

#[test]
fn an_orphan_goes_with_the_next_opening_or_the_unmount() {
    let medium = Arc::new(contract::made(&Tray, "tray"));
    let volume = contract::open(&Tray, Arc::clone(&medium), false).unwrap();
    let caller = Caller::default();
    let ino = volume.mknod(&caller, volume.root(), b"open", 0o100_644, 0).unwrap().attr.ino;
    volume.unlink(&caller, volume.root(), b"open").unwrap();
    let left = Arc::new(medium_of(&medium));
    assert_ne!(first_byte(&left, ino), 0, "the machine stops here");
    contract::open(&Tray, Arc::clone(&left), false).unwrap();
    assert_eq!(first_byte(&left, ino), 0);
    volume.unmount().unwrap();
    assert_eq!(first_byte(&medium, ino), 0);
}

#[test]
fn formats_are_found_by_name_and_by_their_first_bytes() {
    for format in WITH_TOY {
        for kind in format.makes() {
            let found = by_name_among(WITH_TOY, kind).unwrap();
            assert_eq!(found.names(), format.makes());
            let medium = contract::made(*format, kind);
            let (found, block_size) = probe_among(WITH_TOY, &medium.image()).unwrap();
            assert_eq!((found.names(), block_size), (format.makes(), Ok(contract::block_size(kind))));
        }
    }
    assert!(by_name_among(WITH_TOY, "fat").is_none());
}

#[test]
fn what_is_no_volume_belongs_to_nobody() {
    let noise: Vec<u8> = (0..1_u32 << 17).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    for image in [vec![0; 1 << 17], noise, vec![b'T'; 3], Vec::new()] {
        assert!(probe_among(WITH_TOY, &image).is_none());
        let medium = MemDevice::from_image(1024, image);
        assert!(probe_device(&medium).unwrap().is_none());
        for format in WITH_TOY {
            assert!(format.look(&medium).is_err() && !format.is_marked_clean(&medium));
            assert!(contract::open(*format, Arc::new(medium_of(&medium)), false).is_err());
        }
    }
}

fn medium_of(medium: &MemDevice) -> MemDevice {
    assert_eq!(medium.geometry().block_size, 1024, "{}", BlockNo(0));
    MemDevice::from_image(1024, medium.image())
}
