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

/// Where the block device with this number is mounted.
pub(crate) fn mount_point(device: u64) -> Option<String> {
    let number = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    mount_point_of(&number)
}

fn mount_point_of(number: &str) -> Option<String> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let line = mounts.lines().find(|line| line.split(' ').nth(2) == Some(number))?;
    line.split(' ').nth(4).map(unescape)
}

/// Undoes the octal escapes of spaces and their like in mount tables.
fn unescape(path: &str) -> String {
    path.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")
}

/// The writable loop device over this file, if there is one.
pub(crate) fn loop_device_over(file: &Stat) -> Option<LoopDevice> {
    let mut entries: Vec<_> = fs::read_dir("/sys/block").ok()?.filter_map(std::result::Result::ok).collect();
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let name = entry.file_name().to_string_lossy().into_owned();
        let attribute = |attribute: &str| fs::read_to_string(entry.path().join(attribute)).ok();
        if !name.starts_with("loop") {
            continue;
        }
        let Some(backing) = attribute("loop/backing_file") else { continue };
        let same = fs::metadata(backing.trim_end_matches('\n'))
            .is_ok_and(|found| found.dev() == file.st_dev && found.ino() == file.st_ino);
        if same && attribute("ro").is_some_and(|ro| ro.trim() == "0") {
            let mount_point = attribute("dev").and_then(|number| mount_point_of(number.trim()));
            return Some(LoopDevice { path: format!("/dev/{name}"), mount_point });
        }
    }
    None
}

/// A process that has a lock on a part of `range` of this file, or at least has the file open. `own_fd` is
/// our own descriptor, which does not count.
pub(crate) fn process_with(file: &Stat, range: LockRange, own_fd: i32) -> Option<u32> {
    let mut second_best = None;
    for process in fs::read_dir("/proc").ok()?.filter_map(std::result::Result::ok) {
        let Ok(pid) = process.file_name().to_string_lossy().parse::<u32>() else { continue };
        let Ok(descriptors) = fs::read_dir(process.path().join("fd")) else { continue };
        for descriptor in descriptors.filter_map(std::result::Result::ok) {
            let number = descriptor.file_name();
            let ours = pid == std::process::id() && number.to_string_lossy() == own_fd.to_string();
            let same = fs::metadata(descriptor.path()).is_ok_and(|found| is_same(&found, file));
            if ours || !same {
                continue;
            }
            let info = fs::read_to_string(process.path().join("fdinfo").join(&number)).unwrap_or_default();
            if info.lines().any(|line| is_lock_within(line, range)) {
                return Some(pid);
            }
            second_best.get_or_insert(pid);
        }
    }
    second_best
}

/// Whether both are the same file or, through whatever node, the same block device.
fn is_same(found: &fs::Metadata, file: &Stat) -> bool {
    let is_device = file.st_rdev != 0;
    (found.dev() == file.st_dev && found.ino() == file.st_ino) || (is_device && found.rdev() == file.st_rdev)
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

/// Whether a line of fdinfo, which ends in the first byte and the last byte or `EOF`, is a lock that
/// overlaps `range`.
fn is_lock_within(line: &str, range: LockRange) -> bool {
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
    let end = if range.len == 0 { u64::MAX } else { range.start.saturating_add(range.len) };
    first < end && range.start <= last
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_are_compared_by_range() {
        let line = "lock:\t1: OFDLCK ADVISORY  WRITE -1 fe:00:12 1024 2047";
        let at = |start, len| is_lock_within(line, LockRange { start, len, exclusive: true });
        assert!(at(0, 0) && at(2000, 10) && at(1000, 25));
        assert!(!at(0, 1024) && !at(2048, 0));
        assert!(is_lock_within(
            "lock: 1: FLOCK ADVISORY WRITE 7 fe:00:12 0 EOF",
            LockRange { start: 4096, len: 1, exclusive: false }
        ));
        assert!(!is_lock_within("pos:\t0", LockRange { start: 0, len: 0, exclusive: true }));
    }

    #[test]
    fn mount_points_are_unescaped() {
        assert_eq!(unescape("/a\\040b\\134c"), "/a b\\c");
    }
}
