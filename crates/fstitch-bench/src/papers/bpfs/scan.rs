//! \[D\] §3.3.2: how long the scan of a mount takes that finds out what is in use, on a volume that is full.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use fstitch_bpfs::{Bpfs, Medium, Options};
use fstitch_core::{Errno, FileSystem, SystemClock};
use fstitch_posix::time::AtimePolicy;
use rustix::fs::{Advice, FallocateFlags};

use super::operations::make;
use super::{CALLER, in_file};
use crate::papers::goal::{columns, goal_row, plain_row, spread};
use crate::papers::{Setting, timed};
use crate::report::Wanted;
use crate::results::{BUILD, Table};
use crate::workload::{FILLER, len};

const BLOCK: u64 = 4096;
/// Files of a directory.
const WIDTH: u64 = 1_000;
/// Bytes behind which contents are taken out of the file.
const KEPT: u64 = 256 << 20;
/// How often a volume is opened.
const REPEATS: u64 = 7;

pub fn table(setting: &Setting<'_>) -> Result<Table> {
    let volume = setting.scale.of(20 << 30, 64 << 20);
    let mut table = Table {
        name: "bpfs scan".into(),
        title: "BPFS: the scan of a mount".into(),
        is_goal: true,
        about: format!(
            "Measured in {BUILD}; medians of {REPEATS}. A volume of {} MiB, full but for less than a thousandth, in a file on the disk that is mapped: seconds until \
             it is mounted, once what the scan reads is in memory, as persistent memory is; and after the kernel was asked to forget the \
             file's pages. What a scan reads is pointers, inodes and entries; blocks of contents, which it does not read, \
             were made holes of that file again, so that a machine need not have 20 GiB for it. The paper: less than a second for 20 GiB, of which it does not \
             say how many files they are.",
            volume >> 20
        ),
        columns: columns(),
        ..Table::default()
    };
    for size in [setting.scale.of(1 << 30, 8 << 20), 100 << 10] {
        let file = in_file(&setting.disk, volume)?;
        let made = fill(&file, size)?;
        let (mut cold, mut warm) = (Vec::new(), Vec::new());
        for _ in 0..REPEATS {
            file.sync_data()?;
            rustix::fs::fadvise(&file, 0, None, Advice::DontNeed)?;
            cold.push(timed(|| open(&file).map(drop))?);
            warm.push(timed(|| open(&file).map(drop))?);
        }
        let what = match size >> 20 {
            0 => format!("{made} files of {} KiB", size >> 10),
            mib => format!("{made} files of {mib} MiB"),
        };
        table.rows.push(goal_row(&what, " s", spread(warm)?, Wanted::AtMost(1.0)));
        table.rows.push(plain_row(&format!("{what}, from the disk"), " s", spread(cold)?));
    }
    Ok(table)
}

fn open(file: &File) -> Result<Bpfs> {
    let medium = Medium::file(file.try_clone()?, false)?;
    let options = Options { atime: AtimePolicy::NoAtime, ..Options::default() };
    Ok(Bpfs::open(medium, options, Arc::new(SystemClock::new()))?)
}

/// Makes files of so many bytes until there is no room, and returns how many they are.
fn fill(file: &File, size: u64) -> Result<u64> {
    let fs = open(file)?;
    let mut emptied = Emptied { file, from: 0 };
    let (mut made, mut written, mut dir) = (0, 0, fs.root());
    loop {
        if made % WIDTH == 0 {
            dir = fs.mkdir(&CALLER, fs.root(), format!("d{made}").as_bytes(), 0o755)?.attr.ino;
        }
        let ino = make(&fs, dir, format!("f{made}").as_bytes())?;
        made += 1;
        let mut at = 0;
        while at < size {
            let piece = &FILLER[..len((size - at).min(1 << 20))];
            match fs.write(&CALLER, ino, at, piece) {
                Ok(more) => (at, written) = (at + u64::try_from(more)?, written + u64::try_from(more)?),
                Err(error) if error.errno() == Errno::NOSPC => {
                    let statfs = fs.statfs()?;
                    ensure!(
                        statfs.blocks_free < statfs.blocks / 1000,
                        "{} blocks are free",
                        statfs.blocks_free
                    );
                    fs.unmount().context("closing a full volume")?;
                    drop(fs);
                    emptied.until(file.metadata()?.len())?;
                    return Ok(made);
                }
                Err(error) => return Err(error.into()),
            }
            if written - emptied.from > 2 * KEPT {
                // Blocks are taken in their order, and there are fewer bytes of contents than bytes.
                emptied.until(written - KEPT)?;
            }
        }
    }
}

/// A file whose blocks of contents are holes, so far.
struct Emptied<'a> {
    file: &'a File,
    from: u64,
}

impl Emptied<'_> {
    /// Goes on to a place.
    fn until(&mut self, end: u64) -> Result<()> {
        let block = &FILLER[..len(BLOCK)];
        let mut piece = vec![0; len(1 << 20)];
        while self.from < end {
            let read = self.file.read_at(&mut piece, self.from)?;
            ensure!(read > 0 && read % block.len() == 0, "{read} bytes at {}", self.from);
            let mut at = 0;
            while at < read {
                let run =
                    piece[at..read].chunks_exact(block.len()).take_while(|bytes| *bytes == block).count();
                if run > 0 {
                    let range = (self.from + u64::try_from(at)?, BLOCK * u64::try_from(run)?);
                    let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                    rustix::fs::fallocate(self.file, how, range.0, range.1)?;
                }
                at += (run + 1) * block.len();
            }
            self.from += u64::try_from(read)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::papers::tests::quick;

    #[test]
    fn a_full_volume_is_opened_with_large_files_and_with_small_ones() {
        let table = quick(table);
        let names: Vec<&str> = table.rows.iter().map(|row| row[0].as_str()).collect();
        assert_eq!(names.len(), 4);
        // 64 MiB, without two blocks and what inodes, names and pointers take.
        assert_eq!(names[0], "8 files of 8 MiB");
        let many: u64 = names[2].split_once(' ').unwrap().0.parse().unwrap();
        assert!((600..=640).contains(&many), "{names:?}");
    }
}
