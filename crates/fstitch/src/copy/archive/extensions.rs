//! What the headers before an entry say of it: long names of GNU's tar, and the records of pax.

use anyhow::{Context, Result, ensure};
use fstitch_core::Timestamp;
use tar::{EntryType, Header};

use crate::copy::tree::Xattr;

/// How pax archives name extended attributes: as star and GNU's tar write them, and as libarchive does in base64, which is
/// read from the former as it writes both.
const XATTR: &[u8] = b"SCHILY.xattr.";

/// Everything that was said of the entry that follows.
#[derive(Debug, Default)]
pub(super) struct Extensions {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    /// Bytes that are stored.
    pub(super) size: Option<u64>,
    pub(super) uid: Option<u64>,
    pub(super) gid: Option<u64>,
    pub(super) mtime: Option<Timestamp>,
    pub(super) atime: Option<Timestamp>,
    pub(super) xattrs: Vec<Xattr>,
    /// Pieces of a sparse file, by the formats of pax.
    pub(super) sparse: Sparse,
}

/// What pax says of a sparse file.
#[derive(Debug, Default)]
pub(super) struct Sparse {
    /// The pieces are listed before the contents (format 1.0).
    pub(super) in_data: bool,
    /// Offsets and lengths in turn, in the header (formats 0.0 and 0.1).
    pub(super) listed: Vec<u64>,
    /// The length with all holes.
    pub(super) size: Option<u64>,
    /// The real name: `path` only says where programs that know no sparse files would put it.
    name: Option<Vec<u8>>,
}

impl Extensions {
    /// Takes what a header of `kind` says in `bytes`.
    pub(super) fn take(&mut self, kind: EntryType, bytes: &[u8]) -> Result<()> {
        let text = || bytes.split(|&byte| byte == 0).next().unwrap_or_default().to_vec();
        match kind {
            EntryType::GNULongName => self.path = Some(text()),
            EntryType::GNULongLink => self.link = Some(text()),
            _ => self.take_records(bytes)?,
        }
        Ok(())
    }

    /// Takes records of the form `LENGTH NAME=VALUE\n`. Values may hold anything, so the length alone says where they end.
    fn take_records(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let damaged = "a damaged record in a pax header";
            let blank = bytes.iter().position(|&byte| byte == b' ').context(damaged)?;
            let len = std::str::from_utf8(&bytes[..blank]).ok().and_then(|text| text.parse::<usize>().ok());
            let len = len.filter(|&len| len > blank + 1 && len <= bytes.len()).context(damaged)?;
            let record = bytes[blank + 1..len].strip_suffix(b"\n").context(damaged)?;
            let equals = record.iter().position(|&byte| byte == b'=').context(damaged)?;
            self.take_record(&record[..equals], &record[equals + 1..])
                .with_context(|| format!("the pax record {}", String::from_utf8_lossy(&record[..equals])))?;
            bytes = &bytes[len..];
        }
        Ok(())
    }

    fn take_record(&mut self, name: &[u8], value: &[u8]) -> Result<()> {
        let number = || decimal(value).context("is no number");
        match name {
            b"GNU.sparse.name" => self.sparse.name = Some(value.to_vec()),
            b"path" => self.path = Some(value.to_vec()),
            b"linkpath" => self.link = Some(value.to_vec()),
            b"size" => self.size = Some(number()?),
            b"uid" => self.uid = Some(number()?),
            b"gid" => self.gid = Some(number()?),
            b"mtime" => self.mtime = Some(time(value).context("is no time")?),
            b"atime" => self.atime = Some(time(value).context("is no time")?),
            b"GNU.sparse.major" => self.sparse.in_data = value == b"1",
            b"GNU.sparse.realsize" | b"GNU.sparse.size" => self.sparse.size = Some(number()?),
            b"GNU.sparse.offset" | b"GNU.sparse.numbytes" => self.sparse.listed.push(number()?),
            b"GNU.sparse.map" => {
                let numbers = value.split(|&byte| byte == b',').map(decimal).collect::<Option<_>>();
                self.sparse.listed = numbers.context("is no list of numbers")?;
            }
            _ => {
                if let Some(name) = name.strip_prefix(XATTR) {
                    ensure!(!name.is_empty(), "has no name");
                    self.xattrs.retain(|(other, _)| other != name);
                    self.xattrs.push((name.to_vec(), value.to_vec()));
                }
            }
        }
        Ok(())
    }

    /// The path of the entry with this header.
    pub(super) fn path(&self, header: &Header) -> Vec<u8> {
        let said = self.sparse.name.as_ref().or(self.path.as_ref());
        said.cloned().unwrap_or_else(|| header.path_bytes().into_owned())
    }

    /// What the entry with this header links to.
    pub(super) fn link(&self, header: &Header) -> Vec<u8> {
        let found = || header.link_name_bytes().map(std::borrow::Cow::into_owned).unwrap_or_default();
        self.link.clone().unwrap_or_else(found)
    }
}

/// A number in decimal digits.
pub(super) fn decimal(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok()?.trim().parse().ok()
}

/// Seconds with a fraction.
fn time(text: &[u8]) -> Option<Timestamp> {
    let text = std::str::from_utf8(text).ok()?;
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let (secs, negative): (i64, bool) = (whole.parse().ok()?, whole.starts_with('-'));
    let nine: String = fraction.chars().chain("000000000".chars()).take(9).collect();
    let nanos: u32 = nine.parse().ok()?;
    match (negative, nanos) {
        (true, 1..) => Some(Timestamp { secs: secs.checked_sub(1)?, nanos: 1_000_000_000 - nanos }),
        _ => Some(Timestamp { secs, nanos }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_end_where_their_length_says() {
        let mut extensions = Extensions::default();
        extensions.take(EntryType::XHeader, b"31 SCHILY.xattr.user.a=1\n2=3\n4\n12 uid=4711\n").unwrap();
        assert_eq!(extensions.xattrs, [(b"user.a".to_vec(), b"1\n2=3\n4".to_vec())]);
        assert_eq!(extensions.uid, Some(4711));
        for damaged in [b"5 a=b\n".as_slice(), b"x a=b\n", b"99 a=b\n", b"6 ab=\n1", b"4 ab\n"] {
            assert!(Extensions::default().take(EntryType::XHeader, damaged).is_err());
        }
    }

    #[test]
    fn times_have_fractions() {
        assert_eq!(time(b"1.5"), Some(Timestamp { secs: 1, nanos: 500_000_000 }));
        assert_eq!(time(b"-1.25"), Some(Timestamp { secs: -2, nanos: 750_000_000 }));
        assert_eq!(time(b"x"), None);
    }
}
