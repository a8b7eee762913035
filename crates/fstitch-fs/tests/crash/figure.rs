//! The example of Figure 2.3 in the Featherstitch dissertation: 16 KiB appended by four writes of 4 KiB to an
//! empty file.

use std::sync::Arc;

use fstitch_core::{BlockDevice, Caller, FileSystem, MemDevice, Timestamp};
use fstitch_fs::ext2::mkfs::{MkfsOptions, mkfs};

/// Patches created, bytes of undo data taken, and blocks written afterwards.
fn append_four_blocks(combination: u8) -> (u64, u64, u64) {
    let device = Arc::new(MemDevice::new(4096, 1024));
    let mut options = MkfsOptions::new([7; 16], [9; 16], Timestamp::default());
    options.block_size = Some(4096);
    mkfs(&*device, &options, &mut |_, _| {}).unwrap();
    let device: Arc<dyn BlockDevice> = device;
    let (cache, fs) = crate::mount(device, combination, 64 << 20);
    let caller = Caller::default();
    let file = fs.mknod(&caller, fs.root(), b"file", 0o100_644, 0).unwrap().attr.ino;
    fs.sync().unwrap();
    let before = cache.stats();
    for n in 0..4 {
        assert_eq!(fs.write(&caller, file, n * 4096, &[1; 4096]).unwrap(), 4096);
    }
    let after = cache.stats();
    fs.forget(file, 1);
    fs.sync().unwrap();
    let written = cache.stats().blocks_written - before.blocks_written;
    let created = |s: &fstitch_patch::Stats| {
        s.patches_created_byte + s.patches_created_bit + s.patches_created_empty - s.patches_created_gather
    };
    (created(&after) - created(&before), after.undo_bytes_total - before.undo_bytes_total, written)
}

#[test]
fn appending_four_blocks_takes_the_patches_of_the_figure() {
    let (patches, undo, written) = append_four_blocks(15);
    println!("all optimisations: {patches} patches, {undo} bytes of undo data, {written} blocks");
    assert!(
        patches <= 8 && patches == written && undo == 0,
        "{patches} patches, {undo} bytes, {written} blocks"
    );
    let (patches, undo, _) = append_four_blocks(0);
    println!("none: {patches} patches, {undo} bytes of undo data");
    // The paper counts 23 and about 33,000: see docs/design/patch.md for where the difference comes from.
    assert_eq!((patches, undo), (28, 16_488));
}

/// The goals beside Figure 2.10: 1.3 patches with contents for each block written, a thousandth of what is written as undo
/// data, one block in two hundred written with patches undone.
#[test]
fn small_files_take_hardly_more_than_a_patch_for_each_block() {
    let device = Arc::new(MemDevice::new(4096, 16 << 10));
    let mut options = MkfsOptions::new([7; 16], [9; 16], Timestamp::default());
    options.block_size = Some(4096);
    mkfs(&*device, &options, &mut |_, _| {}).unwrap();
    let device: Arc<dyn BlockDevice> = device;
    let (cache, fs) = crate::mount(device, 15, 128 << 20);
    let caller = Caller::default();
    for n in 0..1500 {
        let file = fs.mknod(&caller, fs.root(), format!("f{n}").as_bytes(), 0o100_644, 0).unwrap().attr.ino;
        assert_eq!(fs.write(&caller, file, 0, &[1; 5000]).unwrap(), 5000);
        fs.forget(file, 1);
    }
    fs.sync().unwrap();
    let stats = cache.stats();
    let (blocks, patches) = (stats.blocks_written, stats.patches_created_byte + stats.patches_created_bit);
    println!("{blocks} blocks, {patches} patches, {} at once", stats.patches_peak);
    assert!(blocks > 3000 && patches * 10 <= blocks * 13, "{patches} patches for {blocks} blocks");
    assert!(
        stats.patches_peak * 10 <= blocks * 13,
        "{} patches at once, gathers included",
        stats.patches_peak
    );
    assert!(stats.undo_bytes_total * 1000 <= blocks * 4096, "{} bytes of undo data", stats.undo_bytes_total);
    assert!(stats.blocks_written_undone * 200 <= blocks, "{} blocks undone", stats.blocks_written_undone);
}
