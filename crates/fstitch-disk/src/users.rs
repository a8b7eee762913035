//! Who else uses a medium: mounts, loop devices and processes, as far as the kernel tells.
//!
//! Everything here is for protection beyond the lock and for messages. What cannot be read (no `/proc`, no
//! permission) counts as nothing found.

use std::fs;
use std::os::unix::fs::MetadataExt;

use rustix::fs::Stat;

use crate::sys::LockRange;

/// A loop device that the kernel writes to a file.
pub(crate) struct LoopDevice {
    /// Such as `/dev/loop0`.
    pub(crate) path: String,
    /// Where it is mounted, if it is.
    pub(crate) mount_point: Option<String>,
}

/// File systems that a process or another machine serves, which may not answer.
const SERVED: [&str; 10] =
    ["9p", "afs", "ceph", "cifs", "fuse", "fuseblk", "nfs", "nfs4", "smb3", "virtiofs"];

/// A mount that this process can see.
struct Mount {
    id: String,
    /// The number of its file system, `MAJOR:MINOR`.
    device: String,
    point: String,
    kind: String,
}

impl Mount {
    fn parse(line: &str) -> Option<Self> {
        let fields: Vec<&str> = line.split(' ').collect();
        let end = fields.iter().position(|&field| field == "-")?;
        let field = |no: usize| fields.get(no).map(|&field| unescape(field));
        Some(Self { id: field(0)?, device: field(2)?, point: field(4)?, kind: field(end + 1)? })
    }

    /// All of them, those mounted over others after these.
    fn all() -> Vec<Self> {
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        table.lines().filter_map(Self::parse).collect()
    }

    fn has(&self, path: &str) -> bool {
        let below = path.strip_prefix(self.point.trim_end_matches('/'));
        below.is_some_and(|below| below.is_empty() || below.starts_with('/'))
    }

    fn is_served(&self) -> bool {
        SERVED.contains(&self.kind.split('.').next().unwrap_or_default())
    }
}

/// Where the block device with this number is mounted.
pub(crate) fn mount_point(device: u64) -> Option<String> {
    mount_point_of(&format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device)))
}

fn mount_point_of(number: &str) -> Option<String> {
    Mount::all().into_iter().find(|mount| mount.device == number).map(|mount| mount.point)
}

/// Undoes the octal escapes of spaces and their like in mount tables.
fn unescape(path: &str) -> String {
    path.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")
}

/// The writable loop device over this file, which is open as `fd` here, if there is one. Files of served file systems are not looked
/// at unless this one is on the same.
pub(crate) fn loop_device_over(file: &Stat, fd: i32) -> Option<LoopDevice> {
    let mounts = Mount::all();
    let own = info_of(fd).mount;
    let own = mounts.iter().find(|mount| Some(&mount.id) == own.as_ref()).map(|mount| &mount.device);
    let is_out_of_reach = |path: &str| {
        let on = mounts.iter().filter(|mount| mount.has(path)).max_by_key(|mount| mount.point.len());
        on.is_some_and(|mount| mount.is_served() && own.is_some_and(|own| *own != mount.device))
    };
    let mut entries: Vec<_> = fs::read_dir("/sys/block").ok()?.filter_map(std::result::Result::ok).collect();
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let name = entry.file_name().to_string_lossy().into_owned();
        let attribute = |attribute: &str| fs::read_to_string(entry.path().join(attribute)).ok();
        if !name.starts_with("loop") {
            continue;
        }
        let Some(backing) = attribute("loop/backing_file") else { continue };
        let backing = backing.trim_end_matches('\n');
        if is_out_of_reach(backing) {
            continue;
        }
        let same =
            fs::metadata(backing).is_ok_and(|found| found.dev() == file.st_dev && found.ino() == file.st_ino);
        if same && attribute("ro").is_some_and(|ro| ro.trim() == "0") {
            let mount_point = attribute("dev").and_then(|number| mount_point_of(number.trim()));
            return Some(LoopDevice { path: format!("/dev/{name}"), mount_point });
        }
    }
    None
}

/// A process that has a lock on a part of `range` of this file, which is open as `fd` here. Only the kernel's lists of locks are read:
/// a look at the files themselves, which are anybody's, would wait for file systems that do not answer, and keep others from being
/// unmounted meanwhile.
pub(crate) fn process_with(file: &Stat, range: LockRange, fd: i32) -> Option<u32> {
    let name = name_in_locks(file, fd);
    for process in fs::read_dir("/proc").ok()?.filter_map(std::result::Result::ok) {
        let Ok(pid) = process.file_name().to_string_lossy().parse::<u32>() else { continue };
        let Ok(descriptors) = fs::read_dir(process.path().join("fdinfo")) else { continue };
        for descriptor in descriptors.filter_map(std::result::Result::ok) {
            let info = fs::read_to_string(descriptor.path()).unwrap_or_default();
            if info.lines().any(|line| is_lock_within(line, &name, range)) {
                return Some(pid);
            }
        }
    }
    None
}

/// What the kernel calls a file that is open as `fd` in its lists of locks, `MAJOR:MINOR:INODE`. On file systems with volumes or layers
/// inside that is not what `stat` tells.
fn name_in_locks(file: &Stat, fd: i32) -> String {
    let info = info_of(fd);
    let mount = Mount::all().into_iter().find(|mount| Some(&mount.id) == info.mount.as_ref());
    let number = mount.as_ref().and_then(|mount| mount.device.split_once(':'));
    let (major, minor) = number
        .and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)))
        .unwrap_or_else(|| (rustix::fs::major(file.st_dev), rustix::fs::minor(file.st_dev)));
    format!("{major:02x}:{minor:02x}:{}", info.inode.unwrap_or(file.st_ino))
}

/// What the kernel tells of a descriptor of ours.
struct Info {
    mount: Option<String>,
    /// From Linux 5.14 on.
    inode: Option<u64>,
}

fn info_of(fd: i32) -> Info {
    let text = fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).unwrap_or_default();
    let field = |name| text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    Info {
        mount: field("mnt_id:").map(str::to_owned),
        inode: field("ino:").and_then(|word| word.parse().ok()),
    }
}

/// Names a process for a message.
pub(crate) fn describe(pid: u32) -> String {
    if pid == std::process::id() {
        return format!("this process ({pid})");
    }
    match fs::read_to_string(format!("/proc/{pid}/comm")) {
        Ok(command) => format!("process {pid} ({})", command.trim()),
        Err(_) => format!("process {pid}"),
    }
}

/// Whether a process has gone, or is a child of ours: what a child has of ours it loses when it runs its program.
pub(crate) fn is_passing(pid: u32) -> bool {
    let Ok(status) = fs::read_to_string(format!("/proc/{pid}/status")) else { return true };
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"));
    parent.and_then(|pid| pid.trim().parse().ok()) == Some(std::process::id())
}

/// Whether a line of fdinfo, which ends in the name of the file, the first byte, and the last byte or `EOF`, is a lock on the file of
/// this name that overlaps `range`.
fn is_lock_within(line: &str, name: &str, range: LockRange) -> bool {
    let mut words = line.split_whitespace();
    if words.next() != Some("lock:") {
        return false;
    }
    let last = match words.next_back() {
        Some("EOF") => u64::MAX,
        Some(word) => word.parse().unwrap_or(u64::MAX),
        None => return false,
    };
    let first: u64 = words.next_back().and_then(|word| word.parse().ok()).unwrap_or(0);
    if words.next_back() != Some(name) {
        return false;
    }
    let end = if range.len == 0 { u64::MAX } else { range.start.saturating_add(range.len) };
    first < end && range.start <= last
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_are_compared_by_file_and_range() {
        let line = "lock:\t1: OFDLCK ADVISORY  WRITE -1 fe:00:12 1024 2047";
        let at = |start, len| is_lock_within(line, "fe:00:12", LockRange { start, len, exclusive: true });
        assert!(at(0, 0) && at(2000, 10) && at(1000, 25));
        assert!(!at(0, 1024) && !at(2048, 0));
        let all = LockRange { start: 0, len: 0, exclusive: true };
        assert!(!is_lock_within(line, "fe:00:1", all) && !is_lock_within(line, "fe:01:12", all));
        assert!(is_lock_within(
            "lock: 1: FLOCK ADVISORY WRITE 7 fe:00:12 0 EOF",
            "fe:00:12",
            LockRange { start: 4096, len: 1, exclusive: false }
        ));
        assert!(!is_lock_within("pos:\t0", "fe:00:12", all));
    }

    #[test]
    fn mounts_are_understood() {
        let line = "36 35 0:50 / /mnt/a\\040b\\134c rw,nosuid shared:1 - fuse.fstitch /d.img rw";
        let mount = Mount::parse(line).unwrap();
        assert_eq!((&*mount.id, &*mount.device, &*mount.point), ("36", "0:50", "/mnt/a b\\c"));
        assert!(mount.is_served() && mount.has("/mnt/a b\\c/d.img") && mount.has("/mnt/a b\\c"));
        assert!(!mount.has("/mnt/a b\\cd/d.img") && !mount.has("/mnt/d.img"));
        let root = Mount::parse("1 0 8:1 / / rw - ext4 /dev/root rw").unwrap();
        assert!(root.has("/d.img") && !root.is_served());
        assert!(Mount::parse("36 35 0:50 / /mnt").is_none() && Mount::parse("36 - nfs").is_none());
    }
}
