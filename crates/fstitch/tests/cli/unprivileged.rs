//! Users other than root mount through fusermount3.

use std::os::unix::fs::{PermissionsExt, chown};

use crate::harness::{Place, needs, needs_root};

/// The user whom these tests become.
const NOBODY: u32 = 65_534;

#[test]
fn nobody_makes_mounts_uses_and_unmounts_a_volume() {
    if !needs_root() || !needs("fusermount3") || !needs("setpriv") {
        return;
    }
    let place = Place::new();
    for name in [".", "home"] {
        std::fs::create_dir_all(place.at(name)).unwrap();
        std::fs::set_permissions(place.at(name), std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    chown(place.at("home"), Some(NOBODY), Some(NOBODY)).unwrap();
    // The path to where cargo builds may be closed to others.
    std::fs::copy(crate::harness::PROGRAM, place.at("fstitch")).unwrap();
    // Where /dev/fuse is root's alone, one that is everybody's takes its place.
    let script = format!(
        "mknod fuse c 10 229 && chmod 666 fuse && mount --bind fuse /dev/fuse || exit 77\n\
         cat > script <<'END'\nset -eu\nF={}\ncd {}\nunset XDG_RUNTIME_DIR || true\n\
         $F mkfs ext2 -q a.img 4M\nmkdir m\n\
         $F mount -o uid={NOBODY},gid={NOBODY} a.img m\necho mine > m/a\nstat -c '%u %g' m/a\n\
         $F status --json m | grep -c '\"mountpoint\"'\n$F umount -q m\n$F cat a.img:/a\n\
         ($F mount -o allow_other a.img m && $F umount -q m) || true\n\
         test $(nproc) -gt 8 || test $(nproc) -lt 2 || test -s /sys/fs/cgroup/cpu.max ||\\\n\
         {{ $F mount -o awake=on a.img m; sleep 1; $F status --json m | grep -q '\"spinning\"'; $F umount -q m; }}\nEND\n\
         setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups sh script\n",
        place.text("fstitch"),
        place.text("home"),
    );
    let Some(ran) = place.in_namespace(&script) else { return };
    if ran.code == 77 {
        println!("skipped: no device node may be made here: {}", ran.err.trim());
        return;
    }
    assert_eq!(ran.ok(), format!("{NOBODY} {NOBODY}\n1\nmine\n"));
}
