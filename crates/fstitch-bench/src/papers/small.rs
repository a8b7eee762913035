//! \[F\] §9.2: blocks that are written for 100 small files, with soft updates, on ext2 and on UFS.

use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use fstitch_core::{BlockDevice, Consistency, FileSystem, Timestamp};
use fstitch_fs::ufs::layout::superblock::Version;
use fstitch_fs::ufs::mkfs::{MkfsOptions, mkfs};
use fstitch_patch::CacheOptions;

use super::{Setting, Volume, strings};
use crate::inside::{self, Disk};
use crate::place::{Open, Place, Within};
use crate::results::Table;

/// What FreeBSD wrote, and what Featherstitch did, in the paper.
const WANTED: u64 = 122;
const FILES: u64 = 100;

pub fn table(setting: &Setting<'_>) -> Result<Table> {
    let mut table = Table {
        name: "small files".into(),
        title: "[F] §9.2: blocks written for 100 small files".into(),
        is_goal: true,
        about: format!(
            "In process, soft updates, an image in memory; {FILES} files of 1 KiB are made in an empty directory and made stable together. \
             The paper: FreeBSD's soft updates 135, Featherstitch's 122. Wanted: at most {WANTED}."
        ),
        columns: strings(["format", "blocks written", "KiB written", "write requests", ""]),
        ..Table::default()
    };
    let volume = Volume::new(&setting.memory, 512 << 20, Consistency::Soft, CacheOptions::default())?;
    table.rows.push(row("ext2, blocks of 4 KiB", &volume.place, &volume.disk)?);
    volume.inside.fs.unmount()?;
    for (name, version, block, fragment) in [
        ("UFS1, 16 KiB and 2 KiB", Version::One, 16 << 10, 2 << 10),
        ("UFS2, 32 KiB and 4 KiB", Version::Two, 32 << 10, 4 << 10),
    ] {
        let image = tempfile::Builder::new().prefix("volume-").tempfile_in(&setting.memory)?;
        image.as_file().set_len(512 << 20)?;
        let (fs, disk) = ufs(image.path(), version, block, fragment)?;
        table.rows.push(row(name, &Within::new(Arc::clone(&fs)), &disk)?);
        fs.unmount()?;
    }
    Ok(table)
}

/// Makes a volume of UFS with blocks and fragments of so many bytes, and opens it.
fn ufs(image: &Path, version: Version, block: u32, fragment: u32) -> Result<(Arc<dyn FileSystem>, Disk)> {
    let disk = inside::disk_of(image, fragment)?;
    let now = Timestamp { secs: 1_700_000_000, nanos: 0 };
    let options = MkfsOptions {
        block_size: Some(block),
        fragment_size: Some(fragment),
        ..MkfsOptions::new(version, [7; 2], now)
    };
    mkfs(&*disk, &options, &mut |_, _| {})?;
    Ok((inside::ufs(Arc::clone(&disk) as Arc<dyn BlockDevice>)?, disk))
}

fn row(format: &str, place: &dyn Place, disk: &Disk) -> Result<Vec<String>> {
    place.mkdir("d")?;
    place.sync()?;
    let (blocks, requests) = (disk.stats().blocks_written.get(), disk.stats().write_requests.get());
    for no in 0..FILES {
        place.open(&format!("d/{no}"), Open::New)?.write_at(&[1; 1024], 0)?;
    }
    place.sync()?;
    let written = disk.stats().blocks_written.get() - blocks;
    let bytes = written * u64::from(disk.geometry().block_size);
    Ok(vec![
        format.to_owned(),
        written.to_string(),
        (bytes >> 10).to_string(),
        (disk.stats().write_requests.get() - requests).to_string(),
        if written <= WANTED { "met" } else { "**missed**" }.to_owned(),
    ])
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_papers_files_are_counted() {
        let table = super::super::tests::quick(super::table);
        assert_eq!(table.rows.len(), 3);
        // Their contents at least.
        assert!(table.rows.iter().all(|row| row[1].parse::<u64>().unwrap() > 100), "{:?}", table.rows);
    }
}
