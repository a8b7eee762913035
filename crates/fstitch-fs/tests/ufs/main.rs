//! UFS volumes of makefs, in both versions and byte orders, read, changed and checked; new ones, compared with what makefs makes.
//!
//! What it prevents: contents, names or attributes that are not what was put there; damage that is taken for contents, that the checker
//! does not see, or on which anything panics or does not end; a new volume that is not what newfs makes.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should fail")]

mod damage;
mod failing;
mod hashes;
mod held;
mod host;
mod mkfs;
mod newgroup;
mod ordered;
mod placed;
mod planted;
mod repair;
mod same;
mod stacked;
#[path = "../check/support.rs"]
#[expect(dead_code, reason = "shared with the tests of the checker")]
mod support;
mod written;

use std::sync::Arc;

use fstitch_core::{BlockDevice, CheckReport, FileSystem, MemDevice, Result, SystemClock};
use fstitch_fs::arrange::{self, Arrangement};
use fstitch_fs::ufs::Ufs;
use fstitch_fs::ufs::layout::superblock::Superblock;
use fstitch_fs::uhfs::Uhfs;
use fstitch_patch::CacheOptions;

use host::{Tree, fill, made};
use support::Scratch;

/// Versions, orders, and bytes of a block and a fragment.
fn shapes() -> impl Iterator<Item = (u32, &'static str, u32, u32)> {
    const SIZES: [(u32, u32); 5] = [(4096, 512), (4096, 4096), (8192, 1024), (16_384, 2048), (65_536, 8192)];
    let kinds = [1, 2].into_iter().flat_map(|version| ["le", "be"].map(|order| (version, order)));
    kinds.flat_map(|(version, order)| SIZES.map(|(block, fragment)| (version, order, block, fragment)))
}

fn have_makefs() -> bool {
    let found = std::process::Command::new("makefs").stderr(std::process::Stdio::null()).status().is_ok();
    if !found {
        println!("skipped: makefs is not installed");
    }
    found
}

/// The image as a device in fragments of its volume.
fn device(image: &[u8]) -> Result<Arc<MemDevice>> {
    let sectors = MemDevice::from_image(512, image.to_vec());
    let shape = Superblock::read(&sectors)?;
    Ok(Arc::new(MemDevice::from_image(shape.fragment_size, image.to_vec())))
}

fn opened(image: &[u8]) -> Result<Uhfs<Ufs>> {
    let arrangement = Arrangement {
        cache: CacheOptions { read_only: true, cache_size: 4 << 20, ..CacheOptions::default() },
        ..Arrangement::default()
    };
    let device: Arc<dyn BlockDevice> = device(image)?;
    Ok(arrange::open::<Ufs>(device, &arrangement, Arc::new(SystemClock::new()))?.0)
}

fn checked(image: &[u8]) -> Result<CheckReport> {
    opened(image)?.format().check_volume()
}

#[test]
fn what_makefs_has_made_reads_as_it_was_put_there() {
    if !have_makefs() {
        return;
    }
    let scratch = Scratch::new("ufs-read");
    let from = scratch.path("from");
    fill(&from);
    let expected = Tree::of_host(&from);
    let mut count = 0;
    for shape in shapes() {
        let name = format!("{shape:?}");
        let image = made(&scratch, &from, shape);
        let fs = opened(&image).unwrap_or_else(|error| panic!("{name}: {error}"));
        Tree::of(&fs).unwrap_or_else(|error| panic!("{name}: {error}")).expect(&expected, &name);
        let report = fs.check().unwrap();
        assert!(report.is_clean(), "{name}: {:#?}", report.findings);
        assert!(fs.statfs().unwrap().blocks_free > 0, "{name}");
        count += 1;
    }
    assert_eq!(count, 20);
}
