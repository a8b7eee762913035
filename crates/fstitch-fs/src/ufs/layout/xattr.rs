//! Extended attributes, which UFS2 has in blocks of their own. Values end with padding, so that entries are multiples of 8 bytes.

use crate::ufs::order::Order;

const USER: u8 = 1;
const SYSTEM: u8 = 2;
/// Bytes before the name.
const HEADER: usize = 7;
const ALIGN: usize = 8;

/// An attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attribute<'a> {
    /// The namespace as names here begin: `user.`, or `trusted.ufs.` for the system's.
    pub prefix: &'static [u8],
    /// The name behind it.
    pub name: &'a [u8],
    /// The value.
    pub value: &'a [u8],
}

impl Attribute<'_> {
    /// The whole name.
    #[must_use]
    pub fn full_name(&self) -> Vec<u8> {
        [self.prefix, self.name].concat()
    }
}

/// All attributes in `bytes`, in their order; those of a namespace that nobody knows are left out.
///
/// # Errors
/// What is wrong, and at which byte.
pub fn all(bytes: &[u8], order: Order) -> Result<Vec<Attribute<'_>>, (usize, String)> {
    let mut found = Vec::new();
    let mut at = 0;
    while bytes.len() - at >= ALIGN {
        let entry = &bytes[at..];
        let len = usize::try_from(order.u32(entry, 0)).unwrap_or(usize::MAX);
        if len == 0 {
            break;
        }
        let (namespace, padding, name_len) = (entry[4], usize::from(entry[5]), usize::from(entry[6]));
        let head = (HEADER + name_len).next_multiple_of(ALIGN);
        let is_sound = len.is_multiple_of(ALIGN) && len <= entry.len() && head + padding <= len;
        if !is_sound || name_len == 0 {
            return Err((at, format!("{len} bytes, a name of {name_len}, {padding} of padding")));
        }
        let prefix: Option<&'static [u8]> = match namespace {
            USER => Some(b"user."),
            SYSTEM => Some(b"trusted.ufs."),
            _ => None,
        };
        let (name, value) = (&entry[HEADER..HEADER + name_len], &entry[head..len - padding]);
        found.extend(prefix.map(|prefix| Attribute { prefix, name, value }));
        at += len;
    }
    Ok(found)
}

/// The namespace of a name and what is behind it, if such attributes are kept here.
#[must_use]
pub fn split(name: &[u8]) -> Option<(u8, &[u8])> {
    let known = [(b"user.".as_slice(), USER), (b"trusted.ufs.".as_slice(), SYSTEM)];
    known.into_iter().find_map(|(prefix, namespace)| Some((namespace, name.strip_prefix(prefix)?)))
}

/// Where in `bytes` the attribute is, and behind it.
///
/// # Errors
/// As [`all`].
pub(in crate::ufs) fn find(
    bytes: &[u8],
    (namespace, name): (u8, &[u8]),
    order: Order,
) -> Result<Option<std::ops::Range<usize>>, (usize, String)> {
    all(bytes, order)?;
    let mut at = 0;
    while bytes.len() - at >= ALIGN {
        let entry = &bytes[at..];
        let len = usize::try_from(order.u32(entry, 0)).unwrap_or(usize::MAX);
        if len == 0 {
            break;
        }
        if entry[4] == namespace && entry[HEADER..HEADER + usize::from(entry[6])] == *name {
            return Ok(Some(at..at + len));
        }
        at += len;
    }
    Ok(None)
}

/// Where the attributes in `bytes` end, which were read before.
pub(in crate::ufs) fn end(bytes: &[u8], order: Order) -> usize {
    let mut at = 0;
    while bytes.len() - at >= ALIGN {
        match usize::try_from(order.u32(&bytes[at..], 0)).unwrap_or(0) {
            0 => break,
            len => at += len,
        }
    }
    at.min(bytes.len())
}

/// The bytes of an attribute.
pub(in crate::ufs) fn encode((namespace, name): (u8, &[u8]), value: &[u8], order: Order) -> Vec<u8> {
    let head = (HEADER + name.len()).next_multiple_of(ALIGN);
    let len = (head + value.len()).next_multiple_of(ALIGN);
    let mut bytes = vec![0; len];
    order.put_u32(&mut bytes, 0, u32::try_from(len).expect("values have 64 KiB at most"));
    bytes[4] = namespace;
    bytes[5] = u8::try_from(len - head - value.len()).expect("less than the alignment");
    bytes[6] = u8::try_from(name.len()).expect("names have 255 bytes at most");
    bytes[HEADER..HEADER + name.len()].copy_from_slice(name);
    bytes[head..head + value.len()].copy_from_slice(value);
    bytes
}
