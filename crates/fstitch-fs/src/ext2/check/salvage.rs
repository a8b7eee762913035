//! Bringing damaged directory blocks back into shape.

use super::entries::{entry_len, put_len};
use super::state::Volume;
use crate::ext2::layout::dirent::{
    D_FILE_TYPE, D_INODE, D_NAME_LEN, D_REC_LEN, ENTRY_MIN, HEADER, entry_size, put_first_block, rec_len,
    rec_len_field,
};
use crate::ext2::layout::superblock::ROOT_INO;

/// Makes free space of everything from `at` on, where the chain of entries breaks; `previous` is the last
/// entry before.
pub(super) fn end_block_at(bytes: &mut [u8], at: usize, previous: Option<usize>) {
    let rest = bytes.len() - at;
    match previous {
        Some(previous) if rest < ENTRY_MIN => put_len(bytes, previous, rest + at - previous),
        _ => {
            bytes[at..].fill(0);
            D_REC_LEN.put(&mut bytes[at..], rec_len_field(rest));
        }
    }
}

/// Makes the entries of a whole block end `tail` bytes earlier. A name that reaches so far is lost: only damage puts one there.
pub(super) fn end_before_tail(bytes: &mut [u8], tail: usize) {
    let end = bytes.len() - tail;
    let (mut at, mut previous) = (0, None);
    while at < end {
        let Ok(len) = entry_len(bytes, at) else { break };
        if at + len > end {
            let free = D_INODE.get(&bytes[at..]) == 0;
            let own = if free { ENTRY_MIN } else { entry_size(usize::from(D_NAME_LEN.get(&bytes[at..]))) };
            if at + own <= end {
                put_len(bytes, at, end - at);
                return;
            }
            break;
        }
        previous = Some(at);
        at += len;
    }
    if at < end {
        end_block_at(&mut bytes[..end], at, previous);
    }
}

/// Gives up the entry at `at`, whose name is longer than itself, if what it says of its own length leads through all that follows: then that
/// is right. Returns its length.
pub(super) fn give_up(bytes: &mut [u8], at: usize) -> Option<usize> {
    let len = rec_len(bytes.get(at..at + HEADER)?, bytes.len());
    let mut next = at + len;
    while len >= ENTRY_MIN && next < bytes.len() {
        next += entry_len(bytes, next).ok()?;
    }
    if len < ENTRY_MIN || !len.is_multiple_of(4) || next != bytes.len() {
        return None;
    }
    D_INODE.put(&mut bytes[at..], 0);
    D_NAME_LEN.put(&mut bytes[at..], 0);
    Some(len)
}

/// Gives the entry at `at`, whose length is wrong but whose name may be whole, the length that it needs, if something sound
/// follows it there, or all that is left; `None` if it is no entry.
pub(super) fn shorten(bytes: &mut [u8], at: usize) -> Option<usize> {
    let head = bytes.get(at..at + HEADER)?;
    let (ino, needed) = (D_INODE.get(head), entry_size(usize::from(D_NAME_LEN.get(head))));
    let rest = bytes.len() - at;
    if ino == 0 || needed == HEADER || needed > rest {
        return None;
    }
    let followed = rest > needed && entry_len(bytes, at + needed).is_ok();
    let len = if followed { needed } else { rest };
    put_len(bytes, at, len);
    Some(len)
}

/// Writes `.` and `..` and packs the sound entries of the block behind them. The parent is not known here:
/// pass 3 finds that `..` names the wrong directory and puts it right.
pub(super) fn rebuild_first_block(volume: &Volume<'_>, bytes: &mut [u8], ino: u32) {
    let mut kept: Vec<Vec<u8>> = Vec::new();
    if is_named(bytes, 0, b".") && is_named(bytes, ENTRY_MIN, b"..") {
        // What they say of their lengths would hide the names behind them.
        put_len(bytes, 0, ENTRY_MIN);
        D_NAME_LEN.put(bytes, 1);
        D_NAME_LEN.put(&mut bytes[ENTRY_MIN..], 2);
    }
    let mut at = 0;
    while at < bytes.len()
        && let Some(len) = entry_len(bytes, at).ok().or_else(|| shorten(bytes, at))
    {
        let name_len = usize::from(D_NAME_LEN.get(&bytes[at..]));
        let name = &bytes[at + HEADER..at + HEADER + name_len];
        if D_INODE.get(&bytes[at..]) != 0 && name_len > 0 && name != b"." && name != b".." {
            kept.push(bytes[at..at + entry_size(name_len).min(len)].to_vec());
        }
        at += len;
    }
    put_first_block(bytes, ino, ROOT_INO, volume.shape.has_filetype());
    let mut at = 2 * ENTRY_MIN;
    let mut last = None;
    for entry in kept {
        let len = entry_size(usize::from(D_NAME_LEN.get(&entry)));
        if at + len > bytes.len() {
            break;
        }
        bytes[at..at + entry.len()].copy_from_slice(&entry);
        put_len(bytes, at, len);
        last = Some(at);
        at += len;
    }
    if let Some(last) = last {
        // The last entry takes all free space.
        let rest = bytes.len() - last;
        put_len(bytes, last, rest);
    }
}

/// Whether an entry of this name, one of the shortest, lies at `at`, whatever it says of its length: by the length of the name, or by zeros
/// behind that.
fn is_named(bytes: &[u8], at: usize, name: &[u8]) -> bool {
    let found = bytes.get(at + HEADER..at + ENTRY_MIN).and_then(|found| found.strip_prefix(name));
    let is_it = |behind: &[u8]| {
        usize::from(D_NAME_LEN.get(&bytes[at..])) == name.len() || behind.iter().all(|&byte| byte == 0)
    };
    found.is_some_and(is_it)
}

/// Another name of the same length.
pub(super) fn another_name(name: &[u8], n: u32) -> Vec<u8> {
    let mark = format!("{n}");
    let mut other = name.to_vec();
    let len = mark.len().min(other.len());
    let start = other.len() - len;
    other[start..].copy_from_slice(&mark.as_bytes()[mark.len() - len..]);
    if start > 0 {
        other[start - 1] = b'~';
    }
    other
}

/// Adds a name to a directory block; false when it has no room.
pub(super) fn add_name(volume: &Volume<'_>, bytes: &mut [u8], ino: u32, name: &[u8], kind: u8) -> bool {
    let needed = entry_size(name.len());
    let mut at = 0;
    while at < bytes.len() {
        let Ok(len) = entry_len(bytes, at) else {
            return false;
        };
        let free = D_INODE.get(&bytes[at..]) == 0;
        let own = if free { 0 } else { entry_size(usize::from(D_NAME_LEN.get(&bytes[at..]))) };
        if len - own.min(len) >= needed {
            let (start, rest) = (at + own, len - own);
            if !free {
                put_len(bytes, at, own);
            }
            bytes[start..start + rest].fill(0);
            let entry = &mut bytes[start..];
            D_INODE.put(entry, ino);
            D_REC_LEN.put(entry, rec_len_field(rest));
            D_NAME_LEN.put(entry, u8::try_from(name.len()).expect("made-up names are short"));
            D_FILE_TYPE.put(entry, if volume.shape.has_filetype() { kind } else { 0 });
            entry[HEADER..HEADER + name.len()].copy_from_slice(name);
            return true;
        }
        at += len;
    }
    false
}
