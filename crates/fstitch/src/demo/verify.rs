//! What is looked at after a kill.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use fstitch_core::Clock;

use super::place::{Inside, Mounted, Place};
use crate::fsck::Report;
use crate::open::{Access, Volume};

/// Files that had been promised and are whole.
pub struct Promised {
    /// How many.
    pub files: usize,
    /// When the volume answered.
    pub opened_at: Duration,
}

/// Our own checker on the image as it is.
pub fn ours(program: &Path, image: &Path) -> Result<Report> {
    let output = Command::new(program).args(["fsck", "-n", "-f", "--json"]).arg(image).output()?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    serde_json::from_slice(&output.stdout).with_context(|| format!("fstitch fsck failed: {}", said.trim()))
}

/// e2fsck on a copy: it may reclaim what is no longer in use, and must then find nothing.
pub fn theirs(image: &Path) -> Result<()> {
    let Some(program) = e2fsck() else {
        println!("     e2fsck: not installed (apt-get install e2fsprogs)");
        return Ok(());
    };
    let copy = image.with_extension("copy");
    std::fs::copy(image, &copy).context("copying the image")?;
    let repaired = Command::new(&program).arg("-fy").arg(&copy).output()?;
    let clean = Command::new(&program).arg("-fn").arg(&copy).output()?;
    std::fs::remove_file(&copy)?;
    let said = String::from_utf8_lossy(&repaired.stdout).into_owned();
    match (repaired.status.code(), clean.status.code()) {
        (Some(0), Some(0)) => println!("     e2fsck -fy on a copy: nothing to do"),
        (Some(1), Some(0)) => {
            println!("     e2fsck -fy on a copy: reclaimed leftovers; e2fsck -fn then finds nothing")
        }
        (first, second) => bail!("e2fsck -fy ended with {first:?}, -fn then with {second:?}:\n{said}"),
    }
    Ok(())
}

/// Whether e2fsck is installed and finds nothing at all in the image.
pub fn strict(image: &Path) -> Result<bool> {
    let Some(program) = e2fsck() else {
        return Ok(false);
    };
    let output = Command::new(program).arg("-fn").arg(image).output()?;
    ensure!(output.status.success(), "e2fsck -fn finds:\n{}", String::from_utf8_lossy(&output.stdout));
    Ok(true)
}

fn e2fsck() -> Option<std::path::PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let more = ["/usr/sbin", "/sbin"].map(std::path::PathBuf::from);
    std::env::split_paths(&path).chain(more).map(|dir| dir.join("e2fsck")).find(|program| program.exists())
}

/// Reads the promised files below a mount.
pub fn promised_below(mountpoint: &Path, journal: &Path) -> Result<usize> {
    promised(&Mounted(mountpoint.to_path_buf()), journal)
}

/// Reads the promised files in an image, through the library.
pub fn promised_in_image(image: &Path, journal: &Path, clock: &dyn Clock) -> Result<Promised> {
    let arguments =
        crate::open::Arguments { offset: 0, partition: None, cache_size: 64 << 20, journal: None };
    let volume: Volume = arguments.open(image, Access::ReadOnly)?;
    let opened_at = clock.elapsed();
    Ok(Promised { files: promised(&Inside(&*volume.fs), journal)?, opened_at })
}

fn promised(place: &dyn Place, journal: &Path) -> Result<usize> {
    let Ok(journal) = std::fs::read_to_string(journal) else {
        return Ok(0);
    };
    let mut files = 0;
    // The last line may be cut short by the kill.
    for line in journal.split_inclusive('\n').filter(|line| line.ends_with('\n')) {
        let mut words = line.split_whitespace();
        let (Some(path), Some(size), Some(sum)) = (words.next(), words.next(), words.next()) else {
            bail!("the journal of promises holds `{}`", line.trim_end());
        };
        let data = place.read_file(path).context("a synced file is missing")?;
        ensure!(data.len().to_string() == size, "{path} was synced with {size} bytes and has {}", data.len());
        ensure!(format!("{:016x}", hash(&data)) == sum, "{path} was synced and differs now");
        files += 1;
    }
    Ok(files)
}

/// 64-bit FNV-1a: enough to tell a file from a damaged one.
pub fn hash(data: &[u8]) -> u64 {
    data.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
