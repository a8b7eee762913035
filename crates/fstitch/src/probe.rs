//! What a medium seems to hold, by its first bytes.

use std::path::Path;

use anyhow::{Context, Result, bail};

/// Bytes that are looked at.
const LEN: usize = 68 << 10;

/// Signatures of things that must not be overwritten unasked: position, bytes, name.
const SIGNATURES: [(usize, &[u8], &str); 16] = [
    (1080, b"\x53\xef", "an ext2, ext3 or ext4 volume"),
    (0, b"XFSB", "an XFS volume"),
    (65_600, b"_BHRfS_M", "a Btrfs volume"),
    (1024, b"\x10\x20\xf5\xf2", "an F2FS volume"),
    (3, b"NTFS    ", "an NTFS volume"),
    (54, b"FAT1", "a FAT volume"),
    (82, b"FAT32", "a FAT32 volume"),
    (3, b"EXFAT   ", "an exFAT volume"),
    (0, b"hsqs", "a squashfs image"),
    (0, b"LUKS\xba\xbe", "a LUKS volume"),
    (4086, b"SWAPSPACE2", "swap space"),
    (512, b"LABELONE", "an LVM physical volume"),
    (512, b"EFI PART", "a partition table (GPT)"),
    (32_769, b"CD001", "an ISO 9660 image"),
    (257, b"ustar", "a tar archive"),
    // The last, because boot sectors of file systems carry it as well.
    (510, b"\x55\xaa", "a partition table or boot sector"),
];

/// The name of what the medium seems to hold from byte `offset` on, if it is anything known.
pub fn holds(path: &Path, offset: u64) -> Result<Option<&'static str>> {
    let bytes =
        fstitch_disk::probe(path, offset, LEN).with_context(|| format!("reading {}", path.display()))?;
    Ok(name(&bytes))
}

fn name(bytes: &[u8]) -> Option<&'static str> {
    let found = SIGNATURES
        .iter()
        .find(|(at, signature, _)| bytes.get(*at..*at + signature.len()) == Some(*signature));
    found.map(|(_, _, name)| *name)
}

/// The block size of the ext2 volume at byte `offset` of the medium, or an error that says what is there instead.
pub fn ext2_block_size(path: &Path, offset: u64) -> Result<u32> {
    let bytes =
        fstitch_disk::probe(path, offset, LEN).with_context(|| format!("reading {}", path.display()))?;
    let place = place(path, offset);
    if bytes.get(1080..1082) != Some(b"\x53\xef") {
        match name(&bytes) {
            Some("a partition table (GPT)" | "a partition table or boot sector") => bail!(
                "{place} holds a partition table, not a volume: choose one with --partition (here {})",
                numbers(path)
            ),
            Some(other) => bail!("{place} holds {other}, which this version does not read; it reads ext2"),
            None if bytes.is_empty() => bail!("{place} is empty: make a volume with `fstitch mkfs ext2`"),
            None => bail!(
                "{place} holds no ext2 volume (no magic number at byte 1080). If the primary superblock is \
                 damaged, `fstitch fsck` can use a backup"
            ),
        }
    }
    let log = bytes.get(1048..1052).and_then(|field| field.try_into().ok()).map_or(0, u32::from_le_bytes);
    match log {
        0..=2 => Ok(1024 << log),
        _ => bail!(
            "{place} says that its blocks are 2^{} bytes; 1024, 2048 and 4096 are known",
            u64::from(log) + 10
        ),
    }
}

/// The partitions of a disk, for people.
fn numbers(path: &Path) -> String {
    let entries = match fstitch_disk::partitions(path) {
        Ok(Some(entries)) if !entries.is_empty() => entries,
        Ok(_) => return "there are none".to_owned(),
        Err(error) => return error.to_string(),
    };
    let show =
        |entry: &fstitch_disk::TableEntry| format!("{} of {}", entry.number, crate::size::show(entry.len));
    entries.iter().map(show).collect::<Vec<_>>().join(", ")
}

fn place(path: &Path, offset: u64) -> String {
    match offset {
        0 => path.display().to_string(),
        _ => format!("{} at byte {offset}", path.display()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signatures_are_known() {
        let mut bytes = vec![0; LEN];
        assert_eq!(name(&bytes), None);
        bytes[510..512].copy_from_slice(b"\x55\xaa");
        assert_eq!(name(&bytes), Some("a partition table or boot sector"));
        bytes[1080..1082].copy_from_slice(b"\x53\xef");
        assert_eq!(name(&bytes), Some("an ext2, ext3 or ext4 volume"));
        assert_eq!(name(&[]), None);
    }
}
