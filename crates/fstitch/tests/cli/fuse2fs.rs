//! Programs that call fuse2fs and get us: a command line that is not understood, a descriptor for a path, a user who is root
//! only in a namespace of his own. And mounts that are only tried.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};

use crate::harness::{Mounted, PROGRAM, Place, fstitch, needs, needs_root, run};

/// The user whom these tests become.
const NOBODY: u32 = 65_534;

#[test]
fn a_check_says_whether_a_mount_would_work_and_changes_nothing() {
    let place = Place::new();
    let (image, at) = (place.text("a.img"), place.directory("m"));
    fstitch(&format!("mkfs ext3 -q {image} 16M")).ok();
    let before = fs::read(&image).unwrap();
    let said = fstitch(&format!("mount --check {image}")).ok();
    assert!(said.contains("ext3, could be mounted with consistency `ordered`"), "{said}");
    assert!(fstitch(&format!("mount --check -o ro {image}")).ok().contains("for reading only"));
    let found: serde_json::Value =
        serde_json::from_str(&fstitch(&format!("mount --check --json -o ro {image}")).ok()).unwrap();
    assert_eq!((&found["read_only"], &found["was_unclean"]), (&true.into(), &false.into()), "{found}");
    assert_eq!(fs::read(&image).unwrap(), before);
    fstitch(&format!("mount --check -o consistency=full,writeback_cache {image}"))
        .refused(2, "exclude each other");
    fstitch(&format!("mount --check {image} {}", place.text("absent"))).refused(1, "mount point");
    fstitch(&format!("mount --check {}", place.text("absent"))).refused(1, "No such file");
    // A feature that only allows reading: verity.
    let mut raw = before.clone();
    raw[1024 + 0x65] |= 0x80;
    fs::write(place.at("feature.img"), &raw).unwrap();
    assert_ne!(fstitch(&format!("mount --check {}", place.text("feature.img"))).code, 0);
    let Some(mounted) = Mounted::new("", &image, &at) else { return };
    fstitch(&format!("mount --check {image}")).refused(1, &format!("it is mounted at {at}"));
    fstitch(&format!("mount --check -o ro {} {at}", place.text("feature.img"))).refused(1, "is mounted at");
    mounted.end();
    fstitch(&format!("mount --check {image} {at}")).ok();
}

#[test]
fn a_program_that_calls_fuse2fs_gets_a_mount() {
    let place = Place::new();
    let (image, at) = (place.text("a.img"), place.directory("m"));
    fstitch(&format!("mkfs ext2 -q --offset 4K {image} 8M")).ok();
    if Mounted::new("--offset 4K", &image, &at).map(Mounted::end).is_none() {
        return;
    }
    symlink(PROGRAM, place.at("fuse2fs")).unwrap();
    let fuse2fs = place.text("fuse2fs");
    let line = ["-o", "offset=4096,kernel_cache,errors=continue,no_default_opts", &image, &at];
    run(&fuse2fs, line).ok();
    fs::write(place.at("m/a"), "through fuse2fs").unwrap();
    fstitch(&format!("umount -q {at}")).ok();
    assert_eq!(fstitch(&format!("cat --offset 4K {image}:/a")).ok(), "through fuse2fs");
    // A descriptor, of a file that has no name any more: nothing but the descriptor leads there.
    let script = format!(
        "exec 7<>{image}; cp {image} {image}.kept; rm {image}; {PROGRAM} fuse2fs /proc/self/fd/7 {at} -o ro,offset=4096,fakeroot && cat {at}/a && {PROGRAM} umount -q {at}"
    );
    assert_eq!(run("sh", ["-c", &script]).ok(), "through fuse2fs");
    run(&fuse2fs, ["-o", "offset=4096", &place.text("absent"), &at]).refused(32, "No such file");
    run(&fuse2fs, [&at]).refused(1, "usage: fuse2fs IMAGE DIRECTORY");
    run(&fuse2fs, ["-o", "nosuchthing", &image, &at]).refused(32, "`nosuchthing` is not an option");
    assert!(run(&fuse2fs, ["-V"]).ok().contains("fuse2fs of fstitch"));
    assert!(run(&fuse2fs, ["-h"]).ok().contains("fakeroot"));
}

#[test]
fn who_is_root_only_in_a_namespace_mounts_a_layer_over_a_container() {
    if !needs_root() || !needs("setpriv") || !needs("unshare") {
        return;
    }
    let place = Place::new();
    for name in [".", "home"] {
        fs::create_dir_all(place.at(name)).unwrap();
        fs::set_permissions(place.at(name), fs::Permissions::from_mode(0o755)).unwrap();
    }
    chown(place.at("home"), Some(NOBODY), Some(NOBODY)).unwrap();
    fs::copy(PROGRAM, place.at("fuse2fs")).unwrap();
    // As a container's runtime does it: root of a user namespace of its own, the image by a descriptor, behind other things
    // in its file, and what it holds laid over the directories of the container.
    let inner = "set -eu\nexec 5<>disk.img\nPATH=/usr/sbin:/usr/bin:/sbin:/bin\n\
         ../fuse2fs -o fakeroot,offset=1048576,allow_other /proc/self/fd/5 upper\n\
         mkdir -p upper/upper upper/work\necho changed > upper/upper/file\n\
         if mount -t overlay -o userxattr,lowerdir=lower,upperdir=upper/upper,workdir=upper/work overlay merged 2> why; then\n\
         cat merged/file merged/other\necho new > merged/new\ncat upper/upper/new\numount merged\n\
         else echo no overlay here: $(cat why) >&2; printf 'changed\\nbelow\\nnew\\n'; echo new > upper/upper/new; fi\n\
         umount upper\n";
    let script = format!(
        "mknod fuse c 10 229 && chmod 666 fuse && mount --bind fuse /dev/fuse || exit 77\n\
         cd home\ncat > inner <<'END'\n{inner}END\n\
         cat > script <<'END'\nset -eu\nunset XDG_RUNTIME_DIR || true\nmkdir lower upper merged\necho below > lower/file\necho below > lower/other\n\
         ln -s ../fuse2fs fstitch\n./fstitch mkfs ext3 -q --offset 1M disk.img 16M\n\
         unshare -rm true || exit 77\nunshare -rm sh inner\n\
         for i in 1 2 3 4 5 6 7 8 9 10; do ./fstitch cat --offset 1M disk.img:/upper/new && break; sleep 1; done\nEND\n\
         setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups sh script\n"
    );
    let Some(ran) = place.in_namespace(&script) else { return };
    if ran.code == 77 {
        println!("skipped: no device node or no user namespace may be made here: {}", ran.err.trim());
        return;
    }
    println!("{}", ran.err);
    assert_eq!(ran.ok(), "changed\nbelow\nnew\nnew\n");
}
