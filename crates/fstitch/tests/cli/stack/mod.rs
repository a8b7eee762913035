//! Stacks of volumes served by one process: inner volumes that lose what was written, outer ones that end before them,
//! images that no other tool understands afterwards.

mod ends;

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use ends::{is_dead, wait_until};

use crate::harness::{Place, Ran, fstitch, needs, needs_root, run};

/// Figure 6: `home`, with a journal of its own, in files of `root`.
const FIGURE_6: &str = r#"
[[device]]
name = "disk"
path = "disk.img"

[[volume]]
name = "root"
device = "disk"
consistency = "OUTER"
mount = "root"

[[device]]
name = "home image"
volume = "root"
file = "/images/home.img"

[[device]]
name = "home journal"
volume = "root"
file = "/images/home.journal"

[[volume]]
name = "home"
device = "home image"
journal = "home journal"
consistency = "INNER"
mount = "home"
"#;

/// A volume in a file of another one, without journals of their own devices.
const OF_TWO: &str = r#"
[[device]]
name = "disk"
path = "disk.img"

[[volume]]
name = "root"
device = "disk"
mount = "root"

[[device]]
name = "home image"
volume = "root"
file = "/home.img"

[[volume]]
name = "home"
device = "home image"
mount = "home"
"#;

/// A stack on its way through a test; whatever is still mounted goes with it.
struct Stack {
    file: String,
    mounts: Vec<String>,
}

impl Stack {
    /// Mounts what `text` describes, or says why that is not possible here.
    fn mount(place: &Place, text: &str, mounts: &[&str]) -> Option<Self> {
        let file = place.text("stack.toml");
        fs::write(&file, text).unwrap();
        let mounts = mounts.iter().map(|mount| place.text(mount)).collect();
        let ran = fstitch(&format!("mount --stack {file}"));
        let lacks = ["/dev/fuse", "fusermount3 is not installed", "is not permitted"];
        if ran.code != 0 && lacks.iter().any(|lack| ran.err.contains(lack)) {
            println!("skipped: {}", ran.err.trim());
            return None;
        }
        ran.ok();
        Some(Self { file, mounts })
    }

    #[track_caller]
    fn end(self) {
        fstitch(&format!("umount -q --stack {}", self.file)).ok();
        assert!(self.pid().is_none(), "nobody serves it any more");
    }

    /// The process that serves it.
    fn pid(&self) -> Option<u64> {
        self.mounts.iter().find_map(|mount| status(mount)?["pid"].as_u64())
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        for mount in self.mounts.iter().rev() {
            // After `end` nothing is mounted there any more, which is as well.
            let _ = fstitch(&format!("umount -q --lazy {mount}"));
        }
    }
}

/// What `status --json` says of a mount; `None` if nobody answers.
fn status(mount: &str) -> Option<serde_json::Value> {
    let ran = fstitch(&format!("status --json {mount}"));
    if ran.out.is_empty() {
        // Nobody listens, or whoever did is about to end.
        return None;
    }
    let mut found: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    Some(found[0].take())
}

/// The images of Figure 6: an outer volume of the wanted kind with an inner one and its journal inside.
fn images(place: &Place, outer: &str) {
    let at = |name: &str| place.text(name);
    let format = if ["soft", "sync", "async"].contains(&outer) { "ext2" } else { "ext3" };
    // The smallest journal, so that large operations are larger than it.
    let journal = if format == "ext3" { "-J size=1" } else { "" };
    fstitch(&format!("mkfs {format} -q -b 1024 {journal} {} 32M", at("disk.img"))).ok();
    fs::create_dir(place.at("images")).unwrap();
    fstitch(&format!("mkfs ext2 -q -b 1024 {} 12M", at("images/home.img"))).ok();
    fstitch(&format!("mkfs journal -q -b 1024 {} 2M", at("images/home.journal"))).ok();
    fstitch(&format!("tune --journal-device {} {}", at("images/home.journal"), at("images/home.img"))).ok();
    fstitch(&format!("cp -r {} {}:/", at("images"), at("disk.img"))).ok();
    fs::remove_dir_all(place.at("images")).unwrap();
    place.directory("root");
    place.directory("home");
}

fn figure_6(outer: &str, inner: &str) -> String {
    FIGURE_6.replace("OUTER", outer).replace("INNER", inner)
}

/// Has both checkers look at every image, the inner ones taken out of the outer one.
#[track_caller]
fn judge(place: &Place) {
    let at = |name: &str| place.text(name);
    fstitch(&format!("fsck -fn {}", at("disk.img"))).ok();
    for name in ["home.img", "home.journal"] {
        fstitch(&format!("cp {}:/images/{name} {}", at("disk.img"), at(name))).ok();
    }
    fstitch(&format!("fsck -fn --journal {} {}", at("home.journal"), at("home.img"))).ok();
    if needs("e2fsck") {
        run("e2fsck", ["-fn", &at("disk.img")]).ok();
        run("e2fsck", ["-fn", "-j", &at("home.journal"), &at("home.img")]).ok();
    }
}

/// Makes, changes and removes files.
fn work(at: PathBuf) {
    fs::create_dir(at.join("dir")).unwrap();
    for no in 0..60_u8 {
        let file = at.join(format!("dir/{no}"));
        fs::write(&file, vec![no; 9_000]).unwrap();
        if no % 3 == 0 {
            fs::remove_file(&file).unwrap();
        } else if no % 7 == 0 {
            fs::rename(&file, at.join(format!("{no}"))).unwrap();
        }
    }
    fs::File::open(&at).unwrap().sync_all().unwrap();
}

#[track_caller]
fn has_worked(ls: &Ran) {
    let names: Vec<&str> = ls.out.split_whitespace().collect();
    assert!(names.contains(&"1") && !names.contains(&"3") && !names.contains(&"7"), "{ls:?}");
}

#[test]
fn figure_6_works_with_every_pair_of_mechanisms() {
    for (outer, inner) in [
        ("soft", "ordered"),
        ("soft", "full"),
        ("soft", "metadata"),
        ("metadata", "ordered"),
        ("ordered", "full"),
        ("async", "soft"),
        ("sync", "ordered"),
        ("full", "soft"),
    ] {
        let place = Place::new();
        images(&place, outer);
        let Some(stack) = Stack::mount(&place, &figure_6(outer, inner), &["root", "home"]) else { return };
        work(place.at("home"));
        work(place.at("root"));
        let found = status(&place.text("home")).unwrap();
        assert_eq!(found["image"], "root:/images/home.img");
        assert_eq!((&found["format"], &found["consistency"]), (&"ext3".into(), &inner.into()));
        assert_eq!(found["stack"]["volumes"][0]["consistency"], outer);
        stack.end();
        judge(&place);
        has_worked(&fstitch(&format!("ls {}:/dir", place.text("home.img"))));
        has_worked(&fstitch(&format!("ls {}:/dir", place.text("disk.img"))));
    }
}

#[test]
fn ufs_volumes_hold_others_and_lie_in_them() {
    let ufs = "-b 8192 -f 1024";
    holds(&format!("ufs2 {ufs}"), "ext2 -b 1024");
    holds("ext3 -b 1024", &format!("ufs2 {ufs}"));
    holds(&format!("ufs1 --order big {ufs}"), &format!("ufs2 {ufs}"));
}

/// What `mkfs ext4` makes has checksums: each volume has its own.
#[test]
fn volumes_with_checksums_hold_others_and_lie_in_them() {
    holds("ext4 -b 1024", "ext4 -b 1024");
    holds("ext4 -b 1024 -O ^has_journal", "ext4 -b 1024 -O ^has_journal");
    holds("ext4 -b 1024", "ext2 -b 1024");
    holds("ufs2 -b 8192 -f 1024", "ext4 -b 1024");
}

/// Works in a volume and in one in a file of it, kills the process and goes on.
fn holds(outer: &str, inner: &str) {
    let place = Place::new();
    let at = |name: &str| place.text(name);
    fstitch(&format!("mkfs {outer} -q {} 32M", at("disk.img"))).ok();
    fstitch(&format!("mkfs {inner} -q {} 12M", at("home.img"))).ok();
    fstitch(&format!("cp {} {}:/", at("home.img"), at("disk.img"))).ok();
    fs::remove_file(place.at("home.img")).unwrap();
    place.directory("root");
    place.directory("home");
    let (text, mounts) = (OF_TWO, ["root", "home"]);
    let Some(stack) = Stack::mount(&place, text, &mounts) else { return };
    work(place.at("home"));
    work(place.at("root"));
    fs::write(place.at("home/not synced"), vec![1; 100_000]).unwrap();
    let pid = stack.pid().unwrap();
    run("kill", ["-9", &pid.to_string()]).ok();
    wait_until("the process is dead", || is_dead(pid));
    let Some(again) = Stack::mount(&place, text, &mounts) else { return };
    for at in mounts {
        assert_eq!(fs::read(place.at(at).join("dir/1")).unwrap(), vec![1; 9_000]);
        assert!(!place.at(at).join("dir/3").exists());
    }
    // The volume is closed, and its file is read where the other one is still mounted.
    fstitch(&format!("umount {}", at("home"))).ok();
    fs::copy(place.at("root/home.img"), place.at("copy.img")).unwrap();
    again.end();
    drop(stack);
    // What soft updates leave on ext2 is reclaimed in the background, and unmounting stops that.
    let check = |name: &str, made: &str| {
        fstitch(&format!("fsck -fp {}", at(name)));
        fstitch(&format!("fsck -fn {}", at(name))).ok();
        if made.starts_with("ext") {
            run("e2fsck", ["-fn", &at(name)]).ok();
        }
    };
    check("disk.img", outer);
    if inner == "ext4 -b 1024" {
        // With a journal the sums of bitmaps are settled at any moment.
        run("e2fsck", ["-fn", &at("copy.img")]).ok();
    }
    check("copy.img", inner);
    fstitch(&format!("cp {}:/home.img {}", at("disk.img"), at("home.img"))).ok();
    check("home.img", inner);
    has_worked(&fstitch(&format!("ls {}:/dir", at("home.img"))));
}

#[test]
fn a_journal_of_contents_takes_the_inner_volume_as_well() {
    let place = Place::new();
    images(&place, "full");
    let text = figure_6("full", "ordered");
    fs::write(place.at("stack.toml"), &text).unwrap();
    let refused = fstitch(&format!("mount --stack {}", place.text("stack.toml")));
    if refused.err.contains("/dev/fuse") {
        return;
    }
    refused.refused(
        1,
        "volume `home`: consistency `ordered`: the journal of the volume that it is in takes all",
    );
    judge(&place);
    let text = text.replace("consistency = \"ordered\"\n", "");
    let Some(stack) = Stack::mount(&place, &text, &["root", "home"]) else { return };
    work(place.at("home"));
    assert_eq!(status(&place.text("home")).unwrap()["consistency"], "full");
    let large = vec![9; 4 << 20];
    fs::write(place.at("home/large"), &large).unwrap();
    assert!(fs::read(place.at("home/large")).unwrap() == large);
    fs::remove_file(place.at("home/large")).unwrap();
    stack.end();
    judge(&place);
    let outside = text
        .replace("\"/images/home.img\"", "PLACE")
        .replace("volume = \"root\"\nfile = PLACE", "path = \"home.img\"");
    fs::write(place.at("stack.toml"), &outside).unwrap();
    let refused = fstitch(&format!("mount --stack {}", place.text("stack.toml")));
    refused.refused(1, "volume `home`: its journal is in a volume with `full`");
    judge(&place);
}

#[test]
fn a_full_outer_volume_is_no_damage() {
    for (outer, inner) in [("soft", "ordered"), ("ordered", "full"), ("full", "soft")] {
        let place = Place::new();
        images(&place, outer);
        fstitch(&format!("cp {}:/images/home.img {}", place.text("disk.img"), place.text("home.img"))).ok();
        let text = figure_6(outer, inner);
        let Some(stack) = Stack::mount(&place, &text, &["root", "home"]) else { return };
        fs::write(place.at("home/fill-0"), vec![5; 10_000]).unwrap();
        let fill = |name: &str| {
            let full = |no: usize| fs::write(place.at(&format!("{name}/fill-{no}")), vec![7; 700_000]).err();
            (0..60).find_map(full).and_then(|error| error.raw_os_error())
        };
        assert_eq!(fill("root"), Some(28), "ENOSPC");
        // The inner image has holes, but where the outer journal takes contents these were filled at once.
        assert_eq!(fill("home"), Some(28), "ENOSPC");
        assert_eq!(status(&place.text("home")).unwrap()["failure"], "");
        fs::remove_file(place.at("root/fill-0")).unwrap();
        fs::remove_file(place.at("home/fill-0")).unwrap();
        fs::File::open(place.at("root")).unwrap().sync_all().unwrap();
        // The outer volume's space is free when the kernel has forgotten the removed inode, on a loaded machine a while later.
        let write = || fs::write(place.at("home/again"), vec![8; 100_000]);
        let is_full = |done: &std::io::Result<()>| done.as_ref().is_err_and(|e| e.raw_os_error() == Some(28));
        let mut done = write();
        for _ in 0..100 {
            if !is_full(&done) {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
            done = write();
        }
        done.unwrap();
        stack.end();
        judge(&place);
        let again = format!("cat {}:/again", place.text("home.img"));
        assert_eq!(fstitch(&again).ok().len(), 100_000);
    }
}

#[test]
fn disks_partitions_and_mount_points_in_one_another() {
    let place = Place::new();
    let whole = place.text("whole.img");
    let disk = fs::File::create(&whole).unwrap();
    disk.set_len(24 << 20).unwrap();
    // The first partition starts at an odd sector, as on old disks.
    for (at, start, count) in [(446, 63_u32, 16_000_u32), (462, 20_480, 20_000)] {
        disk.write_all_at(&[0x83], at + 4).unwrap();
        disk.write_all_at(&start.to_le_bytes(), at + 8).unwrap();
        disk.write_all_at(&count.to_le_bytes(), at + 12).unwrap();
    }
    disk.write_all_at(&[0x55, 0xaa], 510).unwrap();
    let part = |offset: u64, blocks: u64| {
        fstitch(&format!("mkfs ext3 -q -F -b 1024 -J size=1 --offset {offset} {whole} {blocks}")).ok();
    };
    part(63 * 512, 8000);
    part(20480 * 512, 10_000);
    place.directory("one");
    let mut text = String::new();
    for (no, mount) in [(1, "one"), (2, "one/deep/two")] {
        text += &format!("[[device]]\nname = \"p{no}\"\npath = \"whole.img\"\npartition = {no}\n");
        text += &format!("[[volume]]\nname = \"v{no}\"\ndevice = \"p{no}\"\nmount = \"{mount}\"\n");
    }
    fs::write(place.at("stack.toml"), &text).unwrap();
    // fusermount3 is root when it looks at the inner mount point, and may not look into the outer mount.
    if !needs_root() {
        return;
    }
    let failed = fstitch(&format!("mount --stack {}", place.text("stack.toml")));
    if failed.err.contains("/dev/fuse") || failed.err.contains("is not permitted") {
        println!("skipped: {}", failed.err);
        return;
    }
    failed.refused(1, "volume `v2`: ");
    assert!(status(&place.text("one")).is_none(), "what was mounted before the failure is gone");
    fs::create_dir_all(place.at("deep/two")).unwrap();
    fstitch(&format!("cp --partition 1 -r {} {whole}:/", place.text("deep"))).ok();
    let Some(stack) = Stack::mount(&place, &text, &["one", "one/deep/two"]) else { return };
    work(place.at("one"));
    work(place.at("one/deep/two"));
    let pid = stack.pid().unwrap();
    run("kill", ["-9", &pid.to_string()]).ok();
    wait_until("the process is dead", || is_dead(pid));
    let Some(again) = Stack::mount(&place, &text, &["one", "one/deep/two"]) else { return };
    assert_eq!(fs::read(place.at("one/deep/two/dir/1")).unwrap(), vec![1; 9_000]);
    again.end();
    drop(stack);
    for (no, offset) in [(1, 63 * 512), (2, 20480 * 512)] {
        fstitch(&format!("fsck -fn --partition {no} {whole}")).ok();
        has_worked(&fstitch(&format!("ls --partition {no} {whole}:/dir")));
        if needs("e2fsck") {
            run("e2fsck", ["-fn", &format!("{whole}?offset={offset}")]).ok();
        }
    }
}

/// A volume in a volume in a volume, of which only the innermost is mounted; each mechanism is another one.
#[test]
fn volumes_without_mount_points_are_closed_last() {
    let place = Place::new();
    let at = |name: &str| place.text(name);
    for (format, name, size, inside) in
        [("ext3", "c", 4, None), ("ext3", "b", 8, Some("c")), ("ext2", "a", 16, Some("b"))]
    {
        fstitch(&format!("mkfs {format} -q -b 1024 {} {size}M", at(name))).ok();
        if let Some(inside) = inside {
            fstitch(&format!("cp {} {}:/", at(inside), at(name))).ok();
        }
    }
    let mut text = "cache_size = \"1M\"\n[[device]]\nname = \"a\"\npath = \"a\"\n".to_owned();
    for (outer, inner) in [("a", "b"), ("b", "c")] {
        text += &format!("[[device]]\nname = \"{inner}\"\nvolume = \"{outer}\"\nfile = \"{inner}\"\n");
        text += &format!("[[volume]]\nname = \"{outer}\"\ndevice = \"{outer}\"\n");
    }
    text += "[[volume]]\nname = \"c\"\ndevice = \"c\"\nmount = \"m\"\nconsistency = \"full\"\n";
    place.directory("m");
    let Some(stack) = Stack::mount(&place, &text, &["m"]) else { return };
    // Other tests' mounts are listed as well, and `status` fails while one of them is dead.
    let drawn = fstitch("status").out;
    assert!(drawn.contains("         └─ volume c: ext3, full, read-write, mounted on "), "{drawn}");
    assert!(drawn.contains("volume b: ext3, ordered, read-write, not mounted"), "{drawn}");
    work(place.at("m"));
    assert_eq!(fstitch(&format!("stats --json {}", at("m"))).code, 0);
    fstitch(&format!("fsck --online {}", at("m"))).ok();
    stack.end();
    for (outer, inner) in [("a", Some("b")), ("b", Some("c")), ("c", None)] {
        fstitch(&format!("fsck -fn {}", at(outer))).ok();
        if needs("e2fsck") {
            run("e2fsck", ["-fn", &at(outer)]).ok();
        }
        if let Some(inner) = inner {
            fstitch(&format!("cp {}:/{inner} {}", at(outer), at(inner))).ok();
        }
    }
    has_worked(&fstitch(&format!("ls {}:/dir", at("c"))));
}

/// The blocks of code of the document's example, in their order.
fn example() -> Vec<&'static str> {
    let document = include_str!("../../../../../docs/stack.md");
    let parts = document.split("```").skip(1).step_by(2);
    let code = parts.filter_map(|part| part.strip_prefix("sh\n").or_else(|| part.strip_prefix("toml\n")));
    code.take(3).collect()
}

/// A script that does what the document says, as the user that `run` becomes, with `options` for both volumes.
fn follow(place: &Place, become_user: &str, options: &str) -> Option<Ran> {
    let blocks = example();
    let toml = blocks[1].replace("mount = ", &format!("options = \"{options}\"\nmount = "));
    fs::create_dir(place.at("here")).unwrap();
    let everybody = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    fs::set_permissions(place.at("here"), everybody).unwrap();
    fs::set_permissions(place.at("."), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    fs::write(place.at("stack.toml"), toml).unwrap();
    let head = "set -eu\nunset XDG_RUNTIME_DIR || true\nfstitch() { ../fstitch \"$@\"; }\n";
    let script = format!("{head}cd here\ncp ../stack.toml .\n{}{}", blocks[0], blocks[2]);
    fs::write(place.at("script"), script).unwrap();
    // The path to where cargo builds may be closed to others, and /dev/fuse may be root's alone.
    fs::copy(crate::harness::PROGRAM, place.at("fstitch")).unwrap();
    let device = "mknod fuse c 10 229 && chmod 666 fuse && mount --bind fuse /dev/fuse || exit 77";
    let ran = place.in_namespace(&format!("{device}\n{become_user} sh script\n"))?;
    if ran.code == 77 {
        println!("skipped: no device node may be made here: {}", ran.err.trim());
        return None;
    }
    Some(ran)
}

#[test]
fn the_example_of_the_document_runs() {
    if !needs_root() || !needs("e2fsck") {
        return;
    }
    let nobody = "setpriv --reuid=65534 --regid=65534 --clear-groups";
    for (user, options) in [("", "rw"), (nobody, "uid=65534,gid=65534")] {
        if !user.is_empty() && (!needs("setpriv") || !needs("fusermount3")) {
            return;
        }
        let place = Place::new();
        let Some(ran) = follow(&place, user, options) else { return };
        let said = format!("{}{}", ran.out, ran.err);
        let out = ran.ok();
        let drawn = ["ext2, soft", "ext3, ordered, read-write, journal on home journal"];
        assert!(drawn.iter().all(|line| out.contains(line)), "{said}");
        let home = format!("{}:/hello", place.text("here/home.img"));
        assert_eq!(fstitch(&format!("cat {home}")).ok(), "hello\n");
    }
}

#[test]
fn nothing_is_mounted_by_a_check() {
    let place = Place::new();
    images(&place, "soft");
    let file = place.text("stack.toml");
    fs::write(&file, figure_6("soft", "ordered")).unwrap();
    let before = fs::read(place.at("disk.img")).unwrap();
    let drawn = fstitch(&format!("mount --stack {file} --check")).ok();
    let (disk, home) = (place.text("disk.img"), place.text("home"));
    assert!(
        drawn.contains(&format!("\ndisk: {disk}\n└─ volume root: ext2, soft, read-write, to be")),
        "{drawn}"
    );
    assert!(drawn.contains(&format!("journal on home journal, to be mounted on {home}\n")), "{drawn}");
    assert!(status(&place.text("root")).is_none());
    assert!(before == fs::read(place.at("disk.img")).unwrap());
    let check = |text: &str| {
        fs::write(&file, text).unwrap();
        fstitch(&format!("mount --stack {file} --check"))
    };
    check("[[volume]]\nname = \"a\"\ndevice = \"b\"\nmount = \"c\"\n")
        .refused(1, "stack.toml:3: volume `a`: there is no device `b`");
    check("[[volume\n").refused(1, "stack.toml:1: ");
    fstitch(&format!("mount --stack {file} {disk} {home}")).refused(2, "cannot be used with");
    fstitch("mount").refused(2, "IMAGE");
    fstitch(&format!("umount --stack {file}")).refused(1, "is mounted");
}

#[test]
fn what_cannot_be_stacked_is_refused_by_name() {
    let place = Place::new();
    images(&place, "soft");
    let before = fs::read(place.at("disk.img")).unwrap();
    let mount = |text: &str| {
        fs::write(place.at("stack.toml"), text).unwrap();
        let mounted = fstitch(&format!("mount --stack {}", place.text("stack.toml")));
        let checked = fstitch(&format!("mount --check --stack {}", place.text("stack.toml")));
        assert_eq!(mounted.err, checked.err);
        assert!(place.at("big.img").exists() || before == fs::read(place.at("disk.img")).unwrap());
        checked
    };
    let text = figure_6("soft", "ordered");
    let no_file = mount(&text.replace("/images/home.img", "/images/other.img"));
    no_file.refused(1, "volume `root`: device `home image`: /images/other.img in it");
    mount(&text.replace("/images/home.img", "/images")).refused(1, "it is no regular file");
    mount(&text.replace("journal = \"home journal\"\n", ""))
        .refused(1, "nothing is on device `home journal`");
    let swapped = text
        .replace("home.img", "x")
        .replace("home.journal", "home.img")
        .replace("\"/images/x\"", "\"/images/home.journal\"");
    mount(&swapped).refused(1, "volume `home`: ");
    let link = text.replace("\"/images/home.journal\"", "\"/images/../images/home.img\"");
    mount(&link).refused(1, "devices `home image` and `home journal` are the same file");
    fstitch(&format!("mkfs ext2 -q -b 4096 {} 8M", place.text("big.img"))).ok();
    fstitch(&format!("cp {} {}:/images/", place.text("big.img"), place.text("disk.img"))).ok();
    mount(&text.replace("/images/home.img", "/images/big.img"))
        .refused(1, "it has blocks of 4096 bytes and the others have 1024");
    let fast = place.text("fast.img");
    fstitch(&format!("mkfs ufs2 -b 8192 -f 1024 -q {fast} 8M")).ok();
    let mut image = fs::read(&fast).unwrap();
    // The superblock's flag that says that there is a journal below.
    image[65_536 + 1312] |= 0x40;
    fs::write(&fast, image).unwrap();
    fstitch(&format!("cp {fast} {}:/images/", place.text("disk.img"))).ok();
    mount(&OF_TWO.replace("/home.img", "/images/fast.img")).refused(1, "gjournal");
    judge(&place);
}

#[test]
fn a_stack_may_be_for_reading_alone() {
    let place = Place::new();
    images(&place, "soft");
    let text = figure_6("soft", "ordered").replace("mount = ", "options = \"ro\"\nmount = ");
    let before = fs::read(place.at("disk.img")).unwrap();
    let Some(stack) = Stack::mount(&place, &text, &["root", "home"]) else { return };
    assert!(place.at("home/lost+found").is_dir());
    assert_eq!(fs::write(place.at("home/a"), "").unwrap_err().raw_os_error(), Some(30), "EROFS");
    stack.end();
    assert!(before == fs::read(place.at("disk.img")).unwrap());
}
