//! Extended attributes, which UFS2 has in blocks of their own.

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
