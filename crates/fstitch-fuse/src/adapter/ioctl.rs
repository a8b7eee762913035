//! The ioctls of `lsattr` and `chattr`, and the one that shuts XFS and ext4 down. All others are refused with `ENOTTY`, because programs probe with
//! terminal ioctls and take other answers for a terminal.
//!
//! Flags come in two forms: the `FS_*_FL` word of [`InodeFlags`], and `struct fsxattr` (28 bytes: flags with
//! numbers of their own, then extent size, extent count, project, copy-on-write extent size, padding). The
//! kernel asks for the second even when a program sets the first.

use fstitch_core::{Caller, Errno, InodeFlags, InodeNo, Result};

use super::core::Core;

/// `XFS_IOC_GOINGDOWN` and `EXT4_IOC_SHUTDOWN`, which are one number. Its argument says what to make stable first;
/// numbers of this form deliver none here, so nothing is made stable.
pub(super) const SHUT_DOWN: u32 = 0x8004_587d;

/// Forgets everything that is not stable, as a power cut would; everything answers `EIO` afterwards.
pub(super) fn shut_down(core: &Core, by_root: bool) -> Result<()> {
    if !by_root {
        return Err(Errno::PERM.into());
    }
    core.fs.abandon("shut down by an ioctl: what was not stable is lost")
}

/// What an ioctl does, by command number. The size that the first two numbers encode (of a C `long`) differs
/// between 32-bit and 64-bit callers; the argument is 4 bytes in both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Command {
    GetFlags,
    SetFlags,
    GetExtended,
    SetExtended,
}

impl Command {
    pub(super) fn from_number(number: u32) -> Result<Self> {
        match number {
            0x8008_6601 | 0x8004_6601 => Ok(Self::GetFlags),
            0x4008_6602 | 0x4004_6602 => Ok(Self::SetFlags),
            0x801c_581f => Ok(Self::GetExtended),
            0x401c_5820 => Ok(Self::SetExtended),
            _ => Err(Errno::NOTTY.into()),
        }
    }

    pub(super) fn changes(self) -> bool {
        matches!(self, Self::SetFlags | Self::SetExtended)
    }
}

/// Which word of a `struct fsxattr` has the project.
const PROJECT_WORD: usize = 3;
/// Bytes in a `struct fsxattr`.
const EXTENDED_LEN: usize = 28;

/// A flag in both forms.
const BOTH_FORMS: [(u32, u32); 6] = [
    (InodeFlags::IMMUTABLE, 0x08),
    (InodeFlags::APPEND, 0x10),
    (InodeFlags::SYNC, 0x20),
    (InodeFlags::NOATIME, 0x40),
    (InodeFlags::NODUMP, 0x80),
    (InodeFlags::PROJINHERIT, 0x200),
];

fn to_extended(flags: InodeFlags) -> u32 {
    BOTH_FORMS.iter().filter(|(plain, _)| flags.has(*plain)).map(|(_, extended)| extended).sum()
}

/// The flags after a change through the extended form, which cannot express all of them.
fn from_extended(old: InodeFlags, extended: u32) -> InodeFlags {
    BOTH_FORMS.iter().fold(old, |flags, (plain, bit)| {
        InodeFlags(if extended & bit == 0 { flags.0 & !plain } else { flags.0 | plain })
    })
}

fn word(bytes: &[u8], no: usize) -> Result<u32> {
    let word = bytes.get(4 * no..).and_then(|rest| rest.first_chunk::<4>()).ok_or(Errno::INVAL)?;
    Ok(u32::from_ne_bytes(*word))
}

/// The flags and the project that a `struct fsxattr` asks for; extent sizes do not exist here.
fn decode_extended(input: &[u8], old: InodeFlags) -> Result<(InodeFlags, u32)> {
    let known: u32 = BOTH_FORMS.iter().map(|(_, extended)| extended).sum();
    let extended = word(input, 0)?;
    let absent = [word(input, 1)?, word(input, 4)?];
    if extended & !known != 0 || absent.iter().any(|value| *value != 0) {
        return Err(Errno::OPNOTSUPP.into());
    }
    Ok((from_extended(old, extended), word(input, PROJECT_WORD)?))
}

/// Performs `command`; the answer's bytes are at most `out_len`.
pub(super) fn perform(
    core: &Core,
    caller: &Caller,
    ino: InodeNo,
    (command, input): (Command, &[u8]),
    out_len: usize,
) -> Result<Vec<u8>> {
    let old = core.fs.flags(ino)?;
    let new = match command {
        Command::GetFlags => return Ok(padded(old.0, out_len.min(8))),
        Command::GetExtended => return Ok(extended(to_extended(old), core.fs.project(ino)?, out_len)),
        Command::SetFlags => InodeFlags(word(input, 0)?),
        Command::SetExtended => {
            let (new, project) = decode_extended(input, old)?;
            if project != core.fs.project(ino)? {
                core.fs.set_project(caller, ino, project)?;
            }
            new
        }
    };
    core.fs.set_flags(caller, ino, new)?;
    Ok(Vec::new())
}

/// A `struct fsxattr`, as far as there is room for it.
fn extended(flags: u32, project: u32, out_len: usize) -> Vec<u8> {
    let mut bytes = padded(flags, EXTENDED_LEN);
    bytes[4 * PROJECT_WORD..4 * (PROJECT_WORD + 1)].copy_from_slice(&project.to_ne_bytes());
    bytes.truncate(out_len);
    bytes
}

fn padded(word: u32, len: usize) -> Vec<u8> {
    let mut bytes = word.to_ne_bytes().to_vec();
    bytes.resize(len, 0);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_survive_both_forms() {
        let old = InodeFlags(InodeFlags::INDEX | InodeFlags::APPEND);
        let wished = to_extended(InodeFlags(InodeFlags::IMMUTABLE | InodeFlags::NODUMP));
        let (new, project) = decode_extended(&extended(wished, 7, EXTENDED_LEN), old).unwrap();
        assert_eq!(project, 7);
        assert_eq!(new.0, InodeFlags::INDEX | InodeFlags::IMMUTABLE | InodeFlags::NODUMP);
        assert_eq!(decode_extended(&padded(0x400, EXTENDED_LEN), old).unwrap_err().errno(), Errno::OPNOTSUPP);
        assert_eq!(decode_extended(&[0; 4], old).unwrap_err().errno(), Errno::INVAL);
    }

    #[test]
    fn terminal_ioctls_are_refused_as_such() {
        assert_eq!(Command::from_number(0x5401).unwrap_err().errno(), Errno::NOTTY);
    }
}
