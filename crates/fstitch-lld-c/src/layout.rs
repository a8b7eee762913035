//! What the structures of `fstitch_lld.h` look like, and what their fields mean.

use std::ffi::c_char;

use fstitch_core::num::to_usize;
use fstitch_lld::{Compression, Counters, Info, Options, Recovered, Visibility, VolumeInfo};

use crate::failure::{Failure, Result};

/// `LLD_OVERWRITE` and `LLD_COMPRESS`, for formatting.
const OVERWRITE: u32 = 1;
const COMPRESS: u32 = 2;
/// `LLD_READ_ONLY` and the others for opening.
const READ_ONLY: u32 = 1;
const SEQUENTIAL: u32 = 2;
const ACCEPT_LOSS: u32 = 4;

/// Bytes of a text about damage, its end included.
const TEXT: usize = 512;
/// Bytes of a volume's name, its end included, up to a whole number.
const NAME: usize = 208;

/// How a disk is made.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct LldFormat {
    pub size: u64,
    pub block_size: u32,
    pub segment_size: u32,
    pub uuid: [u8; 16],
    pub flags: u32,
    pub reserved: [u32; 7],
}

impl LldFormat {
    /// Whether what is there may be written over.
    pub(crate) fn overwrites(&self) -> Result<bool> {
        refuse_unknown(self.flags, OVERWRITE | COMPRESS, &self.reserved)?;
        Ok(self.flags & OVERWRITE != 0)
    }

    /// How the cleaner keeps what it moves.
    pub(crate) fn compression(&self) -> Compression {
        if self.flags & COMPRESS == 0 { Compression::None } else { Compression::Lz4 }
    }
}

/// How a disk is opened.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct LldOpen {
    pub cache_size: u64,
    pub checkpoint_interval: u64,
    pub flags: u32,
    pub visibility: u32,
    pub reserved: [u32; 6],
}

impl LldOpen {
    pub(crate) fn options(&self) -> Result<Options> {
        refuse_unknown(self.flags, READ_ONLY | SEQUENTIAL | ACCEPT_LOSS, &self.reserved)?;
        let default = Options::default();
        let or = |asked: u64, default: u64| if asked == 0 { default } else { asked };
        let visibility = match self.visibility {
            0 => Visibility::Own,
            1 => Visibility::Committed,
            2 => Visibility::Latest,
            other => return Err(Failure::invalid(format!("no visibility has the number {other}"))),
        };
        Ok(Options {
            visibility,
            cache_size: if self.cache_size == 0 { default.cache_size } else { to_usize(self.cache_size) },
            checkpoint_interval: or(self.checkpoint_interval, default.checkpoint_interval),
            background: default.background,
            read_only: self.flags & READ_ONLY != 0,
            sequential: self.flags & SEQUENTIAL != 0,
            accept_loss: self.flags & ACCEPT_LOSS != 0,
        })
    }
}

/// What is not zero and not known was meant for a later version.
fn refuse_unknown(flags: u32, known: u32, reserved: &[u32]) -> Result<()> {
    if flags & !known == 0 && reserved.iter().all(|word| *word == 0) {
        return Ok(());
    }
    Err(Failure::invalid("an option that this version does not know"))
}

/// What opening did.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct LldRecovered {
    pub chunks: u64,
    pub records: u64,
    pub unfinished: u32,
    pub torn: u32,
    pub damaged: [c_char; TEXT],
}

impl From<&Recovered> for LldRecovered {
    fn from(done: &Recovered) -> Self {
        Self {
            chunks: done.chunks,
            records: done.records,
            unfinished: done.unfinished.into(),
            torn: done.torn.into(),
            damaged: text(done.damaged.as_deref().unwrap_or_default()),
        }
    }
}

/// As much of a text as has room, whole letters only, with an end.
fn text<const N: usize>(whole: &str) -> [c_char; N] {
    let mut place = [0; N];
    let ends = whole.char_indices().map(|(at, letter)| at + letter.len_utf8());
    let end = ends.take_while(|end| *end < N).last().unwrap_or(0);
    for (to, from) in place.iter_mut().zip(whole[..end].bytes()) {
        *to = c_char::from_ne_bytes([from]);
    }
    place
}

/// What a disk is.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct LldInfo {
    pub uuid: [u8; 16],
    pub block_size: u32,
    pub segment_size: u32,
    pub segments: u64,
    pub free_segments: u64,
    pub blocks: u64,
    pub lists: u64,
    pub checkpoint: u64,
    pub epoch: u64,
    pub chunk: u64,
    pub open_units: u64,
    pub shadows: u64,
    pub compression: u64,
}

impl From<Info> for LldInfo {
    fn from(info: Info) -> Self {
        Self {
            uuid: info.uuid,
            block_size: info.block_size,
            segment_size: info.segment_size,
            segments: info.segments,
            free_segments: info.free_segments,
            blocks: info.blocks,
            lists: info.lists,
            checkpoint: info.checkpoint,
            epoch: info.epoch.into(),
            chunk: info.chunk,
            open_units: fstitch_core::num::to_u64(info.open_units),
            shadows: fstitch_core::num::to_u64(info.shadows),
            compression: u64::from(info.compression == Compression::Lz4),
        }
    }
}

/// How much a disk can store.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct LldSpace {
    pub all: u64,
    pub used: u64,
}

/// What has been written since a disk was opened.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct LldCounters {
    pub chunks: u64,
    pub bytes: u64,
    pub client_bytes: u64,
    pub flushes: u64,
    pub checkpoints: u64,
    pub cleaned: u64,
    pub moved_bytes: u64,
    pub spilled_bytes: u64,
    pub unreadable: u64,
    pub units: u64,
    pub durable: u64,
    pub packed_bytes: u64,
}

impl From<Counters> for LldCounters {
    fn from(counters: Counters) -> Self {
        let Counters {
            chunks,
            bytes,
            client_bytes,
            flushes,
            checkpoints,
            cleaned,
            moved_bytes,
            spilled_bytes,
            unreadable,
            units,
            durable,
            packed_bytes,
        } = counters;
        Self {
            chunks,
            bytes,
            client_bytes,
            flushes,
            checkpoints,
            cleaned,
            moved_bytes,
            spilled_bytes,
            unreadable,
            units,
            durable,
            packed_bytes,
        }
    }
}

/// What a check found.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct LldChecked {
    pub blocks: u64,
    pub findings: u64,
    pub corrupt: u64,
    pub text_size: u64,
}

/// A volume of a disk.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct LldVolumeInfo {
    pub list: u64,
    pub bytes: u64,
    pub blocks: u64,
    pub name: [c_char; NAME],
}

impl From<&VolumeInfo> for LldVolumeInfo {
    fn from(volume: &VolumeInfo) -> Self {
        Self { list: volume.list, bytes: volume.bytes, blocks: volume.blocks, name: text(&volume.name) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_is_refused() {
        let open = LldOpen { flags: 7, visibility: 2, ..LldOpen::default() }.options().unwrap();
        assert!(
            open.read_only && open.sequential && open.accept_loss && open.visibility == Visibility::Latest
        );
        assert_eq!((open.cache_size, open.checkpoint_interval), (128 << 20, 64 << 20));
        for odd in [
            LldOpen { flags: 8, ..LldOpen::default() },
            LldOpen { visibility: 3, ..LldOpen::default() },
            LldOpen { reserved: [0, 0, 0, 0, 0, 1], ..LldOpen::default() },
        ] {
            assert!(odd.options().is_err(), "{odd:?}");
        }
        assert_eq!(LldFormat { flags: 1, ..LldFormat::default() }.overwrites(), Ok(true));
        assert_eq!(LldFormat { flags: 2, ..LldFormat::default() }.compression(), Compression::Lz4);
        assert!(LldFormat { flags: 4, ..LldFormat::default() }.overwrites().is_err());
        assert!(LldFormat { reserved: [1; 7], ..LldFormat::default() }.overwrites().is_err());
    }

    #[test]
    fn a_text_is_cut_between_letters() {
        let cut = |whole| text::<4>(whole).map(|byte: c_char| byte.to_ne_bytes()[0]);
        assert_eq!(cut("abc"), *b"abc\0");
        assert_eq!(cut("abcd"), *b"abc\0");
        assert_eq!(cut("abä"), *b"ab\0\0");
    }
}
