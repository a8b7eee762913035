//! PostMark's transactions: files are made and deleted, read and appended to, in equal parts. Written here as well as
//! run as a program, because the program cannot work in a file system inside a process.

use std::time::Duration;

use anyhow::Result;
use fstitch_core::Seed;

use super::{At, FILLER, Scale, len};
use crate::meter::Meter;
use crate::place::{Name, Open, Place};

/// How often a directory that is not empty yet is tried again, a millisecond later each time.
const PATIENCE: usize = 1_000;

/// The configuration.
#[derive(Clone, Copy, Debug)]
pub struct PostMark {
    /// Files at the start.
    pub files: u64,
    /// Shortest and longest file in bytes.
    pub sizes: (u64, u64),
    /// Transactions, of two operations each.
    pub transactions: u64,
    /// Directories that the files are in.
    pub directories: u64,
}

impl PostMark {
    /// \[S\] Table I.
    pub const SMALL: Self =
        Self { files: 1000, sizes: (512, 16 << 10), transactions: 30_000, directories: 10 };
    /// \[D\] Fig 2.10.
    pub const LARGE: Self = Self { files: 500, sizes: (500, 4 << 20), transactions: 500, directories: 10 };
}

/// How much is written and read at once, as the program's buffered streams do.
const PIECE: u64 = 4096;

pub(super) fn large(at: &At<'_>, meter: &mut Meter<'_>) -> Result<()> {
    let quick = PostMark { sizes: (500, 1 << 18), transactions: 100, ..PostMark::LARGE };
    measure(at, meter, if at.scale == Scale::Full { PostMark::LARGE } else { quick })
}

pub(super) fn small(at: &At<'_>, meter: &mut Meter<'_>) -> Result<()> {
    measure(at, meter, PostMark { transactions: at.scale.of(30_000, 500), ..PostMark::SMALL })
}

fn measure(at: &At<'_>, meter: &mut Meter<'_>, mark: PostMark) -> Result<()> {
    let all = mark.files * 2 + mark.transactions * 2;
    meter.phase("all", all, || postmark(at.place, mark))
}

/// Runs all of it: makes the files, does the transactions, deletes what is left.
///
/// # Errors
/// Those of the calls.
pub fn postmark(place: &dyn Place, mark: PostMark) -> Result<()> {
    (0..mark.directories).try_for_each(|no| place.mkdir(&format!("s{no}")))?;
    let mut pool = Pool { place, mark, numbers: Seed::new(42), files: Vec::new(), next: 0 };
    for _ in 0..mark.files {
        pool.make()?;
    }
    for _ in 0..mark.transactions {
        if pool.numbers.below(2) == 0 {
            pool.read()?
        } else {
            pool.append()?
        }
        if pool.numbers.below(2) == 0 { pool.make()? } else { pool.delete()? }
    }
    while !pool.files.is_empty() {
        pool.delete()?;
    }
    (0..mark.directories).try_for_each(|no| rmdir(place, &format!("s{no}")))
}

/// Removes a directory. libfuse, below fuse2fs for one, keeps files that are removed while they are open under names of its
/// own until it hears of their last close: a moment later, or for one in some thousands never.
fn rmdir(place: &dyn Place, path: &str) -> Result<()> {
    for _ in 0..PATIENCE {
        match place.rmdir(path) {
            Err(error) if error.downcast_ref() == Some(&rustix::io::Errno::NOTEMPTY) => {
                std::thread::sleep(Duration::from_millis(1));
                let left = place.list(path)?;
                for Name { name, .. } in left.iter().filter(|left| left.name.starts_with(".fuse_hidden")) {
                    // It may go by itself meanwhile.
                    let _gone = place.unlink(&format!("{path}/{name}"));
                }
            }
            done => return done,
        }
    }
    place.rmdir(path)
}

struct Pool<'a> {
    place: &'a dyn Place,
    mark: PostMark,
    numbers: Seed,
    files: Vec<(String, u64)>,
    next: u64,
}

impl Pool<'_> {
    fn make(&mut self) -> Result<()> {
        let path = format!("s{}/{}", self.next % self.mark.directories, self.next);
        self.next += 1;
        let (low, high) = self.mark.sizes;
        let size = low + self.numbers.below(high - low + 1);
        write(&*self.place.open(&path, Open::New)?, 0, size)?;
        self.files.push((path, size));
        Ok(())
    }

    fn delete(&mut self) -> Result<()> {
        if let Some(at) = self.pick() {
            let (path, _) = self.files.swap_remove(at);
            self.place.unlink(&path)?;
        }
        Ok(())
    }

    fn read(&mut self) -> Result<()> {
        let Some(at) = self.pick() else { return Ok(()) };
        let file = self.place.open(&self.files[at].0, Open::Existing)?;
        let (mut buffer, mut offset) = ([0; PIECE as usize], 0);
        loop {
            match file.read_at(&mut buffer, offset)? {
                0 => return Ok(()),
                read => offset += u64::try_from(read)?,
            }
        }
    }

    fn append(&mut self) -> Result<()> {
        let Some(at) = self.pick() else { return Ok(()) };
        let (path, size) = &mut self.files[at];
        let more = self.numbers.below(self.mark.sizes.1.saturating_sub(*size).max(1));
        write(&*self.place.open(path, Open::Existing)?, *size, more)?;
        *size += more;
        Ok(())
    }

    fn pick(&mut self) -> Option<usize> {
        let count = u64::try_from(self.files.len()).ok().filter(|&count| count > 0)?;
        Some(len(self.numbers.below(count)))
    }
}

fn write(file: &dyn crate::place::File, mut offset: u64, size: u64) -> Result<()> {
    let end = offset + size;
    while offset < end {
        let piece = PIECE.min(end - offset);
        file.write_at(&FILLER[..len(piece)], offset)?;
        offset += piece;
    }
    Ok(())
}

impl PostMark {
    /// The same, smaller for a quick look.
    #[must_use]
    pub fn scaled(self, scale: Scale) -> Self {
        match scale {
            Scale::Full => self,
            Scale::Quick => Self { transactions: self.transactions / 10, files: self.files / 5, ..self },
        }
    }
}
