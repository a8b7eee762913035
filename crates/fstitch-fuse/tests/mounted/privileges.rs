//! What other users may do, and what a write by them takes away.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::Arc;

use fstitch_fs::model::Model;
use fstitch_fuse::OwnerMap;
use rustix::fs::{XattrFlags, getxattr, setxattr};
use rustix::io::Errno;

use crate::harness::{Mounted, mount, mount_with, needs_root};

const NOBODY: u32 = 65_534;

/// Runs a shell line as nobody in the mount; true if it succeeds.
fn as_nobody(m: &Mounted, line: &str) -> bool {
    // The temporary directory itself is closed to others.
    fs::set_permissions(m.root(), Permissions::from_mode(0o755)).unwrap();
    let mut command = Command::new("/bin/sh");
    command.args(["-c", line]).current_dir(m.root()).uid(NOBODY).gid(NOBODY);
    command.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap().success()
}

fn mode(m: &Mounted, name: &str) -> u32 {
    fs::metadata(m.path(name)).unwrap().mode() & 0o7777
}

#[test]
fn the_kernel_checks_permissions() {
    let Some(m) = mount() else { return };
    if needs_root() {
        return;
    }
    fs::write(m.path("secret"), "x").unwrap();
    fs::set_permissions(m.path("secret"), Permissions::from_mode(0o600)).unwrap();
    assert!(!as_nobody(&m, "cat secret"));
    assert!(!as_nobody(&m, "echo x > new"));
    fs::set_permissions(m.path("secret"), Permissions::from_mode(0o644)).unwrap();
    assert!(as_nobody(&m, "cat secret"));
    fs::create_dir(m.path("open")).unwrap();
    fs::set_permissions(m.path("open"), Permissions::from_mode(0o1777)).unwrap();
    assert!(as_nobody(&m, "umask 027; echo x > open/own && mkdir open/dir"));
    let own = fs::metadata(m.path("open/own")).unwrap();
    assert_eq!((own.uid(), own.gid(), own.mode() & 0o777), (NOBODY, NOBODY, 0o640));
    assert_eq!(mode(&m, "open/dir"), 0o750);
}

#[test]
fn without_its_checks_the_kernel_lets_everybody_in() {
    let open = |options: &mut fstitch_fuse::MountOptions| options.default_permissions = false;
    let Some(m) = mount_with(Arc::new(Model::new()), open) else { return };
    if needs_root() {
        return;
    }
    fs::write(m.path("secret"), "x").unwrap();
    fs::set_permissions(m.path("secret"), Permissions::from_mode(0o600)).unwrap();
    assert!(as_nobody(&m, "cat secret"));
}

#[test]
fn writing_takes_set_id_bits_and_capabilities_away() {
    let Some(m) = mount() else { return };
    if needs_root() {
        return;
    }
    let lines = ["echo y >> a", "truncate -s 0 a", "echo y > a", "fallocate -z -o 0 -l 10 a"];
    for line in lines {
        fs::write(m.path("a"), "x").unwrap();
        chown(m.path("a"), Some(NOBODY), Some(NOBODY)).unwrap();
        fs::set_permissions(m.path("a"), Permissions::from_mode(0o6777)).unwrap();
        assert!(as_nobody(&m, line), "{line}");
        assert_eq!(mode(&m, "a"), 0o777, "{line}");
    }
    fs::set_permissions(m.path("a"), Permissions::from_mode(0o6777)).unwrap();
    fs::write(m.path("a"), "root may").unwrap();
    assert_eq!(mode(&m, "a"), 0o6777, "root keeps them");
    let without = |line| {
        let mut command = Command::new("setpriv");
        command.args(["--bounding-set=-fsetid", "--inh-caps=-fsetid", "/bin/sh", "-c", line]);
        command.current_dir(m.root()).status()
    };
    match without("truncate -s 0 a") {
        Ok(status) => assert!(status.success()),
        Err(error) => return println!("skipped: setpriv: {error}"),
    }
    assert_eq!(mode(&m, "a"), 0o777, "root without the capability does not, whatever its number");
}

/// Without execution by the group the bit asks for locking: Linux leaves it to the group's members, and takes it from others.
#[test]
fn the_bit_for_locking_stays_for_members_of_the_group_only() {
    const GROUP: u32 = 4321;
    let Some(m) = mount() else { return };
    if needs_root() {
        return;
    }
    fs::set_permissions(m.root(), Permissions::from_mode(0o755)).unwrap();
    let lines = ["echo y >> a", "truncate -s 0 a", "fallocate -z -o 0 -l 10 a"];
    for (groups, kept) in [("--clear-groups", 0), ("--groups=9,4321", 0o2000), ("--groups=9,43210", 0)] {
        for line in lines {
            fs::write(m.path("a"), "x").unwrap();
            chown(m.path("a"), Some(NOBODY), Some(GROUP)).unwrap();
            fs::set_permissions(m.path("a"), Permissions::from_mode(0o6767)).unwrap();
            let mut command = Command::new("setpriv");
            command.args(["--reuid=65534", "--regid=65534", groups, "/bin/sh", "-c", line]);
            match command.current_dir(m.root()).status() {
                Ok(status) => assert!(status.success(), "{groups}: {line}"),
                Err(error) => return println!("skipped: setpriv: {error}"),
            }
            assert_eq!(mode(&m, "a"), 0o767 | kept, "{groups}: {line}");
        }
    }
    fs::set_permissions(m.path("a"), Permissions::from_mode(0o2767)).unwrap();
    chown(m.path("a"), Some(0), Some(GROUP)).unwrap();
    assert_eq!(mode(&m, "a"), 0o2767, "root keeps it, as on ext4");
}

/// A `security.capability` value of version 2 that grants nothing.
const CAPABILITY: [u8; 20] = [0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

#[test]
fn capabilities_fall_at_the_first_write() {
    let Some(m) = mount() else { return };
    if needs_root() {
        return;
    }
    let mut value = [0; 32];
    for change in ["write", "truncate", "chown"] {
        fs::write(m.path("a"), "x").unwrap();
        setxattr(m.path("a"), "security.capability", &CAPABILITY, XattrFlags::empty()).unwrap();
        assert_eq!(getxattr(m.path("a"), "security.capability", &mut value), Ok(20));
        match change {
            "write" => std::os::unix::fs::FileExt::write_all_at(
                &fs::File::options().write(true).open(m.path("a")).unwrap(),
                b"y",
                0,
            )
            .unwrap(),
            "truncate" => fs::File::options().write(true).open(m.path("a")).unwrap().set_len(0).unwrap(),
            _ => chown(m.path("a"), Some(0), Some(1)).unwrap(),
        }
        assert_eq!(getxattr(m.path("a"), "security.capability", &mut value), Err(Errno::NODATA), "{change}");
    }
}

#[test]
fn trusted_names_are_roots_affair() {
    let Some(m) = mount() else { return };
    if needs_root() {
        return;
    }
    fs::write(m.path("a"), "x").unwrap();
    setxattr(m.path("a"), "trusted.x", b"1", XattrFlags::empty()).unwrap();
    let mut names = [0; 64];
    assert_eq!(rustix::fs::listxattr(m.path("a"), &mut names), Ok(10));
    assert!(as_nobody(&m, "test -z \"$(getfattr -m - a 2>/dev/null)\""));
}

#[test]
fn mapped_owners_are_shown_and_stored_as_root() {
    let fs_ = Arc::new(Model::new());
    let map = |options: &mut fstitch_fuse::MountOptions| options.owners = OwnerMap::all_as((NOBODY, NOBODY));
    let Some(m) = mount_with(Arc::clone(&fs_) as Arc<dyn fstitch_core::FileSystem>, map) else { return };
    if needs_root() {
        return;
    }
    assert!(as_nobody(&m, "echo x > a && chown 65534:65534 a && chmod 600 a"));
    assert!(!as_nobody(&m, "chown 1:1 a"));
    let meta = fs::metadata(m.path("a")).unwrap();
    assert_eq!((meta.uid(), meta.gid()), (NOBODY, NOBODY));
    let stored = fstitch_core::FileSystem::walk(&*fs_, b"a").unwrap().attr;
    assert_eq!((stored.uid, stored.gid, stored.perm), (0, 0, 0o600));
}
