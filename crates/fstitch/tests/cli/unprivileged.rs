//! A user other than root: the first ten minutes, without FUSE and with it, through fusermount3.

use std::os::unix::fs::{PermissionsExt, chown};

use crate::harness::{Place, Ran, needs, needs_root};

/// The user whom these tests become.
const NOBODY: u32 = 65_534;

/// Runs the lines of `script` as nobody, in an own empty directory that is nobody's, with the program's name as `$F`;
/// `None`, said aloud, where that is not possible. With `mounting`, `/dev/fuse` may be opened by everybody.
fn as_nobody(place: &Place, mounting: bool, script: &str) -> Option<Ran> {
    if !needs_root() || !needs("setpriv") || (mounting && !needs("fusermount3")) {
        return None;
    }
    for name in [".", "home"] {
        std::fs::create_dir_all(place.at(name)).unwrap();
        std::fs::set_permissions(place.at(name), std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    chown(place.at("home"), Some(NOBODY), Some(NOBODY)).unwrap();
    // The path to where cargo builds may be closed to others.
    std::fs::copy(crate::harness::PROGRAM, place.at("fstitch")).unwrap();
    // Where /dev/fuse is root's alone, one that is everybody's takes its place in a mount table of the test's own.
    let device = "mknod fuse c 10 229 && chmod 666 fuse && mount --bind fuse /dev/fuse || exit 77\n";
    let script = format!(
        "{}cat > script <<'END'\nset -eu\nF={}\ncd {}\nunset XDG_RUNTIME_DIR || true\nexport TMPDIR=$PWD\n{script}END\n\
         setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups sh script\n",
        if mounting { device } else { "" },
        place.text("fstitch"),
        place.text("home"),
    );
    let ran = place.in_namespace(&script)?;
    if ran.code == 77 {
        println!("skipped: no device node may be made here: {}", ran.err.trim());
        return None;
    }
    Some(ran)
}

#[test]
fn nobody_makes_mounts_uses_and_unmounts_a_volume() {
    let place = Place::new();
    let script = format!(
        "$F mkfs ext2 -q a.img 4M\nmkdir m\n\
         $F mount -o uid={NOBODY},gid={NOBODY} a.img m\necho mine > m/a\nstat -c '%u %g' m/a\n\
         $F status --json m | grep -c '\"mountpoint\"'\n$F umount -q m\n$F cat a.img:/a\n\
         ($F mount -o allow_other a.img m && $F umount -q m) || true\n\
         test $(nproc) -gt 8 || test $(nproc) -lt 2 || test -s /sys/fs/cgroup/cpu.max ||\\\n\
         {{ $F mount -o awake=on a.img m; sleep 1; $F status --json m | grep -q '\"spinning\"'; $F umount -q m; }}\n"
    );
    let Some(ran) = as_nobody(&place, true, &script) else { return };
    assert_eq!(ran.ok(), format!("{NOBODY} {NOBODY}\n1\nmine\n"));
}

#[test]
fn a_volume_belongs_to_who_makes_it() {
    let place = Place::new();
    let script = "owner() { $F ls -la \"$1\" | awk '$NF == \".\" { print $3, $4 }'; }\n\
         $F mkfs ext2 -q a.img 4M\nowner a.img\n\
         $F mkfs ext3 -q -E root_owner b.img 16M\nowner b.img\n\
         $F mkfs ext2 -q -E stride=4,root_owner=0:7 c.img 4M\nowner c.img\n\
         $F fsck -fn a.img\n";
    let Some(ran) = as_nobody(&place, false, script) else { return };
    assert_eq!(ran.ok(), "65534 65534\n65534 65534\n0 7\na.img: nothing wrong\n");
    let root = place.volume("root.img");
    let listed = crate::harness::fstitch(&format!("ls -la --json {root}")).ok();
    let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
    let dot = listed.as_array().unwrap().iter().find(|it| it["path"] == "/.").unwrap();
    assert_eq!((&dot["uid"], &dot["gid"]), (&0.into(), &0.into()));
}

#[test]
fn the_first_ten_minutes_without_fuse() {
    let place = Place::new();
    // Other tests mount as the same user: this one has control sockets of its own.
    let script = "$F mkfs ext2 disk.img 8M\nmkdir -p in/etc\necho here > in/etc/hostname\n\
         $F cp -q -r in/. disk.img:/\n$F ls -l disk.img:/etc\n$F cat disk.img:/etc/hostname\n\
         $F cp -q -r disk.img:/etc out\ncat out/hostname\n$F info disk.img | grep format\n\
         $F tune -j disk.img\n$F info --json disk.img | grep '\"format\"'\n$F fsck -fn disk.img\n\
         XDG_RUNTIME_DIR=$PWD $F status\n$F demo --no-mount --kills 1 --seed 1\n";
    let Some(ran) = as_nobody(&place, false, script) else { return };
    let said = ran.ok();
    for part in
        ["here\nhere\n", "ext2 revision 1", "\"format\": \"ext3\"", "nothing wrong", "no fstitch mounts"]
    {
        assert!(said.contains(part), "{part} is not in {said}");
    }
    assert!(said.contains("Kill 1 after"), "{said}");
}

#[test]
fn the_first_ten_minutes_with_fuse() {
    let place = Place::new();
    let script = "$F mkfs ext3 -q disk.img 32M\nmkdir m\n$F mount disk.img m\n\
         mkdir m/etc\necho here > m/etc/hostname\n$F order --on m -- cp m/etc/hostname m/copy\n\
         cd m\n$F depend 'cp copy again' 'rm copy'\ncd ..\ncat m/again\n\
         $F stats m | grep -c flushes\n$F status m | head -1\n\
         kill -9 $($F status --json m | sed -n 's/.*\"pid\": \\([0-9]*\\),/\\1/p')\nsleep 1\n\
         $F status | grep -c 'fstitch umount' || true\n$F umount m\n$F mount disk.img m\nls m\n$F umount m\n$F fsck -fn disk.img\n\
         $F demo --kills 1 --seed 1\n";
    let Some(ran) = as_nobody(&place, true, script) else { return };
    let (said, complained) = (format!("{}{}", ran.out, ran.err), ran.err.clone());
    assert_eq!(ran.code, 0, "{said}");
    for part in
        ["here\n", "disk.img on ", "lost+found", "Mounted with soft updates", "Kill 1 after", "all whole"]
    {
        assert!(said.contains(part), "{part} is not in {said}");
    }
    assert!(!complained.contains("Permission denied"), "{complained}");
}
