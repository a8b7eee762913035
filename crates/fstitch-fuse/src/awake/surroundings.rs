//! What speaks against keeping processors awake: a battery, or a limit of processor time that spinning would use up.

use std::path::{Path, PathBuf};

/// Whether this machine runs on a battery.
pub(super) fn on_battery() -> bool {
    is_discharging(Path::new("/sys/class/power_supply"))
}

/// A battery of the machine itself, not of its mouse, that becomes emptier.
fn is_discharging(supplies: &Path) -> bool {
    let Ok(list) = std::fs::read_dir(supplies) else { return false };
    list.flatten().any(|supply| {
        let says = |file: &str, what: &str| {
            std::fs::read_to_string(supply.path().join(file)).is_ok_and(|said| said.trim() == what)
        };
        says("type", "Battery") && says("status", "Discharging") && !says("scope", "Device")
    })
}

/// Whether the processor time of this process and its like is limited.
pub(super) fn is_rationed() -> bool {
    let read = |path: &Path| std::fs::read_to_string(path).ok();
    let groups = read("/proc/self/cgroup".as_ref()).unwrap_or_default();
    ration_files(&groups).iter().filter_map(|path| read(path)).any(|said| is_limit(&said))
}

/// The files that hold the limits of the control groups in `/proc/self/cgroup`: of each group and all above it, in both versions'
/// places.
fn ration_files(groups: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(group)) = (fields.next(), fields.next()) else { continue };
        let (mount, file) = match controllers {
            "" => ("/sys/fs/cgroup", "cpu.max"),
            _ if controllers.split(',').any(|name| name == "cpu") => {
                ("/sys/fs/cgroup/cpu", "cpu.cfs_quota_us")
            }
            _ => continue,
        };
        let group = Path::new(group.trim_start_matches('/'));
        files.extend(group.ancestors().map(|group| Path::new(mount).join(group).join(file)));
    }
    files
}

/// `max 100000` and `-1` mean that there is no limit.
fn is_limit(said: &str) -> bool {
    let first = said.split_whitespace().next();
    !matches!(first, None | Some("max" | "-1"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_machines_own_battery_counts() {
        let supplies = tempfile::tempdir().unwrap();
        let supply = |name: &str, files: &[(&str, &str)]| {
            let at = supplies.path().join(name);
            std::fs::create_dir_all(&at).unwrap();
            files.iter().for_each(|(file, said)| std::fs::write(at.join(file), format!("{said}\n")).unwrap());
        };
        assert!(!is_discharging(&supplies.path().join("none")));
        supply("AC", &[("type", "Mains"), ("online", "1")]);
        supply("mouse", &[("type", "Battery"), ("status", "Discharging"), ("scope", "Device")]);
        supply("BAT0", &[("type", "Battery"), ("status", "Charging")]);
        assert!(!is_discharging(supplies.path()));
        supply("BAT0", &[("status", "Discharging")]);
        assert!(is_discharging(supplies.path()));
    }

    #[test]
    fn limits_of_a_group_and_of_those_above_it_count() {
        let files: Vec<_> = ration_files("0::/a/b\n").iter().map(|path| path.display().to_string()).collect();
        assert_eq!(
            files,
            ["/sys/fs/cgroup/a/b/cpu.max", "/sys/fs/cgroup/a/cpu.max", "/sys/fs/cgroup/cpu.max"]
        );
        let old = ration_files("9:name=systemd:/x\n4:cpu,cpuacct:/\n");
        assert_eq!(old, [Path::new("/sys/fs/cgroup/cpu/cpu.cfs_quota_us")]);
        assert!(is_limit("50000 100000\n") && is_limit("20000\n"));
        assert!(!is_limit("max 100000\n") && !is_limit("-1\n") && !is_limit(""));
    }
}
