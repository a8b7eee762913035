//! `USER:GROUP`: numbers, or names that the image itself knows, or this machine.

use anyhow::{Result, bail};
use fstitch_core::{FileKind, FileSystem};

use crate::paths::{Last, resolve};

/// The longest list of users or groups that is read, in bytes.
const LIST_MAX: u64 = 16 << 20;

/// What was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    user: Option<String>,
    /// `Some` of nothing, as in `user:`, means the user's own group.
    group: Option<String>,
}

/// What to set; `None` leaves it as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ids {
    pub uid: Option<u32>,
    pub gid: Option<u32>,
}

impl Asked {
    /// Reads `USER`, `USER:GROUP`, `USER:` or `:GROUP`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (user, group) = match text.split_once(':') {
            Some((user, group)) => (user, Some(group.to_owned())),
            None => (text, None),
        };
        let user = (!user.is_empty()).then(|| user.to_owned());
        if user.is_none() && group.as_ref().is_none_or(String::is_empty) {
            return Err(format!(
                "`{text}` names neither a user nor a group: write USER, USER:GROUP or :GROUP"
            ));
        }
        Ok(Self { user, group })
    }

    /// The numbers, for the volume `fs`.
    pub fn ids(&self, fs: &dyn FileSystem) -> Result<Ids> {
        let mut ids = Ids { uid: None, gid: None };
        let mut own_group = None;
        if let Some(user) = &self.user {
            match user.parse() {
                Ok(uid) => ids.uid = Some(uid),
                Err(_) => {
                    let line = entry(fs, "/etc/passwd", user)?;
                    ids.uid = number(&line, 2);
                    own_group = number(&line, 3);
                    if ids.uid.is_none() {
                        bail!(
                            "there is no user `{user}`, neither in the image's /etc/passwd nor in this machine's"
                        );
                    }
                }
            }
        }
        match self.group.as_deref() {
            None => {}
            Some("") if own_group.is_some() => ids.gid = own_group,
            Some("") => bail!("the group of a user who is only a number is not known: write USER:GROUP"),
            Some(group) => match group.parse() {
                Ok(gid) => ids.gid = Some(gid),
                Err(_) => {
                    ids.gid = number(&entry(fs, "/etc/group", group)?, 2);
                    if ids.gid.is_none() {
                        bail!(
                            "there is no group `{group}`, neither in the image's /etc/group nor in this machine's"
                        );
                    }
                }
            },
        }
        Ok(ids)
    }
}

/// The line of `name` in a list such as `/etc/passwd`, in the image's or else in this machine's; empty if in neither.
fn entry(fs: &dyn FileSystem, list: &str, name: &str) -> Result<String> {
    let here = std::fs::read(list).unwrap_or_default();
    for bytes in [inside(fs, list)?, here] {
        let text = String::from_utf8_lossy(&bytes);
        let mut lines = text.lines();
        if let Some(line) = lines.find(|line| line.split(':').next() == Some(name)) {
            return Ok(line.to_owned());
        }
    }
    Ok(String::new())
}

/// The contents of a list in the image, nothing if it has none.
fn inside(fs: &dyn FileSystem, list: &str) -> Result<Vec<u8>> {
    let Ok(node) = resolve(fs, list.as_bytes(), Last::Follow) else { return Ok(Vec::new()) };
    let attr = node.attr()?;
    if attr.kind != FileKind::Regular || attr.size > LIST_MAX {
        return Ok(Vec::new());
    }
    let mut bytes = vec![0; usize::try_from(attr.size)?];
    let mut at = 0;
    while at < bytes.len() {
        match fs.read(node.ino(), u64::try_from(at)?, &mut bytes[at..])? {
            0 => break,
            read => at += read,
        }
    }
    Ok(bytes)
}

fn number(line: &str, field: usize) -> Option<u32> {
    line.split(':').nth(field)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_parsed() {
        let parse = |text| Asked::parse(text).map(|asked| (asked.user, asked.group));
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(parse("a"), Ok((some("a"), None)));
        assert_eq!(parse("a:b"), Ok((some("a"), some("b"))));
        assert_eq!(parse(":b"), Ok((None, some("b"))));
        assert_eq!(parse("a:"), Ok((some("a"), some(""))));
        assert!(parse("").is_err() && parse(":").is_err());
    }
}
