//! Who still has a mount that was taken away here: whoever made a mount namespace of his own meanwhile has a copy of it, and
//! as long as he keeps that the volume is in use.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;

/// Processes named one by one; beyond, they are counted.
const NAMED_MAX: usize = 4;

/// A mount as the kernel numbers it, wherever it is seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device(String);

/// A mount namespace that has the mount, shown by one of its processes.
#[derive(Debug, PartialEq, Eq)]
struct Holder {
    pid: u32,
    name: String,
    mountpoint: String,
}

/// The namespaces that have a mount, as far as `/proc` tells.
#[derive(Debug, Default)]
pub struct Holders(Vec<Holder>);

impl Device {
    /// The topmost mount of ours at `mountpoint`, an absolute path, without touching it.
    pub fn at(mountpoint: &Path) -> Option<Self> {
        let table = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
        let lines: Vec<Line<'_>> = table.lines().filter_map(Line::parse).collect();
        let place = mountpoint.to_string_lossy();
        let found = lines.iter().rfind(|line| crate::mounts::unescape(line.mountpoint) == place)?;
        found.is_ours().then(|| Self(found.device.to_owned()))
    }
}

impl Holders {
    /// Looks through all processes.
    pub fn of(device: &Device) -> Self {
        let mut seen = BTreeSet::new();
        let mut found = Vec::new();
        let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let mut pids: Vec<u32> =
            entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
        pids.sort_unstable();
        for pid in pids {
            // One process of each namespace is enough, where it may be known which namespace that is.
            let namespace = std::fs::read_link(format!("/proc/{pid}/ns/mnt"));
            if namespace.is_ok_and(|namespace| !seen.insert(namespace)) {
                continue;
            }
            let Ok(table) = std::fs::read_to_string(format!("/proc/{pid}/mountinfo")) else { continue };
            let line =
                table.lines().filter_map(Line::parse).find(|line| line.is_ours() && line.device == device.0);
            let Some(line) = line else { continue };
            let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            let mountpoint = crate::mounts::unescape(line.mountpoint);
            found.push(Holder { pid, name: name.trim().to_owned(), mountpoint });
        }
        Self(found)
    }

    /// Whether nobody was found.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Display for Holders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (no, Holder { pid, name, mountpoint }) in self.0.iter().take(NAMED_MAX).enumerate() {
            let comma = if no > 0 { ", " } else { "" };
            write!(f, "{comma}that of process {pid} ({name}), at {mountpoint}")?;
        }
        match self.0.len().saturating_sub(NAMED_MAX) {
            0 => Ok(()),
            more => write!(f, ", and {more} more"),
        }
    }
}

/// What matters of a line of a mount table.
struct Line<'a> {
    device: &'a str,
    mountpoint: &'a str,
    kind: &'a str,
}

impl<'a> Line<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let mut fields = line.split(' ');
        let device = fields.nth(2)?;
        let mountpoint = fields.nth(1)?;
        let kind = fields.skip_while(|field| *field != "-").nth(1)?;
        Some(Self { device, mountpoint, kind })
    }

    fn is_ours(&self) -> bool {
        self.kind == "fuse.fstitch"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_table_are_understood() {
        let line = Line::parse("36 35 0:50 / /mnt/a rw,nosuid shared:1 - fuse.fstitch /d.img rw").unwrap();
        assert_eq!((line.device, line.mountpoint, line.is_ours()), ("0:50", "/mnt/a", true));
        assert!(!Line::parse("37 35 8:1 / /c rw - ext4 /dev/a rw").unwrap().is_ours());
        assert!(Line::parse("garbage").is_none());
    }

    #[test]
    fn many_holders_are_counted() {
        let holder = |pid| Holder { pid, name: "sh".into(), mountpoint: "/m".into() };
        assert_eq!(Holders(vec![holder(7)]).to_string(), "that of process 7 (sh), at /m");
        let many = Holders((1..=6).map(holder).collect()).to_string();
        assert!(many.contains("process 4 (sh)") && many.ends_with(", and 2 more"), "{many}");
    }
}
