//! The kernel's table of mounts: which of them are ours, and whose server has died.

use std::path::{Path, PathBuf};

/// How the kernel calls our mounts.
const OURS: &str = "fuse.fstitch";

/// A mount, as the kernel's table has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Where it is.
    pub mountpoint: PathBuf,
    /// The kind of file system.
    pub kind: String,
    /// What is mounted: of ours the image.
    pub source: String,
    /// Who mounted it, of mounts through FUSE.
    pub user: Option<u32>,
}

impl Found {
    /// Whether we made it.
    pub fn is_ours(&self) -> bool {
        self.kind == OURS
    }

    /// Whether nobody serves it any more. Only to be asked of a mount of ours whose control socket does not answer.
    pub fn is_dead(&self) -> bool {
        // Attributes may still be in the kernel's memory; how full the volume is only its server knows.
        rustix::fs::statvfs(&self.mountpoint).is_err_and(|error| fstitch_fuse::is_dead(&error.into()))
    }

    /// A line of `/proc/self/mountinfo`.
    fn parse(line: &str) -> Option<Self> {
        let (place, what) = line.split_once(" - ")?;
        let mut what = what.split(' ');
        let (kind, source) = (what.next()?.to_owned(), unescape(what.next()?));
        let options = what.next().unwrap_or_default();
        let user = options.split(',').find_map(|option| option.strip_prefix("user_id="));
        Some(Self {
            mountpoint: PathBuf::from(unescape(place.split(' ').nth(4)?)),
            kind,
            source,
            user: user.and_then(|user| user.parse().ok()),
        })
    }
}

/// Spaces and the like are written as octal escapes in the kernel's tables.
pub fn unescape(path: &str) -> String {
    ["\\040 ", "\\011\t", "\\012\n", "\\134\\"].iter().fold(path.to_owned(), |path, pair| {
        let (escape, plain) = pair.split_at(4);
        path.replace(escape, plain)
    })
}

fn table() -> String {
    std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default()
}

/// What is mounted at `mountpoint`, an absolute path: of several mounts the one that can be seen.
pub fn at(mountpoint: &Path) -> Option<Found> {
    at_in(&table(), mountpoint)
}

fn at_in(table: &str, mountpoint: &Path) -> Option<Found> {
    table.lines().rev().filter_map(Found::parse).find(|found| found.mountpoint == mountpoint)
}

/// The mounts of ours that this user made and can see, in the order of their mount points.
pub fn of_this_user() -> Vec<Found> {
    of(&table(), rustix::process::geteuid().as_raw())
}

fn of(table: &str, user: u32) -> Vec<Found> {
    let mut found: Vec<Found> = Vec::new();
    for mount in table.lines().filter_map(Found::parse) {
        // What is mounted over another mount hides it.
        found.retain(|other| other.mountpoint != mount.mountpoint);
        found.push(mount);
    }
    found.retain(|mount| mount.is_ours() && mount.user == Some(user));
    found.sort_by(|a, b| a.mountpoint.cmp(&b.mountpoint));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
36 35 0:50 / /mnt/a\\040b rw - fuse.fstitch /d.img rw,user_id=7,group_id=7
37 35 0:51 / /mnt/c rw shared:3 - ext4 /dev/a rw
38 35 0:52 / /mnt/d rw - fuse.fstitch /e.img ro,user_id=7
39 35 0:53 / /mnt/d rw - tmpfs none rw
40 35 0:54 / /mnt/e rw - fuse.fstitch /f.img ro,user_id=0
garbage
";

    #[test]
    fn our_mounts_are_recognised() {
        let is_ours = |path: &str| at_in(TABLE, Path::new(path)).is_some_and(|found| found.is_ours());
        assert!(is_ours("/mnt/a b"));
        assert!(!is_ours("/mnt/c"), "another file system");
        assert!(!is_ours("/mnt/d"), "another mount is over it");
        assert!(!is_ours("/mnt"));
        assert_eq!(at_in(TABLE, Path::new("/mnt/c")).unwrap().kind, "ext4");
    }

    #[test]
    fn users_have_their_own_mounts() {
        let found = of(TABLE, 7);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(
            (found[0].mountpoint.as_path(), found[0].source.as_str()),
            (Path::new("/mnt/a b"), "/d.img")
        );
        assert_eq!(of(TABLE, 0).len(), 1);
    }
}
