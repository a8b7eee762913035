//! What every format must do that stands in the list, asked of all that do and of a toy that does not: one whose volumes live in
//! no cache, have neither patches nor directories, and are stable when a call returns. What fails here would fail in `mount`,
//! `mkfs`, `fsck` or `info` with the newcomer alone.

#![allow(clippy::unwrap_used)]

mod contract;
mod tray;

use contract::keeps_contract;
use fstitch_core::{BlockDevice, BlockNo, MemDevice};
use fstitch_formats::{FORMATS, Format, by_name_among, probe_among, probe_device};

use tray::Tray;

/// The list as it would be with the toy's line in it.
const WITH_TOY: &[&dyn Format] = &[FORMATS[0], &Tray];

#[test]
fn every_format_of_the_list_keeps_the_contract() {
    for format in FORMATS {
        for kind in format.names() {
            keeps_contract(*format, kind);
        }
    }
}

#[test]
fn a_format_without_cache_and_patches_keeps_the_contract() {
    keeps_contract(&Tray, "tray");
}

#[test]
fn formats_are_found_by_name_and_by_their_first_bytes() {
    for format in WITH_TOY {
        for kind in format.names() {
            let found = by_name_among(WITH_TOY, kind).unwrap();
            assert_eq!(found.names(), format.names());
            let medium = contract::made(*format, kind);
            let (found, block_size) = probe_among(WITH_TOY, &medium.image()).unwrap();
            assert_eq!((found.names(), block_size), (format.names(), Ok(1024)));
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
            assert!(contract::open(*format, std::sync::Arc::new(medium_of(&medium)), false).is_err());
        }
    }
}

fn medium_of(medium: &MemDevice) -> MemDevice {
    assert_eq!(medium.geometry().block_size, 1024, "{}", BlockNo(0));
    MemDevice::from_image(1024, medium.image())
}
