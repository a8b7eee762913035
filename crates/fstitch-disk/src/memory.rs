//! How much memory this machine has to spare.

use std::path::{Path, PathBuf};

/// Bytes of memory that this process may take without pushing others out: what the kernel calls available, or the
/// limit of the process's control group if that is lower. `None` where the kernel does not say.
#[must_use]
pub fn available_memory() -> Option<u64> {
    let read = |path: &Path| std::fs::read_to_string(path).ok();
    let available = available(&read("/proc/meminfo".as_ref())?)?;
    let groups = read("/proc/self/cgroup".as_ref()).unwrap_or_default();
    let limits = limit_files(&groups).into_iter().filter_map(|path| read(&path)?.trim().parse().ok());
    Some(limits.fold(available, u64::min))
}

/// The available memory that `/proc/meminfo` names.
fn available(meminfo: &str) -> Option<u64> {
    let value = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = value.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// The files that hold the limits of the control groups in `/proc/self/cgroup`: of each group and all above it, in both
/// versions' places.
fn limit_files(groups: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(group)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        let (mount, file) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max"),
            _ if controllers.split(',').any(|name| name == "memory") => {
                ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
            }
            _ => continue,
        };
        let group = Path::new(group.trim_start_matches('/'));
        files.extend(group.ancestors().map(|group| Path::new(mount).join(group).join(file)));
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_calls_available_is_read() {
        let meminfo = "MemTotal:       24684084 kB\nMemFree:  1 kB\nMemAvailable:   2048 kB\n";
        assert_eq!(available(meminfo), Some(2 << 20));
        assert_eq!(available("MemTotal: 1 kB\n"), None);
        assert_eq!(available("MemAvailable: much\n"), None);
    }

    #[test]
    fn limits_of_a_group_and_of_those_above_it_count() {
        let files =
            |groups| limit_files(groups).iter().map(|path| path.display().to_string()).collect::<Vec<_>>();
        assert_eq!(
            files("0::/a/b\n"),
            ["/sys/fs/cgroup/a/b/memory.max", "/sys/fs/cgroup/a/memory.max", "/sys/fs/cgroup/memory.max"]
        );
        assert_eq!(
            files("9:name=systemd:/x\n4:cpu,memory:/y\n"),
            ["/sys/fs/cgroup/memory/y/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.limit_in_bytes"]
        );
        assert!(files("nonsense\n").is_empty());
    }

    #[test]
    fn this_machine_has_some_and_no_more_than_all() {
        let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap();
        let total: u64 = meminfo.split_whitespace().nth(1).unwrap().parse().unwrap();
        let available = available_memory().unwrap();
        assert!((1..=total * 1024).contains(&available), "{available} of {total} KiB");
    }
}
