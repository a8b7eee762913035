//! The ioctl by which test suites cut the power of XFS and ext4 cuts ours: what was stable stays, nothing else is
//! written, the volume is as after a crash.

use std::fs::{self, File};

use crate::harness::{Mounted, Place, fstitch, needs, needs_root, run};

/// A program that makes everything stable (`sync`) or cuts the power (`cut`) of the file system at a path,
/// perhaps as another user, and prints the name of the error.
const CALL: &str = "
import errno, fcntl, os, struct, sys
if len(sys.argv) > 3:
    os.setuid(int(sys.argv[3]))
fd = os.open(sys.argv[2], os.O_RDONLY)
try:
    if sys.argv[1] == 'sync':
        os.fsync(fd)
    else:
        fcntl.ioctl(fd, 0x8004587d, struct.pack('I', 2))
    print('done')
except OSError as error:
    print(errno.errorcode[error.errno])
";

fn call(what: &str, at: &str) -> String {
    run("python3", ["-c", CALL, what, at]).ok().trim().to_owned()
}

fn number<T: std::fmt::Debug>(result: std::io::Result<T>) -> Option<i32> {
    result.unwrap_err().raw_os_error()
}

const EIO: Option<i32> = Some(5);

#[test]
fn shutting_down_is_a_power_cut() {
    if !needs_root() || !needs("python3") || !needs("e2fsck") {
        return;
    }
    let place = Place::new();
    let (image, at) = (place.volume("a.img"), place.directory("m"));
    let Some(mounted) = Mounted::new("", &image, &at) else { return };
    let file = |name: &str| mounted.path().join(name);
    fs::write(file("stable"), "this stays").unwrap();
    assert_eq!(call("sync", &at), "done");
    fs::write(file("volatile"), vec![7; 300_000]).unwrap();
    fs::create_dir(file("directory")).unwrap();
    let before = File::open(file("stable")).unwrap();
    assert_eq!(call("cut", &at), "done");
    assert_eq!(number(fs::create_dir(file("late"))), EIO);
    assert_eq!(number(fs::write(file("late"), "")), EIO);
    assert_eq!(number(fs::metadata(file("never looked at"))), EIO);
    assert_eq!(number(before.sync_all()), EIO);
    assert_eq!(call("sync", &at), "EIO");
    drop(before);
    let status = fstitch(&format!("status {at}"));
    assert!(status.code == 1 && status.out.contains("shut down by an ioctl"), "{status:?}");
    let written = fs::read(&image).unwrap();
    fstitch(&format!("umount {at}")).refused(1, "shut down by an ioctl");
    assert!(fs::read(&image).unwrap() == written, "unmounting writes nothing");

    let found = fstitch(&format!("fsck -n --json {image}"));
    assert_eq!(found.code, 4, "it is not marked clean: {found:?}");
    let found: serde_json::Value = serde_json::from_str(&found.out).unwrap();
    assert_eq!(found["corrupt"], 0, "{found}");
    let Some(again) = Mounted::new("", &image, &at) else { return };
    assert_eq!(fs::read_to_string(file("stable")).unwrap(), "this stays");
    assert!(!file("late").exists());
    fs::write(file("usable"), "again").unwrap();
    again.end();
    run("e2fsck", ["-fn", &image]).ok();
}

#[test]
fn only_root_may_shut_down() {
    if !needs_root() || !needs("python3") {
        return;
    }
    let place = Place::new();
    let (image, at) = (place.volume("a.img"), place.directory("m"));
    let Some(mounted) = Mounted::new("-o allow_other", &image, &at) else { return };
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(place.at("."), open).unwrap();
    let nobody = run("python3", ["-c", CALL, "cut", &at, "65534"]);
    assert_eq!(nobody.ok().trim(), "EPERM");
    fs::write(mounted.path().join("a"), "all is well").unwrap();
    mounted.end();
    fstitch(&format!("fsck -fn {image}")).ok();
}
