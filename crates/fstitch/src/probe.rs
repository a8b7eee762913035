//! What a medium seems to hold, by its first bytes.

use std::path::Path;

use anyhow::{Context, Result, bail};
use fstitch_core::num::to_usize;
use fstitch_core::{BlockDevice, BlockKind, BlockNo, BlockRead};
use fstitch_disk::Direct;
use fstitch_formats::{Format, PROBE_LEN, all_names};

use crate::open::Access;

/// A thing that is no volume of ours.
struct Known {
    /// Where its signature is, in bytes.
    at: usize,
    signature: &'static [u8],
    name: &'static str,
    /// What to do to get at a volume in it.
    advice: &'static str,
}

const fn known(at: usize, signature: &'static [u8], name: &'static str) -> Known {
    Known { at, signature, name, advice: "" }
}

const fn wrapped(at: usize, signature: &'static [u8], name: &'static str, advice: &'static str) -> Known {
    Known { at, signature, name, advice }
}

/// The name of what has a GPT.
const GPT: &str = "a partition table (GPT)";
/// The name of what ends like a boot sector.
const BOOT: &str = "a partition table or boot sector";

/// Signatures of things that must not be overwritten unasked, and that no repair may touch.
const SIGNATURES: [Known; 34] = [
    known(0, b"FSLDISK\0", "a logical disk"),
    wrapped(0, b"FSSTRIPE", "a disk of a stripe", "name all of its disks, with commas between them"),
    wrapped(0, b"FSDK", "a disk of an array", "name all of its disks, with commas between them"),
    known(0, b"XFSB", "an XFS volume"),
    known(65_600, b"_BHRfS_M", "a Btrfs volume"),
    known(1024, b"\x10\x20\xf5\xf2", "an F2FS volume"),
    known(1024, b"\xe2\xe1\xf5\xe0", "an EROFS image"),
    known(1024, b"H+\0\x04", "an HFS+ volume"),
    known(65_588, b"ReIsEr", "a ReiserFS volume"),
    known(3, b"NTFS    ", "an NTFS volume"),
    known(54, b"FAT1", "a FAT volume"),
    known(82, b"FAT32", "a FAT32 volume"),
    known(3, b"EXFAT   ", "an exFAT volume"),
    known(0, b"hsqs", "a squashfs image"),
    known(0, b"\x45\x3d\xcd\x28", "a cramfs image"),
    wrapped(0, b"LUKS\xba\xbe", "a LUKS volume", "`cryptsetup open` shows what is in it"),
    known(4086, b"SWAPSPACE2", "swap space"),
    known(4086, b"SWAP-SPACE", "swap space"),
    known(512, b"LABELONE", "an LVM physical volume"),
    known(4096, b"\xfc\x4e\x2b\xa9", "a member of a RAID array"),
    known(512, b"EFI PART", GPT),
    known(32_769, b"CD001", "an ISO 9660 image"),
    known(257, b"ustar", "a tar archive"),
    wrapped(0, b"QFI\xfb", "a qcow2 image", "`qemu-img convert -O raw FROM TO` makes a plain one of it"),
    wrapped(0, b"KDMV", "a VMDK image", "`qemu-img convert -O raw FROM TO` makes a plain one of it"),
    wrapped(0, b"vhdxfile", "a VHDX image", "`qemu-img convert -O raw FROM TO` makes a plain one of it"),
    wrapped(
        64,
        b"\x7f\x10\xda\xbe",
        "a VDI image",
        "`qemu-img convert -O raw FROM TO` makes a plain one of it",
    ),
    wrapped(0, b"\x1f\x8b", "a file compressed by gzip", "decompress it first (`gzip -dk FILE`)"),
    wrapped(0, b"\xfd7zXZ\0", "a file compressed by xz", "decompress it first (`xz -dk FILE`)"),
    wrapped(0, b"\x28\xb5\x2f\xfd", "a file compressed by zstd", "decompress it first (`zstd -d FILE`)"),
    wrapped(0, b"BZh", "a file compressed by bzip2", "decompress it first (`bzip2 -dk FILE`)"),
    wrapped(0, b"PK\x03\x04", "a ZIP archive", "unpack it first"),
    known(0, b"\x7fELF", "a program (ELF)"),
    // The last, because boot sectors of file systems carry it as well.
    known(510, b"\x55\xaa", BOOT),
];

/// Bytes of text that a file must begin with to be taken for one.
const TEXT_MIN: usize = 16;

/// The name of what the medium seems to hold from byte `offset` on, if it is anything known.
pub fn holds(path: &Path, offset: u64) -> Result<Option<&'static str>> {
    let bytes = start(path, offset)?;
    let ours = fstitch_formats::probe(&bytes).map(|(format, _)| format.thing());
    Ok(ours.or_else(|| find(&bytes).map(|found| found.name)))
}

fn start(path: &Path, offset: u64) -> Result<Vec<u8>> {
    fstitch_disk::probe(path, offset, PROBE_LEN).with_context(|| format!("reading {}", path.display()))
}

fn find(bytes: &[u8]) -> Option<&'static Known> {
    let has = |known: &&Known| bytes.get(known.at..known.at + known.signature.len()) == Some(known.signature);
    SIGNATURES.iter().find(has)
}

/// Whether all that is there is text.
fn is_text(bytes: &[u8]) -> bool {
    let head = &bytes[..bytes.len().min(1024)];
    let plain = |&byte: &u8| byte >= b' ' || matches!(byte, b'\t' | b'\n' | b'\r' | 0x0c | 0x1b);
    let valid = match std::str::from_utf8(head) {
        Ok(_) => true,
        // The cut may be in the middle of a character.
        Err(error) => error.error_len().is_none(),
    };
    head.len() >= TEXT_MIN && valid && head.iter().all(plain)
}

/// A volume of ours.
#[derive(Clone, Copy)]
pub struct Found {
    /// Its format.
    pub format: &'static dyn Format,
    /// Bytes of a block.
    pub block_size: u32,
    /// It tells other machines who uses it: who changes it claims it, and opens it past the kernel's memory.
    pub is_shared: bool,
}

impl Found {
    fn new(format: &'static dyn Format, block_size: u32, head: &[u8]) -> Self {
        let is_shared = format.shares().is_some_and(|shares| shares.is_shared(head));
        Self { format, block_size, is_shared }
    }

    /// How it is opened by who would do so in `direct`: what this machine remembers of a medium that others change is no answer.
    pub fn direct(&self, access: Access, direct: Direct) -> Direct {
        if self.is_shared && access == Access::ReadWrite { Direct::Always } else { direct }
    }
}

/// Bytes of a block where no volume says it.
pub const UNTOLD_BLOCK: u32 = 1024;

/// What is there instead of a volume of ours.
pub struct Other {
    /// For people.
    pub text: String,
    /// It is something else. If not, it may be a volume whose start is damaged.
    pub certain: bool,
}

/// The volume at byte `offset` of the medium, or an error that says what is there instead.
pub fn volume(path: &Path, offset: u64) -> Result<Found> {
    let bytes = start(path, offset)?;
    match fstitch_formats::probe(&bytes) {
        Some((format, Ok(block_size))) => Ok(Found::new(format, block_size, &bytes)),
        Some((_, Err(why))) => bail!("{} {why}", place(path, offset)),
        None => match other_than_ours(&bytes, path, offset) {
            Other { text, certain: true } => bail!("{text}"),
            Other { text, certain: false } => Err(Nothing(text).into()),
        },
    }
}

/// There is nothing known: it may be a volume whose start is lost.
#[derive(Debug)]
pub struct Nothing(String);

impl std::fmt::Display for Nothing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Nothing {}

/// Bytes of a block of the volume that a device begins with, if there is one.
pub fn block_size_of(device: &dyn BlockDevice) -> Option<u32> {
    let geometry = device.geometry();
    let size = to_usize(geometry.block_size);
    let count = u64::try_from(PROBE_LEN.div_ceil(size)).ok()?.min(geometry.block_count);
    let mut head = vec![0; to_usize(count) * size];
    for (block, data) in (0..).map(BlockNo).zip(head.chunks_exact_mut(size)) {
        // What follows need not be readable to know what this is.
        let _ = device.read(&mut [BlockRead { block, kind: BlockKind::Superblock, data }]);
    }
    match fstitch_formats::probe(&head) {
        Some((_, Ok(block_size))) => Some(block_size),
        _ => None,
    }
}

/// The volume at the first block of a device that has one of several disks.
pub fn on_device(device: &dyn BlockDevice) -> Result<Found> {
    let geometry = device.geometry();
    let size = to_usize(geometry.block_size);
    let mut failed = None;
    let mut head = Vec::new();
    let count = u64::try_from(PROBE_LEN.div_ceil(size))?.min(geometry.block_count);
    for block in (0..count).map(BlockNo) {
        if matches!(fstitch_formats::probe(&head), Some((_, Ok(_)))) {
            break;
        }
        let mut data = vec![0; size];
        let read = BlockRead { block, kind: BlockKind::Superblock, data: &mut data };
        // What follows need not be readable to know what this is.
        match device.read(&mut [read]) {
            Ok(()) => head.extend(data),
            Err(error) => {
                failed.get_or_insert(error);
                head.resize(head.len() + size, 0);
            }
        }
    }
    match (fstitch_formats::probe(&head), failed) {
        (Some((format, Ok(block_size))), _) if block_size == geometry.block_size => {
            Ok(Found::new(format, block_size, &head))
        }
        (Some((_, Ok(block_size))), _) => {
            bail!("its volume has blocks of {block_size} bytes, and the array of {}", geometry.block_size)
        }
        (Some((_, Err(why))), _) => bail!("its volume {why}"),
        (None, Some(error)) => Err(error).context("reading the start of its volume"),
        (None, None) => bail!("there is no volume on it: making it was cut short"),
    }
}

/// The volume at byte `offset` of the medium as one to be checked, in the blocks for that, whatever else is to be said of it; or what is
/// there instead.
pub fn format(path: &Path, offset: u64) -> Result<Result<Found, Other>> {
    let bytes = start(path, offset)?;
    let found = fstitch_formats::probe(&bytes).map(|(format, block_size)| {
        let block_size = format.checked_in(block_size.unwrap_or(UNTOLD_BLOCK));
        Found::new(format, block_size, &bytes)
    });
    Ok(found.ok_or_else(|| other_than_ours(&bytes, path, offset)))
}

fn other_than_ours(bytes: &[u8], path: &Path, offset: u64) -> Other {
    let (place, ours) = (place(path, offset), all_names());
    let (text, certain) = match find(bytes) {
        Some(Known { name: GPT | BOOT, .. }) => (
            format!(
                "{place} holds a partition table, not a volume: choose one with --partition (here {})",
                numbers(path)
            ),
            false,
        ),
        Some(Known { name, advice: "", .. }) => {
            (format!("{place} holds {name}, not {ours}, which is all that this program reads"), true)
        }
        Some(Known { name, advice, .. }) => (format!("{place} holds {name}, not {ours}: {advice}"), true),
        None if bytes.is_empty() => {
            let first = fstitch_formats::FORMATS[0].names()[0];
            (format!("{place} is empty: make a volume with `fstitch mkfs {first}`"), true)
        }
        None if is_text(bytes) => (format!("{place} holds text, not {ours}"), true),
        None => {
            let absent: Vec<String> = fstitch_formats::FORMATS
                .iter()
                .map(|format| format!("no {} volume ({}", format.names()[0], format.absent()))
                .collect();
            (format!("{place} holds {}", absent.join("; ")), false)
        }
    };
    Other { text, certain }
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

    fn name(bytes: &[u8]) -> Option<&'static str> {
        find(bytes).map(|found| found.name)
    }

    #[test]
    fn signatures_are_known() {
        let mut bytes = vec![0; PROBE_LEN];
        assert_eq!(name(&bytes), None);
        bytes[510..512].copy_from_slice(b"\x55\xaa");
        assert_eq!(name(&bytes), Some(BOOT));
        assert_eq!(name(&[]), None);
    }

    #[test]
    fn every_signature_is_looked_for_where_it_can_be_found() {
        for known in &SIGNATURES {
            let mut bytes = vec![0; PROBE_LEN];
            assert!(known.at + known.signature.len() <= PROBE_LEN, "{}", known.name);
            bytes[known.at..known.at + known.signature.len()].copy_from_slice(known.signature);
            assert_eq!(name(&bytes), Some(known.name));
        }
    }

    #[test]
    fn text_is_told_from_what_is_not() {
        assert!(is_text(b"#!/bin/sh\necho hello\n") && is_text("Grüße an alle hier".as_bytes()));
        let long = "ä".repeat(2000);
        assert!(is_text(&long.as_bytes()[..1025]) && is_text(&format!("x{long}").as_bytes()[..1500]));
        assert!(!is_text(&[0; 1024]) && !is_text(b"short") && !is_text(&[0xff; 100]));
    }
}
