//! Changes inside an image by the words of coreutils that do something else than coreutils, or touch a volume in use.

use std::fs;

use serde_json::Value;

use crate::harness::{Mounted, Place, fstitch, run};

struct Image {
    place: Place,
    path: String,
}

impl Image {
    fn new() -> Self {
        let place = Place::new();
        let path = place.volume("a.img");
        Self { place, path }
    }

    /// Runs a command in which `@/` is the image's root.
    #[track_caller]
    fn does(&self, line: &str) -> String {
        self.tried(line).ok()
    }

    fn tried(&self, line: &str) -> crate::harness::Ran {
        fstitch(&line.replace("@/", &format!("{}:/", self.path)))
    }

    #[track_caller]
    fn listed(&self, path: &str) -> Value {
        let all: Value = serde_json::from_str(&self.does("ls -R --json @/")).unwrap();
        let all = all.as_array().unwrap();
        all.iter().find(|item| item["path"] == path).unwrap_or(&Value::Null).clone()
    }

    fn has(&self, path: &str) -> bool {
        !self.listed(path).is_null()
    }

    #[track_caller]
    fn is_sound(&self) {
        fstitch(&format!("fsck -fn {}", self.path)).ok();
    }
}

#[test]
fn directories_and_files_are_made_moved_linked_and_removed() {
    let image = Image::new();
    image.does("mkdir -p -m 2750 @/a/b/c @/d");
    assert_eq!(image.listed("/a")["mode"], "0755");
    assert_eq!(image.listed("/a/b/c")["mode"], "2750");
    image.does("mkdir -p @/a/b/c");
    image.tried("mkdir @/a").refused(1, "exist");
    image.tried("mkdir @/x/y").refused(1, "/x/y");
    image.does("touch @/d/one @/d/two");
    image.does("ln @/d/one @/d/hard");
    image.does("ln -s ../d/one @/a/soft");
    assert_eq!(image.listed("/d/one")["nlink"], 2);
    assert_eq!(image.listed("/a/soft")["target"], "../d/one");
    image.tried("ln -s other @/a/soft").refused(1, "exist");
    image.does("ln -sfT other @/a/soft");
    assert_eq!(image.listed("/a/soft")["target"], "other");
    image.does("ln -s /etc/x @/a");
    assert_eq!(image.listed("/a/x")["target"], "/etc/x");
    image.does("mv @/d/one @/d/two @/a/b");
    assert!(image.has("/a/b/one") && image.has("/a/b/two") && !image.has("/d/one"));
    image.does("mv @/a/b/one @/a/b/two");
    assert!(!image.has("/a/b/one"));
    image.tried("mv @/a @/a/b").refused(1, "a directory cannot move into itself");
    image.does("mv -n @/d/hard @/a/b/two");
    assert!(image.has("/d/hard"));
    image.does("mv -T @/d @/e");
    assert!(image.has("/e/hard"));
    image.tried("mv -T @/e/hard @/a").refused(1, "directory");
    image.tried("rm @/a").refused(1, "it is a directory: add -r");
    image.tried("rm @/absent @/e/hard").refused(1, "/absent: ");
    assert!(!image.has("/e/hard"), "the others are removed all the same");
    image.does("rm -f @/absent");
    image.tried("rm -rf @/").refused(1, "root directory");
    image.does("rm -r @/a");
    image.does("rm -d @/e");
    assert_eq!(image.does("ls @/"), "lost+found\n");
    image.is_sound();
}

#[test]
fn modes_owners_times_and_sizes_change() {
    let image = Image::new();
    image.does("mkdir -p @/d/e");
    image.does("touch @/d/f @/d/e/g");
    image.does("ln -s f @/d/link");
    image.does("chmod 640 @/d/link");
    assert_eq!(image.listed("/d/f")["mode"], "0640");
    image.does("chmod -R u=rwX,go=rX @/d");
    assert_eq!(
        (&image.listed("/d/f")["mode"], &image.listed("/d/e")["mode"]),
        (&"0644".into(), &"0755".into())
    );
    image.tried("chmod u+q @/d").refused(2, "is no mode");
    image.does("chown 12:34 @/d/link");
    assert_eq!((&image.listed("/d/f")["uid"], &image.listed("/d/f")["gid"]), (&12.into(), &34.into()));
    image.does("chown -h :5 @/d/link");
    assert_eq!((&image.listed("/d/link")["uid"], &image.listed("/d/link")["gid"]), (&0.into(), &5.into()));
    // Names are those of the image first.
    fs::write(image.place.at("passwd"), "root:x:0:0::/:/bin/sh\nroot2:x:7:8::/:/bin/sh\n").unwrap();
    fs::write(image.place.at("group"), "staff-of-image:x:99:\n").unwrap();
    image.does("mkdir @/etc");
    image.does(&format!("cp {} {} @/etc", image.place.text("passwd"), image.place.text("group")));
    image.does("chown -R root2:staff-of-image @/d");
    assert_eq!((&image.listed("/d/e/g")["uid"], &image.listed("/d/e/g")["gid"]), (&7.into(), &99.into()));
    image.does("chown root2: @/d/f");
    assert_eq!(image.listed("/d/f")["gid"], 8);
    image.tried("chown nosuchuser @/d/f").refused(1, "there is no user `nosuchuser`");
    image.does("touch -d 2023-11-14T22:13:20Z @/d/f");
    assert_eq!(image.listed("/d/f")["mtime"], "2023-11-14T22:13:20Z");
    image.does("touch -d @1000000000 -a @/d/f");
    assert_eq!(image.listed("/d/f")["mtime"], "2023-11-14T22:13:20Z");
    image.does("touch -r @/d/f @/d/e/g");
    assert_eq!(image.listed("/d/e/g")["mtime"], "2023-11-14T22:13:20Z");
    image.does("touch -c @/d/absent");
    assert!(!image.has("/d/absent"));
    image.tried("touch -d yesterday @/d/f").refused(2, "is no date");
    image.does("truncate -s 1M @/d/f @/d/new");
    assert_eq!(
        (&image.listed("/d/f")["size_bytes"], &image.listed("/d/new")["used_bytes"]),
        (&1_048_576.into(), &0.into())
    );
    image.does("truncate -s -1K @/d/f");
    assert_eq!(image.listed("/d/f")["size_bytes"], 1_047_552);
    image.tried("truncate -s 1 @/d").refused(1, "it is a directory");
    image.is_sound();
}

#[test]
fn ranges_of_files_come_and_go() {
    let place = Place::new();
    let path = place.text("a.img");
    fstitch(&format!("mkfs ext4 -q -b 1024 {path} 32M")).ok();
    let image = Image { place, path };
    let letters = |text: &str| text.chars().flat_map(|letter| [letter; 1024]).collect::<String>();
    fs::write(image.place.at("f"), letters("abcdefgh")).unwrap();
    image.does(&format!("cp {} @/f", image.place.text("f")));
    let shown = |letter: &str| image.does("cat @/f") == letters(letter);
    image.does("fallocate -c -o 1K -l 2K @/f");
    assert!(shown("adefgh"));
    image.does("fallocate --insert-range -o 2K --length 3K @/f");
    assert!(shown("ad\0\0\0efgh"));
    image.does("fallocate -p -o 6K -l 1K @/f");
    assert!(shown("ad\0\0\0e\0gh"));
    image.does("fallocate -z -n -l 1K @/f");
    assert!(shown("\0d\0\0\0e\0gh"));
    assert_eq!(image.listed("/f")["used_bytes"], 5 << 10);
    image.does("fallocate -n -l 12K @/f");
    let listed = image.listed("/f");
    assert_eq!((&listed["size_bytes"], &listed["used_bytes"]), (&(9 << 10).into(), &(13 << 10).into()));
    image.does("fallocate -l 20K @/f @/new");
    // The first one has more extents than its inode holds.
    for (name, used) in [("/f", 21 << 10), ("/new", 20 << 10)] {
        let listed = image.listed(name);
        assert_eq!((&listed["size_bytes"], &listed["used_bytes"]), (&(20 << 10).into(), &used.into()));
    }
    image.tried("fallocate -c -o 100 -l 1K @/f").refused(1, "multiples of its blocks of 1024 bytes");
    image.tried("fallocate -c -o 10K -l 10K @/f").refused(1, "within its 20480 bytes");
    image.tried("fallocate -i -o 20K -l 1K @/f").refused(1, "within its 20480 bytes");
    image.tried("fallocate -p -l 1K @/absent").refused(1, "/absent");
    image.tried("fallocate -l 1K @/lost+found").refused(1, "it is a directory");
    image.is_sound();
    let old = Image::new();
    old.does("touch @/f");
    old.does("fallocate -l 20K @/f");
    old.tried("fallocate -c -l 4K @/f").refused(1, "on ext4 with a journal");
    old.is_sound();
}

#[test]
fn wrong_places_are_wrong_usage() {
    let image = Image::new();
    image.tried("rm /nosuch/file").refused(2, "write IMAGE:/path");
    image.tried("mv @/a b.img:/a").refused(2, "fstitch cp");
    image.tried("ln b.img:/a @/a").refused(2, "in one image");
    image.tried("chown : @/a").refused(2, "neither a user nor a group");
    image.tried("truncate @/a").refused(2, "--size");
    image.tried("fallocate @/a").refused(2, "--length");
    image.tried("fallocate -l 1K -c -i @/a").refused(2, "cannot be used with");
    image.tried("fallocate -l 1K -n -c @/a").refused(2, "cannot be used with");
    fstitch("rm /nosuch.img:/a").refused(1, "/nosuch.img");
}

#[test]
fn a_volume_that_is_mounted_is_refused() {
    let image = Image::new();
    let at = image.place.directory("m");
    let Some(mounted) = Mounted::new("", &image.path, &at) else { return };
    fs::write(mounted.path().join("a"), "a").unwrap();
    for line in [
        "rm @/a",
        "mkdir @/d",
        "mv @/a @/b",
        "ln -s x @/l",
        "chmod 0 @/a",
        "chown 1 @/a",
        "touch @/a",
        "truncate -s 0 @/a",
        "fallocate -l 1 @/a",
    ] {
        image.tried(line).refused(1, &format!("it is mounted at {at}"));
    }
    fstitch(&format!("tune -L x {}", image.path)).refused(1, &format!("it is mounted at {at}"));
    mounted.end();
    assert_eq!(image.does("cat @/a"), "a");
}

#[test]
fn label_and_uuid_change_in_every_copy_of_the_superblock() {
    let place = Place::new();
    let image = place.text("a.img");
    fstitch(&format!("mkfs ext3 -q -b 1024 {image} 40M")).ok();
    fstitch(&format!("tune -L root -U 6ba7b810-9dad-11d1-80b4-00c04fd430c8 {image}")).ok();
    let info: Value = serde_json::from_str(&fstitch(&format!("info --json {image}")).ok()).unwrap();
    assert_eq!(
        (&info["label"], &info["uuid"]),
        (&"root".into(), &"6ba7b810-9dad-11d1-80b4-00c04fd430c8".into())
    );
    fstitch(&format!("fsck -fn {image}")).ok();
    if crate::harness::needs("e2fsck") {
        run("e2fsck", ["-fn", &image]).ok();
        // By the copy in group 1.
        let said = run("e2fsck", ["-fn", "-b", "8193", "-B", "1024", &image]);
        assert!(said.out.contains("root: "), "{}{}", said.out, said.err);
    }
    fstitch(&format!("tune -L 12345678901234567 {image}")).refused(1, "17 bytes");
    fstitch(&format!("tune -U nonsense {image}")).refused(2, "is no UUID");
    fstitch(&format!("tune -U random {image}")).ok();
    let again: Value = serde_json::from_str(&fstitch(&format!("info --json {image}")).ok()).unwrap();
    assert_ne!(again["uuid"], info["uuid"]);
    // The journal's device knows the volume by its UUID.
    let journal = place.text("journal.img");
    fstitch(&format!("mkfs journal -q -b 1024 {journal} 4M")).ok();
    let other = place.text("b.img");
    fstitch(&format!("mkfs ext3 -q -J device={journal} {other} 8M")).ok();
    fstitch(&format!("tune -U random {other}")).refused(1, "take the journal away first");
    fstitch(&format!("tune -L other {other}")).ok();
}
