//! Disks in files and on block devices: how they are made and opened.
#![forbid(unsafe_code)]

use std::fs::OpenOptions;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use fstitch_core::{BlockDevice, BlockNo, Error};
use fstitch_disk::{DiskOptions, FileDisk};
use fstitch_lld::{Disk, FormatOptions, Options, Recovered};

use crate::failure::{Failure, Result};
use crate::layout::LldFormat;

/// Bytes at the beginning in which the superblock is.
const HEAD: usize = 4096;
/// The largest block of a device that a disk is made for.
const UNIT_MAX: u32 = 4096;

/// Opens a disk with the blocks of the device that it was made for.
pub(crate) fn open(path: &Path, options: &Options) -> Result<(Disk, Recovered)> {
    let open = || -> Result<_, Error> {
        let head = fstitch_disk::probe(path, 0, HEAD)?;
        // Where the superblock is damaged its copy is looked for.
        let block_size = fstitch_lld::device_block_size(&head).unwrap_or(UNIT_MAX);
        let blocks = DiskOptions { block_size, read_only: options.read_only, ..DiskOptions::default() };
        Disk::open(Arc::new(FileDisk::open_when_let_go(path, &blocks)?), options)
    };
    open().map_err(|error| about(path, error))
}

/// A failure with the path, unless its text has it already.
fn about(path: &Path, error: impl Into<Failure>) -> Failure {
    let (failure, name) = (error.into(), path.display().to_string());
    if failure.text.contains(&name) { failure } else { failure.about(&name) }
}

/// What has been done to a file before there was a disk in it.
enum Prepared {
    Nothing,
    Created,
    Grown(u64),
}

/// Makes a disk; a file that is not there is made, and one that is there only written over if asked for.
pub(crate) fn format(path: &Path, asked: &LldFormat) -> Result<()> {
    let overwrite = asked.overwrites()?;
    let block_size = if asked.block_size == 0 { UNIT_MAX } else { asked.block_size };
    if !(512..=65_536).contains(&block_size) || !block_size.is_power_of_two() {
        return Err(Failure::invalid(format!(
            "a block of {block_size} bytes: it must be a power of two from 512 to 65536"
        )));
    }
    let prepared = prepare(path, asked.size, overwrite).map_err(|failure| about(path, failure))?;
    let done = write(path, asked, block_size);
    if done.is_err() {
        // Why there is no disk is what the caller must hear, not that the file could not be made as it was.
        let _ = match prepared {
            Prepared::Nothing => Ok(()),
            Prepared::Created => std::fs::remove_file(path),
            Prepared::Grown(len) => {
                OpenOptions::new().write(true).open(path).and_then(|file| file.set_len(len))
            }
        };
    }
    done.map_err(|failure| about(path, failure))
}

fn prepare(path: &Path, size: u64, overwrite: bool) -> Result<Prepared> {
    if path.symlink_metadata().is_err() {
        if size == 0 {
            return Err(Failure::new(libc::ENOENT, "it is not there, and without a size it cannot be made"));
        }
        FileDisk::create(path, size)?;
        return Ok(Prepared::Created);
    }
    if !overwrite {
        return Err(Failure::new(libc::EEXIST, "it is there already: only LLD_OVERWRITE writes over it"));
    }
    let meta = std::fs::metadata(path)?;
    if !meta.is_file() || meta.len() >= size {
        return Ok(Prepared::Nothing);
    }
    OpenOptions::new().write(true).open(path)?.set_len(size)?;
    Ok(Prepared::Grown(meta.len()))
}

fn write(path: &Path, asked: &LldFormat, block_size: u32) -> Result<()> {
    let size = (asked.size > 0).then_some(asked.size);
    let options = FormatOptions { block_size, compression: asked.compression(), ..FormatOptions::default() };
    let blocks = DiskOptions { block_size: options.device_blocks(), size, ..DiskOptions::default() };
    let device: Arc<dyn BlockDevice> = Arc::new(FileDisk::open_when_let_go(path, &blocks)?);
    let default = FormatOptions::for_bytes(device.geometry().bytes());
    let segment_size = if asked.segment_size == 0 { default.segment_size } else { asked.segment_size };
    let uuid = if asked.uuid == [0; 16] { random_uuid()? } else { asked.uuid };
    let options = FormatOptions { segment_size, uuid, ..options };
    let format = || Disk::format(Arc::clone(&device), &options);
    format().map_err(|error| match error {
        // Nothing was read that could be of another version.
        Error::Unsupported(text) => Failure::invalid(text),
        other => other.into(),
    })?;
    // Now that the sizes fit, what was there before is given back, lest the log of an older disk be taken for this one's.
    device.discard(BlockNo(0), device.geometry().block_count)?;
    Ok(format()?)
}

/// A version 4 UUID out of the kernel's randomness.
fn random_uuid() -> Result<[u8; 16]> {
    let mut bytes = [0; 16];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    bytes[6] = (bytes[6] & 0x0f) | 0x40;
    bytes[8] = (bytes[8] & 0x3f) | 0x80;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errno<T>(done: Result<T>) -> i32 {
        done.err().expect("it is refused").errno
    }

    fn sized(size: u64) -> LldFormat {
        LldFormat { size, ..LldFormat::default() }
    }

    #[test]
    fn what_is_there_is_only_written_over_if_asked_for() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("d.lld");
        assert_eq!(errno(format(&path, &sized(0))), libc::ENOENT);
        format(&path, &sized(16 << 20)).unwrap();
        assert_eq!(errno(format(&path, &sized(16 << 20))), libc::EEXIST);
        let first = open(&path, &Options::default()).unwrap().0.info().uuid;
        assert!(first != [0; 16]);
        let disk = open(&path, &Options::default()).unwrap().0;
        (0..9).for_each(|_| disk.new_list(false).and_then(|_| disk.flush()).unwrap());
        drop(disk);
        let over = LldFormat { flags: 1, uuid: [7; 16], ..sized(32 << 20) };
        format(&path, &over).unwrap();
        let (disk, recovered) = open(&path, &Options::default()).unwrap();
        let info = disk.info();
        assert_eq!((info.uuid, info.lists, recovered), ([7; 16], 0, Recovered::default()));
        assert_eq!(path.metadata().unwrap().len(), 32 << 20);
    }

    /// A file that cannot become a disk is as it was.
    #[test]
    fn a_failure_leaves_nothing() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("d.lld");
        assert_eq!(errno(format(&path, &sized(4096))), libc::EINVAL);
        assert!(!path.exists());
        std::fs::write(&path, "mine").unwrap();
        let odd = LldFormat { flags: 1, segment_size: 1000, ..sized(16 << 20) };
        assert_eq!(errno(format(&path, &odd)), libc::EINVAL);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "mine");
        assert_eq!(
            errno(format(&path, &LldFormat { block_size: 1000, flags: 1, ..sized(16 << 20) })),
            libc::EINVAL
        );
        std::fs::write(&path, vec![7; 1 << 20]).unwrap();
        assert_eq!(errno(open(&path, &Options::default())), libc::EUCLEAN);
        assert_eq!(errno(open(&place.path().join("none"), &Options::default())), libc::ENOENT);
        assert_eq!(errno(open(place.path(), &Options::default())), libc::EOPNOTSUPP);
    }

    #[test]
    fn one_program_at_a_time_has_a_disk() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("d.lld");
        format(&path, &sized(16 << 20)).unwrap();
        let disk = open(&path, &Options::default()).unwrap();
        let refused = open(&path, &Options::default()).err().unwrap();
        assert_eq!(refused.errno, libc::EBUSY, "{}", refused.text);
        assert_eq!(errno(open(&path, &Options { read_only: true, ..Options::default() })), libc::EBUSY);
        assert_eq!(errno(format(&path, &LldFormat { flags: 1, ..sized(16 << 20) })), libc::EBUSY);
        drop(disk);
        let read_only = Options { read_only: true, ..Options::default() };
        let _readers = [open(&path, &read_only).unwrap(), open(&path, &read_only).unwrap()];
    }
}
